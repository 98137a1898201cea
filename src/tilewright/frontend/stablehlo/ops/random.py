"""Random bits from a state.

In: calls of ``rng_bit_generator``. Out: the next state and the bits (``frontend.random_bits``). JAX writes the Threefry
of its default keys as arithmetic, so those are not made here; keys of ``rbg`` and ``unsafe_rbg`` are Philox.
Not its business: ``rng``, whose numbers no specification fixes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.frontend.random_bits import drawn_bits
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result

Convert = Callable[[Operation], Result]


def _rng_bit_generator(c: Operation) -> Result:
    algorithm, t = c.text("rng_algorithm").rstrip(">").split()[-1], c.type(1)
    return drawn_bits(c, algorithm, c.node(0), t.dtype, tuple(n for n in t.shape if n is not None))


def _rng(c: Operation) -> Result:
    raise NoForm("random numbers without a state", "draw them with jax.random and a key")


TABLE: Mapping[str, Convert] = {"stablehlo.rng_bit_generator": _rng_bit_generator, "stablehlo.rng": _rng}
