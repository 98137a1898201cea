"""Functions of what a mask takes out, and assignments by masks, where the mask holds everywhere, somewhere, nowhere."""

from collections.abc import Callable

import pytest
import torch

import tilewright as tw
from frontend.test_torch_calls import Lambda

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
X = torch.arange(12.0).view(3, 4)
MASKS = [X % 2 == 0, X % 2 == 1, torch.ones(3, 4, dtype=torch.bool), torch.zeros(3, 4, dtype=torch.bool), X == 5]
COLUMNS = [torch.tensor(m) for m in ([True, False, True, False], [True] * 4, [False] * 4, [False, False, False, True])]


def written(x: torch.Tensor, place: object, value: object) -> torch.Tensor:
    y = x.clone()
    y[place] = value  # type: ignore[index]
    return y


ELEMENTS: dict[str, Function] = {
    "scaled": lambda x, m: written(x, m, x[m] * 2),
    "masked_scatter": lambda x, m: x.clone().masked_scatter_(m, x[m] + 1),
    "index_put": lambda x, m: torch.zeros_like(x).index_put(m.nonzero(as_tuple=True), x[m]),
    "index_add": lambda x, m: x.index_add(0, m[:, 0].nonzero().view(-1), x[m[:, 0]]),
    "sum": lambda x, m: x[m].sum() + x.sum(),
    "cumsum": lambda x, m: x[m].cumsum(0).sum(),
    "sort": lambda x, m: x[m].sort().values * 2,
    "softmax": lambda x, m: x[m].softmax(0),
    "cat": lambda x, m: torch.cat([x[m], x.view(-1)]).max(),
    "pairs": lambda x, m: (x[m][None] - x[m][:, None]).abs().sum(),
    "pad": lambda x, m: torch.nn.functional.pad(x[m], (1, 1)),
    "flip": lambda x, m: x[m].flip(0),
    "median": lambda x, m: x[m].median(),
    "nanmedian": lambda x, m: x[m].nanmedian(),
}
BY_COLUMNS: dict[str, Function] = {
    "number": lambda x, m: written(x, (slice(None), m), 0.0),
    "behind an ellipsis": lambda x, m: written(x, (..., m), 5.0),
    "column": lambda x, m: written(x, (slice(None), m), x[:, :1]),
    "same": lambda x, m: written(x, (slice(None), m), x[:, m] * 2),
    "row": lambda x, m: written(x, (slice(None), m), torch.arange(4.0)[m][None]),
    "of a row": lambda x, m: written(x, (1, m), 7.0),
}
CASES = [*((n, ELEMENTS[n], MASKS) for n in ELEMENTS), *((n, BY_COLUMNS[n], COLUMNS) for n in BY_COLUMNS)]


@pytest.mark.parametrize(("function", "masks"), [pytest.param(f, m, id=n) for n, f, m in CASES])
def test_a_function_of_a_mask(function: Function, masks: list[torch.Tensor]) -> None:
    compiled = tw.compile(Lambda(function), (X, masks[0]), threads=1, cache=False)
    for mask in masks:
        torch.testing.assert_close(compiled(X, mask), function(X, mask), equal_nan=True)


def test_counts_of_nothing_under_torch_compile() -> None:
    def counts(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.bincount(x[mask].long(), minlength=3)

    torch._dynamo.reset()
    compiled = torch.compile(counts, backend="tilewright")
    for mask in MASKS:
        assert torch.equal(compiled(X, mask), counts(X, mask))
