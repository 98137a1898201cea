"""What the report says of each op: the type it computes in, and why it has no fewer bits."""

import numpy as np
import pytest

import tilewright as tw
from graph.showing import graph_of
from small_models import numbers
from tilewright import ops
from tilewright.core.types import TensorType, f32, i32, u8
from tilewright.graph.bits import computed_types
from tilewright.graph.quantize.weights import QuantizeWeights

ROWS = TensorType(f32, (4, 32))


def why_of(graph, few_bits=None):
    """The reasons of the graph's products."""
    return [t.why for t in computed_types(graph, few_bits) if t.op in ("matmul", "conv")]


def product(w):
    """``x @ w`` of floats."""
    return graph_of(lambda b, x: b(ops.matmul, x, b.const(w)), TensorType(f32, (4, len(w))))


def test_floats_of_the_model_itself():
    (why,) = why_of(product(numbers(32, 8)))
    assert "the model has f32 here" in why


def test_products_of_what_the_call_makes():
    graph = graph_of(lambda b, x, y: b(ops.matmul, x, y), ROWS, TensorType(f32, (32, 8)))
    assert "both operands are made by the call" in why_of(graph)[0]


@pytest.mark.parametrize(
    ("shape", "why"),
    [((32, 9), "9 columns fill no whole words"), ((30, 8), "sums of 30 terms are no whole groups of 32")],
)
def test_weights_that_have_no_codes_though_they_were_asked_for(shape, why):
    assert why in why_of(product(numbers(*shape)), QuantizeWeights("int4", 32))[0]


def test_bytes_that_stay_floats():
    def build(b, x):
        real = b(ops.dequantize_linear, x, b.const(0.5, f32), b.const(3, u8), axis=0)
        return b(ops.matmul, b(ops.relu, real), b.const(numbers(32, 8)))

    (why,) = why_of(graph_of(build, TensorType(u8, (4, 32))))
    assert "no factors of the result" in why


def test_products_of_bytes_need_no_reason():
    def build(b, x):
        return b(ops.matmul, x, b.const(numbers(32, 8).astype(np.int8)), out_dtype=i32)

    graph = graph_of(build, TensorType(u8, (4, 32)))
    assert why_of(graph) == [""]
    assert [t.type for t in computed_types(graph)] == ["u8 x i8"]


def test_every_op_in_floats_says_why():
    """Beside a product of bytes: what is rounded for it, what stands behind it, and what reads no product."""

    def build(b, x):
        scale, zero = b.const(0.5, f32), b.const(3, u8)
        stored = b(ops.quantize_linear, b(ops.mul, x, x), scale, zero, dtype=u8, axis=0)
        sums = b(ops.matmul, stored, b.const(numbers(32, 8).astype(np.int8)), out_dtype=i32)
        real = b(ops.exp, b(ops.dequantize_linear, stored, scale, zero, axis=0))
        return b(ops.neg, b(ops.cast, sums, dtype=f32)), real, b(ops.tanh, x)

    why = {t.op: t.why for t in computed_types(graph_of(build, ROWS))}
    assert "stored in bytes behind it" in why["mul"]
    assert "stored in bytes behind it" in why["quantize_linear"]
    assert "has no form in bytes" in why["exp"]
    assert "no product multiplies its result" in why["neg"]
    assert "no product multiplies its result" in why["tanh"]
    assert why["matmul"] == why["cast"] == why["dequantize_linear"] == ""


def test_ops_of_a_model_in_floats_say_so():
    graph = graph_of(lambda b, x: b(ops.exp, x), ROWS)
    assert [t.why for t in computed_types(graph)] == ["the model has f32 here, and computes nothing in bytes"]


@pytest.mark.timeout(20)
def test_a_chain_of_any_length_is_walked_once():
    """Looking back from each op to the first one would take half a minute of processor time for this chain."""

    def build(b, x):
        x = b(ops.dequantize_linear, x, b.const(0.5, f32), b.const(3, u8), axis=0)
        for _ in range(4_500):
            x = b(ops.neg, b(ops.exp, x))
        return x

    found = computed_types(graph_of(build, TensorType(u8, (4,))))
    exps, negs = (t for t in found if t.op in ("exp", "neg"))
    assert len(found[exps]) == len(found[negs]) == 4_500
    assert "has no form in bytes" in exps.why and exps.why == negs.why


def test_the_report_has_every_op():
    report = tw.compile(product(numbers(32, 8)), cache=False).report()
    (row,) = report["types"]
    assert (row["op"], row["type"], row["ops"]) == ("matmul", "f32 x f32", 1)
    assert len(row["locations"]) == 1
    assert "the model has f32 here" in str(report)
