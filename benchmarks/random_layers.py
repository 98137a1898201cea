"""Random single layers beside ONNX Runtime, OpenVINO and eager PyTorch: shapes that nobody chose.

    python -m benchmarks.random_layers --seed 1 --seconds 300           all families in turn, for so long
    python -m benchmarks.random_layers pool depthwise --seconds 60      some
    python -m benchmarks.random_layers attention --precision bf16 -t 2  in bf16 (beside PyTorch's autocast), 2 threads
    python -m benchmarks.random_layers --scaling                        2 threads, and 1 thread's time over 2 threads'

In: nothing. Out: a line for every layer, slowest first: the least peer's time over ours, our microseconds, each peer's
time over ours, and a mark where the outputs differ from eager's in fp32 by over ``TOLERANCE`` of the largest; then, for
each family, how many there are, how many of them are slower than a peer, and the geometric mean. ONNX Runtime has no
bf16. Inputs are fp32; images come and go in N, C, H, W order, as a lone layer's do. Engines are called in turn in one
process; the shortest call of each counts.
Not its business: nets (``other_nets``), chosen shapes (``odd_shapes``), single ops (``ops``).
"""

from __future__ import annotations

import argparse
import io
import itertools
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import torch
from benchmarks.interleaved import Lambda, Tensors, best_times, geometric_mean
from torch import nn
from torch.nn import functional

import tilewright
from tilewright.runtime.python.model import CompiledModel

Layer = tuple[str, nn.Module, Tensors]
CHANNELS = (3, 8, 16, 17, 24, 32, 48, 64, 96, 100, 128, 160, 192, 256, 320, 384, 512, 768, 1024)
MOST = 3e9
"""Multiplications of a layer; larger ones are drawn again."""
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
TURN = {1: 2e-4, 2: 0.02}
"""Seconds of an engine's turn by threads: with several, those of the engine before must have gone to sleep."""


def linear(r: random.Random) -> Layer:
    n, k, m = r.choice([1, 2, 4, 7, 16, 50, 64, 128, 197, 256, 512, 1000]), r.choice(CHANNELS), r.choice(CHANNELS)
    k, m = k * r.choice([1, 2, 4]), m * r.choice([1, 2, 4])
    return f"linear {n}x{k}x{m}", nn.Linear(k, m), (torch.randn(n, k),)


def mlp(r: random.Random) -> Layer:
    n, width, hidden = r.choice([1, 8, 32, 64, 128, 256, 512]), r.choice([64, 256, 1024]), r.choice([128, 512, 2048])
    act = r.choice([nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh])
    layers = (nn.Linear(width, hidden), act(), nn.Linear(hidden, hidden), act(), nn.Linear(hidden, width))
    return f"mlp {n}x{width}x{hidden} {act.__name__}", nn.Sequential(*layers), (torch.randn(n, width),)


def matmul(r: random.Random) -> Layer:
    b, k = r.choice([1, 4, 12, 64]), r.choice([16, 32, 64, 100, 256, 512])
    n, m = (r.choice([1, 4, 8, 16, 33, 64, 128, 256, 500]) for _ in range(2))
    if r.random() < 0.5:
        turned = Lambda(lambda x, y: x @ y.transpose(1, 2))
        return f"matmul {b}x{n}x{k}x{m} turned", turned, (torch.randn(b, n, k), torch.randn(b, m, k))
    return f"matmul {b}x{n}x{k}x{m}", Lambda(lambda x, y: x @ y), (torch.randn(b, n, k), torch.randn(b, k, m))


def attention(r: random.Random) -> Layer:
    heads, size = r.choice([1, 2, 8, 12]), r.choice([16, 32, 40, 64, 80, 96, 128, 256])
    n, m = (r.choice([1, 16, 50, 77, 128, 197, 384, 512, 1024, 2048, 4096]) for _ in range(2))
    m = n if r.random() < 0.7 else m
    if 2 * heads * n * m * size > MOST:
        return attention(r)
    causal = n == m and r.random() < 0.3
    attend = Lambda(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=causal))
    q, k, v = (torch.randn(1, heads, rows, size) for rows in (n, m, m))
    return f"attention {heads}x{n}x{m} of {size}{' causal' if causal else ''}", attend, (q, k, v)


def convolution(r: random.Random) -> Layer:
    c, out = r.choice(CHANNELS), r.choice(CHANNELS)
    h, w, b = r.choice([5, 7, 14, 20, 28, 56, 75, 112]), r.choice([7, 14, 28, 33, 56, 112]), r.choice([1, 1, 2, 4])
    k = r.choice([(1, 1), (3, 3), (3, 3), (5, 5), (7, 7), (1, 3), (3, 1), (1, 7), (7, 1), (2, 2)])
    stride, dilation = r.choice([1, 1, 1, 2]), r.choice([1, 1, 1, 2])
    if b * c * out * h * w * k[0] * k[1] > MOST:
        return convolution(r)
    pads = tuple(n // 2 * dilation for n in k)
    label = f"convolution {b}x{c}x{h}x{w} to {out} {k} stride {stride} dilation {dilation}"
    return label, nn.Conv2d(c, out, k, stride, pads, dilation), (torch.randn(b, c, h, w),)


def depthwise(r: random.Random) -> Layer:
    c, n, k, stride = r.choice(CHANNELS), r.choice([7, 14, 28, 30, 56, 112]), r.choice([3, 5, 7]), r.choice([1, 1, 2])
    b = r.choice([1, 1, 4])
    return (
        f"depthwise {b}x{c}x{n} {k} stride {stride}",
        nn.Conv2d(c, c, k, stride, k // 2, groups=c),
        (torch.randn(b, c, n, n),),
    )


def grouped(r: random.Random) -> Layer:
    g, n, stride = r.choice([2, 4, 8, 16, 32]), r.choice([7, 14, 28, 56]), r.choice([1, 1, 2])
    c, out = g * r.choice([2, 4, 8, 16, 32]), g * r.choice([2, 4, 8, 16, 32])
    if c // g * out * n * n * 9 > MOST:
        return grouped(r)
    label = f"grouped {c}x{n} to {out} in {g} stride {stride}"
    return label, nn.Conv2d(c, out, 3, stride, 1, groups=g), (torch.randn(1, c, n, n),)


def transposed(r: random.Random) -> Layer:
    c, out, n = r.choice(CHANNELS), r.choice(CHANNELS), r.choice([7, 8, 16, 32, 64])
    k, stride, pad, rest = r.choice(
        [(2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1), (3, 1, 1, 0), (5, 2, 2, 1), (8, 4, 2, 0)]
    )
    if c * out * n * n * k * k > MOST:
        return transposed(r)
    layer = nn.ConvTranspose2d(c, out, k, stride, pad, rest)
    return f"transposed {c}x{n} to {out} {k} stride {stride}", layer, (torch.randn(1, c, n, n),)


def sequence(r: random.Random) -> Layer:
    c, n, k = r.choice(CHANNELS), r.choice([50, 100, 333, 1000, 4000]), r.choice([1, 3, 5, 7, 15, 31])
    out, stride, dilation = r.choice(CHANNELS), r.choice([1, 1, 2, 4]), r.choice([1, 1, 2, 8])
    if r.random() < 0.3:
        return f"sequence {c}x{n} depthwise {k}", nn.Conv1d(c, c, k, 1, k // 2, groups=c), (torch.randn(1, c, n),)
    if c * out * n * k > MOST:
        return sequence(r)
    label = f"sequence {c}x{n} to {out} {k} stride {stride} dilation {dilation}"
    return label, nn.Conv1d(c, out, k, stride, dilation * (k // 2), dilation), (torch.randn(1, c, n),)


def volume(r: random.Random) -> Layer:
    c, out, n = r.choice([1, 3, 16, 32, 64, 100]), r.choice([16, 32, 64, 100]), r.choice([8, 14, 20, 28])
    k, stride = r.choice([1, 3, 3]), r.choice([1, 1, 2])
    if c * out * n**3 * k**3 > MOST:
        return volume(r)
    return (
        f"volume {c}x{n} to {out} {k} stride {stride}",
        nn.Conv3d(c, out, k, stride, k // 2),
        (torch.randn(1, c, n, n, n),),
    )


def pool(r: random.Random) -> Layer:
    k, stride, pads = r.choice([(2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 1, 2), (7, 7, 0)])
    layer = r.choice([nn.MaxPool2d, nn.AvgPool2d])
    c, n = r.choice(CHANNELS), r.choice([7, 14, 28, 56, 112])
    return f"pool {layer.__name__} {c}x{n} {k} stride {stride}", layer(k, stride, pads), (torch.randn(1, c, n, n),)


def norm(r: random.Random) -> Layer:
    n, c, side = r.choice([1, 16, 128, 197, 1000, 4096]), r.choice(CHANNELS), r.choice([7, 14, 28, 56])
    rows, image = (torch.randn(n, c),), (torch.randn(1, c, side, side),)
    many = 32 * r.choice([1, 2, 4, 8, 10])
    return r.choice(
        [
            (f"norm layer {n}x{c}", nn.LayerNorm(c), rows),
            (f"norm softmax {n}x{c}", nn.Softmax(-1), rows),
            (f"norm log-softmax {n}x{c}", nn.LogSoftmax(-1), rows),
            (f"norm batch {c}x{side}", nn.BatchNorm2d(c), image),
            (f"norm instance {c}x{side}", nn.InstanceNorm2d(c), image),
            (f"norm group {many}x{side}", nn.GroupNorm(32, many), (torch.randn(1, many, side, side),)),
        ]
    )


def arithmetic(r: random.Random) -> Layer:
    functions: list[Callable[..., Any]] = [
        functional.gelu, functional.silu, torch.sigmoid, torch.tanh, torch.exp, functional.relu, functional.hardswish,
        functional.mish, torch.erf, torch.sin, torch.log, functional.elu, functional.softplus, torch.sqrt, torch.floor,
    ]  # fmt: skip
    if r.random() < 0.5:
        f, n = r.choice(functions), r.choice([100, 10_000, 1_000_000])
        return f"arithmetic {f.__name__} {n}", Lambda(f), (torch.rand(n) + 0.1,)
    shape = (r.choice([1, 3, 16, 64]), r.choice([1, 7, 64, 200]), r.choice([1, 10, 64, 300]))
    other = [n if r.random() < 0.6 else 1 for n in shape]
    f = r.choice([torch.add, torch.mul, torch.div, torch.maximum])
    return f"arithmetic {f.__name__} {shape} {other}", Lambda(f), (torch.randn(shape), torch.rand(other) + 0.1)


def reduction(r: random.Random) -> Layer:
    shape, axis = [r.choice([1, 4, 17, 64, 200]) for _ in range(3)], r.randrange(3)
    f = r.choice([torch.sum, torch.mean, torch.amax, torch.argmax, torch.logsumexp, torch.cumsum, torch.prod])
    return f"reduction {f.__name__} {shape} {axis}", Lambda(lambda x: f(x, axis)), (torch.randn(shape),)


def movement(r: random.Random) -> Layer:
    shape, axis = [r.choice([2, 3, 8, 17, 64, 100]) for _ in range(4)], r.randrange(4)
    order, x, y = r.sample(range(4), 4), torch.randn(shape), torch.randn(shape)
    c, n = r.choice([3, 16, 64]), r.choice([14, 28, 64])
    mode, factor = r.choice([("nearest", 2), ("bilinear", 2), ("bilinear", 1.5), ("bicubic", 2)])
    return r.choice(
        [
            (f"movement permute {shape} {order}", Lambda(lambda x: x.permute(order).contiguous()), (x,)),
            (f"movement cat {shape} {axis}", Lambda(lambda x, y: torch.cat([x, y], axis)), (x, y)),
            (f"movement stack {shape}", Lambda(lambda x, y: torch.stack([x, y], -1)), (x, y)),
            (f"movement pad {shape}", Lambda(lambda x: functional.pad(x, (1, 2, 3, 0))), (x,)),
            (f"movement flip {shape} {axis}", Lambda(lambda x: x.flip(axis)), (x,)),
            (f"movement upsample {mode} {factor} {c}x{n}", nn.Upsample(scale_factor=factor, mode=mode), (
                torch.randn(1, c, n, n),)),
            (f"movement shuffle {16 * c}", nn.PixelShuffle(2), (torch.randn(1, 16 * c, 40, 40),)),
        ]
    )  # fmt: skip


class Sequence(nn.Module):
    """The sequence of a recurrent layer, without its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)[0]


def recurrent(r: random.Random) -> Layer:
    kind, hidden = r.choice([nn.LSTM, nn.GRU, nn.RNN]), r.choice([20, 32, 64, 100, 128, 256, 512])
    width, batch, steps = r.choice([16, 40, 64, 128, 300]), r.choice([1, 1, 2, 8, 32]), r.choice([10, 50, 128])
    layers, both = r.choice([1, 1, 2]), r.random() < 0.3
    label = f"recurrent {kind.__name__} {width} to {hidden} batch {batch} steps {steps} layers {layers}"
    return (
        f"{label}{' both ways' if both else ''}",
        Sequence(kind(width, hidden, layers, bidirectional=both)),
        (torch.randn(steps, batch, width),),
    )


def gate(r: random.Random) -> Layer:
    """Activations with weights or gates, masks, and sums over named axes."""
    n, c, side = r.choice([16, 64, 197, 512]), r.choice([32, 64, 96, 192, 256]), r.choice([14, 28, 56])
    rows, image = torch.randn(n, 2 * c), torch.randn(1, c, side, side)
    heads, size = r.choice([4, 8, 12]), r.choice([32, 64, 128])
    scores, mask = torch.randn(heads, size, size), torch.rand(size, size) > 0.5
    q, k = (torch.randn(2, size, heads, 32) for _ in range(2))
    scale = torch.rand(2 * c)
    return r.choice(
        [
            (f"gate glu {n}x{2 * c}", nn.GLU(-1), (rows,)),
            (f"gate glu {c}x{side} channels", nn.GLU(1), (image,)),
            (f"gate prelu {c}x{side}", nn.PReLU(c), (image,)),
            (f"gate leaky {c}x{side}", nn.LeakyReLU(0.1), (image,)),
            (f"gate scale {n}x{2 * c}", Lambda(lambda x, y: x + y * scale), (rows, torch.randn(n, 2 * c))),
            (f"gate masked {heads}x{size}", Lambda(lambda x, m: x.masked_fill(m, -1e9)), (scores, mask)),
            (f"gate where {n}x{2 * c}", Lambda(lambda x: torch.where(x > 0, x, x * scale)), (rows,)),
            (f"gate einsum {heads}x{size}", Lambda(lambda x, y: torch.einsum("bqhd,bkhd->bhqk", x, y)), (q, k)),
            (f"gate softmax channels {c}x{side}", nn.Softmax(1), (image,)),
            (f"gate normalize {c}x{side}", Lambda(lambda x: functional.normalize(x, dim=1)), (image,)),
        ]
    )


def lookup(r: random.Random) -> Layer:
    """Elements that the data choose."""
    n, c, rows = r.choice([8, 64, 300, 512]), r.choice([32, 96, 128, 300]), r.choice([100, 1000, 5000])
    x, i = torch.randn(n, rows), torch.randint(0, rows, (n,))
    side, points = r.choice([16, 32, 64]), r.choice([16, 32, 64])
    grid = torch.rand(1, points, points, 2) * 2 - 1

    def loss(x: torch.Tensor, i: torch.Tensor) -> Any:
        return -torch.gather(functional.log_softmax(x, -1), 1, i[:, None])

    return r.choice(
        [
            (f"lookup embedding {n} of {rows}x{c}", nn.Embedding(rows, c), (i,)),
            (f"lookup rows {n} of {rows}x{c}", Lambda(lambda x, i: x[i]), (torch.randn(rows, c), i)),
            (f"lookup loss {n}x{rows}", Lambda(loss), (x, i)),
            (f"lookup largest {n}x{rows}", Lambda(lambda x: torch.topk(x, 5)[0]), (x,)),
            (f"lookup argmax {n}x{rows}", Lambda(lambda x: x.argmax(-1)), (x,)),
            (f"lookup one-hot {n}x{rows}", Lambda(lambda i: functional.one_hot(i, rows).float()), (i,)),
            (f"lookup sample {c}x{side} at {points}", Lambda(
                lambda x, g: functional.grid_sample(x, g, align_corners=False)), (torch.randn(1, c, side, side), grid)),
        ]
    )  # fmt: skip


def arrangement(r: random.Random) -> Layer:
    """Parts of tensors moved together or apart: rotary embedding, splits, rolls, windows, triangles, resizing."""
    c, side, n = r.choice([16, 64, 96]), r.choice([14, 28, 56]), r.choice([64, 128, 197])
    heads, k = r.choice([4, 8, 12]), r.choice([1, 3])
    image, x = torch.randn(1, c, side, side), torch.randn(1, heads, n, 64)
    cos, sin = torch.randn(n, 64), torch.randn(n, 64)
    size = r.choice([7, 20, 45, 64])
    return r.choice(
        [
            (f"arrangement rotary {heads}x{n}", Lambda(
                lambda x, c, s: x * c + torch.cat([-x[..., 32:], x[..., :32]], -1) * s), (x, cos, sin)),
            (f"arrangement split {heads}x{n}", Lambda(
                lambda x: torch.split(x, 16, -1)[0] * torch.split(x, 16, -1)[1]), (x,)),
            (f"arrangement roll {c}x{side}", Lambda(lambda x: torch.roll(x, (k, k), (2, 3))), (image,)),
            (f"arrangement unfold {c}x{side}", nn.Unfold(3, padding=1), (image,)),
            (f"arrangement triangle {heads}x{n}", Lambda(torch.tril), (torch.randn(heads, n, n),)),
            (f"arrangement reflect {c}x{side}", nn.ReflectionPad2d(k), (image,)),
            (f"arrangement unshuffle {c}x{side}", nn.PixelUnshuffle(2), (image,)),
            (f"arrangement resize {c}x{side} to {size}", Lambda(
                lambda x: functional.interpolate(x, size=(size, size), mode="bilinear")), (image,)),
            (f"arrangement nearest {c}x{side} by {k + 1}", nn.Upsample(scale_factor=k + 1), (image,)),
        ]
    )  # fmt: skip


FAMILIES: dict[str, Callable[[random.Random], Layer]] = {
    f.__name__: f
    for f in (
        linear, mlp, matmul, attention, convolution, depthwise, grouped, transposed, sequence, volume, pool, norm,
        arithmetic, reduction, movement, recurrent, gate, lookup, arrangement,
    )
}  # fmt: skip


def exported(module: nn.Module, inputs: Tensors) -> bytes:
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), inputs, file, dynamo=False, opset_version=17)
    return file.getvalue()


def peers_of(
    module: nn.Module, inputs: Tensors, model: bytes, threads: int, precision: str
) -> dict[str, Callable[[], object]]:
    """A call of each peer: ONNX Runtime in fp32 only, OpenVINO with the precision's hint, PyTorch with autocast."""
    import onnxruntime
    import openvino

    arrays = [x.numpy() for x in inputs]
    peers: dict[str, Callable[[], object]] = {}
    if precision == "fp32":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        feed = {i.name: x for i, x in zip(session.get_inputs(), arrays, strict=True)}
        peers["ONNX Runtime"] = lambda: session.run(None, feed)
    core = openvino.Core()
    hint = {"fp32": "f32", "bf16": "bf16"}[precision]
    hints = {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads}
    request = core.compile_model(core.read_model(model, b""), "CPU", hints).create_infer_request()
    peers["OpenVINO"] = lambda: request.infer(arrays, share_inputs=True)

    def eager() -> object:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            return module(*inputs)

    peers["PyTorch"] = eager
    return peers


def measure(
    module: nn.Module, inputs: Tensors, seconds: float, threads: int, precision: str, scaling: bool
) -> tuple[float, float | None, dict[str, float], float]:
    """Our shortest seconds, with one thread too if ``scaling``, each peer's, and the difference from eager's."""
    model, arrays = exported(module, inputs), [x.numpy() for x in inputs]

    def compiled(threads: int) -> CompiledModel:
        return tilewright.compile(onnx.load_from_string(model), threads=threads, precision=precision, cache=False)

    ours = compiled(threads)
    with torch.no_grad():
        want, got = module(*inputs).numpy().astype(np.float64), np.asarray(ours(*arrays)).astype(np.float64)
        error = float(abs(got - want).max() / max(abs(want).max(), 1e-9))
        peers = peers_of(module, inputs, model, threads, precision)
        single = compiled(1) if scaling else None
        alone = best_times([lambda: single(*arrays)], seconds / 4)[0] if single is not None else None
        first, *rest = best_times([lambda: ours(*arrays), *peers.values()], seconds, TURN.get(threads, TURN[2]))
    return first, alone, dict(zip(peers, rest, strict=True)), error


def drawn(names: list[str], seed: int, seconds: float) -> Iterator[tuple[str, Layer]]:
    """Layers of all families in turn, for so many seconds."""
    r, end = random.Random(seed), time.perf_counter() + seconds
    torch.manual_seed(seed)
    for name in itertools.cycle(names):
        if time.perf_counter() > end:
            return
        yield name, FAMILIES[name](r)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", help=f"of {', '.join(FAMILIES)} (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300.0, help="time for all together")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--precision", choices=TOLERANCE, default="fp32")
    parser.add_argument("--scaling", action="store_true", help="our time with one thread over that with the threads")
    parser.add_argument("--every", type=float, default=0.2, help="seconds of timing for each layer")
    a = parser.parse_args()
    if unknown := set(a.families) - FAMILIES.keys():
        parser.error(f"no family {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    threads = max(a.threads, 2) if a.scaling else a.threads
    torch.set_num_threads(threads)
    found: list[tuple[float, str, str]] = []
    for family, (label, module, inputs) in drawn(a.families or list(FAMILIES), a.seed, a.seconds):
        ours, alone, peers, error = measure(module, inputs, a.every, threads, a.precision, a.scaling)
        ratios = {name: t / ours for name, t in peers.items()}
        cells = "  ".join(f"{name} {x:.2f}" for name, x in ratios.items())
        scale = f"  scales {alone / ours:.2f}" if alone is not None else ""
        mark = f"  differs by {error:.1e}" if error > TOLERANCE[a.precision] else ""
        found.append((min(ratios.values()), family, f"{label:<70} {ours * 1e6:10.1f} us  {cells}{scale}{mark}"))
    for least, _, line in sorted(found):
        print(f"{least:6.2f}  {line}")
    for family in dict.fromkeys(f for _, f, _ in found):
        least_of = [x for x, f, _ in found if f == family]
        slower = sum(x < 1 for x in least_of)
        print(f"{family:<12} {len(least_of):4d} layers, {slower:3d} slower than a peer, {geometric_mean(least_of):.2f}")
    every = [x for x, _, _ in found]
    print(f"{len(every)} layers, {sum(x < 1 for x in every)} slower than a peer, mean {geometric_mean(every):.2f}")


if __name__ == "__main__":
    main()
