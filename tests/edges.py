"""Random graphs over the values at which arithmetic ends: NaN, infinities, zeros of both signs, the largest and the
smallest numbers, the ends of the integers.

In: a seed. Out: an ``EdgeGraph``. A result that rounds is read only by ops that move or choose elements, so every
element of an output is off by the rounding of one op at most, and what is right can be said element by element.
Not its business: ordinary numbers (``graphs``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from ml_dtypes import finfo

from graphs import (
    Grower,
    RandomGraph,
    along_axis,
    binary,
    cast,
    clamp,
    concat,
    copies,
    expand,
    gather,
    pad,
    reduce,
    reshape,
    select,
    slice_,
    transpose,
    unary,
)
from tilewright import ops
from tilewright.core import types
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef, Trait
from tilewright.core.types import Array, DType
from tilewright.runtime.once import computed
from tilewright.tools.debug.tolerance import EPSILON

# Results without rounding; the sign of a zero is another matter for those that choose between two zeros.
EXACT = {
    ops.neg, ops.abs, ops.floor, ops.ceil, ops.trunc, ops.round, ops.where, ops.sort, ops.reverse, ops.isnan, ops.isinf,
    ops.bitcast,
}  # fmt: skip
CHOOSES = {
    ops.minimum, ops.maximum, ops.clamp, ops.relu, ops.reduce_max, ops.reduce_min, ops.cummax, ops.cummin, ops.sign,
}  # fmt: skip
OSCILLATES = {ops.bessel_j0, ops.bessel_j1, ops.bessel_y0, ops.bessel_y1, ops.spherical_j0}
FACTOR = 16  # roundings of one op


@dataclass
class EdgeGraph(RandomGraph):
    """Outputs with exact values are equal bit by bit but for NaNs; others are close, element by element."""

    exact: set[Node] = field(default_factory=set)

    @computed
    def answers(self) -> tuple[Sequence[Array], ...]:
        """Of the outputs: their values, and those for inputs a unit in the last place away, both ways."""
        moved = [evaluate_graph(self.graph, [_moved(a, way) for a in self.arrays]) for way in (1, -1)]
        return self.expected(), *moved

    def assert_close(self, got: Sequence[Array], factor: float = FACTOR) -> None:
        for k, (n, want, *moved, have) in enumerate(zip(self.graph.outputs, *self.answers, got, strict=True)):
            where = f"output {k} of edge graph {self.seed}"
            assert have.dtype == want.dtype and have.shape == want.shape, where
            if want.dtype.kind in "iub":
                np.testing.assert_array_equal(have, want, where)
            elif n in self.exact:
                a, b = have.astype(np.float64), want.astype(np.float64)
                np.testing.assert_array_equal(a, b, where)
                real = ~np.isnan(b)
                np.testing.assert_array_equal(np.signbit(a)[real], np.signbit(b)[real], f"sign of zero, {where}")
            else:
                self._assert_near(have, want, moved, factor, where)

    def _assert_near(self, have: Array, want: Array, moved: list[Array], factor: float, where: str) -> None:
        a, b = have.astype(np.float64), want.astype(np.float64)
        others = [m.astype(np.float64) for m in moved]
        with np.errstate(all="ignore"):
            stable = np.ones(b.shape, bool)
            for o in others:  # where a rounding decides between a number and none, both are right
                stable &= np.where(np.isfinite(b), np.isfinite(o), (o == b) | (np.isnan(o) & np.isnan(b)))
            reach = np.max([np.nan_to_num(np.abs(o - b)) for o in others], axis=0)
            d = types.dtype_of(want.dtype)
            limits = finfo(d.numpy)  # instructions that round to bf16 flush denormals
            tiny = float(limits.smallest_normal if d is types.bf16 else limits.smallest_subnormal)
            near = np.abs(a - b) <= factor * (reach + EPSILON[d] * np.abs(b)) + 4 * tiny
        good = ~stable | near | (a == b) | (np.isnan(a) & np.isnan(b))
        if not good.all():
            at = tuple(int(i[0]) for i in np.nonzero(~good))
            raise AssertionError(f"{where} at {at}: {a[at]} for {b[at]}")


def _moved(a: Array, way: int) -> Array:
    """Floats a unit in the last place away from or to zero; integers as they are."""
    if a.dtype.kind in "iub":
        return a
    with np.errstate(all="ignore"):
        return np.asarray(a.astype(np.float64) * (1 + way * EPSILON[types.dtype_of(a.dtype)])).astype(a.dtype)


class _EdgeGrower(Grower):
    def numbers(self, shape: Sequence[int], dtype: DType) -> Array:
        if dtype is types.bool_:
            return self.rng.integers(0, 2, shape).astype(bool)
        return self.rng.choice(_edges(dtype, self.rng), shape)

    def keep(self, op: OpDef, *operands: Node, **attrs: object) -> bool:
        floats = [n for n in operands if n.dtype.is_float]
        is_exact = op in EXACT or Trait.MOVEMENT in op.traits
        if not (is_exact or op in CHOOSES) and not all(n in self.exact for n in floats):
            return False
        sums = op in (ops.reduce_sum, ops.reduce_mean, ops.reduce_l1, ops.cumsum, ops.softmax, ops.log_softmax)
        if sums and floats:
            return False  # the order of additions decides whether a sum is infinite on its way
        if op in (ops.mod, ops.fmod, ops.floor_div) and operands[0].dtype is types.f64:
            return False  # NaN where the quotient has more than 200 bits
        if op in OSCILLATES and operands[0].dtype is types.f64:
            return False  # the phase of a large argument
        chooses_index = op in (ops.argmax, ops.argmin)
        if chooses_index and floats:
            return False
        made = self.make(op, *operands, **attrs)
        if not made:
            return False
        for r in made:
            exact = not r.dtype.is_float or (is_exact and all(n in self.exact for n in floats))
            if exact and not (op in CHOOSES and r.dtype.is_float):
                self.exact.add(r)
        return True


def _edges(dtype: DType, rng: np.random.Generator) -> Array:
    if dtype.is_float:
        info = finfo(dtype.numpy)
        least, most = float(info.smallest_normal), float(info.max)
        values = [
            0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.nan, np.inf, -np.inf, most, -most, least, -least,
            float(info.smallest_subnormal), least / 2, most / 2, 127.5, 255.0, 256.0, 32768.0, 2.0**31, -(2.0**31),
            2.0**32, 2.0**63, -(2.0**63), 1e-3, 3e-5, *rng.standard_normal(6), *(rng.standard_normal(6) * 100),
        ]  # fmt: skip
        with np.errstate(all="ignore"):
            return np.array(values).astype(dtype.numpy)
    low, high = dtype.min, dtype.max
    values = [low, low + 1, -1 if dtype.is_signed else 0, 0, 1, 2, 3, high // 2, high - 1, high, 7, 8, 31, 32, 33, 63]
    return np.array([v for v in values if low <= v <= high], dtype.numpy)


EDGE_MAKERS = (
    unary, unary, unary, binary, binary, binary, select, clamp, cast, cast, cast, reduce, along_axis,
    reshape, transpose, expand, slice_, pad, concat, copies, gather,
)  # fmt: skip


def edge_graph(seed: int) -> EdgeGraph:
    """A valid graph of one to five ops on extreme values."""
    rng = np.random.default_rng(seed)
    g = _EdgeGrower(rng)
    for _ in range(g.integer(1, 2)):
        shape = g.choose([(37,), (3, 19), (2, 5, 7), (64,), (1, 130), ()])
        g.add_input(g.choose([*types.DTYPES, types.f32, types.f32]), shape)
    made, wanted = 0, g.integer(1, 5)
    for _ in range(40):
        made += bool(g.choose(EDGE_MAKERS)(g))
        if made >= wanted:
            break
    graph = g.graph()
    return EdgeGraph(graph, [g.values[n] for n in graph.inputs], seed, set(g.exact))
