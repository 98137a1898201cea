"""Kernels and programs as C99 without intrinsics, for compilers and devices that LLVM does not reach.

In: tile IR, and the LLVM text of entry functions. Out: one C file. Not its business: schedules (``choose``), files
(``build.convert``).
"""
