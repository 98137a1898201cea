"""Digests of content and checksums against damage."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.runtime import digest

SIZES = [0, 1, digest.PIECE - 1, digest.PIECE, digest.PIECE + 1, 3 * digest.PIECE + 17]


@pytest.mark.parametrize("size", SIZES)
def test_file_and_bytes_agree(size: int, tmp_path: Path) -> None:
    data = np.random.default_rng(size).bytes(size)
    (tmp_path / "f").write_bytes(data)
    assert digest.digest_file(tmp_path / "f") == digest.digest_bytes(data)


def test_sizes_and_pieces_are_part_of_the_digest() -> None:
    made = [f(memoryview(bytes(size))) for f in (digest.digest_bytes, digest.checksum) for size in SIZES]
    assert len(set(made)) == len(made)


def test_swapped_pieces_are_noticed() -> None:
    a, b = bytes(digest.PIECE), b"\1" * digest.PIECE
    assert digest.digest_bytes(a + b) != digest.digest_bytes(b + a)
    assert digest.checksum(memoryview(a + b)) != digest.checksum(memoryview(b + a))


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
