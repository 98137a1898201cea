"""Small Fourier transforms as expressions: sums, differences and products by constants of complex values.

In: values of the elements. Out: values of the transform's elements, unscaled. A part that is known to be zero is None,
so that of real operands nothing is computed that is zero, and of results that are real nothing imaginary.
Not its business: which element lies where (``ops.fourier_pass``).

A length ``r1 * r2`` goes in two steps as in ``frontend.fourier``. A prime ``p`` sums pairs ``x[k], x[p - k]``, whose
cosines are equal and whose sines are opposite: ``(p - 1)**2`` products instead of four times as many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.core.compute import Const, Fma, Value

Part = Value | None
"""A real number; None is zero."""


@dataclass(frozen=True)
class Number:
    """A complex number."""

    re: Part
    im: Part

    @property
    def conjugate(self) -> Number:
        return Number(self.re, _negative(self.im))

    def __add__(self, other: Number) -> Number:
        return Number(_sum(self.re, other.re), _sum(self.im, other.im))

    def __sub__(self, other: Number) -> Number:
        return Number(_difference(self.re, other.re), _difference(self.im, other.im))

    def quarters(self, count: int) -> Number:
        """Turned by ``count`` quarters."""
        match count % 4:
            case 1:
                return Number(_negative(self.im), self.re)
            case 2:
                return Number(_negative(self.re), _negative(self.im))
            case 3:
                return Number(self.im, _negative(self.re))
        return self

    def times(self, re: Value, im: Value) -> Number:
        """The product with another number."""
        return Number(_sum_of_products(self.re, re, _negative(self.im), im), _sum_of_products(self.re, im, self.im, re))

    def turned(self, k: int, n: int) -> Number:
        """Times ``exp(2 pi i k / n)``."""
        if 4 * k % n == 0:
            return self.quarters(4 * k // n)
        if 8 * k % n == 0:
            turned = self.quarters((8 * k // n - 1) // 2)
            return Number(
                _scaled(_difference(turned.re, turned.im), math.sqrt(0.5)),
                _scaled(_sum(turned.re, turned.im), math.sqrt(0.5)),
            )
        dtype = next(part.dtype for part in (self.re, self.im) if part is not None)
        angle = 2 * math.pi * (k % n) / n
        return self.times(Const(math.cos(angle), dtype), Const(math.sin(angle), dtype))


def transformed(x: Sequence[Number], sign: int) -> list[Number]:
    """``sum of x[j] exp(sign 2 pi i j k / n)`` for each k."""
    n = len(x)
    if n == 1:
        return list(x)
    if n == 2:
        return [x[0] + x[1], x[0] - x[1]]
    n1 = _first_factor(n)
    if n1 == n:
        return _of_prime(x, sign)
    n2, is_real = n // n1, all(v.im is None for v in x)
    made: list[Number | None] = [None] * n
    inner = [transformed(x[j::n2], sign) for j in range(n2)]
    for k1 in range(n1 // 2 + 1 if is_real else n1):
        column = transformed([inner[j][k1].turned(sign * j * k1, n) for j in range(n2)], sign)
        made[k1::n1] = column
    return [v if v is not None else made[n - k].conjugate for k, v in enumerate(made)]  # type: ignore[union-attr]


def to_real(x: Sequence[Number], n: int, sign: int) -> list[Number]:
    """Of ``n`` elements of which ``x[n - k]`` is the conjugate of ``x[k]``: the first ``n // 2 + 1`` are given."""
    x = [Number(v.re, None if 2 * k % n == 0 else v.im) for k, v in enumerate(x)]
    if n <= 2:
        return transformed(x, sign)
    n1 = _first_factor(n)
    if n1 == n:
        return _of_prime([*x, *(v.conjugate for v in x[:0:-1])], sign)
    n2, whole = n // n1, [*x, *(v.conjugate for v in x[(n - 1) // 2 : 0 : -1])]
    made: list[Number] = [x[0]] * n
    inner = [to_real(whole[: n // 2 + 1 : n1][: n2 // 2 + 1], n2, sign)]
    inner += [transformed(whole[k1::n1], sign) for k1 in range(1, n1 // 2 + 1)]
    for j2 in range(n2):
        made[j2::n2] = to_real([inner[k1][j2].turned(sign * j2 * k1, n) for k1 in range(n1 // 2 + 1)], n1, sign)
    return made


def _first_factor(n: int) -> int:
    """4 where it divides (its turns cost nothing), else the smallest prime."""
    return 4 if n % 4 == 0 and n > 4 else next(p for p in range(2, n + 1) if n % p == 0)


def _of_prime(x: Sequence[Number], sign: int) -> list[Number]:
    p = len(x)
    pairs = [(k, x[k] + x[p - k], x[k] - x[p - k]) for k in range(1, p // 2 + 1)]
    total = x[0]
    for _, even, _ in pairs:
        total = total + even
    made = [total] * p
    for j in range(1, p // 2 + 1):
        even, odd = x[0], Number(None, None)
        for k, plus, minus in pairs:
            angle = 2 * math.pi * (j * k % p) / p
            even = _plus_scaled(even, plus, math.cos(angle))
            odd = _plus_scaled(odd, minus, sign * math.sin(angle))
        made[j], made[p - j] = even + odd.quarters(1), even - odd.quarters(1)
    return made


def _plus_scaled(total: Number, x: Number, factor: float) -> Number:
    return Number(_plus_product(total.re, x.re, factor), _plus_product(total.im, x.im, factor))


def _plus_product(total: Part, x: Part, factor: float) -> Part:
    if x is None:
        return total
    return _scaled(x, factor) if total is None else Fma(x, Const(factor, x.dtype), total)


def _scaled(x: Part, factor: float) -> Part:
    return None if x is None else x * Const(factor, x.dtype)


def _sum_of_products(a: Part, x: Value, b: Part, y: Value) -> Part:
    """``a*x + b*y``."""
    if a is None:
        return None if b is None else b * y
    return a * x if b is None else Fma(a, x, b * y)


def _negative(x: Part) -> Part:
    return None if x is None else -x


def _sum(x: Part, y: Part) -> Part:
    if x is None or y is None:
        return y if x is None else x
    return x + y


def _difference(x: Part, y: Part) -> Part:
    if x is None or y is None:
        return _negative(y) if x is None else x
    return x - y
