"""Which programs of the training dialect are functions as they stand, so that PyTorch need not rewrite them.

In: an fx graph as ``torch.export`` first gives it, with in-place calls. Out: for each in-place call, the fx node whose
value it replaces; or nothing, when a call has no converter or a write could be seen under another name.
PyTorch's own rewriting gives the same program but takes half of the time of an import.
Not its business: converting calls (``fx``).

An in-place call is as good as a functional one when the tensor is the fresh result of an earlier call and no view of
it was taken before the write: whoever reads it later reads the new value.
"""

from __future__ import annotations

import operator
from typing import Any

from tilewright.frontend.aten import CONVERTERS

MAY_RETURN_OPERAND = frozenset({
    "dropout.default", "type_as.default", "broadcast_tensors.default", "pad.default", "alias.default",
})  # fmt: skip
"""Calls whose schema promises a new tensor, and that may give back the operand all the same."""


def functional_name(name: str) -> str:
    """The overload without the ``aten.`` in front and the underscore of an in-place call."""
    packet, _, overload = name.removeprefix("aten.").partition(".")
    is_in_place = packet.endswith("_") and not packet.endswith("__")
    return f"{packet.rstrip('_') if is_in_place else packet}.{overload}"


def is_in_place(node: Any) -> bool:
    """Does the call write to its first operand and give it back?"""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def written_roots(graph: Any, ignored: frozenset[str]) -> dict[Any, Any] | None:
    """For each in-place call the fx node that it writes to; None for a program that PyTorch must rewrite.

    ``ignored`` names calls without a result.
    """
    roots: dict[Any, Any] = {}
    has_views: set[Any] = set()
    for node in graph.nodes:
        name = str(node.target)
        if node.op in ("placeholder", "output") or name in ignored or name.startswith("aten.sym_"):
            continue
        if node.op != "call_function":
            return None
        if not name.startswith("aten."):
            if node.target is not operator.getitem and _is_tensor(node):
                return None
            _note_views(node, roots, has_views)
        elif functional_name(name) not in CONVERTERS:
            return None
        elif is_in_place(node):
            root = roots.get(node.args[0])
            if root is None or root in has_views or _n_written(node) != 1:
                return None
            roots[node] = root
        elif _may_alias(node):
            _note_views(node, roots, has_views)
        else:
            roots[node] = node
    return {node: root for node, root in roots.items() if node is not root}


def _is_tensor(node: Any) -> bool:
    value = node.meta.get("val")
    return hasattr(value, "untyped_storage") or isinstance(value, tuple | list)


def _note_views(node: Any, roots: dict[Any, Any], has_views: set[Any]) -> None:
    """The operands of a call that may return one of them, or a view, can't be written to afterwards."""
    has_views.update(roots[x] for x in node.all_input_nodes if x in roots)


def _may_alias(node: Any) -> bool:
    returns = node.target._schema.returns
    name = functional_name(str(node.target))
    return name in MAY_RETURN_OPERAND or any(r.alias_info is not None for r in returns) or len(returns) != 1


def _n_written(node: Any) -> int:
    return sum(a.alias_info is not None and a.alias_info.is_write for a in node.target._schema.arguments)
