"""Gradients of calls whose backward calls are written out here, beside eager, with no call left to PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.gradients import Function, check_gradients
from tilewright.integrations.torch_compile import piece

QUICK, MANY = 2, 500
Case = tuple[Function, list[torch.Tensor]]
DTYPES = st.sampled_from([torch.float32, torch.float64])


def numbers(draw: Any, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


@st.composite
def samplings(draw: st.DrawFn) -> Case:
    """Some coordinates lie outside, some on elements and edges."""
    n, align = draw(st.integers(2, 3)), draw(st.booleans())
    mode = draw(st.sampled_from(["bilinear", "nearest", *(["bicubic"] if n == 2 else [])]))
    padding = draw(st.sampled_from(["zeros", "border", "reflection"]))
    sizes, points = ([draw(st.integers(1, 5)) for _ in range(n)] for _ in range(2))
    batch, dtype = draw(st.integers(1, 2)), draw(DTYPES)
    x = numbers(draw, batch, draw(st.integers(1, 3)), *sizes, dtype=dtype)
    grid = numbers(draw, batch, *points, n, dtype=dtype)
    return lambda x, grid: F.grid_sample(x, grid, mode, padding, align), [x, grid]


@st.composite
def distances(draw: st.DrawFn) -> Case:
    """Some rows are equal, so that their distance is 0."""
    p = draw(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")]))
    rows, width, dtype = draw(st.integers(2, 6)), draw(st.integers(1, 5)), draw(DTYPES)
    if draw(st.booleans()):
        return lambda x: F.pdist(x, p), [numbers(draw, rows, width, dtype=dtype)]
    batch = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))]
    x = numbers(draw, *batch, rows, width, dtype=dtype)
    y = numbers(draw, *batch[draw(st.integers(0, len(batch))) :], draw(st.integers(2, 6)), width, dtype=dtype)
    with torch.no_grad():
        y[..., 0, :] = x[(0,) * len(batch)][0]
    return lambda x, y: torch.cdist(x, y, p), [x, y]


@st.composite
def bags(draw: st.DrawFn) -> Case:
    mode = draw(st.sampled_from(["sum", "mean", "max"]))
    n, rows, width = draw(st.integers(1, 9)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    indices = torch.tensor([draw(st.integers(0, rows - 1)) for _ in range(n)])
    is_ended = draw(st.booleans())
    cuts = sorted(draw(st.integers(0, n)) for _ in range(draw(st.integers(0, 3))))
    offsets = torch.tensor([0, *cuts, *([n] if is_ended else [])])
    dtype, padding = draw(DTYPES), draw(st.sampled_from([None, 0]))
    table = numbers(draw, rows, width, dtype=dtype)
    weights = [numbers(draw, n, dtype=dtype)] if mode == "sum" and draw(st.booleans()) else []

    def function(table: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        return F.embedding_bag(
            indices, table, offsets, mode=mode, per_sample_weights=weights, include_last_offset=is_ended,
            padding_idx=padding,
        )  # fmt: skip

    return function, [table, *weights]


@st.composite
def determinants(draw: st.DrawFn) -> Case:
    """Of matrices that lie by rows, and by columns: PyTorch hands factors of one or of its transpose on."""
    n = draw(st.integers(1, 5))
    x = numbers(draw, *(draw(st.integers(1, 3)) for _ in range(draw(st.integers(0, 2)))), n, n)
    if draw(st.booleans()):
        x = x.detach().mT.contiguous().mT.requires_grad_()
    function = draw(st.sampled_from([torch.linalg.det, torch.logdet, lambda x: torch.linalg.slogdet(x)[1]]))
    return function, [x]


@st.composite
def copies(draw: st.DrawFn) -> Case:
    """Edges repeated, or cut off; elements laid where a mask is true; weights of a direction and a length."""
    kind, dtype = draw(st.sampled_from(["pad", "scatter", "weight"])), draw(DTYPES)
    n = draw(st.integers(1, 3))
    sizes = [draw(st.integers(2, 5)) for _ in range(n)]
    x = numbers(draw, draw(st.integers(1, 2)), 2, *sizes, dtype=dtype)
    if kind == "pad":
        pads = [draw(st.integers(-1 if k % 2 else 0, 3)) for k in range(2 * n)]
        return lambda x: F.pad(x, pads, "replicate"), [x]
    if kind == "scatter":
        mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(n)) > draw(st.sampled_from([0.2, 0.6, 2.0]))
        return lambda x, y: x.masked_scatter(mask, y), [x, numbers(draw, x.numel() + 2, dtype=dtype)]
    axis = draw(st.sampled_from([0, x.dim() - 1]))
    lengths = numbers(draw, *(s if k == axis else 1 for k, s in enumerate(x.shape)), dtype=dtype)
    return lambda v, g: torch._weight_norm(v, g, axis), [x, lengths]


ACTIVATIONS = (
    "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu sigmoid silu "
    "softplus softshrink softsign tanh tanhshrink"
).split()


@st.composite
def activations(draw: st.DrawFn) -> Case:
    """Among them one whose forward call keeps a second result. Eager's gradient of hardsigmoid has a sixth in f32."""
    name = draw(st.sampled_from(ACTIVATIONS))
    exact = [] if name == "hardsigmoid" else [torch.float64]
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, *exact]))
    shape = [draw(st.integers(1, 4)) for _ in range(draw(st.integers(1, 3)))]
    return getattr(F, name), [numbers(draw, *shape, dtype=dtype)]


@pytest.mark.one_in(2)
def test_a_forward_call_keeps_what_its_backward_call_takes() -> None:
    check_gradients(F.logsigmoid, [torch.tensor([-3.0, 0.0, 90.0], requires_grad=True)])


FAMILIES = {"samplings": samplings, "distances": distances, "bags": bags, "determinants": determinants,
            "copies": copies, "activations": activations}  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients(family: str) -> None:
    _check(family, QUICK)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_at_length(family: str) -> None:
    _check(family, MANY)


def _check(family: str, n: int) -> None:
    @given(FAMILIES[family]())
    @settings(max_examples=n)
    def check(case: Case) -> None:
        check_gradients(*case)

    check()


def test_a_training_step_hands_tensors_on_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that forward code gives back, and a transposed one that it keeps, had every argument made an array."""

    def no_arrays(x: object) -> object:
        raise AssertionError("an argument became an array")

    monkeypatch.setattr(piece, "to_numpy", no_arrays)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6))
    x, w = torch.randn(5, 6, requires_grad=True), torch.randn(6, 6, requires_grad=True)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (model(x) @ w.mT).square().sum()

    compiled = torch.compile(loss, backend="tilewright", options={"fallback": False})
    for _ in range(3):
        found, want = (torch.autograd.grad(f(x, w), [x, w, *model.parameters()]) for f in (compiled, loss))
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
