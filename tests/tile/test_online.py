"""Averages by softmax weights as one grid: right in every form of the kernel, by every lane, for edges and masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptx.threads import Threads
from tile.kernels import arrays_of
from tile.test_flatten import GPU
from tile.test_simt import changed
from tilewright.choose.gpu import schedule_for_gpu
from tilewright.choose.strategies.gpu.average_tiles import KeyTile
from tilewright.choose.strategies.gpu.averages import averages, averages_in
from tilewright.codegen.ptx.compile import emit
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Computation,
    Const,
    Inside,
    Load,
    Reduction,
    Select,
    Stage,
    Unary,
    Value,
    axes_for,
    loads,
    loop_symbol,
    rewrite_value,
    syms,
)
from tilewright.core.expr import Dim, Sym, mod
from tilewright.core.types import DType, bf16, bool_, f16, f32
from tilewright.runtime.values import aligned_buffer
from tilewright.target.gpu import Gpu
from tilewright.tile.emulate import emulated
from tilewright.tile.errors import ScheduleError
from tilewright.tile.flatten import flatten
from tilewright.tile.interp import run
from tilewright.tile.ir import Barrier, Commit, Kernel, Space, walk
from tilewright.tile.lower import lower
from tilewright.tile.rewrite import Body
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.online import online
from tilewright.tile.simt import FaultKind, simulate
from tilewright.tile.verify import verify

N = Sym("N")
LOWEST = Const(float("-inf"), f32)
FACTOR = 0.7
SMALL = KeyTile(1, 16, 2, 2)
WIDE = KeyTile(2, 16, 1, 2)


@dataclass(frozen=True)
class Case:
    """Attention of ``heads`` that share keys; ``mask`` says what a row sees, or what is added to its scores."""

    rows: Dim
    keys: Dim
    depth: int
    columns: int
    dtype: DType = f16
    heads: int = 1
    causal: bool = False
    mask: str = ""

    def computation(self) -> Computation:
        shape = (self.heads, self.rows, self.keys)
        axes = axes_for(shape[:2])
        h, i = syms(axes)
        j, j2 = Sym("j", 0), Sym("j2", 0)
        (d,), (k,) = axes_for((self.columns,), "d"), axes_for((self.depth,), "k")
        q = Buffer("Q", self.dtype, (self.heads, self.rows, self.depth))
        x, v = (Buffer(n, self.dtype, (self.keys, e)) for n, e in (("X", self.depth), ("V", self.columns)))
        m = Buffer("B", bool_ if self.mask == "bool" else self.dtype, (self.rows, self.keys))
        y = Buffer("Y", self.dtype, (self.heads, self.rows, self.columns))
        s, t, e = (Buffer(n, f32, shape) for n in "STE")
        p, o = Buffer("P", self.dtype, shape), Buffer("O", f32, (*shape[:2], self.columns))
        top, total = (Buffer(n, f32, shape[:2]) for n in ("M", "L"))
        at = (h, i, j)
        of_keys = Axis(j, self.keys)
        product = Binary("mul", Cast(q[h, i, k.sym], f32), Cast(x[j, k.sym], f32))
        below = Binary("mul", Binary("sub", t[at], top[h, i]), Const(FACTOR, f32))
        weight = Cast(Binary("mul", e[at], Binary("div", Const(1.0, f32), total[h, i])), self.dtype)
        average = Binary("mul", Cast(p[h, i, j2], f32), Cast(v[j2, d.sym], f32))
        zero = (Const(0.0, f32),)
        stages = (
            Stage((s,), (*axes, of_keys), at, (product,), Reduction((k,), "add", zero)),
            Stage((t,), (*axes, of_keys), at, (self._score(s[at], m, i, j),)),
            Stage((top,), axes, (h, i), (t[at],), Reduction((of_keys,), "max", (LOWEST,))),
            Stage((e,), (*axes, of_keys), at, (Unary("exp2", below),)),
            Stage((total,), axes, (h, i), (e[at],), Reduction((of_keys,), "add", zero)),
            Stage((p,), (*axes, of_keys), at, (weight,)),
            Stage((o,), (*axes, d), (h, i, d.sym), (average,), Reduction((Axis(j2, self.keys),), "add", zero)),
            Stage((y,), (*axes, d), (h, i, d.sym), (Cast(o[h, i, d.sym], self.dtype),)),
        )
        inputs = (q, x, v, *([m] if self.mask else []))
        return Computation(inputs, (y,), stages, (s, t, top, e, total, p, o))

    def _score(self, sums: Load, mask: Buffer, i: Sym, j: Sym) -> Value:
        score: Value = sums
        if self.mask == "bool":
            score = Select(mask[i, j], score, LOWEST)
        elif self.mask:
            score = Binary("add", score, Cast(mask[i, j], f32))
        return Select(Inside((i - j,)), score, LOWEST) if self.causal else score

    def expected(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """In double precision."""
        q, x, v = (arrays[n].astype(np.float64) for n in "QXV")
        s = q @ x.T
        if self.mask == "bool":
            s = np.where(arrays["B"], s, -np.inf)
        elif self.mask:
            s = s + arrays["B"].astype(np.float64)
        if self.causal:
            s = np.where(np.tri(*s.shape[1:], dtype=np.bool_), s, -np.inf)
        with np.errstate(invalid="ignore"):
            w = np.exp2((s - s.max(-1, keepdims=True)) * FACTOR)
            return w / w.sum(-1, keepdims=True) @ v


def close(got: np.ndarray, want: np.ndarray, dtype: DType) -> None:
    eps = float(ml_dtypes.finfo(dtype.numpy).eps)
    np.testing.assert_allclose(got.astype(np.float64).reshape(want.shape), want, rtol=2 * eps, atol=2 * eps)


def scheduled(case: Case | Computation, tile: KeyTile = SMALL) -> Kernel:
    """The kernel in phases."""
    b = ScheduleBuilder(lower(case.computation() if isinstance(case, Case) else case))
    averages(b, GPU, "Y", tile)
    verify(b.kernel)
    return b.kernel


def seen_right(case: Case, sizes: dict[str, int] | None = None, tile: KeyTile = SMALL) -> None:
    """The scheduled form and that for CPUs compute the averages."""
    kernel = scheduled(case, tile)
    flat = flatten(kernel)
    given = arrays_of(case.computation(), sizes or {})
    for made in (flat, emulated(flat)):
        verify(made)
    for made in (kernel, emulated(flat)):
        close(run(made, given, sizes or {}, reverse=True)["Y"], case.expected(given), case.dtype)


CASES = {
    "whole": Case(32, 32, 16, 16),
    "ragged": Case(17, 35, 24, 20, bf16),
    "causal": Case(35, 35, 16, 16, causal=True),
    "more keys than rows": Case(16, 50, 16, 8, bf16, causal=True),
    "more rows than keys": Case(50, 16, 16, 8, causal=True),
    "heads that share keys": Case(20, 17, 16, 16, heads=3, causal=True),
    "told what to see": Case(20, 35, 16, 16, mask="bool", causal=True),
    "with numbers added": Case(20, 35, 16, 16, bf16, mask="add"),
}
SHORT = Case(16, 70, 16, 8, causal=False)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", CASES)
def test_averages_are_right_in_every_form(name: str) -> None:
    seen_right(CASES[name], tile=SMALL if name == "ragged" else WIDE)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["ragged", "causal"])
def test_lanes_neither_race_nor_wait_for_banks(name: str) -> None:
    case = CASES[name]
    tile = SMALL if name == "ragged" else WIDE
    flat, arrays = flatten(scheduled(case, tile)), arrays_of(case.computation(), {})
    seen = simulate(flat, GPU, arrays)
    assert seen.faults == ()
    close(seen.arrays["Y"], case.expected(arrays), case.dtype)
    shared = [p.buffer.name for p in flat.places if p.space is Space.SHARED]
    assert len(shared) == 3 and (name == "ragged" or all(seen.traffic[b].bank_conflicts == 0 for b in shared))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("part", range(3))
def test_a_lack_of_waiting_is_found(part: int) -> None:
    flat, arrays = flatten(scheduled(SHORT, KeyTile(1, 16, 1, 3))), arrays_of(SHORT.computation(), {})
    wrong: list[tuple[int, Body]] = [
        (at, body)
        for at, s in enumerate(walk(flat.body))
        for body in (((),) if isinstance(s, Commit) else ((Barrier(9),), ()) if isinstance(s, Barrier) else ())
    ]
    assert wrong[part::3]
    for at, body in wrong[part::3]:
        found = simulate(changed(flat, at, lambda _, body=body: body), GPU, arrays).faults
        assert FaultKind.RACE in {f.kind for f in found}, (at, body)


def test_what_waits_enough_has_no_fault() -> None:
    flat = flatten(scheduled(SHORT, KeyTile(1, 16, 1, 3)))
    assert simulate(flat, GPU, arrays_of(SHORT.computation(), {})).faults == ()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["causal", "heads that share keys"])
def test_the_code_of_lanes_is_right(name: str) -> None:
    case = CASES[name]
    given = {}
    for b, a in arrays_of(case.computation(), {}).items():
        memory, start = aligned_buffer(max(a.nbytes, 1))
        given[b] = memory[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
        given[b][...] = a
    threads = Threads(flatten(scheduled(case, KeyTile(1, 32, 2, 2) if name == "causal" else WIDE)))
    threads(given)
    close(given["Y"], case.expected(given), case.dtype)
    assert {"m16n8k16.row.col.f32.f32", "bfly.f32", "ff2f16x2.rn", "x4", "x4.trans"} <= set(threads.warps.calls)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_known_at_run_time(causal: bool) -> None:
    for n in (0, 36):
        seen_right(Case(N + 1, N + 1, 16, 8, causal=causal), {"N": n})


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_attention_of_narrow_floats_takes_it(dtype: DType) -> None:
    made = schedule_for_gpu(Case(200, 200, 64, 64, dtype, heads=2, causal=True).computation(), GPU)
    assert [t.taken for t in made.tried] == ["averages"], made.kernel.notes
    assert any(p.ahead for p in made.kernel.places)


@pytest.mark.parametrize(("depth", "columns"), [(64, 1024), (2048, 64)])
def test_what_no_tile_holds_is_left_to_others(depth: int, columns: int) -> None:
    made = schedule_for_gpu(Case(64, 64, depth, columns).computation(), GPU)
    assert "averages" not in [t.taken for t in made.tried]


def test_rows_that_see_nothing_are_no_numbers_and_others_are_right() -> None:
    case = Case(20, 35, 16, 16, mask="bool")
    given = arrays_of(case.computation(), {})
    given["B"][3], given["B"][4, :33] = False, False
    given["B"][4, 34] = True
    got = run(scheduled(case), given, {})["Y"].reshape(20, 16)
    assert np.isnan(got[3].astype(np.float32)).all() and not np.isnan(np.delete(got, 3, 0).astype(np.float32)).any()
    close(np.delete(got, 3, 0), np.delete(case.expected(given)[0], 3, 0), case.dtype)


def test_great_scores_leave_no_other_numbers() -> None:
    """The maximum so far is taken off before the factor: products with it would overflow."""
    case = Case(16, 35, 16, 16, bf16, mask="add")
    given = arrays_of(case.computation(), {})
    given["B"][:, :20] = ml_dtypes.finfo(ml_dtypes.bfloat16).min
    given["B"][2, :] = ml_dtypes.finfo(ml_dtypes.bfloat16).min
    got = run(scheduled(case), given, {})["Y"].astype(np.float64).reshape(1, 16, 16)
    want = case.expected(given)
    want[0, 2] = given["V"].astype(np.float64).mean(0)  # the mask swallows what is added to it
    close(got, want, bf16)


@settings(max_examples=3)
@given(
    st.integers(1, 40), st.integers(1, 50), st.integers(1, 24), st.integers(1, 24), st.sampled_from([f16, bf16]),
    st.integers(1, 2), st.booleans(), st.sampled_from(["", "bool", "add"]),
)  # fmt: skip
def test_averages_of_all_sizes(
    m: int, n: int, k: int, d: int, dtype: DType, heads: int, causal: bool, mask: str
) -> None:
    case = Case(m, n, k, d, dtype, heads, causal, mask)
    given = arrays_of(case.computation(), {})
    if mask == "bool":
        given["B"][:, 0] = True
    close(run(scheduled(case), given, {})["Y"], case.expected(given), dtype)


def test_what_is_no_average_is_refused() -> None:
    case = CASES["whole"]
    computation = case.computation()
    kernel = lower(computation)
    for root in ("O", "P", "E"):
        with pytest.raises(ScheduleError):
            online(kernel, root, 1, 16, 1)
    for sizes in ((0, 16, 1), (1, 8, 1), (1, 16, 0)):
        with pytest.raises(ScheduleError, match="tiles of"):
            online(kernel, "Y", *sizes)
    for keys in (0, Sym("K", 0)):
        with pytest.raises(ScheduleError, match="may be no keys"):
            online(lower(Case(16, keys, 16, 16).computation()), "Y", 1, 16, 1)
    wanted = replace(
        computation, outputs=(*computation.outputs, computation.temps[3]),
        temps=tuple(b for b in computation.temps if b.name != "E"),
    )  # fmt: skip
    with pytest.raises(ScheduleError, match="E is wanted by itself"):
        online(lower(wanted), "Y", 1, 16, 1)


ODD = Case(16, 32, 16, 8)
NUMBERS = Buffer("B", f16, (16, 28))


def staged(name: str, change: Callable[[Stage], Stage]) -> Computation:
    """The averages of 16 rows and 32 keys, one of whose stages is another; numbers B[16, 28] are there for it."""
    made = ODD.computation()
    items = tuple(change(x) if isinstance(x, Stage) and x.out.name == name else x for x in made.items)
    return replace(made, inputs=(*made.inputs, NUMBERS), items=items)


def scored(n: int, score: Callable[[Load, Sym, Sym], Value]) -> Computation:
    """Scores of ``n`` sums of products for each row, by those at row and key."""
    sums, keys = Buffer("S", f32, (1, 16, n)), Buffer("X", f16, (n, 16))

    def of_sums(s: Stage) -> Stage:
        h, i, j = s.index
        return replace(s, exprs=(score(Load(sums, (h, i, j)), s.axes[1].sym, s.axes[2].sym),))

    made = staged("T", of_sums)
    first, *others = made.items
    assert isinstance(first, Stage)
    product = rewrite_value(
        first.expr, lambda v: Load(keys, v.index) if isinstance(v, Load) and v.buffer.name == "X" else None
    )
    first = replace(first, outs=(sums,), axes=(*first.axes[:2], Axis(first.axes[2].sym, n)), exprs=(product,))
    inputs = tuple(keys if b.name == "X" else b for b in made.inputs)
    return replace(made, inputs=inputs, items=(first, *others), temps=(sums, *made.temps[1:]))


def moved(sums: Load, by: int) -> Load:
    *others, key = sums.index
    return Load(sums.buffer, (*others, key - by))


PADDED: dict[str, tuple[int, Callable[[Load, Sym, Sym], Value]]] = {
    "fewer keys": (28, lambda s, i, j: Select(Inside((27 - j,)), s, LOWEST)),
    "later keys": (28, lambda s, i, j: Select(Inside((j - 4,)), moved(s, 4), LOWEST)),
    "a key of no score": (31, lambda s, i, j: Select(Inside((j - 1,)), moved(s, 1), Const(0.0, f32))),
}


@pytest.mark.parametrize("name", PADDED)
def test_scores_that_not_all_keys_have_are_refused(name: str) -> None:
    with pytest.raises(ScheduleError, match="S has no element"):
        online(lower(scored(*PADDED[name])), "Y", 1, 16, 1)


def test_averages_that_not_all_columns_have_are_refused() -> None:
    def change(s: Stage) -> Stage:
        h, i, d = s.index
        (o,) = loads(s.expr)
        shifted = Select(Inside((d - 4,)), Load(o.buffer, (h, i, d - 4)), Const(0.0, f32))
        return replace(s, exprs=(Cast(shifted, f16),))

    with pytest.raises(ScheduleError, match="O has no element"):
        online(lower(staged("Y", change)), "Y", 1, 16, 1)


def test_numbers_that_a_condition_guards_are_read_under_it() -> None:
    """In the last tile of keys, and for rows that there are not, too."""

    def score(s: Load, i: Sym, j: Sym) -> Value:
        return Select(Inside((j - 4,)), Binary("add", s, Cast(Load(NUMBERS, (i, j - 4)), f32)), LOWEST)

    computation = scored(32, score)
    arrays = arrays_of(computation, {})
    seen = simulate(flatten(scheduled(computation)), GPU, arrays)
    assert seen.faults == ()
    close(seen.arrays["Y"], run(lower(computation), arrays, {})["Y"].astype(np.float64), f16)


def test_a_weight_by_key_is_no_factor_of_the_row() -> None:
    def change(s: Stage) -> Stage:
        _, i, j = s.index
        (e,) = [x for x in loads(s.expr) if x.buffer.name == "E"]
        return replace(s, exprs=(Cast(Binary("mul", e, Cast(Load(NUMBERS, (i, mod(j, 28))), f32)), f16),))

    def divided(s: Stage) -> Stage:
        h, i, _ = s.index
        return replace(s, exprs=(Cast(Binary("div", *loads(s.expr), Load(total, (h, i))), f16),))

    made = staged("P", change)
    total = next(b for b in made.temps if b.name == "L")
    items = tuple(divided(x) if isinstance(x, Stage) and x.out.name == "Y" else x for x in made.items)
    with pytest.raises(ScheduleError, match="not one of the row"):
        online(lower(replace(made, items=items)), "Y", 1, 16, 1)


def test_weights_by_column_are_refused() -> None:
    made = ODD.computation()
    d, numbers = Axis(loop_symbol("e", 8), 8), Buffer("B", f32, (32, 8))
    wider = {b: Buffer(b.name, b.dtype, (*b.shape, 8)) for b in made.temps if b.name in "TMELP"}

    def change(s: Stage) -> Stage:
        at = s.axes[-1].sym if s.out.name == "O" else d.sym

        def widened(v: Value) -> Value | None:
            return Load(wider[v.buffer], (*v.index, at)) if isinstance(v, Load) and v.buffer in wider else None

        found = rewrite_value(s.expr, widened)
        if s.out.name == "T":
            found = Binary("add", found, Load(numbers, (s.axes[-1].sym, d.sym)))
        if s.out not in wider:
            return replace(s, exprs=(found,))
        return replace(s, outs=(wider[s.out],), axes=(*s.axes, d), index=(*s.index, d.sym), exprs=(found,))

    items = tuple(change(x) for x in made.items if isinstance(x, Stage))
    temps = tuple(wider.get(b, b) for b in made.temps)
    with pytest.raises(ScheduleError, match="depend on the values' columns"):
        online(lower(replace(made, inputs=(*made.inputs, numbers), items=items, temps=temps)), "Y", 1, 16, 1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("size", "keys"), [(248, 64), (249, 32)])
def test_a_block_has_no_more_shared_memory_than_there_is(size: int, keys: int) -> None:
    """Tiles are as wide as instructions: one more element asks for eight columns, and sixteen terms."""
    gpu = Gpu.parse("cuda-sm80")
    (found,) = averages_in(Case(64, 64, size, size, bf16).computation(), gpu)
    b = ScheduleBuilder(lower(Case(64, 64, size, size, bf16).computation()))
    averages(b, gpu, "Y", found.tile)
    emit(flatten(b.kernel), gpu)
    assert found.tile.keys == keys
