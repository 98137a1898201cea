"""The whole mapping from operations of StableHLO and CHLO to converters.

In: the tables of each family. Out: ``CONVERTERS`` by name, what is refused with the reason, and the names nearest to an
unknown one. Not its business: what a converter does.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from tilewright.frontend.stablehlo.operation import Operation, Result
from tilewright.frontend.stablehlo.ops import (
    contract,
    control,
    custom,
    elementwise,
    index,
    linalg,
    movement,
    order,
    random,
    reduce,
    source,
    special,
    window,
)

FAMILIES: Mapping[str, Mapping[str, Callable[[Operation], Result]]] = {
    "element-wise": elementwise.TABLE,
    "special function": special.TABLE,
    "source": source.TABLE,
    "movement": movement.TABLE,
    "index": index.TABLE,
    "reduction": reduce.TABLE,
    "window": window.TABLE,
    "contraction": contract.TABLE,
    "order": order.TABLE,
    "linear algebra": linalg.TABLE,
    "random": random.TABLE,
    "control": control.TABLE,
    "custom call": custom.TABLE,
}
CONVERTERS: Mapping[str, Callable[[Operation], Result]] = {
    name: convert for table in FAMILIES.values() for name, convert in table.items()
}

_ALONE = ("it talks to other devices or to the host", "compile the program of one device, without effects")
_COLLECTIVES = (
    "all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter",
    "send", "recv", "infeed", "outfeed",
)  # fmt: skip
REFUSED: Mapping[str, tuple[str, str]] = {f"stablehlo.{name}": _ALONE for name in _COLLECTIVES}
"""For operations that no graph of one device expresses, the rule and the remedy."""


def nearest(name: str) -> list[str]:
    """Known operations closest to ``name``."""
    return difflib.get_close_matches(name, CONVERTERS, 2, 0.8)
