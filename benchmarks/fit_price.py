"""The coefficients of the price, fitted to measured kernels.

    python -m benchmarks.fit_price benchmarks/measured/*.xz                    tested on each fourth kernel
    python -m benchmarks.fit_price benchmarks/measured/*.xz --held-out 2       on each second one

In: files of ``benchmarks.kernel_times``. Out: coefficients for ``choose.cost.price``; how far prices are off, for the
kernels that they were fitted to and for those that they were not. Not its business: what a choice by price would cost
(``benchmarks.regret``).

The error is that of logarithms. What differs among a kernel's candidates counts whole, since a choice goes by that;
what all of them share counts ``SHARED``.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from tilewright.choose.cost.features import Features, features_of
from tilewright.choose.cost.nest import RunTimeLoop
from tilewright.choose.cost.operations import CLASSES
from tilewright.choose.cost.price import (
    FITTED,
    Coefficients,
    is_shared,
    joined,
    names,
    price,
    row_cycles,
    speed_up,
)
from tilewright.core.types import Array
from tilewright.target.calibration import with_measured
from tilewright.target.target import Target
from tilewright.tile.text import parse_kernel

SHARED = 0.35
LEAST_SECONDS = 4e-7
"""Kernels that take less are measured to a few cycles only."""
REACH = 8.0
"""How far from its start a coefficient may go, as a factor."""
MOST = {"overlap": 12.0, "waiting": 1.5, "near": 1.5, "far": 1.5, "beyond": 1.5}
LEAST = {"waiting": 0.15, "end": 1.0, "scalar": 1.0}
"""Few of the measured kernels wait for chains or divide integers: what they say too little of is not nothing."""
OUTLIER = 0.2
"""Errors above this count by their size, not by its square: a machine that was busy for a moment is no rule."""


@dataclass(frozen=True)
class Measured:
    """A kernel of a layer: for each candidate how it came about, its features, and the seconds of a call."""

    family: str
    layer: str
    made: tuple[str, ...]
    features: tuple[Features, ...]
    seconds: Array
    target: Target
    threads: int

    def priced(self, c: Coefficients) -> Array:
        """The seconds that the model expects of each candidate."""
        return np.array([price(f, self.target, self.threads, c).seconds for f in self.features])


def read(paths: Sequence[Path]) -> list[Measured]:
    """The kernels of files, with the features that this code sees in them."""
    return [m for path in paths for m in kernels_of(path)]


def kernels_of(path: Path) -> Iterator[Measured]:
    with lzma.open(path, "rt") as file:
        head = json.loads(next(file))
        target, threads = machine_of(head), head["threads"]
        for line in file:
            row = json.loads(line)
            rows = [r for r in row["candidates"] if r["seconds"] > LEAST_SECONDS]
            if rows and rows[0] is row["candidates"][0]:  # the default one is first
                features = tuple(features_of(parse_kernel(r["kernel"]), target, {}, threads) for r in rows)
                seconds = np.array([r["seconds"] for r in rows])
                made = tuple(r["made"] for r in rows)
                yield Measured(row["family"], row["layer"], made, features, seconds, target, threads)


def machine_of(head: dict[str, Any]) -> Target:
    """The machine that a file was measured on, with the numbers that were measured of it in that run."""
    host = Target.host()
    return with_measured(host if head["cpu"] == host.cpu else Target.parse(head["cpu"]), head["numbers"])


def errors(found: Sequence[Measured], c: Coefficients) -> list[Array]:
    """For each kernel, the logarithms of price over time of its candidates."""
    return [np.log(m.priced(c) / m.seconds) for m in found]


class Batch:
    """All candidates of one machine as arrays, so that a price of all of them takes a millisecond."""

    def __init__(self, found: Sequence[Measured]) -> None:
        self.target = found[0].target
        flat = [(m, f) for m in found for f in m.features]
        rows = [r for _, f in flat for r in f.rows]
        self.first = np.cumsum([0, *(len(f.rows) for _, f in flat[:-1])])
        self.part = np.array([1 / speed_up(f, m.threads) if is_shared(r) else 1.0 for m, f in flat for r in f.rows])
        self.forks = np.array([f.forks if m.threads > 1 else 0.0 for m, f in flat])
        self.is_loop = np.array([r.loop is not None for r in rows])
        moved: Any = [np.array([r.moved[k] for r in rows]) for k in range(3)]
        columns = ("entries", "iterations", "chain")
        entries, iterations, chain = (np.array([getattr(r, n) for r in rows]) for n in columns)
        counts: Any = {kind: np.array([r.counts.get(kind, 0.0) for r in rows]) for kind in CLASSES}
        self.rows = RunTimeLoop(rows[-1].loop, None, entries, iterations, counts, chain, moved=moved)
        self.times = np.log(np.concatenate([m.seconds for m in found]))
        sizes = [len(m.seconds) for m in found]
        self.kernel = np.repeat(np.arange(len(found)), sizes)
        self.sizes = np.array(sizes)

    def errors(self, c: Coefficients) -> Array:
        """The logarithm of price over time of each candidate."""
        cycles = joined(row_cycles(self.rows, self.target, c), c) + self.rows.entries * c.end * self.is_loop
        whole = np.add.reduceat(cycles * self.part, self.first) + c.call + self.forks * self.target.fork_cycles
        return np.asarray(np.log(whole / (self.target.ghz * 1e9)) - self.times)

    def residuals(self, c: Coefficients) -> Array:
        """What candidates of a kernel differ by, and what all of them share."""
        e = self.errors(c)
        mean = np.bincount(self.kernel, e) / self.sizes
        return np.concatenate([e - mean[self.kernel], mean * SHARED * np.sqrt(self.sizes)])


def fit(found: Sequence[Measured], start: Coefficients = FITTED) -> Coefficients:
    """The coefficients with the least errors, none further than ``REACH`` from its start."""

    def coefficients(x: Array) -> Coefficients:
        return Coefficients(**dict(zip(names(), np.exp(x).tolist(), strict=True)))

    machines: dict[Target, list[Measured]] = {}
    for m in found:
        machines.setdefault(m.target, []).append(m)
    batches = [Batch(of_one) for of_one in machines.values()]

    def residuals(x: Array) -> Array:
        return np.concatenate([b.residuals(coefficients(x)) for b in batches])

    x0 = np.log([getattr(start, n) for n in names()])
    low, high = x0 - np.log(REACH), x0 + np.log(REACH)
    for limit, numbers in ((low, LEAST), (high, MOST)):
        for name, number in numbers.items():
            limit[names().index(name)] = np.log(number)
    x0 = np.clip(x0, low + 1e-6, high - 1e-6)
    best = least_squares(residuals, x0, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER)
    return Coefficients(**{n: float(f"{v:.3g}") for n, v in zip(names(), np.exp(best.x), strict=True)})


def summary(found: Sequence[Measured], c: Coefficients) -> str:
    """How far prices are off, and how often they order two candidates of a kernel as the clock does."""
    off = errors(found, c)
    every = np.abs(np.concatenate(off))
    within = np.concatenate([e - e.mean() for e in off])
    right, pairs = 0, 0
    for m, e in zip(found, off, strict=True):
        n_right, n = in_order(np.log(m.seconds), e + np.log(m.seconds))
        right, pairs = right + n_right, pairs + n
    middle, most = (np.exp(np.quantile(every, q)) - 1 for q in (0.5, 0.9))
    return (
        f"{len(found)} kernels, {len(every)} candidates: a price is off by {middle:.0%} in the middle and by "
        f"{most:.0%} for nine of ten, by {np.exp(np.sqrt((within**2).mean())) - 1:.0%} among candidates of a kernel, "
        f"and {right / max(pairs, 1):.0%} of {pairs} pairs are in order"
    )


def in_order(times: Array, prices: Array, least: float = 0.03) -> tuple[int, int]:
    """Of pairs whose times differ by more than a measurement does: those that prices order alike, and all.

    Both are logarithms; ``least`` is how far times have to differ.
    """
    i, j = np.triu_indices(len(times), 1)
    apart = np.abs(times[i] - times[j]) > least
    alike = np.sign(times[i] - times[j]) == np.sign(prices[i] - prices[j])
    return int((alike & apart).sum()), int(apart.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--held-out", type=int, default=4, help="one of so many kernels is kept for the test")
    a = parser.parse_args()
    found = read(a.files)
    kept, rest = found[:: a.held_out], [m for k, m in enumerate(found) if k % a.held_out]
    print("as they are:", summary(found, FITTED))
    c = fit(rest)
    print(c)
    print("fitted to:  ", summary(rest, c))
    print("held out:   ", summary(kept, c))


if __name__ == "__main__":
    main()
