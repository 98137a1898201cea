"""Kinds of estimators of scikit-learn, compiled: each says of 10,000 rows, or of documents, what scikit-learn says."""

from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_iris,
    make_multilabel_classification,
    make_regression,
)
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.naive_bayes import BernoulliNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    RadiusNeighborsRegressor,
    RadiusNeighborsTransformer,
)
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import KBinsDiscretizer, Normalizer, OneHotEncoder, QuantileTransformer, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, OneClassSVM

import tilewright as tw

FLOWERS, KINDS = load_iris(return_X_y=True)
LETTERS = np.array(list("abc"))[KINDS]
CELLS, GROWTHS = load_breast_cancer(return_X_y=True)
PATIENTS, PROGRESS = load_diabetes(return_X_y=True)
SEVERAL, TARGETS = make_regression(120, 6, n_targets=3, random_state=0)
MARKED, MARKS = make_multilabel_classification(120, 8, n_classes=3, random_state=0)
COUNTS = np.random.default_rng(0).poisson(2, (150, 6)).astype(float)
GAPS = FLOWERS.copy()
GAPS[::7, 1] = GAPS[::11, 3] = np.nan
ALL_GAPS = np.where(np.arange(4) == 2, np.nan, GAPS)
DOCUMENTS = [
    "the cat sat on the mat", "a dog ate my homework", "the dog and the cat", "my mat is red", "Red dogs, blue cats!",
    "homework on a mat", "blue skies and red cats", "nothing at all", "a cat; a dog", "THE END",
] * 3  # fmt: skip
TOPICS = [0, 1, 0, 2, 1, 2, 1, 0, 1, 2] * 3
MIXED = np.array([[d, float(k % 5), "ab"[k % 2]] for k, d in enumerate(DOCUMENTS)], object)


def scaled(step: Any) -> Any:
    return make_pipeline(StandardScaler(), step)


def by_columns(*parts: Any) -> Any:
    return ColumnTransformer([(str(k), *part) for k, part in enumerate(parts)])


CLASSES: dict[str, tuple[Any, Any, Any]] = {
    **{f"svc {k}": (scaled(SVC(kernel=k)), FLOWERS, KINDS) for k in ("linear", "poly", "rbf", "sigmoid")},
    "linear svc": (scaled(LinearSVC(random_state=0)), FLOWERS, KINDS),
    "one against one": (OneVsOneClassifier(LogisticRegression(max_iter=900)), FLOWERS, KINDS),
    "discriminants": (QuadraticDiscriminantAnalysis(), FLOWERS, KINDS),
    "calibrated pipeline": (CalibratedClassifierCV(scaled(LogisticRegression()), cv=3), CELLS, GROWTHS),
    "calibrated forest": (CalibratedClassifierCV(RandomForestClassifier(5, random_state=0), cv=3), CELLS, GROWTHS),
    "calibrated, classes of text": (CalibratedClassifierCV(LinearSVC(), cv=3), FLOWERS, LETTERS),
    "calibrated by steps": (
        CalibratedClassifierCV(RandomForestClassifier(5, random_state=0), method="isotonic", cv=3), CELLS, GROWTHS,
    ),
    **{f"calibrated scores {k}": (CalibratedClassifierCV(base, cv=3), rows, labels) for k, base, rows, labels in (
        ("boosted", HistGradientBoostingClassifier(max_iter=4, random_state=0), FLOWERS, KINDS),
        ("boosted, two", HistGradientBoostingClassifier(max_iter=4, random_state=0), CELLS[:, :5], GROWTHS),
        ("adaptive", AdaBoostClassifier(n_estimators=3, random_state=0), FLOWERS, KINDS),
        ("adaptive, two", AdaBoostClassifier(n_estimators=3, random_state=0), CELLS[:, :5], GROWTHS),
        ("bagged", BaggingClassifier(LinearSVC(), n_estimators=2, random_state=0), FLOWERS, KINDS),
        ("exponential", GradientBoostingClassifier(n_estimators=4, loss="exponential", random_state=0), CELLS, GROWTHS),
    )},
    "adaptive support": (AdaBoostClassifier(SVC(), n_estimators=3, random_state=0), FLOWERS, LETTERS),
    "bagged votes": (BaggingClassifier(LinearSVC(), n_estimators=3, max_features=3, random_state=0), FLOWERS, KINDS),
    **{f"descended {k}": (scaled(SGDClassifier(loss=k, random_state=0)), FLOWERS, KINDS)
       for k in ("log_loss", "modified_huber")},
    "weighted votes": (
        VotingClassifier(
            [("a", LogisticRegression(max_iter=900)), ("b", "drop"), ("c", GaussianNB())], voting="soft",
            weights=[1, 2, 3],
        ),
        FLOWERS, KINDS,
    ),
    **{f"rows of one {k}": (make_pipeline(Normalizer(k), SVC()), FLOWERS - 3, KINDS) for k in ("l1", "l2", "max")},
    "gaps are marked": (make_pipeline(SimpleImputer(add_indicator=True), GaussianNB()), GAPS, KINDS),
    "gaps are one number": (
        make_pipeline(SimpleImputer(strategy="constant", fill_value=-9), LogisticRegression()), GAPS, KINDS,
    ),
    "gaps are another number": (
        make_pipeline(SimpleImputer(missing_values=0, add_indicator=True), LogisticRegression()), COUNTS, KINDS,
    ),
    "searched": (GridSearchCV(scaled(SVC()), {"svc__C": [0.1, 1]}, cv=3), FLOWERS, KINDS),
    "searched step": (scaled(GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}, cv=3)), FLOWERS, KINDS),
    "votes": (VotingClassifier([("a", LogisticRegression(max_iter=900)), ("b", GaussianNB())]), FLOWERS, KINDS),
    "soft votes": (
        VotingClassifier([("a", LogisticRegression(max_iter=900)), ("b", GaussianNB())], voting="soft"), FLOWERS, KINDS,
    ),
    "stacked": (StackingClassifier([("a", GaussianNB()), ("b", SVC())], cv=3), FLOWERS, KINDS),
    "stacked, two": (StackingClassifier([("a", LinearSVC()), ("b", GaussianNB())], cv=3), CELLS[:, :5], GROWTHS),
    "boosted exactly": (GradientBoostingClassifier(n_estimators=4, random_state=0), FLOWERS, LETTERS),
    "boosted": (HistGradientBoostingClassifier(max_iter=10, random_state=0), CELLS, GROWTHS),
    "boosted, three classes, gaps": (HistGradientBoostingClassifier(max_iter=8, random_state=0), GAPS, KINDS),
    "forest with gaps": (RandomForestClassifier(8, random_state=0), GAPS, KINDS),
    "random splits": (ExtraTreesClassifier(8, random_state=0), FLOWERS, KINDS),
    "neighbours by distance": (KNeighborsClassifier(5, weights="distance"), FLOWERS, KINDS),
    "neighbours, chebyshev": (scaled(KNeighborsClassifier(4, metric="chebyshev")), CELLS, GROWTHS),
    "neighbours, cosine": (scaled(KNeighborsClassifier(4, metric="cosine")), CELLS, GROWTHS),
    "bernoulli": (BernoulliNB(binarize=1.0), COUNTS, KINDS), "multinomial": (MultinomialNB(), COUNTS, KINDS),
    "complement": (ComplementNB(), COUNTS, KINDS), "components": (scaled(PCA(2)), FLOWERS, None),
    "components of several": (make_pipeline(make_union(PCA(2), StandardScaler()), SVC()), FLOWERS, KINDS),
    "several labels": (OneVsRestClassifier(LogisticRegression()), MARKED, MARKS),
    "words": (make_pipeline(TfidfVectorizer(), LogisticRegression()), DOCUMENTS, TOPICS),
    "pairs of words": (make_pipeline(CountVectorizer(ngram_range=(1, 2)), MultinomialNB()), DOCUMENTS, TOPICS),
    "letters": (make_pipeline(TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 3)), SVC()), DOCUMENTS, TOPICS),
    "hashed words": (make_pipeline(HashingVectorizer(n_features=32), LogisticRegression()), DOCUMENTS, TOPICS),
    "weighed words": (
        make_pipeline(CountVectorizer(), TfidfTransformer(), LinearSVC(random_state=0)), DOCUMENTS, TOPICS,
    ),
    "words of a column": (
        make_pipeline(
            by_columns((make_pipeline(CountVectorizer(), TfidfTransformer()), 0), (OneHotEncoder(), [2]),
                       (StandardScaler(), [1])),
            LogisticRegression(),
        ),
        MIXED, TOPICS,
    ),
}  # fmt: skip
NUMBERS: dict[str, tuple[Any, Any, Any]] = {
    **{f"svr {k}": (scaled(SVR(kernel=k)), PATIENTS, PROGRESS) for k in ("linear", "poly", "rbf", "sigmoid")},
    "gaussian process": (
        GaussianProcessRegressor(RBF(1.0) + WhiteKernel(0.1), optimizer=None), PATIENTS[:60], PROGRESS[:60],
    ),
    **{f"boosted {k}": (HistGradientBoostingRegressor(loss=k, max_iter=10, random_state=0), PATIENTS, PROGRESS)
       for k in ("squared_error", "poisson", "absolute_error")},
    "forest of several targets": (RandomForestRegressor(5, random_state=0), SEVERAL, TARGETS),
    "network of several targets": (
        MLPRegressor(hidden_layer_sizes=(8,), max_iter=30, random_state=0), SEVERAL, TARGETS,
    ),
    "one for each target": (MultiOutputRegressor(Ridge()), SEVERAL, TARGETS),
    "neighbours by distance": (KNeighborsRegressor(5, weights="distance", p=1.5), SEVERAL, TARGETS),
    "means": (KMeans(4, random_state=0, n_init=2), FLOWERS, None),
    "outliers": (IsolationForest(n_estimators=10, random_state=0), FLOWERS, None),
    "one class": (scaled(OneClassSVM(nu=0.2)), FLOWERS, None),
    "marks of gaps": (make_union(SimpleImputer(), MissingIndicator()), GAPS, None),
    "columns of gaps": (SimpleImputer(keep_empty_features=True, add_indicator=True), ALL_GAPS, None),
    "columns without values": (SimpleImputer(add_indicator=True), ALL_GAPS, None),
    "bins": (KBinsDiscretizer(4, quantile_method="averaged_inverted_cdf"), FLOWERS, None),
    "quantiles": (QuantileTransformer(n_quantiles=20), FLOWERS, None),
}  # fmt: skip


N_ROWS = 10_000


def fitted(case: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """The estimator, and what it is asked about: near the rows that it was fitted on, and numbers that f32 holds."""
    estimator, rows, labels = case
    asked = rows
    if isinstance(rows, np.ndarray) and rows.dtype == float:
        rng = np.random.default_rng(1)
        noise = np.nanstd(rows, 0) * rng.standard_normal((N_ROWS, rows.shape[1])) * 0.3
        asked = (rows[rng.integers(0, len(rows), N_ROWS)] + noise).astype(np.float32).astype(float)
        asked = np.abs(np.round(asked)) if rows is COUNTS else asked
    return (estimator.fit(rows) if labels is None else estimator.fit(rows, labels)), asked


@pytest.mark.one_in(15)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLASSES)
def test_classes(name: str) -> None:
    estimator, rows = fitted(CLASSES[name])
    made = tw.from_sklearn(estimator, threads=1, cache=False)
    if not hasattr(estimator, "predict"):
        return np.testing.assert_allclose(made.transform(rows), estimator.transform(rows), rtol=1e-4, atol=1e-5)
    found, expected = made.predict(rows), estimator.predict(rows)
    # One row in thousands may be as near to two classes, or to two neighbours, as f32 can tell.
    assert found.shape == expected.shape and (found != expected).sum() <= len(rows) // 5000
    if hasattr(estimator, "predict_proba"):
        differ = np.abs(made.predict_proba(rows) - estimator.predict_proba(rows)) > 1e-5
        assert differ.any(1).sum() <= len(rows) // 5000


@pytest.mark.one_in(6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    estimator, rows = fitted(NUMBERS[name])
    made = tw.from_sklearn(estimator, threads=1, cache=False)
    if hasattr(estimator, "predict"):
        found, expected = made.predict(rows), estimator.predict(rows)
    else:
        found, expected = made.transform(rows), estimator.transform(rows)
    expected = expected.toarray() if hasattr(expected, "toarray") else expected
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_a_row_that_is_known_counts_alone() -> None:
    """Its distance is 0; ``skl2onnx`` weighted all neighbours alike."""
    estimator = KNeighborsRegressor(5, weights="distance").fit(SEVERAL.astype(np.float32), TARGETS)
    made = tw.from_sklearn(estimator, threads=1, cache=False)
    np.testing.assert_allclose(made.predict(SEVERAL.astype(np.float32)), TARGETS, rtol=1e-4)


REFUSED = {
    "several labels": (MultiOutputClassifier(LogisticRegression()), MARKED, MARKS, "gives 3 labels for each row"),
    "forest of several labels": (RandomForestClassifier(3), MARKED, MARKS, "gives 3 labels for each row"),
    "categories": (HistGradientBoostingClassifier(max_iter=3, categorical_features=[0]), np.round(FLOWERS), KINDS,
                   "splits by categories"),
    "words alone": (CountVectorizer(), DOCUMENTS, None, "reads text and computes nothing else"),
    "scores": (CalibratedClassifierCV(QuadraticDiscriminantAnalysis(), cv=3), FLOWERS, KINDS, "has no scores of"),
    "radius": (RadiusNeighborsRegressor(2.0, weights="distance"), FLOWERS, KINDS, "leaves the weights"),
    "cut scores": (OneVsRestClassifier(SGDClassifier(loss="modified_huber")), FLOWERS, KINDS, "chooses by scores"),
    "temperature": (CalibratedClassifierCV(GaussianNB(), method="temperature"), FLOWERS, KINDS, "by temperature"),
    "sparse": (RadiusNeighborsTransformer(), FLOWERS, None, "skl2onnx has no form for RadiusNeighborsTransformer"),
    "metric": (KNeighborsClassifier(metric="braycurtis"), FLOWERS, KINDS, "the metric 'braycurtis'"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_is_told(name: str) -> None:
    *case, rule = REFUSED[name]
    with pytest.raises((tw.CompileError, tw.OptionError), match=rule):
        tw.from_sklearn(fitted((case[0], case[1], case[2]))[0], cache=False)


def test_documents_that_are_none() -> None:
    made = tw.from_sklearn(CLASSES["words"][0].fit(DOCUMENTS, TOPICS), threads=1, cache=False)
    with pytest.raises(tw.InputError, match="the rows are no documents"):
        made.predict([1.0, 2.0])
