"""A compiled model on a GPU as a Python callable.

In: a manifest, code, weights, a driver; per call, arrays of the host or of the GPU. Out: arrays of the same kind.
Not its business: steps (``run``), recording (``replay``), what the driver is (``driver``).

Arrays of the host are copied to the GPU and back. An array that another library holds in the GPU's memory is used where
it lies, and results stay there. Calls of one model take turns; a call returns when its work has run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.runtime.cuda.device_tensors import DeviceTensor, GpuArray, borrow, is_on_gpu
from tilewright.runtime.cuda.driver import Driver, DriverError
from tilewright.runtime.cuda.errors import GpuError
from tilewright.runtime.cuda.kept import KeptOnGpu
from tilewright.runtime.cuda.memory import ARGUMENT_ALIGNMENT, Block, allocate, places, rounded
from tilewright.runtime.cuda.program import GpuCode, GpuKernel
from tilewright.runtime.cuda.replay import Replays
from tilewright.runtime.cuda.run import CheckFailed, DeviceRun, LoadedKernel, evaluate_size
from tilewright.runtime.errors import ArtifactError, ExecutionError, Violation
from tilewright.runtime.manifest import Manifest, TensorSpec
from tilewright.runtime.once import ForkLock
from tilewright.runtime.plan import Plan, Planner, input_error
from tilewright.runtime.python.arguments import ArgumentReader, as_returned, checked_feeds, flat_arguments, of_host
from tilewright.runtime.python.kept import state_at_start
from tilewright.runtime.python.report import Report
from tilewright.runtime.shapes import Shape, compile_size
from tilewright.runtime.structure import numbers_in
from tilewright.runtime.threads import default_threads
from tilewright.runtime.values import Array, address_of, aligned_bytes

PLANS_KEPT = 512


class GpuModel:
    """A model on GPU number ``device``. ``model(x, y)``, ``model(y=y, x=x)``, ``model({"x": x, "y": y})`` are the same.

    One output is returned as itself, several as a tuple, those of a PyTorch module in its containers: NumPy arrays, or
    ``GpuArray``s where an input lies on the GPU. What a module keeps in its buffers from call to call stays there.
    Raises ``InputError`` listing everything wrong with the arguments, ``GpuError`` naming kernel and op where the
    driver refuses one, ``GpuMemoryError`` with what a call needs, ``ExecutionError`` when a check of the model fails.
    """

    def __init__(self, manifest: Manifest, code: GpuCode, weights: Any, driver: Driver, device: int = 0) -> None:
        """Load every kernel and copy the weights to the GPU."""
        self.manifest = manifest
        self.code = code
        self.device = device
        self._driver = driver
        self._planner = Planner(manifest)
        self._reader = ArgumentReader(self.inputs, self._planner, len(manifest.convention.state))
        self._outputs = [tuple(compile_size(s) for s in o.shape) for o in manifest.outputs]
        self._plan = lru_cache(PLANS_KEPT)(self._new_plan)
        self._guard = ForkLock()
        self._last: DeviceRun | None = None
        driver.enter(device)
        self._check_device()
        self._modules: list[int] = []
        self._kernels = self._load_all()
        self._stream = driver.new_stream()
        self._replays = Replays(self._stream)
        self._arena, self._io = Block(driver, "intermediate results"), Block(driver, "arrays of the host")
        self._weights = Block(driver, "weights")
        host = aligned_bytes(weights)
        if host.nbytes:
            self._weights.at_least(host.nbytes, self._stream)
            driver.to_device(self._weights.address, address_of(host), host.nbytes, self._stream)
            driver.wait(self._stream)
        self._host_weights = host
        self._kept = KeptOnGpu(manifest, host, driver, self._stream)
        self._numbers = numbers_in(manifest.convention.result)

    def __repr__(self) -> str:
        signature = " -> ".join(", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"<GpuModel ({signature}) for {self.code.arch} on GPU {self.device}>"

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names, dtypes and symbolic shapes of the inputs, in positional order."""
        return self.manifest.inputs[: len(self.manifest.inputs) - len(self.manifest.convention.state)]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Names, dtypes and symbolic shapes of the outputs."""
        return self.manifest.outputs[: len(self.manifest.outputs) - len(self.manifest.convention.state)]

    @property
    def n_replayed(self) -> int:
        """How many calls so far were replayed as one."""
        return self._replays.n_replayed

    def report(self) -> Report:
        """What the compiler reported about this model."""
        return Report(self.manifest.report or {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run."""
        convention = self.manifest.convention
        return as_returned(convention, self._results_of(*flat_arguments(convention, args, kwargs, len(self.inputs))))

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run by names: inputs in, all outputs out."""
        results = self._results_of((), checked_feeds(feeds))
        return {spec.name: result for spec, result in zip(self.outputs, results, strict=True)}

    @property
    def state(self) -> dict[str, Array]:
        """What the model keeps from call to call, by name: copies on the host. Empty for one that keeps nothing."""
        with self._guard.lock:
            self._driver.enter(self.device)
            names = [kept.input for kept in self.manifest.convention.state]
            return dict(zip(names, self._kept.arrays(), strict=True))

    def reset(self, **state: Any) -> None:
        """Let the state be what it was when the model was compiled, except for what is given by name.

        ``InputError`` for a name or an array that does not fit.
        """
        arrays = state_at_start(self.manifest, self._host_weights, state)
        with self._guard.lock:
            self._driver.enter(self.device)
            self._kept.put(arrays)

    def plan_for(self, shapes: Sequence[Shape]) -> Plan:
        """What the shapes of all inputs decide of a call: results and memory. ``InputError`` for wrong ones."""
        return self._plan(tuple(shapes))

    def run_at(
        self, plan: Plan, args: Sequence[int], arena: int, stream: int, *, records: bool = True
    ) -> Mapping[str, int]:
        """Put a call's work on the stream of another library, and return before it has run.

        ``args`` are the addresses of the inputs, then of the results; ``arena`` is that of ``plan.arena_bytes`` for
        what is in between. They are multiples of ``ARGUMENT_ALIGNMENT``, and hold until the work has run. The sizes
        that come back are all that the call knows, those that the data decided among them. Without ``records``
        nothing is recorded, as where the stream itself is being recorded.
        """
        with self._guard.lock:
            self._driver.enter(self.device)
            run = DeviceRun(self._driver, self._kernels, stream, args, self._weights.address, arena, dict(plan.symbols))
            return self._run(run, records=records)

    def shape_of(self, output: int, sizes: Mapping[str, int]) -> Shape:
        """The shape of a result under the sizes that a call came to know."""
        return tuple(evaluate_size(s, sizes) for s in self._outputs[output])

    def repeat_last(self) -> None:
        """The work of the last call again, on the same memory, without copies and without waiting: for measuring it."""
        with self._guard.lock:
            self._driver.enter(self.device)
            if self._last is None:
                raise ExecutionError("there was no call yet", remedy="call the model first")
            self._replays.run(self._last, self.code.program)

    def wait(self) -> None:
        """Until all work so far has run."""
        with self._guard.lock:
            self._driver.enter(self.device)
            self._wait()

    def close(self) -> None:
        """Give all memory back. The model can't be called afterwards."""
        with self._guard.lock:
            self._driver.enter(self.device)
            self._replays.forget(self._new_run([], {}))
            for block in (self._arena, self._io, self._weights):
                block.release(self._stream)
            self._kept.release()
            for module in self._modules:
                self._driver.unload(module)
            self._modules, self._kernels, self._last = [], [], None

    # --- loading ----------------------------------------------------------------------------------------------------

    def _check_device(self) -> None:
        """PTX of a generation runs on that and later ones; that of ``sm_90a`` on its own alone."""
        facts = self._driver.facts(self.device)
        number = self.code.arch.removeprefix("sm_").rstrip("a")
        wanted = (int(number[:-1]), int(number[-1]))
        is_exact = self.code.arch.endswith("a")
        if facts.capability == wanted or (not is_exact and facts.capability > wanted):
            return
        has = ".".join(map(str, facts.capability))
        remedy = 'compile for target="cuda", which every GPU since compute capability 8.0 runs'
        raise ArtifactError(f"the model is for {self.code.arch}, and {facts.name} has {has}", remedy=remedy)

    def _load_all(self) -> list[LoadedKernel]:
        """Every kernel; the driver assembles several at one time."""
        kernels = self.code.kernels

        def load(kernel: GpuKernel) -> int | DriverError:
            self._driver.enter(self.device)
            try:
                return self._driver.load(kernel.ptx)
            except DriverError as error:
                return error

        with ThreadPoolExecutor(max(min(len(kernels), default_threads()), 1)) as pool:
            loaded = list(pool.map(load, kernels))
        self._modules = [m for m in loaded if isinstance(m, int)]
        return [self._loaded(kernel, module) for kernel, module in zip(kernels, loaded, strict=True)]

    def _loaded(self, kernel: GpuKernel, module: int | DriverError) -> LoadedKernel:
        """A kernel with its entries, once the driver has assembled it or said why it does not."""
        try:
            if isinstance(module, DriverError):
                raise module
            functions = [self._driver.function(module, e.name, e.dynamic_shared_bytes) for e in kernel.entries]
        except DriverError as error:
            text = f"kernel {kernel.name} ({kernel.ops}) could not be loaded: {error}"
            raise GpuError(text, call=error.call, status=error.status) from error
        return LoadedKernel(kernel, tuple(functions))

    # --- calls ------------------------------------------------------------------------------------------------------

    def _results_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        given = self._reader.flat(args, kwargs)
        with self._guard.lock:
            self._driver.enter(self.device)
            if given is not None and any(is_on_gpu(value) for value in given):
                return self._call_on_gpu(given)
            arrays, _ = self._reader.read(args, kwargs, given)
            return self._call_on_host(arrays)

    def _call_on_host(self, arrays: Sequence[Array]) -> list[Any]:
        """Inputs and results have room in one block, which keeps its address while calls keep their sizes."""
        plan = self._plan((*[a.shape for a in arrays], *self._kept.shapes))
        results = [np.empty(o.shape, o.dtype) for o in plan.outputs[: len(self.outputs)]]
        if plan.is_empty:
            return results
        offsets, total = places([a.nbytes for a in arrays] + [o.n_bytes for o in plan.outputs])
        self._grow(self._io, total)
        given = [self._io.address + at for at in offsets[: len(arrays)]]
        made = [self._io.address + at for at in offsets[len(arrays) :]]
        for array, address in zip(arrays, given, strict=True):
            if array.nbytes:
                self._driver.to_device(address, address_of(array), array.nbytes, self._stream)
        sizes = self._execute(given, made, plan)
        for result, address in zip(results, made, strict=False):
            if result.nbytes:
                self._driver.to_host(address_of(result), address, result.nbytes, self._stream)
        self._wait()
        return [self._trimmed(r, k, plan, sizes) for k, r in enumerate(results)]

    def _call_on_gpu(self, given: Sequence[Any]) -> list[Any]:
        """Inputs where they lie, but for arrays of the host among them; results in memory of their own."""
        pairs = list(zip(given, self.inputs, strict=True))
        lent = [self._borrowed(*pair) if is_on_gpu(pair[0]) else of_host(*pair) for pair in pairs]
        wrong = [found for found in lent if isinstance(found, Violation)]
        if wrong:
            raise input_error(wrong)
        arrays = [a for a in lent if isinstance(a, DeviceTensor | np.ndarray)]
        plan = self._plan((*[a.shape for a in arrays], *self._kept.shapes))
        n, kept = len(self.outputs), plan.outputs[len(self.outputs) :]
        in_block = [a.nbytes if isinstance(a, np.ndarray) else 0 for a in arrays]
        offsets, total = places([*in_block, *[o.n_bytes for o in kept]])
        self._grow(self._io, total)
        args = []
        for a, at in zip(arrays, offsets, strict=False):
            if isinstance(a, DeviceTensor):
                args.append(a.address)
                continue
            args.append(self._io.address + at)
            self._driver.to_device(args[-1], address_of(a), a.nbytes, self._stream)
        results = [self._new_array(o.shape, o.dtype.name, o.n_bytes) for o in plan.outputs[:n]]
        if plan.is_empty:
            return results
        made = [*[r.address for r in results], *[self._io.address + at for at in offsets[len(arrays) :]]]
        sizes = self._execute(args, made, plan)
        self._wait()
        for k, r in enumerate(results):
            if plan.outputs[k].sizes is not None:
                r.shape = self.shape_of(k, sizes)
        return [self._on_host(r) if k in self._numbers else r for k, r in enumerate(results)]

    def _on_host(self, result: GpuArray) -> Array:
        """A result that the module returns as a number of Python's."""
        made = np.empty(result.shape, result.dtype)
        self._driver.to_host(address_of(made), result.address, made.nbytes, self._stream)
        self._wait()
        return made

    def _borrowed(self, value: Any, spec: TensorSpec) -> DeviceTensor | Violation:
        """An array of another library, or what is wrong with it."""
        try:
            found = borrow(value, self._stream)
        except (ValueError, BufferError, RuntimeError, TypeError) as error:
            return Violation(
                spec.name, str(error), "arrays of a GPU come by DLPack", "detach it, or pass a plain array"
            )
        if found.dtype != spec.dtype:
            return Violation(spec.name, f"dtype {found.dtype}", f"the model takes {spec.dtype}", "convert it")
        if found.device != self.device:
            rule = f"the model is on GPU {self.device}"
            return Violation(spec.name, f"it lies on GPU {found.device}", rule, "move it there")
        if not found.is_contiguous:
            return Violation(spec.name, "its elements lie apart", "kernels read contiguous arrays", "call contiguous()")
        if found.address % ARGUMENT_ALIGNMENT:
            rule = f"kernels read {ARGUMENT_ALIGNMENT} bytes at a time"
            return Violation(spec.name, f"it begins at address {found.address:#x}", rule, "call clone()")
        return found

    def _new_array(self, shape: Shape, dtype: str, n_bytes: int) -> GpuArray:
        address = allocate(self._driver, rounded(max(n_bytes, 1)), f"a result of shape {shape}")
        driver, device = self._driver, self.device

        def release() -> None:
            driver.enter(device)
            driver.free(address)

        return GpuArray(address, shape, dtype, device, release)

    def _execute(self, given: Sequence[int], made: Sequence[int], plan: Plan) -> dict[str, int]:
        """Launch or replay on the model's own stream, in its own memory; a call that fails leaves what is kept."""
        self._grow(self._arena, plan.arena_bytes)
        self._last = self._new_run([*given, *self._kept.addresses, *made], dict(plan.symbols))
        sizes = self._run(self._last)
        self._kept.take(made[len(self.outputs) :])
        return sizes

    def _run(self, run: DeviceRun, *, records: bool = True) -> dict[str, int]:
        """The sizes with those that the data decided."""
        try:
            if records:
                self._replays.run(run, self.code.program)
            else:
                run.program(self.code.program)
        except CheckFailed as failed:
            failures = self.manifest.failures
            text = failures[failed.failure] if failed.failure < len(failures) else f"check {failed.failure} failed"
            raise ExecutionError(text) from None
        except DriverError as error:
            raise self._failure(error) from error
        return run.sizes

    def _new_run(self, args: Sequence[int], sizes: dict[str, int]) -> DeviceRun:
        addresses = (self._weights.address, self._arena.address)
        return DeviceRun(self._driver, self._kernels, self._stream, args, *addresses, sizes)

    def _grow(self, block: Block, n_bytes: int) -> None:
        """Recordings hold addresses: they go before what they point to does."""
        if n_bytes > block.n_bytes and block.n_bytes:
            self._driver.wait(self._stream)
            self._replays.forget(self._new_run([], {}))
        block.at_least(n_bytes, self._stream)

    def _wait(self) -> None:
        try:
            self._driver.wait(self._stream)
        except DriverError as error:
            raise self._failure(error) from error

    def _failure(self, error: DriverError) -> GpuError:
        """A failure that came to light while waiting may be any kernel's: the driver does not say whose."""
        ops = ", ".join(dict.fromkeys(k.ops for k in self.code.kernels))
        text = f"the GPU failed in one of the kernels of {ops[:400]}: {error}"
        remedy = "the driver's context is lost: start a new process; compute-sanitizer finds the kernel"
        return GpuError(text, call=error.call, status=error.status, remedy=remedy)

    def _trimmed(self, result: Array, k: int, plan: Plan, sizes: Mapping[str, int]) -> Array:
        """A result whose size the data decided, as it lies at the front of the room for the largest."""
        if plan.outputs[k].sizes is None:
            return result
        shape = self.shape_of(k, sizes)
        return result.reshape(-1)[: math.prod(shape)].reshape(shape)

    # --- plans ------------------------------------------------------------------------------------------------------

    def _new_plan(self, shapes: tuple[Shape, ...]) -> Plan:
        return self._planner.plan(shapes, self._ask)

    def _ask(self, dims: Any, sizes: Any) -> None:
        """What compiled code answers for a CPU: the arena's bytes, then every size of every output."""
        names = [s.name for s in (*self.manifest.symbols, *self.manifest.computed)]
        known = dict(zip(names, dims, strict=False))
        sizes[0] = evaluate_size(self.code.arena_bytes, known)
        at = 1
        for spec, shape in zip(self.manifest.outputs, self._outputs, strict=True):
            for k, size in enumerate(shape):
                sizes[at + k] = evaluate_size(size, known)
            at += spec.n_planned
