"""Machines without vectors: sums of a tile stay in the registers that there are, by the rules that vectors have."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import SCALAR, check_default, convolution, layer_norm, matmul, softmax
from tilewright.choose.cost.tile import Box, Operand, choose_tile
from tilewright.choose.default import schedule
from tilewright.core import types
from tilewright.core.expr import Sym
from tilewright.tile.ir import Kind, Space, walk
from tilewright.tile.rewrite import loops_of

SOFT = dataclasses.replace(SCALAR, n_vector_registers=8, has_fma=False)
machines = st.sampled_from([SCALAR, SOFT, dataclasses.replace(SCALAR, max_copies=4)])
few = st.integers(1, 21)


def spaces(kernel):
    return {p.space for p in kernel.places if p.role.value == "tmp"}


def test_a_product_with_its_epilogue_needs_registers_alone():
    kernel = check_default(matmul(120, 64, 64), machine=SCALAR)
    assert spaces(kernel) == {Space.REG}
    copies = [x.extent for x in loops_of(kernel.body) if x.kind is Kind.UNROLL]
    assert np.prod(copies) > 4, copies


def test_no_hint_where_nothing_listens():
    computation = matmul(1 << 12, 64, 1 << 12)
    assert "prefetch" not in {type(s).__name__.lower() for s in walk(schedule(computation, SCALAR).body)}


def test_wide_elements_take_several_registers():
    i, j, k = (Sym(n) for n in "ijk")
    box = Box(j, 64, i, 64, None, 1, (), (Operand(i * 64 + k, 0), Operand(k * 64 + j, 1)))
    narrow = choose_tile(box, SCALAR, 1)
    wide = choose_tile(dataclasses.replace(box, registers_per_element=2), SCALAR, 1)
    assert 2 * wide.rows * wide.vectors <= SCALAR.n_vector_registers < 2 * narrow.rows * narrow.vectors


@settings(max_examples=12)
@given(few, few, few, st.booleans(), machines, st.sampled_from([types.f32, types.f64, types.i8]))
def test_any_product_is_what_the_plain_loops_give(m, n, k, epilogue, machine, dtype):
    out = types.i32 if dtype is types.i8 else dtype
    check_default(matmul(m, n, k, epilogue, (dtype, dtype, out)), "B", machine=machine)


def windows(data):
    groups = data.draw(st.sampled_from([1, 1, 2, 4]))
    per_group, out = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)) * groups
    kernel, stride, pad = (data.draw(st.integers(*r)) for r in ((1, 3), (1, 2), (0, 1)))
    size = (1, data.draw(st.integers(kernel, 9)), data.draw(st.integers(kernel, 9)), per_group * groups)
    return convolution(size, out, (kernel, kernel), stride, min(pad, kernel - 1), groups)


@settings(max_examples=7)
@given(st.data(), machines)
def test_any_convolution_is_what_the_plain_loops_give(data, machine):
    check_default(windows(data), "W", machine=machine)


@settings(max_examples=5)
@given(few, few, machines)
def test_any_row_is_what_the_plain_loops_give(rows, columns, machine):
    check_default(softmax(rows, columns), machine=machine)
    check_default(layer_norm(rows, columns), machine=machine)


@pytest.mark.slow
@settings(max_examples=500)
@given(st.data(), machines)
def test_500_products_and_convolutions(data, machine):
    check_default(matmul(*(data.draw(few) for _ in range(3))), "B", machine=machine)
    check_default(windows(data), "W", machine=machine)
