"""Weights that TFLite stores sparsely: what LiteRT spells out, and tables that do not fit."""

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from frontend.test_tflite_lookups import check
from frontend.tflite_build import Sparsity, TfliteModel
from tilewright.frontend.tflite.importer import import_tflite


def rows_of_places(w: np.ndarray, dtype: Any) -> tuple[np.ndarray, Sparsity]:
    """The numbers of a matrix that are not 0, row by row."""
    counts = (w != 0).sum(1)
    segments = np.concatenate([[0], np.cumsum(counts)]).astype(dtype)
    return w[w != 0], Sparsity([0, 1], [], [len(w), (segments, np.nonzero(w)[1].astype(dtype))])


def in_blocks(w: np.ndarray, block: tuple[int, int]) -> tuple[np.ndarray, Sparsity]:
    """The blocks of a matrix that are not all 0, rows of blocks first."""
    n, m = block
    blocks = w.reshape(len(w) // n, n, w.shape[1] // m, m).transpose(0, 2, 1, 3)
    is_kept = blocks.any((2, 3))
    segments = np.concatenate([[0], np.cumsum(is_kept.sum(1))]).astype(np.int32)
    level = segments, np.nonzero(is_kept)[1].astype(np.int32)
    return blocks[is_kept].reshape(-1), Sparsity([0, 1, 2, 3], [0, 1], [len(blocks), level, n, m])


def thinned(shape: tuple[int, int], block: tuple[int, int] = (1, 1)) -> np.ndarray:
    rng = np.random.default_rng(0)
    kept = rng.random((shape[0] // block[0], shape[1] // block[1])) < 0.4
    return (rng.uniform(1, 9, shape) * np.kron(kept, np.ones(block))).astype(np.float32)


def model(shape: tuple[int, ...], stored: np.ndarray, sparsity: Sparsity) -> bytes:
    """A tensor that is added to what is stored sparsely."""
    m = TfliteModel()
    x = m.input(np.zeros(shape, stored.dtype))
    (w,) = m.op("DENSIFY", [m.sparse(shape, stored, sparsity)], [(shape, stored.dtype)], "DensifyOptions")
    m.outputs = m.op("ADD", [x, w], [(shape, stored.dtype)], "AddOptions")
    return m.bytes()


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.uint8])
def test_places_of_rows_in_every_width(dtype: Any) -> None:
    w = thinned((6, 10))
    check(model(w.shape, *rows_of_places(w, dtype)), [np.ones(w.shape, np.float32)])


@pytest.mark.parametrize("block", [(1, 4), (4, 1), (2, 2), (4, 16)])
def test_blocks(block: tuple[int, int]) -> None:
    w = thinned((8, 32), block)
    check(model(w.shape, *in_blocks(w, block)), [np.ones(w.shape, np.float32)])


def test_columns_first() -> None:
    w = thinned((6, 10))
    stored, by_columns = rows_of_places(np.ascontiguousarray(w.T), np.int32)
    check(model(w.shape, stored, Sparsity([1, 0], [], by_columns.levels)), [np.ones(w.shape, np.float32)])


def test_halves_that_are_widened() -> None:
    w = thinned((6, 10)).astype(np.float16)
    m = TfliteModel()
    x = m.input(np.zeros(w.shape, np.float32))
    places = [m.sparse(w.shape, *rows_of_places(w, np.int32))]
    (half,) = m.op("DENSIFY", places, [(w.shape, np.float16)], "DensifyOptions")
    (wide,) = m.op("DEQUANTIZE", [half], [(w.shape, np.float32)], "DequantizeOptions")
    m.outputs = m.op("ADD", [x, wide], [(w.shape, np.float32)], "AddOptions")
    check(m.bytes(), [np.ones(w.shape, np.float32)])


def csr(segments: list[int], places: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(segments, np.int32), np.array(places, np.int32)


@pytest.mark.parametrize(
    ("order", "blocks", "levels", "n_stored"),
    [
        ([0, 1], [], [2, csr([0, 1, 2], [0, 3])], 2),  # a place outside
        ([0, 1], [], [2, csr([0, 1, 2], [0, -1])], 2),
        ([0, 1], [], [2, csr([0, 2, 1], [0, 1])], 1),  # segments that go back
        ([0, 1], [], [2, csr([0, 1], [0])], 1),  # none for the second row
        ([0, 1], [], [2, csr([], [])], 0),
        ([0, 1], [], [2, csr([0, 1, 2], [0, 1])], 3),  # more numbers than places
        ([0, 1], [], [1 << 30, csr([0, 1, 2], [0, 1])], 2),
        ([0, 0], [], [2, csr([0, 1, 2], [0, 1])], 2),
        ([0, 1], [], [2], 2),
        ([0, 1, 2], [5], [2, csr([0, 1, 2], [0, 1]), 1], 2),
        ([0, 1, 2], [1], [2, csr([0, 1, 2], [0, 0]), 2], 4),  # blocks of two in rows of three
        ([0, 1, 2], [1], [2, csr([0, 1, 2], [0, 0]), 0], 0),
        ([0, 1, 2], [1], [2, csr([0, 1, 2], [0, 0]), -3], 2),
        ([0, 1, 2, 3], [1, 1], [2, 1, 3, 1], 6),
    ],
)
def test_tables_that_do_not_fit_are_refused(order: list[int], blocks: list[int], levels: Any, n_stored: int) -> None:
    content = model((2, 3), np.ones(n_stored, np.float32), Sparsity(order, blocks, levels))
    with pytest.raises(tw.ImportFailed, match="tensor 1: constant"):
        import_tflite(content, "net")
