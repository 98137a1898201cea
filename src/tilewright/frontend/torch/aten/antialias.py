"""ATen's antialiased resampling of images, and its gradient: sums over windows that grow where an axis shrinks.

In: ``_upsample_*_aa`` calls. Out: nodes, axis by axis: weights known now where the sizes are, else computed by each
call. Windows and weights are Pillow's.
Not its business: resampling that reads few neighbours (``torch.aten.resample``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, floordiv, maximum
from tilewright.core.graph import Builder, Node
from tilewright.core.types import Array, f64, i64
from tilewright.frontend.banded import banded_sum
from tilewright.frontend.nodes import dim_scalar, reshape
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, cast

Convert = Callable[[AtenCall], Result]


@dataclass(frozen=True)
class _Filter:
    """A weight by the distance from a window's centre, zero from ``reach`` on; for arrays, and for nodes."""

    reach: int
    of_array: Callable[[Array], Array]
    of_node: Callable[[Builder, Node], Node]


@dataclass(frozen=True)
class _ResizedAxis:
    """One axis on its way from ``size`` to ``out`` elements. ``factor`` is what the caller said of their ratio.

    The step, by which the centres of windows lie apart, is the ratio of ``intervals``, or the inverse of the factor.
    """

    size: Dim
    out: Dim
    align_corners: bool
    factor: float | None

    @property
    def intervals(self) -> tuple[Dim, Dim]:
        """Of the operand and of the result; where the latter has none, the step is 0."""
        return (self.size - 1, self.out - 1) if self.align_corners else (self.size, self.out)

    def step(self) -> float:
        (size, out), factor = self.intervals, self.factor
        assert is_known(size)
        assert is_known(out)
        if factor is not None and not self.align_corners:
            return 1 / factor
        return size / out if out else 0.0

    def symbolic_step(self, b: Builder) -> Node:
        if self.factor is not None and not self.align_corners:
            return b.const(1 / self.factor, f64)
        size, out = (dim_scalar(b, d, f64) for d in self.intervals)
        at_most_one = b(ops.le, out, b.const(0, f64))
        return b(ops.where, at_most_one, b.const(0, f64), b(ops.div, size, b(ops.maximum, out, b.const(1, f64))))

    def most_read(self, reach: int) -> Dim:
        """How many elements the widest window holds."""
        if self.factor is not None and not self.align_corners:
            return math.floor(2 * reach * max(1 / self.factor, 1.0)) + 2
        size, out = self.intervals
        return floordiv(2 * reach * maximum(size, out), maximum(out, 1)) + 2

    def most_readers(self, reach: int) -> Dim:
        """How many windows from ``_AxisWindows.first_reader`` on may hold one element."""
        if self.factor is not None and not self.align_corners:
            step = 1 / self.factor
            return math.floor((2 * reach * max(step, 1.0) + 1) / step) + 3
        size, out = self.intervals
        return floordiv(2 * reach * maximum(size, out) + out, maximum(size, 1)) + 3


# --- weights --------------------------------------------------------------------------------------------------------


def _known_weights(axis: _ResizedAxis, filter: _Filter) -> Array:
    """``[out, size]``."""
    assert is_known(axis.size)
    assert is_known(axis.out)
    step = axis.step()
    stretch, at = max(step, 1.0), np.arange(axis.size)
    centre = step * (np.arange(axis.out)[:, None] + 0.5)
    first = np.maximum(np.trunc(centre - filter.reach * stretch + 0.5), 0)
    end = np.minimum(np.trunc(centre + filter.reach * stretch + 0.5), axis.size)
    weights = np.where((at >= first) & (at < end), filter.of_array(np.abs(at - centre + 0.5) / stretch), 0.0)
    return np.asarray(weights / weights.sum(1, keepdims=True))


class _AxisWindows:
    """The windows of an axis as nodes: where they begin, and how much an element weighs in one."""

    def __init__(self, b: Builder, axis: _ResizedAxis, filter: _Filter) -> None:
        self.b, self.axis, self.filter = b, axis, filter
        self.step = axis.symbolic_step(b)
        self.stretch = b(ops.maximum, self.step, b.const(1, f64))
        self.support = b(ops.mul, self.stretch, b.const(filter.reach, f64))

    def first(self, window: Node) -> Node:
        """The element with which a window begins, f64."""
        b = self.b
        edge = b(ops.add, b(ops.sub, self._centre(window), self.support), b.const(0.5, f64))
        return b(ops.maximum, b(ops.trunc, edge), b.const(0, f64))

    def first_reader(self, element: Node) -> Node:
        """A window that is not behind the first that holds an element, f64."""
        b, half = self.b, self.b.const(0.5, f64)
        step = b(ops.where, b(ops.eq, self.step, b.const(0, f64)), b.const(1, f64), self.step)
        edge = b(ops.sub, b(ops.sub, cast(b, element, f64), self.support), half)
        return b(ops.maximum, b(ops.floor, b(ops.sub, b(ops.div, edge, step), half)), b.const(0, f64))

    def weights(self, window: Node, element: Node) -> Node:
        """How much elements weigh in windows, f64, before the weights of a window are made to sum to 1."""
        b, half = self.b, self.b.const(0.5, f64)
        centre, at = self._centre(window), cast(b, element, f64)
        last = b(ops.trunc, b(ops.add, b(ops.add, centre, self.support), half))
        end = b(ops.minimum, last, dim_scalar(b, self.axis.size, f64))
        inside = b(ops.logical_and, b(ops.ge, at, self.first(window)), b(ops.lt, at, end))
        distance = b(ops.div, b(ops.abs, b(ops.add, b(ops.sub, at, centre), half)), self.stretch)
        return b(ops.where, inside, self.filter.of_node(b, distance), b.const(0, f64))

    def _centre(self, window: Node) -> Node:
        b = self.b
        return b(ops.mul, self.step, b(ops.add, cast(b, window, f64), b.const(0.5, f64)))

    def read(self) -> tuple[Node, Node]:
        """The elements of each window, i64[out, n], and their weights."""
        b = self.b
        places, weights, total = self._held()
        return _below(b, places, self.axis.size), b(ops.div, weights, total)

    def readers(self) -> tuple[Node, Node]:
        """The windows that hold each element, i64[size, n], and its weights in them."""
        b, out = self.b, self.axis.out
        element = _ramp(b, self.axis.size, (self.axis.size, 1))
        n = self.axis.most_readers(self.filter.reach)
        windows = b(ops.add, cast(b, self.first_reader(element), i64), _ramp(b, n, (1, n)))
        real = b(ops.lt, windows, dim_scalar(b, out, i64))
        windows = _below(b, windows, out)
        total = reshape(b, self._held()[2], (out,))
        weights = b(ops.div, self.weights(windows, element), b(ops.gather, total, windows, axis=0))
        return windows, b(ops.where, real, weights, b.const(0, f64))

    def _held(self) -> tuple[Node, Node, Node]:
        """For each window the places from its first on, what they weigh, and the sum of that."""
        b = self.b
        window = _ramp(b, self.axis.out, (self.axis.out, 1))
        n = self.axis.most_read(self.filter.reach)
        places = b(ops.add, cast(b, self.first(window), i64), _ramp(b, n, (1, n)))
        weights = self.weights(window, places)
        return places, weights, b(ops.reduce_sum, weights, axes=(1,), keepdims=True)


def _ramp(b: Builder, n: Dim, shape: tuple[Dim, ...]) -> Node:
    return reshape(b, b(ops.iota, extent=n, dtype=i64), shape)


def _below(b: Builder, places: Node, size: Dim) -> Node:
    return b(ops.minimum, places, dim_scalar(b, size - 1, i64))


def _summed(b: Builder, x: Node, axis: int, places: Node, weights: Node) -> Node:
    """``sum(x[.., places, ..] * weights)``; what weighs nothing is not read: an infinity stays in its window."""
    shape = (*places.shape, *(1,) * (len(x.shape) - axis - 1))
    factors = reshape(b, cast(b, weights, x.dtype), shape)
    terms = b(ops.mul, b(ops.gather, x, places, axis=axis), factors)
    is_read = reshape(b, b(ops.ne, weights, b.const(0, f64)), shape)
    return b(ops.reduce_sum, b(ops.where, is_read, terms, b.const(0, x.dtype)), axes=(axis + 1,), keepdims=False)


# --- calls ----------------------------------------------------------------------------------------------------------


def _axes(c: AtenCall, sizes: tuple[Dim, ...], outs: tuple[Dim, ...]) -> list[_ResizedAxis]:
    factors = c.args.get("scale_factors") or [c.args.get("scales_h"), c.args.get("scales_w")]
    if not all(f is None or isinstance(f, int | float) for f in factors):
        raise Unsupported("antialiased resampling by a computed factor", "give the size instead")
    factors = [f if f is not None and f > 0 else None for f in factors]
    align = bool(c["align_corners"])
    return [_ResizedAxis(size, out, align, f) for size, out, f in zip(sizes, outs, factors, strict=True)]


def _is_known(axis: _ResizedAxis) -> bool:
    return is_known(axis.size) and is_known(axis.out)


def _resampled(filter: _Filter) -> Convert:
    def convert(c: AtenCall) -> Node:
        x = c.tensor("self") if "self" in c.args else c.tensor("input")
        if not x.dtype.is_float:
            raise Unsupported(f"antialiased resampling of {x.dtype}", "resample floating-point numbers")
        for k, axis in enumerate(_axes(c, x.shape[-2:], c.shape[-2:]), len(x.shape) - 2):
            if _is_known(axis):
                x = banded_sum(c.b, x, k, _known_weights(axis, filter))
            else:
                x = _summed(c.b, x, k, *_AxisWindows(c.b, axis, filter).read())
        return x

    return convert


def _gradient(filter: _Filter) -> Convert:
    def convert(c: AtenCall) -> Node:
        grad = c.tensor("grad_output")
        for k, axis in enumerate(_axes(c, c.shape[-2:], grad.shape[-2:]), len(grad.shape) - 2):
            if _is_known(axis):
                grad = banded_sum(c.b, grad, k, _known_weights(axis, filter).T)
            else:
                grad = _summed(c.b, grad, k, *_AxisWindows(c.b, axis, filter).readers())
        return grad

    return convert


# --- filters --------------------------------------------------------------------------------------------------------


def _triangle(d: Array) -> Array:
    return np.asarray(np.clip(1 - d, 0, 1))


def _triangle_node(b: Builder, d: Node) -> Node:
    return b(ops.maximum, b(ops.sub, b.const(1, f64), d), b.const(0, f64))


NEAR, FAR = (1.5, -2.5, 0.0, 1.0), (-0.5, 2.5, -4.0, 2.0)
"""Keys' filter with a = -0.5: its polynomials up to 1, and from there up to 2."""


def _cubic(d: Array) -> Array:
    return np.where(d < 1, np.polyval(NEAR, d), np.where(d < 2, np.polyval(FAR, d), 0.0))


def _cubic_node(b: Builder, d: Node) -> Node:
    def polynomial(factors: tuple[float, ...]) -> Node:
        y = b.const(factors[0], f64)
        for factor in factors[1:]:
            y = b(ops.add, b(ops.mul, y, d), b.const(factor, f64))
        return y

    far = b(ops.where, b(ops.lt, d, b.const(2, f64)), polynomial(FAR), b.const(0, f64))
    return b(ops.where, b(ops.lt, d, b.const(1, f64)), polynomial(NEAR), far)


def _lanczos(d: Array) -> Array:
    return np.where(d < 3, np.sinc(d) * np.sinc(d / 3), 0.0)


def _lanczos_node(b: Builder, d: Node) -> Node:
    def sinc(x: Node) -> Node:
        angle = b(ops.mul, x, b.const(math.pi, f64))
        at_zero = b(ops.eq, angle, b.const(0, f64))
        y = b(ops.div, b(ops.sin, angle), b(ops.where, at_zero, b.const(1, f64), angle))
        return b(ops.where, at_zero, b.const(1, f64), y)

    found = b(ops.mul, sinc(d), sinc(b(ops.div, d, b.const(3, f64))))
    return b(ops.where, b(ops.lt, d, b.const(3, f64)), found, b.const(0, f64))


_FILTERS = {
    "bilinear": _Filter(1, _triangle, _triangle_node), "bicubic": _Filter(2, _cubic, _cubic_node),
    "lanczos": _Filter(3, _lanczos, _lanczos_node),
}  # fmt: skip

TABLE: Mapping[str, Convert] = {
    **{f"_upsample_{name}2d_aa.{kind}": _resampled(f) for name, f in _FILTERS.items() for kind in ("vec", "default")},
    **{f"_upsample_{name}2d_aa_backward.default": _gradient(f) for name, f in _FILTERS.items()},
}
