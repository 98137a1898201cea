"""Composites are found in their pieces, and only where the formula is exactly theirs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from graph.showing import assert_same, graph_of, show
from tilewright import ops
from tilewright.core.effort import EFFORT
from tilewright.core.expr import Sym
from tilewright.core.types import TensorType, f32, i32
from tilewright.graph.canonical.canonicalize import Canonicalize
from tilewright.graph.canonical.fold import FoldConstants
from tilewright.graph.decompose import Decompose
from tilewright.graph.recognise import attention as recognise_attention
from tilewright.graph.recognise.composites import Recognise

M = "f32[2,8]"
N = Sym("n", 1, 64)


def k(b, value, dtype=f32):
    return b.const(value, dtype)


def gelu_erf(b, x, root=None, half=0.5):
    inner = b(ops.div, x, k(b, math.sqrt(2))) if root is None else b(ops.mul, x, k(b, root))
    one_plus = b(ops.add, k(b, 1), b(ops.erf, inner))
    return b(ops.mul, b(ops.mul, x, one_plus), k(b, half))


def gelu_tanh(b, x):
    cube = b(ops.mul, b(ops.pow, x, k(b, 3)), k(b, 0.044715))
    inner = b(ops.mul, b(ops.add, x, cube), k(b, math.sqrt(2 / math.pi)))
    return b(ops.mul, b(ops.mul, x, k(b, 0.5)), b(ops.add, b(ops.tanh, inner), k(b, 1)))


def gelu_tanh_factored(b, x):
    square = b(ops.add, b(ops.mul, b(ops.mul, x, x), k(b, 0.044715)), k(b, 1))
    inner = b(ops.mul, b(ops.mul, x, k(b, 0.7978845608)), square)
    return b(ops.mul, x, b(ops.mul, k(b, 0.5), b(ops.add, b(ops.tanh, inner), k(b, 1))))


def sigmoid(b, x):
    return b(ops.div, k(b, 1), b(ops.add, b(ops.exp, b(ops.neg, x)), k(b, 1)))


def hard_swish(b, x):
    gate = b(ops.clamp, b(ops.add, x, k(b, 3)), k(b, 0), k(b, 6))
    return b(ops.div, b(ops.mul, x, gate), k(b, 6))


def softmax(b, x, axis=1):
    e = b(ops.exp, b(ops.sub, x, b(ops.reduce_max, x, axes=(axis,), keepdims=True)))
    return b(ops.div, e, b(ops.reduce_sum, e, axes=(axis,), keepdims=True))


def mean(b, x, axes):
    return b(ops.reduce_mean, x, axes=axes, keepdims=True)


def layer_norm(b, x, *params, axes=(1,)):
    centred = b(ops.sub, x, mean(b, x, axes))
    spread = b(ops.add, mean(b, b(ops.pow, centred, k(b, 2)), axes), k(b, 1e-5))
    y = b(ops.div, centred, b(ops.sqrt, spread))
    for op, p in zip((ops.mul, ops.add), params, strict=False):
        y = b(op, y, p)
    return y


def rms_norm(b, x, scale):
    spread = b(ops.add, mean(b, b(ops.mul, x, x), (1,)), k(b, 1e-6))
    return b(ops.mul, scale, b(ops.mul, x, b(ops.rsqrt, spread)))


def group_norm(b, x):
    ones, zeros = b.const(np.arange(1, 3, dtype=np.float32)), b.const(np.zeros(2, np.float32))
    merged = b(ops.instance_norm, b(ops.reshape, x, shape=(3, 2, 40)), ones, zeros)
    return b(ops.reshape, merged, shape=x.shape)


EPS5, EPS6 = float(np.float32(1e-5)), float(np.float32(1e-6))
CASES = {
    "gelu": (gelu_erf, [M], "gelu(x)"),
    "gelu by product": (lambda b, x: gelu_erf(b, x, 0.70710678), [M], "gelu(x)"),
    "gelu tanh": (gelu_tanh, [M], "gelu(x, approximate=tanh)"),
    "gelu tanh, factored": (gelu_tanh_factored, [M], "gelu(x, approximate=tanh)"),
    "sigmoid": (sigmoid, [M], "sigmoid(x)"),
    "silu": (lambda b, x: b(ops.mul, sigmoid(b, x), x), [M], "silu(x)"),
    "mish": (lambda b, x: b(ops.mul, x, b(ops.tanh, b(ops.softplus, x))), [M], "mish(x)"),
    "tanh of another's softplus": (
        lambda b, x, y: b(ops.mul, x, b(ops.tanh, b(ops.softplus, y))), [M, M], "mul(x, tanh(softplus(y)))",
    ),
    "silu gates": (lambda b, x, y: b(ops.mul, b(ops.mul, sigmoid(b, x), x), y), [M, M], "mul(silu(x), y)"),
    "hard swish": (hard_swish, [M], "hard_swish(x)"),
    "softmax": (softmax, [M], "softmax(x, axis=1)"),
    "log softmax": (lambda b, x: b(ops.log, softmax(b, x, 0)), [M], "log_softmax(x, axis=0)"),
    "layer norm": (layer_norm, [M], f"layer_norm(x, axis=1, epsilon={EPS5})"),
    "layer norm, scaled": (
        layer_norm, [M, "f32[8]", "f32[1,8]"],
        f"layer_norm(x, y, reshape(z, shape=(8)), axis=1, epsilon={EPS5})",
    ),
    "layer norm, two axes": (
        lambda b, x: layer_norm(b, x, axes=(1, 2)), ["f32[2,3,4]"], f"layer_norm(x, axis=1, epsilon={EPS5})",
    ),
    "layer norm, bias per row": (
        layer_norm, [M, "f32[8]", "f32[2,1]"], f"add(layer_norm(x, y, axis=1, epsilon={EPS5}), z)",
    ),
    "group norm": (group_norm, ["f32[3,4,4,5]"], "group_norm(x, f32[4], f32[4], groups=2)"),
    "rms norm": (rms_norm, [M, "f32[8]"], f"rms_norm(x, y, axis=1, epsilon={EPS6})"),
}  # fmt: skip


def recognised(build, *types):
    before = graph_of(build, *types)
    after = Recognise().run(FoldConstants().run(Canonicalize().run(before)))
    assert_same(before, after, rtol=2e-5, atol=2e-6)
    return show(after), after


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_formula(case):
    build, types, expected = case
    assert recognised(build, *types)[0] == expected


@pytest.mark.parametrize("build", [
    lambda b, x: gelu_erf(b, x, 0.7), lambda b, x: gelu_erf(b, x, half=0.4),
    lambda b, x: layer_norm(b, x, axes=(0,)),
    lambda b, x: b(ops.div, b(ops.exp, x), b(ops.reduce_sum, b(ops.exp, x), axes=(1,), keepdims=True)),
], ids=["erf of 0.7 x", "0.4 x", "norm over the first axis", "softmax without the maximum"])  # fmt: skip
def test_no_formula(build):
    text, after = recognised(build, M)
    assert not {n.op for n in after.nodes()} & {ops.gelu, ops.layer_norm, ops.softmax}, text


@pytest.mark.parametrize("name", ["gelu", "silu", "sigmoid", "softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_decomposing_and_recognising_again_comes_back(name):
    op = ops.by_name(name)
    attrs = {"axis": 1} if "axis" in op.attrs else {}
    params = [M, "f32[8]"] if name in ("layer_norm", "rms_norm") else [M]
    before = graph_of(lambda b, *xs: b(op, *xs, **attrs), *params)
    again = Recognise().run(Canonicalize().run(FoldConstants().run(Decompose().run(before))))
    assert [n.op for n in again.nodes() if n.inputs] == [op]


# --- attention ------------------------------------------------------------------------------------------------------

Q, K, V = "f32[2,4,6,8]", "f32[2,4,6,8]", "f32[2,4,6,5]"


def attention(b, q, k_, v, mask=lambda b, s: s, scale=lambda b, s: b(ops.mul, s, k(b, 0.25))):
    rank = q.type.rank
    scores = b(ops.matmul, q, b(ops.transpose, k_, perm=(*range(rank - 2), rank - 1, rank - 2)))
    return b(ops.matmul, softmax(b, mask(b, scale(b, scores)), rank - 1), v)


def causal_const(b, s):
    hidden = np.where(np.tri(6, dtype=bool), 0, np.finfo(np.float32).min).astype(np.float32)
    return b(ops.add, s, b.const(hidden.reshape(1, 1, 6, 6)))


def causal_ramps(b, s):
    ramp = b(ops.iota, extent=6, dtype=i32)
    seen = b(ops.le, b(ops.reshape, ramp, shape=(1, 6)), b(ops.reshape, ramp, shape=(6, 1)))
    return b(ops.where, seen, s, k(b, float("-inf")))


def softcap(b, s):
    return b(ops.mul, b(ops.tanh, b(ops.div, b(ops.mul, s, k(b, 0.25)), k(b, 3))), k(b, 3))


ATTENTION = {
    "plain": (attention, [Q, K, V], "attention(x, y, z, scale=0.25)"),
    "scale by division": (
        lambda b, q, c, v: attention(b, q, c, v, scale=lambda b, s: b(ops.div, s, k(b, 4))), [Q, K, V],
        "attention(x, y, z, scale=0.25)",
    ),
    "scales on both sides": (
        lambda b, q, c, v: attention(
            b, b(ops.mul, q, k(b, 0.5)), b(ops.mul, c, k(b, 0.5)), v, scale=lambda b, s: s), [Q, K, V],
        "attention(x, y, z, scale=0.25)",
    ),
    "added mask": (
        lambda b, q, c, v, m: attention(b, q, c, v, lambda b, s: b(ops.add, s, m)), [Q, K, V, "f32[2,1,1,6]"],
        "attention(x, y, z, u, scale=0.25)",
    ),
    "bool mask": (
        lambda b, q, c, v, m: attention(b, q, c, v, lambda b, s: b(ops.where, m, s, k(b, -np.inf))),
        [Q, K, V, "bool[2,1,6,6]"], "attention(x, y, z, u, scale=0.25)",
    ),
    "causal constant": (lambda b, q, c, v: attention(b, q, c, v, causal_const), [Q, K, V],
                        "attention(x, y, z, scale=0.25, causal=True)"),
    "causal ramps": (lambda b, q, c, v: attention(b, q, c, v, causal_ramps), [Q, K, V],
                     "attention(x, y, z, scale=0.25, causal=True)"),
    "causal and padding": (
        lambda b, q, c, v, m: attention(b, q, c, v, lambda b, s: b(ops.add, causal_const(b, s), m)),
        [Q, K, V, "f32[2,1,1,6]"], "attention(x, y, z, u, scale=0.25, causal=True)",
    ),
    "soft cap": (lambda b, q, c, v: attention(b, q, c, v, scale=softcap), [Q, K, V],
                 "attention(x, y, z, scale=0.25, softcap=3.0)"),
    "three dimensions": (
        attention, ["f32[3,4,8]", "f32[3,5,8]", "f32[3,5,2]"],
        "reshape(attention(reshape(x, shape=(3, 1, 4, 8)), reshape(y, shape=(3, 1, 5, 8)), "
        "reshape(z, shape=(3, 1, 5, 2)), scale=0.25), shape=(3, 4, 2))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ATTENTION.values(), ids=ATTENTION.keys())
def test_attention(case):
    build, types, expected = case
    assert recognised(build, *types)[0] == expected


def repeated(b, x, group=2):
    n, heads, length, depth = x.shape
    single = b(ops.reshape, x, shape=(n, heads, 1, length, depth))
    spread = b(ops.expand, single, shape=(n, heads, group, length, depth))
    return b(ops.reshape, spread, shape=(n, heads * group, length, depth))


def test_a_large_causal_constant():
    n = 2100
    mask = np.where(np.tri(n, dtype=bool), 0, -np.inf).astype(np.float32)

    def build(hidden):
        shapes = [f"f32[1,1,{n},4]"] * 3
        return recognised(
            lambda b, q, c, v: attention(b, q, c, v, lambda b, s: b(ops.add, s, b.const(hidden))), *shapes
        )[0]

    assert build(mask) == "attention(x, y, z, scale=0.25, causal=True)"
    mask[n // 2, n // 2 + 1] = -1
    assert "causal" not in build(mask)


def triangle(b, n, upper, k_, value=1.0):
    one = b(ops.expand, b.const(np.full(1, value, np.float32)), shape=(n, n))
    return b(ops.trilu, one, upper=upper, k=k_)


MASKS = {
    "where zero": lambda b, n: b(ops.where, b(ops.eq, triangle(b, n, False, 0), k(b, 0)), k(b, float("-inf")), k(b, 0)),
    "times": lambda b, n: b(ops.mul, triangle(b, n, True, 1), k(b, -1e30)),
    "one minus": lambda b, n: b(ops.mul, b(ops.sub, k(b, 1), triangle(b, n, False, 0)), k(b, -1e30)),
    "filled": lambda b, n: b(ops.reshape, triangle(b, n, True, 1, -3e38), shape=(1, 1, n, n)),
}


@pytest.fixture
def _few_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask is too large to compute from 1,000 elements on."""
    monkeypatch.setattr(recognise_attention, "EFFORT", replace(EFFORT, elements=1000))


@pytest.mark.usefixtures("_few_are_computed")
@pytest.mark.parametrize("n", [6, 50, N], ids=str)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_causal_masks_made_of_a_triangle(mask, n):
    """Of any size: too large to compute, or symbolic."""
    q = TensorType(f32, (1, 1, n, 4))
    text, _ = recognised(lambda b, q, c, v: attention(b, q, c, v, lambda b, s: b(ops.add, s, mask(b, n))), q, q, q)
    assert text == "attention(x, y, z, scale=0.25, causal=True)"


@pytest.mark.usefixtures("_few_are_computed")
@pytest.mark.parametrize("n", [50, N], ids=str)
@pytest.mark.parametrize(
    "mask",
    [
        lambda b, n: b(ops.mul, triangle(b, n, True, 0), k(b, -1e30)),
        lambda b, n: b(ops.mul, triangle(b, n, True, 1), k(b, -1e3)),
        lambda b, n: b(ops.mul, triangle(b, n, False, 0), k(b, -1e30)),
        lambda b, n: b(ops.transpose, b(ops.mul, triangle(b, n, True, 1), k(b, -1e30)), perm=(1, 0)),
        lambda b, n: b(ops.sub, b(ops.mul, triangle(b, n, True, 1), k(b, -1e30)), k(b, 1)),
    ],
    ids=["the diagonal too", "not out of sight", "the keys before", "turned", "less for all"],
)
def test_other_masks_made_of_a_triangle_stay_masks(mask, n):
    q = TensorType(f32, (1, 1, n, 4))
    text, _ = recognised(lambda b, q, c, v: attention(b, q, c, v, lambda b, s: b(ops.add, s, mask(b, n))), q, q, q)
    assert "causal" not in text


def test_repeated_heads():
    text, _ = recognised(
        lambda b, q, c, v: attention(b, q, repeated(b, c), repeated(b, v)), Q, "f32[2,2,6,8]", "f32[2,2,6,5]"
    )
    assert text == "attention(x, y, z, scale=0.25)"


def test_repeated_heads_of_attention():
    text, _ = recognised(
        lambda b, q, c, v: b(ops.attention, q, repeated(b, c), repeated(b, v), scale=0.5),
        Q, "f32[2,2,6,8]", "f32[2,2,6,5]",
    )  # fmt: skip
    assert text == "attention(x, y, z, scale=0.5)"


def test_heads_split_by_reshape_and_transpose():
    """As exporters write it: the keys are transposed once, straight to (batch, head, depth, length)."""

    def split(b, x, perm):
        return b(ops.transpose, b(ops.reshape, x, shape=(2, 6, 4, 8)), perm=perm)

    def build(b, q, c, v):
        scores = b(ops.matmul, split(b, q, (0, 2, 1, 3)), split(b, c, (0, 2, 3, 1)))
        return b(ops.matmul, softmax(b, b(ops.div, scores, k(b, 8)), 3), split(b, v, (0, 2, 1, 3)))

    text, after = recognised(build, *["f32[2,6,32]"] * 3)
    assert text.startswith("attention(")
    assert sum(n.op is ops.transpose for n in after.nodes()) == 3


def test_symbolic_attention():
    q = TensorType(f32, (2, 4, N, 8))

    def causal(b, s):
        ramp = b(ops.iota, extent=N, dtype=i32)
        seen = b(ops.ge, b(ops.reshape, ramp, shape=(N, 1)), ramp)
        return b(ops.where, seen, s, k(b, float("-inf")))

    text, _ = recognised(lambda b, q, c, v: attention(b, q, c, v, causal), q, q, q)
    assert text == "attention(x, y, z, scale=0.25, causal=True)"


def guarded(b, q, c, v, mask):
    out = attention(b, q, c, v, lambda b, s: b(ops.add, s, mask))
    weights = out.inputs[0]
    return b(ops.matmul, b(ops.where, b(ops.isnan, weights), k(b, 0), weights), v)


def test_a_guard_against_rows_that_see_nothing():
    """It moves to the result, and goes where the mask leaves each row something to see."""
    text, _ = recognised(guarded, Q, K, V, "f32[2,1,1,6]")
    assert text.startswith("where(isnan(attention(x, y, z, u, scale=0.25)), 0.0, attention(")

    def finite(b, q, c, v, m):
        return guarded(b, q, c, v, b(ops.where, m, k(b, 0), k(b, float(np.finfo(np.float32).min))))

    text, _ = recognised(finite, Q, K, V, "bool[2,1,6,6]")
    assert text.startswith("attention(")


def test_keys_transposed_with_their_heads_merged():
    """As torch's exporter to ONNX writes scaled_dot_product_attention."""

    def build(b, q, c, v):
        merged = b(ops.transpose, b(ops.reshape, c, shape=(8, 6, 8)), perm=(0, 2, 1))
        keys = b(ops.mul, b(ops.reshape, merged, shape=(2, 4, 8, 6)), k(b, 0.5))
        scores = b(ops.matmul, b(ops.mul, q, k(b, 0.5)), keys)
        return b(ops.matmul, softmax(b, scores, 3), v)

    assert recognised(build, Q, K, V)[0] == "attention(x, y, z, scale=0.25)"


def test_weights_that_are_an_output_stay():
    def build(b, q, c, v):
        out = attention(b, q, c, v)
        return out, out.inputs[0]

    text, _ = recognised(build, Q, K, V)
    assert "attention" not in text


def rotary(b, x, cos, sin):
    half = x.shape[-1] // 2
    lead = (0,) * (x.type.rank - 1)
    steps = (1,) * x.type.rank
    first = b(ops.slice, x, starts=(*lead, 0), stops=(*x.shape[:-1], half), steps=steps)
    second = b(ops.slice, x, starts=(*lead, half), stops=x.shape, steps=steps)
    turned = b(ops.concat, b(ops.neg, second), first, axis=x.type.rank - 1)
    return b(ops.add, b(ops.mul, x, cos), b(ops.mul, turned, sin))


def test_rotary():
    def build(b, x, angle):
        both = b(ops.concat, angle, angle, axis=1)
        return rotary(b, x, b(ops.cos, both), b(ops.reshape, b(ops.sin, both), shape=(1, 1, 6, 8)))

    text, _ = recognised(build, Q, "f32[6,4]")
    assert text == "rotary(x, cos(y), reshape(sin(y), shape=(1, 1, 6, 4)))"


def test_rotary_with_unequal_halves_stays():
    text, _ = recognised(rotary, Q, "f32[6,8]", "f32[6,8]")
    assert "rotary" not in text
