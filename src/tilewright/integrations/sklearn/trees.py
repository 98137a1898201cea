"""Binary trees over features, as rows of a table: what ONNX's ``TreeEnsembleRegressor`` is made of.

In: splits and leaves, in any order. Out: the op's attributes. Not its business: reading a library's trees (``forests``,
``integrations.boosted``), what becomes of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.core.types import Array

LESS, AT_MOST, LEAF = "BRANCH_LT", "BRANCH_LEQ", "LEAF"


@dataclass
class Trees:
    """Binary trees over features: rows of a table, as ONNX's ``TreeEnsembleRegressor`` has them.

    ``base`` is what each sum begins with.
    """

    n_features: int
    base: Array
    average: bool = False
    rows: list[tuple[int, int, int, float, str, int, int, int]] = field(default_factory=list)
    """Tree, node, feature, threshold, mode, the two nodes behind it, whether what is missing goes to the first."""
    leaves: list[tuple[int, int, int, float]] = field(default_factory=list)
    """Tree, node, which sum, and what is added to it."""

    def split(
        self, tree: int, node: int, feature: int, mode: str, threshold: float, branches: tuple[int, int], missing: bool
    ) -> None:
        """A node with two branches, of which the first is taken where the feature is ``mode`` the threshold."""
        self.rows.append((tree, node, feature, threshold, mode, *branches, int(missing)))

    def leaf(self, tree: int, node: int, target: int, value: float) -> None:
        """A node that adds a number to one of the sums."""
        self.rows.append((tree, node, 0, 0.0, LEAF, 0, 0, 0))
        self.leaves.append((tree, node, target, value))

    def attributes(self) -> dict[str, Any]:
        """Those of ONNX's ``TreeEnsembleRegressor``, which has no form of an ensemble without trees."""
        if not self.leaves:  # no round was trained
            self.leaf(0, 0, 0, 0.0)
        trees, nodes, features, thresholds, modes, if_true, if_false, missing = zip(*self.rows, strict=True)
        of_tree, of_node, targets, values = zip(*self.leaves, strict=True)
        scale = len(set(trees)) / len(self.base) if self.average else 1.0
        return {
            "n_targets": len(self.base), "aggregate_function": "SUM", "nodes_treeids": trees, "nodes_nodeids": nodes,
            "nodes_featureids": features, "nodes_values": thresholds, "nodes_modes": modes,
            "nodes_truenodeids": if_true, "nodes_falsenodeids": if_false, "nodes_missing_value_tracks_true": missing,
            "target_treeids": of_tree, "target_nodeids": of_node, "target_ids": targets,
            "target_weights": [v / scale for v in values], "base_values": [float(x) for x in self.base],
            "post_transform": "NONE",
        }  # fmt: skip


def lowered(threshold: float) -> float:
    """The greatest f32 not above a number: what is at most that number, of f32, is at most this one."""
    made = np.float32(threshold)
    return float(np.nextafter(made, np.float32(-np.inf)) if float(made) > threshold else made)
