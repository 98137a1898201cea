"""A computation as plain serial loops: always right, whatever the dtype or index; the start of every schedule.

In: ``core.compute.Computation``. Out: an unscheduled ``Kernel``: per stage one nest, two (init and update) for a
reduction; temporaries are kernel parameters of role ``tmp``.
Not its business: speed.

Cases: plain assignment -> Store; ``update`` -> Update; reduction by name -> Store of the initial value, then Update;
custom combiner -> Store per state, then Fold; reduction *and* update by different operations -> through a temporary;
Serial -> a serial loop around its items; an index that is a value is passed through (gather, scatter).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.core.compute import (
    Axis,
    Buffer,
    Computation,
    IndexLike,
    Load,
    Serial,
    Stage,
    substitute_index,
    substitute_value,
)
from tilewright.core.expr import Dim, Sym, substitute, symbols
from tilewright.tile.ir import Fold, For, Kernel, Kind, Loop, Place, Role, Space, Stmt, Store, Update
from tilewright.tile.rewrite import Body, loop_sym, sizes_of

_Leaf = Callable[[Mapping[Sym, Dim]], Body]


def lower(computation: Computation, name: str = "kernel", constants: Container[Buffer] = ()) -> Kernel:
    """The unscheduled kernel. Parameters: inputs, then outputs, then temporaries, each in the computation's order."""
    lowering = _Lowering({s.name for s in _free_symbols(computation)}, temps=list(computation.temps))
    body = lowering.items(computation.items, {})
    places = _places(computation, lowering.temps, constants)
    return Kernel(name, places, sizes_of(body, tuple(p.buffer for p in places)), body)


def _places(computation: Computation, temps: Sequence[Buffer], constants: Container[Buffer]) -> tuple[Place, ...]:
    roles: dict[Buffer, Role] = {b: Role.CONST if b in constants else Role.IN for b in computation.inputs}
    roles |= dict.fromkeys(computation.outputs, Role.OUT)
    for t in temps:
        roles.setdefault(t, Role.TMP)
    return tuple(Place(b, Space.GLOBAL, role) for b, role in roles.items())


def _free_symbols(computation: Computation) -> set[Sym]:
    found: set[Sym] = set()
    for b in (*computation.inputs, *computation.outputs, *computation.temps):
        for d in b.shape:
            found |= symbols(d)
    for axis in _axes(computation.items):
        found |= symbols(axis.extent)
    return found


def _axes(items: Sequence[Stage | Serial]) -> Iterator[Axis]:
    for item in items:
        if isinstance(item, Serial):
            yield item.axis
            yield from _axes(item.body)
        else:
            yield from item.axes
            yield from item.reduction.axes if item.reduction else ()


@dataclass
class _Lowering:
    """Gives every loop its own name while stages become nests."""

    taken: set[str]
    temps: list[Buffer] = field(default_factory=list)

    def items(self, items: Sequence[Stage | Serial], env: Mapping[Sym, Dim]) -> Body:
        body: list[Stmt] = []
        for item in items:
            if isinstance(item, Serial):
                loop, inner = self._loop(item.axis, env)
                body.append(For(loop, self.items(item.body, inner)))
            else:
                body.extend(self._stage(item, env))
        return tuple(body)

    def _stage(self, stage: Stage, env: Mapping[Sym, Dim]) -> Iterator[Stmt]:
        red = stage.reduction
        if red is None:
            yield self._nest(stage.axes, (), env, lambda e: (_write(stage, stage.update, e),))
        elif stage.update is None:
            yield self._nest(stage.axes, (), env, lambda e: _inits(stage, e))
            yield self._nest(stage.axes, red.axes, env, lambda e: (_step(stage, e),))
        elif stage.update == red.op:
            yield self._nest(stage.axes, red.axes, env, lambda e: (_step(stage, e),))
        else:
            yield from self._through_temp(stage, env)

    def _through_temp(self, stage: Stage, env: Mapping[Sym, Dim]) -> Iterator[Stmt]:
        """``out op= reduce(...)`` with another operation than the reduction's: reduce into a temporary first."""
        temp = Buffer(f"{stage.out.name}_red{len(self.temps)}", stage.out.dtype, tuple(a.extent for a in stage.axes))
        self.temps.append(temp)
        at = tuple(a.sym for a in stage.axes)
        yield from self._stage(Stage((temp,), stage.axes, at, stage.exprs, stage.reduction), env)
        yield from self._stage(Stage(stage.outs, stage.axes, stage.index, (Load(temp, at),), None, stage.update), env)

    def _nest(self, axes: Sequence[Axis], inner: Sequence[Axis], env: Mapping[Sym, Dim], leaf: _Leaf) -> Stmt:
        loops: list[Loop] = []
        for axis in (*axes, *inner):
            loop, env = self._loop(axis, env)
            loops.append(loop)
        body = leaf(env)
        for loop in reversed(loops):
            body = (For(loop, body),)
        return body[0] if len(body) == 1 else For(Loop(self._fresh("once", 1), 1), body)

    def _loop(self, axis: Axis, env: Mapping[Sym, Dim]) -> tuple[Loop, Mapping[Sym, Dim]]:
        extent = substitute(axis.extent, env)
        sym = self._fresh(axis.sym.name, extent)
        return Loop(sym, extent, Kind.SERIAL), {**env, axis.sym: sym}

    def _fresh(self, base: str, extent: Dim) -> Sym:
        name, n = base, 0
        while name in self.taken:
            n += 1
            name = f"{base}_{n}"
        self.taken.add(name)
        return loop_sym(name, extent)


def _at(index: Sequence[IndexLike], env: Mapping[Sym, Dim]) -> tuple[IndexLike, ...]:
    return tuple(substitute_index(i, env) for i in index)


def _write(stage: Stage, update: str | None, env: Mapping[Sym, Dim]) -> Stmt:
    index, value = _at(stage.index, env), substitute_value(stage.expr, env)
    return Store(stage.out, index, value) if update is None else Update(stage.out, index, update, value)


def _inits(stage: Stage, env: Mapping[Sym, Dim]) -> Body:
    assert stage.reduction is not None
    index, inits = _at(stage.index, env), stage.reduction.init
    return tuple(Store(b, index, substitute_value(v, env)) for b, v in zip(stage.outs, inits, strict=True))


def _step(stage: Stage, env: Mapping[Sym, Dim]) -> Stmt:
    assert stage.reduction is not None
    op, index = stage.reduction.op, _at(stage.index, env)
    values = tuple(substitute_value(v, env) for v in stage.exprs)
    return Update(stage.out, index, op, values[0]) if isinstance(op, str) else Fold(stage.outs, index, op, values)
