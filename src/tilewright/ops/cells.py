"""The activation functions that recurrent cells may be given, each in NumPy and as an element value.

In: ONNX names, with alpha and beta where a function has them. Out: functions.
Not its business: activations as ops of a graph (``ops.activations``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.core.compute import Binary, Const, Select, Unary, Value
from tilewright.core.diag import OpError
from tilewright.core.graph import Attrs
from tilewright.core.types import Array


@dataclass(frozen=True)
class GateFunction:
    """One function: its meaning ``f(x, alpha, beta)`` in both forms, and ONNX's default parameters."""

    array: Callable[[Array, float, float], Array]
    value: Callable[[Value, float, float], Value]
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Activation:
    """A cell with its parameters."""

    cell: GateFunction
    alpha: float
    beta: float

    def array(self, x: Array) -> Array:
        dtype = x.dtype.type
        return np.asarray(self.cell.array(x, dtype(self.alpha), dtype(self.beta)), x.dtype)

    def value(self, x: Value) -> Value:
        return self.cell.value(x, self.alpha, self.beta)


def _c(x: Value, c: float) -> Const:
    return Const(c, x.dtype)


def _at_least(x: Value, c: float) -> Value:
    return Binary("max", x, _c(x, c))


def _non_negative(x: Value) -> Value:
    return Binary("ge", x, _c(x, 0.0))


def _softplus(x: Value) -> Value:
    """max(x, 0) + log1p(exp(-abs(x))): does not overflow."""
    return _at_least(x, 0.0) + Unary("log1p", Unary("exp", -Unary("abs", x)))


CELLS: dict[str, GateFunction] = {
    "Relu": GateFunction(lambda x, a, b: np.maximum(x, 0), lambda x, a, b: _at_least(x, 0.0)),
    "Tanh": GateFunction(lambda x, a, b: np.tanh(x), lambda x, a, b: Unary("tanh", x)),
    "Sigmoid": GateFunction(
        lambda x, a, b: 1 / (1 + np.exp(-x)), lambda x, a, b: _c(x, 1.0) / (_c(x, 1.0) + Unary("exp", -x))
    ),
    "Affine": GateFunction(lambda x, a, b: a * x + b, lambda x, a, b: _c(x, a) * x + _c(x, b), 1.0),
    "LeakyRelu": GateFunction(
        lambda x, a, b: np.where(x >= 0, x, a * x), lambda x, a, b: Select(_non_negative(x), x, _c(x, a) * x), 0.01
    ),
    "ThresholdedRelu": GateFunction(
        lambda x, a, b: np.where(x > a, x, 0), lambda x, a, b: Select(Binary("gt", x, _c(x, a)), x, _c(x, 0.0)), 1.0
    ),
    "ScaledTanh": GateFunction(
        lambda x, a, b: a * np.tanh(b * x), lambda x, a, b: _c(x, a) * Unary("tanh", _c(x, b) * x), 1.0, 1.0
    ),
    "HardSigmoid": GateFunction(
        lambda x, a, b: np.clip(a * x + b, 0, 1),
        lambda x, a, b: Binary("min", _at_least(_c(x, a) * x + _c(x, b), 0.0), _c(x, 1.0)),
        0.2,
        0.5,
    ),
    "Elu": GateFunction(
        lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
        lambda x, a, b: Select(_non_negative(x), x, _c(x, a) * Unary("expm1", Binary("min", x, _c(x, 0.0)))),
        1.0,
    ),
    "Softsign": GateFunction(lambda x, a, b: x / (1 + np.abs(x)), lambda x, a, b: x / (_c(x, 1.0) + Unary("abs", x))),
    "Softplus": GateFunction(
        lambda x, a, b: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
        lambda x, a, b: _softplus(x),
    ),
}


def check_activations(a: Attrs, count: int) -> None:
    """Raise ``OpError`` unless the attributes name ``count`` functions (or none) with as many parameters (or none)."""
    unknown = [n for n in a.activations if n not in CELLS]
    if unknown:
        raise OpError(f"activations {', '.join(unknown)} are none of {', '.join(CELLS)}")
    for values, name in ((a.activations, "activations"), (a.alpha, "alpha"), (a.beta, "beta")):
        if len(values) not in (0, count):
            raise OpError(f"{name} must have {count} entries or none, not {len(values)}")


def activations(a: Attrs, defaults: Sequence[str]) -> list[Activation]:
    """The functions that the attributes name, by ``defaults`` where they name none."""
    cells = [CELLS[n] for n in (a.activations or defaults)]
    alphas = a.alpha or [c.alpha for c in cells]
    betas = a.beta or [c.beta for c in cells]
    return [Activation(c, alpha, beta) for c, alpha, beta in zip(cells, alphas, betas, strict=True)]
