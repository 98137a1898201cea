"""The tile IR's specification, checked: what every kernel must satisfy, whoever made it.

In: a ``Kernel``. Out: nothing, or ``TileVerifyError`` naming the statement and the rule.
Not its business: whether the kernel means what its computation means (tests run both).

Rules: a loop's name is bound once on a path and used inside only, and its variable promises no range that its extent
does not keep; sizes are declared once; every buffer has exactly one place, names are unique; indices match ranks, and
none is outside of its buffer whatever the sizes are; dtypes match and have the operations that are asked of them
(``tile.verify_values``); written buffers are not inputs or constants; a table has its numbers, of its dtype and shape;
scratch and registers have known sizes; indices of a register buffer are numbers once copied and lane loops are
expanded, counted from the loop that holds all its accesses; unroll, step, vector and dot loops have a bound; a vector
loop's body may run in lanes; a dot loop has 2 or 4 iterations; matrix loops are an instruction of ``tile.matrix``, and
alone touch matrix registers; packed parameters are constants of the right rank, each packed once. Parallel loops may
nest: an inner one runs in its thread. Block and thread loops and barriers form grids (``tile.grid``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilewright.core import types
from tilewright.core.compute import REDUCE_OPS, Buffer, IndexLike, Inside, Load, Param, Select, Value, operands
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, bounds, symbols
from tilewright.core.indices import is_chosen
from tilewright.tile.errors import TileVerifyError
from tilewright.tile.grid import check_grids
from tilewright.tile.ir import (
    IN_MEMORY,
    Barrier,
    Commit,
    Fold,
    For,
    If,
    Kernel,
    Kind,
    Loop,
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
from tilewright.tile.verify_values import broken_combiner, broken_rule, has_binary

COPIED = (Kind.UNROLL, Kind.STEP, Kind.VECTOR, Kind.DOT)
IN_REGISTERS = (*COPIED, Kind.WARP, Kind.MATRIX)
"""Loops whose variables may index registers: a warp's lanes hold an element each of what warp loops count."""
DOTS = (2, 4)
"""How many elements a dot loop may take together."""


def verify(kernel: Kernel) -> None:
    """Check every rule of the module's docstring."""
    _Checker(kernel).run()


class _Checker:
    """Walks the tree with the loops around the present statement."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.places: dict[Buffer, Place] = {}
        self.matrices = matrices_of(kernel.places)
        self.in_if = 0
        """How many conditions the present statement is under."""
        self.indices: dict[Buffer, list[tuple[tuple[For, ...], tuple[IndexLike, ...]]]] = {}

    def run(self) -> None:
        if not re.fullmatch(r"[\w.]+", self.kernel.name):
            raise _error(f"kernel {self.kernel.name!r}", "its name is none of a function")
        if self.kernel.lanes < 1:
            raise _error(f"kernel {self.kernel.name}", f"a warp of {self.kernel.lanes} lanes")
        if len({s.name for s in self.kernel.sizes}) != len(self.kernel.sizes):
            raise _error(f"kernel {self.kernel.name}", f"its sizes {self.kernel.sizes} have one name twice")
        self._places()
        self._body(self.kernel.body, ())
        check_grids(self.kernel)
        for place in self.places.values():
            if place.space in (Space.REG, Space.MATRIX):
                self._register(place.buffer)
        self._packed()

    def _packed(self) -> None:
        seen = set[Buffer]()
        for p in self.kernel.packed:
            if p.param not in self.places or self.places[p.param].role is not Role.CONST:
                raise _error(p.param.name, "a packed parameter is not a constant of the kernel")
            if len(p.grid) != len(p.param.shape) and p.param.shape != (1,):
                raise _error(p.param.name, "the grid's rank is not the parameter's")
            if len(p.index) != len(p.source.shape):
                raise _error(p.param.name, "the recipe's index does not match the source's rank")
            if p.param.dtype is not p.source.dtype:
                raise _error(p.param.name, f"it is {p.param.dtype}, and what is packed is {p.source.dtype}")
            if p.param in seen or len({*p.grid}) != len(p.grid):
                raise _error(p.param.name, "it is packed twice, or its grid counts one dimension twice")
            seen.add(p.param)
            free = {s for d in p.index for s in symbols(d)} - {*p.grid}
            if free:
                raise _error(p.param.name, f"the recipe reads {sorted(s.name for s in free)}, which its grid lacks")

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
            if any(is_known(d) and d < 0 for d in b.shape):
                raise _error(b.name, f"its shape {b.shape} has a negative size")
            if (p.space is Space.TABLE) != (p.table is not None):
                raise _error(b.name, "a table needs numbers, and only a table has them")
            if p.table is not None and (p.table.dtype != b.dtype.numpy or p.table.shape != b.shape):
                raise _error(b.name, f"its numbers are {p.table.dtype}{list(p.table.shape)}, and not {b}")
            if p.space is not Space.GLOBAL and any(bounds(d)[1] is None for d in b.shape):
                raise _error(b.name, f"a {p.space.value} buffer of a size that has no bound")
            if p.ahead and p.space is not Space.SHARED:
                raise _error(b.name, "only shared memory is filled ahead")
            if p.swizzled and (p.space is not Space.SHARED or not is_swizzlable(b)):
                raise _error(b.name, "only whole rows of 128 bytes in shared memory are swizzled, eights of them")
            if p.space is not Space.GLOBAL and p.role is not Role.TMP:
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
                self.in_if += 1
                self._body(s.body, path)
                self.in_if -= 1

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
        if isinstance(s, Prefetch):
            self._access(s.buffer, s.index, s, path)
            if self.places[s.buffer].space not in IN_MEMORY:
                raise _error(_where(s), f"{s.buffer.name} does not lie in memory")
        if not self._is_conditional(path):
            for x in _always_read(s):
                self._inside(x.buffer, x.index, s)
        for b in written(s):
            assert isinstance(s, Store | Update | Fold)
            self._access(b, s.index, s, path)
            if not self._is_conditional(path):
                self._inside(b, s.index, s)
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

    def _is_conditional(self, path: tuple[For, ...]) -> bool:
        """May it be that a statement is never run?"""
        return self.in_if > 0 or any(not _runs(f.loop.extent) for f in path)

    def _inside(self, b: Buffer, index: tuple[IndexLike, ...], s: Stmt) -> None:
        """Refuse what is outside of a buffer in every iteration: ranges of symbols may be wider than what they take."""
        for i, size in zip(index, b.shape, strict=True):
            if is_chosen(i):
                continue
            (low, high), most = bounds(i), bounds(size)[1]
            if (high is not None and high < 0) or (low is not None and most is not None and low >= most):
                raise _error(_where(s), f"the index {i} is outside of {b.name}, whose shape is {b.shape}")

    def _types(self, s: Stmt) -> None:
        if isinstance(s, Store | Update) and s.value.dtype is not s.buffer.dtype:
            raise _error(_where(s), f"writes {s.value.dtype} into {s.buffer.dtype}")
        if isinstance(s, Update) and (s.op not in REDUCE_OPS or not has_binary(s.op, s.buffer.dtype)):
            raise _error(_where(s), f"{s.op!r} is no reduction operation of {s.buffer.dtype}")
        if isinstance(s, If) and s.cond.dtype is not types.bool_:
            raise _error(_where(s), "the condition is not bool")
        if isinstance(s, Fold):
            c = s.combiner
            shapes = (len(s.buffers), len(c.state), len(c.result))
            if len(set(shapes)) != 1 or len(c.value) != len(s.values):
                raise _error(_where(s), "buffers, state, result and values do not match in number")
            for b, r, p in zip(s.buffers, c.result, c.state, strict=True):
                if b.dtype is not r.dtype or b.dtype is not p.dtype:
                    raise _error(_where(s), f"the combiner takes {p.dtype} and gives {r.dtype} for {b}")
            for v, p in zip(s.values, c.value, strict=True):
                if v.dtype is not p.dtype:
                    raise _error(_where(s), f"the combiner takes {p.dtype} for %{p.name}, not {v.dtype}")
            if len({*s.buffers}) != len(s.buffers):
                raise _error(_where(s), "it folds into one buffer twice")
            if rule := broken_combiner(c):
                raise _error(_where(s), rule)

    def _value(self, v: Value, s: Stmt) -> None:
        for x in walk_value(v):
            if isinstance(x, Param):
                raise _error(_where(s), f"the placeholder %{x.name} outside of a combiner")
            if rule := broken_rule(x):
                raise _error(_where(s), rule)

    def _loop(self, f: For, path: tuple[For, ...]) -> None:
        name = f.loop.sym.name
        if any(x.loop.sym.name == name for x in path) or any(s.name == name for s in self.kernel.sizes):
            raise _error(name, "the name is already bound on this path")
        self._range(f.loop)
        if f.loop.kind in COPIED and bounds(f.loop.extent)[1] is None:
            raise _error(name, f"a {f.loop.kind.value} loop whose extent {f.loop.extent} has no bound")
        if f.loop.kind is Kind.DOT and bounds(f.loop.extent)[1] not in DOTS:  # the last of an odd number may be less
            raise _error(name, f"a dot loop of {f.loop.extent} elements, which are not {DOTS[0]} or {DOTS[1]}")
        if f.loop.kind is Kind.VECTOR:
            self._lanes(f)

    def _range(self, loop: Loop) -> None:
        """What a loop's variable promises of itself, passes believe."""
        sym, name = loop.sym, loop.sym.name
        if not is_known(loop.extent):
            return
        if loop.extent < 0:
            raise _error(name, f"a loop of {loop.extent} iterations")
        if loop.extent > 0 and ((sym.lo or 0) > 0 or (sym.hi is not None and sym.hi < loop.extent - 1)):
            raise _error(name, f"it is said to be in {sym.lo}..{sym.hi}, and has {loop.extent} iterations")

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


def _runs(extent: Dim) -> bool:
    """Has a loop an iteration, whatever the sizes are?"""
    low = bounds(extent)[0]
    return low is not None and low > 0


def _always_read(s: Stmt) -> Iterator[Load]:
    """The loads of a statement that no guard within its values may leave out."""
    rest, seen = list(values_of(s)), set[Value]()
    while rest:
        v = rest.pop()
        if v in seen:
            continue
        seen.add(v)
        if isinstance(v, Load):
            yield v
        is_guarded = isinstance(v, Select) and isinstance(v.cond, Inside)
        rest.extend(operands(v)[2:] if is_guarded else operands(v))


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
