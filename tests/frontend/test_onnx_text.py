"""ONNX models that read text: nodes on text run before the compiled rest, and text in the middle is refused."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from ops.oracle import as_tuple
from tilewright.frontend.onnx.file import read_model
from tilewright.frontend.onnx.text_edge import text_edge_of
from tilewright.runtime.fields import FieldError
from tilewright.runtime.python.text_model import TextModel
from tilewright.runtime.texts import TextPart

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
                TextModel(edge.part, None, 1)(texts("a", "mo b", "c"))
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
    with pytest.raises(tw.ArtifactError, match="reads text"):
        made.export("texts")


def counted(mode: str = "TFIDF") -> onnx.ModelProto:
    """n-grams of words with gaps, weighted, and what kernels make of them."""
    attributes = {
        "mode": mode, "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1, "ngram_counts": [0, 3],
        "ngram_indexes": [0, 1, 3, 2, 4], "pool_strings": ["a", "b", "c", "a", "b", "b", "b"],
        "weights": [0.5, 2.0, 3.0, 1.0, 0.25],
    }  # fmt: skip
    nodes = [node("TfIdfVectorizer", "x", "n", **attributes), node("MatMul", "n w", "y")]
    w = helper.make_tensor("w", FLOAT, [5, 2], range(10))
    return model(nodes, {"x": (TEXT, ["rows", "words"])}, {"y": (FLOAT, ["rows", 2]), "n": (FLOAT, ["rows", 5])}, [w])


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("seed", range(3))
def test_pieces_of_texts_are_counted_as_onnx_runtime_does(mode: str, seed: int) -> None:
    words = np.random.default_rng(seed).choice(["a", "b", "c", "d"], (3, 6)).astype(object)
    expected = ort.InferenceSession(counted(mode).SerializeToString()).run(None, {"x": words})
    for found, wanted in zip(tw.compile(counted(mode), cache=False, threads=1)(words), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_weights_are_those_of_the_pieces_of_numbers_too() -> None:
    attributes = {
        "mode": "TFIDF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "ngram_counts": [0],
        "ngram_indexes": [1, 2, 0], "pool_int64s": [5, 6, 7], "weights": [0.5, 2.0, 3.0],
    }  # fmt: skip
    given_ = {"x": (TensorProto.INT64, [1, 5])}
    proto = model([node("TfIdfVectorizer", "x", "y", **attributes)], given_, {"y": (FLOAT, [1, 3])})
    x = np.array([[5, 7, 7, 6, 7]])
    (expected,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(tw.compile(proto, cache=False, threads=1)(x), expected)


SAVED = {
    "kernels behind text": (scored, (texts("a", "b", "?"), np.arange(3, dtype=np.float32))),
    "text alone": (normalised, (texts("Mo", "a b", "tu xy"),)),
    "counts": (counted, (texts(["a", "b"], ["b", "b"]),)),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_file_holds_the_part_on_text(name: str, tmp_path: Path) -> None:
    """Loaded in a process that can't compile: the compiler's modules are not imported."""
    make, given_ = SAVED[name]
    made = tw.compile(make(), cache=False, threads=1)
    made.save(tmp_path / "model.tw")
    np.save(tmp_path / "x.npy", given_[0])
    loaded = tw.load(tmp_path / "model.tw", threads=1)
    for found, wanted in zip(as_tuple(loaded(*given_)), as_tuple(made(*given_)), strict=True):
        assert found.dtype == wanted.dtype and found.tolist() == wanted.tolist()
    loaded.save(tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == (tmp_path / "model.tw").read_bytes()
    code = f"import sys, tilewright as tw; tw.load({str(tmp_path / 'model.tw')!r}); "
    code += "assert not any(m.startswith(('onnx', 'tilewright.core', 'tilewright.build')) for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_model_that_calls_decide_has_no_file(tmp_path: Path) -> None:
    nodes = [node("StringSplit", "x", "p n"), node("Cast", "n", "y", to=FLOAT)]
    made = tw.compile(model(nodes, {"x": (TEXT, None)}, {"y": (FLOAT, None)}), cache=False, threads=1)
    with pytest.raises(tw.ArtifactError, match="compiled per call"):
        made.save(tmp_path / "model.tw")


@pytest.mark.parametrize(("old", "new", "rule"), [
    ("StringConcat", "eval", "the attributes of the text node 'eval'"), ('"[ab]!"', '"("', "can't be"),
    ('"inputs":["joined"]', '"inputs":["nobody"]', "which nothing makes"),
    ('"shape":[3]', '"shape":[-3]', "another number of values"),
    ('"int64"', '"object"', "is of 'object'"), ('"first":["n"]', '"second":["n"]', "is no input"),
])  # fmt: skip
def test_a_damaged_part_on_text_is_told(old: str, new: str, rule: str) -> None:
    edge = text_edge_of(read_model(scored().SerializeToString()))
    assert edge is not None
    written = edge.part.to_json()
    assert TextPart.from_json(written).to_json() == written and old in written
    with pytest.raises(FieldError, match=re.escape(rule)):
        TextPart.from_json(written.replace(old, new))
