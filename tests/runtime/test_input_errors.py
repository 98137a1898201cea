"""What a user is told about arguments that do not fit."""

import numpy as np
import pytest

from runtime.tiny import constrained, copy_model, scale_model
from tilewright.runtime.errors import InputError, TilewrightError
from tilewright.runtime.manifest import SymbolSpec, TensorSpec

F32 = "float32"


def pair_model() -> object:
    """Two inputs that share a symbol, one with a derived size."""
    inputs = [TensorSpec("ids", "int64", ("b", "s")), TensorSpec("mask", F32, ("b", "2*s + 1", 3))]
    return copy_model(
        inputs, [TensorSpec("p", "int64", ())], [0], [], symbols=(SymbolSpec("b", 1, 8), SymbolSpec("s", 2)), n_dims=2
    )


def failure(model: object, *args: object, **kwargs: object) -> InputError:
    with pytest.raises(InputError) as caught:
        model(*args, **kwargs)  # type: ignore[operator]
    return caught.value


def test_everything_wrong_is_listed_at_once() -> None:
    error = failure(pair_model(), np.zeros((9, 4), np.int32), mask=np.zeros((9, 8, 2), np.float64))
    text = str(error)
    assert "TW0101" in text
    for part in (
        "input 'ids': dtype int32; the model takes int64",
        "input 'mask': dtype float64; the model takes float32",
        "input 'mask', dimension 1 (2*s + 1): size 8; 2*s + 1 is 9 (s = 4 from input 'ids', dim 1)",
        "input 'mask', dimension 2: size 2; the model is compiled for size 3",
        "input 'ids', dimension 0 (b): b is 9; the model is compiled for between 1 and 8",
    ):
        assert part in text, text
    assert len(error.violations) == 5
    assert all(v.remedy for v in error.violations)
    assert "compile with a symbolic dimension here" in text and "compile with a wider one" in text
    assert "fix_dims" not in text  # which replaces no number, and gives no size outside of a range that the user set


def test_a_violation_has_its_parts() -> None:
    (violation,) = failure(scale_model(), np.zeros((3, 5), np.float32)).violations
    assert (violation.input, violation.dim, violation.symbol) == ("x", 1, None)
    assert violation.given == "size 5" and "size 4" in violation.rule


def test_symbol_given_two_values() -> None:
    error = failure(pair_model(), np.zeros((3, 4), np.int64), np.zeros((2, 9, 3), np.float32))
    assert "input 'mask', dimension 0 (b): size 2; b is 3 (b = 3 from input 'ids', dim 0)" in str(error)


def test_rank() -> None:
    error = failure(scale_model(), np.zeros(4, np.float32))
    assert "shape (4,) has 1 dimensions; the model takes 2: (n, 4)" in str(error)


def test_range() -> None:
    error = failure(pair_model(), np.zeros((1, 1), np.int64), np.zeros((1, 3, 3), np.float32))
    assert "s is 1; the model is compiled for at least 2" in str(error)


def test_constraint_with_its_reason() -> None:
    model = scale_model(**constrained("n % 8 == 0 and n > 0", "attention.py:12 splits heads"))
    assert model(np.zeros((16, 4), np.float32)).shape == (16, 4)
    text = str(failure(model, np.zeros((12, 4), np.float32)))
    assert "n is 12; n % 8 == 0 and n > 0 must hold (attention.py:12 splits heads)" in text


@pytest.mark.parametrize(
    ("args", "kwargs", "parts"),
    [
        ((), {}, ["'x': missing"]),
        ((np.zeros((1, 4), np.float32),) * 2, {}, ["2 were given"]),
        ((np.zeros((1, 4), np.float32),), {"x": 1}, ["'x': given twice"]),
        ((), {"y": 1}, ["'y': no such input", "'x': missing"]),
        (({"x": np.zeros((1, 4), np.float32), "z": 0},), {}, ["'z': no such input"]),
        (([[1.0, 2.0, 3.0, 4.0]],), {}, ["builtins.list", "numpy.asarray"]),
        ((None,), {}, ["NoneType"]),
        (("text",), {}, ["builtins.str"]),
        ((np.array(["a"], object),), {}, ["dtype object"]),
        ((np.zeros((1, 4), ">f4"),), {}, ["dtype >f4"]),
    ],
)
def test_wrong_arguments(args: tuple[object, ...], kwargs: dict[str, object], parts: list[str]) -> None:
    text = str(failure(scale_model(), *args, **kwargs))
    assert all(part in text for part in parts), text


def test_one_problem_reads_as_one_sentence_and_a_remedy() -> None:
    error = failure(scale_model(), np.zeros((1, 4), np.float64))
    assert error.message == "input 'x': dtype float64; the model takes float32"
    assert "x.astype('float32')" in error.remedy
    assert isinstance(error, TilewrightError)
