"""Built-in functions of Python that are machine code of ours.

In: the address of code with the signature of one of CPython's calling conventions, and an object for its self. Out: a
function that Python calls without a line of Python in between. Not its business: the code.
"""

from __future__ import annotations

import ctypes
from typing import Any

FASTCALL, ONE_ARGUMENT = 0x80, 8
"""``METH_FASTCALL`` and ``METH_O``: the arguments as an array, or one alone."""


class MethodDef(ctypes.Structure):
    """``PyMethodDef`` (Python/C API, "Common Object Structures")."""

    _fields_ = (("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


def built_in(method: MethodDef, owner: object) -> Any:
    """A function with ``owner`` as its self, which it keeps. ``method`` must live as long as any function made of it:
    CPython holds its address alone."""
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return new(ctypes.addressof(method), owner, None)
