"""A hundred single ops beside eager PyTorch: how long each takes, and which of them PyTorch does faster.

    python -m benchmarks.ops                   every op, 1 thread, half a minute of measuring
    python -m benchmarks.ops conv cumsum       ops whose name contains a word

In: nothing. Out: a line for every op: our microseconds, eager PyTorch's time over ours, seconds of compiling; what
PyTorch does faster is marked. Both are called in turn in one process, and the shortest call of each counts.
Not its business: odd shapes beside round ones (``benchmarks/odd_shapes.py``), whole nets (``benchmarks/latency.py``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.interleaved import Lambda, Tensors, best_times, compiled, geometric_mean
from torch import nn, randint, randn

Ops = dict[str, tuple[Callable[..., Any], Tensors]]


class First(nn.Module):
    """A recurrent layer's outputs without its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def elementwise() -> Ops:
    x, y = randn(512, 512), randn(512, 512)
    channels, shorts = randn(1, 64, 56, 56), randint(1, 999, (512, 512), dtype=torch.int16)
    functions: dict[str, Callable[..., Any]] = {
        "exp": torch.exp, "sin": torch.sin, "tanh": torch.tanh, "erf": torch.erf, "sigmoid": torch.sigmoid,
        "log": lambda x: torch.log(x.abs()), "pow": lambda x: x.abs() ** 1.7, "sqrt": lambda x: x.abs().sqrt(),
        "clamp": lambda x: x.clamp(-1, 1), "gelu": nn.GELU(), "gelu tanh": nn.GELU("tanh"), "tril": torch.tril,
    }  # fmt: skip
    return {
        **{name: (function, (x,)) for name, function in functions.items()},
        "add": (torch.add, (x, y)),
        "add row": (torch.add, (x, randn(512))),
        "add column": (torch.add, (x, randn(512, 1))),
        "add channel": (torch.add, (channels, randn(64, 1, 1))),
        "div": (torch.div, (x, y)),
        "where": (lambda x, y: torch.where(x > 0, x, y), (x, y)),
        "int64 add": (torch.add, (randint(0, 9, (512, 512)), randint(0, 9, (512, 512)))),
        "f64 mul add": (lambda x, y: x * y + x, (x.double(), y.double())),
        "f16 mul add": (lambda x, y: x * y + x, (x.half(), y.half())),
        "fmod": (torch.fmod, (x, y)),
        "remainder by 3": (lambda x: x % 3, (x,)),
        "int16 divide": (torch.floor_divide, (shorts.flip(0), shorts)),
        "lgamma": (torch.lgamma, (x,)),
    }


def movement() -> Ops:
    image = randn(1, 64, 56, 56)
    pixels = randint(0, 255, (1, 224, 224, 3), dtype=torch.uint8)
    return {
        "transpose": (lambda x: x.t().contiguous(), (randn(512, 512),)),
        "permute 0213": (lambda x: x.permute(0, 2, 1, 3).contiguous(), (randn(4, 64, 8, 64),)),
        "permute 3210": (lambda x: x.permute(3, 2, 1, 0).contiguous(), (randn(8, 16, 32, 64),)),
        "nhwc to nchw": (lambda x: x.permute(0, 3, 1, 2).contiguous(), (randn(1, 224, 224, 3),)),
        "nchw to nhwc": (lambda x: x.permute(0, 2, 3, 1).contiguous(), (randn(1, 3, 224, 224),)),
        "image to float": (lambda x: (x.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.2, (pixels,)),
        "concat axis 1": (lambda x, y: torch.cat([x, y], 1), (randn(64, 100, 32), randn(64, 50, 32))),
        "concat last": (lambda x, y: torch.cat([x, y], -1), (randn(512, 30), randn(512, 50))),
        "stack last": (lambda x, y: torch.stack([x, y], -1), (randn(512, 512), randn(512, 512))),
        "pad": (lambda x: F.pad(x, (1, 1, 1, 1)), (image,)),
        "reflect pad": (lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"), (image,)),
        "roll": (lambda x: x.roll(3, 1), (randn(64, 1024),)),
        "flip": (lambda x: x.flip(1), (randn(64, 1024),)),
        "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), (randn(64, 512),)),
        "pixel shuffle": (nn.PixelShuffle(2), (randn(1, 64, 28, 28),)),
        "unfold": (lambda x: F.unfold(x, 3, padding=1), (randn(1, 16, 28, 28),)),
        "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (randn(1, 64, 28, 28),)),
        "nearest": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), (randn(1, 64, 28, 28),)),
        "bicubic": (lambda x: F.interpolate(x, size=(50, 50), mode="bicubic"), (randn(1, 16, 28, 28),)),
        "grid_sample": (partial(F.grid_sample, align_corners=False), (randn(1, 16, 28, 28), randn(1, 28, 28, 2))),
    }


def indexing() -> Ops:
    table = randn(128, 256)
    return {
        "embedding": (nn.Embedding(1000, 256), (randint(0, 1000, (1, 128)),)),
        "gather": (lambda x, i: torch.gather(x, 1, i), (table, randint(0, 256, (128, 64)))),
        "rows": (lambda x, i: x[i], (randn(1000, 256), randint(0, 1000, (300,)))),
        "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), (table, randint(0, 128, (64, 256)), randn(64, 256))),
        "index_add": (lambda x, i, s: x.index_add(0, i, s), (table, randint(0, 128, (64,)), randn(64, 256))),
        "one_hot": (lambda x: F.one_hot(x, 100), (randint(0, 100, (512,)),)),
        "cumsum last": (lambda x: x.cumsum(1), (table,)),
        "cumsum first": (lambda x: x.cumsum(0), (table,)),
        "topk": (lambda x: x.topk(10)[0], (randn(64, 1000),)),
        "topk 100": (lambda x: x.topk(100)[0], (randn(64, 1000),)),
        "topk of 8400": (lambda x: x.topk(300)[0], (randn(1, 8400),)),
        "topk of experts": (lambda x: x.topk(8)[0], (randn(256, 128),)),
        "kthvalue": (lambda x: x.kthvalue(100)[0], (randn(64, 1000),)),
        "median": (lambda x: x.median(1)[0], (randn(64, 1000),)),
        "searchsorted": (torch.searchsorted, (randn(1000).sort()[0], randn(4096))),
        "logcumsumexp": (lambda x: x.logcumsumexp(1), (randn(64, 1000),)),
        "embedding bag": (nn.EmbeddingBag(1000, 64), (randint(0, 1000, (128, 20)),)),
        "sort": (lambda x: x.sort()[0], (randn(64, 1000),)),
        "argmax last": (lambda x: x.argmax(1), (randn(64, 1000),)),
        "argmax first": (lambda x: x.argmax(0), (randn(64, 1000),)),
    }


def reductions() -> Ops:
    square, image = randn(512, 512), randn(1, 64, 56, 56)
    return {
        "sum first": (lambda x: x.sum(0), (square,)),
        "sum last": (lambda x: x.sum(1), (square,)),
        "sum middle": (lambda x: x.sum(1), (randn(16, 64, 128),)),
        "sum all": (torch.sum, (square,)),
        "max first": (lambda x: x.amax(0), (square,)),
        "std": (lambda x: x.std(1), (square,)),
        "mean of images": (lambda x: x.mean((2, 3)), (randn(1, 256, 14, 14),)),
        "softmax middle": (lambda x: x.softmax(1), (randn(8, 64, 128),)),
        "softmax first": (lambda x: x.softmax(0), (randn(64, 512),)),
        "logsumexp": (lambda x: x.logsumexp(1), (randn(256, 512),)),
        "layer norm": (nn.LayerNorm(256), (randn(128, 256),)),
        "rms norm": (nn.RMSNorm(256), (randn(128, 256),)),
        "batch norm": (nn.BatchNorm2d(64), (image,)),
        "group norm": (nn.GroupNorm(8, 64), (image,)),
        "instance norm": (nn.InstanceNorm2d(64), (image,)),
        "avg pool": (nn.AvgPool2d(2), (image,)),
        "max pool": (nn.MaxPool2d(2), (image,)),
        "adaptive pool": (nn.AdaptiveAvgPool2d(7), (randn(1, 64, 30, 30),)),
        "max pool 1d": (nn.MaxPool1d(2), (randn(8, 64, 256),)),
        "fft": (lambda x: torch.fft.rfft(x).abs(), (randn(64, 512),)),
        "cdist": (torch.cdist, (randn(100, 64), randn(120, 64))),
    }


def products() -> Ops:
    x, y, wide = randn(256, 256), randn(256, 256), randn(1024, 1024)
    integers = randint(0, 9, (128, 128))
    heads = randn(2, 64, 8, 32)
    return {
        "mm": (torch.mm, (x, y)),
        "mm a^T": (lambda a, b: a.t() @ b, (x, y)),
        "mm b^T": (lambda a, b: a @ b.t(), (x, y)),
        "mm bf16": (torch.mm, (x.bfloat16(), y.bfloat16())),
        "mm f64": (torch.mm, (x.double(), y.double())),
        "mm int64": (torch.mm, (integers, integers)),
        "matrix vector": (torch.mv, (wide, randn(1024))),
        "vector matrix": (torch.matmul, (randn(1024), wide)),
        "dot": (torch.dot, (randn(100000), randn(100000))),
        "outer": (torch.outer, (randn(512), randn(512))),
        "bmm small": (torch.bmm, (randn(256, 8, 8), randn(256, 8, 8))),
        "einsum heads": (lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k), (heads, heads)),
        "einsum of three": (lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), tuple(randn(3, 100, 100))),
        "swiglu": (lambda x, a, b: F.silu(x @ a) * (x @ b), (randn(16, 256), randn(256, 512), randn(256, 512))),
        "two linear": (nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10)), (randn(5, 300),)),
        "transformer layer": (nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), (randn(2, 50, 128),)),
        "gru both ways": (First(nn.GRU(64, 64, bidirectional=True, batch_first=True)), (randn(2, 50, 64),)),
        "lstm of two": (First(nn.LSTM(64, 64, 2, batch_first=True)), (randn(1, 50, 64),)),
        "rnn": (First(nn.RNN(64, 64, batch_first=True)), (randn(4, 50, 64),)),
    }


def convolutions() -> Ops:
    image = randn(1, 32, 60, 60)
    return {
        "conv weights given 3x3": (partial(F.conv2d, padding=1), (randn(1, 64, 28, 28), randn(64, 64, 3, 3))),
        "conv weights given 1x1": (F.conv2d, (randn(1, 64, 28, 28), randn(128, 64, 1, 1))),
        "conv 5x5 stride 3": (nn.Conv2d(32, 48, 5, stride=3), (image,)),
        "conv dilated": (nn.Conv2d(32, 48, 3, dilation=2, padding=2), (image,)),
        "conv of 1 channel": (nn.Conv2d(1, 32, 3, padding=1), (randn(1, 1, 64, 64),)),
        "conv to 1 channel": (nn.Conv2d(32, 1, 3, padding=1), (randn(1, 32, 64, 64),)),
        "conv transposed 4x4": (nn.ConvTranspose2d(64, 32, 4, 2, 1), (randn(1, 64, 28, 28),)),
        "conv transposed 2x2": (nn.ConvTranspose2d(64, 32, 2, 2), (randn(1, 64, 28, 28),)),
        "conv 1d depthwise": (nn.Conv1d(64, 64, 5, padding=2, groups=64), (randn(1, 64, 500),)),
        "conv 3d": (nn.Conv3d(8, 16, 3, padding=1), (randn(1, 8, 8, 28, 28),)),
    }


def every_op() -> Ops:
    """All ops by name: a function or a module, and its inputs."""
    return elementwise() | movement() | indexing() | reductions() | products() | convolutions()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="ops whose name contains one of these (default: all)")
    parser.add_argument("--seconds", type=float, default=0.25, help="time for each op")
    a = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ratios: list[float] = []
    print(f"{'op':<24} {'us':>9} {'torch / ours':>13} {'compile s':>10}")
    for name, (function, inputs) in every_op().items():
        if a.words and not any(word in name for word in a.words):
            continue
        module = (function if isinstance(function, nn.Module) else Lambda(function)).eval()
        start = time.perf_counter()
        try:
            own = compiled(module, inputs)
            took = time.perf_counter() - start
            with torch.no_grad():
                ours, eager = best_times([own, partial(module, *inputs)], a.seconds)
        except Exception as e:
            print(f"{name:<24} fails: {type(e).__name__}: {str(e).splitlines()[0]}", flush=True)
            continue
        ratios.append(eager / ours)
        mark = " <- slower" if eager < ours else ""
        print(f"{name:<24} {ours * 1e6:9.1f} {eager / ours:13.2f} {took:10.2f}{mark}", flush=True)
    faster = sum(r >= 1 for r in ratios)
    print(f"{faster} of {len(ratios)} at least as fast as PyTorch; geometric mean {geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
