"""What to tell of a call whose code gave up: the model's own words, and the values that they are about.

In: the code that ``tw_run`` returned, and where the call's inputs lie. Out: an ``ExecutionError``.
Not its business: noticing that a call failed (``model``), and which checks there are (the frontends write their texts).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.runtime.errors import ExecutionError
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.shapes import Shape
from tilewright.runtime.values import dtype_of


def failure(manifest: Manifest, code: int, addresses: Sequence[int], shapes: Sequence[Shape]) -> ExecutionError:
    """The error for ``code``; ``addresses`` and ``shapes`` begin with the inputs', whose memory is still there."""
    failures, locations = manifest.failures, manifest.locations
    if not 0 < code < len(failures):
        return ExecutionError(f"the model's code failed with code {code}, which its manifest does not explain")
    place = f" at {locations[code]}" if locations and locations[code] else ""
    found = "".join(_values_of(failures[code], manifest, addresses, shapes))
    return ExecutionError(failures[code] + place + found, remedy="check the values of the inputs")


def _values_of(text: str, manifest: Manifest, addresses: Sequence[int], shapes: Sequence[Shape]) -> Iterator[str]:
    """The least and the largest value of each input of integers that the text names: one of them breaks a range."""
    for spec, address, shape in zip(manifest.inputs, addresses, shapes, strict=False):
        dtype, n = dtype_of(spec.dtype), math.prod(shape)
        if f'input "{spec.name}"' in text and dtype.kind in "iu" and n:
            values = np.frombuffer(ctypes.string_at(address, n * dtype.itemsize), dtype)
            yield f"; its values are {values.min()}..{values.max()}"
