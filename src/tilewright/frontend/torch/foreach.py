"""ATen's calls on lists of tensors, which do to each tensor what a plain call does.

In: nothing. Out: ``decompositions``, by overload. Not its business: what the plain calls mean (``torch.aten``), and the
forms that write, which PyTorch makes functional first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round "
    "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
).split()
"""Calls of one tensor alone."""

BINARY = "add sub mul div pow maximum minimum clamp_min clamp_max".split()
"""Calls of a tensor and another, or a number."""

BOUNDS = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""What takes a number where the call itself takes only tensors."""


@functools.cache
def decompositions() -> Mapping[Any, Callable[..., list[Tensor]]]:
    """What each call on lists does, in plain calls; those that this version of PyTorch has."""
    import torch

    found: dict[str, Callable[..., list[Tensor]]] = {}
    for name in UNARY:
        found[f"{name}.default"] = _unary(getattr(torch, name))
    for name in BINARY:
        by_tensor = getattr(torch, name)
        by_number = getattr(torch, BOUNDS.get(name, name))
        found[f"{name}.List"] = _binary(by_tensor)
        found[f"{name}.Tensor"] = _binary(by_tensor)
        found[f"{name}.Scalar"] = found[f"{name}.ScalarList"] = _binary(by_number)
    found["pow.ScalarAndTensor"] = lambda base, xs: [torch.pow(base, x) for x in xs]
    for name in ("addcmul", "addcdiv"):
        for overload in ("Scalar", "ScalarList"):  # PyTorch traces no call that takes a tensor of numbers
            found[f"{name}.{overload}"] = _scaled(getattr(torch, name))
    for overload in ("List", "Scalar", "ScalarList"):
        found[f"lerp.{overload}"] = _lerp
    found["norm.Scalar"] = _norm
    found["max.default"] = _unary(torch.max)
    found["clone.default"] = _unary(torch.clone)
    found["zero.default"] = _unary(torch.zeros_like)
    found["copy.default"] = _binary(torch.ops.aten.copy.default)
    packets = {name: getattr(torch.ops.aten, f"_foreach_{name.split('.')[0]}", None) for name in found}
    return {
        getattr(packet, overload): found[name]
        for name, packet in packets.items()
        if (overload := name.split(".")[1]) in (packet.overloads() if packet is not None else ())
    }


def _each(value: Any, n: int) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value] * n


def _unary(call: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    return lambda xs: [call(x) for x in xs]


def _binary(call: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    def on_lists(xs: Sequence[Tensor], other: Any, **options: Any) -> list[Tensor]:
        return [call(x, y, **options) for x, y in zip(xs, _each(other, len(xs)), strict=True)]

    return on_lists


def _scaled(call: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    def on_lists(xs: Sequence[Tensor], ys: Sequence[Tensor], zs: Sequence[Tensor], value: Any = 1) -> list[Tensor]:
        values = _each(value, len(xs))
        return [call(x, y, z, value=v) for x, y, z, v in zip(xs, ys, zs, values, strict=True)]

    return on_lists


def _lerp(xs: Sequence[Tensor], ends: Sequence[Tensor], weight: Any) -> list[Tensor]:
    import torch

    return [torch.lerp(x, end, w) for x, end, w in zip(xs, ends, _each(weight, len(xs)), strict=True)]


def _norm(xs: Sequence[Tensor], order: Any = 2, dtype: Any = None) -> list[Tensor]:
    import torch

    return [torch.linalg.vector_norm(x, order, dtype=dtype) for x in xs]
