"""Shapes that no rule was written for: speed per FLOP (or byte) beside the nearest round shape, and beside PyTorch.

    python -m benchmarks.odd_shapes                 every family
    python -m benchmarks.odd_shapes conv gru        families whose name contains a word
    python -m benchmarks.odd_shapes --output x.md   a table of all shapes besides

In: nothing. Out: a line for every odd shape: its microseconds, the share of its round neighbour's speed per unit of
work (at least 0.8 is wanted), and eager PyTorch's time over ours; all three timed in turn in one process. Odd and round
shape run as often right after PyTorch's call, which leaves other things in the caches, as after each other. Images come
and go in N, C, H, W order, as PyTorch has them, so a layer's time is that of the transposes, too.
Not its business: whole nets (``benchmarks/latency.py``), single kernels' limits (``tilewright bench --kernels``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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


def avg_pool(batch: int, size: int, c: int, k: int, stride: int) -> Problem:
    return torch.nn.AvgPool2d(k, stride, k // 2), (torch.randn(batch, c, size, size),), batch * c * size * size


def sums(rows: int, width: int, axis: int) -> Problem:
    return Lambda(partial(torch.sum, dim=axis)), (torch.randn(rows, width),), rows * width


def means(batch: int, c: int, size: int) -> Problem:
    return Lambda(partial(torch.mean, dim=(2, 3))), (torch.randn(batch, c, size, size),), batch * c * size * size


def recurrent(kind: type[torch.nn.RNNBase], gates: int, length: int, batch: int, width: int, hidden: int) -> Problem:
    class Outputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = kind(width, hidden)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)[0]

    return Outputs(), (torch.randn(length, batch, width),), gates * length * batch * hidden * (width + hidden)


FAMILIES = (
    Family("linear", linear, [
        ((37, 100, 257), (32, 96, 256)), ((1000, 17, 300), (1024, 16, 320)), ((3, 257, 1000), (4, 256, 1024)),
        ((1000, 257, 100), (1024, 256, 96)), ((37, 1000, 100), (32, 1024, 96)), ((100, 3, 257), (96, 4, 256)),
        ((257, 257, 257), (256, 256, 256)), ((17, 1000, 1000), (16, 1024, 1024)), ((1000, 100, 17), (1024, 96, 16)),
        ((37, 17, 1000), (32, 16, 1024)),
    ]),
    Family("matmul", matmul, [
        ((3, 37, 37, 100), (4, 32, 32, 96)), ((17, 100, 17, 257), (16, 96, 16, 256)),
        ((257, 3, 3, 17), (256, 4, 4, 16)), ((3, 257, 100, 37), (4, 256, 96, 32)),
        ((100, 17, 17, 17), (96, 16, 16, 16)), ((3, 1000, 17, 100), (4, 1024, 16, 96)),
        ((17, 37, 257, 37), (16, 32, 256, 32)), ((37, 1, 100, 257), (32, 1, 96, 256)),
        ((1000, 5, 7, 3), (1024, 4, 8, 4)), ((3, 100, 100, 1000), (4, 96, 96, 1024)),
    ]),
    Family("gemv", partial(linear, 1), [
        ((1000, 257), (1024, 256)), ((257, 1000), (256, 1024)), ((17, 1000), (16, 1024)), ((100, 100), (96, 96)),
        ((3, 30000), (4, 30720)), ((1000, 17), (1024, 16)), ((1000, 1000), (1024, 1024)), ((257, 37), (256, 32)),
        ((3000, 1037), (3072, 1024)), ((37, 3000), (32, 3072)),
    ]),
    Family("conv", conv2d, [
        ((3, 14, 257, 100, 1, 1), (4, 14, 256, 96, 1, 1)), ((1, 35, 100, 100, 1, 7), (1, 35, 96, 96, 1, 7)),
        ((1, 57, 100, 100, 3, 3, 3), (1, 57, 96, 96, 3, 3, 3)), ((1, 113, 3, 17, 7, 7, 2), (1, 112, 3, 16, 7, 7, 2)),
        ((1, 113, 3, 100, 3, 3, 2), (1, 112, 3, 96, 3, 3, 2)), ((3, 37, 17, 17, 1, 1), (4, 36, 16, 16, 1, 1)),
        ((1, 37, 257, 17, 1, 1), (1, 36, 256, 16, 1, 1)), ((3, 17, 100, 257, 3, 3, 2), (4, 16, 96, 256, 3, 3, 2)),
        ((1, 37, 17, 257, 1, 7), (1, 36, 16, 256, 1, 7)), ((1, 57, 17, 100, 5, 5, 3), (1, 57, 16, 96, 5, 5, 3)),
    ]),
    Family("winograd", conv2d, [
        ((1, 37, 17, 100, 3, 3), (1, 36, 16, 96, 3, 3)), ((1, 37, 100, 100, 5, 5), (1, 36, 96, 96, 5, 5)),
        ((1, 37, 100, 100, 3, 3), (1, 36, 96, 96, 3, 3)), ((3, 14, 257, 257, 3, 3), (4, 14, 256, 256, 3, 3)),
        ((1, 57, 100, 17, 3, 3), (1, 56, 96, 16, 3, 3)), ((1, 57, 17, 17, 3, 3), (1, 56, 16, 16, 3, 3)),
        ((3, 17, 100, 257, 3, 3), (4, 16, 96, 256, 3, 3)), ((1, 113, 17, 37, 3, 3), (1, 112, 16, 32, 3, 3)),
        ((1, 37, 37, 37, 5, 5), (1, 36, 32, 32, 5, 5)), ((1, 57, 257, 100, 1, 3), (1, 56, 256, 96, 1, 3)),
    ]),
    Family("grouped", conv2d, [
        ((1, 37, 102, 102, 3, 3, 1, 6), (1, 36, 96, 96, 3, 3, 1, 6)),
        ((1, 57, 100, 100, 3, 3, 1, 25), (1, 56, 96, 96, 3, 3, 1, 24)),
        ((3, 14, 300, 300, 3, 3, 1, 3), (4, 14, 288, 288, 3, 3, 1, 3)),
        ((1, 37, 136, 136, 3, 3, 2, 8), (1, 36, 128, 128, 3, 3, 2, 8)),
        ((1, 37, 102, 102, 1, 1, 1, 6), (1, 36, 96, 96, 1, 1, 1, 6)),
        ((1, 37, 111, 111, 5, 5, 1, 3), (1, 36, 96, 96, 5, 5, 1, 3)),
        ((1, 37, 36, 36, 3, 3, 1, 12), (1, 36, 32, 32, 3, 3, 1, 8)),
        ((1, 57, 200, 200, 3, 3, 3, 2), (1, 57, 192, 192, 3, 3, 3, 2)),
        ((1, 37, 102, 102, 1, 7, 1, 6), (1, 36, 96, 96, 1, 7, 1, 6)),
        ((3, 17, 514, 514, 1, 1, 1, 2), (4, 16, 512, 512, 1, 1, 1, 2)),
    ]),
    Family("depthwise", depthwise, [
        ((1, 37, 100, 3), (1, 36, 96, 3)), ((1, 57, 257, 3, 2), (1, 56, 256, 3, 2)), ((3, 14, 17, 5), (4, 14, 16, 5)),
        ((1, 57, 17, 3), (1, 56, 16, 3)), ((1, 57, 37, 5, 2), (1, 56, 32, 5, 2)), ((1, 113, 3, 3), (1, 112, 4, 3)),
        ((3, 17, 257, 7), (4, 16, 256, 7)), ((1, 57, 100, 5, 3), (1, 57, 96, 5, 3)), ((1, 37, 50, 3), (1, 36, 48, 3)),
        ((1, 17, 1000, 3), (1, 16, 1024, 3)),
    ]),
    Family("transposed", transposed, [
        ((1, 17, 100, 50, 3, 2), (1, 16, 96, 48, 3, 2)), ((1, 37, 17, 17, 3, 2), (1, 36, 16, 16, 3, 2)),
        ((3, 14, 257, 100, 4, 2), (4, 14, 256, 96, 4, 2)), ((1, 37, 100, 17, 2, 2), (1, 36, 96, 16, 2, 2)),
        ((1, 37, 37, 3, 4, 2), (1, 36, 32, 4, 4, 2)), ((1, 17, 100, 100, 3, 3), (1, 16, 96, 96, 3, 3)),
        ((1, 37, 100, 100, 3, 1), (1, 36, 96, 96, 3, 1)), ((3, 17, 17, 257, 5, 2), (4, 16, 16, 256, 5, 2)),
        ((1, 7, 257, 257, 2, 2), (1, 8, 256, 256, 2, 2)), ((1, 57, 50, 25, 3, 2), (1, 56, 48, 24, 3, 2)),
    ]),
    Family("1d conv", conv1d, [
        ((1, 1000, 100, 100, 3), (1, 1024, 96, 96, 3)), ((3, 1000, 17, 257, 5, 3), (4, 1024, 16, 256, 5, 3)),
        ((1, 1000, 17, 17, 3), (1, 1024, 16, 16, 3)), ((1, 37, 257, 257, 3), (1, 32, 256, 256, 3)),
        ((3, 37, 100, 17, 7), (4, 32, 96, 16, 7)), ((1, 1000, 3, 100, 5, 3), (1, 1024, 3, 96, 5, 3)),
        ((1, 1000, 1, 37, 9), (1, 1024, 1, 32, 9)), ((1, 1000, 257, 100, 1), (1, 1024, 256, 96, 1)),
        ((3, 1000, 37, 37, 5), (4, 1024, 32, 32, 5)), ((1, 5000, 1, 17, 10, 5), (1, 5120, 1, 16, 10, 5)),
    ]),
    Family("3d conv", conv3d, [
        ((1, 7, 17, 17, 100, 3), (1, 8, 16, 16, 96, 3)), ((1, 7, 17, 100, 100, 3), (1, 8, 16, 96, 96, 3)),
        ((1, 5, 37, 3, 17, 3), (1, 4, 36, 3, 16, 3)), ((3, 5, 14, 37, 37, 3), (4, 4, 14, 32, 32, 3)),
        ((1, 7, 17, 100, 257, 1), (1, 8, 16, 96, 256, 1)), ((1, 5, 17, 17, 17, 5), (1, 4, 16, 16, 16, 5)),
        ((1, 7, 37, 17, 17, 3), (1, 8, 36, 16, 16, 3)), ((1, 3, 14, 257, 100, 3), (1, 4, 14, 256, 96, 3)),
        ((1, 9, 17, 3, 100, 3), (1, 8, 16, 3, 96, 3)), ((3, 7, 9, 50, 50, 3), (4, 8, 8, 48, 48, 3)),
    ]),
    Family("attention", attention, [
        ((1, 12, 37, 64), (1, 12, 32, 64)), ((3, 5, 257, 40), (4, 4, 256, 40)), ((1, 3, 1000, 17), (1, 4, 1024, 16)),
        ((3, 12, 100, 64), (4, 12, 96, 64)), ((1, 8, 257, 100), (1, 8, 256, 96)), ((1, 12, 100, 257), (1, 12, 96, 256)),
        ((1, 7, 37, 37), (1, 8, 32, 32)), ((1, 12, 197, 64), (1, 12, 192, 64)), ((3, 37, 17, 17), (4, 36, 16, 16)),
        ((1, 5, 1000, 80), (1, 4, 1024, 80)),
    ]),
    Family("softmax", softmax, [
        ((1000, 37), (1024, 32)), ((37, 1000), (32, 1024)), ((257, 257), (256, 256)), ((1000, 17), (1024, 16)),
        ((100, 100), (96, 96)), ((1000, 3), (1024, 4)), ((3, 10000), (4, 10240)), ((1, 50257), (1, 50176)),
        ((257, 197), (256, 192)), ((37, 37), (32, 32)),
    ]),
    Family("layer norm", layer_norm, [
        ((1000, 100), (1024, 96)), ((37, 1000), (32, 1024)), ((257, 257), (256, 256)), ((1000, 17), (1024, 16)),
        ((37, 37), (32, 32)), ((1000, 3), (1024, 4)), ((3, 10000), (4, 10240)), ((197, 300), (192, 320)),
        ((100, 50), (96, 48)), ((1, 257), (1, 256)),
    ]),
    Family("sum", sums, [
        ((1000, 100, 1), (1024, 96, 1)), ((1000, 100, 0), (1024, 96, 0)), ((257, 257, 1), (256, 256, 1)),
        ((257, 257, 0), (256, 256, 0)), ((1000, 17, 1), (1024, 16, 1)), ((1000, 17, 0), (1024, 16, 0)),
        ((10000, 3, 1), (10240, 4, 1)), ((10000, 3, 0), (10240, 4, 0)), ((37, 1000, 0), (32, 1024, 0)),
        ((17, 10000, 1), (16, 10240, 1)),
    ]),
    Family("mean", means, [((3, 257, 7), (4, 256, 8)), ((3, 100, 14), (4, 96, 14)), ((3, 17, 37), (4, 16, 36))]),
    Family("max pool", max_pool, [
        ((1, 57, 100, 3, 2), (1, 56, 96, 3, 2)), ((3, 37, 17, 3, 3), (4, 36, 16, 3, 3)),
        ((1, 57, 17, 2, 2), (1, 56, 16, 2, 2)), ((1, 37, 257, 3, 2), (1, 36, 256, 3, 2)),
        ((3, 57, 17, 3, 1), (4, 56, 16, 3, 1)), ((1, 113, 3, 3, 2), (1, 112, 4, 3, 2)),
    ]),
    Family("avg pool", avg_pool, [
        ((1, 57, 100, 3, 2), (1, 56, 96, 3, 2)), ((1, 57, 17, 3, 3), (1, 56, 16, 3, 3)),
        ((1, 57, 257, 2, 2), (1, 56, 256, 2, 2)), ((1, 37, 37, 5, 1), (1, 36, 32, 5, 1)),
    ]),
    Family("lstm", partial(recurrent, torch.nn.LSTM, 4), [
        ((37, 1, 100, 100), (32, 1, 96, 96)), ((37, 3, 257, 100), (32, 4, 256, 96)),
        ((1, 1, 257, 257), (1, 1, 256, 256)), ((37, 3, 17, 17), (32, 4, 16, 16)), ((100, 1, 37, 257), (96, 1, 32, 256)),
    ]),
    Family("gru", partial(recurrent, torch.nn.GRU, 3), [
        ((37, 1, 100, 100), (32, 1, 96, 96)), ((37, 3, 257, 100), (32, 4, 256, 96)),
        ((1, 3, 257, 257), (1, 4, 256, 256)), ((37, 3, 17, 17), (32, 4, 16, 16)), ((100, 1, 37, 257), (96, 1, 32, 256)),
    ]),
)  # fmt: skip
"""About ten odd shapes for each family of kernels; the two means of reductions, of pools and of cells share them."""

WANTED = 0.8


def measured(family: Family, odd_shape: Sequence[int], round_shape: Sequence[int], seconds: float) -> list[float]:
    """Seconds of the odd shape, its share of the round one's speed per unit of work, PyTorch's time over ours."""
    odd, even = family.build(*odd_shape), family.build(*round_shape)
    with torch.no_grad():
        layers, eager = [compiled(*odd[:2]), compiled(*even[:2])], partial(odd[0], *odd[1])
        best = best_times([*layers, eager, *layers[::-1], eager], seconds)
    ours, neighbour, theirs = (min(best[i], best[j]) for i, j in ((0, 4), (1, 3), (2, 5)))
    return [ours, (odd[2] / ours) / (even[2] / neighbour), theirs / ours]


def table(found: dict[str, dict[str, float]]) -> str:
    """Markdown: a row for each family with its shares, from the least."""
    rows = ["| Family | At 0.8 | Shares of the round neighbour's speed |", "|---|---:|---|"]
    for name, shares in found.items():
        reached = sum(s >= WANTED for s in shares.values())
        each = ", ".join(f"{shape} {s:.2f}" for shape, s in sorted(shares.items(), key=lambda x: x[1]))
        rows.append(f"| {name} | {reached} of {len(shares)} | {each} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="families whose name contains one of these (default: all)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each pair")
    parser.add_argument("--output", type=Path, help="also write the shares as a Markdown table")
    a = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {}
    print(f"{'family':<11} {'odd shape':<28} {'us':>9} {'of round':>9} {'torch / ours':>13}")
    for family in FAMILIES:
        if a.words and not any(word in family.name for word in a.words):
            continue
        for odd_shape, round_shape in family.pairs:
            seconds, share, eager = measured(family, odd_shape, round_shape, a.seconds)
            shape = "x".join(map(str, odd_shape))
            found.setdefault(family.name, {})[shape] = share
            print(f"{family.name:<11} {shape:<28} {seconds * 1e6:9.1f} {share:9.2f} {eager:13.2f}", flush=True)
    shares = [share for each in found.values() for share in each.values()]
    print(f"{sum(s >= WANTED for s in shares)} of {len(shares)} at {WANTED} or more; least {min(shares):.2f}")
    if a.output:
        a.output.write_text(table(found), encoding="utf-8")


if __name__ == "__main__":
    main()
