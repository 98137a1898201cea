"""The tile IR's specification, checked: what every kernel must satisfy, whoever made it.

In: a ``Kernel``. Out: nothing, or ``TileVerifyError`` naming the statement and the rule.
Not its business: whether the kernel means what its computation means (tests run both).

Rules: a loop's name is bound once on a path and used inside only; sizes are declared; every buffer has exactly one
place, names are unique; indices match ranks; dtypes match; written buffers are not inputs or constants; a table has its
numbers; scratch and registers have known sizes; indices of a register buffer are numbers once copied and lane loops are
expanded, counted from the loop that holds all its accesses; unroll, step, vector and dot loops have a bound; a vector
loop's body may run in lanes; matrix loops are an instruction of ``tile.matrix``, and alone touch matrix registers;
packed parameters are constants of the right rank. Parallel loops may nest: an inner one runs in its thread. Block and
thread loops and barriers form grids (``tile.grid``).
"""

from __future__ import annotations

from tilewright.core import types
from tilewright.core.compute import REDUCE_OPS, Binary, Buffer, IndexLike, Param, Value
from tilewright.core.compute import walk as walk_value
from tilewright.core.expr import Sym, bounds, symbols
from tilewright.core.indices import is_chosen
from tilewright.tile.errors import TileVerifyError
from tilewright.tile.grid import OF_BLOCKS, check_grids
from tilewright.tile.ir import (
    Barrier,
    Commit,
    Fold,
    For,
    If,
    Kernel,
    Kind,
    Place,
    Prefetch,
    Role,
    Space,
    Stmt,
    Store,
    Update,
    walk,
    written,
)
from tilewright.tile.matrix import matrices_of, matrix_nest
from tilewright.tile.rewrite import Body, dims_of, loads_of, values_of
from tilewright.tile.swizzle import is_swizzlable

COPIED = (Kind.UNROLL, Kind.STEP, Kind.VECTOR, Kind.DOT)
IN_REGISTERS = (*COPIED, Kind.WARP, Kind.MATRIX)
"""Loops whose variables may index registers: a warp's lanes hold an element each of what warp loops count."""


def verify(kernel: Kernel) -> None:
    """Check every rule of the module's docstring."""
    _Checker(kernel).run()


class _Checker:
    """Walks the tree with the loops around the present statement."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.places: dict[Buffer, Place] = {}
        self.matrices = matrices_of(kernel.places)
        self.indices: dict[Buffer, list[tuple[tuple[For, ...], tuple[IndexLike, ...]]]] = {}

    def run(self) -> None:
        self._places()
        self._body(self.kernel.body, ())
        check_grids(self.kernel)
        for place in self.places.values():
            if place.space in (Space.REG, Space.MATRIX):
                self._register(place.buffer)
        for p in self.kernel.packed:
            if p.param not in self.places or self.places[p.param].role is not Role.CONST:
                raise _error(p.param.name, "a packed parameter is not a constant of the kernel")
            if len(p.grid) != len(p.param.shape) and p.param.shape != (1,):
                raise _error(p.param.name, "the grid's rank is not the parameter's")
            if len(p.index) != len(p.source.shape):
                raise _error(p.param.name, "the recipe's index does not match the source's rank")

    def _places(self) -> None:
        names: set[str] = set()
        sizes = set(self.kernel.sizes)
        for p in self.kernel.places:
            b = p.buffer
            if b in self.places or b.name in names:
                raise _error(b.name, "two places of one name or buffer")
            names.add(b.name)
            self.places[b] = p
            free = {s for d in b.shape for s in symbols(d)} - sizes
            if free:
                raise _error(b.name, f"its shape uses undeclared sizes {sorted(s.name for s in free)}")
            if (p.space is Space.TABLE) != (p.table is not None):
                raise _error(b.name, "a table needs numbers, and only a table has them")
            if p.space is not Space.GLOBAL and any(bounds(d)[1] is None for d in b.shape):
                raise _error(b.name, f"a {p.space.value} buffer of a size that has no bound")
            if p.ahead and p.space is not Space.SHARED:
                raise _error(b.name, "only shared memory is filled ahead")
            if p.swizzled and (p.space is not Space.SHARED or not is_swizzlable(b)):
                raise _error(b.name, "only whole rows of 128 bytes in shared memory are swizzled, eights of them")
            if p.space in OF_BLOCKS and p.role is not Role.TMP:
                raise _error(b.name, f"a parameter of role {p.role.value} can't be {p.space.value}")

    def _body(self, body: Body, path: tuple[For, ...]) -> None:
        for s in body:
            self._statement(s, path)
            if isinstance(s, For):
                self._loop(s, path)
                if s.loop.kind is Kind.MATRIX and not any(x.loop.kind is Kind.MATRIX for x in path):
                    matrix_nest(s, self.matrices)
                self._body(s.body, (*path, s))
            elif isinstance(s, If):
                self._body(s.body, path)

    def _statement(self, s: Stmt, path: tuple[For, ...]) -> None:
        bound = {f.loop.sym for f in path} | set(self.kernel.sizes)
        for d in dims_of(s):
            free = symbols(d) - bound
            if free:
                raise _error(_where(s), f"{sorted(x.name for x in free)} not bound here, in {d}")
        for v in values_of(s):
            self._value(v, s)
        for x in loads_of(s):
            self._access(x.buffer, x.index, s, path)
        for b in written(s):
            assert isinstance(s, Store | Update | Fold)
            self._access(b, s.index, s, path)
            if self.places[b].role in (Role.IN, Role.CONST) or self.places[b].space is Space.TABLE:
                raise _error(_where(s), f"writes {b.name}, which is {self.places[b].role.value}")
        self._types(s)

    def _access(self, b: Buffer, index: tuple[IndexLike, ...], s: Stmt, path: tuple[For, ...]) -> None:
        if b not in self.places:
            raise _error(_where(s), f"{b.name} has no place")
        if b in self.matrices and not any(f.loop.kind is Kind.MATRIX for f in path):
            raise _error(_where(s), f"{b.name} lies in matrix registers, and this is outside of matrix loops")
        if len(index) != len(b.shape):
            raise _error(_where(s), f"{b.name} takes {len(b.shape)} indices, not {len(index)}")
        for i in index:
            if is_chosen(i) and not i.dtype.is_integer:
                raise _error(_where(s), f"an index of dtype {i.dtype}")
        self.indices.setdefault(b, []).append((path, index))

    def _types(self, s: Stmt) -> None:
        if isinstance(s, Store | Update) and s.value.dtype is not s.buffer.dtype:
            raise _error(_where(s), f"writes {s.value.dtype} into {s.buffer.dtype}")
        if isinstance(s, Update) and s.op not in REDUCE_OPS:
            raise _error(_where(s), f"{s.op!r} is no reduction operation")
        if isinstance(s, If) and s.cond.dtype is not types.bool_:
            raise _error(_where(s), "the condition is not bool")
        if isinstance(s, Fold):
            c = s.combiner
            shapes = (len(s.buffers), len(c.state), len(c.result))
            if len(set(shapes)) != 1 or len(c.value) != len(s.values):
                raise _error(_where(s), "buffers, state, result and values do not match in number")
            for b, r in zip(s.buffers, c.result, strict=True):
                if b.dtype is not r.dtype:
                    raise _error(_where(s), f"the combiner gives {r.dtype} for {b}")

    def _value(self, v: Value, s: Stmt) -> None:
        for x in walk_value(v):
            if isinstance(x, Param):
                raise _error(_where(s), f"the placeholder %{x.name} outside of a combiner")
            if isinstance(x, Binary) and x.a.dtype is not x.b.dtype:
                raise _error(_where(s), f"{x.op} of {x.a.dtype} and {x.b.dtype}")

    def _loop(self, f: For, path: tuple[For, ...]) -> None:
        name = f.loop.sym.name
        if any(x.loop.sym.name == name for x in path) or any(s.name == name for s in self.kernel.sizes):
            raise _error(name, "the name is already bound on this path")
        if f.loop.kind in COPIED and bounds(f.loop.extent)[1] is None:
            raise _error(name, f"a {f.loop.kind.value} loop whose extent {f.loop.extent} has no bound")
        if f.loop.kind is Kind.VECTOR:
            self._lanes(f)

    def _lanes(self, f: For) -> None:
        for s in walk(f.body):
            if isinstance(s, If) or (isinstance(s, For) and s.loop.kind not in COPIED):
                raise _error(f.loop.sym.name, "a vector loop holds only statements and copied loops")

    def _register(self, b: Buffer) -> None:
        found = self.indices.get(b, [])
        if not found:
            return
        common = _common([path for path, _ in found])
        for path, index in found:
            run_time = {f.loop.sym for f in path[len(common) :] if f.loop.kind not in IN_REGISTERS}
            for i in index:
                if is_chosen(i) or symbols(i) & (run_time | _dynamic(common)):
                    raise _error(b.name, f"a register buffer at the run-time index {i}")


def _dynamic(path: tuple[For, ...]) -> set[Sym]:
    return {f.loop.sym for f in path if f.loop.kind not in IN_REGISTERS}


def _common(paths: list[tuple[For, ...]]) -> tuple[For, ...]:
    """The loops around all accesses."""
    n = 0
    while all(len(p) > n for p in paths) and all(p[n] is paths[0][n] for p in paths):
        n += 1
    return paths[0][:n]


def _where(s: Stmt) -> str:
    match s:
        case For():
            return f"for {s.loop.sym.name}"
        case If():
            return "if"
        case Store() | Update() | Prefetch():
            return f"{type(s).__name__.lower()} of {s.buffer.name}{list(s.index)}"
        case Barrier():
            return "barrier"
        case Commit():
            return "commit"
        case Fold():
            return f"fold of {', '.join(b.name for b in s.buffers)}"


def _error(where: str, rule: str) -> TileVerifyError:
    return TileVerifyError(f"{where}: {rule}")
