"""Columns of text in estimators of scikit-learn: numbered at the edge, so that what is compiled reads numbers alone.

In: a fitted estimator. Out: a copy of it whose encoders know numbers in the place of text, and ``Columns``, which turns
rows into such numbers. Not its business: what the estimator computes (``predictor``).

An encoder only asks which of its categories a value is. So each text of a column has a number, its place among all that
the encoders of the column know, and the encoders' own categories become those numbers. What no encoder knows is -1.
What is missing has numbers below that, the same in all columns, because a filler looks for one number in all of them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.core.diag import CompileError
from tilewright.core.types import Array
from tilewright.integrations.sklearn.documents import Documents, documents_of, reads_documents, without_first
from tilewright.runtime.errors import InputError

UNKNOWN = -1
NONE, NAN = "None", "NaN"
MISSING = {NONE: -2, NAN: -3}
"""The numbers of what is missing. Encoders tell both apart, so None and NaN are two categories."""
Places = Sequence[int | None]
"""For each column that a step reads, the column of the rows that it is; None where it was computed."""


@dataclass
class Text:
    """What is known of a column of text: the number of each value, and what becomes of others."""

    numbers: dict[Any, int] = field(default_factory=dict)
    filled: dict[Any, int] = field(default_factory=dict)
    """The numbers of what is missing where a step puts a value."""
    takes_others: bool = True
    """Do all encoders of the column say what becomes of a value that they don't know?"""

    def number(self, value: Any) -> int:
        """The number of a category, given out in the order in which they are asked for."""
        key = _key(value)
        return self.numbers.setdefault(key, MISSING.get(key, len(self.numbers)))


@dataclass(frozen=True)
class Columns:
    """The columns of an estimator's rows: their names where it was fitted on named ones, and those that hold text."""

    n_columns: int
    names: tuple[str, ...] | None = None
    text: dict[int, Text] = field(default_factory=dict)
    unread: frozenset[int] = frozenset()
    documents: Sequence[tuple[int, Documents]] = ()
    """Steps that read the whole texts of a column; their numbers follow all columns, in this order."""

    @property
    def n(self) -> int:
        """How many numbers the compiled model takes for a row."""
        return self.n_columns + sum(d.n for _, d in self.documents)

    def numbers(self, rows: Any) -> Array:
        """f32[rows, columns] of a matrix, of rows of values, or of a frame with named columns.

        A frame's columns are found by name where the estimator was fitted on names. ``InputError`` for other columns,
        for what is no number, and for text that an encoder refuses.
        """
        found = self._of_frame(rows) if hasattr(rows, "columns") else self._of_rows(rows)
        made = np.zeros((len(found[0]) if found else 0, self.n), np.float32)
        for k, column in enumerate(found):
            if k in self.text:
                made[:, k] = self._numbered(k, column)
            elif k not in self.unread:
                try:
                    made[:, k] = column
                except (TypeError, ValueError) as error:
                    raise InputError(f"{self.title(k)} is not numbers: {error}", remedy=_NUMBERS) from error
        at = self.n_columns
        for k, documents in self.documents:
            made[:, at : at + documents.n] = documents.numbers(found[k])
            at += documents.n
        return made

    def title(self, k: int) -> str:
        return f"column {k}" if self.names is None else f'column "{self.names[k]}"'

    def _of_frame(self, frame: Any) -> list[Any]:
        titles = [str(t) for t in frame.columns]
        if self.names is None:
            if len(titles) != self.n_columns:
                raise InputError(
                    f"takes rows of {self.n_columns} numbers, not {len(titles)}", remedy="pass those columns"
                )
            return [_values(frame[t]) for t in frame.columns]
        if absent := [name for name in self.names if name not in titles]:
            listed = ", ".join(map(repr, absent[:10]))
            raise InputError(f"the rows have no column {listed}", remedy="pass the columns that it was fitted on")
        return [_values(frame[name]) for name in self.names]

    def _of_rows(self, rows: Any) -> list[Any]:
        try:
            has_text = self.text or self.documents
            given = np.asarray(rows, None if isinstance(rows, np.ndarray) or not has_text else object)
        except (TypeError, ValueError) as error:  # rows of different lengths
            raise InputError(f"the rows are no matrix: {error}", remedy="pass rows of one length") from error
        if given.ndim != 2 or given.shape[1] != self.n_columns:
            raise InputError(f"takes rows of {self.n_columns} numbers, not {given.shape}", remedy="pass a matrix")
        return list(given.T)

    def _numbered(self, k: int, column: Any) -> Array:
        text, values = self.text[k], np.asarray(column).tolist()
        keys = list(map(_key, values))
        known = text.numbers | text.filled
        if not text.takes_others:
            for row, (key, value) in enumerate(zip(keys, values, strict=True)):
                if key not in known:
                    rule = f"row {row}, {self.title(k)}: {value!r} is no category that the estimator was fitted on"
                    raise InputError(rule, remedy='fit its encoder with handle_unknown, such as "ignore"')
        numbers = MISSING | known
        return np.array([numbers.get(key, UNKNOWN) for key in keys], np.float32)


_NUMBERS = "pass numbers there, or encode text in the estimator by a OneHotEncoder or OrdinalEncoder"


def _values(column: Any) -> Any:
    return column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)


def _key(value: Any) -> Any:
    """A value as it is compared: None and NaN are what is missing; types keep 1 and "1" apart."""
    if value is None:
        return NONE
    if _is_na(value) or value != value:  # pandas' NA has no truth
        return NAN
    if isinstance(value, str):
        return str, str(value)  # NumPy's is another type
    return (type(value), value) if isinstance(value, bytes | bool) else (float, value)


def _is_na(value: Any) -> bool:
    return type(value).__name__ == "NAType"


def without_text(estimator: Any) -> tuple[Any, Columns]:
    """A copy of a fitted estimator that reads numbers alone, and the columns that it reads.

    ``CompileError`` where a step other than an encoder or a filler of what is missing reads text.
    """
    n = int(estimator.n_features_in_)
    names = getattr(estimator, "feature_names_in_", None)
    walk = _StepWalk(tuple(map(str, names)) if names is not None else None, n)
    made = copy.deepcopy(estimator)
    walk.step(made, range(n))
    columns = Columns(n, walk.names, walk.text, frozenset(range(n)) - walk.read, walk.documents)
    for title, places in walk.computing:
        if found := [k for k in places if k in walk.text]:
            raise CompileError(
                f"{title} reads {columns.title(found[0])}, which is text",
                remedy="read it through a OneHotEncoder or OrdinalEncoder alone",
            )
    for rename in walk.renames:
        rename()
    return made, columns


class _StepWalk:
    """One pass over the steps in the order of the data; what is to be renamed waits until all text is known."""

    def __init__(self, names: tuple[str, ...] | None, n: int) -> None:
        self.names, self.n = names, n
        self.text: dict[int, Text] = {}
        self.read: set[int] = set()
        self.computing: list[tuple[str, list[int]]] = []
        self.renames: list[Callable[[], None]] = []
        self.documents: list[tuple[int, Documents]] = []

    def step(self, step: Any, places: Places) -> Places:
        """The columns that a fitted step gives; it reads ``places``."""
        from sklearn.compose import ColumnTransformer
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import FeatureUnion, Pipeline
        from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder

        if step is None or step == "passthrough":
            return places
        if isinstance(step, Pipeline):
            for _, part in step.steps:
                places = self.step(part, places)
            return places
        if isinstance(step, ColumnTransformer):
            return self._by_columns(step, places)
        if isinstance(step, FeatureUnion):
            return [k for _, part in step.transformer_list if part != "drop" for k in self.step(part, places)]
        self.read |= {k for k in places if k is not None}
        if isinstance(step, FunctionTransformer) and step.func is None:
            return places
        if isinstance(step, OneHotEncoder | OrdinalEncoder):
            self._encoder(step, places)
            return self._computed(step)
        if isinstance(step, SimpleImputer) and _fills_text(step):
            return self._filler(step, places)
        self.computing.append((type(step).__name__, [k for k in places if k is not None]))
        return self._computed(step)

    def _by_columns(self, step: Any, places: Places) -> Places:
        """A ``ColumnTransformer``, whose columns get numbers in the place of names."""
        titles = [str(t) for t in getattr(step, "feature_names_in_", ())]
        if len(places) != step.n_features_in_:  # a step before it that does not say how many it gives: none is text
            places = [None] * step.n_features_in_
        found: list[int | None] = []
        fitted = []
        for name, part, columns in step.transformers_:
            chosen = _positions(columns, titles, len(places))
            if not isinstance(part, str) and reads_documents(part):
                part, chosen = self._documents(part, places, chosen)
                found += [None] * len(chosen)
            elif chosen and not (isinstance(part, str) and part == "drop"):  # a part of no columns is not fitted
                found += self.step(part, [places[k] for k in chosen])
            fitted.append((name, part, chosen))
        width = len(places) + sum(d.n for _, d in self.documents)
        step.transformers_ = [(name, *_in_order(part, chosen, width)) for name, part, chosen in fitted]
        step.n_features_in_ = width
        return found

    def _documents(self, part: Any, places: Places, chosen: list[int]) -> tuple[Any, list[int]]:
        """What follows a step that reads whole texts, and the places of the numbers that it makes, behind all others.

        Its rows are the estimator's own: those that another step made have no columns behind them.
        """
        if list(places) != list(range(self.n)) or len(chosen) != 1:
            raise CompileError(
                "a step reads documents that another step makes", remedy="let it read one column of the rows itself"
            )
        first, rest = without_first(part)
        at = self.n + sum(d.n for _, d in self.documents)
        self.documents.append((chosen[0], documents_of(first)))
        made = list(range(at, at + self.documents[-1][1].n))
        if rest is not None:
            self.step(rest, [None] * len(made))
        return "passthrough" if rest is None else rest, made

    def _encoder(self, step: Any, places: Places) -> None:
        from sklearn.preprocessing import OrdinalEncoder

        takes_others = step.handle_unknown != "error"
        unnumbered = _missing_as_unknown(step) if isinstance(step, OrdinalEncoder) else {}
        for k, categories in enumerate(step.categories_):
            place, gone = places[k], unnumbered.get(k)
            if np.asarray(categories).dtype.kind not in "OUS":
                self.computing.append((type(step).__name__, [] if place is None else [place]))
                if gone is not None:
                    step.categories_[k] = np.delete(categories, gone)
                continue
            if place is None:
                raise CompileError(
                    f"{type(step).__name__} reads text that another step makes",
                    remedy="let it read the column of the rows itself",
                )
            text = self.text.setdefault(place, Text())
            text.takes_others &= takes_others
            numbers = [text.number(c) for c in categories]
            if gone is not None:
                del numbers[gone]
            self.renames.append(functools.partial(_rename, step, k, numbers))

    def _filler(self, step: Any, places: Places) -> Places:
        """A ``SimpleImputer`` of text: what is missing is a number, and what it fills in is another."""
        key = NAN if _is_na(step.missing_values) else _key(step.missing_values)
        for place, value in zip(places, step.statistics_, strict=True):
            where = "text" if place is None else Columns(self.n, self.names).title(place)
            if key not in MISSING:
                raise CompileError(
                    f"SimpleImputer fills {step.missing_values!r} in {where}",
                    remedy="let None or NaN stand for what is missing in a column of text",
                )
            if step.add_indicator or _key(value) in MISSING:
                rule = "marks what" if step.add_indicator else "has no value where one"
                raise CompileError(
                    f"SimpleImputer {rule} is missing in {where}",
                    remedy="fit it without add_indicator, on columns with values",
                )
            if place is not None:
                # pandas' NA stands for all that is missing
                keys = MISSING if _is_na(step.missing_values) else [key]
                self.text.setdefault(place, Text()).filled |= dict.fromkeys(keys, MISSING[key])
        values = [None if p is None else self.text[p].number(v) for p, v in zip(places, step.statistics_, strict=True)]

        def rename() -> None:
            step.statistics_ = np.array([np.nan if v is None else v for v in values], np.float64)
            step.missing_values, step.fill_value = float(MISSING[key]), None

        self.renames.append(rename)
        return places

    def _computed(self, step: Any) -> Places:
        try:
            return [None] * len(step.get_feature_names_out())
        except (AttributeError, ValueError):  # the last step, or one that does not say: nothing reads text behind it
            return [None] * self.n


def _fills_text(step: Any) -> bool:
    """Was an imputer fitted on text? What it fills in by ``strategy="constant"`` is stored as objects anyway."""
    return {step._fit_dtype.kind, np.asarray(step.statistics_).dtype.kind} <= set("OUS")


def _in_order(part: Any, chosen: list[int], n: int) -> tuple[Any, list[int]]:
    """A part and its columns, where all of them in another order come one by one through a step of their own.

    ``skl2onnx`` takes columns that are as many as there are for all in their order.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import Pipeline

    if len(chosen) != n or chosen == list(range(n)) or part == "drop":
        return part, chosen
    ordered = ColumnTransformer([])
    ordered.transformers_ = [(f"column{k}", "passthrough", [k]) for k in chosen]
    return (ordered if part == "passthrough" else Pipeline([("ordered", ordered), ("part", part)])), list(range(n))


def _missing_as_unknown(step: Any) -> dict[int, int]:
    """The categories NaN of an ``OrdinalEncoder``, by column, which are to go: it gives their number to unknown values.

    ``skl2onnx`` numbers NaN like any category, and columns with infrequent categories all like the first. Values that
    are not known are refused before, or have the same number.
    """
    places: dict[int, int] = step._missing_indices
    if step._infrequent_enabled:
        raise CompileError(
            "OrdinalEncoder joins infrequent categories", remedy="fit it without min_frequency and max_categories"
        )
    missing, unknown = step.encoded_missing_value, step.unknown_value
    is_one = step.handle_unknown == "error" or missing == unknown or (missing != missing and unknown != unknown)
    if places and (not is_one or any(len(step.categories_[k]) == 1 for k in places)):
        raise CompileError(
            "OrdinalEncoder has a number of its own for what is missing",
            remedy="fill what is missing before, or fit it with the same encoded_missing_value and unknown_value",
        )
    if places:
        step.handle_unknown, step.unknown_value = "use_encoded_value", missing
    return places


def _rename(step: Any, k: int, numbers: list[int]) -> None:
    step.categories_[k] = np.array(numbers, np.int64)


def _positions(columns: Any, titles: list[str], n: int) -> list[int]:
    """The places of columns that are given by names, places, a slice of either, or a mask."""
    if isinstance(columns, slice):
        start, stop = (titles.index(e) if isinstance(e, str) else e for e in (columns.start, columns.stop))
        if isinstance(columns.stop, str):
            stop += 1  # names are inclusive
        return list(range(n))[slice(start, stop, columns.step)]
    listed: Iterable[Any] = [columns] if isinstance(columns, str | int) else columns
    found = list(listed)
    if found and all(isinstance(c, bool | np.bool_) for c in found):
        return [k for k, is_one in enumerate(found) if is_one]
    return [titles.index(c) if isinstance(c, str) else int(c) % n for c in found]
