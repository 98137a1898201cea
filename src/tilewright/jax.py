"""``tilewright.jax``: what users of JAX import.

In: nothing. Out: ``jit``. Not its business: how it works (``integrations.jax``).
"""

from __future__ import annotations

from tilewright.integrations.jax.jit import jit

__all__ = ["jit"]
