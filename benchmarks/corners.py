"""Corners that were slow once, beside eager PyTorch: decompositions, kernels known at run time, Fourier, backward.

    python -m benchmarks.corners                          every corner, 1 thread, two minutes
    python -m benchmarks.corners conv svd                 corners whose name contains a word
    python -m benchmarks.corners --only "svd 64x64"       one corner; may be given more than once
    python -m benchmarks.corners --repeat 3 --json FILE   the whole table three times, and the figures as data

In: nothing. Out: a line for every corner: our microseconds, eager's, ours over eager's; what takes more than 1.2 of
eager's time is marked. Both are called in turn in one process, and the shortest call of each counts. With ``--json`` a
list of such lines as objects: ``name``, ``ours_us``, ``eager_us``, ``ratio``.
Not its business: ops that were never slow (``benchmarks/ops.py``), whole nets (``benchmarks/latency.py``).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.interleaved import Lambda, Tensors, best_times, compiled, geometric_mean
from torch import nn, randn

Corners = dict[str, tuple[Callable[..., Any], Tensors]]
Calls = tuple[Callable[[], Any], Callable[[], Any]]

LIMIT = 1.2
"""Times eager's time: what takes longer is marked."""


def symmetric(*shape: int) -> torch.Tensor:
    x = randn(*shape)
    return x + x.mT


def positive(*shape: int) -> torch.Tensor:
    x = randn(*shape)
    return x @ x.mT + shape[-1] * torch.eye(shape[-1])


def decompositions() -> Corners:
    made: Corners = {}
    for shape in ((256, 256), (64, 64), (97, 97), (512, 3, 3), (512, 8, 8), (100, 15, 15), (8, 32, 32)):
        name = "x".join(map(str, shape))
        x, s, p = randn(*shape), symmetric(*shape), positive(*shape)
        made |= {
            f"eigvalsh {name}": (torch.linalg.eigvalsh, (s,)), f"eigh {name}": (torch.linalg.eigh, (s,)),
            f"svdvals {name}": (torch.linalg.svdvals, (x,)), f"svd {name}": (torch.linalg.svd, (x,)),
            f"pinv {name}": (torch.linalg.pinv, (x,)), f"matrix_rank {name}": (torch.linalg.matrix_rank, (x,)),
            f"cholesky {name}": (torch.linalg.cholesky, (p,)), f"qr {name}": (torch.linalg.qr, (x,)),
            f"solve {name}": (torch.linalg.solve, (p, x)), f"inv {name}": (torch.linalg.inv, (p,)),
            f"det {name}": (torch.linalg.det, (x / 8,)),
            f"solve_triangular {name}": (partial(torch.linalg.solve_triangular, upper=False), (p.tril(), x)),
        }  # fmt: skip
    tall = randn(300, 40)
    made["svd 300x40"] = partial(torch.linalg.svd, full_matrices=False), (tall,)
    made["pinv 300x40"] = torch.linalg.pinv, (tall,)
    made["eigh 128x128 f64"] = (torch.linalg.eigh, (symmetric(128, 128).double(),))
    return made


def conv(x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> tuple[Callable[..., Any], Tensors]:
    """A convolution whose kernel is an input."""
    f = F.conv1d if len(x) == 3 else F.conv2d
    return lambda x, w: f(x, w, **options), (randn(*x), randn(*w))


def transposed(x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> tuple[Callable[..., Any], Tensors]:
    return lambda x, w: F.conv_transpose2d(x, w, **options), (randn(*x), randn(*w))


def convolutions() -> Corners:
    up = (1, 64, 32, 32)
    return {
        "conv as SiamRPN": conv((1, 256, 29, 29), (256, 1, 5, 5), groups=256),
        "conv depthwise 3x3": conv((2, 96, 28, 28), (96, 1, 3, 3), padding=1, groups=96),
        "conv 5x5 in 4 groups": conv((1, 64, 32, 32), (64, 16, 5, 5), padding=2, groups=4),
        "conv 3x3 in 8 groups": conv((1, 96, 30, 30), (96, 12, 3, 3), padding=1, groups=8),
        "conv 3x3 in 2 groups, stride 2": conv((2, 64, 33, 33), (96, 32, 3, 3), stride=2, padding=1, groups=2),
        "conv 3x3 dense": conv(up, (64, 64, 3, 3), padding=1),
        "conv 1d in 4 groups": conv((2, 64, 400), (64, 16, 5), padding=2, groups=4),
        "transposed 4x4 stride 2": transposed(up, (64, 32, 4, 4), stride=2, padding=1),
        "transposed 3x3 stride 2": transposed(up, (64, 64, 3, 3), stride=2),
        "transposed 2x2 stride 2": transposed(up, (64, 48, 2, 2), stride=2),
        "transposed 3x3": transposed(up, (64, 64, 3, 3), padding=1),
        "transposed 4x4 in 4 groups": transposed(up, (64, 16, 4, 4), stride=2, padding=1, groups=4),
        "transposed as StyleGAN": transposed((1, 128, 32, 32), (128, 64, 3, 3), stride=2, groups=2),
        "modulated as StyleGAN": (modulated, (randn(2, 64, 32, 32), randn(64, 64, 3, 3), randn(2, 64))),
    }


def modulated(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """StyleGAN 2: a kernel for each sample, as groups."""
    n, c, h, d = x.shape
    each = w[None] * s[:, None, :, None, None]
    each = each * torch.rsqrt(each.square().sum((2, 3, 4), keepdim=True) + 1e-8)
    made = F.conv2d(x.reshape(1, n * c, h, d), each.reshape(-1, c, *w.shape[2:]), padding=1, groups=n)
    return made.reshape(n, -1, h, d)


def as_complex(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x)


def of_pairs(transform: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of complex numbers as one of pairs of real ones."""
    return lambda x: torch.view_as_real(transform(as_complex(x)))


def numbers() -> Corners:
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(as_complex(x) @ as_complex(y))

    def spectrum(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.fft.rfft(x))

    def back(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(as_complex(x))

    made: Corners = {}
    for n in (32, 100, 256, 384):
        made[f"complex matmul {n}"] = (product, (randn(n, n, 2), randn(n, n, 2)))
    made["complex matmul 4x64x64"] = (product, (randn(4, 64, 64, 2), randn(4, 64, 64, 2)))
    for n in (1024, 4096, 6000, 16384, 65536):
        made[f"rfft {n}"] = (spectrum, (randn(n),))
        made[f"irfft {n}"] = (back, (randn(n // 2 + 1, 2),))
    for shape in ((16, 16384), (256, 256), (64, 512), (37, 1000)):
        name, n = "x".join(map(str, shape)), shape[-1]
        made[f"rfft {name}"] = (spectrum, (randn(*shape),))
        made[f"irfft {name}"] = (back, (randn(*shape[:-1], n // 2 + 1, 2),))
        made[f"fft {name}"] = (of_pairs(torch.fft.fft), (randn(*shape, 2),))
        made[f"fft2 {name}"] = (of_pairs(torch.fft.fft2), (randn(*shape, 2),))
        made[f"rfft2 {name}"] = (lambda x: torch.view_as_real(torch.fft.rfft2(x)), (randn(*shape),))
    for shape in ((4, 32, 64, 64), (48, 32, 32), (8, 128, 128), (6, 224, 224), (512, 512)):
        name, half = "x".join(map(str, shape)), (*shape[:-1], shape[-1] // 2 + 1)
        made[f"fft2 {name}"] = (of_pairs(torch.fft.fft2), (randn(*shape, 2),))
        made[f"rfft2 {name}"] = (lambda x: torch.view_as_real(torch.fft.rfft2(x)), (randn(*shape),))
        made[f"irfft2 {name}"] = (lambda x: torch.fft.irfft2(as_complex(x)), (randn(*half, 2),))
    made["fft 65536"] = (of_pairs(torch.fft.fft), (randn(65536, 2),))
    x = torch.rand(512, 512) * 1.98 - 0.99
    made |= {
        f"erfinv {name}": (torch.erfinv, (y,)) for name, y in (("f32", x), ("f64", x.double()), ("500", x[0, :500]))
    }
    return made


def pools() -> Corners:
    """Adaptive pools whose windows differ, and the gradients of pools by their operand, indices given."""
    aten, image, small = torch.ops.aten, randn(8, 64, 56, 56), randn(8, 64, 30, 30)
    made: Corners = {}
    for n, out in ((10, 7), (5, 7), (30, 7), (13, 6)):
        mean = partial(F.adaptive_avg_pool2d, output_size=out)
        made[f"adaptive mean {n}x{n} to {out}"] = (mean, (randn(8, 64, n, n),))
    for out in (5, 7, 15):
        kept, at = F.adaptive_max_pool2d(small, out, return_indices=True)
        grad = randn(8, 64, out, out)
        made[f"adaptive mean's gradient 30x30 to {out}"] = (aten._adaptive_avg_pool2d_backward, (grad, small))
        made[f"adaptive maximum's gradient 30x30 to {out}"] = (aten.adaptive_max_pool2d_backward, (grad, small, at))
    for kernel, stride, pad in ((3, 2, 1), (3, 1, 1), (2, 2, 0)):
        kept, at = F.max_pool2d(image, kernel, stride, pad, return_indices=True)
        name = f"gradient {kernel}x{kernel} stride {stride}"
        window = ([kernel, kernel], [stride, stride], [pad, pad])
        made[f"maximum's {name}"] = (max_gradient(*window), (torch.randn_like(kept), image, at))
        made[f"mean's {name}"] = (mean_gradient(*window), (torch.randn_like(kept), image))
    return made


def max_gradient(kernel: list[int], stride: list[int], pad: list[int]) -> Callable[..., torch.Tensor]:
    call = torch.ops.aten.max_pool2d_with_indices_backward
    return lambda grad, x, at: call(grad, x, kernel, stride, pad, [1, 1], False, at)


def mean_gradient(kernel: list[int], stride: list[int], pad: list[int]) -> Callable[..., torch.Tensor]:
    call = torch.ops.aten.avg_pool2d_backward
    return lambda grad, x: call(grad, x, kernel, stride, pad, False, True, None)


class SmallNet(nn.Module):
    """Convolutions, norms, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.body(x)
        return made


class SmallTransformer(nn.Module):
    """Embedding, attention, layer norms, a product."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.second = nn.Embedding(100, 64), nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, at: torch.Tensor) -> torch.Tensor:
        x = self.embed(at)
        n, t, _ = x.shape
        q, k, v = (p.reshape(n, t, 4, 16).transpose(1, 2) for p in self.qkv(self.first(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, 64)
        x = x + self.out(y)
        made: torch.Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return made


def step(model: nn.Module, call: Callable[..., torch.Tensor], x: torch.Tensor) -> Callable[[], Any]:
    def once() -> torch.Tensor:
        for p in model.parameters():
            p.grad = None
        loss = call(x).square().mean()
        loss.backward()
        return loss

    return once


def training() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    return {
        "training a CNN": (SmallNet(), randn(8, 3, 32, 32)),
        "training a transformer": (SmallTransformer(), torch.randint(0, 100, (4, 64))),
    }


def calls_of(name: str, function: Callable[..., Any], inputs: Tensors) -> Calls:
    ours = compiled(Lambda(function), inputs)
    return ours, lambda: function(*inputs)


def training_calls(model: nn.Module, x: torch.Tensor) -> Calls:
    torch._dynamo.reset()
    return step(model, torch.compile(model, backend="tilewright"), x), step(model, model, x)


def all_makers() -> dict[str, Callable[[], Calls]]:
    """What compiles each corner, and gives our call and eager's."""
    corners = {**decompositions(), **convolutions(), **numbers(), **pools()}
    makers: dict[str, Callable[[], Calls]] = {n: partial(calls_of, n, *corner) for n, corner in corners.items()}
    return makers | {n: partial(training_calls, *corner) for n, corner in training().items()}


def chosen_makers(words: list[str], only: list[str]) -> dict[str, Callable[[], Calls]]:
    """The corners named ``only``, and those whose name contains one of ``words``; all of them without either."""
    makers = all_makers()
    if unknown := [name for name in only if name not in makers]:
        raise SystemExit(f"no corner is named {unknown[0]!r}; without --only the names of all are printed")
    if not words and not only:
        return makers
    return {n: make for n, make in makers.items() if n in only or any(word in n for word in words)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("words", nargs="*", help="corners whose name contains one of these (default: all)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="the corner of this name")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each corner")
    parser.add_argument("--repeat", type=int, default=1, help="how often the table is made")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures as data")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    makers = chosen_makers(args.words, args.only)
    for _ in range(args.repeat):
        ratios = []
        for name, make in makers.items():
            calls = make()
            with torch.set_grad_enabled(name.startswith("training")):
                ours, eager = (1e6 * t for t in best_times(calls, args.seconds))
            ratios.append(ours / eager)
            rows.append({"name": name, "ours_us": ours, "eager_us": eager, "ratio": ours / eager})
            mark = "  <--" if ours > LIMIT * eager else ""
            print(f"{name:40} {ours:10.1f} us  eager {eager:10.1f} us  {ours / eager:8.2f}{mark}", flush=True)
        print(f"{len(ratios)} corners, geometric mean {geometric_mean(ratios):.2f} of eager's time")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
