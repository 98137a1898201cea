"""Exact sizes beside the general code: those that a user asks for, and the graphs that have them.

In: the option ``specialize`` as it was written; a graph. Out: combinations of sizes by symbol, each checked, and the
graph with each of them fixed. Not its business: what tells a call's sizes apart (``codegen.cpu.program``), models that
are compiled per call (``specialize``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from tilewright.core.diag import OptionError
from tilewright.core.dims import known_under
from tilewright.core.expr import Sym, substitute
from tilewright.core.graph import Graph
from tilewright.core.relations import rule_of
from tilewright.core.specialize import substitute_symbols

Sizes = tuple[tuple[str, int], ...]
"""Sizes by name, in the order of the names. A name is a symbol's, or ``INPUT[AXIS]`` for the one that this axis has."""

MOST = 64
"""Combinations in one model: each is a program of its own, with its own compile."""

_AXIS = re.compile(r"(?P<input>.+)\[(?P<axis>\d+)\]")
_REMEDY = 'write {"batch": [1, 8]}, or [{"batch": 1, "length": 128}] for sizes that come together'


def read_exact_sizes(given: Any) -> tuple[Sizes, ...]:
    """The combinations of an option ``specialize``: of every size with every other, or those of a list.

    ``OptionError`` that lists everything that is wrong with it. What this function returns, it takes as it is.
    """
    if given is None:
        return ()
    problems: list[str] = []
    rows = _rows(given, problems)
    found: list[Sizes] = []
    for row in rows:
        sizes = tuple(sorted(row))
        if sizes in found:
            problems.append(f"{sizes_text(sizes)} is there twice")
        else:
            found.append(sizes)
    _refuse(problems, _REMEDY)
    return tuple(found)


def _rows(given: Any, problems: list[str]) -> list[Sizes]:
    """Every combination; what is wrong goes to ``problems``."""
    if isinstance(given, Mapping):
        lists = {name: _numbers(name, values, problems) for name, values in given.items()}
        # Counted before they are made: a few long lists have more combinations than memory holds.
        n = prod(len(numbers) for numbers in lists.values())
        if n > MOST:
            problems.append(f"these are {n} combinations, and a model has at most {MOST}")
            return []
        names = list(map(str, lists))
        return [tuple(zip(names, row, strict=True)) for row in itertools.product(*lists.values())] if lists else []
    if not isinstance(given, list | tuple):
        problems.append(f"{given!r:.80} has no sizes by name")
        return []
    if len(given) > MOST:
        problems.append(f"these are {len(given)} combinations, and a model has at most {MOST}")
        return []
    rows: list[Sizes] = []
    for row in given:
        pairs = list(row.items()) if isinstance(row, Mapping) else row
        if not isinstance(pairs, list | tuple) or not all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
            problems.append(f"{row!r:.80} has no sizes by name")
        elif not pairs:
            problems.append("a combination names no size")
        else:
            found = [(str(name), number) for name, size in pairs for number in _numbers(name, [size], problems)]
            rows += [tuple(found)] if len(found) == len(pairs) else []
    return rows


def _numbers(name: Any, values: Any, problems: list[str]) -> list[int]:
    """The sizes of one name."""
    if not isinstance(name, str):
        problems.append(f"{name!r:.80} is no name of a dimension")
        return []
    if not isinstance(values, list | tuple | range):
        problems.append(f"{name}: {values!r:.80} is no list of sizes")
        return []
    if not values:
        problems.append(f"{name}: there are no sizes in the list")
    found = []
    for value in values:
        if isinstance(value, bool) or not hasattr(type(value), "__index__") or int(value) < 0:
            problems.append(f"{name}: {value!r:.80} is no size")
        elif int(value) in found:
            problems.append(f"{name}: {int(value)} is there twice")
        else:
            found.append(int(value))
    return found


def sizes_text(sizes: Iterable[tuple[str, int]]) -> str:
    """Sizes for a person to read."""
    return ", ".join(f"{name}={size}" for name, size in sizes)


def exact_graphs(graph: Graph, wanted: Sequence[Sizes]) -> list[tuple[Sizes, Graph]]:
    """The graph for each combination of sizes, those that fix more symbols first, since a call takes the first.

    ``OptionError`` that lists every name that the graph lacks, every size outside its range, every rule of the model
    that sizes break, and combinations that are one under two names.
    """
    problems: list[str] = []
    found: dict[Sizes, Graph] = {}
    for sizes in wanted:
        broken = list(misfits(graph, sizes))
        problems += broken
        if broken:
            continue
        values = _values(graph, sizes)
        named = tuple(sorted((s.name, n) for s, n in values.items()))
        if named in found:
            problems.append(f"{sizes_text(sizes)} is there twice")
        else:
            found[named] = substitute_symbols(graph, dict(values))
    _refuse(list(dict.fromkeys(problems)), "choose names and sizes that the model has")
    return sorted(found.items(), key=lambda pair: -len(pair[0]))


def misfits(graph: Graph, sizes: Sizes) -> Iterator[str]:
    """Everything that is wrong with sizes for a graph."""
    known = ", ".join(f"{s.name} ({place_of(graph, s)})" for s in graph.symbols())
    values: dict[Sym, int] = {}
    for name, size in sizes:
        s = symbol_of(graph, name)
        if s is None:
            yield f"no symbolic dimension {name!r}: the model has {known or 'none'}"
        elif values.setdefault(s, size) != size:
            yield f"{name}={size}, which is {s.name}={values[s]} too"
        elif size < (s.lo or 0) or (s.hi is not None and size > s.hi):
            yield f"{name}={size} is outside its range {s.lo or 0}..{'' if s.hi is None else s.hi}"
    for c in graph.constraints:
        e = substitute(c, dict(values))
        if values and known_under(e, 0):
            yield f"{sizes_text(sizes)} breaks a rule of the model: {rule_of(c)}"


def place_of(graph: Graph, symbol: Sym) -> str:
    """The first axis of an input that has this size."""
    places = (f"{n.attrs['name']}[{k}]" for n in graph.inputs for k, d in enumerate(n.shape) if d == symbol)
    return next(places, "part of other sizes")


def _values(graph: Graph, sizes: Sizes) -> dict[Sym, int]:
    return {s: n for name, n in sizes if (s := symbol_of(graph, name)) is not None}


def symbol_of(graph: Graph, name: str) -> Sym | None:
    """The symbol of a name; None where the graph has none, or where an axis's size is a number or an expression."""
    for s in graph.symbols():
        if s.name == name:
            return s
    match = _AXIS.fullmatch(name)
    for n in graph.inputs:
        if match and n.attrs["name"] == match["input"] and int(match["axis"]) < len(n.shape):
            size = n.shape[int(match["axis"])]
            return size if isinstance(size, Sym) else None
    return None


def with_inputs(sizes: Sizes, inputs: Mapping[str, str]) -> Sizes:
    """Sizes that speak of inputs by other names, ``inputs``, by those of the graph."""
    found = []
    for name, size in sizes:
        match = _AXIS.fullmatch(name)
        own = f"{inputs[match['input']]}[{match['axis']}]" if match and match["input"] in inputs else name
        found.append((own, size))
    return tuple(found)


def fitting(graph: Graph, wanted: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """Those combinations that the graph can have: of sizes that were asked for of several graphs."""
    return tuple(sizes for sizes in wanted if not any(misfits(graph, sizes)))


def _refuse(problems: Sequence[str], remedy: str) -> None:
    if problems:
        shown = "; ".join(problems[:20]) + (f"; and {len(problems) - 20} more" if len(problems) > 20 else "")
        raise OptionError(f"specialize: {shown}", remedy=remedy)
