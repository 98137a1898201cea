"""What schedules cost: the register tile of a contraction before it is scheduled, kernels afterwards.

In: extents and accesses, or a scheduled kernel, and a ``Target``. Out: cycles, features, seconds.
Not its business: which schedules there are (``choose.strategies``).
"""
