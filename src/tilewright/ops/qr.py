"""QR factors by Householder reflections, packed as LAPACK's ``geqrf`` packs them, and what is made of the reflections.

In: batches of matrices ``[..., m, n]``, f32 or f64. Out: factors in LAPACK's layout and sign conventions; products with
the orthogonal factor. Not its business: other factors, and when LAPACK itself is called (``linalg``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Const,
    IndexLike,
    Load,
    Select,
    Serial,
    Unary,
    Value,
    loop_symbol,
)
from tilewright.core.diag import OpError
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, TensorType
from tilewright.ops.linalg import (
    batched,
    check_matrices,
    fold,
    is_at,
    is_before,
    matrices,
    over,
    rows_of,
    smaller_side,
    where_large,
    wide_samples,
    zero_of,
)
from tilewright.ops.rules import Types
from tilewright.ops.stages import Items, write


def _infer_geqrf(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_matrices(ts[0], "the matrix")
    return ts[0], ts[0].with_shape((*ts[0].shape[:-2], smaller_side(ts[0])))


def _ref_geqrf(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    made = rows_of(xs[0]).copy()
    count, m, n = made.shape
    taus = np.zeros((count, min(m, n)))
    for b in range(count):
        for k in range(min(m, n)):
            alpha, rest = made[b, k, k], float((made[b, k + 1 :, k] ** 2).sum())
            if rest == 0:
                continue
            beta = -np.copysign(np.sqrt(alpha * alpha + rest), alpha)
            taus[b, k] = (beta - alpha) / beta
            v = np.concatenate([[1.0], made[b, k + 1 :, k] / (alpha - beta)])
            made[b, k:, k + 1 :] -= taus[b, k] * np.outer(v, v @ made[b, k:, k + 1 :])
            made[b, k, k], made[b, k + 1 :, k] = beta, v[1:]
    batch = xs[0].shape[:-2]
    return made.reshape(xs[0].shape).astype(xs[0].dtype), taus.reshape((*batch, min(m, n))).astype(xs[0].dtype)


def _geqrf_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    return factor_by_reflections(ins[0], outs[0], outs[1], at)


def factor_by_reflections(x: Buffer, made: Buffer, taus: Buffer, at: tuple[Sym, ...]) -> Items:
    """Stages of ``geqrf`` at a batch index."""
    m, n = x.shape[-2:]
    zero, one, name = zero_of(x.dtype), Const(1, x.dtype), made.name
    rest, beta, tau, scale = (Buffer(f"{name}_{s}", x.dtype, ()) for s in ("rest", "beta", "tau", "scale"))
    v, w = Buffer(f"{name}_v", x.dtype, (m,)), Buffer(f"{name}_w", x.dtype, (n,))
    k = Axis(loop_symbol("k", taus.shape[-1]), taus.shape[-1])

    def entry(i: IndexLike, j: IndexLike) -> Value:
        return Load(made, (*at, i, j))

    alpha = entry(k.sym, k.sym)
    # A column with nothing below its diagonal is left as it is, with a reflection of tau 0, as LAPACK does.
    is_done = Binary("eq", rest[()], zero)
    root = Unary("sqrt", alpha * alpha + rest[()])
    step = (
        fold(rest, m, lambda _, r: Select(is_before(k.sym, r), entry(r, k.sym) * entry(r, k.sym), zero), "add", zero),
        # Of the sign that makes alpha - beta a sum of two numbers of one sign: nothing cancels.
        write(beta, (), (), Select(is_done, alpha, Select(Binary("lt", alpha, zero), root, -root))),
        write(tau, (), (), Select(is_done, zero, (beta[()] - alpha) / Select(is_done, one, beta[()]))),
        write(scale, (), (), Select(is_done, zero, one / Select(is_done, one, alpha - beta[()]))),
        write(taus, (), (*at, k.sym), tau[()]),
        over(v, (m,), lambda i: ((i,), Select(
            is_before(k.sym, i), entry(i, k.sym) * scale[()], Select(is_at(i, k.sym), one, zero)))),
        fold(w, m, lambda j, r: v[r] * entry(r, j[0]), "add", zero),
        over(made, (m, n), lambda i, j: ((*at, i, j), Select(
            is_before(k.sym, j), entry(i, j) - tau[()] * v[i] * w[j], entry(i, j)))),
        over(made, (m,), lambda i: ((*at, i, k.sym), Select(
            is_before(k.sym, i), v[i], Select(is_at(i, k.sym), beta[()], entry(i, k.sym))))),
    )  # fmt: skip
    return [over(made, (m, n), lambda i, j: ((*at, i, j), Load(x, (*at, i, j)))), Serial(k, step)]


geqrf = OpDef(
    "geqrf",
    ("x",),
    {},
    _infer_geqrf,
    _ref_geqrf,
    kernel=batched(_geqrf_body),
    samples=wide_samples,
    routine=lambda ts, a: where_large("geqrf", ts[0], smaller_side(ts[0])),
    doc="QR factors by Householder reflections as LAPACK packs them: R above, the reflections' vectors below, and "
    "their factors tau.",
)


def _infer_reflect(ts: Types, a: Attrs) -> TensorType:
    check_matrices(ts[0], "the vectors")
    check_matrices(ts[2], "the matrix")
    return ts[2]


def _ref_reflect(xs: Sequence[Array], a: Attrs) -> Array:
    vectors, made = rows_of(xs[0]), rows_of(xs[2]).copy()
    count = xs[1].shape[-1]
    taus = xs[1].reshape(len(vectors), count).astype(np.float64)
    for b in range(len(made)):
        for k in range(count) if a.transposed else range(count - 1, -1, -1):
            v = np.concatenate([np.zeros(k), [1.0], vectors[b, k + 1 :, k]])
            made[b] -= taus[b, k] * np.outer(v, v @ made[b])
    return made.reshape(xs[2].shape).astype(xs[2].dtype)


def _reflect_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    vectors, taus, x = ins
    return reflected(vectors, taus, x, outs[0], a.transposed, at)


def reflected(
    vectors: Buffer, taus: Buffer, x: Buffer | None, made: Buffer, transposed: bool, at: tuple[Sym, ...]
) -> Items:
    """Stages of ``reflect`` at a batch index; of the identity without ``x``."""
    m, n = made.shape[-2:]
    zero, one, count = zero_of(made.dtype), Const(1, made.dtype), taus.shape[-1]
    v, w = Buffer(f"{made.name}_v", made.dtype, (m,)), Buffer(f"{made.name}_w", made.dtype, (n,))
    s = Axis(loop_symbol("s", count), count)
    k: Dim = s.sym if transposed else count - 1 - s.sym

    def entry(i: IndexLike, j: IndexLike) -> Value:
        return Load(made, (*at, i, j))

    step = (
        over(v, (m,), lambda i: ((i,), Select(
            is_before(k, i), Load(vectors, (*at, i, k)), Select(is_at(i, k), one, zero)))),
        fold(w, m, lambda j, r: v[r] * entry(r, j[0]), "add", zero),
        over(made, (m, n), lambda i, j: ((*at, i, j), entry(i, j) - Load(taus, (*at, k)) * v[i] * w[j])),
    )  # fmt: skip
    start = over(
        made, (m, n), lambda i, j: ((*at, i, j), Select(is_at(i, j), one, zero) if x is None else Load(x, (*at, i, j)))
    )
    return [start, Serial(s, step)]


def _reflect_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for transposed in (False, True):
        packed, taus = _ref_geqrf([matrices(rng, 2, 4, 3)], Attrs({}))
        yield Sample((packed, taus, matrices(rng, 2, 4, 2)), {"transposed": transposed})
        packed, taus = _ref_geqrf([matrices(rng, 18, 4, 3)], Attrs({}))
        yield Sample((packed, taus, matrices(rng, 18, 4, 2)), {"transposed": transposed})
    yield Sample((np.zeros((0, 0)), np.zeros((0,)), np.zeros((0, 2))), {})


reflect = OpDef(
    "reflect",
    ("vectors", "taus", "x"),
    {"transposed": AttrDef("bool", False)},
    _infer_reflect,
    _ref_reflect,
    kernel=batched(_reflect_body),
    samples=_reflect_samples,
    routine=lambda ts, a: where_large(
        "reflect_transposed" if a.transposed else "reflect", ts[0], ts[1].shape[-1], ts[2].shape[-1]
    ),
    doc="Q @ x, or Q.T @ x, where Q is the product of the reflections that geqrf gives.",
)


def _infer_orthogonal(ts: Types, a: Attrs) -> TensorType:
    check_matrices(ts[0], "the vectors")
    if ts[0].shape[:-2] + ts[0].shape[-1:] != ts[1].shape or ts[0].dtype is not ts[1].dtype:
        raise OpError(f"{ts[0]} and {ts[1]} are not as many vectors and factors", remedy="take the first columns")
    return ts[0]


def _ref_orthogonal(xs: Sequence[Array], a: Attrs) -> Array:
    identity = np.broadcast_to(np.eye(*xs[0].shape[-2:]), xs[0].shape).astype(xs[0].dtype)
    return _ref_reflect([*xs, identity], Attrs({"transposed": False}))


def _orthogonal_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    vectors, taus = ins
    return reflected(vectors, taus, None, outs[0], False, at)


def _orthogonal_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((2, 4, 3), (3, 3), (0, 2, 1), (2, 8, 5, 3)):
        yield Sample(_ref_geqrf([matrices(rng, *shape)], Attrs({})))


orthogonal = OpDef(
    "orthogonal",
    ("vectors", "taus"),
    {},
    _infer_orthogonal,
    _ref_orthogonal,
    kernel=batched(_orthogonal_body),
    samples=_orthogonal_samples,
    routine=lambda ts, a: where_large("orthogonal", ts[0]),
    doc="The first columns, as many as reflections, of the product of the reflections that geqrf gives.",
)
