"""Damaged files of every format are opened or refused by a typed error, within limits of time and memory.

A quick run opens the sound files, and damages few of them; ``benchmarks.hostile`` damages thousands.
"""

from __future__ import annotations

import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from benchmarks import hostile, hostile_files
from benchmarks.hostile_files import FORMATS, put

import damage_stablehlo
import tilewright as tw
from frontend.test_onnx_fuzz import controlled
from frontend.tflite_build import TfliteModel
from tilewright import ops
from tilewright.build.found_schedules import FoundSchedules
from tilewright.core.diag import CompileError, ParseError
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.text import load_graph, save_graph
from tilewright.core.types import TensorType, f32
from tilewright.integrations.boosted.trees import reading
from tilewright.runtime.errors import InputError
from tilewright.tools.quantize.batches import read_arrays

PEERS = ("xgboost", "lightgbm")
PROCESSES = {"stablehlo bytecode": pytest.mark.slow}
"""Formats of which every file is read by a process of its own."""


@pytest.mark.one_in(2)  # the tests of each frontend open sound files of theirs
@pytest.mark.parametrize("of", [pytest.param(of, marks=PROCESSES.get(of, ())) for of in FORMATS])
def test_the_sound_files_are_opened(of: str, tmp_path: Path) -> None:
    if of in PEERS:
        pytest.importorskip(of)
    for k, files in enumerate(FORMATS[of].originals()):
        (folder := tmp_path / str(k)).mkdir()
        FORMATS[of].opened(put(files, folder))


def test_the_same_seed_damages_the_same_way_and_most_files_are_changed() -> None:
    for of in FORMATS.keys() - {*PEERS}:
        made = [FORMATS[of].damaged(seed) for seed in range(6)]
        assert made == [FORMATS[of].damaged(seed) for seed in range(6)]
        assert sum(m not in FORMATS[of].originals() for m in made) >= 4, of


@pytest.mark.slow  # a process that loads every frontend, and hundreds of files
@pytest.mark.timeout(1800)
def test_damaged_files_end_as_they_may(capsys: pytest.CaptureFixture[str]) -> None:
    found = [of for of in FORMATS if of not in PEERS]
    assert hostile.main([*found, "--count", "25", "--seed", "100000"]) == 0, capsys.readouterr().out


# --- what was found so ----------------------------------------------------------------------------------------------


def test_a_model_of_no_tensors_is_called() -> None:
    assert tw.compile(TfliteModel().bytes(), cache=False, threads=1)() == ()
    pool = Pool()
    x = pool.input("x", TensorType(f32, (2,)))
    made = tw.compile(Graph("g", pool, (x,), (), ()), cache=False, threads=1)
    assert made(np.ones(2, np.float32)) == ()


def test_a_negative_size_of_a_model_that_is_compiled_per_call_is_no_size() -> None:
    """As where a model is compiled at once: what calls give decides."""
    m = controlled()
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    made = tw.compile(m.SerializeToString(), cache=False, threads=1)
    assert not any(isinstance(d, int) and d < 0 for t in made.inputs for d in t.shape)
    y, rows = made(np.ones((2, 3), np.float32), np.int64(2), np.bool_(True))
    assert y.shape == (2, 2) and len(rows) == 2


def damaged_archive(path: Path) -> None:
    """A member of an archive of arrays is none."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("c0.npy", b"no array")


def test_what_is_no_array_among_constants_is_told(tmp_path: Path) -> None:
    pool = Pool()
    x = pool.input("x", TensorType(f32, (99,)))
    b = Builder(pool)
    y = b(ops.add, x, b.const(np.arange(99, dtype=np.float32)))
    save_graph(Graph("g", pool, (x,), (y,), ("y",)), tmp_path / "m.txt")
    damaged_archive(tmp_path / "m.npz")
    with pytest.raises(ParseError, match="c0"):
        load_graph(tmp_path / "m.txt", ops.by_name)
    with pytest.raises(InputError, match="plain arrays"):
        read_arrays(tmp_path / "m.npz")


def test_a_database_whose_tables_have_no_names_in_unicode_is_told(tmp_path: Path) -> None:
    with closing(sqlite3.connect(path := tmp_path / "m.db")) as connection, connection:
        connection.execute("create table naught (a)")
    path.write_bytes(path.read_bytes().replace(b"naught", b"n\xc9\xc9ght").replace(b"CREATE", b"CREAT\xc9"))
    with pytest.raises(InputError, match="can't be used"):
        FoundSchedules(path).all()


def test_an_export_of_schedules_of_many_brackets_is_told(tmp_path: Path) -> None:
    found = FoundSchedules(tmp_path / "m.db")
    with pytest.raises(InputError, match="no export"):
        found.take(found.exported() + "[" * 100_000)


@pytest.mark.parametrize(("path", "value"), [
    (("tensors",), 3), (("tensors", "w"), ["f99", [40, 96]]), (("tensors", "w"), ["float32", [-1]]), (("names",), [1]),
    (("others",), 7), (("options", "found"), 1), (("options", "found"), "[1]"), (("options", "schedule"), None),
    (("options", "more"), 1), (("imported", "input_shapes"), 0.5), (("imported", "fix_dims"), {"n": "x"}),
    (("imported", "more"), {}),
])  # fmt: skip
def test_what_a_recipe_of_weights_holds_is_checked(path: tuple[str, ...], value: object, tmp_path: Path) -> None:
    files = FORMATS["refit"].originals()[0]
    put(files, tmp_path)
    with zipfile.ZipFile(tmp_path / "m.refit") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    home = head = json.loads(members["recipe.json"])
    for name in path[:-1]:
        home = home[name]
    home[path[-1]] = value
    with zipfile.ZipFile(tmp_path / "m.refit", "w") as archive:
        for name, content in {**members, "recipe.json": json.dumps(head)}.items():
            archive.writestr(name, content)
    with pytest.raises(tw.ArtifactError, match="is damaged"):
        tw.refit(tmp_path / "m.tw", tmp_path / "new.safetensors", tmp_path / "out.tw")


@pytest.mark.parametrize("fault", [KeyError("trees"), TypeError("x"), ValueError("y"), MemoryError()])
def test_whatever_a_dump_of_trees_trips_over_is_told(fault: Exception) -> None:
    with pytest.raises(CompileError, match="not as XGBoost writes it"), reading("XGBoost"):
        raise fault
    with pytest.raises(tw.OptionError), reading("XGBoost"):
        raise tw.OptionError("an error with a text of its own")


LOOP = """module { func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.while(%y = %x) : tensor<f32>
    cond { %1 = stablehlo.constant dense<true> : tensor<i1> stablehlo.return %1 : tensor<i1> }
    do { %2 = stablehlo.sine %y : tensor<f32> stablehlo.return %2 : tensor<f32> }
  return %0 : tensor<f32>
} }
"""


def test_a_call_without_an_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile_files, "CALL_SECONDS", 0.2)
    path = tmp_path / "m.mlir"
    path.write_text(LOOP)
    FORMATS["stablehlo text"].opened(path)


def test_sound_programs_do_not_tell_where_they_were_made() -> None:
    """Else a seed stands for another file wherever the project lies, and what it found can't be found again."""
    place = str(Path(__file__).parents[1]).encode()
    assert not any(place in content for content in damage_stablehlo.originals())
