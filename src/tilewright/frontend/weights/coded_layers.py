"""Layers whose weights stay codes: a product with a matrix in codes, and rows of a table in codes.

In: ``Codes``. Out: modules that stand for ``torch.nn.Linear`` and ``torch.nn.Embedding``. Not its business: where codes
come from (``blocks``).

What they compute is spelled so that the compiler finds the stored bytes (``graph.forms.coded``,
``graph.forms.scaled``): whole numbers that are widened and multiplied by scales of groups. An offset is the same for a
whole group, so it multiplies the group's sum of what comes in, in a product of its own that has as many terms as there
are groups.
"""

from __future__ import annotations

import torch

from tilewright.frontend.weights.blocks import Codes
from tilewright.frontend.weights.given import tensor_over


class _Coded(torch.nn.Module):
    """Holds codes as buffers, which no ``state_dict`` has."""

    steps: torch.Tensor
    scales: torch.Tensor | None
    offsets: torch.Tensor | None

    def __init__(self, codes: Codes) -> None:
        super().__init__()
        for name, a in zip(("steps", "scales", "offsets"), codes.parts(), strict=True):
            self.register_buffer(name, None if a is None else tensor_over(a), persistent=False)

    def _scaled(self, steps: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        wide = steps.to(torch.float32)
        return (wide if scales is None else wide * scales).flatten(-2)


class CodedLinear(_Coded):
    """``x @ matrix.T + bias``, f32[..., columns] to f32[..., rows]."""

    def __init__(self, codes: Codes, bias: torch.nn.Parameter | None) -> None:
        super().__init__(codes)
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.nn.functional.linear(x, self._scaled(self.steps, self.scales), self.bias)
        if self.offsets is None:
            return made
        sums = x.unflatten(-1, tuple(self.steps.shape[1:])).sum(-1)
        return made + torch.nn.functional.linear(sums, self.offsets)


class CodedEmbedding(_Coded):
    """Rows of the matrix by number, i64[...] to f32[..., columns]."""

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        rows = self._scaled(self.steps[numbers], None if self.scales is None else self.scales[numbers])
        if self.offsets is None:
            return rows
        groups: torch.Tensor = rows.unflatten(-1, tuple(self.steps.shape[1:]))
        return (groups + self.offsets[numbers][..., None]).flatten(-2)
