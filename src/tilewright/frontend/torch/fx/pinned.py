"""Operands and results of calls in the sizes that PyTorch knows them to have.

In: a call's operands; a converter's results, and the types that PyTorch's shape propagation gives. Out: operands of
equal sizes in one form; results with numbers and symbols in the place of longer sizes. Not its business: where the
knowledge comes from (``fx.symbols``, ``fx.guards``), and holding calls to it (``frontend.size_rules``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, bounds, symbols
from tilewright.core.graph import Builder, Node
from tilewright.core.shapes import surely_differ
from tilewright.core.types import TensorType, bool_, u8
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.nodes import reshape
from tilewright.frontend.torch.aten.call import Result, Unsupported, is_decided_by_data
from tilewright.frontend.torch.fx.views import hint

Key = TypeVar("Key")


_Pair = tuple[tuple[str, int], tuple[str, int]]
_ATTENDED: Sequence[_Pair] = ((("query", -1), ("key", -1)), (("key", -2), ("value", -2)))
_MEETING: Mapping[str, Sequence[_Pair]] = {
    "aten.matmul.default": ((("self", -1), ("other", -2)),),
    "aten.mm.default": ((("self", 1), ("mat2", 0)),),
    "aten.addmm.default": ((("mat1", 1), ("mat2", 0)),),
    "aten.bmm.default": ((("self", 0), ("mat2", 0)), (("self", 2), ("mat2", 1))),
    "aten.baddbmm.default": ((("batch1", 0), ("batch2", 0)), (("batch1", 2), ("batch2", 1))),
    "aten.scaled_dot_product_attention.default": _ATTENDED,  # of which PyTorch guards the widths alone
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _ATTENDED,
    "aten._scaled_dot_product_attention_math.default": _ATTENDED,
}
"""Of products, pairs of the operands' axes that have one size; a vector has one axis for the last two."""
_SPREAD = frozenset({"aten.masked_select.default"})
"""Calls that bring their operands to one shape as those that work on points do, and give a result of another."""


def fitted(b: Builder, node: Any, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call; what works on points, and indices that are lists, of one size in each place but for 1;
    factors with one size where they meet.

    The program runs only where they fit: PyTorch guards sizes that it can't prove to be equal, such as
    ``(n + 240) // 320`` and ``(n + 8) // 320 + 1``, or finds out in the call, and no rule of an op could tell.
    """
    import torch

    indices = args.get("indices")
    if isinstance(indices, list):
        places = {k: x for k, x in enumerate(indices) if isinstance(x, Node)}
        if any(x.dtype in (bool_, u8) for x in places.values()):  # a mask has as many places as it marks
            return dict(args)
        fit = _of_one_size(b, _with_ones(b, places, dict(enumerate(given_arguments(node)["indices"]))))
        return {**args, "indices": [fit.get(k, x) for k, x in enumerate(indices)]}
    if (pairs := _MEETING.get(str(node.target))) is not None:
        return _met(b, args, pairs)
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()) and str(node.target) not in _SPREAD:
        return dict(args)
    tensors = {name: x for name, x in args.items() if isinstance(x, Node)}
    return {**args, **_of_one_size(b, _with_ones(b, tensors, given_arguments(node)))}


def given_arguments(node: Any) -> dict[str, Any]:
    """The arguments of an fx node's call by the schema's names, defaults filled in."""
    return {
        argument.name: node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        for i, argument in enumerate(node.target._schema.arguments)
    }


def _with_ones(b: Builder, tensors: Mapping[Key, Node], given: Mapping[Key, Any]) -> dict[Key, Node]:
    """The tensors with the number 1 for each size that was one in the example where another tensor's was not.

    PyTorch spread such a tensor along the other and guards its size to be one, which it goes on to write as an
    expression: in ``x * w[:, :n // 2]`` for an ``n`` of 2 it is ``n // 2``.
    """
    fakes = {key: getattr(given[key], "meta", {}).get("val") for key in tensors}
    seen = {key: [hint(n) for n in reversed(getattr(fake, "shape", ()))] for key, fake in fakes.items()}
    spread = {place for sizes in seen.values() for place, n in enumerate(sizes) if n is not None and n != 1}

    def fit(key: Key, x: Node) -> Node:
        ones = {place for place, n in enumerate(seen[key]) if n == 1 and place in spread}
        return reshape(b, x, [1 if place in ones else n for place, n in enumerate(reversed(x.shape))][::-1])

    return {key: fit(key, x) for key, x in tensors.items()}


def _of_one_size(b: Builder, tensors: Mapping[Key, Node]) -> dict[Key, Node]:
    chosen: dict[int, Dim] = {}  # by the place from behind
    for x in tensors.values():
        for place, size in enumerate(reversed(x.shape)):
            if size != 1:
                chosen.setdefault(place, size)

    def fit(x: Node) -> Node:
        sizes = [n if n == 1 else chosen[place] for place, n in enumerate(reversed(x.shape))]
        return reshape(b, x, sizes[::-1])

    return {name: fit(x) for name, x in tensors.items()}


def _met(b: Builder, args: Mapping[str, Any], pairs: Sequence[_Pair]) -> dict[str, Any]:
    """Each pair of axes in one form: the first's, or a number where the second is one."""
    found = dict(args)
    for both in pairs:
        pair = [(name, max(axis, -len(found[name].shape))) for name, axis in both]
        sizes = [found[name].shape[axis] for name, axis in pair]
        chosen = sizes[1] if is_known(sizes[1]) else sizes[0]
        for (name, axis), size in zip(pair, sizes, strict=True):
            if size != chosen:
                shape = list(found[name].shape)
                shape[axis] = chosen
                found[name] = reshape(b, found[name], shape)
    return found


def pinned(b: Builder, made: Result, types: Sequence[TensorType | None]) -> Result:
    """Results in the sizes that PyTorch knows them to have: numbers and symbols in the place of longer expressions.

    Guards may hold an equation that gives no symbol a value (``2*a + 3*b == 30``). What reads the result needs the
    number then: no rule of an op could tell that the expression fits another operand's 30.
    """
    if isinstance(made, Node | Pair):
        return _reshaped(b, made, types[0])
    return [None if x is None else _reshaped(b, x, t) for x, t in zip(made, types, strict=False)]


def _reshaped(b: Builder, x: Node | Pair, promised: TensorType | None) -> Node | Pair:
    if promised is None:
        return x
    shape = [_shorter(own, d) for own, d in zip(x.shape, promised.shape, strict=True)]
    return reshape(b, x, shape) if isinstance(x, Node) else Pair(reshape(b, x.re, shape), reshape(b, x.im, shape))


def _shorter(own: Dim, promised: Dim) -> Dim:
    if is_decided_by_data(own) and not any(is_decided_by_data(s) for s in symbols(promised)):
        if surely_differ(own, promised):  # the trace stretches nothing whose size it does not know
            rule = f"data decide its size, at most {bounds(own)[1]}, and PyTorch's trace takes it for {promised}"
            raise Unsupported(rule, "take the element as y[0], where it meets what is longer")
        return promised
    is_short = is_known(promised) or (isinstance(promised, Sym) and not is_known(own))
    return promised if is_short and not isinstance(own, Sym) and not is_decided_by_data(promised) else own
