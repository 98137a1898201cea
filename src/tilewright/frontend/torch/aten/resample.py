"""ATen's resampling of images (``upsample_*``) without antialiasing.

In: calls. Out: nodes: ``resize`` where that reads what PyTorch does, else a gather for each axis of nearest elements.
Not its business: antialiased resampling (``torch.aten.antialias``).

The place of a result is PyTorch's product with a step, in floats: one over the given factor, else size before over size
after. ``resize`` divides by a factor, as ONNX does. The two differ by a rounding, which decides about the nearest
element where a place is a whole number: with factor 0.6 result 9 is element 15 here and element 14 there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known, known_at_least, known_at_most
from tilewright.core.expr import Dim, bounds, floordiv
from tilewright.core.graph import Attrs, Builder, Node
from tilewright.core.types import Array, DType, f32, f64, i64
from tilewright.frontend.nodes import dim_scalar
from tilewright.frontend.torch.aten.call import AtenCall, Result
from tilewright.frontend.torch.aten.call import cast as to

Convert = Callable[[AtenCall], Result]

SURROGATE = 64
"""Stands for a symbolic size of which the other is a whole multiple: what is read then repeats itself."""


def _factors(c: AtenCall, n: int) -> list[float | None]:
    """The given factor of each axis, of which PyTorch ignores those that are not positive."""
    given = c.args.get("scale_factors")
    if given is None:
        names = {1: ["scales"], 2: ["scales_h", "scales_w"], 3: ["scales_d", "scales_h", "scales_w"]}[n]
        given = [c.args.get(name) for name in names]
    return [float(f) if isinstance(f, float | int) and f > 0 else None for f in given]


# --- means ----------------------------------------------------------------------------------------------------------


def _means(mode: str, n: int) -> Convert:
    """Weighted sums. Linear ones copy an axis whose size stays, whatever the factor."""

    def convert(c: AtenCall) -> Node:
        x = c.tensor("self") if "self" in c.args else c.tensor("input")
        align = bool(c.args.get("align_corners"))
        factors = _factors(c, n)
        if align:
            factors = [None for _ in factors]
        if mode == "linear":
            sides = zip(x.shape[-n:], c.shape[-n:], factors, strict=True)
            factors = [1.0 if f is not None and before == after else f for before, after, f in sides]
        attributes = {
            "mode": mode, "coordinate_mode": "align_corners" if align else "half_pixel", "cubic_coeff": -0.75,
            "exclude_outside": False,
        }  # fmt: skip
        axes = range(len(x.shape) - n, len(x.shape))
        apart = [k for k, f in zip(axes, factors, strict=True) if mode == "linear" and f and _may_stay(x.shape[k], f)]
        for k in apart:
            sizes = (*x.shape[:k], c.shape[k], *x.shape[k + 1 :])
            scales = tuple(factors[i - axes[0]] if i == k else 1.0 for i in range(len(sizes)))
            moved = c.b(ops.resize, x, sizes=sizes, scales=scales, **attributes)
            x = c.b(ops.where, *_copied(c.b, x, k, c.shape[k]), moved)
            factors[k - axes[0]] = 1.0
        scales = () if align else _scales(x.shape[-n:], c.shape[-n:], factors)
        before = (1.0,) * (len(x.shape) - n) if scales else ()
        return c.b(ops.resize, x, sizes=c.shape, scales=(*before, *scales), **attributes)

    return convert


def _may_stay(size: Dim, factor: float) -> bool:
    """Does only a call know whether an axis keeps its size? Of a single element both rules give the same."""
    least = max(bounds(size)[0] or 0, 2)
    return not is_known(size) and factor != 1 and int(least * factor) == least


def _copied(b: Builder, x: Node, k: int, after: Dim) -> tuple[Node, Node]:
    """Whether axis ``k`` keeps its size, and the result if so."""
    before, size = dim_scalar(b, x.shape[k], i64), dim_scalar(b, after, i64)
    places = b(ops.minimum, b(ops.iota, extent=after, dtype=i64), b(ops.sub, before, b.const(1, i64)))
    return b(ops.eq, before, size), b(ops.gather, x, places, axis=k)


def _scales(before: Sequence[Dim], after: Sequence[Dim], factors: Sequence[float | None]) -> tuple[float, ...]:
    """One factor per axis; sizes' ratio where none was given, which then must be static."""
    found: list[float] = []
    for n, m, factor in zip(before, after, factors, strict=True):
        if factor is None and not (is_known(n) and is_known(m)):
            return ()
        found.append(m / n if factor is None else factor)  # type: ignore[operator]
    return tuple(found)


# --- nearest elements -----------------------------------------------------------------------------------------------


SMALL = 128
"""PyTorch's kernel of images for results whose height and width add up to at most that has rules of its own."""


@dataclass(frozen=True)
class _Resampled:
    """A resampled axis: sizes before and after, the given factor, and PyTorch's rule for its places.

    ``exact``: places are the middles of elements, not their beginnings. ``around`` is what the height and the width of
    an image's result add up to. Where that is small, places are f32 whatever the elements, an axis whose size stays is
    copied and one of twice the size repeats each element, whatever the factor; the latter two not where ``exact``.
    Elsewhere places are of type ``real``, and f32 when they are rounded down.
    """

    before: Dim
    after: Dim
    factor: float | None
    exact: bool
    around: Dim | None
    real: DType

    def places(self) -> Array:
        """The element that each result is, of known sizes."""
        assert is_known(self.before) and is_known(self.after)
        n, m, is_small = self.before, self.after, self._is_small()
        if is_small and not self.exact and m in (n, 2 * n):
            return np.arange(m) * n // max(m, 1)
        real = np.float32 if is_small else self.real.numpy.type
        step = real(1 / self.factor) if self.factor else real(n) / real(m)
        at = np.arange(m).astype(real)
        at = (at + real(0.5)) * step if self.exact else at * step
        found: Array = np.minimum(np.floor(at.astype(np.float32)).astype(np.int64), n - 1)
        return found

    def _is_small(self) -> bool:
        return self.around is not None and known_at_most(self.around, SMALL)

    def nodes(self, b: Builder) -> Node:
        """The same for sizes that a call knows."""
        before, after = (dim_scalar(b, d, i64) for d in (self.before, self.after))
        found = self._by_step(b, before, after, self.real)
        if self.around is not None:
            is_small = b(ops.le, dim_scalar(b, self.around, i64), b.const(SMALL, i64))
            found = b(ops.where, is_small, self._of_small(b, before, after), found)
        return b(ops.minimum, found, b(ops.sub, before, b.const(1, i64)))

    def _by_step(self, b: Builder, before: Node, after: Node, real: DType) -> Node:
        at = to(b, b(ops.iota, extent=self.after, dtype=i64), real)
        step = b.const(1 / self.factor, real) if self.factor else b(ops.div, to(b, before, real), to(b, after, real))
        moved = b(ops.add, at, b.const(0.5, real)) if self.exact else at
        return to(b, b(ops.floor, to(b, b(ops.mul, moved, step), f32)), i64)

    def _of_small(self, b: Builder, before: Node, after: Node) -> Node:
        found = self._by_step(b, before, after, f32)
        for times in () if self.exact or not self.factor else (1, 2):
            whole = b(ops.floor_div, b(ops.iota, extent=self.after, dtype=i64), b.const(times, i64))
            is_so = b(ops.eq, after, b(ops.mul, before, b.const(times, i64)))
            found = b(ops.where, is_so, whole, found)
        return found

    def is_static(self) -> bool:
        """Are all sizes known that decide about places?"""
        return is_known(self.before) and is_known(self.after) and (self.around is None or is_known(self.around))

    def is_resize_s(self, attributes: Mapping[str, Any]) -> bool:
        """Does ``resize`` read the same elements, whatever the sizes?"""
        n, m = self.before, self.after
        if not (is_known(n) and is_known(m)):
            times = floordiv(m, n)
            if not is_known(times) or not known_at_least(times, 1) or m != n * times:
                return False
            if self.factor not in (None, times):
                return False
            n, m = SURROGATE, SURROGATE * times
        found = ops.resize.reference((np.arange(n),), Attrs({**attributes, "sizes": (m,)}))
        kinds = (self.around,) if self.around is None or is_known(self.around) else (SMALL, SMALL + 1)
        return all(np.array_equal(found, replace(self, before=n, after=m, around=k).places()) for k in kinds)


def _nearest(n: int, *, exact: bool = False) -> Convert:
    def convert(c: AtenCall) -> Node:
        x = c.tensor("self") if "self" in c.args else c.tensor("input")
        around = c.shape[-2] + c.shape[-1] if n == 2 else None
        real = f64 if x.dtype is f64 else f32
        axes = [
            _Resampled(before, after, factor, exact, around, real)
            for before, after, factor in zip(x.shape[-n:], c.shape[-n:], _factors(c, n), strict=True)
        ]
        return _picked(c.b, x, axes)

    return convert


def _picked(b: Builder, x: Node, axes: Sequence[_Resampled]) -> Node:
    """The nearest elements along the last axes: those that ``resize`` reads by its op, others by gathers."""
    exact = axes[0].exact
    attributes = {
        "mode": "nearest", "coordinate_mode": "half_pixel" if exact else "asymmetric", "scales": (), "roi": (),
        "nearest_mode": "round_prefer_ceil" if exact else "floor", "extrapolation": 0.0,
    }  # fmt: skip
    first = len(x.shape) - len(axes)
    sizes, apart = list(x.shape), []
    for k, axis in enumerate(axes, first):
        if axis.is_resize_s(attributes):
            sizes[k] = axis.after
        else:
            apart.append((k, axis))
    if tuple(sizes) != x.shape:
        x = b(ops.resize, x, sizes=tuple(sizes), **attributes)
    for k, axis in apart:
        x = b(ops.gather, x, b.const(axis.places()) if axis.is_static() else axis.nodes(b), axis=k)
    return x


_AXES = {1: "linear", 2: "bilinear", 3: "trilinear"}
_KINDS = ("vec", "default")

TABLE: Mapping[str, Convert] = {
    **{f"upsample_nearest{n}d.{kind}": _nearest(n) for n in (1, 2, 3) for kind in _KINDS},
    **{f"_upsample_nearest_exact{n}d.{kind}": _nearest(n, exact=True) for n in (1, 2, 3) for kind in _KINDS},
    **{f"upsample_{_AXES[n]}{n}d.{kind}": _means("linear", n) for n in (1, 2, 3) for kind in _KINDS},
    **{f"upsample_bicubic2d.{kind}": _means("cubic", 2) for kind in _KINDS},
}  # fmt: skip
