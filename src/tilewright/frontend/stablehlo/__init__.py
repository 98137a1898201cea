"""StableHLO programs, which JAX writes, into the graph IR."""
