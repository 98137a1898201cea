"""ATen's special functions and orthogonal polynomials.

In: calls. Out: nodes. Integers compute in the result's float dtype, as in ATen.
Not its business: the functions themselves (``ops.special``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import TensorType, bool_, f64, i64
from tilewright.frontend.nodes import expand, reshape
from tilewright.frontend.torch.aten.call import AtenCall, Result, cast

Convert = Callable[[AtenCall], Result]
Settle = Callable[[Builder, Mapping[str, Node], Node], tuple[dict[str, Node], Node]]
"""One step from named values and its number (from 1): the state after it, and what still moves."""


def _unary(op: OpDef) -> Convert:
    return lambda c: c.b(op, c.tensor("self" if "self" in c.args else "x", c.dtype))


def _zeta(c: AtenCall) -> Node:
    return c.b(ops.zeta, c.tensor("self", c.dtype), c.tensor("other", c.dtype))


def _polygamma(c: AtenCall) -> Node:
    """``(-1)**(n + 1) * n! * zeta(n + 1, x)``."""
    n, x = c.static("n"), c.tensor("self", c.dtype)
    if n == 0:
        return c.b(ops.digamma, x)
    wide = cast(c.b, x, f64)
    size = math.exp(math.lgamma(n + 1))
    found = c.b(ops.zeta, c.b.const(n + 1, f64), wide)
    return cast(c.b, c.b(ops.mul, found, c.b.const(size if n % 2 else -size, f64)), c.dtype)


# --- incomplete gamma -----------------------------------------------------------------------------------------------

MOST_TERMS = 20000


def _until_settled(b: Builder, state: Mapping[str, Node], fixed: Mapping[str, Node], step: Settle) -> Node:
    """Repeat ``step`` until every change is below half a unit of f64; the state's first value is the result."""
    pool = Pool()
    inner = Builder(pool, b.loc)
    i, going = pool.input("i", TensorType(i64, ())), pool.input("going", TensorType(bool_, ()))
    values = {**state, **fixed}
    inputs = {name: pool.input(name, node.type) for name, node in values.items()}
    after, moving = step(inner, inputs, inner(ops.add, inner(ops.cast, i, dtype=f64), _k(inner, 1)))
    axes = tuple(range(len(moving.shape)))
    again = inner(ops.reduce_any, moving, axes=axes, keepdims=False) if axes else moving
    outputs = (again, *(after[name] for name in state))
    names = ("again", *(f"new_{name}" for name in state))
    body = Graph("settle", pool, (i, going, *inputs.values()), outputs, names)
    limit = b.const(MOST_TERMS, i64)
    found = b(ops.loop, limit, b.const(True, bool_), *values.values(), body=body, n_carried=len(state))
    return b.results(found)[0]


def _series_step(b: Builder, v: Mapping[str, Node], k: Node) -> tuple[dict[str, Node], Node]:
    """The series of the lower function: each term is the one before times ``x / (a + k)``."""
    term = b(ops.div, b(ops.mul, v["term"], v["x"]), b(ops.add, v["a"], k))
    total = b(ops.add, v["total"], term)
    return {"total": total, "term": term}, b(ops.gt, term, b(ops.mul, total, _k(b, 2.0**-54)))


def _fraction_step(b: Builder, v: Mapping[str, Node], k: Node) -> tuple[dict[str, Node], Node]:
    """The continued fraction of the upper function by Lentz's method (Thompson and Barnett 1986)."""
    numerator = b(ops.mul, k, b(ops.sub, v["a"], k))
    denominator = b(ops.add, b(ops.sub, b(ops.add, v["x"], _times(b, 2, k)), v["a"]), _k(b, 1))
    least = _k(b, 1e-290)

    def kept(value: Node) -> Node:
        return b(ops.where, b(ops.lt, b(ops.abs, value), least), least, value)

    d = b(ops.div, _k(b, 1), kept(b(ops.add, denominator, b(ops.mul, numerator, v["d"]))))
    c = kept(b(ops.add, denominator, b(ops.div, numerator, v["c"])))
    change = b(ops.mul, c, d)
    moving = b(ops.gt, b(ops.abs, b(ops.sub, change, _k(b, 1))), _k(b, 2.0**-52))
    return {"h": b(ops.mul, v["h"], change), "c": c, "d": d}, moving


def _incomplete_gamma(upper: bool) -> Convert:
    """Series below ``a + 1``, continued fraction above, in f64; where one is not used it runs on harmless values."""

    def convert(c: AtenCall) -> Node:
        b = c.b
        a, x = (expand(b, cast(b, c.tensor(n, c.dtype), f64), c.shape) for n in ("self", "other"))
        zero, one, infinity, nan = (_k(b, v) for v in (0, 1, math.inf, math.nan))
        positive = b(ops.logical_and, b(ops.gt, a, zero), b(ops.gt, x, zero))
        finite = b(ops.logical_and, b(ops.lt, a, infinity), b(ops.lt, x, infinity))
        usable = b(ops.logical_and, positive, finite)
        is_low = b(ops.logical_and, usable, b(ops.lt, x, b(ops.add, a, one)))
        is_high = b(ops.logical_and, usable, b(ops.ge, x, b(ops.add, a, one)))
        low_a, low_x = b(ops.where, is_low, a, one), b(ops.where, is_low, x, one)
        first = b(ops.div, one, low_a)
        total = _until_settled(b, {"total": first, "term": first}, {"x": low_x, "a": low_a}, _series_step)
        high_a, high_x = b(ops.where, is_high, a, one), b(ops.where, is_high, x, _k(b, 3))
        d = b(ops.div, one, b(ops.add, b(ops.sub, high_x, high_a), one))
        start = {"h": d, "c": expand(b, _k(b, 1e290), c.shape), "d": d}  # Lentz begins with c infinite
        tail = _until_settled(b, start, {"x": high_x, "a": high_a}, _fraction_step)
        safe_a, safe_x = b(ops.where, usable, a, one), b(ops.where, usable, x, one)
        exponent = b(ops.sub, b(ops.mul, safe_a, b(ops.log, safe_x)), safe_x)
        # x**a * exp(-x) / gamma(a), by logarithms, as each may overflow alone
        scale = b(ops.exp, b(ops.sub, exponent, b(ops.lgamma, safe_a)))
        found = b(ops.mul, scale, b(ops.where, is_low, total, tail))
        is_own = is_high if upper else is_low
        # both functions add up to 1: the one that was not computed follows from the other
        found = b(ops.where, is_own, found, b(ops.sub, one, found))
        full, none = (zero, one) if upper else (one, zero)  # where x outgrows a, and the other way round
        # a or x is 0 or infinite
        at_edge = b(ops.where, b(ops.logical_or, b(ops.eq, a, zero), b(ops.eq, x, infinity)), full, none)
        both = [b(ops.logical_and, b(ops.eq, a, v), b(ops.eq, x, v)) for v in (zero, infinity)]
        negative = b(ops.logical_not, b(ops.logical_and, b(ops.ge, a, zero), b(ops.ge, x, zero)))
        undefined = b(ops.logical_or, negative, b(ops.logical_or, *both))
        found = b(ops.where, undefined, nan, b(ops.where, usable, found, at_edge))
        return cast(b, found, c.dtype)

    return convert


# --- orthogonal polynomials -----------------------------------------------------------------------------------------

Start = Callable[[Builder, Node], Node]
"""The polynomial of degree 1, from x."""
Step = Callable[[Builder, Node, Node, Node, Node], Node]
"""The next polynomial from x, the degree k of ``now``, ``now`` and the one before, all f64."""


def _k(b: Builder, value: float) -> Node:
    return b.const(value, f64)


def _times(b: Builder, factor: float, x: Node) -> Node:
    return b(ops.mul, x, _k(b, factor))


def _chebyshev_step(b: Builder, x: Node, k: Node, now: Node, before: Node) -> Node:
    return b(ops.sub, b(ops.mul, _times(b, 2, x), now), before)


def _hermite_step(b: Builder, x: Node, k: Node, now: Node, before: Node) -> Node:
    return b(ops.sub, b(ops.mul, _times(b, 2, x), now), b(ops.mul, _times(b, 2, k), before))


def _hermite_e_step(b: Builder, x: Node, k: Node, now: Node, before: Node) -> Node:
    return b(ops.sub, b(ops.mul, x, now), b(ops.mul, k, before))


def _next(b: Builder, k: Node) -> Node:
    return b(ops.add, k, _k(b, 1))


def _laguerre_step(b: Builder, x: Node, k: Node, now: Node, before: Node) -> Node:
    """``((2k + 1 - x) L(k) - k L(k-1)) / (k + 1)``."""
    factor = b(ops.sub, _next(b, _times(b, 2, k)), x)
    return b(ops.div, b(ops.sub, b(ops.mul, factor, now), b(ops.mul, k, before)), _next(b, k))


def _legendre_step(b: Builder, x: Node, k: Node, now: Node, before: Node) -> Node:
    """``((2k + 1) x P(k) - k P(k-1)) / (k + 1)``."""
    factor = b(ops.mul, _next(b, _times(b, 2, k)), x)
    return b(ops.div, b(ops.sub, b(ops.mul, factor, now), b(ops.mul, k, before)), _next(b, k))


def _line(slope: float, offset: float) -> Start:
    return lambda b, x: b(ops.add, _times(b, slope, x), _k(b, offset))


_FAMILIES: Mapping[str, tuple[Start, Step]] = {
    "chebyshev_polynomial_t": (_line(1, 0), _chebyshev_step),
    "chebyshev_polynomial_u": (_line(2, 0), _chebyshev_step),
    "chebyshev_polynomial_v": (_line(2, -1), _chebyshev_step),
    "chebyshev_polynomial_w": (_line(2, 1), _chebyshev_step),
    "hermite_polynomial_h": (_line(2, 0), _hermite_step),
    "hermite_polynomial_he": (_line(1, 0), _hermite_e_step),
    "laguerre_polynomial_l": (_line(-1, 1), _laguerre_step),
    "legendre_polynomial_p": (_line(1, 0), _legendre_step),
}
_HIGHEST_HERMITE = {"f32": 128.0, "f64": 512.0}
"""Beyond these degrees ATen gives NaN, as nearly every value would overflow."""


def _orthogonal(family: str, is_shifted: bool = False) -> Convert:
    """A polynomial whose degree is data: as many steps as the highest one asks, each element keeping its own.

    A degree below 0, or one that is no number or infinite, gives 0, and a fraction is cut off.
    """
    start, step = _FAMILIES[family]

    def convert(c: AtenCall) -> Node:
        b = c.b
        x = expand(b, cast(b, c.tensor("x", c.dtype), f64), c.shape)
        degree = b(ops.trunc, expand(b, cast(b, c.tensor("n", c.dtype), f64), c.shape))
        is_finite = b(ops.lt, b(ops.abs, degree), _k(b, 2.0**63))  # others have no steps, and would never end
        degree = b(ops.where, is_finite, degree, _k(b, -1))
        if is_shifted:
            x = b(ops.sub, _times(b, 2, x), _k(b, 1))
        one = b(ops.full, value=1.0, dtype=f64, shape=c.shape)
        found = _iterate(b, x, degree, start(b, x), one, step)
        if family.startswith("hermite"):
            limit = _k(b, _HIGHEST_HERMITE.get(c.dtype.name, 128.0))
            found = b(ops.where, b(ops.gt, degree, limit), _k(b, math.nan), found)
        found = b(ops.where, b(ops.lt, degree, _k(b, 0)), _k(b, 0), found)
        return cast(b, found, c.dtype)

    return convert


def _iterate(b: Builder, x: Node, degree: Node, first: Node, zeroth: Node, step: Step) -> Node:
    """State: the degree reached, the polynomials of it and of the one before, the result so far."""
    found = b(ops.where, b(ops.ge, degree, _k(b, 1)), first, zeroth)
    n = x.type.n_elements
    flat = reshape(b, degree, (n,))
    guarded = b(ops.concat, flat, reshape(b, _k(b, 0), (1,)), axis=0)
    trips = cast(b, b(ops.reduce_max, guarded, axes=(0,), keepdims=False), i64)
    trips = b(ops.sub, trips, b.const(1, i64))
    pool = Pool()
    inner = Builder(pool, b.loc)
    i, going = pool.input("i", TensorType(i64, ())), pool.input("going", TensorType(bool_, ()))
    state = [("now", first), ("before", zeroth), ("found", found), ("x", x), ("degree", degree)]
    now, before, so_far, at, wanted = (pool.input(name, node.type) for name, node in state)
    k = inner(ops.add, inner(ops.cast, i, dtype=f64), _k(inner, 1))
    after = step(inner, at, k, now, before)
    kept = inner(ops.where, inner(ops.gt, wanted, k), after, so_far)
    names = ("going_on", "next", "last", "result")
    body = Graph("polynomial", pool, (i, going, now, before, so_far, at, wanted), (going, after, now, kept), names)
    loop = b(ops.loop, trips, b.const(True, bool_), first, zeroth, found, x, degree, body=body, n_carried=3)
    return b.results(loop)[2]


_UNARY: Mapping[str, OpDef] = {
    "erfc": ops.erfc, "special_erfcx": ops.erfcx, "erfinv": ops.erfinv, "special_ndtri": ops.ndtri,
    "lgamma": ops.lgamma, "digamma": ops.digamma, "i0": ops.bessel_i0, "special_i0e": ops.bessel_i0e,
    "special_i1": ops.bessel_i1, "special_i1e": ops.bessel_i1e, "special_modified_bessel_i0": ops.bessel_i0,
    "special_modified_bessel_i1": ops.bessel_i1, "special_modified_bessel_k0": ops.bessel_k0,
    "special_modified_bessel_k1": ops.bessel_k1, "special_scaled_modified_bessel_k0": ops.bessel_k0e,
    "special_scaled_modified_bessel_k1": ops.bessel_k1e, "special_bessel_j0": ops.bessel_j0,
    "special_bessel_j1": ops.bessel_j1, "special_bessel_y0": ops.bessel_y0, "special_bessel_y1": ops.bessel_y1,
    "special_spherical_bessel_j0": ops.spherical_j0, "special_airy_ai": ops.airy_ai,
}  # fmt: skip

_FORMS = ("default", "n_scalar", "x_scalar")
"""A polynomial's: of two tensors, or with a number for the degree or the place."""

TABLE: Mapping[str, Convert] = {
    **{f"{name}.default": _unary(op) for name, op in _UNARY.items()},
    **{f"special_{name}.{form}": _orthogonal(name) for name in _FAMILIES for form in _FORMS},
    **{
        f"special_shifted_{name}.{form}": _orthogonal(name, True)
        for name in _FAMILIES
        if name.startswith("chebyshev")
        for form in _FORMS
    },
    "igamma.default": _incomplete_gamma(False), "igammac.default": _incomplete_gamma(True),
    "special_zeta.default": _zeta, "polygamma.default": _polygamma,
}  # fmt: skip
