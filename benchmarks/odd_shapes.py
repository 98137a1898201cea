"""Shapes that no rule was written for: speed per FLOP (or byte) beside the nearest round shape, and beside PyTorch.

    python -m benchmarks.odd_shapes                 every family
    python -m benchmarks.odd_shapes conv gru        families whose name contains a word

In: nothing. Out: a line for every odd shape: its microseconds, the share of its round neighbour's speed per unit of
work (at least 0.8 is wanted), and eager PyTorch's time over ours; all three timed in turn in one process.
Not its business: whole nets (``benchmarks/latency.py``), single kernels' limits (``tilewright bench --kernels``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from benchmarks.interleaved import Lambda, Tensors, best_times, compiled

Problem = tuple[torch.nn.Module, Tensors, float]
"""A layer, its inputs, and its work: multiply-adds where it has a product, else elements that it touches."""


@dataclass(frozen=True)
class Family:
    """``build(*shape)`` makes one problem; ``pairs`` are odd shapes with their round neighbours."""

    name: str
    build: Callable[..., Problem]
    pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]


def linear(m: int, n: int, k: int) -> Problem:
    return torch.nn.Linear(k, n), (torch.randn(m, k),), m * n * k


def matmul(batch: int, m: int, n: int, k: int) -> Problem:
    return Lambda(torch.matmul), (torch.randn(batch, m, k), torch.randn(batch, k, n)), batch * m * n * k


def conv2d(batch: int, size: int, c: int, out: int, kh: int, kw: int, stride: int = 1, groups: int = 1) -> Problem:
    layer = torch.nn.Conv2d(c, out, (kh, kw), stride, (kh // 2, kw // 2), groups=groups)
    side = [(size + 2 * (k // 2) - k) // stride + 1 for k in (kh, kw)]
    return layer, (torch.randn(batch, c, size, size),), batch * side[0] * side[1] * out * (c // groups) * kh * kw


def depthwise(batch: int, size: int, c: int, k: int, stride: int = 1) -> Problem:
    return conv2d(batch, size, c, c, k, k, stride, c)


def transposed(batch: int, size: int, c: int, out: int, k: int, stride: int) -> Problem:
    layer = torch.nn.ConvTranspose2d(c, out, k, stride, padding=k // 2)
    return layer, (torch.randn(batch, c, size, size),), batch * size * size * c * out * k * k


def conv1d(batch: int, length: int, c: int, out: int, k: int, stride: int = 1) -> Problem:
    layer = torch.nn.Conv1d(c, out, k, stride, k // 2)
    return layer, (torch.randn(batch, c, length),), batch * ((length - 1) // stride + 1) * c * out * k


def conv3d(batch: int, frames: int, size: int, c: int, out: int, k: int) -> Problem:
    layer = torch.nn.Conv3d(c, out, k, padding=k // 2)
    return layer, (torch.randn(batch, c, frames, size, size),), batch * frames * size * size * c * out * k**3


def attention(batch: int, heads: int, length: int, width: int) -> Problem:
    q, k, v = (torch.randn(batch, heads, length, width) for _ in range(3))
    function = torch.nn.functional.scaled_dot_product_attention
    return Lambda(function), (q, k, v), 2 * batch * heads * length * length * width


def softmax(rows: int, width: int) -> Problem:
    return torch.nn.Softmax(-1), (torch.randn(rows, width),), rows * width


def layer_norm(rows: int, width: int) -> Problem:
    return torch.nn.LayerNorm(width), (torch.randn(rows, width),), rows * width


def max_pool(batch: int, size: int, c: int, k: int, stride: int) -> Problem:
    return torch.nn.MaxPool2d(k, stride, k // 2), (torch.randn(batch, c, size, size),), batch * c * size * size


def lstm(length: int, batch: int, width: int, hidden: int) -> Problem:
    class Outputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.LSTM(width, hidden)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)[0]

    return Outputs(), (torch.randn(length, batch, width),), 4 * length * batch * hidden * (width + hidden)


FAMILIES = (
    Family("linear", linear, [
        ((37, 100, 257), (32, 96, 256)), ((1, 1000, 257), (1, 1024, 256)), ((1000, 17, 300), (1024, 16, 320)),
        ((3, 257, 1000), (4, 256, 1024)), ((1000, 257, 100), (1024, 256, 96)),
    ]),
    Family("matmul", matmul, [
        ((3, 37, 37, 100), (4, 32, 32, 96)), ((17, 100, 17, 257), (16, 96, 16, 256)),
        ((257, 3, 3, 17), (256, 4, 4, 16)),
    ]),
    Family("conv", conv2d, [
        ((1, 37, 17, 100, 3, 3), (1, 36, 16, 96, 3, 3)), ((3, 14, 257, 100, 1, 1), (4, 14, 256, 96, 1, 1)),
        ((1, 37, 100, 100, 5, 5), (1, 36, 96, 96, 5, 5)), ((1, 35, 100, 100, 1, 7), (1, 35, 96, 96, 1, 7)),
        ((1, 57, 100, 100, 3, 3, 3), (1, 57, 96, 96, 3, 3, 3)), ((1, 113, 3, 17, 7, 7, 2), (1, 112, 3, 16, 7, 7, 2)),
        ((1, 37, 102, 102, 3, 3, 1, 6), (1, 36, 96, 96, 3, 3, 1, 6)),
    ]),
    Family("depthwise", depthwise, [
        ((1, 37, 100, 3), (1, 36, 96, 3)), ((1, 57, 257, 3, 2), (1, 56, 256, 3, 2)), ((3, 14, 17, 5), (4, 14, 16, 5)),
    ]),
    Family("transposed", transposed, [((1, 17, 100, 50, 3, 2), (1, 16, 96, 48, 3, 2))]),
    Family("conv1d", conv1d, [
        ((1, 1000, 100, 100, 3), (1, 1024, 96, 96, 3)), ((3, 1000, 17, 257, 5, 3), (4, 1024, 16, 256, 5, 3)),
    ]),
    Family("conv3d", conv3d, [((1, 7, 17, 17, 100, 3), (1, 8, 16, 16, 96, 3))]),
    Family("attention", attention, [
        ((1, 12, 37, 64), (1, 12, 32, 64)), ((3, 5, 257, 40), (4, 4, 256, 40)), ((1, 3, 1000, 17), (1, 4, 1024, 16)),
    ]),
    Family("softmax", softmax, [((1000, 37), (1024, 32)), ((37, 1000), (32, 1024)), ((257, 257), (256, 256))]),
    Family("layer_norm", layer_norm, [((1000, 100), (1024, 96)), ((37, 1000), (32, 1024))]),
    Family("max_pool", max_pool, [((1, 57, 100, 3, 2), (1, 56, 96, 3, 2)), ((3, 37, 17, 3, 3), (4, 36, 16, 3, 3))]),
    Family("lstm", lstm, [((37, 1, 100, 100), (32, 1, 96, 96)), ((37, 3, 257, 100), (32, 4, 256, 96))]),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="families whose name contains one of these (default: all)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each pair")
    a = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shares = []
    print(f"{'family':<11} {'odd shape':<28} {'us':>9} {'of round':>9} {'torch / ours':>13}")
    for family in FAMILIES:
        if a.words and not any(word in family.name for word in a.words):
            continue
        for odd_shape, round_shape in family.pairs:
            odd, even = family.build(*odd_shape), family.build(*round_shape)
            with torch.no_grad():
                ours, neighbour, eager = best_times(
                    [compiled(*odd[:2]), compiled(*even[:2]), partial(odd[0], *odd[1])], a.seconds
                )
            share = (odd[2] / ours) / (even[2] / neighbour)
            shares.append(share)
            shape = "x".join(map(str, odd_shape))
            print(f"{family.name:<11} {shape:<28} {ours * 1e6:9.1f} {share:9.2f} {eager / ours:13.2f}", flush=True)
    print(f"{sum(s >= 0.8 for s in shares)} of {len(shares)} at 0.8 or more; least {min(shares):.2f}")


if __name__ == "__main__":
    main()
