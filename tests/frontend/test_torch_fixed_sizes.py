"""Programs that only work where data decide on a certain size: compiled for it, refused by a call that has another."""

from collections.abc import Callable

import pytest
import torch

import tilewright as tw
from frontend.test_torch_calls import Lambda
from tilewright.runtime.errors import ExecutionError

T = torch.tensor
Function = Callable[[torch.Tensor], torch.Tensor]
PROGRAMS: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "bincount": (
        lambda x: torch.bincount(x, minlength=4) * torch.arange(4),
        [T([0, 1, 2, 3, 3]), T([0, 0, 0, 0, 3]), T([0, 1, 0, 0, 2]), T([0, 5, 0, 0, 3]), T([0, 4, 0, 0, 3])],
    ),
    "mask": (
        lambda x: x[x > 0] + torch.arange(3.0),
        [T([1.0, -1, 2, 3]), T([-1.0, 1, 2, 3]), T([-1.0, 1, -2, 3]), torch.ones(4), -torch.ones(4)],
    ),
    "masked_select": (
        lambda x: torch.masked_select(x, x > 0) * torch.arange(3.0),
        [T([[1.0, -1], [2, 3]]), T([[-1.0, 1], [2, 3]]), torch.ones(2, 2), -torch.ones(2, 2)],
    ),
    "nonzero": (
        lambda x: torch.nonzero(x).view(3) * torch.arange(3),
        [T([1, 0, 2, 3]), T([0, 1, 2, 3]), T([1, 1, 1, 1]), T([0, 0, 0, 0])],
    ),
    "repeat_interleave": (
        lambda x: torch.repeat_interleave(torch.arange(3) * 2, x) + torch.arange(4),
        [T([1, 2, 1]), T([0, 4, 0]), T([4, 0, 0]), T([0, 4, 1]), T([0, 1, 1]), T([9, 1, 1])],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_size_that_the_program_needs(name: str) -> None:
    function, values = PROGRAMS[name]
    compiled = tw.compile(Lambda(function), (values[0],), threads=1, cache=False)
    n_refused = 0
    for x in values:
        try:
            wanted = function(x)
        except RuntimeError:
            with pytest.raises(ExecutionError, match="must hold where the data decide"):
                compiled(x)
            n_refused += 1
            continue
        assert torch.equal(compiled(x), wanted), x
    assert 0 < n_refused < len(values) - 1


def _without_one(x: torch.Tensor) -> torch.Tensor:
    kept = (torch.arange(x.shape[1]) != 1)[None] & (x > -9)
    return x[kept].view(x.shape[0], x.shape[1] - 1) * 2


SYMBOLIC: dict[str, Function] = {
    "half of it": lambda x: (
        torch.arange(x.shape[1]).repeat_interleave((x[0] > -9).long() * 2).view(-1, 2) + x.t()[:, :1]
    ),
    "mask": _without_one,
    "nonzero": lambda x: torch.nonzero(x[0] > -9)[:, 0] + torch.arange(x.shape[1]) * x[0],
    "repeat_interleave": lambda x: torch.repeat_interleave(torch.arange(x.shape[1]), (x[0] > -9).long()) * x[0],
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", SYMBOLIC)
def test_a_size_of_the_call_that_the_program_needs(name: str) -> None:
    """The data must decide on a size that follows from those of the inputs."""
    function = SYMBOLIC[name]
    auto = torch.export.Dim.AUTO
    compiled = tw.compile(
        Lambda(function), (torch.randn(3, 5),), dynamic_shapes=({0: auto, 1: auto},), threads=1, cache=False
    )
    for n, m in ((3, 5), (4, 7), (2, 3)):
        x = torch.randn(n, m)
        assert torch.equal(torch.as_tensor(compiled(x)), function(x))
        x[0, 0] = -10
        with pytest.raises(ExecutionError, match="must hold where the data decide"):
            compiled(x)
