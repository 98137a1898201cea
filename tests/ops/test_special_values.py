"""NaN and infinity in the operands of every op, in every float type: native code against the op's NumPy reference.

What ``docs/promises.md`` leaves open is left out here, by op and operand: ``LEFT_OPEN``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ops.running import converted, describe, sample_calls
from test_every_op import graph_of, has_no_bound
from tilewright import ops
from tilewright.build import driver
from tilewright.core import types
from tilewright.core.diag import CompileError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.opdef import OpDef, Sample, Trait
from tilewright.core.types import Array

TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 6e-2}
SPECIAL = (np.nan, np.inf, -np.inf)
MATRICES = (ops.cholesky, ops.lu, ops.solve_triangular, ops.geqrf, ops.reflect, ops.orthogonal, ops.eigh, ops.eigvalsh,
            ops.svd, ops.svdvals, ops.ldl, ops.solve_ldl)  # fmt: skip
ANY = frozenset(range(8))
LEFT_OPEN: dict[OpDef, frozenset[int]] = {
    **dict.fromkeys(MATRICES, ANY),
    ops.winograd_conv: ANY,
    ops.fourier: ANY,
    ops.fourier_library: ANY,
    ops.fourier_pass: ANY,
    ops.coded_matmul: frozenset({2}),
    ops.scaled_matmul: frozenset({2}),
    ops.conv: frozenset({1}),
    ops.conv_transpose: frozenset({1}),
    ops.batch_norm: frozenset({1, 2, 3, 4}),
    ops.group_norm: frozenset({1, 2}),
    ops.attention: frozenset({2}),
}
QUICK = 1  # calls of an op


def calls_of(op: OpDef) -> Iterator[Sample]:
    """The samples that have numbers to replace; those of f32 in the other types too."""
    for call in sample_calls(op, 0):
        for dtype in (None, *types.FLOATS):
            made = call if dtype is None else converted(call, dtype)
            is_f32 = any(types.dtype_of(a.dtype) is types.f32 for a in call.arrays)
            if made is not None and (dtype is None or is_f32) and replaceable(op, made.arrays):
                yield made


def replaceable(op: OpDef, arrays: tuple[Array, ...]) -> list[int]:
    kept = LEFT_OPEN.get(op, frozenset())
    return [k for k, a in enumerate(arrays) if types.dtype_of(a.dtype).is_float and a.size and k not in kept]


def with_special(op: OpDef, arrays: tuple[Array, ...], rng: np.random.Generator) -> Iterator[list[Array]]:
    """One such value in one operand, and then many in all."""
    where = replaceable(op, arrays)
    for k in where:
        for value in SPECIAL:
            made = [a.copy() for a in arrays]
            made[k].reshape(-1)[rng.integers(made[k].size)] = value
            yield made
    made = [a.copy() for a in arrays]
    for k in where:
        n = max(1, made[k].size // 3)
        made[k].reshape(-1)[rng.integers(made[k].size, size=n)] = rng.choice(SPECIAL, n).astype(made[k].dtype)
    yield made


def difference(got: Array, want: Array) -> str:
    """How a result differs: in its type, in where NaN and infinities are, or in numbers."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{got.shape}, wanted {want.dtype}{want.shape}"
    dtype = types.dtype_of(want.dtype)
    if not dtype.is_float:
        a, b = (x.astype(np.float64) if dtype.is_narrow else x for x in (got, want))
        return "" if np.array_equal(a, b, equal_nan=dtype.is_narrow) else f"{got}, wanted {want}"
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return f"{got}, wanted {want}"
    limit = TOLERANCE[dtype.name]
    scale = min(1e30, max(1.0, np.abs(b[finite]).max(initial=0)))
    return "" if np.allclose(a[finite], b[finite], rtol=limit, atol=limit * scale) else f"{got}, wanted {want}"


def check(op: OpDef, call: Sample, rng: np.random.Generator) -> int:
    """Compile the op once, and run it on every variant of the call's operands."""
    sample = Sample(call.arrays, call.attrs)
    try:
        graph = graph_of(op, sample)
    except CompileError:  # the op does not take the type
        return 0
    if has_no_bound(op, sample):
        return 0
    model, n = driver.compile_graph(graph, optimize=1), 0
    for arrays in with_special(op, call.arrays, rng):
        with np.errstate(all="ignore"):
            want = evaluate_graph(graph, arrays)
        got = model(*arrays)
        for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            problem = difference(np.asarray(g), w)
            assert not problem, f"{describe(op, call)} of {arrays}: {problem}"
        n += 1
    return n


OPS = [op for op in ops.ALL if op.samples is not None and next(calls_of(op), None) is not None]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("op", OPS, ids=lambda o: o.name)
def test_an_op_with_special_values(op: OpDef) -> None:
    """A call of each op, whose types change from op to op."""
    calls = list(calls_of(op))
    rng = np.random.default_rng(OPS.index(op))
    for k in rng.choice(len(calls), min(QUICK, len(calls)), replace=False):
        check(op, calls[k], rng)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=lambda o: o.name)
def test_every_call_of_an_op_with_special_values(op: OpDef) -> None:
    rng = np.random.default_rng(1)
    assert sum(check(op, call, rng) for call in calls_of(op)) > 0


EDGES = np.array([0.0, -0.0, 0.3, -0.3, 1, -1, 2.5, -2.5, 4, -4, np.inf, -np.inf, np.nan], np.float32)
EITHER_ZERO = {ops.maximum, ops.minimum, ops.clamp, ops.relu}
POINTWISE = [op for op in OPS if Trait.ELEMENTWISE in op.traits and op not in EITHER_ZERO]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("op", POINTWISE, ids=lambda o: o.name)
def test_zeros_have_the_sign_of_the_reference(op: OpDef) -> None:
    """What is folded into a constant is what code would compute; which zero a maximum is, is left open."""
    arrays = [np.asarray(x).reshape(-1) for x in np.meshgrid(*[EDGES] * len(op.operands))]
    arrays = [a > 0 if op is ops.where and k == 0 else a for k, a in enumerate(arrays)]
    try:
        graph = graph_of(op, Sample(tuple(arrays)))
    except CompileError:  # it takes no floats, or has attributes without a default
        pytest.skip("not of f32 alone")
    got = np.asarray(driver.compile_graph(graph, optimize=1)(*arrays))
    with np.errstate(all="ignore"):
        (want,) = evaluate_graph(graph, arrays)
    is_zero = (want == 0) & (got == 0)
    assert np.array_equal(np.signbit(got[is_zero]), np.signbit(want[is_zero]))


def test_infinite_powers_of_unlike_signs_cancel() -> None:
    """The reference of a polynomial sums even and odd powers apart as its code does, and not by Horner's rule."""
    assert sum(check(ops.polynomial, call, np.random.default_rng(0)) for call in calls_of(ops.polynomial)) > 8


def test_most_ops_are_held_to_their_references() -> None:
    assert len(OPS) > 150 and len(LEFT_OPEN) * 7 < len(OPS)
