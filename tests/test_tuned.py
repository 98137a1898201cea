"""What searches found is used by ``compile`` by itself: on this machine, by this version, unless it is told not to."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.build import kernels
from tilewright.build.found_schedules import FoundSchedule, FoundSchedules, machine_key
from tilewright.core.diag import OptionError
from tilewright.runtime.answers import SEARCHES
from tilewright.target.target import Target
from tilewright.tile.schedule import book
from tilewright.tile.schedule.book import read_step
from tilewright.tile.schedule.script import Step

HERE = machine_key(Target.parse("native"), 1)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    w = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [9, k]) for n, k in (("x", 40), ("y", 64)))
    graph = helper.make_graph(nodes, "net", [given], [made], [numpy_helper.from_array(w, "w")])
    onnx.save(
        helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "net.onnx"
    )
    return tmp_path / "net.onnx"


@pytest.fixture
def store(model: Path) -> FoundSchedules:
    """The cache's database, with the plain loops for the model's first kernel."""
    name = tilewright.compile(model, threads=1).report()["kernels"][0]["name"]
    made = FoundSchedules(model.parent / "cache" / SEARCHES)
    made.put(HERE, [FoundSchedule(name, "", 2.0, 1.0), FoundSchedule("k_of_another_model", "split(i0, 4)", 2.0, 1.0)])
    return made


def code(model: Path, **options: object) -> list[bytes]:
    return [o.data for o in tilewright.compile(model, threads=1, **options).objects]  # type: ignore[arg-type]


def test_compile_takes_what_was_found(model: Path, store: FoundSchedules) -> None:
    plain, found = code(model, tuned=False), code(model)
    assert plain != found and code(model, cache=False) == plain
    made = tilewright.compile(model, threads=1)
    assert made.report()["from_cache"] and len(made.report()["found_schedules"]) == 1
    assert "1 of them by schedules that a search found" in str(made.report())
    x = np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32)
    np.testing.assert_allclose(made(x), tilewright.compile(model, tuned=False)(x), rtol=1e-4, atol=1e-5)


def test_a_file_of_schedules_comes_before_what_was_found(model: Path, store: FoundSchedules) -> None:
    (model.parent / "none.schedule").write_text("// nothing\n")
    assert code(model, schedule=model.parent / "none.schedule") == code(model, tuned=False)


def test_what_was_found_elsewhere_is_not_used_and_said(model: Path, store: FoundSchedules) -> None:
    plain = code(model, tuned=False)
    text = store.exported().replace(HERE, machine_key(replace(Target.parse("native"), l2_bytes=1 << 17), 1))
    Path(store.path).unlink()
    store.take(text)
    for _ in range(2):  # compiled, then from the cache
        made = tilewright.compile(model, threads=1)
        assert made.report()["found_elsewhere"] == 1 and "found_schedules" not in made.report()
    assert [o.data for o in made.objects] == plain


def test_a_database_that_is_exported_gives_the_same_code(model: Path, store: FoundSchedules) -> None:
    first, text = code(model), store.exported()
    Path(store.path).unlink()
    assert code(model) != first
    store.take(text)
    assert code(model) == first and store.exported() == text


@pytest.mark.parametrize("damage", [b"", b"no database", b"no database, but long enough to be taken for one " * 40])
def test_a_damaged_database_is_said_and_hinders_nothing(model: Path, store: FoundSchedules, damage: bytes) -> None:
    plain = code(model, tuned=False)
    Path(store.path).write_bytes(damage)
    made = tilewright.compile(model, threads=1)
    assert [o.data for o in made.objects] == plain
    assert not damage or "can't be used" in str(made.report())


@pytest.mark.parametrize("steps", ["no step", "split(no_such_loop, 8)", "kind(i0, warp)"])
def test_steps_that_do_not_fit_are_left_aside(model: Path, store: FoundSchedules, steps: str) -> None:
    plain = code(model, tuned=False)
    (name,) = (n for n in store.every(HERE) if n != "k_of_another_model")
    store.put(HERE, [FoundSchedule(name, steps, 9.0, 1.0)])
    assert code(model) == plain


@pytest.mark.parametrize("budget", [0, -1.0, True, float("nan"), float("inf"), "60"])
def test_a_budget_is_a_time(model: Path, budget: object) -> None:
    with pytest.raises(OptionError, match="is no time to search"):
        tilewright.tune(model, [], budget=budget)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "what"),
    [({"seed": "x"}, "seed='x'"), ({"progress": 3}, "progress=3"), ({"store": 3}, "store=3"),
     ({"output": b"f"}, "output="), ({"output": "no/such/folder/f.schedule"}, "there is no folder")],
)  # fmt: skip
def test_mistakes_are_told_before_the_search(model: Path, options: dict[str, object], what: str) -> None:
    with pytest.raises(tilewright.TilewrightError, match=what) as caught:
        tilewright.tune(model, [], **options)  # type: ignore[arg-type]
    assert caught.value.remedy


def test_a_model_by_found_schedules_gets_other_weights(model: Path, store: FoundSchedules) -> None:
    """Compiled or from the cache: by the schedules that it has, also when they are found no more."""
    fresh, cached = (tilewright.compile(model, threads=1) for _ in range(2))
    Path(store.path).unlink()
    x = np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32)
    w = numpy_helper.to_array(onnx.load(model).graph.initializer[0])
    for made in (fresh, cached):
        assert made.report()["found_schedules"]
        np.testing.assert_array_equal(made.refit({"w": w})(x), made(x))


@pytest.mark.parametrize("row", [("k", None), ("k", b"\xff"), (None, "split(i0, 4)")])
def test_rows_that_are_no_text_hinder_nothing(model: Path, store: FoundSchedules, row: tuple[object, object]) -> None:
    first = code(model)
    with sqlite3.connect(store.path) as file:
        file.execute("insert into found values (?, ?, ?, 2.0, 1.0)", (row[0], HERE, row[1]))
    file.close()
    assert code(model) == first


def test_a_compile_does_not_wait_for_who_holds_the_database(
    model: Path, store: FoundSchedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = code(model, tuned=False)
    monkeypatch.setattr("tilewright.build.found_schedules.COMPILE_WAIT_SECONDS", 0.0)
    file = sqlite3.connect(store.path, isolation_level=None)
    file.execute("pragma journal_mode = delete")
    file.execute("begin exclusive")
    made = tilewright.compile(model, threads=1)
    file.close()
    assert [o.data for o in made.objects] == plain and "locked" in str(made.report())


def test_only_the_models_own_rows_are_read(model: Path, store: FoundSchedules, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of many models costs a compile of one nothing to speak of."""
    read: list[str] = []

    def noted(text: str) -> Step:
        read.append(text)
        return read_step(text)

    for module in (book, kernels):
        monkeypatch.setattr(module, "read_step", noted)
    store.put(HERE, [FoundSchedule(f"k_{k}", f"split(i0, {k + 2})", 2.0, 1.0) for k in range(9)])
    code(model)
    assert not read
