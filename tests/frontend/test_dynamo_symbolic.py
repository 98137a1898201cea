"""Symbolic sizes under ``torch.compile(dynamic=True)``: cuts, pads, views and splits beside eager PyTorch.

``make fuzz`` runs 500 random functions; a failure names its seed, and ``symbolic_programs.program(seed).text`` is it.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from frontend.symbolic_programs import program
from tilewright.integrations.torch_compile.capture import FallbackWarning

QUICK, ALL = 1, 500


def check(f: Callable[..., Any], *calls: tuple[Any, ...], strict: bool = True, backend: Any = "tilewright") -> None:
    """Compile once and compare every call with eager; ``strict`` lets nothing fall back."""
    torch._dynamo.reset()
    compiled = torch.compile(f, backend=backend, dynamic=True)
    for args in calls:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "" if strict else ".*the compiler failed", FallbackWarning)
            got = compiled(*args)
        torch.testing.assert_close(got, f(*args), rtol=1e-4, atol=1e-4)


def test_a_slice_of_a_size_of_unknown_sign() -> None:
    def f(x: torch.Tensor, q: int = 4) -> torch.Tensor:
        n, length, width = x.shape
        return F.pad(x, (0, 0, 0, -length % q)).view(n, -1, q, width).sum(2)[:, :, None] * 2

    check(f, (torch.randn(2, 9, 8),), (torch.randn(2, 9, 8), 3), (torch.randn(3, 12, 5), 4), (torch.randn(2, 7, 4), 2))


def test_sizes_that_another_piece_computes() -> None:
    def f(x: torch.Tensor, p: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        out, start = [], 0
        for n in sizes:
            out.append(x[start : start + n] * 2.0)
            start += n
        return (torch.cat(out).view(-1, 2, 8) * p.unsqueeze(-1)).sum(1).view(2, -1, 8)

    check(f, (torch.randn(32, 8), torch.randn(16, 2), [5, 2, 3, 4, 6, 12]))
    check(f, (torch.randn(24, 8), torch.randn(12, 2), [2, 2, 3, 3, 4, 10]))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("f", [
    lambda x, n: x[n:] * 2,
    lambda x, n: x[:n] + 1,
    lambda x, n: x[-n:] + 1,
    lambda x, n: x[:, n - 3 :] + 1,
    lambda x, n: x.narrow(1, n, 2) + 1,
    lambda x, n: x.select(0, n - 2) + 1,
    lambda x, n: torch.roll(x, n - 2, 0) + 1,
    lambda x, n: (x * 2)[:, n - 3 :],
    lambda x, n: (x * 2).as_strided((2, 2), (n, 1)),
    lambda x, n: (x * 2)[:, torch.arange(max(x.shape[1] - n, 0))],
])  # fmt: skip
def test_bounds_of_either_sign(f: Callable[..., Any]) -> None:
    check(f, *((torch.randn(7 + n, 9), n) for n in (3, 2, 1, 4)))


@pytest.mark.slow
def test_a_number_and_its_successor_both_come_in() -> None:
    """PyTorch writes ``tril(n)`` with ``n + 1``, which it passes before ``n``, whose sign is not known."""

    def f(x: torch.Tensor, q: int, n: int) -> torch.Tensor:
        return torch.diagonal(x * 2, n - q).tril(n)

    check(f, *((torch.randn(size), q, n) for size, q, n in (((9, 4, 9), 3, 4), ((4, 9, 7), 3, 3), ((5, 9, 9), 5, 1))))


@pytest.mark.slow
def test_positions_of_an_image_of_symbolic_size() -> None:
    """What PyTorch knows of sizes is used: the sum's shape is the table's."""

    def f(x: torch.Tensor, kernel: torch.Tensor, table: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        patches = F.conv2d(x, kernel, stride=8).flatten(2).transpose(1, 2)
        return torch.cat([patches[:, :1], patches], 1)[:, 1:] @ w + table

    kernel, w = torch.randn(4, 3, 8, 8), torch.randn(4, 4)
    sizes = ((2, 32), (3, 39), (2, 24))
    check(f, *((torch.randn(n, 3, s, s), kernel, torch.randn((s // 8) ** 2, 4), w) for n, s in sizes))


@pytest.mark.slow
def test_places_of_an_image_as_the_terms_of_a_product() -> None:
    """PyTorch knows that ``(h // 8) * (w // 8)`` is 16."""

    def g(x: torch.Tensor, kernel: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, kernel, stride=8).flatten(2) @ w

    kernel = torch.randn(4, 3, 8, 8)
    check(g, *((torch.randn(n, 3, s, t), kernel, torch.randn(16, 5)) for n, s, t in ((2, 32, 32), (3, 39, 34))))


def test_an_equation_that_gives_no_size_a_value() -> None:
    """Dynamo's guards hold ``2*a + 3*b == 30``, and that all parts of ``x`` are twice as many rows as ``p`` has."""

    def f(x: torch.Tensor, y: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([x.repeat(3), y.repeat(2)])
        return torch.complex(joined, joined.cumsum(0)).abs() * table + F.pad(joined[2:], (2, 0)) @ table

    def g(x: torch.Tensor, p: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        return torch.cat([part * k for k, part in enumerate(x.split(sizes))]) * p.repeat_interleave(2, 0)

    check(f, *((torch.randn(b), torch.randn(a), torch.randn(30)) for a, b in ((9, 4), (6, 6), (12, 2))))
    check(g, *((torch.randn(32, 8), torch.randn(16, 8), n) for n in ([5, 2, 3, 4, 6, 12], [2, 2, 3, 3, 10, 12])))


def test_a_size_that_the_trace_took_for_one() -> None:
    """PyTorch guards that ``k`` is 1, and goes on to write it as a quotient; ``w[:, :k]`` spreads along the other."""

    def places(x: torch.Tensor, w: torch.Tensor, q: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        y = x.reshape(-1, q)
        return y, w, (-y.shape[-1] % q + y.shape[-1]) // q

    def points(x: torch.Tensor, w: torch.Tensor, q: int) -> torch.Tensor:
        y, w, k = places(x, w, q)
        return y * w[:1, :k] + torch.where(w[:1, :k] > 0, w[0, :k], y)

    def moves(x: torch.Tensor, w: torch.Tensor, q: int) -> tuple[torch.Tensor, ...]:
        y, w, k = places(x, w, q)
        filled = y.clone()
        filled[:, :2] = w[:1, :k]
        lookup = y[(w[:1, :k] > 9).long(), torch.arange(2)]
        return w[:1, :k].expand(3, 5), filled, lookup, w[None, :k, :2] @ torch.stack([y[:2], y[:2].sin()])

    calls = [(torch.randn(n, 11), torch.randn(8, m), 2) for n, m in ((12, 11), (10, 9), (4, 7))]
    check(points, *calls)
    check(moves, *calls)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", [*range(QUICK), 107])
def test_random_functions(seed: int) -> None:
    check_seed(seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(QUICK, ALL))
def test_many_random_functions(seed: int) -> None:
    check_seed(seed)


def check_seed(seed: int, backend: Any = "tilewright") -> None:
    made = program(seed)
    check(made.f, *made.calls, strict=False, backend=backend)
