"""Captured graphs of a GPU's tensors: PyTorch's allocator and stream around a model's kernels.

In: a graph whose tensors lie on a GPU, a model compiled for it. Out: which calls are not that GPU's, and a callable
from tensors to tensors. Not its business: what calls mean (``piece``), how pieces follow each other (``plan``),
launching (``runtime.cuda``).

Results and all memory in between come from PyTorch's allocator, and the work goes to PyTorch's current stream: so it
keeps the order of the program, memory is accounted for in one place, and a call returns before it has run. PyTorch's
own recording of CUDA graphs takes such a call as it takes those of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilewright.core.diag import UNKNOWN, ImportFailed, OptionError, Problem
from tilewright.frontend.torch.fx.locations import location_of
from tilewright.frontend.torch.tensors import to_torch
from tilewright.runtime.cuda.errors import NoGpuError
from tilewright.runtime.cuda.memory import ARGUMENT_ALIGNMENT
from tilewright.runtime.errors import InputError
from tilewright.runtime.values import dtype_of
from tilewright.target.errors import UnknownTargetError
from tilewright.target.gpu import gpu_of_capability, is_gpu

if TYPE_CHECKING:
    import torch

    from tilewright.runtime.cuda.compiled import CompiledGpuModel
    from tilewright.runtime.cuda.model import GpuModel

CUDA = "cuda"
"""What PyTorch calls NVIDIA's GPUs."""


# --- which calls are a GPU's ----------------------------------------------------------------------------------------


def gpu_of(graph: Any) -> torch.device | None:
    """The GPU that a graph's tensors lie on, the first where there are several; None for a graph of the CPU's."""
    found = {x.device for node in graph.nodes for x in _tensors(node) if x.device.type == CUDA}
    return min(found, key=lambda device: device.index or 0, default=None)


def calls_elsewhere(graph: Any, gpu: torch.device) -> dict[Any, Problem]:
    """The calls that read or make a tensor of another device, which are left to PyTorch, and why.

    A number of the CPU's, a tensor without axes, is an operand like any other, as PyTorch has it.
    """
    found = {}
    for node in graph.nodes:
        if node.op != "call_function" or _is_constant(node):
            continue
        made = list(_tensors(node))
        read = [x for n in node.all_input_nodes if not _is_constant(n) for x in _tensors(n)]
        if made and all(x.device == gpu for x in made):
            read = [x for x in read if x.dim() or x.device.type != "cpu"]
        others = sorted({str(x.device) for x in (*made, *read) if x.device != gpu})
        if others:
            rule = f"it has tensors on {' and '.join(others)}, the graph's others are on {gpu}"
            found[node] = Problem(location_of(node), str(node.target), rule, f"move them by .to({str(gpu)!r})")
    return found


def _tensors(node: Any) -> Iterator[Any]:
    """The tensors among what a node of an fx graph gives."""
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    yield from (x for x in values if hasattr(x, "device") and hasattr(x, "stride"))


def _is_constant(node: Any) -> bool:
    """Is it a constant that code holds, wherever PyTorch has it, and no result?"""
    if node.op == "get_attr":
        return True
    is_lifted = str(node.target) == "aten.lift_fresh_copy.default" and all(map(_is_constant, node.all_input_nodes))
    return is_lifted and not any(user.op == "output" for user in node.users)


# --- calls ----------------------------------------------------------------------------------------------------------


class TorchSide(Protocol):
    """What a call needs of PyTorch on one GPU."""

    def entered(self) -> AbstractContextManager[Any]:
        """Let PyTorch's calls of this thread go to the GPU meanwhile, and to where they went before afterwards."""

    def here(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the GPU's memory."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A new tensor of PyTorch's allocator."""

    def stream(self) -> int:
        """The driver's handle of the stream that work goes to now."""

    def is_recording(self) -> bool:
        """Is that stream being recorded?"""


@dataclass(frozen=True)
class CudaSide:
    """PyTorch's own side."""

    device: torch.device

    def entered(self) -> AbstractContextManager[Any]:
        """By PyTorch's guard, which sets the driver's current context back, too."""
        import torch

        return torch.cuda.device(self.device)

    def here(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy where it lies elsewhere; a number of the CPU's goes there as an argument of a kernel that fills.

        A copy from the CPU's memory would wait for the GPU, and no recording takes one. The recording keeps the number,
        as those of PyTorch's own operations do.
        """
        import torch

        if tensor.dim() == 0 and tensor.device.type == "cpu":
            return torch.full((), tensor.item(), dtype=tensor.dtype, device=self.device)
        return tensor.to(self.device)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """In the order of the current stream, like all of PyTorch's memory."""
        import torch

        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def stream(self) -> int:
        """0 is the default stream."""
        import torch

        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def is_recording(self) -> bool:
        """Within ``torch.cuda.graph``, for example."""
        import torch

        return bool(torch.cuda.is_current_stream_capturing())


class OnGpu:
    """A model on a GPU as a callable on tensors; arrays among them are copied there."""

    understands_tensors = True

    def __init__(self, model: GpuModel, side: TorchSide) -> None:
        self.model = model
        self.side = side
        self._dtypes = [_dtype(dtype_of(spec.dtype)) for spec in model.outputs]
        self._taken = [_dtype(dtype_of(spec.dtype)) for spec in model.inputs]

    def __call__(self, *values: Any) -> Any:
        """One result as itself, several as a list; they are there once the stream has come so far."""
        import torch

        with self.side.entered():
            inputs = [self._ready(*pair) for pair in zip(values, self._taken, strict=True)]
            plan = self.model.plan_for([tuple(x.shape) for x in inputs])
            results = [self.side.empty(o.shape, d) for o, d in zip(plan.outputs, self._dtypes, strict=True)]
            if not plan.is_empty:
                arena = self.side.empty((plan.arena_bytes,), torch.uint8)
                addresses = [x.data_ptr() for x in (*inputs, *results)]
                records = not self.side.is_recording()
                sizes = self.model.run_at(plan, addresses, arena.data_ptr(), self.side.stream(), records=records)
                results = [self._trimmed(k, x, plan.outputs[k].sizes, sizes) for k, x in enumerate(results)]
        return results[0] if len(results) == 1 else results

    def _ready(self, value: Any, dtype: torch.dtype) -> torch.Tensor:
        """The argument as kernels read it: in the GPU's memory, row by row, at a multiple of their widest access."""
        tensor = self.side.here(to_torch(value) if isinstance(value, np.ndarray) else value.detach())
        if tensor.dtype is not dtype:
            raise InputError(f"an argument of {tensor.dtype}, where the graph was captured with {dtype}")
        if tensor.is_contiguous() and tensor.data_ptr() % ARGUMENT_ALIGNMENT == 0:
            return tensor
        return self.side.empty(tensor.shape, dtype).copy_(tensor)

    def _trimmed(self, k: int, result: torch.Tensor, decided: Any, sizes: Mapping[str, int]) -> torch.Tensor:
        """A result whose size the data decided lies at the front of the room for the largest."""
        if decided is None:
            return result
        shape = self.model.shape_of(k, sizes)
        return result.reshape(-1)[: prod(shape)].reshape(shape).clone()


def _dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return to_torch(np.empty(0, dtype)).dtype


def target_for(device: torch.device, options: Mapping[str, Any]) -> str:
    """The target of a graph on a GPU: the GPU that the user names, or by the compute capability.

    A CPU's name is for graphs on the CPU, which a model may have beside.

    ``OptionError`` where the user wants GPUs emulated; ``ImportFailed`` for a GPU that there is no code for.
    """
    import torch

    if options.get("emulate"):
        raise OptionError("tensors of a GPU can't be emulated", remedy="use tensors of the CPU, or emulate=False")
    if is_gpu(target := options.get("target")):
        return str(target)
    try:
        return gpu_of_capability(torch.cuda.get_device_capability(device)).name
    except UnknownTargetError as error:
        raise _refused(device, error.message, error.remedy) from error


def on_gpu(compiled: CompiledGpuModel, device: torch.device) -> OnGpu:
    """A compiled model on the GPU; ``ImportFailed`` where the driver is out of reach."""
    try:
        return OnGpu(compiled.on(device.index or 0), CudaSide(device))
    except NoGpuError as error:
        raise _refused(device, error.message, error.remedy) from error


def _refused(device: torch.device, rule: str, remedy: str) -> ImportFailed:
    return ImportFailed(f"no code for {device}", [Problem(UNKNOWN, f"tensors on {device}", rule, remedy)])
