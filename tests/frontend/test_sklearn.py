"""Fitted estimators of scikit-learn, compiled: the same classes and numbers, under the classes' own names."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import tilewright as tw

FLOWERS, KINDS = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[KINDS]
PATIENTS, PROGRESS = load_diabetes(return_X_y=True)
CLASSIFIERS = {
    "logistic": make_pipeline(StandardScaler(), LogisticRegression()),
    "forest": RandomForestClassifier(8, random_state=0),
    "tree": DecisionTreeClassifier(random_state=0),
    "network": MLPClassifier((8,), max_iter=30, random_state=0),
    "neighbours": KNeighborsClassifier(),
    "bayes": GaussianNB(),
}


@pytest.mark.one_in(6)
@pytest.mark.filterwarnings("ignore")  # a network that has not converged
@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("labels", [KINDS * 10 - 3, NAMES], ids=["numbers", "text"])
def test_classes_and_probabilities_are_scikit_learns(name: str, labels: np.ndarray) -> None:
    estimator = CLASSIFIERS[name].fit(FLOWERS, labels)
    made = tw.from_sklearn(estimator, threads=1, cache=False)
    rows = FLOWERS.astype(np.float32)
    np.testing.assert_array_equal(made.predict(rows), estimator.predict(rows))
    np.testing.assert_allclose(made.predict_proba(rows), estimator.predict_proba(rows), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(made.classes, estimator.classes_)


@pytest.mark.parametrize("estimator", [Ridge(), GradientBoostingRegressor(n_estimators=20, random_state=0)])
def test_numbers_are_scikit_learns(estimator) -> None:
    estimator.fit(PATIENTS, PROGRESS)
    rows = PATIENTS.astype(np.float32)
    found = tw.from_sklearn(estimator, threads=1, cache=False).predict(rows)
    np.testing.assert_allclose(found, estimator.predict(rows), rtol=1e-4)


def test_rows_are_transformed() -> None:
    estimator = PCA(2).fit(FLOWERS)
    made = tw.from_sklearn(estimator, threads=1, cache=False)
    np.testing.assert_allclose(made.transform(FLOWERS), estimator.transform(FLOWERS), rtol=1e-3, atol=1e-4)
    with pytest.raises(tw.OptionError, match="call transform"):
        made.predict(FLOWERS)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(tw.OptionError, match=r"not fitted yet[\s\S]*fit the estimator first"):
        tw.from_sklearn(Ridge())
    with pytest.raises(tw.OptionError, match="a dict is no estimator"):
        tw.from_sklearn({})
    made = tw.from_sklearn(SVC().fit(FLOWERS, KINDS), threads=1, cache=False)
    assert made.predict(FLOWERS[:3]).tolist() == [0, 0, 0]
    with pytest.raises(tw.OptionError, match="gives no probabilities"):
        made.predict_proba(FLOWERS)
    with pytest.raises(tw.InputError, match=r"rows of 4 numbers, not \(3, 2\)"):
        made.predict(FLOWERS[:3, :2])
    with pytest.raises(tw.InputError, match="not numbers"):
        made.predict([["a", "b", "c", "d"]])
