"""Digests of content and checksums against damage."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.runtime import digest

SIZES = [0, 1, digest.PIECE - 1, digest.PIECE, digest.PIECE + 1, 3 * digest.PIECE + 17]


def test_sizes_and_pieces_are_part_of_the_digest() -> None:
    made = [f(memoryview(bytes(size))) for f in (digest.digest_bytes, digest.checksum) for size in SIZES]
    assert len(set(made)) == len(made)


def test_swapped_pieces_are_noticed() -> None:
    a, b = bytes(digest.PIECE), b"\1" * digest.PIECE
    assert digest.digest_bytes(a + b) != digest.digest_bytes(b + a)
    assert digest.checksum(memoryview(a + b)) != digest.checksum(memoryview(b + a))


ROW = digest.ROW_WORDS * 8


@pytest.mark.parametrize(
    "damage",
    [
        lambda words: words[3, :].fill(0),  # a lost page
        lambda words: words.__setitem__([4, 5], words[[5, 4]]),  # pages in the wrong order, within a piece
        lambda words: words.__setitem__([4, 100], words[[100, 4]]),  # and across pieces
        lambda words: words.__setitem__((6, [1, 2]), words[6, [2, 1]]),  # words that changed places
        lambda words: words.__setitem__((slice(4, 6), 9), words[[5, 4], 9]),
    ],
)
def test_damage_that_real_disks_do_changes_the_checksum(damage: Callable[[np.ndarray], object]) -> None:
    words = np.random.default_rng(0).integers(0, 1 << 63, (130, digest.ROW_WORDS), np.uint64)
    before = digest.checksum(memoryview(words).cast("B"))
    damage(words)
    assert digest.checksum(memoryview(words).cast("B")) != before


@given(st.integers(0, 3 * ROW), st.integers(1, ROW), st.integers(1, 255))
def test_any_damage_within_a_row_s_length_changes_the_checksum(start: int, n: int, value: int) -> None:
    data = np.random.default_rng(1).integers(0, 256, 4 * ROW, np.uint8)
    before = digest.checksum(memoryview(data))
    data[start : start + n] += np.uint8(value)
    assert digest.checksum(memoryview(data)) != before


@pytest.mark.parametrize("n_rows", [1, 63, 64, 65, 4 * 64, 9 * 64 + 5])
def test_every_reader_finds_the_same_sums(n_rows: int) -> None:
    """A file's checksum is part of its format: rows and then columns of one piece after the other."""
    words = np.random.default_rng(2).integers(0, 1 << 63, (n_rows, digest.ROW_WORDS), np.uint64)
    words[-1, 100:] = 0
    words[-1, 99] &= np.uint64((1 << 56) - 1)
    n_bytes = (n_rows - 1) * ROW + 799  # the last word lacks a byte, which is a zero
    pieces = [words[k : k + 64] for k in range(0, n_rows, 64)]
    sums = [bytes(p.sum(axis)) for p in pieces for axis in (1, 0)]
    data = memoryview(words).cast("B")[:n_bytes]
    assert digest.checksum(data) == "sums-256k:" + digest._root(sums, n_bytes)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_flipped_bit_is_noticed(data: bytes, choice: st.DataObject) -> None:
    bit = choice.draw(st.integers(0, len(data) * 8 - 1))
    other = bytearray(data)
    other[bit // 8] ^= 1 << bit % 8
    for function in (digest.digest_bytes, digest.checksum):
        assert function(memoryview(data)) != function(memoryview(other))


def test_arrays() -> None:
    a = np.arange(6, dtype=np.float32)
    shapes = [[a], [a.reshape(2, 3)], [a.reshape(3, 2)], [a, a], []]
    variants = [*shapes, [a.astype(np.float64)], [a.view(np.int32)], [a + 1]]
    made = [digest.digest_arrays(v) for v in variants]
    assert len(set(made)) == len(made)
    wide = np.arange(12, dtype=np.float32)
    assert digest.digest_arrays([wide[::2]]) == digest.digest_arrays([wide[::2].copy()])
    assert digest.digest_arrays([np.zeros(())]) != digest.digest_arrays([np.zeros(1)])
    assert digest.digest_arrays([np.zeros((0, 3))])


def test_errors_in_a_helper_thread_reach_the_caller() -> None:
    def fail(item: int) -> bytes:
        if item == 1:
            raise OSError("unreadable")
        return b""

    with pytest.raises(OSError, match="unreadable"):
        digest._parallel(fail, [0, 1, 2])
