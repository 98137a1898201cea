"""Nests of ``matrix`` loops: which instruction of a CPU's matrix registers each is.

In: a ``For`` of kind ``matrix``. Out: a :class:`MatrixNest`. Not its business: which registers (``codegen.cpu.tiles``),
shapes of a machine's instructions (``target.tiles``).

The forms, of loops ``m`` and ``n`` over rows and columns of a ``matrix`` buffer ``S``::

    S[.., m, n] = 0                                                   fill
    T[.., m, n] = S[.., m, n]       S[.., m, n] = T[.., m, n]         move, from and to other memory
    S[.., m, n] add= mul(cast(A[.., m, .., g, d]), cast(B[.., g, .., n, d]))    multiply

In the last one the loop ``g`` is a ``matrix`` loop too, and ``d`` a ``dot`` loop: the elements of a group. Both
operands lie in groups, and the rows of ``A`` and of ``B`` are any distance apart. The loops may be in any order.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from tilewright.core.compute import Binary, Buffer, Cast, Const, IndexLike, Load
from tilewright.core.expr import Sym
from tilewright.core.indices import chosen, symbols_at
from tilewright.tile.affine import stride_along
from tilewright.tile.errors import TileVerifyError
from tilewright.tile.ir import For, Kind, Loop, Place, Space, Stmt, Store, Update


@dataclass(frozen=True)
class MatrixNest:
    """One instruction: its loops by what they count, and its statement. A multiplication alone has the last four."""

    rows: Loop
    columns: Loop
    statement: Store | Update
    groups: Loop | None = None
    group: Loop | None = None
    left: Load | None = None
    right: Load | None = None


def matrices_of(places: Iterable[Place]) -> frozenset[Buffer]:
    """The buffers that lie in matrix registers."""
    return frozenset(p.buffer for p in places if p.space is Space.MATRIX)


def index_of_sums(s: Stmt, matrices: Container[Buffer]) -> tuple[IndexLike, ...]:
    """Where a statement writes or moves a buffer of matrix registers; nothing of a statement that does not."""
    if isinstance(s, Store | Update) and s.buffer in matrices:
        return s.index
    if isinstance(s, Store) and isinstance(s.value, Load) and s.value.buffer in matrices:
        return s.value.index
    return ()


def matrix_nest(f: For, matrices: Container[Buffer]) -> MatrixNest:
    """The instruction that a nest of matrix loops is; ``matrices`` are the buffers that lie in matrix registers.

    Raises :class:`TileVerifyError` for a nest that is none, with the rule that it breaks.
    """
    name = f.loop.sym.name
    loops: list[Loop] = []
    body: tuple[Stmt, ...] = (f,)
    while len(body) == 1 and isinstance(body[0], For):
        loops.append(body[0].loop)
        body = body[0].body
    s = body[0] if len(body) == 1 else None
    if not isinstance(s, Store | Update):
        raise TileVerifyError(f"{name}: matrix loops are around one store or update")
    matrix = index_of_sums(s, matrices)
    if not matrix:
        raise TileVerifyError(f"{name}: matrix loops around what touches no matrix register")
    if len(matrix) < 2 or chosen(matrix):
        raise TileVerifyError(f"{name}: a matrix register has rows and columns at places that no data choose")
    own = [x for x in loops if x.kind is Kind.MATRIX]
    columns = _only([x for x in own if x.sym in symbols_at(matrix[-1])], name, "columns")
    rows = _only([x for x in own if x.sym in symbols_at(matrix[-2])], name, "rows")
    rest = [x for x in loops if x is not rows and x is not columns]
    if isinstance(s, Store):
        if rest or not (isinstance(s.value, Load) or (isinstance(s.value, Const) and s.value.value == 0)):
            raise TileVerifyError(f"{name}: a matrix register is filled with zeros or moved as it is")
        return MatrixNest(rows, columns, s)
    return _product(s, rows, columns, rest, name)


def _only(found: list[Loop], name: str, what: str) -> Loop:
    if len(found) != 1:
        raise TileVerifyError(f"{name}: {len(found)} matrix loops count the {what} of a matrix register, not one")
    return found[0]


def _product(s: Update, rows: Loop, columns: Loop, rest: list[Loop], name: str) -> MatrixNest:
    groups = [x for x in rest if x.kind is Kind.MATRIX]
    group = [x for x in rest if x.kind is Kind.DOT]
    v = s.value
    is_product = s.op == "add" and isinstance(v, Binary) and v.op == "mul"
    if not is_product or not isinstance(v, Binary) or len(groups) != 1 or len(group) != 1 or len(rest) != 2:
        raise TileVerifyError(f"{name}: matrix registers add up products, by groups of narrow elements")
    a, b = _widened(v.a), _widened(v.b)
    if a is None or b is None:
        raise TileVerifyError(f"{name}: matrix registers multiply narrow elements that are loaded and widened")
    steps = rows.sym, columns.sym, groups[0].sym, group[0].sym
    if stride_along(a.buffer, a.index, columns.sym) != 0:
        a, b = b, a
    if not _fits(a, b, *steps, group[0]):
        raise TileVerifyError(f"{name}: the operands do not lie in groups of {group[0].extent}")
    return MatrixNest(rows, columns, s, groups[0], group[0], a, b)


def _fits(a: Load, b: Load, row: Sym, column: Sym, step: Sym, each: Sym, group: Loop) -> bool:
    """Do rows of both operands hold groups that follow each other?"""
    left = [stride_along(a.buffer, a.index, x) for x in (column, step, each)]
    right = [stride_along(b.buffer, b.index, x) for x in (row, column, each)]
    rows_apart = stride_along(a.buffer, a.index, row), stride_along(b.buffer, b.index, step)
    return left == [0, group.extent, 1] and right == [0, group.extent, 1] and None not in rows_apart


def _widened(v: object) -> Load | None:
    return v.a if isinstance(v, Cast) and isinstance(v.a, Load) else None
