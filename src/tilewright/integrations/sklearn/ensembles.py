"""Classifiers of scikit-learn that are made of others, as ONNX, and their scores.

In: a fitted ``CalibratedClassifierCV``, ``AdaBoostClassifier``, ``BaggingClassifier``, ``VotingClassifier``,
``SGDClassifier`` or ``Normalizer``. Out: converters by class. Not its business: the classifiers within them, which
``skl2onnx`` converts, or other converters of ours.

``skl2onnx`` takes the nearest knot where isotonic calibration interpolates, counts votes of bagged classifiers without
probabilities along the wrong axis, has classifiers vote for the largest of scores where some have one column, has
boosted classifiers vote by probabilities where their classes count, chooses the class of an ``SGDClassifier`` by
probabilities that are cut off, and divides by the largest number where a ``Normalizer`` takes the largest magnitude.
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
        from sklearn.calibration import CalibratedClassifierCV
        from sklearn.ensemble import AdaBoostClassifier, BaggingClassifier, VotingClassifier
        from sklearn.linear_model import SGDClassifier
        from sklearn.preprocessing import Normalizer

    return {
        CalibratedClassifierCV: _calibrated, AdaBoostClassifier: _boosted, BaggingClassifier: _bagged,
        VotingClassifier: _voted, SGDClassifier: _descended, Normalizer: _normalised,
    }  # fmt: skip


def _is_raw(container: Any, model: Any) -> bool:
    """Are scores asked for, which calibration reads, and no probabilities?"""
    return bool(container.get_options(model, {"raw_scores": False})["raw_scores"])


def _ones(write: GraphNodes) -> str:
    return write.number(np.ones(1, np.float32))


def _both(write: GraphNodes, second: str) -> str:
    """The probabilities of two classes of that of the second one."""
    return write("Concat", write("Sub", _ones(write), second), second, axis=1)


def _shares(write: GraphNodes, parts: str, n: int) -> str:
    """Each row over its sum; all alike where that is 0."""
    total = write("ReduceSum", parts, write.axis(1), keepdims=1)
    is_none = write("Equal", total, write.number(np.zeros(1, np.float32)))
    alike = write.number(np.full(n, 1 / n, np.float32))
    return write("Where", is_none, alike, write("Div", parts, write("Where", is_none, _ones(write), total)))


# --- calibration ----------------------------------------------------------------------------------------------------


def _calibrated(scope: Any, operator: Any, container: Any) -> None:
    """The mean of classifiers, each with its own calibration."""
    model, write = operator.raw_operator, GraphNodes(scope, container)
    parts = [_calibrated_one(write, operator, part) for part in model.calibrated_classifiers_]
    count = write.number(np.array([len(parts)], np.float32))
    mean = write("Div", write("Sum", *parts), count) if len(parts) > 1 else parts[0]
    write.classified(operator, mean, model.classes_)


def _calibrated_one(write: GraphNodes, operator: Any, part: Any) -> str:
    n = len(part.classes)
    if part.method not in CURVES:
        raise CompileError(f"calibration by {part.method} has no form here", remedy='fit it with method="sigmoid"')
    if len(part.estimator.classes_) < n:
        raise CompileError("a calibrated classifier has not seen all classes", remedy="fit it on larger parts")
    _, scores = write.within(part.estimator, operator.inputs[0])
    columns = [write("Gather", scores, write.axis(k), axis=1) for k in (range(n) if n > 2 else (1,))]
    likely = [CURVES[part.method](write, x, c) for x, c in zip(columns, part.calibrators, strict=True)]
    return _both(write, likely[0]) if n == 2 else _shares(write, write("Concat", *likely, axis=1), n)


def _sigmoid(write: GraphNodes, x: str, calibrator: Any) -> str:
    slope, start = (write.number(np.array([-value], np.float32)) for value in (calibrator.a_, calibrator.b_))
    return write("Sigmoid", write("Add", write("Mul", x, slope), start))


def _isotonic(write: GraphNodes, x: str, calibrator: Any) -> str:
    """Between two knots along a line, outside of all as at the first and the last."""
    knots, values = np.asarray(calibrator.X_thresholds_), np.asarray(calibrator.y_thresholds_, np.float32)
    narrow = knots.astype(np.float32)
    rises = np.diff(values.astype(np.float64), append=values[-1])
    runs = np.diff(narrow.astype(np.float64), append=np.inf)
    slopes = np.divide(rises, runs, out=np.zeros(len(runs)), where=runs > 0).astype(np.float32)
    x = write("Clip", x, *(write.number(np.array(limit)) for limit in (narrow[0], narrow[-1])))
    passed = write("Cast", write("GreaterOrEqual", x, write.number(narrow)), to=7)
    last = write("Sub", write("ReduceSum", passed, write.axis(1), keepdims=1), write.axis(1))
    knot, value, slope = (write("Gather", write.number(a), last, axis=0) for a in (narrow, values, slopes))
    return write("Add", value, write("Mul", slope, write("Sub", x, knot)))


CURVES = {"sigmoid": _sigmoid, "isotonic": _isotonic}
"""What makes a probability of a score, by the method of calibration."""


# --- other classifiers ----------------------------------------------------------------------------------------------


def _bagged(scope: Any, operator: Any, container: Any) -> None:
    """The mean of probabilities, or of scores; of classifiers without any, the shares of votes."""
    with MAKING:
        from skl2onnx.common.data_types import FloatTensorType

    model, write = operator.raw_operator, GraphNodes(scope, container)
    parts, is_raw = [], _is_raw(container, model)
    for part, features in zip(model.estimators_, model.estimators_features_, strict=True):
        rows = operator.inputs[0]
        if list(features) != list(range(model.n_features_in_)):
            rows = scope.declare_local_variable("features", FloatTensorType([None, len(features)]))
            chosen = write.number(np.asarray(features, np.int64))
            write("Gather", operator.inputs[0].full_name, chosen, result=rows.full_name, axis=1)
        label, scores = write.within(part, rows)
        if hasattr(part, "predict_proba") or is_raw:
            if len(part.classes_) < len(model.classes_):
                raise CompileError("a bagged classifier has not seen all classes", remedy="fit it on larger parts")
            parts.append(scores)
        else:
            parts.append(_vote(write, label, len(model.classes_)))
    mean = write("Div", write("Sum", *parts), write.number(np.array([len(parts)], np.float32)))
    write.classified(operator, mean, model.classes_)


def _voted(scope: Any, operator: Any, container: Any) -> None:
    """The weighted mean of probabilities, or the weighted shares of votes."""
    model, write = operator.raw_operator, GraphNodes(scope, container)
    parts, n = [], len(model.classes_)
    weights = np.ones(len(model.estimators_)) if model.weights is None else np.asarray(model.weights, np.float64)
    for part, weight in zip(model.estimators_, weights, strict=True):
        label, scores = write.within(part, operator.inputs[0])
        given = scores if model.voting == "soft" else _vote(write, label, n)
        parts.append(write("Mul", given, write.number(np.array([weight], np.float32))))
    sums = write("Sum", *parts)  # which weights of whole numbers make exact, so that ties stay ties
    mean = write("Div", sums, write.number(np.array([weights.sum()], np.float32)))
    write.classified(operator, mean, model.classes_, chosen_by=sums)


def _vote(write: GraphNodes, label: str, n: int) -> str:
    """1 for the class that a classifier chooses, 0 for all others."""
    return write("Cast", write("Equal", write("Unsqueeze", label, write.axis(1)), write.number(np.arange(n))), to=1)


def _boosted(scope: Any, operator: Any, container: Any) -> None:
    """Classifiers vote with their weights: a class that one does not choose loses its share of the weight."""
    model, write = operator.raw_operator, GraphNodes(scope, container)
    n, weights = len(model.classes_), np.asarray(model.estimator_weights_, np.float64)[: len(model.estimators_)]
    parts = []
    for part, weight in zip(model.estimators_, weights / weights.sum(), strict=True):
        label, _ = write.within(part, operator.inputs[0])
        up, down = (write.number(np.array([w], np.float32)) for w in (weight * n / (n - 1), weight / (n - 1)))
        parts.append(write("Sub", write("Mul", _vote(write, label, n), up), down))
    scores = write("Sum", *parts)
    if _is_raw(container, model):
        raw = write("Add", scores, scores) if n == 2 else scores  # of two classes, what parts them
        write.classified(operator, raw, model.classes_)
        return
    likely = write("Softmax", write("Div", scores, write.number(np.array([n - 1], np.float32))), axis=1)
    write.classified(operator, likely, model.classes_, chosen_by=scores)


def _descended(scope: Any, operator: Any, container: Any) -> None:
    """The class with the largest score, and what the loss makes of scores."""
    model, write = operator.raw_operator, GraphNodes(scope, container)
    n = len(model.classes_)
    products = write("MatMul", operator.inputs[0].full_name, write.number(model.coef_.T.astype(np.float32)))
    sums = write("Add", products, write.number(model.intercept_.astype(np.float32)))
    scores = write("Concat", write("Neg", sums), sums, axis=1) if n == 2 else sums
    likely = scores
    if hasattr(model, "predict_proba") and not _is_raw(container, model):
        if model.loss == "log_loss":
            parts = write("Sigmoid", sums)
        else:
            one = np.float32(1)
            cut = write("Clip", sums, write.number(np.array(-one)), write.number(np.array(one)))
            parts = write("Div", write("Add", cut, _ones(write)), write.number(np.array([2], np.float32)))
        likely = _both(write, parts) if n == 2 else _shares(write, parts, n)
    write.classified(operator, likely, model.classes_, chosen_by=scores)


# --- rows -----------------------------------------------------------------------------------------------------------


def _normalised(scope: Any, operator: Any, container: Any) -> None:
    """Each row over its norm; a row of zeros stays as it is."""
    model, write, rows = operator.raw_operator, GraphNodes(scope, container), operator.inputs[0].full_name
    kind = {"l1": "ReduceL1", "l2": "ReduceL2", "max": "ReduceMax"}[model.norm]
    norm = write(kind, write("Abs", rows), write.axis(1), keepdims=1)
    is_zero = write("Equal", norm, write.number(np.zeros(1, np.float32)))
    write("Div", rows, write("Where", is_zero, _ones(write), norm), result=operator.outputs[0].full_name)
