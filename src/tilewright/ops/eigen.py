"""Eigenvalues of symmetric matrices and singular values, with their vectors.

In: batches of matrices ``[..., m, n]``, f32 or f64. Out: values in order, and vectors.
Not its business: what is made of them (pseudo-inverse, rank), which frontends spell.

Where the process has LAPACK it is called (``runtime.cpu.routines``). The kernels are for where it is not: Jacobi's
rotations, cyclic for eigenvalues and one-sided for singular values (Hestenes), in f64, ``SWEEPS`` times through all
pairs, which is beyond convergence. Right, not fast. Signs of vectors, and vectors of equal values, are left open by the
definitions: the two ways differ in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Const,
    Load,
    Select,
    Serial,
    Stage,
    Unary,
    Value,
    loop_symbol,
)
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, to_text
from tilewright.core.graph import Attrs
from tilewright.core.opdef import AttrDef, OpDef, Sample
from tilewright.core.types import Array, TensorType
from tilewright.ops.linalg import (
    batched,
    check_matrices,
    fold,
    for_batch,
    is_at,
    is_before,
    matrices,
    over,
    rows_of,
    smaller_side,
    square_samples,
)
from tilewright.ops.qr import factor_by_reflections, geqrf, reflect, reflected
from tilewright.ops.rules import Types
from tilewright.ops.stages import Items, write

SWEEPS = 16
ZERO, ONE = Const(0, types.f64), Const(1, types.f64)
AT_ONE: tuple[Sym, ...] = ()
"""The batch index of buffers that hold a single matrix."""

# --- rotations ------------------------------------------------------------------------------------------------------


def _rotation(p: Value, q: Value, r: Value) -> tuple[Value, Value]:
    """Cosine and sine of the angle that makes ``[[p, r], [r, q]]`` diagonal; none where there is nothing to do."""
    is_active = Binary("ne", r, ZERO)
    theta = (q - p) / Select(is_active, Const(2, types.f64) * r, ONE)
    root = Unary("sqrt", theta * theta + ONE)
    t = ONE / Select(Binary("lt", theta, ZERO), theta - root, theta + root)
    cosine = ONE / Unary("sqrt", t * t + ONE)
    return Select(is_active, cosine, ONE), Select(is_active, t * cosine, ZERO)


def _pairs(n: Dim, body: Callable[[Dim, Dim], tuple[Stage, ...]]) -> Serial:
    """``SWEEPS`` times through all pairs ``p < q``."""
    s, p = Axis(loop_symbol("sweep", SWEEPS), SWEEPS), Axis(loop_symbol("p", n), n)
    q = Axis(Sym("q", 0), n - 1 - p.sym)
    return Serial(s, (Serial(p, (Serial(q, body(p.sym, p.sym + 1 + q.sym)),)),))


def _turn(x: Buffer, p: Dim, q: Dim, angle: Buffer, columns: bool, n: Dim) -> tuple[Stage, ...]:
    """Turn two rows, or two columns, into each other."""
    first, second = (Buffer(f"{x.name}_{s}{'c' if columns else 'r'}", x.dtype, (n,)) for s in ("one", "two"))

    def place(k: Dim, j: Dim) -> tuple[Dim, ...]:
        return (j, k) if columns else (k, j)

    cosine, sine = angle[0], angle[1]
    return (
        over(first, (n,), lambda j: ((j,), Load(x, place(p, j)))),
        over(second, (n,), lambda j: ((j,), Load(x, place(q, j)))),
        over(x, (n,), lambda j: (place(p, j), cosine * first[j] - sine * second[j])),
        over(x, (n,), lambda j: (place(q, j), sine * first[j] + cosine * second[j])),
    )


def _identity(out: Buffer) -> Stage:
    return over(out, out.shape, lambda i, j: ((i, j), Select(is_at(i, j), ONE, ZERO)))


def _ranks(place: Buffer, values: Buffer, *, descending: bool = False) -> Stage:
    """``place[i]`` is where ``values[i]`` goes in a stable order, NaN last: a permutation whatever the values are."""

    def less(a: Value, b: Value) -> Value:
        is_less = Binary("gt" if descending else "lt", a, b)
        return Binary("or", is_less, Binary("and", Unary("isnan", b), Unary("not", Unary("isnan", a))))

    def term(at: tuple[Sym, ...], r: Sym) -> Value:
        own, other = values[at[0]], values[r]
        tie = Binary("and", Unary("not", less(own, other)), is_before(r, at[0]))
        return Cast(Binary("or", less(other, own), tie), types.i64)

    return fold(place, values.shape[0], term, "add", Const(0, types.i64))


# --- eigenvalues ----------------------------------------------------------------------------------------------------


def _infer_eigh(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_matrices(ts[0], "the matrix", square=True)
    return ts[0].with_shape(ts[0].shape[:-1]), ts[0]


def _angle(p: float, q: float, r: float) -> Array:
    """The matrix that turns by the angle of :func:`_rotation`."""
    if r == 0:
        return np.eye(2)
    with np.errstate(over="ignore"):
        theta = np.float64(q - p) / (2 * r)
        root = np.sqrt(theta * theta + 1)
    t = 1 / (theta - root if theta < 0 else theta + root)
    c, s = 1 / np.sqrt(t * t + 1), t / np.sqrt(t * t + 1)
    return np.array([[c, s], [-s, c]])


def _all_pairs(n: int) -> Iterator[list[int]]:
    return ([p, q] for _ in range(SWEEPS) for p in range(n) for q in range(p + 1, n))


def _ref_eigh(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    vectors = rows_of(xs[0]).copy()
    values = np.zeros(vectors.shape[:-1])
    for b, x in enumerate(rows_of(xs[0])):
        made, turned = np.tril(x) + np.tril(x, -1).T, np.eye(len(x))
        for pair in _all_pairs(len(x)):
            turn = _angle(made[pair[0], pair[0]], made[pair[1], pair[1]], made[pair[0], pair[1]])
            made[pair] = turn.T @ made[pair]
            made[:, pair], turned[:, pair] = made[:, pair] @ turn, turned[:, pair] @ turn
        order = np.argsort(np.diag(made), kind="stable")
        values[b], vectors[b] = np.diag(made)[order], turned[:, order]
    dtype = xs[0].dtype
    return values.reshape(xs[0].shape[:-1]).astype(dtype), vectors.reshape(xs[0].shape).astype(dtype)


def _diagonalised(x: Buffer, at: tuple[Sym, ...], name: str, vectors: bool) -> tuple[Items, Buffer, Buffer, Buffer]:
    """Stages, a matrix whose diagonal has the eigenvalues, the vectors as columns, and the place of each."""
    n = x.shape[-1]
    work, turned = (Buffer(f"{name}_{s}", types.f64, (n, n)) for s in ("work", "turned"))
    angle, found = Buffer(f"{name}_angle", types.f64, (2,)), Buffer(f"{name}_found", types.f64, (n,))
    place = Buffer(f"{name}_place", types.i64, (n,))

    def body(p: Dim, q: Dim) -> tuple[Stage, ...]:
        cosine, sine = _rotation(work[p, p], work[q, q], work[p, q])
        return (
            write(angle, (), (0,), cosine),
            write(angle, (), (1,), sine),
            *_turn(work, p, q, angle, False, n),
            *_turn(work, p, q, angle, True, n),
            *(_turn(turned, p, q, angle, True, n) if vectors else ()),
        )

    start = over(work, (n, n), lambda i, j: ((i, j), Cast(Select(
        is_before(j, i + 1), Load(x, (*at, i, j)), Load(x, (*at, j, i))), types.f64)))  # fmt: skip
    end = over(found, (n,), lambda i: ((i,), work[i, i]))
    items: Items = [start, *([_identity(turned)] if vectors else []), _pairs(n, body), end, _ranks(place, found)]
    return items, found, turned, place


def _eigh_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    values, vectors = outs
    n = values.shape[-1]
    items, found, turned, place = _diagonalised(ins[0], at, vectors.name, True)
    return [
        *items,
        over(values, (n,), lambda i: ((*at, place[i]), Cast(found[i], values.dtype))),
        over(vectors, (n, n), lambda i, j: ((*at, i, place[j]), Cast(turned[i, j], vectors.dtype))),
    ]


eigh = OpDef(
    "eigh",
    ("x",),
    {},
    _infer_eigh,
    _ref_eigh,
    kernel=batched(_eigh_body),
    samples=square_samples,
    routine=lambda ts, a: for_batch("eigh", ts[0], ts[0].shape[-1]),
    doc="Eigenvalues, rising, and eigenvectors (columns) of symmetric matrices, from their lower triangle.",
)


def _infer_eigvalsh(ts: Types, a: Attrs) -> TensorType:
    return _infer_eigh(ts, a)[0]


def _ref_eigvalsh(xs: Sequence[Array], a: Attrs) -> Array:
    return _ref_eigh(xs, a)[0]


def _eigvalsh_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    (values,) = outs
    items, found, _, place = _diagonalised(ins[0], at, values.name, False)
    return [*items, over(values, values.shape[-1:], lambda i: ((*at, place[i]), Cast(found[i], values.dtype)))]


eigvalsh = OpDef(
    "eigvalsh",
    ("x",),
    {},
    _infer_eigvalsh,
    _ref_eigvalsh,
    kernel=batched(_eigvalsh_body),
    samples=square_samples,
    routine=lambda ts, a: for_batch("eigvalsh", ts[0], ts[0].shape[-1]),
    doc="Eigenvalues, rising, of symmetric matrices, from their lower triangle.",
)

# --- singular values ------------------------------------------------------------------------------------------------


def _any_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((3, 3), (2, 4, 3), (3, 4), (1, 1), (0, 3, 2), (2, 3, 0), (2, 8, 3, 2)):
        yield Sample((matrices(rng, *shape),))
    yield Sample((matrices(rng, 2, 5, 4).astype(np.float32),))


def is_tall_matrix(shape: Sequence[Dim]) -> bool:
    """Whether matrices have no fewer rows than columns; ``OpError`` where that differs between calls."""
    m, n = shape[-2:]
    if m == n:
        return True
    if not is_known(m) or not is_known(n):
        remedy = "fix their dimensions, or give both the same one"
        raise OpError(
            f"singular values of matrices of {to_text(m)} by {to_text(n)} need to know which side is longer",
            remedy=remedy,
        )
    return m > n


def _infer_svd(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    check_matrices(ts[0], "the matrix")
    is_tall_matrix(ts[0].shape)
    *batch, m, n = ts[0].shape
    k = smaller_side(ts[0])
    p, q = (m, n) if a.full else (k, k)
    return tuple(ts[0].with_shape((*batch, *shape)) for shape in ((m, p), (k,), (q, n)))


def _ref_svd(xs: Sequence[Array], a: Attrs) -> tuple[Array, ...]:
    x, dtype, (*batch, m, n) = rows_of(xs[0]), xs[0].dtype, xs[0].shape
    k = min(m, n)
    p, q = (m, n) if a.full else (k, k)
    u, s, v = (np.zeros((len(x), *shape)) for shape in ((m, p), (k,), (q, n)))
    for b, one in enumerate(x):
        basis, s[b], right = _ref_tall_svd(one if m >= n else one.T, a.full)
        u[b], v[b] = (basis, right.T) if m >= n else (right, basis.T)
    shaped = zip((u, s, v), ((m, p), (k,), (q, n)), strict=True)
    return tuple(array.reshape((*batch, *shape)).astype(dtype) for array, shape in shaped)


def _ref_tall_svd(x: Array, full: bool) -> tuple[Array, Array, Array]:
    made, (m, n) = x.copy(), x.shape
    turned = np.eye(n)
    for pair in _all_pairs(n):
        p, q = made[:, pair].T
        turn = _angle(p @ p, q @ q, p @ q)
        made[:, pair], turned[:, pair] = made[:, pair] @ turn, turned[:, pair] @ turn
    lengths = np.sqrt((made * made).sum(0))
    order = np.argsort(-lengths, kind="stable")
    packed, taus = geqrf.reference([made[:, order]], Attrs({}))
    basis = reflect.reference([packed, taus, np.eye(m, m if full else n)], Attrs({"transposed": False}))
    assert isinstance(basis, np.ndarray)
    basis[:, :n] *= np.where(np.diag(packed) < 0, -1, 1)
    return basis, lengths[order], turned[:, order]


def _rotated(x: Buffer, at: tuple[Sym, ...], name: str, vectors: bool) -> tuple[Items, Buffer, Buffer, Buffer, Buffer]:
    """Stages, ``x`` (or, if that is wide, its transpose) with its columns turned until they are orthogonal, the product
    of the rotations, the columns' lengths, and the place of each."""
    m, n = x.shape[-2:]
    is_tall = is_tall_matrix(x.shape)
    # Of the wide one the transpose, so that there are at most as many columns as rows to make orthogonal.
    rows, columns = (m, n) if is_tall else (n, m)
    made = Buffer(f"{name}_made", types.f64, (rows, columns))
    turned = Buffer(f"{name}_turned", types.f64, (columns, columns))
    angle, lengths = Buffer(f"{name}_angle", types.f64, (2,)), Buffer(f"{name}_lengths", types.f64, (columns,))
    squares = Buffer(f"{name}_squares", types.f64, (columns,))
    sums = [Buffer(f"{name}_{s}", types.f64, ()) for s in ("pp", "qq", "pq")]
    place = Buffer(f"{name}_place", types.i64, (columns,))

    def body(p: Dim, q: Dim) -> tuple[Stage, ...]:
        def dot(out: Buffer, i: Dim, j: Dim) -> Stage:
            return fold(out, rows, lambda _, r: made[r, i] * made[r, j], "add", ZERO)

        # One-sided Jacobi: the angle that makes two columns orthogonal, from their lengths and their product.
        cosine, sine = _rotation(*(s[()] for s in sums))
        return (
            *(dot(out, i, j) for out, i, j in zip(sums, (p, q, p), (p, q, q), strict=True)),
            write(angle, (), (0,), cosine),
            write(angle, (), (1,), sine),
            *_turn(made, p, q, angle, True, rows),
            *(_turn(turned, p, q, angle, True, columns) if vectors else ()),
        )

    def start(i: Sym, j: Sym) -> Load:
        return Load(x, (*at, i, j) if is_tall else (*at, j, i))

    items: Items = [
        over(made, (rows, columns), lambda i, j: ((i, j), Cast(start(i, j), types.f64))),
        *([_identity(turned)] if vectors else []),
        _pairs(columns, body),
        fold(squares, rows, lambda j, r: made[r, j[0]] * made[r, j[0]], "add", ZERO),
        over(lengths, (columns,), lambda j: ((j,), Unary("sqrt", squares[j]))),
        _ranks(place, lengths, descending=True),
    ]
    return items, made, turned, lengths, place


def _svd_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    """The turned columns are orthogonal; their QR factors complete them to a basis, also where some are zero."""
    x, (u, s, vh) = ins[0], outs
    name = s.name
    items, made, turned, lengths, place = _rotated(x, at, name, True)
    rows, columns = made.shape
    whole = rows if a.full else columns
    ordered, packed = (Buffer(f"{name}_{part}", types.f64, (rows, columns)) for part in ("ordered", "packed"))
    taus = Buffer(f"{name}_taus", types.f64, (columns,))
    one, basis = (Buffer(f"{name}_{part}", types.f64, (rows, whole)) for part in ("one", "basis"))
    is_tall = is_tall_matrix(x.shape)

    def sign(j: Sym) -> Value:
        flips = Binary("lt", Load(packed, (j, j)), ZERO)
        return Select(flips, -ONE, ONE)

    flip = over(basis, (rows, columns), lambda i, j: ((i, j), basis[i, j] * sign(j)))
    items += [
        over(ordered, (rows, columns), lambda i, j: ((i, place[j]), made[i, j])),
        *factor_by_reflections(ordered, packed, taus, AT_ONE),
        _identity(one),
        *reflected(packed, taus, one, basis, False, AT_ONE),
        flip,
        over(s, (columns,), lambda j: ((*at, place[j]), Cast(lengths[j], s.dtype))),
    ]
    left, right = (u, vh) if is_tall else (vh, u)
    # of a tall matrix the basis is u, and the rotations are v, whose columns become rows; of a wide one the other way
    items += [
        over(left, (rows, whole), lambda i, j: ((*at, i, j) if is_tall else (*at, j, i), Cast(basis[i, j], u.dtype))),
        over(right, (columns, columns), lambda i, j: (
            (*at, place[j], i) if is_tall else (*at, i, place[j]), Cast(turned[i, j], u.dtype))),
    ]  # fmt: skip
    return items


svd = OpDef(
    "svd",
    ("x",),
    {"full": AttrDef("bool", False)},
    _infer_svd,
    _ref_svd,
    kernel=batched(_svd_body),
    samples=lambda rng: (Sample(s.arrays, {"full": full}) for full in (False, True) for s in _any_samples(rng)),
    routine=lambda ts, a: for_batch("svd_full" if a.full else "svd", ts[0], *_svd_sizes(ts, a)),
    doc="Singular values, falling, with left vectors (columns) and right ones (rows): as many as values, or with "
    "full a whole basis.",
)


def _svd_sizes(ts: Types, a: Attrs) -> tuple[Dim, ...]:
    u, s, vh = _infer_svd(ts, a)
    return *ts[0].shape[-2:], s.shape[-1], u.shape[-1], vh.shape[-2]


def _infer_svdvals(ts: Types, a: Attrs) -> TensorType:
    check_matrices(ts[0], "the matrix")
    is_tall_matrix(ts[0].shape)
    return ts[0].with_shape((*ts[0].shape[:-2], smaller_side(ts[0])))


def _ref_svdvals(xs: Sequence[Array], a: Attrs) -> Array:
    return _ref_svd(xs, Attrs({"full": False}))[1]


def _svdvals_body(ins: tuple[Buffer, ...], outs: tuple[Buffer, ...], a: Attrs, at: tuple[Sym, ...]) -> Items:
    (s,) = outs
    items, _, _, lengths, place = _rotated(ins[0], at, s.name, False)
    return [*items, over(s, lengths.shape, lambda j: ((*at, place[j]), Cast(lengths[j], s.dtype)))]


svdvals = OpDef(
    "svdvals",
    ("x",),
    {},
    _infer_svdvals,
    _ref_svdvals,
    kernel=batched(_svdvals_body),
    samples=_any_samples,
    routine=lambda ts, a: for_batch("svdvals", ts[0], *ts[0].shape[-2:], smaller_side(ts[0]), 1, 1),
    doc="Singular values, falling.",
)
