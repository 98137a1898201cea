"""Products on matrix registers: schedules beside plain sums, instructions in software beside NumPy, and on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native, runs_here
from codegen.software_tiles import SoftwareTiles
from tilewright.choose.default import RULE_BROKE, schedule
from tilewright.codegen.cpu import llvm
from tilewright.core import types
from tilewright.core.compute import (
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
from tilewright.core.expr import Sym
from tilewright.target.target import Target
from tilewright.tile.errors import TileVerifyError
from tilewright.tile.interp import run
from tilewright.tile.ir import Space
from tilewright.tile.pack import packed_array
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.text import kernel_text, parse_kernel
from tilewright.tile.verify import verify

AMX = Target.parse("sapphirerapids-amx")
"""A CPU with the registers."""
PLAIN = replace(AMX, has_amx_bf16=False, has_amx_int8=False)
BF16 = (types.bf16, types.bf16, types.f32)
BYTES = (types.u8, types.i8, types.i32)
KINDS = pytest.mark.parametrize("kinds", [BF16, BYTES], ids=["bf16", "bytes"])
SIZES = st.integers(1, 70)
DEPTHS = st.sampled_from([4, 8, 20, 32, 48, 64, 72, 100, 128])


def product(m, n, k, kinds, *, has_epilogue=True, target=AMX):
    """``max(A @ B + bias, 0)`` with a constant B, or ``A @ B`` alone; ``m`` may be a size of the call's."""
    left, right, result = kinds
    a, b, c = Buffer("A", left, (m, k)), Buffer("B", right, (k, n)), Buffer("C", result, (m, n))
    axes, reduced = axes_for((m, n)), axes_for((k,), "k")
    (i, j), (x,) = syms(axes), syms(reduced)
    value = Cast(a[i, x], result) * Cast(b[x, j], result)
    sums = Reduction(reduced, "add", (Const(0, result),))
    if not has_epilogue:
        return schedule(Computation((a, b), (c,), (Stage((c,), axes, (i, j), (value,), sums),)), target, (b,))
    bias, t = Buffer("bias", result, (n,)), Buffer("T", result, (m, n))
    made = Binary("max", Load(t, (i, j)) + bias[j], Const(0, result))
    stages = (Stage((t,), axes, (i, j), (value,), sums), Stage((c,), axes, (i, j), (made,)))
    return schedule(Computation((a, b, bias), (c,), stages, (t,)), target, (b, bias))


def operands(m, n, k, kinds, seed):
    rng = np.random.default_rng(seed)
    if kinds is BF16:
        a, b = (rng.standard_normal(s).astype(types.bf16.numpy) for s in ((m, k), (k, n)))
        return a, b, rng.standard_normal(n).astype(np.float32)
    a, b = (rng.integers(t.min, t.max + 1, s).astype(t.numpy) for s, t in zip(((m, k), (k, n)), kinds, strict=False))
    return a, b, rng.integers(-1000, 1000, n).astype(np.int32)


def wanted(a, b, bias, kinds, has_epilogue):
    wide = np.float64 if kinds is BF16 else np.int64
    y = a.astype(wide) @ b.astype(wide)
    return np.maximum(y + bias, 0) if has_epilogue else y


def uses_tiles(kernel):
    return any(p.space is Space.MATRIX for p in kernel.places)


class InSoftware(Native):
    """A kernel whose matrix instructions are this process's functions."""

    def __init__(self, kernel, target=AMX):
        super().__init__(kernel, target, tiles=SoftwareTiles())

    def __call__(self, *arrays, **how):
        super().__call__(*arrays, **how)
        assert not self.tiles.faults, self.tiles.faults[:3]


def check(kernel, m, n, k, kinds, has_epilogue, made, sizes=()):
    a, b, bias = operands(m, n, k, kinds, m + 100 * n + k)
    c = np.zeros((m, n), kinds[2].numpy)
    known = {"A": a, "B": b, "C": c, "bias": bias} | {p.param.name: packed_array(p, b) for p in kernel.packed}
    made(*[known[x.name] for x in kernel.params], sizes=sizes)
    close = {"rtol": 1e-5, "atol": 1e-5 * np.sqrt(k)} if kinds is BF16 else {"rtol": 0}
    np.testing.assert_allclose(c, wanted(a, b, bias, kinds, has_epilogue), **close)


@pytest.mark.one_in(2)
@settings(max_examples=15)
@given(SIZES, SIZES, DEPTHS, st.booleans())
@example(49, 64, 64, True)  # three registers of 13 rows and one of 10
@example(197, 40, 96, True)
@example(33, 17, 32, False)  # a rest of one row, and of one column
@KINDS
def test_any_size_in_software(kinds, m, n, k, has_epilogue):
    """Every register has the shape that its instructions want, and sums are those of NumPy."""
    kernel = product(m, n, k, kinds, has_epilogue=has_epilogue)
    verify(kernel)
    assert not [x for x in kernel.notes if RULE_BROKE in x]
    check(kernel, m, n, k, kinds, has_epilogue, InSoftware(kernel))


@pytest.mark.one_in(2)
@KINDS
@pytest.mark.parametrize("m", [1, 2, 15, 16, 17, 31, 32, 33, 64, 100])
def test_rows_that_a_call_decides(kinds, m):
    """Whole blocks, then one register, then what is left of one, whose rows the configuration takes from the call."""
    rows = Sym("m", 1, 512)
    kernel = product(rows, 48, 64, kinds)
    assert uses_tiles(kernel)
    check(kernel, m, 48, 64, kinds, True, InSoftware(kernel), sizes=(m,))


@KINDS
def test_on_this_cpu(kinds):
    """The instructions themselves, where the CPU has them and the process may use them."""
    if not runs_here(AMX):
        pytest.skip("this CPU has no matrix registers, or the process may not use them")
    for m, n, k in ((64, 64, 64), (49, 40, 96), (128, 100, 256), (200, 33, 80)):
        for has_epilogue in (True, False):
            kernel = product(m, n, k, kinds, has_epilogue=has_epilogue)
            assert uses_tiles(kernel)
            check(kernel, m, n, k, kinds, has_epilogue, Native(kernel, HOST))


@KINDS
def test_the_interpreter_and_the_text_form_agree(kinds):
    kernel = product(40, 24, 64, kinds)
    assert kernel_text(parse_kernel(kernel_text(kernel))) == kernel_text(kernel)
    a, b, bias = operands(40, 24, 64, kinds, 3)
    known = {"A": a, "bias": bias} | {p.param.name: packed_array(p, b) for p in kernel.packed}
    found = run(kernel, known | {"C": np.zeros((40, 24), kinds[2].numpy)})["C"]
    np.testing.assert_allclose(found, wanted(a, b, bias, kinds, True), rtol=1e-4, atol=1e-4 if kinds is BF16 else 0)


def test_vectors_multiply_where_they_take_fewer_cycles():
    """One row fills a sixteenth of a register, and a product takes as long for it; slow registers never pay."""
    assert not uses_tiles(product(1, 64, 64, BF16))
    assert uses_tiles(product(16, 64, 64, BF16))
    assert not uses_tiles(product(16, 64, 64, BF16, target=PLAIN))


def test_a_sum_that_does_not_come_out_even_is_left_to_vectors():
    """67 steps are no number of pairs, and no instruction masks what it reads."""
    assert not uses_tiles(product(64, 64, 67, BF16))
    assert not uses_tiles(product(64, 64, 66, BYTES))


def test_columns_that_a_call_counts_are_left_to_vectors():
    """A register's rows may come from the call; of columns that would need registers which some calls leave empty."""
    n = Sym("n", 1, 512)
    left, right = Buffer("A", types.bf16, (64, 64)), Buffer("B", types.bf16, (n, 64))
    c = Buffer("C", types.f32, (64, n))
    axes, reduced = axes_for((64, n)), axes_for((64,), "k")
    (i, j), (x,) = syms(axes), syms(reduced)
    value = Cast(left[i, x], types.f32) * Cast(right[j, x], types.f32)
    stage = Stage((c,), axes, (i, j), (value,), Reduction(reduced, "add", (Const(0, types.f32),)))
    kernel = schedule(Computation((left, right), (c,), (stage,)), AMX, ())
    assert not uses_tiles(kernel)
    verify(kernel)


@pytest.mark.parametrize(
    ("begin", "fits"),
    [
        (lambda at, i, j: at["matrix"][i, j], True),
        (lambda at, i, j: at["row"][j], True),
        (lambda at, i, j: at["row"][i], False),  # no neighbours in memory
        (lambda at, i, j: at["matrix"][j, i], False),
        (lambda at, i, j: at["matrix"][i, j] + at["row"][j], False),
        (lambda at, i, j: at["matrix"][at["places"][i], j], False),
    ],
)
def test_sums_begin_at_zero_or_with_rows_of_memory(begin, fits):
    """Registers are filled with zeros or loaded, and vectors begin with anything."""
    n, axes, reduced = 32, axes_for((32, 32)), axes_for((64,), "k")
    (i, j), (x,) = syms(axes), syms(reduced)
    given = {"matrix": Buffer("matrix", types.f32, (n, n)), "row": Buffer("row", types.f32, (n,))}
    given["places"] = Buffer("places", types.i64, (n,))
    a, b, c = Buffer("A", types.bf16, (n, 64)), Buffer("B", types.bf16, (64, n)), Buffer("C", types.f32, (n, n))
    value = Cast(a[i, x], types.f32) * Cast(b[x, j], types.f32)
    stage = Stage((c,), axes, (i, j), (value,), Reduction(reduced, "add", (begin(given, i, j),)))
    kernel = schedule(Computation((a, b, *given.values()), (c,), (stage,)), AMX, (b,))
    assert uses_tiles(kernel) == fits
    left, right, _ = operands(n, n, 64, BF16, 1)
    rng = np.random.default_rng(2)
    known = {x.name: rng.integers(0, n, x.shape).astype(x.dtype.numpy) for x in given.values()}
    known |= {"A": left, "C": np.zeros((n, n), np.float32)}
    known |= {p.param.name: packed_array(p, right) for p in kernel.packed}
    InSoftware(kernel)(*[known[x.name] for x in kernel.params])
    rows, columns = np.indices((n, n))
    want = wanted(left, right, 0, BF16, False) + begin(known, rows, columns)
    np.testing.assert_allclose(known["C"], want, rtol=1e-5, atol=1e-4)


def test_registers_are_configured_once_for_all_blocks():
    """Shapes of whole blocks are set outside of all loops, not in each, and given back at the end."""
    text = llvm.emit_kernel(product(64, 64, 128, BF16), AMX)
    assert text.count("call void @llvm.x86.ldtilecfg") == text.count("call void @llvm.x86.tilerelease") == 1
    tiles = InSoftware(product(64, 64, 128, BF16))
    check(tiles.kernel, 64, 64, 128, BF16, True, tiles)
    assert tiles.tiles.counts["configure"] == 1


def test_operands_of_a_step_are_loaded_once():
    """Four products of a block read two registers of each operand."""
    made = InSoftware(product(32, 32, 256, BF16))
    check(made.kernel, 32, 32, 256, BF16, True, made)
    assert made.tiles.counts["multiply_bf16"] == 4 * 256 // 32
    assert made.tiles.counts["load"] == made.tiles.counts["multiply_bf16"]


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        ("kind(i1_2_i_T0_T_c0, serial)", "columns"),
        ("kind(i0_2_i_T0_T_c1, serial)", "rows"),
        ("kind(k0_i_i, serial)", "groups of narrow elements"),
    ],
)
def test_nests_that_are_no_instruction_are_refused(spoil, rule):
    """Each broken loop is named with the rule, by the specification and not by the back end alone."""
    kernel = product(32, 32, 64, BF16)
    loop, kind = spoil.removeprefix("kind(").removesuffix(")").split(", ")
    builder = ScheduleBuilder(kernel)
    builder.do("kind", loop, kind)
    with pytest.raises(TileVerifyError, match=rule):
        verify(builder.kernel)


def test_sums_that_something_else_reads_are_refused():
    """What reads registers of sums element by element has no instruction for it."""
    kernel = product(32, 32, 64, BF16)
    places = tuple(replace(p, space=Space.MATRIX) if p.space is Space.LOCAL else p for p in kernel.places)
    with pytest.raises(TileVerifyError, match="outside of matrix loops"):
        verify(replace(kernel, places=places))


def test_matrix_loops_without_registers_are_refused():
    kernel = product(32, 32, 64, BF16)
    places = tuple(replace(p, space=Space.LOCAL) if p.space is Space.MATRIX else p for p in kernel.places)
    with pytest.raises(TileVerifyError, match="no matrix register"):
        verify(replace(kernel, places=places))


def test_other_cpus_run_the_same_loops():
    """``matrix`` loops mean what serial ones mean: a CPU without registers runs them one by one."""
    kernel = product(20, 24, 32, BF16)
    assert uses_tiles(kernel)
    check(kernel, 20, 24, 32, BF16, True, Native(kernel, replace(HOST, has_amx_bf16=False, has_amx_int8=False)))


def test_rows_of_which_nothing_can_be_left():
    """784 rows for each image of a batch that the call counts are always whole registers, and blocks of three not."""
    batch = Sym("n", 1, 64)
    rows = 784 * batch
    kernel = product(rows, 8, 16, BF16)
    assert not [x for x in kernel.notes if RULE_BROKE in x]
    check(kernel, 1568, 8, 16, BF16, True, InSoftware(kernel), sizes=(2,))


def test_operands_that_are_copied_for_a_block_are_copied_by_plain_loops():
    """A part of an image whose channels come first, turned for each block: its loops were those of the registers."""
    x, w = Buffer("X", types.bf16, (32, 29, 29)), Buffer("W", types.bf16, (40, 32))
    y = Buffer("Y", types.f32, (28, 28, 40))
    axes, reduced = axes_for((28, 28, 40)), axes_for((32,), "k")
    (i, j, o), (k,) = syms(axes), syms(reduced)
    value = Cast(x[k, i + 1, j + 1], types.f32) * Cast(w[o, k], types.f32)
    stage = Stage((y,), axes, (i, j, o), (value,), Reduction(reduced, "add", (Const(0, types.f32),)))
    kernel = schedule(Computation((x, w), (y,), (stage,)), AMX, (w,))
    verify(kernel)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s.shape).astype(types.bf16.numpy) for s in (x, w))
    known = {p.param.name: packed_array(p, b) for p in kernel.packed}
    known |= {"X": a, "Y": np.zeros((28, 28, 40), np.float32)}
    room = np.zeros(a.size + 64, a.dtype)
    InSoftware(kernel)(*[known.get(p.name, room) for p in kernel.params])
    want = np.einsum("kij,ok->ijo", a[:, 1:, 1:].astype("d"), b.astype("d"))
    np.testing.assert_allclose(known["Y"], want, rtol=1e-5, atol=1e-4)
