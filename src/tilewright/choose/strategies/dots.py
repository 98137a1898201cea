"""Which reductions go by groups of narrow elements: the structure that a machine's dot products need.

In: an update, its operands as offsets, its reduction loops. Out: the dot product.
Not its business: the register tile and the order of loops (``contract``), instructions (``codegen.cpu.dot``).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.choose.cost.tile import Operand
from tilewright.core.compute import Binary, Cast, Load, Value, walk
from tilewright.core.dims import known_under
from tilewright.target.dots import Dot
from tilewright.target.target import Target
from tilewright.tile.affine import group_along
from tilewright.tile.ir import Loop, Update


def dot_for(machine: Target, update: Update, operands: Sequence[Operand], reduced: Sequence[Loop]) -> Dot | None:
    """The machine's dot product for groups of steps of the innermost reduction loop; None when it has none that fits.

    It fits ``acc += wide(a) * wide(b)`` when the operand that all lanes share lies contiguous along that loop, and the
    other is a constant (it will be packed in groups) or lies in groups already. ``operands`` are the loads in the order
    of a walk.
    """
    loads = _narrow_loads(update)
    if len(loads) != 2 or not reduced:
        return None
    along = reduced[-1]
    for shared, walking in ((0, 1), (1, 0)):
        dot = _dot(machine, loads[shared].dtype, loads[walking].dtype, update)
        a, b = operands[shared], operands[walking]
        if dot is None or a.lane_stride != 0 or a.step(along.sym) != 1 or not b.lane_stride:
            continue
        grouped = b.lane_stride == dot.group == group_along(loads[walking].buffer, loads[walking].index, along.sym)
        if (b.is_constant or grouped) and not known_under(along.extent, dot.group):
            return dot
    return None


def is_dot(machine: Target, update: Update) -> bool:
    """Has the machine a dot product for the types of what is multiplied and added up?"""
    loads = _narrow_loads(update)
    if len(loads) != 2:
        return False
    a, b = (x.dtype for x in loads)
    return any(_dot(machine, left, right, update) is not None for left, right in ((a, b), (b, a)))


def _narrow_loads(update: Update) -> tuple[Load, ...]:
    """The loads of a product of two widened elements, in the order of a walk; none for anything else."""
    v = update.value
    if update.op != "add" or not isinstance(v, Binary) or v.op != "mul" or not _is_widened(v.a, v.b):
        return ()
    return tuple(x for x in walk(v) if isinstance(x, Load))


def _is_widened(*values: Value) -> bool:
    return all(isinstance(v, Cast) and isinstance(v.a, Load) for v in values)


def _dot(machine: Target, left: object, right: object, update: Update) -> Dot | None:
    result = update.buffer.dtype
    return next((d for d in machine.dots if (d.left, d.right, d.result) == (left, right, result)), None)
