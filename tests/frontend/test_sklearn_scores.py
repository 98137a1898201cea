"""Classifiers of scikit-learn that read what others give: in ONNX each says what scikit-learn says.

ONNX's own reference computes the models, so that many small ones are cheap; ``test_sklearn_kinds`` has native code.
"""

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils import all_estimators

import tilewright as tw
from tilewright.integrations.sklearn.predictor import _in_onnx

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
ASKED = ROWS[:15]
LABELS = {n: np.digitize(ROWS[:, 0] + ROWS[:, 1], [0, 1][: n - 1]) for n in (2, 3)}
WITHOUT_SCORES = {"NearestCentroid", "QuadraticDiscriminantAnalysis"}
"""Those of which ``skl2onnx`` has no scores, so that they are refused."""

MADE_OF_OTHERS = {"BaggingClassifier", "SelfTrainingClassifier"}
"""Those that can be made without others, and then have no scores or can't be fitted."""


def scaled(step: Any) -> Any:
    return make_pipeline(StandardScaler(), step)


def small(kind: type) -> Any:
    """An estimator that is fitted soon, and alike each time; None of a kind that needs others."""
    try:
        made = kind()
    except TypeError:
        return None
    known = made.get_params()
    few = {"n_estimators": 3, "random_state": 0, "Cs": 2, "cv": 2} | ({"max_iter": 3} if "max_bins" in known else {})
    return made.set_params(**{name: value for name, value in few.items() if name in known})


BASES: dict[str, Any] = {name: made for name, kind in all_estimators("classifier") if (made := small(kind)) is not None
                         and hasattr(kind, "decision_function") and name not in MADE_OF_OTHERS} | {
    "exponential": GradientBoostingClassifier(n_estimators=3, loss="exponential", random_state=0),
    "from zero": GradientBoostingClassifier(n_estimators=3, init="zero", random_state=0),
    **{f"descended {k}": SGDClassifier(loss=k, random_state=0) for k in ("log_loss", "modified_huber")},
    "pairs": SVC(decision_function_shape="ovo"),
    "support with probabilities": SVC(probability=True, random_state=0),
    **{f"steps {k}": scaled(x) for k, x in (("linear", LinearSVC()), ("ridge", RidgeClassifier()), ("svc", SVC()))},
    "steps in steps": scaled(scaled(LinearSVC())),
    "bagged steps": BaggingClassifier(scaled(LinearSVC()), 2, random_state=0),
    "bagged support": BaggingClassifier(SVC(probability=True), 2, random_state=0),
    "one against rest": OneVsRestClassifier(LinearSVC()),
    "one against rest, steps": OneVsRestClassifier(scaled(LogisticRegression())),
    "searched": GridSearchCV(scaled(SVC()), {"svc__C": [0.1, 1]}, cv=2),
    "stacked": StackingClassifier([("a", GaussianNB())], final_estimator=scaled(LinearSVC()), cv=2),
}  # fmt: skip


def told(estimator: Any) -> list[np.ndarray]:
    """The numbers of classes, and the scores, of ``ASKED``, by ONNX."""
    proto = _in_onnx(estimator, ROWS.shape[1], estimator.classes_)
    return list(ReferenceEvaluator(proto).run(None, {"rows": ASKED}))


@pytest.mark.parametrize("name", BASES)
def test_calibration_reads_what_decision_function_gives(name: str) -> None:
    for n in (2,) if name in ("exponential", "NuSVC") else (2, 3):
        estimator = CalibratedClassifierCV(BASES[name], cv=2, ensemble=False).fit(ROWS, LABELS[n])
        (part,) = estimator.calibrated_classifiers_
        scores = part.estimator.decision_function(ASKED)
        for calibrator in part.calibrators:  # a curve that is steep where the scores are, and so tells them apart
            calibrator.a_, calibrator.b_ = -1 / scores.std(), 0.3
        expected = estimator.predict_proba(ASKED)
        if name in WITHOUT_SCORES:
            with pytest.raises(tw.CompileError, match=f"no scores of {name}, which a CalibratedClassifierCV reads"):
                told(estimator)
        else:
            np.testing.assert_allclose(told(estimator)[1], expected, atol=1e-5)


def stacked(*parts: Any, **options: Any) -> Any:
    return StackingClassifier([(str(k), part) for k, part in enumerate(parts)], cv=2, **options)


READERS = {
    "stacked descents": stacked(SGDClassifier(random_state=0), LinearSVC()),
    "stacked, mixed": stacked(GaussianNB(), "drop", SVC(), passthrough=True),
    "stacked steps": stacked(scaled(LinearSVC()), scaled(SGDClassifier(random_state=0)), GaussianNB()),
    "stacked labels": stacked(LinearSVC(), GaussianNB(), stack_method="predict"),
    "stacked under support": stacked(GaussianNB(), final_estimator=LinearSVC()),
    "votes of scores": VotingClassifier(
        [("a", LinearSVC()), ("b", scaled(RidgeClassifier())), ("c", GaussianNB())], weights=[1, 2, 3],
    ),
    **{f"one against rest {k}": OneVsRestClassifier(x) for k, x in (
        ("linear", LinearSVC()), ("ridge", RidgeClassifier()), ("steps", scaled(LinearSVC())), ("naive", GaussianNB()),
    )},
    "one against one, steps": OneVsOneClassifier(scaled(LinearSVC())),
    "one against one, exponential": OneVsOneClassifier(BASES["exponential"]),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_what_reads_classifiers(name: str) -> None:
    for n, labels in LABELS.items():
        estimator = READERS[name].fit(ROWS, np.array(list("abc"))[labels])
        expected = [estimator.predict(ASKED)]
        expected += [estimator.predict_proba(ASKED)] if hasattr(estimator, "predict_proba") else []
        found = told(estimator)
        np.testing.assert_array_equal(np.array(list("abc"))[found[0].reshape(-1)], expected[0], err_msg=f"{n} classes")
        if len(expected) > 1:
            np.testing.assert_allclose(found[1], expected[1], atol=1e-5)


def test_several_labels_by_the_sign_of_scores() -> None:
    estimator = OneVsRestClassifier(LinearSVC()).fit(ROWS, (ROWS > 0.2).astype(int))
    np.testing.assert_array_equal(told(estimator)[0], estimator.predict(ASKED))


REFUSED = {
    "its own start": (GradientBoostingClassifier(init=GaussianNB()), "from the predictions of a GaussianNB"),
    "probabilities of support": (OneVsRestClassifier(SVC(probability=True)), "probabilities of an SVC do not follow"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    estimator, rule = REFUSED[name]
    with pytest.raises(tw.CompileError, match=rule) as refused:
        told(estimator.fit(ROWS, LABELS[2]))
    assert refused.value.remedy
