"""``tw.jit`` and ``tw.numpy``: functions of the array API give what NumPy gives, at once and compiled."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from small_models import numbers
from tilewright import numpy as xp

X, Y, POSITIVE = numbers(3, 4), numbers(3, 4, seed=1), np.abs(numbers(3, 4)) + 0.5
UNIT = np.clip(X, -0.9, 0.9)
FLAGS, WHOLE = X > 0, (X * 10).astype(np.int32)
OTHER = np.where(Y * 5 == 0, 1, (Y * 5)).astype(np.int32) | 1
PLACES = np.array([2, 0, 2], np.int64)
VALUES = np.array([3, 1, 3, 7, 1, 3, 9], np.int32)
FLOATS = np.float32([0, -0.0, 1, -1, 1e-45, -1e-45, 3.4028235e38, np.inf, -np.inf, np.nan])
MATRIX, VECTOR = numbers(2, 4, 5), numbers(4)

Case = tuple[tuple[Any, ...], dict[str, Any]]


def of(*args: Any, **kwargs: Any) -> Case:
    return args, kwargs


CASES: dict[str, list[Case]] = {
    **{name: [of(X), of(WHOLE)] for name in (
        "abs", "negative", "sign", "square", "positive", "floor", "ceil", "trunc", "round")},
    **{name: [of(X)] for name in ("atan", "asinh", "cos", "exp", "expm1", "sin", "tan", "tanh", "sinh", "cosh")},
    **{name: [of(POSITIVE), of(np.abs(WHOLE) + 1)] for name in ("log", "log1p", "log2", "log10", "sqrt")},
    **{name: [of(UNIT)] for name in ("acos", "asin", "atanh")},
    "acosh": [of(POSITIVE + 1)], "reciprocal": [of(POSITIVE)],
    **{name: [of(X, Y), of(X, 2.5), of(WHOLE, 3), of(WHOLE, X), of(X, Y[0])] for name in (
        "add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "less", "less_equal", "greater",
        "greater_equal")},
    "copysign": [of(X, Y), of(X, -0.0), of(np.float32([np.nan, -1]), np.float32([-np.nan, np.inf]))],
    "hypot": [of(X, Y), of(np.float32([3e38, 0, np.inf, np.nan]), np.float32([1e38, 0, np.nan, 1]))],
    "signbit": [of(X), of(np.float32([-0.0, 0.0, -np.inf, -np.nan]))],
    "count_nonzero": [of(X), of(WHOLE, axis=0), of(FLAGS, axis=1, keepdims=True)],
    "divide": [of(X, POSITIVE), of(WHOLE, OTHER), of(1, POSITIVE)], "atan2": [of(X, Y)], "logaddexp": [of(X, Y)],
    "floor_divide": [of(WHOLE, OTHER), of(X, POSITIVE)], "remainder": [of(WHOLE, OTHER)], "pow": [of(POSITIVE, Y)],
    **{name: [of(WHOLE, OTHER), of(FLAGS, ~FLAGS)] for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    "bitwise_left_shift": [of(WHOLE, 3)], "bitwise_right_shift": [of(WHOLE, 2)],
    "bitwise_invert": [of(WHOLE), of(FLAGS)],
    **{name: [of(FLAGS, X > 1)] for name in ("logical_and", "logical_or", "logical_xor")}, "logical_not": [of(FLAGS)],
    **{name: [of(np.array([1, np.inf, -np.inf, np.nan], np.float32)), of(WHOLE)] for name in (
        "isnan", "isinf", "isfinite")},
    "clip": [of(X, -0.5, 0.5), of(WHOLE, 0, None)], "where": [of(FLAGS, X, Y), of(FLAGS, 1.0, X)],
    **{name: [of(X), of(X, axis=1), of(WHOLE, axis=(0, 1), keepdims=True)] for name in (
        "sum", "prod", "max", "min", "mean")},
    "var": [of(X), of(X, axis=0, correction=1)], "std": [of(X, axis=1, keepdims=True)],
    **{name: [of(FLAGS), of(FLAGS, axis=0), of(WHOLE, axis=1, keepdims=True)] for name in ("any", "all")},
    **{name: [of(X), of(X, axis=1), of(X, axis=0, keepdims=True)] for name in ("argmax", "argmin")},
    "cumulative_sum": [of(X, axis=1), of(WHOLE[0])], "cumulative_prod": [of(X, axis=0)],
    "sort": [of(X), of(X, axis=0)], "argsort": [of(X, axis=1)],
    "matmul": [of(X, Y.T), of(MATRIX, VECTOR @ np.ones((4, 5), np.float32)), of(VECTOR, Y.T), of(VECTOR, VECTOR)],
    "tensordot": [of(X, Y, axes=2), of(MATRIX, Y, axes=((1,), (1,)))], "vecdot": [of(X, Y)],
    "reshape": [of(X, (2, -1))], "expand_dims": [of(X, axis=1)], "squeeze": [of(X[:, :1], 1)],
    "permute_dims": [of(MATRIX, (2, 0, 1))], "matrix_transpose": [of(MATRIX)], "moveaxis": [of(MATRIX, 0, -1)],
    "broadcast_to": [of(VECTOR, (3, 4))], "broadcast_arrays": [of(X, VECTOR)],
    "concat": [of([X, Y]), of([X, WHOLE], axis=1), of([X, Y], axis=None)], "stack": [of([X, Y], axis=1)],
    "unstack": [of(X, axis=1)], "flip": [of(X), of(X, axis=1)], "roll": [of(X, 2), of(X, (1, -1), axis=(0, 1))],
    "tile": [of(X, (2, 1)), of(X, (2, 1, 2))], "repeat": [of(X, 2, axis=0), of(X, 3)],
    "take": [of(X, PLACES, axis=0)], "take_along_axis": [of(X, np.argsort(X, axis=1), axis=1)],
    "tril": [of(X), of(X, k=1)], "triu": [of(X, k=-1)], "meshgrid": [of(VECTOR, X[0]), of(VECTOR, X[0], indexing="ij")],
    "diff": [of(X, axis=0, prepend=X[:1], append=X[:2]), of(X, prepend=0), of(X), of(X, axis=0, n=2)],
    "astype": [of(X, np.int32), of(WHOLE, np.float64)],
    **{name: [of(X), of(WHOLE)] for name in ("conj", "real", "imag")}, "from_dlpack": [of(X)],
    "nextafter": [of(X, Y), of(FLOATS[:, None], FLOATS), of(X.astype(np.float64), 0.0)],
    "nonzero": [of(FLAGS), of(WHOLE), of(np.float32([0, -0.0, np.nan]))],
    "searchsorted": [
        *(of(np.sort(VALUES), VALUES - d, side=s) for s in ("left", "right") for d in (0, 1)),
        of(np.float32([-1, 0, np.inf, np.nan, np.nan]), FLOATS), of(VALUES, VALUES, sorter=np.argsort(VALUES)),
        of(VALUES[:0], X),
    ],
    **{name: [of(VALUES), of(WHOLE), of(FLAGS), of(np.float32([[0, np.nan], [-0.0, np.nan]])), of(X[:0])]
       for name in ("unique_all", "unique_counts", "unique_inverse", "unique_values")},
    "zeros_like": [of(X)], "ones_like": [of(WHOLE)], "full_like": [of(X, 2.5)], "asarray": [of(X, dtype=np.float64)],
}  # fmt: skip
MADE: dict[str, list[Case]] = {
    "arange": [of(5), of(2, 9, 3, dtype=np.float32)], "eye": [of(3, 4, k=1)], "full": [of((2, 3), 7.0)],
    "linspace": [of(0.0, 1.0, 5)], "ones": [of((2, 3))], "zeros": [of((2,), dtype=np.int32)],
}  # fmt: skip
NAMES: dict[str, Callable[..., Any]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "broadcast_arrays": lambda *a: list(np.broadcast_arrays(*a)),
    "meshgrid": lambda *a, **k: list(np.meshgrid(*a, **k)), "concat": np.concatenate,
    "nextafter": lambda x, y: np.nextafter(x, np.asarray(y, x.dtype)),
    "unique_values": lambda x: np.unique(x, equal_nan=False),
}  # fmt: skip


def check(found: Any, wanted: Any) -> None:
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            check(a, b)
        return
    wanted = np.asarray(wanted)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


def by_numpy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return NAMES.get(name, getattr(np, name, None))(*args, **kwargs)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CASES)
def test_a_function_gives_what_numpy_gives(name: str) -> None:
    """At once, and as a part of a traced function whose arrays are arguments."""
    f, cases = getattr(xp, name), CASES[name]
    wanted = [by_numpy(name, args, kwargs) for args, kwargs in cases]

    @tw.jit(threads=1)
    def traced(groups: list[Any]) -> list[Any]:
        return [f(*args, **kwargs) for args, (_, kwargs) in zip(groups, cases, strict=True)]

    for found in ([f(*args, **kwargs) for args, kwargs in cases], traced([args for args, _ in cases])):
        for ours, theirs in zip(found, wanted, strict=True):
            check(ours, theirs)


@pytest.mark.parametrize("name", MADE)
def test_a_function_that_makes_an_array(name: str) -> None:
    f = getattr(xp, name)
    for args, kwargs in MADE[name]:
        wanted = by_numpy(name, args, kwargs)
        check(f(*args, **kwargs), wanted)
        check(tw.jit(lambda x, a=args, k=kwargs: x + f(*a, **k), threads=1)(wanted), wanted + wanted)


def test_the_namespace_says_what_it_offers() -> None:
    info = xp.__array_namespace_info__()
    assert xp.__array_api_version__ == "2024.12"
    assert info.default_device() in info.devices() and info.capabilities()["boolean indexing"]
    assert set(info.dtypes()) == set(np.__array_namespace_info__().dtypes()) - {"complex64", "complex128"}
    assert info.dtypes(kind="bool") == {"bool": np.dtype(bool)} and "complex floating" not in info.default_dtypes()


def test_sizes_that_numbers_decide_are_told_by_no_shape() -> None:
    doubled = tw.jit(lambda x: xp.unique_values(x) * 2, threads=1)
    for x in (np.array([3, 1, 3]), np.array([2, 2, 2])):
        check(doubled(x), np.unique(x) * 2)
    with pytest.raises(tw.CompileError, match="the number of elements that a call finds"):
        tw.jit(lambda x: x[: xp.nonzero(x)[0].shape[0]])(X[0])


def test_what_is_computed_at_once_can_be_written_into() -> None:
    given = np.ones(3, np.float32)
    x = xp.asarray(given)
    x += 1
    assert x.tolist() == [2, 2, 2] and given.tolist() == [1, 1, 1]


def test_every_function_is_compared() -> None:
    assert set(xp.FUNCTIONS) - {*CASES, *MADE} == {"empty", "empty_like"} and len(CASES) >= 80


INDICES = (
    0, -1, slice(1, None), slice(None, None, -1), slice(None, None, 2), (0, 1), (slice(None), -1), (Ellipsis, 0),
    None, (slice(None), None, 1), PLACES, (slice(None), np.array([3, 0])), (1, slice(3, 0, -2)), slice(2, 2),
)  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_index_means_what_it_means_to_numpy(index: Any) -> None:
    check(tw.jit(lambda x: x[index] * 1)(X), X[index])


def test_operators_and_methods() -> None:
    @tw.jit
    def f(x: Any, y: Any, n: Any) -> Any:
        return [
            -x + 2 * y - 1 / (y * y + 1),
            x.T @ y,
            (n // 3) % 5 ^ 1,
            ~(x > y) & (x != 0),
            abs(x) ** 2,
            x.mT.shape[0] * x,
        ]

    wanted = [
        -X + 2 * Y - 1 / (Y * Y + 1), X.T @ Y, (WHOLE // 3) % 5 ^ 1, ~(X > Y) & (X != 0), np.abs(X) ** 2, 4 * X,
    ]  # fmt: skip
    check(f(X, Y, WHOLE), wanted)


METHODS: dict[str, Callable[[Any], Any]] = {
    "sums": lambda x: [x.sum(), x.sum(0), x.sum(axis=1, keepdims=True), x.sum(1, np.float64), x.prod(axis=(0, 1))],
    "extremes": lambda x: [x.max(), x.min(1), x.argmax(), x.argmin(axis=0), x.argsort(), x.argsort(0)],
    "moments": lambda x: [x.mean(), x.mean(1), x.var(ddof=1), x.std(0, ddof=0), x.std(axis=1, keepdims=True)],
    "flags": lambda x: [(x > 0).any(), (x > 0).all(axis=0)],
    "running": lambda x: [x.cumsum(0), x.cumprod(axis=1), x[0].cumsum()],
    "elements": lambda x: [x.clip(-0.5, 0.5), x.clip(min=0), x.round(), x.astype(np.int32), x.copy()],
    "shapes": lambda x: [x.reshape(2, 6), x.reshape((4, -1)), x.reshape(-1), x.flatten(), x.ravel(), x[:1].squeeze()],
    "axes": lambda x: [x.transpose(), x.transpose(1, 0), x.transpose((1, 0)), x.transpose(None), x.swapaxes(0, -1)],
    "choices": lambda x: [x.repeat(2), x.repeat(2, 0), x.repeat(3, axis=1), x.take([2, 0], 0), x[0].take(PLACES)],
    "divisions": lambda x: [*divmod(x, 0.5), *divmod(2.5, abs(x) + 1)],
    "shapes that NumPy asks for": lambda x: x * np.ndim(x) + np.shape(x)[0] + np.size(x),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_means_what_it_means_to_numpy(name: str) -> None:
    check(tw.jit(METHODS[name], threads=1)(X), METHODS[name](X))


def test_structures_and_other_arguments() -> None:
    calls = []

    @tw.jit
    def layer(parameters: dict[str, Any], x: Any, *, act: str = "relu") -> Any:
        calls.append(act)
        y = x @ parameters["weight"] + parameters["bias"]
        return {"y": xp.maximum(y, 0) if act == "relu" else xp.tanh(y), "shapes": (x, [y])}

    given = {"weight": numbers(4, 6), "bias": numbers(6)}
    for act, of_act in (("relu", lambda y: np.maximum(y, 0)), ("tanh", np.tanh), ("relu", lambda y: np.maximum(y, 0))):
        y = X @ given["weight"] + given["bias"]
        made = layer(given, X, act=act)
        np.testing.assert_allclose(made["y"], of_act(y), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(made["shapes"][1][0], y, rtol=1e-5, atol=1e-5)
    assert calls == ["relu", "tanh"]  # once for each kind of call
    layer(given, X[:2])
    assert len(calls) == 3


def line_of(f: Callable[..., Any], less: int) -> str:
    return f"test_jit.py:{f.__code__.co_firstlineno + less} in "


def test_an_error_names_the_line() -> None:
    def wrong(x: Any) -> Any:
        y = x + 1
        return y @ x

    def branching(x: Any) -> Any:
        return x if x[0, 0] > 0 else -x

    def outside(x: Any) -> Any:
        return xp.sum(x, axis=5)

    for f, less, rule in ((wrong, 2, "matmul"), (branching, 1, "use where"), (outside, 1, "axis 5 is none of 2")):
        with pytest.raises(tw.CompileError) as failed:
            tw.jit(f)(X)
        assert rule in str(failed.value) and line_of(f, less) in str(failed.value)
    with pytest.raises(tw.OptionError, match="can't be called"):
        tw.jit(5)
    with pytest.raises(tw.OptionError, match="there is no option 'speed'"):
        tw.jit(wrong, speed=3)


def test_numbers_take_the_type_of_the_array_beside_them() -> None:
    half = X.astype(np.float16)
    for f in (lambda x: x * 2, lambda x: 0.5 + x, lambda x: xp.where(x > 0, x, 0)):
        assert tw.jit(f)(half).dtype == np.float16
    assert tw.jit(lambda n: n * 2.5)(WHOLE).dtype == (WHOLE * 2.5).dtype
