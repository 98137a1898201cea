"""Kernels for NVIDIA's GPUs, as PTX, by LLVM.

Read in this order: ``compile`` (the stages: a kernel's grids, LLVM's text, PTX), ``function`` (what a thread of a GPU
adds to ``codegen.llvm``), ``loops`` (blocks and threads), ``memory`` (accesses of 16 bytes), ``arith``,
``instructions`` (what LLVM may rely on), ``launch`` (how many blocks and threads).
"""
