"""Sizes that PyTorch's fused calls demand, and that its shape propagation does not look at.

In: the graph that Dynamo captured. Out: guards, which Dynamo checks: what a layer of an encoder reads is as wide as its
weights, and has no width of its own. Not its business: what the calls mean (``aten_encoder``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import GraphModule

WIDTHS = {"_transformer_encoder_layer_fwd": ((0, 1),), "_native_multi_head_attention": ((0, 3), (1, 3), (2, 3))}
"""By the call: which operands are as wide as which argument says."""


def guard_widths(gm: GraphModule) -> None:
    """Let Dynamo's guards say how wide the operands of fused calls are."""
    import torch

    calls = {getattr(torch, name): pairs for name, pairs in WIDTHS.items()}
    for node in gm.graph.nodes:
        for operand, width in calls.get(node.target, ()) if node.op == "call_function" else ():
            value = getattr(node.args[operand], "meta", {}).get("example_value")
            if value is not None and not value.is_nested:
                bool(value.shape[-1] == node.args[width])  # a comparison of a symbolic size leaves a guard
