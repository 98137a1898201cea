"""PyTorch tensors in and out, on shared memory."""

import numpy as np
import pytest

from runtime.tiny import copy_model, scale_model
from tilewright.runtime.errors import InputError
from tilewright.runtime.manifest import TensorSpec
from tilewright.runtime.values import as_array, to_tensor

torch = pytest.importorskip("torch")


def test_tensors_in_tensors_out() -> None:
    model, x = scale_model(), torch.arange(12.0).reshape(3, 4)
    for result in (model(x), model(x=x), model.run({"x": x})["y"]):
        assert isinstance(result, torch.Tensor)
        assert torch.equal(result, 2 * x + 10)
    assert model.copies == 0


def test_gradient_parameters_and_views() -> None:
    model, wide = scale_model(), torch.arange(24.0).reshape(3, 8)
    inputs = [wide[:, :4].clone().requires_grad_(), torch.nn.Parameter(wide[:, 4:].clone()), wide[:, ::2]]
    for x in inputs:
        result = model(x)
        assert torch.equal(result, 2 * x.detach() + 10) and not result.requires_grad
    assert model.copies == 1, "only the strided one"


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "bool", "uint8", "float64"])
def test_dtypes(name: str) -> None:
    dtype = getattr(torch, name)
    x = torch.tensor([0.0, 1.0, 0.0, 1.0]).to(dtype)
    model = copy_model([TensorSpec("a", name, (4,))], [TensorSpec("p", name, (4,))], [4 * x.element_size()], [4])
    result = model(x)
    assert result.dtype == dtype and torch.equal(result.float(), x.float())


def test_memory_is_shared_both_ways() -> None:
    spec = TensorSpec("a", "bfloat16", (4,))
    x = torch.zeros(4, dtype=torch.bfloat16)
    array = as_array(x, spec)
    assert isinstance(array, np.ndarray) and array.ctypes.data == x.data_ptr()
    assert to_tensor(array).data_ptr() == x.data_ptr()


def test_out() -> None:
    model, x = scale_model(), torch.ones(3, 4)
    y = torch.empty(3, 4)
    assert model(x, out=y) is y
    assert torch.equal(y, 2 * x + 10)


def test_one_tensor_among_arrays_is_enough() -> None:
    specs = [TensorSpec("a", "float32", (2,)), TensorSpec("b", "float32", (2,))]
    model = copy_model(specs, [TensorSpec("p", "float32", (2,)), TensorSpec("q", "float32", (2,))], [8, 8], [2, 2])
    assert all(isinstance(r, torch.Tensor) for r in model(np.ones(2, np.float32), torch.ones(2)))


@pytest.mark.parametrize(
    "x",
    [
        pytest.param(lambda: torch.ones(3, 4, device="meta"), id="meta"),
        pytest.param(lambda: torch.ones(3, 4).to_sparse(), id="sparse"),
    ],
)
def test_tensors_without_memory_here(x: object) -> None:
    with pytest.raises(InputError, match="'x'"):
        scale_model()(x())  # type: ignore[operator]
