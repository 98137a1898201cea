"""Rules for sizes that keep each tensor of a graph from a size below 0, and from having no element to take.

In: a graph. Out: the graph with these rules: of the sizes that a call begins with, which its arguments must keep, and
of those that data decide, which end a call (ADR 0043). Not its business: indices that data choose, which are kept in
range (``ops``), and slices of known places (``frontend.torch.ones``).

A window of five fits once into five places and, by the arithmetic of windows, minus three times into one: so a
picture may be too small for a layer in the middle of a model while the model's results look as they always do. A
gather keeps an index between 0 and its operand's last place, and there is no such place where the operand is empty.
PyTorch and ONNX Runtime raise in both cases. Where the result, or what is stored, is empty at the same sizes, nothing
is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright import ops
from tilewright.core.expr import (
    BinaryExpr,
    Dim,
    Expr,
    Mul,
    Sym,
    bounds,
    evaluate,
    is_nonneg,
    minimum,
    substitute,
    symbols,
    terms_of,
)
from tilewright.core.graph import PROJ, Graph, Node, topological
from tilewright.core.shapes import assumed
from tilewright.core.types import product

READS = frozenset({
    ops.gather, ops.gather_elements, ops.gather_nd, ops.dynamic_slice, ops.ranked, ops.resize, ops.top_k, ops.pad,
})  # fmt: skip
"""Each element of the result is one of the first operand, or a mean of some; of ``pad``, in all modes but one."""
STORES = {ops.dynamic_update_slice: 1, ops.scatter_elements: 2, ops.scatter_nd: 2}
"""Elements of that operand are stored into the first."""
INDEXED = frozenset({ops.gather, ops.gather_elements, ops.gather_nd, ops.ranked, *STORES})
"""Nothing is asked of these where data decide how many elements there are: what a mask that holds nowhere gives may be
read for every place and used for none, and their indices are kept in range."""
LARGEST = 1 << 62
"""No size comes near it: 64 bits count elements."""


def with_size_rules(graph: Graph) -> Graph:
    """The graph with the rules that keep its sizes at 0 or more, and its calls from taking an element of nothing."""
    rules = _together([*graph.constraints, *needed(graph, frozenset(graph.symbols()))])
    return replace(graph, constraints=rules)


def needed(graph: Graph, given: frozenset[Sym]) -> list[Expr]:
    """What has to be 0 or more for the graph's calls to have what they take; only symbols that are ``given`` occur."""
    found = dict.fromkeys(_elements(graph, given))
    waiting = [graph]
    while waiting:
        body = waiting.pop()
        found |= dict.fromkeys((*_sizes(body), *_assumptions(body)))
        waiting += (b for node in topological(body.outputs) for b in _bodies(node))
    return [e for e in found if symbols(e) <= given]


def with_data_rules(graph: Graph, *, is_inner: bool = False) -> Graph:
    """The graph with the rules that data may break: those of sizes that they decide; all, of a graph within control
    flow (``is_inner``), as data decide whether it runs."""
    given = frozenset[Sym]() if is_inner else frozenset(graph.symbols())
    found = dict.fromkeys((*graph.constraints, *_assumptions(graph), *_elements(graph, None), *_sizes(graph)))
    rules = tuple(e for e in found if e in graph.constraints or not symbols(e) <= given)
    return replace(graph, constraints=rules) if rules != graph.constraints else graph


def _elements(graph: Graph, given: frozenset[Sym] | None) -> Iterator[Expr]:
    """For what takes elements, that there are some; None: any symbol may occur, and indices are kept in range."""
    for node in topological(graph.outputs):
        if given is None and node.op in INDEXED:
            continue
        if node.op in STORES:
            yield from _missing(node.inputs[0].shape, node.inputs[STORES[node.op]].shape, given)
        elif node.op in READS and node.attrs.get("mode") != "constant":
            yield from _missing(node.inputs[0].shape, node.types[0].shape, given)


def _missing(source: Sequence[Dim], taken: Sequence[Dim], given: frozenset[Sym] | None) -> Iterator[Expr]:
    """Of each size of ``source`` that may be 0 while ``taken`` has elements, that it is 1 or more where it has."""
    least = minimum(product(taken), 1)
    for size in source:
        vanishes = any(n == size or (isinstance(size, Sym) and substitute(n, {size: 0}) == 0) for n in taken)
        e = size - (least if given is None or symbols(least) <= given else 1)
        if not vanishes and isinstance(e, Expr) and not is_nonneg(e):
            yield e


def _sizes(graph: Graph) -> Iterator[Expr]:
    """Every size that may be below 0."""
    for node in topological(graph.outputs):
        for kind in node.types:
            yield from (n for n in kind.shape if isinstance(n, Expr) and not is_nonneg(n))


def _assumptions(graph: Graph) -> dict[Expr, None]:
    """For sizes that an op takes for equal, or one for not above another, which nothing proves, that they are."""
    with assumed() as found:
        for node in topological(graph.outputs):
            operands = [] if node.op is PROJ else [i.type for i in node.inputs]
            if operands and not all(t.is_static for t in (*operands, *node.types)):
                node.op.infer(operands, node.attrs)
    return found


def _bodies(node: Node) -> Iterator[Graph]:
    """Graphs of loops. A branch's sizes are its own business: it may be the one that isn't taken."""
    if node.op is not ops.if_:
        yield from (value for value in node.attrs.values() if isinstance(value, Graph))


def _together(rules: Sequence[Expr]) -> tuple[Expr, ...]:
    """The same rules, those that grow with one symbol said by its least value; equations stay two rules."""
    kept: dict[Expr, None] = {}
    least: dict[Sym, int] = {}
    for e in rules:
        first = None if e * -1 in rules else _first(e)
        if first is None:
            kept[e] = None
        else:
            s, n = first
            least[s] = max(n, least.get(s, n))
    bounds_of = (s - n for s, n in least.items())
    return (*kept, *(e for e in bounds_of if isinstance(e, Expr) and not is_nonneg(e)))


def _first(e: Expr) -> tuple[Sym, int] | None:
    """``(symbol, value)``: ``e`` is 0 or more from that value of its only symbol on; None where that isn't known."""
    names = symbols(e)
    if len(names) != 1 or not _grows(e):
        return None
    (s,) = names
    low = bounds(s)[0] or 0
    high = low
    while evaluate(e, {s: high}) < 0:
        low, high = high, 2 * high + 1
        if high > LARGEST:
            return None
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if evaluate(e, {s: middle}) < 0 else (low, middle)
    return s, high


def _grows(e: Dim) -> bool:
    """Is ``e`` known never to fall where its symbols rise?"""
    if not isinstance(e, Expr) or isinstance(e, Sym):
        return True
    if isinstance(e, Mul):
        return all(is_nonneg(f) and _grows(f) for f in e.factors)
    if isinstance(e, BinaryExpr):
        if e.op == "floordiv":
            return isinstance(e.b, int) and e.b > 0 and _grows(e.a)
        return e.op in ("min", "max") and _grows(e.a) and _grows(e.b)
    return all(coef > 0 and _grows(atom) for atom, coef in terms_of(e))
