"""What rules see of a kernel: the nests of a stage, its loops by name, vector widths.

In: a kernel. Out: facts. Not its business: changing anything.
"""

from __future__ import annotations

from collections.abc import Container

from tilewright.choose.cost.tile import FUNCTION_OPERATIONS
from tilewright.core import types
from tilewright.core.compute import Binary, Buffer, Index, Load, Unary, Value
from tilewright.core.compute import walk as walk_value
from tilewright.core.expr import Dim, Sym, symbols
from tilewright.core.indices import chosen, placed
from tilewright.target.target import Target
from tilewright.tile.affine import coefficient
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Fold, For, Kernel, Prefetch, Stmt, Store, Update, walk
from tilewright.tile.math import BINARY, UNARY
from tilewright.tile.rewrite import Body, dims_of, loads_of, values_of
from tilewright.tile.schedule.tree import Nest, find_loop, find_place, makers_of, nest_of


def nests(kernel: Kernel, buffer: str) -> list[Nest]:
    """The nests that write a buffer, in order."""
    return [nest_of(s) for s in makers_of(kernel.body, find_place(kernel, buffer, "nests").buffer)]


def only_nest(kernel: Kernel, buffer: str) -> Nest:
    """The one nest that writes a buffer; ``ScheduleError`` when there are more."""
    found = nests(kernel, buffer)
    if len(found) != 1 or len(found[0].leaf) != 1:
        raise ScheduleError("rule", buffer, f"written by {len(found)} nests, the rule takes one")
    return found[0]


def nest_with(body: Body, buffer: str, kind: type[Store] | type[Update]) -> Nest:
    """The nest in ``body`` itself whose statement of ``kind`` writes the buffer."""
    for s in body:
        for x in walk((s,)):
            if isinstance(x, kind) and x.buffer.name == buffer:
                return nest_of(s)
    raise ScheduleError("rule", buffer, f"no {kind.__name__} of it here")


def find_body(kernel: Kernel, loop: str) -> Body:
    """The body of a loop."""
    return find_loop(kernel, loop, "rule").body


def vector_width(machine: Target, body: Body) -> int:
    """Lanes by the widest element that the statements touch."""
    return max(machine.vector_bytes // widest_bytes(body), 1)


def widest_bytes(body: Body) -> int:
    """Bytes of the widest element that the statements touch, index values and bools aside.

    Integers of 64 bits that are neither read nor written do not count, either: they are products that a rescale cuts
    back at once. LLVM takes them in two registers, and all else, the sums of a convolution too, fills whole ones.
    """
    widest = 1
    for s in walk(body):
        if isinstance(s, Store | Update):
            widest = max(widest, s.buffer.dtype.n_bytes)
        for v in values_of(s):
            for x in walk_value(v):
                is_between = x.dtype is types.i64 and not isinstance(x, Load)
                if x.dtype is not types.bool_ and not isinstance(x, Index) and not is_between:
                    widest = max(widest, x.dtype.n_bytes)
    return widest


def may_vectorize(body: Body, sym: Sym, *, gathers: bool = False, packed: Container[Buffer] = ()) -> bool:
    """Is every index, guard and extent affine in ``sym``, and every run-time index the same for all lanes?

    With ``gathers`` loads may have run-time indices that differ from lane to lane. Buffers that will be ``packed`` may
    be read at any place.
    """
    for s in walk(body):
        if isinstance(s, Fold | Prefetch):
            return False
        if any(coefficient(d, sym) is None for d in dims_of(s, besides=packed)):
            return False
        places = [] if gathers else [x.index for x in loads_of(s)]
        places += [s.index] if isinstance(s, Store | Update) else []
        for index in places:
            if any(depends(i, sym) for i in chosen(index)):
                return False
        if isinstance(s, For) and sym in symbols(s.loop.extent):
            return False
    return True


def depends(v: Value, sym: Sym) -> bool:
    """Does a value depend on the symbol through any index?"""
    for x in walk_value(v):
        dims: tuple[Dim, ...] = ()
        if isinstance(x, Load):
            dims = placed(x.index)
        elif hasattr(x, "exprs"):
            dims = x.exprs
        elif hasattr(x, "expr"):
            dims = (x.expr,)
        if any(sym in symbols(d) for d in dims):
            return True
    return False


def computes_function(v: Value, sym: Sym) -> bool:
    """Is an elementary function of what depends on the symbol part of a value?"""
    operations = (x for x in walk_value(v) if isinstance(x, Unary | Binary) and x.dtype.is_float)
    return any((x.op in UNARY or x.op in BINARY) and depends(x, sym) for x in operations)


def n_operations(v: Value) -> int:
    """Arithmetic nodes of a value."""
    return sum(1 for x in walk_value(v) if not isinstance(x, Load) and x.__class__.__name__ not in ("Const", "Param"))


def n_arithmetic(v: Value) -> int:
    """Arithmetic nodes of a value, elementary functions counted as the sums that they become."""
    functions = sum(1 for x in walk_value(v) if isinstance(x, Unary) and x.op in UNARY)
    return n_operations(v) + functions * (FUNCTION_OPERATIONS - 1)


def statement_of(nest: Nest) -> Stmt:
    """The single statement inside a nest."""
    if len(nest.leaf) != 1:
        raise ScheduleError("rule", "", "the nest holds several statements")
    return nest.leaf[0]
