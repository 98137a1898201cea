"""Groups that differ only in the numbers at which they read share a kernel; every call gets its own numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from aot import programs
from codegen.test_c import built
from graph.showing import graph_of
from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.build.kernels import SplitGraph, optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Graph
from tilewright.core.types import Array, TensorType, f32
from tilewright.partition.program import KernelCall, walk_steps
from tilewright.tools.debug.flow import compare_graph

ROWS, WIDTH, STEPS = Sym("rows", 1), 8, 6


def unrolled(rows: Sym | int = ROWS) -> Graph:
    """A recurrent layer whose loop over time is spelled out, as a trace has it."""
    rng = np.random.default_rng(5)

    def make(b: Any, x: Any) -> Any:
        w, r = (b.const((rng.standard_normal((WIDTH, WIDTH)) / 3).astype(np.float32)) for _ in "wr")
        state, states = b.const(np.zeros((1, WIDTH), np.float32)), []
        for t in range(STEPS):
            now = b(ops.slice, x, starts=(0, t, 0), stops=(rows, t + 1, WIDTH), steps=(1, 1, 1))
            own = b(ops.matmul, b(ops.reshape, now, shape=(rows, WIDTH)), w)
            state = b(ops.tanh, b(ops.add, own, b(ops.matmul, state, r)))
            states.append(b(ops.reshape, state, shape=(rows, 1, WIDTH)))
        return b(ops.concat, *states, axis=1)

    return graph_of(make, TensorType(f32, (rows, STEPS, WIDTH)))


def sequences(rows: int) -> Array:
    return np.random.default_rng(rows).standard_normal((rows, STEPS, WIDTH)).astype(np.float32)


def split(graph: Graph) -> SplitGraph:
    options = Options()
    return optimise_and_split(graph, options, options.machine, Clock())


def numbers_of(made: SplitGraph) -> list[int]:
    """The numbers that calls hand to kernels, in order."""
    calls = (s for s in walk_steps(made.program) if isinstance(s, KernelCall))
    return [n for c in calls for n in c.sizes if isinstance(n, int)]


def test_steps_of_a_loop_are_one_kernel() -> None:
    made = split(unrolled())
    assert len(made.kernels.kernels) <= 4, "the first step, the others, the results"
    assert numbers_of(made) == list(range(1, STEPS))
    model = compile_graph(unrolled(), threads=1)
    for rows in (1, 3, 17):
        x = sequences(rows)
        (want,) = evaluate_graph(unrolled(), [x])
        np.testing.assert_allclose(model(x), want, rtol=1e-4, atol=1e-5)


def test_kernels_of_fixed_sizes_keep_their_numbers() -> None:
    assert not numbers_of(split(unrolled(3)))


def test_a_debugger_finds_nothing_wrong_with_it() -> None:
    assert compare_graph(unrolled(), [sequences(3)], Options(), threads=1).fault is None


@programs.needs_cc
def test_a_c_file_hands_the_numbers_over_too(tmp_path: Path) -> None:
    x = sequences(3)
    np.testing.assert_allclose(
        built(unrolled(), tmp_path)(x), compile_graph(unrolled(), threads=1)(x), rtol=1e-4, atol=1e-5
    )


def pieces(seed: int) -> tuple[Graph, tuple[int, int]]:
    """Pieces of a tensor, each read at one or two places by the same arithmetic; and a shape to try."""
    rng = Random(seed)
    axis, length = rng.randrange(2), rng.randint(6, 12)
    n_pieces, size = rng.randint(2, 4), rng.randint(1, 3)
    shape = (length, ROWS) if axis == 0 else (ROWS, length)
    is_reversed, reads_more = rng.random() < 0.3, rng.random() < 0.5
    change: Callable[..., Any] = rng.choice([
        lambda b, y: b(ops.exp, y),
        lambda b, y: b(ops.softmax, y, axis=rng.randrange(1)),
        lambda b, y: b(ops.pad, y, b.const(np.float32(1)), pads=((1, 0), (0, 2)), mode="constant"),
        lambda b, y: b(ops.matmul, b(ops.transpose, y, perm=(1, 0)), y),
        lambda b, y: b(ops.reduce_sum, y, axes=(1 - axis,), keepdims=True),
    ])  # fmt: skip

    def make(b: Any, x: Any) -> Any:
        def piece(start: int) -> Any:
            step = -1 if is_reversed else 1
            ends = (start + size - 1, start - 1) if is_reversed else (start, start + size)
            starts, stops = [0, 0], list(shape)
            starts[axis], stops[axis] = ends
            return b(
                ops.slice, x, starts=tuple(starts), stops=tuple(stops), steps=(step, 1) if axis == 0 else (1, step)
            )

        found = []
        for _ in range(n_pieces):
            y = piece(rng.randint(0, length - size))
            found.append(change(b, b(ops.add, y, piece(rng.randint(0, length - size))) if reads_more else y))
        return tuple(found)

    n = rng.randint(1, 40)
    return graph_of(make, TensorType(f32, shape)), (length, n) if axis == 0 else (n, length)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [range(12), *(pytest.param(range(k, k + 50), marks=pytest.mark.fuzz) for k in range(12, 512, 50))]
)
def test_random_pieces(seeds: range) -> None:
    n_shared = 0
    for seed in seeds:
        graph, shape = pieces(seed)
        x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        model = compile_graph(graph, threads=1)
        for got, want in zip(model(x), evaluate_graph(graph, [x]), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=f"seed {seed}")
        n_shared += bool(numbers_of(split(graph)))
    assert n_shared > len(seeds) // 3
