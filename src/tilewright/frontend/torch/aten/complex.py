"""ATen on complex tensors, which are pairs of real ones.

In: calls whose arguments or results hold pairs. Out: pairs, or nodes where the result is real.
Not its business: Fourier transforms (``fft``). Calls that move elements are the real converters, once for each
part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Builder, Node
from tilewright.core.types import bool_
from tilewright.core.types import product as product_of
from tilewright.frontend.complex_functions import (
    arc_cosine,
    arc_sine,
    arc_tangent,
    area_cosine,
    area_sine,
    area_tangent,
    exponential_less_one,
    hyperbolic_tangent,
    inverse,
    logarithm_of_one_more,
    logistic,
    power,
    product_along,
    running_product,
    tangent,
)
from tilewright.frontend.complex_pairs import (
    Pair,
    added,
    conjugate,
    cosine,
    directions,
    exponential,
    from_parts,
    hyperbolic_cosine,
    hyperbolic_sine,
    join_parts,
    logarithm,
    magnitude,
    matrix_product,
    polar,
    product,
    quotient,
    real_pair,
    scaled,
    sine,
    square_root,
)
from tilewright.frontend.nodes import expand, reshape
from tilewright.frontend.torch.aten import complex_linalg, fft, index, movement, reduce, source
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, as_node, cast
from tilewright.frontend.torch.aten.contract import matmul_of, swap_last
from tilewright.frontend.torch.aten.elementwise import TABLE as ELEMENTWISE

Convert = Callable[[AtenCall], Result]


def _pair(c: AtenCall, name: str) -> Pair:
    return as_pair(c, c[name])


def as_pair(c: AtenCall, x: Any) -> Pair:
    """A tensor or number as a pair of the call's component dtype."""
    if isinstance(x, Pair):
        return Pair(cast(c.b, x.re, c.dtype), cast(c.b, x.im, c.dtype))
    if isinstance(x, complex):
        return Pair(c.b.const(x.real, c.dtype), c.b.const(x.imag, c.dtype))
    return real_pair(c.b, as_node(c.b, x, c.dtype))


# --- part by part ---------------------------------------------------------------------------------------------------


def _each_part(convert: Convert) -> Convert:
    """A call that is linear in its complex operands with real coefficients: once for each part."""

    def once(c: AtenCall) -> Result:
        real = convert(replace(c, args=_parts(c, c.args, 0)))
        imaginary = convert(replace(c, args=_parts(c, c.args, 1)))
        if isinstance(real, Node) and isinstance(imaginary, Node):
            return Pair(real, imaginary)
        assert isinstance(real, Sequence) and isinstance(imaginary, Sequence)
        pairs: list[Node | Pair | None] = []
        for a, b in zip(real, imaginary, strict=True):
            pairs.append(Pair(a, b) if isinstance(a, Node) and isinstance(b, Node) else None)
        return pairs

    return once


def _parts(c: AtenCall, args: Mapping[str, Any], k: int) -> dict[str, Any]:
    """Arguments with every pair and complex number replaced by its part; tensors beside them are real."""

    def part(name: str, x: Any) -> Any:
        if isinstance(x, list):
            return [part(name, i) for i in x]
        if isinstance(x, Pair):
            return (x.re, x.im)[k]
        if isinstance(x, complex):
            return (x.real, x.imag)[k]
        is_operand = name in ("self", "other", "tensors", "src", "values", "source", "value", "fill_value", "mat2")
        if k == 1 and is_operand and isinstance(x, Node) and x.dtype.is_float:
            return real_pair(c.b, x).im
        if k == 1 and name in ("value", "fill_value") and isinstance(x, bool | int | float):
            return 0
        return x

    return {name: part(name, x) for name, x in args.items()}


# --- arithmetic -----------------------------------------------------------------------------------------------------


def _mul(c: AtenCall) -> Result:
    x, y = c["self"], c["other"]
    for real, other in ((x, y), (y, x)):
        if isinstance(real, Node | bool | int | float):
            return scaled(c.b, as_pair(c, other), as_node(c.b, real, c.dtype))
    return product(c.b, as_pair(c, x), as_pair(c, y))


def _sum(sign: int) -> Convert:
    def convert(c: AtenCall) -> Result:
        x, y = _pair(c, "self"), _pair(c, "other")
        alpha = c.args.get("alpha", 1)
        if alpha != 1:
            y = product(c.b, y, as_pair(c, alpha))
        op = ops.add if sign > 0 else ops.sub
        return Pair(c.b(op, x.re, y.re), c.b(op, x.im, y.im))

    return convert


def _div(c: AtenCall) -> Result:
    x = _pair(c, "self")
    if isinstance(c["other"], Node | bool | int | float):
        y = as_node(c.b, c["other"], c.dtype)
        return Pair(c.b(ops.div, x.re, y), c.b(ops.div, x.im, y))
    return quotient(c.b, x, _pair(c, "other"))


def _inverse_root(b: Builder, x: Pair) -> Pair:
    return inverse(b, square_root(b, x))


_ROOTS: Mapping[float, Callable[[Builder, Pair], Pair]] = {0.5: square_root, -0.5: _inverse_root}
"""Powers that are functions of their own in PyTorch."""
_ALWAYS_BY_PRODUCTS = (-2, -1, 0, 1, 2, 3)
"""Whole powers that PyTorch finds by products, also of infinities."""


def _power(c: AtenCall) -> Result:
    """A whole power by squaring: a product for each bit of the exponent, and one more for each that is set; any other
    real one by the size and the angle. Where that is not finite it is what the logarithm gives, as in PyTorch, but for
    roots and the exponents that are products always."""
    exponent = c["exponent"]
    exponent = exponent.real if isinstance(exponent, complex) and exponent.imag == 0 else exponent
    if not isinstance(exponent, int | float) or not math.isfinite(exponent):
        return power(c.b, _pair(c, "self"), _pair(c, "exponent"))
    if exponent in _ROOTS:
        return _ROOTS[exponent](c.b, _pair(c, "self"))
    x = _pair(c, "self")
    found = _squared(c, x, int(exponent)) if float(exponent).is_integer() else _turned(c, x, exponent)
    if exponent in _ALWAYS_BY_PRODUCTS:
        return found
    is_finite = c.b(ops.logical_and, _isfinite(c, found.re), _isfinite(c, found.im))
    beyond = power(c.b, x, as_pair(c, exponent))
    return Pair(c.b(ops.where, is_finite, found.re, beyond.re), c.b(ops.where, is_finite, found.im, beyond.im))


def _turned(c: AtenCall, x: Pair, exponent: float) -> Pair:
    times = c.b.const(exponent, c.dtype)
    size = c.b(ops.pow, cast(c.b, magnitude(c.b, x), c.dtype), times)
    return polar(c.b, size, c.b(ops.mul, c.b(ops.atan2, x.im, x.re), times))


def _squared(c: AtenCall, x: Pair, exponent: int) -> Pair:
    left = abs(exponent)
    found = None if left else as_pair(c, c.b(ops.full, value=1.0, dtype=c.dtype, shape=x.re.shape))
    while left:
        if left % 2:
            found = x if found is None else product(c.b, found, x)
        left //= 2
        x = product(c.b, x, x) if left else x
    assert found is not None
    return found if exponent >= 0 else inverse(c.b, found)


def _conj(c: AtenCall) -> Result:
    x = c["self"]
    return conjugate(c.b, x) if isinstance(x, Pair) else x


def _abs(c: AtenCall) -> Result:
    return cast(c.b, magnitude(c.b, c["self"]), c.dtype)


def _angle(c: AtenCall) -> Result:
    return c.b(ops.atan2, c["self"].im, c["self"].re)


def _complex(c: AtenCall) -> Result:
    re, im = c.tensor("real", c.dtype), c.tensor("imag", c.dtype)
    return Pair(expand(c.b, re, c.shape), expand(c.b, im, c.shape))


def _polar(c: AtenCall) -> Result:
    made = polar(c.b, c.tensor("abs", c.dtype), c.tensor("angle", c.dtype))
    return Pair(*(expand(c.b, part, c.shape) for part in (made.re, made.im)))


def _to(c: AtenCall) -> Result:
    """Between complex dtypes, from a real one, or to a real one, which drops the imaginary part."""
    return _pair(c, "self")


def _to_real(c: AtenCall) -> Result:
    x = c["self"]
    return cast(c.b, x.re, c.dtype) if isinstance(x, Pair) else cast(c.b, x, c.dtype)


def _predicate(of: Callable[[AtenCall, Node], Node], join: Any) -> Convert:
    def convert(c: AtenCall) -> Result:
        x = c["self"]
        return c.b(join, of(c, x.re), of(c, x.im))

    return convert


def _equal(is_equal: bool) -> Convert:
    def convert(c: AtenCall) -> Result:
        dtype = next(x.dtype for x in (c["self"], c["other"]) if isinstance(x, Pair))
        x, y = (as_pair(replace(c, results=(c.out.with_dtype(dtype),)), c[n]) for n in ("self", "other"))
        op, join = (ops.eq, ops.logical_and) if is_equal else (ops.ne, ops.logical_or)
        return c.b(join, c.b(op, x.re, y.re), c.b(op, x.im, y.im))

    return convert


def _matmul(c: AtenCall) -> Pair:
    right = next(name for name in ("mat2", "other", "vec", "tensor") if name in c.args)
    return _product_of(c, "self", right)


def _product_of(c: AtenCall, left: str, right: str) -> Pair:
    return matrix_product(c.b, partial(matmul_of, c), _pair(c, left), _pair(c, right))


def _conjugate_dot(c: AtenCall) -> Pair:
    return matrix_product(c.b, partial(matmul_of, c), conjugate(c.b, _pair(c, "self")), _pair(c, "other"))


def _linear(c: AtenCall) -> Pair:
    weight = _pair(c, "weight")
    columns = weight if len(weight.shape) < 2 else Pair(swap_last(c, weight.re), swap_last(c, weight.im))
    y = matrix_product(c.b, partial(matmul_of, c), _pair(c, "input"), columns)
    return y if c["bias"] is None else added(c.b, y, _pair(c, "bias"))


def _add_scaled(combine: Callable[[Builder, Pair, Pair], Pair]) -> Convert:
    """``self + combine(value * tensor1, tensor2)``: in PyTorch's order, which decides where infinities become NaN."""

    def convert(c: AtenCall) -> Pair:
        x = product(c.b, as_pair(c, c["value"]), _pair(c, "tensor1"))
        return added(c.b, _pair(c, "self"), combine(c.b, x, _pair(c, "tensor2")))

    return convert


def _add_product(left: str, right: str) -> Convert:
    """``beta * self + alpha * (left @ right)``; nothing of ``self`` where beta is 0, not even its NaN."""

    def convert(c: AtenCall) -> Pair:
        y = _product_of(c, left, right)
        if c["alpha"] != 1:
            y = product(c.b, y, as_pair(c, c["alpha"]))
        if c["beta"] == 0:
            return y
        x = _pair(c, "self")
        x = x if c["beta"] == 1 else product(c.b, x, as_pair(c, c["beta"]))
        return added(c.b, y, x)

    return convert


def _of_magnitude(convert: Convert) -> Convert:
    """A call that reads nothing of complex numbers but how large they are."""
    return lambda c: convert(replace(c, args={**c.args, "self": magnitude(c.b, c["self"])}))


def _of_real_parts(convert: Convert) -> Convert:
    """A call that makes real numbers, given as complex ones."""
    return lambda c: as_pair(c, convert(c))


def _function(of: Callable[[Builder, Pair], Pair]) -> Convert:
    return lambda c: of(c.b, _pair(c, "self"))


def _logarithm_to(base: float) -> Convert:
    def of(b: Builder, x: Pair) -> Pair:
        return scaled(b, logarithm(b, x), b.const(1 / math.log(base), x.dtype))

    return _function(of)


def _power_of_two(b: Builder, x: Pair) -> Pair:
    return exponential(b, scaled(b, x, b.const(math.log(2), x.dtype)))


def _truth_of(convert: Convert) -> Convert:
    """A call that asks of each number whether it is zero."""

    def of(c: AtenCall) -> Result:
        x, zero = c["self"], c.b.const(0, c["self"].dtype)
        is_not_zero = c.b(ops.logical_or, c.b(ops.ne, x.re, zero), c.b(ops.ne, x.im, zero))
        return convert(replace(c, args={**c.args, "self": is_not_zero}))

    return of


def _variance(c: AtenCall) -> Node:
    """How far numbers are from their mean: the sum of what both parts have, because distances' squares add up."""
    real, imaginary = (_REAL["var.correction"](replace(c, args=_parts(c, c.args, k))) for k in (0, 1))
    assert isinstance(real, Node) and isinstance(imaginary, Node)
    return c.b(ops.add, real, imaginary)


def _prod(c: AtenCall) -> Pair:
    x = _pair(c, "self")
    if "dim" not in c.args:
        count = product_of(x.shape)
        x = Pair(*(reshape(c.b, part, (count,)) for part in (x.re, x.im)))
    if not x.shape:
        return x
    made = product_along(c.b, x, _known_axis(c, x))
    return Pair(*(reshape(c.b, part, c.shape) for part in (made.re, made.im)))


def _cumprod(c: AtenCall) -> Pair:
    x = _pair(c, "self")
    return running_product(c.b, x, _known_axis(c, x)) if x.shape else x


def _known_axis(c: AtenCall, x: Pair) -> int:
    axis = c.axis(len(x.shape)) if "dim" in c.args else 0
    if not is_known(x.shape[axis]):
        raise Unsupported(
            "a product of complex numbers takes an axis of fixed size", "give that dimension a fixed size"
        )
    return axis


def _lerp(c: AtenCall) -> Pair:
    """From the nearer end, as PyTorch does: at weight 1 the result is ``end`` itself."""
    b = c.b
    x, y, w = (_pair(c, name) for name in ("self", "end", "weight"))
    step = Pair(b(ops.sub, y.re, x.re), b(ops.sub, y.im, x.im))
    less = product(b, step, Pair(b(ops.sub, b.const(1, c.dtype), w.re), b(ops.neg, w.im)))
    start, end = added(b, x, product(b, w, step)), Pair(b(ops.sub, y.re, less.re), b(ops.sub, y.im, less.im))
    is_near = b(ops.lt, magnitude(b, w), b.const(0.5, c.dtype))
    return Pair(b(ops.where, is_near, start.re, end.re), b(ops.where, is_near, start.im, end.im))


def _logsumexp(c: AtenCall) -> Pair:
    """Less the largest real part, so that no exponential is infinite."""
    b, x = c.b, _pair(c, "self")
    axes, keepdims = c.axes(len(x.shape)), bool(c["keepdim"])
    largest = b(ops.reduce_max, x.re, axes=axes, keepdims=True)
    largest = b(ops.where, _isfinite(c, largest), largest, b.const(0, c.dtype))
    made = exponential(b, Pair(b(ops.sub, x.re, largest), x.im))
    sums = Pair(*(b(ops.reduce_sum, part, axes=axes, keepdims=keepdims) for part in (made.re, made.im)))
    found = logarithm(b, sums)
    return Pair(b(ops.add, found.re, reshape(b, largest, c.shape)), found.im)


def _isfinite(c: AtenCall, x: Node) -> Node:
    return c.b(ops.lt, c.b(ops.abs, x), c.b.const(math.inf, x.dtype))


def _either_way(complex_result: Convert, real_result: Convert) -> Convert:
    """By whether the result is complex: a dtype change that drops a part has none."""
    return lambda c: complex_result(c) if c.is_complex else real_result(c)


_MOVES = (
    "view.default", "reshape.default", "_unsafe_view.default", "permute.default", "expand.default", "slice.Tensor",
    "select.int", "cat.default", "unsqueeze.default", "squeeze.dim", "squeeze.dims", "squeeze.default",
    "transpose.int", "t.default", "constant_pad_nd.default", "roll.default", "flip.default", "index_select.default",
    "index.Tensor", "gather.default", "diagonal.default", "unbind.int", "split.Tensor", "split_with_sizes.default",
    "repeat.default", "as_strided.default", "stack.default", "where.self", "clone.default", "alias.default",
    "detach.default", "contiguous.default", "neg.default", "_neg_view.default", "lift_fresh_copy.default",
    "select_scatter.default", "slice_scatter.default", "copy.default", "unfold.default", "index_put.default",
    "_unsafe_index_put.default", "scatter.src", "scatter_add.default", "masked_fill.Scalar", "masked_fill.Tensor",
    "tril.default", "triu.default", "sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "cumsum.default",
    "full.default", "full_like.default", "zeros.default", "zeros_like.default", "new_zeros.default",
    "empty.memory_format", "empty_like.default", "new_empty.default", "empty_strided.default",
    "new_empty_strided.default", "empty_permuted.default", "new_full.default", "fill.Scalar", "fill.Tensor",
    "index_add.default", "_unsafe_index.Tensor", "pad.default", "embedding.default",
    "reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default", "replication_pad1d.default",
    "replication_pad2d.default", "replication_pad3d.default", "pixel_shuffle.default", "pixel_unshuffle.default",
    "scatter.value", "diagonal_copy.default",
)  # fmt: skip
_REAL_SOURCES = (
    "ones.default", "ones_like.default", "new_ones.default", "eye.default", "eye.m", "linspace.default",
    "arange.default", "arange.start", "arange.start_step",
)  # fmt: skip
_REAL: Mapping[str, Convert] = {
    name: convert
    for table in (ELEMENTWISE, movement.TABLE, index.TABLE, reduce.TABLE, source.TABLE)
    for name, convert in table.items()
}

COMPLEX: Mapping[str, Convert] = {
    **{name: _each_part(_REAL[name]) for name in _MOVES if name in _REAL},
    **fft.TABLE, **complex_linalg.TABLE,
    "mul.Tensor": _mul, "mul.Scalar": _mul, "add.Tensor": _sum(1), "add.Scalar": _sum(1), "sub.Tensor": _sum(-1),
    "sub.Scalar": _sum(-1), "div.Tensor": _div, "div.Scalar": _div, "reciprocal.default": _function(inverse),
    "pow.Tensor_Scalar": _power,
    "_conj.default": _conj, "_conj_physical.default": _conj, "conj_physical.default": _conj,
    "resolve_conj.default": lambda c: c["self"], "resolve_neg.default": lambda c: c["self"],
    "abs.default": _abs, "angle.default": _angle, "exp.default": _function(exponential),
    "sgn.default": _function(directions),
    "complex.default": _complex, "polar.default": _polar,
    "real.default": lambda c: c["self"].re, "imag.default": lambda c: c["self"].im,
    "view_as_real.default": lambda c: join_parts(c.b, c["self"]),
    "view_as_complex.default": lambda c: from_parts(c.b, c.tensor("self")),
    "view_as_real_copy.default": lambda c: join_parts(c.b, c["self"]),
    "view_as_complex_copy.default": lambda c: from_parts(c.b, c.tensor("self")),
    "_to_copy.default": _either_way(_to, _to_real), "prims.convert_element_type.default": _either_way(
        lambda c: _pair(c, "a"), lambda c: cast(c.b, c["a"].re, c.dtype)),
    "isfinite.default": _predicate(_isfinite, ops.logical_and),
    "isnan.default": _predicate(lambda c, x: c.b(ops.isnan, x), ops.logical_or),
    "isinf.default": _predicate(lambda c, x: c.b(ops.isinf, x), ops.logical_or),
    "logical_not.default": _predicate(lambda c, x: c.b(ops.logical_not, cast(c.b, x, bool_)), ops.logical_and),
    "eq.Tensor": _equal(True), "eq.Scalar": _equal(True), "ne.Tensor": _equal(False), "ne.Scalar": _equal(False),
    "mm.default": _matmul, "bmm.default": _matmul, "mv.default": _matmul, "dot.default": _matmul,
    "vdot.default": _conjugate_dot,
    "addmm.default": _add_product("mat1", "mat2"), "baddbmm.default": _add_product("batch1", "batch2"),
    "addmv.default": _add_product("mat", "vec"), "linear.default": _linear,
    "addcmul.default": _add_scaled(product), "addcdiv.default": _add_scaled(quotient),
    "square.default": _function(lambda b, x: product(b, x, x)), "sqrt.default": _function(square_root),
    "log.default": _function(logarithm), "sin.default": _function(sine), "cos.default": _function(cosine),
    "sinh.default": _function(hyperbolic_sine), "cosh.default": _function(hyperbolic_cosine),
    "tanh.default": _function(hyperbolic_tangent), "tan.default": _function(tangent),
    "asin.default": _function(arc_sine), "acos.default": _function(arc_cosine), "atan.default": _function(arc_tangent),
    "asinh.default": _function(area_sine), "acosh.default": _function(area_cosine),
    "atanh.default": _function(area_tangent), "sigmoid.default": _function(logistic),
    "silu.default": _function(lambda b, x: product(b, x, logistic(b, x))),
    "expm1.default": _function(exponential_less_one), "log1p.default": _function(logarithm_of_one_more),
    "log2.default": _logarithm_to(2), "log10.default": _logarithm_to(10), "exp2.default": _function(_power_of_two),
    "rsqrt.default": _function(_inverse_root),
    "pow.Tensor_Tensor": _power, "pow.Scalar": _power,
    "prod.default": _prod, "prod.dim_int": _prod, "cumprod.default": _cumprod,
    "lerp.Scalar": _lerp, "lerp.Tensor": _lerp, "logsumexp.default": _logsumexp,
    "var.correction": _variance, "std.correction": lambda c: c.b(ops.sqrt, _variance(c)),
    **{name: _truth_of(_REAL[name]) for name in ("any.default", "any.dim", "any.dims", "all.default", "all.dim",
                                                 "all.dims")},
    "linalg_vector_norm.default": _of_magnitude(_REAL["linalg_vector_norm.default"]),
    "scalar_tensor.default": lambda c: as_pair(c, c["s"]),
    **{name: _of_real_parts(_REAL[name]) for name in _REAL_SOURCES},
}  # fmt: skip
