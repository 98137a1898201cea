"""Boosted trees: compiled models of XGBoost and LightGBM predict what the libraries predict, on 10,000 rows each."""

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import tilewright as tw

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")

rng = np.random.default_rng(0)
ROWS = rng.normal(size=(2000, 8)).astype(np.float32)
TESTED = rng.normal(size=(10000, 8)).astype(np.float32)
GAPS, TESTED_GAPS = (np.where(rng.random(x.shape) < 0.2, np.nan, x).astype(np.float32) for x in (ROWS, TESTED))
NUMBERS = ROWS[:, 0] * 2 + np.sin(ROWS[:, 1] * 3) + ROWS[:, 2] * ROWS[:, 3]
FLAGS, KINDS, COUNTS = (NUMBERS > 0).astype(int), np.digitize(NUMBERS, [-1, 1]), rng.poisson(np.exp(NUMBERS / 4))
NAMES = np.array(["low", "middle", "high"])[KINDS]
SMALL = {"n_estimators": 6, "max_depth": 3, "random_state": 0, "n_jobs": 1}
QUIET = {**SMALL, "verbose": -1}


def of_xgboost(kind="XGBRegressor", **options):
    return lambda: getattr(xgboost, kind)(**{**SMALL, **options})


def of_lightgbm(kind="LGBMRegressor", **options):
    return lambda: getattr(lightgbm, kind)(**{**QUIET, **options})


REGRESSORS = {
    "xgboost": (of_xgboost(), ROWS, NUMBERS, TESTED),
    "xgboost with gaps": (of_xgboost(), GAPS, NUMBERS, TESTED_GAPS),
    "xgboost counts": (of_xgboost(objective="count:poisson"), ROWS, COUNTS, TESTED),
    "xgboost shares": (of_xgboost(objective="reg:logistic"), ROWS, FLAGS, TESTED),
    "xgboost forest": (of_xgboost("XGBRFRegressor"), ROWS, NUMBERS, TESTED),
    "xgboost dropout": (of_xgboost(booster="dart", rate_drop=0.5), ROWS, NUMBERS, TESTED),
    "xgboost linear": (lambda: xgboost.XGBRegressor(booster="gblinear", n_estimators=6), ROWS, NUMBERS, TESTED_GAPS),
    "xgboost two targets": (of_xgboost(), ROWS, np.stack([NUMBERS, -(NUMBERS**2)], 1), TESTED),
    "lightgbm": (of_lightgbm(), ROWS, NUMBERS, TESTED_GAPS),
    "lightgbm with gaps": (of_lightgbm(), GAPS, NUMBERS, TESTED_GAPS),
    "lightgbm forest": (of_lightgbm(boosting_type="rf", subsample=0.6, subsample_freq=1), ROWS, NUMBERS, TESTED),
    "lightgbm roots": (of_lightgbm(reg_sqrt=True), ROWS, NUMBERS, TESTED),
    "lightgbm dropout": (of_lightgbm(boosting_type="dart"), ROWS, NUMBERS, TESTED),
    "lightgbm entropy": (of_lightgbm(objective="cross_entropy"), ROWS, FLAGS, TESTED),
    "lightgbm counts": (of_lightgbm(objective="tweedie"), ROWS, COUNTS, TESTED),
}
CLASSIFIERS = {
    "xgboost of two": (of_xgboost("XGBClassifier"), FLAGS),
    "xgboost of three": (of_xgboost("XGBClassifier"), KINDS),
    "xgboost forest": (of_xgboost("XGBRFClassifier"), KINDS),
    "xgboost linear": (lambda: xgboost.XGBClassifier(booster="gblinear", n_estimators=6), KINDS),
    "lightgbm of two": (of_lightgbm("LGBMClassifier"), FLAGS),
    "lightgbm of three": (of_lightgbm("LGBMClassifier"), NAMES),
    "lightgbm one against all": (of_lightgbm("LGBMClassifier", objective="multiclassova"), NAMES),
}


def compiled(model):
    convert = tw.from_xgboost if type(model).__module__.startswith("xgboost") else tw.from_lightgbm
    return convert(model, threads=1, cache=False)


@pytest.mark.parametrize("name", REGRESSORS)
def test_numbers_are_the_librarys(name):
    make, rows, wanted, tested = REGRESSORS[name]
    model = make().fit(rows, wanted)
    expected = model.predict(tested)
    found = compiled(model).predict(tested)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classes_and_probabilities_are_the_librarys(name):
    make, wanted = CLASSIFIERS[name]
    model = make().fit(GAPS, wanted)
    made = compiled(model)
    np.testing.assert_allclose(made.predict_proba(TESTED_GAPS), model.predict_proba(TESTED_GAPS), rtol=1e-5, atol=1e-6)
    # Two classes whose probabilities differ by a rounding may change places.
    assert (made.predict(TESTED_GAPS) == model.predict(TESTED_GAPS)).mean() > 0.9999


def test_rounds_behind_the_best_are_left_out():
    model = xgboost.XGBRegressor(**SMALL, early_stopping_rounds=1)
    model.fit(ROWS, NUMBERS, eval_set=[(ROWS, -NUMBERS)], verbose=False)
    assert model.best_iteration < SMALL["n_estimators"] - 1
    np.testing.assert_allclose(compiled(model).predict(TESTED), model.predict(TESTED), rtol=1e-5, atol=1e-5)


def test_a_linear_model_is_its_last_round():
    model = xgboost.XGBRegressor(booster="gblinear", n_estimators=9, early_stopping_rounds=1)
    model.fit(ROWS, NUMBERS, eval_set=[(ROWS, -NUMBERS)], verbose=False)
    np.testing.assert_allclose(compiled(model).predict(TESTED), model.predict(TESTED), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [0, 1])
def test_sums_begin_where_the_library_lets_them(share):
    model = of_xgboost(objective="reg:logistic")().fit(ROWS, np.full(len(ROWS), share))
    found, expected = compiled(model).predict(TESTED), model.predict(TESTED)
    np.testing.assert_allclose(found if share == 0 else 1 - found, expected if share == 0 else 1 - expected, rtol=0.1)


def test_a_model_of_no_rounds_is_where_sums_begin():
    model = xgboost.train({"base_score": 0.25}, xgboost.DMatrix(ROWS, NUMBERS), 0)
    np.testing.assert_array_equal(compiled(model).predict(TESTED), model.predict(xgboost.DMatrix(TESTED)))


def test_thresholds_of_f64_part_rows_as_the_library_does():
    """Two neighbours of f32 with a threshold between them: rounding it to the nearest would move the upper one."""
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2))
    rows = np.repeat(np.array([[low], [high]], np.float32), 50, axis=0)
    model = lightgbm.LGBMRegressor(n_estimators=1, verbose=-1, min_child_samples=1).fit(rows, rows[:, 0] > low)
    expected = model.predict(rows)
    np.testing.assert_allclose(compiled(model).predict(rows), expected, rtol=1e-5)


def test_what_has_no_form_is_named():
    zeros = np.where(np.abs(ROWS) < 0.5, 0, ROWS)
    model = of_lightgbm(zero_as_missing=True)().fit(zeros, NUMBERS)
    with pytest.raises(tw.CompileError, match="zeros count as missing"):
        tw.from_lightgbm(model)
    categories = np.where(np.arange(8) == 0, np.floor(ROWS * 3), ROWS)
    model = of_lightgbm()().fit(categories - categories.min(), NUMBERS, categorical_feature=[0])
    with pytest.raises(tw.CompileError, match="splits by categories"):
        tw.from_lightgbm(model)
    leaves = of_lightgbm(linear_tree=True)().fit(ROWS, NUMBERS)
    with pytest.raises(tw.CompileError, match="linear models"):
        tw.from_lightgbm(leaves)
    model = of_xgboost(multi_strategy="multi_output_tree", tree_method="hist")().fit(ROWS, np.stack([NUMBERS] * 2, 1))
    with pytest.raises(tw.CompileError, match="several numbers"):
        tw.from_xgboost(model)
    with pytest.raises(tw.CompileError, match="marks what is missing"):
        tw.from_xgboost(of_xgboost(missing=-1.0)().fit(ROWS, NUMBERS))
    for convert in (tw.from_xgboost, tw.from_lightgbm):
        with pytest.raises(tw.OptionError, match="is no model of"):
            convert(ROWS)
    with pytest.raises(tw.OptionError, match="not fitted"):
        tw.from_xgboost(of_xgboost()())
    with pytest.raises(tw.OptionError, match="not trained"):
        tw.from_xgboost(xgboost.Booster())
    with pytest.raises(tw.OptionError, match="not fitted"):
        tw.from_lightgbm(of_lightgbm()())


@pytest.mark.parametrize(("made", "reader"), [(of_xgboost(), "tw.from_xgboost"), (of_lightgbm(), "tw.from_lightgbm")])
def test_who_reads_them_is_said_to_one_who_takes_them_for_scikit_learns(made, reader):
    fitted = made().fit(ROWS, NUMBERS)
    for estimator in (fitted, make_pipeline(FunctionTransformer(), fitted)):
        with pytest.raises(tw.OptionError, match="is not scikit-learn's") as refused:
            tw.from_sklearn(estimator)
        assert refused.value.remedy.endswith(f"to {reader}")
