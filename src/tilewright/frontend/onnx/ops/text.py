"""Converters of ONNX TfIdfVectorizer on integers, and of training ops that are short formulas.

In: a ``Call``. Out: nodes of the graph IR. Not its business: strings, which tensors do not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright import ops
from tilewright.core.dims import known_at_most
from tilewright.core.graph import Node
from tilewright.core.types import f32, f64, i64
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Results, Table
from tilewright.runtime.texts import column_weights


def _tf_idf(c: Call) -> Node:
    """How often each n-gram of the pool occurs in a row, its items up to ``max_skip_count`` places apart."""
    m = Formula(c)
    x = c.x(0)
    mode = c.choice("mode", ("TF", "IDF", "TFIDF"))
    least, most, max_skip = c.int_("min_gram_length"), c.int_("max_gram_length"), c.int_("max_skip_count")
    starts, columns = c.ints("ngram_counts"), c.ints("ngram_indexes")
    if c.has("pool_strings") or not x.dtype.is_integer:
        c.refuse("counts n-grams of strings", "map words to integers before the model")
    pool, weights = c.ints("pool_int64s"), c.floats("weights", [])
    n_columns = max(columns, default=-1) + 1
    if min(columns, default=0) < 0:
        c.refuse("ngram_indexes must not be negative")
    rows = c.cast(c.reshape(x, (1, x.type.n_elements)) if len(x.shape) < 2 else x, i64)
    n_rows, n_items = rows.shape
    total = c.full(0, f32, (n_rows, n_columns))
    first = 0
    for length, (begin, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        grams = np.array(pool[begin:end], np.int64).reshape(-1, length)
        # counted on also for lengths that are left out
        targets, first = columns[first : first + len(grams)], first + len(grams)
        if not least <= length <= most or not len(grams):
            continue
        # a single item has no gaps: each skip would count it again
        for skip in range(1 if length == 1 else max_skip + 1):
            reach = (length - 1) * (skip + 1)
            if known_at_most(n_items, reach):
                continue
            windows = [c.slice_axis(rows, 1, k * (skip + 1), n_items - reach + k * (skip + 1)) for k in range(length)]
            same = [
                m.eq(c.reshape(w, (*w.shape, 1)), c.const(grams[:, k], i64)) for k, w in enumerate(windows)
            ]  # fmt: skip
            hits = same[0]
            for s in same[1:]:
                hits = m.both(hits, s)
            found = c(ops.reduce_sum, c.cast(hits, f32), axes=(1,), keepdims=False)
            # several n-grams may share a column: a product adds their counts up
            spread = np.zeros((len(grams), n_columns), np.float32)
            spread[np.arange(len(grams)), targets] = 1
            total = m.add(total, c(ops.matmul, found, c.const(spread, f32)))
    try:
        scale = column_weights(np.array(weights, np.float32), columns)
    except ValueError as error:
        c.refuse(str(error))
    if mode == "IDF":
        total = c.cast(m.gt(total, 0.0), f32)
    if mode != "TF" and weights:
        total = m.mul(total, c.const(scale, f32))
    return total if len(x.shape) == 2 else c.reshape(total, (n_columns,))


# --- ai.onnx.preview.training ---------------------------------------------------------------------------------------


def _groups(c: Call, n_states: int) -> list[list[Node]]:
    """For each optimised tensor its values, gradient and states, which lie in blocks behind rate and step."""
    rest = [c.x(i) for i in range(2, len(c.inputs))]
    n = len(rest) // (2 + n_states)
    if not n or len(rest) != n * (2 + n_states):
        c.refuse(f"{len(rest)} tensors are not values, gradients and {n_states} states of each")
    return [rest[k::n] for k in range(n)]


def _blocks(rows: Sequence[Sequence[Node]]) -> list[Node]:
    return [row[k] for k in range(len(rows[0])) for row in rows]


def _is_first(c: Call) -> Node:
    return Formula(c).eq(c.reshape(c.x(1), ()), 0)


def _adagrad(c: Call) -> Results:
    m = Formula(c)
    rate, step = c.x(0), c.x(1)
    decay, norm, epsilon = c.float_("decay_factor", 0.0), c.float_("norm_coefficient", 0.0), c.float_("epsilon", 0.0)
    rate = m.div(rate, m.add(m.mul(c.cast(step, rate.dtype), decay), 1.0))
    rows = []
    for x, gradient, squares in _groups(c, 1):
        g = m.add(m.mul(x, norm), gradient)
        squares = m.add(squares, m.mul(g, g))
        root = m.add(c(ops.sqrt, squares), epsilon)
        rows.append((m.sub(x, m.div(m.mul(g, c.cast(rate, x.dtype)), root)), squares))
    return _blocks(rows)


def _adam(c: Call) -> Results:
    m = Formula(c)
    alpha, beta, epsilon = c.float_("alpha", 0.9), c.float_("beta", 0.999), c.float_("epsilon", 0.0)
    norm, norm_after = c.float_("norm_coefficient", 0.0), c.float_("norm_coefficient_post", 0.0)
    step = c.cast(c.x(1), f64)
    scale = m.div(
        c(ops.sqrt, m.sub(1.0, c(ops.pow, m.node(beta, f64), step))), m.sub(1.0, c(ops.pow, m.node(alpha, f64), step))
    )
    scale = m.where(m.gt(step, 0.0), scale, 1.0)
    rows = []
    for x, gradient, mean, square in _groups(c, 2):
        rate = c.cast(m.mul(c.cast(c.x(0), f64), scale), x.dtype)
        g = m.add(m.mul(x, norm), gradient)
        mean = m.add(m.mul(mean, alpha), m.mul(g, 1 - alpha))
        square = m.add(m.mul(square, beta), m.mul(m.mul(g, g), 1 - beta))
        moved = m.sub(x, m.div(m.mul(mean, rate), m.add(c(ops.sqrt, square), epsilon)))
        rows.append((m.mul(moved, 1 - norm_after), mean, square))
    return _blocks(rows)


def _momentum(c: Call) -> Results:
    m = Formula(c)
    alpha, beta, norm = c.float_("alpha"), c.float_("beta"), c.float_("norm_coefficient")
    nesterov = c.choice("mode", ("standard", "nesterov")) == "nesterov"
    rows = []
    for x, gradient, velocity in _groups(c, 1):
        rate = c.cast(c.x(0), x.dtype)
        g = m.add(m.mul(x, norm), gradient)
        own = m.where(_is_first(c), 1.0, m.node(beta, x.dtype))
        velocity = m.add(m.mul(velocity, alpha), m.mul(g, own))
        step = m.add(g, m.mul(velocity, alpha)) if nesterov else velocity
        rows.append((m.sub(x, m.mul(step, rate)), velocity))
    return _blocks(rows)


TRAINING: Table = {"Adagrad": _adagrad, "Adam": _adam, "Momentum": _momentum}
TABLE: Table = {"TfIdfVectorizer": _tf_idf}
