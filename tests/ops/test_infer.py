"""What `infer` refuses and what it says, and how it treats symbolic dimensions."""

import numpy as np
import pytest

from ops.running import Call, reference, run_compute, sample_calls
from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.expr import Sym, evaluate
from tilewright.core.graph import Attrs
from tilewright.core.types import TensorType

N, M = Sym("n"), Sym("m")
PLAIN = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1)}


def t(dtype, *shape):
    return TensorType(types.dtype_named(dtype), shape)


def infer(op, *operands, **attrs):
    op.check_arity(len(operands))
    return op.infer(operands, Attrs(op.complete_attrs(attrs)))


def test_symbols_broadcast_with_themselves_and_with_one():
    assert infer(ops.add, t("f32", N, 1), t("f32", N)) == t("f32", N, N)
    assert infer(ops.where, t("bool", N, 1), t("f32"), t("f32", 1, M)) == t("f32", N, M)
    assert infer(ops.add, t("f32", N + 1), t("f32", 1 + N)) == t("f32", N + 1)


@pytest.mark.parametrize("other", [M, 5, N + 1])
def test_unequal_symbols_are_refused_by_name(other):
    with pytest.raises(OpError, match=r"dimensions n and .* can't be broadcast") as e:
        infer(ops.add, t("f32", N), t("f32", other))
    assert e.value.remedy


REFUSED = [
    (ops.add, [t("f32", 2), t("i32", 2)], {}, "one dtype"),
    (ops.add, [t("f32", 2), t("f32", 3)], {}, "2 and 3"),
    (ops.exp, [t("i32", 2)], {}, "f32"),
    (ops.exp, [], {}, "takes 1"),
    (ops.logical_and, [t("i8", 2), t("i8", 2)], {}, "bool"),
    (ops.cast, [t("f8e4m3fn", 2)], {"dtype": types.f32}, "can't be cast to f32"),
    (ops.cast, [t("f32", 2)], {"dtype": types.f4e2m1}, "can't be cast to f4e2m1"),
    (ops.where, [t("f32"), t("f32"), t("f32")], {}, "condition"),
    (ops.bitcast, [t("f32", 2)], {"dtype": types.i64}, "widths"),
    (ops.reduce_sum, [t("f32", 2)], {"axes": (1,)}, "axes entry 1"),
    (ops.reduce_sum, [t("f32", 2, 2)], {"axes": (1, 1)}, "twice"),
    (ops.reduce_sum, [t("bool", 2)], {"axes": (0,)}, "bool"),
    (ops.argmax, [t("f32", 2, 0)], {"axis": 1}, "no element"),
    (ops.cumsum, [t("f32", 2)], {"axis": -1}, "axis -1"),
    (ops.matmul, [t("f32", 2, 3), t("f32", 4, 5)], {}, "3 and 4"),
    (ops.matmul, [t("f32", 2), t("f32", 2, 2)], {}, "rank"),
    (ops.matmul, [t("u8", 2, 2), t("i8", 2, 2)], {}, "one dtype"),
    (ops.matmul, [t("f32", 2, 2), t("f32", 2, 2)], {"out_dtype": types.i32}, "out_dtype|can't give"),
    (ops.einsum, [t("f32", 2)], {"equation": "i"}, "->"),
    (ops.einsum, [t("f32", 2)], {"equation": "ij->i"}, "rank 1"),
    (ops.einsum, [t("f32", 2)], {"equation": "i->j"}, "wrong index"),
    (ops.einsum, [t("f32", 2)], {"equation": "1->1"}, "no index"),
    (ops.conv, [t("f32", 1, 3, 8, 8), t("f32", 4, 2, 3, 3)], PLAIN, "channels"),
    (ops.conv, [t("f32", 1, 2, 8, 8), t("f32", 4, 2, 3)], PLAIN, "rank"),
    (ops.conv, [t("f32", 1, 2, 1, 8), t("f32", 4, 2, 9, 3)], PLAIN, "does not fit"),
    (ops.conv, [t("f32", 1, 2, 8, 8), t("f32", 4, 2, 3, 3)], {**PLAIN, "strides": (0, 1)}, "positive"),
    (ops.conv, [t("f32", 1, 2, 8, 8), t("f32", 4, 2, 3, 3)], {**PLAIN, "layout": "CHWN"}, "layout"),
    (ops.conv, [t("f32", 1, 4, 8, 8), t("f32", 3, 2, 3, 3)], {**PLAIN, "groups": 2}, "3 output channels"),
    (ops.max_pool, [t("f32", 1, 2, 8, 8)], {"kernel": (2,), "strides": (1, 1), "pads": ((0, 0),) * 2}, "entries"),
    (ops.avg_pool, [t("i32", 1, 2, 8)], {"kernel": (2,), "strides": (1,), "pads": ((0, 0),)}, "dtype"),
    (ops.batch_norm, [t("f32", 1, 2), *[t("f32", 3)] * 4], {}, "as many elements"),
    (ops.layer_norm, [t("f32", 1, 2), t("f32", 3)], {"axis": 1}, "broadcast"),
    (ops.group_norm, [t("f32", 1, 5, 2), t("f32", 5), t("f32", 5)], {"groups": 2}, "5 channels"),
    (ops.softmax, [t("i32", 2)], {"axis": 0}, "dtype"),
    (ops.attention, [t("f32", 1, 3, 2, 4), *[t("f32", 1, 2, 2, 4)] * 2], {"scale": 1.0}, "heads"),
    (ops.rotary, [t("f32", 3), t("f32", 1), t("f32", 1)], {}, "even"),
    (ops.full, [], {"value": 0.5, "dtype": types.i32, "shape": (2,)}, "not a value"),
    (ops.full, [], {"value": 300.0, "dtype": types.u8, "shape": ()}, "not a value"),
    (ops.trilu, [t("i32", 2, 2)], {"fill": float("-inf")}, "is no i32"),
    (ops.iota, [], {"extent": -1, "dtype": types.i32}, "negative"),
    (ops.random_uniform, [t("i64", 2)], {"shape": (2,)}, "u64"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operands", "attrs", "text"), REFUSED, ids=lambda v: getattr(v, "name", None))
def test_refused_with_a_reason(op, operands, attrs, text):
    with pytest.raises(OpError, match=text):
        infer(op, *operands, **attrs)


def test_symbolic_shapes():
    assert infer(ops.matmul, t("f32", N, M, 4), t("f32", 4, 5)) == t("f32", N, M, 5)
    assert infer(ops.reduce_mean, t("f32", N, 3, M), axes=(0,), keepdims=True) == t("f32", 1, 3, M)
    assert infer(ops.conv, t("f32", N, 3, M, M), t("f32", 4, 3, 3, 3), **PLAIN) == t("f32", N, 4, M, M)
    halves = infer(ops.conv, t("f32", 1, 3, M, 8), t("f32", 4, 3, 3, 3), **{**PLAIN, "strides": (2, 2)})
    assert evaluate(halves.shape[2], {M: 7}) == 4 and halves.shape[3] == 4
    q, kv = t("f32", N, 8, M, 16), t("f32", N, 2, M + 3, 16)
    assert infer(ops.attention, q, kv, kv, scale=1.0) == q
    assert infer(ops.group_norm, t("f32", N, 6, M), t("f32", 6), t("f32", 6), groups=3) == t("f32", N, 6, M)


@pytest.mark.parametrize("name", ["t", "k", "d", "n0", "i0"])
def test_a_dimension_may_be_called_like_a_loop(name):
    dim, x = Sym(name, 0), np.arange(6, dtype=np.float32).reshape(2, 3)
    attrs = Attrs(ops.cumsum.complete_attrs({"axis": 1, "reverse": True}))
    call = Call(ops.cumsum, (x,), attrs)
    (got,) = run_compute(ops.cumsum, call, [t("f32", 2, dim)], {dim: 3})
    assert got.tolist() == reference(ops.cumsum, call)[0].tolist()


def test_mean_over_a_symbolic_axis_counts_at_run_time():
    n = infer(ops.dim_values, dims=(N, N * 2, 3))
    assert n == t("i64", 3)
    values = run_compute(ops.dim_values, sample_calls(ops.dim_values)[1])
    assert values[0].tolist() == [1, 2, 3] and values[0].dtype == np.int64
