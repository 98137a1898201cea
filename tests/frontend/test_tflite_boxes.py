"""TFLite's non-maximum suppression: what LiteRT's interpreter gives, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from frontend.test_tflite import by_litert
from frontend.tflite_build import TfliteModel
from tilewright.core.evaluate import evaluate_graph
from tilewright.frontend.tflite.importer import import_tflite

F32, I32 = np.float32, np.int32


def boxes_of(n: int, wanted: int = 4, overlap: float = 0.5, least: float = 0.2, sigma: float | None = None) -> bytes:
    """A file of one operator, the newer one where there is a ``sigma``."""
    model = TfliteModel()
    operands = [model.input(np.zeros((n, 4), F32)), model.input(np.zeros(n, F32)), model.const(np.array(wanted, I32))]
    operands += [model.const(np.array(v, F32)) for v in (overlap, least, sigma) if v is not None]
    scores = [] if sigma is None else [((wanted,), F32)]
    results = [((wanted,), I32), *scores, ((), I32)]
    version = 4 if sigma is None else 5
    model.outputs = model.op(
        f"NON_MAX_SUPPRESSION_V{version}", operands, results, f"NonMaxSuppressionV{version}Options"
    )
    return model.bytes()


def drawn(n: int, seed: int) -> list[np.ndarray]:
    """Boxes of a coarse grid, so that overlaps are often equal; LiteRT's order of equal scores is its heap's."""
    rng = np.random.default_rng(seed)
    first, sides = rng.integers(0, 4, (n, 2)), rng.integers(1, 4, (n, 2))
    return [np.concatenate([first, first + sides], 1).astype(F32), (rng.permutation(n) / 5).astype(F32)]


@given(
    st.integers(1, 9), st.integers(1, 6), st.sampled_from([0.25, 0.5, 1.0]), st.sampled_from([0.0, 0.2]),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_boxes_that_stay(n: int, wanted: int, overlap: float, least: float, is_scored: bool, seed: int) -> None:
    content, arrays = boxes_of(n, wanted, overlap, least, 0.0 if is_scored else None), drawn(n, seed)
    found = evaluate_graph(import_tflite(content, "boxes").graph, arrays)
    *theirs, count = by_litert(content, arrays)
    assert found[-1] == count
    for a, b in zip(found[:-1], theirs, strict=True):
        np.testing.assert_array_equal(a[:count], b[:count])
        assert a.shape == b.shape and not a[count:].any()


def test_boxes_compile() -> None:
    content = boxes_of(7, sigma=0.0)
    made = tw.compile(content, cache=False, threads=1)
    for seed in range(5):
        arrays = drawn(7, seed)
        for a, b in zip(made(*arrays), by_litert(content, arrays), strict=True):
            np.testing.assert_array_equal(a, b)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no box": ({"wanted": 0}, "can't be told"), "no overlap": ({"overlap": 0.0}, "can't be told"),
    "softly": ({"sigma": 0.5}, "scores that fall with each overlap"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_form_is_told(what: str) -> None:
    values, rule = REFUSED[what]
    with pytest.raises(tw.ImportFailed, match=rule):
        import_tflite(boxes_of(3, **values), "boxes")
