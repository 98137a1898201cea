"""``tilewright.numpy``: functions of the array API, for functions that ``tilewright.jit`` compiles.

In: nothing. Out: the functions by the standard's names, its types and constants. On NumPy's arrays they compute at
once. Not its business: how they work (``integrations.arrays``).
"""

from __future__ import annotations

from typing import Any

import numpy as _numpy

from tilewright.integrations.arrays import making
from tilewright.integrations.arrays.functions import FUNCTIONS

_OTHERS = (
    "bool", "can_cast", "e", "finfo", "float32", "float64", "iinfo", "inf", "int8", "int16", "int32", "int64",
    "isdtype", "nan", "newaxis", "pi", "result_type", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip
__all__ = list(_OTHERS)
__all__ += list(FUNCTIONS)


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The type to which all are promoted."""
    return _numpy.result_type(*(getattr(x, "dtype", x) for x in arrays_and_dtypes))


globals().update(FUNCTIONS)
del making
