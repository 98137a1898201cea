"""Floats that PyTorch computes from sizes (such as ``1 / math.sqrt(x.shape[-1])``) and from elements of tensors
(``x[0].item() * 2``), as 0-d f64 nodes.

In: sympy expressions over symbols. Out: nodes. Not its business: integer expressions (``torch.fx.symbols``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright import ops
from tilewright.core.graph import Builder, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import f64
from tilewright.frontend.nodes import dim_scalar
from tilewright.frontend.torch.aten.call import Unsupported, cast
from tilewright.frontend.torch.fx.symbols import SymbolTable

_FUNCTIONS: dict[str, OpDef] = {
    "sqrt": ops.sqrt, "exp": ops.exp, "log": ops.log, "cos": ops.cos, "sin": ops.sin, "tanh": ops.tanh, "Abs": ops.abs,
}  # fmt: skip


def float_node(b: Builder, symbols: SymbolTable, numbers: Mapping[str, Node], e: Any) -> Node:
    """The value of a sympy float expression, 0-d and f64; ``numbers`` are the symbols that tensors' elements are."""
    kind = type(e).__name__
    if getattr(e, "is_Symbol", False) and e.name in numbers:
        return cast(b, numbers[e.name], f64)
    if getattr(e, "is_Number", False):
        return b.const(float(e), f64)
    if kind in ("Add", "Mul"):
        first, *rest = (float_node(b, symbols, numbers, a) for a in e.args)
        for x in rest:
            first = b(ops.add if kind == "Add" else ops.mul, first, x)
        return first
    if kind in ("Pow", "FloatPow", "PowByNatural"):
        return b(ops.pow, *(float_node(b, symbols, numbers, a) for a in e.args))
    if kind in ("IntTrueDiv", "FloatTrueDiv"):
        return b(ops.div, *(float_node(b, symbols, numbers, a) for a in e.args))
    if kind in ("ToFloat", "Identity"):
        return float_node(b, symbols, numbers, e.args[0])
    function = kind.removeprefix("OpaqueUnaryFn_")
    if function in _FUNCTIONS:
        return b(_FUNCTIONS[function], float_node(b, symbols, numbers, e.args[0]))
    if not getattr(e, "is_integer", False):
        raise Unsupported(f"the float {e} computed from numbers", "compute it from tensors")
    return dim_scalar(b, symbols.dim(e), f64)
