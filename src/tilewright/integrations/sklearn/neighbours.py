"""Nearest neighbours of scikit-learn as ONNX: ``skl2onnx`` leaves the weights of distances out, and most metrics.

In: a fitted ``KNeighborsClassifier`` or ``KNeighborsRegressor``. Out: converters by class. Not its business: how the
distances become fast code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.core.diag import CompileError
from tilewright.integrations.sklearn.nodes import Converter, GraphNodes
from tilewright.runtime.once import MAKING


def converters() -> Mapping[type, Converter]:
    """By class, for ``convert_sklearn``'s ``custom_conversion_functions``."""
    with MAKING:
        from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

    return {KNeighborsClassifier: _neighbours, KNeighborsRegressor: _neighbours}


def _neighbours(scope: Any, operator: Any, container: Any) -> None:
    """The labels of the nearest rows, weighted alike or by one over the distance."""
    model, write = operator.raw_operator, GraphNodes(scope, container)
    known = model._fit_X
    known = np.asarray(known.toarray() if hasattr(known, "toarray") else known, np.float32)
    if model.weights not in ("uniform", "distance"):
        raise CompileError("the neighbours have weights by a function", remedy='fit with weights="distance"')
    distances = _distances(write, model, operator.inputs[0].full_name, known)
    most = write.number(np.array([model.n_neighbors], np.int64))
    near, places = write.several("TopK", [distances, most], [None, None], axis=1, largest=0)
    if model.weights == "uniform":
        weights = write("Add", write("Mul", near, write.number(np.zeros(1, np.float32))), write.number(_ONE))
    else:
        weights = _inverse(write, near)
    total = write("ReduceSum", weights, write.axis(1), keepdims=1)
    labels = np.asarray(model._y)
    if hasattr(model, "classes_"):
        found = write(
            "Unsqueeze", write("Gather", write.number(labels.astype(np.int64)), places, axis=0), write.axis(2)
        )
        classes = write.number(np.arange(len(model.classes_), dtype=np.int64))
        is_one = write("Cast", write("Equal", found, classes), to=1)
    else:
        values = labels.reshape(len(labels), -1).astype(np.float32)
        is_one = write("Gather", write.number(values), places, axis=0)
    weighted = write("Mul", is_one, write("Unsqueeze", weights, write.axis(2)))
    mean = write("Div", write("ReduceSum", weighted, write.axis(1), keepdims=0), total)
    if hasattr(model, "classes_"):
        write.classified(operator, mean, model.classes_)
    else:
        write("Identity", mean, result=operator.outputs[0].full_name)


_ONE = np.ones(1, np.float32)
POWERS = {"euclidean": 2.0, "l2": 2.0, "manhattan": 1.0, "l1": 1.0, "cityblock": 1.0, "chebyshev": np.inf}
"""Metrics that are Minkowski's, by what differences are raised to."""


def _distances(write: GraphNodes, model: Any, rows: str, known: Any) -> str:
    """``[rows, known]`` by the metric; a tree of scikit-learn finds the same neighbours as all distances do."""
    name, options = model.effective_metric_, model.effective_metric_params_ or {}
    power = float(options.get("p", 2)) if name == "minkowski" else POWERS.get(name)
    if name == "cosine":
        lengths = np.linalg.norm(known.astype(np.float64), axis=1, keepdims=True)
        turned = (known / np.maximum(lengths, np.finfo(np.float64).tiny)).T.astype(np.float32)
        length = write("ReduceL2", rows, write.axis(1), keepdims=1)
        tiny = write.number(np.array([np.finfo(np.float32).tiny], np.float32))
        product = write("MatMul", write("Div", rows, write("Max", length, tiny)), write.number(turned))
        return write("Sub", write.number(_ONE), product)
    if power is None or options.get("w") is not None:
        raise CompileError(
            f"the metric {name!r} of {type(model).__name__} has no form here",
            remedy="use euclidean, manhattan, chebyshev, minkowski or cosine",
        )
    apart = write("Abs", write("Sub", write("Unsqueeze", rows, write.axis(1)), write.number(known[None])))
    if power == np.inf:
        return write("ReduceMax", apart, write.axis(2), keepdims=0)
    if power == 1:
        return write("ReduceSum", apart, write.axis(2), keepdims=0)
    if power == 2:
        return write("Sqrt", write("ReduceSum", write("Mul", apart, apart), write.axis(2), keepdims=0))
    powers = write("Pow", apart, write.number(np.array([power], np.float32)))
    total = write("ReduceSum", powers, write.axis(2), keepdims=0)
    return write("Pow", total, write.number(np.array([1 / power], np.float32)))


def _inverse(write: GraphNodes, near: str) -> str:
    """One over the distance; where a row is one of the known, those alone count."""
    zero = write.number(np.zeros(1, np.float32))
    same = write("Equal", near, zero)
    is_same = write("Cast", same, to=1)
    any_same = write("Greater", write("ReduceMax", is_same, write.axis(1), keepdims=1), zero)
    safe = write("Where", same, write.number(_ONE), near)
    return write("Where", any_same, is_same, write("Div", write.number(_ONE), safe))
