"""Columns of text in fitted estimators: what an encoder, a filler and a choice of columns make of them."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler

import tilewright as tw

DRAW = np.random.default_rng(5)
N = 60
FRAME = pd.DataFrame({
    "age": DRAW.normal(40, 10, N),
    "job": DRAW.choice(["nurse", "cook", "smith"], N),
    "badge": [f"p{k}" for k in range(N)],
    "town": pd.Series(DRAW.choice(["Ulm", "Bonn", ""], N)).replace("", np.nan),
    "pay": np.where(DRAW.random(N) < 0.1, np.nan, DRAW.normal(3, 1, N)),
})  # fmt: skip
IS_OLD = np.where((FRAME.age > 40) ^ (FRAME.job == "cook"), "yes", "no")
LENIENT = OneHotEncoder(handle_unknown="ignore")
FILLED = SimpleImputer(strategy="most_frequent")
RANKS = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)


def compiled(estimator: Any) -> Any:
    return tw.from_sklearn(estimator, threads=1, cache=False)


def check(estimator: Any, rows: Any, labels: Any = None, *others: Any) -> Any:
    estimator.fit(rows, labels)
    made = compiled(estimator)
    for given_rows in (rows, *others):
        if labels is None:
            want = estimator.transform(given_rows)
            want = want.toarray() if hasattr(want, "toarray") else want
            np.testing.assert_allclose(made.transform(given_rows), want.astype(np.float64), rtol=1e-4, atol=1e-5)
        else:
            found, want = made.predict(given_rows), estimator.predict(given_rows)
            assert (found == want).all() or np.allclose(found, want)
    return made


def test_a_frame_is_read_by_its_names() -> None:
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    steps = ColumnTransformer([
        ("numbers", numbers, make_column_selector(dtype_include=np.number)),
        ("job", LENIENT, ["job"]),
        ("town", make_pipeline(FILLED, LENIENT), ["town"]),
    ])  # fmt: skip
    strange = FRAME[FRAME.columns[::-1]].copy()
    strange.loc[3, "job"] = "baker"
    made = check(make_pipeline(steps, LogisticRegression()), FRAME, IS_OLD, strange)
    with pytest.raises(tw.InputError, match="the rows have no column 'job'"):
        made.predict(FRAME.drop(columns="job"))
    with pytest.raises(tw.InputError, match=r'column "pay" is not numbers[\s\S]*OneHotEncoder'):
        made.predict(FRAME.assign(pay="much"))


COLUMNS: dict[str, Any] = {
    "places": [1, 3], "a mask": [False, True, False, True, False], "a slice": slice(1, 4, 2), "one name": "job",
    "names": slice("job", "badge"),
}  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_chosen_in_every_way(name: str) -> None:
    chosen = COLUMNS[name]
    encoder = FunctionTransformer() if name == "one name" else LENIENT
    if name == "one name":
        chosen, encoder = ["job"], RANKS
    check(ColumnTransformer([("text", encoder, chosen)]), FRAME)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("encoder", [LENIENT, RANKS, OneHotEncoder(drop="first")], ids=["one hot", "ranks", "dropped"])
def test_rows_of_values_are_text_and_numbers(encoder: Any) -> None:
    rows = FRAME[["job", "age", "badge"]].to_numpy(object)
    steps = ColumnTransformer([("text", encoder, [0, 2])], remainder="passthrough", sparse_threshold=0)
    check(steps, rows, None, rows.tolist()[:7])
    check(encoder, rows[:, [0]])
    check(encoder, rows[:, [0]].astype(str))


@pytest.mark.parametrize("part", [StandardScaler(with_std=False), "passthrough", RANKS], ids=str)
def test_all_columns_in_another_order(part: Any) -> None:
    rows = DRAW.integers(0, 3, (6, 3)) * [1, 10, 100]
    check(ColumnTransformer([("all", part, [2, 1, 0])]), rows)
    check(ColumnTransformer([("again", part, [1, 1, 2])]), rows)


def test_columns_go_several_ways() -> None:
    union = FeatureUnion([("ranks", RANKS), ("hot", OneHotEncoder(handle_unknown="ignore", sparse_output=False))])
    same = make_pipeline(FunctionTransformer(), union)
    rows = FRAME[["job", "town"]]
    check(ColumnTransformer([("both", same, ["town", "job"]), ("none", "drop", ["job"])]), rows.fillna("Ulm"))


def test_what_is_missing_is_filled_in_one_branch_alone() -> None:
    rows = np.array([["Ulm"], [None], ["Bonn"], [np.nan], ["Ulm"]], object)
    filled = [make_pipeline(SimpleImputer(missing_values=m, strategy="most_frequent"), LENIENT) for m in (np.nan, None)]
    check(ColumnTransformer([("as it is", LENIENT, [0]), ("filled", filled[0], [0])]), rows)
    check(filled[1], rows[[0, 1, 2, 4]])


@pytest.mark.parametrize("rows", [FRAME[["job", "town"]], FRAME[["age", "pay"]]], ids=["text", "numbers"])
def test_ranks_of_what_is_missing(rows: Any) -> None:
    check(OrdinalEncoder(), rows)
    check(OrdinalEncoder(encoded_missing_value=-7), rows)
    check(OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan), rows)


REFUSED: dict[str, Any] = {
    "a number of its own": RANKS,
    "infrequent": OrdinalEncoder(min_frequency=2),
    "marks what is missing": make_pipeline(SimpleImputer(strategy="most_frequent", add_indicator=True), LENIENT),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_encoders_that_have_no_form(rule: str) -> None:
    with pytest.raises(tw.CompileError, match=rule):
        compiled(REFUSED[rule].fit(FRAME[["town"]]))


def test_a_part_of_no_columns() -> None:
    check(ColumnTransformer([("none", LENIENT, []), ("job", LENIENT, ["job"])]), FRAME)


def test_what_nobody_was_fitted_on() -> None:
    rows = FRAME[["job", "age"]].to_numpy(object)
    strict = ColumnTransformer([("text", OneHotEncoder(), [0])], remainder="passthrough", sparse_threshold=0)
    made = check(make_pipeline(strict, Ridge()), rows, FRAME.age)
    with pytest.raises(tw.InputError, match=r"row 1, column 0: 'baker' is no category[\s\S]*handle_unknown"):
        made.predict([["cook", 3], ["baker", 4]])
    with pytest.raises(tw.InputError, match="'3' is no category"):
        made.predict([["3", 3]])
    with pytest.raises(tw.InputError, match="rows of 2 numbers"):
        made.predict([["cook"]])
    with pytest.raises(tw.InputError, match=r"no matrix|rows of 2 numbers"):
        made.predict([["cook", 3], ["cook"]])


def test_text_that_is_computed_with_is_refused() -> None:
    rows = FRAME[["job"]].to_numpy(object)
    shout = FunctionTransformer(lambda x: np.char.upper(x.astype(str)))
    with pytest.raises(tw.CompileError, match=r"OneHotEncoder reads text that another step makes"):
        compiled(make_pipeline(shout, LENIENT).fit(rows))
    both = FeatureUnion([("ranks", RANKS), ("shout", shout)])
    with pytest.raises(tw.CompileError, match=r"FunctionTransformer reads column 0, which is text"):
        compiled(both.fit(rows))
    filled = make_pipeline(SimpleImputer(missing_values="cook", strategy="most_frequent"), LENIENT)
    with pytest.raises(tw.CompileError, match=r"SimpleImputer fills 'cook' in column 0"):
        compiled(filled.fit(rows))


WORDS = st.sampled_from(["a", "b", "B", "", "1", "é", "long word", None])


@settings(max_examples=5)  # each is a compile
@given(st.data())
def test_random_tables(data: st.DataObject) -> None:
    n_rows, n_text = data.draw(st.integers(2, 12)), data.draw(st.integers(1, 3))
    rows = np.array([[data.draw(WORDS) for _ in range(n_text)] for _ in range(n_rows)], object)
    others = np.array([[data.draw(WORDS) for _ in range(n_text)] for _ in range(5)], object)
    encoder = data.draw(st.sampled_from([LENIENT, RANKS]))
    fills = all(any(v is not None for v in column) for column in rows.T) and data.draw(st.booleans())
    filler = SimpleImputer(missing_values=None, strategy="most_frequent")
    check(make_pipeline(filler, encoder) if fills else make_pipeline(encoder), rows, None, others)
