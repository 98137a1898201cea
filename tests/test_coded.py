"""Products with matrices of few bits: exact codes, schedules without inner sums in memory, every machine's code."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.choose.default import schedule_with_steps
from tilewright.codegen.cpu.llvm import compile_text, emit
from tilewright.core.compute import Buffer, Computation
from tilewright.core.diag import TilewrightError
from tilewright.core.graph import Attrs, Builder, Graph, Pool
from tilewright.core.types import Array, TensorType, f16, f32, i8, i16, tensor_type_of, u8
from tilewright.ops import coded
from tilewright.target.target import Target
from tilewright.tile.ir import Space

GROUP = 32
BOOK = (0, 38, 60, 77, 91, 104, 115, 127, 137, 147, 158, 170, 183, 198, 219, 254)
NO_ZERO = (3, *BOOK[1:])
"""Levels of which the first is not 0, so that other bytes of a lane need a mask."""


def matrix(bits: int, depth: int, n_words: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Random words, scales in half precision, and one zero point in the middle of the codes."""
    rng = np.random.default_rng(seed)
    per_word = coded.WORD_BITS // bits
    codes = rng.integers(0, 1 << bits, (depth, per_word * n_words))
    scales = rng.uniform(0.5, 1, (depth // GROUP, per_word, n_words)).astype(np.float16)
    return coded.packed(codes, bits), scales, np.full((1, per_word, 1), 1 << (bits - 1), np.uint8)


def in_two_levels(bits: int, depth: int, n_words: int) -> tuple[Array, ...]:
    """The same with whole numbers for scales, of which two groups share a unit."""
    words, scales, zeros = matrix(bits, depth, n_words)
    rng = np.random.default_rng(1)
    whole = rng.integers(-32, 64, scales.shape).astype(np.int8)
    return words, whole, zeros, rng.uniform(0.01, 0.02, (len(scales) // 2, *scales.shape[1:])).astype(np.float16)


def product(x: Array, constants: tuple[Array, ...], bits: int, levels: tuple[int, ...] = ()) -> Graph:
    pool = Pool()
    b, x_in = Builder(pool), pool.input("x", tensor_type_of(x))
    y = b(ops.coded_matmul, x_in, *map(b.const, constants), bits=bits, levels=levels)
    return Graph("coded", pool, (x_in,), (y,), ("y",))


@pytest.mark.parametrize("bits", coded.BITS)
def test_words_hold_every_code(bits: int) -> None:
    codes = np.random.default_rng(0).integers(0, 1 << bits, (5, 64))
    fields = coded.unpacked(coded.packed(codes, bits), bits)
    np.testing.assert_array_equal(fields.reshape(5, 64), codes)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("rows", [1, 2, 13])
@pytest.mark.parametrize(("bits", "levels"), [(4, ()), (8, ()), (4, BOOK), (4, NO_ZERO)])
def test_native_code_is_right_to_the_rounding_of_rows(bits: int, levels: tuple[int, ...], rows: int) -> None:
    """Each element of a row is off by half a step of its group at most: its largest magnitude over 65534."""
    constants = matrix(bits, 96, 21)
    x = np.random.default_rng(1).standard_normal((rows, 96)).astype(np.float32)
    wide = coded.matrix_of(*constants, bits, levels).astype(np.float64)
    got = np.asarray(compile_graph(product(x, constants, bits, levels), threads=2)(x))
    half_steps = np.abs(x).reshape(rows, -1, GROUP).max(-1).repeat(GROUP, 1) / (2 * coded.GREATEST)
    bound = np.tensordot(half_steps, np.abs(wide), 1) + 1e-6 * np.tensordot(np.abs(x), np.abs(wide), 1)
    assert (np.abs(got - np.tensordot(x, wide, 1)) <= bound).all()
    want = ops.coded_matmul.reference((x, *constants), Attrs({"bits": bits, "levels": levels, "split_rows": False}))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("bits", coded.BITS)
def test_the_largest_group_of_the_largest_codes_fits_its_sums(bits: int) -> None:
    depth, per_word = coded.MOST_ROWS, coded.WORD_BITS // bits
    words = np.full((depth, 8), -1, np.int16)
    scales, zeros = np.ones((1, per_word, 8), np.float32), np.zeros((1, per_word, 1), np.uint8)
    x = np.ones((2, depth), np.float32) * np.float32([[1], [-1]])
    got = np.asarray(compile_graph(product(x, (words, scales, zeros), bits), threads=1)(x))
    want = depth * ((1 << bits) - 1)
    np.testing.assert_allclose(got[0], want, rtol=1e-6)
    np.testing.assert_allclose(got[1], -want, rtol=1e-6)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rows", [1, 13])
@pytest.mark.parametrize("bits", coded.BITS)
def test_scales_may_be_whole_numbers_of_units(bits: int, rows: int) -> None:
    words, whole, zeros, units = constants = in_two_levels(bits, 128, 21)
    x = np.random.default_rng(1).standard_normal((rows, 128)).astype(np.float32)
    got = np.asarray(compile_graph(product(x, constants, bits), threads=1)(x))
    real = whole * np.repeat(units.astype(np.float32), 2, 0)
    plain = {"bits": bits, "levels": (), "split_rows": False}
    want = ops.coded_matmul.reference((x, words, real, zeros), Attrs(plain))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_units_are_packed_once_for_the_groups_that_share_them() -> None:
    made, constants = computation(1, 4, n_words=2048, with_units=True)
    kernel = schedule_with_steps(made, Target.parse("x86-64-v4").judged(), constants).kernel
    sizes = {p.source.name: np.prod(p.param.shape) / np.prod(p.source.shape) for p in kernel.packed}
    assert sizes["units"] == sizes["scales"] == sizes["words"] == 1


def test_groups_of_zeros_and_numbers_that_are_none() -> None:
    constants = matrix(4, 64, 4)
    x = np.ones((4, 64), np.float32)
    x[0, :GROUP], x[1, 3], x[2, 3], x[3, :GROUP] = 0, np.inf, np.nan, 1e-42
    got = np.asarray(compile_graph(product(x, constants, 4), threads=1)(x)).reshape(4, -1)
    assert np.isfinite(got[[0, 3]]).all() and not np.isfinite(got[[1, 2]]).any()
    np.testing.assert_allclose(got[3], got[0], atol=1e-6)


def computation(
    rows: int,
    bits: int,
    levels: tuple[int, ...] = (),
    *,
    n_words: int = 64,
    split_rows: bool = False,
    with_units: bool = False,
) -> tuple[Computation, tuple[Buffer, ...]]:
    per_word = coded.WORD_BITS // bits
    x, words = Buffer("x", f32, (rows, 128)), Buffer("words", i16, (128, n_words))
    scales = Buffer("scales", i8 if with_units else f32, (128 // GROUP, per_word, n_words))
    constants = words, scales, Buffer("zeros", u8, (1, per_word, 1))
    constants += (Buffer("units", f16, (64 // GROUP, per_word, n_words)),) if with_units else ()
    out = Buffer("out", f32, (rows, per_word, n_words))
    assert ops.coded_matmul.kernel is not None
    attrs = Attrs({"bits": bits, "levels": levels, "split_rows": split_rows})
    stages = ops.coded_matmul.kernel((x, *constants), (out,), attrs)
    temps = tuple(s.out for s in stages[:-1])  # type: ignore[union-attr]
    return Computation((x, *constants), (out,), tuple(stages), temps), constants


@pytest.mark.one_in(2)
@pytest.mark.parametrize("target", ["x86-64", "x86-64-v3", "x86-64-v4", "aarch64", "cortex-m4", "wasm32"])
@pytest.mark.parametrize(
    ("rows", "bits", "levels", "with_units"),
    [(1, 4, (), False), (1, 8, (), True), (24, 4, (), False), (1, 4, BOOK, False), (24, 4, NO_ZERO, False),
     (1, 2, (), True), (24, 2, (), True)],
)  # fmt: skip
def test_sums_of_groups_stay_in_registers(
    target: str, rows: int, bits: int, levels: tuple[int, ...], with_units: bool
) -> None:
    made, constants = computation(rows, bits, levels, with_units=with_units)
    machine = Target.parse(target).judged()
    kernel = schedule_with_steps(made, machine, constants).kernel
    assert next(p.space for p in kernel.places if p.buffer.name == "out_codes") is Space.REG
    assert compile_text(emit(kernel, machine).text, machine)


@pytest.mark.parametrize(
    ("target", "name"),
    [("x86-64-v2", "pshuf.b.128"), ("x86-64-v3", "avx2.pshuf.b"), ("x86-64-v4", "pshuf.b.512"), ("aarch64", "tbl1"),
     ("wasm32", "swizzle"), ("x86-64", None), ("cortex-m4", None)],
)  # fmt: skip
def test_levels_are_looked_up_in_registers_where_the_machine_can(target: str, name: str | None) -> None:
    made, constants = computation(1, 4, BOOK)
    machine = Target.parse(target).judged()
    text = emit(schedule_with_steps(made, machine, constants).kernel, machine).text
    assert name in text if name is not None else "lshr i64" in text or "lshr <" in text


def test_levels_that_are_no_bytes_are_refused() -> None:
    for levels in ((1, 2), (*range(15), 256), (-1, *range(15))):
        with pytest.raises(TilewrightError, match="no levels"):
            product(np.zeros((1, 96), np.float32), matrix(4, 96, 2), 4, levels)


def test_one_and_many_rows_read_the_same_packed_words() -> None:
    made = [schedule_with_steps(*_machine_first(rows)).kernel.packed for rows in (1, 24)]
    words = [next(p for p in packed if p.source.name == "words") for packed in made]
    assert words[0].param.shape == words[1].param.shape
    assert list(map(str, words[0].index)) == list(map(str, words[1].index))


def _machine_first(rows: int) -> tuple[Computation, Target, tuple[Buffer, ...]]:
    made, constants = computation(rows, 4)
    return made, Target.parse("x86-64-v3").judged(), constants


def test_what_does_not_fit_together_is_refused() -> None:
    x = TensorType(f32, (1, 96))
    words, scales, zeros = map(tensor_type_of, matrix(4, 96, 2))
    whole = TensorType(i8, scales.shape)
    for operands, what in (
        ((x, words, whole, zeros), "scales"),
        ((x, words, scales, zeros, TensorType(f16, (1, 4, 2))), "scales"),
        ((x, words, whole, zeros, TensorType(f16, (2, 4, 2))), "no whole number for each of 2 units"),
        ((x, words, whole, zeros, TensorType(f16, (1, 2, 2))), "units"),
        ((x, words, whole, zeros, *[TensorType(f16, (1, 4, 2))] * 2), "2 operands are units"),
        ((x, words, TensorType(scales.dtype, (5, 4, 2)), zeros), "whole number of rows"),
        ((x, words, TensorType(scales.dtype, (3, 8, 2)), zeros), "codes"),
        ((TensorType(f32, (1, 64)), words, scales, zeros), "columns"),
    ):
        pool = Pool()
        inputs = [pool.input(f"x{k}", t) for k, t in enumerate(operands)]
        with pytest.raises(TilewrightError, match=what):
            Builder(pool)(ops.coded_matmul, *inputs, bits=4)
