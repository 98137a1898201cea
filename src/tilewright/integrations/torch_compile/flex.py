"""``flex_attention``, whose scores a function of the user's changes: spelled out, as PyTorch itself defines it.

In: the graph that Dynamo captured. Out: the same graph, where each such call is PyTorch's definition of it, which
AOTAutograd then traces: products, the user's function and mask over all places, a softmax, a product. Every score is
computed; the blocks that a block mask leaves out are a hint about speed, which its mask says too.
Not its business: attention without such functions (``torch.aten.norm``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.fx import GraphModule


def spell_out_attention(gm: GraphModule) -> None:
    """Let calls of ``flex_attention`` be calls of its definition."""
    import torch

    nodes = [n for n in gm.graph.nodes if n.target is torch.ops.higher_order.flex_attention]
    if nodes:
        definition = importlib.import_module("torch._higher_order_ops.flex_attention").math_attention
        for node in nodes:
            node.target = definition
        gm.recompile()
