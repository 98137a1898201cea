"""Phases become threads with barriers, and threads become loops again: every form of a GPU's kernel means the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import arrays_of, elementwise, layer_norm, matmul, outputs, reduction, softmax, transpose
from tile.test_grid import TURNED
from tilewright.choose.gpu import schedule_for_gpu
from tilewright.core.compute import Buffer, Computation, Const, Reduction, Stage, axes_for, syms
from tilewright.core.expr import Sym
from tilewright.core.types import f16, f32
from tilewright.target.gpu import Gpu
from tilewright.tile.emulate import emulated
from tilewright.tile.errors import TileVerifyError
from tilewright.tile.flatten import flatten
from tilewright.tile.grid import is_flat, is_for_gpus
from tilewright.tile.interp import run
from tilewright.tile.ir import Barrier, For, Kernel, Kind, Space, walk
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import loops_of
from tilewright.tile.simt import simulate
from tilewright.tile.text import parse_kernel
from tilewright.tile.verify import verify

GPU = Gpu.parse("cuda-sm90a")
N = Sym("N")


def forms(
    computation: Computation, sizes: dict[str, int] | None = None, gpu: Gpu = GPU
) -> tuple[Kernel, tuple[str, ...]]:
    """The flat kernel and the strategies taken, once all forms were seen to compute the same."""
    made = schedule_for_gpu(computation, gpu)
    flat = flatten(made.kernel)
    loops = emulated(flat)
    for kernel in (made.kernel, flat, loops):
        verify(kernel)
    assert is_flat(flat) and not is_for_gpus(loops)
    want = outputs(lower(computation), computation, sizes or {})
    for kernel in (made.kernel, loops):
        for a, b in zip(want, outputs(kernel, computation, sizes or {}, reverse=True), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)
    return flat, tuple(t.taken for t in made.tried)


@pytest.mark.parametrize(
    "computation",
    [
        elementwise((5, 7)), elementwise((8, 32)), elementwise((N, 12)), elementwise((3, N)), elementwise((0, 4)),
        transpose(5, 6), reduction((5, 9), 1, "add"), reduction((5, 9), 0, "max"), reduction((40,), 0, "add"),
        matmul(5, 6, 7), softmax(4, 10), softmax(N, 40), layer_norm(3, 12),
        transpose(4, 0), transpose(0, 4), reduction((0, 40), 1, "add"), reduction((0, 5), 0, "add"), softmax(0, 4),
    ],
)  # fmt: skip
def test_all_forms_compute_the_same(computation: Computation) -> None:
    forms(computation, {"N": 3})


def test_elements_side_by_side_are_one_access() -> None:
    kernel, _ = forms(elementwise((8, 32)))
    assert [x.extent for x in loops_of(kernel.body)] == [1, 128, 4]
    assert loops_of(kernel.body)[-1].kind is Kind.VECTOR
    kernel, _ = forms(elementwise((5, 7)))
    assert not any(x.kind is Kind.VECTOR for x in loops_of(kernel.body))


@pytest.mark.parametrize(
    "computation",
    [reduction((5, 7), 0, "add"), reduction((5, 8), 0, "max"), reduction((2, 9, 3), 1, "mul"), matmul(N, 6, 7)],
)
def test_a_short_sum_is_a_threads_own(computation: Computation) -> None:
    kernel, taken = forms(computation, {"N": 3})
    assert taken == ("sums",) and len(kernel.body) == 1
    assert [p.space for p in kernel.places if p.space is not Space.GLOBAL] == [Space.REG]


def test_a_single_row_is_a_blocks() -> None:
    kernel, taken = forms(reduction((700,), 0, "add"))
    assert taken == ("rows",)
    assert sum(isinstance(s, Barrier) for s in walk(kernel.body)) == 1  # warps hand over what their lanes have come to


@pytest.mark.one_in(4)
@pytest.mark.parametrize("m, n, k, batch", [(17, 20, 19, 0), (64, 64, 16, 0), (20, 17, 33, 2), (66, 20, 17, 0)])
def test_a_product_shares_tiles(m: int, n: int, k: int, batch: int) -> None:
    computation = matmul(m, n, k) if not batch else batched(batch, m, n, k)
    kernel, taken = forms(computation)
    assert taken == ("products",)
    spaces = sorted(p.space.value for p in kernel.places if p.space is not Space.GLOBAL)
    assert spaces == ["reg", "shared", "shared"]
    assert 1 <= sum(isinstance(s, Barrier) for s in walk(kernel.body)) <= 2  # tiles are there; tiles are read
    assert simulate(kernel, GPU, arrays_of(computation, {})).faults == ()


def batched(batch: int, m: int, n: int, k: int) -> Computation:
    """Matrices of which rows and columns of the result change places."""
    a, b = Buffer("A", f32, (batch, k, m)), Buffer("B", f32, (batch, n, k))
    c = Buffer("C", f32, (batch, n, m))
    axes, red = axes_for((batch, m, n)), axes_for((k,), "k")
    z, i, j = syms(axes)
    (q,) = syms(red)
    stage = Stage((c,), axes, (z, j, i), (a[z, q, i] * b[z, j, q],), Reduction(red, "add", (Const(0.0, f32),)))
    return Computation((a, b), (c,), (stage,))


@pytest.mark.slow
def test_a_product_of_a_size_known_at_run_time() -> None:
    for rows in (1, 18, 64):
        _, taken = forms(matmul(N, 20, 19), {"N": rows})
        assert taken == ("products",)


@settings(max_examples=6)
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 40))
def test_products_of_all_sizes(m: int, n: int, k: int) -> None:
    forms(matmul(m, n, k))


def test_halves_are_computed_with() -> None:
    forms(elementwise((4, 16), f16))


# --- the flat form


SCHEDULED = """kernel shared
  place X: f32[2, 8] global in
  place Y: f32[2, 8] global out
  place S: f32[8] local tmp
  place T: f32[8, 2] local tmp
  place M: f32[1] local tmp
  body
    for b[0:1] < 2 block
      for t[0:7] < 8 thread
        for r[0:1] < 2 unroll
          T[t, r] = X[b, t]
        S[t] = X[b, t]
      M[0] = S[3]
      for u[0:1] < 2 thread
        for v[0:3] < 4 thread
          S[4*u + v] = add(S[4*u + v], M[0])
      for w[0:7] < 8 thread
        Y[b, w] = add(S[-w + 7], T[w, 1])
"""
"""Phases of two shapes and of one thread; T is each thread's own, S and M are not."""


def test_phases_of_several_shapes_become_one_block() -> None:
    kernel = parse_kernel(SCHEDULED)
    verify(kernel)
    flat = flatten(kernel)
    verify(flat)
    places = {p.buffer.name: (p.space, p.buffer.shape) for p in flat.places}
    assert places["T"] == (Space.REG, (1, 2)) and places["S"] == (Space.SHARED, (8,))
    assert places["M"] == (Space.SHARED, (1,))
    assert [x.extent for x in loops_of(flat.body) if x.kind is Kind.THREAD] == [8]
    assert sum(isinstance(s, Barrier) for s in walk(flat.body)) == 3
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    want = (x + x[:, 3:4])[:, ::-1] + x
    for form in (kernel, emulated(flat)):
        np.testing.assert_array_equal(run(form, {"X": x, "Y": np.zeros_like(x)})["Y"], want)


def test_a_barrier_holds_for_the_next_iteration() -> None:
    block = "    for b[0:1] < 2 block\n"
    head, body = SCHEDULED.split(block)
    again = "".join(f"  {line}\n" for line in body.splitlines())
    flat = flatten(parse_kernel(f"{head}{block}      for k[0:2] < 3 serial\n{again}"))
    # One more than without the loop: S is written anew when all have read it.
    assert sum(isinstance(s, Barrier) for s in walk(flat.body)) == 4


def test_a_flat_kernel_stays() -> None:
    kernel = parse_kernel(TURNED)
    assert flatten(kernel) is kernel
    cpu = lower(elementwise((4,)))
    assert flatten(cpu) is cpu and emulated(cpu) is cpu


def test_threads_that_meet_are_cut_there() -> None:
    loops = emulated(parse_kernel(TURNED))
    x = np.arange(64, dtype=np.float32).reshape(2, 32)
    np.testing.assert_array_equal(run(loops, {"X": x, "Y": np.zeros_like(x)}, {"N": 2})["Y"], x[:, ::-1])


def test_registers_that_threads_share_are_refused() -> None:
    with pytest.raises(TileVerifyError, match="several threads"):
        flatten(parse_kernel(SCHEDULED.replace("S: f32[8] local", "S: f32[8] reg")))


def test_what_writes_registers_alone_is_run_by_every_thread() -> None:
    flat = flatten(parse_kernel(SCHEDULED.replace("M: f32[1] local", "M: f32[1] reg")))
    verify(flat)
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    arrays = {"X": x, "Y": np.zeros_like(x)}
    want = run(parse_kernel(SCHEDULED), arrays)["Y"]
    seen = simulate(flat, GPU, arrays)
    assert seen.faults == () and sum(isinstance(s, Barrier) for s in walk(flat.body)) == 3
    np.testing.assert_array_equal(seen.arrays["Y"], want)
    np.testing.assert_array_equal(run(emulated(flat), arrays)["Y"], want)


def test_what_threads_may_not_agree_on_holds_no_phase() -> None:
    text = SCHEDULED.replace("      for u[0:1] < 2 thread", "      if lt(S[0], 0.0:f32)\n        for u[0:1] < 2 thread")
    text = text.replace("        for v[0:3] < 4 thread\n          S", "          for v[0:3] < 4 thread\n            S")
    with pytest.raises(TileVerifyError, match="may not agree"):
        flatten(parse_kernel(text))


def test_only_flat_kernels_are_emulated() -> None:
    with pytest.raises(TileVerifyError, match="only a flat kernel"):
        emulated(parse_kernel(SCHEDULED))


TURNS = """kernel turns
  place X: f32[4] global in
  place Y: f32[4] global out
  place S: f32[8, 4] local tmp
  body
    for b[0:0] < 1 block
      for k[0:1] < 2 serial
        for m[0:1] < 2 serial
          for t[0:3] < 4 thread
            S[k + m, t] = X[-t + 3]
      for k[0:1] < 2 serial
        for u[0:3] < 4 thread
          S[(k + 1) % 2, -u + 3] = add(S[k % 2, u], 1.0:f32)
      for w[0:3] < 4 thread
        Y[w] = S[0, -w + 3]
"""
"""Places that several turns of loops share, and a loop whose variable has the name of one before it."""


def test_a_barrier_stands_wherever_turns_share_a_place() -> None:
    flat = flatten(parse_kernel(TURNS))
    loops = [s for s in walk(flat.body) if isinstance(s, For) and s.loop.kind is Kind.SERIAL]
    has_barrier = [any(isinstance(x, Barrier) for x in s.body) for s in loops]
    assert has_barrier == [False, False, True]  # what a thread writes twice is its own
    seen = simulate(flat, GPU, {"X": np.arange(4, dtype=np.float32), "Y": np.zeros(4, np.float32)})
    assert seen.faults == ()


APART = """kernel apart
  place X: f32[4] global in
  place Y: f32[4] global out
  place S: f32[4, 4] local tmp
  body
    for b[0:0] < 1 block
      for t[0:3] < 4 thread
        S[0, -t + 3] = X[t]
      for k[0:2] < 3 serial
        for u[0:3] < 4 thread
          S[k + 1, u] = X[-u + 3]
      for w[0:3] < 4 thread
        Y[w] = add(S[0, w], S[3, -w + 3])
"""


@pytest.mark.parametrize(("old", "new", "n"), [("", "", 1), ("S[k + 1, u]", "S[k, u]", 2)])
def test_no_barrier_stands_between_what_bounds_keep_apart(old: str, new: str, n: int) -> None:
    text = APART.replace(old, new) if old else APART
    flat = flatten(parse_kernel(text.replace("S[3, ", "S[2, ") if old else text))
    assert sum(isinstance(s, Barrier) for s in walk(flat.body)) == n
    seen = simulate(flat, GPU, {"X": np.arange(4, dtype=np.float32), "Y": np.zeros(4, np.float32)})
    assert seen.faults == ()


NEXT = """kernel next
  place X: f32[4] global in
  place Y: f32[4] global out
  place S: f32[5] local tmp
  body
    for b[0:0] < 1 block
      for t[0:3] < 4 thread
        S[t + 1] = X[t]
      for u[0:3] < 4 thread
        if inside(u - 1)
          Y[u] = S[u]
"""


def test_a_barrier_stands_where_a_thread_reads_what_its_neighbour_wrote() -> None:
    flat = flatten(parse_kernel(NEXT))
    assert sum(isinstance(s, Barrier) for s in walk(flat.body)) == 1
    seen = simulate(flat, GPU, {"X": np.arange(4, dtype=np.float32), "Y": np.zeros(4, np.float32)})
    assert seen.faults == ()
