"""Kernels and programs for CPUs, by LLVM.

Read in this order: ``llvm`` (the entry points), ``function`` (statements), ``loops`` with ``split`` and ``parallel``,
``values``, ``addresses`` and ``memory`` with ``lanes``, ``registers``, ``index`` (what is known of integers), ``arith``
and ``convert`` (what operations mean), ``dot``, ``writer`` (text). ``program`` joins kernels, with ``beside`` several
at one time.
"""
