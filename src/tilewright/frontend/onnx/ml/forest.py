"""Trees as tables, and the walk through all of them at once.

In: nodes with tests, children and roots, in any order. Out: ``Forest``, whose tables are laid out level by level, and
nodes of the graph IR that lead every row to its leaf in every tree. Not its business: attributes, what leaves hold
(``onnx.ml.trees``).

Form. The two children of a test lie side by side, so a step is ``child[place] + holds``: a row's place in a tree needs
two look-ups (child and feature in one number where they have room in it, and the split) and one of the row itself; with
many rows the first levels go without (``WHOLE_LEVELS``). A leaf is its own child and its test never holds (its split is
NaN), so trees of several depths are walked in as many steps as the deepest needs. Trees are laid out by their depth,
and with many rows none is walked together with much deeper ones: trees that grow leaf by leaf differ by a factor of
three. All orders of comparison become ``<=`` by turning the test around or taking the next smaller split; only tests of
equality and membership keep a form of their own. With many rows trees come before rows in the tables of places, so that
one tree's tables serve all rows before the next tree's and lanes hold rows; with few rows lanes hold trees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known, numbers
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Graph, Node
from tilewright.core.types import Array, DType, i32
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call

MAX_DEPTH = 4096
DAMAGED = "the model is damaged; export it again"
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER, LEAF = range(8)


class Tests(NamedTuple):
    """Nodes in any order: of a leaf only ``mode`` and its number count.

    ``on_true`` and ``on_false`` are numbers of nodes; ``nan_holds`` says where NaN passes the test; ``members``
    has a row for each node, padded with NaN, where any node tests membership.
    """

    mode: Array
    feature: Array
    split: Array
    on_true: Array
    on_false: Array
    nan_holds: Array
    members: Array | None
    roots: Array


class Forest(NamedTuple):
    """Tables over places. ``node`` is the number of the node at a place, ``tree`` the number of its tree.

    ``kind`` is LEQ, EQ or MEMBER; the roots are the first places.
    """

    feature: Array
    split: Array
    child: Array
    kind: Array
    nan_holds: Array
    members: Array | None
    node: Array
    tree: Array
    n_trees: int
    depths: Array
    """Of trees, the least first."""

    @property
    def is_leaf(self) -> Array:
        return np.equal(self.child, np.arange(len(self.child)))


def forest_of(c: Call, tests: Tests, dtype: DType) -> Forest:
    """The tables, splits in ``dtype``, trees by their depth; refuses cycles and trees beyond ``MAX_DEPTH``."""
    n = len(tests.mode)
    split, turned, nan_holds = _as_leq(tests, dtype)
    low, high = (np.where(turned, a, b) for a, b in ((tests.on_true, tests.on_false), (tests.on_false, tests.on_true)))
    level, trees, depths = tests.roots, np.arange(len(tests.roots)), np.zeros(len(tests.roots), np.int64)
    nodes, owners, children, total, depth = [level], [trees], [], len(level), 0
    while True:
        inner = tests.mode[level] != LEAF
        here = total - len(level) + np.arange(len(level))
        # the next level begins at `total`, the two children side by side
        children.append(np.where(inner, total + 2 * (np.cumsum(inner) - 1), here))
        if not inner.any():
            break
        parents = level[inner]
        level = np.stack([low[parents], high[parents]], 1).reshape(-1)
        trees = np.repeat(trees[inner], 2)
        total, depth = total + len(level), depth + 1
        depths[trees] = depth
        # a node is laid out for each of its parents, so nodes with several may double from level to level
        if depth > MAX_DEPTH or total > 8 * n + 1024:
            c.refuse(f"its nodes form cycles or trees of a depth beyond {MAX_DEPTH}", DAMAGED)
        nodes.append(level)
        owners.append(trees)
    if (np.diff(depths) < 0).any():
        return forest_of(c, tests._replace(roots=tests.roots[np.argsort(depths, kind="stable")]), dtype)
    node, child = np.concatenate(nodes), np.concatenate(children)
    is_leaf = tests.mode[node] == LEAF
    kind = np.where(np.isin(tests.mode, (EQ, NEQ)), EQ, np.where(tests.mode == MEMBER, MEMBER, LEQ))
    return Forest(
        np.where(is_leaf, 0, tests.feature[node]).astype(np.int32),
        np.where(is_leaf, np.nan, split[node]).astype(dtype.numpy),
        child.astype(np.int32),
        np.where(is_leaf, LEQ, kind[node]).astype(np.uint8),
        ~is_leaf & nan_holds[node],  # NaN must not lead on from a leaf
        None if tests.members is None else np.where(is_leaf[:, None], np.nan, tests.members[node]).astype(dtype.numpy),
        node,
        np.concatenate(owners),
        len(tests.roots),
        depths,
    )


def _as_leq(tests: Tests, dtype: DType) -> tuple[Array, Array, Array]:
    """Splits for ``<=``, which tests are turned around, and where NaN passes what they are then."""
    split = tests.split.astype(dtype.numpy)
    below = _next(split, -np.inf)
    below = np.where(split == -np.inf, np.array(np.nan, split.dtype), below)  # nothing is smaller
    split = np.where(np.isin(tests.mode, (LT, GTE)), below, split)
    turned = np.isin(tests.mode, (GT, GTE, NEQ))
    passes = tests.nan_holds | (tests.mode == NEQ)
    return split, turned, passes ^ turned


def _next(x: Array, end: float) -> Array:
    """The next numbers towards an infinity, which is that of the last ones: no overflow to warn of."""
    with np.errstate(over="ignore"):
        return np.asarray(np.nextafter(x, np.array(end, x.dtype)))


WORD_BITS = 31
"""Of an i32 that is not negative."""


class Tables(NamedTuple):
    """A forest's tables as constants, each there once; those that no test needs are None.

    ``word`` is ``child``, a bit of ``nan_holds`` and ``feature`` in one number, from the highest bits to the lowest,
    where they have room: then one look-up takes the place of three. ``feature_bits`` is the number of the lowest ones.
    """

    word: Node | None
    feature_bits: int
    feature: Node | None
    split: Node
    child: Node | None
    kind: Node | None
    nan_holds: Node | None
    members: Node | None
    forest: Forest
    has_nan_tests: bool


def tables_of(c: Call, forest: Forest) -> Tables:
    kind = c.array(forest.kind) if forest.kind.any() else None
    members = None if forest.members is None else c.array(forest.members)
    split, has_nan_tests = c.array(forest.split), bool(forest.nan_holds.any())
    bits = int(forest.feature.max()).bit_length()
    if len(forest.child) << 1 + bits <= 1 << WORD_BITS:
        word = (forest.child << 1 | forest.nan_holds) << bits | forest.feature
        return Tables(c.array(word), bits, None, split, None, kind, None, members, forest, has_nan_tests)
    nan_holds = c.array(forest.nan_holds) if has_nan_tests else None
    feature, child = c.array(forest.feature), c.array(forest.child)
    return Tables(None, 0, feature, split, child, kind, nan_holds, members, forest, has_nan_tests)


SLACK = 4 / 3
"""How many times as deep as it is a tree is walked at most, where there are many rows."""


def leaves_reached(c: Call, tables: Tables, x: Node, axis: int) -> Node:
    """The place of the leaf that each row of ``x`` reaches in each tree, i32; trees lie along ``axis``, 0 or 1."""
    features = x if axis else c.transpose(x, (1, 0))
    n_trees, depths = tables.forest.n_trees, tables.forest.depths
    if axis:
        return _walked(c, tables, features, (0, n_trees), axis)
    # each tree with those that are not much deeper
    parts, start = [], 0
    while start < n_trees:
        end = int(np.searchsorted(depths, depths[start] * SLACK, "right"))
        parts.append(_walked(c, tables, features, (start, end), axis))
        start = end
    return parts[0] if len(parts) == 1 else c(ops.concat, *parts, axis=0)


WHOLE_LEVELS = 3
"""Levels of a tree whose tests are all made, where lanes hold rows. These read neighbours, and a look-up by lanes takes
as long as several of them; the number doubles from level to level."""


def _walked(c: Call, tables: Tables, features: Node, trees: tuple[int, int], axis: int) -> Node:
    start, end = trees
    roots, n_steps = np.arange(start, end, dtype=np.int32), int(tables.forest.depths[end - 1])
    if axis == 0 and n_steps and tables.kind is None and is_known(features.shape[0]):
        n_levels = min(n_steps, WHOLE_LEVELS)
        place, n_steps = _below_all_tests(c, tables.forest, features, roots, n_levels), n_steps - n_levels
    else:
        shape: list[Dim] = [features.shape[1 - axis]] * 2
        shape[axis] = end - start
        place = c.expand(c.align(c.const(roots, i32), axis, 2), shape)
    for _ in range(n_steps):
        place = _step(c, tables, features, place, axis)
    return place


def _below_all_tests(c: Call, forest: Forest, features: Node, roots: Array, n_levels: int) -> Node:
    """The places of rows below the first levels of their trees: all tests there are made, one way down is taken.

    A test that NaN passes is turned around, so that NaN passes none: ``x > s`` is ``-x <= -(next number above s)``.
    Beyond the greatest number there is none, and no number is ``<=`` a split that is NaN: all are above it.
    """
    (n_features,), dtype, turned = numbers(features.shape[:1]), forest.split.dtype, forest.nan_holds
    feature, split = forest.feature, forest.split
    if turned.any():
        above = _next(split, np.inf)
        above = np.select(
            [split == np.inf, np.isnan(split)], [np.array(np.nan, dtype), np.array(-np.inf, dtype)], above
        )
        feature, split = feature + turned.astype(np.int32) * n_features, np.where(turned, -above, split)
        features = c(ops.concat, features, c(ops.neg, features), axis=0)
    passed = forest.child + ~forest.is_leaf
    high, low = (np.where(turned, *pair).astype(np.int32) for pair in ((forest.child, passed), (passed, forest.child)))
    m = Formula(c)

    def column(numbers: Array) -> Node:
        return c.array(numbers[:, None])

    def below(at: Array, level: int) -> Node:
        holds = m.le(c(ops.gather, features, c.array(feature[at]), axis=0), column(split[at]))
        ways = (way[at] for way in (high, low))
        return c(ops.where, holds, *(below(w, level + 1) if level < n_levels else column(w) for w in ways))

    return below(roots, 1)


def _step(c: Call, tables: Tables, features: Node, place: Node, axis: int) -> Node:
    m = Formula(c)

    def at(table: Node) -> Node:
        return c(ops.gather, table, place, axis=0)

    def number(k: int) -> Node:
        return c.const(k, i32)

    split = at(tables.split)
    if tables.word is not None:
        word, bits = at(tables.word), tables.feature_bits
        feature = c(ops.bitwise_and, word, number((1 << bits) - 1))
        child = c(ops.shift_right, word, number(bits + 1))
        nan_holds = m.ne(c(ops.bitwise_and, word, number(1 << bits)), 0) if tables.has_nan_tests else None
    else:
        assert tables.feature is not None and tables.child is not None
        feature, child = at(tables.feature), at(tables.child)
        nan_holds = at(tables.nan_holds) if tables.nan_holds is not None else None
    value = c(ops.gather_elements, features, feature, axis=axis)
    holds = m.le(value, split)
    if tables.kind is not None:
        kind = at(tables.kind)
        holds = c(ops.where, m.eq(kind, EQ), m.eq(value, split), holds)
        if tables.members is not None:
            hits = m.eq(c.reshape(value, (*value.shape, 1)), at(tables.members))
            found = c(ops.reduce_any, hits, axes=(2,), keepdims=False)
            holds = c(ops.where, m.eq(kind, MEMBER), found, holds)
    if nan_holds is not None:
        holds = c(ops.logical_or, holds, m.both(m.ne(value, value), nan_holds))
    return m.add(child, c.cast(holds, i32))


FEW_ROWS = 4


def by_rows(c: Call, x: Node, given: Callable[[Node, int], list[Node]]) -> list[Node]:
    """What ``given`` makes of ``x`` with trees along axis 1 for few rows, along axis 0 for many; told by each call."""
    n_rows, m = x.shape[0], Formula(c)
    if is_known(n_rows):
        return given(x, 1 if n_rows < FEW_ROWS else 0)
    branches = []
    for axis in (1, 0):
        inner = c.emitter.pool.input("rows", x.type.with_shape((Sym(c.emitter.fresh("rows"), 0), x.shape[1])))
        outputs = given(inner, axis)
        names = tuple(f"y{k}" for k in range(len(outputs)))
        branches.append(Graph("few" if axis else "many", c.emitter.pool, (inner,), tuple(outputs), names))
    few = m.lt(c.dim_value(n_rows), FEW_ROWS)
    attrs = {"then_branch": branches[0], "else_branch": branches[1], "name": c.emitter.fresh("rows")}
    return list(c.results(c.emitter.pool.add(ops.if_, (few, x), attrs, c.loc)))
