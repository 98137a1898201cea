"""The op library: every op by name, and ``ALL`` of them.

In: nothing. Out: ``OpDef`` objects; ``ops.<name>`` is the op called ``<name>`` (Python keywords get a trailing ``_``).
Not its business: how an op is defined (its family's file says that in adjacent lines).
"""

from tilewright.core.opdef import OpDef
from tilewright.ops.index import dynamic_slice, gather, gather_elements, gather_nd, one_hot
from tilewright.ops.movement import (
    concat,
    depth_to_space,
    expand,
    reshape,
    reverse,
    roll,
    space_to_depth,
    tile,
    transpose,
)
from tilewright.ops.window import pad, trilu
from tilewright.ops.window import slice_ as slice

ALL: tuple[OpDef, ...] = (
    # movement
    reshape, transpose, expand, concat, tile, reverse, roll, depth_to_space, space_to_depth,
    # window
    slice, pad, trilu,
    # index
    gather, gather_elements, gather_nd, dynamic_slice, one_hot,
)  # fmt: skip

_BY_NAME = {op.name: op for op in ALL}


def by_name(name: str) -> OpDef:
    """The op called ``name``; ``KeyError`` when there is none."""
    return _BY_NAME[name]
