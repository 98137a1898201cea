"""Losses that PyTorch's own decompositions get wrong, by other calls of PyTorch.

In: the graph that Dynamo captured. Out: the same graph with definitions in the place of such calls. AOTAutograd takes
them apart before any back end's decompositions are asked. Not its business: exported programs, which keep such calls
whole (``frontend.torch.aten.loss``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule


def spell_out_losses(gm: GraphModule) -> None:
    """Let calls of ``multilabel_margin_loss`` be calls of its definition."""
    import torch

    calls = torch.ops.aten.multilabel_margin_loss
    own = {
        torch.nn.functional.multilabel_margin_loss: _multilabel_margin,
        **dict.fromkeys((torch._C._nn.multilabel_margin_loss, calls, calls.default), _multilabel_margin_by_number),
    }
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and n.target in own]
    for node in nodes:
        node.target = own[node.target]
    if nodes:
        gm.recompile()


def _multilabel_margin_by_number(self: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    return _multilabel_margin(self, target, reduction=("none", "mean", "sum")[reduction])


def _multilabel_margin(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """For each label of a row, those before the first negative one, how far other classes come near its own score.

    PyTorch's decomposition counts what stands behind the first negative label, as if it were the class 0.
    """
    import torch
    from torch.nn._reduction import legacy_get_string

    if size_average is not None or reduce is not None:
        reduction = legacy_get_string(size_average, reduce)
    x, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    n = x.shape[1]
    place = torch.arange(n, device=x.device)
    counts = place < torch.where(labels < 0, place, n).amin(-1, keepdim=True)
    known = torch.where(counts, labels, 0)
    own = x.gather(1, known).unsqueeze(-1)
    is_label = (counts.unsqueeze(-1) & (known.unsqueeze(-1) == place)).any(1, keepdim=True)
    near = torch.relu(1 - own + x.unsqueeze(1))
    total: Tensor = torch.where(counts.unsqueeze(-1) & ~is_label, near, 0).sum((1, 2)) / n
    if reduction == "none":
        return total.reshape(target.shape[:-1])
    return total.sum() if reduction == "sum" else total.mean()
