"""``tilewright.from_lightgbm``: a model of LightGBM as native code with the same methods.

In: an estimator of LightGBM's that was fitted, or a ``Booster``. Out: a ``Predictor``. Not its business: scikit-learn's
estimators (``integrations.sklearn``), what trees become (``frontend.onnx.ml``).

What is read is LightGBM's own dump, so that no converter stands between. LightGBM compares in f64: thresholds are
rounded down to f32, which for rows of f32 changes no comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np

from tilewright.build.driver import compile
from tilewright.core.diag import CompileError, OptionError
from tilewright.integrations.boosted.trees import Link, in_onnx, reading
from tilewright.integrations.sklearn.columns import Columns
from tilewright.integrations.sklearn.predictor import Predictor
from tilewright.integrations.sklearn.trees import AT_MOST, Trees, lowered
from tilewright.runtime.once import MAKING

_LINKS: Mapping[str, str] = {
    **dict.fromkeys(("regression", "regression_l1", "huber", "fair", "quantile", "mape", "lambdarank", "rank_xendcg"),
                    "identity"),
    **dict.fromkeys(("poisson", "gamma", "tweedie"), "exp"), "binary": "sigmoid", "cross_entropy": "sigmoid",
    "cross_entropy_lambda": "log1p_exp", "multiclass": "softmax", "multiclassova": "sigmoid",
}  # fmt: skip
"""How each objective's sums become predictions."""
_CLASSIFIERS = ("binary", "multiclass", "multiclassova")


def from_lightgbm(model: Any, *, threads: int | None = None, cache: bool = True) -> Predictor:
    """Compile a fitted model of LightGBM over rows of f32.

    A number that is missing is NaN. ``threads`` and ``cache`` are as for ``compile``.

    ``OptionError`` for what is no fitted model of LightGBM. ``CompileError`` for categorical splits, zeros that count
    as missing, linear trees, an objective without a form, and as ``compile`` raises.
    """
    try:
        with MAKING:
            import lightgbm
    except ImportError as error:
        raise OptionError("the model needs LightGBM", remedy='pip install "tilewright[boosted]"') from error
    if not isinstance(model, lightgbm.Booster | lightgbm.LGBMModel):
        raise OptionError(f"a {type(model).__qualname__} is no model of LightGBM", remedy="pass what LightGBM trained")
    if isinstance(model, lightgbm.LGBMModel):
        if not model.__sklearn_is_fitted__():
            raise OptionError(f"the {type(model).__qualname__} is not fitted", remedy="fit it first")
        booster = model.booster_
    else:
        booster = model
    classes = np.asarray(model.classes_) if isinstance(model, lightgbm.LGBMClassifier) else None
    is_classifier = classes is not None
    best = booster.best_iteration
    dump = booster.dump_model(num_iteration=best if best > 0 else -1)
    with reading("LightGBM"):
        name, *words = dump.get("objective", "").split() or ["of one's own"]
        if name not in _LINKS or (is_classifier and name not in _CLASSIFIERS):
            raise CompileError(f"the objective {name} has no form here", remedy="train with another")
        read = _read(dump)
        proto = in_onnx(read, _link(name, words), is_classifier=is_classifier)
    made: Any = compile(proto, threads=threads, cache=cache)
    kind = "probabilities" if is_classifier else "numbers"
    return Predictor(made, classes, Columns(read.n_features), kind)


def _link(name: str, words: list[str]) -> Link:
    """The objective's words beside its name are a slope, and whether roots were trained on."""
    told = dict(w.split(":", 1) for w in words if ":" in w)
    if "sqrt" in words:
        return Link("signed_square")
    return Link(_LINKS[name], float(told.get("sigmoid", 1)) if name in ("binary", "multiclassova") else 1.0)


def _read(dump: Mapping[str, Any]) -> Trees:
    n, n_trees = dump["num_tree_per_iteration"], len(dump["tree_info"])
    if n < 1 or n_trees % n or n > max(n_trees, 1):
        raise ValueError(f"{n_trees} trees, of which {n} are one round's")
    made = Trees(dump["max_feature_idx"] + 1, np.zeros(n, np.float32), bool(dump["average_output"]))
    for k, tree in enumerate(dump["tree_info"]):
        _add_tree(made, k, tree["tree_structure"], k % n)
    return made


def _add_tree(made: Trees, k: int, root: Mapping[str, Any], target: int) -> None:
    """A tree of nested nodes, which are numbered as they are met."""
    numbers = count(1)
    stack = [(0, root)]
    while stack:
        node, found = stack.pop()
        if "leaf_coeff" in found:
            raise CompileError("LightGBM's leaves hold linear models here", remedy="train with linear_tree=False")
        if "leaf_value" in found:
            made.leaf(k, node, target, found["leaf_value"])
            continue
        if found["decision_type"] != "<=":
            raise CompileError(
                "LightGBM splits by categories here", remedy="encode categories as numbers, and train again"
            )
        left, right = next(numbers), next(numbers)
        made.split(
            k,
            node,
            found["split_feature"],
            AT_MOST,
            lowered(found["threshold"]),
            (left, right),
            _missing_goes_left(found),
        )
        stack += [(left, found["left_child"]), (right, found["right_child"])]


def _missing_goes_left(node: Mapping[str, Any]) -> bool:
    """Where training saw nothing missing, NaN counts as 0; else it goes the node's own way."""
    zero_goes_left = bool(node["threshold"] >= 0)
    if node["missing_type"] == "None":
        return zero_goes_left
    if node["missing_type"] == "Zero" and bool(node["default_left"]) is not zero_goes_left:
        raise CompileError("zeros count as missing here", remedy="mark what is missing by NaN, and train again")
    return bool(node["default_left"])
