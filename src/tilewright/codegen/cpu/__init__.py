"""Kernels and programs for CPUs, by LLVM.

Read in this order: ``llvm`` (the entry points), ``function`` and ``loops`` (what CPUs add to ``codegen.llvm``),
``parallel`` with ``scratch``, ``dot``, ``polls``. ``program`` joins kernels, with ``beside`` several at one time.
"""
