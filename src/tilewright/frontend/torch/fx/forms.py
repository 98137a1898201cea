"""Which calls of an fx program have a form here, before any is converted.

In: an fx node. Out: whether a converter is known for what it calls. Not its business: converting (``fx.walk``), which
may still find that the arguments of a call are none that its converter takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontend.torch.aten.complex import COMPLEX
from tilewright.frontend.torch.aten.table import CONVERTERS
from tilewright.frontend.torch.custom_ops import KERNELS
from tilewright.frontend.torch.tensors import is_complex_tensor

ELEMENTS = frozenset({"aten._local_scalar_dense.default", "aten.item.default"})
"""Calls that make a number of a tensor of one element."""


def functional_name(name: str) -> str:
    """The overload without the ``aten.`` in front and the underscore of an in-place call."""
    packet, _, overload = name.removeprefix("aten.").partition(".")
    is_in_place = packet.endswith("_") and not packet.endswith("__")
    return f"{packet.rstrip('_') if is_in_place else packet}.{overload}"


def has_form(node: Any) -> bool:
    """Is there a converter for the call, or is it none of an op of PyTorch's?"""
    name, value = str(node.target), node.meta.get("val")
    if getattr(node.target, "_schema", None) is None or name in KERNELS or name in ELEMENTS:
        return True
    if is_symbolic(value) or _is_condition(node.target._schema):
        return True  # numbers are known by their expressions
    return functional_name(name) in (COMPLEX if is_about_complex(node) else CONVERTERS)


def is_symbolic(value: Any) -> bool:
    """Is it a number that only a call knows?"""
    return type(value).__name__ in ("SymInt", "SymFloat", "SymBool")


def _is_condition(schema: Any) -> bool:
    return not schema.returns and not schema.is_mutable


def is_about_complex(node: Any) -> bool:
    """Does the call take or give complex numbers?"""
    return any(is_complex_tensor(x) for n in (node, *node.all_input_nodes) for x in _values_of(n))


def _values_of(node: Any) -> Sequence[Any]:
    value = node.meta.get("val")
    return value if isinstance(value, list | tuple) else (value,)
