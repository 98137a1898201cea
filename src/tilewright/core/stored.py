"""NumPy's files of arrays, which come from anywhere.

In: the path of an ``.npy`` or ``.npz`` file. Out: its arrays. Not its business: what a file that can't be read is to
its reader.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tilewright.core.types import Array

_FAULTS = (
    ValueError, EOFError, BadZipFile, zlib.error, struct.error, TokenError, SyntaxError, KeyError, TypeError,
    NotImplementedError, RuntimeError, MemoryError, OverflowError,
)  # fmt: skip
"""What NumPy and ``zipfile`` raise for a damaged file."""


def read_arrays(path: str | Path) -> Array | dict[str, Array]:
    """One array of an ``.npy`` file, or those of an ``.npz`` by their names; objects are refused.

    ``ValueError`` for any other file, ``OSError`` where it can't be read.
    """
    try:
        content = np.load(path, allow_pickle=False)
        if not isinstance(content, np.lib.npyio.NpzFile):
            return np.asarray(content)
        with content:
            found: dict[str, Any] = {name: content[name] for name in content.files}
    except _FAULTS as e:
        raise ValueError(f"{path} is no file of NumPy's plain arrays") from e
    others = [name for name, a in found.items() if not isinstance(a, np.ndarray)]  # whose bytes NumPy gives
    if others:
        raise ValueError(f"{others[0]!r:.80} in {path} is no array")
    return found
