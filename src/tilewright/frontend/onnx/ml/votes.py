"""What the leaves of trees vote for, and what can be told of all rows from it.

In: votes as lists. Out: tables over leaves. Not its business: the graph IR (``onnx.ml.trees``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tilewright.core.types import Array, DType


class Votes(NamedTuple):
    """What leaves give: the number of a node, the target or class, and how much."""

    node: Array
    target: Array
    weight: Array


class Ballots:
    """The leaves' votes: ``target_of_tree`` where all leaves of a tree vote for the same target alone.

    ``always`` are the targets that some tree votes for in each of its leaves, ``ever`` those with any vote.
    """

    def __init__(self, votes: Votes, n: int, n_leaves: int, leaves: Array, trees: Array, n_trees: int) -> None:
        self.votes, self.n, self.n_leaves, self.n_trees = votes, n, n_leaves, n_trees
        self.pairs = np.unique(votes.node * n + votes.target)
        tree_of = np.zeros(n_leaves, np.int64)
        tree_of[leaves] = trees
        size = np.bincount(tree_of[np.unique(leaves)], minlength=n_trees)
        seen = np.zeros(n_leaves, bool)
        seen[leaves] = True
        pairs = self.pairs[seen[self.pairs // n]]
        by_tree, count = np.unique(tree_of[pairs // n] * n + pairs % n, return_counts=True)
        whole = count == size[by_tree // n]
        self.always, self.ever = np.zeros(n, bool), np.zeros(n, bool)
        self.always[by_tree[whole] % n] = True
        self.ever[by_tree % n] = True
        self.target_of_tree: Array | None = None
        if (np.bincount(by_tree // n, minlength=n_trees) <= 1).all():
            self.target_of_tree = np.zeros(n_trees, np.int64)
            self.target_of_tree[by_tree // n] = by_tree % n

    @property
    def is_settled(self) -> bool:
        """Does every row have the same targets voted for?"""
        return bool((self.always == self.ever).all())

    def dense(self, absent: float, dtype: DType) -> Array:
        """Leaves by targets; several votes of a leaf for one target add up."""
        table = np.zeros((self.n_leaves, self.n), dtype.numpy)
        np.add.at(table, (self.votes.node, self.votes.target), self.votes.weight)
        if absent:
            table[~self.voted()] = absent
        return table

    def alone(self, absent: float, dtype: DType) -> Array:
        """The weight of each leaf where it votes for one target at most."""
        table = np.zeros(self.n_leaves, dtype.numpy)
        np.add.at(table, self.votes.node, self.votes.weight)
        if absent:
            table[np.bincount(self.votes.node, minlength=self.n_leaves) == 0] = absent
        return table

    def voted(self) -> Array:
        table = np.zeros((self.n_leaves, self.n), bool)
        table.reshape(-1)[self.pairs] = True
        return table
