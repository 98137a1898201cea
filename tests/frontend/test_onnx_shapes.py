"""Shape arithmetic resolves to symbolic dimensions while the model is imported."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, helper

import tilewright as tw
from frontend.onnx_build import (
    F32,
    I64,
    answers,
    check_against_runtime,
    evaluated,
    graph,
    info,
    model,
    node,
    runtime_answers,
)
from tilewright import ops
from tilewright.core import expr
from tilewright.core.diag import ImportFailed, OptionError
from tilewright.core.expr import Sym, to_text
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.frontend.onnx.unify import solve
from tilewright.runtime.errors import ExecutionError, InputError

N, S = Sym("N", 1), Sym("S", 1)


def rand(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def const(name: str, *values: int) -> object:
    return node("Constant", [], [name], value_ints=list(values))


def shape_of(m: object, **options: object) -> str:
    g = import_onnx(m, **options)  # type: ignore[arg-type]
    return ", ".join(to_text(d) for d in g.outputs[0].shape)


def flatten_by_arithmetic() -> list[object]:
    """Reshape to [N, S * 4] spelled as exporters do."""
    return [
        node("Shape", ["x"], ["s"]),
        const("zero", 0), const("one", 1), const("far", 2**63 - 1),
        node("Slice", ["s", "one", "far", "zero"], ["tail"]),
        node("ReduceProd", ["tail"], ["flat"], keepdims=1),
        node("Gather", ["s", "zero"], ["batch"]),
        node("Concat", ["batch", "flat"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]  # fmt: skip


def test_reshape_by_shape_arithmetic() -> None:
    m = model(flatten_by_arithmetic(), [info("x", ["N", "S", 4])], ["y"], opset=17)
    g = import_onnx(m)
    assert [n.op for n in g.nodes() if n.inputs] == [ops.reshape]
    assert g.outputs[0].shape == (N, S * 4)
    check_against_runtime(m, {"x": rand(2, 3, 4)})


def test_dims_that_are_constants_fold_away() -> None:
    m = model(flatten_by_arithmetic(), [info("x", [2, 3, 4])], ["y"], opset=17)
    g = import_onnx(m)
    assert g.outputs[0].shape == (2, 12) and len(g.nodes()) == 2


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ([node("Reshape", ["x", "t"], ["y"])], "N, 4*S"),
        ([node("Shape", ["x"], ["s"], start=0, end=2), node("ConstantOfShape", ["s"], ["y"])], "N, S"),
        ([node("Size", ["x"], ["k"]), node("Range", ["z", "k", "u"], ["y"])], "4*N*S"),
        ([node("Flatten", ["x"], ["y"], axis=-1)], "N*S, 4"),
        ([node("Unsqueeze", ["x", "a"], ["u1"]), node("Squeeze", ["u1", "a"], ["y"])], "N, S, 4"),
        ([node("Split", ["x"], ["y", "rest"], axis=1, num_outputs=2)], "N, (S + 1) // 2, 4"),
        ([node("Slice", ["x", "a", "far", "a"], ["y"])], "N, S - 1, 4"),
        ([node("Slice", ["x", "far", "neg", "a", "neg1"], ["y"])], "N, S, 4"),
    ],
)  # fmt: skip
def test_symbolic_results(nodes, shape) -> None:
    constants = {
        "t": np.array([0, -1]), "z": np.array(0), "u": np.array(1), "a": np.array([1]),
        "far": np.array([2**63 - 1]), "neg": np.array([-(2**63)]), "neg1": np.array([-1]),
    }  # fmt: skip
    m = model(nodes, [info("x", ["N", "S", 4])], ["y"], constants)
    assert shape_of(m) == shape
    x = rand(2, 3, 4)
    (y,) = answers(m, {"x": x})
    assert y.shape == tuple(eval(shape, {"N": 2, "S": 3}) if "," in shape else (eval(shape, {"N": 2, "S": 3}),))  # noqa: S307


def test_expand_with_where_over_minus_one() -> None:
    """The form of ``torch.expand``: -1 in the requested shape becomes the operand's dimension."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Concat", ["n", "minus", "four"], ["want"], axis=0),
        node("Equal", ["want", "minus1"], ["free"]),
        node("Where", ["free", "ones", "want"], ["to"]),
        node("Expand", ["x", "to"], ["y"]),
    ]
    constants = {
        "zero": np.array([0]), "minus": np.array([-1]), "four": np.array([4]),
        "minus1": np.array([-1, -1, -1]), "ones": np.array([1, 1, 1]),
    }  # fmt: skip
    m = model(nodes, [info("x", ["N", 1, 1])], ["y"], constants)
    assert shape_of(m) == "N, 1, 4"
    check_against_runtime(m, {"x": rand(3, 1, 1)})


def test_sizes_scaled_in_floating_point() -> None:
    """The form of ``interpolate``: sizes pass through Cast, Mul and Floor in f32."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Cast", ["s"], ["f"], to=F32),
        node("Mul", ["f", "k"], ["scaled"]),
        node("Floor", ["scaled"], ["fl"]),
        node("Cast", ["fl"], ["sizes"], to=I64),
        node("ConstantOfShape", ["sizes"], ["y"]),
    ]
    m = model(nodes, [info("x", ["N", 5, "H"])], ["y"], {"k": np.array([1.0, 0.5, 1.5], np.float32)})
    assert shape_of(m) == "N, 2, (3*H) // 2"


def test_position_table_bounds_the_symbol() -> None:
    """A table of 16 rows cut to the sequence: the symbol must stay within it, and the graph says so."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "one"], ["n"]),
        node("Slice", ["table", "zero", "n", "zero"], ["rows"]),
        node("Add", ["x", "rows"], ["y"]),
    ]
    constants = {"one": np.array([1]), "zero": np.array([0]), "table": rand(16, 4)}
    m = model(nodes, [info("x", ["N", "S", 4])], ["y"], constants)
    g = import_onnx(m)
    assert g.outputs[0].shape == (N, Sym("S", 1, 16), 4)
    check_against_runtime(m, {"x": rand(2, 3, 4)})


def test_data_dependent_shape_is_a_problem() -> None:
    m = model([node("Reshape", ["x", "t"], ["y"])], [info("x", [4]), info("t", [2], I64)], ["y"])
    with pytest.raises(ImportFailed) as caught:
        import_onnx(m)
    (problem,) = caught.value.problems
    assert "the shape depends on the data" in problem.rule and "input_shapes" in problem.remedy


def test_moving_window_of_known_size() -> None:
    nodes = [node("Add", ["at", "two"], ["end"]), node("Slice", ["x", "at", "end", "axis"], ["y"])]
    m = model(nodes, [info("x", [3, 8]), info("at", [1], I64)], ["y"], {"two": np.array([2]), "axis": np.array([1])})
    for at in (0, 3, -4):
        check_against_runtime(m, {"x": rand(3, 8), "at": np.array([at])})


def test_nonzero_has_a_symbol_of_its_own() -> None:
    m = model([node("NonZero", ["x"], ["i"]), node("Transpose", ["i"], ["y"])], [info("x", ["N", 3])], ["y"])
    g = import_onnx(m)
    assert g.outputs[0].shape[1] == 2
    x = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    np.testing.assert_array_equal(evaluated(g, {"x": x})[0], np.argwhere(x))


# --- dimensions of inputs -------------------------------------------------------------------------------------------


def identity(shape: list[object], *others: list[object]) -> object:
    inputs = [info(f"x{k}", s) for k, s in enumerate((shape, *others))]  # type: ignore[arg-type]
    return model([node("Identity", ["x0"], ["y"])], inputs, ["y"])


def test_unknown_dims_get_names_of_their_own() -> None:
    assert shape_of(identity([None, 3, None])) == "x0_d0, 3, x0_d2"


def test_names_become_identifiers() -> None:
    g = import_onnx(identity(["batch size", "1st", "class", "é"]))
    names = [d.name for d in g.inputs[0].shape]  # type: ignore[union-attr]
    assert len(set(names)) == 4 and all(n.isidentifier() and n.isascii() for n in names)
    assert all(d.lo == 1 and d.hi is None for d in g.inputs[0].shape)  # type: ignore[union-attr]


def test_a_name_may_be_a_sum() -> None:
    g = import_onnx(identity(["past", 4], ["past + 1"]))
    past = Sym("past", 1)
    assert g.inputs[0].shape == (past, 4) and g.inputs[1].shape == (past + 1,)


def test_input_shapes() -> None:
    m = identity(["N", "S"], ["N"])
    g = import_onnx(m, input_shapes={"x0": [2, "T"]})
    assert g.inputs[0].shape == (2, Sym("T", 1)) and g.inputs[1].shape == (2,)
    assert shape_of(m, input_shapes={"x0": [None, 7]}) == "N, 7"


def test_input_without_rank() -> None:
    m = model([node("Relu", ["x"], ["y"])], [info("x", None)], ["y"])
    with pytest.raises(ImportFailed, match="does not say its rank"):
        import_onnx(m)
    assert shape_of(m, input_shapes={"x": ["N", 2]}) == "N, 2"


@pytest.mark.parametrize(
    ("shapes", "rule"),
    [
        ({"z": [1]}, "names no input"),
        ({"x0": [1]}, "has 2 dimensions"),
        ({"x0": [2, 5]}, "dimension 1 is 3 in the model and 5"),
        ({"x0": [-1, 3]}, "negative"),
        ({"x0": [2, 3], "x1": [4]}, "fixed to 4 here and to 2 elsewhere"),
    ],
)
def test_wrong_input_shapes(shapes, rule) -> None:
    with pytest.raises(ImportFailed, match=rule):
        import_onnx(identity(["N", 3], ["N"]), input_shapes=shapes)


def test_initializers_listed_as_inputs_are_constants() -> None:
    m = model([node("Add", ["x", "w"], ["y"])], [info("x", [2]), info("w", [2])], ["y"], {"w": rand(2)})
    assert import_onnx(m).input_names == ("x",)


def test_inputs_that_are_no_tensors() -> None:
    m = model([node("Identity", ["x"], ["y"])], [helper.make_tensor_sequence_value_info("x", F32, [2])], ["y"])
    with pytest.raises(ImportFailed, match="is a sequence, and the call says"):
        import_onnx(m)
    with pytest.raises(ImportFailed, match="holds strings, and tensors hold numbers only"):
        import_onnx(model([node("Identity", ["x"], ["y"])], [info("x", [2], TensorProto.STRING)], ["y"]))


def test_dimensions_that_nodes_need_equal_become_one() -> None:
    """Unnamed dimensions of two inputs that are added, multiplied by weights and joined."""
    nodes = [node("Add", ["a", "b"], ["s"]), node("MatMul", ["s", "w"], ["m"]), node("Conv", ["m", "k"], ["y"])]
    constants = {"w": rand(4, 5), "k": rand(2, 3, 1)}
    inputs = [info("a", [None, None, None]), info("b", ["batch", "c", "t"])]
    m = model(nodes, inputs, ["y"], constants)
    g = import_onnx(m)
    assert [[to_text(d) for d in n.shape] for n in g.inputs] == [["batch", "3", "4"]] * 2
    check_against_runtime(m, {"a": rand(2, 3, 4), "b": rand(2, 3, 4)})


def test_a_size_that_alone_makes_dimensions_equal() -> None:
    """Exporters keep a name for what they traced as one: only n=1 makes 2*n of rows of two."""
    nodes = [node("Concat", ["x", "x"], ["twice"], axis=0), node("Add", ["twice", "two"], ["y"])]
    m = model(nodes, [info("x", ["n", 3])], ["y"], {"two": np.ones((2, 3), np.float32)})
    assert [i.shape for i in import_onnx(m).inputs] == [(1, 3)]


def halved_and_doubled(times: int) -> onnx.ModelProto:
    """A map halved ``times`` times (rounded up), and once more and doubled, added: as detectors join their scales."""
    half = {"kernel_shape": [1], "strides": [2]}
    nodes = [node("MaxPool", [f"x{k}" if k else "x"], [f"x{k + 1}"], **half) for k in range(times + 1)]
    nodes += [
        node("Resize", [f"x{times + 1}", "", "scales"], ["back"], mode="nearest"),
        node("Add", ["back", f"x{times}"], ["y"]),
    ]
    return model(nodes, [info("x", [1, 2, "w"])], ["y"], {"scales": np.array([1, 1, 2], np.float32)})


@pytest.mark.parametrize("times", [1, 3, 4])
def test_sizes_that_only_multiples_make_equal(times: int) -> None:
    m, n = halved_and_doubled(times), 2 ** (times + 1)
    (x,) = import_onnx(m).inputs
    assert x.shape == (1, 2, n * Sym(f"w_by_{n}", 1))
    check_against_runtime(m, {"x": rand(1, 2, 3 * n)})
    made = tw.compile(m, cache=False)
    assert made(rand(1, 2, 5 * n)).shape == (1, 2, 10)
    with pytest.raises(InputError, match=f"w_by_{n}"):
        made(rand(1, 2, 5 * n + 1))


def test_a_size_from_a_number_on() -> None:
    """The first eight columns beside eight numbers: any width of eight and more, not only its multiples."""
    nodes = [node("Slice", ["x", "zero", "eight", "one"], ["first"]), node("Add", ["first", "c"], ["y"])]
    constants = {"zero": np.array([0]), "eight": np.array([8]), "one": np.array([1]), "c": rand(8)}
    m = model(nodes, [info("x", ["b", "n"])], ["y"], constants)
    assert import_onnx(m).inputs[0].shape[1] == Sym("n", 8)
    for n in (8, 9, 13, 16):
        check_against_runtime(m, {"x": rand(2, n)})
    with pytest.raises(InputError, match="n is 5; the model is compiled for at least 8"):
        tw.compile(m, cache=False)(rand(2, 5))
    with pytest.raises(InputError, match="or for this size alone"):  # which stretches one column to eight
        tw.compile(m, cache=False)(rand(2, 1))
    got = tw.compile(m, fix_dims={"n": 1}, cache=False)(rand(2, 1))
    np.testing.assert_allclose(got, *runtime_answers(m, {"x": rand(2, 1)}))


@given(st.integers(1, 12), st.integers(0, 9), st.integers(1, 9), st.integers(1, 60), st.booleans())
@example(1, 1, 2, 1, True)
def test_sizes_are_narrowed_no_more_than_a_limit_asks(scale: int, more: int, by: int, most: int, is_cut: bool) -> None:
    """Positions cut to ``(scale * n + more) // by`` of ``most``: all sizes fit for which that is within the table."""
    n = Sym("n", 1)
    size = (n * scale + more) // by
    cut = expr.minimum(size, most)
    found = solve([(cut, size if is_cut else most)], {n}).get(n, n)
    sizes = [(k, expr.evaluate(size, {n: k})) for k in range(1, 600)]
    fits = [k for k, d in sizes if (d <= most if is_cut else d >= most)]
    if isinstance(found, int):
        assert fits[:2] == [found]
    elif fits and cut != size:
        assert isinstance(found, Sym) and fits == [k for k in range(1, 600) if found.lo <= k <= (found.hi or k)]


@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_calls_without_a_row_have_results_without_one(op: str) -> None:
    x, w = ((8,), rand(8, 3)) if op == "MatMul" else ((8, 5, 5), rand(3, 8, 3, 3))
    m = model([node(op, ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])], [info("x", ["b", *x])], ["y"], {"w": w})
    made = tw.compile(m, cache=False)
    for b in (0, 2, 0, 0, 0, 1):
        np.testing.assert_allclose(made(v := rand(b, *x)), runtime_answers(m, {"x": v})[0], rtol=1e-4, atol=1e-4)
    out = np.zeros((0, *made(rand(1, *x)).shape[1:]), np.float32)
    assert made(rand(0, *x), out=out) is out
    summed = model([node("ReduceSum", ["x"], ["y"], keepdims=0)], [info("x", ["b", *x])], ["y"])
    with pytest.raises(InputError, match="b is 0"):  # a sum of nothing is a result with an element
        tw.compile(summed, cache=False)(rand(0, *x))


def test_a_size_up_to_a_number() -> None:
    nodes = [
        node("Shape", ["x"], ["n"]), node("Min", ["n", "most"], ["m"]), node("Expand", ["one", "m"], ["row"]),
        node("Add", ["x", "row"], ["y"]),
    ]  # fmt: skip
    m = model(nodes, [info("x", ["n"])], ["y"], {"most": np.array([9]), "one": np.ones(1, np.float32)})
    assert import_onnx(m).inputs[0].shape == (Sym("n", 1, 9),)
    check_against_runtime(m, {"x": rand(7)})


def test_signs_are_no_names() -> None:
    """Some exporters call every size "?" or "_"."""
    m = model([node("Relu", ["x"], ["y"])], [info("x", ["_", "_", "?"])], ["y"])
    assert len(set(import_onnx(m).inputs[0].shape)) == 3


def test_fixed_dimensions_are_known_from_the_start() -> None:
    """With m=3 there is nothing to broadcast; without, either size could be one."""
    nodes = [node("Reshape", ["x", "flat"], ["row"]), node("Add", ["row", "v"], ["y"])]
    m = model(nodes, [info("x", ["n", "m"])], ["y"], {"flat": np.array([-1]), "v": np.ones(6, np.float32)})
    with pytest.raises(ImportFailed, match="can't be broadcast"):
        import_onnx(m)
    assert [i.shape for i in import_onnx(m, fix_dims={"m": 3}).inputs] == [(2, 3)]
    with pytest.raises(OptionError, match="no symbolic dimension 'k'"):
        import_onnx(m, fix_dims={"k": 3})


def test_dimensions_that_differ_stay_errors() -> None:
    nodes = [node("Add", ["a", "b"], ["s"]), node("Add", ["s", "c"], ["y"])]
    m = model(nodes, [info("a", ["N"]), info("b", [3]), info("c", [4])], ["y"])
    with pytest.raises(ImportFailed, match="3 and 4"):
        import_onnx(m)


WINDOWS = st.tuples(
    st.sampled_from(["Conv", "MaxPool", "AveragePool"]),
    st.integers(1, 5),  # the kernel
    st.integers(1, 3),  # the stride
    st.integers(0, 2),  # the padding on both sides
)


def pictures(layers: list[tuple[str, int, int, int]]) -> onnx.ModelProto:
    """Layers of windows over a row of any length, and the mean of what they leave."""
    nodes = []
    for k, (op, kernel, stride, pad) in enumerate(layers):
        operands = [f"x{k}", f"w{k}"] if op == "Conv" else [f"x{k}"]
        own = {} if op == "Conv" else {"kernel_shape": [kernel]}
        nodes.append(node(op, operands, [f"x{k + 1}"], strides=[stride], pads=[pad, pad], **own))
    nodes.append(node("GlobalAveragePool", [f"x{len(layers)}"], ["y"]))
    weights = {f"w{k}": np.full((2, 2, c[1]), 0.5, np.float32) for k, c in enumerate(layers) if c[0] == "Conv"}
    return model(nodes, [info("x0", [1, 2, "n"])], [info("y", [1, 2, 1])], weights)


def holds(layers: list[tuple[str, int, int, int]], n: int) -> bool:
    """Has every layer a size that it can be called with?"""
    for _, kernel, stride, pad in layers:
        n = (n + 2 * pad - kernel) // stride + 1
        if n < 1:
            return False
    return True


@given(st.lists(WINDOWS.filter(lambda w: 2 * w[3] <= w[1]), min_size=1, max_size=5))
@example([("Conv", 5, 1, 0), ("Conv", 3, 1, 1), ("AveragePool", 2, 1, 0)])
def test_a_picture_too_small_for_a_layer_is_refused(layers: list[tuple[str, int, int, int]]) -> None:
    """Also where the model's results have the same size whatever the picture's is."""
    g = import_onnx(pictures(layers))
    (n,) = g.symbols()
    for size in range(1, 60):
        taken = all(expr.evaluate(rule, {n: size}) >= 0 for rule in g.constraints)
        assert taken == holds(layers, size)


@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool", "LpPool"])
def test_a_window_larger_than_a_fixed_input_is_refused(op: str) -> None:
    """Also by less than a stride, where the count of windows rounds down to 0; a batch of nothing needs no window."""
    own = {} if op == "Conv" else {"kernel_shape": [3]}
    operands, weights = (["x", "w"], {"w": np.ones((2, 2, 3), np.float32)}) if op == "Conv" else (["x"], {})
    layer = node(op, operands, ["y"], name="small", strides=[3], **own)
    with pytest.raises(ImportFailed, match=rf'"small" \({op}\).*a window of 3 .* does not fit into 2'):
        import_onnx(model([layer], [info("x", [1, 2, 2])], [info("y", None)], weights))
    assert import_onnx(model([layer], [info("x", [0, 2, 2])], [info("y", None)], weights)).outputs[0].shape == (0, 2, 0)


def test_a_transposed_convolution_that_leaves_nothing_is_refused() -> None:
    layer = node("ConvTranspose", ["x", "w"], ["y"], name="small", pads=[1, 1])
    weights = {"w": np.ones((2, 2, 1), np.float32)}
    with pytest.raises(ImportFailed, match=r'"small" \(ConvTranspose\).*nothing is left'):
        import_onnx(model([layer], [info("x", [1, 2, 2])], [info("y", None)], weights))
    g = import_onnx(model([layer], [info("x", [1, 2, "n"])], [info("y", None)], weights))
    assert [to_text(c) for c in g.constraints] == ["n - 3"]


def test_a_picture_too_small_is_refused_by_its_least_size() -> None:
    m = pictures([("Conv", 3, 2, 0), ("MaxPool", 3, 2, 0), ("Conv", 5, 1, 0)])
    with pytest.raises(InputError, match="n must be at least 23"):
        tw.compile(m)(rand(1, 2, 20))
    check_against_runtime(m, {"x0": rand(1, 2, 23)})


def test_a_layer_in_a_loop_has_its_least_size_too() -> None:
    body = graph(
        [node("Conv", ["s", "w"], ["c"]), node("ReduceMax", ["c"], ["t"], keepdims=1), node("Add", ["s", "t"], ["u"])],
        [info("s", [1, 1, "n"]), info("e", [1])],
        [info("u", [1, 1, "n"]), info("t", [1, 1, 1])],
        {"w": np.ones((1, 1, 4), np.float32)},
    )
    scan = node("Scan", ["x", "each"], ["y", "all"], body=body, num_scan_inputs=1)
    m = model([scan], [info("x", [1, 1, "n"]), info("each", [3, 1])], [info("y", None), info("all", None)])
    check_against_runtime(m, {"x": rand(1, 1, 4), "each": rand(3, 1)})
    with pytest.raises(ExecutionError, match="n >= 4 must hold"):
        tw.compile(m)(rand(1, 1, 3), rand(3, 1))
    with pytest.raises(InputError, match="at least 3"):
        tw.compile(m)(rand(1, 1, 2), rand(3, 1))


@given(st.integers(2, 6), st.integers(1, 8))
def test_expand_takes_1_or_the_size_that_it_gives(wanted: int, n: int) -> None:
    m = model([node("Expand", ["x", "s"], ["y"])], [info("x", ["n"])], [info("y", None)], {"s": np.array([wanted])})
    if n in (1, wanted):
        check_against_runtime(m, {"x": rand(n)})
    else:
        with pytest.raises(InputError, match="n"):
            answers(m, {"x": rand(n)})


@given(st.lists(st.integers(-6, 5), min_size=1, max_size=3), st.integers(1, 8))
def test_constant_indices_of_a_gather_are_inside(indices: list[int], n: int) -> None:
    """A fixed size that is too small is refused while importing, a symbolic one by the call."""
    for size in (n, "n"):
        gather = node("Gather", ["x", "i"], ["y"])
        m = model([gather], [info("x", [size])], [info("y", None)], {"i": np.array(indices)})
        if all(-n <= k < n for k in indices):
            check_against_runtime(m, {"x": rand(n)})
        else:
            with pytest.raises((InputError, ImportFailed), match=r"n|outside"):
                answers(m, {"x": rand(n)})


def test_a_shape_that_data_decide_has_as_many_elements() -> None:
    nodes = [node("NonZero", ["x"], ["at"]), node("Shape", ["at"], ["s"]), node("Slice", ["s", "one", "two"], ["k"]),
             node("Div", ["k", "two"], ["half"]), node("Concat", ["half", "two"], ["shape"], axis=0),
             node("Squeeze", ["at", "zero"], ["flat"]), node("Reshape", ["flat", "shape"], ["y"])]  # fmt: skip
    m = model(
        nodes,
        [info("x", ["n"])],
        [info("y", None, I64)],
        {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])},
    )
    check_against_runtime(m, {"x": np.ones(4, np.float32)})
    with pytest.raises(ExecutionError, match="must hold where the data decide n_nonzero"):
        tw.compile(m)(np.ones(5, np.float32))
