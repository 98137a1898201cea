"""Contractions: matrix products and sums of products in index notation.

In: two or more tensors. Out: sums of products over the indices that the result lacks.
Not its business: convolutions (``ops.convolution``), and how a contraction is tiled (``tile``).

Products accumulate in f32 for f16 and bf16, and in the result's dtype (wrapping) for integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.core import types
from tilewright.core.compute import Buffer, Const, Load, Stage, Value, axes_for, syms
from tilewright.core.expr import Dim
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.types import Array, DType, TensorType
from tilewright.ops.common import (
    NUMERIC,
    axis_over,
    broadcast_dims,
    broadcast_load,
    broadcast_shapes,
    cast_to,
    check,
    check_dtype,
    check_equal_dims,
    check_equal_dtypes,
    check_rank,
    fail,
    fold,
    narrowed,
    wide,
)
from tilewright.ops.samples import random

CONTRACTS = frozenset({Trait.CONTRACTION})


def contraction_dtype(a: TensorType, b: TensorType, out_dtype: DType | None) -> DType:
    """The dtype of a product's result; integers may be mixed when ``out_dtype`` says what they become."""
    check_dtype(a, NUMERIC, "the first operand")
    check_dtype(b, NUMERIC, "the second operand")
    if out_dtype is None:
        return check_equal_dtypes((a, b))
    mixes = a.dtype.is_integer and b.dtype.is_integer
    check(a.dtype is b.dtype or mixes, lambda: f"operands must have one dtype, not {a} and {b}", "insert a cast")
    check(
        a.dtype.is_float == out_dtype.is_float and out_dtype is not types.bool_,
        lambda: f"{a.dtype} operands can't give {out_dtype}", "choose an out_dtype of the operands' kind",
    )  # fmt: skip
    return out_dtype


def accumulator(operand: DType, out: DType) -> DType:
    """The dtype that sums of products are held in."""
    return wide(out) if out.is_integer or out.bits >= operand.bits else wide(operand)


# --- matmul ---------------------------------------------------------------------------------------------------------


def _infer_matmul(ts: Sequence[TensorType], attrs: Attrs) -> TensorType:
    a, b = ts
    check_rank(a, 2, "the first operand")
    check_rank(b, 2, "the second operand")
    dtype = contraction_dtype(a, b, attrs.out_dtype)
    check_equal_dims(a.shape[-1], b.shape[-2], lambda: f"columns of {a} and rows of {b}")
    return TensorType(dtype, (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))


def _compute_matmul(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], attrs: Attrs) -> tuple[Stage, ...]:
    (a, b), (out,) = ins, outs
    acc = accumulator(a.dtype, out.dtype)
    *batch, m, n = axes_for(out.shape)
    depth = a.shape[-1]
    k = axis_over(depth, "k")
    outer = syms(batch)
    left = _load(a, (*outer, m.sym), k.sym, last=True)
    right = _load(b, (*outer, n.sym), k.sym, last=False)
    product = cast_to(left, acc) * cast_to(right, acc)
    return fold(out, (*batch, m, n), (*outer, m.sym, n.sym), product, (k,), "add", Const(0, acc))


def _load(x: Buffer, index: Sequence[Dim], k: Dim, *, last: bool) -> Load:
    """A matrix operand at its batch indices, its own row or column ``index[-1]`` and the summed ``k``."""
    n_batch = len(x.shape) - 2
    own = index[len(index) - 1 - n_batch : -1]
    batch = tuple(0 if d == 1 else i for d, i in zip(x.shape, own, strict=False))
    return Load(x, (*batch, index[-1], k) if last else (*batch, k, index[-1]))


def _matmul_of(xs: Sequence[Array], attrs: Attrs) -> Array:
    operand = types.dtype_of(xs[0].dtype)
    out = attrs.out_dtype or operand
    acc = accumulator(operand, out).numpy
    with np.errstate(all="ignore"):
        return narrowed(np.matmul(xs[0].astype(acc), xs[1].astype(acc)), out)


def _matmul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    shapes = [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 2)),
        ((2, 1, 3, 4), (5, 4, 1)),
        ((1, 1), (1, 1)),
        ((2, 0), (0, 3)),
        ((0, 2), (2, 3)),
    ]
    for a, b in shapes:
        yield Sample((random(rng, a), random(rng, b)))
    yield Sample(
        (random(rng, (2, 3), types.u8, (0, 255)), random(rng, (3, 2), types.i8, (-128, 127))), {"out_dtype": types.i32}
    )
    yield Sample((random(rng, (2, 3), types.i8, (-99, 99)), random(rng, (3, 2), types.i8, (-99, 99))))
    yield Sample((random(rng, (2, 3), types.bf16), random(rng, (3, 2), types.bf16)), {"out_dtype": types.f32})


matmul = OpDef(
    "matmul", ("a", "b"), {"out_dtype": AttrDef("dtype", None)}, _infer_matmul, _matmul_of, _compute_matmul,
    traits=CONTRACTS, samples=_matmul_samples, doc="The matrix product over the last two axes; batch axes broadcast.",
)  # fmt: skip

# --- einsum ---------------------------------------------------------------------------------------------------------


def einsum_terms(equation: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand's axes and of the result's; ``...`` becomes labels of its own, aligned at the end."""
    text = equation.replace(" ", "")
    check(
        text.count("->") == 1, lambda: f"equation {equation!r} must have one '->'", "the frontend spells out the result"
    )
    left, right = text.split("->")
    parts = left.split(",")
    check(len(parts) == len(ranks), lambda: f"equation {equation!r} names {len(parts)} operands, not {len(ranks)}")
    extra = [rank - len(p.replace("...", "")) if "..." in p else 0 for p, rank in zip(parts, ranks, strict=True)]
    dots = [f".{k}" for k in range(max(extra, default=0), 0, -1)]
    terms = [_labels(p, dots[len(dots) - n :], equation) for p, n in zip(parts, extra, strict=True)]
    for term, rank in zip(terms, ranks, strict=True):
        if len(term) != rank:
            fail(f"equation {equation!r} does not fit an operand of rank {rank}")
    result = _labels(right, dots, equation)
    known = {label for term in terms for label in term}
    check(
        set(result) <= known and len(set(result)) == len(result),
        lambda: f"the result of {equation!r} names a wrong index",
    )
    return terms, result


def _labels(part: str, dots: Sequence[str], equation: str) -> list[str]:
    before, ellipsis, after = part.partition("...")
    letters = before + after
    check(not letters or letters.isalpha(), lambda: f"equation {equation!r} has a character that is no index: {part!r}")
    return [*before, *(dots if ellipsis else ()), *after]


def einsum_extents(terms: Sequence[Sequence[str]], shapes: Sequence[Sequence[Dim]]) -> dict[str, Dim]:
    """The size of each label; axes of size 1 stretch to it."""
    sizes: dict[str, Dim] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, d in zip(term, shape, strict=True):
            sizes[label] = broadcast_dims(sizes.get(label, 1), d)
    return sizes


def _infer_einsum(ts: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check(len(ts) > 0, lambda: "takes at least one operand")
    dtype = check_equal_dtypes(ts, NUMERIC)
    terms, result = einsum_terms(attrs.equation, [t.rank for t in ts])
    sizes = einsum_extents(terms, [t.shape for t in ts])
    return TensorType(dtype, tuple(sizes[label] for label in result))


def _compute_einsum(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], attrs: Attrs) -> tuple[Stage, ...]:
    """Operands join from left to right; a partial product drops every index that nobody needs later."""
    (out,) = outs
    terms, result = einsum_terms(attrs.equation, [len(x.shape) for x in ins])
    sizes = einsum_extents(terms, [x.shape for x in ins])
    stages: list[Stage] = []
    have, labels = ins[0], terms[0]
    for k in range(1, max(len(ins), 2)):
        operands = [(have, labels), *([(ins[k], terms[k])] if k < len(ins) else [])]
        last = k >= len(ins) - 1
        later = set(result).union(*terms[k + 1 :])
        used = dict.fromkeys(label for _, term in operands for label in term)
        kept = result if last else [label for label in used if label in later]
        dtype = out.dtype if last else wide(out.dtype)
        target = out if last else Buffer(f"{out.name}_part{k}", dtype, tuple(sizes[label] for label in kept))
        stages += _join(target, kept, operands, sizes)
        have, labels = target, kept
    return tuple(stages)


def _join(
    out: Buffer, kept: Sequence[str], operands: Sequence[tuple[Buffer, Sequence[str]]], sizes: dict[str, Dim]
) -> tuple[Stage, ...]:
    """``out[kept] = sum over the other labels of the product of the operands``."""
    used = list(dict.fromkeys(label for _, term in operands for label in term))
    summed = [label for label in used if label not in kept]
    axis = {label: axis_over(sizes[label], f"i{n}") for n, label in enumerate([*kept, *summed])}
    acc = wide(out.dtype)
    product: Value | None = None
    for x, term in operands:
        element = cast_to(broadcast_load(x, [axis[label].sym for label in term]), acc)
        product = element if product is None else product * element
    assert product is not None
    axes, over = tuple(axis[label] for label in kept), tuple(axis[label] for label in summed)
    if not over:
        return (Stage((out,), axes, syms(axes), (cast_to(product, out.dtype),)),)
    return fold(out, axes, syms(axes), product, over, "add", Const(0, acc))


def _einsum_of(xs: Sequence[Array], attrs: Attrs) -> Array:
    dtype = types.dtype_of(xs[0].dtype)
    terms, result = einsum_terms(attrs.equation, [x.ndim for x in xs])
    number = {label: n for n, label in enumerate(dict.fromkeys(label for term in terms for label in term))}
    arguments: list[Any] = []
    for x, term in zip(xs, terms, strict=True):
        arguments += [x.astype(wide(dtype).numpy), [number[label] for label in term]]
    with np.errstate(all="ignore"):
        return narrowed(np.asarray(np.einsum(*arguments, [number[label] for label in result])), dtype)


def _einsum_samples(rng: np.random.Generator) -> Iterator[Sample]:
    cases: list[tuple[str, list[tuple[int, ...]]]] = [
        ("ij,jk->ik", [(2, 3), (3, 4)]), ("bij,bkj->bik", [(2, 3, 4), (2, 2, 4)]), ("ii->i", [(3, 3)]),
        ("...ij,...jk->...ik", [(2, 2, 3), (3, 2)]), ("i,j,ik->jk", [(2,), (3,), (2, 2)]), ("ij->ji", [(2, 3)]),
        ("bhqd,bhkd->bhqk", [(1, 2, 2, 3), (1, 2, 3, 3)]), ("ij,ij->i", [(2, 0), (2, 0)]), ("ij->", [(2, 3)]),
        ("ij,jk->ik", [(2, 1), (3, 2)]),
    ]  # fmt: skip
    for equation, shapes in cases:
        yield Sample(tuple(random(rng, s) for s in shapes), {"equation": equation})


einsum = OpDef(
    "einsum", ("*xs",), {"equation": AttrDef("str")}, _infer_einsum, _einsum_of, _compute_einsum, traits=CONTRACTS,
    samples=_einsum_samples, doc="Sums of products in index notation with an explicit result; size 1 broadcasts.",
)  # fmt: skip
