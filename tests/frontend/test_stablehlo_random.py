"""Random bits are XLA's, bit by bit: Threefry and Philox, of every shape and width, and JAX's keys of ``rbg``."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax import export, lax

import tilewright as tw
import tilewright.jax
from frontend.test_stablehlo import assert_equal

SHAPES = ((), (5,), (16,), (3, 4), (4, 3), (3, 5), (5, 3, 1), (2, 0, 3))


@pytest.mark.one_in(10)
@pytest.mark.parametrize("width", (8, 32, 64))
@pytest.mark.parametrize("algorithm", list(lax.RandomAlgorithm), ids=lambda a: a.name)
def test_bits_and_the_next_state(algorithm: lax.RandomAlgorithm, width: int) -> None:
    """Also where the counter overflows, and where no size of the shape is even."""

    def draw(state):
        return [lax.rng_bit_generator(state, s, dtype=f"uint{width}", algorithm=algorithm) for s in SHAPES]

    with jax.enable_x64(True):
        drawn = tilewright.jax.jit(draw, cache=False)
        for state in ([3, 0], [2**64 - 1, 2**64 - 2], [2**32 - 1, 2**32 - 2]):
            state = np.array(state, np.uint64)
            assert_equal(drawn(state), jax.jit(draw)(state))


def test_a_counter_of_128_bits_carries(tmp_path: Path) -> None:
    """A state of three numbers, which JAX does not make: the numbers drawn before an overflow and those after it."""
    program = """
    func.func @main(%state: tensor<3xui64>) -> (tensor<3xui64>, tensor<8xui64>) {
      %next, %bits = stablehlo.rng_bit_generator %state, algorithm = PHILOX :
          (tensor<3xui64>) -> (tensor<3xui64>, tensor<8xui64>)
      return %next, %bits : tensor<3xui64>, tensor<8xui64>
    }"""
    path = tmp_path / "draw.mlir"
    path.write_text(program)
    model = tw.compile(path, cache=False)
    after, bits = model(np.array([7, 2**64 - 1, 0], np.uint64))
    assert after.tolist() == [7, 3, 1]
    assert model(np.array([7, 1, 1], np.uint64))[1][:4].tolist() == bits[4:].tolist()
    assert len(set(bits.tolist())) == 8


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ("rbg", "unsafe_rbg"))
def test_keys_that_are_philox(kind: str) -> None:
    def draw(data):
        key, other = jax.random.split(jax.random.wrap_key_data(data, impl=kind))
        return jax.random.normal(key, (3, 5)), jax.random.randint(other, (7,), 0, 100), jax.random.key_data(other)

    data = np.array([1, 2, 3, 2**32 - 1], np.uint32)
    assert_equal(tilewright.jax.jit(draw, cache=False)(data), jax.jit(draw)(data))


def test_a_program_called_with_keys_and_narrow_floats() -> None:
    def f(keys, a):
        return jax.random.key_data(keys) + a.astype("uint32")

    keys, a = jax.random.split(jax.random.key(5), 3), jax.numpy.ones((3, 2), "bfloat16")
    model = tw.compile(export.export(jax.jit(f))(keys, a), threads=1, cache=False)
    for given in (keys, jax.random.key_data(keys)):
        assert_equal(model(given, a), f(keys, a))
