"""Masks as indices, repetitions by a vector, and what the array API says where NumPy says something else."""

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import numpy as xp

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5

MASKS: dict[str, Any] = {
    "elements": lambda x: (x, x > 0),
    "rows": lambda x: (x, x[:, 0] > -3),
    "nothing": lambda x: (x, x > 99),
    "everything": lambda x: (x, x < 99),
    "ends of rows": lambda x: (x.reshape(3, 2, 2), x.reshape(3, 2, 2)[..., 0] > 0),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_an_index(name: str) -> None:
    """What a call finds, and what is known while the function is traced."""
    x, mask = MASKS[name](X)

    @tw.jit(threads=1)
    def f(y):
        given, chosen = MASKS[name](y)
        return given[chosen], given[chosen] * 2, given[mask], given[mask].shape == x[mask].shape

    found, twice, by_known, has_shape = f(X)
    assert has_shape
    for ours, theirs in ((found, x[mask]), (twice, x[mask] * 2), (by_known, x[mask])):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_array_equal(ours, theirs)


def test_a_list_of_bools_is_a_mask() -> None:
    chosen = [True, False, True]
    np.testing.assert_array_equal(tw.jit(lambda x: x[chosen], threads=1)(X), X[chosen])


@pytest.mark.parametrize("mask", [np.ones(4, bool), np.ones((3, 4, 1), bool), np.ones((), bool)])
def test_a_mask_of_other_axes_is_told(mask: np.ndarray) -> None:
    with pytest.raises(tw.CompileError, match="is not of the first axes of"):
        tw.jit(lambda x: x[mask], threads=1)(X)


@pytest.mark.parametrize("axis", (None, 0, 1))
def test_repetitions_by_a_vector(axis: int | None) -> None:
    times = np.arange(X.size if axis is None else X.shape[axis]) % 3
    want = np.repeat(X, times, axis=axis)
    np.testing.assert_array_equal(xp.repeat(X, times, axis=axis), want)
    np.testing.assert_array_equal(tw.jit(lambda x: xp.repeat(x, times.tolist(), axis=axis), threads=1)(X), want)


@pytest.mark.parametrize(
    ("times", "rule"),
    [([1, 2], "numbers are given for"), ([-1], "how often"), (1.5, "how often"), ([[1]], "how often")],
)
def test_repetitions_that_can_not_be_are_told(times: Any, rule: str) -> None:
    with pytest.raises(tw.CompileError, match=rule):
        xp.repeat(X, times, axis=0)


def test_how_often_only_a_call_knows_is_told() -> None:
    with pytest.raises(tw.CompileError, match="decides a size"):
        tw.jit(lambda x, n: xp.repeat(x, n, axis=0), threads=1)(X, np.array([1, 2, 3]))


def test_floor_division_by_infinities() -> None:
    """The quotient, where NumPy has NaN or -1; and NumPy's results elsewhere."""
    inf, nan = np.inf, np.nan
    x = np.array([inf, inf, -inf, -inf, 3, -3, 3, -3, inf, nan, 7, -7, inf])
    y = np.array([2, -2, 2, -2, inf, inf, -inf, -inf, inf, inf, 2, 2, 0])
    want = np.array([inf, -inf, -inf, inf, 0, -0.0, -0.0, 0, nan, nan, 3, -4, np.floor_divide(np.array(inf), 0.0)])
    for found in (xp.floor_divide(x, y), tw.jit(lambda x, y: x // y, threads=1)(x, y)):
        np.testing.assert_array_equal(found, want)
        np.testing.assert_array_equal(np.signbit(found[4:8]), np.signbit(want[4:8]))


def test_limits_of_floats_are_pythons_numbers() -> None:
    for dtype in (xp.float32, xp.float64):
        ours, theirs = xp.finfo(dtype), np.finfo(dtype)
        assert ours.dtype == theirs.dtype and ours.bits == theirs.bits
        for name in ("eps", "max", "min", "smallest_normal"):
            assert type(getattr(ours, name)) is float and getattr(ours, name) == getattr(theirs, name)


def test_an_array_that_must_not_be_copied_is_itself() -> None:
    x = X.copy()
    assert xp.asarray(x, copy=False) is x and xp.asarray(x, dtype=xp.float32, copy=False) is x
    assert not np.shares_memory(xp.asarray(x, copy=True), x)
    assert xp.asarray(x, dtype=xp.float64).dtype == np.float64
