"""From the stack trace that PyTorch keeps on each fx node to a ``Loc`` with the user's file, line and function.

In: an fx node's metadata. Out: the last frame outside of PyTorch itself.
Not its business: joining locations of fused nodes (``core.diag``).
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from tilewright.core.diag import Loc

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_INSIDE_TORCH = re.compile(r"[\\/](site|dist)-packages[\\/]torch[\\/]|^<")


def location_of(node: Any) -> Loc:
    """The user's line that made an fx node; where PyTorch's own code made it, the module or node by name."""
    trace = node.meta.get("stack_trace")
    return (_from_trace(trace) if trace else None) or _from_modules(node)


def _from_modules(node: Any) -> Loc:
    modules = [m for m in (node.meta.get("nn_module_stack") or {}).values() if m[0]]
    if modules:
        path, kind = modules[-1]
        name = kind if isinstance(kind, str) else kind.__name__
        return Loc(f'module "{path}" ({name.rpartition(".")[2]})')
    return Loc(f'node "{node.name}" ({node.target})')


@lru_cache(maxsize=4096)
def _from_trace(trace: str) -> Loc | None:
    frames = [f for f in _FRAME.findall(trace) if not _INSIDE_TORCH.search(f[0])]
    if not frames:
        return None
    file, line, function = frames[-1]
    return Loc(f"{PurePath(file).name}:{line} in {function}", file, int(line))
