"""The trees that correct the price: what they see, what they learn, and what ranks without them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tile.kernels import matmul
from tilewright.choose.candidates import candidates
from tilewright.choose.cost import learned
from tilewright.choose.cost.learned import Ranking, expected, grown, row_of, shipped
from tilewright.choose.cost.price import price_of
from tilewright.choose.default import Scheduled
from tilewright.target.target import Target
from tilewright.tools.guide import Guide, Near

AVX2 = Target.parse("x86-64-v3")
MEASURED = Path(__file__).parents[2] / "benchmarks" / "measured"


@pytest.fixture(scope="module")
def found() -> list[Scheduled]:
    return [c.scheduled for c in candidates(matmul(37, 120, 45), AVX2, ())]


def without_trees(monkeypatch: pytest.MonkeyPatch) -> Ranking:
    monkeypatch.setattr(learned, "find_spec", lambda name: None)
    return Ranking(AVX2, 1)


def test_without_xgboost_the_price_ranks(monkeypatch: pytest.MonkeyPatch, found: list[Scheduled]) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    ranking = without_trees(monkeypatch)
    rows = [ranking.row(f.kernel) for f in found]
    ranking.learn("k", rows[0], 1.0)
    want = [price_of(f.kernel, AVX2).seconds for f in found]
    np.testing.assert_allclose(np.exp(ranking.expect(rows)), want)
    guide = Guide(ranking)
    assert guide.ordered("k", found) == [found[k].schedule for k in np.argsort(want, kind="stable")]


def test_a_row_has_equally_many_columns_whatever_the_kernel(found: list[Scheduled]) -> None:
    ranking = Ranking(AVX2, 1)
    rows = [ranking.row(f.kernel) for f in (*found, *[c.scheduled for c in candidates(matmul(1, 1, 1), AVX2, ())])]
    assert len({row.shape for row in rows}) == 1 and all(np.isfinite(row[0]) for row in rows)


def test_what_waits_is_measured_best_first_and_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, found: list[Scheduled]
) -> None:
    guide = Guide(without_trees(monkeypatch))
    order = guide.ordered("k", found)
    near = Near("k", found[0].schedule, iter(found))
    taken = []
    while (one := guide.best_of(near)) is not None:
        taken.append(one)
        guide.learn("k", one, found[0].schedule, 1.5)
    assert sorted(map(str, taken)) == sorted(map(str, order)) and taken[0] == order[0]
    assert guide.best_of(Near("k", found[1].schedule, iter(found))) is None


def test_trees_learn_what_the_price_misses_but_no_more_than_an_order() -> None:
    """Of two kinds of schedules, told apart by one column, one takes twice its price; each kernel has its own speed."""
    pytest.importorskip("xgboost")
    rng = np.random.default_rng(5)
    kernels = []
    for _ in range(60):
        rows = np.column_stack([rng.normal(-9, 1, 6), rng.integers(0, 2, 6), rng.normal(size=6)])
        kernels.append((rows, rows[:, 0] + rng.normal() + np.log(2) * rows[:, 1]))
    trees = grown(kernels[:50], n_trees=200)
    off = [np.ptp(expected(rows, trees) - seconds) for rows, seconds in kernels[50:]]
    assert max(off) < np.log(2) * 0.7 and np.mean(off) < np.log(2) * 0.5
    rows, seconds = kernels[0]
    assert grown([(rows[:1], seconds[:1])], n_trees=5) is None


def test_the_trees_of_the_package_rank_better_than_the_price() -> None:
    """They have seen these kernels: this asks whether the file belongs to the columns. Held out: docs/price.md."""
    pytest.importorskip("xgboost")
    from benchmarks.fit_price import in_order, kernels_of

    trees, counts = shipped(), np.zeros(4)
    for k, m in zip(range(60), kernels_of(MEASURED / "znver3-fp32-b.jsonl.xz"), strict=False):
        if k % 3 == 0:
            rows = np.array([row_of(f, m.target, m.threads) for f in m.features])
            seconds = np.log(m.seconds)
            counts += (*in_order(seconds, expected(rows)), *in_order(seconds, expected(rows, trees)))
    assert counts[2] / counts[3] > counts[0] / counts[1] > 0.6


def test_a_search_learns_from_what_it_measures(found: list[Scheduled]) -> None:
    """Where measurements contradict the trees again and again, they follow the measurements."""
    pytest.importorskip("xgboost")
    ranking = Ranking(AVX2, 1)
    rows = [ranking.row(f.kernel) for f in found]
    before = ranking.expect(rows)
    fast, slow = int(np.argmax(before)), int(np.argmin(before))
    for _ in range(20):
        ranking.learn("k", rows[fast], 0.0)
        ranking.learn("k", rows[slow], 1.0)
    after = ranking.expect(rows)
    assert after[slow] - after[fast] > before[slow] - before[fast] + 0.3
