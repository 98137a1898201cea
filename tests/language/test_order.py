"""An element is what its tensor holds when the kernel reads it, and a loop's variable is one in its loop only."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import lang as tl


def swapped(x):
    y = x.copy()
    a = y[0]
    y[0] = y[1]
    y[1] = a
    return y


def swapped_by_update(x):
    """The element is gone from the update, which has ``+ 1`` alone."""
    y = x.copy()
    a = y[0]
    y[0] = 5.0
    y[0] = a + 1
    return y


def reversed_in_place(x):
    (n,) = x.shape
    y = x.copy()
    for i in tl.loop(n // 2):
        a = y[i]
        y[i] = y[n - 1 - i]
        y[n - 1 - i] = a
    return y


def centred(x):
    (n,) = x.shape
    y = x.copy()
    first = y[0] + 10
    for i in tl.loop(n):
        y[i] = y[i] - first
    return y


def centred_by_row(x):
    (n,) = x.shape
    y = x.copy()
    first = y[0] + 10
    for i in tl.loop(n):
        for _ in tl.loop(2):
            y[i] = y[i] - first
    return y


def as_an_index(x):
    (n,) = x.shape
    at = tl.zeros(n, tl.i64)
    k = tl.clamp(at[0], 0, n - 1)
    at[0] = 1
    return tl.compute(n, lambda i: x[k])


def in_a_sum(x):
    (n,) = x.shape
    y = x.copy()
    a = y[0]
    y[0] = 1.0
    return tl.sum(lambda k: x[k] * a, n)


def as_a_start(x):
    (n,) = x.shape
    y = x.copy()
    a = y[0]
    y[0] = 1.0
    return tl.fold(lambda k: x[k], n, start=a, combine=lambda p, q: p + q)


def returned(x):
    y = x.copy()
    a = y[0]
    y[0] = 1.0
    return a, y


EARLY = [
    swapped, swapped_by_update, reversed_in_place, centred, centred_by_row, as_an_index, in_a_sum, as_a_start, returned,
]  # fmt: skip


def added_up(x):
    s = 0.0
    for k in tl.loop(x.shape[0]):
        s = s + x[k]
    return s


def added_up_by_python(x):
    return tl.compute(3, lambda i: sum(x[k] for k in tl.loop(x.shape[0])))


def stored_after(x):
    y = x.copy()
    for k in tl.loop(x.shape[0]):
        y[k] = 1.0
    y[k] = 9.0
    return y


def of_one_name(x):
    for k in tl.loop(x.shape[0]):
        s = x[k]
    return tl.compute(x.shape, lambda k: s)


def compared_after(x):
    for k in tl.loop(x.shape[0]):
        is_first = k < 1
    return tl.compute(x.shape, lambda i: tl.where(is_first, x[i], 0.0))


def bound_after(x):
    y = x.copy()
    for k in tl.loop(x.shape[0]):
        y[k] = 1.0
    for i in tl.loop(k):
        y[i] = 2.0
    return y


def number_after(x):
    y = x.copy()
    for k in tl.loop(x.shape[0]):
        y[k] = 1.0
    return k


ENDED = [
    added_up, added_up_by_python, stored_after, of_one_name, compared_after, bound_after, number_after,
]  # fmt: skip


@pytest.mark.parametrize("size", ["n", 4])
@pytest.mark.parametrize("function", [*EARLY, *ENDED], ids=lambda f: f.__name__)
def test_what_is_used_too_late_is_refused_at_its_line(function, size):
    rule = "was read before" if function in EARLY else "the loop k has ended"
    with pytest.raises(tw.CompileError, match=rule) as raised:
        tw.kernel(function).graph(tl.f32(size))
    (problem,) = raised.value.problems
    assert problem.loc.file == __file__ and problem.remedy and function.__name__ in str(raised.value)
    first = function.__code__.co_firstlineno
    assert first <= problem.loc.line <= first + 9


def test_what_the_remedy_says():
    @tw.kernel
    def kept(x: tl.f32("n")):
        (n,) = x.shape
        y = x.copy()
        for i in tl.loop(n // 2):
            a = tl.compute((), lambda i=i: y[i])
            y[i] = y[n - 1 - i]
            y[n - 1 - i] = a[()]
        total = tl.zeros(1)
        for k in tl.loop(n):
            total[0] += x[k]
        return y, total

    x = np.arange(5, dtype=np.float32)
    made, total = kept(x)
    np.testing.assert_array_equal(made, x[::-1])
    assert total[0] == 10


def test_elements_of_other_tensors_and_of_the_same_turn_are_used():
    @tw.kernel
    def scanned(x: tl.f32("n")):
        (n,) = x.shape
        y, first = x.copy(), x[0]
        for i in tl.loop(1, n):
            so_far = y[i - 1]
            y[i] = so_far + x[i] + first
        return y

    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(scanned(x), [1, 4, 8])
