"""The order in which values that share parts are computed, and stored (``codegen.llvm.shared``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.codegen.llvm.shared import in_order
from tilewright.core import types
from tilewright.core.compute import Buffer, Load, Unary, Value, operands, symbols_of_value
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType
from tilewright.ops.butterflies import Number, transformed

LANE = Sym("lane")


def transform(n: int) -> list[Value]:
    """Real and imaginary parts of a transform of ``n`` elements, each turned by a factor that all lanes share."""
    x, table = Buffer("x", types.f32, (n, 2, 8)), Buffer("table", types.f32, (n, 2))
    given = [Number(Load(x, (k, 0, LANE)), Load(x, (k, 1, LANE))) for k in range(n)]
    made = [v.times(Load(table, (k, 0)), Load(table, (k, 1))) for k, v in enumerate(transformed(given, -1))]
    return [part for v in made for part in (v.re, v.im) if part is not None]


def one_by_one(roots: Sequence[Value]) -> list[Value]:
    """The order in which each root is computed before the next one."""
    done: dict[Value, None] = {}

    def visit(v: Value) -> None:
        if v not in done:
            for x in operands(v):
                visit(x)
            done[v] = None

    for root in roots:
        visit(root)
    return [v for v in done if LANE in symbols_of_value(v) and not (isinstance(v, Unary) and v.op == "neg")]


def most_alive(order: Sequence[Value]) -> int:
    """How many values of vectors wait for others at most."""
    place = {v: k for k, v in enumerate(order)}
    last = dict(place)

    def uses(v: Value, at: int) -> None:
        for x in operands(v):
            if x in place:
                last[x] = max(last[x], at)
            else:
                uses(x, at)

    for v, k in place.items():
        uses(v, k)
    return max(sum(place[v] <= k < last[v] for v in order) for k in range(len(order)))


@pytest.mark.parametrize("n", [2, 5, 8, 12, 16])
def test_parts_come_first_and_everything_comes_once(n: int) -> None:
    roots = transform(n)
    order = [v for run in in_order(roots, {LANE}) for v in run]
    assert sorted(map(id, set(order))) == sorted(map(id, order))
    assert set(order) >= set(roots)
    place = {v: k for k, v in enumerate(order)}
    assert all(place[x] < k for v, k in place.items() for x in operands(v) if x in place)


def test_a_transform_keeps_a_third_less_alive() -> None:
    """16 complex elements are 32 vectors; each result by itself keeps sums and differences of nearly all besides."""
    order = [v for run in in_order(transform(16), {LANE}) for v in run]
    assert 3 * most_alive(order) <= 2 * most_alive(one_by_one(transform(16)))


def pass_of(shape: tuple[int, ...], n: int) -> Graph:
    pool = Pool()
    b, x = Builder(pool), pool.input("x", TensorType(types.f32, shape))
    return Graph("transform", pool, (x,), (b(ops.fourier_pass, x, n=n, sign=-1),), ("y",))


@pytest.mark.parametrize("lanes", [1, 3, 8, 21])
def test_transforms_beside_each_other_are_right(lanes: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 16, 3, 1, 2, lanes)).astype(np.float32)
    found = compile_graph(pass_of(x.shape, 16), threads=1)(x)
    made = np.fft.fft(x[..., 0, :] + 1j * x[..., 1, :].astype(np.float64), axis=1)
    np.testing.assert_allclose(found, np.stack([made.real, made.imag], 4), rtol=1e-5, atol=1e-5)
