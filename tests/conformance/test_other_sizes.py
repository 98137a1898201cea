"""ONNX's node tests with a symbol in the place of each size, called with one size of one input changed.

No call ends the process or in an error without a type, and where ONNX Runtime has an answer and so have we, they agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.backend.test.loader import load_model_tests

import tilewright as tw
from tilewright.core.diag import CompileError
from tilewright.runtime.errors import TilewrightError

NOT_ONNX = (
    "training_dropout", "maxunpool_export_with_output_shape", "downsample_scales_cubic_align_corners",
    "downsample_scales_linear_align_corners",
)  # fmt: skip
"""Parts of names of tests whose results are random, or are not ONNX's own in ONNX Runtime."""
CHANGES = -1, 1, 3
MOST_CALLS = 40


@cache
def cases() -> Sequence[Any]:
    """The tests of single nodes that take and give tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package computes infinities on purpose
        found = sorted(load_model_tests(kind="node"), key=lambda c: str(c.name))
    found = [c for c in found if not any(part in c.name for part in ("_expanded", *NOT_ONNX))]
    return [c for c in found if c.data_sets and _takes_tensors(c.model.graph)]


def _takes_tensors(graph: onnx.GraphProto) -> bool:
    return all(v.type.HasField("tensor_type") for v in (*graph.input, *graph.output))


def without_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a symbol for each size of an input but 1."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for info in made.graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.dim_value > 1:
                dim.dim_param = f"{info.name}_{axis}"
    for info in made.graph.output:
        info.type.tensor_type.ClearField("shape")
    return made


def calls(feeds: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """The test's own inputs, and those with one size changed, elements repeated."""
    yield feeds
    for name, x in feeds.items():
        for axis, n in enumerate(x.shape):
            for size in (n + change for change in CHANGES):
                if size > 0 < n:
                    yield {**feeds, name: np.ascontiguousarray(np.take(x, np.arange(size) % n, axis))}


def check(case: Any) -> bool:
    """False where one of the two has no form for the model."""
    model = without_sizes(case.model)
    names = [info.name for info in model.graph.input]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        compiled = tw.compile(model, threads=1, cache=False)
    except (TilewrightError, CompileError):
        return False
    except Exception as error:  # ONNX Runtime has several kinds
        assert type(error).__module__.startswith("onnxruntime"), case.name
        return False
    feeds = {name: np.asarray(x) for name, x in zip(names, case.data_sets[0][0], strict=True)}
    for _, given in zip(range(MOST_CALLS), calls(feeds), strict=False):
        where = f"{case.name} { ({name: x.shape for name, x in given.items()}) }"
        try:
            wanted = session.run(None, given)
        except Exception:
            wanted = None
        try:
            found = compiled(**given)
        except (TilewrightError, CompileError):
            continue
        except Exception as error:
            raise AssertionError(f"{where}: an error without a type, {error!r}") from error
        for a, b in zip(found if isinstance(found, tuple) else (found,), wanted or (), strict=False):
            assert a.shape == b.shape, where
            if a.dtype.kind in "fiub":
                # ONNX Runtime has the least number in the place of -inf among scores
                x, y = (np.clip(v.astype(np.float64), -1e30, 1e30) for v in (a, b))
                np.testing.assert_allclose(x, y, rtol=1e-2, atol=1e-2, err_msg=where)
    return True


def test_a_case_of_every_hundredth() -> None:
    assert sum(check(case) for case in cases()[7::100]) >= 5


def test_attention_of_a_depth_that_calls_decide() -> None:
    """Its default scale is a function of that."""
    assert check(next(c for c in cases() if c.name == "test_attention_4d_softcap_neginf_mask"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_case() -> None:
    assert sum(check(case) for case in cases()) >= 700


def test_a_size_that_a_file_states_is_asked_for() -> None:
    """Also of an input whose values decide the structure, which is read before the others are looked at."""
    case = next(c for c in cases() if c.name == "test_top_k")
    compiled = tw.compile(without_sizes(case.model), threads=1, cache=False)
    x = np.ones((3, 4), np.float32)
    with pytest.raises(TilewrightError, match=r"'k' has the shape \[2\], the model takes \[1\]"):
        compiled(x=x, k=np.array([1, 1]))


def test_weights_of_a_window_are_as_large_as_the_node_says() -> None:
    case = next(c for c in cases() if c.name == "test_basic_conv_without_padding")
    compiled = tw.compile(without_sizes(case.model), threads=1, cache=False)
    with pytest.raises(TilewrightError, match="W_2"):
        compiled(x=np.ones((1, 1, 5, 5), np.float32), W=np.ones((1, 1, 2, 3), np.float32))
