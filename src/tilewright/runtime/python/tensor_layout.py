"""Where PyTorch's objects keep what tells of a tensor's memory, found out from tensors made for that.

In: PyTorch as it is imported. Out: a ``TensorLayout``, or None where anything is not as expected: who asks has then a
slower way. Not its business: reading weights (``watch``) and arguments (``entry``).

Nothing of PyTorch's promises these places, so each is searched for by a value that PyTorch itself tells, in the first
bytes of objects that are longer, and followed only where that value was found.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import Any

from tilewright.runtime.cpu.watch_ir import TensorLayout
from tilewright.runtime.once import once

_IMPL_WORDS = 20
"""Of a ``TensorImpl``, which has more, and holds its storage offset among them."""
_STORAGE_WORDS = 8
_COUNTER_WORDS = 3
_ODD_OFFSETS = 12345, 23456


@once
def tensor_layout() -> TensorLayout | None:
    """The layout of this process's PyTorch; None where it is not known."""
    is_known = platform.python_implementation() == "CPython" and getattr(sys, "_is_gil_enabled", lambda: True)()
    if not is_known or ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        return None
    try:
        return _probe(sys.modules["torch"])
    except (AttributeError, RuntimeError, ValueError):
        return None


def _probe(torch: Any) -> TensorLayout | None:
    memory = bytearray(8 * max(_ODD_OFFSETS))
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    tensors = [whole[n:] for n in _ODD_OFFSETS]
    tensors += [torch.nn.Parameter(torch.zeros(40000)).detach()[n:] for n in _ODD_OFFSETS]
    found = {_layout(t) for t in tensors}
    return found.pop() if len(found) == 1 else None


def _layout(tensor: Any) -> TensorLayout | None:
    n_object_words = type(tensor).__basicsize__ // 8
    storage = tensor.untyped_storage()
    words = _words(tensor._cdata, _IMPL_WORDS)
    relative, alone = (_words(t._cdata, _IMPL_WORDS) for t in (tensor.detach(), tensor.data))
    counters = [k for k, w in enumerate(words) if w and w == relative[k] != alone[k] and w % 8 == 0 and alone[k]]
    counters = [k for k in counters if _is_pointer(words[k]) and _is_pointer(alone[k])]
    if len(counters) != 1:
        return None
    impl = _words(id(tensor), n_object_words).index(tensor._cdata)
    version = _version_at(tensor, words[counters[0]])
    places = words.index(storage._cdata), words.index(tensor.storage_offset())
    found = _words(storage._cdata, _STORAGE_WORDS)
    data, n_bytes = found.index(storage.data_ptr()), found.index(storage.nbytes())
    if version is None or found.count(storage.nbytes()) != 1:
        return None
    return TensorLayout(impl * 8, places[0] * 8, places[1] * 8, counters[0] * 8, data * 8, n_bytes * 8, version)


def _is_pointer(word: int) -> bool:
    """Could it be an address of this process's memory? Small numbers, and what is beyond 47 bits, are none."""
    return 1 << 16 < word < 1 << 47


def _version_at(tensor: Any, counter: int) -> int | None:
    """Where in a version counter the number is that follows a tensor's writes."""
    size = _COUNTER_WORDS * 2
    fits = set(range(size))
    for _ in range(5):
        halves = (ctypes.c_uint32 * size).from_address(counter)
        fits &= {k for k in range(size) if halves[k] == tensor._version}
        tensor.add_(1)
        tensor.add_(1)
    return fits.pop() * 4 if len(fits) == 1 else None


def _words(address: int, n: int) -> list[int]:
    return list((ctypes.c_uint64 * n).from_address(address))
