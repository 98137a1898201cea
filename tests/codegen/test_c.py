"""C files, as the system's cc builds them: operations against the interpreter, models against the reference."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import small_models
import tilewright as tw
from aot.programs import needs_cc
from graphs import random_graph
from test_every_op import assert_close, graph_of, has_no_bound
from tilewright import ops
from tilewright.build.deploy import build_c
from tilewright.build.options import Options
from tilewright.codegen.c.elements import MEMORY, VALUE, Helpers
from tilewright.codegen.c.kernel import kernel_text
from tilewright.codegen.c.skeleton import Skeleton
from tilewright.codegen.errors import CodegenError
from tilewright.core import types
from tilewright.core.compute import ARITHMETIC_OPS, COMPARE_OPS
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array, DType, TensorType
from tilewright.frontend.source import Called
from tilewright.runtime.library import LibraryModel
from tilewright.tile import interp
from tilewright.tile.ir import Barrier, For, Kernel, Kind, Loop

pytestmark = needs_cc
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
INCLUDES = "".join(f"#include <{name}.h>\n" for name in ("math", "stdbool", "stdint", "string"))
FLOAT_BINARY = {"add", "sub", "mul", "div", "min", "max", "larger", "rem"}
FLOAT_UNARY = {"neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint", "rint_rest", "isnan"}


def shared_object(source: Path, *flags: str) -> Path:
    made = source.with_suffix(".so")
    subprocess.run(["cc", *WARNINGS, *flags, "-shared", "-fPIC", source, "-o", made, "-lm"], check=True)
    return made


def built(graph: Graph, folder: Path, target: str = "native") -> LibraryModel:
    header = folder / "net.h"
    for path, text in zip((folder / "net.c", header), build_c(Called(graph), Options(target), header), strict=True):
        path.write_text(text)
    return LibraryModel(shared_object(folder / "net.c"))


# --- operations -------------------------------------------------------------------------------------------------------


def edges(dtype: DType) -> Array:
    """Values where types and operations end."""
    if dtype is types.bool_:
        return np.array([False, True])
    if dtype.is_integer:
        near = [0, 1, 2, 3, 7, 8, 31, 100, int(dtype.max) - 1, int(dtype.max)]
        return np.array(near + ([-1, -2, -3, -100, int(dtype.min)] if dtype.is_signed else []), dtype.numpy)
    tiny = 2.0 ** {16: -24, 32: -149, 64: -1074}[dtype.bits] if dtype is not types.bf16 else 2.0**-133
    halves = [0.0, -0.0, tiny, -tiny, 0.25, 0.5, 1.0, 1.5, 2.5, -1.0, -2.5, 3.7, 127.5, -128.5, 255.7, 65519.0, 65520.0]
    far = [2.0**31, -(2.0**31), 2.0**63, 1.9e19, float(dtype.max), float(dtype.min), np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        return np.array(halves + far).astype(dtype.numpy)


class Operation(NamedTuple):
    """An expression of elements a and b of a type, and what the interpreter makes of them."""

    name: str
    text: str
    dtype: DType
    result: DType
    meaning: Callable[[Any, Any], Any]


def operations(helpers: Helpers) -> Iterator[Operation]:
    """All but those of C's library, whose last bits are its own."""
    for d in types.DTYPES:
        for op in COMPARE_OPS:
            yield Operation(f"{op}_{d}", helpers.combined(op, "a", "b", d), d, types.bool_, interp.binary_fn(op, d))
        two: Set[str]
        one: Set[str]
        if d.is_float:
            two, one = FLOAT_BINARY, FLOAT_UNARY
        elif d.is_integer:
            two, one = ARITHMETIC_OPS - {"atan2", "larger"}, {"neg", "abs", "not"}
        else:
            two, one = set(interp._BOOL), {"not"}
        for op in two:
            yield Operation(f"{op}_{d}", helpers.combined(op, "a", "b", d), d, d, interp.binary_fn(op, d))
        for op in one:
            result = types.bool_ if op == "isnan" else d
            yield Operation(f"{op}_{d}", helpers.unary(op, "a", d), d, result, of_first(interp._unary_fn(op, d)))
        for e in types.DTYPES:
            yield Operation(f"{e}_of_{d}", helpers.cast("a", d, e), d, e, of_first(interp.cast_fn(d, e)))
            if e.n_bytes == d.n_bytes and types.bool_ not in (d, e):
                yield Operation(f"{e}_bits_{d}", helpers.bitcast("a", d, e), d, e, of_first(bits_as(e)))


def of_first(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: function(a)


def bits_as(dtype: DType) -> Callable[[Any], Any]:
    return lambda x: np.asarray(x).view(dtype.numpy)[()]


def test_operations_equal_the_interpreter_s(tmp_path: Path) -> None:
    """On every pair of edge values, in every type; NaN is any NaN."""
    helpers = Helpers()
    rows = list(operations(helpers))
    texts = []
    for row in rows:
        value, element = VALUE[row.dtype], MEMORY[row.dtype]
        head = f"static {VALUE[row.result]} f_{row.name}({value} a, {value} b)"
        texts.append(f"{head} {{ (void)a; (void)b; return {row.text}; }}")
        a, b = (helpers.loaded(x, row.dtype) for x in ("x[k / n]", "x[k % n]"))
        body = f"z[k] = {helpers.stored(f'f_{row.name}({a}, {b})', row.result)};"
        texts.append(f"void {row.name}(const {element} *x, {MEMORY[row.result]} *z, int n) {{")
        texts.append(f"  for (int k = 0; k < n * n; ++k) {body}\n}}")
    source = tmp_path / "operations.c"
    source.write_text("\n".join([INCLUDES, helpers.text(), *texts]))
    library = ctypes.CDLL(str(shared_object(source, "-O1")))
    for row in rows:
        x = edges(row.dtype)
        got = np.zeros(len(x) ** 2, row.result.numpy)
        getattr(library, row.name)(*(ctypes.c_void_p(v.ctypes.data) for v in (x, got)), ctypes.c_int(len(x)))
        with np.errstate(all="ignore"):
            want = np.array([row.meaning(a, b) for a in x for b in x], row.result.numpy)
        if row.result.is_float:
            got, want = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_array_equal(got, want, err_msg=row.name)


def test_a_program_for_the_kernels_of_a_gpu_is_refused() -> None:
    loop = For(Loop(Sym("i", 0, 3), 4, Kind.BLOCK), ())
    with pytest.raises(CodegenError, match="block loop"):
        kernel_text(Kernel("k", (), (), (loop,)), Helpers())
    with pytest.raises(CodegenError, match="Barrier"):
        kernel_text(Kernel("k", (), (), (Barrier(),)), Helpers())


def test_an_instruction_without_words_is_an_error() -> None:
    """Nothing that the writers of LLVM text may learn to say is left out in silence."""
    for line in ("  %x = fadd float 1.0, 2.0", "  fence seq_cst", "  %p = phi i64 [ 0, %entry ]"):
        with pytest.raises(CodegenError, match=line.split()[-1]):
            Skeleton({}, {}).add(f"define void @f() nounwind {{\nentry:\n{line}\n  ret void\n}}")
    with pytest.raises(CodegenError, match="attributes"):
        Skeleton({}, {}).add("attributes #0 = { nounwind }")


# --- models -----------------------------------------------------------------------------------------------------------


def check(graph: Graph, arrays: Sequence[Array], folder: Path, target: str = "native") -> LibraryModel:
    """What a graph's C file computes is what the reference does."""
    model = built(graph, folder, target)
    with np.errstate(all="ignore"):
        want = evaluate_graph(graph, arrays)
    got = model(*arrays)
    for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        assert_close(np.asarray(g), w)
    return model


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", ["x86-64-v3", "rv64gc"])
def test_models_of_any_size_equal_the_reference(target: str, tmp_path: Path) -> None:
    """Kernels for vectors and for a machine without; sizes that a call gives, and refuses as an object does."""
    graph = small_models.language_model()
    model = check(graph, [small_models.numbers(1, 5, 64)], tmp_path, target)
    x = small_models.numbers(3, 40, 64)
    assert_close(np.asarray(model(x)), evaluate_graph(graph, [x])[0])
    with pytest.raises(tw.InputError, match=r"'x', dimension 2"):
        model(np.zeros((1, 2, 63), np.float32))


def test_sizes_may_have_the_names_of_c_s_functions_and_types(tmp_path: Path) -> None:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(types.f32, (Sym("expf", 1), Sym("int64_t", 1), Sym("NULL", 1))))
    check(Graph("g", b.pool, (x,), (b(ops.exp, x),), ("y",)), [small_models.numbers(2, 3, 4)], tmp_path)


def test_every_function_of_a_file_is_called(tmp_path: Path) -> None:
    """Some compilers warn of the others, though they be inline."""
    built(small_models.perceptron(), tmp_path)
    text = (tmp_path / "net.c").read_text()
    defined = re.findall(r"^static (?:inline )?\w+ \*?(\w+)\(.*\{", text, re.MULTILINE)
    assert len(defined) > 5 and all(text.count(f"{name}(") > 1 for name in defined)


def test_compilers_round_each_product_as_asked(tmp_path: Path) -> None:
    """Compilers fuse products and sums by themselves, where they are not held to ISO C and the machine can."""
    b = Builder(Pool())
    x, y = (b.pool.input(name, TensorType(types.f32, (1000,))) for name in "xy")
    graph = Graph("g", b.pool, (x, y), (b(ops.sub, b(ops.mul, x, x), b(ops.mul, y, y)),), ("z",))
    source = tw.convert(graph, tmp_path / "net.c")
    subprocess.run(
        ["cc", "-Wall", "-O3", "-march=native", "-shared", "-fPIC", source, "-o", tmp_path / "net.so"], check=True
    )
    same = small_models.numbers(1000)
    assert not np.asarray(LibraryModel(tmp_path / "net.so")(same, same.copy())).any()


def test_parts_that_threads_would_take_come_in_turn(tmp_path: Path) -> None:
    """C has one thread, and no word for how several find memory of their own."""
    samples = list(ops.map_parts.samples(np.random.default_rng(0)))
    (sample,) = (s for s in samples if s.attrs["n_threads"] > 1)
    check(graph_of(ops.map_parts, sample), sample.arrays, tmp_path)


class Kept(torch.nn.Module):
    """Complex numbers, and a state that begins with what is not zero."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.real)
        return x * self.total


def test_state_and_complex_numbers_are_called_as_the_source_is(tmp_path: Path) -> None:
    x = torch.tensor([1 + 2j, -1j, 3.5])
    tw.convert(Kept(), tmp_path / "kept.c", example_inputs=(x,))
    model, eager = LibraryModel(shared_object(tmp_path / "kept.c")), Kept()
    for _ in range(3):
        np.testing.assert_allclose(np.asarray(model(x.numpy())), eager(x), rtol=1e-6)


def test_statuses_have_the_words_that_objects_have(tmp_path: Path) -> None:
    built(small_models.perceptron(), tmp_path)
    library = ctypes.CDLL(str(tmp_path / "net.so"))
    library.net_status_text.restype = ctypes.c_char_p
    status = library.net_run(None, None, None, None)
    assert library.net_status_text(status) == b"the handle is NULL"
    assert library.net_status_text(255) == b"unknown status"


@pytest.mark.parametrize("seed", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in range(4, 40))])
def test_random_graphs_equal_the_reference(seed: int, tmp_path: Path) -> None:
    """With branches, loops, and every type."""
    made = random_graph(seed, 16, wide=True)
    check(made.graph, made.arrays, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["native", "rv64gc"])
@pytest.mark.parametrize("op", [o for o in ops.ALL if o.samples is not None], ids=lambda o: o.name)
def test_every_op_equals_the_reference(op: OpDef, target: str, tmp_path: Path) -> None:
    assert op.samples is not None
    for k, sample in enumerate(op.samples(np.random.default_rng(0))):
        if not has_no_bound(op, sample):
            (tmp_path / str(k)).mkdir()
            check(graph_of(op, sample), sample.arrays, tmp_path / str(k), target)
