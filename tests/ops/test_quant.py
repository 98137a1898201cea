"""Quantisation: the three ops against their stages and against ONNX Runtime."""

import numpy as np
import pytest

from ops.onnx_peer import run_node
from ops.oracle import case_id, check_case, check_symbolic, sample_cases, samples_of
from tilewright.core import types as T
from tilewright.core.diag import OpError
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs
from tilewright.core.types import TensorType
from tilewright.ops import quant as q

OPS = (q.quantize_linear, q.dequantize_linear, q.dynamic_quantize_linear)
S = Sym("S", 1)


@pytest.mark.parametrize("case", sample_cases(OPS), ids=case_id)
def test_samples(case) -> None:
    check_case(case, 1e-6 if case[0] is q.dynamic_quantize_linear else 0)


@pytest.mark.parametrize("case", sample_cases(OPS), ids=case_id)
def test_against_onnxruntime(case) -> None:
    op, k = case
    sample = samples_of(op)[k]
    attrs = Attrs(op.complete_attrs(sample.attrs))
    names = {q.quantize_linear: "QuantizeLinear", q.dequantize_linear: "DequantizeLinear"}
    given = {n: attrs[n] for n in ("axis", "block_size") if n in attrs and (n == "axis" or attrs[n])}
    ours = op.reference(sample.arrays, attrs)
    ours = ours if isinstance(ours, tuple) else (ours,)
    theirs = run_node(names.get(op, "DynamicQuantizeLinear"), sample.arrays, len(ours), given)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_symbolic_sizes() -> None:
    x, s, z = np.arange(12, dtype=np.float32).reshape(6, 2), np.full((2, 2), 0.5, np.float32), np.ones((2, 2), np.int8)
    types = (TensorType(T.f32, (S, 2)), TensorType(T.f32, ((S + 3) // 4, 2)), TensorType(T.i8, ((S + 3) // 4, 2)))
    check_symbolic(q.quantize_linear, (x, s, z), types, {"axis": 0, "block_size": 4, "dtype": T.i8})


@pytest.mark.parametrize(
    ("op", "operands", "attrs"),
    [
        (q.quantize_linear, [(T.f32, (2,)), (T.f16, ()), (T.i8, ())], {"dtype": T.i8}),
        (q.quantize_linear, [(T.f32, (2,)), (T.f32, ()), (T.u8, ())], {"dtype": T.i8}),
        (q.quantize_linear, [(T.f32, (2,)), (T.f32, ()), (T.i32, ())], {"dtype": T.i32}),
        (q.quantize_linear, [(T.f32, (2, 3)), (T.f32, (2,)), (T.i8, (2,))], {"dtype": T.i8, "axis": 1}),
        (q.quantize_linear, [(T.f32, (2, 3)), (T.f32, (3,)), (T.i8, (2,))], {"dtype": T.i8, "axis": 1}),
        (q.dequantize_linear, [(T.i8, (2, 3)), (T.f32, (3, 1)), (T.i8, (3, 1))], {"axis": 1, "block_size": 2}),
        (q.dequantize_linear, [(T.f32, (2, 3)), (T.f32, ()), (T.f32, ())], {}),
        (q.dynamic_quantize_linear, [(T.f32, (0, 3))], {}),
        (q.dynamic_quantize_linear, [(T.f64, (3,))], {}),
    ],
)
def test_refused(op, operands, attrs) -> None:
    with pytest.raises(OpError):
        op.infer([TensorType(d, s) for d, s in operands], Attrs(op.complete_attrs(attrs)))
