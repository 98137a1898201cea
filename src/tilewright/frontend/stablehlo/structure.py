"""How a JAX function is called: its nested arguments and results as trees of the graph's inputs and outputs.

In: the tree definitions of an export. Out: a ``Convention``. Tuples, lists, dicts and None are followed; a call whose
trees hold any other container is flat. Not its business: running a call by it (``runtime.structure``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.runtime.structure import DICT, FLAT, GIVEN, LIST, TENSOR, TUPLE, Convention, Parameters, Tree


class _Unknown(Exception):
    """A container without a form here."""


def convention_of(in_tree: Any, out_tree: Any, kept: Sequence[int], names: Sequence[str], n_results: int) -> Convention:
    """The convention of a function whose leaves ``kept`` are the graph's inputs, called ``names``, in order."""
    place = {leaf: k for k, leaf in enumerate(kept)}
    leaves = (Tree(TENSOR, place[k]) if k in place else Tree(GIVEN) for k in range(in_tree.num_leaves))
    try:
        whole = _tree(in_tree, leaves)
        result = _tree(out_tree, (Tree(TENSOR, k) for k in range(n_results)))
    except _Unknown:
        return FLAT
    positional, by_name = whole.parts
    if len(place) < in_tree.num_leaves:  # an argument that the program does not read has no place in a call
        return FLAT
    trees = {_name(part, names, k): part for k, part in enumerate(positional.parts)}
    trees |= dict(zip(map(str, by_name.keys), by_name.parts, strict=True))
    flat = {name: Tree(TENSOR, k) for k, name in enumerate(names)}
    is_flat = list(trees.items()) == list(flat.items())
    parameters = None if is_flat or len(trees) < len(whole.parts[0].parts) else Parameters(trees, len(positional.parts))
    plain = Tree(TENSOR, 0) if n_results == 1 else Tree(TUPLE, parts=tuple(Tree(TENSOR, k) for k in range(n_results)))
    return Convention(parameters, None if result == plain else result)


def _name(part: Tree, names: Sequence[str], k: int) -> str:
    """The name of a positional argument: its input's, or what the names of all its inputs begin with."""
    leaves = [names[i] for i in part.leaves()]
    if part.kind == TENSOR:
        return leaves[0]
    heads = {re.split(r"_", n)[0] for n in leaves}
    return heads.pop() if len(heads) == 1 else f"arg{k}"


def _tree(treedef: Any, leaves: Iterator[Tree]) -> Tree:
    """Our tree of JAX's, its leaves taken from an iterator."""
    data = treedef.node_data()
    if data is None:
        return next(leaves) if treedef.num_leaves else Tree(GIVEN)
    kind, keys = data
    parts = tuple(_tree(child, leaves) for child in treedef.children())
    if kind is dict and all(isinstance(k, str | int) for k in keys):
        return Tree(DICT, keys=tuple(keys), parts=parts)
    if kind in (tuple, list):
        return Tree(TUPLE if kind is tuple else LIST, parts=parts)
    raise _Unknown
