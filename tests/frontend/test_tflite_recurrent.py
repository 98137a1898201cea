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


def lstm(
    time_major: bool = False, peephole: bool = False, bias: bool = True, step: bool = False, **options: Any
) -> TfliteModel:
    model = TfliteModel()
    x = model.input(numbers(BATCH, WIDTH) if step else numbers(*shape(WIDTH, time_major)))
    w = [model.const(numbers(HIDDEN, WIDTH, seed=k)) for k in range(4)]
    r = [model.const(numbers(HIDDEN, HIDDEN, seed=4 + k)) for k in range(4)]
    p = [model.const(numbers(HIDDEN, seed=8 + k)) if peephole else -1 for k in range(3)]
    b = [model.const(numbers(HIDDEN, seed=12 + k) if bias else np.zeros(HIDDEN, F32)) for k in range(4)]
    states = [model.variable((BATCH, HIDDEN)) for _ in range(2)]
    chosen = {"FusedActivationFunction": 4, "TimeMajor": time_major, **options}
    operands = [x, *w, *r, *p, *b, -1, -1, *states, -1, -1, -1, -1]
    results = [(shape(HIDDEN, time_major), F32)]
    if step:
        chosen.pop("TimeMajor")
        model.outputs = model.op("LSTM", operands, [((BATCH, HIDDEN), F32)], "LSTMOptions", **chosen)
        return model
    model.outputs = model.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", operands, results, "UnidirectionalSequenceLSTMOptions", **chosen
    )
    return model


def rnn(time_major: bool = False, activation: int = 4, step: bool = False) -> TfliteModel:
    model = TfliteModel()
    x = model.input(numbers(BATCH, WIDTH) if step else numbers(*shape(WIDTH, time_major)))
    operands = [model.const(a) for a in (numbers(HIDDEN, WIDTH), numbers(HIDDEN, HIDDEN) / 4, numbers(HIDDEN, seed=2))]
    operands = [x, *operands, model.variable((BATCH, HIDDEN))]
    if step:
        results = [((BATCH, HIDDEN), F32)]
        model.outputs = model.op("RNN", operands, results, "RNNOptions", FusedActivationFunction=activation)
        return model
    results = [(shape(HIDDEN, time_major), F32)]
    chosen = {"FusedActivationFunction": activation, "TimeMajor": time_major}
    model.outputs = model.op("UNIDIRECTIONAL_SEQUENCE_RNN", operands, results, "SequenceRNNOptions", **chosen)
    return model


def svdf(rank: int = 2, bias: bool = True, activation: int = 1, memory: int = 3) -> TfliteModel:
    model = TfliteModel()
    filters = HIDDEN * rank
    operands = [model.input(numbers(BATCH, WIDTH))]
    operands += [model.const(a) for a in (numbers(filters, WIDTH), numbers(filters, memory, seed=1))]
    operands += [model.const(numbers(HIDDEN, seed=2)) if bias else -1, model.variable((BATCH, filters * memory))]
    chosen = {"Rank": rank, "FusedActivationFunction": activation}
    model.outputs = model.op("SVDF", operands, [((BATCH, HIDDEN), F32)], "SVDFOptions", **chosen)
    return model


@pytest.mark.parametrize(
    "model",
    [lstm(), lstm(True), lstm(peephole=True), lstm(bias=False), rnn(), rnn(True), rnn(activation=1),
     lstm(step=True), rnn(step=True), svdf(), svdf(1, bias=False, activation=0, memory=1)],
    ids=["batch first", "time first", "peepholes", "no bias", "simple", "simple, time first", "relu", "a step",
         "a simple step", "filters", "filters of a step"],
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
    refused("of one matrix for all gates", lstm(step=True, KernelType=1))
    refused("8 filters are no whole units", svdf_of_rank(3))
    endless = rnn()
    name, _, kind, data = endless.tensors[4]
    endless.tensors[4] = name, (2**31 - 1, HIDDEN), kind, data
    refused("a state of f32[2147483647, 4] is more than", endless)
    plain = lstm()
    plain.variables.clear()
    refused("buffer has 0", plain)


def svdf_of_rank(rank: int) -> TfliteModel:
    """A layer that says another rank than its filters have."""
    model = svdf()
    model.operators[0][4]["Rank"] = rank
    return model
