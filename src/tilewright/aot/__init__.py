"""Ahead-of-time compilation: a compiled model as an object file, a C header and weights."""
