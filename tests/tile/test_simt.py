"""The interpreter of threads: right kernels pass without a fault, planted faults are all found, traffic is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tile.kernels import arrays_of, elementwise, layer_norm, matmul, outputs, reduction, softmax
from tile.test_flatten import GPU, SCHEDULED, batched
from tile.test_grid import TURNED
from tilewright.choose.gpu import schedule_for_gpu
from tilewright.core.compute import Computation, Inside
from tilewright.target.gpu import Gpu
from tilewright.tile.errors import TileRunError
from tilewright.tile.flatten import flatten
from tilewright.tile.grid import grids_of
from tilewright.tile.ir import Barrier, For, If, Kernel, Kind, Space, Stmt, Store, walk
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import Body, loops_of
from tilewright.tile.simt import FaultKind, Simulation, simulate
from tilewright.tile.text import kernel_text, parse_kernel

COMPUTATIONS = {
    "elements": elementwise((8, 32)),
    "ragged": elementwise((5, 7)),
    "columns": reduction((9, 70), 0, "max"),
    "rows": softmax(2, 70),
    "norm": layer_norm(2, 64),
    "product": matmul(17, 18, 19),
    "batches": batched(2, 16, 17, 16),
}


SMALL = replace(GPU, warp_lanes=8, sm_schedulers=2)
"""Blocks of few threads: a tile is 16 by 16, by 4 by 4 threads."""


def flat(computation: Computation, gpu: Gpu = SMALL) -> Kernel:
    return flatten(schedule_for_gpu(computation, gpu).kernel)


def observe(kernel: Kernel, computation: Computation, gpu: Gpu = SMALL) -> Simulation:
    return simulate(kernel, gpu, arrays_of(computation, {}))


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_right_kernels_have_no_faults(name: str) -> None:
    computation = COMPUTATIONS[name]
    made = observe(flat(computation), computation)
    assert made.faults == ()
    for b, want in zip(computation.outputs, outputs(lower(computation), computation, {}), strict=True):
        np.testing.assert_allclose(made.arrays[b.name].reshape(-1), want.reshape(-1), rtol=1e-4, atol=1e-4)


# --- planted faults


def changed(kernel: Kernel, at: int, change: Callable[[Stmt], Body]) -> Kernel:
    """The kernel with its statement of number ``at``, in the order of a walk, changed."""
    count = -1

    def go(body: Body) -> Body:
        nonlocal count
        out: list[Stmt] = []
        for s in body:
            count += 1
            if count == at:
                out += change(s)
                continue
            if isinstance(s, For):
                s = For(s.loop, go(s.body))
            elif isinstance(s, If):
                s = If(s.cond, go(s.body))
            out.append(s)
        return tuple(out)

    return replace(kernel, body=go(kernel.body))


def without_guards(body: Body) -> Body:
    """The statements, whatever the conditions around them."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For):
            out.append(For(s.loop, without_guards(s.body)))
        else:
            out += without_guards(s.body) if isinstance(s, If) else (s,)
    return tuple(out)


def planted(kernel: Kernel) -> Iterator[tuple[str, Kernel, set[FaultKind]]]:
    """Every fault of these kinds that the kernel has a place for."""
    spaces = {p.buffer: p.space for p in kernel.places}
    thread = grids_of(kernel)[-1].threads[-1].sym
    bare = replace(kernel, body=without_guards(kernel.body))
    yield "no guards", bare, {FaultKind.OUT_OF_BOUNDS}
    for at, s in enumerate(walk(kernel.body)):
        if isinstance(s, Barrier):
            yield f"no barrier {at}", changed(kernel, at, lambda _: ()), {FaultKind.RACE, FaultKind.UNWRITTEN}
            few = If(Inside((0 - thread,)), (s,))
            yield f"few come to {at}", changed(kernel, at, lambda _, few=few: (few,)), {FaultKind.DIVERGENT_BARRIER}
        if isinstance(s, Store) and s.index:
            far = replace(s, index=(*s.index[:-1], s.index[-1] + s.buffer.shape[-1]))
            yield f"beyond {at}", changed(kernel, at, lambda _, far=far: (far,)), {FaultKind.OUT_OF_BOUNDS}
        if isinstance(s, Store) and spaces[s.buffer] in (Space.SHARED, Space.REG):
            yield f"never stored {at}", changed(kernel, at, lambda _: ()), {FaultKind.UNWRITTEN}
        if isinstance(s, Store) and spaces[s.buffer] is Space.SHARED and s.index[-1] != 0:
            one = replace(s, index=(*s.index[:-1], 0))
            yield f"one element {at}", changed(kernel, at, lambda _, one=one: (one,)), {FaultKind.RACE}


PLANTED_IN = ("ragged", "rows", "product")


def test_there_are_enough_planted_faults() -> None:
    assert sum(1 for of in PLANTED_IN for _ in planted(flat(COMPUTATIONS[of]))) >= 40


def is_found(of: str, kernel: Kernel, kinds: set[FaultKind]) -> bool:
    return bool(kinds & {f.kind for f in observe(kernel, COMPUTATIONS[of]).faults})


PARTS = 10
"""A quick run takes every tenth fault of each kernel."""


@pytest.mark.one_in(PARTS)
@pytest.mark.parametrize("of", PLANTED_IN)
@pytest.mark.parametrize("part", range(PARTS))
def test_planted_faults_are_all_found(of: str, part: int) -> None:
    every = list(planted(flat(COMPUTATIONS[of])))[part::PARTS]
    missed = [name for name, kernel, kinds in every if not is_found(of, kernel, kinds)]
    assert missed == [] and (every or part)  # a small kernel has fewer faults than there are parts


def test_an_access_of_several_elements_begins_at_a_multiple() -> None:
    kernel = flat(COMPUTATIONS["elements"])
    text = kernel_text(kernel)
    name = next(x.sym.name for x in loops_of(kernel.body) if x.kind is Kind.VECTOR)
    places = {"X": "X[", "Z": "Z["}
    for b, start in places.items():
        moved = parse_kernel(text.replace(f"{start}{name}", f"{start}{name} - 1"))
        found = {(f.kind, f.where) for f in observe(moved, COMPUTATIONS["elements"]).faults}
        assert (FaultKind.MISALIGNED, b) in found and (FaultKind.OUT_OF_BOUNDS, b) in found


def test_blocks_that_meet_race() -> None:
    kernel = parse_kernel(TURNED.replace("Y[b, t] =", "Y[0, t] ="))
    x = np.zeros((2, 32), np.float32)
    (fault,) = simulate(kernel, GPU, {"X": x, "Y": x}, {"N": 2}).faults
    assert fault.kind is FaultKind.RACE and fault.where == "Y" and fault.block == (1,)


def test_a_later_grid_sees_what_an_earlier_one_wrote() -> None:
    kernel = parse_kernel("""kernel two_grids
  place X: f32[2, 32] global in
  place T: f32[2, 32] global tmp
  place Y: f32[2, 32] global out
  body
    for b[0:1] < 2 block
      for t[0:31] < 32 thread
        T[b, t] = add(X[b, t], 1.0:f32)
    for c[0:1] < 2 block
      for u[0:31] < 32 thread
        Y[c, u] = T[1 - c, 31 - u]
""")
    x = np.arange(64, dtype=np.float32).reshape(2, 32)
    seen = simulate(kernel, GPU, {"X": x, "T": np.zeros_like(x), "Y": np.zeros_like(x)})
    assert seen.faults == ()
    np.testing.assert_array_equal(seen.arrays["Y"], x[::-1, ::-1] + 1)


def test_only_flat_kernels_are_run() -> None:
    with pytest.raises(TileRunError, match="not flat"):
        simulate(parse_kernel(SCHEDULED), GPU, {})
    with pytest.raises(TileRunError, match="array of"):
        simulate(parse_kernel(TURNED), GPU, {"X": np.zeros(3, np.float32)}, {"N": 1})


# --- traffic


def test_accesses_side_by_side_are_few_sectors() -> None:
    x = np.zeros((4, 32), np.float32)
    traffic = simulate(parse_kernel(TURNED), GPU, {"X": x, "Y": x}, {"N": 4}).traffic
    assert traffic["X"].sectors == traffic["X"].least_sectors == 4 * 32 * 4 // GPU.sector_bytes
    assert traffic["S"].bank_conflicts == 0


def test_columns_of_a_matrix_in_shared_memory_share_a_bank() -> None:
    text = """kernel columns
  place Y: f32[32, 32] global out
  place S: f32[32, 32] shared tmp
  body
    for b[0:0] < 1 block
      for t[0:31] < 32 thread
        S[t, 0] = 1.0:f32
        barrier
        Y[t, 0] = S[t, 0]
"""
    traffic = simulate(parse_kernel(text), GPU, {"Y": np.zeros((32, 32), np.float32)}).traffic
    assert traffic["S"].bank_conflicts == 2 * 31  # the write and the read, 32 turns each
    assert traffic["Y"].sectors == 32 and traffic["Y"].least_sectors == 4
    padded = parse_kernel(text.replace("S: f32[32, 32]", "S: f32[32, 33]"))
    traffic = simulate(padded, GPU, {"Y": np.zeros((32, 32), np.float32)}).traffic
    assert traffic["S"].bank_conflicts == 0


def test_tiles_of_a_product_have_hardly_a_conflict() -> None:
    computation = matmul(64, 64, 16, False)
    traffic = observe(flat(computation, GPU), computation, GPU).traffic
    assert traffic["C_b"].bank_conflicts == 0
    # The left factor is turned on its way: at most two lanes that store an element meet in a bank.
    assert traffic["C_a"].bank_conflicts * 4 <= traffic["C_a"].least_turns
    assert traffic["C"].sectors == traffic["C"].least_sectors
