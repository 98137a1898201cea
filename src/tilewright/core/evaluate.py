"""The executable meaning of the graph IR: runs a graph on NumPy arrays by its ops' references.

In: a graph, or nodes, and arrays. Out: arrays. Symbols get their values from the inputs' shapes, those that only the
data decide from the results that define them; dimensions in attributes are then plain numbers for the references.
Every result is checked against its node's type.
Not its business: naming inputs, tracing or comparing (``graph.interp``), and speed.

Control-flow ops call :func:`evaluate_graph` on their sub-graphs, whose symbols are again those of their own inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tilewright.core.expr import Expr, Sym, symbols
from tilewright.core.graph import CONST, INPUT, PROJ, AttrValue, Graph, Node, topological
from tilewright.core.relations import is_broken, rule_of
from tilewright.core.shapes import bind_shape
from tilewright.core.types import Array, TensorType
from tilewright.runtime.errors import ExecutionError, InputError

Results = tuple[Array, ...]


def evaluate_graph(graph: Graph, arrays: Sequence[Array]) -> Results:
    """The outputs of ``graph`` for its inputs in order.

    Raises ``InputError`` when an array does not fit its input, ``ExecutionError`` when a result does not fit its type.
    """
    env = bind_inputs(graph, arrays)
    try:
        found = evaluate_nodes(graph.outputs, dict(zip(graph.inputs, arrays, strict=True)), env)
    except ZeroDivisionError as e:
        raise InputError(f"a size of {graph.name} divides by 0: {e}", remedy="choose other sizes") from e
    for text, holds in zip(graph.checks, found[graph.n_results :], strict=True):
        if not holds:
            raise ExecutionError(text, remedy="check the values of the inputs")
    return found[: graph.n_results]


def bind_inputs(graph: Graph, arrays: Sequence[Array]) -> dict[Sym, int]:
    """The values of the graph's symbols; raises ``InputError`` when an array does not fit its input."""
    if len(arrays) != len(graph.inputs):
        raise InputError(f"{graph.name} takes {len(graph.inputs)} inputs, not {len(arrays)}")
    env: dict[Sym, int] = {}
    for _ in range(2):  # plain dimensions define symbols that other inputs' sums are checked with
        for node, array in zip(graph.inputs, arrays, strict=True):
            problem = _misfit(node.type, array, env)
            if problem:
                remedy = f"give an array of type {node.type}"
                raise InputError(f"input {node.attrs['name']!r} of {graph.name}: {problem}", remedy=remedy)
    for s, n in env.items():
        if n < (n if s.lo is None else s.lo) or n > (n if s.hi is None else s.hi):
            raise InputError(f"dimension {s.name} of {graph.name} must be in {s.lo}..{s.hi}, not {n}")
    for constraint in graph.constraints:
        if symbols(constraint) <= env.keys() and is_broken(constraint, env):
            sizes = ", ".join(f"{s.name} = {env[s]}" for s in sorted(symbols(constraint), key=lambda s: s.name))
            raise InputError(f"{graph.name} needs {rule_of(constraint)}, here {sizes}", remedy="choose other sizes")
    return env


def evaluate_nodes(outputs: Sequence[Node], values: Mapping[Node, Array], env: Mapping[Sym, int]) -> Results:
    """The values of ``outputs`` from those of the input nodes; ``env`` has the values of symbols known so far.

    A node runs as soon as its operands and the symbols in its attributes are known, so a size that the data decide
    may be read by nodes that come earlier in the order. Values are dropped after their last use.
    """
    known: dict[Node, Array | Results] = dict(values)
    waiting = topological(outputs, known)
    uses = _use_counts(waiting, outputs)
    _settle(waiting, known, dict(env), lambda node: _drop_dead(node, known, uses))
    return tuple(_single(known[n]) for n in outputs)


def evaluate_every(
    graph: Graph, arrays: Sequence[Array], change: Callable[[Node, Array], Array] | None = None
) -> tuple[dict[Node, Array | Results], dict[Sym, int]]:
    """The value of every node, those with several results as tuples, and of every symbol.

    ``change`` may give another array for each result, which the nodes that read it then get.
    """
    sizes = bind_inputs(graph, arrays)
    known: dict[Node, Array | Results] = dict(zip(graph.inputs, arrays, strict=True))

    def changed(node: Node) -> None:
        value = known[node]
        if change is not None:
            known[node] = tuple(change(node, a) for a in value) if isinstance(value, tuple) else change(node, value)

    _settle([n for n in graph.nodes() if n not in known], known, sizes, changed)
    return known, sizes


def _settle(
    waiting: Sequence[Node],
    known: dict[Node, Array | Results],
    sizes: dict[Sym, int],
    after: Callable[[Node], None],
) -> None:
    """Run every node as soon as what it reads is known; ``after`` hears of each."""
    while waiting:
        later: list[Node] = []
        for node in waiting:
            if all(i in known for i in node.inputs) and _attr_symbols(node) <= sizes.keys():
                known[node] = _run(node, known, sizes)
                after(node)
            else:
                later.append(node)
        if len(later) == len(waiting):
            missing = sorted({s.name for n in later for s in _attr_symbols(n) - sizes.keys()})
            raise ExecutionError(f"{later[0].loc}: {later[0].op.name}: no value for {', '.join(missing) or 'an input'}")
        waiting = later


def _run(node: Node, known: Mapping[Node, Array | Results], sizes: dict[Sym, int]) -> Array | Results:
    if node.op is CONST:
        return np.asarray(node.attrs["data"].array)
    if node.op is PROJ:
        several = known[node.inputs[0]]
        assert isinstance(several, tuple)
        return several[node.attrs["index"]]
    if node.op is INPUT:
        raise InputError(f"no value for input {node.attrs['name']!r}")
    with np.errstate(all="ignore"):
        operands = [_single(known[i]) for i in node.inputs]
        result = node.op.reference(operands, node.attrs.substituted(sizes))
    results = tuple(np.asarray(r) for r in result) if isinstance(result, tuple) else (np.asarray(result),)
    if len(results) != len(node.types):
        raise ExecutionError(f"{node.loc}: {node.op.name} gave {len(results)} results for {len(node.types)} types")
    for t, array in zip(node.types, results, strict=True):
        problem = _misfit(t, array, sizes)
        if problem:
            raise ExecutionError(f"{node.loc}: {node.op.name} does not fit its type {t}: {problem}")
    return results if len(results) > 1 else results[0]


def _single(value: Array | Results) -> Array:
    assert not isinstance(value, tuple), "a node with several results is read through proj"
    return value


def _misfit(t: TensorType, array: Array, env: dict[Sym, int]) -> str | None:
    if array.dtype != t.dtype.numpy:
        return f"dtype {t.dtype} was expected, not {array.dtype}"
    return bind_shape(t.shape, array.shape, env)


def _use_counts(nodes: Sequence[Node], outputs: Sequence[Node]) -> dict[Node, int]:
    uses: dict[Node, int] = {}
    for used in (*outputs, *(i for n in nodes for i in n.inputs)):
        uses[used] = uses.get(used, 0) + 1
    return uses


def _drop_dead(node: Node, known: dict[Node, Array | Results], uses: dict[Node, int]) -> None:
    for i in node.inputs:
        uses[i] -= 1
        if not uses[i]:
            known.pop(i, None)


def _attr_symbols(node: Node) -> frozenset[Sym]:
    return frozenset(s for v in node.attrs.values() for e in _expressions(v) for s in symbols(e))


def _expressions(v: AttrValue) -> Iterator[Expr]:
    if isinstance(v, Expr):
        yield v
    elif isinstance(v, tuple):
        for x in v:
            yield from _expressions(x)
