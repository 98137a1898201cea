"""What pruning saves: a net without some of its channels, and products without blocks, beside the whole ones.

    python -m benchmarks.pruned                        every row, compiled first
    python -m benchmarks.pruned product --seconds 0.5  rows whose name contains a word
    python -m benchmarks.pruned --folder made          compiled models are kept there, and taken from there

In: nothing. Out: a table: shortest milliseconds with one thread, called in turn, and their ratio; the bytes of weights
that are left. Not its business: accuracy, which training brings back.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks import zoo_vision
from benchmarks.interleaved import best_times

import tilewright as tw

PRODUCTS = ((1, 1024, 1024), (1, 4096, 4096), (64, 1024, 1024), (197, 768, 3072))
"""Rows, terms and columns."""


def net() -> tuple[Any, dict[str, Any], torch.Tensor]:
    """ResNet-50 with 30 % fewer channels."""
    module, inputs, _ = zoo_vision.resnet50(False)
    (image,) = inputs.values()
    return module, {"amount": 0.3, "example_inputs": (image,)}, image


def product(rows: int, depth: int, n: int, **options: Any) -> tuple[Any, dict[str, Any], torch.Tensor]:
    """One layer."""
    torch.manual_seed(0)
    x = torch.randn(rows, depth)
    return torch.nn.Linear(depth, n), {**options, "example_inputs": (x,)}, x


def chain(n_layers: int, width: int, **options: Any) -> tuple[Any, dict[str, Any], torch.Tensor]:
    """Layers behind each other, each of which would stay in a cache alone."""
    torch.manual_seed(0)
    x = torch.randn(1, width)
    layers = [m for _ in range(n_layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers), {**options, "example_inputs": (x,)}, x


def cases() -> Iterator[tuple[str, Callable[[], tuple[Any, dict[str, Any], torch.Tensor]]]]:
    yield "ResNet-50, 30 % of channels", net
    for rows, depth, n in PRODUCTS:
        yield (
            f"product {rows} x {depth} x {n}, 80 % of blocks",
            lambda m=rows, k=depth, n=n: product(m, k, n, amount=0.8, structure="blocks"),
        )
    for rows, depth, n in PRODUCTS[:2]:
        yield f"product {rows} x {depth} x {n}, 2:4", lambda m=rows, k=depth, n=n: product(m, k, n, structure="2:4")
    yield "eight products 1 x 2048 x 2048, 2:4", lambda: chain(8, 2048, structure="2:4")


def made(
    name: str, build: Callable[[], tuple[Any, dict[str, Any], torch.Tensor]], folder: Path
) -> tuple[Any, Any, Any]:
    """The whole model, the pruned one and an input; compiled unless they are in the folder."""
    stem = "".join(c if c.isalnum() else "_" for c in name)
    files = [folder / f"{stem}.{kind}" for kind in ("whole.tw", "pruned.tw", "npy")]
    if not all(f.exists() for f in files):
        module, options, x = build()
        tw.compile(module.eval(), example_inputs=(x,), cache=False).save(files[0])
        tw.compile(tw.prune(module.eval(), **options), cache=False).save(files[1])
        np.save(files[2], x.numpy())
    return tw.load(files[0], threads=1), tw.load(files[1], threads=1), np.load(files[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only rows whose name contains one of them")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row")
    parser.add_argument("--folder", type=Path, help="where compiled models are kept")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{'case':42} {'whole ms':>9} {'pruned ms':>10} {'ratio':>6} {'weights left':>13}")
    for name, build in cases():
        if options.words and not any(w in name for w in options.words):
            continue
        whole, pruned, x = made(name, build, folder)
        before, after = best_times([partial(whole, x), partial(pruned, x)], options.seconds)
        left = pruned.weights.nbytes / whole.weights.nbytes
        print(f"{name:42} {before * 1e3:9.3f} {after * 1e3:10.3f} {before / after:6.2f} {left:13.0%}", flush=True)


if __name__ == "__main__":
    main()
