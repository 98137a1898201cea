"""From a graph in kernels for a GPU to an artefact: its code, the program that launches it, weights and manifest.

In: what ``kernels`` splits and schedules. Out: an ``Artifact``. Not its business: what a kernel becomes
(``codegen.gpu``), running it (``runtime.cuda``).

A program stays what ``partition`` made of it, with sizes as texts that the runtime evaluates: there is no machine code
for the host. Libraries' forms of a kernel are left out, since they are for arrays of the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.build.kernels import Checks, SplitGraph, optimise_and_split
from tilewright.build.manifest import manifest_of
from tilewright.build.options import Clock, Options
from tilewright.codegen.gpu import compile_kernel
from tilewright.codegen.ptx.launch import Launch
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, to_text
from tilewright.core.graph import Graph
from tilewright.partition.program import (
    Branch,
    Choice,
    Copy,
    ForParts,
    KernelCall,
    LetDim,
    PartPlace,
    Pointer,
    Program,
    Repeat,
    Require,
    RequireSize,
    SetDim,
    Step,
)
from tilewright.runtime.artifact import Artifact, ObjectImage
from tilewright.runtime.cuda.files import OBJECT, objects_of
from tilewright.runtime.cuda.program import (
    CarriedValue,
    CheckSizeStep,
    CheckStep,
    ChooseStep,
    CopyStep,
    DevicePlace,
    GpuCode,
    GpuEntry,
    GpuKernel,
    GpuProgram,
    GpuStep,
    LaunchStep,
    LoopStep,
    PartsStep,
    ReadSizeStep,
    Size,
    SizeStep,
)
from tilewright.runtime.manifest import TargetSpec
from tilewright.runtime.shapes import compile_size
from tilewright.target.gpu import Gpu


def build_for_gpu(graph: Graph, options: Options, clock: Clock, *, checks: Checks | None = None) -> Artifact:
    """The whole compiler on a graph, for the GPU of ``options``."""
    gpu = Gpu.parse(options.target)
    split = optimise_and_split(graph, options, options.machine, clock, checks)
    with clock.stage("llvm"):
        code, objects = gpu_code(split, gpu, clock)
    with clock.stage("weights"):
        weights = split.planner.weights.blob()
    manifest = manifest_of(split, options, weights.nbytes, len(split.slots))
    return Artifact(replace(manifest, target=TargetSpec(gpu.triple, gpu.arch)), (*objects_of(code), *objects), weights)


def gpu_code(split: SplitGraph, gpu: Gpu, clock: Clock) -> tuple[GpuCode, list[ObjectImage]]:
    """Assembly of every kernel, and the program with its sizes as the runtime reads them; beside it the machine code.

    There is none where the driver assembles.
    """
    made = split.kernels
    kernels, objects = list[GpuKernel](), list[ObjectImage]()
    for k, (name, kernel) in enumerate(made.kernels.items()):
        clock.tell("llvm", k, len(made.kernels))
        found = compile_kernel(kernel, gpu)
        entries = tuple(map(_entry, found.launches))
        kernels.append(GpuKernel(name, made.labels[name], found.assembly, entries, tuple(s.name for s in kernel.sizes)))
        objects += [ObjectImage(f"{name}{OBJECT}", found.code_object)] if found.code_object else []
    numbers = {name: k for k, name in enumerate(made.kernels)}
    program = _program(split.program, numbers)
    return GpuCode(gpu.arch, tuple(kernels), program, _size(split.program.arena_bytes)), objects


def _entry(launch: Launch) -> GpuEntry:
    x, y, z = map(_size, launch.grid)
    return GpuEntry(launch.entry, (x, y, z), launch.block, launch.dynamic_shared_bytes)


def _size(d: Dim) -> Size:
    return d if is_known(d) else compile_size(to_text(d))


def _place(p: Pointer) -> DevicePlace:
    return DevicePlace(p.base, _size(p.offset))


def _places(pointers: Sequence[Pointer]) -> tuple[DevicePlace, ...]:
    return tuple(map(_place, pointers))


def _parts(parts: Sequence[PartPlace]) -> tuple[tuple[DevicePlace, Size], ...]:
    return tuple((_place(p.place), _size(p.n_bytes)) for p in parts)


def _pair(pointers: tuple[Pointer, Pointer]) -> tuple[DevicePlace, DevicePlace]:
    first, second = map(_place, pointers)
    return first, second


def _program(program: Program, numbers: Mapping[str, int]) -> GpuProgram:
    return GpuProgram(tuple(_step(step, numbers) for step in program.steps))


def _let(step: LetDim) -> SizeStep:
    return SizeStep(step.symbol.name, _size(step.value))


def _step(step: Step, numbers: Mapping[str, int]) -> GpuStep:
    match step:
        case KernelCall():
            return LaunchStep(numbers[step.kernel], _places(step.args))
        case Copy():
            return CopyStep(_place(step.source), _place(step.target), _size(step.n_bytes))
        case SetDim():
            return ReadSizeStep(step.symbol.name, _place(step.source))
        case LetDim():
            return _let(step)
        case Branch():
            programs = (_program(step.then_program, numbers), _program(step.else_program, numbers))
            sizes = (tuple(map(_let, step.then_dims)), tuple(map(_let, step.else_dims)))
            return ChooseStep(_place(step.cond), programs, sizes, _places(step.args), _place(step.scratch))
        case Repeat():
            return _loop(step, numbers)
        case ForParts():
            body = _program(step.body, numbers)
            return PartsStep(step.n_parts, body, _parts(step.args), step.body.n_inputs, _place(step.scratch))
        case Require():
            return CheckStep(_place(step.cond), step.code)
        case RequireSize():
            return CheckSizeStep(_size(step.value), step.code)
        case Choice():
            raise AssertionError("kernels of a GPU have no versions")


def _loop(step: Repeat, numbers: Mapping[str, int]) -> LoopStep:
    carried = tuple(
        CarriedValue(_place(c.start), _pair(c.buffers), _place(c.result), _size(c.n_bytes)) for c in step.carried
    )
    return LoopStep(
        trips=_place(step.trips),
        cond=_place(step.cond),
        cond_buffers=_pair(step.cond_buffers),
        body=_program(step.body, numbers),
        carried=carried,
        captures=_places(step.captures),
        scanned=_parts(step.scanned),
        iteration=_place(step.iteration),
        count=_place(step.count),
        scratch=_place(step.scratch),
    )
