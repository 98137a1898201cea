"""Special functions: gamma and its relatives, error functions, Bessel functions, Airy's, Hurwitz's zeta.

In: floats. Out: the same dtype. All arithmetic is f64, in which each function is written once, over ``Numbers``, for
graphs and for NumPy; ``erfinv`` has a second form in f32. Bounds that ``tests/ops/test_special.py`` checks: relative
error 1e-12 (erf family, gamma family away from zeros, I and K), absolute 1e-13 where functions oscillate.
Not its business: erf itself, which every back end has; the coefficients (``special_tables``).

Methods: polynomials in a variable that maps a range to [-1, 1]; Stirling's series; Hankel's asymptotic form; Halley's
iteration for inverses; Euler and Maclaurin's sum for zeta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Buffer, Const, Fma, Stage, Value
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, DType, TensorType
from tilewright.ops import elementwise as e
from tilewright.ops import special_tables as tables
from tilewright.ops.common import assign, broadcast_load, broadcast_shapes, check_equal_dtypes, narrowed
from tilewright.ops.samples import unary_samples

# --- polynomials ----------------------------------------------------------------------------------------------------


def _polynomial_value(x: Value, coefficients: Sequence[float]) -> Value:
    """Even and odd powers apart, each by Horner's rule in ``x * x``: of two chains a core computes both at a time."""
    if len(coefficients) <= 2:
        return _horner_value(x, coefficients)
    square = x * x
    return Fma(_horner_value(square, coefficients[1::2]), x, _horner_value(square, coefficients[::2]))


def _horner_value(x: Value, coefficients: Sequence[float]) -> Value:
    result: Value = Const(coefficients[-1], x.dtype)
    for c in coefficients[-2::-1]:
        result = Fma(result, x, Const(c, x.dtype))
    return result


def _infer_polynomial(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    check_equal_dtypes(ts, (types.f32, types.f64))
    return ts[0]


def _ref_polynomial(xs: Sequence[Array], a: Attrs) -> Array:
    """As ``_polynomial_value`` has it, because infinite sums of even and of odd powers may cancel to NaN."""
    x, coefficients = xs[0].astype(np.float64), a.coefficients
    if len(coefficients) <= 2:
        return _horner(x, coefficients).astype(xs[0].dtype)
    with np.errstate(invalid="ignore"):
        odd, even = (_horner(x * x, part) for part in (coefficients[1::2], coefficients[::2]))
        return np.asarray(odd * x + even).astype(xs[0].dtype)


def _horner(x: Array, coefficients: Sequence[float]) -> Array:
    result = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        result = result * x + c
    return result


def _polynomial_compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> tuple[Stage, ...]:
    return (assign(outs[0], lambda i: _polynomial_value(broadcast_load(ins[0], i), a.coefficients)),)


def _polynomial_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for coefficients in ((1.0, -2.0, 0.5), (3.0,)):
        for x in (rng.uniform(-1, 1, (2, 5)), np.float32(0.25) * np.ones((), np.float32)):
            yield Sample((np.asarray(x),), {"coefficients": coefficients})


polynomial = OpDef(
    "polynomial",
    ("x",),
    {"coefficients": AttrDef("floats")},
    _infer_polynomial,
    _ref_polynomial,
    compute=_polynomial_compute,
    traits=frozenset({Trait.ELEMENTWISE}),
    samples=_polynomial_samples,
    doc="A polynomial; coefficients from the lowest power on. Even and odd powers are summed apart: an infinite x "
    "gives NaN where these sums are infinities of opposite signs.",
)


# --- numbers: arrays, or nodes of a graph ---------------------------------------------------------------------------

Number = Any
"""A value that has ``+ - * /`` and unary minus: an array, or a ``_Term``."""


class Numbers(Protocol):
    """What the functions need beyond arithmetic."""

    def call(self, name: str, *xs: Number) -> Number:
        """An element-wise op by name."""

    def where(self, condition: Number, a: Number | float, b: Number | float) -> Number:
        """``a`` or ``b``."""

    def poly(self, x: Number, coefficients: Sequence[float]) -> Number:
        """A polynomial."""


class _Term:
    """A node with operators."""

    def __init__(self, b: Builder, node: Node) -> None:
        self.b, self.node = b, node

    def _with(self, op: OpDef, x: Number, y: Number) -> _Term:
        return _Term(self.b, self.b(op, _node(self.b, x, self.node.dtype), _node(self.b, y, self.node.dtype)))

    def __add__(self, y: Number) -> _Term:
        return self._with(e.add, self, y)

    def __radd__(self, y: Number) -> _Term:
        return self._with(e.add, y, self)

    def __sub__(self, y: Number) -> _Term:
        return self._with(e.sub, self, y)

    def __rsub__(self, y: Number) -> _Term:
        return self._with(e.sub, y, self)

    def __mul__(self, y: Number) -> _Term:
        return self._with(e.mul, self, y)

    def __rmul__(self, y: Number) -> _Term:
        return self._with(e.mul, y, self)

    def __truediv__(self, y: Number) -> _Term:
        return self._with(e.div, self, y)

    def __rtruediv__(self, y: Number) -> _Term:
        return self._with(e.div, y, self)

    def __neg__(self) -> _Term:
        return _Term(self.b, self.b(e.neg, self.node))


def _node(b: Builder, x: Number, dtype: DType) -> Node:
    return x.node if isinstance(x, _Term) else b.const(float(x), dtype)


_OPS: dict[str, OpDef] = {
    op.name: op
    for op in (
        e.abs, e.exp, e.log, e.sqrt, e.sin, e.cos, e.tan, e.erf, e.round, e.floor, e.pow, e.minimum, e.isinf, e.lt,
        e.le, e.eq, e.ne, e.logical_and, e.fmod,
    )
}  # fmt: skip


class _GraphNumbers:
    def __init__(self, b: Builder, dtype: DType) -> None:
        self.b, self.dtype = b, dtype

    def call(self, name: str, *xs: Number) -> Number:
        return _Term(self.b, self.b(_OPS[name], *(_node(self.b, x, self.dtype) for x in xs)))

    def where(self, condition: Number, a: Number | float, b: Number | float) -> Number:
        return _Term(self.b, self.b(e.where, condition.node, *(_node(self.b, x, self.dtype) for x in (a, b))))

    def poly(self, x: Number, coefficients: Sequence[float]) -> Number:
        return _Term(self.b, self.b(polynomial, x.node, coefficients=tuple(coefficients)))


class _ArrayNumbers:
    def call(self, name: str, *xs: Number) -> Number:
        return _OPS[name].reference([np.asarray(x) for x in np.broadcast_arrays(*xs)], Attrs({}))

    def where(self, condition: Number, a: Number | float, b: Number | float) -> Number:
        return np.where(condition, a, b)

    def poly(self, x: Number, coefficients: Sequence[float]) -> Number:
        return _horner(np.asarray(x, np.float64), coefficients)


# --- error functions ------------------------------------------------------------------------------------------------

HALF_ROOT_PI = math.sqrt(math.pi) / 2


def _erfcx_positive(m: Numbers, a: Number) -> Number:
    """``exp(a*a) * erfc(a)`` for ``a >= 0``."""
    t = m.where(m.call("lt", 1e300, a), 1.0, (a - 3.75) / (a + 3.75))
    return m.poly(t, tables.ERFCX) / (1 + 2 * a)


def _erfcx(m: Numbers, x: Number) -> Number:
    p = _erfcx_positive(m, m.call("abs", x))
    return m.where(m.call("lt", x, 0.0), 2 * m.call("exp", x * x) - p, p)


def _erfc(m: Numbers, x: Number) -> Number:
    p = _erfcx_positive(m, m.call("abs", x)) * m.call("exp", -(x * x))
    return m.where(m.call("lt", x, 0.0), 2 - p, p)


def _erfinv_of(m: Numbers, x: Number, q: Number) -> Number:
    """``erfinv(x)`` for ``x = 1 - q`` in 0 .. 1, both given as exactly as they are known.

    The polynomials are right to 7e-7, and a step of Halley's iteration cubes that.
    """
    w = -m.call("log", q * (2 - q))
    low, high = math.sqrt(5), 27.0
    tail = m.poly((m.call("sqrt", w) - (low + high) / 2) / ((high - low) / 2), tables.ERFINV_TAIL)
    y = x * m.where(m.call("lt", w, 5.0), m.poly(w / 2.5 - 1, tables.ERFINV_CENTRE), tail)
    size = m.call("exp", y * y)
    error = m.where(m.call("lt", x, 0.5), (m.call("erf", y) - x) * size, q * size - _erfcx_positive(m, y))
    step = error * HALF_ROOT_PI
    y = y - step / (1 + y * step)
    return m.where(m.call("eq", q, 0.0), math.inf, y)


def _erfinv(m: Numbers, x: Number) -> Number:
    """As Giles has it (Approximating the erfinv function, 2010): ``x`` times a polynomial in ``w = -log(1 - x*x)``, or
    in its root. Little is rounded: the tail is the root and a small polynomial, whose variable is exact."""
    q, log = _complements(m, x)
    root = m.call("sqrt", -log)
    tail = root + m.poly(m.poly(root, (-2.015625, 0.5)), tables.ERFINV_TAIL_LONG)
    centre = m.poly(m.poly(log, (-1.03125, -0.5)), tables.ERFINV_CENTRE_LONG)
    return x * m.where(m.call("lt", -(2.03**2), log), centre, m.where(m.call("eq", q, 0.0), math.inf, tail))


def _erfinv_short(m: Numbers, x: Number) -> Number:
    """Likewise for f32, in f32."""
    q, log = _complements(m, x)
    low, high = math.sqrt(5), 4.02
    scale = 2 / (high - low)
    tail = m.poly(m.poly(m.call("sqrt", -log), (-scale * (low + high) / 2, scale)), tables.ERFINV_TAIL_SHORT)
    centre = m.poly(m.poly(log, (-1.0, -0.4)), tables.ERFINV_CENTRE_SHORT)
    return x * m.where(m.call("lt", -5.0, log), centre, m.where(m.call("eq", q, 0.0), math.inf, tail))


def _complements(m: Numbers, x: Number) -> tuple[Number, Number]:
    """``1 - |x|`` and ``log(1 - x*x)``."""
    q = 1 - m.call("abs", x)
    return q, m.call("log", q * (2 - q))


def _ndtri(m: Numbers, p: Number) -> Number:
    q = 2 * m.call("minimum", p, 1 - p)
    y = math.sqrt(2) * _erfinv_of(m, 1 - q, q)
    return m.where(m.call("lt", p, 0.5), -y, y)


# --- gamma and zeta -------------------------------------------------------------------------------------------------

BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""B2, B4, ... B16."""


def _lgamma(m: Numbers, x: Number) -> Number:
    a = m.call("abs", x)
    near, far = m.call("lt", a, 3.0), m.call("lt", a, 8.0)
    z = m.where(far, a + 5, a)
    inverse = 1 / z
    series = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(BERNOULLI, 1)]
    tail = inverse * m.poly(inverse * inverse, series)
    shift = m.where(far, m.call("log", a * (a + 1) * (a + 2) * (a + 3) * (a + 4)), 0.0)
    large = (z - 0.5) * m.call("log", z) - z + (0.5 * math.log(2 * math.pi)) + tail - shift
    below = m.call("lt", a, 1.0)
    y = m.where(near, m.where(below, a + 1, a), 1.5)
    small = (y - 1) * (y - 2) * m.poly(y - 2, tables.LGAMMA_1_3) - m.where(below, m.call("log", a), 0.0)
    positive = m.where(near, small, large)
    fraction = a - m.call("round", a)
    sine = m.call("abs", m.call("sin", math.pi * fraction) * a)
    negative = math.log(math.pi) - m.call("log", sine) - positive
    found = m.where(m.call("lt", x, 0.0), negative, positive)
    return m.where(m.call("isinf", x), math.inf, found)


def _digamma(m: Numbers, x: Number) -> Number:
    is_negative = m.call("lt", x, 0.0)
    a = m.where(is_negative, 1 - x, x)
    is_small = m.call("lt", a, 10.0)
    base = m.where(is_small, a, 1.0)
    total: Number = 1 / base
    for k in range(1, 10):
        total = total + 1 / (base + float(k))
    z = m.where(is_small, a + 10, a)
    inverse = 1 / z
    square = inverse * inverse
    series = [0.0, *(-b / (2 * k) for k, b in enumerate(BERNOULLI, 1))]
    positive = m.call("log", z) - 0.5 * inverse + m.poly(square, series) - m.where(is_small, total, 0.0)
    fraction = x - m.call("round", x)
    reflected = positive - math.pi / m.call("tan", math.pi * fraction)
    reflected = m.where(m.call("eq", fraction, 0.0), math.nan, reflected)
    return m.where(m.call("eq", x, 0.0), -1 / x, m.where(is_negative, reflected, positive))


ZETA_TERMS = 12


def _zeta_positive(m: Numbers, s: Number, q: Number) -> Number:
    """Hurwitz's zeta for ``s > 1`` and ``q > 0``, infinities included."""
    total: Number = m.call("pow", q, -s)
    for k in range(1, ZETA_TERMS):
        total = total + m.call("pow", q + float(k), -s)
    a = q + float(ZETA_TERMS)
    power, terms = m.call("pow", a, -s), total
    total = total + m.call("pow", a, 1 - s) / (s - 1) + 0.5 * power
    factor = s * power / a
    for j, b in enumerate(BERNOULLI, 1):
        total = total + (b / math.factorial(2 * j)) * factor
        if j < len(BERNOULLI):
            factor = factor * (s + float(2 * j - 1)) / a * (s + float(2 * j)) / a
    return m.where(m.call("eq", s, math.inf), terms, total)


def _zeta(m: Numbers, s: Number, q: Number) -> Number:
    """For ``q < 0`` the terms below zero are two more sums of positive ones, as ``s`` is whole there."""
    is_negative = m.call("lt", q, 0.0)
    size = m.call("abs", q)
    whole = m.call("floor", size)
    fraction = size - whole
    first = m.where(is_negative, 1 - fraction, q)
    positive = _zeta_positive(m, s, first)
    below = _zeta_positive(m, s, m.where(is_negative, fraction, 1.0))
    below = below - _zeta_positive(m, s, m.where(is_negative, size + 1, 1.0))
    is_odd = m.call("ne", m.call("fmod", s, 2.0), 0.0)
    found = m.where(is_negative, positive + m.where(is_odd, -below, below), positive)
    is_pole = m.call("logical_and", m.call("le", q, 0.0), m.call("eq", q, m.call("floor", q)))
    # a base below 1, as one is among those of any negative q, to the power of minus infinity is infinite
    is_infinite = m.call("logical_and", is_negative, m.call("eq", s, math.inf))
    undefined = m.call("logical_and", is_negative, m.call("ne", s, m.call("floor", s)))
    found = m.where(is_infinite, math.inf, m.where(is_pole, math.inf, m.where(undefined, math.nan, found)))
    found = m.where(m.call("eq", s, s), found, s)
    return m.where(m.call("eq", s, 1.0), math.inf, m.where(m.call("lt", s, 1.0), math.nan, found))


# --- Bessel functions -----------------------------------------------------------------------------------------------


def _i_scaled(m: Numbers, x: Number, order: int) -> Number:
    """``exp(-|x|) * I(x)``."""
    near_table, far_table = ((tables.I0E_8, tables.I0E_INF), (tables.I1E_8, tables.I1E_INF))[order]
    a = m.call("abs", x)
    is_near = m.call("lt", a, 8.0)
    near = m.poly(m.where(is_near, a, 0.0) / 4 - 1, near_table)
    big = m.where(is_near, 8.0, a)
    far = m.poly(16 / big - 1, far_table) / m.call("sqrt", big)
    if order == 1:
        near, far = x * near, m.where(m.call("lt", x, 0.0), -far, far)
    return m.where(is_near, near, far)


def _i(m: Numbers, x: Number, order: int) -> Number:
    found = _i_scaled(m, x, order) * m.call("exp", m.call("abs", x))
    if order == 0:
        return m.where(m.call("isinf", x), math.inf, found)
    return m.where(m.call("isinf", x), x, found)


def _k_scaled(m: Numbers, x: Number, order: int) -> Number:
    """``exp(x) * K(x)``."""
    y = m.where(m.call("le", x, 2.0), x, 2.0)
    t, log = y * y / 2 - 1, m.call("log", y / 2)
    if order == 0:
        near = m.poly(t, tables.K0_SMALL) - log * m.poly(t, tables.I0_SMALL)
    else:
        near = m.poly(t, tables.K1_SMALL) / y + log * y * m.poly(t, tables.I1_SMALL)
    big = m.where(m.call("le", x, 2.0), 2.0, x)
    far = m.poly(4 / big - 1, (tables.K0E_INF, tables.K1E_INF)[order]) / m.call("sqrt", big)
    found = m.where(m.call("le", x, 2.0), near * m.call("exp", y), far)
    return _from_zero(m, x, found, math.inf)


def _k(m: Numbers, x: Number, order: int) -> Number:
    return _from_zero(m, x, _k_scaled(m, x, order) * m.call("exp", -x), math.inf)


def _from_zero(m: Numbers, x: Number, found: Number, at_zero: float) -> Number:
    """A function of positive numbers: its value at 0, NaN below."""
    return m.where(m.call("lt", x, 0.0), math.nan, m.where(m.call("eq", x, 0.0), at_zero, found))


def _hankel(m: Numbers, a: Number, order: int) -> tuple[Number, Number]:
    """J and Y for ``a >= 8``."""
    p_table = (tables.HANKEL0_P, tables.HANKEL1_P)[order]
    q_table = (tables.HANKEL0_Q, tables.HANKEL1_Q)[order]
    u = 8 / a
    t = 2 * u * u - 1
    p, q = m.poly(t, p_table), u * m.poly(t, q_table)
    phase = a - (2 * order + 1) * math.pi / 4
    size, sine, cosine = m.call("sqrt", (2 / math.pi) / a), m.call("sin", phase), m.call("cos", phase)
    return size * (p * cosine - q * sine), size * (p * sine + q * cosine)


def _j_near(m: Numbers, x: Number, order: int) -> Number:
    t = x * x / 32 - 1
    return m.poly(t, tables.J0_8) if order == 0 else x * m.poly(t, tables.J1_8)


def _j(m: Numbers, x: Number, order: int) -> Number:
    a = m.call("abs", x)
    is_near = m.call("lt", a, 8.0)
    near = _j_near(m, m.where(is_near, x, 0.0), order)
    far = _hankel(m, m.where(is_near, 8.0, a), order)[0]
    if order == 1:
        far = m.where(m.call("lt", x, 0.0), -far, far)
    return m.where(is_near, near, far)


def _y(m: Numbers, x: Number, order: int) -> Number:
    is_near = m.call("lt", x, 8.0)
    y = m.where(is_near, x, 1.0)
    t = y * y / 32 - 1
    product = m.call("log", y) * _j_near(m, y, order)
    if order == 0:
        near = m.poly(t, tables.Y0_8) + (2 / math.pi) * product
    else:
        near = y * m.poly(t, tables.Y1_8) + (2 / math.pi) * (product - 1 / y)
    far = _hankel(m, m.where(is_near, 8.0, x), order)[1]
    return _from_zero(m, x, m.where(is_near, near, far), -math.inf)


def _spherical_j0(m: Numbers, x: Number) -> Number:
    found = m.call("sin", x) / x
    return m.where(m.call("eq", x, 0.0), 1.0, m.where(m.call("isinf", x), 0.0, found))


# --- Airy -----------------------------------------------------------------------------------------------------------


def _airy(m: Numbers, x: Number) -> Number:
    is_low, is_high = m.call("lt", x, -4.0), m.call("lt", 2.0, x)
    middle = m.poly((m.where(is_low, -4.0, m.where(is_high, 2.0, x)) + 1) / 3, tables.AIRY_MID)
    up = m.where(is_high, x, 2.0)
    z = (2 / 3) * up * m.call("sqrt", up)
    scale = (2 / 3) * 2.0**1.5
    high = m.call("exp", -z) * m.poly(2 * scale / z - 1, tables.AIRY_POS) / m.call("sqrt", m.call("sqrt", up))
    down = m.where(is_low, -x, 4.0)
    z = (2 / 3) * down * m.call("sqrt", down)
    u = (2 / 3) * 8.0 / z
    t, phase = 2 * u * u - 1, z - math.pi / 4
    p, q = m.poly(t, tables.AIRY_NEG_P), u * m.poly(t, tables.AIRY_NEG_Q)
    wave = p * m.call("cos", phase) + q * m.call("sin", phase)
    low = wave / (math.sqrt(math.pi) * m.call("sqrt", m.call("sqrt", down)))
    found = m.where(is_low, low, m.where(is_high, high, middle))
    return m.where(m.call("isinf", x), math.nan, found)


# --- the ops --------------------------------------------------------------------------------------------------------

Function = Callable[..., Number]


def _infer(ts: Sequence[TensorType], a: Attrs) -> TensorType:
    dtype = check_equal_dtypes(ts, types.FLOATS)
    shape = ts[0].shape
    for t in ts[1:]:
        shape = broadcast_shapes(shape, t.shape)
    return TensorType(dtype, shape)


def _special(
    name: str,
    function: Function,
    doc: str,
    within: tuple[float, float],
    *operands: str,
    short: Function | None = None,
) -> OpDef:
    """An op by its function in f64, and by ``short`` in f32 where there is one and the operands are no wider."""
    names = operands or ("x",)

    def reference(xs: Sequence[Array], a: Attrs) -> Array:
        with np.errstate(all="ignore"):
            # The same function of NumPy's numbers: it is one text for meaning and code.
            wide = np.broadcast_arrays(*(x.astype(np.float64) for x in xs))
            return narrowed(np.asarray(function(_ArrayNumbers(), *wide)), types.dtype_of(xs[0].dtype))

    def decompose(b: Builder, xs: tuple[Node, ...], a: Attrs) -> Node:
        # Polynomials for f64 hold for f32 as well, at more steps than its digits need.
        dtype, chosen = (types.f64, function) if short is None or xs[0].dtype is types.f64 else (types.f32, short)
        wide = [_Term(b, x if x.dtype is dtype else b(e.cast, x, dtype=dtype)) for x in xs]
        found: Node = chosen(_GraphNumbers(b, dtype), *wide).node
        return found if found.dtype is xs[0].dtype else b(e.cast, found, dtype=xs[0].dtype)

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for dtype, shape in ((np.float32, (3, 7)), (np.float64, (5,)), (np.float64, ())):
            yield Sample(tuple(np.asarray(rng.uniform(*within, shape)).astype(dtype) for _ in names))

    return OpDef(
        name,
        names,
        {},
        _infer,
        reference,
        decompose=decompose,
        traits=frozenset({Trait.ELEMENTWISE}),
        samples=samples if len(names) > 1 else partial(unary_samples, dtypes=(types.f32, types.f64), within=within),
        doc=doc,
    )


erfc = _special("erfc", _erfc, "1 - erf(x), without cancellation.", (-4, 9))
erfcx = _special("erfcx", _erfcx, "exp(x*x) * erfc(x).", (-4, 30))
erfinv = _special("erfinv", _erfinv, "The inverse of erf; NaN outside of -1 .. 1.", (-1, 1), short=_erfinv_short)
ndtri = _special("ndtri", _ndtri, "The inverse of the normal distribution function.", (0, 1))
lgamma = _special("lgamma", _lgamma, "log(abs(gamma(x))).", (-9, 30))
digamma = _special("digamma", _digamma, "The derivative of log(gamma(x)); NaN at negative whole numbers.", (-9, 30))
zeta = _special("zeta", _zeta, "Hurwitz's zeta function: the sum of (q + k)**-s.", (1.1, 9), "s", "q")
bessel_i0 = _special("bessel_i0", partial(_i, order=0), "Modified Bessel function I of order 0.", (-20, 20))
bessel_i0e = _special("bessel_i0e", partial(_i_scaled, order=0), "exp(-abs(x)) * I0(x).", (-20, 20))
bessel_i1 = _special("bessel_i1", partial(_i, order=1), "Modified Bessel function I of order 1.", (-20, 20))
bessel_i1e = _special("bessel_i1e", partial(_i_scaled, order=1), "exp(-abs(x)) * I1(x).", (-20, 20))
bessel_k0 = _special("bessel_k0", partial(_k, order=0), "Modified Bessel function K of order 0.", (0, 20))
bessel_k0e = _special("bessel_k0e", partial(_k_scaled, order=0), "exp(x) * K0(x).", (0, 20))
bessel_k1 = _special("bessel_k1", partial(_k, order=1), "Modified Bessel function K of order 1.", (0, 20))
bessel_k1e = _special("bessel_k1e", partial(_k_scaled, order=1), "exp(x) * K1(x).", (0, 20))
bessel_j0 = _special("bessel_j0", partial(_j, order=0), "Bessel function J of order 0.", (-30, 30))
bessel_j1 = _special("bessel_j1", partial(_j, order=1), "Bessel function J of order 1.", (-30, 30))
bessel_y0 = _special("bessel_y0", partial(_y, order=0), "Bessel function Y of order 0.", (0, 30))
bessel_y1 = _special("bessel_y1", partial(_y, order=1), "Bessel function Y of order 1.", (0, 30))
spherical_j0 = _special("spherical_j0", _spherical_j0, "sin(x) / x, 1 at 0.", (-9, 9))
airy_ai = _special("airy_ai", _airy, "Airy's function Ai.", (-20, 9))
