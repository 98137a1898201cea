"""``as_strided`` speaks of memory, not of elements: where the operand's memory is not its elements in row-major order.

In: an fx graph of functional calls with PyTorch's fake values. Out: the same graph, in which operands of
``as_strided`` are row-major where they can be made so; whether they are. Not its business: the calls' meaning then
(``torch.aten.movement``, ``torch.aten.scatter``).

A view's memory is its base's, so the call is made upon that. A base whose axes lie densely in another order is permuted
into that order. To PyTorch neither changes anything, since all views of a base have its memory.
"""

from __future__ import annotations

from typing import Any

from tilewright.frontend.torch.aten.call import Unsupported
from tilewright.frontend.torch.fx.views import expression, viewed

READS = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default"})
STRIDED = READS | {"aten.as_strided_scatter.default"}
"""Calls that take sizes, strides and an offset in the operand's memory."""


def make_row_major(graph: Any) -> None:
    """Give the calls of ``STRIDED`` operands in row-major order, as far as there are any."""
    for node in list(graph.nodes):
        if str(node.target) in READS:
            _read_base(graph, node)
        if str(node.target) in STRIDED:
            _permute(graph, node)


def is_row_major(node: Any) -> bool:
    """Are the elements that an fx node gives all of its memory from its offset on, in row-major order?"""
    order = _order(node.meta.get("val"))
    return order is not None and order == sorted(order)


def offset_within(node: Any, offset: Any) -> Any:
    """Where the memory of a call's operand is its elements in row-major order: ``offset`` counted from the first.

    Raises ``Unsupported`` where it is not.
    """
    if is_row_major(node.args[0]):
        start = node.args[0].meta["val"].storage_offset()
        if offset is None or (isinstance(start, int) and start == 0):
            return offset
        if isinstance(start, int) and isinstance(offset, int) and offset >= start:
            return offset - start
    raise Unsupported("strides in memory that are not those of the operand's elements", "use slices and permutes")


def _read_base(graph: Any, node: Any) -> None:
    of = node.args[0]
    while _is_same_elements(of, base := _tensor_viewed(of)):
        of = base
    if of is node.args[0]:
        return
    size, stride, *offset = node.args[1:]
    start = offset[0] if offset and offset[0] is not None else node.kwargs.get("storage_offset")
    if start is None:
        start = node.args[0].meta["val"].storage_offset()
        if not isinstance(start, int):
            return
    node.args, node.kwargs = (of, size, stride, start), {}


def _tensor_viewed(node: Any) -> Any:
    """The tensor that a call gives a view of, also as one of the parts that ``split`` or ``unbind`` lists."""
    base = viewed(node)
    return viewed(base) if base is not None and isinstance(base.meta.get("val"), list | tuple) else base


def _is_same_elements(view: Any, base: Any) -> bool:
    """Does a view count its memory as its base does?"""
    if base is None or not hasattr(base.meta.get("val"), "stride"):
        return False
    a, b = view.meta["val"], base.meta["val"]
    return bool((a.dtype, a.is_conj(), a.is_neg()) == (b.dtype, b.is_conj(), b.is_neg()))


def _permute(graph: Any, node: Any) -> None:
    import torch

    order = _order(node.args[0].meta["val"])
    if order is None or order == sorted(order):
        return
    back = [order.index(k) for k in range(len(order))]

    def permuted(of: Any, axes: list[int]) -> Any:
        made = graph.call_function(torch.ops.aten.permute.default, (of, axes))
        made.meta = {**node.meta, "val": of.meta["val"].permute(axes)}
        return made

    with graph.inserting_before(node):
        operand = permuted(node.args[0], order)
    users = list(node.users)
    node.args = (operand, *node.args[1:])
    if str(node.target) in READS:
        return
    was, node.meta = node.meta["val"], {**node.meta, "val": node.meta["val"].permute(order)}
    with graph.inserting_after(node):
        result = permuted(node, back)
    result.meta = {**node.meta, "val": was}
    for user in users:
        user.replace_input_with(node, result)


def _order(fake: Any) -> list[int] | None:
    """The axes from the slowest to the fastest where the elements lie densely; None where they don't, or may not."""
    if not hasattr(fake, "stride"):
        return None
    sizes, strides = ([*map(expression, of)] for of in (fake.shape, fake.stride()))
    if 0 in sizes:
        return list(range(len(sizes)))
    hints = [h for h in map(_hint, fake.stride()) if h is not None]
    if len(hints) < len(sizes):
        return None
    moving = [k for k, n in enumerate(sizes) if n != 1]
    order = iter(sorted(moving, key=lambda k: -hints[k]))
    found = [next(order) if n != 1 else k for k, n in enumerate(sizes)]
    step: Any = 1
    for k in reversed([k for k in found if sizes[k] != 1]):
        if strides[k] != step:
            return None
        step = step * sizes[k]
    return found


def _hint(n: Any) -> int | None:
    return n if isinstance(n, int) else n.node.hint
