"""Convolutions in groups: every way in which the size of a group meets that of a vector, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import ops
from tilewright.build import driver, texts
from tilewright.build.options import Options
from tilewright.choose.normalize import normalize
from tilewright.core import types
from tilewright.core.compute import Buffer, Computation
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Attrs, Builder, Graph, Pool
from tilewright.core.types import TensorType
from tilewright.target.target import Target

TARGETS = ("native", "x86-64-v3", "x86-64")


def grouped(c_in: int, c_out: int, groups: int, size: int, kernel: int, stride: int, batch: int = 1) -> Graph:
    """Convolution in groups between two plain ones, so that channels come last, with bias and ReLU."""
    rng = np.random.default_rng(c_in * c_out + groups)
    b = Builder(Pool())

    def weight(*shape: int):
        return b.const((rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    def conv(x, w, k, s, g):
        pads = ((k // 2, k // 2),) * 2
        return b(ops.conv, x, w, strides=(s, s), pads=pads, dilations=(1, 1), groups=g)

    x = b.pool.input("x", TensorType(types.f32, (batch, 5, size, size)))
    y = conv(x, weight(c_in, 5, 1, 1), 1, 1, 1)
    y = conv(y, weight(c_out, c_in // groups, kernel, kernel), kernel, stride, groups)
    y = b(ops.relu, b(ops.add, y, weight(c_out, 1, 1)))
    return Graph("grouped", b.pool, (x,), (conv(y, weight(3, c_out, 1, 1), 1, 1, 1),), ("y",))


@pytest.mark.one_in(14)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("precision", "error"), [("fp32", 2e-5), ("bf16", 2e-2)])
@pytest.mark.parametrize(
    ("c_in", "c_out", "groups", "size", "kernel", "stride"),
    [
        (32, 32, 8, 9, 3, 1),  # 4 and 4: whole groups fill a vector
        (32, 32, 4, 12, 3, 2),  # 8 and 8
        (64, 64, 2, 7, 3, 1),  # groups of full vectors
        (64, 64, 4, 7, 3, 2),  # of a full vector each
        (30, 60, 3, 8, 3, 1),  # 20: a vector and a part of one
        (48, 48, 16, 9, 3, 1),  # 3: groups that do not fill a vector
        (60, 120, 30, 6, 3, 1),  # two inputs for four outputs, and half a vector at the end
        (24, 6, 6, 7, 1, 1),  # four inputs for one output
        (17, 51, 17, 5, 5, 1),  # one input for three outputs
        (10, 10, 2, 6, 5, 3),
    ],
)
def test_groups_of_every_size(target, precision, error, c_in, c_out, groups, size, kernel, stride):
    graph = grouped(c_in, c_out, groups, size, kernel, stride)
    x = np.random.default_rng(1).standard_normal((1, 5, size, size)).astype(np.float32)
    (expected,) = evaluate_graph(graph, [x])
    model = driver.compile_graph(graph, target=target, threads=1, precision=precision)
    assert not any("rule broke" in note for k in model.report()["kernels"] for note in k["notes"])
    np.testing.assert_allclose(model(x), expected, rtol=0, atol=error * float(np.abs(expected).max()))


@pytest.mark.parametrize("per_group", [4, 8, 16])
def test_whole_groups_are_shuffled_not_gathered(per_group):
    graph = texts.optimise(grouped(64, 64, 64 // per_group, 14, 3, 1), Options("x86-64-v4"), None)
    assembly = "\n".join(texts.kernel_texts(graph, Options("x86-64-v4"), "asm", "conv"))
    assert "vfmadd" in assembly and "vgather" not in assembly


@pytest.mark.one_in(2)
@pytest.mark.parametrize("per_group", [17, 37, 100, 257])
def test_large_groups_of_any_size_share_each_input(per_group):
    graph = texts.optimise(grouped(2 * per_group, 2 * per_group, 2, 7, 1, 1), Options("x86-64-v4"), None)
    assembly = "\n".join(texts.kernel_texts(graph, Options("x86-64-v4"), "asm", "conv"))
    assert "vfmadd" in assembly and "vgather" not in assembly and "idiv" not in assembly


@pytest.mark.parametrize("per_group", [8, 16, 32])
def test_groups_of_narrow_products(per_group):
    options = Options("znver4", precision="bf16")
    graph = texts.optimise(grouped(64, 64, 64 // per_group, 14, 3, 1), options, None)
    assert any("vdpbf16ps" in x for x in texts.kernel_texts(graph, options, "asm", "conv"))


@pytest.mark.parametrize(("c_in", "groups", "is_apart"), [(512, 32, True), (512, 1, False), (480, 32, False)])
def test_rows_of_which_groups_read_parts_lie_in_different_sets_of_a_cache(c_in, groups, is_apart):
    """A copy with padding gets rows a line longer where steps of a row would meet the same sets again and again."""
    shapes = ((1, 6, 6, c_in), (64, c_in // groups, 3, 3), (1, 6, 6, 64))
    x, w, y = (Buffer(name, types.f32, shape) for name, shape in zip("xwy", shapes, strict=True))
    attrs = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1), "groups": groups}
    stages = ops.conv.compute((x, w), (y,), Attrs({**attrs, "layout": "NHWC", "out_dtype": None}))
    (copy,) = normalize(Computation((x, w), (y,), stages), Target.parse("x86-64"), (w,)).temps
    assert np.prod(copy.shape) == 8 * 8 * (c_in + 16 * is_apart)
