"""The C functions on models of every kind: random graphs of all ops and types, with symbolic sizes and control flow."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest
from benchmarks import zoo

import fuzz_graphs
import small_models
import tilewright as tw
from aot.in_process import ObjectModel
from tilewright.aot.cpu import cpu_text
from tilewright.build import driver
from tilewright.codegen.cpu.llvm import assembly_of_text
from tilewright.target import x86
from tilewright.target.target import Target

SEED, QUICK, MANY = 7_000_000, 24, 1000


def check(seed: int, folder: Path) -> None:
    """An export answers bit for bit as a compiled model of the same code: for as many cores, and without libraries."""
    made = fuzz_graphs.FAMILIES[fuzz_graphs.family(seed)](seed)
    threads = 1 + seed % 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.target.target.available_cpus", lambda: threads)
        patch.setenv("TILEWRIGHT_LAPACK", "off")
        model = driver.compile_graph(made.graph, threads=threads)
    exported = tw.export(made.graph, folder, name="m", threads=threads, weights=("embedded", "file")[seed % 2])
    again = ObjectModel(exported.object, name="m")
    assert again.inputs == model.inputs and again.outputs == model.outputs and again.symbols == model.symbols
    results = [model(*made.arrays), again(*made.arrays)]
    expected, got = [r if isinstance(r, tuple) else (r,) for r in results]
    for e, g, spec in zip(expected, got, model.outputs, strict=True):
        assert e.shape == g.shape and e.dtype == g.dtype, spec
        assert e.tobytes() == g.tobytes(), f"seed {seed}: {spec} differs"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("first", range(SEED, SEED + QUICK, 6))
def test_random_graphs(first: int, tmp_path: Path) -> None:
    with fuzz_graphs.kernels_shared():
        for seed in range(first, first + 6):
            check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEED + QUICK, SEED + QUICK + MANY, 50))
def test_many_random_graphs(first: int, tmp_path: Path) -> None:
    with fuzz_graphs.kernels_shared():
        for seed in range(first, first + 50):
            check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_architecture(name: str, tmp_path: Path) -> None:
    """Small versions of all that we measure."""
    net = zoo.build(name, small=True)
    model = tw.compile(net.module, example_inputs=net.inputs, threads=2, cache=False)
    again = ObjectModel(model.export(tmp_path, name=name).object)
    arrays = [x.numpy() for x in net.inputs]
    results = [model(*arrays), again(*arrays)]
    expected, got = [r if isinstance(r, tuple) else (r,) for r in results]
    assert [e.tobytes() for e in expected] == [g.tobytes() for g in got]


def test_digits_without_a_compiler(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
    model = tw.compile(source, threads=2, cache=False)
    library = ObjectModel(model.export(tmp_path).object)
    x = np.random.default_rng(0).random((5, 1, 8, 8), np.float32)
    np.testing.assert_array_equal(library(x), model(x))
    assert library(x[:0]).shape == (0, 10)
    with pytest.raises(tw.InputError):
        library(x[:, :, :7])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("bit", [22, None])
def test_other_cpus_are_refused(bit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit 22 of the extended word was withdrawn: no CPU shows it. (Without it, the same object runs.)"""
    if platform.machine() != "x86_64" or not Target.host().has_fma:
        pytest.skip("the object would not run here anyway")
    needs = dict(x86.NEEDS["haswell"])
    if bit is not None:
        needs["extended"] |= 1 << bit
    monkeypatch.setitem(x86.NEEDS, "haswell", needs)
    made = tw.export(small_models.language_model(), tmp_path, name="m", target="x86-64-v3")
    model = ObjectModel(made.object, name="m")
    x = small_models.numbers(1, 2, 64)
    if bit is None:
        assert model(x).shape == (1, 2, 64)
        return
    with pytest.raises(tw.ExecutionError, match="code is for x86-64-v3 and needs instructions that this CPU lacks"):
        model(x)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_native_object_asks_for_every_feature(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only for a level: the code may use what this CPU has beyond one. (Bit 22: as above.)"""
    if platform.machine() != "x86_64" or not Target.host().has_fma:
        pytest.skip("a CPU without features to ask for")
    if not is_there:
        monkeypatch.setitem(x86._FEATURES, "extended", {**x86._FEATURES["extended"], "bmi2": 22})
    model = ObjectModel(tw.export(small_models.convnet(), tmp_path, name="m", threads=1).object, name="m")
    x = small_models.numbers(*(1 if isinstance(d, str) else d for d in model.inputs[0].shape))
    if is_there:
        model(x)
    else:
        with pytest.raises(tw.ExecutionError, match="needs instructions that this CPU lacks"):
            model(x)


def test_named_cpus_beyond_a_level() -> None:
    v4, zen = x86.NEEDS["skylake-avx512"], x86.needs_of("znver4", frozenset())
    assert all(zen[word] & bits == bits for word, bits in v4.items())
    assert zen["extended_c"] & 1 << 11 and zen["extended_1"] & 1 << 5  # dot products of bytes, and of bfloat16
    assert x86.needs_of("x86-64", frozenset()) == {}


@pytest.mark.parametrize("name", ["alderlake", "cascadelake", "icelake-server", "sapphirerapids", "znver3", "znver5"])
def test_every_named_cpu_needs_its_level(name: str) -> None:
    target = Target.parse(name)
    level = x86.NEEDS["skylake-avx512" if target.vector_bytes == 64 else "haswell"]
    needs = x86.needs_of(target.cpu, frozenset())
    assert all(needs[word] & bits == bits for word, bits in level.items())
    assert bool(needs.get("extended_c", 0) >> 11 & 1) == target.has_vnni
    assert bool(needs["extended"] >> 16 & 1) == (target.vector_bytes == 64)


def test_matrix_registers_are_asked_of_linux_by_objects_that_use_them() -> None:
    """Without the permission that ``arch_prctl`` gives, the first such instruction ends the process."""
    target = Target.parse("sapphirerapids-amx")
    needs = x86.needs_of(target.cpu, {f.removeprefix("+") for f in target.features.split(",")})
    assert needs["extended_d"] >> 22 & 1 and needs["extended_d"] >> 24 & 3 == 3 and needs["saved"] >> 17 & 3 == 3
    assert "@syscall(i64 158, i64 4131, i64 18)" in cpu_text(target, "net")
    assert "syscall" not in cpu_text(Target.parse("sapphirerapids"), "net")
    assert Target.parse("sapphirerapids-amx-windows").tile_units == ()


TAKEN_OUT = """define <8 x i16> @f(<8 x i16> %x) {
  %y = shufflevector <8 x i16> %x, <8 x i16> zeroinitializer,
    <8 x i32> <i32 1, i32 8, i32 8, i32 8, i32 poison, i32 poison, i32 poison, i32 poison>
  ret <8 x i16> %y
}"""


@pytest.mark.parametrize("name", ["znver3", "znver4", "znver5", "sapphirerapids"])
def test_instructions_that_only_amd_has_are_asked_for(name: str) -> None:
    """LLVM takes elements out by ``extrq`` where it may: on any other CPU that ends the process."""
    target = Target.parse(name)
    is_taken = "extrq" in assembly_of_text(TAKEN_OUT, target)
    assert is_taken == name.startswith("znver") == bool(x86.needs_of(target.cpu, frozenset())["amd"] >> 6 & 1)


def test_what_a_virtual_machine_hides_is_not_needed() -> None:
    """The host may be called znver4 and have no AVX-512: LLVM is told so, and the code is for what is left."""
    hidden = {f for bits in x86._FEATURES.values() for f in bits if f.startswith("avx512")}
    v3 = x86.NEEDS["haswell"]
    left = {**v3, "extended_c": 1 << 8, "amd": v3["amd"] | 1 << 6}  # and GFNI, and SSE4a
    assert x86.needs_of("znver4", frozenset(), hidden) == left
    assert x86.needs_of("haswell", frozenset()) == x86.NEEDS["haswell"]
    assert x86.needs_of("haswell", frozenset(), {"avx2", "fma"})["extended"] == 1 << 3 | 1 << 8
