"""Averages by instructions of four warps: right in every form, by every lane, and no register is touched too early."""

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st

from ptx.assembler import assemble, machine_code, needs_ptxas
from ptx.threads import Threads
from ptx.warpgroup import too_early
from tile.kernels import arrays_of
from tile.test_online import Case, N, close
from tile.test_simt import changed
from tilewright.choose.gpu import schedule_for_gpu
from tilewright.choose.strategies.gpu.average_tiles import GroupTile, KeyTile, registers_of, tiles_for
from tilewright.choose.strategies.gpu.averages import averages, averages_in
from tilewright.codegen.ptx.compile import compile_kernel, emit
from tilewright.core.types import bf16, f16
from tilewright.runtime.values import aligned_buffer
from tilewright.target.gpu import Gpu
from tilewright.tile.emulate import emulated
from tilewright.tile.errors import ScheduleError
from tilewright.tile.flatten import flatten
from tilewright.tile.interp import run
from tilewright.tile.ir import Barrier, Commit, Kernel, Space, walk
from tilewright.tile.lower import lower
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.online_fours import online_fours
from tilewright.tile.schedule.weighted import weighted
from tilewright.tile.simt import FaultKind, simulate
from tilewright.tile.verify import verify

HOPPER = Gpu.parse("cuda-sm90a")
SMALL = GroupTile(16, 1, 2)
CASES = {
    "whole": (Case(64, 64, 64, 64), GroupTile(32, 1, 2)),
    "ragged": (Case(17, 35, 64, 64, bf16), SMALL),
    "causal": (Case(150, 150, 64, 64, causal=True), GroupTile(32, 2, 3)),
    "more keys than rows": (Case(16, 50, 64, 128, bf16, causal=True), SMALL),
    "more rows than keys": (Case(80, 16, 128, 64, causal=True), SMALL),
    "one tile": (Case(20, 10, 64, 64), SMALL),
    "heads that share keys": (Case(20, 17, 64, 64, heads=3, causal=True), SMALL),
    "told what to see": (Case(20, 35, 64, 64, mask="bool", causal=True), SMALL),
    "with numbers added": (Case(20, 35, 64, 64, bf16, mask="add"), SMALL),
}


def scheduled(case: Case, tile: GroupTile = SMALL) -> Kernel:
    """The kernel in phases."""
    b = ScheduleBuilder(lower(case.computation()))
    averages(b, HOPPER, "Y", tile)
    verify(b.kernel)
    return b.kernel


def seen_right(case: Case, tile: GroupTile, sizes: dict[str, int] | None = None) -> None:
    """The scheduled form and that for CPUs compute the averages."""
    kernel = scheduled(case, tile)
    flat = flatten(kernel)
    given = arrays_of(case.computation(), sizes or {})
    if case.mask == "bool":
        given["B"][:, 0] = True
    for made in (flat, emulated(flat)):
        verify(made)
    for made in (kernel, emulated(flat)):
        close(run(made, given, sizes or {}, reverse=True)["Y"], case.expected(given), case.dtype)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", CASES)
def test_averages_are_right_in_every_form(name: str) -> None:
    seen_right(*CASES[name])


@pytest.mark.slow
@settings(max_examples=2)
@given_by(
    st.integers(1, 90), st.integers(1, 70), st.sampled_from([64, 128]), st.sampled_from([64, 128]),
    st.sampled_from([f16, bf16]), st.integers(1, 2), st.booleans(), st.sampled_from(["", "bool", "add"]),
    st.sampled_from([16, 32, 48]), st.integers(1, 2), st.integers(2, 4),
)  # fmt: skip
def test_averages_of_all_sizes(m, n, k, d, dtype, heads, causal, mask, keys, groups, parts) -> None:
    case = Case(m, n, k, d, dtype, heads, causal, mask)
    given = arrays_of(case.computation(), {})
    if mask == "bool":
        given["B"][:, 0] = True
    made = scheduled(case, GroupTile(keys, groups, parts))
    close(run(made, given, {})["Y"], case.expected(given), dtype)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_known_at_run_time(causal: bool) -> None:
    for n in (0, 36):
        seen_right(Case(N + 1, N + 1, 64, 64, causal=causal), SMALL, {"N": n})


def aligned_arrays(case: Case) -> dict[str, np.ndarray]:
    given = {}
    for b, a in arrays_of(case.computation(), {}).items():
        memory, start = aligned_buffer(max(a.nbytes, 1))
        given[b] = memory[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
        given[b][...] = a
    return given


@pytest.mark.parametrize(
    ("case", "tile"),
    [
        (Case(40, 70, 64, 64, bf16, causal=True), GroupTile(32, 1, 2)),
        pytest.param(Case(100, 100, 128, 64, f16), GroupTile(32, 2, 3), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_code_of_lanes_is_right(case: Case, tile: GroupTile) -> None:
    given, threads = aligned_arrays(case), Threads(flatten(scheduled(case, tile)))
    threads(given)
    close(given["Y"], case.expected(given), case.dtype)
    assert {f"wgmma.{case.dtype}.{tile.keys}", f"wgmma.{case.dtype}.{case.columns}"} <= set(threads.warps.calls)
    assert not {c for c in threads.warps.calls if c.startswith("m16n8k16")}


@pytest.mark.slow
def test_lanes_neither_race_nor_wait_for_banks() -> None:
    case = Case(40, 70, 64, 64)
    flat, arrays = flatten(scheduled(case)), arrays_of(case.computation(), {})
    seen = simulate(flat, HOPPER, arrays)
    assert seen.faults == ()
    close(seen.arrays["Y"], case.expected(arrays), case.dtype)
    shared = [p.buffer.name for p in flat.places if p.space is Space.SHARED]
    assert len(shared) == 3 and all(seen.traffic[b].bank_conflicts == 0 for b in shared)


@pytest.mark.slow
def test_a_lack_of_waiting_is_found() -> None:
    case = Case(16, 60, 64, 64)
    flat, arrays = flatten(scheduled(case, GroupTile(16, 1, 3))), arrays_of(case.computation(), {})
    wrong = [
        (at, body)
        for at, s in enumerate(walk(flat.body))
        for body in (((),) if isinstance(s, Commit) else ((Barrier(9),), ()) if isinstance(s, Barrier) else ())
    ]
    # Without its own commit the first tile of keys comes with the second one, for which the first barrier waits too.
    for at, body in wrong[1:]:
        found = simulate(changed(flat, at, lambda _, body=body: body), HOPPER, arrays).faults
        assert FaultKind.RACE in {f.kind for f in found}, (at, body)


@pytest.mark.parametrize("causal", [False, True])
def test_registers_are_touched_when_products_have_ended(causal: bool) -> None:
    """And no sooner: scores are waited for while the averages' product goes on."""
    text = emit(flatten(scheduled(Case(300, 300, 64, 64, causal=causal), GroupTile(64, 2, 2))), HOPPER).text
    assert too_early(text) == []
    assert "wgmma.wait_group.sync.aligned 1;" in text
    all_of = re.sub(r"wait_group\.sync\.aligned 0;", "wait_group.sync.aligned 1;", text)
    assert too_early(all_of) != []  # the check finds who waits for too little


@given_by(
    st.integers(1, 2000), st.sampled_from([64, 128, 256]), st.sampled_from(["", "bool", "add"]), st.booleans(),
    st.sampled_from([HOPPER, Gpu.parse("cuda-sm80")]),
)  # fmt: skip
@settings(max_examples=20)
def test_masks_and_ragged_keys_take_registers_of_their_own(n, depth, mask, causal, gpu) -> None:
    """And every tile that may be chosen has them; there is one for each depth."""

    def what(keys: int, mask: str):
        return weighted(lower(Case(n, keys, depth, depth, bf16, causal=causal, mask=mask).computation()), "Y")

    plain, whole, seen = what(128 * n, ""), what(128 * n, mask), what(n, mask)
    for tile in (GroupTile(64, 1, 2), KeyTile(1, 64, 4, 2)):
        least, of_mask, here = (registers_of(gpu, w, tile) for w in (plain, whole, seen))
        assert (least < of_mask) is bool(mask) and least <= here and of_mask <= here
        assert (of_mask < here) is (n % tile.keys != 0)
    tiles = tiles_for(gpu, seen)
    assert tiles and all(registers_of(gpu, seen, t) < gpu.max_thread_registers for t in tiles)
    assert isinstance(tiles[0], GroupTile) is gpu.has_warpgroup_mma


def test_a_step_has_fewer_keys_where_registers_hold_no_more() -> None:
    for case, keys in ((Case(300, 320, 256, 256), 64), (Case(300, 333, 256, 256, mask="add"), 32)):
        (found,) = averages_in(case.computation(), HOPPER)
        assert isinstance(found.tile, GroupTile) and found.tile.keys == keys


@pytest.mark.one_in(2)
@needs_ptxas
@pytest.mark.parametrize("depth", [64, 128])
def test_large_ones_take_them_without_spills(depth: int, tmp_path) -> None:
    made = schedule_for_gpu(Case(4096, 4096, depth, depth, bf16, heads=16, causal=True).computation(), HOPPER)
    assert [t.taken for t in made.tried] == ["averages"], made.kernel.notes
    ptx = compile_kernel(flatten(made.kernel), HOPPER).ptx
    ((name, usage),) = assemble(ptx, HOPPER.arch, tmp_path).items()
    assert usage.spilled_bytes == usage.stack_bytes == 0, name
    code = machine_code(tmp_path)
    if code is None:
        pytest.skip("nvdisasm is not installed (the extra `ptxas`)")
    found = {name: len(re.findall(rf"\b{name}\b", code)) for name in ("HGMMA", "HMMA", "LDL", "STL", "LDGSTS")}
    assert found["HGMMA"] > 0 and found["LDGSTS"] > 0 and found["HMMA"] == found["LDL"] == found["STL"] == 0


def test_rows_that_see_nothing_are_no_numbers_and_others_are_right() -> None:
    case = Case(20, 35, 64, 64, mask="bool")
    given = arrays_of(case.computation(), {})
    given["B"][:, 0] = True
    given["B"][3], given["B"][4, :33] = False, False
    given["B"][4, 34] = True
    got = run(scheduled(case), given, {})["Y"].reshape(20, 64)
    assert np.isnan(got[3].astype(np.float32)).all() and not np.isnan(np.delete(got, 3, 0).astype(np.float32)).any()
    close(np.delete(got, 3, 0), np.delete(case.expected(given)[0], 3, 0), case.dtype)


def test_great_scores_leave_no_other_numbers() -> None:
    case = Case(16, 35, 64, 64, bf16, mask="add")
    given = arrays_of(case.computation(), {})
    given["B"][:, :20] = ml_dtypes.finfo(ml_dtypes.bfloat16).min
    given["B"][2, :] = ml_dtypes.finfo(ml_dtypes.bfloat16).min
    got = run(scheduled(case), given, {})["Y"].astype(np.float64).reshape(1, 16, 64)
    want = case.expected(given)
    want[0, 2] = given["V"].astype(np.float64).mean(0)  # the mask swallows what is added to it
    close(got, want, bf16)


def test_what_no_instruction_is_for_is_left_to_others() -> None:
    for case in (Case(64, 64, 72, 64), Case(64, 64, 64, 40)):
        (found,) = averages_in(case.computation(), HOPPER)
        assert not isinstance(found.tile, GroupTile)
        with pytest.raises(ScheduleError, match="no whole pieces"):
            online_fours(lower(case.computation()), "Y", 64, 1, 2)
    kernel = lower(Case(64, 64, 64, 64).computation())
    for sizes in ((0, 1, 2), (64, 0, 2), (64, 1, 1)):
        with pytest.raises(ScheduleError, match="tiles of"):
            online_fours(kernel, "Y", *sizes)
    with pytest.raises(ScheduleError, match="no whole terms"):
        online_fours(kernel, "Y", 24, 1, 2)
    with pytest.raises(ScheduleError, match="no instruction of four warps has 512"):
        online_fours(kernel, "Y", 512, 1, 2)
    (other,) = averages_in(Case(64, 64, 64, 64).computation(), Gpu.parse("cuda-sm100a"))
    assert not isinstance(other.tile, GroupTile)


@pytest.mark.parametrize(("heads", "depth", "groups"), [(4, 64, 1), (128, 256, 2)])
def test_few_rows_are_shared_out_among_more_blocks(heads: int, depth: int, groups: int) -> None:
    (found,) = averages_in(Case(1024, 1024, depth, depth, bf16, heads=heads).computation(), HOPPER)
    assert isinstance(found.tile, GroupTile) and found.tile.groups == groups
