"""Layers whose weights stay codes: a product with a matrix in codes, and rows of a table in codes.

In: ``Codes``. Out: modules that stand for ``torch.nn.Linear`` and ``torch.nn.Embedding``. Not its business: where codes
come from (``blocks``).

What they compute is spelled so that the compiler finds the stored bytes (``graph.forms.coded``,
``graph.forms.scaled``): whole numbers that are widened and multiplied by scales of groups. An offset is the same for a
whole group, so it multiplies the group's sum of what comes in, in a product of its own that has as many terms as there
are groups. Where scales and offsets are whole numbers of units, so are they here; offsets are then a matrix in codes
themselves, whose scales are the units.
"""

from __future__ import annotations

import torch

from tilewright.frontend.weights.blocks import Codes, Scales
from tilewright.frontend.weights.given import tensor_over


class _Scales(torch.nn.Module):
    """A number for each group of each row."""

    numbers: torch.Tensor
    units: torch.Tensor | None

    def __init__(self, scales: Scales) -> None:
        super().__init__()
        for name, a in (("numbers", scales.numbers), ("units", scales.units)):
            self.register_buffer(name, None if a is None else tensor_over(a), persistent=False)

    def forward(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        """f32[rows, groups]; [..., groups] for the numbers of some rows."""
        numbers = self.numbers if rows is None else self.numbers[rows]
        if self.units is None:
            return numbers
        units = self.units if rows is None else self.units[rows]
        return (numbers.to(torch.float32) * units.to(torch.float32).unsqueeze(-1)).flatten(-2)


class _Coded(torch.nn.Module):
    """Holds codes as buffers, which no ``state_dict`` has."""

    steps: torch.Tensor

    def __init__(self, codes: Codes) -> None:
        super().__init__()
        self.register_buffer("steps", tensor_over(codes.steps), persistent=False)
        self.scales = None if codes.scales is None else _Scales(codes.scales)
        self.offsets = None if codes.offsets is None else _Scales(codes.offsets)

    def _scaled(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        wide = (self.steps if rows is None else self.steps[rows]).to(torch.float32)
        made: torch.Tensor = wide if self.scales is None else wide * self.scales(rows).unsqueeze(-1)
        return made.flatten(-2)


class CodedLinear(_Coded):
    """``x @ matrix.T + bias``, f32[..., columns] to f32[..., rows]."""

    def __init__(self, codes: Codes, bias: torch.nn.Parameter | None) -> None:
        super().__init__(codes)
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.nn.functional.linear(x, self._scaled(), self.bias)
        if self.offsets is None:
            return made
        sums = x.unflatten(-1, tuple(self.steps.shape[1:])).sum(-1)
        return made + torch.nn.functional.linear(sums, self.offsets())


class CodedEmbedding(_Coded):
    """Rows of the matrix by number, i64[...] to f32[..., columns]."""

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        rows = self._scaled(numbers)
        if self.offsets is None:
            return rows
        groups: torch.Tensor = rows.unflatten(-1, tuple(self.steps.shape[1:]))
        made: torch.Tensor = (groups + self.offsets(numbers).unsqueeze(-1)).flatten(-2)
        return made
