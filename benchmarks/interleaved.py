"""Two engines in one process, timed in turn: what the benchmarks of single ops and of small nets share.

In: functions to call; a PyTorch module with inputs. Out: the shortest seconds of each; our compiled form of the module.
Not its business: whole nets beside many engines (``benchmarks/latency.py``, a process for each).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import tilewright

Tensors = tuple[torch.Tensor, ...]


class Lambda(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def best_times(
    functions: Sequence[Callable[[], object]],
    seconds: float,
    turn: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Shortest seconds of each function, called in turn for about ``seconds``, and at least three times.

    A turn is one call, or calls for ``turn`` seconds. ``clock`` says how long a call took: ``time.process_time`` leaves
    out what else ran on the core meanwhile, and adds up threads.
    """
    best = [float("inf")] * len(functions)
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        rounds += 1
        for i, function in enumerate(functions):
            turn_end = time.perf_counter() + turn
            while True:
                start = clock()
                function()
                best[i] = min(best[i], clock() - start)
                if time.perf_counter() >= turn_end:
                    break
    return best


def compiled(module: torch.nn.Module, inputs: Tensors, threads: int = 1) -> Callable[[], Any]:
    """Our compiled form of a module, ready to be called."""
    model = tilewright.compile(module.eval(), example_inputs=inputs, threads=threads, cache=False)
    arrays: list[Any] = [x if x.dtype == torch.bfloat16 else x.numpy() for x in inputs]
    return lambda: model(*arrays)


def onnxruntime_session(model: bytes | str, threads: int = 1) -> Any:
    """ONNX Runtime on the CPU for a model's bytes or path."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
