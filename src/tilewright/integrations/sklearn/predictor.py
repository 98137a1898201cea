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
from tilewright.integrations.sklearn.columns import Columns, without_text
from tilewright.runtime.once import MAKING

if TYPE_CHECKING:
    from tilewright.runtime.python.model import LoadedModel

OPSETS = {"": 21, "ai.onnx.ml": 3}
"""The versions of ONNX's domains that estimators are written in."""


@dataclass(frozen=True)
class Predictor:
    """A compiled estimator: ``predict``, and ``predict_proba`` or ``transform`` where the estimator has them.

    Rows are a matrix, rows of values, or a frame with named columns; ``columns`` makes them into what the compiled
    ``model`` takes, f32[rows, columns]. ``classes`` are a classifier's, None of others.
    """

    model: LoadedModel
    classes: Array | None
    columns: Columns
    kind: str

    def predict(self, rows: Any) -> Array:
        """A class, a number or a cluster for each row."""
        if self.kind == "transformer":
            raise OptionError("the estimator transforms and predicts nothing", remedy="call transform")
        found = self._called(rows)[0]
        if self.classes is not None:
            return np.asarray(self.classes[found.astype(np.int64)])
        # A column of one number for each row is what ONNX has for a single target.
        return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found

    def predict_proba(self, rows: Any) -> Array:
        """The probability of each class, f32[rows, classes], in the order of ``classes``."""
        if self.kind != "probabilities":
            raise OptionError("the estimator gives no probabilities", remedy="call predict")
        return self._called(rows)[1]

    def transform(self, rows: Any) -> Array:
        """The rows as the estimator represents them."""
        if self.kind != "transformer":
            raise OptionError("the estimator predicts and transforms nothing", remedy="call predict")
        return self._called(rows)[0]

    def _called(self, rows: Any) -> tuple[Array, ...]:
        made: Any = self.model(self.columns.numbers(rows))
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
    if getattr(estimator, "n_features_in_", None) is None:
        raise OptionError("the estimator does not say how many features it takes", remedy="fit it on a matrix")
    classes = np.asarray(estimator.classes_) if sklearn.base.is_classifier(estimator) else None
    numbered, columns = without_text(estimator)
    proto = _in_onnx(numbered, columns.n, classes)
    made: Any = compile(proto, threads=threads, cache=cache)
    n_results = len(proto.graph.output)
    if classes is not None:
        kind = "probabilities" if n_results > 1 and hasattr(estimator, "predict_proba") else "classes"
    else:
        kind = "numbers" if hasattr(estimator, "predict") else "transformer"
    return Predictor(made, classes, columns, kind)


_INSTALL = 'pip install "tilewright[sklearn]"'


def _in_onnx(estimator: Any, n_features: int, classes: Array | None) -> Any:
    """The estimator as a ``ModelProto``; of a classifier with classes 0, 1, 2..."""
    try:
        with MAKING:
            from skl2onnx import convert_sklearn
            from skl2onnx.common.data_types import FloatTensorType
    except ImportError as error:
        raise OptionError("estimators need skl2onnx", remedy=_INSTALL) from error
    options: dict[Any, Any] = {}
    if classes is not None:
        estimator = _numbered(estimator, len(classes))
        options = {id(estimator): {"zipmap": False}}
    try:
        return convert_sklearn(
            estimator, initial_types=[("rows", FloatTensorType([None, n_features]))], options=options,
            target_opset=OPSETS,
        )  # fmt: skip
    except Exception as error:  # whatever skl2onnx meets in an estimator that it does not know
        raise CompileError(
            f"skl2onnx has no form for {type(estimator).__name__}: {str(error).strip()[:300]}",
            remedy="convert the estimator yourself, and compile the ONNX model",
        ) from error


def _numbered(estimator: Any, n_classes: int) -> Any:
    """A copy of a classifier whose classes are their numbers: its own last step knows them."""
    made = copy.deepcopy(estimator)
    last = made
    while hasattr(last, "steps"):
        last = last.steps[-1][1]
    if isinstance(getattr(type(last), "classes_", None), property):
        raise CompileError(
            f"the classes of {type(last).__name__} are not its own",
            remedy="compile the classifier within it",
        )
    last.classes_ = np.arange(n_classes)
    return made
