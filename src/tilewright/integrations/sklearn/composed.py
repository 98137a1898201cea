"""Estimators of scikit-learn that hand what others compute to a next one, as ONNX: pipelines, stacks, one against rest.

In: a fitted ``Pipeline`` inside of another estimator, ``StackingClassifier`` or ``OneVsRestClassifier``, prepared by
``rewritten``. Out: converters by class. Not its business: the estimators within them; classifiers that average or vote
(``ensembles``).

``skl2onnx`` asks the last step of a pipeline for an option that a ``LinearSVC`` does not have, hands both scores of two
classes to a stack where scikit-learn hands the second, and hands it scores where it takes labels. Of one class against
the rest it gives probabilities of pipelines where scores are asked for, and compares scores with 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.integrations.sklearn.nodes import Converter, GraphNodes
from tilewright.runtime.once import MAKING


def converters() -> Mapping[type, Converter]:
    """By class, for ``convert_sklearn``'s ``custom_conversion_functions``."""
    with MAKING:
        from sklearn.ensemble import StackingClassifier
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.pipeline import Pipeline

    return {Pipeline: _in_steps, StackingClassifier: _stacked, OneVsRestClassifier: _one_against_rest}


def _in_steps(scope: Any, operator: Any, container: Any) -> None:
    """The steps one after the other; ``rewritten.as_matrix`` has told the last one what a classifier gives."""
    with MAKING:
        from skl2onnx._parse import _parse_sklearn_pipeline
        from skl2onnx.common.data_types import guess_proto_type

    write = GraphNodes(scope, container)
    made = _parse_sklearn_pipeline(scope, operator.raw_operator, operator.inputs)
    for given, result in zip(made, operator.outputs, strict=True):
        if isinstance(result.type, type(given.type)):
            write("Identity", given.full_name, result=result.full_name)
        else:
            write("Cast", given.full_name, result=result.full_name, to=guess_proto_type(result.type))


def _stacked(scope: Any, operator: Any, container: Any) -> None:
    """A classifier over what others give: their labels, or the scores of all classes, but of two of the second."""
    with MAKING:
        from skl2onnx.common.data_types import FloatTensorType

    model, write, rows = operator.raw_operator, GraphNodes(scope, container), operator.inputs[0]
    parts = []
    for part, method in zip(model.estimators_, model.stack_method_, strict=True):
        label, scores = write.within(part, rows)
        if method == "predict":
            as_column = write.number(np.array([-1, 1], np.int64))
            parts.append(write("Cast", write("Reshape", label, as_column), to=1))
        else:
            parts.append(write("Gather", scores, write.axis(1), axis=1) if len(part.classes_) == 2 else scores)
    if model.passthrough:
        parts.append(rows.full_name)
    last = model.final_estimator_
    joined = scope.declare_local_variable("joined", FloatTensorType([None, last.n_features_in_]))
    write("Concat", *parts, result=joined.full_name, axis=1)
    label, scores = write.within(last, joined)
    number = write("Reshape", label, write.axis(-1))
    write("Gather", write.number(np.asarray(model.classes_)), number, result=operator.outputs[0].full_name, axis=0)
    write("Identity", scores, result=operator.outputs[1].full_name)


def _one_against_rest(scope: Any, operator: Any, container: Any) -> None:
    """The class whose classifier is surest; of several labels each one that its own classifier finds."""
    with MAKING:
        from skl2onnx.common._registration import get_converter
        from sklearn.base import is_regressor

    model, write = operator.raw_operator, GraphNodes(scope, container)
    if any(is_regressor(part) for part in model.estimators_):
        get_converter("SklearnOneVsRestClassifier")(scope, operator, container)
        return
    parts = [write.within(part, operator.inputs[0])[1] for part in model.estimators_]
    columns = [write("Gather", part, write.axis(1), axis=1) for part in parts]
    is_raw = container.get_options(model, {"raw_scores": False})["raw_scores"] or not hasattr(model, "predict_proba")
    if len(columns) == 1 and not model.multilabel_:
        first = write("Neg", *columns) if is_raw else write("Sub", write.number(np.ones(1, np.float32)), *columns)
        columns.insert(0, first)
    sure = write("Concat", *columns, axis=1)
    if model.multilabel_:
        limit = write.number(np.array([0 if is_raw else 0.5], np.float32))
        write("Cast", write("Greater", sure, limit), result=operator.outputs[0].full_name, to=7)
        write("Identity", sure, result=operator.outputs[1].full_name)
        return
    likely = sure
    if not is_raw:
        total = write("ReduceSum", sure, write.axis(1), keepdims=1)
        zero, one = (write.number(np.array([value], np.float32)) for value in (0, 1))
        likely = write("Div", sure, write("Where", write("Equal", total, zero), one, total))
    write.classified(operator, likely, model.classes_, chosen_by=sure)
