"""Ops whose indices are data: gather, gather_elements, gather_nd, dynamic_slice, one_hot."""

import numpy as np
import pytest

from ops.oracle import case_id, check_case, check_symbolic, sample_cases
from tilewright.core import types as T
from tilewright.core.diag import OpError
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs
from tilewright.core.types import TensorType
from tilewright.ops import index as ix

OPS = (ix.gather, ix.gather_elements, ix.gather_nd, ix.dynamic_slice, ix.one_hot)
S = Sym("S", 0)


@pytest.mark.parametrize("case", sample_cases(OPS), ids=case_id)
def test_samples(case) -> None:
    check_case(case)


def test_symbolic_sizes() -> None:
    x, i = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([[0, -1], [3, 9]])
    xt, it = TensorType(T.f32, (S, 3)), TensorType(T.i64, (2, 2))
    check_symbolic(ix.gather, (x, i), (xt, it), {"axis": 0})
    check_symbolic(ix.gather_elements, (x, i), (xt, it), {"axis": 0})
    check_symbolic(ix.gather_nd, (x, i), (xt, it), {})
    check_symbolic(ix.dynamic_slice, (x, np.array([9, 0])), (xt, TensorType(T.i64, (2,))), {"sizes": (S - 1, 3)})
    check_symbolic(ix.one_hot, (i, np.array([0, 1])), (it, TensorType(T.i64, (2,))), {"depth": 4, "axis": 2})


def test_an_empty_run_time_dimension_is_never_read() -> None:
    x, i = np.zeros((0, 3), np.float32), np.array([0, -1])
    check_symbolic(ix.gather, (x, i), (TensorType(T.f32, (S, 3)), TensorType(T.i64, (2,))), {"axis": 0})


@pytest.mark.parametrize(
    ("op", "shapes", "dtype", "attrs"),
    [
        (ix.gather, [(2, 3), (2,)], T.f32, {"axis": 0}),
        (ix.gather, [(2, 3), (2,)], T.i64, {"axis": 2}),
        (ix.gather, [(0, 3), (2,)], T.i64, {"axis": 0}),
        (ix.gather_elements, [(2, 3), (2,)], T.i64, {"axis": 0}),
        (ix.gather_elements, [(2, 3), (2, 4)], T.i64, {"axis": 0}),
        (ix.gather_nd, [(2, 3), (2, 3)], T.i64, {"batch_dims": 0}),
        (ix.gather_nd, [(2, 3), (2, S)], T.i64, {"batch_dims": 0}),
        (ix.gather_nd, [(2, 3), (4, 1)], T.i64, {"batch_dims": 1}),
        (ix.dynamic_slice, [(2, 3), (2,)], T.i64, {"sizes": (3, 1)}),
        (ix.dynamic_slice, [(2, 3), (1,)], T.i64, {"sizes": (1, 1)}),
        (ix.one_hot, [(2,), (3,)], T.i64, {"depth": 3, "axis": 1}),
        (ix.one_hot, [(2,), (2,)], T.i64, {"depth": 3, "axis": 2}),
    ],
)
def test_refused(op, shapes, dtype, attrs) -> None:
    with pytest.raises(OpError):
        op.infer([TensorType(dtype, s) for s in shapes], Attrs(attrs))
