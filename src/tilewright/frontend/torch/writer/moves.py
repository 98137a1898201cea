"""How moves, lookups, orders and sources are written in PyTorch.

In: a node whose operands are tensors. Out: calls of PyTorch; ``OpError`` where this form of an op has none. Not its
business: arithmetic (``writer.arithmetic``), control flow (``writer.control``), ops that are spelled or decompose.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tilewright.core.diag import OpError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.frontend.torch.writer.arithmetic import flat_pads
from tilewright.frontend.torch.writer.values import TorchValues, number_of

if TYPE_CHECKING:
    from torch import Tensor

_FOLDS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def reshape(w: TorchValues, node: Node) -> None:
    w.give(node, w.torch.reshape(w.value(node.inputs[0]), w.sizes(node.attrs["shape"])))


def expand(w: TorchValues, node: Node) -> None:
    w.give(node, w.value(node.inputs[0]).expand(w.sizes(node.shape)))


def transpose(w: TorchValues, node: Node) -> None:
    w.give(node, w.torch.permute(w.value(node.inputs[0]), list(node.attrs["perm"])))


def reverse(w: TorchValues, node: Node) -> None:
    w.give(node, w.torch.flip(w.value(node.inputs[0]), list(node.attrs["axes"])))


def roll(w: TorchValues, node: Node) -> None:
    if not node.attrs["axes"]:
        raise OpError("PyTorch takes no axis for all axes")
    w.give(node, w.torch.roll(w.value(node.inputs[0]), w.sizes(node.attrs["shifts"]), list(node.attrs["axes"])))


def concat(w: TorchValues, node: Node) -> None:
    w.give(node, w.torch.cat(w.values(node), node.attrs["axis"]))


def tile(w: TorchValues, node: Node) -> None:
    w.give(node, w.value(node.inputs[0]).repeat(w.sizes(node.attrs["repeats"])))


def slice_(w: TorchValues, node: Node) -> None:
    """Steps backwards take the same elements forwards, and turn them."""
    a, (x,) = node.attrs, w.values(node)
    for axis, (n, whole) in enumerate(zip(node.shape, node.inputs[0].shape, strict=True)):
        start, stop, step = (a[name][axis] for name in ("starts", "stops", "steps"))
        if (start, stop, step) == (0, whole, 1):
            continue
        if step > 0:
            x = w.aten.slice.Tensor(x, axis, w.size(start), w.size(stop), step)
        elif n == 0:
            x = w.aten.slice.Tensor(x, axis, 0, 0, 1)
        else:
            last = start + (n - 1) * step
            x = w.torch.flip(w.aten.slice.Tensor(x, axis, w.size(last), w.size(start + 1), -step), [axis])
    w.give(node, x)


def pad(w: TorchValues, node: Node) -> None:
    """PyTorch pads with a number; a value that each call gives is put where a mask, padded alike, says outside."""
    a, (x, value) = node.attrs, w.values(node)
    if a["mode"] != "constant":
        raise OpError("padding by elements is made of lookups")
    pads, number = flat_pads(w, a["pads"]), number_of(node.inputs[1])
    made = w.aten.constant_pad_nd(x, pads, 0 if number is None else number)
    if number is None:
        inside = w.aten.constant_pad_nd(w.torch.full(x.shape, True, dtype=w.torch.bool), pads, False)
        made = w.torch.where(inside, made, value)
    w.give(node, made)


def trilu(w: TorchValues, node: Node) -> None:
    a = node.attrs
    if a["fill"] or not is_known(a["k"]):
        raise OpError("PyTorch's triangles have zeros outside, and a known diagonal")
    function = w.torch.triu if a["upper"] else w.torch.tril
    w.give(node, function(w.value(node.inputs[0]), a["k"]))


def with_sizes(w: TorchValues, node: Node) -> None:
    w.give(node, w.value(node.inputs[0]))


# --- sources --------------------------------------------------------------------------------------------------------


def iota(w: TorchValues, node: Node) -> None:
    counted = w.torch.arange(w.size(node.attrs["extent"]), dtype=w.torch.int64)
    w.give(node, counted.to(w.dtype(node.dtype)))


def full(w: TorchValues, node: Node) -> None:
    w.give(node, w.torch.full(w.sizes(node.shape), node.attrs["value"], dtype=w.dtype(node.dtype)))


def dim_values(w: TorchValues, node: Node) -> None:
    numbers = [w.aten.scalar_tensor(w.size(d), dtype=w.torch.int64) for d in node.attrs["dims"]]
    if not numbers:
        raise OpError("a shape without axes")
    w.give(node, w.torch.stack(numbers))


def argwhere(w: TorchValues, node: Node) -> None:
    (x,) = w.values(node)
    w.give(node, w.torch.nonzero(x), w.torch.sum(w.torch.ne(x, 0), dtype=w.torch.int64))


# --- lookups and writes ---------------------------------------------------------------------------------------------


def _places(w: TorchValues, at: Tensor, n: Dim) -> Tensor:
    """Places that count from the end where they are negative, from the start."""
    at = at.to(w.torch.int64)
    made: Tensor = w.torch.where(at < 0, at + w.size(n), at)
    return made


def gather(w: TorchValues, node: Node) -> None:
    x, at = w.values(node)
    axis = node.attrs["axis"]
    w.give(node, w.aten.index.Tensor(x, [*[None] * axis, at.to(w.torch.int64)]))


def gather_elements(w: TorchValues, node: Node) -> None:
    x, at = w.values(node)
    axis = node.attrs["axis"]
    w.give(node, w.torch.gather(x, axis, _places(w, at, node.inputs[0].shape[axis])))


def scatter_elements(w: TorchValues, node: Node) -> None:
    x, at, updates = w.values(node)
    axis, fold = node.attrs["axis"], node.attrs["reduction"]
    at = _places(w, at, node.inputs[0].shape[axis])
    if fold == "none":
        w.give(node, w.torch.scatter(x, axis, at, updates))
    else:
        w.give(node, w.torch.scatter_reduce(x, axis, at, updates, _FOLDS[fold], include_self=True))


def _columns(w: TorchValues, at: Node) -> list[Tensor]:
    """Each column of rows of indices."""
    depth = at.shape[-1]
    if not is_known(depth) or depth == 0:
        raise OpError("rows of indices of a width that each call gives, or without any, are not written")
    table = w.value(at).to(w.torch.int64)
    return [w.torch.select(table, -1, k) for k in range(depth)]


def gather_nd(w: TorchValues, node: Node) -> None:
    x, at = node.inputs
    n_batch, columns = node.attrs["batch_dims"], _columns(w, at)
    rank = len(at.shape) - 1
    outer = [
        w.torch.arange(w.size(at.shape[k]), dtype=w.torch.int64).reshape([-1, *[1] * (rank - 1 - k)])
        for k in range(n_batch)
    ]
    w.give(node, w.aten.index.Tensor(w.value(x), [*outer, *columns]))


def scatter_nd(w: TorchValues, node: Node) -> None:
    """Places in one row of all elements that indices can name, where they are folded; else written as they are."""
    x, at, updates = node.inputs
    columns, fold = _columns(w, at), node.attrs["reduction"]
    if fold in ("none", "add"):
        made = w.aten.index_put(w.value(x), columns, w.value(updates), fold == "add")
        w.give(node, made)
        return
    depth = len(columns)
    place: Any = 0
    for column, n in zip(columns, x.shape, strict=False):
        place = place * w.size(n) + _places(w, column, n)
    width = math.prod(w.sizes(x.shape[depth:]))
    rows = w.value(x).reshape([math.prod(w.sizes(x.shape[:depth])), width])
    place = place.reshape([-1, 1])
    place = place.expand([place.shape[0], width])
    given = w.value(updates).reshape(place.shape)
    made = w.torch.scatter_reduce(rows, 0, place, given, _FOLDS[fold], include_self=True)
    w.give(node, made.reshape(w.sizes(x.shape)))


def dynamic_slice(w: TorchValues, node: Node) -> None:
    """Starts are moved until the window fits; then each axis is looked up."""
    x, starts = w.values(node)
    whole = node.inputs[0].shape
    for axis, n in enumerate(node.attrs["sizes"]):
        if n == whole[axis]:
            continue
        start = w.torch.select(starts.to(w.torch.int64), 0, axis)
        start = w.torch.clamp(start, min=0)
        start = w.torch.clamp(start, max=w.size(whole[axis] - n))
        x = w.torch.index_select(x, axis, start + w.torch.arange(w.size(n), dtype=w.torch.int64))
    w.give(node, x)


def sort(w: TorchValues, node: Node) -> None:
    a = node.attrs
    made = w.torch.sort(w.value(node.inputs[0]), stable=True, dim=a["axis"], descending=a["descending"])
    w.give(node, *made)


def top_k(w: TorchValues, node: Node) -> None:
    """PyTorch's own gives any of equal elements; the first of a stable order are the earliest."""
    a = node.attrs
    made = w.torch.sort(w.value(node.inputs[0]), stable=True, dim=a["axis"], descending=a["largest"])
    w.give(node, *(w.aten.slice.Tensor(t, a["axis"], 0, w.size(a["k"])) for t in made))
