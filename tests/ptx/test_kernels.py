"""Kernels for GPUs as LLVM text that runs here, as PTX, and as what NVIDIA's assembler makes of it."""

from pathlib import Path

import numpy as np
import pytest

from ptx import by_hand
from ptx.assembler import Usage, assemble, needs_ptxas
from ptx.threads import Threads
from tilewright.codegen.errors import CodegenError
from tilewright.codegen.ptx.compile import compile_kernel, emit
from tilewright.runtime.values import aligned_buffer
from tilewright.target.gpu import CUDA_TRIPLE, Gpu, named_gpus

RNG = np.random.default_rng(5)
ALL = [
    by_hand.POINTWISE, by_hand.RAGGED, by_hand.ROWS, by_hand.PRODUCT, by_hand.TWO_GRIDS, by_hand.LONG,
    by_hand.BIG_SHARED, by_hand.MATRICES,
]  # fmt: skip


def floats(*shape: int) -> np.ndarray:
    """Aligned as the runtime aligns what it gives to a GPU."""
    n_bytes = 4 * int(np.prod(shape))
    memory, start = aligned_buffer(n_bytes)
    found = memory[start : start + n_bytes].view(np.float32).reshape(shape)
    found[...] = RNG.standard_normal(shape)
    return found


def run(text: str, sizes: dict[str, int] | None = None, **arrays: np.ndarray) -> None:
    Threads(by_hand.kernel(text))(arrays, sizes)


def test_pointwise() -> None:
    x, y = floats(3, 512), floats(3, 512)
    run(by_hand.POINTWISE, {"n": 3}, x=x, y=y)
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)


FUNCTION = """kernel function
  place x: f32[2048] global in
  place y: f32[2048] global out
  body
    for b[0:15] < 16 block
      for t[0:31] < 32 thread
        for v[0:3] < 4 vector
          y[128*b + 4*t + v] = {}
"""


@pytest.mark.parametrize(
    ("value", "function", "low", "high", "bound"),
    [
        ("exp({})", np.exp, -103, 88.7, 3),
        ("sinh({})", np.sinh, -80, 80, 4),
        ("tanh({})", np.tanh, -10, 10, 4),
        ("tanh({})", np.tanh, -0.7, 0.7, 4),
        ("div(1.0:f32, add(1.0:f32, exp({})))", lambda x: 1 / (1 + np.exp(x)), -20, 88.7, 4),
    ],
)
def test_functions_by_special_instructions(value: str, function, low: float, high: float, bound: float) -> None:
    """As here, where the instructions for powers of 2 and reciprocals are exact, within so many ULP."""
    text = FUNCTION.format(value.format("x[128*b + 4*t + v]"))
    x, y = floats(2048), floats(2048)
    x[:] = np.linspace(low, high, 2048)
    run(text, x=x, y=y)
    want = function(x.astype(np.float64))
    assert (np.abs(y - want) / np.spacing(np.abs(want).astype(np.float32))).max() <= bound
    x[:] = np.resize(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 200.0, -200.0], np.float32), 2048)
    run(text, x=x, y=y)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(y, function(x), rtol=1e-6)
    ptx = compile_kernel(by_hand.kernel(text), Gpu.parse("cuda")).ptx
    assert "ex2.approx" in ptx and ("div.rn" in ptx) is value.startswith("sinh")


AHEAD = """kernel ahead
  place x: f32[40] global in
  place y: f32[64] global out
  place s: f32[64] shared tmp ahead 1
  body
    for b[0:0] < 1 block
      for t[0:15] < 16 thread
        for v[0:3] < 4 vector
          s[4*t + v] = select(inside(-t + 9), x[4*t + v], 0.0:f32)
        commit
        barrier 0
        for w[0:3] < 4 vector
          y[4*t + w] = s[4*t + w]
"""


def test_asynchronous_copies_fill_in_zeros_that_are_positive() -> None:
    for zero, is_copy in (("0.0", True), ("-0.0", False)):
        made = emit(by_hand.kernel(AHEAD.replace("0.0:f32", f"{zero}:f32")), Gpu.parse("cuda"))
        assert ("cp.async.cg.shared" in made.text) is is_copy


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
def test_ragged(n: int) -> None:
    x, y = floats(n), floats(n + 1)
    last = y[n]
    run(by_hand.RAGGED, {"n": n}, x=x, y=y)
    np.testing.assert_array_equal(y[:n], x + 1)
    assert y[n] == last  # the threads beyond the end wrote nothing


def test_rows_through_shared_memory() -> None:
    x, y = floats(3, 96), floats(3, 96)
    run(by_hand.ROWS, {"n": 3}, x=x, y=y)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=2e-6)


def test_product_through_shared_memory() -> None:
    x, y, z = floats(64, 64), floats(64, 64), floats(64, 64)
    run(by_hand.PRODUCT, x=x, y=y, z=z)
    np.testing.assert_allclose(z, x @ y, rtol=1e-5, atol=1e-5)


def test_grids_one_after_the_other() -> None:
    x, y, z = floats(5, 64), floats(5), floats(5, 64)
    run(by_hand.TWO_GRIDS, {"n": 5}, x=x, y=y, z=z)
    np.testing.assert_allclose(z, x - x.sum(1, keepdims=True), rtol=1e-4, atol=1e-4)


def test_block_loops_whose_extents_nobody_knows_share_one_axis() -> None:
    """A y axis ends at 65,535 blocks, and a size may be larger."""
    kernel = by_hand.kernel(by_hand.LONG)
    (launch,) = emit(kernel, Gpu.parse("cuda")).launches
    assert str(launch.grid[0]) == "m*n" and launch.grid[1:] == (1, 1)
    x, y = floats(4, 7, 3), floats(4, 7, 3)
    run(by_hand.LONG, {"n": 4, "m": 7}, x=x, y=y)
    np.testing.assert_array_equal(y, -x)


def test_shared_memory_beyond_what_a_module_may_hold_is_asked_for_at_the_launch() -> None:
    (launch,) = emit(by_hand.kernel(by_hand.BIG_SHARED), Gpu.parse("cuda")).launches
    assert launch.shared_bytes == launch.dynamic_shared_bytes == 65536
    x, y = floats(16384), floats(16384)
    run(by_hand.BIG_SHARED, x=x, y=y)
    np.testing.assert_array_equal(y, x[::-1])


def test_accesses_are_as_wide_as_they_are_aligned() -> None:
    ptx = compile_kernel(by_hand.kernel(by_hand.POINTWISE), Gpu.parse("cuda-sm80")).ptx
    assert "ld.global.nc.v4.b32" in ptx and "st.global.v4.b32" in ptx
    shifted = by_hand.POINTWISE.replace("x: f32[n, 512]", "x: f32[n, 513]")  # a row begins at any multiple of 4 bytes
    ptx = compile_kernel(by_hand.kernel(shifted), Gpu.parse("cuda-sm80")).ptx
    assert "ld.global.nc.v4.b32" not in ptx and "st.global.v4.b32" in ptx
    shared = compile_kernel(by_hand.kernel(by_hand.PRODUCT), Gpu.parse("cuda-sm80")).ptx
    assert "ld.shared.v4.b32" in shared and "ld.b32" not in shared  # no access of unknown memory


def test_what_a_gpu_does_not_run_is_refused() -> None:
    large = by_hand.RAGGED.replace("t[0:31] < 32 thread", "t[0:2047] < 2048 thread")
    with pytest.raises(CodegenError, match=r"a block of 2048 by 1 by 1 threads.*1024"):
        emit(by_hand.kernel(large), Gpu.parse("cuda"))
    huge = by_hand.BIG_SHARED.replace("16384", "65536").replace("16383", "65535")
    with pytest.raises(CodegenError, match="262144 bytes of shared memory: cuda-sm90a has 232448"):
        emit(by_hand.kernel(huge), Gpu.parse("cuda-sm90a"))


@pytest.mark.one_in(2)
@needs_ptxas
@pytest.mark.parametrize("gpu", named_gpus(CUDA_TRIPLE), ids=lambda g: g.arch)
def test_ptxas_takes_every_kernel(gpu: Gpu, tmp_path: Path) -> None:
    for text in ALL:
        made = compile_kernel(by_hand.kernel(text), gpu)
        used = assemble(made.ptx, gpu.arch, tmp_path)
        assert used.keys() == {launch.entry for launch in made.launches}
        for launch in made.launches:
            usage = used[launch.entry]
            static = launch.shared_bytes - launch.dynamic_shared_bytes
            assert usage == Usage(usage.registers, 0, 0, static) and usage.registers <= gpu.max_thread_registers
