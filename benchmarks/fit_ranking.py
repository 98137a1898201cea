"""The trees that correct the price, grown from measured kernels, and how well they rank kernels that they never saw.

    python -m benchmarks.fit_ranking benchmarks/measured/*.xz            a quarter of the layers held out, in turn
    python -m benchmarks.fit_ranking benchmarks/measured/*.xz --write    and grow those of the package from all of them

In: files of ``benchmarks.kernel_times``. Out: of pairs of schedules of one kernel whose times differ by more than a
measurement does, how many the price orders as the clock does and how many the trees do; what taking the best by either
costs. With ``--write``, ``choose/cost/learned.ubj.xz``.
Not its business: how trees grow and what they see (``choose.cost.learned``).

A layer is measured in several files and types, so all kernels of equal layers are held out together.
"""

from __future__ import annotations

import argparse
import lzma
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.fit_price import in_order, read

from tilewright.choose.cost.learned import SHIPPED, expected, grown, row_of
from tilewright.core.types import Array

FOLDS = 4
CLEARLY = 0.1
"""Times that differ by so much are told apart on a busy machine, too."""


@dataclass(frozen=True)
class Ranked:
    """A kernel: its machine, the rows and the logarithms of seconds of its schedules."""

    cpu: str
    layer: str
    rows: Array
    seconds: Array

    @property
    def fold(self) -> int:
        return sha256(self.layer.encode()).digest()[0] % FOLDS


def ranked(paths: Sequence[Path]) -> list[Ranked]:
    """The kernels of files that have something to choose from."""
    return [
        Ranked(
            m.target.cpu,
            m.layer,
            np.array([row_of(f, m.target, m.threads) for f in m.features]),
            np.log(m.seconds),
        )
        for m in read(paths)
        if len(m.made) > 1
    ]


def trees_of(found: Sequence[Ranked]) -> Any:
    """The trees for these kernels."""
    return grown([(k.rows, k.seconds) for k in found])


def line(name: str, found: Sequence[Ranked], rank: Callable[[Ranked], Array]) -> str:
    """How a way to rank kernels does on them."""
    orders = [rank(k) for k in found]
    shares = []
    for apart in (0.03, CLEARLY):
        counts = np.array([in_order(k.seconds, o, apart) for k, o in zip(found, orders, strict=True)]).sum(0)
        shares.append(f"{counts[0] / max(counts[1], 1):6.1%} of {counts[1]:5d}")
    costs = [float(np.exp(k.seconds[np.argmin(o)] - k.seconds.min())) for k, o in zip(found, orders, strict=True)]
    return f"{name:22s} {len(found):5d} {shares[0]} {shares[1]}  {np.mean(costs):6.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="grow the package's own trees from all of the files")
    a = parser.parse_args()
    found = ranked(a.files)
    trees = [trees_of([k for k in found if k.fold != fold]) for fold in range(FOLDS)]
    print(f"{'':22s} kernels  pairs 3 % apart pairs {CLEARLY:.0%} apart  best by it / best")
    for cpu in sorted({k.cpu for k in found}):
        part = [k for k in found if k.cpu == cpu]
        print(line(f"{cpu}, price", part, lambda k: expected(k.rows)))
        print(line(f"{cpu}, trees", part, lambda k: expected(k.rows, trees[k.fold])))
    if a.write:
        raw = trees_of(found).save_raw("ubj")
        SHIPPED.write_bytes(lzma.compress(bytes(raw), preset=9))
        print(f"wrote {SHIPPED}, {SHIPPED.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
