"""Resize against its stages, ONNX Runtime and PyTorch."""

import numpy as np
import pytest
import torch

from ops.onnx_peer import run_node
from ops.oracle import case_id, check_case, check_op, check_symbolic, sample_cases, samples_of
from tilewright.core import types as T
from tilewright.core.compute import Buffer, Load, Stage, loads
from tilewright.core.diag import OpError
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs
from tilewright.core.types import TensorType
from tilewright.ops.resize import COORDINATE_MODES, MODES, resize

CASES = sample_cases((resize,))
H, W = Sym("H", 1), Sym("W", 1)


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_samples(case) -> None:
    check_case(case, 1e-6)


def onnxruntime_resize(x, a: Attrs):
    given = {"mode": a.mode, "coordinate_transformation_mode": a.coordinate_mode, "nearest_mode": a.nearest_mode,
             "cubic_coeff_a": a.cubic_coeff, "exclude_outside": int(a.exclude_outside),
             "extrapolation_value": a.extrapolation}  # fmt: skip
    roi = np.array(a.roi, np.float32) if a.roi else None
    scales = np.array(a.scales, np.float32) if a.scales else None
    sizes = None if a.scales else np.array(a.sizes)
    return run_node("Resize", [x, roi, scales, sizes], 1, given, opset=19)[0]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_against_onnxruntime(case) -> None:
    sample = samples_of(resize)[case[1]]
    a = Attrs(resize.complete_attrs(sample.attrs))
    x = sample.arrays[0]
    if x.size == 0 or a.sizes[1] == 3 or a.coordinate_mode == "tf_half_pixel_for_nn" or x.dtype == np.float64:
        pytest.skip("not offered there")
    np.testing.assert_allclose(resize.reference((x,), a), onnxruntime_resize(x, a), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("coordinate_mode", COORDINATE_MODES)
def test_symbolic_sizes(mode, coordinate_mode) -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, 3, 2)).astype(np.float32)
    attrs = {"sizes": (1, 1, H * 2, W - 1), "mode": mode, "coordinate_mode": coordinate_mode}
    check_symbolic(resize, (x,), (TensorType(T.f32, (1, 1, H, W)),), attrs, 1e-6)


@pytest.mark.parametrize("size", [(6, 10), (2, 4), (7, 3)])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"mode": "bilinear", "align_corners": False}, {"mode": "linear", "coordinate_mode": "pytorch_half_pixel"}),
        ({"mode": "bilinear", "align_corners": True}, {"mode": "linear", "coordinate_mode": "align_corners"}),
        ({"mode": "bicubic", "align_corners": False}, {"mode": "cubic", "coordinate_mode": "pytorch_half_pixel"}),
        ({"mode": "nearest"}, {"coordinate_mode": "asymmetric", "nearest_mode": "floor"}),
        ({"mode": "nearest-exact"}, {"coordinate_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}),
    ],
)
def test_against_torch(size, theirs, ours) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 5)).astype(np.float32)
    (y,) = check_op(resize, (x,), {"sizes": (1, 2, *size), **ours}, 1e-6)
    expected = torch.nn.functional.interpolate(torch.tensor(x), size, **theirs).numpy()
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_whole_factors_read_at_plain_indices() -> None:
    x, y = Buffer("x", T.f32, (1, 8, 4, 4)), Buffer("y", T.f32, (1, 8, 8, 12))
    attrs = Attrs(resize.complete_attrs({"sizes": y.shape}))
    (stage,) = resize.compute((x,), (y,), attrs)
    assert isinstance(stage, Stage)
    (load,) = loads(stage.expr)
    i = [axis.sym for axis in stage.axes]
    assert load == Load(x, (i[0], i[1], i[2] // 2, i[3] // 3))


def test_three_axes() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 2)).astype(np.float32)
    for mode in MODES:
        check_op(resize, (x,), {"sizes": (3, 2, 4), "mode": mode}, 1e-6)


@pytest.mark.parametrize(
    ("dtype", "shape", "attrs"),
    [
        (T.f32, (1, 1, 2, 2), {"sizes": (2, 2)}),
        (T.f32, (2, 2), {"sizes": (2, 2), "mode": "lanczos"}),
        (T.f32, (2, 2), {"sizes": (2, 2), "coordinate_mode": "odd"}),
        (T.f32, (2, 2), {"sizes": (2, 2), "nearest_mode": "odd"}),
        (T.f32, (2, 2), {"sizes": (2, -2)}),
        (T.f32, (0, 2), {"sizes": (2, 2)}),
        (T.f32, (2, 2), {"sizes": (2, 2), "scales": (1.0,)}),
        (T.f32, (2, 2), {"sizes": (2, 2), "scales": (1.0, -1.0)}),
        (T.u8, (2, 2), {"sizes": (3, 3), "mode": "linear"}),
    ],
)
def test_refused(dtype, shape, attrs) -> None:
    with pytest.raises(OpError):
        resize.infer([TensorType(dtype, shape)], Attrs(resize.complete_attrs(attrs)))
