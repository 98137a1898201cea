"""Nodes of ONNX for converters of ours that ``skl2onnx`` calls.

In: ``skl2onnx``'s scope and container. Out: ``GraphNodes``, by which a converter reads as a formula does. Not its
business: what an estimator computes (``forests``, ``neighbours``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.core.types import Array
from tilewright.runtime.once import MAKING

Converter = Callable[[Any, Any, Any], None]
"""``skl2onnx`` calls it with the scope, the operator (an estimator with its operands) and the container of nodes."""


class GraphNodes:
    """Nodes of ONNX in ``skl2onnx``'s container, each with one result of a name of its own."""

    def __init__(self, scope: Any, container: Any) -> None:
        self.scope, self.container = scope, container

    def __call__(self, kind: str, *inputs: str, result: str | None = None, **attrs: Any) -> str:
        return self.several(kind, inputs, [result], **attrs)[0]

    def several(self, kind: str, inputs: Sequence[str], results: Sequence[str | None], **attrs: Any) -> list[str]:
        """A node of several results."""
        made = [r or str(self.scope.get_unique_variable_name(kind.lower())) for r in results]
        domain, version = ("ai.onnx.ml", 1) if kind == "TreeEnsembleRegressor" else ("", 18)
        name = self.scope.get_unique_operator_name(kind)
        self.container.add_node(kind, list(inputs), made, op_domain=domain, op_version=version, name=name, **attrs)
        return made

    def number(self, value: Array) -> str:
        """An initializer."""
        with MAKING:
            from onnx import helper

        name = str(self.scope.get_unique_variable_name("number"))
        is_text = value.dtype.kind in "OUS"
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(object) if is_text else value.dtype)
        content = [str(v).encode() for v in value.reshape(-1)] if is_text else value.reshape(-1).tolist()
        self.container.add_initializer(name, kind, list(value.shape), content)
        return name

    def axis(self, k: int) -> str:
        return self.number(np.array([k], np.int64))

    def within(self, classifier: Any, rows: Any) -> tuple[str, str]:
        """The labels and the scores of a classifier inside of the operator's, over the variable ``rows``."""
        with MAKING:
            from skl2onnx._supported_operators import sklearn_operator_name_map
            from skl2onnx.common.data_types import FloatTensorType, Int64TensorType

        inner = self.scope.declare_local_operator(sklearn_operator_name_map[type(classifier)], classifier)
        inner.inputs.append(rows)
        label = self.scope.declare_local_variable("label", Int64TensorType())
        scores = self.scope.declare_local_variable("scores", FloatTensorType())
        inner.outputs.append(label)
        inner.outputs.append(scores)
        return str(label.full_name), str(scores.full_name)

    def classified(self, operator: Any, scores: str, classes: Any, chosen_by: str | None = None) -> None:
        """The class with the largest score, and ``scores`` as they are, as the operator's results.

        ``scores``, f32[rows, classes], are probabilities, or the raw scores of ``decision_function`` where those are
        asked for. ``chosen_by``, of the same shape, are numbers whose largest tells the class where that of ``scores``
        does not.
        """
        found = self("ArgMax", chosen_by or scores, axis=1, keepdims=0)
        known = np.asarray(classes)
        known = known.astype(np.int64) if known.dtype.kind in "iub" else known
        self("Gather", self.number(known), found, result=operator.outputs[0].full_name, axis=0)
        self("Identity", scores, result=operator.outputs[1].full_name)
