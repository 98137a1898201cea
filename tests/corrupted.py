"""Graphs and kernels that break their level's specification in one place each, with the word that names the place.

In: a good graph or kernel. Out: corrupted copies. Not its business: which text is refused (``core/test_text``,
``tile/test_text``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tilewright.core import types
from tilewright.core.compute import Cast
from tilewright.core.diag import Loc
from tilewright.core.expr import Sym
from tilewright.core.graph import INPUT, Attrs, Graph, Node, Pool
from tilewright.core.types import DType, TensorType
from tilewright.tile.ir import (
    NESTS,
    For,
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

STRANGER = Sym("stranger", 1)


@dataclass(frozen=True)
class Corrupted:
    """``module``, and what an error about it names: a node's place, a loop or a buffer."""

    what: str
    module: Graph | Kernel
    place: str


# --- graphs ---------------------------------------------------------------------------------------------------------


def corrupted_graphs(make: Callable[[], Graph]) -> Iterator[Corrupted]:
    """One for each way to break each node; ``make`` is called for each, as nodes are changed in place."""
    for k, node in enumerate(_located(make()).nodes()):
        for way in GRAPH_WAYS:
            graph = _located(make())
            if way(graph, graph.nodes()[k]):
                yield Corrupted(f"{way.__name__} of {node.op.name}", graph, f"node {k}")


def _located(graph: Graph) -> Graph:
    for k, n in enumerate(graph.nodes()):
        _set(n, loc=Loc(f"node {k}"))
    return graph


def _set(node: Node, **fields: object) -> None:
    for name, value in fields.items():
        object.__setattr__(node, name, value)


def _retype(node: Node, made: TensorType) -> None:
    _set(node, types=(made,), type=made, shape=made.shape, dtype=made.dtype)


def _other(dtype: DType) -> DType:
    return types.f64 if dtype is types.f32 else types.f32


def wrong_dtype(graph: Graph, node: Node) -> bool:
    if len(node.types) != 1 or node.op is INPUT:
        return False
    _retype(node, TensorType(_other(node.dtype), node.shape))
    return True


def wrong_shape(graph: Graph, node: Node) -> bool:
    if len(node.types) != 1 or node.op is INPUT:
        return False
    _retype(node, TensorType(node.dtype, (*node.shape, 2)))
    return True


def too_few_operands(graph: Graph, node: Node) -> bool:
    if not node.inputs or any("*" in name for name in node.op.operands):
        return False
    _set(node, inputs=node.inputs[1:])
    return True


def too_many_operands(graph: Graph, node: Node) -> bool:
    if not node.inputs or any("*" in name for name in node.op.operands):
        return False
    _set(node, inputs=(*node.inputs, *node.inputs[:1] * 9))
    return True


def lost_attributes(graph: Graph, node: Node) -> bool:
    if not node.attrs or node.op is INPUT:
        return False
    _set(node, attrs=Attrs({}))
    return True


def foreign_pool(graph: Graph, node: Node) -> bool:
    if not node.inputs:
        return False
    foreign = Pool().input("foreign", node.inputs[0].types[0])
    _set(foreign, loc=node.loc)
    _set(node, inputs=(foreign, *node.inputs[1:]))
    return True


def own_operand(graph: Graph, node: Node) -> bool:
    """A cycle."""
    if not node.inputs:
        return False
    _set(node, inputs=(node, *node.inputs[1:]))
    return True


def unknown_symbol(graph: Graph, node: Node) -> bool:
    if not node.inputs or len(node.types) != 1 or not node.shape:
        return False
    _retype(node, TensorType(node.dtype, (STRANGER, *node.shape[1:])))
    return True


GRAPH_WAYS: tuple[Callable[[Graph, Node], bool], ...] = (
    wrong_dtype, wrong_shape, too_few_operands, too_many_operands, lost_attributes, foreign_pool, own_operand,
    unknown_symbol,
)  # fmt: skip


# --- kernels --------------------------------------------------------------------------------------------------------


def corrupted_kernels(kernel: Kernel) -> Iterator[Corrupted]:
    """One for each way to break each statement and each place."""
    for s in walk(kernel.body):
        for what, changed, place in _broken(s):
            yield Corrupted(what, replace(kernel, body=_replaced(kernel.body, s, changed)), place)
    for p in kernel.places:
        yield from _misplaced(kernel, p)


def _replaced(body: tuple[Stmt, ...], old: Stmt, new: Stmt) -> tuple[Stmt, ...]:
    return tuple(
        new if s is old else replace(s, body=_replaced(s.body, old, new)) if isinstance(s, NESTS) else s for s in body
    )


def _broken(s: Stmt) -> Iterator[tuple[str, Stmt, str]]:
    match s:
        case For():
            loop, name = s.loop, s.loop.sym.name
            yield "a loop in itself", For(loop, (s,)), name
            yield "an extent of no size", For(Loop(loop.sym, STRANGER, loop.kind), s.body), name
            if loop.kind in (Kind.SERIAL, Kind.PARALLEL):
                yield "a loop in lanes", For(Loop(Sym("lane", 0, 3), 4, Kind.VECTOR), (s,)), "lane"
        case Store() | Update():
            name = s.buffer.name
            yield "an index too many", replace(s, index=(*s.index, 0)), name
            yield "a value of another dtype", replace(s, value=Cast(s.value, _other(s.value.dtype))), name
            if s.index:
                yield "an index too few", replace(s, index=s.index[1:]), name
                yield "an index of no loop", replace(s, index=(STRANGER, *s.index[1:])), name
            if isinstance(s, Update):
                yield "an operation that there is not", replace(s, op="minus"), name
        case Prefetch():
            yield "an index too many", replace(s, index=(*s.index, 0)), s.buffer.name


def _misplaced(kernel: Kernel, p: Place) -> Iterator[Corrupted]:
    others = tuple(q for q in kernel.places if q is not p)
    name = p.buffer.name
    is_written = any(p.buffer in written(s) for s in walk(kernel.body))
    yield Corrupted("two places of one buffer", replace(kernel, places=(*kernel.places, p)), name)
    yield Corrupted("a table without numbers", replace(kernel, places=(*others, Place(p.buffer, Space.TABLE))), name)
    if is_written:
        yield Corrupted("no place", replace(kernel, places=others), name)
        inward = Place(p.buffer, Space.GLOBAL, Role.IN)
        yield Corrupted("an input that is written", replace(kernel, places=(*others, inward)), name)
