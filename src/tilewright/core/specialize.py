"""Fixing symbolic dimensions to numbers: one graph for all sizes becomes one for some.

In: a graph and values for symbols. Out: a graph whose types no longer mention them. Not its business: optimising.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.core.diag import OptionError
from tilewright.core.expr import Dim, Expr, Sym, substitute, symbols
from tilewright.core.graph import Attrs, Graph, Node
from tilewright.core.relations import is_broken, rule_of


def fix_symbols(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """``graph`` with the named symbols replaced by numbers; raises ``OptionError`` for a wrong name or size.

    The graph was made for symbols within their range. A size of 0 below it is taken only where every result is then
    empty, because there is nothing that could be wrong.
    """
    values = chosen(graph.symbols(), sizes)
    try:
        return _fixed(graph, values)
    except ZeroDivisionError as e:
        given = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise OptionError(f"{given} makes a size of the model divide by 0: {e}", remedy="choose other sizes") from e


def _fixed(graph: Graph, values: Mapping[Sym, Dim]) -> Graph:
    if any(size == 0 < (s.lo or 0) for s, size in values.items()):
        # what is 0 for 1 and more need not be so for 0
        sizes = [[substitute(d, values) for d in n.shape if isinstance(d, Expr)] for n in graph.outputs]
        if not all(0 in known for known in sizes):
            given = ", ".join(f"{s.name}=0" for s, size in values.items() if size == 0 < (s.lo or 0))
            raise OptionError(f"{given} leaves results that are not empty", remedy="choose sizes of 1 and more")
    for c in graph.constraints:
        if values and is_broken(c, values):
            given = ", ".join(f"{s.name}={values[s]}" for s in sorted(symbols(c) & values.keys(), key=lambda s: s.name))
            raise OptionError(f"{given} breaks a rule of the model: {rule_of(c)}", remedy="choose other sizes")
    return substitute_symbols(graph, values) if values else graph


def chosen(symbols: Iterable[Sym], sizes: Mapping[str, int]) -> dict[Sym, Dim]:
    """Sizes by symbol where they are given by name; raises ``OptionError`` for a wrong name or size.

    0 is a size of a symbol that begins with 1: models are imported for 1 and more where nothing says that their sizes
    may be 0.
    """
    named = {s.name: s for s in symbols}
    for name, size in sizes.items():
        s = named.get(name)
        if s is None:
            raise OptionError(f"no symbolic dimension {name!r}", remedy=f"the model has {sorted(named) or 'none'}")
        least = 0 if s.lo == 1 else s.lo or 0
        if size < least or (s.hi is not None and size > s.hi):
            raise OptionError(
                f"{name}={size} is outside its range {least}..{'' if s.hi is None else s.hi}",
                remedy="choose a size in the range",
            )
    return {named[name]: size for name, size in sizes.items()}


def substitute_symbols(graph: Graph, values: Mapping[Sym, Dim]) -> Graph:
    """The graph over other dimensions, types inferred anew; itself where it has none of them.

    So are the graphs within its control flow, but for symbols that are a size of an input there: those are names that a
    graph has for its operands' sizes, whatever they are outside.
    """
    new: dict[Node, Node] = {}
    for n in (*graph.inputs, *graph.nodes()):
        if n not in new:
            attrs = _attrs_over(n.attrs.substituted(values), values)
            new[n] = graph.pool.add(n.op, [new[i] for i in n.inputs], attrs, n.loc)
    if all(new[n] is n for n in (*graph.inputs, *graph.outputs)):
        return graph
    constraints = tuple(e for c in graph.constraints if isinstance(e := substitute(c, values), Expr))
    return Graph(
        graph.name,
        graph.pool,
        tuple(new[n] for n in graph.inputs),
        tuple(new[n] for n in graph.outputs),
        graph.output_names,
        constraints,
        graph.checks,
    )


def _attrs_over(attrs: Attrs, values: Mapping[Sym, Dim]) -> Attrs:
    """Attributes whose graphs are over other dimensions."""
    inner = {k: _inner_over(v, values) for k, v in attrs.items() if isinstance(v, Graph)}
    return Attrs({**attrs, **inner}) if inner else attrs


def _inner_over(graph: Graph, values: Mapping[Sym, Dim]) -> Graph:
    own = {d for n in graph.inputs for d in n.shape}
    return substitute_symbols(graph, {s: d for s, d in values.items() if s not in own})
