"""``tilewright.jax.jit``: called as ``jax.jit``'s functions are, compiled once for each signature, typed errors."""

import os
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import tilewright as tw
from frontend.test_stablehlo import assert_equal
from tilewright.jax import jit

SMALL = partial(jit, threads=1, cache=False)


def n_compiled(function) -> int:
    return len(function._found)


def test_trees_in_and_out() -> None:
    @SMALL
    def f(params, x, *, scale):
        return {"y": (x @ params["w"] + params["b"][0]) * scale, "none": None}, x

    params, x = {"w": jnp.eye(3), "b": [jnp.ones(3)]}, np.ones((2, 3), np.float32)
    made = f(params, x, scale=2.0)
    assert jax.tree_util.tree_structure(made) == jax.tree_util.tree_structure(f.__wrapped__(params, x, scale=2.0))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(made))
    assert_equal(made, f.__wrapped__(params, x, scale=2.0))


def test_one_compile_for_each_signature() -> None:
    f = SMALL(lambda x: x + 1)
    for x in (jnp.ones(3), jnp.zeros(3), np.ones(3, np.float32), jnp.ones(4), 1, 2, 1.5, jnp.asarray(1.5)):
        assert_equal(f(x), jnp.asarray(x) + 1)
    # Arrays of two sizes; whole numbers; numbers.
    assert n_compiled(f) == 4


def test_static_arguments_by_place_and_name() -> None:
    for f in (SMALL(pow, static_argnums=1), jit(static_argnames="n", threads=1)(lambda x, n: x**n)):
        name = "exp" if f.__wrapped__ is pow else "n"
        x = jnp.arange(3.0)
        assert_equal((f(x, 2), f(x, **{name: 3}), f(x, 2)), (x**2, x**3, x**2))
        assert n_compiled(f) <= 3
    with pytest.raises(tw.InputError, match=r"static argument 1 is not hashable"):
        SMALL(lambda x, n: x, static_argnums=1)(x, [1])


def test_static_arguments_that_the_function_lacks() -> None:
    x = jnp.arange(3.0)
    assert_equal(SMALL(lambda *a: a[0] ** a[1], static_argnums=1)(x, 2), x**2)
    with pytest.raises(tw.OptionError, match="static_argnums has 5, and <lambda> takes 1 argument"):
        SMALL(lambda x: x, static_argnums=5)
    with pytest.raises(tw.OptionError, match="static_argnames has 'n', which <lambda> does not take"):
        SMALL(lambda x: x, static_argnames="n")


@pytest.mark.parametrize("result", [(), None, {"none": None}, []])
def test_no_array_as_a_result(result) -> None:
    assert SMALL(lambda x: result)(np.ones(3, np.float32)) == result


@pytest.mark.parametrize("x", [1 + 2j, np.complex64(1 - 1j), jnp.full((), 2j), np.array([[1j, 2]], np.complex64).T])
def test_a_complex_number_as_an_argument(x) -> None:
    made, expected = SMALL(lambda x: x * 2)(x), jax.jit(lambda x: x * 2)(x)
    assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
    assert_equal(made, expected)


def test_settings_of_jax_belong_to_a_signature() -> None:
    """What is traced depends on them: other random bits, other types, another error, no compile at all."""
    f, draw = SMALL(lambda x, y: x + y), SMALL(lambda: jax.random.bits(jax.random.key(0), (3,)))
    whole, x = np.arange(3, dtype=np.int32), np.ones(3, np.float32)
    f(whole, x)
    with jax.numpy_dtype_promotion("strict"), pytest.raises(Exception, match="promotion"):
        f(whole, x)
    for is_new in (True, False):
        with jax.threefry_partitionable(is_new):
            assert_equal(draw(), draw.__wrapped__())
    with jax.disable_jit():
        assert SMALL(lambda x: float(x.sum()))(x) == 3.0


class Scaled:
    def __call__(self, x):
        return x * 3


@pytest.mark.parametrize(("function", "name"), [(partial(jnp.sum, axis=0), "sum"), (Scaled(), "Scaled")])
def test_what_is_called_without_a_name_of_its_own(function, name) -> None:
    f, x = SMALL(function), jnp.arange(6.0).reshape(2, 3)
    assert_equal(f(x), function(x))
    assert f.__name__ == name


def test_what_jax_makes_of_functions_inside() -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)

    def loss(w, x):
        return jax.vmap(lambda row: jnp.tanh(row @ w).sum())(x + jnp.asarray(weights)).sum()

    w, x = jnp.ones((3, 2)), jnp.zeros((2, 3))
    assert_equal(SMALL(jax.value_and_grad(loss))(w, x), jax.value_and_grad(loss)(w, x))


def test_keys_complex_numbers_and_small_floats() -> None:
    def f(key, z):
        first, second = jax.random.split(key)
        return second, jax.random.bits(first, (3,)), z * 2j, z.real.astype(jnp.bfloat16), jnp.zeros((0, 2)), z.real > 0

    key, z = jax.random.key(3), jnp.asarray([1 + 2j, 3 - 1j])
    made, want = SMALL(f)(key, z), f(key, z)
    assert made[0].dtype == want[0].dtype
    assert_equal((jax.random.key_data(made[0]), *made[1:]), (jax.random.key_data(want[0]), *want[1:]))
    assert_equal(SMALL(jax.random.key_data)(made[0]), jax.random.key_data(want[0]))


def test_results_stay_when_the_function_is_called_again() -> None:
    f = SMALL(lambda x: x + 1, donate_argnums=0)
    results = [f(jnp.full(1000, float(k))) for k in range(5)]
    assert [float(r[0]) for r in results] == [1, 2, 3, 4, 5]
    assert_equal(jax.jit(lambda a, b: a + b)(results[0], results[1]), np.full(1000, 3, np.float32))


def test_errors_are_typed() -> None:
    f = SMALL(lambda x: x + 1)
    with pytest.raises(tw.InputError, match="within a transformation of JAX"):
        jax.grad(lambda x: f(x).sum())(jnp.ones(3))
    with pytest.raises(tw.InputError, match="is a str"):
        f("a")
    with pytest.raises(tw.InputError, match="can't trace"):
        SMALL(lambda x, y: x)(jnp.ones(3))
    for wrong, kind in ((lambda x: x[0, 0], IndexError), (lambda x: jnp.split(x, 0), ZeroDivisionError)):
        with pytest.raises(kind) as raised:  # as of jax.jit
            SMALL(wrong)(jnp.ones(3))
        assert any("remedy: change the line of <lambda>" in note for note in raised.value.__notes__)
    with pytest.raises(tw.ImportFailed, match=r"test_jax_jit.py:\d+ in .*: it calls back to Python"):
        SMALL(lambda x: jax.pure_callback(np.sin, x, x))(jnp.ones(3))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["number", "sum", "loop", "stack", "complex"])
def test_results_yield_to_other_types_where_jax_says_so(name: str) -> None:
    function = {
        "number": lambda x: (1, x), "sum": lambda x: x + 2.5, "complex": lambda x: x + 1j,
        "loop": lambda x: jax.lax.while_loop(lambda s: s[1] < 3, lambda s: (s[0] * 2, s[1] + 1), (x, 0)),
        "stack": lambda x: jax.lax.scan(lambda c, _: (c + 1, c), 0, None, length=4),
    }[name]  # fmt: skip
    for x in (3.0, jnp.float32(3)):
        made, expected = (jax.tree.leaves(f(x)) for f in (SMALL(function), jax.jit(function)))
        assert [(m.weak_type, m.dtype) for m in made] == [(e.weak_type, e.dtype) for e in expected]
        beside = jnp.ones(2, jnp.bfloat16)
        for m, e in zip(made, expected, strict=True):
            np.testing.assert_array_equal(m, e)
            assert jax.jit(jnp.add)(m.ravel()[0], beside).dtype == jax.jit(jnp.add)(e.ravel()[0], beside).dtype


@pytest.mark.parametrize(("function", "rule"), [
    (jnp.linalg.eig, "the eigenvalue problem of a matrix that need not be symmetric"),
    (jax.scipy.linalg.schur, "the Schur form"), (jax.scipy.linalg.hessenberg, "the Hessenberg form"),
])  # fmt: skip
def test_forms_of_matrices_that_are_not_symmetric_are_refused_with_a_remedy(function, rule: str) -> None:
    with pytest.raises(tw.ImportFailed, match=rf"{rule}[\s\S]*remedy: compute it outside of what is compiled"):
        SMALL(function)(jnp.eye(3))


@pytest.mark.parametrize("threads", [1, 2])
def test_denormal_numbers_count_as_0_as_they_do_for_jax(threads):
    x = np.resize(np.float32([1e-30, 1e-20, -1e-30, 3e-39]), 1 << 16)

    def f(a):
        return a * np.float32(1e-10), jnp.maximum(a, 0) + a, jnp.sign(a)

    flushed = jit(f, threads=threads)(x)
    for ours, theirs in zip(flushed, jax.jit(f)(x), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    kept = jit(f, threads=threads, flush_denormals=False)(x)[0]
    np.testing.assert_array_equal(kept, x * np.float32(1e-10))
    assert float(kept[0]) != 0  # and NumPy, on the same thread, has not been told otherwise


def test_numbers_of_less_than_a_byte_go_by_python() -> None:
    """XLA has other bytes for them."""
    f, x = SMALL(lambda x: (x.astype(jnp.int4), x * 2)), jnp.arange(4.0)
    for _ in range(2):
        assert_equal(f(x), f.__wrapped__(x))
    assert n_compiled(f) == 1 and all(found.call is None for found in f._found.values())


def test_what_is_compiled_is_let_go_with_the_function() -> None:
    f = SMALL(lambda x: x @ x)
    f(jnp.ones((4, 4)))
    model = weakref.ref(next(iter(f._found.values())).model)
    del f
    assert model() is None


def test_a_call_that_waits_for_its_argument_outlives_the_function() -> None:
    """JAX begins it on another thread, after the function that it belongs to is gone."""
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: y @ x / 400, x))
    x = jnp.ones((400, 400))
    f = SMALL(lambda x: x * 2 + 1)
    f(slow(x))
    waited = slow(x)
    made = f(waited)
    del f
    assert_equal(made, np.asarray(waited) * 2 + 1)


def test_what_runs_on_several_devices_is_kept() -> None:
    """A call ends on each of them, so that ends don't say that none is before XLA."""
    f = SMALL(lambda x: x * 2)
    f(jnp.ones(4))
    model = weakref.ref(next(iter(f._found.values())).model)
    spread = NamedSharding(AbstractMesh((2,), ("a",)), PartitionSpec("a"))
    of_two = jax.ShapeDtypeStruct((4,), jnp.float32, sharding=spread)
    f._native.trace(of_two).lower(lowering_platforms=("cpu",))
    del f
    assert model() is not None


def test_a_call_that_is_interrupted_once_it_has_begun_is_counted() -> None:
    f = SMALL(lambda x: x * 2)
    native = f._native

    def interrupted(x: jax.Array) -> None:
        native(x)
        raise KeyboardInterrupt

    f._native = interrupted
    with pytest.raises(KeyboardInterrupt):
        f(jnp.ones(4))
    assert next(iter(f._found.values())).call.n_ended == 1
    assert next(f._n_begun) == 1


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_child_process_calls_with_other_arguments() -> None:
    """XLA's threads are not in it."""
    f = SMALL(lambda x: x * 2)
    f(np.ones(3, np.float32))
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(0 if np.array_equal(f(np.ones(4, np.float32)), np.full(4, 2.0)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_call_one_function_at_once() -> None:
    """One of them has the model's arena, the others take memory of their own."""
    f = SMALL(lambda x: jax.nn.softmax(x @ x.T) @ x)
    given = [jnp.full((64, 64), k / 64) for k in range(4)]
    expected = [np.asarray(f(x)) for x in given]
    with ThreadPoolExecutor(4) as pool:
        for k, made in enumerate(pool.map(f, given * 50)):
            np.testing.assert_array_equal(made, expected[k % 4])
    assert next(iter(f._found.values())).call.n_ended == 204


def test_a_signal_stops_a_call() -> None:
    """In the thread that runs Python's handlers, where all arguments are there."""

    def stop(*_):
        raise InterruptedError

    long = SMALL(lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: y @ x, x))
    x, few, many = jax.block_until_ready((jnp.zeros((200, 200)), jnp.int32(1), jnp.int32(1_000_000)))
    long(x, few)
    before = signal.signal(signal.SIGUSR1, stop)
    later = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        later.start()
        with pytest.raises(InterruptedError):
            long(x, many)
    finally:
        later.join()
        signal.signal(signal.SIGUSR1, before)


def test_digamma_is_nan_at_its_poles() -> None:
    x = jnp.array([0.0, -0.0, -1.0, 0.5])
    np.testing.assert_array_equal(np.isnan(SMALL(jax.lax.digamma)(x)), np.isnan(jax.lax.digamma(x)))


def test_lgamma_is_rounded_as_for_jax() -> None:
    """By its last bits numbers of Poisson's distribution are accepted; XLA's logarithm alone is another."""
    x = np.arange(9.9e4, 1.01e5, dtype=np.float32)
    assert (np.asarray(SMALL(jax.lax.lgamma)(x)) == jax.jit(jax.lax.lgamma)(x)).mean() > 0.99
    x = np.float32([-np.inf, -2.5, -2, -1e-30, -0.0, 0.0, 0.3, 1, 2, 7, 1e10, 3e38, np.inf, np.nan])
    np.testing.assert_allclose(SMALL(jax.lax.lgamma)(x), jax.lax.lgamma(x), rtol=1e-6, atol=1e-6)


def test_handlers_of_signals_meet_denormal_numbers() -> None:
    """Python's own code runs in the middle of a call that flushes them."""
    seen: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(float(np.float32(1e-39) * np.float32(2))))
    long = SMALL(lambda x: jax.lax.fori_loop(0, 40, lambda _, y: y @ x, x))
    x = jax.block_until_ready(jnp.zeros((600, 600)))  # or another thread would compute
    try:
        long(x)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        for _ in range(20):
            long(x)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen and 0 not in seen
