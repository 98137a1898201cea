"""``x[t]`` where ``t`` is a tensor with one integer, as of a schedule's step or a cache's position.

In: the graph that Dynamo captured. Out: the same graph, in which such a place is one of an index of length 1, and the
result loses that dimension again. Not its business: what indexing means (``frontend.torch.aten``).

PyTorch takes the number out of the tensor and selects, which no tracing for a compiler can do: PyTorch 2.13 fails for
every back end, its own among them. Eager reads a view, an index reads a copy. So a graph stays as it is where somebody
could tell one from the other: where what was read is written to, is read again after a write, or is a result.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilewright.integrations.torch_compile.apart import writes
from tilewright.integrations.torch_compile.arguments import tensor_of

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule


IN_PLACE = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.ifloordiv: operator.floordiv, operator.imod: operator.mod,
    operator.ipow: operator.pow, operator.iand: operator.and_, operator.ior: operator.or_, operator.ixor: operator.xor,
}  # fmt: skip
"""What computes the same number into new memory."""


def keep_scalar_indices(gm: GraphModule) -> None:
    """Let integers that tensors hold index without leaving their tensor."""
    indexing = [n for n in gm.graph.nodes if n.target in (operator.getitem, operator.setitem)]
    indexing = [n for n in indexing if tensor_of(n.args[0]) is not None and any(map(_is_scalar, _index_of(n)))]
    if not all(_is_basic(part) for n in indexing for part in _index_of(n)):
        return
    updates = [n.args[2] for n in indexing if _is_update(n)]
    order = {n: k for k, n in enumerate(gm.graph.nodes)}
    writing = [k for n, k in order.items() if writes(n.target) and n not in updates]
    for node in indexing:
        at = next((k for k in writing if k > order[node]), len(order))
        if not (_is_apart(node) if node.target is operator.setitem else _is_read_before(node, order, at)):
            return
    for node in updates:  # the next node writes the result where it belongs
        node.target = IN_PLACE[node.target]
    for node in indexing:
        (_write_through if node.target is operator.setitem else _read_through)(gm, node, _index_of(node))
    if indexing:
        gm.recompile()


def _index_of(node: Any) -> tuple[Any, ...]:
    index: Any = node.args[1]
    return index if isinstance(index, tuple) else (index,)


def _is_update(node: Any) -> bool:
    """Does it write back what an operator, as in ``x[t] += y``, wrote into the same elements, and nobody else reads?"""
    if node.target is not operator.setitem or getattr(node.args[2], "target", None) not in IN_PLACE:
        return False
    written = node.args[2]
    read = written.args[0]
    is_same = getattr(read, "target", None) is operator.getitem and read.args[:2] == node.args[:2]
    return is_same and [*written.users] == [node] and [*read.users] == [written]


def _is_apart(node: Any) -> bool:
    """Has a written value other memory than what it is written into?"""
    value = tensor_of(node.args[2])
    return value is None or _memory(value) != _memory(tensor_of(node.args[0])) or _is_update(node)


def _is_read_before(node: Any, order: Mapping[Any, int], write: int) -> bool:
    """Is a view read before the place of a write, itself and views of it, and no result?"""
    if tensor_of(node) is None:
        return False
    memory, views = _memory(tensor_of(node)), [node]
    while views:
        for user in views.pop().users:
            if user.op == "output" or order[user] >= write:
                return False
            if tensor_of(user) is not None and _memory(tensor_of(user)) == memory and user.target not in IN_PLACE:
                views.append(user)
    return True


def _memory(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _read_through(gm: GraphModule, node: Any, index: tuple[Any, ...]) -> None:
    with gm.graph.inserting_before(node):
        places, lost = _as_places(gm, index, tensor_of(node.args[0]).dim())
        found = gm.graph.call_function(operator.getitem, (node.args[0], places))
        made = gm.graph.call_method("squeeze", (found, lost))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    gm.graph.erase_node(node)


def _write_through(gm: GraphModule, node: Any, index: tuple[Any, ...]) -> None:
    source, value = node.args[0], node.args[2]
    rank = tensor_of(source).dim()
    with gm.graph.inserting_before(node):
        places, lost = _as_places(gm, index, rank)
        # Numbers, and tensors that have the lost dimension's successors alone, spread over it by themselves.
        given = tensor_of(value)
        after = _rank_of(index, rank) - lost
        if given is not None and given.dim() > after:
            value = gm.graph.call_method("unsqueeze", (value, given.dim() - after))
        node.args = (source, places, value)


def _as_places(gm: GraphModule, index: tuple[Any, ...], rank: int) -> tuple[tuple[Any, ...], int]:
    """The index with tensors of length 1 in the place of scalars, and which dimension of the result those make.

    Several make one dimension: where the first of them stands, or in front where a slice parts them.
    """
    whole = _spread(index, rank)
    places: list[Any] = []
    for part in whole:
        if _is_scalar(part):
            part = gm.graph.call_method("reshape", (part, (1,)))
            part = gm.graph.call_method("long", (part,))
        places.append(part)
    # Numbers are taken first, and leave no dimension.
    kept = [_is_scalar(part) for part in whole if not isinstance(part, int)]
    chosen = [k for k, is_chosen in enumerate(kept) if is_chosen]
    is_run = chosen[-1] - chosen[0] == len(chosen) - 1
    return tuple(places), chosen[0] if is_run else 0


def _spread(index: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """The index with slices for its ellipsis."""
    n_taken = sum(part is not None and part is not Ellipsis for part in index)
    at = next((k for k, part in enumerate(index) if part is Ellipsis), None)
    if at is None:
        return index
    return (*index[:at], *(slice(None),) * (rank - n_taken), *index[at + 1 :])


def _rank_of(index: tuple[Any, ...], rank: int) -> int:
    """Dimensions of what an index of numbers, scalars, slices and new axes takes."""
    n_lost = sum(_is_scalar(part) or isinstance(part, int) for part in index)
    return rank - n_lost + sum(part is None for part in index)


def _is_scalar(part: Any) -> bool:
    value = tensor_of(part)
    return value is not None and value.dim() == 0 and _is_integer(value.dtype)


def _is_integer(dtype: Any) -> bool:
    import torch

    return dtype in (torch.int8, torch.int16, torch.int32, torch.int64)


def _is_basic(part: Any) -> bool:
    """Does it choose no more than one place along a dimension, or a slice of known bounds?"""
    if isinstance(part, slice):
        return all(x is None or isinstance(x, int) for x in (part.start, part.stop, part.step))
    is_number = isinstance(part, int) and not isinstance(part, bool)
    return part is None or part is Ellipsis or is_number or _is_scalar(part)
