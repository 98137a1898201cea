"""``islpy``, loaded by the first nest that asks for it: it is a tenth of what the compiler takes to load.

In: a name of ``islpy``. Out: what it is there; ``ImportError`` where this file is imported and ``islpy`` is not
installed, as an import of it would give. Not its business: one thread at a time (``alone``).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from tilewright.runtime.once import MAKING

if find_spec("islpy") is None:
    raise ModuleNotFoundError("No module named 'islpy'", name="islpy")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # what Python asks of any module
        raise AttributeError(name)
    with MAKING:
        import islpy
    found = getattr(islpy, name)
    globals()[name] = found  # which later uses find without this function
    return found


class LateNames:
    """One of ``islpy``'s lists of names, for a file that is loaded before ``islpy`` is."""

    def __init__(self, of: str) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        found = getattr(__getattr__(self._of), name)
        self.__dict__[name] = found
        return found
