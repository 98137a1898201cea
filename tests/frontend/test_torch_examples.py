"""Modules and example inputs that can't be captured: each mistake has its own remedy."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.core.diag import CompileError, OptionError
from tilewright.frontend.torch.fx.walk import _unsupported


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, features: Any, shift: Any = None) -> Any:
        y = self.inner(features)
        return y if shift is None else y + shift


class Branching(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Aligned(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.nn.functional.ctc_loss(x, torch.ones(2, 2, dtype=torch.int64), torch.ones(2), torch.ones(2))


def quantised() -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: torch.nn.Module = torch.ao.quantization.quantize_dynamic(Net(), {torch.nn.Linear})
        return made


X = torch.ones(2, 4)
MISTAKES: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "no tuple": (Net, X, r"around one tensor: example_inputs=\(x,\)"),
    "a number": (Net, 5, "write a tuple"),
    "a text": (Net, "features", "write a tuple"),
    "an iterator": (Net, iter((X,)), "write a tuple"),
    "scripted": (lambda: torch.jit.script(torch.nn.Linear(4, 3)), (X,), "compile the nn.Module that was scripted"),
    "traced": (lambda: torch.jit.trace(Net(), (X,)), (X,), "compile the nn.Module that was scripted"),
    "a scripted part": (
        lambda: torch.nn.Sequential(torch.jit.script(torch.nn.Linear(4, 3))),
        (X,),
        'in place of "0", which is TorchScript',
    ),
    "a misspelled name": (Net, {"feature": X}, "write 'features' for 'feature'"),
    "an unknown name": (Net, {"features": X, "zzz": X}, "leave out 'zzz'"),
    "too many": (Net, (X, X, X), r"forward takes \(features.*, shift"),
    "too few": (Net, (), r"missing a required argument: 'features'"),
    "quantised": (quantised, (X,), '(?s)Net has PyTorch.s packed.* in "inner".*bf16'),
    "a meta input": (Net, (X.to("meta"),), "make the example inputs with device='cpu'"),
    "a sparse input": (Net, (X.to_sparse(),), r"x\.to_dense\(\)"),
    "meta weights": (lambda: Net().to("meta"), (X,), '(?s)Net has meta.*: "inner.weight", "inner.bias".*to_empty'),
    "all meta": (lambda: Net().to("meta"), (X.to("meta"),), "to_empty"),
    "arrays": (Net, (X.numpy(),), "torch.from_numpy"),
    "another width": (Net, (torch.ones(2, 5),), r"check that module\(\*example_inputs\) runs"),
    "what tracing can't follow": (Aligned, (torch.ones(3, 2, 4),), "compute F.ctc_loss outside of the module"),
    "control flow": (Branching, (X,), "keep Python control flow in forward free of data"),
}


@pytest.mark.parametrize(("make", "inputs", "part"), MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_has_its_own_remedy(make: Callable[[], Any], inputs: Any, part: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = make()
    with pytest.raises((CompileError, OptionError), match=part) as caught:
        tw.compile(module, inputs, cache=False)
    assert caught.value.remedy
    assert ("control flow" in caught.value.remedy) == (make is Branching)


def test_names_of_dynamic_sizes_have_their_remedy() -> None:
    shapes = {"x": {0: torch.export.Dim("rows")}}
    with pytest.raises(CompileError, match=r"write dynamic_shapes as torch\.export takes it"):
        tw.compile(Net(), (X,), dynamic_shapes=shapes, cache=False)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_a_sequence_that_tracing_unrolls_is_told_so(kind: type[torch.nn.Module]) -> None:
    layer, x, dim = kind(3, 2), torch.ones(4, 1, 3), torch.export.Dim
    with pytest.raises(CompileError, match="give that size a number, as PyTorch's tracing does"):
        tw.compile(layer, (x,), dynamic_shapes=({0: dim("steps")},), cache=False)
    made = tw.compile(layer, (x,), dynamic_shapes=({0: dim.AUTO},), cache=False, threads=1)
    with pytest.raises(tw.InputError, match="makes a number of a Dim"):
        made(torch.ones(5, 1, 3))


@pytest.mark.parametrize("shapes", [3, "rows", {0}, object()])
def test_dynamic_shapes_of_a_wrong_type_are_named(shapes: Any) -> None:
    with pytest.raises(OptionError, match=r"dynamic_shapes=.* is of type") as caught:
        tw.compile(Net(), (X,), dynamic_shapes=shapes, cache=False)
    assert "Dim('batch')" in caught.value.remedy


def test_what_is_right_is_taken() -> None:
    for inputs in ((X,), [X], {"features": X}, {"features": X, "shift": torch.ones(3)}):
        tw.compile(Net(), inputs, cache=False)


INNER = torch.nn.Linear(4, 3)


class Scaled:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return INNER(x) * 3


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: INNER(x) * 2, (X,)),  # what it reads beside its arguments is constant
        (lambda x, *, scale: x * scale, {"x": X, "scale": X + 1}),
        (torch.relu, (X,)),  # has no signature
        (INNER.forward, (X,)),
        (Scaled(), (X,)),
        (partial(torch.sum, dim=0), (X,)),
        (torch.nn.functional.softmax, (X, -1)),
    ],
)
def test_functions_of_tensors_compile(function: Callable[..., Any], inputs: Any) -> None:
    model = tw.compile(function, inputs, cache=False)
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    with torch.no_grad():
        torch.testing.assert_close(model(*args, **kwargs), function(*args, **kwargs))


def test_a_function_of_any_number_of_rows() -> None:
    shapes = {"x": {0: torch.export.Dim("rows")}}
    model = tw.compile(lambda x: x * 2, (X,), dynamic_shapes=shapes, cache=False)
    torch.testing.assert_close(model(torch.ones(7, 4)), torch.full((7, 4), 2.0))


@pytest.mark.parametrize(
    ("source", "inputs", "remedy"),
    [
        (lambda x: x, None, r"tilewright\.jit"),
        (lambda x: x, (X.numpy(),), r"tilewright\.jit"),
        (torch.nn.Linear, (X,), r"an instance first: Linear\("),
        (3, (X,), "a function of tensors"),
    ],
)
def test_what_is_no_model_has_its_remedy(source: Any, inputs: Any, remedy: str) -> None:
    with pytest.raises(OptionError) as caught:
        tw.compile(source, inputs, cache=False)
    assert re.search(remedy, caught.value.remedy)


def test_an_exported_program_without_elements() -> None:
    program = torch.export.export(Net().to("meta"), (X.to("meta"),))
    with pytest.raises(CompileError, match="meta tensors, which have no elements"):
        tw.compile(program, cache=False)


@pytest.mark.parametrize("name", ["aten.addmm.default", "aten.mm.default", "aten.conv2d.default", "aten.relu_.default"])
def test_no_op_is_its_own_nearest(name: str) -> None:
    for is_complex in (False, True):
        error = _unsupported(name, is_complex=is_complex, is_known=False)
        assert f"nearest supported form is {name}" not in error.remedy and error.remedy
    assert "complex" in _unsupported("aten.addmm.default", is_complex=True, is_known=False).rule
