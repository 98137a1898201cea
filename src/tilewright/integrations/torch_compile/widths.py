"""Sizes that PyTorch's fused calls demand, and that its shape propagation does not look at.

In: the graph that Dynamo captured. Out: guards, which Dynamo checks: what a layer of an encoder reads is as wide as its
weights, and has no width of its own; attention reads as many values as keys, and heads that share keys are a number.
Not its business: what the calls mean (``torch.aten.encoder``, ``torch.aten.norm``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.integrations.torch_compile.arguments import tensor_of

if TYPE_CHECKING:
    from torch.fx import GraphModule

WIDTHS = {"_transformer_encoder_layer_fwd": ((0, 1),), "_native_multi_head_attention": ((0, 3), (1, 3), (2, 3))}
"""By the call: which operands are as wide as which argument says."""


def guard_widths(gm: GraphModule) -> None:
    """Let Dynamo's guards say how large the operands of fused calls are."""
    import torch

    calls = {getattr(torch, name): pairs for name, pairs in WIDTHS.items()}
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        for operand, width in calls.get(node.target, ()):
            value = tensor_of(node.args[operand])
            if value is not None and not value.is_nested:
                bool(value.shape[-1] == node.args[width])  # a comparison of a symbolic size leaves a guard
        if node.target is torch.nn.functional.scaled_dot_product_attention:
            _guard_attention(*(tensor_of(_argument(node, k, name)) for k, name in enumerate(("query", "key", "value"))))


def _guard_attention(query: Any, key: Any, value: Any) -> None:
    if any(x is None or x.is_nested or x.dim() < 3 for x in (query, key, value)):
        return
    for axis in range(-min(key.dim(), value.dim()), -1):
        bool(key.shape[axis] == value.shape[axis])
    if query.shape[-3] != key.shape[-3]:
        int(query.shape[-3]), int(key.shape[-3])


def _argument(node: Any, k: int, name: str) -> Any:
    return node.args[k] if k < len(node.args) else node.kwargs.get(name)
