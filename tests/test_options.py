"""Options and paths of any kind: each call is done or refused by a typed error."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.build.options import Clock
from tilewright.core.diag import OptionError
from tilewright.runtime.errors import FileError, InputError, TilewrightError
from tilewright.runtime.signature import sign_file


def small_model() -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return made.SerializeToString()


SMALL = small_model()
ODD: list[Any] = [
    5, -1, 1.5, float("nan"), True, None, "zz", "", "a\0b", b"x", [1], ("x",), {"a": 1}, {1: 2}, {"rows": "b"},
    {"rows": [1, 2]}, {"rows": -1}, {"rows": 1.5}, {"rows": None}, {"rows": 3}, {"x": 5}, {"x": [None]}, {"x": (3, 2)},
    object(), np.float32(1), np.int64(2), ..., ".", "/proc/none/x", Path("none") / "x", [], {},
]  # fmt: skip
COMPILES = [
    "target", "precision", "optimize", "accuracy", "schedule", "fix_dims", "input_shapes", "threads", "example_inputs",
    "dynamic_shapes", "progress", "cache", "specialize",
]  # fmt: skip
EXPORTS = [*(name for name in COMPILES if name != "cache"), "name", "weights", "shared", "static"]
CALLS = [
    *(("compile", name) for name in COMPILES), *(("export", name) for name in EXPORTS), ("compile", ""), ("export", ""),
    ("load", ""), ("load", "key"), ("save", ""), ("into", ""), ("target", ""), ("sign", ""),
]  # fmt: skip


def check(call: str, option: str, value: Any, folder: Path) -> None:
    """One call with an odd argument; anything but success and a ``TilewrightError`` passes through."""
    ways: dict[str, Callable[[], Any]] = {
        "compile": lambda: tw.compile(SMALL, **{"cache": False, option: value}) if option else tw.compile(value),
        "export": lambda: tw.export(SMALL, folder, **{option: value}) if option else tw.export(value, folder),
        "into": lambda: tw.export(SMALL, value),
        "load": lambda: tw.load(value) if not option else tw.load(folder / "m.tw", key=value),
        "save": lambda: tw.compile(SMALL, cache=False).save(value),
        "target": lambda: tw.Target.parse(value),
        "sign": lambda: sign_file(folder / "m.tw", value),
    }
    try:
        ways[call]()
    except TilewrightError as error:
        assert str(error).startswith("[TW0")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to write to, which relative paths lie in too."""
    tw.compile(SMALL, cache=False).save(tmp_path / "m.tw")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.sampled_from(CALLS), st.sampled_from(ODD))
def test_odd_options_are_typed(folder: Path, call: tuple[str, str], value: Any) -> None:
    check(*call, value, folder)


@pytest.mark.slow
def test_every_option_with_every_odd_value(folder: Path) -> None:
    for call, value in itertools.product(CALLS, ODD):
        check(*call, value, folder)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"target": 5}, "no name"),
        ({"optimize": True}, "not a level"),
        ({"schedule": 5}, "can't be read"),
        ({"schedule": "a\0b"}, "can't be read"),
        ({"fix_dims": 5}, "no sizes by name"),
        ({"fix_dims": {"rows": "4"}}, "no sizes by name"),
        ({"input_shapes": {"x": 4}}, "no shapes by name"),
        ({"progress": 5}, "can't be called"),
        ({"cache": 5}, "neither yes nor no"),
        ({"tuned": "no"}, "neither yes nor no"),
        ({"emulate": 1}, "neither yes nor no"),
        ({"specialize": 5}, "no sizes by name"),
        ({"specialize": {"rows": 5}}, "no list of sizes"),
        ({"specialize": {"rows": [4, 4]}}, "4 is there twice"),
        ({"specialize": {"rows": [-1]}}, "-1 is no size"),
        ({"specialize": {"rows": []}}, "no sizes in the list"),
        ({"specialize": {"rows": range(1, 66)}}, "at most 64"),
        ({"specialize": [{}]}, "names no size"),
        ({"specialize": {"cols": [2]}}, r"no symbolic dimension 'cols': the model has rows \(x\[0\]\)"),
    ],
)
def test_what_is_said(options: dict[str, Any], part: str) -> None:
    with pytest.raises(OptionError, match=part) as caught:
        tw.compile(SMALL, **({"cache": False} | options))
    assert caught.value.remedy


@pytest.mark.parametrize(
    "options", [{"fix_dims": ["rows"]}, {"input_shapes": "x"}, {"input_shapes": {"x": 4}}, {"tuned": 5}, {"cache": 5}]
)
def test_options_are_checked_where_the_cache_has_the_answer(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(SMALL)
    tw.compile(path)
    with pytest.raises(OptionError, match=r"by name|neither yes nor no"):
        tw.compile(path, **options)


@pytest.mark.parametrize("threads", [0, -1, 1 << 40])
def test_numbers_of_threads_that_no_machine_has(tmp_path: Path, threads: int) -> None:
    for call in (partial(tw.compile, SMALL, cache=False), partial(tw.export, SMALL, tmp_path)):
        with pytest.raises(InputError, match=f"threads={threads} is not a number of threads") as caught:
            call(threads=threads)
        assert caught.value.remedy


@pytest.mark.parametrize("option", ["shared", "static"])
def test_what_an_export_writes_is_asked_by_yes_or_no(tmp_path: Path, option: str) -> None:
    with pytest.raises(OptionError, match=f"{option}='no' says neither yes nor no"):
        tw.export(SMALL, tmp_path, **cast(dict[str, Any], {option: "no"}))


def test_an_export_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FileError, match="can't write") as caught:
            tw.export(SMALL, place)
        assert caught.value.remedy
    with pytest.raises(OptionError, match="name=5"):
        tw.export(SMALL, tmp_path, name=5)  # type: ignore[arg-type]


def test_a_clock_without_a_listener_is_silent() -> None:
    Clock().tell("stage", 1, 2)
