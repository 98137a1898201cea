"""What pruning did to each layer: a table to read, and the same as plain values.

In: layers before and after. Out: text, and dicts for JSON. Not its business: pruning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

from tilewright import ops
from tilewright.core.dims import are_known, numbers
from tilewright.core.expr import Dim
from tilewright.core.opdef import OpDef
from tilewright.graph.prune.coupling import WeightedProduct
from tilewright.ops.contract import einsum_extents, einsum_terms
from tilewright.tools.tables import aligned


@dataclass(frozen=True)
class PrunedLayer:
    """A product with constant weights, and what is left of it.

    ``shape_before`` and ``shape_after`` are those of its weights, ``parameters`` how many of these are not taken away,
    ``multiply_adds`` how many a call does with them; None where only a call knows. ``why`` says why all is left.
    """

    name: str
    op: str
    shape_before: tuple[int, ...]
    shape_after: tuple[int, ...]
    parameters_before: int
    parameters_after: int
    multiply_adds_before: int | None
    multiply_adds_after: int | None
    why: str = ""


@dataclass(frozen=True)
class PruneReport:
    """Every layer in the order of the model, and the options that it was pruned with."""

    layers: tuple[PrunedLayer, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> tuple[int, int]:
        """Weights of all layers before and after."""
        return sum(x.parameters_before for x in self.layers), sum(x.parameters_after for x in self.layers)

    @property
    def multiply_adds(self) -> tuple[int, int] | None:
        """Of a call before and after; None where only the call knows."""
        pairs = [(x.multiply_adds_before, x.multiply_adds_after) for x in self.layers]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        return (sum(a for a, _ in known), sum(b for _, b in known)) if len(known) == len(pairs) else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, which ``json.dumps`` takes."""
        work = self.multiply_adds
        totals = {"parameters": list(self.parameters), "multiply_adds": None if work is None else list(work)}
        return {**asdict(self), **totals}

    def __str__(self) -> str:
        before, after = self.parameters
        head = f"{after:,} of {before:,} parameters are left"
        if self.multiply_adds is not None:
            head += ", {1:,} of {0:,} multiply-adds".format(*self.multiply_adds)
        rows = [("layer", "op", "weights", "now", "parameters", "left", "why")]
        rows += [
            (
                x.name, x.op, _sizes(x.shape_before), _sizes(x.shape_after), f"{x.parameters_after:,}",
                f"{x.parameters_after / max(x.parameters_before, 1):.0%}", x.why,
            )
            for x in self.layers
        ]  # fmt: skip
        return "\n".join([head, *aligned(rows)])


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def layer_report(
    product: WeightedProduct, weights: Sequence[int], after: Sequence[Sequence[Dim]], n_left: int, why: str = ""
) -> PrunedLayer:
    """The line of a layer whose weights have this shape now, and whose two operands and result have shapes ``after``.

    ``n_left`` weights of those are not zero.
    """
    t = product.tensor
    leaf = product.weights.constant() or product.weights
    was = tuple(len(a) for a in leaf.axes)
    before = _multiply_adds(t.node.op, dict(t.node.attrs), [*(x.node.shape for x in t.inputs), t.node.shape])
    now = _multiply_adds(t.node.op, dict(t.node.attrs), after)
    if now is not None:
        now = now * n_left // max(prod(weights), 1)
    return PrunedLayer(product.name, t.node.op.name, was, tuple(weights), prod(was), n_left, before, now, why)


def _multiply_adds(op: OpDef, attrs: dict[str, Any], shapes: Sequence[Sequence[Dim]]) -> int | None:
    """Of a product of operands and a result with these shapes; None where a size is not known."""
    if not all(map(are_known, shapes)):
        return None
    a, b, out = map(numbers, shapes)
    if op is ops.matmul:
        return prod(out) * a[-1]
    if op is ops.einsum:
        sizes = einsum_extents(einsum_terms(attrs["equation"], [len(a), len(b)])[0], shapes[:2])
        return prod(numbers(sizes.values()))
    return prod(a if op is ops.conv_transpose else out) * prod(b[1:])
