"""Converters of ONNX control flow, and of sequences and optionals, which exist only while importing.

In: a ``Call`` whose host imports sub-graphs. Out: ``if_`` and ``loop`` nodes with closed bodies, or the body's nodes in
place where a condition or a short trip count is known. Not its business: names and scopes (``onnx.walk``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tilewright import ops
from tilewright.core import expr
from tilewright.core.diag import CompileError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Builder, Graph, Node
from tilewright.core.types import TensorType, bool_, i64
from tilewright.frontend.asked import carrying, with_conditions
from tilewright.frontend.onnx.call import (
    Absent,
    BodySpec,
    Call,
    Items,
    NotTensors,
    Refused,
    Results,
    Stacked,
    Table,
    Undecided,
    Value,
    as_bool,
)
from tilewright.frontend.onnx.ops.movement import cut, join, split_sizes
from tilewright.frontend.onnx.trips import trips

if TYPE_CHECKING:
    from onnx import GraphProto

MAX_UNROLLED = 1024
FOREVER = (1 << 63) - 1


def _if(c: Call) -> Results:
    condition = c.reshape(as_bool(c, c.x(0)), ())
    branches = [c.graph("then_branch"), c.graph("else_branch")]
    known = c.emitter.values(condition)
    if known is not None and isinstance(known.flat[0], int):
        return c.host.inline(branches[0 if known.flat[0] else 1], [])
    mark = c.host.mark()
    try:
        body = c.host.bodies([BodySpec(g, ()) for g in branches])
        graphs, texts = with_conditions(body.graphs)
        branch = {"then_branch": graphs[0], "else_branch": graphs[1]}
        results = c.results(c(ops.if_, condition, *body.captured, **branch, name=c.emitter.fresh("if")))
        n_results = len(results) - len(texts)
        _check(c, texts, results[n_results:])
        return results[:n_results]
    except (Refused, CompileError) as e:
        inside = not isinstance(e, NotTensors | CompileError)
        if c.emitter.deciding(condition) and (not inside or c.host.only_misfits(mark)):
            c.host.reset(mark)  # a branch may fit only the calls that take it
            c.decided(condition, "the branch")
        raise


# --- loops ----------------------------------------------------------------------------------------------------------


def _loop(c: Call) -> Results:
    """As a ``loop`` when carried tensors keep their types, else unrolled when the trip count is known and small."""
    trip, start = c.opt(0), c.opt(1)
    carried: list[Value] = [v for v in c.inputs[2:] if v is not None]
    if len(carried) != len(c.inputs) - 2:
        c.refuse("a loop-carried value is left out")
    n_trips = _known_count(c, trip)
    if n_trips is None and trip is not None and len(c.graph("body").output) - 1 > len(carried):
        c.decided(trip, "the trip count")
    # no loop at all: sizes in it stay as they are known
    if n_trips is not None and n_trips <= 1 and (start is None or c.emitter.values(start) is not None):
        return _unrolled(c, n_trips, start, carried)
    tensors = [v for v in carried if isinstance(v, Node)]
    if len(tensors) < len(carried):
        if n_trips is None:
            # one that only appends stacks its rows instead
            if (appended := _appending(c.graph("body"), carried)) is not None:
                return _stacking(c, trip, start, carried, *appended)
            if trip is not None:
                c.decided(trip, "the trip count")
            c.refuse("carries a sequence, and its trip count is unknown", "use tensors, or a constant trip count")
        return _unrolled(c, n_trips, start, carried)
    mark = c.host.mark()
    try:
        return _closed_loop(c, trip, start, tensors)
    except _TypeChanges as e:
        c.host.reset(mark)
        return _step_by_step(c, trip, start, tensors, n_trips, e)
    except (Refused, CompileError):  # what single steps may
        if n_trips is None or n_trips > MAX_UNROLLED:
            raise
        c.host.reset(mark)
        return _unrolled(c, n_trips, start, carried)


class _TypeChanges(Refused):
    """A carried value comes out of the body with another rank or, where ``is_size``, with other sizes.

    ``is_open`` says that neither the number of trips nor sizes tell when the loop ends.
    """

    def __init__(self, before: TensorType, after: TensorType, *, is_size: bool = False, is_open: bool = False) -> None:
        self.is_size, self.is_open = is_size, is_open
        super().__init__(*_unlike(before, after))


def _unlike(before: TensorType, after: TensorType) -> tuple[str, str]:
    """What is wrong with a carried value that comes out of the body as another type, and the remedy."""
    return f"carries {before} into its body and {after} out of it", "keep the dtype and shape of carried values"


def _step_by_step(
    c: Call, trip: Node | None, start: Node | None, carried: Sequence[Node], n_trips: int | None, why: _TypeChanges
) -> list[Value | None]:
    """The trips in place, each with types of its own, where a call or its sizes tell how many there are.

    Where they do not, a loop whose sizes change: the interpreter runs it, and passes may still learn when it ends.
    """
    if trip is not None and n_trips is None:
        c.decided(trip, "the trip count")
        if c.emitter.values(trip) is not None:
            raise why  # sizes decide it
    elif n_trips is None or n_trips <= MAX_UNROLLED:
        mark = c.host.mark()
        try:
            return _unrolled(c, n_trips, start, carried)
        except Undecided:
            raise
        except Refused:
            if not why.is_open:
                raise
            c.host.reset(mark)
    if not why.is_size:
        raise why
    return _closed_loop(c, trip, start, carried, grows=True)


def _known_count(c: Call, trip: Node | None) -> int | None:
    values = c.emitter.values(trip) if trip is not None else None
    return max(values.flat[0], 0) if values is not None and isinstance(values.flat[0], int) else None


def _appending(body: GraphProto, carried: Sequence[Value]) -> tuple[GraphProto, list[int]] | None:
    """The body with results in place of carried sequences, where each starts without elements and each iteration only
    appends a tensor to it; and the carried values' numbers. None for other bodies."""
    numbers = [k for k, v in enumerate(carried) if not isinstance(v, Node)]
    made = type(body)()
    made.CopyFrom(body)
    for k in reversed(numbers):
        if carried[k] != Items(()) or len(body.output) <= 1 + k:
            return None
        formal, result = body.input[2 + k].name, body.output[1 + k].name
        steps = [n for n in made.node if result in n.output]
        readers = [n for n in made.node if formal in n.input or any(a.HasField("g") for a in n.attribute)]
        if [n.op_type for n in steps] != ["SequenceInsert"] or list(steps[0].input)[:1] != [formal]:
            return None
        inside = any(formal in inner.input for n in readers for a in n.attribute for inner in a.g.node)
        if len(list(filter(None, steps[0].input))) != 2 or inside or sum(formal in n.input for n in readers) != 1:
            return None
        made.output.add().name = steps[0].input[1]
        made.node.remove(steps[0])
        del made.input[2 + k], made.output[1 + k]
    return made, numbers


def _stacking(
    c: Call, trip: Node | None, start: Node | None, carried: Sequence[Value], body: GraphProto, numbers: list[int]
) -> list[Value | None]:
    """A loop that appends to sequences as one that stacks what it would append."""
    tensors = [v for v in carried if isinstance(v, Node)]
    found = _closed_loop(c, trip, start, tensors, body=body)
    n_new = len(numbers)
    stacks = found[-n_new:][::-1]
    rest = iter(found[:-n_new])
    waits = [c.emitter.deciding(x) for x in (trip, start) if x is not None and c.emitter.values(x) is None]
    names = tuple(dict.fromkeys(name for found in waits for name in found)) if all(waits) else ()
    rows = {k: Stacked(v, names) for k, v in zip(numbers, stacks, strict=True) if isinstance(v, Node)}
    return [*(rows[k] if k in rows else next(rest) for k in range(len(carried))), *rest]


def _closed_loop(
    c: Call,
    trip: Node | None,
    start: Node | None,
    carried: Sequence[Node],
    same: frozenset[int] = frozenset(),
    body: GraphProto | None = None,
    *,
    grows: bool = False,
) -> list[Value | None]:
    """As a ``loop``; the carried values of the numbers ``same`` pass through the body, which captures them instead.

    Raises ``_TypeChanges`` unless carried values keep their sizes, or may not (``grows``).
    """
    proto = c.graph("body") if body is None else body
    count = c.const(FOREVER, i64) if trip is None else c.reshape(c.cast(trip, i64), ())
    go = c.const(True, bool_) if start is None else c.reshape(as_bool(c, start), ())
    varying = [v for k, v in enumerate(carried) if k not in same]
    types = [v.type for v in varying]
    name = c.emitter.fresh("loop")

    def bind(formals: list[Node], outside: Callable[[Node], Node]) -> list[Node]:
        rest = iter(formals[2:])
        values = (outside(v) if k in same else next(rest) for k, v in enumerate(carried))
        return [*_as_declared(c, proto, formals[:2]), *values]

    def finish(outputs: list[Node]) -> list[Node]:
        if len(outputs) < 1 + len(carried):
            c.refuse(f"its body gives {len(outputs)} results for {len(carried)} carried values")
        # without a start the condition is not looked at
        again = c.const(True, bool_) if start is None else c.reshape(as_bool(c, outputs[0]), ())
        return [again, *(x for k, x in enumerate(outputs[1:]) if k not in same)]

    # each time at least one more dimension becomes a symbol, so that this ends
    for _ in range(2 + sum(t.rank for t in types)):
        made = c.host.bodies([BodySpec(proto, (count.type, go.type, *types), bind, finish)])
        given = [n.type for n in made.graphs[0].outputs[1 : 1 + len(types)]]
        wider = [_widened(c, a, b, f"{name}_c{k}") for k, (a, b) in enumerate(zip(types, given, strict=True))]
        if wider == types:
            break
        types = wider
    graph = made.graphs[0]
    through = frozenset(k for k in range(len(types)) if graph.outputs[1 + k] is graph.inputs[2 + k])
    if through and not same:  # what no iteration changes comes in from outside, as what it is
        return _closed_loop(c, trip, start, carried, through, body, grows=grows)
    counted = trips(c.emitter, graph, go, varying)  # a condition like `i < n` is a trip count, or bounds it
    if counted is not None:
        most, is_exact = counted
        if trip is None:
            count = c.dim_value(most)
        elif c.emitter.values(count) is not None:
            count = c.dim_value(expr.minimum(most, c.dims(count, "the trip count")[0]))
        else:
            count = c(ops.minimum, count, c.dim_value(most))
        if is_exact:
            go = c.const(True, bool_)
            graph = dataclasses.replace(graph, outputs=(go, *graph.outputs[1:]))
    always = _is_true(c, go) and (graph.outputs[0] is graph.inputs[1] or _is_true(c, graph.outputs[0]))
    length: Dim = -1  # how many rows are stacked: not known where a condition may end it
    if always and c.emitter.values(count) is not None:
        length = expr.maximum(c.dims(count, "the trip count")[0], 0)
    if length == FOREVER:
        c.refuse("has no trip count and a condition that is always true", "the model would never end")
    changing = [(v.type, n.type) for v, n in zip(varying, graph.outputs[1:], strict=False) if v.type != n.type]
    if changing and not grows:
        raise _TypeChanges(*changing[0], is_size=True, is_open=not always)
    results = iter(_checked_loop(c, count, go, varying, made.captured, graph, name, length, is_ended=not always))
    return [*(v if k in same else next(results) for k, v in enumerate(carried)), *results]


def _as_declared(c: Call, body: GraphProto, formals: Sequence[Node]) -> list[Node]:
    """The number of the iteration and the condition, of one dimension where the body says that it takes them so."""
    kinds = [i.type.tensor_type for i in body.input[:2]]
    ranks = [len(t.shape.dim) if t.HasField("shape") else 0 for t in kinds]
    return [c.reshape(x, (1,)) if rank == 1 else x for x, rank in zip(formals, ranks, strict=True)]


def _checked_loop(
    c: Call,
    count: Node,
    go: Node,
    carried: Sequence[Node],
    captured: Sequence[Node],
    body: Graph,
    name: str,
    length: Dim,
    *,
    is_ended: bool,
) -> list[Node]:
    """The loop's results; what its body checks is carried behind ``carried``, and checked here. A loop whose condition
    may end it (``is_ended``) ends where a check does not hold."""
    texts, n, pool = body.checks, len(carried), body.pool
    held = [pool.input(c.emitter.fresh("held"), TensorType(bool_, ()), c.loc) for _ in texts]
    body = carrying(Builder(pool, c.loc), body, held, n, is_ended=is_ended)
    if len(body.outputs) == 1:  # no iteration changes, gives or checks anything
        return []
    start = [*carried, *(c.const(True, bool_) for _ in texts)]
    form = {"body": body, "n_carried": len(start), "name": name, "length": length}
    results = c.results(c(ops.loop, count, go, *start, *captured, **form))
    _check(c, texts, results[n : len(start)])
    return [*results[:n], *results[len(start) :]]


def _check(c: Call, texts: Sequence[str], holds: Sequence[Node]) -> None:
    """Let what is around control flow check what came out of it."""
    for text, condition in zip(texts, holds, strict=True):
        c.host.check(condition, text)


def _is_true(c: Call, condition: Node) -> bool:
    values = c.emitter.values(condition)
    return values is not None and values.flat[0] is True


def _widened(c: Call, before: TensorType, after: TensorType, name: str) -> TensorType:
    """The type of a carried value with symbols for the dimensions that the body changes."""
    if before.dtype is not after.dtype:
        c.refuse(*_unlike(before, after))
    if before.rank != after.rank:
        raise _TypeChanges(before, after)
    dims = enumerate(zip(before.shape, after.shape, strict=True))
    return before.with_shape([_wider(x, y, f"{name}_{k}") for k, (x, y) in dims])


def _wider(before: Dim, after: Dim, name: str) -> Dim:
    return before if before == after or (isinstance(before, Sym) and before.name == name) else Sym(name, 0)


def _unrolled(c: Call, n_trips: int | None, start: Node | None, carried: Sequence[Value]) -> list[Value | None]:
    """The trips in place: ``n_trips``, or as many as the condition tells."""
    if n_trips is not None and n_trips > MAX_UNROLLED:
        c.refuse(f"carries sequences for {n_trips} trips, more than the {MAX_UNROLLED} that are unrolled")
    graph, values = c.graph("body"), list(carried)
    n_scanned = len(graph.output) - 1 - len(carried)
    scanned: list[list[Node]] = [[] for _ in range(max(n_scanned, 0))]
    going = start is None or bool(c.number(start, "the loop's condition"))
    step = 0
    while going and (n_trips is None or step < n_trips):
        if step == MAX_UNROLLED:
            c.refuse(f"takes more than the {MAX_UNROLLED} trips that are unrolled")
        outputs = _one_trip(c, graph, step, values)
        if len(outputs) < 1 + len(values):
            c.refuse(f"its body gives {len(outputs)} results for {len(values)} carried values")
        again, values = outputs[0], outputs[1 : 1 + len(values)]
        for rows, out in zip(scanned, outputs[1 + len(values) :], strict=True):
            if not isinstance(out, Node):
                c.refuse("scans a sequence")
            rows.append(c.reshape(out, (1, *out.shape)))
        if start is not None:
            if not isinstance(again, Node):
                c.refuse("its condition is not a tensor")
            going = bool(c.number(again, "the loop's condition"))  # known while importing, or it can't be unrolled
        step += 1
    if n_scanned > 0 and not scanned[0]:
        # no trip: only what the rows would be like is wanted
        outputs = _one_trip(c, graph, 0, values)
        shapes = [out for out in outputs[1 + len(values) :] if isinstance(out, Node)]
        return [*values, *(c.full(0, out.dtype, (0, *out.shape)) for out in shapes)]
    return [*values, *(join(c, rows, 0) for rows in scanned)]


def _one_trip(c: Call, graph: GraphProto, step: int, values: Sequence[Value]) -> list[Value]:
    """The body's results in place."""
    return c.host.inline(graph, [*_as_declared(c, graph, [c.const(step, i64), c.const(True, bool_)]), *values])


def _scan(c: Call) -> Results:
    """A loop whose body takes one slice of each scanned operand per step."""
    graph, n_scanned = c.graph("body"), c.int_("num_scan_inputs")
    if c.opset < 9 and c.value(0) is not None:
        c.refuse("sequence_lens is not supported", "convert the model to opset 9 or newer")
    operands = c.nodes() if c.opset >= 9 else [c.x(i) for i in range(1, len(c.inputs))]
    n_states = len(operands) - n_scanned
    if n_scanned < 1 or n_states < 0 or len(graph.output) < n_states:
        c.refuse(
            f"num_scan_inputs={n_scanned} with {len(operands)} operands and {len(graph.output)} results of the body"
        )
    if c.opset >= 9:
        return _scanned(c, operands[:n_states], operands[n_states:])
    n_batches = operands[0].shape[0] if operands[0].shape else 0
    if not is_known(n_batches) or not 0 < n_batches <= MAX_UNROLLED:
        c.refuse(f"a batch of {n_batches} is not unrolled", "convert the model to opset 9 or newer")
    rows = []
    for k in range(n_batches):
        row = [c.reshape(c.slice_axis(x, 0, k, k + 1), x.shape[1:]) for x in operands]
        rows.append(_scanned(c, row[:n_states], row[n_states:]))
    return [join(c, [c.reshape(x, (1, *x.shape)) for x in column], 0) for column in zip(*rows, strict=True)]


def _scanned(c: Call, states: Sequence[Node], sources: Sequence[Node]) -> list[Node]:
    graph, n_states, n_scanned = c.graph("body"), len(states), len(sources)
    axes = [c.axis(a, len(s.shape)) for a, s in zip(_flags(c, "scan_input_axes", n_scanned), sources, strict=True)]
    # opset 8 has one attribute of directions
    backward = _flags(c, "scan_input_directions" if c.opset >= 9 else "directions", n_scanned)
    n_outputs = len(graph.output) - n_states
    out_axes, out_backward = _flags(c, "scan_output_axes", n_outputs), _flags(c, "scan_output_directions", n_outputs)
    length = _scanned_length(c, sources, axes)
    if length == 0:  # no step: only what the rows would be like is wanted
        empty = [c.full(0, x.dtype, (*x.shape[:a], *x.shape[a + 1 :])) for x, a in zip(sources, axes, strict=True)]
        rows = [x for x in c.host.inline(graph, [*states, *empty])[n_states:] if isinstance(x, Node)]
        stacks = [_placed(c, c.full(0, x.dtype, (0, *x.shape)), a, 0) for x, a in zip(rows, out_axes, strict=True)]
        return [*states, *stacks]

    def bind(formals: list[Node], outside: Callable[[Node], Node]) -> list[Node]:
        step = formals[0]
        turned = c(ops.sub, c.dim_value(length - 1), step)
        rows = [
            c(ops.gather, outside(x), turned if back else step, axis=a)
            for x, a, back in zip(sources, axes, backward, strict=True)
        ]
        return [*formals[2:], *rows]

    count, go = c.dim_value(length), c.const(True, bool_)
    types = (count.type, go.type, *(x.type for x in states))
    body = c.host.bodies([BodySpec(graph, types, bind, lambda outputs: [c.const(True, bool_), *outputs])])
    name = c.emitter.fresh("scan")
    results = _checked_loop(c, count, go, states, body.captured, body.graphs[0], name, length, is_ended=False)
    stacked = [
        _placed(c, x, axis, back) for x, axis, back in zip(results[n_states:], out_axes, out_backward, strict=True)
    ]
    return [*results[:n_states], *stacked]


def _scanned_length(c: Call, sources: Sequence[Node], axes: Sequence[int]) -> Dim:
    """How many slices each operand has; a call keeps them equal where the sizes alone do not."""
    lengths: list[Dim] = sorted((x.shape[a] for x, a in zip(sources, axes, strict=True)), key=lambda d: not is_known(d))
    for d in lengths[1:]:
        if is_known(d) and d != lengths[0]:
            c.refuse(f"scans {lengths[0]} slices of one operand and {d} of another")
        c.assume_equal(lengths[0], d)
    return lengths[0]


def _flags(c: Call, name: str, n: int) -> list[int]:
    values = c.ints(name, [0] * n)
    if len(values) != n:
        c.refuse(f"attribute {name}={values} must have {n} numbers")
    return values


def _placed(c: Call, x: Node, axis: int, backward: int) -> Node:
    """A stacked result with its steps on another axis, possibly in opposite order."""
    rank = len(x.shape)
    axis = c.axis(axis, rank, "scan_output_axes")
    x = c(ops.reverse, x, axes=(0,)) if backward else x
    order = list(range(1, rank))
    order.insert(axis, 0)
    return c.transpose(x, order)


# --- sequences and optionals ----------------------------------------------------------------------------------------


def _items(c: Call, i: int = 0) -> tuple[Node, ...]:
    value = c.value(i)
    if not isinstance(value, Items):
        c.refuse(f"operand {i} must be a sequence")
    return value.nodes


def _position(c: Call, i: int, n: int) -> int | None:
    node = c.opt(i)
    if node is None:
        return None
    at = int(c.number(node, "the position in the sequence"))
    if not -n <= at <= n:
        c.refuse(f"position {at} is outside of a sequence of {n}")
    return at + n if at < 0 else at


def _sequence_insert(c: Call) -> Items:
    items = list(_items(c))
    at = _position(c, 2, len(items))
    items.insert(len(items) if at is None else at, c.x(1))
    return Items(tuple(items))


def _sequence_erase(c: Call) -> Items:
    items = list(_items(c))
    at = _position(c, 1, len(items))
    if not items or at == len(items):
        c.refuse("there is no such element in the sequence")
    items.pop(-1 if at is None else at)
    return Items(tuple(items))


def _sequence_at(c: Call) -> Node:
    items = _items(c)
    at = _position(c, 1, len(items))
    if at is None or at >= len(items):
        c.refuse(f"position {at} is outside of a sequence of {len(items)}")
    return items[at]


def _sequence_empty(c: Call) -> Items:
    c.ignore("dtype")
    return Items(())


def _sequence_map(c: Call) -> Results:
    """The body applied to each element; other sequences advance with the first, tensors stay the same."""
    sequences = [v if isinstance(v, Items) else None for v in c.inputs]
    lengths = {len(s.nodes) for s in sequences if s is not None}
    if sequences[0] is None or len(lengths) != 1:
        c.refuse("operand 0 must be a sequence, and all sequences must have one length")
    graph = c.graph("body")
    rows = []
    for k in range(lengths.pop()):
        given = [s.nodes[k] if s is not None else v for s, v in zip(sequences, c.inputs, strict=True)]
        rows.append(c.host.inline(graph, [v for v in given if v is not None]))
    columns = zip(*rows, strict=True) if rows else ((),) * len(graph.output)
    return [Items(tuple(v for v in column if isinstance(v, Node))) for column in columns]


def _concat_from_sequence(c: Call) -> Node:
    new_axis, stacked = c.flag("new_axis"), c.value(0)
    if isinstance(stacked, Stacked):
        return _joined(c, stacked.node, new_axis)
    items = list(_items(c))
    if not items:
        c.refuse("the sequence is empty")
    axis = c.axis(c.int_("axis"), len(items[0].shape) + new_axis)
    if new_axis:
        items = [c.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in items]
    return join(c, items, axis)


def _joined(c: Call, x: Node, new_axis: bool) -> Node:
    """The tensors along the first axis of ``x`` side by side along another."""
    axis = c.axis(c.int_("axis"), len(x.shape) - 1 + new_axis)
    x = c.transpose(x, [*range(1, axis + 1), 0, *range(axis + 1, len(x.shape))])
    if new_axis:
        return x
    return c.reshape(x, (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]))


def _sequence_length(c: Call) -> Node:
    stacked = c.value(0)
    return c.dim_value(stacked.node.shape[0]) if isinstance(stacked, Stacked) else c.const(len(_items(c)), i64)


def _split_to_sequence(c: Call) -> Items:
    x, sizes_node = c.x(0), c.opt(1)
    axis, keepdims = c.axis(c.int_("axis", 0), len(x.shape)), c.flag("keepdims", True)
    size = x.shape[axis]
    if sizes_node is not None and sizes_node.shape:
        parts = cut(c, x, axis, split_sizes(c, size, c.dims(sizes_node, "split"), 0))
        return Items(tuple(parts))
    step = c.ints_of(sizes_node, "split")[0] if sizes_node is not None else 1
    if not is_known(size) or step < 1:
        c.refuse("needs a fixed dimension and a positive step", "fix the dimension with input_shapes=")
    parts = [c.slice_axis(x, axis, k, min(k + step, size)) for k in range(0, size, step)]
    if sizes_node is None and not keepdims:
        parts = [c.reshape(p, (*p.shape[:axis], *p.shape[axis + 1 :])) for p in parts]
    return Items(tuple(parts))


def _optional(c: Call) -> Value:
    c.ignore("type")
    value = c.value(0)
    return Absent() if value is None else value


def _optional_has_element(c: Call) -> Node:
    value = c.value(0)
    return c.const(value is not None and not isinstance(value, Absent), bool_)


def _optional_get_element(c: Call) -> Value:
    value = c.value(0)
    if value is None or isinstance(value, Absent):
        c.refuse("the optional is empty")
    return value


TABLE: Table = {
    "ConcatFromSequence": _concat_from_sequence,
    "If": _if,
    "Loop": _loop,
    "Optional": _optional,
    "OptionalGetElement": _optional_get_element,
    "OptionalHasElement": _optional_has_element,
    "Scan": _scan,
    "SequenceAt": _sequence_at,
    "SequenceConstruct": lambda c: Items(tuple(c.nodes())),
    "SequenceEmpty": _sequence_empty,
    "SequenceErase": _sequence_erase,
    "SequenceInsert": _sequence_insert,
    "SequenceMap": _sequence_map,
    "SequenceLength": _sequence_length,
    "SplitToSequence": _split_to_sequence,
}
