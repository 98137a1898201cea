"""What a choice by price costs: the time of the candidate that it takes over that of the best one measured.

    python -m benchmarks.kernel_times --seed 77 --seconds 300 -o unseen.xz
    python -m benchmarks.regret unseen.xz
    python -m benchmarks.regret unseen.xz --figure docs/figures/regret.json

In: files of ``benchmarks.kernel_times`` with kernels that no coefficient was fitted to. Out: the distribution for all
kernels and for each family, beside that of the schedules that the compiler takes today, and the kernels whose choice
costs most, with what the price takes them to be bound by. Not its business: coefficients (``benchmarks.fit_price``).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.figures import write
from benchmarks.fit_price import Measured, read

from tilewright.choose.cost.price import FITTED, Coefficients, cheapest_of, price

SHOWN = 10
TOLD_APART = 0.05
"""Times that differ by less are not told apart: the machine's noise."""


@dataclass(frozen=True)
class Regret:
    """A kernel, which candidate the price takes and which is the best; times over the best one's."""

    kernel: Measured
    taken: int
    best: int
    by_price: float
    by_default: float


def regrets(found: Sequence[Measured], c: Coefficients = FITTED) -> list[Regret]:
    """What each choice costs, for kernels that have something to choose from."""
    rows = []
    for m in (m for m in found if len(m.made) > 1):
        taken, best = cheapest_of(m.priced(c)), int(np.argmin(m.seconds))
        least = m.seconds[best]
        rows.append(Regret(m, taken, best, float(m.seconds[taken] / least), float(m.seconds[0] / least)))
    return rows


def line(name: str, rows: Sequence[Regret]) -> str:
    price_, default = (np.array([getattr(r, k) for r in rows]) for k in ("by_price", "by_default"))
    return (
        f"{name:14s} {len(rows):4d}   {price_.mean():6.3f} {np.quantile(price_, 0.95):6.3f} {price_.max():6.2f}"
        f"      {default.mean():6.3f} {np.quantile(default, 0.95):6.3f} {default.max():6.2f}"
    )


def bound(m: Measured, candidate: int) -> str:
    """What the price takes a candidate to be bound by."""
    return price(m.features[candidate], m.target, m.threads).bound


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--figure", type=Path, help="put the rows of families in the place of this figure's")
    a = parser.parse_args()
    rows = regrets(read(a.files))
    families = sorted({r.kernel.family for r in rows})
    heads = " ".join(f"{h:>6s}" for h in ("95 %", "worst"))
    print(f"{'family':14s} {'n':>4s}   {'price':>6s} {heads}      {'today':>6s} {heads}")
    parts = {f: [r for r in rows if r.kernel.family == f] for f in families}
    for name, part in (*parts.items(), ("all", rows)):
        print(line(name, part))
    others = [r.by_price / r.by_default for r in rows if r.taken]
    better, worse = sum(x < 1 - TOLD_APART for x in others), sum(x > 1 + TOLD_APART for x in others)
    print(f"\n{len(others)} have another schedule: {better} are faster by {TOLD_APART:.0%}, {worse} slower\n")
    for r in sorted(rows, key=lambda r: -r.by_price)[:SHOWN]:
        taken, best = (f"{r.kernel.made[k]} ({bound(r.kernel, k)})" for k in (r.taken, r.best))
        print(f"{r.by_price:5.2f}  {r.kernel.layer[:60]:60s} took {taken}, best {best}")
    if a.figure:
        figure = json.loads(a.figure.read_text())
        figure["rows"] = [figure_row(name, part) for name, part in (*parts.items(), ("all", rows))]
        write(a.figure, figure)


def figure_row(name: str, rows: Sequence[Regret]) -> list[object]:
    """A family's row: how many kernels, then mean, 95th percentile and worst, by price and today."""
    both = [np.array([getattr(r, k) for r in rows]) for k in ("by_price", "by_default")]
    return [name, len(rows), *(round(float(x), 3) for v in both for x in (v.mean(), np.quantile(v, 0.95), v.max()))]


if __name__ == "__main__":
    main()
