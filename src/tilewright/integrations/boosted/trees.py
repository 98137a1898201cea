"""Boosted trees as an ONNX model: what XGBoost's and LightGBM's readers have in common.

In: splits and leaves, how the sums become predictions, and what rows look like. Out: a ``ModelProto`` from
``f32[rows, n_features]``. Not its business: reading a library's dump (``xgb``, ``lgb``), making code of trees
(``frontend.onnx.ml``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core.diag import OptionError
from tilewright.core.types import Array
from tilewright.runtime.once import MAKING

if TYPE_CHECKING:
    from onnx import ModelProto

LESS, AT_MOST, LEAF = "BRANCH_LT", "BRANCH_LEQ", "LEAF"
OPSETS = {"": 21, "ai.onnx.ml": 3}
IR_VERSION = 10


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


@dataclass(frozen=True)
class Linear:
    """Sums of weighted features, where what is missing counts as 0: ``weights`` are ``[n_features, n_sums]``."""

    weights: Array
    base: Array

    @property
    def n_features(self) -> int:
        """How many numbers a row has."""
        return int(self.weights.shape[0])


@dataclass(frozen=True)
class Link:
    """How sums become predictions: the form of ``_linked`` of ``factor`` times the sums."""

    name: str
    factor: float = 1.0


def in_onnx(model: Trees | Linear, link: Link, *, is_classifier: bool) -> ModelProto:
    """The model; a classifier's results are the number of the likeliest class, i64[rows], and f32[rows, classes]."""
    try:
        with MAKING:
            from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        raise OptionError("boosted trees need the package onnx", remedy='pip install "tilewright[onnx]"') from error
    nodes: list[Any] = []
    numbers: dict[str, Array] = {}

    def op(kind: str, *inputs: str | float | Array, **attrs: Any) -> str:
        """A node's only result; numbers among its operands are f32 unless they are arrays."""
        names = [x if isinstance(x, str) else f"number_{len(numbers)}_{k}" for k, x in enumerate(inputs)]
        for name, x in zip(names, inputs, strict=True):
            if not isinstance(x, str):
                numbers[name] = np.asarray(x, np.float32) if isinstance(x, float) else x
        nodes.append(helper.make_node(kind, names, [f"{kind}_{len(nodes)}"], **attrs))
        return str(nodes[-1].output[0])

    sums = _summed(op, model) if isinstance(model, Trees) else _weighted(op, model)
    if link.factor != 1.0:
        sums = op("Mul", sums, link.factor)
    made = _linked(op, sums, link.name)
    if is_classifier:
        n_sums = len(model.base)
        scores = op("Concat", op("Sub", 1.0, made), made, axis=1) if n_sums == 1 else made
        results: list[Any] = [(op("ArgMax", scores, axis=1, keepdims=0), TensorProto.INT64, ["rows"])]
        results.append((scores, TensorProto.FLOAT, ["rows", max(n_sums, 2)]))
    else:
        results = [(made, TensorProto.FLOAT, ["rows", len(model.base)])]
    graph = helper.make_graph(
        nodes, "boosted", [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["rows", model.n_features])],
        [helper.make_tensor_value_info(*r) for r in results],
        [numpy_helper.from_array(a, name) for name, a in numbers.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=imports)


def _summed(op: Any, t: Trees) -> str:
    if not t.leaves:  # no round was trained, and ONNX has no ensemble without trees
        t.leaf(0, 0, 0, 0.0)
    trees, nodes, features, thresholds, modes, if_true, if_false, missing = zip(*t.rows, strict=True)
    of_tree, of_node, targets, values = zip(*t.leaves, strict=True)
    scale = len(set(trees)) / len(t.base) if t.average else 1.0
    sums = op(
        "TreeEnsembleRegressor", "rows", domain="ai.onnx.ml", n_targets=len(t.base), aggregate_function="SUM",
        nodes_treeids=trees, nodes_nodeids=nodes, nodes_featureids=features, nodes_values=thresholds,
        nodes_modes=modes, nodes_truenodeids=if_true, nodes_falsenodeids=if_false,
        nodes_missing_value_tracks_true=missing, target_treeids=of_tree, target_nodeids=of_node,
        target_ids=targets, target_weights=[v / scale for v in values], base_values=[float(x) for x in t.base],
        post_transform="NONE",
    )  # fmt: skip
    return str(sums)


def _weighted(op: Any, model: Linear) -> str:
    known = op("Where", op("IsNaN", "rows"), 0.0, "rows")
    return str(op("Add", op("MatMul", known, model.weights), model.base))


def _linked(op: Any, sums: str, name: str) -> str:
    """The prediction of sums."""
    forms = {
        "identity": lambda: op("Identity", sums),
        "exp": lambda: op("Exp", sums),
        "sigmoid": lambda: op("Sigmoid", sums),
        "softmax": lambda: op("Softmax", sums, axis=1),
        "step": lambda: op("Cast", op("Greater", sums, 0.0), to=1),
        "signed_square": lambda: op("Mul", sums, op("Abs", sums)),
        "log1p_exp": lambda: op("Softplus", sums),
    }
    return str(forms[name]())


def lowered(threshold: float) -> float:
    """The greatest f32 not above a number: what is at most that number, of f32, is at most this one."""
    made = np.float32(threshold)
    return float(np.nextafter(made, np.float32(-np.inf)) if float(made) > threshold else made)
