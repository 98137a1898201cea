"""Matrix instructions of a warp: layouts, which lanes hold what, and what kernels become."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ptx import by_hand
from ptx.assembler import assemble, machine_code, needs_ptxas
from ptx.threads import Threads
from tile.test_matrix_units import Case
from tile.test_online import Case as Attended
from tilewright.choose.gpu import schedule_for_gpu
from tilewright.choose.strategies.gpu.block_tiles import Extents, tile_of
from tilewright.codegen.errors import CodegenError
from tilewright.codegen.ptx.compile import compile_kernel, emit
from tilewright.codegen.ptx.mma import INSTRUCTIONS
from tilewright.core.types import bf16, f16, f32
from tilewright.runtime.values import aligned_buffer
from tilewright.target.gpu import CUDA_TRIPLE, Gpu, named_gpus
from tilewright.target.matrices import LEFT, RIGHT, RUN_LENGTHS, SHAPES, SUMS, Fragment, runs_of
from tilewright.tile.flatten import flatten
from tilewright.tile.interp import run
from tilewright.tile.text import parse_kernel

DTYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
TURNED = by_hand.MATRICES.replace("ys: f16[16, 72]", "ys: f16[64, 24]").replace(
    "ys[8*u + 4*w + c // 8, 8*(c % 8) + v2]", "ys[8*(c % 8) + v2, 8*u + 4*w + c // 8]"
).replace("ys[k, 32*w + 8*q + n]", "ys[32*w + 8*q + n, k]")  # fmt: skip
ODD = by_hand.MATRICES.replace("xs: f16[64, 24]", "xs: f16[64, 17]").replace("ys: f16[16, 72]", "ys: f16[16, 65]")
"""Rows of shared memory that begin where `ldmatrix` can't read them."""


@pytest.mark.parametrize("fragment", [SUMS, LEFT, RIGHT, *[runs_of(16, n) for n in RUN_LENGTHS]])
def test_every_element_has_one_lane(fragment: Fragment) -> None:
    places = [fragment.place(lane, e) for lane in range(32) for e in range(fragment.count)]
    assert sorted(places) == sorted(np.ndindex(fragment.rows, fragment.columns))


def aligned(a: np.ndarray) -> np.ndarray:
    memory, start = aligned_buffer(a.nbytes)
    made = memory[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    made[...] = a
    return made


def product(text: str, dtype: str) -> tuple[Threads, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    x, y = (aligned(rng.standard_normal(s).astype(DTYPES[dtype])) for s in ((64, 32), (32, 64)))
    z = aligned(np.full((64, 64), np.nan, np.float32))
    threads = Threads(by_hand.kernel(text.replace("f16[", f"{dtype}[")))
    threads({"x": x, "y": y, "z": z})
    return threads, z, x.astype(np.float32) @ y.astype(np.float32)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("text", "dtype", "loads"),
    [
        (by_hand.MATRICES, "f16", {"x4", "x4.trans"}),
        (TURNED, "bf16", {"x4"}),
        pytest.param(ODD, "bf16", set(), marks=pytest.mark.slow),
    ],
)
def test_products(text: str, dtype: str, loads: set[str]) -> None:
    threads, z, expected = product(text, dtype)
    np.testing.assert_allclose(z, expected, rtol=1e-5, atol=1e-4)
    called = set(threads.warps.calls)
    assert {c for c in called if c.startswith("x")} == loads and len(called) == len(loads) + 1


def test_warp_loops_mean_what_serial_loops_mean() -> None:
    rng = np.random.default_rng(3)
    x, y = (aligned(rng.standard_normal(s).astype(np.float16)) for s in ((16, 32), (32, 8)))
    z = aligned(np.full((16, 8), np.nan, np.float32))
    kernel = by_hand.kernel(by_hand.ONE_TILE)
    serial = run(kernel, {"x": x, "y": y}, {})["z"]
    Threads(kernel)({"x": x, "y": y, "z": z})
    np.testing.assert_allclose(z, serial, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(z, x.astype(np.float32) @ y.astype(np.float32), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("m[0:15] < 16 warp", "m[0:23] < 24 warp", "no matrix instruction has warp loops of 24 by 8 by 16"),
        ("n[0:7] < 8 warp", "n[0:23] < 24 warp", "three warp loops that are no matrix instruction"),
        ("add= mul(cast.f32(xs", "max= mul(cast.f32(xs", "no matrix instruction"),
        ("for m2[0:15] < 16 warp", "for m2[0:7] < 8 warp", "warp loops of 8 by 8 iterations"),
        ("for bi[0:0] < 1 block", "for bi[0:0] < 1 block\n      for wk[0:0] < 1 thread", "there are three"),
    ],
)
def test_what_is_no_instruction_is_refused(old: str, new: str, why: str) -> None:
    text = by_hand.MATRICES.replace(old, new)
    assert text != by_hand.MATRICES
    if "wk" in new:
        head, _, tail = text.partition(new)
        text = head + new + tail.replace("\n      ", "\n        ")
    with pytest.raises(CodegenError, match=why):
        emit(parse_kernel(text), Gpu.parse("cuda"))


@pytest.mark.one_in(3)
@needs_ptxas
@pytest.mark.parametrize("gpu", named_gpus(CUDA_TRIPLE), ids=lambda g: g.arch)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_machine_code_has_the_instructions(dtype: str, gpu: Gpu, tmp_path: Path) -> None:
    made = compile_kernel(by_hand.kernel(by_hand.MATRICES.replace("f16[", f"{dtype}[")), gpu)
    (usage,) = assemble(made.ptx, gpu.arch, tmp_path).values()
    assert usage.spilled_bytes == usage.stack_bytes == 0
    code = machine_code(tmp_path)
    if code is None:
        pytest.skip("nvdisasm is not installed (the extra `ptxas`)")
    found = {name: len(re.findall(rf"\b{name}\b", code)) for name in ("HMMA", "LDSM", "LDL", "STL")}
    assert found["HMMA"] > 0 and found["HMMA"] % 8 == 0 and found["LDSM"] > 0 and found["LDL"] == found["STL"] == 0


def test_instructions_have_names_that_llvm_knows() -> None:
    assert {x.name for x in INSTRUCTIONS} == {"m16n8k16.row.col.bf16", "m16n8k16.row.col.f32.f32"}


@pytest.mark.one_in(2)
@needs_ptxas
@pytest.mark.parametrize("gpu", [g for g in named_gpus(CUDA_TRIPLE) if not g.has_warpgroup_mma], ids=lambda g: g.arch)
@pytest.mark.parametrize("case", [Case(4096, 4096, 4096, bf16), Case(1000, 513, 300, f16, right_turned=True)], ids=str)
def test_products_are_matrix_instructions_and_asynchronous_copies(case: Case, gpu: Gpu, tmp_path: Path) -> None:
    kernel = flatten(schedule_for_gpu(case.computation(), gpu).kernel)
    (unit,) = (x for x in SHAPES if x.dtype is case.dtype)
    tile = tile_of(gpu, f32, unit, Extents(1, case.rows, case.columns, case.terms))
    made = compile_kernel(kernel, gpu)
    ((name, usage),) = assemble(made.ptx, gpu.arch, tmp_path).items()
    assert usage.spilled_bytes == usage.stack_bytes == 0, name
    (launch,) = made.launches
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    assert gpu.blocks_per_sm(threads, usage.registers, launch.shared_bytes) >= tile.beside
    code = machine_code(tmp_path)
    if code is None:
        pytest.skip("nvdisasm is not installed (the extra `ptxas`)")
    found = {name: len(re.findall(rf"\b{name}\b", code)) for name in ("HMMA", "LDSM", "LDGSTS", "LDL", "STL")}
    assert found["HMMA"] >= found["LDSM"] > 0 and found["LDL"] == found["STL"] == 0
    assert found["LDGSTS"] > 0 or case.columns % 8


@pytest.mark.one_in(6)
@needs_ptxas
@pytest.mark.parametrize("gpu", [g for g in named_gpus(CUDA_TRIPLE) if not g.has_warpgroup_mma], ids=lambda g: g.arch)
@pytest.mark.parametrize("causal", [False, True])
def test_averages_are_matrix_instructions_and_stay_in_registers(causal: bool, gpu: Gpu, tmp_path: Path) -> None:
    case = Attended(4096, 4096, 64, 64, bf16, heads=2, causal=causal)
    kernel = flatten(schedule_for_gpu(case.computation(), gpu).kernel)
    made = compile_kernel(kernel, gpu)
    ((name, usage),) = assemble(made.ptx, gpu.arch, tmp_path).items()
    assert usage.spilled_bytes == usage.stack_bytes == 0, name
    assert all(name in made.ptx for name in ("mma.sync", "ldmatrix", "cp.async.cg", "ex2.approx.ftz", "shfl.sync.bfly"))
    (launch,) = made.launches
    assert gpu.blocks_per_sm(launch.block[0] * launch.block[1], usage.registers, launch.shared_bytes) >= 2
