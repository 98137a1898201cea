"""Compiled models as operations of XLA: what JAX's own native way into a compiled function calls.

In: a model, and the types that JAX traced. Out: ``staged``, which puts a call of the model among what JAX is tracing;
``Pending``, which keeps models until XLA has no call of them before it. Not its business: which model a call runs
(``jit``), the function that XLA calls (``runtime.cpu.foreign_ir``).

From ``jax.jit`` to the model and back no line of Python runs. That matters where a net's numbers fill the second-level
cache, since every object that Python touches comes from memory then: 30 to 60 us a call.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from tilewright.integrations.jax.arrays import is_keys
from tilewright.runtime.once import once
from tilewright.runtime.python.foreign import ForeignCall, foreign_function
from tilewright.runtime.python.model import LoadedModel

_call = Primitive("tilewright_call")
_call.multiple_results = True
_spread: set[int] = set()
"""Addresses of models that were lowered for several devices, on each of which a call of theirs ends."""


_process = os.getpid()


def is_forked() -> bool:
    """Is this a child of the process that loaded JAX? XLA's threads are not in it, so what it compiles never ends."""
    return os.getpid() != _process


def _types(*_: Any, address: int, results: Sequence[Any]) -> list[Any]:
    return list(results)


def _lowered(context: Any, *operands: Any, address: int, results: Sequence[Any]) -> Any:
    if (context.module_context.axis_context.num_devices or 1) > 1:
        _spread.add(address)
    return jax.ffi.ffi_lowering(_target())(context, *operands, model=np.int64(address))


_call.def_abstract_eval(_types)
mlir.register_lowering(_call, _lowered, platform="cpu")


@once
def _target() -> str:
    """The function's name with XLA: one of this process alone, so that no executable kept on a disk has an address of
    another process in it."""
    name = f"tilewright_call_{secrets.token_hex(8)}"
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(ctypes.c_void_p(foreign_function())), platform="cpu")
    return name


def native_call(model: Any, inputs: Sequence[Any], results: Sequence[Any]) -> ForeignCall | None:
    """The model, as XLA calls it for inputs of these types; None where only Python can call it.

    That is so where a type has other bytes with XLA (numbers of less than 8 bits), where there is no result, and for
    models of other kinds than one compile for one CPU.
    """
    if type(model) is not LoadedModel or not results or not all(map(_has_whole_bytes, (*inputs, *results))):
        return None
    return model.foreign(tuple([tuple([n for n in spec.shape if isinstance(n, int)]) for spec in model.inputs]))


def _has_whole_bytes(of: Any) -> bool:
    """Has each of this type's elements bytes of its own? Keys are numbers of 32 bits."""
    if is_keys(of.dtype) or of.dtype == np.bool_:
        return True
    return bool(jax.numpy.issubdtype(of.dtype, np.number)) and jax.dtypes.itemsize_bits(of.dtype) >= 8


def staged(call: ForeignCall, arguments: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Results of a call of the model, in what JAX is tracing; ``results`` are their types."""
    made: list[Any] = _call.bind(*arguments, address=call.address, results=tuple(results))
    return made


_NEVER = -1
"""As many calls as never have ended."""


class Pending:
    """Models whose functions are gone, kept while XLA may have calls of them before it.

    JAX begins a call later, on a thread of its own, where an argument is still being computed. Over several devices a
    call ends several times: such models are kept for good.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Sequence[ForeignCall], int]] = []

    def bury(self, found: Mapping[Any, Any], n_begun: itertools.count[int]) -> None:
        """Let go of the ``call`` of each signature once as many calls have ended as were begun.

        Called wherever Python collects what nobody holds, so it takes no lock.
        """
        if calls := [f.call for f in found.values() if f.call is not None]:
            is_spread = any(call.address in _spread for call in calls)
            self._kept.append((calls, _NEVER if is_spread else next(n_begun)))
        for kept in list(self._kept):
            if sum(call.n_ended for call in kept[0]) == kept[1]:
                with contextlib.suppress(ValueError):  # another thread has let go of it
                    self._kept.remove(kept)
