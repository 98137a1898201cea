"""Sizes that only data decide and that nothing bounds: computed and read before the calls whose results have them.

In: a call of a functional fx graph whose result's first size has no bound. Out: the call that reads the size, which the
graph now has before it; and, of a call that failed, the size that is not as it was traced. Not its business: running
graphs in pieces, so that the number is there in time (``torch_compile.plan``); sizes with a bound
(``torch.aten.places``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Make = Callable[..., Any]


def size_read_before(node: Any) -> Any:
    """The call that reads the size which ``node`` lacks: itself, or one that is put before it and told to it."""
    if str(node.target) == "aten._local_scalar_dense.default":
        return node
    import torch

    graph, aten = node.graph, torch.ops.aten

    def made(target: Any, *args: Any, **kwargs: Any) -> Any:
        call = graph.call_function(target, args, kwargs)
        call.meta = {**node.meta, "val": target(*(_fake(a) for a in args), **kwargs)}
        return call

    with graph.inserting_before(node):
        name, size = SIZES[str(node.target)](node, made)
        read = graph.call_function(aten._local_scalar_dense.default, (size,))
    read.meta = {**node.meta, "val": node.meta["val"].shape[0]}
    position = [a.name for a in node.target._schema.arguments].index(name)
    if position < len(node.args):
        node.update_arg(position, read)
    else:
        node.update_kwarg(name, read)
    return read


def stray_size(nodes: Sequence[Any], values: Sequence[Any]) -> str | None:
    """Where the tensors of a call do not have the sizes of ``nodes``, which PyTorch traced; None where they do.

    Tracing takes a size that data decide for that of another tensor, when an operation is right for equal sizes only;
    what it asserts of it is lost on the way to a compiler. Equal expressions have to have equal values.
    """
    known: dict[Any, int] = {}
    for node, value in zip(nodes, values, strict=True):
        traced = getattr(node.meta.get("val"), "shape", None)
        if traced is None or not hasattr(value, "shape"):
            continue
        for size, actual in zip(traced, value.shape, strict=True):
            wanted = size if isinstance(size, int) else known.setdefault(size.node.expr, actual)
            if wanted != actual:
                return f"{node.name} has a size of {actual} where PyTorch's trace has {wanted}"
    return None


def _fake(x: Any) -> Any:
    return x.meta["val"] if hasattr(x, "meta") else x


def _size_of_bincount(node: Any, made: Make) -> tuple[str, Any]:
    """One more than the greatest number, and no less than is asked for."""
    import torch

    aten = torch.ops.aten
    least = node.args[2] if len(node.args) > 2 else node.kwargs.get("minlength", 0)
    wide = made(aten._to_copy.default, node.args[0], dtype=torch.int64)
    some = made(aten.constant_pad_nd.default, wide, [0, 1], -1)  # there may be no number
    needed = made(aten.add.Scalar, made(aten.amax.default, some, [0]), 1)
    return "minlength", made(aten.clamp_min.default, needed, least)


def _size_of_repeats(node: Any, made: Make) -> tuple[str, Any]:
    """The sum of the repeats."""
    import torch

    return "output_size", made(torch.ops.aten.sum.default, node.args[0], dtype=torch.int64)


SIZES: Mapping[str, Callable[[Any, Make], tuple[str, Any]]] = {
    "aten.bincount.default": _size_of_bincount,
    "aten.repeat_interleave.Tensor": _size_of_repeats,
}
"""For each call whose result something else must bound: the argument that takes the size, and what computes it."""
