"""``ai.onnx.ml``: trees and look-ups against ONNX Runtime on random models."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from frontend.onnx_build import answers, check_against_runtime, info, model, node


def random_trees(rng: np.random.Generator, n_trees: int, n_features: int, n_targets: int, modes: list[int]) -> dict:
    """Attributes of a TreeEnsemble with trees of random forms."""
    rows: list[list[int]] = []  # feature, mode, true, true is leaf, false, false is leaf
    leaves: list[int] = []

    def side(depth: int) -> tuple[int, int]:
        if depth and rng.random() < 0.7:
            return grow(depth - 1), 0
        leaves.append(int(rng.integers(n_targets)))
        return len(leaves) - 1, 1

    def grow(depth: int) -> int:
        k = len(rows)
        rows.append([])
        rows[k] = [int(rng.integers(n_features)), int(rng.choice(modes)), *side(depth), *side(depth)]
        return k

    roots = [grow(int(rng.integers(1, 6))) for _ in range(n_trees)]
    columns = np.array(rows)
    n_sets = int((columns[:, 1] == 6).sum())
    sets = np.concatenate([[*rng.integers(0, 4, rng.integers(1, 4)), np.nan] for _ in range(n_sets)]) if n_sets else []
    tensor = {
        "nodes_modes": columns[:, 1].astype(np.uint8),
        "nodes_splits": rng.integers(0, 4, len(rows)).astype(np.float32),
        "leaf_weights": rng.standard_normal(len(leaves)).astype(np.float32),
        **({"membership_values": np.array(sets, np.float32)} if n_sets else {}),
    }
    return {
        **{name: numpy_helper.from_array(a, name) for name, a in tensor.items()},
        "tree_roots": roots,
        "n_targets": n_targets,
        "nodes_featureids": columns[:, 0].tolist(),
        "nodes_truenodeids": columns[:, 2].tolist(),
        "nodes_trueleafs": columns[:, 3].tolist(),
        "nodes_falsenodeids": columns[:, 4].tolist(),
        "nodes_falseleafs": columns[:, 5].tolist(),
        "nodes_missing_value_tracks_true": rng.integers(0, 2, len(rows)).tolist(),
        "leaf_targetids": leaves,
    }


@pytest.mark.parametrize(("how", "modes"), [(1, [0]), (1, [0, 1, 2, 3, 4, 5]), (0, [1]), (2, [2]), (3, [3, 4])])
def test_random_trees(how: int, modes: list[int]) -> None:
    rng = np.random.default_rng(how)
    trees = random_trees(rng, 4, 3, 2, modes)
    m = model([node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", aggregate_function=how, **trees)],
              [info("x", ["n", 3])], ["y"], opsets=[helper.make_opsetid("ai.onnx.ml", 5)])  # fmt: skip
    x = rng.integers(0, 4, (50, 3)).astype(np.float32)
    x[::7, 1] = np.nan
    check_against_runtime(m, {"x": x})


@pytest.mark.filterwarnings("error")
def test_splits_at_the_ends_of_their_type() -> None:
    rng, most = np.random.default_rng(5), np.finfo(np.float32).max
    ends = np.array([np.nan, np.inf, most, 0, -0.0, -most, -np.inf], np.float32)
    trees = random_trees(rng, 8, 3, 2, [0, 1, 2, 3])
    n = len(trees["nodes_featureids"])
    trees["nodes_splits"] = numpy_helper.from_array(rng.choice(ends[1:], n), "nodes_splits")
    x = rng.choice(ends, (64, 3))
    m = model([node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **trees)],
              [info("x", x.shape)], ["y"], opsets=[helper.make_opsetid("ai.onnx.ml", 5)])  # fmt: skip
    check_against_runtime(m, {"x": x})


@pytest.mark.parametrize(
    "attributes",
    [
        {"keys_int64s": [3, 1, 4], "values_floats": [0.5, 2.0, 4.0], "default_float": -1.5},
        {"keys_int64s": [7, 2], "values_int64s": [10, 20]},
        {"keys_floats": [1.0, float("nan"), -0.0], "values_int64s": [1, 2, 3], "default_int64": 9},
    ],
)
def test_label_encoder_of_numbers(attributes) -> None:
    keys = attributes.get("keys_int64s") or attributes["keys_floats"]
    dtype = np.int64 if "keys_int64s" in attributes else np.float32
    x = np.array([*keys, 5, 0], dtype).reshape(1, -1)
    check_against_runtime(encoder(x.dtype, **attributes), {"x": x})


def encoder(dtype: np.dtype, **attributes: object) -> onnx.ModelProto:
    nodes = [node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **attributes)]
    inputs = [info("x", [1, "n"], helper.np_dtype_to_tensor_dtype(dtype))]
    return model(nodes, inputs, ["y"], opsets=[helper.make_opsetid("ai.onnx.ml", 4)])


def test_of_equal_keys_the_last_one_counts() -> None:
    """As ONNX says; ONNX Runtime takes the first."""
    m = encoder(np.dtype(np.int64), keys_int64s=[3, 3], values_int64s=[1, 2])
    (y,) = answers(m, {"x": np.array([[3]])})
    assert y.tolist() == [[2]]
