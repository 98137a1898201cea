"""Matrix instructions of four warps: what they compute, who waits for whom, and what is refused."""

import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ptx import by_hand
from ptx.assembler import assemble, machine_code, needs_ptxas
from ptx.test_matrices import aligned
from ptx.threads import Threads
from ptx.warpgroup import too_early
from tile.kernels import arrays_of, outputs
from tile.test_matrix_units import Case, close, scheduled
from tile.test_simt import changed
from tilewright.choose.gpu import schedule_for_gpu
from tilewright.choose.strategies.gpu.block_tiles import Extents, tile_of
from tilewright.codegen.errors import CodegenError
from tilewright.codegen.ptx.compile import compile_kernel, emit
from tilewright.core.expr import Sym
from tilewright.core.types import bf16, f16, f32
from tilewright.target.gpu import Gpu
from tilewright.target.matrices import SHAPES, sums_of
from tilewright.tile.emulate import emulated
from tilewright.tile.flatten import flatten
from tilewright.tile.interp import run
from tilewright.tile.ir import Barrier, Kind, Space, walk
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import loops_of
from tilewright.tile.simt import FaultKind, simulate
from tilewright.tile.text import kernel_text, parse_kernel
from tilewright.tile.verify import verify

HOPPER = Gpu.parse("cuda-sm90a")


def arrays(dtype: type = np.float16) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    x, y = (aligned(rng.standard_normal(s).astype(dtype)) for s in ((64, 192), (8, 192)))
    return {"x": x, "y": y, "z": aligned(np.full((64, 8), np.nan, np.float32))}


def expected(given: dict[str, np.ndarray]) -> np.ndarray:
    return given["x"].astype(np.float32) @ given["y"].astype(np.float32).T


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_descriptors_and_registers_are_those_of_the_instruction(dtype: str) -> None:
    given = arrays(np.float16 if dtype == "f16" else ml_dtypes.bfloat16)
    threads = Threads(by_hand.kernel(by_hand.FOURS.replace("f16", dtype)))
    threads(given)
    np.testing.assert_allclose(given["z"], expected(given), rtol=1e-4, atol=1e-3)
    assert set(threads.warps.calls) == {f"wgmma.{dtype}.8"}
    text = emit(by_hand.kernel(by_hand.FOURS), HOPPER).text
    assert too_early(text) == []
    (wait,) = (x for x in text.splitlines() if '"wgmma.wait_group.sync.aligned 0;"' in x)
    assert too_early(text.replace(wait, wait.replace("aligned 0", "aligned 1"))) != []


def test_it_means_what_loops_mean() -> None:
    given, kernel = arrays(), by_hand.kernel(by_hand.FOURS)
    verify(emulated(kernel))
    np.testing.assert_allclose(run(emulated(kernel), given, {})["z"], expected(given), rtol=1e-4, atol=1e-3)
    text = kernel_text(kernel)
    assert "barrier 0 running" in text and "ahead 1 swizzled" in text
    assert kernel_text(parse_kernel(text)) == text


def test_a_lack_of_waiting_is_found() -> None:
    """Two parts are too few while the last one may be read; so is a barrier that waits for no copy, or none (below)."""
    text = by_hand.FOURS.replace("for ki[0:3] < 4", "for ki[0:0] < 1")  # a quarter of the terms, for time
    given, kernel = arrays(), by_hand.kernel(text)
    seen = simulate(kernel, HOPPER, given)
    assert seen.faults == () and all(seen.traffic[b].bank_conflicts == 0 for b in ("xs", "ys"))
    two = text.replace("% 3", "% 2").replace("f16[3,", "f16[2,")
    assert {f.kind for f in simulate(parse_kernel(two), HOPPER, given).faults} == {FaultKind.RACE}


@pytest.mark.slow
def test_other_lacks_of_waiting_are_found_too() -> None:
    text = by_hand.FOURS.replace("for ki[0:3] < 4", "for ki[0:0] < 1")
    given, kernel = arrays(), by_hand.kernel(text)
    two = text.replace("% 3", "% 2").replace("f16[3,", "f16[2,")
    assert simulate(parse_kernel(two.replace(" running", "")), HOPPER, given).faults == ()
    (at,) = (k for k, s in enumerate(walk(kernel.body)) if isinstance(s, Barrier))
    for body in ((Barrier(1, running=True),), ()):
        found = simulate(changed(kernel, at, lambda _, body=body: body), HOPPER, given).faults
        assert FaultKind.RACE in {f.kind for f in found}, body


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("ys[ko % 3, n, 16*ki + k]", "ys[ko % 3, n, 16*w + k]", "several right factors"),
        ("xs[ko % 3, 16*w + m, 16*ki + k]", "xs[ko % 3, 4*m + w, 16*ki + k]", "does not lie as"),
        ("xs[ko % 3, 16*w + m, 16*ki + k]", "xs[ko % 3, 16*w + m, 8*ki + k + 4]", "inside of an exchange"),
        ("for w[0:3] < 4 thread", "for w[0:1] < 2 thread", "where neighbours are not as many"),
        ("ys: f16[3, 8, 64] shared tmp ahead 1 swizzled", "ys: f16[3, 8, 64] shared tmp ahead 1", None),
    ],
)
def test_what_is_no_instruction_is_refused(old: str, new: str, why: str | None) -> None:
    text = by_hand.FOURS.replace(old, new)
    assert text != by_hand.FOURS
    if why is None:  # then it is an instruction of one warp, and not of four
        assert "mma.m16n8k16" in emit(parse_kernel(text), HOPPER).text
        return
    with pytest.raises(CodegenError, match=why):
        emit(parse_kernel(text), HOPPER)


def test_other_generations_have_no_such_instruction() -> None:
    for name in ("cuda-sm80", "cuda-sm100a"):
        with pytest.raises(CodegenError, match="no matrix instruction of four warps"):
            emit(by_hand.kernel(by_hand.FOURS), Gpu.parse(name))


@pytest.mark.parametrize("columns", [8, 64, 256])
def test_every_sum_has_one_lane(columns: int) -> None:
    fragment = sums_of(columns)
    places = [fragment.place(lane, e) for lane in range(32) for e in range(fragment.count)]
    assert sorted(places) == sorted(np.ndindex(16, columns))


@pytest.mark.one_in(3)
@needs_ptxas
@pytest.mark.parametrize(
    "case",
    [
        Case(4096, 4096, 4096, bf16), Case(4096, 4096, 4096, f16, left_turned=True, right_turned=True),
        Case(3000, 3000, 3000, bf16, has_bias=True),
    ],
    ids=str,
)  # fmt: skip
def test_large_products_take_them_without_spills(case: Case, tmp_path: Path) -> None:
    flat = flatten(schedule_for_gpu(case.computation(), HOPPER).kernel)
    assert [s.running for s in walk(flat.body) if isinstance(s, Barrier)] == [True]
    made = compile_kernel(flat, HOPPER)
    ((name, usage),) = assemble(made.ptx, HOPPER.arch, tmp_path).items()
    assert usage.spilled_bytes == usage.stack_bytes == 0, name
    code = machine_code(tmp_path)
    if code is None:
        pytest.skip("nvdisasm is not installed (the extra `ptxas`)")
    found = {name: len(re.findall(rf"\b{name}\b", code)) for name in ("HGMMA", "HMMA", "LDL", "STL", "LDGSTS")}
    assert found["HGMMA"] > 0 and found["LDGSTS"] > 0 and found["HMMA"] == found["LDL"] == found["STL"] == 0


ONE = replace(HOPPER, n_sms=1)
"""Where small products fill the GPU as large ones fill others."""
EMULATED = [
    Case(40, 60, 64, bf16, left_turned=True, has_bias=True),
    *(
        pytest.param(case, marks=pytest.mark.slow)
        for case in (Case(66, 64, 72), Case(64, 64, 65, f16, right_turned=True), Case(Sym("N"), 64, 64))
    ),
]


FOURS_ALONE = replace(ONE, sm_warp_bf16_fmas_per_cycle=1)
"""Where instructions of one warp are never the better choice."""


@pytest.mark.parametrize("case", EMULATED, ids=str)
def test_schedules_compute_the_product(case: Case) -> None:
    flat = scheduled(case, {"N": 65}, FOURS_ALONE)
    assert all(p.swizzled for p in flat.places if p.space is Space.SHARED)


@pytest.mark.slow
@pytest.mark.parametrize("left_turned", [False, True])
@pytest.mark.parametrize("right_turned", [False, True])
def test_the_code_of_lanes_is_right_for_all_layouts(left_turned: bool, right_turned: bool) -> None:
    case = Case(130, 136, 200, f16, left_turned=left_turned, right_turned=right_turned, has_bias=True)
    assert tile_of(ONE, f32, SHAPES[1], Extents(1, 130, 136, 200)).is_swizzled
    check_lanes(case, ONE)


def test_rows_that_are_no_whole_accesses_are_copied_by_narrower_ones() -> None:
    case = Case(256, 258, 260, f16)
    ptx = compile_kernel(flatten(schedule_for_gpu(case.computation(), ONE).kernel), ONE).ptx
    assert "wgmma.mma_async" in ptx and all(f"cp.async.ca.shared.global [%{r}" in ptx for r in ("r", "rd"))


@pytest.mark.slow
def test_the_code_of_lanes_is_right_where_rows_are_no_whole_accesses() -> None:
    check_lanes(Case(256, 258, 260, f16), ONE)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("columns", [64, 72, 66, 65])
@pytest.mark.parametrize("has_bias", [False, True])
def test_lanes_store_runs_of_sums(columns: int, has_bias: bool) -> None:
    """By the widest access that rows are a multiple of; sums that are rounded first are exchanged as pairs."""
    case = Case(70, columns, 64, bf16, has_bias=has_bias)
    width = {64: "v4.b32", 72: "v4.b32", 66: "b32", 65: "b16"}[columns]
    kernel = flatten(schedule_for_gpu(case.computation(), ONE).kernel)
    stores = set(re.findall(r"st\.global\.(\S+)", compile_kernel(kernel, ONE).ptx))
    assert stores == {width}
    shuffles = len(re.findall("shfl.sync.bfly", compile_kernel(kernel, ONE).ptx))
    check_lanes(case, ONE)
    tile = max(x.extent for x in loops_of(kernel.body) if x.kind is Kind.WARP)
    n_exchanges = 0 if columns in (65, 66) else tile // 4 * (2 if has_bias else 1)
    n_forms = 2 if columns == tile else 1  # whole tiles have code without conditions
    assert shuffles == n_exchanges * n_forms


@pytest.mark.slow
def test_the_interpreter_of_threads_exchanges_runs() -> None:
    computation = Case(70, 64, 64, bf16, has_bias=True).computation()
    flat = flatten(schedule_for_gpu(computation, ONE).kernel)
    seen = simulate(flat, ONE, arrays_of(computation, {}))
    assert seen.faults == ()
    close(seen.arrays["C"], outputs(lower(computation), computation, {})[0])
    assert seen.traffic["C"].sectors == seen.traffic["C"].least_sectors


def check_lanes(case: Case, gpu: Gpu) -> None:
    computation = case.computation()
    flat = flatten(schedule_for_gpu(computation, gpu).kernel)
    want = outputs(lower(computation), computation, {})[0]
    given = {b: aligned(a) for b, a in arrays_of(computation, {}).items()}
    threads = Threads(flat)
    threads(given)
    close(given["C"], want)
    assert "wgmma" in {c.split(".")[0] for c in threads.warps.calls}
