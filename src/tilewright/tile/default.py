"""The default schedule: rules over a computation's structure and the machine's capabilities.

In: a ``Computation``, a ``Machine``, and which inputs are compile-time constants. Out: a ``Kernel``.
Not its business: instructions.
"""

from __future__ import annotations

from collections.abc import Container

from tilewright.core.compute import Buffer, Computation
from tilewright.tile.ir import Kernel
from tilewright.tile.lower import lower
from tilewright.tile.machine import Machine


def schedule(
    computation: Computation, machine: Machine, constants: Container[Buffer] = (), name: str = "kernel"
) -> Kernel:
    """A correct kernel for any computation."""
    return lower(computation, name, constants)
