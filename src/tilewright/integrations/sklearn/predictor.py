"""``tilewright.from_sklearn``: a fitted estimator of scikit-learn as native code with the same methods.

In: an estimator or a pipeline of them. Out: a ``Predictor``. Not its business: what each estimator computes
(``skl2onnx`` says it in ONNX's terms, ``frontend.onnx.ml`` reads those).

Code works on numbers, so classes and text are numbered inside (``columns``), and classes named again at the edge.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.build.driver import compile
from tilewright.core.diag import CompileError, OptionError
from tilewright.core.types import Array
from tilewright.integrations.sklearn import composed, ensembles, forests, missing, neighbours
from tilewright.integrations.sklearn.columns import Columns, without_text
from tilewright.integrations.sklearn.documents import Documents, documents_of, reads_documents, without_first
from tilewright.integrations.sklearn.rewritten import as_matrix, last_step, number_classes, rewrite, searched
from tilewright.runtime.once import MAKING

if TYPE_CHECKING:
    from tilewright.runtime.python.model import LoadedModel

OPSETS = {"": 21, "ai.onnx.ml": 3}
"""The versions of ONNX's domains that estimators are written in."""


@dataclass(frozen=True)
class Predictor:
    """A compiled estimator: ``predict``, and ``predict_proba`` or ``transform`` where the estimator has them.

    Rows are a matrix, rows of values, a frame with named columns, or documents; ``columns`` makes them into what the
    compiled ``model`` takes, f32[rows, columns]. ``classes`` are a classifier's, None of others.
    """

    model: LoadedModel
    classes: Array | None
    columns: Columns | Documents
    kind: str

    def predict(self, rows: Any) -> Array:
        """A class, a number or a cluster for each row."""
        if self.kind == "transformer":
            raise OptionError("the estimator transforms and predicts nothing", remedy="call transform")
        given = self.columns.numbers(rows)
        found = self._called(given)[0]
        if self.kind == "labels":
            return found.astype(np.int64)
        if self.classes is not None:  # of some estimators the classes are a row or a column in ONNX
            return np.asarray(self.classes[found.reshape(-1).astype(np.int64)])
        found = found.reshape(len(given), -1)  # of some estimators several numbers of a row follow each other
        # A column of one number for each row is what ONNX has for a single target.
        return found[:, 0] if found.shape[1] == 1 else found

    def predict_proba(self, rows: Any) -> Array:
        """The probability of each class, f32[rows, classes], in the order of ``classes``."""
        if self.kind not in ("probabilities", "labels"):
            raise OptionError("the estimator gives no probabilities", remedy="call predict")
        return self._called(self.columns.numbers(rows))[1]

    def transform(self, rows: Any) -> Array:
        """The rows as the estimator represents them."""
        if self.kind != "transformer":
            raise OptionError("the estimator predicts and transforms nothing", remedy="call predict")
        return self._called(self.columns.numbers(rows))[0]

    def _called(self, given: Array) -> tuple[Array, ...]:
        made: Any = self.model(given)
        return made if isinstance(made, tuple) else (made,)


def from_sklearn(estimator: Any, *, threads: int | None = None, cache: bool = True) -> Predictor:
    """Compile a fitted estimator or pipeline of scikit-learn over rows of numbers, and of text that it encodes.

    What is computed is what ``skl2onnx`` writes, in f32. ``threads`` and ``cache`` are as for ``compile``.

    ``OptionError`` for what is no fitted estimator, or none of rows of a known width. ``CompileError`` for an estimator
    that ``skl2onnx`` has no form for, and as ``compile`` raises.
    """
    try:
        with MAKING:
            import sklearn.base
            from sklearn.exceptions import NotFittedError
            from sklearn.utils.validation import check_is_fitted
    except ImportError as error:
        raise OptionError("estimators need scikit-learn and skl2onnx", remedy=_INSTALL) from error
    if not isinstance(estimator, sklearn.base.BaseEstimator):
        raise OptionError(f"a {type(estimator).__qualname__} is no estimator of scikit-learn", remedy="fit one first")
    try:
        check_is_fitted(estimator)
    except NotFittedError as error:
        raise OptionError(str(error), remedy="fit the estimator first") from error
    estimator = searched(estimator)
    if (reader := BOOSTED.get(type(last_step(estimator)).__module__.partition(".")[0])) is not None:
        alone = "it" if last_step(estimator) is estimator else "the last step, behind the others compiled apart,"
        raise OptionError(
            f"a {type(last_step(estimator)).__name__} is not scikit-learn's", remedy=f"give {alone} to {reader}"
        )
    classes = _classes_of(estimator) if sklearn.base.is_classifier(estimator) else None
    numbered, columns = _numbers_alone(estimator)
    proto = _in_onnx(numbered, columns.n, classes)
    made: Any = compile(proto, threads=threads, cache=cache)
    n_results = len(proto.graph.output)
    if classes is not None:
        kind = "probabilities" if n_results > 1 and hasattr(estimator, "predict_proba") else "classes"
        kind = "labels" if _has_labels(estimator) else kind
    else:
        kind = "numbers" if hasattr(estimator, "predict") else "transformer"
    return Predictor(made, classes, columns, kind)


def _classes_of(estimator: Any) -> Array:
    if isinstance(estimator.classes_, list):
        raise CompileError(
            f"{type(last_step(estimator)).__name__} gives {len(estimator.classes_)} labels for each row",
            remedy="compile the estimators_ of a MultiOutputClassifier one by one",
        )
    return np.asarray(estimator.classes_)


def _has_labels(estimator: Any) -> bool:
    """Does a classifier say of each class by itself whether a row has it?"""
    last = last_step(estimator)
    kind = getattr(getattr(last, "_label_binarizer", None), "y_type_", "")
    return bool(getattr(last, "multilabel_", False)) or kind.startswith("multilabel")


def _numbers_alone(estimator: Any) -> tuple[Any, Columns | Documents]:
    """A copy of what is to be compiled, which reads numbers alone, and what makes these of rows."""
    if reads_documents(estimator):
        first, rest = without_first(estimator)
        if rest is None:
            raise OptionError(
                f"a {type(first).__name__} alone reads text and computes nothing else",
                remedy="compile a pipeline that goes on behind it",
            )
        return copy.deepcopy(rest), documents_of(first)
    if getattr(estimator, "n_features_in_", None) is None:
        raise OptionError("the estimator does not say how many features it takes", remedy="fit it on a matrix")
    return without_text(estimator)


BOOSTED = {"xgboost": "tw.from_xgboost", "lightgbm": "tw.from_lightgbm"}
"""Libraries whose estimators look like scikit-learn's, and what reads them."""
OWN = (forests, neighbours, missing, ensembles, composed)
"""Where converters of ours stand."""
_INSTALL = 'pip install "tilewright[sklearn]"'


def _in_onnx(estimator: Any, n_features: int, classes: Array | None) -> Any:
    """The estimator as a ``ModelProto``; of a classifier with classes 0, 1, 2..."""
    try:
        with MAKING:
            from skl2onnx import convert_sklearn
            from skl2onnx.common.data_types import FloatTensorType
    except ImportError as error:
        raise OptionError("estimators need skl2onnx", remedy=_INSTALL) from error
    estimator, options = rewrite(estimator)
    if classes is not None:
        if not number_classes(estimator):
            raise CompileError(
                f"the classes of {type(last_step(estimator)).__name__} are not its own",
                remedy="compile the classifier within it",
            )
        as_matrix(estimator, options)
    try:
        return convert_sklearn(
            estimator, initial_types=[("rows", FloatTensorType([None, n_features]))], options=options,
            target_opset=OPSETS,
            custom_conversion_functions={k: v for part in OWN for k, v in part.converters().items()},
            custom_shape_calculators=missing.shapes(),
        )  # fmt: skip
    except CompileError:
        raise
    except Exception as error:  # whatever skl2onnx meets in an estimator that it does not know
        raise CompileError(
            f"skl2onnx has no form for {type(estimator).__name__}: {str(error).strip()[:300]}",
            remedy="convert the estimator yourself, and compile the ONNX model",
        ) from error
