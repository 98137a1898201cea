"""Functions of what a mask takes out, and assignments by masks, where the mask holds everywhere, somewhere, nowhere."""

from collections.abc import Callable, Iterator

import pytest
import torch

import tilewright as tw
from frontend.test_torch_calls import Lambda
from tilewright.runtime.errors import ExecutionError

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


@pytest.mark.one_in(2)
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


# --- what PyTorch refuses -------------------------------------------------------------------------------------------

PICKS: dict[str, Function] = {
    "max": lambda x, m: x[m].max(),
    "min of integers": lambda x, m: x[m].long().min(),
    "max of truths": lambda x, m: (x[m] > 3).max(),
    "amax": lambda x, m: x[m].amax(),
    "argmin": lambda x, m: x[m].argmin(),
    "max along": lambda x, m: x[m].max(0).values,
    "median along": lambda x, m: x[m].median(0).values,
    "mode": lambda x, m: x[m].mode().values,
    "kthvalue": lambda x, m: x[m].kthvalue(1).values,
    "aminmax": lambda x, m: x[m].aminmax().max,
    "quantile": lambda x, m: x[m].quantile(0.5),
    "greatest magnitude": lambda x, m: torch.linalg.vector_norm(x[m], float("inf")),
    "adaptive mean": lambda x, m: torch.nn.functional.adaptive_avg_pool1d(x[m][None], 2),
    "first": lambda x, m: x[m][0],
    "last": lambda x, m: x[m][-1],
    "greatest in a branch": lambda x, m: torch.cond(
        x.sum() > 0, lambda x, m: x[m].max(), lambda x, m: x.sum() + m.sum(), (x, m)
    ),
}
COUNTS: dict[str, Function] = {
    "two values": lambda x, m: written(x, m & (x < 4), torch.ones(2)),
    "two values more": lambda x, m: x.index_put((m & (x < 4),), torch.ones(2), accumulate=True),
    "values of another mask": lambda x, m: written(x, m & (x < 4), x[x > 9]),
    "two columns": lambda x, m: written(x, (slice(None), m[0]), torch.ones(3, 2)),
    "no values": lambda x, m: written(x, m, torch.ones(0)),
    "too few in order": lambda x, m: x.masked_scatter(m, torch.ones(3)),
}
REFUSED = {**PICKS, **COUNTS}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_refuses_of_a_mask(name: str) -> None:
    """A pick out of nothing, and values that a mask has not as many places for."""
    function, refusals = REFUSED[name], 0
    compiled = tw.compile(Lambda(function), (X, MASKS[0]), threads=1, cache=False)
    torch._dynamo.reset()
    captured = torch.compile(function, backend="tilewright")
    for mask in MASKS:
        try:
            wanted = function(X, mask)
        except (RuntimeError, IndexError) as e:
            refusals += 1
            with pytest.raises(ExecutionError, match=r"element|places|must hold"):
                compiled(X, mask)
            if "branch" not in name:  # PyTorch traces no size of data through a branch
                with pytest.raises((RuntimeError, IndexError)) as raised:
                    captured(X, mask)
                assert type(raised.value) is type(e) or "Runtime assertion failed" in str(raised.value)
            continue
        torch.testing.assert_close(compiled(X, mask), wanted)
        torch.testing.assert_close(captured(X, mask), wanted)
    assert 0 < refusals < len(MASKS)


@pytest.fixture
def found_sizes() -> Iterator[None]:
    """Let Dynamo capture numbers and sizes of the data."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


@pytest.mark.usefixtures("found_sizes")
def test_what_a_program_asserts_under_torch_compile() -> None:
    """Of numbers, sizes and truths of the data; a call that breaks it raises PyTorch's own error."""

    def unequal(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        torch._check(n.sum().item() != 7, lambda: "seven is refused")
        return x * n

    def small(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        torch._assert_async(n.sum() < 5, "too large")
        return x + n

    def even(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        places = torch.nonzero(x > n)
        torch._check(places.shape[0] % 2 == 0)
        return places.float().sum(0)

    def floats(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        factor = (n * 1.5).item()
        torch._check(factor < 6.0)
        return x * factor

    for function in (unequal, small, even, floats):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="tilewright", fullgraph=True)
        raised = 0
        for n in (torch.tensor(k) for k in (1, 2, 3, 7, 10)):
            try:
                wanted = function(X, n)
            except RuntimeError:
                raised += 1
                with pytest.raises(RuntimeError, match=r"seven is refused|too large|Runtime assertion failed"):
                    compiled(X, n)
                continue
            torch.testing.assert_close(compiled(X, n), wanted)
        assert 0 < raised < 5, function
