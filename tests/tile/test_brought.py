"""Operands that a call brings to a product are copied as tiles walk them where the caches would lose them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tile.kernels import F, check_default, matmul
from tilewright.choose.cost.traffic import Area
from tilewright.choose.default import schedule
from tilewright.core.compute import Buffer, Computation, Const, Reduction, Stage, axes_for, syms
from tilewright.target.target import Target
from tilewright.tile.ir import Prefetch, Role, Space, walk

ZEN = Target.parse("znver3")
ALONE = replace(ZEN, n_cores=1)
TIGHT = replace(ALONE, l1_bytes=1 << 10, set_span=128, l2_bytes=4 << 10, llc_bytes=64 << 10)
SHARED = replace(TIGHT, n_cores=8, ghz=0.0001)


def product(left: str, right: str, batch: int, m: int, n: int, k: int) -> Computation:
    """``left`` and ``right`` name the axes of the operands in the order in which they lie."""
    axes, reduced = axes_for((batch, m, n)), axes_for((k,), "k")
    sizes = {"b": batch, "m": m, "n": n, "k": k}
    at = dict(zip("bmnk", (*syms(axes), *syms(reduced)), strict=True))
    a, b = (Buffer(name, F, tuple(sizes[x] for x in lies)) for name, lies in (("A", left), ("B", right)))
    c = Buffer("C", F, (batch, m, n))
    term = a[tuple(at[x] for x in left)] * b[tuple(at[x] for x in right)]
    summed = Stage((c,), axes, syms(axes), (term,), Reduction(reduced, "add", (Const(0, F),)))
    return Computation((a, b), (c,), (summed,))


def copies(kernel):
    """Buffers in memory that a kernel fills for itself."""
    return [p for p in kernel.places if p.role is Role.TMP and p.space in (Space.LOCAL, Space.GLOBAL)]


@given(
    left=st.sampled_from(["bmk", "bkm", "mk", "km", "mbk"]),
    right=st.sampled_from(["bkn", "bnk", "kn", "nk", "kbn"]),
    batch=st.sampled_from([1, 2, 9]),
    m=st.sampled_from([4, 13, 24, 32]),
    n=st.sampled_from([16, 32, 40, 64]),
    k=st.sampled_from([1, 8, 33, 64]),
    machine=st.sampled_from([TIGHT, SHARED]),
)
@settings(max_examples=40)
def test_products_of_every_layout(left, right, batch, m, n, k, machine):
    check_default(product(left, right, batch, m, n, k), machine=machine)


@pytest.mark.parametrize(
    ("machine", "left", "m", "n_copies"), [(TIGHT, "mk", 24, 1), (TIGHT, "km", 24, 2), (SHARED, "km", 96, 2)]
)
def test_panels_and_columns_that_caches_lose_are_copied(machine, left, m, n_copies):
    kernel = check_default(product(left, "kn", 1, m, 64, 64), machine=machine)
    assert len(copies(kernel)) >= n_copies


def test_rows_a_page_apart_are_read_from_panels():
    """256 rows of 4 KiB fall into few sets; of 256 bytes they stay in the second-level cache, wherever they lie."""
    far, near = (schedule(matmul(256, n, 256, epilogue=False), ALONE) for n in (1024, 64))
    assert copies(far)
    assert not copies(near)


def test_a_matrix_by_itself():
    """A copy would have to hold it in two orders at once, so it is read where it lies."""
    square = product("mk", "kn", 1, 64, 64, 64)
    (a, _), (c,), (stage,) = square.inputs, square.outputs, square.items
    term = a[stage.exprs[0].a.index] * a[stage.exprs[0].b.index]
    kernel = check_default(Computation((a,), (c,), (replace(stage, exprs=(term,)),)), machine=TIGHT)
    assert not [p for p in copies(kernel) if p.buffer.name.startswith("A")]


def test_windows_are_read_where_they_lie():
    """A copy of windows would be larger than what they slide over; behind a border it would read what is not there."""
    axes, reduced = axes_for((24, 64)), axes_for((3, 64), "k")
    (i, j), (tap, x) = syms(axes), syms(reduced)
    a, b, c = Buffer("A", F, (26, 64)), Buffer("B", F, (3, 64, 64)), Buffer("C", F, (24, 64))
    summed = Stage((c,), axes, (i, j), (a[i + tap, x] * b[tap, x, j],), Reduction(reduced, "add", (Const(0, F),)))
    kernel = check_default(Computation((a, b), (c,), (summed,)), machine=TIGHT)
    assert not [p for p in copies(kernel) if p.buffer.name.startswith("A_s")]


def test_microcontrollers_keep_their_memory():
    assert not copies(schedule(matmul(64, 64, 256, epilogue=False), Target.parse("cortex-m7")))


def test_constants_are_never_copied_by_a_call():
    c = product("mk", "kn", 1, 24, 64, 64)
    kernel = schedule(c, TIGHT, [b for b in c.inputs if b.name == "B"])
    assert not [p for p in copies(kernel) if p.buffer.name.startswith(("A_s", "B_s"))]


def test_what_constants_are_multiplied_with_is_copied_too():
    """As the rows of a matrix that a constant is multiplied with from the left: 4 KiB apart, and read 40 times."""
    c = product("mk", "kn", 1, 320, 1024, 768)
    (left, _) = c.inputs
    assert [p.buffer.name for p in copies(schedule(c, ALONE, [left]))] == ["B_s"]


def test_short_runs_count_the_lines_that_come_behind_them():
    """Columns of 16 bytes and panels of 96 bring as many lines again that nobody reads: a copied panel has one run."""
    assert copies(schedule(product("bkm", "bkn", 3, 77, 500, 512), ZEN))
    area = Area(4, 1e6, 64, beyond=1).over(4, 24, 64).over(2000, 512, 64)
    assert area.lines == Area(4, 1e6, 64).over(4, 24, 64).over(2000, 512, 64).lines + 512


@pytest.mark.parametrize("k", [64, 66])
def test_a_turned_copy_lies_in_panels_whether_or_not_blocks_divide_its_rows(k):
    """The last block of rows begins earlier, among rows of the one before: they are of one panel all the same."""
    kernel = check_default(product("mk", "nk", 1, 40, 52, k), machine=ZEN)
    (turned,) = [p.buffer for p in copies(kernel) if p.buffer.name.startswith("B_t")]
    assert turned.shape[-2] == k and turned.shape[-1] < 52


def test_hints_of_a_turned_copy_keep_to_panels_of_other_widths():
    """Four vectors ahead is part of a panel of six: the hint goes on to the same place of a later one."""
    kernel = schedule(product("bmk", "bnk", 12, 256, 500, 16), replace(Target.parse("skylake-avx512"), n_cores=1))
    (turned,) = [p.buffer for p in copies(kernel) if p.buffer.name.startswith("B_t")]
    assert turned.shape == (12, 1, 6, 16, 96)
    assert any(isinstance(s, Prefetch) and s.buffer is turned for s in walk(kernel.body))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("n", [48, 52])
def test_a_turned_copy_that_caches_lose_is_filled_panel_by_panel(n):
    """A batch's part of the copy would stay in the second-level cache, but the whole goes to memory and back."""
    machine = replace(ALONE, l1_bytes=4 << 10, l2_bytes=16 << 10, llc_bytes=32 << 10)
    kernel = check_default(product("bmk", "bnk", 3, 48, n, 48), machine=machine)
    (turned,) = [p for p in copies(kernel) if p.buffer.name.startswith("B_t")]
    assert turned.space is Space.LOCAL and turned.buffer.shape[-1] < n


@pytest.mark.parametrize(
    ("left", "m", "is_copied"), [("mk", 3, False), ("mk", 8, True), ("km", 8, True), ("km", 2, True), ("km", 1, False)]
)
def test_few_rows_read_a_turned_operand_from_a_copy_where_they_lie_across_the_sums(left, m, is_copied):
    """Rows that lie along the sums, as B does, are multiplied where they lie if that takes few vectors to add up.

    Others would be read one by one.
    """
    kernel = check_default(product(left, "nk", 1, m, 40, 24), machine=ZEN)
    assert bool(copies(kernel)) == is_copied
