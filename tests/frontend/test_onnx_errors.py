"""Models that can't be imported: every reason at once, each with its place and a remedy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from frontend.onnx_build import BOOL, F32, graph, info, model, node
from tilewright.core.diag import ImportFailed
from tilewright.frontend.onnx.importer import import_onnx


def problems(m: object) -> list[str]:
    with pytest.raises(ImportFailed) as caught:
        import_onnx(m)  # type: ignore[arg-type]
    return [str(p) for p in caught.value.problems]


def unary(*nodes: onnx.NodeProto, **more: object) -> onnx.ModelProto:
    return model(nodes, [info("x", [2, 3])], ["y"], **more)


def test_all_unsupported_nodes_are_listed() -> None:
    found = problems(
        unary(
            node("Relux", ["x"], ["a"], name="first"),
            node("Softmax", ["a"], ["b"], axis=7),
            node("SparseAttention", ["b"], ["c"], name="third", domain="com.microsoft"),
            node("StringNormalizer", ["c"], ["d"]),
            node("Conv", ["d", "d"], ["y"], name="last", strides=[0]),
        )
    )
    assert len(found) == 3
    assert 'node "first" (Relux)' in found[0] and "opset 20" in found[0] and "nearest supported form: Relu" in found[0]
    assert 'node "third" (SparseAttention)' in found[1] and "without ONNX Runtime's graph optimisations" in found[1]
    assert "works on strings" in found[2]


@pytest.mark.parametrize(
    ("n", "rule"),
    [
        (node("Softmax", ["x"], ["y"], axis=7), "axis 7 is outside of a tensor of rank 2"),
        (node("Softmax", ["x"], ["y"], axs=1), "unknown attribute axs"),
        (node("Softmax", ["x"], ["y"], axis=1.5), "attribute axis is of kind FLOAT, not INT"),
        (node("Gelu", ["x"], ["y"], approximate="erf"), "approximate='erf' is not supported"),
        (node("Add", ["x"], ["y"]), "takes 2 to 2 operands, got 1"),
        (node("Relu", ["x"], ["y", "z"]), "at most 1 results"),
        (node("Add", ["x", ""], ["y"]), "operand 1 is missing"),
        (node("Add", ["x", "nowhere"], ["y"]), 'operand "nowhere" is computed by no node'),
        (node("Cast", ["x"], ["y"], to=8), "attribute to: holds strings, and tensors hold numbers only"),
        (node("Cast", ["x"], ["y"], to=77), "unknown element type code 77"),
        (node("Cast", ["x"], ["y"]), "attribute to is missing"),
        (node("Concat", ["x", "x"], ["y"], axis=2), "axis 2 is outside"),
        (node("Transpose", ["x"], ["y"], perm=[0, 0]), "name one axis twice"),
        (node("ReduceSum", ["x", "x"], ["y"]), "axes depends on the data"),
        (node("MaxPool", ["x"], ["y"], kernel_shape=[2]), "rank 3 to 5"),
        (node("Einsum", ["x"], ["y"], equation="ijk->i"), "ijk"),
        (node("Einsum", ["x"], ["y"], equation="i.->i"), "malformed"),
        (node("BatchNormalization", ["x"] * 5, ["y"], training_mode=0), "batch_norm"),
        (node("Constant", [], ["y"], value_string="a"), "string constants"),
        (node("SequenceAt", ["x", "x"], ["y"]), "must be a sequence"),
        (node("Relu", ["x"], ["y"], domain="made.up"), "imports no opset of domain"),
        (node("Pad", ["x", "x"], ["y"]), "pads depends on the data"),
    ],
)
def test_one_bad_node(n, rule) -> None:
    (found,) = problems(unary(n))
    assert rule in found


def test_every_node_that_reads_strings_says_so() -> None:
    """Inputs and initializers of strings stop nothing but their readers, all of which are listed."""
    words = helper.make_tensor("words", TensorProto.STRING, [1], [b"a"])
    nodes = [
        node("Equal", ["text", "words"], ["a"], name="same"),
        node("StringNormalizer", ["text"], ["b"], name="lower", case_change_action="LOWER"),
        node("Softmax", ["x"], ["c"], name="far", axis=7),
    ]
    inputs = [info("text", [2], TensorProto.STRING), info("x", [2, 3])]
    m = model(nodes, inputs, ["a", "b", "c"])
    m.graph.initializer.append(words)
    found = problems(m)
    assert 'node "same"' in found[0] and 'operand 0 ("text"), 1 ("words") holds strings' in found[0]
    assert "opset 20" in found[1] and "works on strings" in found[1] and "case_change_action" in found[1]
    assert "axis 7" in found[2]
    assert 'input "text"' in found[3] and len(found) == 4


def test_cycle() -> None:
    found = problems(unary(node("Add", ["x", "b"], ["a"], name="n1"), node("Relu", ["a"], ["b"], name="n2"),
                           node("Neg", ["b"], ["y"])))  # fmt: skip
    assert len(found) == 1 and "cycle" in found[0] and "n1" in found[0]


def test_nodes_may_come_in_any_order() -> None:
    m = unary(node("Neg", ["a"], ["y"]), node("Relu", ["x"], ["a"]))
    assert len(import_onnx(m).nodes()) == 3


def test_names_computed_twice() -> None:
    assert "computed twice" in problems(unary(node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])))[0]
    assert "computed twice" in problems(unary(node("Relu", ["x"], ["x"]), node("Neg", ["x"], ["y"])))[0]
    m = unary(node("Add", ["x", "w"], ["y"]), constants={"w": np.zeros(3, np.float32)})
    m.graph.initializer.append(m.graph.initializer[0])
    assert "used twice" in problems(m)[0]


def test_output_that_nothing_computes() -> None:
    assert 'nothing computes the output "y"' in problems(unary(node("Relu", ["x"], ["z"])))[0]


def test_dead_nodes_do_not_matter() -> None:
    assert len(import_onnx(unary(node("Relu", ["x"], ["y"]), node("Unheard", ["x"], ["z"]))).nodes()) == 2


def test_headers() -> None:
    assert "outside of 1 to" in problems(unary(node("Relu", ["x"], ["y"]), opset=999))[0]
    m = unary(node("Relu", ["x"], ["y"]))
    del m.opset_import[:]
    assert "does not say which opset" in problems(m)[0]
    del m.graph.output[:]
    assert "no graph with outputs" in problems(m)[0]


def test_problems_inside_branches_are_listed() -> None:
    branches = [graph([node(op, ["x"], [op])], [], [op], name=op) for op in ("Foo", "Bar")]
    nodes = [node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1], name="choose")]
    found = problems(model(nodes, [info("x", [2]), info("c", [], BOOL)], ["y"]))
    assert any("Foo" in p and 'in node "choose" (If)' in p for p in found)


def test_graphs_nested_too_deep() -> None:
    other = graph([node("Relu", ["x"], ["q"])], [], ["q"])
    body = graph([node("Relu", ["x"], ["r0"])], [], ["r0"])
    for k in range(1, 30):
        n = node("If", ["c"], [f"r{k}"], then_branch=body, else_branch=other)
        body = graph([n], [], [f"r{k}"])
    m = model(body.node, [info("x", [2]), info("c", [], BOOL)], [info("r29", [2], F32)])
    assert any("nested more than" in p for p in problems(m))
