"""Converters of linear models and support-vector machines (``ai.onnx.ml``) as tensor arithmetic.

In: a ``Call``. Out: nodes of the graph IR. Inputs of all dtypes are computed in f32, the dtype of the attributes.
Not its business: what classifiers share (``onnx.ml.scores``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Graph, Node
from tilewright.core.types import Array, TensorType, bool_, f32, i64
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Table
from tilewright.frontend.onnx.ml.scores import (
    best,
    either,
    label_at,
    labels,
    product,
    rows,
    table,
    transform,
    transformed,
    two_columns,
)

# --- linear models --------------------------------------------------------------------------------------------------


def _linear_regressor(c: Call) -> Node:
    m = Formula(c)
    x, n, intercepts = rows(c), c.int_("targets", 1), c.floats("intercepts", [])
    scores = product(c, x, table(c, "coefficients", n, x, "targets"))
    if len(intercepts) == n:
        scores = m.add(scores, c.const(intercepts, f32))
    return transformed(c, scores, transform(c))


def _linear_classifier(c: Call) -> tuple[Node | None, Node]:
    m = Formula(c)
    x, classes, intercepts = rows(c), labels(c, "classlabels_ints"), c.floats("intercepts", [])
    c.ignore("multi_class")
    n = len(intercepts) or max(len(classes), 1)
    if n > 1 and len(classes) < n:
        c.refuse(f"names {len(classes)} classes for {n} scores", "the model is damaged; export it again")
    scores = product(c, x, table(c, "coefficients", n, x, "classes"))
    if intercepts:
        scores = m.add(scores, c.const(intercepts, f32))
    kind = transform(c)
    if n > 1:
        label = label_at(c, classes, best(c, scores)) if c.wants(0) else None
        return label, transformed(c, scores, kind)
    label = either(c, m.gt(m.row(scores, 0), 0.0), classes) if c.wants(0) else None
    if len(classes) == 2:
        return label, two_columns(c, scores, kind, complement=True)
    return label, transformed(c, scores, kind)


# --- support-vector machines ----------------------------------------------------------------------------------------

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


def _similarity(c: Call, x: Node, vectors: Array) -> Node:
    """The kernel's value for each row of ``x`` and each support vector."""
    m = Formula(c)
    kind, given = c.choice("kernel_type", _KERNELS, "LINEAR"), c.floats("kernel_params", [])
    if given and len(given) < 3:
        c.refuse("attribute kernel_params must hold gamma, coef0 and degree")
    gamma, offset, degree = given[:3] or (0.0, 0.0, 0.0)
    if kind == "RBF":
        apart = m.sub(c.reshape(x, (x.shape[0], 1, x.shape[1])), c.const(vectors, f32))
        distance = c(ops.reduce_sum, m.mul(apart, apart), axes=(2,), keepdims=False)
        return c(ops.exp, m.mul(distance, -gamma))
    dot = product(c, x, vectors)
    if kind == "LINEAR":
        return dot
    dot = m.add(m.mul(dot, gamma), offset)
    if kind == "SIGMOID":
        return c(ops.tanh, dot)
    if degree in (1, 2, 3):
        square = m.mul(dot, dot) if degree > 1 else dot
        return m.mul(square, dot) if degree == 3 else square
    return c(ops.pow, dot, c.const(degree, f32))


def _first_of_rho(c: Call) -> float:
    rho = c.floats("rho", [])
    if not rho:
        c.refuse("attribute rho is missing or empty", "the model is damaged; export it again")
    return rho[0]


def _svm_regressor(c: Call) -> Node:
    m = Formula(c)
    x, n = rows(c), c.int_("n_supports", 0)
    c.ignore("post_transform")  # as ONNX Runtime does
    if n > 0:
        similar = _similarity(c, x, table(c, "support_vectors", n, x, "support vectors"))
        weights = np.array(c.floats("coefficients"), np.float32)
        if len(weights) != n:
            c.refuse(f"attribute coefficients has {len(weights)} numbers for {n} support vectors")
        score = product(c, similar, weights[None])
    else:
        c.ignore("kernel_type", "kernel_params", "support_vectors")
        score = product(c, x, table(c, "coefficients", 1, x, "target"))
    score = m.add(score, _first_of_rho(c))
    if c.flag("one_class"):
        return m.where(m.gt(score, 0.0), c.const(1.0, f32), -1.0)
    return score


class _Duels(NamedTuple):
    """One column for each pair of classes: the first and the second class of each."""

    first: Array
    second: Array


def _svm_classifier(c: Call) -> tuple[Node | None, Node]:
    x, classes = rows(c), labels(c, "classlabels_ints")
    per_class = np.array(c.ints("vectors_per_class", []), np.int64)
    if not len(classes):
        c.refuse("must have classlabels_ints or classlabels_strings")
    if per_class.sum() == 0:
        return _linear_machine(c, x, classes)
    n = len(classes)
    if n < 2 or len(per_class) != n or per_class.min() < 0:
        c.refuse(f"attribute vectors_per_class must have a count for each of {n} classes, two or more")
    return _by_duels(c, x, classes, per_class)


def _linear_machine(c: Call, x: Node, classes: Array) -> tuple[Node | None, Node]:
    m = Formula(c)
    n = len(classes)
    c.ignore("kernel_type", "kernel_params", "support_vectors", "prob_b")
    weights = table(c, "coefficients", n, x, "classes")
    scores = m.add(product(c, x, weights), _first_of_rho(c))
    label = best(c, scores)
    if n == 2 and not c.floats("prob_a", []):
        top = c(ops.reduce_max, scores, axes=(1,), keepdims=False)
        sure = m.ge(top, 0.5) if (weights >= 0).all() else m.gt(top, 0.0)
        label = m.where(sure, c.const(1, i64), label)
    return label_at(c, classes, label) if c.wants(0) else None, transformed(c, scores, transform(c))


def _by_duels(c: Call, x: Node, classes: Array, per_class: Array) -> tuple[Node | None, Node]:
    """Each two classes have a score, whose sign votes for one of them; the first with most votes is the label."""
    m = Formula(c)
    n, n_vectors = len(classes), int(per_class.sum())
    duels = _Duels(*np.triu_indices(n, 1))
    vectors = table(c, "support_vectors", n_vectors, x, "support vectors")
    coefficients = np.array(c.floats("coefficients"), np.float32)
    if coefficients.size != (n - 1) * n_vectors:
        c.refuse(f"attribute coefficients has {coefficients.size} numbers for {n} classes of {n_vectors} vectors")
    weights = _duel_weights(coefficients.reshape(n - 1, n_vectors), duels, per_class)
    rho, slope, offset = (np.array(c.floats(name, []), np.float32) for name in ("rho", "prob_a", "prob_b"))
    n_duels = len(duels.first)
    if len(rho) != n_duels or len(slope) != len(offset) or len(slope) not in (0, n_duels):
        c.refuse(f"attributes rho, prob_a and prob_b must have a number for each of {n_duels} pairs of classes")
    # ONNX has rho with the sign turned: it is added
    scores = m.add(product(c, _similarity(c, x, vectors), weights), c.const(rho, f32))
    kind = transform(c)
    label = None
    if c.wants(0):
        wins = np.zeros((2, n, n_duels), np.float32)
        wins[0, duels.first, np.arange(n_duels)] = wins[1, duels.second, np.arange(n_duels)] = 1
        won = c.cast(m.gt(scores, 0.0), f32)
        # each pair votes for one of its two: a product counts those won, another those lost
        votes = m.add(product(c, won, wins[0]), product(c, m.sub(1.0, won), wins[1]))
        label = label_at(c, classes, best(c, votes))
    if len(slope):
        # Platt 1999: 1 / (1 + exp(a * score + b))
        sure = m.add(m.mul(scores, c.const(slope, f32)), c.const(offset, f32))
        return label, transformed(c, _coupled(c, c(ops.sigmoid, c(ops.neg, sure)), duels, n), kind)
    if n == 2:
        return label, two_columns(c, scores, kind, complement=kind != "NONE")
    return label, transformed(c, scores, kind)


def _duel_weights(coefficients: Array, duels: _Duels, per_class: Array) -> Array:
    """For each pair a row over all support vectors: those of either class count, by that class's row for the other."""
    owner = np.repeat(np.arange(len(per_class)), per_class)
    weights = np.zeros((len(duels.first), len(owner)), np.float32)
    for k, (i, j) in enumerate(zip(*duels, strict=True)):
        weights[k] = np.where(owner == i, coefficients[j - 1], np.where(owner == j, coefficients[i], 0))
    return weights


# --- probabilities of more than two classes -------------------------------------------------------------------------

_MOST_SWEEPS = 100
_TOLERANCE = 0.005
_SMALLEST = 1e-7


def _coupled(c: Call, wins: Node, duels: _Duels, n: int) -> Node:
    """Each class's probability from those of the pairs, n_rows x n_pairs (Wu, Lin and Weng 2004, algorithm 2).

    Sweeps go on for the rows that have not converged, so each row has the value that it would have alone.
    """
    m = Formula(c)
    wins = m.clip(wins, _SMALLEST, 1 - _SMALLEST)
    n_rows, n_duels = wins.shape[0], len(duels.first)
    places = np.full((n, n), 2 * n_duels)
    places[duels.first, duels.second] = np.arange(n_duels)
    places[duels.second, duels.first] = n_duels + np.arange(n_duels)
    sides = c(ops.concat, wins, m.sub(1.0, wins), c.full(0.0, f32, (n_rows, 1)), axis=1)
    r = c.reshape(c(ops.gather, sides, c.array(places.reshape(-1)), axis=1), (n_rows, n, n))
    against = c.transpose(r, (0, 2, 1))  # [i, j]: how probably class j beats class i
    diagonal = c(ops.reduce_sum, m.mul(against, against), axes=(2,), keepdims=True)
    q = m.where(c.array(np.eye(n, dtype=bool)), diagonal, c(ops.neg, m.mul(r, against)))
    start = c.full(1 / n, f32, (n_rows, n))
    body = _sweep(c, start, n)
    limit, going = c.const(_MOST_SWEEPS, i64), c.const(True, bool_)
    found = c.emitter.pool.add(ops.loop, (limit, going, start, q), {"body": body, "n_carried": 1}, c.loc)
    return c.results(found)[0]


def _sweep(c: Call, start: Node, n: int) -> Graph:
    """One sweep over all classes, as the body of a loop over the probabilities with the matrices beside them."""
    m, pool = Formula(c), c.emitter.pool
    rows = _formal_rows(c, start)
    step, going = pool.input("sweep", TensorType(i64, ())), pool.input("going", TensorType(bool_, ()))
    p, inner_q = pool.input("p", TensorType(f32, (rows, n))), pool.input("q", TensorType(f32, (rows, n, n)))
    q_p = c(ops.reduce_sum, m.mul(inner_q, c.reshape(p, (rows, 1, n))), axes=(2,), keepdims=False)
    p_q_p = c(ops.reduce_sum, m.mul(p, q_p), axes=(1,), keepdims=True)
    error = c(ops.reduce_max, c(ops.abs, m.sub(q_p, p_q_p)), axes=(1,), keepdims=True)
    moves = m.ge(error, _TOLERANCE / n)
    limit, on = c.dim_value(n), c.const(True, bool_)
    body = _step(c, p, n)
    found = pool.add(ops.loop, (limit, on, p, q_p, p_q_p, inner_q), {"body": body, "n_carried": 3}, c.loc)
    after = c(ops.where, moves, c.results(found)[0], p)
    again = c(ops.reduce_any, moves, axes=(0, 1), keepdims=False)
    return Graph("sweep", pool, (step, going, p, inner_q), (again, after), ("again", "new_p"))


def _step(c: Call, p: Node, n: int) -> Graph:
    """One class's probability moved to where its equation holds, and all of them scaled to add up to 1."""
    m, pool = Formula(c), c.emitter.pool
    rows = _formal_rows(c, p)
    i, going = pool.input("i", TensorType(i64, ())), pool.input("going", TensorType(bool_, ()))
    p, q_p, p_q_p, q = (
        pool.input(name, TensorType(f32, (rows, *shape)))
        for name, shape in (("p", (n,)), ("q_p", (n,)), ("p_q_p", (1,)), ("q", (n, n)))
    )
    row = c(ops.gather, q, i, axis=1)
    pivot, value = (c.reshape(c(ops.gather, x, i, axis=1), (rows, 1)) for x in (row, q_p))
    shift = m.div(m.sub(p_q_p, value), pivot)
    scale = m.add(shift, 1.0)
    new_p = m.div(m.where(m.eq(m.steps(n), i), m.add(p, shift), p), scale)
    new_q_p = m.div(m.add(q_p, m.mul(shift, row)), scale)
    grown = m.add(p_q_p, m.mul(shift, m.add(m.mul(shift, pivot), m.mul(value, 2.0))))
    new_p_q_p = m.div(m.div(grown, scale), scale)
    names = ("again", "new_p", "new_q_p", "new_p_q_p")
    return Graph("step", pool, (i, going, p, q_p, p_q_p, q), (going, new_p, new_q_p, new_p_q_p), names)


def _formal_rows(c: Call, x: Node) -> Dim:
    """The number of rows inside of a loop, where only symbols of the loop's own inputs are known."""
    return x.shape[0] if is_known(x.shape[0]) else Sym(c.emitter.fresh("rows"), 0)


TABLE: Table = {
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _svm_regressor,
}
