"""How far two results of the same values may lie apart: what rounding explains, and no more.

In: what is expected, what other roundings give, what was found. Out: a ``Difference``: how large, where, and whether
it is more than rounding. Not its business: which values are compared.

The room is measured and not assumed: ``nudged`` moves values by units in their last place, and how far the results of
a computation move then is its conditioning. A result may be a number of roundings away from what is expected, counted
in that reach and in units of the largest element. Integers and bools must be equal, except where other roundings
decide them otherwise (a comparison of two nearly equal numbers).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tilewright.core import types
from tilewright.core.types import Array, DType, dtype_of

EPSILON: dict[DType, float] = {types.f16: 2.0**-10, types.bf16: 2.0**-7, types.f32: 2.0**-23, types.f64: 2.0**-52}
"""A unit in the last place of 1."""
ROUNDINGS: dict[DType, float] = {types.f16: 4.0, types.bf16: 4.0, types.f32: 16.0, types.f64: 16.0}
"""How many roundings a result may be away. Few for the types that are summed in f32 and rounded once."""
_BITS: dict[DType, Any] = {types.f16: np.int16, types.bf16: np.int16, types.f32: np.int32, types.f64: np.int64}


@dataclass(frozen=True)
class Difference:
    """How a result differs from what was expected.

    ``max_abs``, ``max_rel`` (of the expected element) and ``max_ulp`` (units in the last place of the dtype, None for
    integers) are over all elements; ``index`` is the worst element, ``got`` and ``want`` its values; ``limit`` is what
    its absolute difference may be; ``n_bad`` of ``n`` elements are beyond their limits. ``problem`` says what can't be
    measured: another shape or dtype, or no result at all.
    """

    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float | None = None
    index: tuple[int, ...] = ()
    got: float = 0.0
    want: float = 0.0
    limit: float = 0.0
    n_bad: int = 0
    n: int = 0
    problem: str = ""

    @property
    def is_bad(self) -> bool:
        """More than rounding?"""
        return bool(self.n_bad or self.problem)

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        if not self.is_bad:
            return f"max abs {self.max_abs:.3g} of {self.limit:.3g} allowed"
        place = f" at {list(self.index)}" if self.index else ""
        ulp = "" if self.max_ulp is None else f", {self.max_ulp:.3g} ULP"
        return (
            f"{self.n_bad} of {self.n} elements differ; worst{place}: {self.got:.9g}, expected {self.want:.9g} "
            f"(max abs {self.max_abs:.3g}, rel {self.max_rel:.3g}{ulp}; allowed {self.limit:.3g})"
        )

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "index": list(self.index), "is_bad": self.is_bad}


def nudged(a: Array, rng: np.random.Generator | None = None, epsilon: float | None = None) -> Array:
    """Floats two units in the last place away: all outwards, or with ``rng`` each its own way; other dtypes as is.

    ``epsilon`` takes the place of the dtype's own unit where that is smaller.
    """
    unit = EPSILON.get(dtype_of(a.dtype))
    if unit is None:
        return a
    way = 1 if rng is None else rng.choice((-1, 1), a.shape)
    with np.errstate(all="ignore"):
        return np.asarray(a.astype(np.float64) * (1 + way * 2 * max(unit, epsilon or 0.0))).astype(a.dtype)


def judge(
    want: Array,
    got: Array,
    others: Sequence[Array] = (),
    *,
    base: Array | None = None,
    epsilon: float = 0.0,
    roundings: float = 1.0,
) -> Difference:
    """Is ``got`` what rounding can make of ``want``?

    ``others`` are the values of ``base`` (by default ``want``) with other roundings; ``epsilon`` is the coarsest unit
    on the way, 0 where nothing rounds: then even floats must be equal.
    """
    if got.dtype != want.dtype or got.shape != want.shape:
        return Difference(problem=f"{got.dtype}{list(got.shape)}, expected {want.dtype}{list(want.shape)}")
    if not want.size:
        return Difference()
    dtype = dtype_of(want.dtype)
    wide, have = _wide(want), _wide(got)
    middle = wide if base is None else _wide(base)
    spread = [_wide(o) for o in others if o.shape == want.shape]
    with np.errstate(all="ignore"):
        same = (have == wide) | (np.isnan(have) & np.isnan(wide))
        error = np.where(same, 0.0, np.abs(have.astype(np.float64) - wide.astype(np.float64)))
        error = np.where(np.isnan(error), np.inf, error)  # NaN on one side only
        if not dtype.is_float:  # 64-bit integers may differ by less than a float64 can tell
            error = np.where(same, 0.0, np.maximum(error, 1.0 if dtype.is_integer else 0.0))
        if dtype.is_float:
            reach = max((np.nan_to_num(np.abs(o - middle), posinf=0.0).max() for o in spread), default=0.0)
            scale = np.nan_to_num(np.abs(wide), nan=0.0, posinf=0.0).max()
            # the element's own roundings, those of its operands, and where terms as large as the largest cancel
            limit = roundings * (epsilon * np.nan_to_num(np.abs(wide), posinf=0.0) + reach + epsilon * scale)
            open_ = np.zeros(want.shape, np.bool_)
            for o in spread:  # other roundings overflow here, or do not
                open_ |= np.isfinite(o) != np.isfinite(middle)
        else:
            limit = np.zeros(want.shape)
            open_ = np.zeros(want.shape, np.bool_)
            for o in spread:
                open_ |= o != middle
        bad = (error > limit) & ~open_
        # the worst of the wrong; where none is, of those that other roundings leave alone
        ranked = np.where(bad, error, -1.0) if bad.any() else np.where(open_, -1.0, error)
        worst = tuple(int(i) for i in np.unravel_index(int(np.argmax(ranked)), want.shape))
        relative = np.where(same, 0.0, error / np.abs(wide.astype(np.float64)))
        ulp = _ulps(want, got, dtype)
    return Difference(
        float(error.max()), float(relative.max()), ulp, worst, float(have[worst]), float(wide[worst]),
        float(limit[worst]), int(bad.sum()), want.size,
    )  # fmt: skip


def _wide(a: Array) -> Array:
    return a if a.dtype.kind in "iub" else a.astype(np.float64)


def _ulps(want: Array, got: Array, dtype: DType) -> float | None:
    """The largest number of representable values between two finite elements."""
    kind = _BITS.get(dtype)
    if kind is None:
        return None
    a, b = (_ordered(x, kind) for x in (want, got))
    finite = np.isfinite(want.astype(np.float64)) & np.isfinite(got.astype(np.float64))
    return float(np.abs(a - b)[finite].max(initial=0.0))


def _ordered(a: Array, kind: Any) -> Array:
    """Floats as numbers that count representable values: neighbours differ by 1, both zeros are 0."""
    bits = np.ascontiguousarray(a).view(kind)
    low = bits & np.iinfo(kind).max
    return np.asarray(np.where(bits < 0, -low.astype(np.float64), low.astype(np.float64)))
