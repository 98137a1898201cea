"""Converters of classical machine learning (``ai.onnx.ml``) as tensor arithmetic: trees, look-ups, thresholds.

In: a ``Call``. Out: nodes of the graph IR. Not its business: strings and maps, which tensors do not hold.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array, DType, i64, product
from tilewright.frontend.onnx_arithmetic import Formula
from tilewright.frontend.onnx_call import Call, Table
from tilewright.frontend.onnx_file import STRINGS_REMEDY, STRINGS_RULE

MAX_TREE_DEPTH = 4096


def _array_feature_extractor(c: Call) -> Node:
    x, places = c.x(0), c.x(1)
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
    if c.has(f"{what}_strings"):
        c.refuse(f"attribute {what}_strings {STRINGS_RULE}", STRINGS_REMEDY)
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


# --- TreeEnsemble ---------------------------------------------------------------------------------------------------

_COMPARE: dict[int, OpDef] = {0: ops.le, 1: ops.lt, 2: ops.ge, 3: ops.gt, 4: ops.eq, 5: ops.ne}
_MEMBER = 6
_SUM, _AVERAGE, _MIN, _MAX = 1, 0, 2, 3


class _Trees(NamedTuple):
    """Inner nodes and behind them the leaves, which lead to themselves; ``after`` has the place after each test."""

    n_inner: int
    after: tuple[Array, Array]
    depth: int


def _tree_ensemble(c: Call) -> Node:
    """All trees at once, a level in each step: every row of ``x`` stands at one node of every tree."""
    m = Formula(c)
    x = c.x(0)
    roots = np.array(c.ints("tree_roots"), np.int64)
    trees = _read_trees(c, roots)
    n = trees.n_inner
    features = np.array(c.ints("nodes_featureids"), np.int64)
    modes, splits = (_tensor(c, f"nodes_{name}") for name in ("modes", "splits"))
    by_nan = np.array(c.ints("nodes_missing_value_tracks_true", [0] * n), bool)
    c.ignore("nodes_hitrates")
    if not len(features) == len(modes) == len(splits) == len(by_nan) == n:
        c.refuse("the attributes nodes_* differ in length", "the model is damaged; export it again")
    if len(features) and not 0 <= features.min() <= features.max():
        c.refuse("attribute nodes_featureids must not be negative")
    members = _members(c, modes)
    leaves = len(trees.after[0]) - n

    def at(table: Array, place: Node) -> Node:
        return c(ops.gather, c.array(np.concatenate([table, np.zeros((leaves, *table.shape[1:]), table.dtype)])), place,
                 axis=0)  # fmt: skip

    place = c.expand(c.const(roots, i64), (x.shape[0], len(roots)))
    for _ in range(trees.depth):
        feature = c(ops.gather_elements, x, at(features, place), axis=1)
        mode = at(modes.astype(np.int64), place)
        holds: Node | None = None
        for kind in sorted(set(modes.tolist())):
            if kind == _MEMBER:
                wide = c.reshape(feature, (*feature.shape, 1))
                hits = c.cast(m.eq(wide, at(members.astype(x.dtype.numpy), place)), i64)
                test = m.gt(c(ops.reduce_max, hits, axes=(2,), keepdims=False), 0)
            elif kind in _COMPARE:
                test = c(_COMPARE[kind], feature, at(splits.astype(x.dtype.numpy), place))
            else:
                c.refuse(f"attribute nodes_modes has {kind}, which is no mode")
            holds = test if holds is None else c(ops.where, m.eq(mode, int(kind)), test, holds)
        assert holds is not None
        if by_nan.any():
            holds = c(ops.logical_or, holds, m.both(m.ne(feature, feature), at(by_nan, place)))
        place = m.where(holds, *(c(ops.gather, c.array(table), place, axis=0) for table in trees.after))
    return _transformed(c, _aggregated(c, m.sub(place, n), x.dtype, len(roots)))


def _tensor(c: Call, name: str) -> Array:
    found = c.tensor(name)
    if found is None:
        c.refuse(f"attribute {name} is missing")
    return found.reshape(-1)


def _read_trees(c: Call, roots: Array) -> _Trees:
    """Where each test leads, checked: numbers in range, no cycles."""
    sides = []
    for side in ("false", "true"):
        ids, are_leaves = (np.array(c.ints(f"nodes_{side}{what}"), np.int64) for what in ("nodeids", "leafs"))
        if len(ids) != len(are_leaves):
            c.refuse(f"attributes nodes_{side}nodeids and nodes_{side}leafs differ in length")
        sides.append((ids, are_leaves != 0))
    n, n_leaves = len(sides[0][0]), len(_tensor(c, "leaf_weights"))
    if len(sides[1][0]) != n or not n or not len(roots):
        c.refuse("attributes nodes_truenodeids, nodes_falsenodeids and tree_roots must hold nodes")
    for ids, are_leaves in sides:
        if (ids < 0).any() or (ids >= np.where(are_leaves, n_leaves, n)).any():
            c.refuse("attribute nodes_truenodeids or nodes_falsenodeids leads to no node or leaf")
    if roots.min() < 0 or roots.max() >= n:
        c.refuse("attribute tree_roots names no node")
    loops = n + np.arange(n_leaves)
    on_false, on_true = (np.concatenate([ids + n * are_leaves, loops]) for ids, are_leaves in sides)
    level, depth = np.unique(roots), 0
    while (level < n).any():
        inner = level[level < n]
        level, depth = np.unique(np.concatenate([on_false[inner], on_true[inner]])), depth + 1
        if depth > min(n, MAX_TREE_DEPTH):
            c.refuse("attributes nodes_truenodeids and nodes_falsenodeids form a cycle or a tree of a depth beyond "
                     f"{MAX_TREE_DEPTH}")  # fmt: skip
    return _Trees(n, (on_true, on_false), depth)


def _members(c: Call, modes: Array) -> Array:
    """For each node the numbers that its membership test accepts, padded with NaN, which equals nothing."""
    nodes = np.flatnonzero(modes == _MEMBER)
    given = c.tensor("membership_values")
    sets: list[list[float]] = [[]]
    for v in [] if given is None else given.reshape(-1).tolist():
        if v != v:
            sets.append([])
        else:
            sets[-1].append(v)
    sets = sets[: len(nodes)]
    if len(sets) < len(nodes):
        c.refuse(f"attribute membership_values has {len(sets)} sets for {len(nodes)} nodes")
    table = np.full((len(modes), max([1, *map(len, sets)])), np.nan)
    for node, accepted in zip(nodes, sets, strict=True):
        table[node, : len(accepted)] = accepted
    return table


def _aggregated(c: Call, leaf: Node, dtype: DType, n_trees: int) -> Node:
    """Each row's leaves, one of every tree, put together by target."""
    m = Formula(c)
    n_targets, how = c.int_("n_targets", 1), c.int_("aggregate_function", _SUM)
    targets, weights = np.array(c.ints("leaf_targetids"), np.int64), _tensor(c, "leaf_weights")
    if len(targets) != len(weights) or not 0 <= targets.min() <= targets.max() < n_targets:
        c.refuse(f"attribute leaf_targetids must name one of {n_targets} targets for each of {len(weights)} leaves")
    weight = c.cast(c(ops.gather, c.array(weights), leaf, axis=0), dtype)
    target = c(ops.gather, c.array(targets), leaf, axis=0)
    rows = c.reshape(weight, (*weight.shape, 1))
    mine = m.eq(c.reshape(target, (*target.shape, 1)), m.steps(n_targets))
    if how in (_SUM, _AVERAGE):
        total = c(ops.reduce_sum, m.where(mine, rows, 0.0), axes=(1,), keepdims=False)
        return m.div(total, n_trees) if how == _AVERAGE else total
    if how not in (_MIN, _MAX):
        c.refuse(f"attribute aggregate_function={how} is not known")
    op, worst = (ops.reduce_min, np.inf) if how == _MIN else (ops.reduce_max, -np.inf)
    best = c(op, m.where(mine, rows, worst), axes=(1,), keepdims=False)
    return m.where(m.eq(best, worst), 0.0, best)


def _transformed(c: Call, scores: Node) -> Node:
    match c.int_("post_transform", 0):
        case 0:
            return scores
        case 1:
            return c(ops.softmax, scores, axis=1)
        case 2:
            return c(ops.sigmoid, scores)
        case other:
            c.refuse(
                f"attribute post_transform={other} is not supported", "supported: 0 (none), 1 (softmax), 2 (logistic)"
            )


TABLE: Table = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "Binarizer": _binarizer,
    "LabelEncoder": _label_encoder,
    "TreeEnsemble": _tree_ensemble,
}
