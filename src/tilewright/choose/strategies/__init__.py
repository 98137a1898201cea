"""Default schedules for kinds of structure: contractions, rows with reductions, plain element-wise nests.

In: a ``Builder`` over a lowered kernel, a ``Target``. Out: steps applied; a ``ScheduleError`` when it does not fit.
Not its business: which rule to try (``choose.default``).
"""
