"""``as_strided`` reads and writes memory, whatever the order in which its operand's elements lie there."""

import random
from collections.abc import Callable

import pytest
import torch

import tilewright as tw
from frontend.test_dynamo_sharing import interpreted
from tilewright.integrations.torch_compile.backend import make_backend


def rows() -> torch.Tensor:
    return torch.arange(12.0).reshape(4, 3)


def written(x: torch.Tensor, *where: object) -> torch.Tensor:
    x.as_strided(*where).zero_()
    return x + 1


CASES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[], torch.Tensor]]] = {
    "a permuted argument": (lambda x: x.as_strided((3, 4), (4, 1)) + 1, lambda: rows().t()),
    "three axes": (lambda x: x.as_strided((3, 4), (4, 1)) + 1, lambda: rows().reshape(2, 2, 3).permute(2, 0, 1)),
    "a permuted value": (lambda x: (x * 2).as_strided((4, 3), (3, 1)) + 1, lambda: rows().t()),
    "a view of a value": (lambda x: (x * 2).t().as_strided((3, 4), (4, 1)) + 1, rows),
    "more than a part": (lambda x: (x * 2)[1:, 1:].as_strided((3, 3), (3, 1), 1) + 1, rows),
    "from a part on": (lambda x: (x * 2)[1:].as_strided((3,), (1,)) + 1, rows),
    "an argument's offset": (lambda x: x.as_strided((3,), (1,)) + 1, lambda: rows()[1:]),
    "before an argument": (lambda x: x.as_strided((3,), (1,), 0) + 1, lambda: rows()[1:]),
    "beyond an argument": (lambda x: x.as_strided((9,), (1,)) + 1, lambda: rows()[:2]),
    "an argument with gaps": (lambda x: x.as_strided((3,), (1,)) + 1, lambda: rows()[:, ::2]),
    "one of the rows": (lambda x: x.unbind()[0].as_strided((2, 2), (2, 1)) + 1, lambda: rows().t()),
    "a part of a value": (lambda x: (x * 2).t().split(2)[1].as_strided((2, 2), (3, 1)) + 1, rows),
    "complex numbers": (
        lambda x: torch.view_as_real(torch.complex(x, x + 1).t().as_strided((2, 3), (3, 1))) + 1, rows),
    "a scatter": (lambda x: torch.as_strided_scatter(x, torch.zeros(4), (4,), (1,)) + 1, lambda: rows().t()),
    "a scatter into gaps": (lambda x: torch.as_strided_scatter((x * 2)[:, ::2], torch.zeros(4), (4,), (1,)) + 1, rows),
    "a scatter into permuted gaps": (lambda x: torch.as_strided_scatter(
        (x * 2).reshape(2, 2, 3).permute(2, 0, 1)[1:], torch.ones(2), (2,), (3,), 1) + 1, rows),
    "a scatter beside an offset": (
        lambda x: torch.as_strided_scatter((x * 2).t()[1:], torch.zeros(2), (2,), (3,), 1) + 1, rows),
    "a scatter into a padded value": (lambda x: torch.as_strided_scatter(
        torch.nn.functional.pad(x, (1, 1))[:, 1:-1], torch.zeros(5), (5,), (2,), 1) + 1, rows),
    "a write to a value": (lambda x: written(x * 2, (4,), (1,)), lambda: rows().t()),
    "a write to an argument": (lambda x: written(x, (4,), (1,)), lambda: rows().t()),
    "a write into gaps": (lambda x: written(x, (4,), (1,)), lambda: rows()[:, ::2]),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore")  # of calls that PyTorch runs
def test_strides_are_those_of_memory(case: str, is_dynamic: bool) -> None:
    f, make = CASES[case]
    given, wanted = make(), make()
    torch._dynamo.reset()
    got = torch.compile(f, backend=make_backend(interpreted), dynamic=is_dynamic)(given)
    assert torch.equal(got, f(wanted))
    assert torch.equal(given, wanted)


def test_a_model_is_refused_whose_strides_are_not_those_of_elements() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.t().as_strided((3, 4), (4, 1)) + 1

    with pytest.raises(tw.CompileError, match="as_strided"):
        tw.compile(Net(), (rows(),), cache=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(10))
def test_random_scatters_into_views(seed: int) -> None:
    check_scatter(random.Random(seed))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_500_random_scatters_into_views() -> None:
    for seed in range(500):
        check_scatter(random.Random(seed))


def check_scatter(choose: random.Random) -> None:
    """A value, a view of it with gaps or in another order, and a scatter somewhere into the view's memory."""
    axes = choose.sample(range(3), 3)
    cuts = [slice(choose.randrange(2), None, choose.randint(1, 2)) for _ in axes]
    base = torch.arange(60.0).reshape(3, 4, 5)
    view = (base * 2).permute(axes)[tuple(cuts)]
    n, step = choose.randint(1, 4), choose.randint(1, 5)
    n = min(n, 1 + (view.numel() - 1) // step)  # tracing takes a view's memory for no longer than that
    at = choose.randint(0, view.numel() - 1 - (n - 1) * step)

    def scatter(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).permute(axes)[tuple(cuts)]
        return torch.as_strided_scatter(y, torch.full((n,), -1.0), (n,), (step,), at) + 1

    torch._dynamo.reset()
    got = torch.compile(scatter, backend=make_backend(interpreted), dynamic=False)(base)
    assert torch.equal(got, scatter(base))
