"""Control flow: ops with closed sub-graphs among their attributes.

In: operand types and graphs. Out: type rules, and references that run the sub-graphs by ``core.evaluate``.
Not its business: inlining and unrolling (``graph``), how a sub-graph is compiled (``driver``).

A sub-graph sees only its own inputs. Its symbols are formal: the operands' types give them values, so the sub-graph may
use its own names. A result's dimension that differs between the branches, or changes from one iteration to the next,
is a fresh symbol ``<name>_<result>_<axis>``; ``name`` must then be given and be unique in the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tilewright.core import types
from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.evaluate import bind_inputs, evaluate_graph
from tilewright.core.expr import Dim, Expr, Sym, const_of, floordiv, substitute, symbols, terms_of
from tilewright.core.graph import Attrs, Builder, Graph, Pool
from tilewright.core.opdef import AttrDef, OpDef, Sample, Trait
from tilewright.core.shapes import surely_differ
from tilewright.core.types import Array, TensorType
from tilewright.ops.elementwise import add, lt, mul, neg
from tilewright.ops.movement import concat, reshape
from tilewright.ops.rules import Types

CONTROL = frozenset({Trait.CONTROL})
Meaning = dict[Sym, Dim]


def _check_scalar(t: TensorType, dtype: types.DType, name: str) -> None:
    if t.rank or t.dtype is not dtype:
        raise OpError(f"{name} must be a 0-d {dtype}, not {t}", remedy="reshape and cast it")


def bind_formals(graph: Graph, operands: Sequence[TensorType], what: str) -> Meaning:
    """What the symbols of a sub-graph's inputs stand for, given the operands' types."""
    if len(operands) != len(graph.inputs):
        raise OpError(f"{what} takes {len(graph.inputs)} inputs, not {len(operands)}")
    meaning: Meaning = {}
    for node, actual in zip(graph.inputs, operands, strict=True):
        formal = node.type
        if formal.dtype is not actual.dtype or formal.rank != actual.rank:
            raise OpError(f"input {node.attrs['name']!r} of {what} is {formal}; the operand is {actual}")
        for f, n in zip(formal.shape, actual.shape, strict=True):
            if isinstance(f, Sym):
                meaning.setdefault(f, n)
    for node, actual in zip(graph.inputs, operands, strict=True):
        for f, n in zip(node.shape, actual.shape, strict=True):
            if surely_differ(substitute(f, meaning), n):
                raise OpError(f"input {node.attrs['name']!r} of {what} is {node.type}; the operand is {actual}")
    return meaning


def _actual(t: TensorType, meaning: Meaning) -> TensorType:
    return t.with_shape([substitute(d, meaning) for d in t.shape])


def _fresh(name: str, result: int, axis: int) -> Sym:
    if not name:
        raise OpError(f"dimension {axis} of result {result} is not fixed", remedy="give the op a unique name")
    return Sym(f"{name}_{result}_{axis}", 0)


# --- if_ ------------------------------------------------------------------------------------------------------------


def _infer_if(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    _check_scalar(ts[0], types.bool_, "the condition")
    branches: list[list[TensorType]] = []
    for graph, what in ((a.then_branch, "then_branch"), (a.else_branch, "else_branch")):
        meaning = bind_formals(graph, ts[1:], what)
        branches.append([_actual(n.type, meaning) for n in graph.outputs])
    if len(branches[0]) != len(branches[1]) or not branches[0]:
        raise OpError(
            f"the branches have {len(branches[0])} and {len(branches[1])} results; they need as many, not none"
        )
    return tuple(_joined(t, e, a.name, k) for k, (t, e) in enumerate(zip(*branches, strict=True)))


def _joined(t: TensorType, e: TensorType, name: str, result: int) -> TensorType:
    if t.dtype is not e.dtype or t.rank != e.rank:
        raise OpError(f"result {result} is {t} in one branch and {e} in the other")
    dims = enumerate(zip(t.shape, e.shape, strict=True))
    return t.with_shape([x if x == y else _fresh(name, result, axis) for axis, (x, y) in dims])


def _ref_if(xs: Sequence[Array], a: Attrs) -> Array | tuple[Array, ...]:
    results = evaluate_graph(a.then_branch if xs[0] else a.else_branch, xs[1:])
    return results if len(results) > 1 else results[0]


def _if_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x, y = (rng.standard_normal((2, 3)).astype(np.float32) for _ in range(2))
    size = Sym("n", 0)

    def branch(name: str, twice: bool) -> Graph:
        pool = Pool()
        b = Builder(pool)
        p, q = (pool.input(k, TensorType(types.f32, (size, 3))) for k in "pq")
        outputs = (b(mul, p, q), b(neg, q)) if twice else (b(add, p, q), p)
        return Graph(name, pool, (p, q), outputs, ("u", "v"))

    for cond in (True, False):
        attrs = {"then_branch": branch("then", True), "else_branch": branch("else", False)}
        yield Sample((np.array(cond), x, y), attrs)
    yield Sample((np.array(True), x[:0], y[:0]), attrs)


if_ = OpDef(
    "if_",
    ("cond", "*captures"),
    {"then_branch": AttrDef("graph"), "else_branch": AttrDef("graph"), "name": AttrDef("str", "")},
    _infer_if,
    _ref_if,
    traits=CONTROL,
    samples=_if_samples,
    doc="The results of one of two sub-graphs, both over all captures.",
)

# --- loop -----------------------------------------------------------------------------------------------------------


def _infer_loop(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    _check_scalar(ts[0], types.i64, "the trip count")
    _check_scalar(ts[1], types.bool_, "the condition")
    body: Graph = a.body
    n = a.n_carried
    if not 0 <= n <= len(ts) - 2 or len(body.outputs) < n + 1 or len(body.outputs) == 1:
        raise OpError(f"n_carried {n} does not fit {len(ts) - 2} operands and {len(body.outputs)} results of the body")
    meaning = bind_formals(body, (TensorType(types.i64, ()), *ts[1:]), "the body")
    _check_scalar(body.outputs[0].type, types.bool_, "the body's condition")
    changing = _changing(body, n)
    carried = [_carried_type(body, k, meaning, changing, a.name) for k in range(n)]
    scanned = [_scanned_type(body, k, meaning, changing, a) for k in range(n, len(body.outputs) - 1)]
    return (*carried, *scanned)


def _changing(body: Graph, n: int) -> frozenset[Sym]:
    """The formal symbols whose value may change from one iteration to the next."""
    found: set[Sym] = set()
    for before, after in zip(body.inputs[2 : 2 + n], body.outputs[1 : 1 + n], strict=True):
        for x, y in zip(before.shape, after.shape, strict=False):
            found |= symbols(x) if x != y else frozenset()
    return frozenset(found)


def _carried_type(body: Graph, k: int, meaning: Meaning, changing: frozenset[Sym], name: str) -> TensorType:
    before, after = body.inputs[2 + k].type, body.outputs[1 + k].type
    if before.dtype is not after.dtype or before.rank != after.rank:
        raise OpError(f"the body takes carried value {k} as {before} and gives it back as {after}")
    shape: list[Dim] = []
    for axis, (x, y) in enumerate(zip(before.shape, after.shape, strict=True)):
        if x != y and is_known(x):
            raise OpError(f"the body takes carried value {k} as {before} and gives it back as {after}")
        shape.append(substitute(x, meaning) if x == y and not symbols(x) & changing else _fresh(name, k, axis))
    return before.with_shape(shape)


def _scanned_type(body: Graph, k: int, meaning: Meaning, changing: frozenset[Sym], a: Attrs) -> TensorType:
    t = body.outputs[1 + k].type
    if any(symbols(d) & changing for d in t.shape):
        raise OpError(f"scanned value {k} is {t}, whose shape changes from one iteration to the next")
    length = a.length if isinstance(a.length, Expr) or a.length >= 0 else _fresh(a.name, k, 0)
    return t.with_shape((length, *_actual(t, meaning).shape))


def _ref_loop(xs: Sequence[Array], a: Attrs) -> Array | tuple[Array, ...]:
    body, n = a.body, a.n_carried
    trips, cond, carried, captures = int(xs[0]), xs[1], tuple(xs[2 : 2 + n]), tuple(xs[2 + n :])
    scanned: list[list[Array]] = [[] for _ in body.outputs[1 + n :]]
    first = (np.array(0), cond, *carried, *captures)
    sizes: dict[Dim, int] = {}
    sizes.update(bind_inputs(body, first).items())
    for x, array in zip(body.inputs, first, strict=True):  # also those that are expressions of sizes outside
        sizes.update(zip(x.shape, array.shape, strict=True))
    i = 0
    while i < trips and cond:
        cond, *values = evaluate_graph(body, (np.array(i), cond, *carried, *captures))
        carried = tuple(values[:n])
        for rows, row in zip(scanned, values[n:], strict=True):
            rows.append(row)
        i += 1
    stacks = [_stacked(rows, node.type, sizes) for rows, node in zip(scanned, body.outputs[1 + n :], strict=True)]
    results = (*carried, *stacks)
    return results if len(results) > 1 else results[0]


def _stacked(rows: list[Array], t: TensorType, sizes: Mapping[Dim, int]) -> Array:
    if rows:
        return np.stack(rows)
    return np.zeros((0, *(_size_of(d, sizes) for d in t.shape)), t.dtype.numpy)


def _size_of(d: Dim, sizes: Mapping[Dim, int]) -> int:
    """A sum of sizes that are known; 0 where one is not: only the body's run would tell."""
    d = substitute(d, {s: n for s, n in sizes.items() if isinstance(s, Sym)})
    if any(atom not in sizes for atom, _ in terms_of(d)):
        return 0
    return const_of(d) + sum(sizes[atom] * coefficient for atom, coefficient in terms_of(d))


def _sum_body(limit: float | None) -> Graph:
    """Adds ``step`` to the carried value, gives each sum, and stops when the sum reaches ``limit``."""
    pool = Pool()
    b = Builder(pool)
    size = Sym("n", 0)
    i, cond = pool.input("i", TensorType(types.i64, ())), pool.input("cond", TensorType(types.bool_, ()))
    total, step = pool.input("total", TensorType(types.f32, ())), pool.input("step", TensorType(types.f32, (size,)))
    first = b(reshape, step, shape=()) if limit is None else b.const(1.0, types.f32)
    new = b(add, total, first)
    going = cond if limit is None else b(lt, new, b.const(limit, types.f32))
    return Graph("sum", pool, (i, cond, total, step), (going, new, b(mul, step, new)), ("cond", "total", "row"))


def _growing_body() -> Graph:
    """Appends ``row`` to the carried rows."""
    pool = Pool()
    i, cond = pool.input("i", TensorType(types.i64, ())), pool.input("cond", TensorType(types.bool_, ()))
    rows = pool.input("rows", TensorType(types.f32, (Sym("n", 0), 2)))
    row = pool.input("row", TensorType(types.f32, (1, 2)))
    return Graph("grow", pool, (i, cond, rows, row), (cond, Builder(pool)(concat, rows, row, axis=0)), ("cond", "rows"))


def _loop_samples(rng: np.random.Generator) -> Iterator[Sample]:
    go, zero = np.array(True), np.array(0, np.float32)
    steps = rng.standard_normal(3).astype(np.float32)
    for trips in (3, 0):
        attrs = {"body": _sum_body(None), "n_carried": 1, "length": trips}
        yield Sample((np.array(trips), go, zero, steps[:1]), attrs)
    yield Sample((np.array(9), go, zero, steps), {"body": _sum_body(2.5), "n_carried": 1, "name": "l"})
    yield Sample((np.array(9), ~go, zero, steps), {"body": _sum_body(2.5), "n_carried": 1, "name": "l"})
    rows = np.zeros((1, 2), np.float32)
    yield Sample((np.array(3), go, rows, rows + 1), {"body": _growing_body(), "n_carried": 1, "name": "l"})


loop = OpDef(
    "loop",
    ("trip_count", "cond", "*carried_and_captures"),
    {
        "body": AttrDef("graph"),
        "n_carried": AttrDef("int"),
        "length": AttrDef("dim", -1),
        "name": AttrDef("str", ""),
    },
    _infer_loop,
    _ref_loop,
    traits=CONTROL,
    samples=_loop_samples,
    doc="Runs the body while i < trip_count and cond holds. Its inputs: i, condition, carried..., captures...; "
    "outputs: condition, carried..., scanned.... Results: the last carried values, then the scanned values stacked on "
    "a new axis 0, whose size is length where the frontend knows the number of iterations, else a fresh symbol.",
)

# --- map_parts ------------------------------------------------------------------------------------------------------


def part_types(operands: Sequence[TensorType], a: Attrs) -> list[TensorType]:
    """What the body of ``map_parts`` is given of its operands: a part of each that is cut, the others whole."""
    n, cut = a.n_parts, operands[: a.n_cut]
    for t in cut:
        if not t.rank or t.shape[0] != floordiv(t.shape[0], n) * n:
            raise OpError(f"{t} has no {n} equal parts along its first axis")
    return [*(t.with_shape((floordiv(t.shape[0], n), *t.shape[1:])) for t in cut), *operands[a.n_cut :]]


def _infer_parts(ts: Types, a: Attrs) -> tuple[TensorType, ...]:
    if a.n_parts < 1 or not 1 <= a.n_cut <= len(ts):
        raise OpError(f"{a.n_cut} of {len(ts)} operands can't be cut into {a.n_parts} parts")
    if not 1 <= a.n_threads <= a.n_parts:
        raise OpError(f"{a.n_threads} threads can't have {a.n_parts} parts at one time")
    meaning = bind_formals(a.body, part_types(ts, a), "the body")
    found = [_actual(n.type, meaning) for n in a.body.outputs]
    if not found or not all(t.rank for t in found):
        raise OpError("the body needs results, each with an axis along which its parts are joined")
    sizes = frozenset[Sym]().union(*(symbols(d) for t in ts for d in t.shape))
    if any(symbols(d) - sizes for t in found for d in t.shape):
        raise OpError("the body has a result of a size that its data decide", remedy="join parts of one size")
    return tuple(t.with_shape((t.shape[0] * a.n_parts, *t.shape[1:])) for t in found)


def operands_of_parts(xs: Sequence[Array], a: Attrs) -> list[tuple[Array, ...]]:
    """What the body of ``map_parts`` gets for each part."""
    cut = zip(*(np.split(x, a.n_parts) for x in xs[: a.n_cut]), strict=True)
    return [(*part, *xs[a.n_cut :]) for part in cut]


def _ref_parts(xs: Sequence[Array], a: Attrs) -> Array | tuple[Array, ...]:
    found = [evaluate_graph(a.body, operands) for operands in operands_of_parts(xs, a)]
    results = tuple(np.concatenate(parts) for parts in zip(*found, strict=True))
    return results if len(results) > 1 else results[0]


def _parts_samples(rng: np.random.Generator) -> Iterator[Sample]:
    x, y, scale = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 3), (12,), (3,)))
    pool = Pool()
    b = Builder(pool)
    rows, n = Sym("rows", 0), Sym("n", 0)
    p, q, w = (pool.input(k, TensorType(types.f32, shape)) for k, shape in (("p", (rows, 3)), ("q", (n,)), ("w", (3,))))
    body = Graph("part", pool, (p, q, w), (b(mul, p, w), b(neg, q)), ("u", "v"))
    for parts, threads in ((1, 1), (3, 1), (3, 2)):
        yield Sample((x, y, scale), {"body": body, "n_parts": parts, "n_cut": 2, "n_threads": threads})


map_parts = OpDef(
    "map_parts",
    ("*cut_and_captures",),
    {
        "body": AttrDef("graph"), "n_parts": AttrDef("int"), "n_cut": AttrDef("int"), "n_threads": AttrDef("int", 1),
    },
    _infer_parts,
    _ref_parts,
    traits=CONTROL,
    samples=_parts_samples,
    doc="The results of the body for each of n_parts equal parts of the first n_cut operands along their axis 0, "
    "joined along theirs. The body gets a part of each of these, and all captures. Up to n_threads threads take parts "
    "at one time, each with memory of its own; else all threads share each part.",
)  # fmt: skip
