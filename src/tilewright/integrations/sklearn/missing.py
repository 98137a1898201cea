"""Missing values of scikit-learn as ONNX: ``skl2onnx`` leaves the marks out that an imputer adds.

In: a fitted ``SimpleImputer`` or ``MissingIndicator`` over numbers. Out: converters by class, and what gives the widths
of their results. Not its business: text (``columns``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.integrations.sklearn.nodes import Converter, GraphNodes
from tilewright.runtime.once import MAKING


def converters() -> Mapping[type, Converter]:
    """By class, for ``convert_sklearn``'s ``custom_conversion_functions``."""
    with MAKING:
        from sklearn.impute import MissingIndicator, SimpleImputer

    return {SimpleImputer: _filled, MissingIndicator: _marked}


def shapes() -> Mapping[type, Callable[[Any], None]]:
    """By class, for ``convert_sklearn``'s ``custom_shape_calculators``."""
    return dict.fromkeys(converters(), _shape)


def _shape(operator: Any) -> None:
    with MAKING:
        from skl2onnx.common.data_types import FloatTensorType

    operator.outputs[0].type = FloatTensorType([None, _width(operator.raw_operator)])


def _width(model: Any) -> int:
    if not hasattr(model, "statistics_"):
        return len(model.features_)
    marks = 0 if model.indicator_ is None else len(model.indicator_.features_)
    return len(_kept(model)) + marks


def _kept(model: Any) -> Any:
    """The columns that an imputer gives: those without any value are left out, unless it was told to keep them."""
    values = model.statistics_.astype(np.float64)
    return np.arange(len(values)) if model.keep_empty_features else np.flatnonzero(~np.isnan(values))


def _filled(scope: Any, operator: Any, container: Any) -> None:
    """What is missing is the column's number; behind all columns stands what was missing in some of them."""
    model, write = operator.raw_operator, GraphNodes(scope, container)
    rows, result = operator.inputs[0].full_name, operator.outputs[0].full_name
    values = np.nan_to_num(model.statistics_.astype(np.float32)[None])
    filled = write("Where", _is_missing(write, model, rows), write.number(values), rows)
    kept = _kept(model)
    columns = filled if len(kept) == values.size else write("Gather", filled, write.number(kept), axis=1)
    if model.indicator_ is None:
        write("Identity", columns, result=result)
    else:
        write("Concat", columns, _marks(write, model.indicator_, rows), result=result, axis=1)


def _marked(scope: Any, operator: Any, container: Any) -> None:
    write = GraphNodes(scope, container)
    marks = _marks(write, operator.raw_operator, operator.inputs[0].full_name)
    write("Identity", marks, result=operator.outputs[0].full_name)


def _marks(write: GraphNodes, model: Any, rows: str) -> str:
    """1 where a value is missing, of those columns that the indicator was fitted to mark."""
    places = write.number(np.asarray(model.features_, np.int64))
    return write("Gather", write("Cast", _is_missing(write, model, rows), to=1), places, axis=1)


def _is_missing(write: GraphNodes, model: Any, rows: str) -> str:
    mark = float(model.missing_values)
    return write("IsNaN", rows) if np.isnan(mark) else write("Equal", rows, write.number(np.array([mark], np.float32)))
