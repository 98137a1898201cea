"""``tilewright.jax``: what users of JAX import.

In: nothing. Out: ``jit``. Not its business: how it works (``integrations.jax``).
"""

from __future__ import annotations

from tilewright.core.diag import OptionError

try:
    from tilewright.integrations.jax.jit import jit
except ModuleNotFoundError as error:
    if error.name not in ("jax", "jaxlib"):
        raise
    raise OptionError("tilewright.jax needs JAX", remedy='pip install "tilewright[jax]"') from error

__all__ = ["jit"]
