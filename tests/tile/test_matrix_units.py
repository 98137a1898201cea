"""Products by matrix units: right in every form of the kernel, by every lane, and without bank conflicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptx.threads import Threads
from tile.kernels import arrays_of, matmul, outputs
from tile.test_flatten import GPU as HOPPER
from tile.test_simt import changed
from tilewright.choose.gpu import schedule_for_gpu
from tilewright.choose.strategies.gpu.block_tiles import Extents, ThreadTile, WarpTile, tile_of, warp_tiles
from tilewright.choose.strategies.gpu.matrices import Product
from tilewright.choose.strategies.gpu.matrix_units import matrix_units
from tilewright.choose.strategies.gpu.products import products
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Computation,
    Const,
    Load,
    Reduction,
    Stage,
    axes_for,
    syms,
)
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym
from tilewright.core.types import DType, bf16, f16, f32
from tilewright.runtime.values import aligned_buffer
from tilewright.target.gpu import Gpu
from tilewright.target.matrices import SHAPES, GroupShape, MatrixShape
from tilewright.tile.emulate import emulated
from tilewright.tile.errors import ScheduleError
from tilewright.tile.flatten import flatten
from tilewright.tile.ir import Barrier, Commit, Kernel, Kind, Space, walk
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import Body, loops_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.simt import FaultKind, simulate
from tilewright.tile.verify import verify

N = Sym("N")
GPU = replace(HOPPER, has_warpgroup_mma=False)
"""As the GPUs are that have instructions of one warp alone; `ptx.test_warpgroups` has those of four."""
FEW_WARPS = replace(GPU, sm_schedulers=2, line_bytes=64)
"""Blocks of two warps, with 16 terms in a step."""


@dataclass(frozen=True)
class Case:
    """A product, of which a factor may lie in memory by columns, with a row added to its result."""

    rows: Dim
    columns: int
    terms: int
    dtype: DType = f16
    batches: tuple[int, ...] = ()
    left_turned: bool = False
    right_turned: bool = False
    has_bias: bool = False

    def computation(self) -> Computation:
        axes = axes_for((*self.batches, self.rows, self.columns))
        *batch, _, j = syms(axes)
        (term,) = axes_for((self.terms,), "k")
        left = self._factor("A", (axes[-2], term), axes[: len(batch)], self.left_turned)
        right = self._factor("B", (term, axes[-1]), axes[: len(batch)], self.right_turned)
        shape = tuple(a.extent for a in axes)
        sums, result = Buffer("T", f32, shape), Buffer("C", self.dtype, shape)
        bias = Buffer("D", self.dtype, (self.columns,))
        product = Binary("mul", Cast(left, f32), Cast(right, f32))
        value = Load(sums, syms(axes))
        if self.has_bias:
            value = Binary("max", Binary("add", value, Cast(Load(bias, (j,)), f32)), Const(0.0, f32))
        stages = (
            Stage((sums,), axes, syms(axes), (product,), Reduction((term,), "add", (Const(0.0, f32),))),
            Stage((result,), axes, syms(axes), (Cast(value, self.dtype),)),
        )
        inputs = (left.buffer, right.buffer, *([bias] if self.has_bias else []))
        return Computation(inputs, (result,), stages, (sums,))

    def _factor(self, name: str, pair: tuple[Axis, Axis], batches: tuple[Axis, ...], turned: bool) -> Load:
        axes = (*batches, *(reversed(pair) if turned else pair))
        return Load(Buffer(name, self.dtype, tuple(a.extent for a in axes)), syms(axes))


def scheduled(case: Case, sizes: dict[str, int] | None = None, gpu: Gpu = GPU) -> Kernel:
    """The flat kernel, once the scheduled form and that for CPUs were seen to compute the same."""
    computation = case.computation()
    made = schedule_for_gpu(computation, gpu)
    assert [t.taken for t in made.tried] == ["matrix_units"], made.kernel.notes
    flat = flatten(made.kernel)
    want = outputs(lower(computation), computation, sizes or {})
    for kernel in (made.kernel, flat, emulated(flat)):
        verify(kernel)
    for kernel in (made.kernel, emulated(flat)):
        for a, b in zip(want, outputs(kernel, computation, sizes or {}, reverse=True), strict=True):
            close(b, a)
    return flat


def close(got: np.ndarray, want: np.ndarray) -> None:
    a, b = (x.astype(np.float32).reshape(-1) for x in (got, want))
    np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2)


CASES = {
    "whole": Case(32, 32, 64),
    "ragged": Case(17, 18, 19, bf16),
    "ragged in twos": Case(17, 18, 22, left_turned=True, right_turned=True),
    "ragged in eights": Case(24, 24, 24, bf16, has_bias=True),
    "both turned": Case(32, 24, 16, left_turned=True, right_turned=True),
    "batches": Case(24, 16, 16, batches=(2,), right_turned=True),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", CASES)
def test_products_are_right_lane_by_lane(name: str) -> None:
    case = CASES[name]
    computation, flat = case.computation(), scheduled(case)
    arrays = arrays_of(computation, {})
    (want,) = outputs(lower(computation), computation, {})
    seen = simulate(flat, GPU, arrays)
    assert seen.faults == ()
    close(seen.arrays["C"], want)
    shared = [p.buffer.name for p in flat.places if p.space is Space.SHARED]
    assert len(shared) == 2 and all(seen.traffic[b].bank_conflicts == 0 for b in shared if "ragged" not in name)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("n_refused", [1, 2, 3])
def test_what_one_instruction_refuses_the_next_one_takes(n_refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four warps, then one, then threads: a product is an ordinary sum only where none of them fits."""
    left, tiles = [n_refused], list[type]()

    def refusing(strategy: Callable[..., object]) -> Callable[..., object]:
        def attempt(b: ScheduleBuilder, gpu: Gpu, product: Product, tile: WarpTile | ThreadTile) -> object:
            tiles.append(type(tile.shape) if isinstance(tile, WarpTile) else type(tile))
            left[0] -= 1
            if left[0] >= 0:
                raise ScheduleError(product.root, "", "not by these")
            return strategy(b, gpu, product, tile)

        return attempt

    for strategy in (matrix_units, products):
        monkeypatch.setattr(f"tilewright.choose.gpu.{strategy.__name__}", refusing(strategy))
    case = Case(64, 64, 64)
    computation = case.computation()
    made = schedule_for_gpu(computation, replace(HOPPER, n_sms=1))
    assert tiles == [GroupShape, MatrixShape, ThreadTile][: n_refused + 1]
    assert [t.taken for t in made.tried] == [["matrix_units"], ["products"], ["sums"]][n_refused - 1]
    assert len(made.kernel.notes) >= n_refused
    want = outputs(lower(computation), computation, {})
    for a, b in zip(want, outputs(emulated(flatten(made.kernel)), computation, {}, reverse=True), strict=True):
        close(b, a)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", [Case(24, 16, 128, has_bias=True), matmul(32, 20, 64)])
def test_blocks_share_terms_where_tiles_are_few(case: Case | Computation) -> None:
    computation = case.computation() if isinstance(case, Case) else case
    made = schedule_for_gpu(computation, replace(GPU, replay_us=0.0, memory_ns=0.0))
    (parts,) = [b for b in made.computation.temps if b.name.endswith("_s")]
    assert is_known(parts.shape[0]) and parts.shape[0] > 1
    assert made.tried[0].taken in ("matrix_units", "products"), made.kernel.notes
    flat = flatten(made.kernel)
    (want,) = outputs(lower(computation), computation, {})
    close(outputs(emulated(flat), computation, {}, reverse=True)[0], want)
    seen = simulate(flat, GPU, arrays_of(computation, {}))
    assert seen.faults == ()
    close(seen.arrays["C"], want)


def test_terms_are_not_shared_where_another_launch_costs_more() -> None:
    made = schedule_for_gpu(Case(24, 16, 512).computation(), GPU)
    assert not [b for b in made.computation.temps if b.name.endswith("_s")]


@pytest.mark.slow
def test_factors_are_copied_ahead_and_every_lack_is_found() -> None:
    """Three steps in shared memory at one time: one barrier in each, and none before the first."""
    case = Case(17, 16, 48)
    computation = case.computation()
    flat = flatten(schedule_for_gpu(computation, FEW_WARPS).kernel)
    assert {p.ahead for p in flat.places if p.space is Space.SHARED} == {2}
    assert [s.pending for s in walk(flat.body) if isinstance(s, Barrier)] == [1]
    arrays = arrays_of(computation, {})
    assert simulate(flat, FEW_WARPS, arrays).faults == ()
    for at, s in enumerate(walk(flat.body)):
        wrong: list[Body] = [()] if isinstance(s, Commit) else [(Barrier(2),), ()] if isinstance(s, Barrier) else []
        for body in wrong:
            found = simulate(changed(flat, at, lambda _, body=body: body), FEW_WARPS, arrays).faults
            assert FaultKind.RACE in {f.kind for f in found}, (at, body)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["ragged in eights", "both turned"])
def test_the_code_of_lanes_is_right(name: str) -> None:
    case = replace(CASES[name], dtype=f16)  # this CPU has no instruction for the other one
    computation, flat = case.computation(), scheduled(case)
    given = {}
    for b, a in arrays_of(computation, {}).items():
        memory, start = aligned_buffer(max(a.nbytes, 1))
        given[b] = memory[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
        given[b][...] = a
    threads = Threads(flat)
    threads(given)
    (want,) = outputs(lower(computation), computation, {})
    close(given["C"], want)
    called = set(threads.warps.calls)
    assert "m16n8k16.row.col.f32.f32" in called
    assert "x4.trans" in called if case.left_turned else "x4" in called


def test_rows_of_a_size_known_at_run_time() -> None:
    scheduled(Case(N, 16, 24), {"N": 17})


@settings(max_examples=3)
@given(
    st.integers(17, 33), st.integers(16, 33), st.integers(16, 33), st.sampled_from([f16, bf16]), st.booleans(),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_products_of_all_sizes(
    m: int, n: int, k: int, dtype: DType, left_turned: bool, right_turned: bool, has_bias: bool
) -> None:
    scheduled(Case(m, n, k, dtype, (), left_turned, right_turned, has_bias))


def test_lanes_of_a_warp_hold_the_sums() -> None:
    flat = scheduled(CASES["whole"])
    assert sum(p.space is Space.REG for p in flat.places) == 1
    assert {x.extent for x in loops_of(flat.body) if x.kind is Kind.WARP} == {32, 16, 8, 4}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.dtype.name)
def test_tiles_fit_the_gpu_and_grow_with_the_product(shape) -> None:
    few, many = (tile_of(GPU, f32, shape, Extents(1, n, n, n)) for n in (64, 8192))
    assert few.rows * few.columns < many.rows * many.columns
    for tile in warp_tiles(GPU, shape, Extents(1, N, N, N)):
        n_bytes = (tile.rows * (tile.depth + tile.pad) + tile.depth * (tile.columns + tile.pad)) * 2
        assert n_bytes <= GPU.max_block_shared_bytes and tile.warps * GPU.warp_lanes <= GPU.max_block_threads
