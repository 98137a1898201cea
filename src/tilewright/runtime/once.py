"""What a process makes once, at the first asking; and locks that a forked child does not inherit taken.

In: functions that make things with an identity (native code, LLVM's machines), or code that threads run by turns. Out:
``once``, which makes each thing under a lock and publishes it when it is complete; ``ForkLock``. Not its business: what
is made, and pure functions, which two threads may well compute twice (``functools.lru_cache``).

``MAKING`` is the one lock under which things are made, so there is no order of locks to get wrong; makers may use each
other. It is held across ``fork``, so that a child never finds anything half made
(``docs/adr/0011-made-once.md``).
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

MAKING = threading.RLock()
"""Held while something is made, never while a model runs or a kernel is compiled.

A function that imports a module of ours, or a library that may be missing, does so under it, too: a child that was
forked in the middle of another thread's import would wait for that import for ever."""

P = ParamSpec("P")
T = TypeVar("T")
Renew = TypeVar("Renew", bound=Callable[[], object])


class once(Generic[P, T]):
    """A function of few distinct arguments, called once for each; ``made`` has the values by their arguments.

    What raises is asked again by the next call.
    """

    def __init__(self, make: Callable[P, T]) -> None:
        self.made: dict[tuple[object, ...], T] = {}
        self._make = make
        functools.update_wrapper(self, make)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        assert not kwargs, "arguments are a key: give them by position"
        try:
            return self.made[args]
        except KeyError:
            pass
        with MAKING:
            if args not in self.made:
                self.made[args] = self._make(*args, **kwargs)
            return self.made[args]


class computed(Generic[T]):
    """An attribute that a pure function of the object computes when it is first asked for, without a lock.

    ``functools.cached_property`` of Python 3.11 has one for all objects of a class, which a child can inherit taken.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, owner: Any, kind: type | None = None) -> T:
        value: T = self._compute(owner)
        owner.__dict__[self._compute.__name__] = value  # which hides this from now on
        return value


class ForkLock:
    """``with guard.lock:`` for what is consistent at every moment, as seen by a child that gets a new lock.

    A thread may take it again: a signal's handler may call what it interrupted.
    """

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _renewed.add(self)


_renewed: weakref.WeakSet[ForkLock] = weakref.WeakSet()
_held: list[tuple[Callable[[], object], Callable[[], object], Callable[[], object]]] = []
_in_child: list[Callable[[], object]] = []
_forking = threading.local()


def hold_across_fork(
    before: Callable[[], object], in_parent: Callable[[], object], in_child: Callable[[], object]
) -> None:
    """Have a foreign lock taken after ``MAKING`` before every fork, and let go of on both sides."""
    _held.append((before, in_parent, in_child))


def in_forked_child(renew: Renew) -> Renew:
    """Have something put in order in every forked child, before anybody else's turn."""
    _in_child.append(renew)
    return renew


def _before() -> None:
    MAKING.acquire()
    _forking.held = []
    for held in _held:
        held[0]()
        _forking.held.append(held)


def _after_in_parent() -> None:
    for _, in_parent, _ in reversed(_forking.held):
        in_parent()
    MAKING.release()


def _after_in_child() -> None:
    for guard in _renewed:
        guard.lock = threading.RLock()
    for renew in _in_child:
        renew()
    for _, _, in_child in reversed(_forking.held):
        in_child()
    MAKING.release()


if hasattr(os, "register_at_fork"):
    # One registration: Python runs what comes before a fork in reverse order, and this order is that of the locks.
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
