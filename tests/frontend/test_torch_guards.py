"""What an exported program was traced under holds at every call: the model answers as the program does, or refuses."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import tilewright as tw
from tilewright.frontend.torch.export import export_module
from tilewright.runtime.errors import InputError, TilewrightError
from tilewright.runtime.library import LibraryModel

Step = Callable[[torch.Tensor], torch.Tensor]


class Lambda(torch.nn.Module):
    """A module of one function."""

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, *args: torch.Tensor) -> Any:
        return self.f(*args)


def merged(x: torch.Tensor) -> torch.Tensor:
    """Swin's patch merging."""
    if x.shape[1] % 2:
        x = F.pad(x, (0, 0, 0, 1))
    return torch.cat([x[:, 0::2], x[:, 1::2]], -1)


def thirds_up(n: int) -> int:
    """Rounded up. PyTorch's expression for it holds a remainder, which does not grow with the size."""
    return (n + -n % 3) // 3


def auto(f: Callable[..., Any], *shapes: tuple[int, ...], axes: tuple[int, ...] = (1,)) -> tw.CompiledModel:
    """``f`` compiled for inputs like ``shapes``, the sizes along ``axes`` of all of them symbolic."""
    examples = tuple(torch.rand(s) for s in shapes)
    dynamic = {"args": tuple(dict.fromkeys(axes, Dim.AUTO) for _ in shapes)}
    return tw.compile(Lambda(f), examples, dynamic_shapes=dynamic, cache=False)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("f", "size", "wrong", "words"),
    [
        (merged, 8, 9, "must be a multiple of 2"),
        (lambda x: x.reshape(2, -1, 3 * x.shape[2]) if x.shape[1] % 3 == 0 else x, 9, 8, "must be a multiple of 3"),
        (lambda x: x * math.sqrt(2 / x.shape[1]), 8, 9, "must be 8"),
        (lambda x: F.interpolate(x, int(x.shape[1] * 0.75)), 8, 10, "must be at most 9"),
        (lambda x: x + 1 if x.shape[1] > 5 else x, 8, 4, "at least 6"),
        (lambda x: x + 1 if x.shape[1] ** 2 > 30 else x, 8, 4, "must be at least 6"),
        (lambda x: x + 1 if round(thirds_up(x.shape[1]) * 0.3) == 1 else x, 8, 13, "4 >= 0 must hold"),
    ],
)
def test_a_size_that_the_program_was_not_traced_for_is_named(f: Step, size: int, wrong: int, words: str) -> None:
    model = auto(f, (2, size, 4))
    assert model(torch.rand(2, size, 4)).dtype == torch.float32
    with pytest.raises(InputError, match=rf"(?s)input 'args_0', dimension 1.*{words}"):
        model(torch.rand(2, wrong, 4))


def test_guards_hold_in_files_exports_and_calls_that_write(tmp_path: Path) -> None:
    program = export_module(Lambda(merged), (torch.ones(1, 8, 4),), {"args": ({1: Dim.AUTO},)})
    torch.export.save(program, tmp_path / "merged.pt2")
    model = tw.compile(str(tmp_path / "merged.pt2"))
    model.save(tmp_path / "merged.tw")
    for m in (model, tw.load(tmp_path / "merged.tw")):
        for _ in range(3):  # the third is the native entry's
            assert m(np.ones((1, 8, 4), np.float32)).shape == (1, 4, 8)
        with pytest.raises(InputError, match="must be a multiple of 2"):
            m(np.ones((1, 9, 4), np.float32))
        with pytest.raises(InputError, match="must be a multiple of 2"):
            m(np.ones((1, 9, 4), np.float32), out=np.ones((1, 5, 8), np.float32))
    made = tw.export(str(tmp_path / "merged.pt2"), tmp_path / "c", name="merged", shared=True)
    assert "where args_0_dim1 % 2 == 0" in (tmp_path / "c" / "merged.h").read_text()
    with pytest.raises(TilewrightError, match="must be a multiple of 2"):
        LibraryModel(made.library)(np.ones((1, 9, 4), np.float32))


def test_a_guard_without_a_form_is_a_problem_of_the_model() -> None:
    with pytest.raises(tw.CompileError, match=r"the guard .*sin"):
        auto(lambda x: x + 1 if torch._sym_sin(x.shape[1]) > 0 else x, (2, 8, 4))


FOR_TWO: dict[str, Step] = {
    "slice": lambda x: x[:, :2] + 1,
    "narrow": lambda x: x.narrow(1, 0, 2),
    "from the end": lambda x: x[:, -2:].exp(),
    "select": lambda x: x[:, 1],
    "squeeze": lambda x: x.squeeze(1),
    "window": lambda x: F.avg_pool1d(x.mT, 2, 1),
}


@pytest.mark.parametrize("name", FOR_TWO)
def test_a_size_of_one_is_refused_where_the_trace_took_it_for_two(name: str) -> None:
    """Such code read behind the end of its input."""
    model = auto(FOR_TWO[name], (3, 8, 4))
    assert torch.equal(model(torch.ones(3, 5, 4)), FOR_TWO[name](torch.ones(3, 5, 4)))
    with pytest.raises(InputError, match="at least"):
        model(torch.ones(3, 1, 4))


def test_a_size_of_one_that_another_input_has_to_share() -> None:
    """PyTorch scatters no more indices than there are rows, so that a single row never comes with the example's six."""

    def f(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3, 4).scatter_reduce(0, index[:, None].expand(-1, 4), x, "sum")

    rows = {0: Dim.AUTO}
    model = tw.compile(Lambda(f), (torch.ones(6, 4), torch.arange(6) % 3), dynamic_shapes=((rows, rows),), cache=False)
    for n, m in ((1, 1), (6, 1), (4, 3)):
        assert torch.equal(model(torch.ones(n, 4), torch.arange(m)), f(torch.ones(n, 4), torch.arange(m)))
    with pytest.raises(InputError, match="must hold"):
        model(torch.ones(1, 4), torch.arange(3))


@pytest.mark.parametrize("dim", [Dim("n"), Dim("n", min=1), Dim.DYNAMIC])
def test_a_size_of_one_that_the_user_s_range_allows(dim: Any) -> None:
    def compiled(f: Step) -> tw.CompiledModel:
        return tw.compile(Lambda(f), (torch.rand(3, 8),), dynamic_shapes={"args": ({1: dim},)}, cache=False)

    with pytest.raises(InputError, match="at least 2"):
        compiled(lambda x: x[:, 1] + 1)(torch.ones(3, 1))
    assert torch.equal(compiled(lambda x: x[:, :-1] * x.mean())(torch.ones(3, 1)), torch.ones(3, 0))
    assert compiled(lambda x: x.softmax(1))(torch.ones(3, 1)).sum() == 3


def test_slices_of_several_sizes_stay_inside() -> None:
    model = auto(lambda x: x.reshape(-1)[:4] + 1, (3, 8), axes=(0, 1))
    assert model(torch.ones(1, 4)).shape == model(torch.ones(2, 2)).shape == (4,)
    with pytest.raises(InputError, match=r"args_0_dim0\*args_0_dim1"):
        model(torch.ones(1, 3))


# --- the family ------------------------------------------------------------------------------------------------------


class Random(torch.nn.Module):
    """Steps on [b, t, c], each of which looks at the sizes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = random.Random(seed)
        n = self.draw.randint(1, 3)
        self.steps = [self.draw.choice(STEPS)(self.draw) for _ in range(n)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        return x


def _branch(r: random.Random) -> Step:
    n, k = r.randint(2, 5), r.randint(0, 4)
    test = r.choice([
        lambda x: x.shape[1] % n == k % n,
        lambda x: x.shape[1] > 2 * n,
        lambda x: x.shape[1] * 2 < x.shape[2] + k,
        lambda x: x.shape[1] != n + k,
        lambda x: x.shape[1] // n == k,
        lambda x: x.shape[1] % n == 0 or x.shape[1] > 9,
        lambda x: not (x.shape[1] > n and x.shape[1] < 3 * n),
        lambda x: max(x.shape[1], 5) < min(x.shape[2], 12) + k,
        lambda x: x.shape[1] / x.shape[2] > 1.5,
        lambda x: x.shape[1] / n >= 0.7 * k,
        lambda x: math.sqrt(x.shape[1]) < n,
        lambda x: round(x.shape[1] * 0.3) == k,
        lambda x: math.ceil(x.shape[1] / n) > k,
        lambda x: math.floor(x.shape[1] * 1.7) < 11,
        lambda x: x.shape[1] ** 2 > 7 * n * k,
        lambda x: x.numel() > 40,
    ])  # fmt: skip
    return lambda x: x * 2 + 1 if test(x) else x - 3


def _padded(r: random.Random) -> Step:
    n = r.randint(2, 4)

    def pad(x: torch.Tensor) -> torch.Tensor:
        left = -x.shape[1] % n
        if left:
            x = F.pad(x, (0, 0, 0, left))
        return x.reshape(x.shape[0], x.shape[1] // n, n, x.shape[2]).sum(2)

    return pad


def _chunked(r: random.Random) -> Step:
    n = r.randint(2, 3)
    return lambda x: torch.cat([c * (k + 1) for k, c in enumerate(x.chunk(n, 1))], 1)


def _split(r: random.Random) -> Step:
    n = r.randint(2, 4)
    return lambda x: torch.cat([c.flip(1) for c in x.split(n, 1)], 1)


def _shuffled(r: random.Random) -> Step:
    n = r.randint(2, 3)
    return lambda x: x.reshape(x.shape[0], x.shape[1] // n, n * x.shape[2]) if x.shape[1] % n == 0 else x.cos()


def _cut(r: random.Random) -> Step:
    share, n = r.choice([0.75, 0.5, 0.3]), r.randint(1, 6)
    return r.choice([
        lambda x: F.interpolate(x.mT, int(x.shape[1] * share)).mT,
        lambda x: x[:, : min(x.shape[1], n)],
        lambda x: x[:, max(x.shape[1] - n, 0) :],
        lambda x: x[:, : x.shape[1] // 2] + x[:, (x.shape[1] + 1) // 2 :],
        lambda x: x.narrow(1, 0, n),
        lambda x: x.unfold(1, n, 1).sum(-1),
        lambda x: F.avg_pool1d(x.mT, n).mT,
    ])  # fmt: skip


def _scaled(r: random.Random) -> Step:
    n = r.randint(1, 9)
    return r.choice([
        lambda x: x * math.sqrt(n / x.shape[1]),
        lambda x: x * (n / x.shape[1]),
        lambda x: x / x.shape[2] ** 0.5,
        lambda x: x + x.transpose(1, 2) if x.shape[1] == x.shape[2] else x.exp(),
    ])  # fmt: skip


STEPS = (_branch, _branch, _padded, _chunked, _split, _shuffled, _cut, _scaled)


def cases(seeds: range) -> Iterator[tuple[int, str]]:
    """What became of each program at each of some sizes: ``same``, ``both refuse``, or what went wrong."""
    for seed in seeds:
        r = random.Random(seed)
        shape = (r.randint(1, 3), r.randint(2, 12), r.randint(2, 8))
        axes = r.choice([(1,), (1,), (1, 2), (0, 1)])
        try:
            module = Random(seed).eval()
            program = export_module(module, (torch.rand(shape),), {"x": dict.fromkeys(axes, Dim.AUTO)})
            traced = program.module()
        except Exception:  # a size of the example's own for which the module is none
            continue
        try:
            model = tw.compile(program, cache=False)
        except tw.CompileError as e:
            yield seed, f"not compiled: {e}"
            continue
        for call in range(7):
            largest = 14 if call else 1  # a size that no trace thinks of
            x = torch.rand([r.randint(1, largest) if k in axes else d for k, d in enumerate(shape)])
            yield seed, _outcome(traced, model, x)


def _outcome(traced: torch.nn.Module, model: Any, x: torch.Tensor) -> str:
    want, got = None, None
    with contextlib.suppress(Exception), torch.no_grad():
        want = traced(x)
    try:
        got = model(x)
    except TilewrightError as e:
        if 1 in x.shape and re.search("compiled for (at least|size) 2", str(e)):  # "size": a condition leaves 2 alone
            return "both refuse" if want is None else "no ones"  # as the trace took them for
        return "both refuse" if want is None else f"refused: {tuple(x.shape)}: {e}"
    if want is None:
        return f"accepted: {tuple(x.shape)}"
    return "same" if got.shape == want.shape and torch.allclose(got, want, atol=1e-5) else f"wrong: {tuple(x.shape)}"


def check_family(seeds: range) -> dict[str, int]:
    """How many programs and calls ended in which way; an ``AssertionError`` where one is wrong or refused alone."""
    found: dict[str, int] = {}
    for seed, what in cases(seeds):
        kind = what.split(":")[0]
        found[kind] = found.get(kind, 0) + 1
        assert kind in ("same", "both refuse", "no ones", "not compiled"), f"seed {seed}: {what}"
    return found


def test_random_guards() -> None:
    found = check_family(range(6))
    assert found["same"] > 2 and found["both refuse"] > 2


@pytest.mark.slow
def test_500_random_guards() -> None:
    found = check_family(range(12, 130))
    assert sum(found.values()) >= 500 and found.get("not compiled", 0) * 10 <= sum(found.values())


def thirds(n: int) -> tuple[int, int, int, int]:
    return 0, n // 3, 2 * n // 3, n


PARTS: dict[str, Step] = {
    "halves": lambda x: x[:, : x.shape[1] // 2] + x[:, (x.shape[1] + 1) // 2 :],
    "halves rounded up": lambda x: x[:, : (x.shape[1] + 1) // 2] + x[:, x.shape[1] // 2 :],
    "thirds": lambda x: x[:, : x.shape[1] // 3] + x[:, (2 * x.shape[1] + 2) // 3 :],
    "quarters": lambda x: x[:, : x.shape[1] // 4] + x[:, (3 * x.shape[1] + 3) // 4 :],
    "all thirds": lambda x: x[:, : x.shape[1] // 3 + (x.shape[1] + 1) // 3 + (x.shape[1] + 2) // 3] + x,
    "odd places": lambda x: x[:, 1::2] + x[:, (x.shape[1] + 1) // 2 :],
    "chunks": lambda x: x.chunk(2, 1)[1] + x[:, (x.shape[1] + 1) // 2 :],
    "joined": lambda x: torch.cat([x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1) + x,
    "joined places": lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1) + x,
    "three joined": lambda x: torch.cat([x[:, a:b] for a, b in itertools.pairwise(thirds(x.shape[1]))], 1) + x,
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("f", PARTS.values(), ids=PARTS.keys())
def test_rounded_parts_of_a_size(f: Step) -> None:
    """Valid for every size, and so nothing to refuse."""
    model = auto(f, (1, 9))
    program = torch.export.export(Lambda(f), (torch.rand(1, 9),), dynamic_shapes={"args": ({1: Dim.AUTO},)})
    for n in (*range(3, 17), 31):
        x = torch.rand(1, n)
        try:
            expected = program.module()(x)
        except (AssertionError, RuntimeError):  # a guard of the trace
            with pytest.raises(InputError):
                model(x)
            continue
        assert torch.equal(model(x), expected)


def every_second(x: torch.Tensor) -> torch.Tensor:
    """A Haar wavelet: only an even size has as many elements at odd places as at even ones."""
    return x[:, ::2] - x[:, 1::2]


def every_third(x: torch.Tensor) -> torch.Tensor:
    return x[:, ::3] + x[:, 1::3] * x[:, 2::3]


def lifted(x: torch.Tensor) -> torch.Tensor:
    """Three levels of a wavelet and back: what one guard makes of a size is simpler by another."""
    low, details = x, []
    for _ in range(3):
        details.append(low[:, 1::2] - low[:, ::2])
        low = low[:, ::2] + details[-1] / 2
    for detail in reversed(details):
        even = low - detail / 2
        low = torch.stack([even, detail + even], -1).flatten(1)
    return low


def windows_of_two_kinds(x: torch.Tensor) -> torch.Tensor:
    """As codecs of sound join two encoders, each with strides and borders of its own."""
    narrow, wide = torch.ones(1, 1, 1), torch.full((1, 1, 16), 0.25)
    return F.conv1d(x[:, None], narrow, stride=8) * F.conv1d(x[:, None], wide, stride=8, padding=4)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("f", "n"), [(every_second, 2), (every_third, 3), (lifted, 8), (windows_of_two_kinds, 8)])
def test_sizes_that_a_guard_makes_equal_are_equal(f: Step, n: int) -> None:
    model = tw.compile(Lambda(f), (torch.randn(2, 4 * n),), dynamic_shapes=(({1: Dim.AUTO},),), cache=False)
    compiled = torch.compile(f, backend="tilewright", dynamic=True, options={"fallback": False})
    for size in (4 * n, 5 * n, 12 * n):
        x = torch.randn(2, size)
        np.testing.assert_allclose(model(x), f(x), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(compiled(x), f(x), rtol=1e-6, atol=1e-6)
    with pytest.raises(InputError, match=str(4 * n + 1)):
        model(torch.randn(2, 4 * n + 1))


PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matrices": lambda a, b: a @ b,
    "a vector": lambda a, b: a @ b[0, :, 0],
    "one matrix": lambda a, b: torch.mm(a[0], b[0]),
    "one matrix and a bias": lambda a, b: torch.addmm(b[0, 0], a[0], b[0]),
    "a batch": torch.bmm,
    "a batch and a bias": lambda a, b: torch.baddbmm(b[:, :1], a, b),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", PRODUCTS)
def test_factors_meet_in_one_size(name: str) -> None:
    """``(n + n % 2) // 2`` rows and ``(m + 1) // 2`` columns: the program runs where they are as many.

    Sizes are odd, because PyTorch guards some of these programs to those.
    """

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        pairs = F.pad(y, (0, 0, 0, y.shape[1] % 2)).unflatten(1, (-1, 2)).sum(2)
        return PRODUCTS[name](x[..., ::2], pairs)

    def given(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(2, 4, n), torch.randn(2, n, 3)

    model = tw.compile(Lambda(f), given(7), dynamic_shapes=(({2: Dim.AUTO}, {1: Dim.AUTO}),), cache=False)
    for n in (5, 9, 13):
        args = given(n)
        np.testing.assert_allclose(model(*args), f(*args), rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError):
        model(given(7)[0], given(9)[1])


def test_keys_and_values_are_as_many_as_each_other() -> None:
    """PyTorch guards no such thing, and reads values that are not there."""

    def given(n: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(2, 2, 5, 4), torch.randn(2, 2, n, 4), torch.randn(2, 2, n, 4)

    shapes = ((None, {2: Dim.AUTO}, {2: Dim.AUTO}),)
    model = tw.compile(Lambda(F.scaled_dot_product_attention), given(7), dynamic_shapes=shapes, cache=False)
    for n in (7, 9):
        args = given(n)
        np.testing.assert_allclose(model(*args), F.scaled_dot_product_attention(*args), rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=r" args_2_dim2 == args_1_dim2 must hold"):
        model(*given(7)[:2], given(9)[2])


def test_places_in_a_table_are_as_many_as_each_other() -> None:
    """PyTorch finds out in the call; until then one list of places has a size of its own."""

    def f(x: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return torch.zeros(5, 5).index_put((row, column), x, accumulate=True)

    x, row, column = torch.randn(9), torch.arange(9) % 5, torch.arange(9) // 2
    model = tw.compile(Lambda(f), (x, row, column), dynamic_shapes=((None, None, {0: Dim.AUTO}),), cache=False)
    torch.testing.assert_close(torch.as_tensor(model(x, row, column)), f(x, row, column))
    with pytest.raises(InputError):
        model(x, row, torch.zeros(12, dtype=torch.int64))


def test_a_size_that_a_guard_makes_one_spreads() -> None:
    """``n // 4`` is 1 by a guard where it multiplies ``n`` rows, which does not say that it is ``n``."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        n = x.shape[0] // 4
        return x * w[:n, :1] + w[:n, :1].expand(5, 2).sum()

    calls = [(torch.randn(n, 11), torch.randn(8, 3)) for n in (4, 7)]
    shapes = (({0: Dim.AUTO, 1: Dim.AUTO}, {0: Dim.AUTO}),)
    model = tw.compile(Lambda(f), calls[0], dynamic_shapes=shapes, cache=False)
    for args in calls:
        torch.testing.assert_close(torch.as_tensor(model(*args)), f(*args))
    with pytest.raises(InputError, match="between 4 and 7"):
        model(torch.randn(8, 11), torch.randn(8, 3))
