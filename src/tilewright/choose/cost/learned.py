"""Trees that correct the price: which of a kernel's schedules the clock would find faster.

In: scheduled kernels, a ``Target``. Out: the logarithm of the seconds that each should take, but for what all schedules
of one kernel share. Not its business: the price itself (``price``), which schedules are measured (``tools.search``),
the measurements that the trees are fitted to (``benchmarks.fit_ranking``).

The price counts what a kernel asks of a machine, and misses what code generation decides late. What it misses is alike
in kernels that are alike, so gradient-boosted trees learn it: the logarithm of time over price, less its mean over the
kernel's schedules, because a choice among them needs no more. The price is where the trees begin (their base margin),
so they are right where it is, and where nothing was measured they say little. Columns are shares, ratios to numbers of
the machine, and logarithms of counts, which mean the same on another machine.

Without XGBoost (extra ``tune``) the price alone ranks.

References: Chen and Guestrin, "XGBoost: a scalable tree boosting system", 2016; Chen et al., "Learning to optimize
tensor programs", 2018, for a ranking by trees that grows with a search.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import log, log1p, nan
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.choose.cost.features import Features, features_of
from tilewright.choose.cost.nest import RunTimeLoop
from tilewright.choose.cost.operations import CLASSES
from tilewright.choose.cost.price import FITTED, RESOURCES, joined, price, row_cycles
from tilewright.core.types import Array
from tilewright.target.target import Target
from tilewright.tile.ir import Kernel

SHIPPED = Path(__file__).with_name("learned.ubj.xz")
"""The trees as ``benchmarks.fit_ranking`` writes them: XGBoost's binary JSON, compressed."""
BUSIEST = 2
"""Loops that have columns of their own, the one with most cycles first: a tile's sums, and what is done with them."""
GROWTH: Mapping[str, Any] = {
    "objective": "reg:pseudohubererror",
    "huber_slope": 0.2,
    "max_depth": 5,
    "eta": 0.05,
    "subsample": 0.7,
    "colsample_bytree": 0.5,
    "min_child_weight": 5,
    "base_score": 0.0,
    "verbosity": 0,
    "nthread": 1,
    "seed": 1,
    "n_trees": 300,
}
"""How trees grow; an error of more than ``huber_slope`` counts by its size, as in ``benchmarks.fit_price``."""
OWN_GROWTH: Mapping[str, Any] = {"objective": "reg:squarederror", "min_child_weight": 2, "n_trees": 30}
"""How trees for what a search itself has measured differ: of tens of schedules, whose surprises count whole."""

Measured = Sequence[tuple[Array, Array]]
"""For each kernel the rows of its schedules and the logarithms of their seconds, which may lack a shared term."""


def row_of(features: Features, target: Target, n_threads: int) -> Array:
    """What the trees see of a schedule, float64; the first column is the logarithm of its price in seconds."""
    whole = price(features, target, n_threads)
    cycles = whole.seconds * target.ghz * 1e9
    counts = {kind: features.total(kind) for kind in CLASSES}
    n = sum(counts.values())
    row = [log(whole.seconds), *(whole.by_resource[r] / whole.seconds for r in RESOURCES)]
    row += [log1p(n), *(c / max(n, 1.0) for c in counts.values())]
    row += [log1p(features.moved(level)) for level in range(3)]
    row += [log1p(sum(r.entries for r in features.rows)), float(len(features.rows))]
    busiest = sorted(((_cycles(r, target), k) for k, r in enumerate(features.rows)), reverse=True)
    parts = [_loop(features.rows[k], own, cycles, target) for own, k in busiest[:BUSIEST]]
    lacking = [nan] * len(_loop(RunTimeLoop(None, None), 0.0, 1.0, target))
    for part in (*parts, *[lacking] * (BUSIEST - len(parts))):
        row += part
    return np.array(row)


def _cycles(row: RunTimeLoop, target: Target) -> float:
    return float(joined(row_cycles(row, target, FITTED), FITTED)) + (0.0 if row.loop is None else row.entries)


def _loop(row: RunTimeLoop, own: float, whole: float, target: Target) -> list[float]:
    """The columns of a loop whose body takes ``own`` of the ``whole`` cycles."""
    busy = row_cycles(row, target, FITTED)
    return [
        own / whole,
        log1p(row.iterations / row.entries),
        log1p(row.entries),
        row.live / target.n_vector_registers,
        row.chain,
        sum(row.counts.values()),
        *(row.counts.get(kind, 0.0) for kind in CLASSES),
        *(float(cycles) / own if own else 0.0 for cycles in busy.values()),
    ]


def grown(found: Measured, base: Any = None, **growth: Any) -> Any:
    """XGBoost's trees for what the price, and those of ``base``, leave unexplained of measured kernels.

    ``growth`` has what differs from ``GROWTH``. A kernel with one schedule says nothing about a choice, and is left
    out; None where that leaves nothing.
    """
    import xgboost

    rows, starts, labels = [], [], []
    for x, seconds in found:
        if len(x) > 1:
            start = expected(x, base)
            left = seconds - start
            rows.append(x)
            starts.append(start)
            labels.append(start + left - left.mean())
    if not rows:
        return None
    data = xgboost.DMatrix(np.concatenate(rows), label=np.concatenate(labels), base_margin=np.concatenate(starts))
    options = {**GROWTH, **growth}
    n_trees = options.pop("n_trees")
    return xgboost.train(options, data, n_trees)


def expected(rows: Array, trees: Any = None) -> Array:
    """The logarithms of seconds by the price (without ``trees``), or as trees correct it; rows are 2-dimensional."""
    start = rows[:, 0]
    return start if trees is None else _corrected(rows, start, trees)


def _corrected(rows: Array, start: Array, trees: Any) -> Array:
    import xgboost

    return np.asarray(trees.predict(xgboost.DMatrix(rows, base_margin=start)), np.float64)


def shipped() -> Any:
    """The trees that came with the package; None without XGBoost."""
    if find_spec("xgboost") is None:
        return None
    import xgboost

    trees = xgboost.Booster({"nthread": 1})
    trees.load_model(bytearray(lzma.decompress(SHIPPED.read_bytes())))
    return trees


class Ranking:
    """What schedules should take on one machine, the better the more of them were measured there."""

    def __init__(self, target: Target, n_threads: int) -> None:
        self.target, self.n_threads = target, n_threads
        self._trees = shipped()
        self._measured: dict[str, list[tuple[Array, float]]] = {}
        self._own: Any = None
        self._is_grown = True

    def row(self, kernel: Kernel) -> Array:
        """What is seen of a scheduled kernel of fixed sizes."""
        return row_of(features_of(kernel, self.target, {}, self.n_threads), self.target, self.n_threads)

    def expect(self, rows: Sequence[Array]) -> Array:
        """The logarithms of the seconds of a kernel's schedules, but for a term that all of them share."""
        if not self._is_grown:
            found = [(np.array([x for x, _ in of]), np.array([s for _, s in of])) for of in self._measured.values()]
            self._own = grown(found, self._trees, **OWN_GROWTH)
            self._is_grown = True
        x = np.array(rows)
        known = expected(x, self._trees)
        return known if self._own is None else _corrected(x, known, self._own)

    def learn(self, name: str, row: Array, seconds: float) -> None:
        """A schedule of the kernel ``name`` took e to the ``seconds``, times whatever its other ones were told with."""
        self._measured.setdefault(name, []).append((row, seconds))
        self._is_grown = self._trees is None
