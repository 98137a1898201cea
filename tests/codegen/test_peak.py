"""Measured rates of the machine, and how near the hand-scheduled GEMM comes to them."""

import time

import numpy as np
import pytest

from codegen.hand_gemm import gemm, panels
from codegen.native import HOST, Native
from tilewright.codegen.cpu.peak import PeakMeter
from tilewright.target.errors import UnknownTargetError
from tilewright.target.target import Target, target_names
from tilewright.tile.ir import Kind


def test_rates_are_plausible():
    meter = PeakMeter(HOST)
    assert 1 < meter.fma_gflops(0.005) < 10000
    assert 0.1 < meter.read_gb_per_s(1 << 20, 0.005) < 10000


def test_every_name_parses_and_an_unknown_one_lists_them():
    for name in target_names():
        assert Target.parse(name).vector_bytes in (4, 16, 32, 64)
    assert Target.parse("avx2") == Target.parse("x86-64-v3")
    with pytest.raises(UnknownTargetError, match="x86-64-v3"):
        Target.parse("z80")


def aligned(a):
    """A copy that starts on a cache line, as the runtime's buffers do."""
    room = np.empty(a.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    result = room[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    result[...] = a
    return result


@pytest.mark.slow
@pytest.mark.skipif(not HOST.has_masks, reason="the tile is for 32 registers of 16 lanes")
def test_share_of_peak():
    """384 x 768 x 256 by tiles of 8 x 3: 0.95 of the FMA peak on a quiet core; other work on it costs some."""
    m, n, k = 384, 768, 256
    native, meter = Native(gemm(m, n, k, 8, 3, 16, kind=Kind.SERIAL, k_step=4)), PeakMeter(HOST)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype("f"), rng.standard_normal((k, n)).astype("f")
    arrays = [aligned(x) for x in (a, panels(b, 48), np.empty((m, n), "f"))]
    native(*arrays)
    np.testing.assert_allclose(arrays[2], a @ b, rtol=1e-3, atol=1e-3)
    best, peak, pointers = 0.0, 0.0, [x.ctypes.data for x in arrays]
    for _ in range(20):
        peak = max(peak, meter.fma_gflops(0.01))
        for _ in range(20):
            start = time.perf_counter()
            native.function(*pointers, 1, 0)
            best = max(best, 2e-9 * m * n * k / (time.perf_counter() - start))
    print(f"{best:.1f} of {peak:.1f} GFLOP/s: {best / peak:.3f}")
    assert best / peak > 0.75
