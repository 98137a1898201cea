"""A language for kernels: an algorithm as Python over indices, and a schedule apart from it."""
