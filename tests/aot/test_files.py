"""What an export writes, on machines with and without a C compiler: objects, headers, records, sizes, equal bytes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import onnx
import pytest

import tilewright as tw
from aot.programs import ROOT, needed_libraries
from tilewright.aot import export as exporting
from tilewright.aot.export import Exported, public_names
from tilewright.aot.interface import c_name, unique_macros
from tilewright.aot.parts import parts_of
from tilewright.aot.pool import POOL_SYMBOLS
from tilewright.build import deploy, texts
from tilewright.build.options import Clock, Options
from tilewright.core.diag import OptionError
from tilewright.frontend.source import import_source
from tilewright.runtime.elf import ElfObject
from tilewright.runtime.record import check_files
from tilewright.target.target import Target

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
LIBC = {"madvise", "free", "malloc", "memcmp", "memcpy", "memmove", "memset"}
THREADS = {"clock_gettime", "pthread_create", "pthread_detach", "pthread_sigmask", "syscall"}
FILES = {"close", "lseek", "mmap", "munmap", "open"}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    yield tw.export(DIGITS, tmp_path_factory.mktemp("digits"), target="x86-64-v3", threads=2, static=True)


def test_an_object_shows_its_interface_and_nothing_else(digits: Exported) -> None:
    elf = ElfObject(digits.object.read_bytes())
    assert set(elf.defined()) <= {*public_names("digits"), *POOL_SYMBOLS}
    assert set(elf.defined()) > {f"digits_{f}" for f in ("info", "bind", "workspace", "create", "run", "destroy")}
    assert set(elf.undefined()) <= LIBC | THREADS
    assert not {s.name for s in elf.sections} & {".init_array", ".ctors", ".preinit_array"}


def test_one_thread_needs_no_threads(tmp_path: Path) -> None:
    made = tw.export(DIGITS, tmp_path, target="x86-64-v3")
    elf = ElfObject(made.object.read_bytes())
    assert set(elf.undefined()) <= LIBC and not set(elf.defined()) & set(POOL_SYMBOLS)
    assert "pthread" not in made.header.read_text()


def test_no_function_of_an_object_is_writable_or_its_stack_executable(digits: Exported) -> None:
    for section in ElfObject(digits.object.read_bytes()).sections:
        assert section.flags & 5 != 5, section.name  # write and execute
        assert section.name != ".note.GNU-stack" or not section.flags & 4


def test_sizes_add_up_to_the_object(digits: Exported) -> None:
    assert sum(row.n_bytes for row in digits.sizes) == digits.object.stat().st_size
    assert all(row.n_bytes > 0 for row in digits.sizes)
    record = json.loads(digits.record.read_text())
    by_weight = sum(row.n_bytes for row in digits.sizes if row.kind == "weight")
    assert record["memory"]["weights_bytes"] == by_weight
    assert {k["name"] for k in record["kernels"]} == {r.name.split()[0] for r in digits.sizes if r.kind == "kernel"}


OTHERS = (
    "x86-64-v4",
    "aarch64",
    "armv7",
    "cortex-m4",
    "wasm32",
    "x86-64-windows",
    "aarch64-windows",
    "apple-m1",
    "x86-64-macos",
)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("weights", ["embedded", "file"])
@pytest.mark.parametrize("target", OTHERS)
def test_sizes_of_other_targets_add_up(target: str, weights: str, tmp_path: Path) -> None:
    """Kernel by kernel and weight by weight in every format."""
    made = tw.export(DIGITS, tmp_path, target=target, fix_dims={"batch": 1}, threads=2, weights=weights)
    record = json.loads(made.record.read_text())
    assert sum(row.n_bytes for row in made.sizes) == made.object.stat().st_size
    assert all(row.n_bytes > 0 for row in made.sizes)
    assert {k["name"] for k in record["kernels"]} == {r.name.split()[0] for r in made.sizes if r.kind == "kernel"}
    held = sum(row.n_bytes for row in made.sizes if row.kind == "weight")
    assert held == (record["memory"]["weights_bytes"] if weights == "embedded" else 0)
    assert sum(row.n_bytes for row in made.sizes if row.kind != "weight") < 40_000
    has_threads = made.header.read_text().count("_after_fork") > 0
    assert ("thread pool" in {row.name for row in made.sizes}) == has_threads


def test_parts_of_something_else_are_refused() -> None:
    with pytest.raises(tw.ArtifactError, match="not an object for"):
        parts_of(b"#!/bin/sh")


def test_the_record_names_the_files_as_they_are(digits: Exported) -> None:
    for entry in check_files(digits.record):
        data = (digits.record.parent / entry.name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry.size, entry.sha256)
    assert {e.role for e in check_files(digits.record)} == {"object", "header", "archive"}
    record = json.loads(digits.record.read_text())
    assert record["source"]["file_sha256"] == hashlib.sha256(DIGITS.read_bytes()).hexdigest()
    assert [c["name"] for c in record["components"]] == ["tilewright", "llvmlite", "LLVM", "model"]


def test_changed_files_are_named(tmp_path: Path) -> None:
    made = tw.export(DIGITS, tmp_path, target="x86-64")
    data = bytearray(made.object.read_bytes())
    data[1000] ^= 1
    made.object.write_bytes(data)
    made.header.unlink()
    with pytest.raises(tw.ArtifactError, match=r"digits\.o is not the file.*digits\.h can't be read"):
        check_files(made.record)


@pytest.mark.parametrize("text", ["", "{}", '{"format": "x"}', '{"format": "tilewright-aot", "format_version": 99}'])
def test_foreign_records_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    path.write_text(text)
    with pytest.raises(tw.ArtifactError, match=r"net\.json"):
        check_files(path)


def test_a_record_cannot_name_files_elsewhere(digits: Exported, tmp_path: Path) -> None:
    record = json.loads(digits.record.read_text())
    record["files"][0]["name"] = "../digits.o"
    (tmp_path / "digits.json").write_text(json.dumps(record))
    with pytest.raises(tw.ArtifactError, match="not the name of a file beside it"):
        check_files(tmp_path / "digits.json")


SCRIPT = """
import sys, tilewright as tw
tw.export(sys.argv[1], sys.argv[2], target='x86-64-v3', static=True, weights=sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["embedded", "file"])
def test_equal_input_gives_equal_bytes(weights: str, tmp_path: Path) -> None:
    """Two processes with different hash seeds, in two folders, of a model at two paths.

    In the quick run: ``test_reproducible.py``, of one path.
    """
    digests = []
    for k in range(2):
        folder = tmp_path / f"folder {k}"
        folder.mkdir()
        model = folder / "copy.onnx"
        model.write_bytes(DIGITS.read_bytes())
        environment = {**os.environ, "PYTHONHASHSEED": str(k), "TILEWRIGHT_CACHE": "off"}  # noqa: TID251
        command = [sys.executable, "-c", SCRIPT, model, folder / "out", weights]
        subprocess.run(command, check=True, cwd=folder, env=environment, timeout=100)
        files = sorted((folder / "out").iterdir())
        digests.append({f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files})
    assert digests[0] == digests[1] and len(digests[0]) == 4 + (weights == "file")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("triple", ["x86_64-pc-windows-msvc", "arm64-apple-macosx11", "x86_64-unknown-linux-gnu"])
def test_weights_are_in_objects_of_every_format(triple: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of formats whose weights go through LLVM: the object is the size of what it says that it holds."""
    target = replace(Target.parse("x86-64-v3" if "x86" in triple else "aarch64"), triple=triple)
    graph = texts.read_graph(DIGITS)
    modules = deploy.build_modules(graph, Options(), target, Clock())
    made = exporting.export(modules, tmp_path, exporting.ExportOptions())
    assert sum(row.n_bytes for row in made.sizes) == made.object.stat().st_size > modules.weights.nbytes
    assert modules.weights.tobytes()[:4096] in made.object.read_bytes()
    assert llvm.get_object_format(triple) in ("ELF", "COFF", "MachO")


@pytest.mark.parametrize("triple", ["thumbv7em-none-eabihf", "aarch64-unknown-none", "x86_64-unknown-none"])
def test_without_a_system_nothing_is_asked_for(triple: str, tmp_path: Path) -> None:
    """A loop copies its carried values with memcpy: the object brings its own, weakly."""
    target = replace(Target.parse("x86-64" if "x86" in triple else "aarch64"), triple=triple)
    if triple.startswith("thumb"):
        target = replace(target, cpu="cortex-m4", features="")
    nodes = [onnx.helper.make_node("Loop", ["n", "", "x"], ["y"], body=_doubling())]
    graph = onnx.helper.make_graph(nodes, "loop", [
        onnx.helper.make_tensor_value_info("n", 7, []), onnx.helper.make_tensor_value_info("x", 1, [40])],
        [onnx.helper.make_tensor_value_info("y", 1, [40])])  # fmt: skip
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 21)])
    imported = import_source(model, None, None, None)
    modules = deploy.build_modules(imported, Options(), target, Clock())
    made = exporting.export(modules, tmp_path, exporting.ExportOptions())
    elf = ElfObject(made.object.read_bytes())
    assert "memcpy" in elf.defined() and not [n for n in elf.undefined() if "mem" in n or n in ("malloc", "free")]
    assert "has no heap" in made.object.read_bytes().decode("latin-1")
    header = " ".join(made.header.read_text().split())
    assert "libc" not in header and "which brings what it calls" in header


def _doubling() -> onnx.GraphProto:
    value = onnx.helper.make_tensor_value_info
    nodes = [onnx.helper.make_node("Add", ["v", "v"], ["w"]), onnx.helper.make_node("Identity", ["c"], ["d"])]
    inputs = [value("i", 7, []), value("c", 9, []), value("v", 1, [40])]
    return onnx.helper.make_graph(nodes, "doubling", inputs, [value("d", 9, []), value("w", 1, [40])])


def test_options_are_checked(tmp_path: Path) -> None:
    for wrong in ({"name": "1x"}, {"name": "tw_x"}, {"name": ""}, {"weights": "here"}):
        with pytest.raises(OptionError):
            tw.export(DIGITS, tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(tw.InputError, match="threads=0"):  # as `compile` has it
        tw.export(DIGITS, tmp_path, threads=0)
    for target in ("wasm32", "cortex-m4"):
        with pytest.raises(OptionError, match="there are no shared libraries for"):
            tw.export(DIGITS, tmp_path, target=target, shared=True)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_no_library_for_other_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ziglang" else find(name))
    with pytest.raises(tw.ResourceError, match=r"needs the package ziglang[^$]*tilewright\[aot\]"):
        tw.export(DIGITS, tmp_path, target="aarch64", shared=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.emulation
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no ziglang")
@pytest.mark.parametrize("target", ["aarch64", pytest.param("rv64gc", marks=pytest.mark.slow)])
def test_libraries_for_other_machines(target: str, tmp_path: Path) -> None:
    """They define what the header says, and ask for C's functions without naming who has them."""
    made = tw.export(DIGITS, tmp_path, target=target, shared=True, static=True, threads=2)
    assert made.library == tmp_path / "libdigits.so" and made.archive == tmp_path / "libdigits.a"
    library = ElfObject(made.library.read_bytes())
    assert {"digits_run", "digits_create", "digits_info"} <= {*library.defined()}
    assert {"malloc", "free", "pthread_create"} <= {*library.undefined()}
    assert needed_libraries(made.library) == []
    assert {e.role for e in check_files(made.record)} == {"object", "header", "archive", "library"}


@pytest.mark.slow
@pytest.mark.emulation
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="no ziglang")
@pytest.mark.parametrize(("target", "name"), [("x86-64-v3-windows", "digits.dll"), ("apple-m1", "libdigits.dylib")])
def test_libraries_for_other_systems(target: str, name: str, tmp_path: Path) -> None:
    made = tw.export(DIGITS, tmp_path, target=target, shared=True)
    assert made.library == tmp_path / name
    data = made.library.read_bytes()
    assert data.startswith(b"MZ" if name.endswith("dll") else b"\xcf\xfa\xed\xfe")
    assert b"digits_run\0" in data and (b"ucrtbase.dll" in data) == name.endswith("dll")
    assert {p.suffix for p in tmp_path.iterdir()} == {".o", ".h", ".json", Path(name).suffix}


def test_models_without_a_source_say_so(tmp_path: Path) -> None:
    tw.compile(DIGITS, cache=False).save(tmp_path / "digits.tw")
    with pytest.raises(tw.ArtifactError, match=r"from a file can't be exported"):
        tw.load(tmp_path / "digits.tw").export(tmp_path)


def test_names() -> None:
    assert [c_name(t) for t in ("a b", "9lives", "größe", "", "__x__", "x" * 300)] == [
        "a_b", "m_9lives", "gr_e", "model", "x", "x" * 100,
    ]  # fmt: skip
    assert unique_macros(["a.b", "a_b", "A b", "ü", "é", "a_b_2"]) == [
        "A_B",
        "A_B_2",
        "A_B_3",
        "UNNAMED",
        "UNNAMED_2",
        "A_B_2_2",
    ]
