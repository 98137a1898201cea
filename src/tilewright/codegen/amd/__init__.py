"""Kernels for AMD's GPUs, as code objects that LLVM assembles: the writer of ``codegen.ptx`` in AMD's dialect.

Read in this order: ``dialect`` (what threads do in AMD's instructions), ``compile`` (the stages: LLVM's text, assembly,
an object), ``notes`` (what the object says that a kernel takes). Nothing here was ever run on a GPU.
"""
