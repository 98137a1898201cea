"""``torch.cond``, ``while_loop``, ``scan`` and ``map``: fx modules that become sub-graphs of ``if_`` and ``loop``.

In: the higher-order call's values, its fx modules among them. Out: nodes. A sub-graph is closed: sizes that it uses
reach it through the shapes of its inputs, or through an operand made only to carry a size.
Not its business: converting the calls inside (``fx``, of which a child importer does that).

What a sub-graph asserts of values is one more result of it for each assertion: whether it holds, which it does where
the sub-graph does not run. A loop carries these results; one of ``while_loop`` ends at the first that does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright import ops
from tilewright.core.diag import Loc
from tilewright.core.expr import Dim, Expr, Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType, bool_, i64
from tilewright.frontend.asked import carrying, with_conditions
from tilewright.frontend.index_checks import Formals
from tilewright.frontend.nodes import dim_scalar, reshape
from tilewright.frontend.torch.aten.call import SymFloat, Unsupported, as_node

if TYPE_CHECKING:
    from tilewright.frontend.torch.fx.walk import Importer


def convert_cond(importer: Importer, b: Builder, values: Sequence[Any]) -> list[Node]:
    """``cond(pred, true_fn, false_fn, operands)``."""
    pred, true_fn, false_fn, operands = values
    captures = _Captures(b, operands)
    made = [_branch(importer, m, captures, name) for m, name in ((true_fn, "true"), (false_fn, "false"))]
    branches, texts = with_conditions(made)
    condition = reshape(b, as_node(b, pred, bool_), ())
    node = b(ops.if_, condition, *captures.nodes, then_branch=branches[0], else_branch=branches[1])
    results = b.results(node)
    n = len(results) - len(texts)
    _ask(importer, b, texts, results[n:])
    return list(results[:n])


def convert_while(importer: Importer, b: Builder, values: Sequence[Any]) -> list[Node]:
    """``while_loop(cond_fn, body_fn, carried, additional)``: the body computes the next condition too."""
    cond_fn, body_fn, carried, additional = values
    state = [_tensor(b, x) for x in carried]
    captures = _Captures(b, additional)
    first = _inline(importer, cond_fn, b.pool, [*state, *captures.values])[0]
    loop = _LoopBody(importer, b, state, captures)
    after = loop.inline(importer, body_fn, [*loop.now, *loop.given])
    again = reshape(loop.b, loop.inline(importer, cond_fn, [*after, *loop.given])[0], ())
    return loop.results(importer, b.const(i64.max, i64), reshape(b, first, ()), again, after)


def convert_scan(importer: Importer, b: Builder, values: Sequence[Any]) -> list[Node]:
    """``scan(combine_fn, init, xs, additional)``: a loop that takes one slice of each of ``xs`` per step."""
    combine_fn, init, xs, additional = values
    state = [_tensor(b, x) for x in init]
    sources = [_tensor(b, x) for x in xs]
    if not sources:
        raise Unsupported("a scan over nothing", "use torch.while_loop")
    length = sources[0].shape[0]
    loop = _LoopBody(importer, b, state, _Captures(b, [*sources, *additional]))
    rows = [loop.b(ops.gather, x, loop.i, axis=0) for x in loop.given[: len(sources)]]
    after = loop.inline(importer, combine_fn, [*loop.now, *rows, *loop.given[len(sources) :]])
    return loop.results(importer, dim_scalar(b, length, i64), b.const(True, bool_), None, after, length)


def convert_map(importer: Importer, b: Builder, values: Sequence[Any]) -> list[Node]:
    """``map(f, xs, additional)``: a scan that carries nothing."""
    body, xs, additional = values
    return convert_scan(importer, b, (body, (), xs, additional))


class _Captures:
    """Operands of a sub-graph: tensors as they are, sizes through an operand of that length, numbers in place."""

    def __init__(self, b: Builder, values: Sequence[Any]) -> None:
        self.values = [b.const(x) if isinstance(x, bool) else x for x in values]
        self.nodes = [x for x in self.values if isinstance(x, Node)]
        known = {d for n in self.nodes for d in n.shape}
        for size in self.values:
            if isinstance(size, Sym) and size not in known:
                self.nodes.append(b(ops.full, value=0.0, dtype=bool_, shape=(size,)))
        if any(isinstance(x, SymFloat) for x in self.values):
            raise Unsupported("a sub-graph over a float computed from sizes", "compute it from tensors")

    def formals(self, pool: Pool, known: Formals) -> tuple[list[Any], list[Node]]:
        """The values inside of a sub-graph, and its inputs; ``known`` gets what they stand for."""
        inputs = [pool.input(f"capture_{k}", n.type, n.loc) for k, n in enumerate(self.nodes)]
        known.outside.update(zip(inputs, self.nodes, strict=True))
        rest = iter(inputs)
        return [next(rest) if isinstance(x, Node) else x for x in self.values], inputs


@dataclass(frozen=True)
class _Asked:
    """What a sub-graph asks each time it runs: of its sizes, and of values, by the text of a failure."""

    rules: dict[Expr, None] = field(default_factory=dict)
    checks: dict[str, Node] = field(default_factory=dict)


class _LoopBody:
    """A loop's body while it is made, in a pool of its own; ``outside`` is where the loop itself stands.

    It is given the number of the trip, ``now``, which is what ``state`` has become, and ``given``, what is captured.
    """

    def __init__(self, importer: Importer, outside: Builder, state: Sequence[Node], captures: _Captures) -> None:
        pool, loc = Pool(), outside.loc
        self.outside, self.state, self.captures = outside, state, captures
        self.b = Builder(pool, loc)
        self.i, self.going = (pool.input(n, TensorType(d, ())) for n, d in (("i", i64), ("going", bool_)))
        self.now = [pool.input(f"carried_{k}", x.type, loc) for k, x in enumerate(state)]
        importer.formals.own.update((self.i, *self.now))
        self.given, self.formals = captures.formals(pool, importer.formals)
        self.asked = _Asked()

    def inline(self, importer: Importer, module: Any, values: Sequence[Any]) -> list[Node]:
        """What a module gives in the body."""
        return [_tensor(self.b, x) for x in _inline(importer, module, self.b.pool, values, self.asked)]

    def results(
        self, importer: Importer, limit: Node, first: Node, again: Node | None, after: Sequence[Node], length: Dim = -1
    ) -> list[Node]:
        """The loop's: the last of ``state``, and what ``after`` has behind it of every trip.

        Another trip follows where ``again`` and all that the body asks hold; without ``again`` all trips are made, as
        each has its place among the results. Behind ``state`` is carried whether what the body asks held so far.
        """
        outside, b, n, checks = self.outside, self.b, len(self.state), self.asked.checks
        held = [b.pool.input(f"held_{k}", TensorType(bool_, ()), b.loc) for k in range(len(checks))]
        made = (b.const(True, bool_) if again is None else again, *after)
        names = ("going", *(f"result_{k}" for k in range(len(after))))
        inputs = (self.i, self.going, *self.now, *self.formals)
        body = Graph("body", b.pool, inputs, made, names, tuple(self.asked.rules)).with_checks(checks)
        body = carrying(b, body, held, n, is_ended=again is not None)
        start = [*self.state, *(outside.const(True, bool_) for _ in held)]
        node = outside(
            ops.loop, limit, first, *start, *self.captures.nodes, body=body, n_carried=len(start), length=length
        )
        results = outside.results(node)
        _ask(importer, outside, tuple(checks), results[n : len(start)])
        return [*results[:n], *results[len(start) :]]


def _ask(importer: Importer, b: Builder, texts: Sequence[str], holds: Sequence[Node]) -> None:
    """Let what is around control flow ask what came out of it."""
    for text, condition in zip(texts, holds, strict=True):
        importer.require_truth(b, condition, text)


def _branch(importer: Importer, module: Any, captures: _Captures, name: str) -> Graph:
    pool = Pool()
    values, inputs = captures.formals(pool, importer.formals)
    b, kept = Builder(pool), _Asked()
    outputs = tuple(_tensor(b, x) for x in _inline(importer, module, pool, values, kept))
    names = tuple(f"output_{k}" for k in range(len(outputs)))
    return Graph(name, pool, tuple(inputs), outputs, names, tuple(kept.rules)).with_checks(kept.checks)


def _inline(
    importer: Importer, module: Any, pool: Pool, values: Sequence[Any], kept: _Asked | None = None
) -> list[Any]:
    """The module's calls in ``pool``, its placeholders standing for ``values``; what they ask is added to ``kept``, to
    what ``importer`` asks where there is none."""
    child = importer.child(pool, module)
    if kept is not None and importer.checks is not None:
        child.checks = kept.checks
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    child.env.update(zip(placeholders, values, strict=True))
    outputs = child.run(module.graph)
    if kept is None:
        importer.constraints += [e for e in child.constraints if e not in importer.constraints]
    else:
        kept.rules.update(dict.fromkeys(child.constraints))
    if child.problems:
        importer.add_problems(child.problems)
        named = ", ".join(dict.fromkeys(p.op for p in child.problems))
        raise Unsupported(f"its sub-graph holds unsupported calls: {named}", "express them by other calls")
    return outputs


def _tensor(b: Builder, value: Any) -> Node:
    if isinstance(value, Node):
        return value
    if isinstance(value, bool | int | float):
        return as_node(b.at(Loc("a number")), value)
    raise Unsupported("a size as a value carried by control flow", "carry a tensor instead")
