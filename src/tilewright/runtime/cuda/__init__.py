"""Models on NVIDIA's GPUs: the driver, a program's steps, its memory, and arrays that other libraries share.

Read in this order: ``model`` (a call), ``run`` (a program's steps), ``program`` (what they are), ``replay`` (calls that
come again as one), ``memory``, ``device_tensors`` (DLPack), ``driver`` (NVIDIA's library), ``errors``.
"""
