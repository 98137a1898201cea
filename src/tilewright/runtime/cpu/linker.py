"""Object code in memory to callable addresses; and the process's one thread pool.

In: native objects that were already checked. Out: ``LinkedLibrary`` with the addresses of exported symbols.
Not its business: whether the objects fit this machine (``host``), their calling convention (``model``).

Objects are placed by a linker of our own (``placed``) where it knows all that they hold, else by LLVM's. LLVM is loaded
only for that, and for a text of the runtime's own that the disk cache does not have.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.runtime.cache import Cache
from tilewright.runtime.cpu import stop_ir
from tilewright.runtime.cpu.placed import place
from tilewright.runtime.cpu.pool import pool_ir
from tilewright.runtime.cpu.pool_systems import POOL_ABIS, pool_abi
from tilewright.runtime.env import read_environment
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.host import host_facts
from tilewright.runtime.once import MAKING, in_forked_child, once

POOL_SYMBOLS = ("tw_parallel_for", "tw_pool_reset", "tw_pool_spin", "tw_pool_workers")

_live: weakref.WeakSet[LinkedLibrary] = weakref.WeakSet()


class LinkedLibrary:
    """Native code in memory; it is unloaded when this object dies, so keep it as long as any address is used."""

    __slots__ = ("__weakref__", "_tracker", "addresses")

    def __init__(self, tracker: Any, exports: Sequence[str]) -> None:
        self._tracker = tracker
        self.addresses: Mapping[str, int] = {name: tracker[name] for name in exports}
        _live.add(self)

    def keep_forever(self) -> None:
        """Never unload: for code that other threads may still be inside of."""
        self._tracker.detach()


def link(
    objects: Sequence[bytes], exports: Sequence[str] = ("tw_run", "tw_plan"), routines: Sequence[str] = ()
) -> LinkedLibrary:
    """Link objects with each other, the process's thread pool, libc and ``routines`` of libraries.

    Raises ``ArtifactError`` when an object is not one for this machine, or a symbol is missing or defined twice,
    ``ResourceError`` where code can't be brought into memory.
    """
    shared = pool().addresses
    imports = {name: shared[name] for name in ("tw_parallel_for", "tw_poll", "tw_poll_kernel", "tw_kernel_stopped")}
    if routines:  # few models call libraries: what writes those calls takes 5 ms to import
        with MAKING:
            from tilewright.runtime.cpu.routines import addresses

        imports |= addresses(routines, link_text)
    return _link(objects, exports, imports)


@once
def pool() -> LinkedLibrary:
    """The process's one thread pool, linked on first use, and never unloaded."""
    imports = python_symbols(stop_ir.PYTHON_SYMBOLS) if stop_ir.has_python_symbols() else {}
    library = _link([_pool_object()], (*POOL_SYMBOLS, *stop_ir.EXPORTS), imports)
    library.keep_forever()
    in_forked_child(ctypes.CFUNCTYPE(None)(library.addresses["tw_pool_reset"]))
    set_main = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(library.addresses["tw_poll_main"])

    @in_forked_child
    def choose_main() -> None:
        set_main(threading.main_thread().ident)

    choose_main()
    spin_us = read_environment().spin_us
    if spin_us is not None:
        set_spin(library, spin_us)
    return library


def python_symbols(names: Sequence[str]) -> dict[str, int]:
    """Addresses of functions and objects of the interpreter."""
    symbols = {name: ctypes.c_void_p.in_dll(ctypes.pythonapi, name) for name in names}
    return {name: ctypes.addressof(symbol) for name, symbol in symbols.items()}


@once
def raise_stopped() -> Callable[[], object]:
    """A function that raises what a signal's handler raised in the middle of the call that returned ``STOPPED``."""
    return ctypes.PYFUNCTYPE(ctypes.py_object)(pool().addresses["tw_stopped"])


def set_spin(library: LinkedLibrary, spin_us: int) -> None:
    """Set for how long an idle worker of the pool spins before it sleeps."""
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(library.addresses["tw_pool_spin"])(spin_us * 1000)


def pool_workers() -> int:
    """How many threads the pool has started so far."""
    return int(ctypes.CFUNCTYPE(ctypes.c_int32)(pool().addresses["tw_pool_workers"])())


def link_text(kind: str, text: str, exports: Sequence[str], imports: Mapping[str, int]) -> LinkedLibrary:
    """Link an LLVM module of the runtime's own; ``imports`` are addresses by name, ``kind`` is the disk cache's."""
    return _link([_object(kind, text)], exports, imports)


def _pool_object() -> bytes:
    triple = host_facts().triple
    abi = pool_abi(triple)
    if abi is None:
        raise ArtifactError(f"there is no thread pool for {triple}", remedy=f"use one of {', '.join(POOL_ABIS)}")
    return _object("pool", pool_ir(abi) + stop_ir.stop_ir(abi.mode), abi.features)


def _object(kind: str, text: str, features: str = "") -> bytes:
    """A module's object, from the disk cache where it is there (compiling one takes 10 to 30 ms)."""
    host = host_facts()
    cache, key = Cache(), f"{host.triple} llvmlite {host.llvmlite}, LLVM {host.llvm}\n{text}"
    found = cache.get(kind, key)
    if found is None:
        with MAKING:
            from tilewright.runtime.cpu.llvm import compile_ir

        found = compile_ir(text, features)
        cache.put(kind, key, found)
    return found


def _link(objects: Sequence[bytes], exports: Sequence[str], imports: Mapping[str, int]) -> LinkedLibrary:
    tracker: Any = place(objects, exports, imports)
    if tracker is None:
        with MAKING:
            from tilewright.runtime.cpu.llvm import link_by_llvm

        tracker = link_by_llvm(objects, exports, imports)
    return LinkedLibrary(tracker, exports)


@atexit.register
def _keep_all() -> None:
    """At exit other threads may still run: leave the code where it is, the process is going away."""
    for library in list(_live):
        library.keep_forever()
