"""Estimates of a kernel's cycles: bound by arithmetic, or by constants that come from beyond the second-level cache."""

import dataclasses

import pytest

from tilewright.choose.default import schedule_with_steps
from tilewright.choose.shares import times_of
from tilewright.core.compute import Buffer, Computation
from tilewright.core.graph import Attrs
from tilewright.core.types import f32
from tilewright.ops import matmul
from tilewright.target.target import Target
from tilewright.tile.text import parse_kernel

MACHINE = dataclasses.replace(Target.parse("x86-64-v4"), n_cores=2)
LANES = MACHINE.vector_bytes // 4

OVER_TIME = """
kernel k
  place x: f32[64] global in
  place w: f32[4, 64, 16] global const
  place out: f32[10, 64] global out
  place acc: f32[16] reg tmp
  body
    for t[0:9] < 10 serial
      for p[0:3] < 4 parallel
        for v0[0:15] < 16 vector
          acc[v0] = 0.0:f32
        for k[0:63] < 64 serial
          for v1[0:15] < 16 vector
            acc[v1] add= mul(x[k], w[p, k, v1])
        for v2[0:15] < 16 vector
          out[t, v2 + 16*p] = acc[v2]
"""
WEIGHTS, STEPS = 4 * 64 * 16, 10


@pytest.mark.parametrize("rows, bound", [(1, "constants"), (64, "arithmetic")])
def test_a_product_of_few_rows_waits_for_its_constants(rows: int, bound: str) -> None:
    x, w, out = Buffer("x", f32, (rows, 512)), Buffer("w", f32, (512, 2048)), Buffer("out", f32, (rows, 2048))
    computation = Computation((x, w), (out,), tuple(matmul.compute((x, w), (out,), Attrs({"out_dtype": None}))))
    times = times_of(schedule_with_steps(computation, MACHINE, constants=(w,)).kernel, MACHINE)
    n = 512 * 2048
    cycles = {"constants": n * 4 / (MACHINE.vector_bytes / 2), "arithmetic": n * rows / LANES / MACHINE.fma_ports}
    assert cycles[bound] == max(cycles.values())
    assert times.work == pytest.approx(cycles[bound], rel=0.15)


def test_constants_of_a_loop_over_time_are_read_again_where_they_do_not_fit() -> None:
    kernel = parse_kernel(OVER_TIME.strip())
    moves = STEPS * 64 * 2 * 2 / LANES / MACHINE.fma_ports
    fits = times_of(kernel, MACHINE)
    assert fits.work == pytest.approx(STEPS * WEIGHTS / LANES / MACHINE.fma_ports + moves)
    beyond = times_of(kernel, dataclasses.replace(MACHINE, l2_bytes=16 << 10))
    assert beyond.work == pytest.approx(STEPS * WEIGHTS * 4 / (MACHINE.vector_bytes / 2) + moves)
    assert beyond.uses_threads and beyond.extent is None
    assert beyond.work / 2 < beyond.alone < beyond.work + STEPS * 2000
