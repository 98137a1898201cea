"""``tilewright.from_xgboost``: a model of XGBoost as native code with the same methods.

In: an estimator of XGBoost's that was fitted, or a ``Booster``. Out: a ``Predictor``. Not its business: scikit-learn's
estimators (``integrations.sklearn``), what trees become (``frontend.onnx.ml``).

What is read is the JSON that XGBoost documents and saves itself, so that no converter stands between.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.build.driver import compile
from tilewright.core.diag import CompileError, OptionError
from tilewright.core.types import Array
from tilewright.integrations.boosted.trees import Linear, Link, in_onnx, reading
from tilewright.integrations.sklearn.columns import Columns
from tilewright.integrations.sklearn.predictor import Predictor
from tilewright.integrations.sklearn.trees import LESS, Trees
from tilewright.runtime.once import MAKING

_SAME = ("reg:squarederror", "reg:absoluteerror", "reg:squaredlogerror", "reg:pseudohubererror", "reg:quantileerror",
         "binary:logitraw", "rank:pairwise", "rank:ndcg", "rank:map")  # fmt: skip
_LINKS: Mapping[str, str] = {
    **dict.fromkeys(_SAME, "identity"), **dict.fromkeys(("binary:logistic", "reg:logistic"), "sigmoid"),
    **dict.fromkeys(("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft"), "exp"),
    "multi:softprob": "softmax", "binary:hinge": "step",
}  # fmt: skip
"""How each objective's sums become predictions."""
_LEAST_SHARE = 1e-6
"""XGBoost begins no nearer to 0 and to 1."""
_CLASSIFIERS = ("binary:logistic", "multi:softprob")


def from_xgboost(model: Any, *, threads: int | None = None, cache: bool = True) -> Predictor:
    """Compile a fitted model of XGBoost: trees, dropout's trees and random forests, or linear, over rows of f32.

    A number that is missing is NaN. ``threads`` and ``cache`` are as for ``compile``.

    ``OptionError`` for what is no fitted model of XGBoost. ``CompileError`` for categorical splits, leaves of several
    numbers, an objective without a form, and as ``compile`` raises.
    """
    try:
        with MAKING:
            import xgboost
    except ImportError as error:
        raise OptionError("the model needs XGBoost", remedy='pip install "tilewright[boosted]"') from error
    if not isinstance(model, xgboost.Booster | xgboost.XGBModel):
        raise OptionError(f"a {type(model).__qualname__} is no model of XGBoost", remedy="pass what XGBoost trained")
    is_classifier = isinstance(model, xgboost.XGBClassifier)
    classes = None
    if isinstance(model, xgboost.XGBModel):
        try:
            booster = model.get_booster()
        except Exception as error:  # scikit-learn's NotFittedError, which XGBoost has under two names
            raise OptionError(f"the {type(model).__qualname__} is not fitted", remedy="fit it first") from error
        if not np.isnan(model.missing):
            raise CompileError(
                f"missing={model.missing!r} marks what is missing", remedy="mark it by NaN, and fit again"
            )
        best = booster.attr("best_iteration")
        if best is not None and model.booster != "gblinear":  # of which the library keeps the last round alone
            booster = booster[: int(best) + 1]
        classes = np.asarray(model.classes_) if is_classifier else None
    else:
        booster = model
    try:
        dump = booster.save_raw("json")
    except xgboost.core.XGBoostError as error:
        raise OptionError("the Booster is not trained", remedy="train it first") from error
    with reading("XGBoost"):
        learner = json.loads(dump)["learner"]
        objective = learner["objective"]["name"]
        if objective not in _LINKS or (is_classifier and objective not in _CLASSIFIERS):
            raise CompileError(f"the objective {objective} has no form here", remedy="train with another")
        read = _read(learner, objective, len(dump))
        if objective == "binary:logistic" and is_classifier and len(read.base) > 1:
            raise CompileError("each row has several labels", remedy="train a classifier for each label")
        proto = in_onnx(read, Link(_LINKS[objective]), is_classifier=is_classifier)
    made: Any = compile(proto, threads=threads, cache=cache)
    kind = "probabilities" if is_classifier else "numbers"
    return Predictor(made, classes, Columns(read.n_features), kind)


def _read(learner: Mapping[str, Any], objective: str, n_bytes: int) -> Trees | Linear:
    """The trees, or the weights, of a model whose dump has ``n_bytes``."""
    given = learner["learner_model_param"]
    n_sums = max(int(given["num_class"]), int(given["num_target"]), 1)
    if n_sums > n_bytes:
        raise ValueError(f"{n_sums} sums in {n_bytes} bytes")
    base = _margins(given["base_score"], objective, n_sums)
    n_features, booster = int(given["num_feature"]), learner["gradient_booster"]
    if booster["name"] == "gblinear":
        weights = np.asarray(booster["model"]["weights"], np.float32).reshape(n_features + 1, len(base))
        return Linear(weights[:-1], weights[-1] + base[0])  # XGBoost's linear models begin every class with the first
    model = booster["gbtree"]["model"] if booster["name"] == "dart" else booster["model"]
    kept = booster.get("weight_drop") or [1.0] * len(model["trees"])
    made = Trees(n_features, base)
    for k, (tree, target, weight) in enumerate(zip(model["trees"], model["tree_info"], kept, strict=True)):
        _add_tree(made, k, tree, target, weight)
    return made


def _margins(text: Any, objective: str, n: int) -> Array:
    """What sums begin with: XGBoost keeps it as a prediction."""
    found = np.asarray(json.loads(text) if isinstance(text, str) else text, np.float64).reshape(-1)
    found = np.broadcast_to(found, (n,)).astype(np.float32)
    if _LINKS[objective] == "sigmoid":
        # In f32 as XGBoost computes it, because next to 1 the roundings are what it predicts.
        inside = np.clip(found, np.float32(_LEAST_SHARE), np.float32(1 - _LEAST_SHARE))
        return np.asarray(-np.log(1 / inside - 1))
    if _LINKS[objective] == "exp":
        with np.errstate(divide="ignore"):  # of counts that are all 0
            return np.asarray(np.log(found))
    return found


def _add_tree(made: Trees, k: int, tree: Mapping[str, Any], target: int, weight: float) -> None:
    if int(tree["tree_param"]["size_leaf_vector"]) > 1:
        raise CompileError(
            "a leaf of XGBoost's holds several numbers", remedy="train with multi_strategy='one_output_per_tree'"
        )
    if any(tree["split_type"]):
        raise CompileError("XGBoost splits by categories here", remedy="encode categories as numbers, and train again")
    columns = (
        tree[name] for name in ("left_children", "right_children", "split_indices", "split_conditions", "default_left")
    )
    for node, (left, right, feature, number, goes_left) in enumerate(zip(*columns, strict=True)):
        if left < 0:
            made.leaf(k, node, target, float(number) * weight)
        else:
            made.split(k, node, feature, LESS, float(number), (left, right), bool(goes_left))
