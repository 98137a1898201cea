"""Scheduled kernels to machine code.

In: ``tile.ir.Kernel`` and a ``Target``. Out: LLVM text, object code. Not its business: schedules, loading.

Read in this order: ``target`` (what a machine can do), ``llvm`` (the entry points), ``function`` (statements),
``loops`` with ``split`` and ``parallel``, ``values``, ``memory`` with ``lanes``, ``registers``, ``index`` (what is
known of integers), ``arith`` and ``convert`` (what operations mean), ``dot``, ``writer`` (text). ``program`` joins
kernels, with ``beside`` several at one time.
"""
