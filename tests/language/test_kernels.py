"""What a kernel may say and may not, how it is called, and how it is part of models."""

import re

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import lang as tl


@tw.kernel
def scaled(x: tl.f32("n", "m"), scale: tl.f32("m")):
    n, m = x.shape
    return tl.compute((n, m), lambda i, j: x[i, j] * scale[j])


@tw.kernel
def untyped(x, factor=2):
    return tl.compute(x.shape, lambda *at: x[at] * factor)


X, SCALE = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([1, 2, 3, 4], np.float32)

# --- calls ----------------------------------------------------------------------------------------------------------


def test_a_parameter_without_a_type_is_what_a_call_hands_over():
    np.testing.assert_array_equal(untyped(X), X * 2)
    np.testing.assert_array_equal(untyped(X.astype(np.int64), factor=3), X.astype(np.int64) * 3)


def test_sizes_of_one_name_are_equal():
    with pytest.raises(tw.InputError, match="scale"):
        scaled(X, SCALE[:3])


def test_the_same_code_serves_all_sizes():
    for n in (1, 2, 7):
        x = np.ones((n, 4), np.float32)
        np.testing.assert_array_equal(scaled(x, SCALE), x * SCALE)
    assert len(scaled._models) == 1


def test_tensors_of_pytorch_come_back_as_such():
    made = scaled(torch.from_numpy(X), torch.from_numpy(SCALE))
    torch.testing.assert_close(made, torch.from_numpy(X * SCALE))


def test_a_kernel_is_exported_to_c(tmp_path):
    scaled.export(tmp_path)
    assert list(tmp_path.glob("*.h"))


# --- models ---------------------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def forward(self, x, scale):
        return scaled.torch(torch.relu(x), scale) + 1


def test_a_kernel_is_an_op_of_exported_models():
    args = torch.from_numpy(X - 5), torch.from_numpy(SCALE)
    n = torch.export.Dim("n", min=2)
    model = tw.compile(Model(), example_inputs=args, dynamic_shapes={"x": {0: n}, "scale": None}, cache=False)
    np.testing.assert_allclose(model(*args), Model()(*args))
    more = torch.ones(6, 4)
    np.testing.assert_allclose(model(more, args[1]), Model()(more, args[1]))


def test_a_scheduled_kernel_stands_alone_in_a_model():
    fast = tw.schedule(scaled).vectorize("j", 8).parallel("i").compile()

    class Around(torch.nn.Module):
        def forward(self, x, scale):
            return fast.torch(torch.relu(x), scale) + fast.torch(x, scale)

    args = torch.from_numpy(X - 5), torch.from_numpy(SCALE)
    model = tw.compile(Around(), example_inputs=args, cache=False)
    np.testing.assert_allclose(model(*args), (torch.relu(args[0]) + args[0]) * args[1])
    assert sum(fast.__name__ in str(row["ops"]) for row in model.report()["kernels"]) == 1


def test_a_kernel_is_an_op_of_torch_compile():
    import tilewright.integrations.torch_compile.backend  # noqa: F401

    args = torch.from_numpy(X - 5), torch.from_numpy(SCALE)
    compiled = torch.compile(Model(), backend="tilewright")
    torch.testing.assert_close(compiled(*args), Model()(*args))


@tw.kernel
def endless(x: tl.f32("n")):
    return endless(x)


@tw.kernel
def halving(x: tl.f32("n"), times=3):
    half = tl.compute(x.shape, lambda i: x[i] / 2)
    return halving(half, times - 1) if times > 1 else half


def test_a_kernel_may_be_a_part_of_itself_if_that_ends():
    np.testing.assert_array_equal(halving(np.ones(2, np.float32)), [0.125, 0.125])
    with pytest.raises(tw.CompileError, match="endless calls itself without an end"):
        endless(np.ones(2, np.float32))


def test_torch_compile_may_be_the_first_to_ask_for_the_op():
    """Dynamo can't trace how an op is made; a kernel with a mistake hinders no other one."""
    import tilewright.integrations.torch_compile.backend  # noqa: F401

    halved = tw.kernel(lambda x: tl.compute(x.shape, lambda i: x[i] / 2))
    broken = tw.kernel(lambda x: x)
    broken.function.__annotations__ = {"x": "no_such_name"}

    class Halves(torch.nn.Module):
        def forward(self, x):
            return halved.torch(torch.relu(x))

    compiled = torch.compile(Halves(), backend="tilewright", options={"fallback": False})
    torch.testing.assert_close(compiled(torch.ones(4)), torch.full((4,), 0.5))
    with pytest.raises(tw.CompileError, match="no_such_name"):
        _ = broken.torch


def test_the_op_of_a_kernel_whose_argument_is_no_ascii():
    doubled = tw.kernel(lambda größe: tl.compute(größe.shape, lambda i: größe[i] * 2))  # noqa: PLC2401
    torch.testing.assert_close(doubled.torch(torch.ones(2)), torch.full((2,), 2.0))


def test_a_kernel_has_a_reference():
    """Constants are folded by it, and tests compare with it."""
    graph = scaled.graph()
    (node,) = [n for n in graph.nodes() if n.op.kernel is not None]
    np.testing.assert_array_equal(node.op.reference([X, SCALE], node.attrs), X * SCALE)


WHOLE = np.arange(-3, 9)
TWO = np.int64(2)


@pytest.mark.parametrize("of", [
    lambda i: ~i, lambda i: 1 << i % 5, lambda i: i << 1, lambda i: i >> 1, lambda i: i & 5, lambda i: 6 ^ i,
    lambda i: i | 1, lambda i: +i, lambda i: divmod(i, 3)[0], lambda i: divmod(i, 3)[1], lambda i: TWO * i,
    lambda i: i * TWO, lambda i: i // TWO, lambda i: i % TWO, lambda i: TWO - i, lambda i: np.int32(7) & i,
])  # fmt: skip
def test_operators_of_indices_are_python_s(of):
    """Bits, and NumPy's numbers on either side."""
    made = tw.kernel(lambda n: tl.compute(n, lambda i: of(i - 3)))(len(WHOLE))
    np.testing.assert_array_equal(made, of(WHOLE))


def test_numbers_of_numpy_are_numbers():
    def of(x):
        return np.float32(2) * x + x * np.float64(0.5) - np.int32(1)

    made = tw.kernel(lambda x: tl.compute(x.shape, lambda i: of(x[i]) + x[np.int64(1)]))(SCALE)
    np.testing.assert_array_equal(made, of(SCALE) + SCALE[1])


def test_a_quotient_is_inside_of_what_a_quotient_of_the_size_is():
    """``y // 2`` in a loop of ``h`` iterations stays below ``(h + 1) // 2``."""

    @tw.kernel
    def halved_and_back(x: tl.f32("h")):
        (h,) = x.shape
        half = tl.compute((h + 1) // 2, lambda y: x[2 * y])
        return tl.compute(h, lambda y: half[y // 2])

    for n in (1, 2, 7):
        given = np.arange(n, dtype=np.float32)
        np.testing.assert_array_equal(halved_and_back(given), np.repeat(given[::2], 2)[:n])


# --- what is refused ------------------------------------------------------------------------------------------------


def beyond(x):
    return tl.compute(x.shape, lambda i: x[i + 1])


def before(x):
    return tl.compute(x.shape, lambda i: x[i - 1])


def by_data(x):
    return tl.compute(x.shape, lambda i: x[x[i].cast(tl.i64)])


def wrapped(x):
    """Of 64 bits without a sign, which become negative."""
    return tl.compute(x.shape, lambda i: x[tl.minimum(x[i].cast(tl.u64).cast(tl.i64), x.shape[0] - 1)])


def mixed(x):
    return tl.compute(x.shape, lambda i: x[i] + x[i].cast(tl.f64))


def decided(x):
    return tl.compute(x.shape, lambda i: x[i] if x[i] > 0 else 0)


def written(x):
    for i in tl.loop(x.shape[0]):
        x[i] = 0
    return x


def broken_off(x):
    y = tl.zeros(x.shape)
    for i in tl.loop(x.shape[0]):
        y[i] = x[i]
        break
    return y


def returned(x):
    return None


def half(x):
    return tl.compute(x.shape, lambda i: x[i].cast(tl.i32) * 0.5)


def nested(x):
    return tl.compute(x.shape, lambda i: tl.compute(3, lambda j: x[i])[0])


def growing(x):
    y = tl.zeros(x.shape)
    for i in tl.loop(x.shape[0]):
        y[i] = tl.compute(i, lambda j: x[j])[0]
    return y


REFUSED = {
    beyond: r"x\[i \+ 1\]: the index i \+ 1 may be over the last, n - 1",
    before: r"x\[i - 1\]: the index i - 1 may be less than 0",
    by_data: "nothing bounds the index that the data choose",
    wrapped: "nothing bounds the index that the data choose",
    mixed: "add of f32 and f64",
    decided: "has no value while the kernel is traced",
    written: "x is an argument",
    broken_off: "a loop ends before its last iteration",
    returned: "it returns None",
    half: "0.5 is no number of i32",
    nested: "a tensor within an expression of elements",
    growing: "a size of result depends on the loop i",
}


@tw.kernel
def multiplied(a: tl.f32("m", "k"), b: tl.f32("k", "n")):
    (m, k), n = a.shape, b.shape[1]
    return tl.compute((m, n), lambda i, j: tl.sum(lambda p: a[i, p] * b[p, j], k))


@tw.kernel
def chained(a: tl.f32("m", "k"), b: tl.f32("k", "n"), c: tl.f32("n", 2)):
    y = multiplied(multiplied(a, b), b=c)
    return tl.compute(y.shape, lambda i, j: y[i, j] + 1)


def test_a_kernel_is_a_part_of_another_one():
    a, b, c = (np.random.default_rng(k).random(s, np.float32) for k, s in enumerate([(3, 4), (4, 5), (5, 2)]))
    np.testing.assert_allclose(chained(a, b, c), a @ b @ c + 1, rtol=1e-5)
    assert len(chained.graph().nodes()) == 4  # three operands and one op


@pytest.mark.parametrize(
    ("wrong", "what"),
    [(lambda a, b: multiplied(a, a), "b of multiplied has the size m, where it takes k, which is n here"),
     (lambda a, b: multiplied(a, a[0, 0]), "b of multiplied is a[0, 0]"),
     (lambda a, b: multiplied(a, tl.zeros(3)), "b of multiplied is f32 of 1 dimensions"),
     (lambda a, b: multiplied(a, tl.zeros((3, 3), tl.f64)), "b of multiplied is f64 of 2 dimensions")],
)  # fmt: skip
def test_a_part_takes_its_own_types(wrong, what):
    wrong.__annotations__ = {"a": tl.f32("m", "n"), "b": tl.f32("n", "m")}
    with pytest.raises(tw.CompileError, match=re.escape(what)):
        tw.kernel(wrong)(np.ones((2, 3), np.float32), np.ones((3, 2), np.float32))


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_what_has_no_meaning_is_refused_at_its_line(function):
    function.__annotations__["x"] = tl.f32("n")
    with pytest.raises(tw.CompileError, match=REFUSED[function]) as raised:
        tw.kernel(function).graph()
    (problem,) = raised.value.problems
    first = function.__code__.co_firstlineno
    assert problem.loc.file == __file__ and first <= problem.loc.line <= first + 5


def test_a_word_of_the_language_outside_of_a_kernel():
    with pytest.raises(tw.CompileError, match=re.escape("it stands outside of a kernel")):
        tl.compute(3, lambda i: i)


@tw.kernel
def differences(x: tl.f32("n")):
    (n,) = x.shape
    return tl.compute(n - 2, lambda i: x[i + 2] - x[i])


def test_relations_between_sizes_are_checked_at_the_call():
    np.testing.assert_array_equal(differences(np.array([1, 2, 4], np.float32)), [3])
    with pytest.raises(tw.InputError):
        differences(np.zeros(1, np.float32))
