"""``x[t]`` with an integer in a tensor: compiled, as eager computes it, or left to PyTorch where it shares."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tilewright.integrations.torch_compile.plan import FallbackWarning

T, BACK = torch.tensor(3), torch.tensor(-2)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def check(function: Callable[..., Any], *args: torch.Tensor) -> list[str]:
    """Results and arguments are eager's; the words of the warnings of what fell back."""
    torch._dynamo.reset()
    ours, theirs = ([x.clone() for x in args] for _ in range(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = torch.compile(function, backend="tilewright", fullgraph=True)(*ours)
    torch.testing.assert_close(found, function(*theirs))
    torch.testing.assert_close(ours, theirs)
    return [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)]


READS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a step of a schedule": (lambda x, t, steps: x * steps[t].sqrt(), (numbers(4), T, numbers(10).abs())),
    "a view of it": (lambda x, t: x * x[t].view(-1, 1, 1), (numbers(5), T)),
    "behind an ellipsis": (lambda x, t: x[..., t] + 1, (numbers(3, 2, 10), BACK)),
    "two side by side": (lambda x, t, u: x[:, t, u] + 1, (numbers(5, 6, 7), T, BACK)),
    "two apart": (lambda x, t, u: x[t, :, u] + 1, (numbers(5, 6, 7), T, BACK)),
    "beside a number": (lambda x, t: x[1, :, t] + 1, (numbers(5, 6, 7), T)),
    "beside slices and an axis": (lambda x, t: x[None, t, 1:5:2] + 1, (numbers(5, 6, 7), T)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", READS)
def test_reads(name: str) -> None:
    function, args = READS[name]
    assert not check(function, *args)


def put(x: Any, t: Any, value: Any) -> Any:
    x[:, t] = value
    return x.sum()


def put_number(x: Any, t: Any) -> Any:
    x = x.clone()
    x[..., t, :] = 3.0
    return x


def put_two(x: Any, t: Any, u: Any, value: Any) -> Any:
    x = x.clone()
    x[t, :, u] = value
    return x


def put_beside_number(x: Any, t: Any, value: Any) -> Any:
    x[1, :, t] = value
    return x + 1


def update(x: Any, t: Any) -> Any:
    x[t] += x[0]
    x[:, t] *= 2
    return x + 1


WRITES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a row of a cache": (put, (numbers(4, 5, 3), T, numbers(4, 3))),
    "a value that is broadcast": (put, (numbers(4, 5, 3), T, numbers(4, 1))),
    "a value of the last axes": (put, (numbers(4, 5, 3), T, numbers(3))),
    "a number": (put_number, (numbers(2, 4, 5, 3), T)),
    "two apart": (put_two, (numbers(5, 6, 7), T, BACK, numbers(6))),
    "beside a number": (put_beside_number, (numbers(4, 6, 5), T, numbers(6))),
    "an operator": (update, (numbers(5, 5), T)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str) -> None:
    function, args = WRITES[name]
    assert not check(function, *args)


def read_late(x: Any, t: Any, value: Any) -> Any:
    row = x[t]
    x[t] = value
    return row * 2


def write_to_view(x: Any, t: Any) -> Any:
    x = x.clone()
    x[t].add_(1)
    return x


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x, t: x[t], (numbers(5, 3), T)),
        (read_late, (numbers(5, 3), T, numbers(3))),
        (write_to_view, (numbers(5, 3), T)),
    ],
)
def test_a_view_that_somebody_can_tell_from_a_copy_is_left(function: Callable[..., Any], args: Any) -> None:
    assert check(function, *args)
