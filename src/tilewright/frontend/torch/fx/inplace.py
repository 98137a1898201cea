"""In-place calls of the training dialect, without PyTorch's own rewriting of the program.

In: an fx graph as ``torch.export`` first gives it. Out: for each in-place call the fx node that it writes to, and for
each view of what is written the tensor it is taken of; or nothing, when a call has no converter or a write could be
seen under a name that is not known. PyTorch's rewriting gives the same program, in half of the time of an import, and
in a time that grows with the square of the number of writes to one tensor.
Not its business: converting calls, and remembering which values are out of date (``fx``).

A write to the fresh result of an earlier call makes that result a new value, and whoever reads it later reads that. A
write to a view of it, such as ``x[:, i] = y``, makes a new value of the whole: the base with the view's elements put
back. Views are taken anew, when they are read, of what their base is by then.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.core.graph import Builder, Node
from tilewright.frontend.nodes import reshape, transpose
from tilewright.frontend.torch.aten.call import AtenCall, norm_axis
from tilewright.frontend.torch.aten.table import CONVERTERS
from tilewright.frontend.torch.fx.forms import functional_name, has_form

Undo: TypeAlias = Callable[[Builder, Mapping[str, Any], Node, Node], Node]

MAY_RETURN_OPERAND = frozenset({
    "dropout.default", "type_as.default", "broadcast_tensors.default", "pad.default", "alias.default",
})  # fmt: skip
"""Calls whose schema promises a new tensor, and that may give back the operand all the same."""


ABOUT_GRADIENTS = frozenset({"aten.detach_.default"})
"""Calls in place that leave every element as it was. ``torch.tensor`` makes one."""


def is_in_place(node: Any) -> bool:
    """Does the call write to its first operand and give it back?"""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and str(node.target) not in ABOUT_GRADIENTS


def _changes_shape_only(node: Any) -> bool:
    """Does the call change how a tensor lies over its memory (``t_``, ``unsqueeze_``)? Views of it stay as they are."""
    return any(tag.name == "inplace_view" for tag in getattr(node.target, "tags", ()))


@dataclass(frozen=True)
class Writes:
    """What in-place calls do to a program.

    ``targets`` has, for each in-place call, the fx node that it writes to, whose value its own is from then on.
    ``bases`` has, for each view of a tensor that is written to, the tensor or view that it is taken of.
    """

    targets: Mapping[Any, Any]
    bases: Mapping[Any, Any]

    @property
    def changing(self) -> set[Any]:
        """The fx nodes that mean several values in turn, and the calls that change them."""
        return {*self.targets, *self.targets.values(), *self.bases, *self.bases.values()}


NO_WRITES = Writes({}, {})


def writes_of(graph: Any, ignored: frozenset[str]) -> Writes | None:
    """The program's writes; None for a program that PyTorch must rewrite. ``ignored`` names calls without a result."""
    fresh: set[Any] = set()  # results that no other tensor shared memory with when they were made
    bases: dict[Any, Any] = {}
    targets: dict[Any, Any] = {}
    may_be_shared: set[Any] = set()

    def root(x: Any) -> Any:
        x = targets.get(x, x)
        while x in bases:
            x = bases[x]
            x = targets.get(x, x)
        return x

    for node in graph.nodes:
        name = str(node.target)
        if node.op in ("placeholder", "output") or name in ignored or name.startswith("aten.sym_"):
            continue
        if node.op != "call_function":
            return None
        if getattr(node.target, "_schema", None) is None:
            # a call that is none of an op may do anything with a tensor that it gets
            if node.target is not operator.getitem and _is_tensor(node):
                return None
            may_be_shared.update(root(x) for x in node.all_input_nodes)
        elif not has_form(node):
            return None
        elif is_in_place(node):
            target = node.args[0]
            at = root(target)
            if at not in fresh or at in may_be_shared or _n_written(node) != 1:  # another name may see the write
                return None
            if (target is not at and _is_complex(at)) or _changes_shape_only(node):
                return None
            targets[node] = targets.get(target, target)  # what a call in place gives is its operand again
        elif functional_name(name) in UNDONE and root(node.args[0]) in fresh:
            bases[node] = targets.get(node.args[0], node.args[0])
        elif _may_alias(node):
            may_be_shared.update(root(x) for x in node.all_input_nodes)
        else:
            fresh.add(node)
    written = {root(node) for node in targets}
    return Writes(targets, {view: base for view, base in bases.items() if root(view) in written})


def put_back(b: Builder, view: Any, args: Mapping[str, Any], base: Node, value: Node) -> Node:
    """``base`` with ``value`` in place of what the call ``view`` takes of it; ``args`` are that call's."""
    return UNDONE[functional_name(str(view.target))](b, args, base, value)


def _by(name: str) -> Undo:
    """By the call that writes what the view reads."""

    def undo(b: Builder, args: Mapping[str, Any], base: Node, value: Node) -> Node:
        made = CONVERTERS[name](AtenCall(b, f"aten.{name}", {**args, "self": base, "src": value}, (base.type,)))
        assert isinstance(made, Node)
        return made

    return undo


def _reshaped(b: Builder, args: Mapping[str, Any], base: Node, value: Node) -> Node:
    return reshape(b, value, base.shape)


def _transposed(b: Builder, args: Mapping[str, Any], base: Node, value: Node) -> Node:
    rank = len(base.shape)
    perm = list(range(rank))
    p, q = (norm_axis(args[name], rank) for name in ("dim0", "dim1"))
    perm[p], perm[q] = q, p
    return transpose(b, value, perm)


def _turned(b: Builder, args: Mapping[str, Any], base: Node, value: Node) -> Node:
    return transpose(b, value, [1, 0]) if len(base.shape) == 2 else value


def _permuted(b: Builder, args: Mapping[str, Any], base: Node, value: Node) -> Node:
    perm = [norm_axis(d, len(base.shape)) for d in args["dims"]]
    return transpose(b, value, [perm.index(k) for k in range(len(perm))])


UNDONE: Mapping[str, Undo] = {
    "slice.Tensor": _by("slice_scatter.default"), "select.int": _by("select_scatter.default"),
    "view.default": _reshaped, "unsqueeze.default": _reshaped, "squeeze.dim": _reshaped, "squeeze.dims": _reshaped,
    "squeeze.default": _reshaped, "unflatten.int": _reshaped, "alias.default": _reshaped, "detach.default": _reshaped,
    "t.default": _turned, "transpose.int": _transposed, "permute.default": _permuted,
}  # fmt: skip
"""Views of one tensor whose elements are some of the base's, each once, and how the base takes them back."""


def _is_tensor(node: Any) -> bool:
    value = node.meta.get("val")
    return hasattr(value, "untyped_storage") or isinstance(value, tuple | list)


def _is_complex(node: Any) -> bool:
    value = node.meta.get("val")
    return hasattr(value, "is_complex") and bool(value.is_complex())


def _may_alias(node: Any) -> bool:
    returns = node.target._schema.returns
    name = functional_name(str(node.target))
    return name in MAY_RETURN_OPERAND or any(r.alias_info is not None for r in returns) or len(returns) != 1


def _n_written(node: Any) -> int:
    return sum(a.alias_info is not None and a.alias_info.is_write for a in node.target._schema.arguments)
