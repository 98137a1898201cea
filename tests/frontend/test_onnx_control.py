"""Sub-graphs, functions, sequences: If, Loop, Scan, model-local functions and ops defined by functions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fuzz_control
import tilewright as tw
from frontend.onnx_build import (
    BOOL,
    F32,
    I64,
    answers,
    check_against_runtime,
    graph,
    info,
    model,
    node,
    runtime_answers,
)
from tilewright import ops
from tilewright.core import expr
from tilewright.core.diag import ImportFailed
from tilewright.core.expr import Sym
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.runtime.errors import ExecutionError, InputError

X = np.random.default_rng(1).standard_normal((2, 3)).astype(np.float32)
C = info("c", [], BOOL)
BODY_INPUTS = [info("i", [], I64), info("go", [], BOOL)]


def conditional(*, known: bool = False) -> onnx.ModelProto:
    """then: x + w read from outside; else: a nested If over the same."""
    inner = [graph([node(op, ["x", "w"], ["r"])], [], ["r"], name=op) for op in ("Mul", "Sub")]
    then = graph([node("Add", ["x", "w"], ["a"])], [], ["a"], name="then")
    other = graph([node("If", ["c2"], ["b"], then_branch=inner[0], else_branch=inner[1])], [], ["b"], name="else")
    nodes = [node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    constants = {"w": X[0]} | ({"c": np.array(False)} if known else {})
    inputs = [info("x", ["N", 3]), info("c2", [], BOOL)] + ([] if known else [info("c", [], BOOL)])
    return model(nodes, inputs, ["y"], constants)


@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("c2", [True, False])
def test_if(c, c2) -> None:
    check_against_runtime(conditional(), {"x": X, "c": np.array(c), "c2": np.array(c2)})


def test_a_branch_may_name_its_result_as_the_choice_does() -> None:
    branches = [graph([node(op, ["x"], ["y"])], [], ["y"], name=op) for op in ("Neg", "Abs")]
    choice = node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    m = model([choice], [info("x", ["N", 3]), C], ["y"])
    check_against_runtime(m, {"x": X, "c": np.array(True)})


def test_known_condition_takes_the_branch_in_place() -> None:
    g = import_onnx(conditional(known=True))
    assert sum(n.op is ops.if_ for n in g.nodes()) == 1
    check_against_runtime(conditional(known=True), {"x": X, "c2": np.array(True)})


def looped(nodes, outputs, *, trip=True, cond=True, carried=("x",)) -> onnx.ModelProto:
    results = [info("again", [], BOOL), *outputs[1:]]
    body = graph(nodes, [*BODY_INPUTS, info("v", ["N", 3])], results, name="body")
    names = ["trip" if trip else "", "cond" if cond else "", *carried]
    inputs = [info("x", ["N", 3])]
    inputs += [info("trip", [], I64)] if trip else []
    inputs += [info("cond", [], BOOL)] if cond else []
    results = ["y", *(f"z{k}" for k in range(len(outputs) - 2))]
    return model([node("Loop", names, results, body=body)], inputs, results)


def test_loop_with_scanned_rows_and_symbols() -> None:
    nodes = [
        node("Add", ["v", "x"], ["w"]), node("Shape", ["v"], ["s"]), node("Cast", ["s"], ["f"], to=F32),
        node("Identity", ["go"], ["again"]), node("Identity", ["w"], ["row"]),
    ]  # fmt: skip
    m = looped(nodes, ["again", "w", "row", "f"])
    for trips, go in ((3, True), (1, True)):
        check_against_runtime(m, {"x": X, "trip": np.array(trips), "cond": np.array(go)})


def test_while_loop_stops_by_its_condition() -> None:
    nodes = [
        node("Add", ["v", "v"], ["w"]), node("ReduceMax", ["w"], ["top"], keepdims=0),
        node("Constant", [], ["limit"], value_float=50.0), node("Less", ["top", "limit"], ["again"]),
    ]  # fmt: skip
    check_against_runtime(looped(nodes, ["again", "w"], trip=False), {"x": np.abs(X) + 1, "cond": np.array(True)})


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("first", [0, 2, 9])
def test_while_loop_that_counts_has_a_length(first: int, step: int) -> None:
    """What TensorFlow's recurrent layers become: ``while i < n`` with n a size, and weights passed round."""
    nodes = [
        node("Add", ["i_in", "step"], ["i_out"]), node("Identity", ["n_in"], ["n_out"]),
        node("MatMul", ["v", "w_in"], ["v_out"]), node("Identity", ["w_in"], ["w_out"]),
        node("Cast", ["i_out"], ["a"], to=TensorProto.INT32), node("Cast", ["n_in"], ["b"], to=TensorProto.INT32),
        node("Less", ["a", "b"], ["again"]), node("Identity", ["v_out"], ["row"]),
    ]  # fmt: skip
    carried = [info("i_in", [], I64), info("n_in", [], I64), info("v", ["N", 3]), info("w_in", [3, 3])]
    results = ["again", "i_out", "n_out", "v_out", "w_out", "row"]
    body = graph(nodes, [*BODY_INPUTS, *carried], results, {"step": np.array(step)}, name="body")
    outer = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]), node("Less", ["first", "n"], ["go"]),
        node("Loop", ["", "go", "first", "n", "x", "w"], ["i", "m", "y", "u", "rows"], body=body),
    ]  # fmt: skip
    constants = {"zero": np.array(0), "first": np.array(first), "w": np.eye(3, dtype=np.float32) / 2}
    m = model(outer, [info("x", ["N", 3])], ["i", "y", "u", "rows"], constants)
    g = import_onnx(m)
    n = Sym("N", 1)
    assert g.outputs[3].shape[0] == expr.maximum(expr.ceildiv(n - first, step), 0)
    (loop,) = (n for n in g.nodes() if n.op is ops.loop)
    assert loop.attrs.n_carried == 2  # the counter and what is multiplied; the body reads the weights outside
    for rows in (1, 2, 7, 12):
        x = np.ones((rows, 3), np.float32)
        if first < rows:
            check_against_runtime(m, {"x": x})
        else:
            assert answers(m, {"x": x})[3].shape == (0, rows, 3)


def test_loop_whose_carried_size_grows() -> None:
    nodes = [node("Concat", ["v", "x"], ["w"], axis=0), node("Identity", ["go"], ["again"])]
    m = looped(nodes, ["again", "w"])
    (y,) = answers(m, {"x": X, "trip": np.array(3), "cond": np.array(True)})
    np.testing.assert_array_equal(y, np.concatenate([X] * 4))


@pytest.mark.parametrize("trips", [2, None])
def test_sizes_and_ranks_that_change_where_the_trips_are_known(trips: int | None) -> None:
    """Each trip has types of its own: taken in place, where a constant, a call or sizes tell how many there are."""
    steps = [
        node("Concat", ["v", "x"], ["w"], axis=0), node("Unsqueeze", ["r", "zero"], ["q"]),
        node("Identity", ["go"], ["again"]),
    ]  # fmt: skip
    body = graph(
        steps, [*BODY_INPUTS, info("v", None), info("r", None)], ["again", "w", "q"], {"zero": [0]}, name="body"
    )
    loop = node("Loop", ["trip", "", "x", "x"], ["y", "z"], body=body)
    inputs = [info("x", ["N"]), *([info("trip", [], I64)] if trips is None else [])]
    compiled = tw.compile(
        model([loop], inputs, ["y", "z"], {} if trips is None else {"trip": np.array(trips)}), cache=False
    )
    for n in (0, 2) if trips is None else (trips,):
        y, z = compiled(X[0], *([np.array(n)] if trips is None else []))
        np.testing.assert_array_equal(y, np.concatenate([X[0]] * (n + 1)))
        assert z.shape == (*[1] * n, 3)


def test_a_loop_that_grows_once_for_each_row() -> None:
    steps = [node("Concat", ["v", "x"], ["w"], axis=0), node("Less", ["i", "last"], ["again"])]
    body = graph(steps, [*BODY_INPUTS, info("v", None)], ["again", "w"], name="body")
    outer = [
        node("Shape", ["x"], ["s"]), node("Squeeze", ["s"], ["n"]), node("Sub", ["n", "one"], ["last"]),
        node("Loop", ["", "yes", "x"], ["y"], body=body),
    ]  # fmt: skip
    compiled = tw.compile(
        model(outer, [info("x", ["N"])], ["y"], {"one": np.array(1), "yes": np.array(True)}), cache=False
    )
    for n in (1, 3):
        np.testing.assert_array_equal(compiled(X[0, :n]), np.concatenate([X[0, :n]] * (n + 1)))


def test_a_condition_that_asks_for_more_bounds_the_rows() -> None:
    """``while i < 4 and all is small``: how many rows there are data decide, and memory is for four."""
    steps = [
        node("Add", ["v", "v"], ["w"]), node("ReduceMax", ["w"], ["top"], keepdims=0), node("Identity", ["w"], ["row"]),
        node("Less", ["top", "limit"], ["small"]), node("Less", ["i", "three"], ["early"]),
        node("And", ["early", "small"], ["again"]),
    ]  # fmt: skip
    body = graph(steps, [*BODY_INPUTS, info("v", [3])], ["again", info("w", [3]), info("row", [3])], name="body")
    loop = node("Loop", ["", "c", "x"], ["y", "rows"], body=body)
    constants = {"limit": np.float32(50), "three": np.array(3)}
    m = model([loop], [info("x", [3]), C], ["y", "rows"], constants)
    compiled = tw.compile(m, cache=False)
    for scale, c in ((1, True), (9, True), (99, True), (1, False)):
        feeds = {"x": np.abs(X[0]) * scale, "c": np.array(c)}
        for a, b in zip(compiled(*feeds.values()), runtime_answers(m, feeds), strict=True):
            assert a.shape == b.shape
            np.testing.assert_array_equal(a, b)


def test_endless_loop_is_refused() -> None:
    nodes = [node("Neg", ["v"], ["w"]), node("Identity", ["go"], ["again"])]
    with pytest.raises(ImportFailed, match="would never end"):
        import_onnx(looped(nodes, ["again", "w"], trip=False, cond=False))


def test_loop_over_a_sequence_is_unrolled() -> None:
    body = graph(
        [node("SequenceInsert", ["seq", "x"], ["longer"]), node("Identity", ["go"], ["again"])],
        [*BODY_INPUTS, helper.make_tensor_sequence_value_info("seq", F32, None)],
        ["again", helper.make_tensor_sequence_value_info("longer", F32, None)],
        name="body",
    )
    nodes = [
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["trip", "", "none"], ["items"], body=body),
        node("ConcatFromSequence", ["items"], ["y"], axis=1, new_axis=1),
    ]
    m = model(nodes, [info("x", [2, 3])], ["y"], {"trip": np.array(3)})
    (y,) = answers(m, {"x": X})
    np.testing.assert_array_equal(y, np.stack([X] * 3, 1))


@pytest.mark.parametrize("back", [0, 1])
def test_scan(back) -> None:
    """A running sum over axis 1, forwards and backwards, with a tensor read from outside."""
    body = graph(
        [node("Add", ["s", "e"], ["a"]), node("Mul", ["a", "w"], ["t"]), node("Identity", ["t"], ["row"])],
        [info("s", ["N"]), info("e", ["N"])],
        [info("t", ["N"]), info("row", ["N"])],
        name="body",
    )
    options = {"scan_input_axes": [1], "scan_output_axes": [1]}
    options |= {"scan_input_directions": [back], "scan_output_directions": [back]}
    nodes = [node("Scan", ["s0", "x"], ["last", "rows"], body=body, num_scan_inputs=1, **options)]
    m = model(nodes, [info("s0", ["N"]), info("x", ["N", "T"]), info("w", [1])], ["last", "rows"])
    check_against_runtime(m, {"s0": X[:, 0], "x": X, "w": np.array([1.5], np.float32)})


def test_a_loop_in_which_nothing_changes() -> None:
    """Nobody asks for more than what goes in: no iteration is run, and none may be endless."""
    nodes = [node("Identity", ["go"], ["again"]), node("Identity", ["v"], ["w"])]
    m = looped(nodes, ["again", "w"])
    for trips, go in ((2, True), (0, True), (3, False)):
        check_against_runtime(m, {"x": X, "trip": np.array(trips), "cond": np.array(go)})
    assert not any(n.op is ops.loop for n in import_onnx(m).nodes())
    with pytest.raises(ImportFailed, match="would never end"):
        import_onnx(looped(nodes, ["again", "w"], trip=False, cond=False))


@pytest.mark.parametrize("n", [2, None])
def test_the_number_of_the_iteration_has_the_rank_that_the_body_says(n: int | None) -> None:
    nodes = [node("Cast", ["i"], ["row"], to=F32), node("Add", ["v", "row"], ["w"]), node("Identity", ["go"], ["on"])]
    formals = [info("i", [1], I64), info("go", [1], BOOL), info("v", [1])]
    body = graph(nodes, formals, ["on", info("w", [1]), info("row", [1])], name="body")
    inputs = [info("s", [1]), *([info("trip", [1], I64)] if n is None else [])]
    loop = node("Loop", ["trip", "", "s"], ["y", "rows"], body=body)
    m = model([loop], inputs, ["y", "rows"], {} if n is None else {"trip": [n]})
    for trip in (0, 3) if n is None else (n,):
        check_against_runtime(m, {"s": X[0, :1]} | ({"trip": np.array([trip])} if n is None else {}))


def summed(*sizes: int | str) -> onnx.ModelProto:
    """Running sums of the products of a matrix's columns and a vector's elements."""
    nodes = [node("Mul", ["e", "f"], ["p"]), node("Add", ["s", "p"], ["t"]), node("Identity", ["t"], ["row"])]
    body = graph(nodes, [info("s", [2]), info("e", [2]), info("f", [])], ["t", info("row", [2])], name="body")
    options = {"scan_input_axes": [1, 0], "scan_output_axes": [1]}
    scan = node("Scan", ["s0", "x", "f"], ["last", "rows"], body=body, num_scan_inputs=2, **options)
    return model([scan], [info("s0", [2]), info("x", [2, sizes[0]]), info("f", [sizes[1]])], ["last", "rows"])


def test_a_scan_of_no_slices() -> None:
    s0, x = X[:, 0], X[:, :0]
    last, rows = answers(summed(0, 0), {"s0": s0, "x": x, "f": x[0]})
    np.testing.assert_array_equal(last, s0)
    assert rows.shape == (2, 0)


def test_a_scan_has_as_many_slices_of_every_operand() -> None:
    with pytest.raises(ImportFailed, match="scans 3 slices of one operand and 4 of another"):
        import_onnx(summed(3, 4))
    m = summed("N", "M")
    compiled = tw.compile(m, cache=False)
    feeds = {"s0": X[:, 0], "x": X, "f": X[0]}
    np.testing.assert_allclose(compiled(*feeds.values())[1], runtime_answers(m, feeds)[1], rtol=1e-5)
    for rows in (2, 4):
        with pytest.raises(InputError):
            compiled(feeds["s0"], X, np.ones(rows, np.float32))


def test_a_branch_of_a_branch_has_results_of_sizes_that_nobody_asks_for() -> None:
    inner = [
        graph([node("Identity", [v], ["r"]), node("Neg", ["w"], ["s"])], [], ["r", "s"], name=v) for v in ("x", "y")
    ]  # fmt: skip
    choice = node("If", ["c2"], ["unread", "s"], then_branch=inner[0], else_branch=inner[1])
    branches = [graph([choice], [], ["s"], name="then"), graph([node("Abs", ["w"], ["a"])], [], ["a"], name="else")]
    inputs = [info("x", ["N"]), info("y", ["M"]), info("w", [3]), info("c", [], BOOL), info("c2", [], BOOL)]
    m = model([node("If", ["c"], ["z"], then_branch=branches[0], else_branch=branches[1])], inputs, ["z"])
    compiled = tw.compile(m, cache=False)
    for c in (True, False):
        found = compiled(X[0], X[0, :2], X[1], np.array(c), np.array(True))
        np.testing.assert_array_equal(found, -X[1] if c else np.abs(X[1]))


@pytest.mark.one_in(16)
@pytest.mark.parametrize("seed", range(2, 18))
def test_random_control_flow(seed: int) -> None:
    """``make fuzz`` has thousands of them (``fuzz_control``)."""
    assert fuzz_control.check(fuzz_control.COUNT + seed) in ("passed", "refused")


# --- functions ------------------------------------------------------------------------------------------------------


def with_function(body, calls, attributes=("alpha",), **more) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    f = helper.make_function("local", "F", ["a", "b"], ["r"], body, opsets, list(attributes), **more)
    return model(calls, [info("x", [2, 3])], ["y"], functions=[f], opsets=[helper.make_opsetid("local", 1)])


def attribute_reference(n: onnx.NodeProto, name: str, refers_to: str, kind: int) -> onnx.NodeProto:
    n.attribute.add(name=name, ref_attr_name=refers_to, type=kind)
    return n


def test_function_with_attribute_and_default() -> None:
    body = [
        attribute_reference(node("LeakyRelu", ["a"], ["t"]), "alpha", "alpha", onnx.AttributeProto.FLOAT),
        node("Add", ["t", "b"], ["r"]),
    ]
    calls = [
        node("F", ["x", "x"], ["m"], domain="local", alpha=0.5),
        node("F", ["m", "x"], ["y"], domain="local", alpha=0.25),
    ]
    check_against_runtime(with_function(body, calls), {"x": X})
    default = helper.make_attribute("alpha", 0.125)
    calls[1] = node("F", ["m", "x"], ["y"], domain="local")
    check_against_runtime(with_function(body, calls, (), attribute_protos=[default]), {"x": X})


def test_function_that_calls_itself() -> None:
    body = [node("F", ["a", "b"], ["r"], domain="local")]
    with pytest.raises(ImportFailed, match="nested more than"):
        import_onnx(with_function(body, [node("F", ["x", "x"], ["y"], domain="local")]))


def test_problem_inside_a_function_says_where_it_is_called() -> None:
    body = [node("Sofmax", ["a"], ["r"])]
    with pytest.raises(ImportFailed) as caught:
        import_onnx(with_function(body, [node("F", ["x", "x"], ["y"], name="call", domain="local")]))
    text = str(caught.value)
    assert 'in node "call" (F)' in text and "nearest supported form: Softmax" in text


def test_op_without_converter_expands_from_its_definition() -> None:
    grid = node("AffineGrid", ["x", "size"], ["y"])
    m = model([grid], [info("x", [2, 2, 3])], ["y"], {"size": np.array([2, 3, 4, 5])}, opset=20)
    check_against_runtime(m, {"x": np.random.default_rng(0).standard_normal((2, 2, 3)).astype(np.float32)})


@pytest.mark.parametrize("new_axis", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_loop_that_appends_to_sequences(axis: int, new_axis: int) -> None:
    """As PyTorch's exporter writes an EmbeddingBag: how often it runs only a call knows."""
    body = graph(
        [
            node("Reshape", ["i", "minus"], ["at"]), node("Add", ["at", "one"], ["next"]),
            node("Add", ["at", "two"], ["end"]), node("Slice", ["x", "at", "next"], ["row"]),
            node("Slice", ["offsets", "at", "next"], ["first"]), node("Slice", ["offsets", "next", "end"], ["last"]),
            node("Slice", ["x", "first", "last"], ["rows"]),
            node("ReduceSum", ["rows", "zero"], ["total"]),
            node("SequenceInsert", ["before", "total"], ["after"]), node("SequenceInsert", ["more", "row"], ["most"]),
            node("Add", ["i", "step"], ["i_next"]), node("Less", ["i_next", "n"], ["again"]),
        ],
        [info("trip", [], I64), info("c", [], BOOL), info("i", [], I64)],
        ["again", "i_next", "after", "most"],
    )  # fmt: skip
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F32, None))
    body.input.extend(helper.make_value_info(name, sequence) for name in ("before", "more"))
    nodes = [
        node("Shape", ["o"], ["n1"]), node("Squeeze", ["n1"], ["n"]), node("Shape", ["x"], ["rows_x"], end=1),
        node("Concat", ["o", "rows_x"], ["offsets"], axis=0), node("SequenceEmpty", [], ["e1"]),
        node("SequenceEmpty", [], ["e2"]), node("Less", ["start", "n"], ["go"]),
        node("Loop", ["", "go", "start", "e1", "e2"], ["i_end", "totals", "firsts"], body=body),
        node("ConcatFromSequence", ["totals"], ["y"], axis=axis, new_axis=new_axis),
        node("ConcatFromSequence", ["firsts"], ["z"], axis=axis, new_axis=new_axis),
        node("SequenceLength", ["firsts"], ["length"]),
    ]  # fmt: skip
    constants = {
        "minus": np.array([-1]), "one": np.array([1]), "two": np.array([2]), "zero": np.array([0]),
        "start": np.array(0), "step": np.array(1),
    }  # fmt: skip
    m = model(nodes, [info("x", ["r", 3]), info("o", ["k"], I64)], ["y", "z", "length"], constants)
    for offsets in ([0, 2, 5], [0], [0, 1, 2, 3]):
        x = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
        check_against_runtime(m, {"x": x, "o": np.array(offsets)})


def windows(kernel: int, name: str, out: str) -> onnx.GraphProto:
    """A branch with a convolution of the row ``x``, and the greatest element that it gives."""
    nodes = [
        node("Conv", ["x", f"{name}w"], [f"{name}c"], kernel_shape=[kernel]),
        node("ReduceMax", [f"{name}c"], [out], keepdims=1),
    ]  # fmt: skip
    weights = {f"{name}w": np.ones((1, 1, kernel), np.float32)}
    return graph(nodes, [], [info(out, [1, 1, 1])], weights, name=name)


@pytest.mark.parametrize("nested", [False, True])
def test_a_branch_needs_its_sizes_only_where_it_runs(nested: bool) -> None:
    """A call that would run a branch with a window larger than the input fails, and no other does."""
    first, other = windows(4, "then", "a"), windows(2, "else", "b")
    if nested:
        choice = node("If", ["c2"], ["d"], then_branch=first, else_branch=windows(3, "more", "e"))
        first = graph([choice], [], [info("d", [1, 1, 1])], name="outer")
    m = model(
        [node("If", ["c"], ["y"], then_branch=first, else_branch=other)],
        [info("x", [1, 1, "n"]), info("c", [], BOOL), *([info("c2", [], BOOL)] if nested else [])],
        [info("y", [1, 1, 1])],
    )  # fmt: skip
    compiled = tw.compile(m)
    for n in range(1, 6):
        for c in (True, False):
            for c2 in (True, False) if nested else (True,):
                feeds = {"x": X.ravel()[:n].reshape(1, 1, n), "c": np.array(c)} | (
                    {"c2": np.array(c2)} if nested else {}
                )
                if n >= (2 if not c else 4 if c2 else 3):
                    np.testing.assert_allclose(compiled(*feeds.values()), runtime_answers(m, feeds)[0], rtol=1e-5)
                else:
                    with pytest.raises((ExecutionError, InputError), match=r"n >= \d|n must be at least 2"):
                        compiled(*feeds.values())


def test_a_branch_of_a_step_needs_its_sizes_where_it_is_taken() -> None:
    branch = node("If", ["even"], ["t"], then_branch=windows(4, "then", "a"), else_branch=windows(2, "else", "b"))
    body = graph(
        [node("Mod", ["i", "two"], ["rest"]), node("Equal", ["rest", "zero"], ["even"]), branch,
         node("Add", ["s", "t"], ["u"]), node("Identity", ["go"], ["again"])],
        [*BODY_INPUTS, info("s", [1, 1, 1])], [info("again", [], BOOL), info("u", [1, 1, 1])],
        {"two": np.array(2), "zero": np.array(0)},
    )  # fmt: skip
    loop = node("Loop", ["trip", "", "s"], ["y"], body=body)
    inputs = [info("x", [1, 1, "n"]), info("s", [1, 1, 1]), info("trip", [], I64)]
    compiled = tw.compile(model([loop], inputs, [info("y", [1, 1, 1])]))
    start = np.zeros((1, 1, 1), np.float32)
    for n, trip, is_taken in ((4, 3, True), (3, 0, True), (3, 1, False), (2, 2, False)):
        feeds = {"x": np.ones((1, 1, n), np.float32), "s": start, "trip": np.array(trip)}
        if is_taken:
            assert compiled(**feeds).shape == (1, 1, 1)
        else:
            with pytest.raises(ExecutionError, match="n >= 4 must hold"):
                compiled(**feeds)


def test_a_sequence_that_a_loop_fills_is_a_result() -> None:
    """Of a length that inputs decide: the values of a call tell it, as they do where tensors have several shapes."""
    one = node("Constant", [], ["one"], value=helper.make_tensor("one", TensorProto.INT64, [1], [1]))
    steps = [
        one,
        node("Add", ["i", "one"], ["end"]),
        node("Slice", ["x", "zero", "end"], ["part"]),
        node("SequenceInsert", ["seq", "part"], ["more"]),
        node("Identity", ["go"], ["again"]),
    ]
    sequence = helper.make_tensor_sequence_value_info("seq", TensorProto.FLOAT, None)
    more = helper.make_tensor_sequence_value_info("more", TensorProto.FLOAT, None)
    body = graph(steps, [*BODY_INPUTS, sequence], [info("again", [], BOOL), more], {"zero": np.array([0])})
    nodes = [node("SequenceEmpty", [], ["none"], dtype=TensorProto.FLOAT)]
    nodes.append(node("Loop", ["trip", "start", "none"], ["y"], body=body))
    result = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    inputs = [info("x", ["n"]), info("trip", [], I64), info("start", [], BOOL)]
    compiled = tw.compile(model(nodes, inputs, [result]), threads=1, cache=False)
    x = np.arange(5, dtype=np.float32)
    for trip in (3, 1, 2):
        found = compiled(x, np.array(trip), np.array(True))
        assert [a.tolist() for a in found] == [x[: k + 1].tolist() for k in range(trip)]
