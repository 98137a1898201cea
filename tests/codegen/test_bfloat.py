"""Rounding to bf16: any number of lanes, and nothing that LLVM aborts on."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tilewright import ops
from tilewright.build import driver
from tilewright.build.options import Clock, Options
from tilewright.codegen.cpu.llvm import compile_text
from tilewright.codegen.errors import CodegenError
from tilewright.core.graph import Graph, Pool
from tilewright.core.types import DTYPES, TensorType, bf16, dtype_of, f32
from tilewright.target.target import Target

ZNVER4 = Target.parse("znver4")


def graph_of(make, *operands) -> Graph:
    pool = Pool()
    inputs = tuple(pool.input(f"x{k}", TensorType(d, s)) for k, (d, s) in enumerate(operands))
    return Graph("bfloat", pool, inputs, (make(pool, *inputs),), ("y",))


def one(pool, op, *operands, **attrs):
    return pool.results(pool.add(op, operands, attrs))[0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("n", [*range(1, 36), 47, 64, 65, 96, 127])
def test_every_number_of_lanes(n: int) -> None:
    graph = graph_of(lambda p, x: one(p, ops.cast, x, dtype=bf16), (f32, (n,)))
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    got = driver.compile_graph(graph)(x)
    np.testing.assert_array_equal(np.asarray(got).view(np.uint16), x.astype(ml_dtypes.bfloat16).view(np.uint16))


@settings(max_examples=12)
@given(st.sampled_from(DTYPES), st.integers(1, 5), st.integers(1, 150), st.booleans())
@example(dtype_of("int16"), 147, 3, True)  # 57 of 96 lanes: the last register of masked lanes was folded to constants
def test_selections_of_casts_compile(dtype, rows: int, n: int, is_row: bool) -> None:
    def select(pool, x, y):
        cond = one(pool, ops.gt, x, pool.const(np.zeros((), dtype.numpy)))
        return one(pool, ops.where, cond, one(pool, ops.cast, x, dtype=bf16), y)

    graph = graph_of(select, (dtype, (rows, n)), (bf16, (n,) if is_row else (rows, n)))
    driver.build(graph, Options("znver4"), Clock())


@pytest.mark.parametrize(
    "line",
    [
        "%b = fptrunc <32 x float> %a to <32 x bfloat>",
        "%b = shufflevector <8 x bfloat> zeroinitializer, <8 x bfloat> poison, <4 x i32> zeroinitializer",
    ],
)
def test_what_would_abort_is_refused(line: str) -> None:
    text = f"define void @f(<32 x float> %a) {{\n  {line}\n  ret void\n}}"
    with pytest.raises(CodegenError, match="LLVM would abort on a vector of bfloat: %b = "):
        compile_text(text, ZNVER4)
