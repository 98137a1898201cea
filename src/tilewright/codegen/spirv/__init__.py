"""Kernels as SPIR-V of OpenCL's flavour: the writer of ``codegen.ptx`` in one more dialect.

Read in this order: ``dialect`` (what threads do by OpenCL's functions), ``compile`` (what is refused, and the stages).
"""
