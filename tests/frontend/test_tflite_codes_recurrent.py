"""TFLite's recurrent layers whose state is codes: what LiteRT's kernels give, code by code, call after call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType

import tilewright as tw
from frontend.test_tflite_control import refused
from frontend.tflite_build import Codes, TfliteModel
from tilewright.frontend.tflite.fixed_point import sigmoid, tanh

BATCH, STEPS, WIDTH, HIDDEN = 2, 5, 3, 4
I8, I16, I32 = np.int8, np.int16, np.int32
IN, STATE = Codes(1 / 60, 7), Codes(1 / 100, -9)


def lstm(
    *, seed: int = 0, step: bool = False, time_major: bool = False, coupled: bool = False, peephole: bool = False,
    projected: bool = False, normed: bool = False, cell: float = 2.0**-11, **options: Any,
) -> TfliteModel:  # fmt: skip
    rng, model = np.random.default_rng(seed), TfliteModel()
    n_out = HIDDEN + 2 if projected and not peephole else HIDDEN
    shape = (BATCH, WIDTH) if step else (STEPS, BATCH, WIDTH) if time_major else (BATCH, STEPS, WIDTH)

    def matrix(*sizes: int) -> int:
        return model.const(rng.integers(-127, 128, sizes).astype(I8), Codes(float(rng.uniform(0.005, 0.03))))

    x = model.input(np.zeros(shape, I8), IN)
    w, r = [matrix(HIDDEN, WIDTH) for _ in range(4)], [matrix(HIDDEN, n_out) for _ in range(4)]
    seen = Codes(2.0**-14)
    p = [model.const(rng.integers(-9000, 9000, HIDDEN).astype(I16), seen) if peephole else -1 for _ in range(3)]
    b = [model.const(rng.integers(-3000, 3000, HIDDEN).astype(I32), Codes(1e-4)) for _ in range(4)]
    if coupled:
        w[0] = r[0] = p[0] = b[0] = -1
    hidden = Codes(1 / 120, 5) if projected else STATE
    last = [matrix(n_out, HIDDEN), model.const(rng.integers(-300, 300, n_out).astype(I32), Codes(1e-4))]
    operands = [x, *w, *r, *p, *b, *(last if projected else (-1, -1))]
    operands += [model.variable((BATCH, n_out), I8, STATE), model.variable((BATCH, HIDDEN), I16, Codes(cell))]
    gain = Codes(float(rng.uniform(2e-5, 9e-5)))
    gains = [model.const(rng.integers(-32767, 32768, HIDDEN).astype(I16), gain) if normed else -1 for _ in range(4)]
    operands += [-1, *gains[1:]] if coupled else gains
    model.between([(I16, Codes(2.0**-11 if normed else 2.0**-12))] * 4 + [(I8, hidden)])
    name, table = "UNIDIRECTIONAL_SEQUENCE_LSTM", "UnidirectionalSequenceLSTMOptions"
    chosen = {"FusedActivationFunction": 4, **options}
    if step:
        name, table = "LSTM", "LSTMOptions"
    else:
        chosen["TimeMajor"] = time_major
    model.outputs = model.op(name, operands, [((*shape[:-1], n_out), I8, STATE)], table, **chosen)
    return model


def svdf(rank: int = 2, bias: bool = True, memory: int = 3) -> TfliteModel:
    rng, model = np.random.default_rng(1), TfliteModel()
    filters = HIDDEN * rank
    operands = [model.input(np.zeros((BATCH, WIDTH), I8), IN)]
    operands.append(model.const(rng.integers(-127, 128, (filters, WIDTH)).astype(I8), Codes(0.02)))
    operands.append(model.const(rng.integers(-3000, 3000, (filters, memory)).astype(I16), Codes(2.0**-12)))
    operands.append(model.const(rng.integers(-900, 900, HIDDEN).astype(I32), Codes(1e-6)) if bias else -1)
    operands.append(model.variable((BATCH, filters * memory), I16, Codes(2.0**-11)))
    made = [((BATCH, HIDDEN), I8, Codes(1 / 40, -3))]
    model.outputs = model.op("SVDF", operands, made, "SVDFOptions", Rank=rank, FusedActivationFunction=1)
    return model


ALL = {"coupled": True, "peephole": True, "projected": True, "CellClip": 1.0, "ProjClip": 0.4}
LAYERS = {
    "batch first": lstm(), "time first": lstm(time_major=True), "a step": lstm(step=True),
    "a fine cell": lstm(cell=2.0**-15), "a coarse cell": lstm(cell=2.0**-9), "coupled": lstm(coupled=True),
    "peepholes": lstm(peephole=True), "projection": lstm(projected=True), "clipped": lstm(CellClip=0.5),
    "with all": lstm(**ALL), "a step with all": lstm(seed=3, step=True, **ALL),
    "norms": lstm(normed=True), "norms of a step": lstm(normed=True, step=True, seed=5),
    "norms with all": lstm(normed=True, seed=7, **ALL), "filters": svdf(), "filters of a step": svdf(1, False, 1),
}  # fmt: skip


def by_litert(content: bytes) -> Interpreter:
    theirs = Interpreter(model_content=content, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    theirs.allocate_tensors()
    return theirs


def called(theirs: Interpreter, x: np.ndarray) -> np.ndarray:
    theirs.set_tensor(theirs.get_input_details()[0]["index"], x)
    theirs.invoke()
    made: np.ndarray = theirs.get_tensor(theirs.get_output_details()[0]["index"])
    return made


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", LAYERS)
def test_codes_are_those_of_litert_call_after_call(name: str) -> None:
    content = LAYERS[name].bytes()
    theirs, ours = by_litert(content), tw.compile(content, cache=False, threads=1)

    def check(seed: int) -> None:
        x = np.random.default_rng(seed).integers(-128, 128, theirs.get_input_details()[0]["shape"]).astype(I8)
        np.testing.assert_array_equal(ours(x), called(theirs, x))

    for k in range(4):
        check(k)
    ours.reset()
    theirs.reset_all_variables()
    check(0)


@pytest.mark.parametrize("bits", range(7))
def test_functions_of_16_bits_are_near_the_real_ones(bits: int) -> None:
    x = np.arange(-(2**15), 2**15)
    real = x / 2.0 ** (15 - bits)
    np.testing.assert_allclose(tanh(x, bits) / 2.0**15, np.tanh(real), atol=2.0**-11)
    np.testing.assert_allclose(sigmoid(x, bits) / 2.0**15, 1 / (1 + np.exp(-real)), atol=2.0**-12)


def changed(**fields: Any) -> TfliteModel:
    """A layer, and one thing about it that LiteRT has no kernel for."""
    model = lstm(**fields.pop("of", {}))
    for name, value in fields.items():
        setattr(model, name, value)
    return model


def looking() -> TfliteModel:
    """Peepholes where there are more results than cells."""
    model = lstm(projected=True)
    seen = model.const(np.ones(HIDDEN, I16), Codes(2.0**-14))
    name, operands, *rest = model.operators[0]
    model.operators[0] = (name, [*operands[:9], *[seen] * 3, *operands[12:]], *rest)
    return model


@pytest.mark.parametrize(("model", "rule"), [
    (changed(of={"cell": 0.0005}), "steps of 0.0005"), (changed(of={"cell": 2.0**-8}), "is none of LiteRT's"),
    (changed(betweens={}), "has 5 scales between, not 0"),
    (looking(), "another number of results than of cells"),
], ids=["cell", "coarse", "between", "peepholes"])  # fmt: skip
def test_what_has_no_form_is_told(model: TfliteModel, rule: str) -> None:
    refused(rule, model)
