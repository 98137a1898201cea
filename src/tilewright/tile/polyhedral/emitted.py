"""Loops of tile IR that run iterations at given times.

In: the statements of a nest and a ``RunOrder``. Out: a body, whose loops ``isl`` finds (Grosser, Verdoolaege and
Cohen, "Polyhedral AST generation is more than scanning polyhedra", TOPLAS 2015): each runs from 0, and its bounds are
expressions of loops outside and of sizes. Not its business: which order (``orders``), conditions that the data decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from math import inf
from typing import TYPE_CHECKING

from tilewright.core.compute import Buffer, Inside, Load
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, bounds, ceildiv, floordiv, is_nonneg, maximum, minimum, mod
from tilewright.core.indices import mentioned_at
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, If, Kind, Loop, Stmt, Store, Update
from tilewright.tile.polyhedral.bands import number_of
from tilewright.tile.polyhedral.isl import LateNames
from tilewright.tile.polyhedral.orders import RunOrder, Timed
from tilewright.tile.polyhedral.sets import Instance
from tilewright.tile.rewrite import Body, loop_sym, substitute_stmt
from tilewright.tile.schedule.partials import identity_of

if TYPE_CHECKING:
    import islpy as isl
else:
    from tilewright.tile.polyhedral import isl

_OP, _EXPR, _NODE = LateNames("ast_expr_op_type"), LateNames("ast_expr_type"), LateNames("ast_node_type")


@cache
def _of_two() -> Mapping[object, Callable[[Dim, Dim], Dim]]:
    """What ``isl``'s operations on two numbers are here."""
    return {
        _OP.add: lambda a, b: a + b,
        _OP.sub: lambda a, b: a - b,
        _OP.mul: lambda a, b: a * b,
        _OP.fdiv_q: floordiv,
        _OP.pdiv_q: floordiv,
        _OP.pdiv_r: mod,
        _OP.zdiv_r: mod,
        _OP.div: floordiv,
    }


@cache
def _compared() -> Mapping[object, Callable[[Dim, Dim], tuple[Dim, ...]]]:
    """What is not negative where one of ``isl``'s comparisons holds."""
    return {
        _OP.le: lambda a, b: (b - a,),
        _OP.lt: lambda a, b: (b - a - 1,),
        _OP.ge: lambda a, b: (a - b,),
        _OP.gt: lambda a, b: (a - b - 1,),
        _OP.eq: lambda a, b: (a - b, b - a),
    }


@dataclass
class NestEmitter:
    """``lanes``: how many elements a loop of lanes has, 0 for none; ``copies``: how many such loops come at a time.

    ``named`` gives a loop a name that is free.
    """

    instances: Sequence[Instance]
    order: RunOrder
    sizes: Sequence[Dim]
    lanes: int
    copies: int
    named: Callable[[str], str]
    partial: list[Buffer] = field(default_factory=list)
    """Registers that sums along lanes are added up in."""

    def body(self) -> Body:
        union = isl.UnionMap("{ }")
        for x in self.order.statements.values():
            union = union.union(isl.UnionMap.from_map(x.time))
        context = self.instances[0].domain.params()
        for instance in self.instances[1:]:
            context = context.union(instance.domain.params())
        tree = isl.AstBuild.from_context(context.gist(context)).node_from_schedule_map(union)
        return tuple(self._node(tree, {f"n{k}": s for k, s in enumerate(self.sizes)}))

    # --- statements ---

    def _node(self, node: isl.AstNode, env: Mapping[str, Dim]) -> Iterator[Stmt]:
        kind = node.get_type()
        if kind == _NODE.for_:
            yield from self._loop(node, env)
        elif kind == _NODE.if_:
            asked, body = tuple(_conditions(node.if_get_cond(), env)), self._inner(node.if_get_then_node(), env)
            yield from (If(Inside(asked), body),) if asked else body
            if node.if_has_else_node():
                otherwise = self._inner(node.if_get_else_node(), env)
                # One of these holds where not all of what was asked does: the first that fails.
                yield from (If(Inside((*asked[:k], -x - 1)), otherwise) for k, x in enumerate(asked))
        elif kind == _NODE.block:
            children = node.block_get_children()
            for n in range(children.n_ast_node()):
                yield from self._node(children.get_ast_node(n), env)
        elif kind == _NODE.user:
            yield self._statement(node.user_get_expr(), env)
        else:
            raise ScheduleError("resequence", "", "the loops have a node that has no form")

    def _inner(self, node: isl.AstNode, env: Mapping[str, Dim]) -> Body:
        return tuple(self._node(node, env))

    def _statement(self, call: isl.AstExpr, env: Mapping[str, Dim]) -> Stmt:
        """The statement of a call with its old loops' values as arguments."""
        args = [call.get_op_arg(n) for n in range(call.get_op_n_arg())]
        instance = self.instances[number_of(args[0].get_id().get_name())]
        values = {x.sym: _dim(a, env) for x, a in zip(instance.loops, args[1:], strict=True)}
        return substitute_stmt(instance.statement, values)

    # --- loops ---

    def _loop(self, node: isl.AstNode, env: Mapping[str, Dim]) -> Iterator[Stmt]:
        name = node.for_get_iterator().get_id().get_name()
        starts, step = _parts(node.for_get_init(), _OP.max, env), node.for_get_inc().get_val().to_python()
        if node.for_is_degenerate():
            yield from self._node(node.for_get_body(), {**env, name: reduce(maximum, starts)})
            return
        ends = _ends(node.for_get_cond(), env)
        end = reduce(minimum, ends)
        statement = self._lone(node.for_get_body(), name, env) if self.lanes else None
        is_innermost = node.for_get_body().get_type() == _NODE.user
        first = reduce(maximum, starts) if is_innermost or step != 1 else _nearest(starts, ends)
        n = _count(end - first, step)
        if statement is None:
            # Were it to begin at the greatest of all starts, that would be a part of every index inside.
            sym = loop_sym(self.named("c"), n)
            at = first + sym * step
            inner = self._inner(node.for_get_body(), {**env, name: at})
            late = () if is_innermost or step != 1 else tuple(x for s in starts if not is_nonneg(x := at - s))
            yield For(Loop(sym, n), (If(Inside(late), inner),) if late else inner)
        elif statement.are_sums:
            yield from self._sums(node, env, first, step, n)
        else:
            yield from self._lanes(node, env, first, step, n)

    def _lone(self, body: isl.AstNode, name: str, env: Mapping[str, Dim]) -> Timed | None:
        """The statement of a loop that may be lanes: it has nothing else, and adds up one element if it adds up any.

        Sums whose elements the data choose, as a histogram's are, stay in a plain loop, and so do those of which
        several iterations share an element, but not all.
        """
        if body.get_type() != _NODE.user:
            return None
        called = body.user_get_expr().get_op_arg(0).get_id().get_name()
        timed = self.order.statements[number_of(called)]
        if not timed.are_lanes or name != f"c{timed.last}":
            return None
        probe = Sym(self.named("probe"))
        s = self._statement(body.user_get_expr(), {**env, name: probe})
        are_apart = timed.are_sums and isinstance(s, Update) and any(probe in mentioned_at(i) for i in s.index)
        return None if are_apart else timed

    def _lanes(self, node: isl.AstNode, env: Mapping[str, Dim], first: Dim, step: int, n: Dim) -> Iterator[For]:
        """``n`` iterations as vectors, some copies of them at a time; the last vector may have fewer lanes."""
        at_once = self.lanes * self.copies
        outer = loop_sym(self.named("c"), turns := ceildiv(n, at_once))
        rest = at_once if mod(n, at_once) == 0 else minimum(at_once, n - outer * at_once)
        copy = loop_sym(self.named("copy"), copies := ceildiv(rest, self.lanes))
        width = self.lanes if mod(rest, self.lanes) == 0 else minimum(self.lanes, rest - copy * self.lanes)
        lane = Sym(self.named("lane"), 0, self.lanes - 1)
        name = node.for_get_iterator().get_id().get_name()
        at = first + (outer * at_once + copy * self.lanes + lane) * step
        body = self._inner(node.for_get_body(), {**env, name: at})
        vectors = For(Loop(lane, width, Kind.VECTOR), body)
        yield For(Loop(outer, turns), (For(Loop(copy, copies, Kind.UNROLL), (vectors,)),))

    def _sums(self, node: isl.AstNode, env: Mapping[str, Dim], first: Dim, step: int, n: Dim) -> Iterator[Stmt]:
        """A sum into one element: a partial sum for each lane, and then their sum."""
        (nest,) = self._lanes(node, env, first, step, n)
        (copies,) = nest.body
        assert isinstance(copies, For)
        (vectors,) = copies.body
        assert isinstance(vectors, For)
        (s,) = vectors.body
        assert isinstance(s, Update)
        part = Buffer(self.named("partial"), s.buffer.dtype, (self.copies, self.lanes))
        self.partial.append(part)
        start, end = self._each(), self._each()
        yield _around(start, Store(part, syms(start), identity_of(s.op, part.dtype)))
        update = Update(part, (copies.loop.sym, vectors.loop.sym), s.op, s.value)
        yield For(nest.loop, (_around((copies.loop, vectors.loop), update),))
        yield _around(end, Update(s.buffer, s.index, s.op, Load(part, syms(end))))

    def _each(self) -> tuple[Loop, Loop]:
        """Loops over all partial sums."""
        copy, lane = Sym(self.named("copy"), 0, self.copies - 1), Sym(self.named("lane"), 0, self.lanes - 1)
        return Loop(copy, self.copies, Kind.UNROLL), Loop(lane, self.lanes, Kind.VECTOR)


def _around(loops: Sequence[Loop], s: Store | Update) -> For:
    outer, inner = loops
    return For(outer, (For(inner, (s,)),))


def syms(loops: Sequence[Loop]) -> tuple[Sym, ...]:
    return tuple(x.sym for x in loops)


# --- expressions ----------------------------------------------------------------------------------------------------


def _parts(e: isl.AstExpr, extreme: object, env: Mapping[str, Dim]) -> list[Dim]:
    """The expressions of which ``e`` is the greatest, or the least: itself where it is no such ``extreme``."""
    if e.get_type() == _EXPR.op and e.get_op_type() == extreme:
        return [x for n in range(e.get_op_n_arg()) for x in _parts(e.get_op_arg(n), extreme, env)]
    return [_dim(e, env)]


def _nearest(starts: Sequence[Dim], ends: Sequence[Dim]) -> Dim:
    """The start that is never far from one of the ends, where one is: the tile's own."""

    def apart(start: Dim) -> float:
        return min(inf if (most := bounds(end - start)[1]) is None else most for end in ends)

    return min(starts, key=apart)


def _count(length: Dim, step: int) -> Dim:
    n = floordiv(length, step) + 1
    return n if is_nonneg(n) else maximum(n, 0)


def _ends(cond: isl.AstExpr, env: Mapping[str, Dim]) -> list[Dim]:
    """Expressions of which the least is the last value of a loop's variable, from its condition."""
    found = _parts(cond.get_op_arg(1), _OP.min, env)
    if cond.get_op_type() == _OP.le:
        return found
    if cond.get_op_type() == _OP.lt:
        return [x - 1 for x in found]
    raise ScheduleError("resequence", "", "a loop's condition has no form")


def _dim(e: isl.AstExpr, env: Mapping[str, Dim]) -> Dim:
    if e.get_type() == _EXPR.int:
        value: int = e.get_val().to_python()
        return value
    if e.get_type() == _EXPR.id:
        return env[e.get_id().get_name()]
    op = e.get_op_type()
    args = [_dim(e.get_op_arg(n), env) for n in range(e.get_op_n_arg())]
    if op in _of_two():
        return _of_two()[op](*args)
    if op == _OP.minus:
        return -args[0]
    if op in (_OP.min, _OP.max):
        return reduce(minimum if op == _OP.min else maximum, args)
    raise ScheduleError("resequence", "", "an expression of the loops has no form")


def _conditions(e: isl.AstExpr, env: Mapping[str, Dim]) -> Iterator[Dim]:
    """Expressions that are all at least 0 where the condition holds; those that always are do not count."""
    op = e.get_op_type()
    if op in (_OP.and_, _OP.and_then):
        for n in range(2):
            yield from _conditions(e.get_op_arg(n), env)
    elif op in _compared():
        found = _compared()[op](*(_dim(e.get_op_arg(n), env) for n in range(2)))
        yield from (x for x in found if not (is_known(x) and x >= 0))
    else:
        raise ScheduleError("resequence", "", "a condition of the loops has no form")
