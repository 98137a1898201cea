"""Trees of scikit-learn as ONNX, by its own thresholds: what ``skl2onnx`` leaves out of them, or can't write.

In: fitted trees, forests, histogram gradient boosting and classifiers of gradient boosting. Out: converters that
``convert_sklearn`` takes by the estimator's class. Not its business: other estimators (``skl2onnx`` itself), what trees
become (``frontend.onnx.ml``).

``skl2onnx`` sends what is missing (NaN) right everywhere, where a fitted tree knows a side for each split; it fails on
histogram gradient boosting with the ONNX of today; and where the scores of a ``GradientBoostingClassifier`` with the
exponential loss are asked for, it gives probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tilewright.core.diag import CompileError
from tilewright.core.types import Array
from tilewright.integrations.sklearn.nodes import Converter, GraphNodes
from tilewright.integrations.sklearn.trees import AT_MOST, Trees, lowered
from tilewright.runtime.once import MAKING

LINKS = {"IdentityLink": "Identity", "LogLink": "Exp", "LogitLink": "Sigmoid", "HalfLogitLink": "Sigmoid"}
"""What turns a sum, or twice the sum for a ``HalfLogitLink``, into a prediction, as an op of ONNX."""


def converters() -> Mapping[type, Converter]:
    """By class, for ``convert_sklearn``'s ``custom_conversion_functions``."""
    with MAKING:
        from sklearn import ensemble, tree

    forests = [ensemble.RandomForestClassifier, ensemble.ExtraTreesClassifier]
    forests += [ensemble.RandomForestRegressor, ensemble.ExtraTreesRegressor]
    trees = [tree.DecisionTreeClassifier, tree.DecisionTreeRegressor, tree.ExtraTreeClassifier, tree.ExtraTreeRegressor]
    boosted = [ensemble.HistGradientBoostingClassifier, ensemble.HistGradientBoostingRegressor]
    return {
        **dict.fromkeys(forests, _forest), **dict.fromkeys(trees, _forest), **dict.fromkeys(boosted, _boosted),
        ensemble.GradientBoostingClassifier: _boosted_exactly,
    }  # fmt: skip


def _forest(scope: Any, operator: Any, container: Any) -> None:
    """The mean of the trees: of probabilities, or of numbers."""
    model = operator.raw_operator
    is_classifier = hasattr(model, "classes_")
    if is_classifier and model.n_outputs_ > 1:
        raise CompileError(
            f"{type(model).__name__} was fitted on {model.n_outputs_} labels a row",
            remedy="compile the estimators_ of a MultiOutputClassifier one by one",
        )
    parts = list(getattr(model, "estimators_", None) or [model])
    n_targets = len(model.classes_) if is_classifier else model.n_outputs_
    trees = Trees(model.n_features_in_, np.zeros(n_targets, np.float32))
    for k, part in enumerate(parts):
        values = part.tree_.value[:, 0, :] if is_classifier else part.tree_.value[:, :, 0]
        if is_classifier:
            values = values / np.maximum(values.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        _add_tree(trees, k, part.tree_.__getstate__()["nodes"], values)
    write = GraphNodes(scope, container)
    sums = write("TreeEnsembleRegressor", operator.inputs[0].full_name, **trees.attributes())
    # A division behind the sum, as of weights that were divided before, halves of the trees would not make a half.
    scores = write("Div", sums, write.number(np.array([len(parts)], np.float32))) if len(parts) > 1 else sums
    if is_classifier:
        write.classified(operator, scores, model.classes_)
    else:
        write("Identity", scores, result=operator.outputs[0].full_name)


def _add_tree(trees: Trees, number: int, nodes: Any, values: Array, first: int = 0) -> None:
    """One more tree, whose leaves have a row of ``values`` each, for the targets from ``first`` on."""
    for k, node in enumerate(nodes):
        if node["left_child"] < 0:
            trees.leaf(number, k, first, float(values[k, 0]))
            for target in range(1, values.shape[1]):
                trees.leaves.append((number, k, first + target, float(values[k, target])))
        else:
            branches = int(node["left_child"]), int(node["right_child"])
            missing = bool(node["missing_go_to_left"])
            threshold = lowered(float(node["threshold"]))
            trees.split(number, k, int(node["feature"]), AT_MOST, threshold, branches, missing)


def _boosted(scope: Any, operator: Any, container: Any) -> None:
    """A sum of trees on a base, and what the loss makes of it."""
    model = operator.raw_operator
    base = np.asarray(model._baseline_prediction, np.float64).reshape(-1)
    trees = Trees(model.n_features_in_, np.zeros(len(base), np.float32))
    if model.is_categorical_ is not None and np.any(model.is_categorical_):
        raise CompileError(
            f"{type(model).__name__} splits by categories",
            remedy="encode them by a OneHotEncoder before, and fit it without categorical_features",
        )
    for number, (target, tree) in enumerate(_rounds(model._predictors)):
        for k, node in enumerate(tree.nodes):
            if node["is_leaf"]:
                trees.leaf(number, k, target, float(node["value"]))
            else:
                branches, missing = (int(node["left"]), int(node["right"])), bool(node["missing_go_to_left"])
                # Nearest, as rows in f64 become f32: many thresholds are numbers of the rows that it was fitted on.
                threshold = float(np.float32(node["num_threshold"]))
                trees.split(number, k, int(node["feature_idx"]), AT_MOST, threshold, branches, missing)
    _tell_sums(scope, operator, container, trees, base)


def _boosted_exactly(scope: Any, operator: Any, container: Any) -> None:
    """As ``_boosted``, of trees that split between any two rows and not between bins."""
    model = operator.raw_operator
    if model.init not in (None, "zero"):
        raise CompileError(
            f"{type(model).__name__} starts from the predictions of a {type(model.init_).__name__}",
            remedy='fit it with init=None or init="zero"',
        )
    base = np.asarray(model._raw_predict_init(np.zeros((1, model.n_features_in_))), np.float64).reshape(-1)
    trees = Trees(model.n_features_in_, np.zeros(len(base), np.float32))
    for number, (target, part) in enumerate(_rounds(model.estimators_)):
        values = part.tree_.value[:, 0, :] * model.learning_rate
        _add_tree(trees, number, part.tree_.__getstate__()["nodes"], values, target)
    _tell_sums(scope, operator, container, trees, base)


def _tell_sums(scope: Any, operator: Any, container: Any, trees: Trees, base: Array) -> None:
    """The operator's results of sums over ``trees`` and ``base``: f32[rows, len(base)]."""
    model, write = operator.raw_operator, GraphNodes(scope, container)
    sums = write(
        "Add",
        write("TreeEnsembleRegressor", operator.inputs[0].full_name, **trees.attributes()),
        write.number(base.astype(np.float32)),
    )
    if not hasattr(model, "classes_"):
        write("Identity", _linked(write, model, sums), result=operator.outputs[0].full_name)
        return
    if container.get_options(model, {"raw_scores": False})["raw_scores"]:
        scores = sums if len(base) > 1 else write("Concat", write("Neg", sums), sums, axis=1)
    elif len(base) > 1:
        scores = write("Softmax", sums, axis=1)
    else:
        likely = _linked(write, model, sums)
        scores = write("Concat", write("Sub", write.number(np.ones(1, np.float32)), likely), likely, axis=1)
    write.classified(operator, scores, model.classes_)


def _rounds(predictors: Iterable[Iterable[Any]]) -> Iterable[tuple[int, Any]]:
    return ((target, tree) for found in predictors for target, tree in enumerate(found))


def _linked(write: GraphNodes, model: Any, sums: str) -> str:
    """Predictions of sums, by the link of the loss."""
    name = type(model._loss.link).__name__
    if name not in LINKS:
        raise CompileError(f"{type(model).__name__} has the link {name}", remedy="fit it with another loss")
    return write(LINKS[name], write("Add", sums, sums) if name == "HalfLogitLink" else sums)
