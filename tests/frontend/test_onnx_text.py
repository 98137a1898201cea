"""ONNX models that read text: nodes on text run before the compiled rest, and text in the middle is refused."""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.build.text_model import TextModel
from tilewright.frontend.onnx.file import read_model
from tilewright.frontend.onnx.text_edge import text_edge_of

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 4)]
TEXT, FLOAT = TensorProto.STRING, TensorProto.FLOAT


def model(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], initial: Any = ()) -> onnx.ModelProto:
    infos = ([helper.make_tensor_value_info(n, *t) for n, t in ends.items()] for ends in (inputs, outputs))
    graph = helper.make_graph(nodes, "texts", *infos, list(initial))
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=10)


def texts(*values: Any) -> np.ndarray:
    return np.array(values, object)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    domain = "ai.onnx.ml" if op == "LabelEncoder" else ""
    return helper.make_node(op, inputs.split(), outputs.split(), domain=domain, **attributes)


def scored() -> onnx.ModelProto:
    """Numbers of trimmed and joined words, times weights: text before, kernels behind."""
    nodes = [
        node("StringConcat", "first suffix", "joined"),
        node("LabelEncoder", "joined", "places", keys_strings=["a!", "b!", "c!"], values_int64s=[0, 1, 2]),
        node("RegexFullMatch", "joined", "matched", pattern="[ab]!"),
        node("Gather", "weights places", "rows"),
        node("Cast", "matched", "flags", to=FLOAT),
        node("Mul", "rows flags", "kept"),
        node("Add", "kept x", "y"),
    ]
    weights = helper.make_tensor("weights", FLOAT, [4], [1, 2, 3, 9])
    suffix = helper.make_tensor("suffix", TEXT, [1], [b"!"])
    inputs = {"first": (TEXT, ["n"]), "x": (FLOAT, ["n"])}
    return model(nodes, inputs, {"y": (FLOAT, ["n"]), "joined": (TEXT, ["n"])}, [weights, suffix])


def test_kernels_get_numbers_made_of_text() -> None:
    made = tw.compile(scored(), cache=False, threads=1)
    x = np.arange(4, dtype=np.float32)
    for feeds in (texts("a", "b", "c", "?"), texts("c", "a", "a", "b")):
        expected = ReferenceEvaluator(scored()).run(None, {"first": feeds, "x": x})
        for found in (made(feeds, x), made(x=x, first=feeds), tuple(made.run({"first": feeds, "x": x}).values())):
            np.testing.assert_array_equal(found[0], expected[0])
            assert found[1].tolist() == expected[1].tolist()
    assert [t.name for t in made.inputs] == ["first", "x"] and [t.name for t in made.outputs] == ["y", "joined"]


WORDS = st.lists(st.text("aB ,é", max_size=6), min_size=1, max_size=5)


@given(WORDS, st.sampled_from([None, ",", " ", "aB"]), st.integers(1, 3) | st.none())
def test_texts_are_split_as_the_reference_does(words: list[str], delimiter: str | None, most: int | None) -> None:
    given_ = {"delimiter": delimiter, "maxsplit": most}
    split = node("StringSplit", "x", "y n", **{k: v for k, v in given_.items() if v is not None})
    proto = model([split], {"x": (TEXT, ["n"])}, {"y": (TEXT, ["n", "m"]), "n": (TensorProto.INT64, ["n"])})
    found, counts = tw.compile(proto, cache=False)(texts(*words))
    pieces = [w.split(delimiter, -1 if most is None else most) for w in words]
    assert counts.tolist() == [len(p) for p in pieces] and counts.dtype == np.int64
    width = max(map(len, pieces))
    assert found.shape == (len(words), width) and found.tolist() == [p + [""] * (width - len(p)) for p in pieces]


@pytest.mark.parametrize(("attributes", "expected"), [
    ({}, ["Mo", "tu", "mo"]), ({"case_change_action": "UPPER"}, ["MO", "TU", "MO"]),
    ({"stopwords": ["mo"]}, ["tu"]), ({"stopwords": ["mo"], "is_case_sensitive": 1}, ["Mo", "tu"]),
    ({"stopwords": ["MO", "TU"], "case_change_action": "LOWER"}, [""]),
])  # fmt: skip
def test_texts_are_normalised(attributes: dict[str, Any], expected: list[str]) -> None:
    proto = model([node("StringNormalizer", "x", "y", **attributes)], {"x": (TEXT, None)}, {"y": (TEXT, None)})
    made = tw.compile(proto, cache=False)
    assert made(texts("Mo", "tu", "mo")).tolist() == expected
    assert made(texts(["Mo", "tu", "mo"])).tolist() == [expected]
    with pytest.raises(tw.InputError, match=r"not \[2, 1\]"):
        made(texts(["Mo"], ["tu"]))


def normalised() -> onnx.ModelProto:
    """Text in, and pieces of it, their counts and what they match out."""
    nodes = [
        node("StringNormalizer", "x", "a", case_change_action="LOWER", stopwords=["mo", "tu"]),
        node("StringSplit", "a", "y n", delimiter=" ", maxsplit=2),
        node("RegexFullMatch", "y", "m", pattern="[a-z]+(x|y)*"),
    ]
    outputs = {"y": (TEXT, None), "n": (TensorProto.INT64, None), "m": (TensorProto.BOOL, None)}
    return model(nodes, {"x": (TEXT, None)}, outputs)


def test_damaged_models_of_text_are_refused_or_run() -> None:
    """No error but those of the compiler and of inputs."""
    files, n_refused = [scored().SerializeToString(), normalised().SerializeToString()], 0
    for seed in range(300):
        rng, content = np.random.default_rng(seed), files[seed % 2]
        damaged = bytearray(content if rng.random() < 0.9 else content[: rng.integers(8, len(content))])
        for _ in range(int(rng.integers(1, 4))):
            damaged[int(rng.integers(len(damaged)))] = int(rng.choice([0, 1, 127, 255, rng.integers(256)]))
        try:
            edge = text_edge_of(read_model(bytes(damaged)))
            if edge is not None and edge.rest is None:
                TextModel(edge, None, 1)(texts("a", "mo b", "c"))
        except (tw.ImportFailed, tw.InputError):
            n_refused += 1
    assert n_refused >= 50


def test_what_a_node_lacks_is_told() -> None:
    lacking = [node("LabelEncoder", "x", "y", keys_strings=["a"]), node("LabelEncoder", "x", "y")]
    for encoder in lacking:
        with pytest.raises(tw.ImportFailed, match="LabelEncoder: its attributes can't be"):
            tw.compile(model([encoder], {"x": (TEXT, [2])}, {"y": (TensorProto.INT64, [2])}), cache=False)
    three = model([node("StringConcat", "x x x", "y")], {"x": (TEXT, [2])}, {"y": (TEXT, [2])})
    with pytest.raises(tw.ImportFailed, match="StringConcat"):
        tw.compile(three, cache=False)


REFUSED = {
    "text made of numbers": (
        [node("LabelEncoder", "x", "name", keys_int64s=[1], values_strings=["one"]),
         node("StringConcat", "name name", "y")],
        {"x": (TensorProto.INT64, [2])}, TEXT,
    ),
    "a node of numbers reads text": (
        [node("StringConcat", "x x", "z"), node("Cast", "z", "y", to=FLOAT)], {"x": (TEXT, [2])}, FLOAT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_text_between_kernels_is_refused(what: str) -> None:
    nodes, inputs, kind = REFUSED[what]
    with pytest.raises(tw.ImportFailed, match=r"StringConcat.*works on strings, which Python does where all"):
        tw.compile(model(nodes, inputs, {"y": (kind, [2])}), cache=False)


def test_what_can_not_be_is_told() -> None:
    matched = model([node("RegexFullMatch", "x", "y", pattern="(")], {"x": (TEXT, [2])}, {"y": (TensorProto.BOOL, [2])})
    with pytest.raises(tw.ImportFailed, match="RegexFullMatch: its attributes can't be"):
        tw.compile(matched, cache=False)
    made = tw.compile(scored(), cache=False, threads=1)
    with pytest.raises(tw.InputError, match="not all elements are strings"):
        made(np.array([1, 2], object), np.zeros(2, np.float32))
    with pytest.raises(tw.InputError, match="has the shape"):
        made(texts(["a"]), np.zeros(1, np.float32))
    with pytest.raises(tw.InputError, match="the model takes first, x"):
        made(texts("a"))
    with pytest.raises(tw.OptionError, match="reads text"):
        made.save("texts.tw")
