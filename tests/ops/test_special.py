"""Special functions against mpmath (which PyTorch brings) at 30 digits, and PyTorch where it is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from tilewright import ops
from tilewright.build import driver
from tilewright.core import types
from tilewright.core.compute import Buffer, Stage, Value, operands
from tilewright.core.graph import Attrs, Builder, Graph, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import TensorType

FAR = np.array([1e-9, 1e-3, 0.2, 0.7, 1.0, 1.46, 2.0, 2.9, 3.1, 4.9, 7.9, 8.1, 11.3, 26.0, 77.7])
BOTH = np.concatenate([-FAR[:-1] - 0.123, FAR])
UNIT = np.array([1e-12, 1e-3, 0.2, 0.5, 0.9, 0.999, 1 - 1e-12])

RELATIVE: dict[str, tuple[OpDef, Callable[[Any], Any], np.ndarray]] = {
    "erfc": (ops.erfc, mpmath.erfc, BOTH[BOTH < 26]),
    "erfcx": (ops.erfcx, lambda x: mpmath.exp(x * x) * mpmath.erfc(x), BOTH[BOTH > -20]),
    "erfinv": (ops.erfinv, mpmath.erfinv, np.concatenate([-UNIT, UNIT])),
    "ndtri": (ops.ndtri, lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1), UNIT),
    "lgamma": (ops.lgamma, lambda x: mpmath.log(abs(mpmath.gamma(x))), BOTH),
    "digamma": (ops.digamma, mpmath.digamma, BOTH),
    "i0": (ops.bessel_i0, lambda x: mpmath.besseli(0, x), BOTH),
    "i0e": (ops.bessel_i0e, lambda x: mpmath.besseli(0, x) * mpmath.exp(-abs(x)), BOTH),
    "i1": (ops.bessel_i1, lambda x: mpmath.besseli(1, x), BOTH),
    "i1e": (ops.bessel_i1e, lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)), BOTH),
    "k0": (ops.bessel_k0, lambda x: mpmath.besselk(0, x), FAR),
    "k0e": (ops.bessel_k0e, lambda x: mpmath.besselk(0, x) * mpmath.exp(x), FAR),
    "k1": (ops.bessel_k1, lambda x: mpmath.besselk(1, x), FAR),
    "k1e": (ops.bessel_k1e, lambda x: mpmath.besselk(1, x) * mpmath.exp(x), FAR),
}
ABSOLUTE: dict[str, tuple[OpDef, Callable[[Any], Any], np.ndarray]] = {
    "j0": (ops.bessel_j0, lambda x: mpmath.besselj(0, x), BOTH),
    "j1": (ops.bessel_j1, lambda x: mpmath.besselj(1, x), BOTH),
    "y0": (ops.bessel_y0, lambda x: mpmath.bessely(0, x), FAR[1:]),
    "y1": (ops.bessel_y1, lambda x: mpmath.bessely(1, x), FAR[1:]),
    "airy": (ops.airy_ai, mpmath.airyai, BOTH),
}


def values(op: OpDef, *xs: np.ndarray) -> np.ndarray:
    return np.asarray(op.reference(list(xs), Attrs({})))


def exact(f: Callable[[Any], Any], xs: np.ndarray) -> np.ndarray:
    with mpmath.workdps(60):
        return np.array([float(f(mpmath.mpf(float(x)))) for x in xs])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", RELATIVE)
def test_relative_error(name: str) -> None:
    op, f, xs = RELATIVE[name]
    np.testing.assert_allclose(values(op, xs), exact(f, xs), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_error_where_they_oscillate(name: str) -> None:
    op, f, xs = ABSOLUTE[name]
    np.testing.assert_allclose(values(op, xs), exact(f, xs), rtol=1e-12, atol=1e-13)


def test_zeta_of_hurwitz() -> None:
    for s, q in [(1.5, 0.3), (2.0, 7.0), (9.0, 0.1), (3.0, 40.0), (2.0, -1.5), (3.0, -7.25), (5.0, -0.5)]:
        with mpmath.workdps(40):
            want = float(mpmath.nsum(lambda k, s=s, q=q: (q + k) ** -s, [0, mpmath.inf])) if q < 0 else float(
                mpmath.zeta(s, q))  # fmt: skip
        np.testing.assert_allclose(values(ops.zeta, np.array([s]), np.array([q])), [want], rtol=1e-12)


def test_edges_are_those_of_pytorch() -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, -2.0])
    pairs = [
        (ops.erfc, torch.erfc), (ops.erfcx, torch.special.erfcx), (ops.erfinv, torch.erfinv),
        (ops.lgamma, torch.lgamma), (ops.digamma, torch.digamma), (ops.ndtri, torch.special.ndtri),
        (ops.bessel_k0, torch.special.modified_bessel_k0), (ops.bessel_y1, torch.special.bessel_y1),
    ]  # fmt: skip
    for op, f in pairs:
        np.testing.assert_allclose(values(op, x), f(torch.tensor(x)).numpy(), rtol=1e-12, atol=1e-15, err_msg=op.name)


def test_erfinv_in_f64_is_right_to_two_units_in_the_last_place() -> None:
    """Beside mpmath: in the middle, where the polynomials meet, and next to 1."""
    near_one = 1 - 2.0 ** -np.arange(1, 54)
    meeting = np.sqrt(-np.expm1(-np.linspace(4.119, 4.122, 21)))
    x = np.concatenate([np.linspace(-0.9999, 0.9999, 401), near_one, meeting, [1e-300, 1e-17, -1e-9, 1e-4]])
    with mpmath.workdps(40):
        wanted = np.array([float(_exact_erfinv(v)) for v in x])
    found = [values(ops.erfinv, x), compiled_values(ops.erfinv, x)]
    for got in found:
        assert np.all(np.abs(got - wanted) <= 2 * np.spacing(np.abs(wanted)))


def _exact_erfinv(x: float) -> mpmath.mpf:
    """By Newton's iteration on the complement, which mpmath's own does not take next to 1."""
    v = mpmath.mpf(float(x))
    if abs(v) < 0.99:
        return mpmath.erfinv(v)
    q = 1 - abs(v)
    y = mpmath.findroot(lambda t: mpmath.log(mpmath.erfc(t)) - mpmath.log(q), mpmath.sqrt(-mpmath.log(q)))
    return mpmath.sign(v) * y


def compiled_values(op: OpDef, x: np.ndarray) -> np.ndarray:
    builder = Builder(Pool())
    node = builder.pool.input("x", TensorType(types.dtype_of(x.dtype), x.shape))
    graph = Graph(op.name, builder.pool, (node,), (builder(op, node),), ("y",))
    return np.asarray(driver.compile_graph(graph)(x))


def test_erfinv_in_f32_is_right_to_two_units_in_the_last_place() -> None:
    """The second form, in f32, against the first, in f64: also next to 1 and around 0."""
    near_one = 1 - np.float32(2.0) ** -np.arange(1, 25)
    x = np.concatenate([np.linspace(-1, 1, 4001), near_one, -near_one, [1e-30, -1e-6]]).astype(np.float32)
    builder = Builder(Pool())
    node = builder.pool.input("x", TensorType(types.f32, x.shape))
    graph = Graph("erfinv", builder.pool, (node,), (builder(ops.erfinv, node),), ("y",))
    got = np.asarray(driver.compile_graph(graph)(x)).astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = ops.erfinv.reference([x.astype(np.float64)], Attrs({}))
    assert got[0] == -np.inf and got[4000] == np.inf
    inside = np.isfinite(wanted)
    assert np.all(np.abs(got - wanted)[inside] <= 2.0**-22 * np.abs(wanted[inside]))
    assert np.isnan(np.asarray(driver.compile_graph(graph)(np.full_like(x, 1.5)))).all()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeta_at_its_edges(dtype: type) -> None:
    """Limits and poles, where s or q is infinite or q is whole; in between, far down the sum."""
    inf, nan = np.inf, np.nan
    rows = [
        (2, inf, 0), (inf, 2, 0), (inf, inf, 0), (inf, 1, 1), (inf, 0.5, inf), (inf, -0.5, inf), (inf, -1.5, inf),
        (2, 0, inf), (2, -3, inf), (3, -inf, inf), (1.5, -inf, inf), (1.5, -0.5, nan), (0.5, 2, nan), (-inf, 2, nan),
        (1, 2, inf), (nan, 2, nan), (2, nan, nan), (nan, 0.5, nan), (2, 1e30, 1e-30), (3, 1e15, 5e-31),
    ]  # fmt: skip
    s, q, want = np.array(rows, dtype).T
    builder = Builder(Pool())
    nodes = [builder.pool.input(name, TensorType(types.dtype_of(s.dtype), s.shape)) for name in "sq"]
    graph = Graph("zeta", builder.pool, tuple(nodes), (builder(ops.zeta, *nodes),), ("y",))
    for got in (values(ops.zeta, s, q), np.asarray(driver.compile_graph(graph)(s, q))):
        np.testing.assert_allclose(got, want, rtol=1e-6 if dtype is np.float32 else 1e-12)


def test_bessel_functions_at_infinity() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0])
    wanted = {
        ops.bessel_i0: [np.inf, np.inf, np.nan, 1], ops.bessel_i1: [np.inf, -np.inf, np.nan, 0],
        ops.bessel_i0e: [0, 0, np.nan, 1], ops.bessel_i1e: [0, 0, np.nan, 0],
    }  # fmt: skip
    for op, want in wanted.items():
        for dtype in (np.float32, np.float64):
            np.testing.assert_allclose(compiled_values(op, x.astype(dtype)), want, rtol=1e-15, err_msg=op.name)


def test_a_polynomial_is_two_chains() -> None:
    """A chain of additions and products waits for each: half as many follow each other as there are terms."""
    x, out = Buffer("x", types.f64, (4,)), Buffer("out", types.f64, (4,))
    assert ops.polynomial.compute is not None
    (stage,) = ops.polynomial.compute((x,), (out,), Attrs({"coefficients": (1.0,) * 20}))
    assert isinstance(stage, Stage)

    def depth(v: Value) -> int:
        return max((1 + depth(part) for part in operands(v)), default=0)

    assert depth(stage.expr) <= 12
