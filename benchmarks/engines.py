"""Every engine that ``benchmarks.latency`` knows: what it is installed as, how it runs a net, how it is restricted.

In: a ``Task``. Out: a function that runs the net once in this process, built by the engine's own route:
ONNX Runtime, OpenVINO, IREE and TVM read the ONNX file; eager PyTorch and TorchInductor run the module; XLA gets what
``torchax`` makes of the exported program. TVM runs with its default pipeline, without a search for schedules.
Not its business: measuring (``benchmarks.latency``).
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import restricted

Run = Callable[[], Any]


@dataclass(frozen=True)
class Task:
    """What an engine is to run: a model of the zoo, also as an ONNX file, and how.

    ``isa`` is "native", or "avx2" for code and peers restricted to AVX2.
    """

    path: Path
    name: str
    small: bool
    threads: int
    precision: str
    clock: str = "wall"
    isa: str = "native"


@dataclass(frozen=True)
class Engine:
    """One engine: ``needs`` are modules that must be importable.

    ``avx2`` are the environment variables that restrict it to AVX2, ``trapped`` is the package whose libraries take no
    such order and are told that the CPU has no more (``restricted.py``).
    """

    title: str
    make: Callable[[Task, Sequence[Any]], Run]
    needs: tuple[str, ...]
    avx2: Mapping[str, str]
    precisions: tuple[str, ...] = ("fp32",)
    variables: Mapping[str, str] = field(default_factory=dict)
    trapped: str = ""

    def unfit(self, task: Task) -> str | None:
        """Why it can't take part, or None."""
        missing = [name for name in self.needs if not _is_there(name)]
        if missing:
            return f"not installed: {', '.join(missing)}"
        if task.precision not in self.precisions:
            return f"not measured in {task.precision}"
        if task.isa == "avx2" and self.trapped and (tools := restricted.missing_tools()):
            return f"restricting it to AVX2 needs {', '.join(tools)}"
        return None

    def environment(self, task: Task) -> list[str]:
        """``NAME=value`` of the variables that its process gets."""
        chosen = {**self.variables, **(self.avx2 if task.isa == "avx2" else {})}
        if task.isa == "avx2" and self.trapped:
            chosen |= restricted.variables(self.trapped, task.path.parent)
        return [f"{name}={value.format(threads=task.threads)}" for name, value in chosen.items()]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False


def _cpu(task: Task) -> str:
    """LLVM's name of the CPU that code is made for."""
    from tilewright.target.target import Target

    return Target.parse("haswell").cpu if task.isa == "avx2" else Target.host().cpu


def _stay_on(threads: int) -> None:
    """Let this process have only as many CPUs as it may use threads: some engines size their pools by that."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def _tilewright(task: Task, arrays: Sequence[Any]) -> Run:
    import tilewright

    target = "haswell" if task.isa == "avx2" else "native"
    model = tilewright.compile(task.path, threads=task.threads, precision=task.precision, target=target, cache=False)
    return lambda: model(*arrays)


def _onnxruntime(task: Task, arrays: Sequence[Any]) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.threads
    session = onnxruntime.InferenceSession(str(task.path), options, providers=["CPUExecutionProvider"])
    feed = {i.name: x for i, x in zip(session.get_inputs(), arrays, strict=True)}
    return lambda: session.run(None, feed)


def _openvino(task: Task, arrays: Sequence[Any]) -> Run:
    import openvino

    hint = {"fp32": "f32", "bf16": "bf16"}[task.precision]
    config = {"INFERENCE_NUM_THREADS": task.threads, "INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(task.path, "CPU", config).create_infer_request()
    return lambda: request.infer(list(arrays), share_inputs=True, share_outputs=True)


def _torch(task: Task, arrays: Sequence[Any]) -> Run:
    return _pytorch(task, compiled=False)


def _inductor(task: Task, arrays: Sequence[Any]) -> Run:
    if task.isa == "avx2":
        import torch._inductor.config

        torch._inductor.config.cpp.simdlen = 256
    return _pytorch(task, compiled=True)


def _pytorch(task: Task, *, compiled: bool) -> Run:
    import torch
    from benchmarks import zoo

    torch.set_num_threads(task.threads)
    model = zoo.build(task.name, small=task.small)
    call: Any = torch.compile(model.module) if compiled else model.module

    def run() -> Any:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=task.precision == "bf16"):
            return call(*model.inputs)

    return run


def _xla(task: Task, arrays: Sequence[Any]) -> Run:
    _stay_on(task.threads)
    import jax
    import torch
    from benchmarks import zoo

    to_jax = _torchax().exported_program_to_jax
    model = zoo.build(task.name, small=task.small)
    with torch.no_grad():
        program = torch.export.export(model.module, model.inputs)
    weights, function = to_jax(program)
    compiled, inputs = jax.jit(function), [jax.numpy.asarray(x) for x in arrays]
    return lambda: jax.block_until_ready(compiled(weights, inputs))


def _torchax() -> Any:
    """``torchax.export``, which names overloads for named dimensions that PyTorch 2.13 has no more; none is called."""
    import torch

    packet: Any = torch._ops.OpOverloadPacket
    find = packet.__getattr__

    def or_name(self: Any, key: str) -> Any:
        try:
            return find(self, key)
        except AttributeError:
            if key.startswith("_"):
                raise
            return f"{self}.{key}"

    packet.__getattr__ = or_name
    try:
        import torchax.export
    finally:
        packet.__getattr__ = find
    return torchax.export


def _iree(task: Task, arrays: Sequence[Any]) -> Run:
    _stay_on(task.threads)
    import iree.compiler
    import iree.runtime

    source, module = task.path.with_suffix(".mlir"), task.path.with_suffix(f".{task.isa}.vmfb")
    if not module.exists():
        command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(task.path), "-o", str(source)]
        subprocess.run([*command, "--opset-version", "17"], check=True)
        flags = [f"--iree-llvmcpu-target-cpu={_cpu(task)}", "--iree-opt-level=O3"]
        iree.compiler.compile_file(
            str(source), output_file=str(module), input_type="onnx", target_backends=["llvm-cpu"], extra_args=flags
        )
        source.unlink()
    config = iree.runtime.Config("local-sync" if task.threads == 1 else "local-task")
    loaded = iree.runtime.VmModule.mmap(config.vm_instance, str(module))
    name = next(n for n in loaded.function_names if not n.startswith("_") and not n.endswith("$async"))
    function = iree.runtime.load_vm_module(loaded, config)[name]
    inputs = [iree.runtime.asdevicearray(config.device, x) for x in arrays]

    def run() -> Any:
        found = function(*inputs)
        return [x.to_host() for x in (found if isinstance(found, tuple | list) else [found])]

    return run


def _tvm(task: Task, arrays: Sequence[Any]) -> Run:
    _stay_on(task.threads)
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    target = tvm.target.Target({"kind": "llvm", "mcpu": _cpu(task), "num-cores": task.threads})
    built = tvm.compile(from_onnx(onnx.load(task.path)), target=target)
    machine, device = relax.VirtualMachine(built, tvm.cpu()), tvm.cpu()
    inputs = [tvm.runtime.tensor(x, device) for x in arrays]
    return lambda: machine["main"](*inputs)


_PYTORCH = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
BOTH = ("fp32", "bf16")
ENGINES: Mapping[str, Engine] = {
    "tilewright": Engine("Tilewright", _tilewright, ("tilewright",), {}, BOTH),
    "onnxruntime": Engine("ONNX Runtime", _onnxruntime, ("onnxruntime",), {}, trapped="onnxruntime"),
    "openvino": Engine("OpenVINO", _openvino, ("openvino",), {}, BOTH, trapped="openvino"),
    "torch": Engine("PyTorch", _torch, ("torch",), _PYTORCH, BOTH),
    "inductor": Engine("TorchInductor", _inductor, ("torch",), _PYTORCH, BOTH),
    "xla": Engine("XLA", _xla, ("jax", "torchax"), {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}),
    "iree": Engine("IREE", _iree, ("iree.compiler", "iree.runtime", "onnx"), {}),
    "tvm": Engine("TVM, untuned", _tvm, ("tvm", "onnx"), {}, variables={"TVM_NUM_THREADS": "{threads}"}),
}


def load_arrays(path: Path) -> list[Any]:
    """The inputs that lie beside an ONNX file."""
    with np.load(path.with_suffix(".npz")) as file:
        return [file[f"arr_{k}"] for k in itertools.takewhile(lambda k: f"arr_{k}" in file, itertools.count())]


def make_runner(engine: str, task: Task) -> Run:
    """A function that runs the model once in this process."""
    return ENGINES[engine].make(task, load_arrays(task.path))
