"""A compiled model as a Python callable.

In: a manifest, objects and weights, or a ``.tw`` file; per call, arrays. Out: arrays of the same kind, on memory of
their own. Not its business: checking files (``artifact``), shapes (``shapes``), threads (``pool``).

Everything that depends only on the input shapes is planned once and kept for the latest ``PLANS_KEPT`` shapes. A call
costs about 3 us besides the model's own work, and half a microsecond where a native entry takes it (``entry``). Any
number of threads may call at once; the interpreter's lock is released while native code runs.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from tilewright.runtime import artifact as artifacts
from tilewright.runtime.artifact import ObjectImage
from tilewright.runtime.cpu.linker import link, raise_stopped
from tilewright.runtime.cpu.pool import MAX_THREADS
from tilewright.runtime.cpu.stop_ir import STOPPED
from tilewright.runtime.errors import ArtifactError, ExecutionError, InputError, ResourceError
from tilewright.runtime.files import writing
from tilewright.runtime.host import check_target
from tilewright.runtime.manifest import Manifest, SymbolSpec, TensorSpec
from tilewright.runtime.once import ForkLock, computed
from tilewright.runtime.plan import Plan, Planner
from tilewright.runtime.python.arguments import ArgumentReader, as_returned, checked_feeds, flat_arguments
from tilewright.runtime.python.entry import Entries, Entry
from tilewright.runtime.python.failures import failure
from tilewright.runtime.python.foreign import ForeignCall
from tilewright.runtime.python.kept import state_at_start
from tilewright.runtime.python.memory import FramePool, ResultPool
from tilewright.runtime.python.report import Report
from tilewright.runtime.python.seen_sizes import SeenSizes
from tilewright.runtime.python.written import Written, plain_are_apart, read_outputs, tell_tensors, written_inputs
from tilewright.runtime.shapes import Shape
from tilewright.runtime.structure import Convention
from tilewright.runtime.threads import checked_threads, default_threads
from tilewright.runtime.values import (
    Array,
    TensorType,
    address_of,
    aligned_bytes,
    array_types,
    dtype_of,
    front_of,
    is_tensor,
    plain_arrays,
    plain_tensors,
    tensor_types,
)

PLANS_KEPT = 512

_RUN = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32
)
_PLAN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class CompiledModel:
    """Native code + weights + manifest, which may be for another machine: to look at and to save."""

    understands_tensors = True
    """Whether arguments may be PyTorch's tensors (results then are)."""

    exporter: Callable[..., Any] | None = None
    """How to export the model, set by whoever compiled it."""
    origin: Any = None
    """What the model was made of (``build.refit.Origin``), set by whoever compiled it, for other weights."""

    def __init__(self, manifest: Manifest, objects: Sequence[ObjectImage], weights: Any) -> None:
        """``ArtifactError`` when the manifest contradicts itself."""
        try:
            self._planner = Planner(manifest)
        except ValueError as error:
            raise ArtifactError(f"the manifest makes no sense: {error}", remedy="compile the model again") from error
        self.manifest = manifest
        self._objects = tuple(objects)
        self._weights = aligned_bytes(weights)

    def __repr__(self) -> str:
        return f"<CompiledModel ({self._signature()}) for {self.manifest.target.triple}>"

    def _signature(self) -> str:
        return " -> ".join(", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names, dtypes and symbolic shapes of the inputs, in positional order."""
        return self.manifest.inputs[: len(self.manifest.inputs) - len(self.manifest.convention.state)]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Names, dtypes and symbolic shapes of the outputs."""
        convention = self.manifest.convention
        return self.manifest.outputs[: len(self.manifest.outputs) - len(convention.state) - len(convention.written)]

    @property
    def symbols(self) -> tuple[SymbolSpec, ...]:
        """The symbolic sizes and their ranges."""
        return self.manifest.symbols

    @property
    def copies(self) -> int:
        """Inputs so far that could not be used where they lay."""
        return 0

    def report(self) -> Report:
        """What the compiler reported about this model: a dict of JSON values that prints as a page."""
        return Report(self.manifest.report or {})

    @property
    def objects(self) -> tuple[ObjectImage, ...]:
        """The machine code."""
        return self._objects

    @property
    def weights(self) -> Any:
        """The weights as the code reads them, in bytes."""
        return self._weights

    def save(self, path: str | os.PathLike[str], *, refit: bool = False) -> None:
        """Write the model as a ``.tw`` file, which ``load`` reads back; ``FileError`` where that can't be written.

        With ``refit`` a file beside it (``.refit``) says how weights are made, which ``tilewright.refit`` asks for.
        """
        if refit:
            self._origin().keep(self, path)
        with writing(path):
            artifacts.save(path, self.manifest, self._objects, self._weights)

    def refit(self, weights: Any) -> CompiledModel:
        """This model with other weights, without compiling: what a fresh compile with them gives.

        ``weights`` as ``tilewright.with_weights`` takes them. ``ArtifactError`` where they ask for other code, for a
        model from a file, for which there is ``tilewright.refit``, and for a model for a GPU.
        """
        made: CompiledModel = self._origin().refit(self, weights)
        made.origin, made.exporter = self.origin, None
        return made

    def alone(self) -> CompiledModel | None:
        """The one compile that serves every call; None where each call may need its own."""
        return self

    def _origin(self) -> Any:
        if self.origin is None:
            is_gpu = self.manifest.target.is_gpu
            remedy = "refit it by the model that it was made of, or its file by tilewright.refit"
            if is_gpu:
                remedy = "compile the model with the new weights"
            kind = "for a GPU" if is_gpu else "from a file"
            raise ArtifactError(f"a model {kind} has no source to take weights from", remedy=remedy)
        return self.origin

    def export(self, folder: str | os.PathLike[str], **options: Any) -> Any:
        """Write an object file and a C header for programs without Python: ``tilewright.export`` of the model's source.

        ``options`` are those of ``tilewright.export`` where they differ from this compile's. ``ArtifactError`` for a
        model from a file, which has no source, and for one for a GPU.
        """
        if self.exporter is None:
            remedy = "call tilewright.export with the model that it was compiled from, for a CPU"
            kind = "for a GPU" if self.manifest.target.is_gpu else "from a file"
            raise ArtifactError(f"a model {kind} can't be exported", remedy=remedy)
        return self.exporter(folder, **options)

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Only a ``LoadedModel`` runs: raises ``ArtifactError`` saying what this machine lacks."""
        check_target(self.manifest.target)
        raise ArtifactError("the model was not loaded", remedy="save it, and load the file")

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """As a call: raises ``ArtifactError``."""
        self(feeds)
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A model with the same code and weights, and a state of its own, which begins as this one's is now."""
        return self._twin()

    def __copy__(self) -> Self:
        return self._twin()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses to be pickled: machine code goes to another process as a file, or by ``fork``."""
        remedy = "save it with model.save(path), and tilewright.load(path) where it is needed"
        raise ArtifactError("a compiled model can't be pickled", remedy=remedy)

    def _twin(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made


class LoadedModel(CompiledModel):
    """A compiled model on a machine that it fits, callable from any number of threads at once.

    ``model(x, y)``, ``model(y=y, x=x)`` and ``model({"x": x, "y": y})`` are the same call. NumPy arrays in give NumPy
    arrays out; a PyTorch tensor among the inputs gives tensors (without gradient). Inputs are used where they lie
    unless they are not contiguous or not aligned; ``copies`` counts those that had to be copied.

    A model of a PyTorch module is called as the module is, with the same containers in and out; its tensors in order or
    by name are understood too. What the module keeps in its buffers from call to call, the model keeps in ``state``;
    calls of such a model take turns.
    """

    def __init__(
        self, manifest: Manifest, objects: Sequence[ObjectImage], weights: Any, *, threads: int | None = None
    ) -> None:
        """``threads`` is the most that a call uses; by default what affinity, quota and environment allow."""
        check_target(manifest.target)  # before code for another machine is linked
        super().__init__(manifest, objects, weights)
        planner = self._planner
        self._threads = min(checked_threads(threads) or default_threads(), MAX_THREADS)
        self._library = link([o.data for o in objects], routines=manifest.routines)
        run_at, weights_at = self._library.addresses["tw_run"], self._weights.ctypes.data
        self._run = _RUN(run_at)
        tw_plan = _PLAN(self._library.addresses["tw_plan"])
        # over `planner` and not over a method: a cycle through `self` would hold the weights until a collection
        self._plan = functools.lru_cache(PLANS_KEPT)(lambda shapes: planner.plan(shapes, tw_plan))
        n_args = len(manifest.inputs) + len(manifest.outputs)
        self._frames = FramePool(n_args, manifest.n_dims, weights_at, self.threads)
        self._results = ResultPool()
        self._scratch_bytes = manifest.scratch.n_bytes(self.threads)
        self._dtypes = [dtype_of(spec.dtype) for spec in manifest.inputs]
        self._types = array_types(self._dtypes)
        self._all_dtypes = [*self._dtypes, *(dtype_of(spec.dtype) for spec in self.outputs)]
        self._all_types = array_types(self._all_dtypes)
        # to compare is quicker than to hash, and the second in a row gets a native entry
        self._last: tuple[tuple[Shape, ...], Plan] | None = None
        self._entries = Entries(run_at, weights_at, self.threads, self._dtypes, self._results)
        self._entry: Entry | None = None
        self._reader = ArgumentReader(self.inputs, planner, len(manifest.convention.state))
        self._convention = manifest.convention or None
        self._has_effects = bool(manifest.convention.state or manifest.convention.written)
        self._writes = [k in manifest.convention.written for k in range(len(self.inputs))]
        self._guard = ForkLock()
        self._seen: SeenSizes | None = None
        self.reset()

    def __repr__(self) -> str:
        return f"<LoadedModel ({self._signature()}), {self.threads} threads>"

    @property
    def threads(self) -> int:
        """The most that a call uses, which stays as it was when the model was loaded."""
        return self._threads

    @property
    def copies(self) -> int:
        """Inputs so far that could not be used where they lay."""
        return self._reader.copies

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run. One output is returned as itself, several as a tuple.

        ``out`` is an array or a sequence of arrays to write into instead of new ones. Raises ``InputError`` listing
        everything wrong with the arguments, ``ExecutionError`` when the code reports a failure, ``ResourceError``
        when there is no memory.
        """
        if self._convention is not None:
            return self._call_by_convention(self._convention, args, kwargs, out)
        is_plain = out is None and not kwargs
        if is_plain and (result := self._try_entry(args)) is not None:
            return result
        results = self._results_of(args, kwargs, out, is_declined=is_plain)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run by names: inputs in, all outputs out."""
        feeds = feeds if type(feeds) is dict else checked_feeds(feeds)
        results = self._results_of((), feeds, None)
        return {spec.name: result for spec, result in zip(self.outputs, results, strict=True)}

    @contextmanager
    def profile_sizes(self) -> Iterator[SeenSizes]:
        """Count the sizes of the calls within the block: ``seen.most()`` is what ``specialize`` of a compile takes.

        Every call takes the long way meanwhile, some microseconds.
        """
        before, self._seen, self._entry = self._seen, SeenSizes(), None
        try:
            yield self._seen
        finally:
            self._seen = before

    @property
    def state(self) -> dict[str, Array]:
        """What the model keeps from call to call, by name: copies. Empty for a model that keeps nothing."""
        with self._guard.lock:
            return {kept.input: a.copy() for kept, a in zip(self.manifest.convention.state, self._state, strict=True)}

    def reset(self, **state: Any) -> None:
        """Let the state be what it was when the model was compiled, except for what is given by name.

        ``InputError`` for a name or an array that does not fit.
        """
        made = state_at_start(self.manifest, self._weights, state)
        with self._guard.lock:
            self._state = made

    def _twin(self) -> Self:
        made = super()._twin()
        made._guard = ForkLock()
        with self._guard.lock:
            made._state = [a.copy() for a in self._state]
        return made

    def go_on_from(self, other: LoadedModel) -> None:
        """Keep from now on what ``other``, the same model in other code, has kept until now."""
        with other._guard.lock, self._guard.lock:
            self._state = [a.copy() for a in other._state]

    def arrays_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Array]:
        """The arguments of a call as arrays in the order of ``inputs``; ``InputError`` where they don't fit."""
        return self._reader.read(*flat_arguments(self.manifest.convention, args, kwargs, len(self.inputs)))[0]

    def run_over(self, arrays: Sequence[Array], results: Sequence[Array]) -> None:
        """Run on plain arrays, with results into ``results``, which are not checked.

        One of them may be the memory of an input that the code copies and then writes to in places: the copy is left
        out then. No other step may read that input.
        """
        self._execute(arrays, list(results))

    def foreign(self, shapes: tuple[Shape, ...]) -> ForeignCall:
        """This model, which leaves no state, for native code that has inputs of these shapes and room for results."""
        plan, fixed = self._plan(shapes), (self._library.addresses["tw_run"], self._weights.ctypes.data)
        return ForeignCall(self, *fixed, plan, plan.arena_bytes + self._scratch_bytes, self.threads)

    def counters(self, args: Sequence[Array], n: int) -> list[int]:
        """Run on plain arrays; the last ``n`` slots of the table of dimensions, where profiling code counts."""
        return self.counted(args, n)[1]

    def counted(self, args: Sequence[Array], n: int) -> tuple[list[Array], list[int]]:
        """All results of a run on plain arrays, what the model keeps and writes among them; and its ``counters``."""
        plan = self._plan(tuple([a.shape for a in args]))
        results = self._results.results(plan.outputs)
        frame = self._frames.take(plan.arena_bytes + self._scratch_bytes)
        try:
            addresses = [address_of(a) for a in (*args, *results)]
            frame.args[: len(addresses)] = addresses  # type: ignore[assignment]  # the stubs want the elements' own type
            if plan.dims:
                frame.dims[:] = plan.dims
            if code := self._run(*frame.call):
                raise self._failure(code, addresses, [a.shape for a in args])
            return results, list(frame.dims[self.manifest.n_dims - n : self.manifest.n_dims])
        finally:
            self._frames.give(frame)

    @computed
    def _tensor_types(self) -> list[TensorType]:
        return tensor_types(self._dtypes)

    @computed
    def _all_tensor_types(self) -> list[TensorType]:
        return tensor_types(self._all_dtypes)

    def _call_by_convention(
        self, convention: Convention, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
    ) -> Any:
        """A call as the module's author wrote it, or flat as the other models take it."""
        args, kwargs = flat_arguments(convention, args, kwargs, len(self.inputs))
        return as_returned(convention, self._results_of(args, kwargs, out))

    def _results_of(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, *, is_declined: bool = False
    ) -> Sequence[Any]:
        """The results of a call with flat arguments, in order or by name: the shortest way that takes them.

        ``is_declined``: the native entry has seen ``args`` already.
        """
        given = self._reader.flat(args, kwargs)
        if given is None or out is not None or self._has_effects:
            return self._call_any(args, kwargs, given, out)
        if not (is_declined and given is args) and (found := self._try_entry(given)) is not None:
            return [found] if len(self.manifest.outputs) == 1 else found
        if (places := plain_arrays(given, self._types)) is not None:
            self._find_entry(False, places[1])
            return self._run_at(*places, None)
        if given and is_tensor(given[0]) and (places := plain_tensors(given, self._tensor_types)) is not None:
            self._find_entry(True, places[1])
            return self._run_at(*places, None, range(len(self.manifest.outputs)))
        if all([type(x) is np.ndarray and x.dtype.kind != "V" for x in given]):
            # Python has no quick way to a read-only array's address; the native entry reads it all the same.
            self._find_entry(False, tuple([x.shape for x in given]))
        return self._call_any(args, kwargs, given, None)

    def _call_any(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Sequence[Any] | None, out: Any
    ) -> Sequence[Any]:
        """A call by name, with tensors, with arrays to convert, with ``out``, with a state, or with mistakes.

        ``given`` are the inputs in order, if each was. Whatever it raises, neither state, written inputs nor ``out``
        have changed; only where the model's own code fails, after all was checked, ``out`` may hold anything.
        """
        if self._convention is not None and self._has_effects:
            return self._call_with_effects(self._convention, args, kwargs, given, out)
        if given is not None and out is not None and (found := self._call_into(given, out)) is not None:
            return found
        arrays, has_tensors = self._reader.read(args, kwargs, given)
        if out is None:
            return self._execute(arrays, None, range(len(self.outputs) if has_tensors else 0))
        plan = self._plan(tuple([a.shape for a in arrays]))
        by_name = dict(zip([spec.name for spec in self.inputs], given or (), strict=True))
        places = read_outputs(out, self.outputs, plan.outputs, by_name)
        self._execute(arrays, [place.memory for place in places])
        for place in places:
            place.tell()
        return [place.argument for place in places]

    def _call_into(self, given: Sequence[Any], out: Any) -> Sequence[Any] | None:
        """A call with ``out`` where everything is a plain array, or a plain tensor; None for any other."""
        outs = out if isinstance(out, tuple | list) else (out,)
        values, n = (*given, *outs), len(given)
        if len(values) != len(self._all_types):
            return None
        places, has_tensors = plain_arrays(values, self._all_types), False
        if places is None and is_tensor(values[0]):
            places, has_tensors = plain_tensors(values, self._all_tensor_types), True
        if places is None:
            return None
        addresses, shapes = places
        plan = self._plan(shapes[:n])
        if plan.is_dynamic or plan.is_empty or tuple([o.shape for o in plan.outputs]) != shapes[n:]:
            return None
        if not plain_are_apart(addresses, values, [*[False] * n, *[True] * len(outs)]):
            return None
        self._run_at(addresses, shapes[:n], ())
        if has_tensors:
            tell_tensors(outs)
        return outs

    def _call_with_effects(
        self,
        convention: Convention,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        given: Sequence[Any] | None,
        out: Any,
    ) -> list[Any]:
        """A call that leaves a new state, and writes to inputs; all that could fail is done before either changes."""
        if out is not None:
            raise InputError("out= is not for a model that keeps a state or writes to inputs", remedy="leave out=")
        places, has_tensors = None if given is None else plain_arrays(given, self._types), False
        if given and places is None and is_tensor(given[0]):
            places, has_tensors = plain_tensors(given, self._tensor_types), True
        if given is not None and places is not None:
            is_apart = not convention.written or plain_are_apart(places[0], given, self._writes)
        else:
            arrays, has_tensors = self._reader.read(args, kwargs, given)
            assert given is not None  # or it could not have been read
            is_apart = False
            places = [address_of(a) for a in arrays], tuple([a.shape for a in arrays])
        if is_apart:  # plain memory without overlap is filled as it is; else each argument is looked at
            written = [Written(given[k], given[k]) for k in convention.written]
        else:
            written = written_inputs(given, self.inputs, convention.written)
        addresses, shapes = places
        n, n_state = len(self.outputs), len(convention.state)
        with self._guard.lock:  # calls take turns: each starts from the state that the last one left
            kept = self._state
            # anything that may raise comes before the first write
            results = self._run_at(
                [*addresses, *[address_of(a) for a in kept]],
                (*shapes, *[a.shape for a in kept]),
                None,
                range(n if has_tensors else 0),
            )
            for place, value in zip(written, results[n + n_state :], strict=True):
                place.fill(value)
            self._state = list(results[n : n + n_state])
        return list(results[:n])

    def _execute(
        self, arrays: Sequence[Array], out: list[Array] | None, tensors: Collection[int] = ()
    ) -> Sequence[Any]:
        return self._run_at([address_of(a) for a in arrays], tuple([a.shape for a in arrays]), out, tensors)

    def _try_entry(self, args: Sequence[Any]) -> Any:
        """The result or the tuple of results by the native entry, if there is one that takes the arguments."""
        entry = self._entry
        try:
            return None if entry is None else entry(*args)
        except (MemoryError, ValueError):  # which the long way explains
            return None

    def _find_entry(self, is_tensor: bool, shapes: tuple[Shape, ...]) -> None:
        """Let calls like this one, the second with these shapes in a row, go the short way from now on."""
        last = self._last
        if last is not None and last[0] == shapes and self._seen is None:
            work_bytes = last[1].arena_bytes + self._scratch_bytes
            self._entry = self._entries.find(is_tensor, shapes, last[1], work_bytes)

    def _run_at(
        self,
        addresses: list[int],
        shapes: tuple[Shape, ...],
        out: Sequence[Array] | None,
        tensors: Collection[int] = (),
    ) -> Sequence[Any]:
        """Run on inputs that lie at ``addresses``, which their owners keep alive.

        ``out`` are arrays for the results; none where ``addresses`` have the results' places too. Where it is None, the
        results are new: tensors, those with the indices ``tensors``, and arrays.
        """
        last = self._last  # read once: another thread may put its own there between two looks
        if last is not None and last[0] == shapes:
            plan = last[1]
        else:
            plan = self._plan(shapes)
            if plan.is_empty:  # nothing to fill, and code that may be for larger sizes
                return self._results.results(plan.outputs, tensors) if out is None else out
            # one tuple, so that no thread sees the shapes of one call with the plan of another
            self._last = shapes, plan
        if (seen := self._seen) is not None:
            seen.add(plan.symbols)
        try:
            frame = self._frames.take(plan.arena_bytes + self._scratch_bytes)
            results = self._results.results(plan.outputs, tensors) if out is None else out
        except (MemoryError, ValueError) as error:  # NumPy: ValueError for more bytes than an address can have
            raise _no_memory(plan) from error
        try:
            for k, result in enumerate(results):
                addresses.append(result.data_ptr() if k in tensors else address_of(result))
            frame.args[: len(addresses)] = addresses  # type: ignore[assignment]  # the stubs want the elements' own type
            if plan.dims:
                frame.dims[:] = plan.dims
            code = self._run(*frame.call)
            dims = frame.dims[:] if plan.is_dynamic else []  # a copy: the frame may be another call's right after
        finally:
            self._frames.give(frame)
        if code:
            raise self._failure(code, addresses, shapes)
        return self._trimmed(results, plan, dims) if plan.is_dynamic else results

    def _trimmed(self, results: Sequence[Any], plan: Plan, dims: list[int]) -> list[Any]:
        """Outputs in the shapes that the data decided."""
        return [
            result if output.sizes is None else front_of(result, self._planner.final_shape(output, plan, dims))
            for result, output in zip(results, plan.outputs, strict=True)
        ]

    def _failure(self, code: int, addresses: Sequence[int], shapes: Sequence[Shape]) -> ExecutionError:
        if code == STOPPED:
            raise_stopped()()
        return failure(self.manifest, code, addresses, shapes)


def _no_memory(plan: Plan) -> ResourceError:
    wanted = [f"{plan.arena_bytes} bytes of scratch memory"] if plan.arena_bytes else []
    wanted += [f"an output of shape {o.shape}" for o in plan.outputs]
    return ResourceError(f"there is no memory for {', '.join(wanted)}", remedy="use smaller inputs, or free memory")
