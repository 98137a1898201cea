"""``as_strided`` reads and writes memory, whatever the order in which its operand's elements lie there."""

import math
import random
from collections.abc import Callable

import pytest
import torch

import tilewright as tw
from frontend.shared_results import function
from frontend.test_dynamo_sharing import interpreted
from tilewright.integrations.torch_compile.backend import make_backend
from tilewright.integrations.torch_compile.plan import FallbackWarning


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
    "a chunk's row": (lambda x: x.chunk(2)[1].unbind()[0].as_strided((2, 3), (2, 1)) + 1, lambda: rows().t()),
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


@pytest.mark.one_in(6)
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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("steps", [
    "(x * 2)[1:, ::2]", "(x * 2)[:, 1]", "torch.complex(x, x + 1).real[1:]", "(x * 2)[:2]",
    "torch.view_as_real(torch.complex(x, x))[:2]", "torch.linalg.eigvals(x[:3]).real",
])  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_memory_beside_the_elements_of_a_result_is_eager_s(steps: str, is_dynamic: bool) -> None:
    f = function(f"""def f(x):
    y = {steps}
    torch._dynamo.graph_break()
    return y, y.as_strided((3,), (1,)) * 1""")
    torch._dynamo.reset()
    compiled = torch.compile(f, backend=make_backend(interpreted), dynamic=is_dynamic)
    (got, read), (wanted, expected) = compiled(rows()), f(rows())
    assert torch.equal(read, expected)
    assert got.untyped_storage().nbytes() == wanted.untyped_storage().nbytes()
    assert got.storage_offset() == wanted.storage_offset()


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("cut", [(slice(None), slice(None, None, 2)), (slice(1, None, 2),), (slice(None), slice(1))])
def test_a_write_beside_an_argument_s_elements_is_left_to_pytorch(cut: tuple[slice, ...], is_dynamic: bool) -> None:
    """Tracing stores only the elements: aot_eager leaves zeros out."""
    memory, expected = rows(), rows()
    torch._dynamo.reset()
    with pytest.warns(FallbackWarning, match="what lies beside (the|its) elements"):
        got = torch.compile(written, backend=make_backend(interpreted), dynamic=is_dynamic)(memory[cut], (4,), (1,))
    assert torch.equal(got, written(expected[cut], (4,), (1,)))
    assert torch.equal(memory, expected)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_an_offset_is_from_the_start_of_the_calls_memory(is_dynamic: bool) -> None:
    """Where an argument begins in its memory is no guard of PyTorch's."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.as_strided((3,), (1,), 5) + 1, x[1:].as_strided((3,), (1,)) + 1

    torch._dynamo.reset()
    compiled = torch.compile(f, backend=make_backend(interpreted), dynamic=is_dynamic)
    for start in (0, 3, 4):
        x = torch.arange(24.0)[start : start + 12]
        for got, wanted in zip(compiled(x), f(x), strict=True):
            assert torch.equal(got, wanted)


def test_a_model_is_refused_whose_strides_are_not_those_of_elements() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.t().as_strided((3, 4), (4, 1)) + 1

    with pytest.raises(tw.CompileError, match="as_strided"):
        tw.compile(Net(), (rows(),), cache=False)


@pytest.mark.one_in(2)
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


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(6))
def test_random_views(seed: int) -> None:
    check_views(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_500_random_views() -> None:
    for seed in range(500):
        check_views(seed)


def check_views(seed: int) -> None:
    """A view of an argument that is itself one, or of a value, and a read somewhere in its memory.

    Every second program reads behind a graph break, in memory that an earlier graph gave; every third writes there.
    """
    choose = random.Random(seed)
    shape = [choose.randint(2, 5) for _ in range(choose.randint(1, 3))]
    whole = torch.arange(float(math.prod(shape))).reshape(shape)
    given = whole
    for _ in range(choose.randint(0, 2)):
        given = random_step(choose, given, VIEWS)(given)
    is_apart, is_written = seed % 2 == 1, seed % 3 == 2
    kinds = VIEWS + (OTHERS[1:] if is_apart else OTHERS)  # tracing gives an argument's "words" back as floats
    steps, y = [], given
    for _ in range(choose.randint(1, 4)):
        steps.append(random_step(choose, y, kinds))
        y = steps[-1](y)
    offset = choose.choice([None, choose.randrange(y.untyped_storage().nbytes() // y.element_size())])
    left = y.untyped_storage().nbytes() // y.element_size() - 1 - (y.storage_offset() if offset is None else offset)
    size, stride = [], []
    for _ in range(choose.randint(1, 2)):
        stride.append(choose.randint(1, 4))
        size.append(choose.randint(1, min(3, 1 + left // stride[-1])))
        left -= (size[-1] - 1) * stride[-1]

    def read(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for step in steps:
            x = step(x)
        if is_apart:
            torch._dynamo.graph_break()
        part = x.as_strided(size, stride, offset)
        if is_written:
            part.add_(3)
        return part + 1, x + 1

    was = whole.clone()

    def outcome(f: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> list[bytes]:
        """What a call returns, by dtype and elements, and what it leaves in the argument's memory."""
        whole.copy_(was)
        values = [(y.dtype, y.tolist()) for y in f(given)]
        return [str(values).encode(), bytes(whole.untyped_storage())]

    wanted = outcome(read)
    for is_dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(read, backend=make_backend(interpreted), dynamic=is_dynamic)
        assert outcome(compiled) == wanted, seed


Step = Callable[[torch.Tensor], torch.Tensor]
VIEWS = ("transpose", "cut", "chunk", "split", "unbind", "unfold", "diagonal")
OTHERS = ("words", "expand", "parts", "product", "complex", "real", "imag", "conj")


def random_step(choose: random.Random, x: torch.Tensor, kinds: tuple[str, ...]) -> Step:
    """A call that ``x`` allows; the tensor itself where it allows none of the kind drawn."""
    kind, axis = choose.choice(kinds), choose.randrange(max(x.dim(), 1))
    n = x.shape[axis] if x.dim() else 1
    start, step = choose.randrange(n), choose.randint(1, 2)
    if n == 1 or (x.dtype != torch.float32 and kind in ("words", "parts", "complex")):
        return lambda y: y
    if not x.is_complex() and kind in ("real", "imag", "conj"):
        return lambda y: y
    if x.dim() == 1 and kind in ("transpose", "unbind", "diagonal"):
        return lambda y: y
    calls: dict[str, Step] = {
        "transpose": lambda y: y.transpose(0, -1),
        "cut": lambda y: y[(slice(None),) * axis + (slice(start, None, step),)],
        "chunk": lambda y: y.chunk(2, axis)[start % 2],
        "split": lambda y: y.split(2, axis)[start // 2],
        "unbind": lambda y: y.unbind(axis)[start],
        "unfold": lambda y: y.unfold(axis, 2, 1),
        "diagonal": lambda y: y.diagonal(),
        "words": lambda y: y.view(torch.int32),
        "expand": lambda y: y.unsqueeze(0).expand(2, *y.shape),
        "parts": lambda y: torch.view_as_real(torch.complex(y, y + 1)),
        "product": lambda y: y * 2,
        "complex": lambda y: torch.complex(y, y - 1),
        "real": lambda y: y.real,
        "imag": lambda y: y.imag,
        "conj": lambda y: y.conj(),
    }
    return calls[kind]


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("shape", "where"), [((5, 7), (2,)), ((5, 7), (-1, 1, 0)), ((3, 5, 7), (-2, 1, 2))])
def test_a_diagonal_of_free_sizes_is_written(shape: tuple[int, ...], where: tuple[int, ...]) -> None:
    class Diagonal(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.clone()
            y.diagonal(*where).mul_(-3)
            return y

    free = {k: torch.export.Dim.AUTO for k in range(len(shape))}
    made = tw.compile(Diagonal(), (torch.rand(shape),), dynamic_shapes=(free,), cache=False)
    for more in (0, 2, 3):
        x = torch.rand([n + more for n in shape])
        torch.testing.assert_close(made(x), Diagonal()(x))
