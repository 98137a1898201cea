"""Ops in plainer ones, for formats that have no name for them: what the writers of all formats fall back on.

In: a node and a builder. Out: nodes of equal value. Not its business: any format; ops that decompose by themselves.

A writer asks here only for what its format lacks, so a spelling may be slower than the op, never less exact than a
rounding of each of its steps. The result of a spelling may hold ops that are spelled in turn.
"""

from __future__ import annotations

from tilewright.core.opdef import OpDef
from tilewright.frontend.spellings import elementwise, stored, tensors, windows
from tilewright.frontend.spellings.spelling import Spelling
from tilewright.ops.over_time import CELLS_OF, looped

SPELLINGS: dict[OpDef, Spelling] = {
    **elementwise.SPELLINGS,
    **windows.SPELLINGS,
    **tensors.SPELLINGS,
    **stored.SPELLINGS,
    **dict.fromkeys(CELLS_OF, looped),
}
"""How each op that some format lacks is spelled; a spelling raises ``OpError`` for a form that it has no words for."""
