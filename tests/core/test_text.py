"""The text form round-trips exactly and says where a text is wrong."""

import numpy as np
import pytest

from core.tiny import OPS, N, add, call, count, everything, graph_of, neg, reshape, split2, typed
from tilewright.core.diag import CompileError, Loc, ParseError
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Pool
from tilewright.core.text import DumpFolder, SideTable, load_graph, parse_graph, print_graph
from tilewright.core.types import bf16, f32, f64, u64


def round_trip(graph):
    table = SideTable()
    text = print_graph(graph, table)
    again = parse_graph(text, OPS.__getitem__, table.arrays)
    assert print_graph(again, SideTable()) == text
    return again, text


def test_the_form():
    b = Builder(Pool(), Loc("model.py:3 in forward", "model.py", 3))
    x = b.pool.input("x", typed("f32", N, 4))
    y = b(add, x, b(reshape, b(neg, x), shape=[N, 4]))
    _, text = round_trip(graph_of(b.pool, [x], y, b.results(b(split2, x))[1]))
    assert (
        text
        == """\
graph "g" {
  symbol n: 1..64
  %0 = input "x" : f32[n, 4]
  %1 = neg(%0) : f32[n, 4] loc("model.py:3 in forward", "model.py", 3)
  %2 = reshape(%1) {shape = [n, 4]} : f32[n, 4] loc("model.py:3 in forward", "model.py", 3)
  %3 = add(%0, %2) : f32[n, 4] loc("model.py:3 in forward", "model.py", 3)
  %4 = split2(%0) : f32[n, 4], f32[n, 4] loc("model.py:3 in forward", "model.py", 3)
  %5 = proj(%4) {index = 1} : f32[n, 4] loc("model.py:3 in forward", "model.py", 3)
  return "out0": %3, "out1": %5
}
"""
    )


def test_every_kind_of_attribute():
    b = Builder(Pool())
    x = b.pool.input("x", typed("f32", N))
    y = b(everything, x, i=-3, f=float("nan"), fs=[0.1, -0.0, float("-inf"), 1e-300], b=True, s='a"b\n', ss=["é", ""],
          t=bf16, p=[(N, 0), (-1, 2 * N + 1)])  # fmt: skip
    z = b(everything, x, f=-0.0)
    again, text = round_trip(graph_of(b.pool, [x], y, z))
    assert again.outputs[0].attrs == y.attrs
    assert again.outputs[1].attrs == z.attrs
    assert "f = -0.0" in text


@pytest.mark.parametrize("array", [
    np.array([0.1, -0.0, np.inf, 1e-45], np.float32), np.array([np.nan, -np.nan], np.float16),
    np.array([True, False]), np.array([2**64 - 1], np.uint64), np.float64(1 / 3), np.zeros((0, 3), np.int8),
    np.arange(3, dtype=bf16.numpy), np.arange(500, dtype=np.int16).reshape(5, 100), np.arange(90, dtype=bf16.numpy),
    np.arange(500, dtype=bf16.numpy),
], ids=str)  # fmt: skip
def test_constants(array):
    b = Builder(Pool())
    c = b.const(np.asarray(array))
    again, _ = round_trip(graph_of(b.pool, [], c))
    got = again.outputs[0].attrs["data"].array
    assert (got.dtype, got.shape, got.tobytes()) == (np.asarray(array).dtype, np.shape(array), array.tobytes())


def test_symbols_with_bad_or_equal_names():
    b = Builder(Pool())
    dims = [Sym("batch size"), Sym("n", 1), Sym("n", 2, 9), Sym("min"), Sym("s", None, None), Sym("n", 1) * 2 + 1]
    x = b.pool.input("x", typed("f32", *dims))
    again, text = round_trip(graph_of(b.pool, [x], b(neg, x)))
    assert again.outputs[0].shape == tuple(dims)
    assert 'symbol s "batch size": 0..' in text


def test_sub_graphs():
    inner = Builder(Pool())
    ix = inner.pool.input("x", typed("f32", N))
    body = graph_of(inner.pool, [ix], inner(neg, ix), name="body")
    b = Builder(Pool())
    x = b.pool.input("x", typed("f32", N))
    again, text = round_trip(graph_of(b.pool, [x], b(call, x, body=body, n=2), b(count, x, count="k")))
    assert again.outputs[0].attrs["body"].outputs[0].op is neg
    assert text.count("symbol n") == 1


def test_dump_folder(tmp_path):
    big = np.arange(1000, dtype=np.float32)
    b = Builder(Pool())
    x = b.pool.input("x", typed("f32", 1000))
    y = b(add, x, b.const(big))
    folder = DumpFolder(tmp_path / "dump")
    folder.write("00-input", graph_of(b.pool, [x], y), ["add-zero: add at model.py:1"])
    folder.write("01-after", graph_of(b.pool, [x], b(neg, y)))
    assert len(folder.table.arrays) == 1
    again = load_graph(tmp_path / "dump" / "01-after.tw.txt", OPS.__getitem__)
    assert np.array_equal(again.outputs[0].inputs[0].inputs[1].attrs["data"].array, big)


@pytest.mark.parametrize(("text", "constants", "message"), [
    (b"hi", None, "line 1: expected 'graph', found 'hi'"),
    (b"\xff\xfe", None, "is not text"),
    (b'graph "g" {}', b"", r"the constants in m\.npz can't be read"),
    (b'graph "g" {}', b"PK\x03\x04", r"the constants in m\.npz can't be read"),
])  # fmt: skip
def test_files_that_are_no_graph_are_named(tmp_path, text, constants, message):
    path = tmp_path / "m.txt"
    path.write_bytes(text)
    if constants is not None:
        path.with_suffix(".npz").write_bytes(constants)
    with pytest.raises(ParseError, match=message) as e:
        load_graph(path, OPS.__getitem__)
    assert str(path) in str(e.value) and "tilewright ir" in e.value.remedy


GOOD = 'graph "g" {\n  symbol n: 0..\n  %0 = input "x" : f32[n]\n  %1 = neg(%0) : f32[n]\n  return "y": %1\n}\n'


@pytest.mark.parametrize(("old", "new", "message"), [
    ("neg(%0) : f32[n]", "neg(%0) : f32[n, 2]", r"line 4: expected f32\[n\], found 'f32\[n, 2\]'"),
    ("neg(%0)", "nag(%0)", "line 4: expected an op's name, found 'nag"),
    ("neg(%0)", "neg(%7)", "line 4: expected a node that is already defined; %7 is not"),
    ("neg(%0)", "neg(%0) {axis = 1}", "line 4: expected an attribute of neg: it has none"),
    ("f32[n]\n  %1", "f33[n]\n  %1", r"line 3: expected a dtype, found 'f33\[n\]'"),
    ("[n]\n  %1", "[m]\n  %1", r"line 3: expected a declared symbol instead of 'm', found 'm\]'"),
    ("[n]\n  %1", "[n +]\n  %1", "line 3: expected a dimension"),
    ('return "y"', "return y", "line 5: expected a string, found 'y"),
    ("}\n", "} more", "line 6: expected the end of the text, found 'more'"),
    ("}\n", "", "line 6: expected ','"),
    ("%1 = neg", "%1 = const f32[2] (1.0)\n  %2 = neg", "line 4: expected 2 numbers instead of 1"),
    ("%1 = neg", f"%1 = const f32[{10**30}] (1.0)\n  %2 = neg", f"line 4: expected {10**30} numbers instead of 1"),
    ("%1 = neg", "%1 = const f32[-1, -1] (1.0)\n  %2 = neg", "line 4: expected sizes of 0 or more"),
    ("%1 = neg", "%1 = const f32[2] file c0\n  %2 = neg", "line 4: expected a constant of the side table"),
    ("%1 = neg", "%1 = const i8[1] (300)\n  %2 = neg", "line 4: expected numbers that i8 holds"),
])  # fmt: skip
def test_errors_name_the_line(old, new, message):
    assert old in GOOD
    with pytest.raises(ParseError, match=message):
        parse_graph(GOOD.replace(old, new, 1), OPS.__getitem__)


def test_an_edited_text_is_held_to_the_ops_rules():
    text = GOOD.replace("neg(%0) : f32[n]", "neg(%0, %0) : f32[n]")
    with pytest.raises(CompileError, match="takes 1 operands"):
        parse_graph(text, OPS.__getitem__)
    assert parse_graph(GOOD, OPS.__getitem__).outputs[0].dtype is f32
    assert (f64.n_bytes, u64.n_bytes) == (8, 8)
