"""Matrix products whose right operand is chosen row by row: experts of a mixture, tables of weights.

In: rows, a stack of matrices, and which matrix each row takes. Out: the products.
Not its business: how rows are sorted or which rows go where (frontends and models do).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Buffer, Const, Load, Stage, axes_for
from tilewright.core.graph import Attrs
from tilewright.core.opdef import OpDef, Sample, Trait
from tilewright.core.types import Array, TensorType
from tilewright.ops.common import axis_over, cast_to, check_equal_dims, check_rank, fold, narrowed
from tilewright.ops.contract import accumulator, contraction_dtype
from tilewright.ops.index import guarded, wrap_array
from tilewright.ops.rules import Types, check_integers
from tilewright.ops.samples import random
from tilewright.ops.stages import wrapped


def _infer(ts: Types, attrs: Attrs) -> TensorType:
    a, b, group = ts
    check_rank(a, 2, "the rows")
    check_rank(b, 3, "the stack of matrices")
    check_rank(group, 1, "the numbers of the matrices")
    check_integers(group, "numbers of matrices")
    dtype = contraction_dtype(a, b, None)
    check_equal_dims(a.shape[0], group.shape[0], lambda: f"rows of {a} and numbers {group}")
    check_equal_dims(a.shape[1], b.shape[1], lambda: f"columns of {a} and rows of {b}")
    return TensorType(dtype, (a.shape[0], b.shape[2]))


def _reference(xs: Sequence[Array], attrs: Attrs) -> Array:
    a, b, group = xs
    dtype = types.dtype_of(a.dtype)
    acc = accumulator(dtype, dtype).numpy
    at = wrap_array(group, b.shape[0])
    with np.errstate(all="ignore"):
        return narrowed(np.einsum("mk,mkn->mn", a.astype(acc), b[at].astype(acc)), dtype)


def _compute(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], attrs: Attrs) -> tuple[Stage, ...]:
    (a, b, group), (out,) = ins, outs
    acc = accumulator(a.dtype, out.dtype)
    m, n = axes_for(out.shape)
    k = axis_over(a.shape[1], "k")
    matrix = wrapped(Load(group, (m.sym,)), b.shape[0])
    product = cast_to(Load(a, (m.sym, k.sym)), acc) * cast_to(guarded(b, (matrix, k.sym, n.sym)), acc)
    return fold(out, (m, n), (m.sym, n.sym), product, (k,), "add", Const(0, acc))


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, (stack, depth, columns) in ((5, (3, 4, 6)), (1, (1, 1, 1)), (0, (2, 3, 4)), (7, (2, 17, 33))):
        group = rng.integers(0, stack, rows)
        yield Sample((random(rng, (rows, depth)), random(rng, (stack, depth, columns)), group))
    half = types.bf16
    yield Sample((random(rng, (3, 4), half), random(rng, (2, 4, 5), half), np.array([1, -1, 9], np.int32)))


grouped_matmul = OpDef(
    "grouped_matmul",
    ("a", "b", "group"),
    {},
    _infer,
    _reference,
    _compute,
    traits=frozenset({Trait.CONTRACTION}),
    samples=_samples,
    doc="Row i of a times the matrix b[group[i]]. Numbers of matrices count and are clamped as gather's indices.",
)
