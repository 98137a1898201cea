"""While, if, case and scan: regions that become sub-graphs of ``loop`` and ``if_``.

In: calls with regions. Out: nodes or pairs. A while that counts is a loop with a number of trips: JAX writes its scans
and fori_loops so. What such a loop does not change is an operand from outside, and a tensor of which each trip writes
the row of its number is a stack of rows, which no trip copies.
Not its business: converting the operations inside (``walk``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, bounds, maximum
from tilewright.core.graph import Builder, Graph, Node, Pool, topological
from tilewright.core.types import TensorType, bool_, i64
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result, Value
from tilewright.frontend.stablehlo.ops.source import array_of

Convert = Callable[[Operation], Result]


def flat(values: Sequence[Value]) -> list[Node]:
    """The real tensors in values."""
    return [n for x in values for n in ((x.re, x.im) if isinstance(x, Pair) else (x,))]


def like(values: Sequence[Value], nodes: Sequence[Node]) -> list[Value]:
    """Nodes as values of the kinds of ``values``."""
    rest = iter(nodes)
    return [Pair(next(rest), next(rest)) if isinstance(x, Pair) else next(rest) for x in values]


def _whole(made: Sequence[Any]) -> list[Value]:
    """The values that a region gives; problems inside have been noted."""
    found = [x for x in made if isinstance(x, Node | Pair)]
    if len(found) < len(made):
        raise NoForm("its region holds operations without a form here", "see the problems listed before")
    return found


def _expanded(c: Operation, made: Sequence[Node], types: Sequence[TensorType]) -> list[Node]:
    return [c.expand(x, t.shape) for x, t in zip(made, types, strict=True)]


# --- branches -------------------------------------------------------------------------------------------------------


def _if(c: Operation) -> Result:
    condition = c.node(0)
    truth = c.known.truth(condition)
    then, otherwise = c.op.regions
    if truth is not None:
        return _whole(c.walker.block((then if truth else otherwise).blocks[0], ()))
    return _branches(c, condition, [then, otherwise])


def _case(c: Operation) -> Result:
    """A number outside of the branches' means the last one."""
    index = c.node(0)
    number = c.known.one(index)
    regions = list(c.op.regions)
    if is_known(number):
        chosen = regions[number] if 0 <= number < len(regions) else regions[-1]
        return _whole(c.walker.block(chosen.blocks[0], ()))
    return _chosen(c, index, 0, regions)


def _chosen(c: Operation, index: Node, first: int, regions: Sequence[Any]) -> list[Value]:
    """One of several regions, of which the first has the number ``first``: a chain of branches."""
    if len(regions) == 1:
        return _whole(c.walker.block(regions[0].blocks[0], ()))
    return _branches(
        c, c.b(ops.eq, index, c.b.const(first, index.dtype)), [regions[0], (index, first + 1, regions[1:])]
    )


def _branches(c: Operation, condition: Node, regions: Sequence[Any]) -> list[Value]:
    """Two regions of no arguments, or a region and what :func:`_chosen` takes."""
    children = [c.walker.child(Pool()) for _ in regions]
    made: list[list[Value]] = []
    for child, region in zip(children, regions, strict=True):
        inner = Operation(child, Builder(child.scope.pool, c.b.loc), c.op, ())
        if isinstance(region, tuple):
            index = child.scope.inner(region[0])
            assert isinstance(index, Node)
            made.append(_chosen(inner, index, *region[1:]))
        else:
            made.append(_whole(child.block(region.blocks[0], ())))
    if not any(made):  # what JAX leaves of a choice of which nobody reads a result
        return []
    captured = list(dict.fromkeys(n for child in children for n in child.scope.captured))
    graphs = []
    for child, values, name in zip(children, made, ("then", "otherwise"), strict=True):
        inputs: list[Node] = []
        for node in captured:
            child.scope.inner(node)
            inputs.append(child.scope.captured.get(node) or child.scope.pool.input(f"unread_{len(inputs)}", node.type))
        results = tuple(flat(values))
        graphs.append(Graph(name, child.scope.pool, tuple(inputs), results, _names(results), child.rules()))
    node = c.b(ops.if_, c.reshape(condition, ()), *captured, then_branch=graphs[0], else_branch=graphs[1])
    return like(made[0], c.b.results(node))


def _names(results: Sequence[Node]) -> tuple[str, ...]:
    return tuple(f"result_{k}" for k in range(len(results)))


# --- loops ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _TripCounter:
    """The carried value that counts: its place, where it starts, how many trips there are, as a node and if known."""

    place: int
    start: Node
    trips: Node
    n_trips: Dim | None


def _while(c: Operation) -> Result:
    condition, body = (r.blocks[0] for r in c.op.regions)
    state = list(c.operands)
    returned = list(body.operations)[-1].operation.operands
    # What the body gives back as it got it is an operand from outside; what the condition reads of it, too.
    constant = {k for k, x in enumerate(returned) if x == body.arguments[k]}
    counter = _counter_of(c, condition, body, state, constant)
    own = {k for k in range(len(state)) if k not in constant and (counter is None or k != counter.place)}
    child = c.walker.child(Pool())
    pool = child.scope.pool
    b = Builder(pool, c.b.loc)
    i, going = pool.input("i", TensorType(i64, ())), pool.input("going", TensorType(bool_, ()))
    inner = Operation(child, b, c.op, ())
    now: list[Value | None] = [None] * len(state)
    carried: list[Node] = []
    for k in sorted(own):
        nodes = [pool.input(f"carried_{k}_{n}", x.type, c.b.loc) for n, x in enumerate(flat([state[k]]))]
        now[k], carried = like([state[k]], nodes)[0], [*carried, *nodes]
    for k in sorted(constant):
        held = child.scope.inner(state[k])
        assert isinstance(held, Node | Pair)
        now[k] = held
    if counter is not None:
        now[counter.place] = _count(c, inner, i, counter)
    arguments = [x for x in now if x is not None]
    after = _whole(child.block(body, arguments))
    results = _expanded(inner, flat([after[k] for k in sorted(own)]), [x.type for x in carried])
    again: Node = going
    first: Node = c.b.const(True, bool_)
    if counter is None:
        again = inner.reshape(flat(_whole(child.block(condition, after)))[0], ())
        first = c.reshape(flat(_whole(c.walker.block(condition, state)))[0], ())
    loop = _Loop(c, child.scope.captured, pool, (i, going), carried, results, flat([state[k] for k in sorted(own)]))
    made = loop.run(again, first, counter, child)
    final = iter(like([state[k] for k in sorted(own)], made))
    out: list[Value] = []
    for k, x in enumerate(state):
        if counter is not None and k == counter.place:
            past = c.b(ops.add, c.cast(counter.start, i64), counter.trips)
            out.append(c.cast(past, counter.start.dtype))
        else:
            out.append(x if k in constant else next(final))
    return out


def _counter_of(
    c: Operation, condition: Any, body: Any, state: Sequence[Value], constant: set[int]
) -> _TripCounter | None:
    """The counter of ``for (i = start; i < end; i += 1)``, where a while is one."""
    *before, last = [op.operation for op in condition.operations if op.operation.name != "stablehlo.constant"]
    if len(before) != 1 or before[0].name != "stablehlo.compare" or last.operands[0] != before[0].results[0]:
        return None
    left, right = before[0].operands
    arguments = list(condition.arguments)
    if "LT" not in str(before[0].attributes["comparison_direction"]) or left not in arguments:
        return None
    place = arguments.index(left)
    start = state[place]
    step = list(body.operations)[-1].operation.operands[place].owner
    if not isinstance(start, Node) or start.shape or not start.dtype.is_integer or not _adds_one(c, step, body, place):
        return None
    end = _outside(c, right, arguments, state, constant)
    if not isinstance(end, Node):
        return None
    n_start, n_end = c.known.size(start), c.known.size(end)
    if n_start is not None and n_end is not None:
        n_trips = maximum(n_end - n_start, 0)
        return _TripCounter(place, start, c.reshape(c.dims([n_trips]), ()), n_trips)
    trips = c.b(ops.maximum, c.b(ops.sub, c.cast(end, i64), c.cast(start, i64)), c.b.const(0, i64))
    return _TripCounter(place, start, trips, None)


def _outside(
    c: Operation, value: Any, arguments: Sequence[Any], state: Sequence[Value], constant: set[int]
) -> Value | None:
    """A value that a region reads and no trip changes, as it is outside of the loop."""
    if value in arguments:
        place = arguments.index(value)
        return state[place] if place in constant else None
    if getattr(value.owner, "name", "") == "stablehlo.constant":
        return c.b.const(array_of(value.owner))
    found = c.walker.scope.find(value)
    return found if isinstance(found, Node | Pair) else None


def _adds_one(c: Operation, step: Any, body: Any, place: int) -> bool:
    """Is ``step`` the operation that adds 1 to the body's argument at ``place``?"""
    if getattr(step, "name", "") != "stablehlo.add":
        return False
    terms = list(step.operands)
    if body.arguments[place] not in terms:
        return False
    others = [x for x in terms if x != body.arguments[place]]
    found = _outside(c, others[0], list(body.arguments), (), set()) if others else None
    return isinstance(found, Node) and c.known.one(found) == 1


def _count(c: Operation, inner: Operation, i: Node, counter: _TripCounter) -> Node:
    """The counter within the loop: the number of the trip and where it starts."""
    start = inner.walker.scope.inner(counter.start)
    assert isinstance(start, Node)
    first = c.known.size(counter.start)
    node = inner.cast(i, counter.start.dtype)
    if first != 0:
        node = inner.b(ops.add, node, start)
    if first is not None and counter.n_trips is not None:
        last = bounds(counter.n_trips)[1]
        last = None if last is None else max(last - 1, 0)
        inner.known.count(i, last)
        inner.known.count(node, last, first)
    return node


@dataclass
class _Loop:
    """A loop before it is a node: its body's inputs, what they become, and what they start from."""

    c: Operation
    captured: dict[Node, Node]
    pool: Pool
    first_inputs: tuple[Node, Node]
    carried: list[Node]
    results: list[Node]
    starts: list[Node]

    def run(self, again: Node, first: Node, counter: _TripCounter | None, child: Any) -> list[Node]:
        """The node; the last value of each carried tensor."""
        c, n = self.c, len(self.carried)
        rows = self._rows(child, counter, again)
        kept = [k for k in range(n) if k not in rows]
        scanned = [rows[k][0] for k in sorted(rows)]
        outputs = (again, *(self.results[k] for k in kept), *scanned)
        if len(outputs) == 1:
            return []
        inputs = (*self.first_inputs, *(self.carried[k] for k in kept), *self.captured.values())
        body = Graph("body", self.pool, inputs, outputs, ("going", *_names(outputs[1:])), child.rules())
        trips = c.b.const(i64.max, i64) if counter is None else counter.trips
        extra: dict[str, Any] = {}
        if rows:
            assert counter is not None
            extra["length"] = counter.n_trips
        node = c.b(
            ops.loop, trips, first, *(self.starts[k] for k in kept), *self.captured, body=body, n_carried=len(kept),
            **extra,
        )  # fmt: skip
        made = list(c.b.results(node))
        found = dict(zip([*kept, *sorted(rows)], made, strict=True))
        for k, (_, is_backwards) in rows.items():
            if is_backwards:
                found[k] = c.b(ops.reverse, found[k], axes=(0,))
        return [found[k] for k in range(n)]

    def _rows(self, child: Any, counter: _TripCounter | None, again: Node) -> dict[int, tuple[Node, bool]]:
        """For each carried tensor that is a stack of rows: the row, and whether the last row is written first."""
        if counter is None or counter.n_trips is None:
            return {}
        trip = child.known.one(self.first_inputs[0])
        readers: dict[Node, list[Node]] = {}
        for node in topological((again, *self.results)):
            for x in node.inputs:
                readers.setdefault(x, []).append(node)
        found: dict[int, tuple[Node, bool]] = {}
        for k, (before, after) in enumerate(zip(self.carried, self.results, strict=True)):
            if after.op is not ops.dynamic_update_slice or after.inputs[0] is not before:
                continue
            if readers.get(before) != [after] or after in self.results[:k] or after in self.results[k + 1 :]:
                continue
            n, *rest = before.shape
            starts = child.known.of(after.inputs[2])
            if n != counter.n_trips or starts is None or any(s != 0 for s in starts[1:]):
                continue
            if after.inputs[1].shape != (1, *rest) or readers.get(after) or trip is None:
                continue
            if starts[0] in (trip, n - 1 - trip):
                row = Builder(self.pool, after.loc)(ops.reshape, after.inputs[1], shape=tuple(rest))
                found[k] = (row, starts[0] != trip)
        return found


# --- scans ----------------------------------------------------------------------------------------------------------


def _scan(c: Operation) -> Result:
    """A loop over slices along an axis: the region takes those of the inputs and what is carried, and gives both."""
    n = int(c.attribute("operandSegmentSizes")[0])
    inputs, carried, axis = c.operands[:n], c.operands[n:], c.integer("dimension")
    if not inputs:
        raise NoForm("a scan without inputs", "write a while")
    length = inputs[0].shape[axis]

    def turned(x: Node) -> Node:
        return c.b(ops.reverse, x, axes=(axis,)) if c.flag("is_reverse") else x

    child = c.walker.child(Pool())
    pool = child.scope.pool
    b = Builder(pool, c.b.loc)
    i, going = pool.input("i", TensorType(i64, ())), pool.input("going", TensorType(bool_, ()))
    starts, whole = flat(carried), [turned(x) for x in flat(inputs)]
    now = [pool.input(f"carried_{k}", x.type) for k, x in enumerate(starts)]
    read = [pool.input(f"scanned_{k}", x.type) for k, x in enumerate(whole)]
    slices = like(inputs, [b(ops.gather, x, i, axis=axis) for x in read])
    made = _whole(child.block(c.op.regions[0].blocks[0], [*slices, *like(carried, now)]))
    rows, after = made[: len(made) - len(carried)], made[len(made) - len(carried) :]
    outputs = (going, *flat(after), *flat(rows))
    body = Graph("scan", pool, (i, going, *now, *read), outputs, ("going", *_names(outputs[1:])), child.rules())
    trips = c.reshape(c.dims([length]), ())
    operands = (trips, c.b.const(True, bool_), *starts, *whole)
    found = c.b.results(c.b(ops.loop, *operands, body=body, n_carried=len(starts), length=length))
    stacks = [turned(_first_axis_at(c, x, axis)) for x in found[len(starts) :]]
    return [*like(rows, stacks), *like(carried, found[: len(starts)])]


def _first_axis_at(c: Operation, x: Node, axis: int) -> Node:
    rest = range(1, len(x.shape))
    return c.transpose(x, (*rest[:axis], 0, *rest[axis:]))


TABLE: Mapping[str, Convert] = {
    "stablehlo.while": _while,
    "stablehlo.if": _if,
    "stablehlo.case": _case,
    "chlo.scan": _scan,
}
