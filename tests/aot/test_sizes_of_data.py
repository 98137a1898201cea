"""A size that data decide and that is too small ends a call of an object, too, before a kernel meets it."""

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from aot.in_process import ObjectModel
from frontend.onnx_build import BOOL, info, model, node
from tilewright.runtime.errors import ExecutionError


def test_a_call_of_an_object(tmp_path: Path) -> None:
    nodes = [
        node("Compress", ["x", "m"], ["d"], axis=0),
        node("Reshape", ["d", "row"], ["r"]),
        node("Conv", ["r", "w"], ["y"]),
    ]
    constants = {"row": np.array([1, 1, -1]), "w": np.ones((1, 1, 3), np.float32)}
    m = model(nodes, [info("x", ["n"]), info("m", ["n"], BOOL)], [info("y", None)], constants)
    library = ObjectModel(tw.export(m, tmp_path, name="m", threads=1).object, name="m")
    x = np.arange(6, dtype=np.float32)
    for k in range(7):
        if k < 3:
            with pytest.raises(ExecutionError, match="n_nonzero_1 >= 3 must hold"):
                library(x, np.arange(6) < k)
        else:
            expected = np.convolve(x[:k], np.ones(3, np.float32), "valid")
            np.testing.assert_allclose(library(x, np.arange(6) < k), expected[None, None])
