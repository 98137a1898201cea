"""Whole TFLite models that TensorFlow's converter wrote: floats are LiteRT's to 1e-5, codes its reference kernels'.

The archive beside this file holds them; ``tflite_models.py`` makes it.
"""

import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import tilewright as tw
from frontend.test_tflite_codes import PLAINLY, REFERENCE, by_litert
from tilewright.core.evaluate import evaluate_graph
from tilewright.frontend.tflite.importer import import_tflite

with zipfile.ZipFile(Path(__file__).parent / "tflite_models.zip") as archive:
    MODELS = {name.removesuffix(".tflite"): archive.read(name) for name in archive.namelist()}
COMPILED = [name for name in MODELS if name.endswith(("/mobile_v3", "/unet", "/attention"))]
"""Models whose code is compared in every run."""


def arguments(content: bytes, seed: int) -> list[np.ndarray]:
    """Random numbers for each input, of all codes where it is codes."""
    rng, made = np.random.default_rng(seed), []
    for detail in Interpreter(model_content=content).get_input_details():
        size, dtype = tuple(detail["shape"]), detail["dtype"]
        if np.issubdtype(dtype, np.integer):
            made.append(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, size).astype(dtype))
        else:
            made.append(rng.normal(size=size).astype(dtype))
    return made


def check(name: str, given: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> None:
    theirs = by_litert(MODELS[name], given, PLAINLY if name.startswith("float") else REFERENCE)
    for ours, expected in zip(found, theirs, strict=True):
        assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)
        if np.issubdtype(ours.dtype, np.floating):
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(ours, expected)


def test_there_are_enough_of_each_kind() -> None:
    kinds = Counter(name.split("/")[0] for name in MODELS)
    assert min(kinds["float"], kinds["int8"]) >= 25 and min(kinds["int16"], kinds["dynamic"]) >= 5


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_means_what_it_means_to_litert(name: str) -> None:
    graph = import_tflite(MODELS[name], "model").graph
    for seed in range(3):
        given = arguments(MODELS[name], seed)
        check(name, given, evaluate_graph(graph, given))


def compiled(name: str) -> None:
    made = tw.compile(MODELS[name], cache=False, threads=1)
    for seed in range(3):
        given = arguments(MODELS[name], seed)
        found = made(*given)
        check(name, given, found if isinstance(found, tuple) else (found,))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_model_gives_what_litert_gives(name: str) -> None:
    compiled(name)


@pytest.mark.slow  # all of them
@pytest.mark.parametrize("name", [n for n in MODELS if n not in COMPILED])
def test_every_compiled_model_gives_what_litert_gives(name: str) -> None:
    compiled(name)
