"""Activation functions of neural networks, each spelled out in element-wise ops.

In: one floating-point operand (``relu`` takes integers too). Out: the same shape and dtype.
Not its business: recognising these forms in a model (``graph``), or polynomials (``tile.math``).

f16 and bf16 are computed in f32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, DType, TensorType
from tilewright.ops import elementwise as ew
from tilewright.ops.common import FLOATS, NUMERIC, check_equal_dtypes, narrowed, widened
from tilewright.ops.elementwise import erf_of, in_wide
from tilewright.ops.samples import edge_values, random

Build = Callable[[Builder, Node, Attrs], Node]
Numpy = Callable[[Array, Attrs], Array]
COMPOSITE = (Trait.COMPOSITE,)
SATURATED = 20.0


def activation(
    name: str,
    build: Build,
    numpy: Numpy,
    doc: str,
    attrs: Mapping[str, float | str] = {},
    variant: Mapping[str, float | str] = {},
    traits: Sequence[Trait] = (),
    dtypes: Sequence[DType] = FLOATS,
) -> OpDef:
    """An op on one operand that ``build`` makes of smaller ones; ``variant`` holds other attributes to test."""

    def infer(ts: Sequence[TensorType], a: Attrs) -> TensorType:
        check_equal_dtypes(ts, dtypes)
        return ts[0]

    def reference(xs: Sequence[Array], a: Attrs) -> Array:
        with np.errstate(all="ignore"):
            return narrowed(numpy(widened(xs[0]), a), types.dtype_of(xs[0].dtype))

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        yield Sample((random(rng, (2, 5), within=(-6, 6)),))
        yield Sample((edge_values(types.f32),), variant)
        yield Sample((random(rng, (3,)),), variant)
        yield Sample((random(rng, ()),))
        yield Sample((random(rng, (0, 2)),))

    kinds = {k: AttrDef("str" if isinstance(v, str) else "float", v) for k, v in attrs.items()}
    return OpDef(
        name, ("x",), kinds, infer, reference, decompose=lambda b, xs, a: in_wide(b, xs, lambda x: build(b, x, a)),
        traits=frozenset({Trait.ELEMENTWISE, *traits}), samples=samples, doc=doc,
    )  # fmt: skip


def _k(b: Builder, value: float, x: Node) -> Node:
    return b.const(value, x.dtype)


def _one_plus(b: Builder, x: Node) -> Node:
    return b(ew.add, x, _k(b, 1.0, x))


def _exp_neg(b: Builder, x: Node) -> Node:
    return b(ew.exp, b(ew.neg, x))


def _sigmoid(b: Builder, x: Node) -> Node:
    return b(ew.div, _k(b, 1.0, x), _one_plus(b, _exp_neg(b, x)))


def _sigmoid_of(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _softplus(b: Builder, x: Node) -> Node:
    tail = b(ew.log1p, _exp_neg(b, b(ew.abs, x)))
    return b(ew.add, b(ew.maximum, x, _k(b, 0.0, x)), tail)


def _softplus_of(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _tanh_of_softplus(b: Builder, x: Node) -> Node:
    """With e = exp(x), tanh(log(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1) = e (e + 2) / (e (e + 2) + 2).

    From ``SATURATED`` on it is 1 in every dtype, while the square would overflow.
    """
    e = b(ew.exp, b(ew.minimum, x, _k(b, SATURATED, x)))
    n = b(ew.mul, e, b(ew.add, e, _k(b, 2.0, x)))
    return b(ew.div, n, b(ew.add, n, _k(b, 2.0, x)))


def _gelu(b: Builder, x: Node, a: Attrs) -> Node:
    half = b(ew.mul, x, _k(b, 0.5, x))
    if a.approximate == "none":
        return b(ew.mul, half, _one_plus(b, b(ew.erf, b(ew.mul, x, _k(b, math.sqrt(0.5), x)))))
    cube = b(ew.mul, b(ew.mul, b(ew.mul, x, x), x), _k(b, 0.044715, x))
    inner = b(ew.mul, b(ew.add, x, cube), _k(b, math.sqrt(2 / math.pi), x))
    return b(ew.mul, half, _one_plus(b, b(ew.tanh, inner)))


def _gelu_of(x: Array, a: Attrs) -> Array:
    if a.approximate == "none":
        return np.asarray(x * 0.5 * (1 + erf_of(x * np.asarray(math.sqrt(0.5), x.dtype))))
    return np.asarray(x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))))


def _negative_branch(b: Builder, x: Node, negative: Node, positive: Node | None = None) -> Node:
    return b(ew.where, b(ew.lt, x, _k(b, 0.0, x)), negative, x if positive is None else positive)


def _elu(b: Builder, x: Node, alpha: float, scale: float = 1.0) -> Node:
    curve = b(ew.mul, b(ew.expm1, x), _k(b, alpha * scale, x))
    return _negative_branch(b, x, curve, None if scale == 1.0 else b(ew.mul, x, _k(b, scale, x)))


def _elu_of(x: Array, alpha: float) -> Array:
    return np.asarray(np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x))


def _celu(b: Builder, x: Node, a: Attrs) -> Node:
    curve = b(ew.mul, b(ew.expm1, b(ew.mul, x, _k(b, 1 / a.alpha, x))), _k(b, a.alpha, x))
    return _negative_branch(b, x, curve)


def _hard_sigmoid(b: Builder, x: Node, alpha: float, beta: float) -> Node:
    line = b(ew.add, b(ew.mul, x, _k(b, alpha, x)), _k(b, beta, x))
    return b(ew.clamp, line, _k(b, 0.0, x), _k(b, 1.0, x))


def _hard_sigmoid_of(x: Array, alpha: float, beta: float) -> Array:
    return np.asarray(np.minimum(np.maximum(x * alpha + beta, 0), 1))


def _leaky_relu(b: Builder, x: Node, a: Attrs) -> Node:
    return _negative_branch(b, x, b(ew.mul, x, _k(b, a.alpha, x)))


def _quick_gelu(b: Builder, x: Node, a: Attrs) -> Node:
    return b(ew.div, x, _one_plus(b, _exp_neg(b, b(ew.mul, x, _k(b, 1.702, x)))))


sigmoid = activation(
    "sigmoid", lambda b, x, a: _sigmoid(b, x), lambda x, a: _sigmoid_of(x), "1 / (1 + exp(-x)).", traits=COMPOSITE
)
relu = activation(
    "relu", lambda b, x, a: b(ew.maximum, x, _k(b, 0, x)), lambda x, a: np.maximum(x, 0), "max(x, 0); NaN propagates.",
    dtypes=NUMERIC,
)  # fmt: skip
silu = activation(
    "silu", lambda b, x, a: b(ew.div, x, _one_plus(b, _exp_neg(b, x))), lambda x, a: x / (1 + np.exp(-x)),
    "x * sigmoid(x).", traits=COMPOSITE,
)  # fmt: skip
gelu = activation(
    "gelu", _gelu, _gelu_of, "x times the normal distribution function of x, exact or by tanh.",
    {"approximate": "none"}, {"approximate": "tanh"}, COMPOSITE,
)  # fmt: skip
leaky_relu = activation(
    "leaky_relu", _leaky_relu, lambda x, a: np.where(x < 0, x * a.alpha, x), "x, and alpha * x where x is negative.",
    {"alpha": 0.01}, {"alpha": 0.2},
)  # fmt: skip
elu = activation(
    "elu", lambda b, x, a: _elu(b, x, a.alpha), lambda x, a: _elu_of(x, a.alpha),
    "x, and alpha * (exp(x) - 1) where x is negative.", {"alpha": 1.0}, {"alpha": 0.5},
)  # fmt: skip
selu = activation(
    "selu", lambda b, x, a: _elu(b, x, a.alpha, a.gamma), lambda x, a: a.gamma * _elu_of(x, a.alpha),
    "gamma * elu(x).", {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}, {"alpha": 2.0, "gamma": 3.0},
)  # fmt: skip
celu = activation(
    "celu", _celu, lambda x, a: np.where(x < 0, a.alpha * np.expm1(np.minimum(x, 0) / a.alpha), x),
    "x, and alpha * (exp(x / alpha) - 1) where x is negative.", {"alpha": 1.0}, {"alpha": 2.0},
)  # fmt: skip
softplus = activation("softplus", lambda b, x, a: _softplus(b, x), lambda x, a: _softplus_of(x), "log(1 + exp(x)).")
hard_sigmoid = activation(
    "hard_sigmoid", lambda b, x, a: _hard_sigmoid(b, x, a.alpha, a.beta),
    lambda x, a: _hard_sigmoid_of(x, a.alpha, a.beta), "alpha * x + beta, kept between 0 and 1.",
    {"alpha": 0.2, "beta": 0.5}, {"alpha": 0.5, "beta": 0.25},
)  # fmt: skip
hard_swish = activation(
    "hard_swish", lambda b, x, a: b(ew.mul, x, _hard_sigmoid(b, x, 1 / 6, 0.5)),
    lambda x, a: x * _hard_sigmoid_of(x, 1 / 6, 0.5), "x * hard_sigmoid(x) with alpha 1/6 and beta 1/2.",
)  # fmt: skip
mish = activation(
    "mish", lambda b, x, a: b(ew.mul, x, _tanh_of_softplus(b, x)), lambda x, a: x * np.tanh(_softplus_of(x)),
    "x * tanh(softplus(x)).",
)  # fmt: skip
softsign = activation(
    "softsign", lambda b, x, a: b(ew.div, x, _one_plus(b, b(ew.abs, x))), lambda x, a: x / (1 + np.abs(x)),
    "x / (1 + |x|).",
)  # fmt: skip
quick_gelu = activation("quick_gelu", _quick_gelu, lambda x, a: x / (1 + np.exp(-1.702 * x)), "x * sigmoid(1.702 x).")
