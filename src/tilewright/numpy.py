"""``tilewright.numpy``: functions of the array API, for functions that ``tilewright.jit`` compiles.

In: nothing. Out: the functions by the standard's names, its types and constants. On NumPy's arrays they compute at
once. Not its business: how they work (``integrations.arrays``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as _numpy

from tilewright.integrations.arrays import methods, searching
from tilewright.integrations.arrays.functions import FUNCTIONS
from tilewright.integrations.arrays.info import NamespaceInfo
from tilewright.integrations.arrays.traced import TracedArray

_OTHERS = (
    "bool", "can_cast", "e", "finfo", "float32", "float64", "iinfo", "inf", "int8", "int16", "int32", "int64",
    "isdtype", "nan", "newaxis", "pi", "result_type", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip
__all__ = list(_OTHERS)
__all__ += list(FUNCTIONS)


class _FloatLimits(NamedTuple):
    """What a type of floats holds, in Python's own numbers."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: _numpy.dtype[Any]


_OF_TYPES = ("can_cast", "finfo", "iinfo", "result_type")


def _of_types(name: str) -> Callable[..., Any]:
    """NumPy's function of types, which takes arrays for their types."""

    def f(*xs: Any, **kwargs: Any) -> Any:
        of_arrays = (x.dtype if isinstance(x, TracedArray | _numpy.ndarray) else x for x in xs)
        found = getattr(_numpy, name)(*of_arrays, **kwargs)
        if name != "finfo":
            return found
        eps, most, least, normal = (float(getattr(found, k)) for k in ("eps", "max", "min", "smallest_normal"))
        return _FloatLimits(found.bits, eps, most, least, normal, found.dtype)

    f.__name__, f.__doc__ = name, f"The array API's ``{name}``."
    return f


globals().update({name: _of_types(name) if name in _OF_TYPES else getattr(_numpy, name) for name in _OTHERS})
globals().update(FUNCTIONS)
__array_api_version__, __array_namespace_info__ = "2024.12", NamespaceInfo
del methods, searching
