"""Converters of ensembles of trees (``ai.onnx.ml``): TreeEnsemble, TreeEnsembleRegressor, TreeEnsembleClassifier.

In: a ``Call``. Out: nodes of the graph IR. f64 is computed in f64, f16 in f16, all else in f32.
Not its business: the walk through trees (``onnx.ml.forest``), what classifiers share (``onnx.ml.scores``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.core.types import Array, DType, bool_, f32, f64
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Table
from tilewright.frontend.onnx.ml.forest import (
    DAMAGED,
    LEAF,
    MEMBER,
    Tests,
    by_rows,
    forest_of,
    leaves_reached,
    tables_of,
)
from tilewright.frontend.onnx.ml.scores import either, label_at, labels, rows, transform, transformed, two_columns
from tilewright.frontend.onnx.ml.votes import Ballots, Votes

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")


# --- TreeEnsemble ---------------------------------------------------------------------------------------------------


def _tree_ensemble(c: Call) -> Node:
    x = rows(c, c.x(0).dtype)
    tests, votes = _inner_and_leaves(c)
    _check_features(c, tests, x)
    how = c.int_("aggregate_function", 1)
    if not 0 <= how < len(AGGREGATES):
        c.refuse(f"attribute aggregate_function={how} is not known")
    kind = c.int_("post_transform", 0)
    if not 0 <= kind < 5:
        c.refuse(f"attribute post_transform={kind} is not known")
    scores = _totals(c, tests, votes, x, c.int_("n_targets", 1), AGGREGATES[how]).scores
    name = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[kind]
    if scores.shape[1] == 1 and name in ("SOFTMAX", "LOGISTIC"):
        return c(ops.sigmoid, scores) if name == "LOGISTIC" else c(ops.softmax, scores, axis=1)
    return transformed(c, scores, name)


def _inner_and_leaves(c: Call) -> tuple[Tests, Votes]:
    """Inner nodes and behind them the leaves, as one numbering."""
    roots = np.array(c.ints("tree_roots"), np.int64)
    feature = np.array(c.ints("nodes_featureids"), np.int64)
    modes, splits, weights = (_tensor(c, name) for name in ("nodes_modes", "nodes_splits", "leaf_weights"))
    targets = np.array(c.ints("leaf_targetids"), np.int64)
    n, n_leaves = len(feature), len(weights)
    nan_holds = np.array(c.ints("nodes_missing_value_tracks_true", [0] * n), bool)
    c.ignore("nodes_hitrates")
    sides = []
    for side in ("true", "false"):
        ids, are_leaves = (np.array(c.ints(f"nodes_{side}{what}"), np.int64) for what in ("nodeids", "leafs"))
        if not len(ids) == len(are_leaves) == n:
            c.refuse("the attributes nodes_* differ in length", DAMAGED)
        if (ids < 0).any() or (ids >= np.where(are_leaves != 0, n_leaves, n)).any():
            c.refuse(f"attribute nodes_{side}nodeids leads to no node or leaf", DAMAGED)
        sides.append(ids + n * (are_leaves != 0))  # leaves are numbered behind all inner nodes
    if not len(modes) == len(splits) == len(nan_holds) == n:
        c.refuse("the attributes nodes_* differ in length", DAMAGED)
    if not len(roots) or roots.min() < 0 or roots.max() >= n:
        c.refuse("attribute tree_roots names no node", DAMAGED)
    if n and int(modes.max()) > MEMBER:
        c.refuse(f"attribute nodes_modes has {int(modes.max())}, which is no mode")
    if len(targets) != n_leaves:
        c.refuse(f"attribute leaf_targetids must name a target for each of {n_leaves} leaves", DAMAGED)
    inner = Tests(modes.astype(np.uint8), feature, splits, sides[0], sides[1], nan_holds, _members(c, modes), roots)
    votes = Votes(n + np.arange(n_leaves), targets, weights)
    return _with_leaves(inner, n_leaves), votes


def _with_leaves(inner: Tests, n_leaves: int) -> Tests:
    def longer(table: Array, fill: Any) -> Array:
        return np.concatenate([table, np.full((n_leaves, *table.shape[1:]), fill, table.dtype)])

    members = None if inner.members is None else longer(inner.members, np.nan)
    feature, split, on_true, on_false, nan_holds = (
        longer(table, 0) for table in (inner.feature, inner.split, inner.on_true, inner.on_false, inner.nan_holds)
    )
    return Tests(longer(inner.mode, LEAF), feature, split, on_true, on_false, nan_holds, members, inner.roots)


def _tensor(c: Call, name: str) -> Array:
    found = c.tensor(name)
    if found is None:
        c.refuse(f"attribute {name} is missing")
    return found.reshape(-1)


def _members(c: Call, modes: Array) -> Array | None:
    """For each node the numbers that its membership test accepts, padded with NaN, which equals nothing."""
    nodes = np.flatnonzero(modes == MEMBER)
    given = c.tensor("membership_values")
    sets: list[list[float]] = [[]]
    for v in [] if given is None else given.reshape(-1).tolist():
        if v != v:
            sets.append([])
        else:
            sets[-1].append(v)
    if not len(nodes):
        return None
    sets = sets[: len(nodes)]
    if len(sets) < len(nodes):
        c.refuse(f"attribute membership_values has {len(sets)} sets for {len(nodes)} nodes")
    table = np.full((len(modes), max(1, *map(len, sets))), np.nan)
    for node, accepted in zip(nodes, sets, strict=True):
        table[node, : len(accepted)] = accepted
    return table


# --- the older ops --------------------------------------------------------------------------------------------------


def _numbers(c: Call, name: str) -> Array:
    """A list of f32, or the tensor of f64 that opset 3 allows in its place."""
    exact = c.tensor(f"{name}_as_tensor") if c.has(f"{name}_as_tensor") else None
    return np.array(c.floats(name, []), np.float32) if exact is None else exact.reshape(-1)


def _named_nodes(c: Call, what: str) -> tuple[Tests, Votes]:
    """Nodes named by tree and number within it; a tree's root is the first of its nodes.

    ``what`` begins the names of the leaves' lists.
    """
    words = c.strs("nodes_modes")
    mode_of = {name: k for k, name in enumerate(_MODES) if name != "BRANCH_MEMBER"}  # the older ops know no membership
    if unknown := set(words) - mode_of.keys():
        c.refuse(f"attribute nodes_modes has {sorted(unknown)[0]!r}, which is no mode")
    mode = np.array([mode_of[w] for w in words], np.uint8)
    tree, number, feature, on_true, on_false = (
        np.array(c.ints(f"nodes_{name}"), np.int64)
        for name in ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    )
    split = _numbers(c, "nodes_values")
    c.ignore("nodes_hitrates", "nodes_hitrates_as_tensor")
    n = len(mode)
    nan_holds = np.array(c.ints("nodes_missing_value_tracks_true", []) or [0] * n, np.int64) == 1
    if not n or any(len(a) != n for a in (tree, number, feature, on_true, on_false, split, nan_holds)):
        c.refuse("the attributes nodes_* differ in length or hold no nodes", DAMAGED)
    find = _Finder(c, tree, number)
    inner = mode != LEAF
    sides = [np.zeros(n, np.int64) for _ in range(2)]
    for side, ids in zip(sides, (on_true, on_false), strict=True):
        side[inner] = find(tree[inner], ids[inner])  # of a leaf the lists may name anything
    # the first node of each tree, trees in the order of the file
    roots = np.sort(np.unique(tree, return_index=True)[1])
    leaf_tree, leaf_number, target = (np.array(c.ints(f"{what}_{k}"), np.int64) for k in ("treeids", "nodeids", "ids"))
    weight = _numbers(c, f"{what}_weights")
    if not len(leaf_tree) == len(leaf_number) == len(target) == len(weight):
        c.refuse(f"the attributes {what}_* differ in length", DAMAGED)
    votes = Votes(find(leaf_tree, leaf_number), target, weight)
    return Tests(mode, feature, split, sides[0], sides[1], nan_holds, None, roots), votes


class _Finder:
    """Finds nodes by the numbers of tree and node."""

    def __init__(self, c: Call, tree: Array, number: Array) -> None:
        self.c = c
        self.trees, self.numbers = np.unique(tree), np.unique(number)
        keys = self._keys(tree, number)
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        if (self.keys[1:] == self.keys[:-1]).any():
            c.refuse("attributes nodes_treeids and nodes_nodeids name one node twice", DAMAGED)

    def _keys(self, tree: Array, number: Array) -> Array:
        a = np.searchsorted(self.trees, tree).clip(max=len(self.trees) - 1)
        b = np.searchsorted(self.numbers, number).clip(max=len(self.numbers) - 1)
        known = (self.trees[a] == tree) & (self.numbers[b] == number)
        return np.where(known, a * len(self.numbers) + b, -1)

    def __call__(self, tree: Array, number: Array) -> Array:
        keys = self._keys(tree, number)
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        if (self.keys[at] != keys).any():
            self.c.refuse("an attribute names a node that is not there", DAMAGED)
        return np.take(self.order, at)


def _tree_ensemble_regressor(c: Call) -> Node:
    """A single target knows the transform PROBIT only, as in ONNX Runtime."""
    m = Formula(c)
    x = rows(c, _inner_dtype(c))
    tests, votes = _named_nodes(c, "target")
    _check_features(c, tests, x)
    n, base = c.int_("n_targets", 1), _numbers(c, "base_values")
    scores = _totals(c, tests, votes, x, n, c.choice("aggregate_function", AGGREGATES, "SUM")).scores
    if len(base) == n:
        scores = m.add(scores, c.const(base, x.dtype))
    return c.cast(transformed(c, scores, transform(c)), f32)


def _tree_ensemble_classifier(c: Call) -> tuple[Node | None, Node]:
    m = Formula(c)
    x = rows(c, _inner_dtype(c))
    classes = labels(c, "classlabels_int64s")
    tests, votes = _named_nodes(c, "class")
    _check_features(c, tests, x)
    base, kind = _numbers(c, "base_values"), transform(c)
    found = _totals(c, tests, votes, x, len(classes), "SUM")
    if len(classes) == 2:
        label, scores = _of_two(c, found, votes, base, kind, classes)
        return label, c.cast(scores, f32)
    scores, present = found.scores, found.present
    if len(base) == len(classes):
        scores, present = m.add(scores, c.const(base, x.dtype)), c.const(True, bool_)
    shown = c.cast(transformed(c, scores, kind), f32)
    if not c.wants(0):
        return None, shown
    if len(classes) == 1:
        return either(c, m.gt(m.row(scores, 0), 0.0), classes), shown
    best = c(ops.argmax, c(ops.where, present, scores, c.const(-np.inf, x.dtype)), axis=1, keepdims=False)
    return label_at(c, classes, best), shown


def _of_two(c: Call, found: Totals, votes: Votes, base: Array, kind: str, classes: Array) -> tuple[Node | None, Node]:
    """Labels and scores of two classes, as ONNX Runtime gives them; ONNX does not say.

    Where votes are for both classes, the label is 1 or 0, whatever the classes are called.
    A class that a row's leaves do not vote for has the score 0, whatever ``base`` says. A row without a vote for the
    second class has a lone score, the first column, which counts as the second's where ``base`` is not a pair. The
    label is told by that score alone, by 0.5 where all votes are for one class and none is negative, else by 0.
    """
    m = Formula(c)
    first, second = (c.slice_axis(found.scores, 1, k, k + 1) for k in range(2))
    has_first, has_second = (c.slice_axis(found.present, 1, k, k + 1) for k in range(2))
    is_lone = len(np.unique(votes.target)) == 1  # one score stands for both classes
    complement = is_lone and bool((votes.weight >= 0).all())
    if len(base) == 2:
        shifted = m.add(first, float(base[1]))
        first = m.where(has_second, c(ops.neg, shifted), m.add(first, float(base[0])))
        second = m.where(has_second, shifted, 0.0)
    elif len(base) == 1:
        first = m.add(first, float(base[0]))
    first = m.where(has_first, first, 0.0)
    shown = transformed(c, c(ops.concat, first, second, axis=1), kind)
    if len(base) != 2:
        shown = m.where(has_second, shown, two_columns(c, first, kind, complement))
    if not c.wants(0):
        return None, shown
    score = m.row(m.where(has_second, second, first), 0)
    return either(c, m.gt(score, 0.5 if complement else 0.0), classes if is_lone else classes[:0]), shown


# --- what the leaves add up to --------------------------------------------------------------------------------------

MAX_TARGETS = 1 << 20
MAX_DENSE = 1 << 30


class Totals(NamedTuple):
    """Scores, n_rows x n_targets, and which of them any leaf voted for, with 1 or n_rows rows."""

    scores: Node
    present: Node


def _check_features(c: Call, tests: Tests, x: Node) -> None:
    used = tests.feature[tests.mode != LEAF]
    n = x.shape[1]
    if len(used) and (used.min() < 0 or (is_known(n) and used.max() >= n)):
        c.refuse(f"tests features {used.min()} to {used.max()}, and its input has {n}")


def _totals(c: Call, tests: Tests, votes: Votes, x: Node, n: int, how: str) -> Totals:
    if not 0 < n <= MAX_TARGETS:
        c.refuse(f"has {n} targets or classes; 1 to {MAX_TARGETS} are possible")
    if len(votes.target) and not 0 <= votes.target.min() <= votes.target.max() < n:
        c.refuse(f"leaves vote for targets or classes beyond the model's {n}", DAMAGED)
    forest = forest_of(c, tests, x.dtype)
    is_leaf = forest.is_leaf
    leaf_of = np.cumsum(tests.mode == LEAF) - 1
    kept = tests.mode[votes.node] == LEAF
    votes = Votes(leaf_of[votes.node[kept]], votes.target[kept], votes.weight[kept].astype(x.dtype.numpy))
    leaf = leaf_of[forest.node] * is_leaf
    ballots = Ballots(votes, n, int((tests.mode == LEAF).sum()), leaf[is_leaf], forest.tree[is_leaf], forest.n_trees)
    if n > 1 and ballots.target_of_tree is None and ballots.n_leaves * n > MAX_DENSE:
        c.refuse(f"{ballots.n_leaves} leaves of {n} classes each are too many")

    tables, weights = tables_of(c, forest), _weights_of(c, ballots, leaf, how, x.dtype)

    def given(x: Node, axis: int) -> list[Node]:
        place = leaves_reached(c, tables, x, axis)
        scores = _scores(c, ballots, weights, place, how, axis)
        return [scores] if ballots.is_settled else [scores, _presence(c, weights, place, axis)]

    found = by_rows(c, x, given)
    return Totals(found[0], c.array(ballots.ever[None]) if ballots.is_settled else found[1])


class _Weights(NamedTuple):
    """Constants, each there once: a weight for each place where leaves have one, else ``rows`` of them by ``leaf``.

    ``goes_to`` takes weights of trees to their targets; ``voted`` is like ``rows``.
    """

    alone: Node | None
    goes_to: Node | None
    leaf: Node
    rows: Node | None
    voted: Node | None


_ABSENT = {"MIN": np.inf, "MAX": -np.inf}


def _weights_of(c: Call, ballots: Ballots, leaf: Array, how: str, dtype: DType) -> _Weights:
    absent, n, by_tree = _ABSENT.get(how, 0.0), ballots.n, ballots.target_of_tree
    voted = None if ballots.is_settled else c.array(ballots.voted())
    number = c.array(leaf.astype(np.int32))
    if n == 1:
        return _Weights(c.array(ballots.alone(absent, dtype)[leaf]), None, number, None, voted)
    if not absent and by_tree is not None and np.isfinite(ballots.votes.weight).all():
        goes_to = c.const(by_tree[:, None] == np.arange(n), dtype)
        return _Weights(c.array(ballots.alone(0.0, dtype)[leaf]), goes_to, number, None, voted)
    return _Weights(None, None, number, c.array(ballots.dense(absent, dtype)), voted)


def _scores(c: Call, ballots: Ballots, weights: _Weights, place: Node, how: str, axis: int) -> Node:
    m = Formula(c)
    absent = _ABSENT.get(how, 0.0)
    reduce = {"MIN": ops.reduce_min, "MAX": ops.reduce_max}.get(how, ops.reduce_sum)
    if weights.alone is not None:
        given = c(ops.gather, weights.alone, place, axis=0)
    else:
        assert weights.rows is not None
        given = c(ops.gather, weights.rows, c(ops.gather, weights.leaf, place, axis=0), axis=0)
    if weights.goes_to is not None and axis:
        found = c(ops.matmul, given, weights.goes_to)
    elif weights.goes_to is not None:  # the few totals are transposed, and not the weights of all trees
        found = c.transpose(c(ops.matmul, c.transpose(weights.goes_to, (1, 0)), given), (1, 0))
    else:
        found = c(reduce, given, axes=(axis,), keepdims=False)
        found = c.reshape(found, (place.shape[1 - axis], ballots.n))
    if absent:
        return m.where(m.eq(found, absent), 0.0, found)
    return m.div(found, ballots.n_trees) if how == "AVERAGE" else found


def _presence(c: Call, weights: _Weights, place: Node, axis: int) -> Node:
    assert weights.voted is not None
    voted = c(ops.gather, weights.voted, c(ops.gather, weights.leaf, place, axis=0), axis=0)
    return c(ops.reduce_any, voted, axes=(axis,), keepdims=False)


def _inner_dtype(c: Call) -> DType:
    return f64 if c.x(0).dtype is f64 else f32


TABLE: Table = {
    "TreeEnsemble": _tree_ensemble,
    "TreeEnsembleClassifier": _tree_ensemble_classifier,
    "TreeEnsembleRegressor": _tree_ensemble_regressor,
}
