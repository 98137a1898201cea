"""Estimators of scikit-learn rewritten where ``skl2onnx`` would not write what they compute.

In: a copy of a fitted estimator. Out: one that computes the same, and the options that ``convert_sklearn`` needs for
it; ``CompileError`` for what would be converted into something else. Not its business: text (``columns``), trees
(``forests``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.core.diag import CompileError
from tilewright.runtime.once import MAKING

Options = dict[int, dict[str, bool]]


def searched(estimator: Any) -> Any:
    """The best estimator of a search over parameters, which is what its methods call; others as they are."""
    with MAKING:
        from sklearn.model_selection._search import BaseSearchCV

    while isinstance(estimator, BaseSearchCV) and hasattr(estimator, "best_estimator_"):
        estimator = estimator.best_estimator_
    return estimator


def rewrite(estimator: Any) -> tuple[Any, Options]:
    """The estimator, changed in place, and options for the estimators within it by their ``id``."""
    options: Options = {}
    return _rewritten(estimator, options, set()), options


def takes(estimator: Any, option: str) -> bool:
    """Has ``skl2onnx`` this option for the estimator, or for the last step of a pipeline?"""
    with MAKING:
        from skl2onnx import _supported_operators
        from skl2onnx.common._registration import get_converter

    alias = _supported_operators.sklearn_operator_name_map.get(type(last_step(estimator)))
    try:
        known = get_converter(alias).get_allowed_options() if alias else {}
    except (ValueError, AttributeError):  # one without options
        return False
    return option in (known or {})


def as_matrix(classifier: Any, options: Options) -> None:
    """Have a classifier's probabilities as a matrix, and not as a map for each row.

    A last step without any entry gets the map from its pipeline, even where it has no such option.
    """
    entry = options.setdefault(id(last_step(classifier)), {})
    if takes(classifier, "zipmap"):
        entry["zipmap"] = False


def last_step(estimator: Any) -> Any:
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    return estimator


def number_classes(classifier: Any, numbers: Any = None) -> bool:
    """Let a classifier's classes be numbers, 0, 1, 2... or those given; False where they are not its last step's."""
    last = last_step(classifier)
    if isinstance(getattr(type(last), "classes_", None), property):
        return False
    last.classes_ = np.arange(len(last.classes_)) if numbers is None else numbers
    return True


def _rewritten(found: Any, options: Options, seen: set[int]) -> Any:
    """What stands in the place of a value of an estimator: itself, but for searches."""
    with MAKING:
        from sklearn.base import BaseEstimator

    if isinstance(found, list):
        found[:] = [_rewritten(x, options, seen) for x in found]
    elif isinstance(found, tuple) and type(found) is tuple:
        return tuple(_rewritten(x, options, seen) for x in found)
    elif isinstance(found, BaseEstimator) or type(found).__name__ == "_CalibratedClassifier":
        found = searched(found)
        if id(found) not in seen:
            seen.add(id(found))
            for name, value in list(vars(found).items()):
                if isinstance(value, list | tuple | BaseEstimator):
                    setattr(found, name, _rewritten(value, options, seen))
            _prepare(found, options)
    return found


def _prepare(estimator: Any, options: Options) -> None:
    with MAKING:
        from sklearn.base import is_classifier

    kind = type(estimator).__name__
    if hasattr(estimator, "steps") and is_classifier(last_step(estimator)):
        as_matrix(estimator, options)
    if kind == "KBinsDiscretizer" and estimator.encode == "onehot":
        estimator.encode = "onehot-dense"  # ONNX has no sparse matrices, and compiled code gets none
    if kind.startswith("RadiusNeighbors") and getattr(estimator, "weights", "uniform") != "uniform":
        raise CompileError(f"skl2onnx leaves the weights of a {kind} out", remedy='fit it with weights="uniform"')
    if kind == "OneVsRestClassifier":
        for part in getattr(estimator, "estimators_", []):
            if getattr(last_step(part), "loss", "") == "modified_huber":
                raise CompileError(
                    "a OneVsRestClassifier chooses by scores, which probabilities of modified_huber cut off",
                    remedy="fit an SGDClassifier itself, which tells more than two classes apart",
                )
            if len(getattr(last_step(part), "_probA", ())):
                raise CompileError(
                    "a OneVsRestClassifier chooses by scores, which probabilities of an SVC do not follow",
                    remedy="fit it on an SVC without probability=True, or fit the SVC itself",
                )
            if is_classifier(part) and not hasattr(part, "predict_proba"):
                _ask_for_scores(part, options, "a OneVsRestClassifier")
    if kind == "OneVsOneClassifier":
        for part in getattr(estimator, "estimators_", []):
            if hasattr(part, "decision_function"):
                _ask_for_scores(part, options, "a OneVsOneClassifier")
    if kind == "StackingClassifier" and hasattr(estimator, "estimators_"):
        for part, method in zip(estimator.estimators_, estimator.stack_method_, strict=True):
            if method == "decision_function":
                _ask_for_scores(part, options, "a StackingClassifier")
            if method != "predict":  # no labels are read, which may be text
                number_classes(part)
    if kind == "AdaBoostClassifier" and hasattr(estimator, "estimators_"):
        for part in estimator.estimators_:  # fitted on the same labels, which may be text
            number_classes(part, np.searchsorted(estimator.classes_, part.classes_))
    if kind == "VotingClassifier":
        estimator.flatten_transform = False  # which predictions do not read, and skl2onnx refuses
    if kind in ("VotingClassifier", "VotingRegressor") and estimator.weights is not None:
        kept = [name for name, part in estimator.estimators if part != "drop"]
        weights = [w for (name, _), w in zip(estimator.estimators, estimator.weights, strict=True) if name in kept]
        estimator.weights = np.array(weights)  # skl2onnx takes no list
    if kind == "_CalibratedClassifier":
        base = estimator.estimator
        number_classes(base)  # calibration reads no labels, which may be text; they are in the order of all classes
        if hasattr(base, "decision_function"):
            _ask_for_scores(base, options, "a CalibratedClassifierCV")


def _ask_for_scores(estimator: Any, options: Options, reader: str) -> None:
    """Have what ``decision_function`` gives as a classifier's second result; without the option it is probabilities.

    Of two classes it is two columns, of which the second is what scikit-learn gives.
    """
    last = last_step(estimator)
    if not takes(last, "raw_scores"):
        raise CompileError(
            f"skl2onnx has no scores of {type(last).__name__}, which {reader} reads",
            remedy="take a LogisticRegression, a LinearSVC, an SVC or a classifier without decision_function there",
        )
    options.setdefault(id(last), {})["raw_scores"] = True
    if hasattr(last, "_probA"):  # an SVC with probabilities, which skl2onnx prefers to scores
        last.probability, last._probA, last._probB = False, np.empty(0), np.empty(0)
    if type(last).__name__ in ("BaggingClassifier", "OneVsRestClassifier"):  # their scores are those of their parts
        for part in last.estimators_:
            _ask_for_scores(part, options, reader)
    if type(last).__name__ == "StackingClassifier":
        _ask_for_scores(last.final_estimator_, options, reader)
