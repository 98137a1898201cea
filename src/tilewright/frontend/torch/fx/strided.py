"""``as_strided`` speaks of memory, not of elements: where the operand's memory is not its elements in row-major order.

In: an fx graph of functional calls with PyTorch's fake values. Out: the same graph, in which operands of
``as_strided`` are row-major where they can be made so; whether they are. Not its business: the calls' meaning then
(``torch.aten.movement``, ``torch.aten.scatter``).

A view's memory is its base's, so the call is made upon that. A base whose axes lie densely in another order is permuted
into that order. To PyTorch neither changes anything, since all views of a base have its memory. Nothing is counted from
the start of an argument's memory: where in it an argument begins is another place in each call.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.core.expr import Dim, is_nonneg
from tilewright.frontend.torch.aten.call import Unsupported
from tilewright.frontend.torch.fx.views import expression, hint, viewed

READS = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default"})
STRIDED = READS | {"aten.as_strided_scatter.default"}
"""Calls that take sizes, strides and an offset in the operand's memory."""


def make_row_major(graph: Any) -> list[Any]:
    """Give the calls of ``STRIDED`` operands in row-major order, as far as there are any.

    Returns those that are PyTorch's: they count from the start of an argument's memory, which begins elsewhere in the
    next call.
    """
    calls = [node for node in graph.nodes if str(node.target) in STRIDED]
    absolute = [n for n in calls if _offset(n) is not None and _base(n.args[0]).op == "placeholder"]
    for node in calls:
        if node in absolute:
            continue
        if str(node.target) in READS:
            _read_base(graph, node)
        _permute(graph, node)
    return absolute


def is_row_major(node: Any) -> bool:
    """Are the elements that an fx node gives all of its memory from its offset on, in row-major order?"""
    order = _order(node.meta.get("val"))
    return order is not None and order == sorted(order)


def lies_densely(node: Any) -> bool:
    """Do the elements that an fx node gives lie beside each other, in any order?"""
    return _order(node.meta.get("val")) is not None


def is_all_of_its_memory(node: Any) -> bool:
    """Does an fx node give a tensor of its own whose memory holds its elements, in any order, and nothing else?"""
    fake = node.meta["val"]
    return viewed(node) is None and expression(fake.storage_offset()) == 0 and _order(fake) is not None


def readers_of_memory(node: Any) -> list[Any]:
    """The calls of ``STRIDED`` upon what an fx node gives, or upon views of that."""
    views = [user for user in node.users if viewed(user) is node]
    found = [user for user in node.users if str(user.target) in STRIDED and user.args[0] is node]
    return found + [reader for view in views for reader in readers_of_memory(view)]


def writes_beside(values: Sequence[Any]) -> Any:
    """The first argument that a graph may write to beside its elements, given the new values of arguments; or None.

    Tracing makes of such a write a new value of the argument, of which only the elements are stored.
    """
    for value in values:
        while getattr(value, "op", None) == "call_function" and value.args and hasattr(value.args[0], "op"):
            argument = _argument_written(value)
            if argument is not None and not _stays_within(value, argument):
                return argument
            value = value.args[0]
    return None


def _argument_written(node: Any) -> Any:
    """The argument into whose memory an fx node scatters by strides, also after other writes to it; or None."""
    if str(node.target) not in STRIDED - READS:
        return None
    operand = node.args[0]
    while operand.op == "call_function" and (viewed(operand) is not None or "_scatter" in str(operand.target)):
        operand = operand.args[0]
    return operand if operand.op == "placeholder" else None


def _stays_within(scatter: Any, argument: Any) -> bool:
    """Does a call write to nothing but elements of an argument, wherever that begins in its memory?"""
    own, start = argument.meta["val"], scatter.args[0].meta["val"].storage_offset()
    return _offset(scatter) is None and lies_within(own, scatter.args[2], scatter.args[3], start)


def lies_within(fake: Any, shape: Sequence[Any], strides: Sequence[Any], offset: Any) -> bool:
    """Is each place of a view, of this offset in the memory, an element of the tensor, wherever that begins there?"""
    if _order(fake) is None:
        return False
    size, stride, own = ([*map(expression, of)] for of in (shape, strides, fake.shape))
    start = expression(offset) - expression(fake.storage_offset())
    last = start + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    return 0 in size or (_is_nonneg(start) and _is_nonneg(math.prod(own) - 1 - last))


def _is_nonneg(n: Any) -> bool:
    """Is a number that ``expression`` gives never negative?"""
    return n >= 0 if isinstance(n, int) else n.is_nonnegative is True


def offset_within(node: Any, args: Mapping[str, Any], dim: Callable[[Any], Dim]) -> Dim:
    """Where a call upon elements that lie in row-major order begins, counted from the first of them.

    ``args`` are its arguments by name, ``dim`` reads PyTorch's sizes. Raises ``Unsupported`` where the operand lies
    otherwise, or where the call may reach memory beside it: of a tensor that has no more, PyTorch compared the sizes.
    """
    fake, base = node.args[0].meta["val"], _base(node.args[0])
    if not is_row_major(node.args[0]):
        raise Unsupported("strides in memory that are not those of the operand's elements", "use slices and permutes")
    begins: Dim = 0 if args["storage_offset"] is None else args["storage_offset"] - dim(fake.storage_offset())
    last = begins
    for count, step in zip(args["size"], args["stride"], strict=True):
        last = last + (count - 1) * step
    has_more = base.op == "placeholder" or not is_all_of_its_memory(base)
    if not is_nonneg(begins) or (has_more and not is_nonneg(math.prod(map(dim, fake.shape)) - last - 1)):
        raise Unsupported("elements of memory that the operand may not have", "give as_strided the whole tensor")
    return begins


def _read_base(graph: Any, node: Any) -> None:
    """Let a call read the memory of what its operand is a view of, as far as that lies densely."""
    view, base = node.args[0], _base(node.args[0])
    order = _order(base.meta["val"])
    if view is base or order is None:
        return
    with graph.inserting_before(node):
        operand = base if _offset(node) is not None else _memory_from(graph, view, base, order)
    node.replace_input_with(view, operand)


def _memory_from(graph: Any, view: Any, base: Any, order: list[int]) -> Any:
    """The elements of the dense ``base`` as they lie in memory, from where ``view`` begins."""
    import torch

    aten = torch.ops.aten
    of, at = base.meta["val"], view.meta["val"].storage_offset()
    n = math.prod(of.shape)
    begin = start = at - of.storage_offset()

    def call(target: Any, *args: Any, val: Any) -> Any:
        made = graph.call_function(target, args)
        made.meta = {**view.meta, "val": val}
        return made

    if not isinstance(start, int):
        begins = [call(aten.sym_storage_offset.default, x, val=x.meta["val"].storage_offset()) for x in (view, base)]
        begin = call(operator.sub, *begins, val=start)
    permuted = call(aten.permute.default, base, order, val=of.permute(order))
    flat = call(aten.reshape.default, permuted, [-1], val=of.as_strided((n,), (1,)))
    return call(aten.slice.Tensor, flat, 0, begin, val=of.as_strided((n - start,), (1,), at))


def _base(node: Any) -> Any:
    """What a value is a view of, as far as it counts its memory in the same elements."""
    while _is_same_elements(node, base := _tensor_viewed(node)):
        node = base
    return node


def _offset(node: Any) -> Any:
    """Where a call begins, counted from the start of the memory; None where it begins with its operand."""
    names = [argument.name for argument in node.target._schema.arguments]
    return (dict(zip(names, node.args, strict=False)) | node.kwargs).get("storage_offset")


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
    hints = [h for h in map(hint, fake.stride()) if h is not None]
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
