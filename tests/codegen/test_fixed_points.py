"""Integers that become floats times a power of two: instructions for numbers with a fixed point give them at once."""

import pytest

from tilewright import ops
from tilewright.build import driver
from tilewright.build.options import Clock, Options
from tilewright.core import types
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import DType, TensorType


@pytest.mark.parametrize("code", [types.i8, types.u8], ids=str)
def test_codes_times_a_power_of_two(code: DType) -> None:
    """LLVM gave Helium's instruction a register for the number of digits, and ended the process."""
    pool = Pool()
    x, d, b = pool.input("x", TensorType(code, (24,))), pool.input("d", TensorType(types.f32, (24,))), Builder(pool)
    whole = b(ops.sub, b(ops.cast, x, dtype=types.i32), b.const(3, types.i32))
    number = b(ops.mul, b(ops.cast, whole, dtype=types.f32), b.const(0.125, types.f32))
    graph = Graph("decoded", pool, (x, d), (b(ops.div, number, d),), ("y",))
    driver.build(graph, Options("cortex-m55"), Clock())
