"""Bounds of elements that hold whatever the data: arithmetic of few bits wraps around."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType
from tilewright.graph.interp import evaluate_graph
from tilewright.ops.value_bounds import bounds_of

STEPS = {
    "add": lambda b, x, k: b(ops.add, x, b.const(k)),
    "sub": lambda b, x, k: b(ops.sub, x, b.const(k)),
    "mul": lambda b, x, k: b(ops.mul, x, b.const(k)),
    "neg": lambda b, x, k: b(ops.neg, x),
    "maximum": lambda b, x, k: b(ops.maximum, x, b.const(k)),
    "minimum": lambda b, x, k: b(ops.minimum, x, b.const(k)),
    "sum": lambda b, x, k: b(ops.reduce_sum, x, axes=(0,), keepdims=True),
}


def test_an_unsigned_difference_is_not_bounded_by_a_number_below_0():
    """It wraps around, and may be the largest number; it was bounded by -1."""
    pool = Pool()
    b, x = Builder(pool), pool.input("x", TensorType(types.u32, (4,)))
    few = b(ops.minimum, x, pool.const(np.uint32(2)))
    assert bounds_of(few) == (0, 2)
    assert bounds_of(b(ops.sub, few, pool.const(np.uint32(3)))) == (None, None)


@given(st.data())
def test_elements_of_few_bits_lie_within(data):
    dtype = data.draw(st.sampled_from([types.i8, types.u8, types.i16, types.u16, types.u32]))
    low, high = int(dtype.min), int(dtype.max)
    numbers = st.one_of(st.integers(low, high), st.integers(max(low, -3), 3))
    pool = Pool()
    b, x = Builder(pool), pool.input("x", TensorType(dtype, (4,)))
    names = data.draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4))
    y = x
    for name in names:
        y = STEPS[name](b, y, np.array(data.draw(numbers), dtype.numpy))
    array = np.array(data.draw(st.lists(numbers, min_size=4, max_size=4)), dtype.numpy)
    (found,) = evaluate_graph(Graph("g", pool, (x,), (y,), ("y",)), [array])
    least, most = bounds_of(y)
    assert least is None or least <= found.min(), names
    assert most is None or found.max() <= most, names
