"""Functions of JAX, compiled as ``jax.jit`` would."""
