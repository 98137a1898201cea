"""What the classifiers and regressors of ``ai.onnx.ml`` share: rows of features, labels, transforms of scores.

In: a ``Call``. Out: nodes. Not its business: how an op gets its scores (``onnx_ops_ml_*``).

ONNX leaves open what a classifier of two classes with a single score gives; here it gives what ONNX Runtime gives.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.core.types import Array, DType, f32, i64
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call
from tilewright.frontend.onnx.file import STRINGS_RULE

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
LABELS_REMEDY = "encode the classes as integers before training, or export the scores without the labels"
ALMOST_ZERO = 1e-7
PROBIT_SHAPE, PROBIT_PI = 0.147, 3.14159


def rows(c: Call, dtype: DType = f32) -> Node:
    """Operand 0 as rows of features; a vector is one row."""
    x = c.x(0)
    if len(x.shape) not in (1, 2):
        c.refuse(f"takes rows of features, not {x.type}", "reshape the input to two dimensions")
    return c.cast(x if len(x.shape) == 2 else c.reshape(x, (1, *x.shape)), dtype)


def transform(c: Call) -> str:
    return c.choice("post_transform", TRANSFORMS, "NONE")


def table(c: Call, name: str, n_rows: int, x: Node, what: str) -> Array:
    """An attribute as a matrix of ``n_rows`` rows with a column for each feature of ``x``."""
    flat = np.array(c.floats(name), np.float32)
    if n_rows < 1 or flat.size % n_rows or not flat.size:
        c.refuse(f"attribute {name} has {flat.size} numbers for {n_rows} {what}", "the model is damaged")
    found = flat.reshape(n_rows, -1)
    check_features(c, x, found.shape[1])
    return found


def check_features(c: Call, x: Node, n: int) -> None:
    """Refuse rows that do not have ``n`` features."""
    given = x.shape[1]
    if is_known(given) and given != n:
        c.refuse(f"the model takes {n} features, and its input has {given}")
    c.assume_equal(given, n)


def product(c: Call, x: Node, weights: Array) -> Node:
    """``x`` times the transpose of ``weights``."""
    return c(ops.matmul, x, c.const(np.ascontiguousarray(weights.T), x.dtype))


# --- labels ---------------------------------------------------------------------------------------------------------


def labels(c: Call, name: str) -> Array:
    """The classes' numbers; strings stand as their places where the model does not read the labels."""
    if c.has("classlabels_strings") and (words := c.strs("classlabels_strings")):
        if c.wants(0):
            c.refuse(f"attribute classlabels_strings {STRINGS_RULE}", LABELS_REMEDY)
        c.ignore(name)
        return np.arange(len(words))
    return np.array(c.ints(name, []), np.int64)


def label_at(c: Call, classes: Array, place: Node) -> Node:
    return c(ops.gather, c.array(classes), place, axis=0)


def best(c: Call, scores: Node) -> Node:
    """The place of each row's highest score, the first of equals."""
    return c(ops.argmax, scores, axis=1, keepdims=False)


def either(c: Call, holds: Node, classes: Array) -> Node:
    """The second class's label where ``holds``, else the first's; 1 and 0 where the model does not name two."""
    low, high = classes.tolist() if len(classes) == 2 else (0, 1)
    return c(ops.where, holds, c.const(high, i64), c.const(low, i64))


# --- scores ---------------------------------------------------------------------------------------------------------


def transformed(c: Call, scores: Node, kind: str) -> Node:
    """Scores of each row's classes, after the transform of the whole row; a single score knows PROBIT only."""
    m = Formula(c)
    if kind == "PROBIT":
        return probit(c, scores)
    if kind == "NONE" or scores.shape[1] == 1:
        return scores
    if kind == "SOFTMAX":
        return c(ops.softmax, scores, axis=1)
    if kind == "LOGISTIC":
        return c(ops.sigmoid, scores)
    top = c(ops.reduce_max, scores, axes=(1,), keepdims=True)
    counts = m.gt(c(ops.abs, scores), ALMOST_ZERO)
    parts = c(ops.exp, m.sub(scores, top))
    total = c(ops.reduce_sum, m.where(counts, parts, 0.0), axes=(1,), keepdims=True)
    return m.div(m.where(counts, parts, m.mul(scores, c(ops.exp, c(ops.neg, top)))), total)


def probit(c: Call, p: Node) -> Node:
    """The normal distribution's quantile, by Winitzki's approximation (2008), as in ONNX Runtime and ONNX itself."""
    m = Formula(c)
    z = m.sub(m.mul(p, 2.0), 1.0)
    log = c(ops.log, m.mul(m.sub(1.0, z), m.add(z, 1.0)))
    half = m.add(m.mul(log, 0.5), 2 / (PROBIT_PI * PROBIT_SHAPE))
    size = m.sub(c(ops.sqrt, m.sub(m.mul(half, half), m.div(log, PROBIT_SHAPE))), half)
    return m.mul(m.mul(c(ops.sqrt, size), math.sqrt(2)), m.where(m.lt(z, 0.0), c.const(-1.0, p.dtype), 1.0))


def two_columns(c: Call, score: Node, kind: str, complement: bool) -> Node:
    """Both classes' columns from the second's score, n x 1: ``1 - score`` beside it, or else ``-score``."""
    m = Formula(c)
    if complement and kind in ("NONE", "SOFTMAX", "SOFTMAX_ZERO"):
        return c(ops.concat, m.sub(1.0, score), score, axis=1)
    score = probit(c, score) if kind == "PROBIT" else score
    pair = c(ops.concat, c(ops.neg, score), score, axis=1)
    return c(ops.sigmoid, pair) if kind == "LOGISTIC" else pair
