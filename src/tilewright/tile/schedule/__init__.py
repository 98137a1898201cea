"""Schedule primitives: rewrites of a kernel that keep its meaning, each checking its own legality.

In: an unscheduled ``Kernel`` and steps. Out: a scheduled ``Kernel``.
Not its business: which steps are good (``choose.default``).
"""

from tilewright.tile.schedule.script import PRIMITIVES, Made, Schedule, ScheduleBuilder, Step, apply_step

__all__ = ["PRIMITIVES", "Made", "Schedule", "ScheduleBuilder", "Step", "apply_step"]
