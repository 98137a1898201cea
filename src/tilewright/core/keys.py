"""What tells Python's values apart where code is made for each of them.

In: a value that is no array. Out: a key that is equal for values of equal meaning. Not its business: arrays, of which
types and shapes count.
"""

from __future__ import annotations

import numpy as np


def key_of(value: object) -> tuple[object, ...]:
    """Its type and itself: 1 is not True, 0.0 not -0.0, and NaN is NaN. It can be hashed where the value can be."""
    if isinstance(value, tuple):
        return type(value), *map(key_of, value)
    return type(value), repr(value) if isinstance(value, float | complex | np.generic) else value
