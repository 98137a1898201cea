"""What quantising did to each layer: a table to read, and the same as plain values.

In: what was measured. Out: text, and dicts for JSON. Not its business: measuring.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tilewright.core import types
from tilewright.tools.quantize.scheme import ACTIVATIONS, DYNAMIC, GPTQ, STORED
from tilewright.tools.tables import aligned


@dataclass(frozen=True)
class LayerReport:
    """A product of the model, what it multiplies now, and what that costs.

    ``type`` is ``"u8 x i8"``, ``"f32 x int4"`` or ``"f32"``; ``why`` says why it is f32, or what else is to be known.
    ``sqnr_db`` is the power of the layer's result over that of its error, with an operand that has no error yet;
    ``saturated`` the share of the operand's numbers beyond the range that has integers. ``model_sqnr_db`` is the power
    of the model's results over that of their error when only this layer is quantised. None is what was not measured.
    """

    name: str
    op: str
    type: str
    why: str = ""
    sqnr_db: float | None = None
    saturated: float | None = None
    model_sqnr_db: float | None = None


@dataclass(frozen=True)
class QuantizeReport:
    """Every layer in the order of the model, what the accuracy did, and warnings that name tensors.

    ``score`` and ``score_before`` are what ``evaluate`` gave, where it was given.
    """

    layers: tuple[LayerReport, ...]
    n_batches: int
    warnings: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    score_before: float | None = None
    score: float | None = None

    @property
    def n_quantised(self) -> int:
        return sum(layer.type != "f32" for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, which ``json.dumps`` takes."""
        return asdict(self)

    def __str__(self) -> str:
        if self.options.get("mode") == STORED:
            how = f"GPTQ over {self.n_batches} batches" if self.n_batches else "the nearest codes"
            done, n = self.n_quantised, len(self.layers)
            return self._table(f"{done} of {n} products with weights of {self.options['weights']}, by {how}")
        by_calls = self.options.get("mode") == DYNAMIC
        ranges = "of each row or image by the call" if by_calls else f"of {self.n_batches} batches"
        n_bits = ACTIVATIONS[self.options.get("activations", "u8")].bits
        bits = "8 bits" if n_bits == types.u8.bits else f"8 bits, activations in {n_bits}"
        rounding = "weights by GPTQ" if self.options.get("rounding") == GPTQ else "the nearest weights"
        head = f"{self.n_quantised} of {len(self.layers)} products in {bits}, ranges {ranges}, {rounding}"
        if self.score is not None:
            head += f"; score {self.score_before:.6g} before, {self.score:.6g} now"
        return self._table(head)

    def _table(self, head: str) -> str:
        rows = [("layer", "op", "type", "SQNR dB", "saturated", "model dB", "why")]
        rows += [
            (x.name, x.op, x.type, _number(x.sqnr_db), _share(x.saturated), _number(x.model_sqnr_db), x.why)
            for x in self.layers
        ]
        return "\n".join([head, *aligned(rows), *(f"warning: {text}" for text in self.warnings)])


def _number(x: float | None) -> str:
    return "" if x is None else f"{x:.1f}"


def _share(x: float | None) -> str:
    return "" if x is None else f"{x:.3%}"
