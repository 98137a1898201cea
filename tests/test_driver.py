"""The driver: other targets, times per stage, dumps."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import small_models
import tilewright as tw
from tilewright.build.driver import compile_graph
from tilewright.build.kernels import KernelBuilder
from tilewright.build.options import Clock
from tilewright.runtime.python.model import CompiledModel, LoadedModel


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))


def _calls(model: CompiledModel) -> list[object]:
    x = small_models.numbers(2, 3, 64, 64)
    return [lambda: model(x), lambda: model(x=x), lambda: model.run({"x": x}), lambda: model(x, out=x)]


def test_a_model_for_another_machine_is_saved_and_never_runs(tmp_path: Path) -> None:
    for _ in range(2):  # compiled, and from the cache
        model = tw.compile(small_models.convnet(), target="aarch64")
        assert not isinstance(model, LoadedModel) and "aarch64" in repr(model)
        assert [str(s) for s in model.inputs] == ["x: float32[2, 3, 64, 64]"]
    model.save(tmp_path / "net.tw")
    for run in [*_calls(model), lambda: tw.load(tmp_path / "net.tw")]:
        with pytest.raises(tw.ArtifactError, match=r"compiled for aarch64.*this machine is"):
            run()  # type: ignore[operator]


def test_the_report_s_seconds_are_those_of_this_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", time.process_time)  # which other processes don't take away between stages
    graph = small_models.convnet()
    seconds = []
    for from_cache in (False, True):
        start = time.perf_counter()
        model = tw.compile(graph)
        took = time.perf_counter() - start
        report = model.report()
        assert report["from_cache"] is from_cache and ("from the cache" in str(report)) is from_cache
        assert sum(report["seconds"].values()) < took + 0.001
        assert from_cache or sum(report["seconds"].values()) > 0.8 * took
        seconds.append(report["seconds"])
    assert seconds[0].keys() > {"import", "graph", "partition", "schedule", "emit", "weights", "link"}
    assert not seconds[1].keys() & {"partition", "schedule", "emit"}


def test_a_stage_within_another_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    clock = Clock()
    with clock.stage("outer"):  # 0
        with clock.stage("inner"):  # 1 to 2
            pass
        with clock.stage("inner"), clock.stage("innermost"):  # 3 to 6, 4 to 5
            pass
    assert clock.seconds == {"outer": 3, "inner": 3, "innermost": 1}


def test_every_compile_dumps_where_the_environment_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "dump"
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(folder))
    x = small_models.numbers(7, 64)
    with mock.patch.object(KernelBuilder, "plan", autospec=True, side_effect=KernelBuilder.plan) as plan:
        results = [tw.compile(small_models.perceptron(), optimize=k)(x) for k in (1, 2, 2)]
    assert plan.call_count == 4, "once for a compile's code, once for all its texts"
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-5)
    made = sorted(folder.iterdir())
    assert [f.name.rsplit("-", 1)[0] for f in made] == ["000-perceptron", "001-perceptron"]  # third: cached
    names = {f.name for f in made[1].iterdir()}
    assert {"00-input.tw.txt", "kernels.txt", "tile.txt", "kernels.ll", "kernels.s", "entry.ll"} <= names
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(made[1] / "kernels.ll"))
    with pytest.raises(tw.OptionError, match="TILEWRIGHT_DUMP"):
        tw.compile(small_models.convnet())


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(tw.OptionError, match=r"'tread'(?s:.*)'target'.*'threads'"):
        compile_graph(small_models.convnet(), tread=1)
