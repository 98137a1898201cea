"""``tilewright.jax.jit``: a drop-in for ``jax.jit`` on the CPU.

In: a Python function over JAX's arrays. Out: a function that is called like it. JAX traces and lowers it once for each
signature (structure, shapes, element types, weak types, static arguments, JAX's settings); what that gives is compiled
by Tilewright, and every other call goes straight to the compiled code. So ``vmap``, ``grad``, ``scan`` and random keys
inside mean what they mean to JAX. Not its business: reading StableHLO (``frontend.stablehlo``).

There are two ways to the compiled code. JAX's own calls it as an operation of XLA (``native``); what that can't do goes
by Python, which also says what is wrong with a call's arguments.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.source_info_util import register_exclusion

from tilewright.build import driver
from tilewright.core.diag import OptionError, name_of
from tilewright.core.types import Array
from tilewright.frontend.stablehlo.importer import import_module
from tilewright.integrations.jax.arrays import Give, giver, is_top_level, kind_of, taker, trace_context
from tilewright.integrations.jax.native import Pending, is_forked, native_call, staged
from tilewright.runtime.cpu.foreign_ir import FAILED, HALTED
from tilewright.runtime.cpu.linker import raise_stopped
from tilewright.runtime.errors import InputError, TilewrightError
from tilewright.runtime.once import ForkLock
from tilewright.runtime.python.foreign import ForeignCall
from tilewright.runtime.python.model import CompiledModel

register_exclusion(__file__)  # what comes of the user's lines names them, not these

_flatten = jax.tree_util.tree_flatten
_unflatten = jax.tree_util.tree_unflatten
_LEAF: Any = jax.tree_util.tree_structure(0)
_pending = Pending()
Names = str | Sequence[str] | None
Places = int | Sequence[int] | None


def jit(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: Places = None,
    static_argnames: Names = None,
    donate_argnums: Places = None,
    donate_argnames: Names = None,
    **options: Any,
) -> Any:
    """``function``, compiled for the CPU by Tilewright when it is first called with arguments of a kind.

    Arguments are trees of arrays, NumPy's and numbers among them, as ``jax.jit`` takes them; results are JAX's arrays.
    ``static_argnums`` and ``static_argnames`` name arguments that are no arrays: each of their values (hashable) is
    compiled for. Donated arguments stay valid. ``options`` are those of ``tilewright.compile``: ``threads``,
    ``precision``, ``optimize``, ``cache`` and others. Denormal numbers count as 0, as they do for ``jax.jit`` on the
    CPU, unless ``flush_denormals=False``. Without a function it is a decorator that has these options.

    A call raises ``ImportFailed`` with every operation that has no form here and the line of the function that it comes
    from, ``InputError`` for arguments that JAX can't take, and for a call within another transformation of JAX.
    """
    if function is None:
        return functools.partial(
            jit, static_argnums=static_argnums, static_argnames=static_argnames, donate_argnums=donate_argnums,
            donate_argnames=donate_argnames, **options,
        )  # fmt: skip
    return Jitted(function, _places(static_argnums), _names(static_argnames), options)


def _places(given: Places) -> tuple[int, ...]:
    return () if given is None else (given,) if isinstance(given, int) else tuple(given)


def _names(given: Names) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


@dataclass(frozen=True)
class _CompiledSignature:
    """A function for one signature: its model, what makes the model's arguments, and what makes results."""

    model: CompiledModel
    takes: tuple[Callable[[Any], Array], ...]
    gives: tuple[Give, ...]
    tree: Any

    is_leaf: bool
    """Is the result one array, in no container?"""

    types: tuple[Any, ...]
    """Types of the results, as JAX traced them."""

    call: ForeignCall | None
    """The model as XLA calls it."""

    def __call__(self, leaves: Sequence[Any]) -> Any:
        gives = self.gives
        made: Any = self.model(*[take(x) for take, x in zip(self.takes, leaves, strict=True)]) if gives else ()
        if self.is_leaf:
            return gives[0](made)
        results = (made,) if len(gives) == 1 else made
        return _unflatten(self.tree, [give(a) for give, a in zip(gives, results, strict=True)])

    def staged(self, leaves: Sequence[Any]) -> Any:
        """The same in what JAX is tracing; ``_NoNativeWay`` where XLA can't call the model."""
        if self.call is None:
            raise _NoNativeWay
        return _unflatten(self.tree, staged(self.call, leaves, self.types))


class _NoNativeWay(Exception):
    """XLA can't call what was compiled."""


class Jitted:
    """A function with what has been compiled of it, by signature. May be called by many threads at once."""

    def __init__(
        self, function: Callable[..., Any], places: tuple[int, ...], names: tuple[str, ...], options: Mapping[str, Any]
    ) -> None:
        functools.update_wrapper(self, function)
        if not hasattr(self, "__name__"):  # a partial has none, nor has an object with __call__
            self.__name__ = name_of(function)
        self._static = _static_of(function, places, names)
        places, names = self._static or ((), ())
        # None where there are none: JAX finds the names of places, and the places of names, where it is told one.
        self._traced: Any = jax.jit(
            function, static_argnums=places or None, static_argnames=names or None, keep_unused=True
        )
        self._options = dict(options)
        self._found: dict[Any, _CompiledSignature] = {}
        self._guard = ForkLock()
        self._native: Any = _native_way(self, places, names)
        self._n_begun = itertools.count()
        weakref.finalize(self, _pending.bury, self._found, self._n_begun).atexit = False

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """As a method: the object is the first argument, which must then be a tree or static."""
        return self if owner is None else functools.partial(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's results, as JAX's arrays."""
        # in a transformation JAX would trace the call
        if self._native is not None and is_top_level() and not is_forked():
            is_stopped = False
            try:
                made = self._native(*args, **kwargs)
            except TilewrightError:
                raise
            except _NoNativeWay:
                self._native = None
            except (FloatingPointError, KeyboardInterrupt):  # of jax_debug_nans or a signal, once the call has begun
                next(self._n_begun)
                raise
            except (TypeError, ValueError, jax.errors.JaxRuntimeError) as e:
                # JAX's quick way raises ValueError for what XLA reports, its long way JaxRuntimeError
                is_stopped = HALTED in str(e)
                if isinstance(e, jax.errors.JaxRuntimeError) and not is_stopped and FAILED not in str(e):
                    self._native = None  # XLA itself can't; it won't do better the next time
            else:
                next(self._n_begun)
                return made
            if is_stopped:
                raise_stopped()()
            # what else is wrong is told below
        given, static = self._split(*self._static, args, kwargs) if self._static else ((args, kwargs), ())
        leaves, tree = _flatten(given)
        try:
            key = (tree, static, trace_context(), *[kind_of(x) for x in leaves])
            found = self._found.get(key)
        except TypeError as e:
            raise _unusable(e, leaves, static) from e
        if found is None:
            if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
                return self.__wrapped__(*args, **kwargs)
            if any(isinstance(x, jax.core.Tracer) for x in leaves):
                raise InputError(
                    f"{self.__name__} is compiled by tilewright.jax.jit, and was called within a transformation of JAX",
                    remedy="transform the plain function, f.__wrapped__, and compile what that gives",
                )
            found = self._compiled(key, args, kwargs)
        return found(leaves)

    def staged(self, *args: Any, **kwargs: Any) -> Any:
        """A call of the compiled function in what JAX is tracing, for which ``jax.jit`` keeps it."""
        given, static = self._split(*self._static, args, kwargs) if self._static else ((args, kwargs), ())
        leaves, tree = _flatten(given)
        if not all(isinstance(x, jax.core.Tracer) for x in leaves):  # as under jax_disable_jit
            return self.__wrapped__(*args, **kwargs)
        if jax.default_backend() != "cpu":  # what XLA calls must be where it computes
            raise _NoNativeWay
        key = (tree, static, trace_context(), *[(x.shape, x.dtype, x.weak_type) for x in leaves])
        with jax.ensure_compile_time_eval():  # or it would be traced into the call
            found = self._found.get(key) or self._compiled(key, args, kwargs)
        return found.staged(leaves)

    @staticmethod
    def _split(
        places: Sequence[int], names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        """The arguments that are trees of arrays; the static ones, by place or name."""
        traced = tuple(x for k, x in enumerate(args) if k not in places)
        by_name = {k: x for k, x in kwargs.items() if k not in names}
        static = [(k, args[k]) for k in places if k < len(args)]
        return (traced, by_name), (*static, *((k, kwargs[k]) for k in names if k in kwargs))

    def _compiled(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _CompiledSignature:
        with self._guard.lock:
            if key not in self._found:
                self._found[key] = self._made(args, kwargs)
            return self._found[key]

    def _made(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _CompiledSignature:
        try:
            traced = self._traced.trace(*args, **kwargs)
        except TypeError as e:
            raise InputError(f"JAX can't trace {self.__name__}: {e}", remedy="see JAX's message") from e
        except TilewrightError:
            raise
        except Exception as e:  # of the same type as from jax.jit, since this stands in its place
            e.add_note(f"remedy: change the line of {self.__name__} that JAX could not trace; jax.jit raises this too")
            raise
        made = import_module(traced.lower().compiler_ir("stablehlo"), self.__name__)
        tree = jax.tree_util.tree_structure(traced.out_info)
        graph = made.graph
        takes = tuple(taker(n.dtype.numpy, n.attrs["name"] in made.complex_inputs) for n in graph.inputs)
        gives = tuple(
            giver(info, name in made.complex_outputs)
            for info, name in zip(traced.jaxpr.out_avals, graph.output_names, strict=True)
        )
        is_leaf = tree == _LEAF  # JAX's treedef_is_leaf says so of None and of an empty tuple, too
        model = driver.compile(graph, **{"flush_denormals": True, **self._options})
        types = tuple(traced.jaxpr.out_avals)
        call = native_call(model, traced.jaxpr.in_avals, types)
        return _CompiledSignature(model, takes, gives, tree, is_leaf, types, call)

    __name__: str
    __wrapped__: Callable[..., Any]


def _native_way(jitted: Jitted, places: tuple[int, ...], names: tuple[str, ...]) -> Any:
    """``jax.jit`` of the compiled function."""
    kept = weakref.ref(jitted)  # a cycle would hold the weights until a collection

    def compiled(*args: Any, **kwargs: Any) -> Any:
        of = kept()
        assert of is not None, "it is being called"
        return of.staged(*args, **kwargs)

    functools.update_wrapper(compiled, jitted.__wrapped__, updated=())
    return jax.jit(compiled, static_argnums=places or None, static_argnames=names or None)


def _static_of(
    function: Callable[..., Any], places: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """Places and names of the static arguments, each by the other too where the signature says so; None of none."""
    if not places and not names:
        return None
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return places, names
    kinds = {p.kind for p in parameters.values()}
    known = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    most = math.inf if inspect.Parameter.VAR_POSITIONAL in kinds else len(known)
    for k in places:
        if not -len(known) <= k < most:
            raise OptionError(f"static_argnums has {k}, and {name_of(function)} takes {len(known)} arguments by place")
    for n in names:
        if n not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
            remedy = f"its arguments are {', '.join(parameters)}"
            raise OptionError(f"static_argnames has {n!r}, which {name_of(function)} does not take", remedy=remedy)
    counted = sorted({k % len(known) if k < 0 else k for k in places} | {known.index(n) for n in names if n in known})
    return tuple(counted), tuple(dict.fromkeys([*names, *(known[k] for k in counted if k < len(known))]))


def _unusable(error: TypeError, leaves: Sequence[Any], static: tuple[Any, ...]) -> InputError:
    """What is wrong with arguments of which no signature can be made."""
    for k, value in static:
        try:
            hash(value)
        except TypeError:
            return InputError(f"the static argument {k!r} is not hashable", remedy="pass a tuple or a frozen dataclass")
    known = (bool, int, float, complex)
    kind = next((type(x).__name__ for x in leaves if not hasattr(x, "dtype") and not isinstance(x, known)), "value")
    return InputError(f"an argument is a {kind}, which is no array: {error}", remedy="name it in static_argnames")
