"""``ai.onnx.ml``: linear models, support-vector machines and trees against ONNX Runtime on random models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from frontend.onnx_build import answers, check_against_runtime, info, model, node, runtime_answers
from tilewright.core.diag import ImportFailed
from tilewright.frontend.onnx.ml import forest

TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]
DTYPES = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE, np.int64: TensorProto.INT64,
          np.int32: TensorProto.INT32}  # fmt: skip


def learned(
    op: str, outputs: int, n_features: int, dtype: Any = np.float32, version: int = 3, **attributes: Any
) -> onnx.ModelProto:
    names = [f"y{k}" for k in range(outputs)]
    made = node(op, ["x"], names, domain="ai.onnx.ml", **attributes)
    return model([made], [info("x", ["n", n_features], DTYPES[dtype])], names,
                 opsets=[helper.make_opsetid("ai.onnx.ml", 3)])  # fmt: skip


def rows(rng: np.random.Generator, n: int, n_features: int, dtype: Any = np.float32) -> np.ndarray:
    if np.dtype(dtype).kind == "i":
        return rng.integers(-3, 4, (n, n_features)).astype(dtype)
    return rng.standard_normal((n, n_features)).astype(dtype)


def floats(rng: np.random.Generator, *shape: int) -> list[float]:
    return rng.standard_normal(shape).astype(np.float32).reshape(-1).tolist()


# --- linear models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("n", [1, 3])
def test_linear_regressor(kind: str, n: int) -> None:
    rng = np.random.default_rng(n)
    weights = (rng.random((n, 4)) / 8).astype(np.float32).reshape(-1).tolist()
    m = learned("LinearRegressor", 1, 4, coefficients=weights, intercepts=[0.1] * n, targets=n, post_transform=kind)
    check_against_runtime(m, {"x": rng.random((5, 4)).astype(np.float32)})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("kind", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize(("n", "labels"), [(1, [5, 7]), (2, [3, 1]), (4, [9, 2, 4, 5])])
def test_linear_classifier(n: int, labels: list[int], kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(n)
    m = learned("LinearClassifier", 2, 3, dtype, coefficients=floats(rng, n, 3), intercepts=floats(rng, n),
                classlabels_ints=labels, post_transform=kind, multi_class=1)  # fmt: skip
    check_against_runtime(m, {"x": rows(rng, 20, 3, dtype)})


def test_labels_that_are_strings_need_not_be_read() -> None:
    made = node("LinearClassifier", ["x"], ["", "y"], domain="ai.onnx.ml", coefficients=[1.0, -1.0, 2.0, 0.5],
                intercepts=[0.0, 1.0], classlabels_strings=["no", "yes"])  # fmt: skip
    m = model([made], [info("x", ["n", 2])], ["y"], opsets=[helper.make_opsetid("ai.onnx.ml", 1)])
    (y,) = answers(m, {"x": np.ones((1, 2), np.float32)})
    assert y.tolist() == [[0.0, 3.5]]
    made.output[0] = "label"
    with pytest.raises(ImportFailed, match=r"(?s)classlabels_strings holds strings.*remedy: encode the classes"):
        tw.compile(model([made], [info("x", ["n", 2])], ["label", "y"], opsets=[helper.make_opsetid("ai.onnx.ml", 1)]))


# --- support-vector machines ----------------------------------------------------------------------------------------

KERNELS = [("LINEAR", [0.0, 0.0, 0.0]), ("POLY", [0.5, 1.5, 3.0]), ("POLY", [0.1, 3.0, 2.5]), ("RBF", [0.3, 0.0, 0.0]),
           ("SIGMOID", [0.2, 0.1, 0.0])]  # fmt: skip


@pytest.mark.parametrize(("kernel", "numbers"), KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, numbers: list[float], one_class: int) -> None:
    rng = np.random.default_rng(1)
    m = learned("SVMRegressor", 1, 3, kernel_type=kernel, kernel_params=numbers, n_supports=6, one_class=one_class,
                coefficients=floats(rng, 6), support_vectors=floats(rng, 6, 3), rho=[0.3])  # fmt: skip
    check_against_runtime(m, {"x": rows(rng, 9, 3) / 2})


def test_linear_svm_regressor() -> None:
    m = learned("SVMRegressor", 1, 3, coefficients=[1.0, 2.0, -0.5], rho=[0.25], kernel_params=[0.0, 0.0, 0.0])
    check_against_runtime(m, {"x": rows(np.random.default_rng(2), 4, 3)})


def svm_classifier(rng: np.random.Generator, n: int, proba: bool, **attributes: Any) -> onnx.ModelProto:
    per_class = rng.integers(1, 5, n).tolist()
    v, pairs = sum(per_class), n * (n - 1) // 2
    if proba:
        attributes |= {"prob_a": (-1 - rng.random(pairs)).tolist(), "prob_b": (rng.random(pairs) - 0.5).tolist()}
    classes = (rng.permutation(n) * 3).tolist()
    return learned("SVMClassifier", 2, 3, vectors_per_class=per_class, classlabels_ints=classes,
                   coefficients=floats(rng, n - 1, v), support_vectors=floats(rng, v, 3), rho=floats(rng, pairs),
                   **attributes)  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("kernel", "numbers"), KERNELS)
@pytest.mark.parametrize("proba", [False, True])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_svm_classifier(n: int, proba: bool, kernel: str, numbers: list[float]) -> None:
    rng = np.random.default_rng(n)
    m = svm_classifier(rng, n, proba, kernel_type=kernel, kernel_params=numbers)
    check_against_runtime(m, {"x": rows(rng, 30, 3) / 2}, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("proba", [False, True])
@pytest.mark.parametrize("n", [2, 4])
def test_svm_scores_transformed(n: int, proba: bool, kind: str) -> None:
    rng = np.random.default_rng(n)
    m = svm_classifier(rng, n, proba, kernel_type="RBF", kernel_params=[0.5, 0.0, 0.0], post_transform=kind)
    check_against_runtime(m, {"x": rows(rng, 30, 3)}, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("weights", ["any", "positive"])
@pytest.mark.parametrize("kind", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_linear_svm_classifier(n: int, kind: str, weights: str) -> None:
    rng = np.random.default_rng(n)
    given = np.abs(floats(rng, n, 3)).tolist() if weights == "positive" else floats(rng, n, 3)
    m = learned("SVMClassifier", 2, 3, coefficients=given, rho=[0.1], classlabels_ints=list(range(4, 4 + n)),
                post_transform=kind, kernel_params=[0.0, 0.0, 0.0])  # fmt: skip
    check_against_runtime(m, {"x": rows(rng, 20, 3)})


def test_coupled_probabilities_natively_for_any_number_of_rows() -> None:
    rng = np.random.default_rng(7)
    m = svm_classifier(rng, 4, True, kernel_type="RBF", kernel_params=[0.5, 0.0, 0.0])
    f = tw.compile(m)
    for n in (1, 33):
        x = rows(rng, n, 3)
        for got, wanted in zip(f(x), runtime_answers(m, {"x": x}), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


# --- features -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(
    "attributes", [{"offset": [1.0, 0.5, -2.0], "scale": [2.0, 0.1, 3.0]}, {"offset": [0.5], "scale": [3.0]}]
)
def test_scaler(attributes: dict[str, Any], dtype: Any) -> None:
    check_against_runtime(
        learned("Scaler", 1, 3, dtype, **attributes), {"x": rows(np.random.default_rng(3), 5, 3, dtype)}
    )


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str, dtype: Any) -> None:
    x = rows(np.random.default_rng(4), 6, 3, dtype)
    x[2] = 0
    check_against_runtime(learned("Normalizer", 1, 3, dtype, norm=norm), {"x": x})


@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [
        (np.float32, {"imputed_value_floats": [1.0, 2.0, 3.0], "replaced_value_float": float("nan")}),
        (np.float32, {"imputed_value_floats": [7.0], "replaced_value_float": 0.0}),
        (np.int64, {"imputed_value_int64s": [5, 6, 7], "replaced_value_int64": -1}),
    ],
)
def test_imputer(dtype: Any, attributes: dict[str, Any]) -> None:
    x = rows(np.random.default_rng(5), 6, 3, dtype)
    x[::2, 1] = -1 if dtype is np.int64 else np.nan
    x[1, 0] = 0
    check_against_runtime(learned("Imputer", 1, 3, dtype, **attributes), {"x": x})


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_one_hot_encoder(dtype: Any) -> None:
    x = rows(np.random.default_rng(6), 6, 2, dtype)
    check_against_runtime(learned("OneHotEncoder", 1, 2, dtype, cats_int64s=[2, 0, -1, 1, 0], zeros=1), {"x": x})


def test_feature_vectorizer() -> None:
    made = node("FeatureVectorizer", ["a", "b", "c"], ["y"], domain="ai.onnx.ml", inputdimensions=[2, 4, 1])
    inputs = [info("a", ["n", 3]), info("b", ["n", 2]), info("c", ["n", 1])]
    m = model([made], inputs, ["y"], opsets=[helper.make_opsetid("ai.onnx.ml", 1)])
    rng = np.random.default_rng(7)
    check_against_runtime(m, {"a": rows(rng, 4, 3), "b": rows(rng, 4, 2), "c": rows(rng, 4, 1)})


def test_features_of_a_vector_are_a_row() -> None:
    made = node("ArrayFeatureExtractor", ["x", "k"], ["y"], domain="ai.onnx.ml")
    m = model([made], [info("x", [3])], ["y"], {"k": np.array([2, 0])}, opsets=[helper.make_opsetid("ai.onnx.ml", 1)])
    check_against_runtime(m, {"x": np.arange(3, dtype=np.float32)})


# --- trees ----------------------------------------------------------------------------------------------------------

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def named_trees(
    rng: np.random.Generator, what: str, n_trees: int, n_features: int, targets: list[int], modes: list[str],
    tracks: bool, many: bool, positive: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Attributes of random trees: ``targets`` are voted for, by every leaf all of them if ``many``."""
    nodes: list[list[Any]] = []  # tree, number, mode, feature, value, true, false, tracks
    votes: list[list[Any]] = []  # tree, number, target, weight

    def grow(tree: int, depth: int, target: int) -> int:
        number = sum(row[0] == tree for row in nodes)
        row: list[Any] = [tree, number, "LEAF", 0, 0.0, 0, 0, 0]
        nodes.append(row)
        if depth and (rng.random() < 0.75 or not number):
            value = float(rng.integers(-3, 4)) + 0.5 * float(rng.integers(2))
            row[2:5] = [str(rng.choice(modes)), int(rng.integers(n_features)), value]
            row[5], row[6] = grow(tree, depth - 1, target), grow(tree, depth - 1, target)
            row[7] = int(rng.integers(2))
        else:
            for t in targets if many else [target]:
                weight = rng.random() if positive else rng.standard_normal()
                votes.append([tree, number, t, float(np.float32(weight))])
        return number

    for k in range(n_trees):
        grow(k * 3, 4, targets[k % len(targets)])
    columns, leaves = list(zip(*nodes, strict=True)), list(zip(*votes, strict=True))
    names = [
        "treeids",
        "nodeids",
        "modes",
        "featureids",
        "values",
        "truenodeids",
        "falsenodeids",
        "missing_value_tracks_true",
    ]
    found = {f"nodes_{name}": list(column) for name, column in zip(names, columns, strict=True)}
    if not tracks:
        del found["nodes_missing_value_tracks_true"]
    parts = zip(["treeids", "nodeids", "ids", "weights"], leaves, strict=True)
    return found | {f"{what}_{name}": list(column) for name, column in parts}


def feed(rng: np.random.Generator, n: int, dtype: Any, nan: bool) -> np.ndarray:
    x = rng.integers(-4, 5, (n, 3)).astype(dtype)
    if nan and x.dtype.kind == "f":
        x[::5, 1] = np.nan
    return x


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_regressor(how: str, n: int, dtype: Any) -> None:
    rng = np.random.default_rng(n)
    for modes, tracks in ((["BRANCH_LEQ"], True), (MODES, False), (MODES, True)):
        trees = named_trees(rng, "target", 4, 3, list(range(n)), modes, tracks, many=tracks)
        base = {"base_values": floats(rng, n)} if tracks else {}
        m = learned("TreeEnsembleRegressor", 1, 3, dtype, n_targets=n, aggregate_function=how, **trees, **base)
        check_against_runtime(m, {"x": feed(rng, 40, dtype, nan=True)})


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("n", [1, 3])
def test_tree_regressor_transformed(n: int, kind: str) -> None:
    rng = np.random.default_rng(n)
    trees = named_trees(rng, "target", 3, 3, list(range(n)), ["BRANCH_LT"], False, many=True, positive=True)
    trees["target_weights"] = [w / 4 for w in trees["target_weights"]]
    m = learned("TreeEnsembleRegressor", 1, 3, n_targets=n, post_transform=kind, **trees)
    check_against_runtime(m, {"x": feed(rng, 40, np.float32, nan=False)}, rtol=1e-3, atol=1e-4)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("kind", TRANSFORMS[:-1])
@pytest.mark.parametrize("many", [False, True])
def test_tree_classifier(many: bool, kind: str, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    for base in ([], floats(rng, 4)):
        trees = named_trees(rng, "class", 8, 3, [0, 1, 2, 3], ["BRANCH_LEQ"], False, many)
        more = {"base_values": base} if base else {}
        m = learned(
            "TreeEnsembleClassifier", 2, 3, dtype, classlabels_int64s=[7, 3, 5, 1], post_transform=kind, **trees, **more
        )
        check_against_runtime(m, {"x": feed(rng, 40, dtype, nan=False)})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("n_base", [0, 1, 2])
@pytest.mark.parametrize("kind", TRANSFORMS[:-1])
@pytest.mark.parametrize(("targets", "many"), [([0], False), ([1], False), ([0, 1], True), ([0, 1], False)])
def test_tree_classifier_of_two(targets: list[int], many: bool, kind: str, n_base: int, positive: bool) -> None:
    rng = np.random.default_rng(n_base)
    trees = named_trees(rng, "class", 4, 3, targets, ["BRANCH_LEQ"], False, many, positive)
    more = {"base_values": floats(rng, n_base)} if n_base else {}
    m = learned("TreeEnsembleClassifier", 2, 3, classlabels_int64s=[0, 1], post_transform=kind, **trees, **more)
    check_against_runtime(m, {"x": feed(rng, 40, np.float32, nan=False)})


def test_tree_classifier_of_one_class() -> None:
    rng = np.random.default_rng(5)
    trees = named_trees(rng, "class", 3, 3, [0], ["BRANCH_LEQ"], False, many=True)
    check_against_runtime(learned("TreeEnsembleClassifier", 2, 3, classlabels_int64s=[1], **trees),
                          {"x": feed(rng, 40, np.float32, nan=False)})  # fmt: skip


def test_leaves_that_vote_for_some_classes_only() -> None:
    """A class without a vote is no candidate, though its score of 0 would be the highest."""
    rng = np.random.default_rng(6)
    trees = named_trees(rng, "class", 3, 3, [0, 1, 2], ["BRANCH_LEQ"], False, many=True)
    kept = [k for k in range(len(trees["class_ids"])) if k % 5]
    trees |= {k: [v[i] for i in kept] for k, v in trees.items() if k.startswith("class_")}
    trees["class_weights"] = [-abs(w) for w in trees["class_weights"]]
    m = learned("TreeEnsembleClassifier", 2, 3, classlabels_int64s=[4, 5, 6], **trees)
    check_against_runtime(m, {"x": feed(rng, 60, np.float32, nan=False)})


def test_trees_of_doubles() -> None:
    """Splits that f32 can't tell from their neighbours."""
    rng = np.random.default_rng(8)
    trees = named_trees(rng, "target", 3, 3, [0], MODES, False, many=True)
    exact = {
        f"{k}_as_tensor": numpy_helper.from_array(np.array(trees.pop(k)) + 1e-12, k)
        for k in ("nodes_values", "target_weights")
    }
    m = learned("TreeEnsembleRegressor", 1, 3, np.float64, n_targets=1, **trees, **exact)
    x = feed(rng, 40, np.float64, nan=False)
    check_against_runtime(m, {"x": np.concatenate([x, x + 1e-12, x + 2e-12])})


def test_nan_at_a_leaf_leads_nowhere() -> None:
    """Trees of unlike depth whose tests all let NaN pass: a row waits at a leaf while others go on."""
    rng = np.random.default_rng(10)
    trees = named_trees(rng, "target", 6, 3, [0], ["BRANCH_LEQ"], True, many=True)
    trees["nodes_missing_value_tracks_true"] = [1] * len(trees["nodes_modes"])
    x = feed(rng, 40, np.float32, nan=True)
    x[::3, 0] = np.nan
    check_against_runtime(learned("TreeEnsembleRegressor", 1, 3, n_targets=1, **trees), {"x": x})


@pytest.mark.parametrize("word_bits", [31, 8])
@pytest.mark.parametrize("n_rows", [1, 40])
def test_trees_of_several_depths(n_rows: int, word_bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of tests, each of which ends in a leaf or goes on; with and without room for child and feature in one."""
    monkeypatch.setattr(forest, "WORD_BITS", word_bits)
    rng = np.random.default_rng(word_bits)
    nodes: dict[str, list[Any]] = {
        k: [] for k in ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
    }
    leaves = []
    for tree, depth in enumerate([7, 0, 3, 9, 1, 9, 4]):
        for k in range(2 * depth + 1):
            is_leaf = k % 2 == 1 or k == 2 * depth
            leaves += [(tree, k)] * is_leaf
            split, feature = float(rng.standard_normal()), int(rng.integers(3))
            row = (
                tree,
                k,
                "LEAF" if is_leaf else "BRANCH_LEQ",
                feature,
                split,
                *((0, 0) if is_leaf else (k + 2, k + 1)),
            )
            for column, value in zip(nodes.values(), row, strict=True):
                column.append(value)
    attributes = {f"nodes_{k}": v for k, v in nodes.items()} | {
        "nodes_missing_value_tracks_true": [k % 2 for k in range(len(nodes["modes"]))],
        "target_treeids": [t for t, _ in leaves], "target_nodeids": [k for _, k in leaves],
        "target_ids": [t % 2 for t, _ in leaves], "target_weights": floats(rng, len(leaves)),
    }  # fmt: skip
    x = rows(rng, n_rows, 3)
    x[::3, 1] = np.nan
    check_against_runtime(learned("TreeEnsembleRegressor", 1, 3, n_targets=2, **attributes), {"x": x})


@pytest.mark.parametrize("mode", ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"])
def test_a_test_at_the_ends_of_the_numbers(mode: str) -> None:
    """Trees of a test each, all of which are made in the first levels: NaN passes every second one."""
    special = np.array([0, -0.0, 1e-45, -1e-45, 1, 3.4e38, np.inf, -np.inf, np.nan], np.float32)
    splits = [float(s) for s in special[:-1] for _ in range(2)]
    n, nodes = len(splits), [(tree, k) for tree in range(len(splits)) for k in range(3)]
    trees, numbers = (list(column) for column in zip(*nodes, strict=True))
    attributes = {
        "nodes_treeids": trees, "nodes_nodeids": numbers, "nodes_modes": [mode, "LEAF", "LEAF"] * n,
        "nodes_featureids": [0] * 3 * n, "nodes_values": [s if k == 0 else 0.0 for s in splits for k in range(3)],
        "nodes_truenodeids": [1, 0, 0] * n, "nodes_falsenodeids": [2, 0, 0] * n,
        "nodes_missing_value_tracks_true": [t % 2 if k == 0 else 0 for t, k in nodes],
        "target_treeids": trees, "target_nodeids": numbers, "target_ids": trees,
        "target_weights": [float(k) for k in numbers],
    }  # fmt: skip
    votes = {k: [v for v, number in zip(attributes[k], numbers, strict=True) if number] for k in attributes
             if k.startswith("target")}  # fmt: skip
    m = learned("TreeEnsembleRegressor", 1, 1, n_targets=n, **{**attributes, **votes})
    check_against_runtime(m, {"x": special[:, None]})


def test_trees_natively_for_any_number_of_rows() -> None:
    rng = np.random.default_rng(9)
    trees = named_trees(rng, "class", 12, 3, [0, 1, 2], MODES, True, many=False)
    m = learned("TreeEnsembleClassifier", 2, 3, classlabels_int64s=[4, 5, 6], **trees)
    f = tw.compile(m)
    for n in (1, 70):
        x = feed(rng, n, np.float32, nan=True)
        for got, wanted in zip(f(x), runtime_answers(m, {"x": x}), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"nodes_truenodeids": [0, 0, 0]}, "cycles"),
        ({"nodes_truenodeids": [9, 0, 0]}, "not there"),
        ({"nodes_nodeids": [0, 1, 1]}, "twice"),
        ({"nodes_featureids": [3, 0, 0]}, "features"),
        ({"nodes_modes": ["BRANCH_LEQ", "LEAF", "leaf"]}, "no mode"),
        ({"target_ids": [0, 4]}, "targets"),
    ],
)
def test_damaged_trees_are_refused(change: dict[str, Any], rule: str) -> None:
    stump = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_featureids": [0, 0, 0], "nodes_values": [0.0, 0.0, 0.0], "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
    }  # fmt: skip
    with pytest.raises(ImportFailed, match=rule):
        tw.compile(learned("TreeEnsembleRegressor", 1, 3, **(stump | change)))
