"""What a user gets wrong in a kernel or its schedule is told at the line, with the kernel's name and a remedy."""

import math
import re

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import lang as tl

X, M = np.ones(4, np.float32), np.ones(4, np.bool_)


def element(value):
    """A kernel of one parameter without a type, whose elements are ``value(x, i)``."""
    return lambda x: tl.compute(x.shape, lambda i: value(x, i))


REFUSED = {
    "bits of floats": (element(lambda x, i: ~x[i]), X, "not of f32", "bits are those"),
    "a quotient of bools": (element(lambda x, i: x[i] // x[i]), M, "// of bool", ".cast(i32)"),
    "a rest of bools": (element(lambda x, i: x[i] % True), M, "// of bool", ".cast(i32)"),
    "a sum of bools": (element(lambda x, i: x[i] + x[i]), M, "add of bool", ".cast(i32)"),
    "a product with True": (element(lambda x, i: x[i] * True), M, "mul of bool", ".cast(i32)"),
    "a negative bool": (element(lambda x, i: -x[i]), M, "neg of bool", ".cast(i32)"),
    "abs of a bool": (element(lambda x, i: abs(x[i])), M, "abs of bool", ".cast(i32)"),
    "all bools' sum": (lambda x: tl.sum(lambda i: x[i], 4), M, "add of bool", ".cast(i32)"),
    "all bools' product": (lambda x: tl.prod(lambda i: x[i], 4), M, "mul of bool", ".cast(i32)"),
    "u64 and an index": (element(lambda x, i: x[i] > i), X.astype(np.uint64), "gt of u64 and i64", ".cast(u64)"),
    "a bool and an index": (element(lambda x, i: x[i] + i), M, "add of bool and i64", ".cast(i64)"),
    "floats of two sizes": (element(lambda x, i: x[i] + x[i].cast(tl.f64)), X, "add of f32 and f64", ".cast(f64)"),
    "a chain of comparisons": (element(lambda x, i: tl.where(0 < i < 3, x[i], 0)), X, "has no value", "join"),
    "a function of NumPy": (element(lambda x, i: np.sqrt(x[i])), X, "x[i] has no value", "numpy.sqrt needs numbers"),
    "NumPy's of an index": (element(lambda x, i: np.sqrt(i)), X, "i has no value", "numpy.sqrt needs numbers"),
    "an array beside": (element(lambda x, i: X * x[i]), X, "x[i] has no value", "numpy.multiply needs numbers"),
    "NumPy's choice": (element(lambda x, i: np.where(x[i] > 0, x[i], 0)), X, "has no value", "numpy.where needs"),
    "NumPy's limits": (element(lambda x, i: np.clip(x[i], 0, 1)), X, "x[i] has no value", "numpy.clip needs numbers"),
    "NumPy's sum": (element(lambda x, i: np.sum(x[i])), X, "x[i] has no value", "numpy.sum needs numbers"),
    "within a function of NumPy": (element(lambda x, i: np.full(2, x[i])), X, "x[i] has no value", "pass the array"),
    "a number that Python has none of": (element(lambda x, i: np.longdouble(2) * x[i]), X, "is no number", "Python"),
    "a time": (element(lambda x, i: np.timedelta64(2, "ns") * x[i]), X, "is no number", "Python"),
    "a time as an index": (element(lambda x, i: x[i + np.timedelta64(0, "ns")]), X, "is no index", "integers"),
    "an index of floats": (element(lambda x, i: x[x[i]]), X, "an index of x is a number of type f32", ".cast(i64)"),
    "an index of NumPy's array": (element(lambda x, i: X[i]), X, "i has no value", "pass the array as an argument"),
    "a Python float": (element(lambda x, i: math.sqrt(x[i])), X, "the element x[i] has no value", "tl's functions"),
    "a Python integer": (element(lambda x, i: int(x[i])), X, "the element x[i] has no value", "tl's functions"),
    "a rounded element": (element(lambda x, i: round(x[i])), X, "x[i] has no value", "tl.rint"),
    "a cut element": (element(lambda x, i: math.trunc(x[i])), X, "x[i] has no value", "tl.trunc"),
    "an element's element": (element(lambda x, i: x[i][0]), X, "x[i] has no elements", "x[i, j]"),
    "elements of an element": (element(lambda x, i: [*x[i]]), X, "x[i] has no elements", "tl.loop"),
    "a whole tensor": (lambda x: x + 1, X, "all of the tensor x", "tl.compute(x.shape, lambda i0: ...) with x[i0]"),
    "a tensor's method": (lambda x: x.sum(), X, "sum of all of the tensor x", "tl.sum(lambda i0: x[i0], *x.shape)"),
    "NumPy's sum of a tensor": (lambda x: np.sum(x, axis=0), X, "sum of all of the tensor x", "tl.sum"),
    "NumPy's function of a tensor": (lambda x: np.exp(x, dtype="f4"), X, "all of the tensor x", "tl.compute"),
    "an array and a tensor": (lambda x: X * x, X, "all of the tensor x", "tl.compute"),
    "a negative tensor": (lambda x: -x, X, "all of the tensor x", "tl.compute"),
    "a dtype's name": (element(lambda x, i: x[i].cast("f64")), X, "'f64' is no dtype", "tl.f32"),
    "NumPy's dtype": (element(lambda x, i: i.cast(np.float64)), X, "is no dtype", "tl.f32"),
    "zeros of a name": (lambda x: tl.zeros(4, "f32"), X, "'f32' is no dtype", "tl.f32"),
    "elements of a name": (lambda x: tl.compute(4, lambda i: i, dtype="f32"), X, "'f32' is no dtype", "tl.f32"),
    "elements of a number": (lambda x: tl.compute(4, 5), X, "5 is no function", "lambda i"),
    "elements of a builtin": (lambda x: tl.compute(4, max), X, "max> is no function", "lambda i"),
    "a sum of an element": (lambda x: tl.sum(x[0], 3), X, "x[0] is no function", "lambda i"),
    "a condition": (lambda x: tl.all(x[0] > 0, 3), X, "is no function", "lambda i"),
    "a condition of floats": (lambda x: tl.any(lambda i: x[i], 3), X, "a condition of f32", "compare it"),
    "an argument": (lambda x: tl.argmax(x[0], 3), X, "x[0] is no function", "lambda i"),
    "one start of two": (
        lambda x: tl.fold(lambda i: (x[i], i), 3, start=0, combine=lambda a, b: a), X,
        "a fold of 2 values starts with 1", "as many",
    ),
    "one result of two": (
        lambda x: tl.fold(lambda i: (x[i], i), 3, start=(0, 0), combine=lambda a, b: a[0]), X,
        "a fold of 2 values gives 1", "as many",
    ),
    "combine of one": (
        lambda x: tl.fold(lambda i: x[i], 3, start=0, combine=lambda a: a), X, "can't be called with two", "lambda",
    ),
    "an element of a tensor": (lambda x: scaled(x[0]), X, "x of scaled is", 'tl.f32("n")'),
    "an array beside an index": (element(lambda x, i: scaled(X, i)), X, "x of scaled is", 'tl.f32("n")'),
    "complex numbers": (lambda x: x.copy(), X.astype(np.complex64), "x is a tensor of complex64", "dtype"),
    "objects": (lambda x: x.copy(), np.array([None]), "x is a tensor of object", "dtype"),
    "texts": (lambda x: x.copy(), np.array(["a"]), "x is a tensor of <U1", "dtype"),
    "complex tensors": (lambda x: x.copy(), torch.zeros(3, dtype=torch.complex64), "x is a tensor of", "dtype"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning(case):
    function, x, rule, remedy = REFUSED[case]
    function.__name__ = "mine"
    with pytest.raises(tw.CompileError, match=re.escape(rule)) as raised:
        tw.kernel(function)(x)
    (problem,) = raised.value.problems
    assert problem.loc.file == __file__ and remedy in problem.remedy and "the kernel mine " in str(raised.value)


@tw.kernel
def scaled(x: tl.f32("n"), c=1.0):
    return tl.compute(x.shape, lambda i: x[i] * c)


@pytest.mark.parametrize("call", [
    lambda: tw.schedule(scaled, 1, 2, 3), lambda: scaled.graph(q=3), lambda: scaled(X, 1, 2), scaled,
])  # fmt: skip
def test_calls_that_do_not_fit(call):
    with pytest.raises(tw.CompileError, match="the kernel scaled is not right") as raised:
        call()
    assert "scaled(x" in raised.value.problems[0].remedy


def test_python_s_range_over_a_size():
    @tw.kernel
    def ranged(x: tl.f32("n")):
        return [x[k] for k in range(x.shape[0])]

    with pytest.raises(tw.CompileError, match=r"tl\.loop \(tl\.range in programs\), not range"):
        ranged.graph()


def test_an_argument_is_not_written_to_and_the_remedy_works():
    @tw.kernel
    def written(x: tl.f32("n")):
        x[0] = 1.0
        return x

    with pytest.raises(tw.CompileError, match=re.escape("y = x.copy()")):
        written.graph()


@pytest.mark.parametrize("make", [
    lambda: tw.kernel(5), lambda: tw.kernel(len), lambda: tw.schedule(5), lambda: tw.schedule(lambda x: x),
])  # fmt: skip
def test_what_is_no_function_or_no_kernel(make):
    with pytest.raises(tw.OptionError, match=r"put @tw\.kernel before"):
        make()


@pytest.mark.parametrize("size", ["a b", "", 1.5, -1, True])
def test_what_is_no_size(size):
    with pytest.raises(tw.OptionError, match="is no size"):
        tl.f32(size)


def test_numbers_that_compare_equal_are_not_one_kernel():
    for c in (0.0, -0.0, np.float32(-0.0)):
        made = scaled(X, float(c))
        np.testing.assert_array_equal(np.signbit(made), np.signbit(c))
    before = len(scaled._models)
    for _ in range(3):
        assert np.isnan(scaled(X, float("nan"))).all()
    assert len(scaled._models) == before + 1
    assert scaled._key({"c": (0.0, 1)}) != scaled._key({"c": (-0.0, 1)})
    assert scaled._key({"c": (1, 1)}) != scaled._key({"c": (1, True)})


def test_numbers_before_elements_and_indices():
    @tw.kernel
    def made(x: tl.i32("n"), y: tl.f32("n")):
        (n,) = x.shape
        bits = tl.compute(n, lambda i: (6 & x[i]) + (1 << x[i]) + (1 | x[i]) + (3 ^ x[i]) + (64 >> x[i]))
        return bits, tl.compute(n, lambda i: 2 ** y[i]), tl.compute(n, lambda i: i**2 + abs(1 - i))

    x = np.arange(4, dtype=np.int32)
    bits, powers, squares = made(x, x.astype(np.float32))
    np.testing.assert_array_equal(bits, (6 & x) + (1 << x) + (1 | x) + (3 ^ x) + (64 >> x))
    np.testing.assert_array_equal(powers, 2.0**x)
    np.testing.assert_array_equal(squares, x**2 + abs(1 - x))


def test_quotients_are_what_the_documentation_says():
    @tw.kernel
    def divided(x: tl.i32("n"), y: tl.i32("n"), a: tl.f32("n"), b: tl.f32("n")):
        whole = tl.compute(x.shape, lambda i: x[i] // y[i]), tl.compute(x.shape, lambda i: x[i] % y[i])
        return *whole, tl.compute(x.shape, lambda i: a[i] // b[i]), tl.compute(x.shape, lambda i: a[i] % b[i])

    x, y = np.array([-7, 7, 5, -5], np.int32), np.array([2, -2, 0, 0], np.int32)
    a, b = np.array([-7, 7, 1, 5e30], np.float32), np.array([2, -2, 0.1, 3], np.float32)
    quotient, rest, floored, left = divided(x, y, a, b)
    np.testing.assert_array_equal(quotient, [-4, -4, 0, -1])
    np.testing.assert_array_equal(rest, [1, -1, 5, -5])
    np.testing.assert_array_equal(floored, np.floor(a / b))
    np.testing.assert_array_equal(left, a - b * np.floor(a / b))


def test_a_lambda_is_called_with_tensors_of_pytorch():
    twice = tw.kernel(lambda x: tl.compute(x.shape, lambda i: x[i] * 2))
    torch.testing.assert_close(twice(torch.ones(3)), torch.full((3,), 2.0))
    other = tw.kernel(lambda x: tl.compute(x.shape, lambda i: x[i] * 3))
    torch.testing.assert_close(other(torch.ones(3)), torch.full((3,), 3.0))


@tw.kernel
def masked(a: tl.f32("m", 3), b: tl.bool_("m"), *, by: float = 2.0):
    return tl.compute(a.shape, lambda i, j: tl.where(b[i], a[i, j] * by, 0))


def test_calls_are_told_as_users_write_them():
    with pytest.raises(tw.CompileError, match=re.escape('masked(a: tl.f32("m", 3), b: tl.bool_("m"), by = 2.0)')):
        masked(np.ones((2, 3), np.float32))
    with pytest.raises(tw.CompileError, match="the parameter x has no type") as caught:
        tw.schedule(tw.kernel(lambda x: tl.compute(x.shape, lambda i: x[i])))
    assert 'x: tl.f32("n")' in str(caught.value)


def test_other_attributes_of_a_tensor_are_absent():
    """Whoever asks by ``hasattr`` gets an answer."""
    known = []
    tw.kernel(lambda x: known.append(hasattr(x, "data")) or x)(X)
    assert known == [False]


# --- schedules ------------------------------------------------------------------------------------------------------


@tw.kernel
def added(a: tl.f32("m", "n"), b: tl.f32("m", "n")):
    return tl.compute(a.shape, lambda i, j: a[i, j] + b[i, j])


@pytest.mark.parametrize("step", [
    lambda s: s.tile("i", "nope", 4, 4), lambda s: s.vectorize("j", 4).vectorize("i", 0), lambda s: s.split("zz", 4),
    lambda s: s.tile("j", "i", 4, 4),
])  # fmt: skip
def test_a_step_that_is_refused_changes_nothing(step):
    s = tw.schedule(added)
    s.split("j", 16)
    before = str(s), s.steps, s.made, s.changes()
    with pytest.raises(tw.CompileError):
        step(s)
    assert (str(s), s.steps, s.made, s.changes()) == before


def test_loops_and_statements_that_are_not_there():
    s = tw.schedule(added)
    with pytest.raises(tw.CompileError, match="1 statements write it"):
        s.loops("result", -3)
    pytest.importorskip("islpy")
    with pytest.raises(tw.CompileError, match="there is no loop zz"):
        s.why_not("zz")
    assert s.why_not("j", "i") is None
