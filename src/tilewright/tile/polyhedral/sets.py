"""A kernel's statements as integer sets: which iterations run, when, and which elements each touches.

In: a ``Kernel``. Out: for each statement its domain, its time and its accesses, as ``isl`` maps whose parameters are
the kernel's sizes. Not its business: what depends on what (``dependences``).

Times are ``2d + 1`` vectors (Feautrier, "Some efficient solutions to the affine scheduling problem, part II", 1992):
the place in each body on the way down and each loop's variable, in turn. An index that the data decide may be any
element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.core.compute import Buffer, IndexLike
from tilewright.core.dims import is_known
from tilewright.core.expr import BinaryExpr, Dim, Expr, Mul, Sym, symbol_order, symbols
from tilewright.core.indices import chosen, is_chosen, placed
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Fold, For, If, Kernel, Loop, Stmt, Store, Update, walk
from tilewright.tile.rewrite import Body, loads_of

if TYPE_CHECKING:
    import islpy as isl
else:
    from tilewright.tile.polyhedral import isl

_SPELLED = {
    "floordiv": "floor(({a})/{b})",
    "mod": "(({a}) mod {b})",
    "min": "min({a}, {b})",
    "max": "max({a}, {b})",
}


@dataclass(frozen=True)
class ElementAccess:
    """One read or write of a statement. ``where`` maps iterations to elements; ``op`` is a commutative update's."""

    statement: int
    buffer: Buffer
    where: isl.Map
    writes: bool
    op: str = ""

    is_exact: bool = True
    """Does each iteration touch one element? Where the data decide, it is any of them."""


@dataclass(frozen=True)
class Instance:
    """A statement with all of its iterations; ``time`` maps them to when they run."""

    statement: Stmt
    loops: tuple[Loop, ...]

    path: tuple[int, ...]
    """Its number in each body on the way down, from the outermost."""

    domain: isl.Set
    time: isl.Map
    accesses: tuple[ElementAccess, ...]


@dataclass(frozen=True)
class _Position:
    """Where a statement stands: the loops around it, and its number in each body from the outermost on."""

    statement: Store | Update | Fold
    loops: tuple[Loop, ...]
    path: tuple[int, ...]


LARGE = 16
"""Numbers from here on may be parameters: loops of so many iterations are not told apart by hand."""
NEAR = 4
"""So far from a number's parameter is another one that is spelled by it, as ``n - 1`` is."""


def instances(kernel: Kernel, numbers: Sequence[int] = ()) -> tuple[Instance, ...]:
    """Every statement that touches memory, in program order.

    ``numbers`` are parameters as sizes are, and what is found holds for any other large ones in their place: an integer
    program gets far larger by large coefficients than by parameters.

    ``ScheduleError`` where an extent or index is not affine: a product of loops, or a quotient by a size.
    """
    found = list(_places(kernel.body, (), ()))
    depth = max((len(x.loops) for x in found), default=0)
    ids = {b: k for k, b in enumerate(dict.fromkeys(b for x in found for b in _buffers(x.statement)))}
    return tuple(_instance(kernel, x, k, depth, ids, numbers) for k, x in enumerate(found))


def parameters(kernel: Kernel) -> list[Sym]:
    """The sizes that loops and indices depend on: ``n0``, ``n1``, ... of the sets."""
    loops = {x.loop.sym for x in walk(kernel.body) if isinstance(x, For)}
    return sorted({s for d in _dims(kernel) for s in symbols(d)} - loops, key=symbol_order)


def large_numbers(kernel: Kernel) -> list[int]:
    """Extents of loops that may be parameters, of those that are near to each other the largest."""
    found: list[int] = []
    for n in sorted(
        {c for s in walk(kernel.body) if isinstance(s, For) for c in _constants(s.loop.extent)}, reverse=True
    ):
        if n >= LARGE + NEAR and (not found or found[-1] - n > NEAR):
            found.append(n)
    return found


def domain_text(kernel: Kernel, x: Instance, variables: Mapping[str, Dim]) -> str:
    """The iterations of a statement as ``isl`` writes sets, in the kernel's own names of sizes.

    ``variables`` are what each iteration is called by instead of its loops: expressions of those and of sizes.
    """
    inner = {loop.sym: f"i{d}" for d, loop in enumerate(x.loops)}
    name = x.domain.get_tuple_name()
    text = _Text(kernel, inner, name, ())
    outer = [f"v{d}" for d in range(len(variables))]
    equal = [f"{v} = {text.of(e)}" for v, e in zip(outer, variables.values(), strict=True)]
    made = x.domain.apply(isl.Map(text.whole(f"{name}[{text.inside}] -> {name}[{', '.join(outer)}]", equal))).coalesce()
    for d, variable in enumerate(variables):
        made = made.set_dim_name(isl.dim_type.set, d, variable)
    for d, size in enumerate(text.sizes):
        at = made.find_dim_by_name(isl.dim_type.param, f"n{d}")
        if at >= 0:
            made = made.set_dim_name(isl.dim_type.param, at, size.name)
    return str(made)


def _constants(e: Dim) -> Iterator[int]:
    if is_known(e):
        yield e
    elif isinstance(e, BinaryExpr):
        if e.op in ("min", "max"):
            yield from _constants(e.a)
            yield from _constants(e.b)
    elif not isinstance(e, Sym | Mul):
        yield e.const
        for a, _ in e.terms:
            yield from _constants(a)


def _places(body: Body, loops: tuple[Loop, ...], path: tuple[int, ...]) -> Iterator[_Position]:
    for k, s in enumerate(_unguarded(body)):
        match s:
            case For():
                yield from _places(s.body, (*loops, s.loop), (*path, k))
            case Store() | Update() | Fold():
                yield _Position(s, loops, (*path, k))


def _unguarded(body: Body) -> Iterator[Stmt]:
    """The statements of a body and of guards in it: a guard's condition is not asked, so all iterations count."""
    for s in body:
        if isinstance(s, If):
            yield from _unguarded(s.body)
        else:
            yield s


def _buffers(s: Store | Update | Fold) -> Iterator[Buffer]:
    yield from s.buffers if isinstance(s, Fold) else (s.buffer,)
    yield from (x.buffer for x in loads_of(s))


def _instance(
    kernel: Kernel, place: _Position, k: int, depth: int, ids: Mapping[Buffer, int], numbers: Sequence[int]
) -> Instance:
    names = {x.sym: f"i{d}" for d, x in enumerate(place.loops)}
    text = _Text(kernel, names, f"S{k}", numbers)
    domain = isl.Set(text.whole(f"S{k}[{text.inside}]", text.bounds(place.loops)))
    when = _time(place, [names[x.sym] for x in place.loops], depth)
    time = isl.Map(text.whole(f"S{k}[{text.inside}] -> T[{', '.join(when)}]", [])).intersect_domain(domain)

    def access(buffer: Buffer, index: tuple[IndexLike, ...], *, writes: bool, op: str = "") -> ElementAccess:
        where = isl.Map(text.access(index, ids[buffer])).intersect_domain(domain)
        return ElementAccess(k, buffer, where, writes, op, not chosen(index))

    s = place.statement
    made = [access(x.buffer, x.index, writes=False) for x in loads_of(s)]
    match s:
        case Store():
            made.append(access(s.buffer, s.index, writes=True))
        case Update():
            made += [access(s.buffer, s.index, writes=w, op=s.op) for w in (False, True)]
        case Fold():
            op = f"fold {id(s.combiner)}" if s.combiner.is_commutative else ""
            made += [access(b, s.index, writes=w, op=op) for b in s.buffers for w in (False, True)]
    return Instance(s, place.loops, place.path, domain, time, tuple(made))


def _time(place: _Position, variables: list[str], depth: int) -> list[str]:
    """Places and variables in turn, padded with zeros."""
    found = [str(place.path[0])]
    for variable, at in zip(variables, place.path[1:], strict=True):
        found += [variable, str(at)]
    return found + ["0"] * (2 * depth + 1 - len(found))


class _Text:
    """Expressions in ``isl``'s syntax: loops by depth, sizes by number."""

    def __init__(self, kernel: Kernel, names: Mapping[Sym, str], statement: str, numbers: Sequence[int]) -> None:
        self.statement, self.inside = statement, ", ".join(names.values())
        self.sizes = parameters(kernel)
        self.numbers = {n: f"n{len(self.sizes) + k}" for k, n in enumerate(numbers)}
        self.names = {**{s: f"n{k}" for k, s in enumerate(self.sizes)}, **names}

    def whole(self, what: str, conditions: Iterable[str]) -> str:
        given = [*conditions]
        for s in self.sizes:
            given += [f"{self.names[s]} >= {s.lo}"] if s.lo is not None else []
            given += [f"{self.names[s]} <= {s.hi}"] if s.hi is not None else []
        given += [f"{name} >= {LARGE}" for name in self.numbers.values()]
        names = ", ".join([*(self.names[s] for s in self.sizes), *self.numbers.values()])
        return f"[{names}] -> {{ {what}{' : ' + ' and '.join(given) if given else ''} }}"

    def bounds(self, loops: Iterable[Loop]) -> list[str]:
        return [f"0 <= {self.names[x.sym]} < {self.of(x.extent)}" for x in loops]

    def access(self, index: tuple[IndexLike, ...], buffer: int) -> str:
        names = [f"e{d}" for d in range(len(index))]
        told = [f"{e} = {self.of(i)}" for e, i in zip(names, index, strict=True) if not is_chosen(i)]
        return self.whole(f"{self.statement}[{self.inside}] -> B{buffer}[{', '.join(names)}]", told)

    def of(self, e: Dim) -> str:
        if is_known(e):
            return self.number(e)
        if isinstance(e, Sym):
            return self.names[e]
        if isinstance(e, BinaryExpr):
            if e.op in ("floordiv", "mod") and not is_known(e.b):
                raise ScheduleError("dependences", self.statement, f"{e} divides by what no number tells")
            b = str(e.b) if e.op in ("floordiv", "mod") else self.of(e.b)
            return _SPELLED[e.op].format(a=self.of(e.a), b=b)
        if isinstance(e, Mul):
            raise ScheduleError("dependences", self.statement, f"{e} is no affine expression")
        assert isinstance(e, Expr)
        return " + ".join([*(f"{c}*({self.of(a)})" for a, c in e.terms), self.number(e.const)])

    def number(self, n: int) -> str:
        """A number, by the parameter that it is near to, where there is one."""
        for sign in (1, -1):
            for base, name in self.numbers.items():
                if abs(sign * n - base) <= NEAR:
                    return f"({n - sign * base} + {sign}*{name})"
        return str(n)


def _dims(kernel: Kernel) -> Iterator[Dim]:
    for s in walk(kernel.body):
        if isinstance(s, For):
            yield s.loop.extent
        if isinstance(s, Store | Update | Fold):
            yield from placed(s.index)
            for x in loads_of(s):
                yield from placed(x.index)
