"""Scheduled kernels to machine code: a folder for each kind of processor, and the errors that they share.

In: ``tile.ir.Kernel`` and a ``Target``. Out: LLVM text, object code. Not its business: schedules, loading.
"""
