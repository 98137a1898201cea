"""A search survives whatever its candidates and its database do, and loses no measurement that was made.

In: a small graph, processes that fail in planted ways (``planted_measurer``). Not their business: how fast code is.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilewright import ops
from tilewright.build import texts
from tilewright.build.found_schedules import FoundSchedules, machine_key
from tilewright.build.kernels import SplitGraph, optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.choose.default import Scheduled
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.runtime.errors import ExecutionError
from tilewright.target.target import Target
from tilewright.tile.text import kernel_text
from tilewright.tools import apart, measure, search
from tilewright.tools.measure import Measuring, Unmeasured

X = np.random.default_rng(3).standard_normal((9, 40)).astype(np.float32)
HERE = machine_key(Target.parse("native"), 1)
KINDS = [
    "fault", "abort", "kill", "stop", "end", "error", "hang", "half a line", "close", "noise", "a list", "nothing",
    "wrong", "refused", "crash", "negative", "not a number", "text", "no end",
]  # fmt: skip


def net() -> Graph:
    """Two products and a softmax: several kernels with several candidates each."""
    b, rng = Builder(Pool()), np.random.default_rng(4)
    x = y = b.pool.input("x", TensorType(f32, X.shape))
    for width in (48, 24):
        w = b.const(rng.standard_normal((y.shape[1], width)).astype(np.float32))
        y = b(ops.softmax, b(ops.matmul, y, w), axis=1)
    return Graph("net", b.pool, (x,), (y,), ("y",))


def run(store: FoundSchedules | None, **options: object) -> search.Tuned:
    return search.search(net(), [X], Options(), threads=1, seconds=0.0, store=store, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def split() -> SplitGraph:
    return optimise_and_split(net(), Options(), Options().machine, Clock())


@pytest.fixture(scope="module")
def own(split: SplitGraph) -> dict[str, list[Scheduled]]:
    """The strategies' candidates, made once for all cases."""
    return {name: list(search._candidates(split.kernels, name)) for name in split.kernels.schedules}


@pytest.fixture
def plant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, split: SplitGraph, own: dict[str, list[Scheduled]]
) -> Callable[[str, int], Path]:
    """Measure by a process that fails in a way; gives the file in which it notes its answers."""
    monkeypatch.setattr(search, "optimise_and_split", lambda *parts: split)
    monkeypatch.setattr(search, "_candidates", lambda kernels, name: iter(own[name]))

    def planted(kind: str, part: int) -> Path:
        log, several = tmp_path / "answers", [name for name, found in own.items() if len(found) > 1]
        kernel = several[part % len(several)]
        script = Path(__file__).with_name("planted_measurer.py")
        monkeypatch.setattr(measure, "COMMAND", (sys.executable, "-I", str(script), kind, kernel, str(log)))
        return log

    return planted


def answered(log: Path) -> set[tuple[str, str]]:
    """The kernels, and their codes, that were measured beside others."""
    return {(name, text) for name, text, _ in map(json.loads, log.read_text().splitlines())}


def kept(store: FoundSchedules, own: dict[str, list[Scheduled]]) -> set[tuple[str, str]]:
    """The kernels and codes whose measurement the database has."""
    codes = {(name, str(s.schedule)): kernel_text(s.kernel) for name, of in own.items() for s in of}
    trials = [t for t in store.trials(HERE, own) if t.outcome == "measured"]
    return {(t.kernel, codes[t.kernel, t.steps]) for t in trials}


@pytest.mark.one_in(36)
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_ends_no_search_and_loses_nothing(
    kind: str,
    part: int,
    plant: Callable[[str, int], Path],
    own: dict[str, list[Scheduled]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kind in ("hang", "stop"):
        monkeypatch.setattr(search, "PATIENCE", 1.0)
    log, store = plant(kind, part), FoundSchedules(tmp_path / "found.db")
    found = run(store)
    assert found.faults and found.n_candidates > len(found.faults)
    assert kept(store, own) == answered(log)
    assert {t.outcome for t in store.trials(HERE, own)} - {"measured"} == {
        {"hang": "hang", "stop": "hang", "wrong": "wrong", "refused": "refused"}.get(kind, "crash")
    }
    again = run(store)  # neither what failed nor what was slower is tried again
    assert again.n_candidates < found.n_candidates and len(again.faults) <= len(found.faults)


def full(path: str, **options: object) -> sqlite3.Connection:
    """A connection whose disk is full after the tables are made."""
    made = sqlite3.Connection(path, **options)  # type: ignore[arg-type]
    made.execute("pragma page_size = 512")
    made.execute("pragma max_page_count = 5")
    return made


def locked(path: str, **options: object) -> sqlite3.Connection:
    raise sqlite3.OperationalError("database is locked")


@pytest.mark.parametrize("how", ["full", "locked", "no database", "a folder"])
def test_a_database_that_cant_be_written_ends_no_search(
    how: str, plant: Callable[[str, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("none", 0)
    path = tmp_path / "found.db"
    if how in ("full", "locked"):
        monkeypatch.setattr(sqlite3, "connect", {"full": full, "locked": locked}[how])
    elif how == "no database":
        path.write_bytes(b"no database at all, but long enough to be taken for one" * 20)
    else:
        path.mkdir()
    found = run(FoundSchedules(path))
    assert found.gains and len(found.notes) == 1 and "could not be kept" in found.notes[0]


def test_what_waited_for_the_disk_is_written_later(
    plant: Callable[[str, int], Path], own: dict[str, list[Scheduled]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, store = plant("none", 0), FoundSchedules(tmp_path / "found.db")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", locked)

        def tell(stage: str, done: int, total: int) -> None:
            if done == 2:
                patch.undo()
                plant("none", 0)

        found = run(store, tell=tell)
    assert found.gains and not found.notes
    assert kept(store, own) == answered(log)


def test_ctrl_c_keeps_what_was_measured(
    plant: Callable[[str, int], Path], own: dict[str, list[Scheduled]], tmp_path: Path
) -> None:
    log, store = plant("none", 0), FoundSchedules(tmp_path / "found.db")

    def stop(stage: str, done: int, total: int) -> None:
        if done == 8:
            os.kill(os.getpid(), signal.SIGINT)

    found = run(store, tell=stop)
    assert found.gains and store.every(HERE).keys() == {g.name for g in found.gains}
    assert kept(store, own) == answered(log)


def test_with_a_budget_a_search_goes_on_near_the_best(plant: Callable[[str, int], Path]) -> None:
    plant("none", 0)
    assert run(None, budget=8.0).n_candidates > run(None).n_candidates


# --- real code ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first() -> str:
    return texts.schedules(net(), Options())


def test_results_are_compared_and_a_crash_is_survived(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process: native code is right, is changed to be wrong, writes where nothing is, asks for all memory."""
    script = tmp_path / "measurer.py"
    script.write_text(
        "import ctypes, runpy, sys\n"
        "from tilewright.runtime.python.model import LoadedModel\n"
        "counted = LoadedModel.counted\n"
        "def planted(self, args, n):\n"
        "    results, ticks = counted(self, args, n)\n"
        "    how = self.manifest.report['options'].get('schedule')\n"
        "    if how in WRONG: results = [r + 1e-3 for r in results]\n"
        "    if how in CRASH: ctypes.string_at(8)\n"
        "    if how in MEMORY: bytearray(1 << 46)\n"
        "    return results, ticks\n"
        "LoadedModel.counted = planted\n"
        "WRONG, CRASH, MEMORY = sys.argv[1:4]\n"
        "runpy.run_module('tilewright.tools.measure', run_name='__main__', alter_sys=True)\n"
    )
    tried = [first, *(f"{first}\n// {how}\n" for how in ("wrong", "crash", "memory"))]
    digests = [Options(schedule=t).shown()["schedule"] for t in tried]
    monkeypatch.setattr(measure, "COMMAND", (sys.executable, str(script), *digests[1:]))
    with Measuring(net(), [X], Options(schedule=first), 1) as bench:
        outcomes = [bench.measure([t, first]) for t in tried]
        again = bench.measure([first])
    kinds = [x.kind if isinstance(x, Unmeasured) else "measured" for x in (*outcomes, again)]
    assert kinds == ["measured", "wrong", "crash", "crash", "measured"]
    assert "died of signal 11" in outcomes[2].why and "MemoryError" in outcomes[3].why


def test_a_model_that_cant_run_says_so(plant: Callable[[str, int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "COMMAND", (sys.executable, "-c", "import os; os.abort()"))
    with pytest.raises(ExecutionError, match="can't be measured: the process died of signal 6"):
        run(None)


def test_the_model_itself_is_measured_whatever_the_budget(plant: Callable[[str, int], Path]) -> None:
    plant("none", 0)
    found = run(None, budget=1e-9)
    assert found.before == found.after > 0.0 and found.n_candidates == 0 and not found.faults
    (note,) = found.notes
    assert "no schedule was measured" in note and "give more time" in note


def test_a_search_says_what_is_left_to_gain(plant: Callable[[str, int], Path]) -> None:
    plant("none", 0)
    found = run(None)
    assert found.left and all(0.0 <= x.least <= x.now for x in found.left)
    assert [x.now for x in found.left] == sorted((x.now for x in found.left), reverse=True)
    assert found.most_gain >= 1.0


def test_inputs_go_over_whatever_their_names_are(tmp_path: Path) -> None:
    b = Builder(Pool())
    given = [b.pool.input(name, TensorType(f32, X.shape)) for name in ("file", "args", "arr_0", "a/b")]
    total = b(ops.add, b(ops.add, given[0], given[1]), b(ops.add, given[2], given[3]))
    graph = Graph("net", b.pool, tuple(given), (total,), ("y",))
    apart.write_case(tmp_path, graph, [X + k for k in range(4)])
    for k, a in enumerate(apart.read_case(tmp_path)[1]):
        np.testing.assert_array_equal(a, X + k)
