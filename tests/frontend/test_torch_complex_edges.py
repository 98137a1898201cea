"""Complex numbers whose parts are zeros of either sign, infinities and NaN, against eager PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilewright as tw

PARTS = (0.0, -0.0, 1.0, -2.5, 30.0, math.inf, -math.inf, math.nan)
NUMBERS = torch.tensor([complex(re, im) for re in PARTS for im in PARTS], dtype=torch.complex128)


class Each(torch.nn.Module):
    """Several functions of the same operands."""

    def __init__(self, *functions: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(f(*operands) for f in self.functions)


def check(*functions: Callable[..., torch.Tensor], operands: tuple[torch.Tensor, ...]) -> None:
    """Parts that are not finite are eager's; others lie as near as the number's size allows."""
    module = Each(*functions)
    made: Any = tw.compile(module, operands, cache=False, threads=1)(*operands)
    for k, (found, expected) in enumerate(zip(made, module(*operands), strict=True)):
        a, b = (torch.view_as_real(torch.as_tensor(x)) for x in (found, expected))
        finite = b.isfinite()
        size = torch.where(finite, b.abs(), 0).amax(-1, keepdim=True)
        near = (a - b).abs() <= 1e-12 * size + 1e-14
        same = torch.where(finite, near, (a == b) | (a.isnan() & b.isnan()))
        wrong = (~same).any(-1).nonzero().flatten().tolist()
        assert not wrong, (k, [(*(x[i].item() for x in operands), found[i].item(), expected[i].item()) for i in wrong])


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "functions",
    [
        (torch.exp, torch.sin),
        (torch.exp2, torch.cos),
        (torch.sinh, torch.cosh),
        (torch.tanh, torch.tan, torch.log, torch.log2, torch.sqrt),
        (torch.rsqrt, torch.reciprocal, torch.sigmoid, torch.sgn, torch.square, lambda z: 1j / z, lambda z: z / 0j),
    ],
)
def test_functions(functions: tuple[Callable[..., torch.Tensor], ...]) -> None:
    """Beside an infinity an angle that is none leaves the size infinite; division by zero divides each part."""
    check(*functions, operands=(NUMBERS,))


FAR = (709.5, 709.9, 710.5, 711.0, 1200.0, 1e300)
ANGLES = (0.5, 1.0, math.pi / 2, math.pi, 1e-200, 709.5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("functions", [(torch.exp, torch.sinh, torch.cosh), (torch.sin, torch.cos, torch.exp2)])
def test_a_part_is_finite_where_the_other_overflows(functions: tuple[Callable[..., torch.Tensor], ...]) -> None:
    pairs = [complex(s * far, t * angle) for far in FAR for angle in ANGLES for s in (1, -1) for t in (1, -1)]
    numbers = torch.tensor(pairs, dtype=torch.complex128)
    check(*functions, operands=(torch.cat([numbers, 1j * numbers]),))


def test_inverse_tangents_beside_their_poles() -> None:
    numbers = torch.tensor(
        [complex(s, t) for s in (1, -1) for t in (1e-200, -1e-12, 1e-8, 1e-7, 0.5)], dtype=torch.complex128
    )
    check(torch.atanh, torch.atan, operands=(torch.cat([numbers, 1j * numbers]),))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "exponents",
    [(-2, -1, -0.5), (0, 0.5, 1, 2, 3, 0j, 3 + 0j), (7,), (1.5,), (-1.5,), (math.inf,), (1.5 + 0.5j,), (-1j,)],
)
def test_powers_of_one_exponent(exponents: tuple[complex, ...]) -> None:
    """By products, by the angle and by the logarithm: PyTorch's way shows where a part is not finite."""
    check(*(lambda z, n=n: z**n for n in exponents), operands=(NUMBERS,))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "functions",
    [
        (torch.pow,),
        (torch.mul, torch.div, lambda x, y: torch.add(x, y, alpha=2)),
        (lambda x, y: torch.pow(x, y.real), lambda x, y: x.real / y),
        (lambda x, y: torch.addcmul(x, y, x, value=2), lambda x, y: torch.addcdiv(x, y, x, value=1j)),
    ],
)
def test_functions_of_two(functions: tuple[Callable[..., torch.Tensor], ...]) -> None:
    n = len(NUMBERS)
    check(*functions, operands=(NUMBERS.repeat_interleave(n), NUMBERS.repeat(n)))


def test_a_real_factor_or_divisor_scales_each_part() -> None:
    """PyTorch makes it complex, whose imaginary zero makes NaN beside an infinity (docs/promises.md)."""
    z = torch.tensor([complex(math.inf, 1), complex(-2, -math.inf)], dtype=torch.complex128)
    twice, half = tw.compile(Each(lambda z: z * 2.0, lambda z: z / 2.0), (z,), cache=False, threads=1)(z)
    assert torch.equal(torch.view_as_real(torch.as_tensor(twice)), torch.view_as_real(z) * 2)
    assert torch.equal(torch.view_as_real(torch.as_tensor(half)), torch.view_as_real(z) / 2)
