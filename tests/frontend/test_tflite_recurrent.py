"""TFLite's recurrent layers: what LiteRT's interpreter gives, call after call, and what is refused."""

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import tilewright as tw
from frontend.test_tflite_control import refused
from frontend.tflite_build import TfliteModel
from small_models import numbers

BATCH, STEPS, WIDTH, HIDDEN = 2, 5, 3, 4
F32 = np.float32
Sizes = tuple[int, ...]


def shape(width: int, time_major: bool) -> Sizes:
    return (STEPS, BATCH, width) if time_major else (BATCH, STEPS, width)


def lstm(time_major: bool = False, peephole: bool = False, bias: bool = True, **options: Any) -> TfliteModel:
    model = TfliteModel()
    x = model.input(numbers(*shape(WIDTH, time_major)))
    w = [model.const(numbers(HIDDEN, WIDTH, seed=k)) for k in range(4)]
    r = [model.const(numbers(HIDDEN, HIDDEN, seed=4 + k)) for k in range(4)]
    p = [model.const(numbers(HIDDEN, seed=8 + k)) if peephole else -1 for k in range(3)]
    b = [model.const(numbers(HIDDEN, seed=12 + k) if bias else np.zeros(HIDDEN, F32)) for k in range(4)]
    states = [model.variable((BATCH, HIDDEN)) for _ in range(2)]
    chosen = {"FusedActivationFunction": 4, "TimeMajor": time_major, **options}
    operands = [x, *w, *r, *p, *b, -1, -1, *states, -1, -1, -1, -1]
    results = [(shape(HIDDEN, time_major), F32)]
    model.outputs = model.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", operands, results, "UnidirectionalSequenceLSTMOptions", **chosen
    )
    return model


def rnn(time_major: bool = False, activation: int = 4) -> TfliteModel:
    model = TfliteModel()
    x = model.input(numbers(*shape(WIDTH, time_major)))
    operands = [model.const(a) for a in (numbers(HIDDEN, WIDTH), numbers(HIDDEN, HIDDEN) / 4, numbers(HIDDEN, seed=2))]
    operands = [x, *operands, model.variable((BATCH, HIDDEN))]
    results = [(shape(HIDDEN, time_major), F32)]
    chosen = {"FusedActivationFunction": activation, "TimeMajor": time_major}
    model.outputs = model.op("UNIDIRECTIONAL_SEQUENCE_RNN", operands, results, "SequenceRNNOptions", **chosen)
    return model


@pytest.mark.parametrize(
    "model",
    [lstm(), lstm(True), lstm(peephole=True), lstm(bias=False), rnn(), rnn(True), rnn(activation=1)],
    ids=["batch first", "time first", "peepholes", "no bias", "simple", "simple, time first", "relu"],
)  # fmt: skip
def test_calls_go_on_from_the_state_of_the_one_before(model: TfliteModel) -> None:
    content = model.bytes()
    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    theirs = Interpreter(model_content=content, experimental_op_resolver_type=resolver)
    theirs.allocate_tensors()
    ours = tw.compile(content, cache=False, threads=1)
    (given,), (made,) = theirs.get_input_details(), theirs.get_output_details()
    for k in range(3):
        x = numbers(*given["shape"], seed=20 + k)
        theirs.set_tensor(given["index"], x)
        theirs.invoke()
        np.testing.assert_allclose(ours(x), theirs.get_tensor(made["index"]), rtol=1e-4, atol=1e-5)
    first = numbers(*given["shape"], seed=20)
    ours.reset()
    theirs.reset_all_variables()
    theirs.set_tensor(given["index"], first)
    theirs.invoke()
    np.testing.assert_allclose(ours(first), theirs.get_tensor(made["index"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("which", ["inputs", "outputs", "a constant"])
def test_a_state_that_others_write_is_told(which: str) -> None:
    """Read as the layer left it, it would not be what was written."""
    model = lstm()
    tensors = [1] if which == "a constant" else getattr(model, which)
    model.variables.update(tensors)
    refused("variable", model)


def test_what_has_no_form_is_told() -> None:
    refused("whose cell is clipped", lstm(CellClip=0.5))
    refused("of the activation RELU", lstm(FusedActivationFunction=1))
    refused("of the activation NONE", rnn(activation=0))
    plain = lstm()
    plain.variables.clear()
    refused("buffer has 0", plain)
