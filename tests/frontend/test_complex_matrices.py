"""Linear algebra of complex matrices is JAX's: factors where they are unique, else what products of factors give.

In quick runs NumPy computes what the passes leave of a function's graph: most of these tests' time went into code for
programs of hundreds of ops, and ``test_torch_complex_linalg`` compiles the same ones.
"""

from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg

import tilewright as tw
import tilewright.jax
from frontend.by_numpy import computed_by_numpy
from frontend.test_stablehlo import assert_equal

__all__ = ["computed_by_numpy"]
R = np.random.default_rng(0)


def matrices(*shape, dtype=np.complex64):
    return (R.standard_normal(shape) + 1j * R.standard_normal(shape)).astype(dtype)


def hermitian(values, n):
    """A matrix of these eigenvalues."""
    q = np.linalg.qr(matrices(n, n, dtype=np.complex128))[0]
    return (q * np.array(values)) @ q.conj().T


def ours(function, *arguments):
    return tilewright.jax.jit(function, cache=False)(*arguments)


SQUARE = {
    "one": matrices(1, 1),
    "batch": matrices(2, 3, 4, 4),
    "singular": np.diag([1 + 2j, 0, 3]).astype(np.complex64),
    "rows to exchange": np.array([[0, 1j, 2], [3, 4j, 5], [1, 1, 1]], np.complex64),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", SQUARE)
def test_elimination(name: str) -> None:
    def f(x):
        return [*lax.linalg.lu(x), jnp.linalg.det(x), jnp.linalg.slogdet(x)]

    assert_equal(ours(f, SQUARE[name]), jax.jit(f)(SQUARE[name]))


def test_systems_and_inverses() -> None:
    x, y = matrices(2, 4, 4), matrices(2, 4, 3)

    def f(x, y):
        return jnp.linalg.solve(x, y), jnp.linalg.inv(x)

    assert_equal(ours(f, x, y), jax.jit(f)(x, y))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("lower", (True, False))
@pytest.mark.parametrize("left_side", (True, False))
def test_triangles(left_side: bool, lower: bool) -> None:
    """The other triangle, and a diagonal that counts as ones, are not read."""
    x, y = matrices(2, 4, 4) + 3 * np.eye(4, dtype=np.complex64), matrices(2, 4, 4)
    x = np.where((np.tril if lower else np.triu)(np.ones((4, 4))), x, np.nan).astype(np.complex64)

    def f(x, y):
        return [
            lax.linalg.triangular_solve(
                x, y, left_side=left_side, lower=lower, transpose_a=t, conjugate_a=conj, unit_diagonal=unit
            )
            for t in (False, True)
            for conj in (False, True)
            for unit in (False, True)
        ]

    assert_equal(ours(f, x, y), jax.jit(f)(x, y))


def test_cholesky_also_of_what_is_not_definite() -> None:
    good = hermitian([1, 2, 5], 3)
    x = np.stack([good, hermitian([1, -2, 5], 3)]).astype(np.complex64)

    def f(x):
        return jnp.linalg.cholesky(x), linalg.cholesky(x, lower=False), linalg.cho_solve((x, True), x)

    assert_equal(ours(f, x), jax.jit(f)(x))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("shape", ((4, 4), (5, 3), (2, 3, 5), (1, 1), (3, 1)))
def test_reflections(shape: tuple[int, ...]) -> None:
    x = matrices(*shape)
    x[..., 1:, 0] = 0  # a column that needs no reflection but for its imaginary part

    def f(x):
        return [*jnp.linalg.qr(x), *jnp.linalg.qr(x, mode="complete"), *jnp.linalg.qr(x, mode="raw")]

    assert_equal(ours(f, x), jax.jit(f)(x))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("values", ([2.0], [1.0, 4.0], [3.0, 3.0, 3.0], [-1.0, 2.0, 2.0, 5.0], [0.0] * 4))
def test_eigenvalues_also_of_several_vectors(values: list[float]) -> None:
    n = len(values)
    x = np.stack([hermitian(values, n), np.diag(values)])
    with jax.enable_x64(True):
        for triangle in ("L", "U"):
            found, vectors = ours(partial(jnp.linalg.eigh, UPLO=triangle), x)
            np.testing.assert_allclose(found, np.broadcast_to(sorted(values), (2, n)), atol=1e-13)
            vectors = np.asarray(vectors)
            np.testing.assert_allclose(x @ vectors, vectors * np.asarray(found)[:, None], atol=1e-13)
            one = vectors.conj().swapaxes(-1, -2) @ vectors
            np.testing.assert_allclose(one, np.broadcast_to(np.eye(n), one.shape), atol=1e-13)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("full", (False, True))
@pytest.mark.parametrize("shape", ((4, 4), (5, 3), (2, 3, 5), (1, 1), (1, 4)))
def test_singular_values(shape: tuple[int, ...], full: bool) -> None:
    x = matrices(*shape)
    x[..., -1, :] = x[..., 0, :]  # of a lower rank

    def f(x):
        return [*jnp.linalg.svd(x, full_matrices=full), jnp.linalg.svd(x, compute_uv=False), jnp.linalg.pinv(x)]

    left, values, right, alone, inverse = map(np.asarray, ours(f, x))
    want = jax.jit(f)(x)
    assert [a.shape for a in (left, values, right)] == [a.shape for a in want[:3]]
    assert_equal([values, alone, inverse], want[1:2] + want[3:])
    k = values.shape[-1]
    np.testing.assert_allclose((left[..., :k] * values[..., None, :]) @ right[..., :k, :], x, atol=2e-5)
    for q in (left, right.conj().swapaxes(-1, -2)):
        one = q.conj().swapaxes(-1, -2) @ q
        np.testing.assert_allclose(one, np.broadcast_to(np.eye(one.shape[-1]), one.shape), atol=2e-5)


def test_symbolic_rows_are_refused_and_symbolic_batches_are_not() -> None:
    def program(*shape):
        sizes = jax.export.symbolic_shape(", ".join(shape))
        return jax.export.export(jax.jit(jnp.linalg.cholesky))(jax.ShapeDtypeStruct(sizes, np.complex64))

    with pytest.raises(tw.ImportFailed, match="complex matrices of a symbolic size"):
        tw.compile(program("n", "n"), cache=False)
    x = np.stack([hermitian([1, 2, 5], 3)] * 2).astype(np.complex64)
    assert_equal(tw.compile(program("n", "3", "3"), cache=False)(x), jnp.linalg.cholesky(x))
