"""Models whose structure a call decides: values of inputs, sequences, optionals; one compile serves what it can."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from frontend.onnx_build import BOOL, F32, I64, graph, info, model, node
from tilewright.build.specialize import SpecializedModel
from tilewright.core.diag import CompileError, OptionError
from tilewright.frontend.onnx.given import NeedsCall
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.runtime.errors import InputError

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def compiled(*nodes: onnx.NodeProto, inputs: list[onnx.ValueInfoProto], outputs: list[str] | None = None):
    made = tw.compile(model(nodes, inputs, outputs or ["y"]), cache=False)
    assert isinstance(made, SpecializedModel)
    return made


def n_compiles(made: tw.LoadedModel) -> int:
    return len(made.report()["specialized"])


def test_the_import_names_the_inputs_that_decide() -> None:
    m = model([node("Reshape", ["x", "s"], ["y"])], [info("x", [2, 3, 4]), info("s", [2], I64)], ["y"])
    with pytest.raises(NeedsCall, match="the shape depends on the data") as caught:
        import_onnx(m)
    assert caught.value.inputs == ("s",)


def test_sizes_are_symbols_and_signs_are_not() -> None:
    made = compiled(node("Reshape", ["x", "s"], ["y"]), inputs=[info("x", [2, 3, 4]), info("s", [2], I64)])
    for shape in ([6, 4], [4, 6], [24, 1], [1, 24]):
        np.testing.assert_array_equal(made(X, np.array(shape)), X.reshape(shape))
    assert n_compiles(made) == 1
    np.testing.assert_array_equal(made(X, np.array([-1, 8])), X.reshape(-1, 8))
    np.testing.assert_array_equal(made(X, np.array([0, -1])), X.reshape(2, -1))
    assert n_compiles(made) == 3
    with pytest.raises((InputError, CompileError)):
        made(X, np.array([5, 5]))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_sizes_that_stand_for_the_end(dtype: type) -> None:
    end = np.iinfo(dtype).max
    kinds = [info(name, [3], helper.np_dtype_to_tensor_dtype(np.dtype(dtype))) for name in ("start", "stop")]
    made = compiled(node("Slice", ["x", "start", "stop"], ["y"]), inputs=[info("x", ["n", 3, 4]), *kinds])
    for start, stop in ((1, end), (end, end), (0, 2), (end, 5)):
        found = made(X, np.full(3, start, dtype), np.full(3, stop, dtype))
        np.testing.assert_array_equal(found, X[start:stop, start:stop, start:stop])


def squeezed_where_one() -> list[onnx.NodeProto]:
    """TorchScript's ``squeeze`` of a dimension: dropped where it is one, and so the result's rank depends on it."""
    drop = graph([node("Squeeze", ["x", "one"], ["r"])], [], ["r"], name="drop")
    keep = graph([node("Relu", ["x"], ["r"])], [], ["r"], name="keep")
    return [
        node("Shape", ["x"], ["s"], start=1),
        node("Constant", [], ["one"], value_ints=[1]),
        node("Equal", ["s", "one"], ["is_one"]),
        node("If", ["is_one"], ["y"], then_branch=drop, else_branch=keep),
    ]


def test_sizes_that_decide_a_rank_are_compiled_one_by_one() -> None:
    made = compiled(*squeezed_where_one(), inputs=[info("x", [3, "n"])])
    assert made(X[0, :, :1]).shape == (3,) and made(X[0]).shape == (3, 4)
    assert n_compiles(made) == 2
    with pytest.raises(OptionError, match="its inputs' sizes"):
        made.save("never.tw")
    m = model(squeezed_where_one(), [info("x", [3, "n"])], ["y"])
    assert tw.compile(m, fix_dims={"n": 1}, cache=False)(X[0, :, :1]).shape == (3,)


def test_squeeze_without_axes_drops_what_is_one() -> None:
    made = compiled(node("Squeeze", ["x"], ["y"]), inputs=[info("x", ["n", 1, 4])])
    assert made(X[:1, :1]).shape == (4,) and made(X[:, :1]).shape == (2, 4)


def test_a_branch_that_fits_no_size_waits_for_the_value_that_chooses() -> None:
    """One of two branches suits the sizes of a call: the other is for calls that choose it."""
    branches = [graph([node("Add", ["x", w], ["r"])], [], ["r"], name=w) for w in ("five", "four")]
    nodes = [
        node("Constant", [], ["five"], value_floats=[1.0] * 5),
        node("Constant", [], ["four"], value_floats=[1.0] * 4),
        node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    made = compiled(*nodes, inputs=[info("x", [3, 4]), info("c", [], BOOL)])
    np.testing.assert_array_equal(made(X[0], np.array(False)), X[0] + 1)
    with pytest.raises(CompileError, match="4 and 5"):
        made(X[0], np.array(True))


def test_axes_are_compiled_one_by_one_and_kept() -> None:
    made = compiled(node("ReduceSum", ["x", "a"], ["y"]), inputs=[info("x", [2, 3, 4]), info("a", [1], I64)])
    for axis in (0, 1, -1, 1):
        np.testing.assert_allclose(made(X, np.array([axis])), X.sum(axis, keepdims=True))
    assert n_compiles(made) == 3
    assert {"a": "= [1]"} in made.report()["specialized"]
    with pytest.raises(CompileError, match="axes"):
        made(X, np.array([7]))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("op", ["Expand", "Tile", "Slice", "Split", "TopK", "Range", "ConstantOfShape", "Pad"])
def test_every_value_gives_what_a_constant_gives(op: str) -> None:
    """Symbolic sizes that do not fit a call never give another answer than the values themselves."""
    rng = np.random.default_rng(3)
    x, names = info("x", [1, 3, 4]), ["x", "s"]
    if op in ("Range", "ConstantOfShape"):
        names = ["a", "b", "s"] if op == "Range" else ["s"]
    if op == "Slice":
        names = ["x", "s", "e"]
    outputs = ["y", "z"] if op in ("Split", "TopK") else ["y"]
    width = {"Range": None, "TopK": 1, "Split": 2, "Pad": 6}.get(op, 3)
    small = info("s", [] if width is None else [width], I64)
    inputs = [x] if "x" in names else []
    inputs += [info(k, [], I64) for k in names if k in "ab"] + [small] + ([info("e", [3], I64)] if "e" in names else [])
    split_or_op = node(op, names, outputs, **({"axis": 2} if op == "Split" else {}))
    made = compiled(split_or_op, inputs=inputs, outputs=outputs)
    n_right = 0
    for _ in range(12):
        values = {i.name: _drawn(i, rng, op) for i in inputs}
        known = {k: v for k, v in values.items() if k != "x"}
        try:
            fixed = tw.compile(model([split_or_op], inputs[: "x" in names], outputs, known), cache=False)
            wanted = fixed(*[v for k, v in values.items() if k == "x"])
        except (CompileError, InputError):
            with pytest.raises((CompileError, InputError)):
                made(values)
            continue
        got = made(values)
        for a, b in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, wanted)), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype, known
            np.testing.assert_array_equal(a, b)
        n_right += 1
    assert n_right >= 3


def _drawn(i: onnx.ValueInfoProto, rng: np.random.Generator, op: str) -> np.ndarray:
    shape = tuple(d.dim_value for d in i.type.tensor_type.shape.dim)
    if i.type.tensor_type.elem_type == F32:
        return X[:1].copy()
    if op == "Split":
        first = int(rng.integers(0, 6))
        return np.array([first, 4 - first])
    if op == "Expand":
        return rng.choice([1, 1, 3, 4, 2], shape)
    low, high = {"Slice": (-5, 6), "Pad": (0, 3), "Range": (-3, 9), "TopK": (0, 6)}.get(op, (0, 4))
    return rng.integers(low, high, shape)


def test_sequences_and_optionals_go_in_and_out() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", F32, None)
    made = compiled(node("SequenceInsert", ["s", "x"], ["y"]), inputs=[sequence, info("x", [2, 3, 4])])
    got = made([X, X[0]], X)
    assert [g.shape for g in got] == [(2, 3, 4), (3, 4), (2, 3, 4)]
    assert [g.shape for g in made.run({"s": [], "x": X})["y"]] == [(2, 3, 4)]
    tensor = helper.make_tensor_type_proto(F32, [2, 3, 4])
    optional = helper.make_value_info("o", helper.make_optional_type_proto(tensor))
    has = compiled(node("OptionalHasElement", ["o"], ["y"]), inputs=[optional])
    assert has(X) and not has(None) and not has()


def test_a_branch_that_gives_a_sequence() -> None:
    def branch(op: str) -> onnx.GraphProto:
        return graph([node(op, ["x"], ["r"]), node("SequenceConstruct", ["r"], ["q"])], [], ["q"])

    choose = node("If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs"))
    made = compiled(choose, inputs=[info("x", [2, 3, 4]), info("c", [], BOOL)])
    np.testing.assert_array_equal(made(X, np.array(True))[0], -X)
    np.testing.assert_array_equal(made(-X, np.array(False))[0], X)


def test_mistakes() -> None:
    made = compiled(node("Reshape", ["x", "s"], ["y"]), inputs=[info("x", [2, 3, 4]), info("s", [2], I64)])
    for args, kwargs in (((X,), {}), ((X, np.array([6, 4]), 1), {}), ((X,), {"t": 1}), ((X, np.array([6.0, 4.0])), {})):
        with pytest.raises(InputError):
            made(*args, **kwargs)
    with pytest.raises(InputError):
        made(X[:1], np.array([6, 4]))
    with pytest.raises(OptionError, match="compiled per call"):
        made.save("x.tw")
    assert "compiled per call by s" in repr(made)


def test_large_inputs_never_decide() -> None:
    m = model([node("Reshape", ["x", "s"], ["y"])], [info("x", [2, 3, 4]), info("s", [300], TensorProto.INT64)], ["y"])
    with pytest.raises(CompileError, match="depends on the data"):
        tw.compile(m, cache=False)
