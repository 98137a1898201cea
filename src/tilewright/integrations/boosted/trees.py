"""Boosted trees as an ONNX model: what XGBoost's and LightGBM's readers have in common.

In: splits and leaves, how the sums become predictions, and what rows look like. Out: a ``ModelProto`` from
``f32[rows, n_features]``. Not its business: reading a library's dump (``xgb``, ``lgb``), making code of trees
(``frontend.onnx.ml``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core.diag import CompileError, OptionError
from tilewright.core.types import Array
from tilewright.integrations.sklearn.trees import Trees
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.once import MAKING

if TYPE_CHECKING:
    from onnx import ModelProto

OPSETS = {"": 21, "ai.onnx.ml": 3}
IR_VERSION = 10


_FAULTS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError)
"""What reading a dump raises that is not made as its library makes it."""


@contextmanager
def reading(library: str) -> Iterator[None]:
    """Within it a dump is read: whatever that trips over becomes one ``CompileError``."""
    try:
        yield
    except TilewrightError:
        raise
    except _FAULTS as error:
        raise CompileError(
            f"the model's dump is not as {library} writes it: {type(error).__name__}: {error}"[:200],
            remedy="the model is damaged: train it anew, or load it from a sound file",
        ) from error


@dataclass(frozen=True)
class Linear:
    """Sums of weighted features, where what is missing counts as 0: ``weights`` are ``[n_features, n_sums]``."""

    weights: Array
    base: Array

    @property
    def n_features(self) -> int:
        """How many numbers a row has."""
        return int(self.weights.shape[0])


@dataclass(frozen=True)
class Link:
    """How sums become predictions: the form of ``_linked`` of ``factor`` times the sums."""

    name: str
    factor: float = 1.0


def in_onnx(model: Trees | Linear, link: Link, *, is_classifier: bool) -> ModelProto:
    """The model; a classifier's results are the number of the likeliest class, i64[rows], and f32[rows, classes]."""
    try:
        with MAKING:
            from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise OptionError("boosted trees need the package onnx", remedy='pip install "tilewright[onnx]"') from error
    nodes: list[Any] = []
    numbers: dict[str, Array] = {}

    def op(kind: str, *inputs: str | float | Array, **attrs: Any) -> str:
        """A node's only result; numbers among its operands are f32 unless they are arrays."""
        names = [x if isinstance(x, str) else f"number_{len(numbers)}_{k}" for k, x in enumerate(inputs)]
        for name, x in zip(names, inputs, strict=True):
            if not isinstance(x, str):
                numbers[name] = np.asarray(x, np.float32) if isinstance(x, float) else x
        nodes.append(helper.make_node(kind, names, [f"{kind}_{len(nodes)}"], **attrs))
        return str(nodes[-1].output[0])

    sums = _summed(op, model) if isinstance(model, Trees) else _weighted(op, model)
    if link.factor != 1.0:
        sums = op("Mul", sums, link.factor)
    made = _linked(op, sums, link.name)
    if is_classifier:
        n_sums = len(model.base)
        scores = op("Concat", op("Sub", 1.0, made), made, axis=1) if n_sums == 1 else made
        results: list[Any] = [(op("ArgMax", scores, axis=1, keepdims=0), TensorProto.INT64, ["rows"])]
        results.append((scores, TensorProto.FLOAT, ["rows", max(n_sums, 2)]))
    else:
        results = [(made, TensorProto.FLOAT, ["rows", len(model.base)])]
    graph = helper.make_graph(
        nodes, "boosted", [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["rows", model.n_features])],
        [helper.make_tensor_value_info(*r) for r in results],
        [numpy_helper.from_array(a, name) for name, a in numbers.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=imports)


def _summed(op: Any, t: Trees) -> str:
    return str(op("TreeEnsembleRegressor", "rows", domain="ai.onnx.ml", **t.attributes()))


def _weighted(op: Any, model: Linear) -> str:
    known = op("Where", op("IsNaN", "rows"), 0.0, "rows")
    return str(op("Add", op("MatMul", known, model.weights), model.base))


def _linked(op: Any, sums: str, name: str) -> str:
    """The prediction of sums."""
    forms = {
        "identity": lambda: op("Identity", sums),
        "exp": lambda: op("Exp", sums),
        "sigmoid": lambda: op("Sigmoid", sums),
        "softmax": lambda: op("Softmax", sums, axis=1),
        "step": lambda: op("Cast", op("Greater", sums, 0.0), to=1),
        "signed_square": lambda: op("Mul", sums, op("Abs", sums)),
        "log1p_exp": lambda: op("Softplus", sums),
    }
    return str(forms[name]())
