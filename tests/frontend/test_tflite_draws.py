"""Random numbers of TFLite models: LiteRT's, call after call, by the seeds in the file."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import tilewright as tw
from frontend.tflite_build import TfliteModel
from small_models import numbers

DRAWS = ("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL")


def drawing(name: str, shape: tuple[int, ...], seed: int = 7, seed2: int = 3) -> bytes:
    model = TfliteModel()
    at = model.const(np.array(shape, np.int32))
    (drawn,) = model.op(name, [at], [(shape, np.float32)], "RandomOptions", Seed=seed, Seed2=seed2)
    x = model.input(np.zeros(shape, np.float32))
    model.outputs = model.op("ADD", [drawn, x], [(shape, np.float32)], "AddOptions")
    return model.bytes()


def choosing(logits: np.ndarray, n: int, dtype: type, seed: int = 7, seed2: int = 3) -> bytes:
    model = TfliteModel()
    operands = [model.input(logits), model.const(np.array(n, np.int32))]
    shape = (len(logits), n)
    model.outputs = model.op("MULTINOMIAL", operands, [(shape, dtype)], "RandomOptions", Seed=seed, Seed2=seed2)
    return model.bytes()


def check(content: bytes, x: np.ndarray, *, rtol: float, atol: float) -> None:
    """Three calls, each of which goes on where the one before ended."""
    theirs = Interpreter(model_content=content)
    theirs.allocate_tensors()
    ours = tw.compile(content, cache=False, threads=1)
    for _ in range(3):
        theirs.set_tensor(theirs.get_input_details()[0]["index"], x)
        theirs.invoke()
        expected = theirs.get_tensor(theirs.get_output_details()[0]["index"])
        found = ours(x)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seeds", [(7, 3), (0, 5), (-1, 2**40), (2**63 - 1, -(2**62) + 9)])
@pytest.mark.parametrize("shape", [(5, 7), (6,), (2, 0)])
def test_uniform_numbers_are_litert_s(shape: tuple[int, ...], seeds: tuple[int, int]) -> None:
    check(drawing("RANDOM_UNIFORM", shape, *seeds), np.zeros(shape, np.float32), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(2, 500), (3, 6)])
def test_normal_numbers_are_litert_s(shape: tuple[int, ...]) -> None:
    check(drawing("RANDOM_STANDARD_NORMAL", shape), np.zeros(shape, np.float32), rtol=1e-5, atol=1e-6)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("n", [1, 6, 7])
def test_classes_are_litert_s(n: int, dtype: type) -> None:
    logits = numbers(3, 9) * 3
    logits[0, 4], logits[1, 2], logits[2] = -np.inf, np.nan, 0
    check(choosing(logits, n, dtype), logits, rtol=0, atol=0)


def test_numbers_that_no_seed_decides_are_refused() -> None:
    with pytest.raises(tw.ImportFailed, match=r"both seeds are 0[\s\S]*convert the model with a seed") as failed:
        tw.compile(drawing("RANDOM_UNIFORM", (3,), 0, 2**32), cache=False)
    assert len(failed.value.problems) == 1
