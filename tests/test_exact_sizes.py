"""Sizes with code of their own beside the general code (``specialize``): one model, one answer for every call."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import tilewright as tw
from aot import programs
from fuzz_graphs import kernels_shared
from graphs import RandomGraph, random_graph
from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.build.exact import fitting, read_exact_sizes
from tilewright.build.options import Options
from tilewright.cli.main import app
from tilewright.core.diag import OptionError
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.specialize import fix_symbols
from tilewright.core.types import Array, TensorType, bool_, f32
from tilewright.frontend.source import import_source
from tilewright.runtime.errors import FileError
from tilewright.runtime.python.model import LoadedModel
from tilewright.runtime.python.seen_sizes import SeenSizes, read_counts, read_sizes
from tilewright.tools.profile import profile

RNG = np.random.default_rng(5)
WEIGHTS = {
    "kernel": RNG.standard_normal((16, 3, 3, 3), np.float32) / 5,
    "matrix": RNG.standard_normal((16, 40), np.float32) / 4,
    "bias": RNG.standard_normal(40, np.float32),
}


def net() -> onnx.ModelProto:
    """A convolution, a mean over its image, a layer: of a batch of images whose size is known at the call."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "high", "wide"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 40])
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["m"]),
        helper.make_node("Flatten", ["m"], ["f"]),
        helper.make_node("Gemm", ["f", "matrix", "bias"], ["y"]),
    ]
    constants = [numpy_helper.from_array(a, name) for name, a in WEIGHTS.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], constants)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])


NET = net()
shared = pytest.mark.usefixtures("shared_kernels")
"""This one net is compiled some thirty times; only what is beside its kernels is asked about."""


def images(batch: int, high: int, wide: int) -> Array:
    return np.random.default_rng(batch).standard_normal((batch, 3, high, wide), np.float32)


def compiled(**options: Any) -> LoadedModel:
    made = tw.compile(NET, cache=False, **{"threads": 1, **options})
    assert isinstance(made, LoadedModel)
    return made


def exact(model: LoadedModel) -> list[dict[str, int]]:
    return [row["sizes"] for row in model.report().get("exact_sizes", ())]


# --- what is computed


def sizes_of(case: RandomGraph) -> dict[Sym, int]:
    found: dict[Sym, int] = {}
    for n, a in zip(case.graph.inputs, case.arrays, strict=True):
        found.update((d, size) for d, size in zip(n.shape, a.shape, strict=True) if isinstance(d, Sym))
    return found


@pytest.mark.one_in(4)
@pytest.mark.parametrize("block", range(4))
def test_every_call_is_as_by_a_compile_of_its_own(block: int) -> None:
    """Of random graphs with control flow: calls of exact sizes equal a compile for these sizes, others the general one,
    bit for bit."""
    checked = 0
    for seed in range(30 * block, 30 * block + 30):
        case = random_graph(seed, 6, wide=True)
        sizes = sizes_of(case)
        if not sizes:
            continue
        checked += 1
        rng = np.random.default_rng(seed)
        wanted = []
        for s, size in sizes.items():
            drawn = {int(rng.integers(1, 65)), *([size] if rng.random() < 0.7 else [])}
            wanted.append({s.name: sorted(drawn)})
        specialize: Any = {k: v for row in wanted for k, v in row.items()}
        fits = all(size in specialize[s.name] for s, size in sizes.items())
        with kernels_shared():
            model = compile_graph(case.graph, threads=1 + seed % 2, specialize=specialize)
            fixed = fix_symbols(case.graph, {s.name: size for s, size in sizes.items()}) if fits else case.graph
            other = compile_graph(fixed, threads=1 + seed % 2)
        got, want = ([np.asarray(a) for a in results(m, case.arrays)] for m in (model, other))
        case.assert_close(got)
        for a, b in zip(got, want, strict=True):
            assert a.tobytes() == b.tobytes(), f"seed {seed}"
    assert checked > 3


def results(model: Any, arrays: Sequence[Array]) -> Sequence[Array]:
    found = model(*arrays)
    return found if isinstance(found, tuple) else (found,)


def branching(shape: Sequence[Dim], inner: Sequence[Dim], pads: Sequence[tuple[int, int]]) -> Graph:
    """Pads ``x`` and leaves it as it is in both branches, whose input has the shape ``inner``."""
    pool, within = Pool(), Pool()
    p = within.input("p", TensorType(f32, tuple(inner)))
    branch = Graph("branch", within, (p,), (p,), ("r",))
    x, going = pool.input("x", TensorType(f32, tuple(shape))), pool.input("going", TensorType(bool_, ()))
    b = Builder(pool)
    longer = b(ops.pad, x, b.const(0.0, f32), pads=tuple(pads))
    chosen = b(ops.if_, going, longer, then_branch=branch, else_branch=branch, name="if")
    return Graph("g", pool, (x, going), (chosen,), ("y",))


def test_sizes_reach_into_control_flow() -> None:
    """A branch knows its input's last size by a name of outside."""
    m, n = Sym("m", 1), Sym("n", 1)
    graph = branching((m, n), (m, n + 5), [(0, 0), (0, 5)])
    assert fix_symbols(graph, {"n": 4}).outputs[0].shape == (m, 9)
    model = compile_graph(graph, threads=1, specialize={"n": [4]})
    assert [model(np.ones((3, n), np.float32), np.True_).shape for n in (4, 6)] == [(3, 9), (3, 11)]


def test_a_branch_has_names_of_its_own() -> None:
    """What is ``n + 5`` outside is called ``n`` within."""
    n = Sym("n", 1)
    graph = branching((n,), (n,), [(0, 5)])
    assert fix_symbols(graph, {"n": 4}).outputs[0].shape == (9,)
    model = compile_graph(graph, threads=1, specialize={"n": [4, 9]})
    assert [model(np.ones(n, np.float32), np.True_).shape for n in (4, 9, 3)] == [(9,), (14,), (8,)]


@settings(max_examples=3)
@given(
    st.lists(st.fixed_dictionaries({"batch": st.integers(1, 5)}, optional={"high": st.integers(3, 9)}), max_size=4),
    st.integers(1, 5), st.integers(3, 9), st.sampled_from([1, 2]),
)  # fmt: skip
def test_lists_of_sizes(wanted: list[dict[str, int]], batch: int, high: int, threads: int) -> None:
    wanted = list({tuple(sorted(row.items())): row for row in wanted}.values())
    with kernels_shared():
        model = compiled(specialize=wanted, threads=threads)
        x = images(batch, high, 7)
        best = max(
            (row for row in wanted if row.items() <= {"batch": batch, "high": high}.items()), key=len, default={}
        )
        same = compiled(fix_dims=best, threads=threads)
    np.testing.assert_array_equal(model(x), same(x))


@shared
def test_those_that_fix_more_come_first() -> None:
    model = compiled(specialize=[{"batch": 2}, {"batch": 2, "high": 8}, {"high": 8}])
    assert exact(model)[0] == {"batch": 2, "high": 8}
    x = images(2, 8, 8)
    np.testing.assert_array_equal(model(x), compiled(fix_dims={"batch": 2, "high": 8})(x))


@shared
def test_a_name_may_be_an_axis() -> None:
    assert exact(compiled(specialize={"x[0]": [3]})) == [{"batch": 3}]
    with pytest.raises(OptionError, match="batch=3 is there twice"):
        compiled(specialize=[{"x[0]": 3}, {"batch": 3}])


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        compiled(specialize=[{"batch": 1, "deep": 2}, {"x[1]": 3}, {"high": 0}])
    assert "'deep'" in str(caught.value) and "'x[1]'" in str(caught.value) and "high=0" in str(caught.value)
    with pytest.raises(OptionError, match="no symbolic dimension 'batch'"):
        compiled(specialize={"batch": [1]}, fix_dims={"batch": 1})
    with pytest.raises(OptionError) as caught:
        read_exact_sizes({"a": [1, 1], "b": "x", 5: [1]})
    assert "a: 1 is there twice" in str(caught.value) and "'x' is no list" in str(caught.value)


def test_what_is_read_is_read_as_it_is() -> None:
    once = read_exact_sizes({"b": [1, 8], "a": range(2, 4)})
    assert once == ((("a", 2), ("b", 1)), (("a", 3), ("b", 1)), (("a", 2), ("b", 8)), (("a", 3), ("b", 8)))
    assert read_exact_sizes(once) == once == Options(specialize=once).specialize
    graph = import_source(NET)
    assert fitting(graph, read_exact_sizes([{"batch": 1}, {"deep": 1}])) == ((("batch", 1),),)


# --- what it costs


@shared
def test_equal_weights_are_stored_once() -> None:
    """The layer is the same for every image; only the batch's product may lay its matrix out in another way."""
    small, large = compiled(), compiled(specialize={"high": [20, 30, 40, 50]})
    assert large.report()["memory"]["weights_bytes"] == small.report()["memory"]["weights_bytes"]


def test_without_exact_sizes_the_code_is_as_before() -> None:
    plain, empty = compiled(), compiled(specialize={})
    assert [o.data for o in plain._objects] == [o.data for o in empty._objects]
    assert "exact_sizes" not in plain.report() and "specialize" not in plain.report()["options"]


def test_a_call_pays_little_to_be_told_apart() -> None:
    """64 combinations, the last of which is looked for: under 0.2 us, as the issue's bar has it."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g",
        *([helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", "columns"])] for name in "xy"),
    )  # fmt: skip
    small = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    sizes = [{"rows": r, "columns": c} for r in range(1, 9) for c in range(1, 9)]
    x = np.ones((8, 8), np.float32)
    calls = [tw.compile(small, cache=False, threads=1, **o) for o in ({}, {"specialize": sizes})]
    costs: list[list[float]] = [[], []]
    for _ in range(40):
        for call, seconds in zip(calls, costs, strict=True):
            seconds.append(shortest(lambda call=call: call(x)))  # type: ignore[misc]
    plain, told = (min(seconds) for seconds in costs)
    assert told - plain < 2e-6, (plain, told)  # ten times the bar: other processes run beside the suite
    assert statistics.median(costs[1]) > 0


def shortest(call: Callable[[], Any], n: int = 200) -> float:
    start = time.thread_time()
    for _ in range(n):
        call()
    return (time.thread_time() - start) / n


# --- where it goes on


@shared
def test_a_saved_model_has_its_sizes(tmp_path: Path) -> None:
    model = compiled(specialize={"batch": [1, 2], "high": [6]})
    model.save(tmp_path / "m.tw")
    loaded = tw.load(tmp_path / "m.tw", threads=1)
    assert exact(loaded) == exact(model) == [{"batch": 1, "high": 6}, {"batch": 2, "high": 6}]
    for shape in ((1, 6, 7), (2, 6, 5), (3, 6, 7), (1, 4, 4)):
        np.testing.assert_array_equal(loaded(images(*shape)), model(images(*shape)))
    assert "code for exact sizes" in str(model.report())


@shared
def test_the_cache_tells_lists_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    onnx.save(NET, tmp_path / "net.onnx")
    for _ in range(2):
        for wanted in (None, {"batch": [1]}, {"batch": [2]}):
            made = tw.compile(tmp_path / "net.onnx", threads=1, specialize=wanted)
            assert exact(made) == ([] if wanted is None else [{"batch": wanted["batch"][0]}])
    assert made.report()["from_cache"]


@shared
def test_native_entries_and_memory() -> None:
    """The arena is the chosen program's, also where sizes change from call to call and calls go the short way."""
    model, general = compiled(specialize={"batch": [1, 4], "high": [8], "wide": [8]}), compiled()
    for shape in [(1, 8, 8), (4, 8, 8), (5, 8, 8), (1, 8, 8), (4, 8, 9)] * 2:
        for _ in range(4):
            np.testing.assert_allclose(model(images(*shape)), general(images(*shape)), rtol=1e-4, atol=1e-5)
    arenas = {tuple(row["sizes"].values()): row["arena_bytes"] for row in model.report()["exact_sizes"]}
    for batch in (1, 4):
        assert model._plan(((batch, 3, 8, 8),)).arena_bytes == arenas[batch, 8, 8]


@shared
def test_sizes_beyond_64_bits_are_refused_as_before() -> None:
    model = compiled(specialize={"batch": [1]})
    with pytest.raises(tw.TilewrightError, match="64 bits"):
        model._plan(((1 << 40, 3, 1 << 20, 1 << 20),))


@shared
def test_the_profile_is_of_the_program_that_runs() -> None:
    graph = import_source(NET)
    options = Options(specialize=read_exact_sizes({"batch": [2], "high": [8], "wide": [8]}))
    whole, part = (profile(graph, [images(*s)], options, threads=1, seconds=0.05) for s in ((2, 8, 8), (3, 8, 8)))
    assert {k.name for k in whole.kernels} != {k.name for k in part.kernels}
    assert all(k.seconds > 0 and k.calls for p in (whole, part) for k in p.kernels)


def test_torch_compile_takes_what_fits() -> None:
    torch = pytest.importorskip("torch")

    def f(x: Any, y: Any) -> Any:
        return torch.relu(x) @ y

    calls = torch.compile(f, backend="tilewright", dynamic=True, options={"specialize": {"x[0]": [8], "z[0]": [3]}})
    x, y = torch.randn(8, 5), torch.randn(5, 6)
    with pytest.warns(UserWarning, match=r"specialize names z\[0\], which a graph .* lacks: it has .*x\[0\]"):
        torch.testing.assert_close(calls(x, y), f(x, y))
    for n in (9, 1):
        x, y = torch.randn(n, 5), torch.randn(5, 6)
        torch.testing.assert_close(calls(x, y), f(x, y))


@shared
@programs.needs_cc
def test_exports_have_them_too(tmp_path: Path) -> None:
    specialize = {"batch": [1, 2], "high": [6], "wide": [6]}
    made = tw.export(NET, tmp_path, name="net", threads=1, specialize=specialize)
    model, program = compiled(specialize=specialize), programs.build(made)
    for shape in ((1, 6, 6), (2, 6, 6), (3, 6, 6), (2, 7, 6)):
        programs.same_bytes(program, model, {"x": images(*shape)})
    assert "where batch = 2, high = 6, wide = 6" in made.header.read_text()
    assert sum(row.n_bytes for row in made.sizes) == made.object.stat().st_size


@programs.needs_cc
def test_exports_of_several_levels_have_them_in_each(tmp_path: Path) -> None:
    made = tw.export(NET, tmp_path, name="net", target="x86-64,x86-64-v3", specialize={"batch": [2]}, fix_dims=FIXED)
    program = programs.build(made)
    model = compiled(specialize={"batch": [2]}, fix_dims=FIXED, target="x86-64")
    for batch in (2, 3):
        x = images(batch, 6, 6)
        got = np.frombuffer(programs.run(program, model, {"x": x}), np.float32).reshape(batch, 40)
        np.testing.assert_allclose(got, model(x), rtol=1e-4, atol=1e-5)


FIXED: Mapping[str, int] = {"high": 6, "wide": 6}


# --- sizes seen


@shared
def test_sizes_of_calls_are_counted(tmp_path: Path) -> None:
    model = compiled()
    for _ in range(3):
        model(images(2, 6, 6))  # by a native entry from the third on, which counts nothing
    with model.profile_sizes() as seen:
        for batch in (2, 1, 2, 3, 2, 1):
            model(images(batch, 6, 6))
    assert seen.most(2) == [{"batch": 2, "high": 6, "wide": 6}, {"batch": 1, "high": 6, "wide": 6}]
    model(images(5, 6, 6))
    assert sum(count for _, count in seen.counts) == 6
    for _ in range(2):
        seen.write(tmp_path / "sizes.json")
    assert read_counts(tmp_path / "sizes.json").counts[0] == ({"batch": 2, "high": 6, "wide": 6}, 6)
    assert exact(compiled(specialize=read_sizes(tmp_path / "sizes.json", 2))) == seen.most(2)


@pytest.mark.parametrize("text", ["", "{}", '{"format": "tilewright sizes 1", "rows": [{"sizes": 5, "calls": 1}]}'])
def test_files_that_hold_no_sizes(tmp_path: Path, text: str) -> None:
    (tmp_path / "sizes.json").write_text(text)
    with pytest.raises(FileError, match="no file of sizes") as caught:
        read_sizes(tmp_path / "sizes.json")
    assert "--profile-sizes" in caught.value.remedy
    with pytest.raises(FileError, match="can't read"):
        read_sizes(tmp_path / "none.json")
    SeenSizes().add({})


@shared
def test_the_command_line(tmp_path: Path) -> None:
    onnx.save(NET, tmp_path / "net.onnx")
    run = CliRunner().invoke
    source, sizes = str(tmp_path / "net.onnx"), str(tmp_path / "sizes.json")
    for _ in range(2):
        ran = run(app, ["run", source, "--size", "batch=3", "--profile-sizes", sizes])
        assert ran.exit_code == 0, ran.output
    assert json.loads(Path(sizes).read_text())["rows"] == [{"sizes": {"batch": 3, "high": 8, "wide": 8}, "calls": 2}]
    for given_, wanted in (
        ([f"@{sizes}"], [{"batch": 3, "high": 8, "wide": 8}]),
        (["batch=1,2", "high=9"], [{"batch": 1, "high": 9}, {"batch": 2, "high": 9}]),
    ):
        options = [part for text in given_ for part in ("--specialize", text)]
        ran = run(app, ["compile", source, *options, "--no-cache", "--json"])
        assert ran.exit_code == 0, ran.output
        assert [row["sizes"] for row in json.loads(ran.output)["report"]["exact_sizes"]] == wanted
    assert run(app, ["compile", source, "--specialize", "batch"]).exit_code == 2
