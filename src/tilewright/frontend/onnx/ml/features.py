"""Converters of classical machine learning (``ai.onnx.ml``) that prepare features: look-ups, thresholds, scaling.

In: a ``Call``. Out: nodes of the graph IR. Not its business: models (``onnx.ml.linear``, ``onnx.ml.trees``),
strings and maps, which tensors do not hold.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known, known_under
from tilewright.core.graph import Node
from tilewright.core.types import Array, DType, f32, f64, i64, product
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Table
from tilewright.frontend.onnx.file import STRINGS_REMEDY, STRINGS_RULE
from tilewright.frontend.onnx.ml.scores import rows


def _array_feature_extractor(c: Call) -> Node:
    """Columns by their numbers, as rows even of a vector."""
    x, places = c.x(0), c.x(1)
    x = c.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    return c(ops.gather, x, c.reshape(places, (product(places.shape),)), axis=len(x.shape) - 1)


def _binarizer(c: Call) -> Node:
    x = c.x(0)
    return c.cast(Formula(c).gt(x, c.float_("threshold", 0.0)), x.dtype)


# --- LabelEncoder ---------------------------------------------------------------------------------------------------


def _label_encoder(c: Call) -> Node:
    """Each element's value by its key; of equal keys the last one counts, and NaN is a key like any other."""
    m = Formula(c)
    x = c.x(0)
    keys, values = _listed(c, "keys"), _listed(c, "values")
    if len(keys) != len(values):
        c.refuse(f"{len(keys)} keys for {len(values)} values")
    default = _default(c, values)
    column = c.reshape(x, (*x.shape, 1))
    row = c.const(keys, x.dtype)
    found = m.eq(column, row)
    if x.dtype.is_float and np.isnan(keys).any():
        found = c(ops.logical_or, found, m.both(m.ne(column, column), m.ne(row, row)))
    place = c(ops.reduce_max, m.where(found, m.steps(len(keys)), m.node(-1, i64)), axes=(len(x.shape),), keepdims=False)
    taken = c(ops.gather, c.array(values), m.max(place, 0), axis=0)
    return m.where(m.lt(place, 0), c.const(default, taken.dtype), taken)


def _listed(c: Call, what: str) -> Array:
    """The keys or values, in whichever attribute they stand."""
    for name in (f"{what}_strings", "classes_strings"):
        if c.has(name):
            c.refuse(f"attribute {name} {STRINGS_RULE}", STRINGS_REMEDY)
    given = [name for name in ("int64s", "floats", "tensor") if c.has(f"{what}_{name}")]
    if len(given) != 1:
        c.refuse(f"must have exactly one of {what}_int64s, {what}_floats, {what}_tensor")
    if given == ["int64s"]:
        return np.array(c.ints(f"{what}_int64s"), np.int64)
    if given == ["floats"]:
        return np.array(c.floats(f"{what}_floats"), np.float32)
    tensor = c.tensor(f"{what}_tensor")
    assert tensor is not None
    return tensor.reshape(-1)


def _default(c: Call, values: Array) -> Any:
    """The value of elements that have no key."""
    given = c.tensor("default_tensor")
    if given is not None:
        return given.reshape(-1)[0]
    fallback = c.float_("default_float", -0.0), c.int_("default_int64", -1)
    c.ignore("default_string")
    return fallback[values.dtype.kind in "iu"]


# --- preparation of features ----------------------------------------------------------------------------------------


def _scaler(c: Call) -> Node:
    """``(x - offset) * scale``, by columns or by one number each; f64 is rounded at the end."""
    m = Formula(c)
    x, dtype = c.x(0), f64 if c.x(0).dtype is f64 else f32
    offset, scale = (_by_column(c, name, c.floats(name), x, dtype) for name in ("offset", "scale"))
    return c.cast(m.mul(m.sub(c.cast(x, dtype), offset), scale), f32)


def _by_column(c: Call, name: str, values: list[float] | list[int], x: Node, dtype: DType) -> Node:
    """An attribute with a number for each of the last axis's columns, or one for all."""
    if not x.shape:
        c.refuse("takes rows of features, not a 0-d tensor")
    n = x.shape[-1]
    if len(values) != 1:
        if not values or (is_known(n) and n != len(values)):
            c.refuse(f"attribute {name} has {len(values)} numbers for {n} features; it needs one each, or one for all")
        c.assume_equal(n, len(values))
    return c.const(np.array(values, dtype.numpy), dtype)


def _normalizer(c: Call) -> Node:
    """Rows divided by their maximum, sum of sizes or length, where that is not 0; a vector is one row."""
    m = Formula(c)
    kind = c.choice("norm", ("MAX", "L1", "L2"), "MAX")
    x = rows(c)
    if kind == "MAX":
        size = c(ops.reduce_max, x, axes=(1,), keepdims=True)
    else:
        parts = c(ops.abs, x) if kind == "L1" else m.mul(x, x)
        size = c(ops.reduce_sum, parts, axes=(1,), keepdims=True)
        size = c(ops.sqrt, size) if kind == "L2" else size
    return c.reshape(m.div(x, m.where(m.eq(size, 0.0), 1.0, size)), c.x(0).shape)


def _imputer(c: Call) -> Node:
    """Elements equal to one value, which may be NaN, replaced by their column's."""
    m = Formula(c)
    x = c.x(0)
    kind = "float" if c.has("imputed_value_floats") else "int64"
    if c.has("imputed_value_floats") == c.has("imputed_value_int64s"):
        c.refuse("must have exactly one of imputed_value_floats and imputed_value_int64s")
    if x.dtype.is_float != (kind == "float"):
        c.refuse(f"attribute imputed_value_{kind}s does not fit an operand of {x.dtype}")
    c.ignore("replaced_value_float", "replaced_value_int64")
    values: list[float] | list[int] = (
        c.floats("imputed_value_floats") if kind == "float" else c.ints("imputed_value_int64s")
    )
    absent = c.float_("replaced_value_float", 0.0) if kind == "float" else c.int_("replaced_value_int64", 0)
    missing = m.ne(x, x) if absent != absent else m.eq(x, c.const(absent, x.dtype))
    return c(ops.where, missing, _by_column(c, f"imputed_value_{kind}s", values, x, x.dtype), x)


def _one_hot_encoder(c: Call) -> Node:
    """A new last axis with 1 at the element's category; of equal categories the last one counts.

    An element of no category has zeros only: ``zeros=0`` asks for an error then, which a compiled model can't raise.
    """
    m = Formula(c)
    c.ignore("zeros")
    if c.has("cats_strings"):
        c.refuse(f"attribute cats_strings {STRINGS_RULE}", STRINGS_REMEDY)
    x, categories = c.x(0), np.array(c.ints("cats_int64s"), np.int64)
    column = c.reshape(x, (*x.shape, 1))
    found = m.eq(c.cast(column, i64), c.array(categories))
    if x.dtype.is_float:
        found = m.both(found, m.eq(column, column))
    place = {v: k for k, v in enumerate(categories.tolist())}
    if len(place) < len(categories):
        found = m.both(found, c.array(np.array([place[v] == k for k, v in enumerate(categories.tolist())])))
    return c.cast(found, f32)


def _feature_vectorizer(c: Call) -> Node:
    """The operands' columns side by side, each cut or filled with zeros to its number of columns."""
    parts = []
    given = c.nodes()
    widths = c.ints("inputdimensions", [-1] * len(given))
    if len(widths) != len(given) or not given:
        c.refuse(f"attribute inputdimensions has {len(widths)} numbers for {len(given)} operands")
    for x, width in zip(given, widths, strict=True):
        n_rows, n = (1, x.shape[0]) if len(x.shape) == 1 else (x.shape[0], product(x.shape[1:]))
        flat = c.cast(c.reshape(x, (n_rows, n)), f32)
        if not is_known(n) and width >= 0:
            c.assume_equal(n, width)
        elif is_known(n) and n > width >= 0:
            flat = c.slice_axis(flat, 1, 0, width)
        elif known_under(n, width):
            flat = c(ops.concat, flat, c.full(0.0, f32, (n_rows, width - n)), axis=1)
        parts.append(flat)
    return c(ops.concat, *parts, axis=1) if len(parts) > 1 else parts[0]


TABLE: Table = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _feature_vectorizer,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot_encoder,
    "Scaler": _scaler,
}
