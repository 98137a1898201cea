"""Sizes that only data decide, apart from the tensors that have them: a number that is a size, tensors tied to sizes.

In: operand types, arrays or buffers. Out: each op's type rule, NumPy meaning and stages.
Not its business: where such sizes come from otherwise (``ops.order``, ``ops.suppress``, ``ops.control``), and which
nodes need to be tied to them (the frontends).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Buffer, Const, Load, Stage
from tilewright.core.diag import OpError
from tilewright.core.dims import known
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, TensorType
from tilewright.ops.rules import Types, check_integers
from tilewright.ops.stages import Items, as_i64, clamped, copy_from, index_value

# --- with_sizes -----------------------------------------------------------------------------------------------------


def _with_sizes_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample((rng.standard_normal((2, 3)).astype(np.float32), np.zeros((4, 0), bool)), {})
    yield Sample((np.array(3), np.zeros((2,), np.int8), np.zeros((1, 5), np.float32)), {})
    yield Sample((np.zeros((0, 2)), np.array(True)), {})


with_sizes = OpDef(
    "with_sizes",
    ("x", "*homes"),
    {},
    lambda ts, a: ts[0],
    lambda xs, a: xs[0],
    compute=lambda ins, outs, a: copy_from(outs[0], ins[0], lambda at: at),
    samples=_with_sizes_samples,
    doc="x itself. The other operands are not read: they bring in symbols, so that whoever reads x may use those in "
    "its attributes.",
)

# --- as_size --------------------------------------------------------------------------------------------------------


def _infer_as_size(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_integers(ts[0], "x")
    if ts[0].rank:
        raise OpError(f"takes a scalar, not {ts[0]}", remedy="take one element")
    if not a.count.isidentifier():
        raise OpError(f"count {a.count!r} names a symbol and must be an identifier")
    size = Sym(a.count, 0, known(a.most, None))
    return TensorType(types.bool_, (0, size)), TensorType(types.i64, ())


def _ref_as_size(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    size = max(min(int(xs[0]), a.most), 0)
    return np.zeros((0, size), np.bool_), np.array(size, np.int64)


def _as_size_kernel(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs) -> Items:
    value = clamped(as_i64(Load(ins[0], ())), Const(0, types.i64), index_value(a.most))
    return [Stage((outs[1],), (), (), (value,))]


def _as_size_bound(ts: Sequence[TensorType], a: Attrs) -> Dim:
    most: Dim = a.most
    return most


def _as_size_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for n in (3, 0, -2, 9):
        yield Sample((np.array(n),), {"count": "n", "most": 7})
    yield Sample((np.array(5, np.int32),), {"count": "n", "most": 5})
    yield Sample((np.array(200, np.uint8),), {"count": "n", "most": 255})


as_size = OpDef(
    "as_size",
    ("x",),
    {"count": AttrDef("str"), "most": AttrDef("dim")},
    _infer_as_size,
    _ref_as_size,
    kernel=_as_size_kernel,
    samples=_as_size_samples,
    bound=_as_size_bound,
    doc="The size that a number says, kept within 0 .. most: a tensor without elements of shape [0, n], where n is a "
    "fresh symbol that count names, and n itself (0-d i64).",
)
