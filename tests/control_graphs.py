"""Random ONNX models of nested control flow, by seed, with inputs for several calls of each.

In: a seed. Out: a model of If, Loop and Scan in each other, with values read from outside of a body, sequences, trip
counts that are constants, inputs, sizes, negative or absent, and carried values whose sizes change. Arithmetic is on
small whole numbers and halves, so that every order of a sum has one result. Not its business: running, and what the
results must be (``fuzz_control``).

ONNX Runtime, the judge, has mistakes of its own, which no model asks for: a body's operand as another result than the
carried value in its place, rows of sizes that only a trip tells where no trip may be made, scans without elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from control_grower import BOOL, FLOAT, INT, NUMPY, Dim, Grower, Unfit, Value, is_fixed, is_one, is_open, is_tensor

Feeds = dict[str, np.ndarray]
MAX_DEPTH = 3
MAX_SIZE = 40  # about how many elements along an axis, which nested loops could multiply
N_CALLS = 3


@dataclass(frozen=True)
class Made:
    model: onnx.ModelProto
    calls: list[Feeds]


def grow(g: Grower, n: int) -> None:
    """Up to ``n`` steps, control flow among them."""
    for _ in range(n):
        try:
            g.choose(FLOW if g.at.depth < MAX_DEPTH and g.chance(0.3) else PLAIN)(g)
        except Unfit:
            continue


# --- ops that are no control flow -----------------------------------------------------------------------------------


def unary(g: Grower) -> None:
    v = g.pick(lambda v: not v.is_sequence and v.dtype != BOOL)
    g.add(g.choose(["Neg", "Abs", "Identity"] + (["Relu"] if v.dtype == FLOAT else [])), [v], v.dims, v.dtype)


def binary(g: Grower) -> None:
    a = g.pick(is_tensor(FLOAT, INT))
    b = g.pick(lambda v: v.dtype == a.dtype and not v.is_sequence and (v.dims == a.dims or (is_one(v) and a.rank > 0)))
    limited(g, g.add(g.choose(["Add", "Sub", "Add"]), [a, b] if g.chance(0.5) else [b, a], a.dims, a.dtype))


def limited(g: Grower, v: Value) -> Value:
    """Numbers that stay small however often a loop runs."""
    if v.dtype == INT:
        return g.add("Mod", [v, g.const(g.choose([5, 7, 11]))], v.dims, INT)
    return g.add("Clip", [v, g.const(-64, FLOAT), g.const(64, FLOAT)], v.dims, FLOAT)


def scaled(g: Grower) -> None:
    v = g.pick(is_tensor(FLOAT))
    limited(g, g.add("Mul", [v, g.const(g.choose([0.5, 2, -1]), FLOAT)], v.dims, FLOAT))


def product(g: Grower) -> None:
    v = g.pick(lambda v: is_tensor(FLOAT)(v) and v.rank >= 1 and isinstance(v.dims[-1], int))
    weights = g.const(g.rng.integers(-2, 3, (v.dims[-1], width := g.choose([1, 2, 3]))), FLOAT)
    limited(g, g.add("MatMul", [v, weights], (*v.dims[:-1], width), FLOAT))


def size(g: Grower) -> None:
    """A size as a number, or several."""
    v = g.pick(lambda v: not v.is_sequence)
    if v.dims is None or g.chance(0.3):
        g.add("Size", [v], (), INT)
        return
    shape = g.add("Shape", [v], (v.rank,), INT)
    if v.rank:
        g.add("Gather", [shape, g.const(int(g.rng.integers(v.rank)))], (), INT)


def cast(g: Grower) -> None:
    v = g.pick(lambda v: not v.is_sequence)
    to = g.choose([FLOAT, INT])
    g.add("Cast", [v], v.dims, to, to=to)


def compare(g: Grower) -> None:
    a = g.pick(is_tensor(FLOAT, INT))
    b = g.const(g.choose([0, 1, 2]), a.dtype) if g.chance(0.5) else g.pick(lambda v: v.dtype == a.dtype and is_one(v))
    g.add(g.choose(["Less", "Greater", "Equal"]), [a, b], a.dims or b.dims, BOOL)


def logic(g: Grower) -> None:
    a = g.pick(is_tensor(BOOL))
    if g.chance(0.5):
        g.add("Not", [a], a.dims, BOOL)
    else:
        b = g.pick(lambda v: is_tensor(BOOL)(v) and v.dims == a.dims)
        g.add(g.choose(["And", "Or"]), [a, b], a.dims, BOOL)


def where(g: Grower) -> None:
    a = g.pick(is_tensor(FLOAT, INT))
    b = g.pick(lambda v: is_tensor(a.dtype)(v) and v.dims == a.dims)
    c = g.pick(lambda v: is_tensor(BOOL)(v) and v.dims in (a.dims, ()))
    g.add("Where", [c, a, b], a.dims, a.dtype)


def reduced(g: Grower) -> None:
    v = g.pick(lambda v: is_tensor(FLOAT)(v) and v.rank >= 1)
    axis, keeps = int(g.rng.integers(v.rank)), int(g.rng.integers(2))
    dims = (*v.dims[:axis], *[1] * keeps, *v.dims[axis + 1 :])
    is_some = not is_open(v.dims[axis])
    limited(g, g.axes("ReduceMax" if is_some and g.chance(0.5) else "ReduceSum", v, [axis], dims, keepdims=keeps))


def flat(g: Grower) -> None:
    v = g.pick(lambda v: not v.is_sequence and v.dims != ())
    g.add("Reshape", [v, g.const([-1])], (g.fresh(),) if v.dims is None or len(v.dims) > 1 else v.dims, v.dtype)


def transposed(g: Grower) -> None:
    v = g.pick(lambda v: is_tensor()(v) and v.rank >= 2)
    order = g.rng.permutation(v.rank).tolist()
    g.add("Transpose", [v], tuple(v.dims[k] for k in order), v.dtype, perm=order)


def longer_rank(g: Grower) -> None:
    v = g.pick(lambda v: is_tensor()(v) and v.rank <= 2)
    axis = int(g.rng.integers(v.rank + 1))
    g.axes(
        "Unsqueeze",
        v,
        [axis],
        (*v.dims[:axis], 1, *v.dims[axis:]),
    )


def shorter_rank(g: Grower) -> None:
    v = g.pick(lambda v: is_tensor()(v) and 1 in v.dims)
    axis = v.dims.index(1)
    g.axes("Squeeze", v, [axis], (*v.dims[:axis], *v.dims[axis + 1 :]))


def joined(g: Grower, v: Value | None = None) -> Value:
    """Two tensors side by side along an axis, the first rows of them where there are many."""
    v = v or g.pick(lambda v: is_tensor()(v) and v.rank >= 1)
    axis = int(g.rng.integers(v.rank))
    rest = v.dims[:axis], v.dims[axis + 1 :]
    w = g.pick(lambda w: is_tensor(v.dtype)(w) and w.rank == v.rank and (w.dims[:axis], w.dims[axis + 1 :]) == rest)
    made = g.add("Concat", [v, w], (*rest[0], g.fresh(), *rest[1]), v.dtype, axis=axis)
    return sliced(g, made, axis, 0, MAX_SIZE)


def sliced(g: Grower, v: Value, axis: int, start: Any, end: Any) -> Value:
    ends = [x if isinstance(x, Value) else g.const([x]) for x in (start, end)]
    dims = (*v.dims[:axis], g.fresh(), *v.dims[axis + 1 :])
    return g.add("Slice", [v, *ends, g.const([axis])], dims, v.dtype)


def part(g: Grower) -> None:
    v = g.pick(lambda v: is_tensor()(v) and v.rank >= 1)
    axis = int(g.rng.integers(v.rank))
    if g.chance(0.5):
        sliced(g, v, axis, *g.choose([(0, 1), (0, 2), (1, 9), (-2, 9), (0, -1), (1, 1)]))
        return
    end = g.add("Reshape", [g.pick(lambda v: v.dtype == INT and is_one(v)), g.const([1])], (1,), INT)
    sliced(g, v, axis, *((0, end) if g.chance(0.7) else (end, 9)))


def row(g: Grower) -> None:
    """One place along an axis, which a number modulo the size tells."""
    v = g.pick(lambda v: is_tensor()(v) and v.rank >= 1 and not is_open(v.dims[0]))
    number = g.pick(lambda v: v.dtype == INT and is_one(v))
    n = g.add("Gather", [g.add("Shape", [v], (v.rank,), INT), g.const(0)], (), INT)
    n_or_1 = g.add("Add", [n, g.add("Cast", [g.add("Equal", [n, g.const(0)], (), BOOL)], (), INT, to=INT)], (), INT)
    place = g.add("Mod", [number, n_or_1], number.dims, INT)
    g.add("Gather", [v, place], (*number.dims, *v.dims[1:]), v.dtype, axis=0)


def counted(g: Grower) -> None:
    n = trips_of(g)
    first, step = g.const(0), g.const(1)
    n = g.add("Reshape", [n, g.const(np.zeros(0, np.int64))], (), INT)
    g.add("Range", [first, n, step], (g.fresh(),), INT)


def filled(g: Grower) -> None:
    v = g.pick(is_tensor())
    shape = g.add("Shape", [v], (v.rank,), INT)
    value = helper.make_tensor("value", FLOAT, [1], [1.5])
    g.add("ConstantOfShape", [shape], v.dims, FLOAT, value=value)


def spread(g: Grower) -> None:
    v = g.pick(is_one)
    to = g.pick(lambda v: is_tensor()(v) and v.rank >= 1)
    g.add("Expand", [v, g.add("Shape", [to], (to.rank,), INT)], to.dims, v.dtype)


def chosen(g: Grower) -> None:
    """The places where a condition holds, or the rows: as many as the numbers tell."""
    v = g.pick(lambda v: is_tensor(FLOAT)(v) and v.rank >= 1)
    where_ = g.add("Greater", [v, g.const(0, FLOAT)], v.dims, BOOL)
    if g.chance(0.5):
        g.add("NonZero", [where_], (v.rank, g.fresh()), INT)
    else:
        every = g.add("Reshape", [where_, g.const([-1])], (g.fresh(),), BOOL)
        g.add("Compress", [v, every], (g.fresh(),), FLOAT)


# --- sequences ------------------------------------------------------------------------------------------------------


def sequence(g: Grower, v: Value | None = None) -> Value:
    """A new sequence: without elements, of one or two tensors, or of a tensor's rows."""
    v = v or g.pick(is_tensor(FLOAT, INT))  # of conditions ONNX Runtime knows no sequences
    if v.rank and isinstance(v.dims[0], int) and v.dims[0] and g.chance(0.3):
        keeps = int(g.rng.integers(2))
        made = Value(g.name(), v.dtype, (*[1] * keeps, *v.dims[1:]), True, v.dims[0])
        g.node("SplitToSequence", [v], [made], axis=0, keepdims=keeps)
        return made
    n = g.choose([0, 1, 1, 2])
    made = Value(g.name(), v.dtype, v.dims, True, n)
    if n:
        g.node("SequenceConstruct", [v] * n, [made])
    else:
        g.node("SequenceEmpty", [], [made], dtype=v.dtype)
    return made


def a_sequence(g: Grower, least: int = 0) -> Value:
    return g.pick(lambda v: v.is_sequence and v.least >= least)


def inserted(g: Grower, s: Value | None = None) -> Value:
    s = s or a_sequence(g)
    v = g.pick(lambda v: is_tensor(s.dtype)(v) and v.dims == s.dims)
    at = [g.const(0)] if g.chance(0.3) else []
    made = replace(s, name=g.name(), least=s.least + 1)
    g.node("SequenceInsert", [s, v, *at], [made])
    return made


def erased(g: Grower) -> None:
    s = a_sequence(g, 1)
    g.node(
        "SequenceErase", [s, *([g.const(0)] if g.chance(0.5) else [])], [replace(s, name=g.name(), least=s.least - 1)]
    )


def element(g: Grower) -> None:
    s = a_sequence(g, 1)
    g.add("SequenceAt", [s, g.const(g.choose([0, -1]))], s.dims, s.dtype)


def length(g: Grower) -> None:
    g.add("SequenceLength", [a_sequence(g)], (), INT)


def joined_sequence(g: Grower) -> None:
    s = a_sequence(g, 1)
    new = int(s.dims == () or g.chance(0.5))
    axis = int(g.rng.integers(len(s.dims) + new))
    dims = (*s.dims[:axis], g.fresh(), *s.dims[axis + 1 - new :])
    g.add("ConcatFromSequence", [s], dims, s.dtype, axis=axis, new_axis=new)


# --- control flow ---------------------------------------------------------------------------------------------------


def condition(g: Grower) -> Value:
    if g.chance(0.2):
        return g.const(g.choose([True, False, [True]]), BOOL)
    return g.pick(lambda v: v.dtype == BOOL and is_one(v))


def trips_of(g: Grower) -> Value:
    """From -1 to 4."""
    if g.chance(0.35):
        n = g.choose([0, 1, 2, 3, 4, -1])
        made = g.const(n if g.chance(0.8) else [n])
        g.known[made.name] = n
        return made
    if g.chance(0.4):
        return g.pick(lambda v: v.name.startswith("trip"))
    v = g.pick(lambda v: v.dtype == INT and is_one(v))
    small = g.add("Mod", [v, g.const(5)], v.dims, INT)
    return g.add("Sub", [small, g.const(1)], v.dims, INT) if g.chance(0.3) else small


def results(g: Grower, n: int) -> list[Value]:
    return [g.pick(lambda v: v.name in g.at.own) for _ in range(n)]


def merged(g: Grower, a: Value, b: Value) -> Value:
    """What is known of one of two values."""
    dims = None
    if a.dims is not None and b.dims is not None and a.rank == b.rank:
        dims = tuple(x if x == y else g.fresh() for x, y in zip(a.dims, b.dims, strict=True))
    return Value(g.name(), a.dtype, dims, a.is_sequence, min(a.least, b.least))


def branch(g: Grower) -> None:
    c = condition(g)
    n = int(g.rng.integers(1, 4))

    def first(own: list[Value]) -> list[Value]:
        grow(g, int(g.rng.integers(1, 6)))
        return results(g, n) if g.at.own else [g.same(g.pick(is_tensor())) for _ in range(n)]

    then, wanted = g.sub([], first, typed=False)

    def second(own: list[Value]) -> list[Value]:
        grow(g, int(g.rng.integers(0, 6)))
        return [like(g, w) for w in wanted]

    other, found = g.sub([], second, typed=False)
    made = [merged(g, a, b) for a, b in zip(wanted, found, strict=True)]
    g.node("If", [c], made, then_branch=then, else_branch=other)


def like(g: Grower, w: Value) -> Value:
    """A value that an If can give in place of ``w``: of other sizes, now and then of another rank."""
    loose, ranks = g.chance(0.4), g.chance(0.06)

    def fits(v: Value) -> bool:
        if (v.dtype, v.is_sequence) != (w.dtype, w.is_sequence):
            return False
        if v.is_sequence or v.dims is None or w.dims is None or not loose:
            return v.dims == w.dims
        return ranks or v.rank == w.rank

    return g.pick(fits)


def after(g: Grower, formal: Value, is_stable: bool) -> Value:
    """What follows a carried value: as large, or longer or shorter along an axis."""
    if formal.is_sequence:
        return inserted(g, formal) if g.chance(0.8) else formal
    if is_stable or formal.dims is None or not formal.rank:
        return g.pick(lambda v: (v.dtype, v.dims, v.is_sequence) == (formal.dtype, formal.dims, False))
    if g.chance(0.6):
        return joined(g, formal)
    if g.chance(0.1):
        return g.axes("Unsqueeze", formal, [0], (1, *formal.dims))
    return sliced(g, formal, [is_open(d) for d in formal.dims].index(True), 1, 99)


def loop(g: Grower) -> None:
    trip = None if g.chance(0.2) else trips_of(g)
    go = condition(g) if trip is None or g.chance(0.5) else None
    carried, formals, stable = carried_values(g, lambda v: v.is_sequence or is_tensor()(v))
    scanned = int(g.rng.integers(0, 3))
    runs = go is None and trip is not None and g.known.get(trip.name, 0) > 0  # surely one trip
    most = g.const(g.choose([0, 1, 2, 3])) if g.chance(0.5) else None

    def fill(own: list[Value]) -> list[Value]:
        i, going, *rest = own
        grow(g, int(g.rng.integers(1, 7)))
        again = going
        if trip is None or (go is not None and g.chance(0.4)):
            again = g.add("Less", [i, most or g.const(g.choose([0, 1, 2, 3]))], i.dims, BOOL)
            if g.chance(0.3):
                again = g.add("And", [again, going], i.dims or going.dims, BOOL)
        elif go is not None and g.chance(0.4):
            again = g.same(condition(g))
        outputs = [after(g, v, s) for v, s in zip(rest, stable, strict=True)]
        fits = (lambda v: steady(v, g, own)) if runs else is_fixed
        return [again, *outputs, *(g.pick(lambda v: is_tensor()(v) and fits(v)) for _ in range(scanned))]

    if not carried and not scanned:
        raise Unfit
    index, going = Value("", INT, trip.dims if trip else ()), Value("", BOOL, go.dims if go else ())
    body, outputs = g.sub(
        [index, going, *formals], fill, typed=g.chance(0.5), n_typed=2, typed_rows=not runs, n_through=1 + len(carried)
    )
    made = []
    for v, out, is_same in zip(carried, outputs[1:], stable, strict=False):
        known = v if is_same else merged(g, v, out)
        made.append(replace(known, name=g.name(), least=min(v.least, out.least)))
    made += [Value(g.name(), v.dtype, (g.fresh(), *v.dims)) for v in outputs[1 + len(carried) :]]
    g.node("Loop", [trip, go, *carried], made, body=body)


def steady(v: Value, g: Grower, own: Sequence[Value]) -> bool:
    """Has the value one shape in all iterations?"""
    inside = {d for w in own for d in w.dims or ()}
    dims = v.dims or ()
    return not any(map(is_open, dims)) or (v.name not in g.at.own and not inside & set(dims))


def surely_some(dims: Sequence[Dim]) -> bool:
    """Has what is so large an element?"""
    return not any(d == 0 or is_open(d) for d in dims)


def carried_values(g: Grower, keep: Callable[[Value], bool]) -> tuple[list[Value], list[Value], list[bool]]:
    """Values, what stands for them in a body, and which of them keep their sizes."""
    values = [g.pick(keep) for _ in range(int(g.rng.integers(0, 4)))]
    formals, stable = [], []
    for v in values:
        is_stable = v.is_sequence or not v.rank or g.chance(0.7)
        dims = v.dims
        if not is_stable:
            axis = int(g.rng.integers(v.rank))
            dims = (*v.dims[:axis], g.fresh(), *v.dims[axis + 1 :])
        formals.append(replace(v, dims=dims))
        stable.append(is_stable)
    return values, formals, stable


def scan(g: Grower) -> None:
    states = [g.pick(is_tensor()) for _ in range(int(g.rng.integers(0, 3)))]
    first = g.pick(lambda v: is_tensor()(v) and v.rank >= 1)
    axis = int(g.rng.integers(first.rank))
    n, sources, axes = first.dims[axis], [first], [axis]
    if not surely_some([n]):
        raise Unfit
    for _ in range(int(g.rng.integers(0, 3))):
        sources.append(g.pick(lambda v: is_tensor()(v) and n in v.dims))
        axes.append(sources[-1].dims.index(n))
    elements = [replace(v, dims=(*v.dims[:k], *v.dims[k + 1 :])) for v, k in zip(sources, axes, strict=True)]
    n_rows = int(g.rng.integers(0 if states else 1, 3))

    def fill(own: list[Value]) -> list[Value]:
        grow(g, int(g.rng.integers(1, 6)))
        outputs = [after(g, v, True) for v in own[: len(states)]]
        return [*outputs, *(g.pick(lambda v: is_tensor()(v) and surely_some(v.dims)) for _ in range(n_rows))]

    body, outputs = g.sub([*states, *elements], fill, typed=g.chance(0.5), typed_rows=True)
    rows = outputs[len(states) :]
    places = [int(g.rng.integers(v.rank + 1)) for v in rows]
    made = [replace(v, name=g.name()) for v in states]
    made += [Value(g.name(), v.dtype, (*v.dims[:k], n, *v.dims[k:])) for v, k in zip(rows, places, strict=True)]
    attrs: dict[str, Any] = {}
    if any(axes) or g.chance(0.3):
        attrs["scan_input_axes"] = [a - v.rank if g.chance(0.3) else a for a, v in zip(axes, sources, strict=True)]
    if g.turns and g.chance(0.4):
        attrs["scan_input_directions"] = g.rng.integers(0, 2, len(sources)).tolist()
    if rows and (any(places) or g.chance(0.3)):
        attrs["scan_output_axes"] = [k - v.rank - 1 if g.chance(0.3) else k for k, v in zip(places, rows, strict=True)]
    if rows and g.turns and g.chance(0.4):
        attrs["scan_output_directions"] = g.rng.integers(0, 2, len(rows)).tolist()
    g.node("Scan", [*states, *sources], made, body=body, num_scan_inputs=len(sources), **attrs)


PLAIN: Sequence[Callable[[Grower], Any]] = (
    unary, binary, binary, scaled, product, size, cast, compare, logic, where, reduced, flat, transposed, longer_rank,
    shorter_rank, joined, part, part, row, counted, filled, spread, chosen, sequence, inserted, erased, element, length,
    joined_sequence,
)  # fmt: skip
FLOW = (branch, loop, loop, scan)


# --- models ---------------------------------------------------------------------------------------------------------

INPUTS = (
    Value("x", FLOAT, ("N", 3)), Value("y", FLOAT, ("N",)), Value("z", FLOAT, (2, "T", 3)), Value("w", FLOAT, (3,)),
    Value("u", FLOAT, ("T", "N")), Value("s", FLOAT, ()), Value("k", INT, ("N",)),
    Value("trip", INT, ()), Value("trip1", INT, (1,)), Value("c", BOOL, ()), Value("c1", BOOL, (1,)),
    Value("m", BOOL, ("N",)),
)  # fmt: skip


def control_graph(seed: int) -> Made:
    g = Grower(seed)
    for v in INPUTS:
        g.bind(v)
    while not any(n.op_type in ("If", "Loop", "Scan") for n in g.at.nodes):
        grow(g, int(g.rng.integers(2, 12)))
        try:
            g.choose(FLOW)(g)
        except Unfit:
            continue
    grow(g, int(g.rng.integers(0, 4)))
    flow = [name for n in g.at.nodes if n.op_type in ("If", "Loop", "Scan") for name in n.output]
    last = [v.name for v in g.at.visible[-3:]]
    inputs = {v.name for v in INPUTS}
    outputs = [v for v in g.at.visible if v.name in {*flow, *last} and v.name not in inputs][-6:]
    graph = helper.make_graph(
        g.at.nodes, "g", [g.info(v) for v in INPUTS], [g.info(v, False) for v in outputs], g.at.constants
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", g.opset)], ir_version=8 if g.opset < 21 else 10
    )
    return Made(made, list(calls(g)))


def calls(g: Grower) -> Iterator[Feeds]:
    for _ in range(N_CALLS):
        sizes = {"N": g.choose([1, 2, 4, 3]), "T": g.choose([1, 2, 5, 3])}
        feeds: Feeds = {}
        for v in INPUTS:
            shape = [d if isinstance(d, int) else sizes[d] for d in v.dims or ()]
            low, high = (-1, 5) if v.name.startswith("trip") else (0, 2) if v.dtype == BOOL else (-6, 7)
            numbers = g.rng.integers(low, high, shape)
            feeds[v.name] = np.asarray(numbers / 2 if v.dtype == FLOAT else numbers, NUMPY[v.dtype])
        yield feeds
