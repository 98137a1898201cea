"""Models that get faster while they are used: right results before, meanwhile and after, whatever the search does."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.core.diag import OptionError
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.runtime.python.model import LoadedModel
from tilewright.tools import anytime
from tilewright.tools.anytime import TURNS, AnytimeModel, Turns

X = np.random.default_rng(3).standard_normal((9, 40)).astype(np.float32)
Plant = Callable[..., AnytimeModel]


def net(rows: int | Sym = 9) -> Graph:
    b, rng = Builder(Pool()), np.random.default_rng(4)
    x = b.pool.input("x", TensorType(f32, (rows, 40)))
    w = b.const(rng.standard_normal((40, 24)).astype(np.float32))
    return Graph("net", b.pool, (x,), (b(ops.softmax, b(ops.matmul, x, w), axis=1),), ("y",))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plant:
    """A model whose search ends in a planted way; what it may find is plainer code for the same graph."""

    def planted(kind: str, source: object = None, plainer: object = None, **options: object) -> AnytimeModel:
        path = tmp_path / "plainer.tw"
        if kind == "found":
            made = plainer or compile_graph(net(), optimize=0)
            assert isinstance(made, LoadedModel)
            made.save(path)
        script = Path(__file__).with_name("planted_anytime.py")
        monkeypatch.setattr(anytime, "COMMAND", (sys.executable, "-I", str(script), kind, str(path)))
        made = tw.compile(source or net(), anytime=60, cache=False, **options)  # type: ignore[arg-type]
        assert isinstance(made, AnytimeModel)
        return made

    return planted


def favour(monkeypatch: pytest.MonkeyPatch, *, new: bool) -> None:
    monkeypatch.setattr(Turns, "better", property(lambda turns: turns.new if new else turns.old))


@pytest.mark.parametrize("is_faster", [False, True])
def test_code_that_was_found_takes_turns_and_the_better_one_is_kept(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, is_faster: bool
) -> None:
    favour(monkeypatch, new=is_faster)
    model, want = plant("found"), compile_graph(net())(X)
    first = [o.data for o in model.objects]
    assert model.report()["anytime"] == {"state": "waiting for a call"} and not model.wait(0)
    place = np.empty_like(want)
    assert model(x=X, out=place) is place
    np.testing.assert_array_equal(place, want)
    assert model.wait(60) and model.report()["anytime"]["state"] == "taking turns"
    for _ in range(2 * TURNS):
        np.testing.assert_allclose(model.run({"x": X})["y"], want, rtol=1e-5)
    assert ([o.data for o in model.objects] != first) == is_faster
    report = model.report()["anytime"]
    assert report["state"] == ("faster code was found" if is_faster else "what was found is not faster here")
    assert report["state"] in str(model.report())
    assert report["candidates"] == 3 and report["faults"] == ["k: crash"] and report["seconds"].keys() == {
        "before", "after"
    }  # fmt: skip


def test_the_usual_call_and_the_best_one_decide() -> None:
    for times, is_new in (((1.0, 2.0, 3.0), True), ((1.0, 4.0, 5.0), False), ((2.0, 2.5, 2.6), False)):
        turns = Turns(*(compile_graph(net(), optimize=0) for _ in range(2)))  # type: ignore[arg-type]
        turns._spent = {turns.old: [2.0, 3.0, 4.0], turns.new: [*times]}
        assert (turns.better is turns.new) == is_new


@pytest.mark.parametrize("kind", ["nothing", "crash", "noise", "damaged"])
def test_whatever_the_search_comes_to_calls_go_on(plant: Plant, kind: str) -> None:
    model, want = plant(kind), compile_graph(net())(X)
    np.testing.assert_array_equal(model(X), want)
    assert model.wait(60)
    np.testing.assert_array_equal(model(X), want)
    state = model.report()["anytime"]["state"]
    assert state == "nothing was faster" if kind == "nothing" else state.startswith("the search failed: ")


def test_a_search_ends_when_it_is_stopped_and_with_its_model(plant: Plant) -> None:
    for drop in (False, True):
        model = plant("hang")
        model(X)
        search = model._search
        assert search is not None and search._folder.exists()
        if not drop:
            model.stop()
            assert model.wait(60) and model.report()["anytime"]["state"].startswith("the search failed: ")
        del model
        gc.collect()
        search.thread.join(60)
        assert not search.thread.is_alive() and not search._folder.exists()


def test_wrong_arguments_are_told_of_and_start_nothing(plant: Plant) -> None:
    model = plant("hang")
    with pytest.raises(tw.InputError, match="x"):
        model(X.astype(np.float64))
    assert model.report()["anytime"]["state"] == "waiting for a call"


def test_threads_may_call_while_code_is_replaced(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    favour(monkeypatch, new=True)
    model, want, wrong = plant("found", threads=1), compile_graph(net())(X), []

    def call() -> None:
        for _ in range(200):
            if not np.allclose(model(X), want, rtol=1e-5):
                wrong.append(1)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert model.wait(60) and wrong == []
    call()
    assert wrong == [] and model.report()["anytime"]["state"] == "faster code was found"


def test_a_state_goes_on_in_the_code_that_is_called(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            self.total.add_(x)
            return self.total * 2

    favour(monkeypatch, new=True)
    x = torch.arange(4.0)
    model = plant("found", Sum(), tw.compile(Sum(), (x,), optimize=0, cache=False), example_inputs=(x,))
    for n in range(1, 2 * TURNS + 5):
        assert torch.equal(model(x), 2 * n * x)
        assert model.wait(60)
        np.testing.assert_array_equal(model.state["total"], n * x.numpy())
    assert model.report()["anytime"]["state"] == "faster code was found"
    model.reset()
    assert torch.equal(model(x), 2 * x)


def test_other_weights_come_by_the_names_of_the_source(plant: Plant) -> None:
    torch = pytest.importorskip("torch")
    old, new, x = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4), torch.randn(3, 8)
    model = plant("nothing", old, example_inputs=(x,)).refit(new.state_dict())
    torch.testing.assert_close(model(x), new(x).detach())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_leaves_the_search_alone(plant: Plant) -> None:
    model, want = plant("nothing"), compile_graph(net())(X)
    model(X)
    if not (child := os.fork()):
        model.stop()
        os._exit(0 if np.array_equal(model(X), want) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert model.wait(60) and model.report()["anytime"]["state"] == "nothing was faster"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"anytime": 0}, "no time"),
        ({"anytime": "long"}, "no time"),
        ({"anytime": float("nan")}, "no time"),
        ({"anytime": True, "target": "x86-64-v3"}, "this machine"),
        ({"anytime": True, "specialize": {"n": [1]}}, "fixed sizes"),
    ],
)
def test_what_can_not_be_searched_is_refused(options: dict[str, object], rule: str) -> None:
    with pytest.raises(OptionError, match=rule):
        tw.compile(net(), **options)  # type: ignore[arg-type]


def test_open_sizes_are_named() -> None:
    with pytest.raises(OptionError, match="fixed sizes") as raised:
        tw.compile(net(Sym("n", 1)), anytime=True)
    assert "fix_dims={'n': ...}" in str(raised.value)


def test_a_real_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its whole way, whatever it finds."""
    monkeypatch.setattr(anytime, "NICE", 0)  # beside other tests
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    model = tw.compile(net(), anytime=1.0, threads=1)
    assert isinstance(model, AnytimeModel)
    want = model(X)
    assert model.wait(300)
    for _ in range(2 * TURNS):
        np.testing.assert_allclose(model(X), want, rtol=1e-5)
    assert model.report()["anytime"]["state"] in (
        "nothing was faster", "faster code was found", "what was found is not faster here",
        "there was no time to try anything",  # of a busy machine the search gets what is left
    )  # fmt: skip
