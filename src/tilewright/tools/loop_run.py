"""A loop program compiled, beside Python running its text.

In: a ``LoopProgram``, its file. Out: a graph; times and differences of both on equal random arrays. Not its business:
what is known of the program's order (``loop_report``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.build.driver import compile as compile_graph
from tilewright.core.dims import numbers
from tilewright.core.graph import Graph
from tilewright.core.types import Array
from tilewright.language.instance import op_of
from tilewright.language.kernel import graph_of
from tilewright.language.nests import raised_kernel
from tilewright.language.program import LoopProgram
from tilewright.runtime.errors import InputError

SAME = 1e-6
"""Differences up to here, of the largest number, are what another order of sums makes."""


def program_graph(program: LoopProgram) -> Graph:
    """What ``compile`` and ``convert`` take."""
    traced = raised_kernel(program.traced)
    return graph_of(traced, op_of(traced, None), program.loc)


def beside_python(program: LoopProgram, file: Path, seed: int) -> dict[str, Any]:
    """Both on equal random arrays: seconds, and the largest difference by the largest number."""
    rng = np.random.default_rng(seed)
    given = {
        p: _drawn(rng, x.dtype.numpy, numbers(x.shape))
        for p, x in zip(program.parameters, program.traced.computation.inputs, strict=True)
    }
    model = compile_graph(program_graph(program), cache=False)
    made = model(*given.values())
    results = made if isinstance(made, tuple) else (made,)
    ours = min(_seconds(lambda: model(*given.values())) for _ in range(3))
    arrays: dict[str, Array] = {p: x.copy() for p, x in given.items()}
    function = imported(file, program.traced.name)
    python = _seconds(lambda: function(**arrays, **program.constants))
    apart = [_apart(x, arrays[p]) for x, p in zip(results, program.written, strict=True)]
    return {"seconds": ours, "python_seconds": python, "largest_difference": max(apart), "equal": max(apart) <= SAME}


def imported(file: Path, function: str) -> Callable[..., Any]:
    """The function itself, of a file that the user asked to have run."""
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} can't be imported", remedy="give a file whose name ends in .py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[..., Any] = getattr(module, function)
    return made


def _drawn(rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """Positive numbers, which most programs can divide by and take roots of."""
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    return (rng.integers(1, 8, shape) if dtype.kind in "iu" else rng.random(shape) + 0.5).astype(dtype)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _apart(x: Array, y: Array) -> float:
    """The largest difference by the largest number; infinite where one is NaN or infinite and the other is not."""
    if not np.array_equal(np.isfinite(x), np.isfinite(y)):
        return float("inf")
    x, y = (a[np.isfinite(a)].astype(np.float64) for a in (x, y))
    return float(np.abs(x - y).max(initial=0) / max(np.abs(y).max(initial=0), np.finfo(np.float64).tiny))
