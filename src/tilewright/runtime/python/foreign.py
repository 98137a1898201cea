"""What native code of other libraries needs to run a model: one piece of memory for each combination of sizes.

In: the addresses of a model's code and weights, and a call's plan. Out: ``ForeignCall``, whose ``address`` is what
``tw_foreign`` is told; and the address of that function. Not its business: who calls it (``integrations.jax.native``),
the native code itself (``foreign_ir``).
"""

from __future__ import annotations

import ctypes
from typing import Any

from tilewright.runtime.cpu.float_mode import float_mode
from tilewright.runtime.cpu.foreign_ir import foreign_ir
from tilewright.runtime.cpu.linker import link_text
from tilewright.runtime.host import host_facts
from tilewright.runtime.once import once
from tilewright.runtime.plan import Plan
from tilewright.runtime.values import aligned_buffer

_POINTER = ctypes.c_void_p


class _ForeignFields(ctypes.Structure):
    """``%foreign_t`` of ``foreign_ir``."""

    _fields_ = (
        *((name, _POINTER) for name in ("run", "weights", "arena", "start")),
        *((name, ctypes.c_int64) for name in ("n_dims", "n_bytes", "n_ended")),
        ("threads", ctypes.c_int32), ("busy", ctypes.c_int32),
    )  # fmt: skip


class ForeignCall:
    """A model for inputs of certain shapes, as native code calls it by ``address``; keep it as long as that may be."""

    def __init__(self, model: Any, run: int, weights: int, plan: Plan, work_bytes: int, threads: int) -> None:
        """``run`` and ``weights`` are addresses that ``model`` owns; ``work_bytes`` are what a call works in."""
        arena, offset = aligned_buffer(work_bytes)
        start = (ctypes.c_int64 * max(len(plan.dims), 1))(*plan.dims)
        self._fields = _ForeignFields(
            run, weights, arena.ctypes.data + offset, ctypes.addressof(start), len(plan.dims), work_bytes, 0, threads, 0
        )
        self._owned = model, arena, start

    @property
    def address(self) -> int:
        return ctypes.addressof(self._fields)

    @property
    def n_ended(self) -> int:
        """Calls so far that have ended well."""
        return int(self._fields.n_ended)


@once
def foreign_function() -> int:
    """The address of ``tw_foreign``, which is never unloaded."""
    cpu = host_facts().triple.partition("-")[0]
    library = link_text("foreign", foreign_ir(float_mode(cpu)), ("tw_foreign",), {})
    library.keep_forever()
    return library.addresses["tw_foreign"]
