"""One operator of a TFLite model, as its converter sees it.

In: operands as nodes, and the operator's options. Out: nodes, by a builder at the operator's location.
Not its business: reading files (``importer``), what an operator means (``ops``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.diag import OpError
from tilewright.core.dims import are_known, numbers
from tilewright.core.graph import CONST, Builder, Node
from tilewright.core.types import Array, DType
from tilewright.frontend.moves import Moves
from tilewright.frontend.tflite.quantisation import Quantisation

ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")


@dataclass(frozen=True)
class TfliteCall(Moves):
    """``inputs`` has None for operands left out; ``options`` is the schema's table, None where there is none."""

    b: Builder
    name: str
    inputs: Sequence[Node | None]
    options: Any
    shapes: Sequence[tuple[int, ...]]
    dtypes: Sequence[DType]
    """What the file says of results."""
    quantised: Sequence[Quantisation | None]
    made: Sequence[Quantisation | None]
    """How operands and results are quantised; None for plain numbers."""
    between: Sequence[Quantisation | None]
    """How what the operator computes on its way is quantised."""
    inner: Callable[[int, Builder, Sequence[Node]], list[Node]]
    """The results of a sub-graph by its number, made by a builder of nodes in place of its inputs."""

    def x(self, k: int = 0) -> Node:
        """Operand ``k``, which must be there."""
        node = self.opt(k)
        if node is None:
            raise OpError(f"operand {k} is missing")
        return node

    def opt(self, k: int) -> Node | None:
        return self.inputs[k] if k < len(self.inputs) else None

    def known(self, k: int) -> Array:
        """The numbers of operand ``k``, which decide sizes and so must be constants."""
        node = self.x(k)
        if node.op is not CONST:
            raise OpError(f"operand {k} must be a constant", remedy="fold it, by converting the model with fixed sizes")
        array: Array = node.attrs["data"].array
        return array

    def ints(self, k: int) -> list[int]:
        return [int(n) for n in self.known(k).reshape(-1)]

    def option(self, name: str, default: Any = None) -> Any:
        """An option's value; ``default`` for a table that is missing."""
        if self.options is None:
            if default is None:
                raise OpError("its options are missing")
            return default
        return getattr(self.options, name)()

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the start."""
        if not -rank <= axis < rank:
            raise OpError(f"axis {axis} is none of {rank}")
        return axis % rank

    def number(self, value: float, like: Node) -> Node:
        return self.b.const(value, like.dtype)

    @property
    def activation(self) -> str:
        """The activation that is fused into the operator, by its name in the schema."""
        kind = self.option("FusedActivationFunction", 0)
        if not 0 <= kind < len(ACTIVATIONS):
            raise OpError(f"the activation {kind} is not known")
        return ACTIVATIONS[kind]

    def activated(self, x: Node) -> Node:
        """``x`` through the activation that is fused into the operator."""
        kind = self.activation
        match kind:
            case "NONE":
                return x
            case "RELU":
                return self.b(ops.relu, x)
            case "RELU6":
                return self.b(ops.clamp, x, self.number(0, x), self.number(6, x))
            case "RELU_N1_TO_1":
                return self.b(ops.clamp, x, self.number(-1, x), self.number(1, x))
            case "TANH":
                return self.b(ops.tanh, x)
        raise OpError(f"the activation {kind} is not known")

    def shaped(self, x: Node, shape: Sequence[int]) -> Node:
        return x if x.shape == tuple(shape) else self.b(ops.reshape, x, shape=tuple(shape))

    def transposed(self, x: Node, perm: Sequence[int]) -> Node:
        if x.op is CONST:  # weights are turned once
            return self.b.const(np.ascontiguousarray(x.attrs["data"].array.transpose(perm)))
        return self.b(ops.transpose, x, perm=tuple(perm))

    def size(self, x: Node) -> tuple[int, ...]:
        """The sizes of an operand, which are numbers in this format."""
        if not are_known(x.shape):
            raise OpError(f"sizes that data decide, {x.type}, are read by few operators", remedy="fix them")
        return tuple(numbers(x.shape))


MOST_ELEMENTS = 1 << 27
"""Of what is made at import: a few bytes of a damaged file could ask for any size."""


def check_size(n: int) -> None:
    """``OpError`` for more elements than are made at import."""
    if n > MOST_ELEMENTS:
        raise OpError(f"{n} elements are more than the {MOST_ELEMENTS} that are read", remedy="convert the model anew")


Converter = Callable[[TfliteCall], "Node | Sequence[Node]"]
