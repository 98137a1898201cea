"""TFLite's recurrent layers: what LiteRT's interpreter gives, call after call, and what is refused."""

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import tilewright as tw
from frontend.test_tflite_control import refused
from frontend.tflite_build import Codes, TfliteModel
from small_models import numbers

BATCH, STEPS, WIDTH, HIDDEN = 2, 5, 3, 4
F32 = np.float32
Sizes = tuple[int, ...]


def shape(width: int, time_major: bool) -> Sizes:
    return (STEPS, BATCH, width) if time_major else (BATCH, STEPS, width)


def weights(model: TfliteModel, a: np.ndarray, coded: bool) -> int:
    """A matrix or a vector as floats, or as codes of int8 with one scale."""
    if not coded:
        return model.const(a)
    scale = float(np.abs(a).max() / 127)
    return model.const(np.clip(np.round(a / scale), -127, 127).astype(np.int8), Codes(scale))


def gates(
    model: TfliteModel, seed: int = 0, *, n_out: int = HIDDEN, coupled: bool = False, peephole: bool = False,
    projected: bool = False, coded: bool = False, bias: bool = True,
) -> list[int]:  # fmt: skip
    """The operands of one direction of an LSTM: weights, peepholes, biases and a projection."""
    w = [weights(model, numbers(HIDDEN, WIDTH, seed=seed + k), coded) for k in range(4)]
    r = [weights(model, numbers(HIDDEN, n_out, seed=seed + 4 + k), coded) for k in range(4)]
    p = [weights(model, numbers(HIDDEN, seed=seed + 8 + k), coded) if peephole else -1 for k in range(3)]
    b = [model.const(numbers(HIDDEN, seed=seed + 12 + k) if bias else np.zeros(HIDDEN, F32)) for k in range(4)]
    if coupled:
        w[0] = r[0] = b[0] = p[0] = -1
    last = [weights(model, numbers(n_out, HIDDEN, seed=seed + 16), coded), model.const(numbers(n_out, seed=seed + 17))]
    return [*w, *r, *p, *b, *(last if projected else (-1, -1))]


def lstm(
    time_major: bool = False, step: bool = False, projected: bool = False, normed: bool = False, options: Any = (),
    **kinds: Any,
) -> TfliteModel:  # fmt: skip
    model, n_out = TfliteModel(), HIDDEN + 2 if projected else HIDDEN
    x = model.input(numbers(BATCH, WIDTH) if step else numbers(*shape(WIDTH, time_major)))
    operands = [x, *gates(model, n_out=n_out, projected=projected, **kinds)]
    operands += [model.variable((BATCH, n)) for n in (n_out, HIDDEN)]
    gains = [model.const(numbers(HIDDEN, seed=30 + k)) if normed else -1 for k in range(4)]
    operands += [-1, *gains[1:]] if kinds.get("coupled", False) else gains
    chosen = {"FusedActivationFunction": 4, **dict(options)}
    if step:
        model.outputs = model.op("LSTM", operands, [((BATCH, n_out), F32)], "LSTMOptions", **chosen)
        return model
    chosen["TimeMajor"], results = time_major, [(shape(n_out, time_major), F32)]
    name = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    model.outputs = model.op(name, operands, results, "UnidirectionalSequenceLSTMOptions", **chosen)
    return model


def lstm_both_ways(
    time_major: bool = False, merged: bool = False, second: str = "", projected: bool = False, options: Any = (),
    **kinds: Any,
) -> TfliteModel:  # fmt: skip
    """``second`` is an input beside x: "weighted", or "backward", which has no weights of its own."""
    model, n_out = TfliteModel(), HIDDEN + 2 if projected else HIDDEN
    operands = [model.input(numbers(*shape(WIDTH, time_major)))]
    for seed in (0, 40):
        operands += gates(model, seed, n_out=n_out, projected=projected, **kinds)
    operands += [model.variable((BATCH, n)) for n in (n_out, HIDDEN) * 2]
    operands += [model.input(numbers(*shape(WIDTH, time_major))) if second else -1]
    of_second = [numbers(HIDDEN, WIDTH, seed=60 + k) for k in range(8)]
    operands += [weights(model, a, kinds.get("coded", False)) if second == "weighted" else -1 for a in of_second]
    results = [(shape(n, time_major), F32) for n in ([2 * n_out] if merged else [n_out] * 2)]
    chosen = {"FusedActivationFunction": 4, "TimeMajor": time_major, "MergeOutputs": merged, **dict(options)}
    name = "BIDIRECTIONAL_SEQUENCE_LSTM"
    model.outputs = model.op(name, operands, results, "BidirectionalSequenceLSTMOptions", **chosen)
    return model


def basic_lstm() -> TfliteModel:
    """One matrix for all gates over the input and the last result, and the state among the results."""
    model = TfliteModel()
    operands = [model.input(numbers(BATCH, WIDTH)), model.variable((BATCH, HIDDEN))]
    operands += [model.const(numbers(4 * HIDDEN, WIDTH + HIDDEN)), model.const(numbers(4 * HIDDEN, seed=1))]
    operands += [model.variable((BATCH, HIDDEN))]
    results = [((BATCH, n), F32) for n in (HIDDEN, HIDDEN, WIDTH + HIDDEN, 4 * HIDDEN)]
    made = model.op("LSTM", operands, results, "LSTMOptions", FusedActivationFunction=4, KernelType=1)
    model.outputs = made[:2]
    return model


def cell(model: TfliteModel, n: int, seed: int = 0, coded: bool = False) -> list[int]:
    """The operands of one direction of the simple cell."""
    found = [weights(model, a, coded) for a in (numbers(n, WIDTH, seed=seed), numbers(n, n, seed=seed + 1) / 4)]
    return [*found, model.const(numbers(n, seed=seed + 2)), model.variable((BATCH, n))]


def rnn(
    time_major: bool = False, activation: int = 4, step: bool = False, coded: bool = False, options: Any = ()
) -> TfliteModel:
    model = TfliteModel()
    x = model.input(numbers(BATCH, WIDTH) if step else numbers(*shape(WIDTH, time_major)))
    operands = [x, *cell(model, HIDDEN, coded=coded)]
    chosen = {"FusedActivationFunction": activation, **dict(options)}
    if step:
        model.outputs = model.op("RNN", operands, [((BATCH, HIDDEN), F32)], "RNNOptions", **chosen)
        return model
    chosen["TimeMajor"], results = time_major, [(shape(HIDDEN, time_major), F32)]
    model.outputs = model.op("UNIDIRECTIONAL_SEQUENCE_RNN", operands, results, "SequenceRNNOptions", **chosen)
    return model


def rnn_both_ways(
    time_major: bool = False, merged: bool = False, second: str = "", activation: int = 4, coded: bool = False
) -> TfliteModel:
    model = TfliteModel()
    operands = [model.input(numbers(*shape(WIDTH, time_major)))]
    operands += [*cell(model, HIDDEN, coded=coded), *cell(model, HIDDEN + 2, 10, coded)]
    operands += [model.input(numbers(*shape(WIDTH, time_major))) if second else -1]
    of_second = [numbers(n, WIDTH, seed=20) for n in (HIDDEN, HIDDEN + 2)]
    operands += [weights(model, a, coded) if second == "weighted" else -1 for a in of_second]
    results = [(shape(n, time_major), F32) for n in ([2 * HIDDEN + 2] if merged else [HIDDEN, HIDDEN + 2])]
    chosen = {"FusedActivationFunction": activation, "TimeMajor": time_major, "MergeOutputs": merged}
    name = "BIDIRECTIONAL_SEQUENCE_RNN"
    model.outputs = model.op(name, operands, results, "BidirectionalSequenceRNNOptions", **chosen)
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


ASYMMETRIC = {"AsymmetricQuantizeInputs": True}
LAYERS = {
    "batch first": lstm(), "time first": lstm(True), "peepholes": lstm(peephole=True), "no bias": lstm(bias=False),
    "a step": lstm(step=True), "projection": lstm(projected=True, options={"ProjClip": 0.3}),
    "norms": lstm(normed=True), "clipped": lstm(options={"CellClip": 0.5}), "coupled": lstm(coupled=True),
    "coupled with all": lstm(coupled=True, peephole=True, projected=True, normed=True, options={"CellClip": 1.0}),
    "lstm of relu": lstm(options={"FusedActivationFunction": 1}),
    "lstm of relu6": lstm(options={"FusedActivationFunction": 3}), "one matrix": basic_lstm(),
    "codes": lstm(coded=True), "codes and zero points": lstm(True, coded=True, options=ASYMMETRIC),
    "codes with all": lstm(coded=True, step=True, peephole=True, projected=True, normed=True),
    "both ways": lstm_both_ways(), "both ways, peepholes": lstm_both_ways(peephole=True),
    "both ways, time first": lstm_both_ways(True, True), "both ways, second": lstm_both_ways(second="weighted"),
    "both ways, backward": lstm_both_ways(True, second="backward"),
    "both ways with all": lstm_both_ways(coupled=True, peephole=True, projected=True, options={"CellClip": 1.0}),
    "both ways, codes": lstm_both_ways(True, second="weighted", coded=True),
    "simple": rnn(), "simple, time first": rnn(True), "relu": rnn(activation=1), "linear": rnn(activation=0),
    "a simple step": rnn(step=True), "simple, codes": rnn(coded=True),
    "simple, codes, a step": rnn(coded=True, step=True),
    "simple, codes and zero points": rnn(True, coded=True, options=ASYMMETRIC),
    "simple both ways": rnn_both_ways(merged=True), "simple both ways, time first": rnn_both_ways(True, activation=3),
    "simple both ways, second": rnn_both_ways(second="weighted"),
    "simple both ways, backward": rnn_both_ways(True, second="backward"),
    "simple both ways, second not read": rnn_both_ways(second="backward"),
    "simple both ways, codes": rnn_both_ways(coded=True),
    "filters": svdf(), "filters of a step": svdf(1, bias=False, activation=0, memory=1),
}  # fmt: skip


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", LAYERS)
def test_calls_go_on_from_the_state_of_the_one_before(name: str) -> None:
    content = LAYERS[name].bytes()
    theirs = Interpreter(model_content=content, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    theirs.allocate_tensors()
    ours = tw.compile(content, cache=False, threads=1)

    def check(seed: int) -> None:
        given = [numbers(*d["shape"], seed=seed + 5 * k) for k, d in enumerate(theirs.get_input_details())]
        for detail, x in zip(theirs.get_input_details(), given, strict=True):
            theirs.set_tensor(detail["index"], x)
        theirs.invoke()
        made = ours(*given)
        expected = [theirs.get_tensor(d["index"]) for d in theirs.get_output_details()]
        for found, wanted in zip(made if isinstance(made, tuple) else (made,), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)

    for k in range(3):
        check(20 + k)
    ours.reset()
    theirs.reset_all_variables()
    check(20)


def test_results_of_both_ways_lie_beside_each_other() -> None:
    """Compared with ours: of merged results whose batch comes first, LiteRT's kernel gives others from run to run."""
    x = numbers(BATCH, STEPS, WIDTH)
    apart, merged = (tw.compile(lstm_both_ways(merged=m).bytes(), cache=False, threads=1)(x) for m in (False, True))
    np.testing.assert_array_equal(merged, np.concatenate(apart, axis=2))


@pytest.mark.parametrize("which", ["inputs", "outputs", "a constant"])
def test_a_state_that_others_write_is_told(which: str) -> None:
    """Read as the layer left it, it would not be what was written."""
    model = lstm()
    tensors = [1] if which == "a constant" else getattr(model, which)
    model.variables.update(tensors)
    refused("variable", model)


def test_what_has_no_form_is_told() -> None:
    refused("of the activation NONE", lstm(options={"FusedActivationFunction": 0}))
    refused("where time comes first", rnn_both_ways(True, coded=True))
    mixed = lstm()
    mixed.tensors[2] = mixed.tensors[1][0], (HIDDEN, WIDTH), "INT8", np.ones((HIDDEN, WIDTH), np.int8)
    mixed.codes[2] = Codes(0.1)
    refused("gates of codes and of floats", mixed)
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
