"""The graph IR's spec, checked.

In: a graph. Out: nothing, or a ``VerifyError`` that lists every breach. What it checks: operands come from the graph's
own pool and form no cycle; attributes are complete and of their kind; ``infer``, run again, gives the types that the
node holds; several results are read through ``proj`` only; inputs and outputs are well formed; every symbol comes from
an input's shape or from the op whose data decide it; sub-graphs hold to the same. Not its business: values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tilewright.core.diag import OpError, Problem, VerifyError
from tilewright.core.expr import Expr, Sym, symbols
from tilewright.core.graph import INPUT, PROJ, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.types import TensorType, bool_


def verify(graph: Graph, when: str = "") -> None:
    """Raise ``VerifyError`` unless ``graph`` keeps the spec; ``when`` says at which moment, for the message."""
    problems = list(problems_of(graph))
    if problems:
        raise VerifyError(f"graph {graph.name!r} breaks the graph IR's spec{' ' + when if when else ''}", problems)


def problems_of(graph: Graph) -> Iterator[Problem]:
    """Every breach in ``graph`` and its sub-graphs, which are closed: their symbols come from their own inputs."""
    order, cycle = _ordered(graph.outputs)
    if cycle is not None:
        yield _problem(cycle, "depends on itself")
        return
    yield from _of_interface(graph, order)
    known: set[Sym] = set()
    for n in graph.inputs:
        known |= _symbols_of_types(n.types)
    for node in order:
        yield from _of_node(graph, node)
        for value in node.attrs.values():
            if isinstance(value, Graph):
                for p in problems_of(value):
                    yield Problem(p.loc, p.op, f"in sub-graph {value.name!r}: {p.rule}", p.remedy)
        yield from _of_symbols(node, known)


def _problem(node: Node, rule: str) -> Problem:
    return Problem(node.loc, node.op.name, f"%{node.serial} {rule}")


def _ordered(roots: Sequence[Node]) -> tuple[list[Node], Node | None]:
    """The nodes, operands first, and a node on a cycle if there is one."""
    order: list[Node] = []
    open_: set[Node] = set()
    done: set[Node] = set()
    stack = [(n, False) for n in reversed(roots)]
    while stack:
        node, leaving = stack.pop()
        if leaving:
            open_.discard(node)
            done.add(node)
            order.append(node)
        elif node in open_:
            return order, node
        elif node not in done:
            open_.add(node)
            stack.append((node, True))
            stack.extend((i, False) for i in reversed(node.inputs) if i not in done)
    return order, None


def _of_interface(graph: Graph, order: Iterable[Node]) -> Iterator[Problem]:
    listed = set(graph.inputs)
    for n in graph.inputs:
        if n.op is not INPUT:
            yield _problem(n, "is listed as an input but is not one")
        elif not graph.pool.owns(n):
            yield _problem(n, "belongs to another pool")
    names = [n.attrs["name"] for n in graph.inputs if n.op is INPUT]
    for name in _repeated(names):
        yield Problem(graph.inputs[0].loc, "input", f"two inputs are called {name!r}")
    for n in order:
        if n.op is INPUT and n not in listed:
            yield _problem(n, f"reads input {n.attrs['name']!r}, which the graph does not list")
    for n in graph.outputs:
        if len(n.types) != 1:
            yield _problem(n, f"is an output with {len(n.types)} results; take one through proj")
    for n in graph.conditions():
        if n.op is not PROJ and (n.type.dtype is not bool_ or n.shape):
            yield _problem(n, f"is a condition of type {n.type}; conditions are bool[]")
    if len(graph.output_names) != len(graph.outputs):
        rule = f"{len(graph.output_names)} output names for {len(graph.outputs)} outputs"
        yield Problem(graph.outputs[0].loc if graph.outputs else graph.inputs[0].loc, "return", rule)


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({n for n in names if names.count(n) > 1}) if len(set(names)) != len(names) else []


def _of_node(graph: Graph, node: Node) -> Iterator[Problem]:
    if not graph.pool.owns(node):
        yield _problem(node, "is not owned by the graph's pool")
    try:  # first, because nothing may be read of a node that lacks operands or attributes
        node.op.check_arity(len(node.inputs))
        if node.op.complete_attrs(node.attrs).keys() != node.attrs.keys():
            yield _problem(node, "lacks attributes")
            return
    except OpError as e:
        yield Problem(node.loc, node.op.name, f"%{node.serial} {e.message}", e.remedy)
        return
    if node.op is PROJ:
        if not 0 <= node.attrs["index"] < len(node.inputs[0].types) or len(node.inputs[0].types) == 1:
            yield _problem(node, f"takes result {node.attrs['index']} of {len(node.inputs[0].types)}")
            return
    elif any(len(i.types) != 1 for i in node.inputs):
        yield _problem(node, "reads a node with several results; it must go through proj")
        return
    try:
        operand_types = node.inputs[0].types if node.op is PROJ else tuple(i.type for i in node.inputs)
        found = node.op.infer(operand_types, node.attrs)
    except OpError as e:
        yield Problem(node.loc, node.op.name, f"%{node.serial} {e.message}", e.remedy)
        return
    types = found if isinstance(found, tuple) else (found,)
    if types != node.types:
        yield _problem(node, f"has type {_shown(node.types)}, but infer gives {_shown(types)}")


def _shown(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))


def _of_symbols(node: Node, known: set[Sym]) -> Iterator[Problem]:
    """Only inputs, ops that bound the size that their data decide, and control ops bring in symbols."""
    in_types = _symbols_of_types(node.types)
    brings = node.op is INPUT or node.op.bound is not None
    if not brings and Trait.CONTROL not in node.op.traits:
        used = in_types.union(*(_symbols_of_attr(v) for v in node.attrs.values()))
        for s in sorted(used - known, key=lambda s: s.name):
            yield _problem(node, f"uses the symbol {s.name}, which neither an input nor an operand brings in")
    known |= in_types


def _symbols_of_types(types: Sequence[TensorType]) -> set[Sym]:
    return {s for t in types for d in t.shape for s in symbols(d)}


def _symbols_of_attr(value: Any) -> Iterator[Sym]:
    if isinstance(value, Expr):
        yield from symbols(value)
    elif isinstance(value, tuple):
        for v in value:
            yield from _symbols_of_attr(v)
