"""Floats that PyTorch computes from sizes (such as ``1 / math.sqrt(x.shape[-1])``) as 0-d f64 nodes.

In: sympy expressions over size symbols. Out: nodes. Not its business: integer expressions (``fx_symbols``).
"""

from __future__ import annotations

from typing import Any

from tilewright import ops
from tilewright.core.graph import Builder, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import f64
from tilewright.frontend.aten_call import Unsupported, dim_scalar
from tilewright.frontend.fx_symbols import SymbolTable

_FUNCTIONS: dict[str, OpDef] = {
    "sqrt": ops.sqrt, "exp": ops.exp, "log": ops.log, "cos": ops.cos, "sin": ops.sin, "tanh": ops.tanh, "Abs": ops.abs,
}  # fmt: skip


def float_node(b: Builder, symbols: SymbolTable, e: Any) -> Node:
    """The value of a sympy float expression."""
    kind = type(e).__name__
    if getattr(e, "is_Number", False):
        return b.const(float(e), f64)
    if kind in ("Add", "Mul"):
        first, *rest = (float_node(b, symbols, a) for a in e.args)
        for x in rest:
            first = b(ops.add if kind == "Add" else ops.mul, first, x)
        return first
    if kind in ("Pow", "FloatPow", "PowByNatural"):
        return b(ops.pow, *(float_node(b, symbols, a) for a in e.args))
    if kind in ("IntTrueDiv", "FloatTrueDiv"):
        return b(ops.div, *(float_node(b, symbols, a) for a in e.args))
    if kind in ("ToFloat", "Identity"):
        return float_node(b, symbols, e.args[0])
    function = kind.removeprefix("OpaqueUnaryFn_")
    if function in _FUNCTIONS:
        return b(_FUNCTIONS[function], float_node(b, symbols, e.args[0]))
    if not getattr(e, "is_integer", False):
        raise Unsupported(f"the float {e} computed from sizes", "compute it from tensors")
    return dim_scalar(b, symbols.dim(e), f64)
