"""NaN, infinity and ties in imported models, as native code: beside eager PyTorch and ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from frontend.onnx_build import info, model, node
from frontend.torch_compare import Several
from tilewright.build import driver
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.frontend.banded import banded_sum

pytestmark = pytest.mark.usefixtures("shared_kernels")  # cases of one test have kernels in common

NAN, INF = float("nan"), float("inf")


def check(functions, *inputs: torch.Tensor, rtol: float = 1e-4, atol: float = 1e-5, **how) -> None:
    """Every function gives, compiled, what eager PyTorch gives."""
    module = Several(functions)
    expected = module(*inputs)
    found = tw.compile(module, inputs, cache=False, **how)(*inputs)
    got = torch.utils._pytree.tree_leaves(found)
    want = torch.utils._pytree.tree_leaves(expected)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(torch.as_tensor(g), w, rtol=rtol, atol=atol, equal_nan=True)


def image(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers with an infinity in the middle and NaN in the first corner."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    x.view(-1)[x.numel() // 2] = INF
    x.view(-1)[0] = NAN
    return x


def test_windows_keep_infinities_to_themselves() -> None:
    """Adaptive means over uneven windows: a product with a matrix of averages made NaN of every other window."""
    check(
        {
            "pool2": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
            "area": lambda x: F.interpolate(x, size=(4, 3), mode="area"),
            "pool1": lambda x: F.adaptive_avg_pool1d(x.flatten(2), 13),
            "max": lambda x: F.adaptive_max_pool2d(x, (3, 5)),
            "avg": lambda x: F.avg_pool2d(x, 3, 2, 1),
        },
        image(1, 2, 8, 9),
    )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_images_are_right_and_local(mode: str) -> None:
    """Of finite images what eager PyTorch gives; of an infinity the windows that hold it, and no other."""
    x = torch.randn(1, 2, 21, 17)
    functions = {
        "down": lambda x: F.interpolate(x, size=(6, 5), mode=mode, antialias=True),
        "up": lambda x: F.interpolate(x, size=(30, 18), mode=mode, antialias=True),
    }
    check(functions, x)
    compiled = tw.compile(Several(functions), (x,), cache=False)
    plain = [torch.as_tensor(v) for v in torch.utils._pytree.tree_leaves(compiled(x))]
    x[..., 0, 0] = INF
    for before, after in zip(plain, torch.utils._pytree.tree_leaves(compiled(x)), strict=True):
        far = torch.as_tensor(after)[..., after.shape[-2] // 2 :, after.shape[-1] // 2 :]
        assert torch.equal(far, before[..., after.shape[-2] // 2 :, after.shape[-1] // 2 :])


@settings(max_examples=5)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 2), st.integers(0, 1), st.integers(1, 2), st.booleans())
def test_transposed_convolutions(kernel: int, stride: int, groups: int, pad: int, dilation: int, is_1d: bool) -> None:
    n = 1 if is_1d else 2
    size = (9, 7)[:n]
    if (min(size) - 1) * stride + dilation * (kernel - 1) + 1 <= 2 * pad:
        return
    f = F.conv_transpose1d if is_1d else F.conv_transpose2d
    w = torch.randn(4, 3, *(kernel,) * n)
    how = {"stride": stride, "groups": groups, "padding": pad, "dilation": dilation}
    check({"y": lambda x: f(x, w, **how)}, image(2, 4, *size))


def test_a_zero_of_the_model_keeps_nan() -> None:
    x = torch.tensor([[NAN], [1.0], [INF]])
    zero = torch.zeros(1, 1)
    check({"matmul": lambda x: x @ zero, "mul": lambda x: x * 0.0, "sum": lambda x: (x * zero).sum(0)}, x)
    check({"conv": lambda x: F.conv1d(x, torch.zeros(1, 1, 1))}, x.reshape(1, 1, 3))


@settings(max_examples=4)
@given(st.integers(1, 9), st.booleans(), st.integers(0, 2**31))
def test_searches_probe_as_eager_does(n: int, right: bool, seed: int) -> None:
    """Edges with NaN are in no order; PyTorch's answers follow from where its binary search looks."""
    rng = np.random.default_rng(seed)
    edges = torch.tensor(rng.choice([NAN, INF, -INF, 0.0, 1.0, 2.0, 3.0], n), dtype=torch.float32).sort().values
    rows = torch.stack([edges, edges.flip(0)])
    x = torch.tensor([NAN, INF, -INF, -0.0, 0.0, 0.5, 1.0, 2.5, 3.0, 4.0])
    check(
        {
            "one": lambda e, r, x: torch.searchsorted(e, x, right=right),
            "rows": lambda e, r, x: torch.searchsorted(r, x.expand(2, 10).contiguous(), right=right),
            "buckets": lambda e, r, x: torch.bucketize(x, e, right=right),
        },
        edges, rows, x,
    )  # fmt: skip


@settings(max_examples=3)
@given(st.integers(1, 40), st.integers(0, 2**31))
def test_ties_and_special_values_in_orders(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (torch.tensor(rng.choice([NAN, INF, -INF, 0.0, -0.0, 1.0, 2.0], (3, n)), dtype=torch.float32) for _ in "ab")
    check(
        {
            "sort": lambda a, b: torch.sort(a, stable=True),
            "falling": lambda a, b: torch.sort(a, descending=True, stable=True),
            "argsort": lambda a, b: torch.argsort(a, stable=True),
            "max": lambda a, b: torch.max(a, -1),
            "min": lambda a, b: torch.min(a, -1),
            "argmax": lambda a, b: a.argmax(-1),
            "argmin": lambda a, b: a.argmin(-1),
            "cummax": lambda a, b: torch.cummax(a, -1),
            "cummin": lambda a, b: torch.cummin(a, -1),
            "amax": lambda a, b: a.amax(-1),
            "round": lambda a, b: torch.round(a * 1.25),
            "topk": lambda a, b: torch.topk(a, min(n, 3)).values,
            "median": lambda a, b: torch.median(a, -1).values,
            "kth": lambda a, b: torch.kthvalue(a, (n + 1) // 2).values,
        },
        a, b,
    )  # fmt: skip


def test_signs_of_zero() -> None:
    """Kept where ``docs/promises.md`` says so; ``fmax`` and ``fmin`` of equal numbers take the first."""
    a = torch.tensor([-0.0, 0.0, -0.0, 0.0, NAN, NAN, 1.0] * 6)
    b = torch.tensor([0.0, -0.0, -0.0, 0.0, -0.0, NAN, NAN] * 6)
    functions = {
        "fmax": torch.fmax,
        "fmin": torch.fmin,
        "relu": lambda a, b: torch.relu(a),
        "abs": lambda a, b: torch.abs(a),
        "neg": lambda a, b: -a,
        "round": lambda a, b: torch.round(a * 0.4),
        "trunc": lambda a, b: torch.trunc(a * 0.4),
        "ceil": lambda a, b: torch.ceil(a * 0.5 - 0.25),
        "copysign": lambda a, b: torch.copysign(b, a),
        "product": lambda a, b: a * b,
        "atan2": torch.atan2,
        "sqrt": lambda a, b: torch.sqrt(a),
    }
    check({k: lambda a, b, f=f: 1 / f(a, b) for k, f in functions.items()}, a, b)
    check({"signbit": lambda a, b: torch.signbit(a), "half": lambda a, b: torch.signbit(b.half())}, a, b)


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.75, 1.0])
def test_interpolation_reaches_its_ends(weight: float) -> None:
    """``lerp`` starts from the nearer end: 1 + (1e-9 - 1) is 0 in f32."""
    a, b = torch.tensor([1.0, 1e8, -3.0, INF]), torch.tensor([1e-9, 1.0, 1e-20, 2.0])
    w = torch.full((4,), weight)
    check({"number": lambda a, b, w: torch.lerp(a, b, weight), "tensor": torch.lerp}, a, b, w, rtol=1e-6, atol=0)


def test_polynomials_of_no_degree_end() -> None:
    """A degree that is data and infinite had 2**63 steps."""
    x, n = torch.tensor([0.3, 0.3, 0.3, 0.3, 2.0]), torch.tensor([INF, -INF, NAN, -3.0, 5.0])
    special = torch.special
    check(
        {
            "chebyshev": special.chebyshev_polynomial_t,
            "hermite": special.hermite_polynomial_h,
            "legendre": special.legendre_polynomial_p,
        },
        x, n,
    )  # fmt: skip


def test_distances_of_order_0_keep_nan() -> None:
    a, b = torch.tensor([[1.0, NAN], [INF, 0.0], [1.0, 2.0]]), torch.tensor([[1.0, NAN], [INF, 0.0], [1.5, 2.0]])
    check({"cdist": lambda a, b: torch.cdist(a, b, p=0.0), "pdist": lambda a, b: F.pdist(b, 0.0)}, a, b)


@settings(max_examples=3)
@given(st.integers(1, 70), st.sampled_from([1e-12, 0.2, 1.5, 1e12]), st.booleans(), st.integers(0, 2**31))
def test_running_sums_and_products_are_eagers_to_the_bit(n: int, scale: float, is_last: bool, seed: int) -> None:
    """PyTorch runs those of f32 in f64: products come back from where f32 underflows or overflows."""
    rng = np.random.default_rng(seed)
    x = torch.tensor(rng.standard_normal((n, 3)) * scale ** rng.integers(-1, 2, (n, 3)), dtype=torch.float32)
    x = x.T.contiguous() if is_last else x
    axis = -1 if is_last else 0
    functions = {"sum": lambda x: x.cumsum(axis), "product": lambda x: x.cumprod(axis)}
    check(functions, x, rtol=0, atol=0)


@pytest.mark.parametrize("opset", [6, 7, 10, 11, 13])
@pytest.mark.parametrize("bounds", [(), ("min",), ("max",), ("min", "max")])
def test_a_clip_without_a_bound_cuts_infinities(opset: int, bounds: tuple[str, ...]) -> None:
    x = np.array([INF, -INF, NAN, 0.25, -3.0], np.float32)
    values = {"min": np.float32(-1), "max": np.float32(1)}
    if opset < 11:
        clip, constants = node("Clip", ["x"], ["y"], **{k: float(values[k]) for k in bounds}), {}
    else:
        names = [k if k in bounds else "" for k in ("min", "max")]
        clip, constants = node("Clip", ["x", *names], ["y"]), {k: values[k] for k in bounds}
    made = model([clip], [info("x", [5])], [info("y", [5])], constants, opset=opset)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(tw.compile(made, cache=False)(x), session.run(None, {"x": x})[0])


@settings(max_examples=5)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(0, 2), st.integers(0, 2**31))
def test_sums_over_windows(n_in: int, n_out: int, axis: int, seed: int) -> None:
    """The product with the matrix, and no more than the windows' own elements."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((n_out, n_in))
    for row in weights:
        first, end = sorted(rng.integers(0, n_in + 1, 2))
        row[first:end] = rng.standard_normal(end - first)
    shape = [2, 3, 4]
    shape[axis] = n_in
    pool = Pool()
    x = pool.input("x", TensorType(f32, tuple(shape)))
    y = banded_sum(Builder(pool), x, axis, weights)
    compiled = driver.compile_graph(Graph("windows", pool, (x,), (y,), ("y",)))
    array = rng.standard_normal(shape).astype(np.float32)
    spoilt = np.moveaxis(array.copy(), axis, 0)
    spoilt[int(rng.integers(n_in))] = INF
    spoilt = np.ascontiguousarray(np.moveaxis(spoilt, 0, axis))
    for given_ in (array, spoilt):
        along = np.moveaxis(given_, axis, -1).astype(np.float64)
        with np.errstate(invalid="ignore"):
            terms = np.where(weights != 0, along[..., None, :] * weights, 0).sum(-1)
        np.testing.assert_allclose(compiled(given_), np.moveaxis(terms, -1, axis), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_exponential_that_is_not_finite_is_its_own_alone(dtype: torch.dtype) -> None:
    """An infinite matrix was halved without end; NaN and large norms of one matrix were those of the whole batch."""
    x = torch.randn(7, 3, 3, dtype=dtype, generator=torch.Generator().manual_seed(4))
    x *= torch.tensor([1.0, 1e-30, 0.0, 8.0, 0.4, 1.0, 1.0], dtype=dtype)[:, None, None]
    x[5, 1, 2], x[6, 0, 0] = NAN, INF
    rtol = 1e-4 if dtype is torch.float32 else 1e-11
    check({"exp": torch.linalg.matrix_exp, "one": lambda x: torch.linalg.matrix_exp(x[6])}, x, rtol=rtol, atol=1e-12)
