"""What a model keeps from call to call: how it begins, and what a reset may put in its place.

In: a manifest, the weights, behind which the start stands. Out: arrays. Not its business: who holds them between calls
(``model`` here and in ``cuda``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.runtime.errors import ArtifactError, InputError, Violation
from tilewright.runtime.manifest import Manifest, TensorSpec
from tilewright.runtime.values import Array, as_array, dtype_of


def state_at_start(manifest: Manifest, weights: Array, given: Mapping[str, Any]) -> list[Array]:
    """What the model keeps when it was compiled, except for what is ``given`` by name: arrays of its own.

    ``InputError`` for a name or an array that does not fit.
    """
    kept = manifest.convention.state
    specs = manifest.inputs[len(manifest.inputs) - len(kept) :]
    if strange := given.keys() - {k.input for k in kept}:
        names = ", ".join(k.input for k in kept) or "nothing"
        raise InputError(f"the model keeps {names}, not {', '.join(sorted(strange))}", remedy="leave it out")
    made = []
    for one, spec in zip(kept, specs, strict=True):
        start = _stored(weights, one.offset, spec)
        taken = as_array(given[one.input], spec) if one.input in given else start
        if isinstance(taken, Violation) or (taken.dtype, taken.shape) != (start.dtype, start.shape):
            raise InputError(f"{spec} can't be {given[one.input]!r:.80}", remedy="give an array of that shape")
        made.append(np.array(taken, order="C"))
    return made


def _stored(weights: Array, offset: int, spec: TensorSpec) -> Array:
    """The array that begins ``offset`` bytes into the weights."""
    dtype, shape = dtype_of(spec.dtype), [d for d in spec.shape if isinstance(d, int)]
    n = math.prod(shape) * dtype.itemsize
    if len(shape) != len(spec.shape) or offset + n > weights.nbytes:
        raise ArtifactError(f"the state {spec} has no start in the file", remedy="compile the model again")
    return weights[offset : offset + n].view(dtype).reshape(shape)
