"""``tw.jit`` and ``tw.numpy`` at their bounds: what NumPy gives there too, or an error with a line and a remedy."""

import functools
import itertools
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from small_models import numbers
from test_jit import X, check
from tilewright import numpy as xp

BLOCK = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
SMALL = np.array([0, 200, 255], np.uint8)
LARGE = np.arange(3, dtype=np.uint64)
WHOLE = np.array([5, 6, -7], np.int32)
NONE = np.zeros((0, 3), np.float32)
FLAGS = np.array([False, True, False])
POINT = namedtuple("Point", ("x", "y"))


def both(f: Callable[..., Any], *args: Any) -> list[Any]:
    return [f(*args), tw.jit(f, threads=1)(*args)]


def test_every_name_is_there() -> None:
    assert [name for name in xp.__all__ if not hasattr(xp, name)] == []
    assert xp.isdtype(xp.float32, "real floating") and xp.bool is np.bool and xp.finfo(X).eps == np.finfo(X.dtype).eps
    assert xp.result_type(X, xp.float64, 1) == np.float64 and xp.can_cast(SMALL, xp.int16)
    check(tw.jit(lambda x: x[xp.newaxis] * xp.pi + float(xp.finfo(x).eps))(X), X[None] * np.float32(np.pi))


@pytest.mark.parametrize("number", [300, -1, 2**70, 255])
def test_a_number_outside_of_the_type_compares_as_it_is(number: int) -> None:
    for name, array in itertools.product(("equal", "not_equal", "less", "less_equal", "greater"), (SMALL, LARGE)):
        f = getattr(xp, name)
        check(tw.jit(lambda x, f=f: f(x, number))(array), getattr(np, name)(array, number))
        check(tw.jit(lambda x, f=f: f(number, x))(array), getattr(np, name)(number, array))


def test_limits_outside_of_the_type_limit_nothing() -> None:
    for found in both(lambda n: xp.clip(n, -1, 300), SMALL) + both(lambda n: xp.clip(n, -np.inf, np.inf), SMALL):
        check(found, SMALL)
    for found in both(lambda n: xp.clip(n, 3.0, np.int64(250)), SMALL):
        check(found, np.array([3, 200, 250], np.uint8))


def test_an_index_array_beside_numbers_means_what_it_means_to_numpy() -> None:
    places = np.array([[0, 1], [1, 0]])
    parts = (0, slice(0, 1), None, Ellipsis, places)
    keys = [key for key in itertools.product(parts, repeat=3) if [k is places for k in key].count(True) == 1]
    keys = [key for key in keys if [k is Ellipsis for k in key].count(True) < 2] + [([],), (np.int64(1), ..., [0, -1])]
    check(tw.jit(lambda x: [x[key] for key in keys])(BLOCK), [BLOCK[key] for key in keys])


def test_kinds_of_calls_are_kept_apart() -> None:
    traced = []

    @tw.jit(threads=1)
    def f(x: Any, number: float, more: Any = None) -> Any:
        traced.append(number)
        return x / number if more is None else x * next(iter(more.values()))

    assert (f(np.float32(1), 0.0), f(np.float32(1), -0.0)) == (np.inf, -np.inf)
    f(X, float("nan"))
    f(X, float("nan"))
    assert len(traced) == 3
    for order in ("ab", "ba"):
        given = {key: np.float32(ord(key)) for key in order}
        check(f(X, 1.0, given), X * given[order[0]])


def test_functions_of_every_sort_are_compiled() -> None:
    @tw.jit(threads=1)
    def twice(x: Any) -> Any:
        return x + x

    class Layer:
        factor = 3

        @tw.jit(threads=1)
        def run(self, x: Any) -> Any:
            return twice(x) * self.factor

        def __call__(self, x: Any) -> Any:
            return x - 1

    check(Layer().run(X), X * 6)
    check(tw.jit(Layer())(X), X - 1)
    check(tw.jit(functools.partial(lambda n, x: x * n, 4))(X), X * 4)
    made = tw.jit(lambda p: POINT(p.y, [POINT(p.x, p.x + p.y)]))(POINT(X, 2 * X))
    check(made.x, 2 * X)
    check(made.y[0].y, 3 * X)


def test_operators_need_no_import_of_the_functions() -> None:
    text = "import numpy, tilewright; print(tilewright.jit(lambda x: x[0] + 1)(numpy.ones(2)))"
    made = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "2.0"


def test_bytes_in_another_order() -> None:
    turned = X.astype(">f4")
    check(tw.jit(lambda x: [x + 1, x + turned])(turned), [X + 1, X + X])
    check(xp.add(turned, X), X + X)


def test_numbers_at_the_bounds() -> None:
    edges = np.array([np.inf, -np.inf, np.nan, 1], np.float32)
    zeros = np.zeros(3, np.int32)
    with np.errstate(all="ignore"):
        for found in both(lambda x: [xp.logaddexp(x, x), xp.logaddexp(x, -x)], edges):
            check(found, [np.logaddexp(edges, edges), np.logaddexp(edges, -edges)])
        for by in (zeros, np.array([0, 4, -4], np.int32)):
            for found in both(lambda n, by: [xp.remainder(n, by), xp.floor_divide(n, by)], WHOLE, by):
                check(found, [WHOLE % by, WHOLE // by])
        check(tw.jit(lambda n: [n % 0, n // 0])(WHOLE), [WHOLE % 0, WHOLE // 0])
    for found in both(lambda b: [xp.abs(b), xp.argmax(b), xp.argmin(b, axis=0)], FLAGS):
        check(found, [FLAGS, 1, 0])
    check(tw.jit(lambda x: xp.max(x, axis=1))(NONE), NONE.max(axis=1))


def test_axes_may_be_numpys_numbers() -> None:
    one = np.int64(1)
    found = tw.jit(lambda x: [
        xp.sum(x, axis=one), xp.flip(x, axis=one), xp.expand_dims(x, axis=one), xp.roll(x, one, axis=(0, 1)),
        xp.tile(x, 2), xp.repeat(x, one + 1), xp.moveaxis(x, one, np.int64(0)), xp.tensordot(x, x, axes=one + one),
        np.array(2, np.float32) * x, X + x, X @ x.T,
    ])(X)  # fmt: skip
    wanted = [
        X.sum(axis=1), np.flip(X, 1), X[:, None], np.roll(X, (1, 1), (0, 1)), np.tile(X, 2), np.repeat(X, 2), X.T,
        np.tensordot(X, X, 2), 2 * X, X + X, X @ X.T,
    ]  # fmt: skip
    check(found, wanted)


def _write(x: Any) -> Any:
    x[0] = 1
    return x


REFUSED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "300 is outside of the range of uint8": (lambda n: n + 300, SMALL),
    "-1 is outside of the range of uint64": (lambda n: -1 + n, LARGE),
    "is outside of the range of int32": (lambda n: xp.where(n > 0, n, 2**70), WHOLE),
    "2.5 is no limit of integers": (lambda n: xp.clip(n, 2.5), WHOLE),
    "a bool as an index": (lambda x: x[True], X),
    "1.7 is no whole number|[1.7] is no whole number": (lambda x: x[1.7], X),
    "two ellipses": (lambda x: x[..., 0, ...], BLOCK),
    "index 9 is outside of an axis of 3": (lambda x: x[np.array([0, 9])], X),
    "index -4 is outside of an axis of 3": (lambda x: xp.take(x, np.array([-4]), axis=0), X),
    "index 7 is outside of axis 0": (lambda x: x[7], X),
    "3 indices are given for an array of 2 axes": (lambda x: x[0, 0, 0], X),
    "elements of type float64 are no indices": (lambda x: xp.take(x, [1.5], axis=0), X),
    "elements of type object are not offered": (lambda x: xp.equal(x, None), X),
    "elements of type complex128 are not offered": (lambda x: x + 1j, X),
    "is not written into": (_write, X),
    "numpy.sin": (np.sin, X),
    "numpy.concatenate": (lambda x: np.concatenate([x, x]), X),
    "numpy.sum": (np.sum, X),
    "no tolist": (lambda x: x.tolist(), X),
    "no dot": (lambda x: x.dot(x.T), X),
    "sum: 3 arguments are given by position": (lambda x: x.sum(0, None, None), X),
    "unexpected keyword argument 'ddof'": (lambda x: x.sum(ddof=1), X),
    "unexpected keyword argument 'out'": (lambda x: x.sum(out=None), X),
    "flatten() takes 2 positional arguments": (lambda x: x.flatten("F"), X),
    "axis 2 is none of 2": (lambda x: x.swapaxes(0, 2), X),
    "there is no array": (lambda x: xp.concat([]), X),
    "stack: there is no array": (lambda x: xp.stack([]), X),
    "the shapes (3, 4), (7,) do not broadcast": (lambda x: xp.broadcast_arrays(x, np.zeros(7)), X),
    "2 axes can't take 1 places": (lambda x: xp.moveaxis(x, (0, 1), 0), X),
    "3 shifts are given for 2 axes": (lambda x: xp.roll(x, (1, 2, 3), axis=(0, 1)), X),
    "the axes (0, 0) name one twice": (lambda x: xp.sum(x, axis=(0, 0)), X),
    "expand_dims: the axes": (lambda x: xp.expand_dims(x, axis=(0, 0)), X),
    "has no element along axes (0,)": (lambda x: xp.max(x, axis=0), NONE),
    "integers have no negative powers": (lambda n: n**-1, WHOLE),
    "an array of no axes has no length": (lambda x: list(x[0, 0]), X),
    "full_like: Python integer 300 out of bounds": (lambda n: n + xp.full_like(n, 300), SMALL),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_what_is_refused_names_the_line_and_a_remedy(rule: str) -> None:
    f, given = REFUSED[rule]

    def traced(x: Any) -> Any:
        return f(x)

    with pytest.raises(tw.CompileError) as failed:
        tw.jit(traced)(given)
    assert any(part in str(failed.value) for part in rule.split("|"))
    assert "test_jit_bounds.py:" in str(failed.value) and "remedy: " in str(failed.value)


def test_asking_for_a_member_that_is_not_offered_is_answered() -> None:
    check(tw.jit(lambda x: x + hasattr(x, "tolist") + getattr(x, "flat", 2))(X), X + 2)


@pytest.mark.parametrize("argument", [np.ones(2, np.complex64), np.array(["a"]), np.array([None]), {1, 2}], ids=str)
def test_an_argument_that_is_not_offered(argument: Any) -> None:
    with pytest.raises(tw.InputError, match="remedy: ") as failed:
        tw.jit(lambda x, y: x)(numbers(2), argument)
    assert "argument" in str(failed.value)
