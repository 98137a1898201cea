"""Batches that caches don't keep are computed part by part, by ops that treat each of their rows alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import random_graph
from ops.oracle import as_tuple, samples_of
from test_every_op import assert_close
from tilewright import ops
from tilewright.build import driver
from tilewright.build.options import Options
from tilewright.build.passes import graph_passes
from tilewright.core import types
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs, Builder, Graph, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.passes import run_pipeline
from tilewright.core.types import TensorType, product, tensor_type_of
from tilewright.core.verify import verify
from tilewright.graph.forms.in_parts import Batch, InParts, divisors
from tilewright.graph.rows import attrs_of_part, is_by_rows, row_type
from tilewright.target.target import Target

TIGHT = InParts(multiplies=1 << 20, l2_bytes=12 << 10, llc_bytes=13 << 10, call_cycles=1)
"""A machine that computes at once and whose caches keep an image or two of those below."""
TIGHTEST = replace(TIGHT, l2_bytes=64, llc_bytes=96)
RNG = np.random.default_rng(3)


class Net:
    """A network of channels-last images, layer by layer."""

    def __init__(self, batch: int | Sym, side: int = 8, channels: int = 8) -> None:
        self.b = Builder(Pool())
        self.x = self.y = self.b.pool.input("x", TensorType(types.f32, (batch, side, side, channels)))

    def conv(self, n_out: int = 8, stride: int = 1) -> Net:
        w = RNG.standard_normal((n_out, self.y.shape[-1], 3, 3)).astype(np.float32) / 8
        attrs = {"strides": [stride] * 2, "pads": [(1, 1)] * 2, "dilations": [1, 1], "groups": 1, "layout": "NHWC"}
        self.y = self.b(ops.conv, self.y, self.b.const(w), **attrs)
        return self

    def relu(self) -> Net:
        self.y = self.b(ops.maximum, self.y, self.b.const(0.0, types.f32))
        return self

    def residual(self) -> Net:
        before = self.y
        self.conv(self.y.shape[-1]).y = self.b(ops.add, self.y, before)
        return self

    def rolled(self) -> Net:
        """What needs the whole batch: every image becomes its neighbour."""
        self.y = self.b(ops.roll, self.y, axes=(0,), shifts=(1,))
        return self

    def flat(self) -> Net:
        self.y = self.b(ops.reshape, self.y, shape=(self.y.shape[0], product(self.y.shape[1:])))
        return self

    def sums(self) -> Net:
        self.y = self.b(ops.reduce_sum, self.y, axes=(1, 2), keepdims=True)
        return self

    def graph(self, *more: Node) -> Graph:
        outputs = (self.y, *more)
        return Graph("net", self.b.pool, (self.x,), outputs, tuple(f"y{k}" for k in range(len(outputs))))


LAYERS = (Net.conv, Net.relu, Net.residual, Net.rolled, Net.sums)


def runs_of(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes() if n.op is ops.map_parts]


def images(graph: Graph) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(graph.inputs[0].shape).astype(np.float32)


def assert_same(made: Graph, graph: Graph) -> None:
    verify(made)
    x = images(graph)
    for got, want in zip(evaluate_graph(made, [x]), evaluate_graph(graph, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_what_caches_do_not_keep_is_computed_in_parts() -> None:
    graph = Net(4).conv().relu().residual().conv(4).graph()
    made = TIGHT.run(graph)
    (run,) = runs_of(made)
    assert run.attrs["n_parts"] == 4 and run.attrs["n_cut"] == 1
    assert {n.op for n in run.attrs["body"].nodes()} > {ops.conv, ops.maximum, ops.add}
    assert_same(made, graph)


def test_what_caches_keep_stays_as_it_is() -> None:
    graph = Net(4).conv().relu().conv().graph()
    assert replace(TIGHT, l2_bytes=1 << 20).run(graph) is graph


def test_weights_larger_than_images_are_read_once() -> None:
    graph = Net(4, side=1, channels=64).conv(64).relu().conv(64).graph()
    assert TIGHT.run(graph) is graph


def test_many_calls_cost_more_than_they_save() -> None:
    graph = Net(4).conv().relu().conv().graph()
    assert replace(TIGHT, call_cycles=1e9).run(graph) is graph
    assert replace(TIGHT, n_cores=2, wake_cycles=1e9).run(graph) is graph


def test_ops_on_rows_alone_are_one_kernel() -> None:
    net = Net(4)
    row = net.sums().y
    net.y = net.b(ops.exp, net.b(ops.sub, net.x, row))
    assert TIGHTEST.run(graph := net.graph()) is graph


def test_threads_take_parts_where_that_is_faster() -> None:
    graph = Net(4).conv().relu().conv().graph()
    machine = replace(TIGHT, n_cores=2, l2_bytes=TIGHT.l2_bytes // 2, wake_cycles=20.0)
    (apart,) = runs_of(machine.run(graph))
    assert apart.attrs["n_threads"] == 2
    assert_same(machine.run(graph), graph)


def test_one_image_and_unknown_batches_stay_whole() -> None:
    for batch in (1, Sym("n", 1)):
        graph = Net(batch).conv().relu().conv().graph()
        assert TIGHT.run(graph) is graph


def test_what_mixes_images_stands_between_runs() -> None:
    graph = Net(4).conv().conv().rolled().conv().conv().graph()
    made = TIGHT.run(graph)
    first, second = runs_of(made)
    assert first.shape[0] == second.shape[0] == 4
    assert not any(n.op is ops.roll for run in (first, second) for n in run.attrs["body"].nodes())
    assert_same(made, graph)


def test_results_on_the_way_leave_a_run_whole() -> None:
    net = Net(4).conv().conv()
    between = net.y
    graph = net.conv().conv().graph(between)
    made = TIGHT.run(graph)
    assert len(runs_of(made)[0].types) == 2
    assert_same(made, graph)


def test_shapes_among_attributes_are_those_of_a_part() -> None:
    """A reshape says how many images there are."""
    net = Net(4).conv().conv().flat()
    flat = net.y
    part = attrs_of_part(flat, [row_type(flat.inputs[0].type, 2)], 2)
    assert part is not None and part["shape"][0] == 2
    graph = net.graph()
    assert_same(TIGHT.run(graph), graph)


@given(st.lists(st.sampled_from(LAYERS), min_size=2, max_size=9), st.sampled_from([2, 3, 4, 6]), st.booleans())
@settings(max_examples=25)
def test_random_nets(layers, batch: int, has_more: bool) -> None:
    """Whatever is cut, the results stay; native code of the graph in parts agrees too."""
    net = Net(batch, side=5, channels=4)
    kept = []
    for layer in layers:
        layer(net)
        kept.append(net.y)
    graph = net.graph(*(kept[:1] if has_more else ()))
    made = TIGHT.run(graph)
    assert_same(made, graph)
    if runs_of(made):
        x = images(graph)
        found = driver.compile_graph(made, threads=1).run({"x": x})
        for got, want in zip(found.values(), evaluate_graph(graph, [x]), strict=True):
            assert_close(np.asarray(got), want)


def cases() -> list[tuple[OpDef, int]]:
    return [(op, k) for op in ops.ALL if op.samples is not None for k in range(len(samples_of(op)))]


def by_rows(op: OpDef, k: int) -> Node | None:
    """The sample as a node, where it treats rows alone when all operands with as many are cut."""
    sample = samples_of(op)[k]
    pool = Pool()
    node = pool.add(op, [pool.input(f"x{i}", tensor_type_of(a)) for i, a in enumerate(sample.arrays)], sample.attrs)
    if len(node.types) > 1 or not node.type.rank or not isinstance(node.shape[0], int) or node.shape[0] < 2:
        return None
    cut = [i.type.rank > 0 and i.shape[0] == node.shape[0] for i in node.inputs]
    return node if any(cut) and is_by_rows(node, cut) else None


def test_every_op_that_treats_rows_alone_does() -> None:
    """By the reference on one row after the other: of every op of the catalogue, with its own samples."""
    found = set()
    for op, k in cases():
        node = by_rows(op, k)
        if node is None:
            continue
        arrays, n = samples_of(op)[k].arrays, node.shape[0]
        cut = [i.type.rank > 0 and i.shape[0] == n for i in node.inputs]
        operands = [row_type(i.type, 1) if c else i.type for i, c in zip(node.inputs, cut, strict=True)]
        attrs = attrs_of_part(node, operands, 1)
        if attrs is None:
            continue
        (want,) = as_tuple(op.reference(arrays, node.attrs))
        rows = []
        for r in range(n):
            given = [a[r : r + 1] if c else a for a, c in zip(arrays, cut, strict=True)]
            rows += as_tuple(op.reference(given, Attrs(attrs)))
        assert_close(np.concatenate(rows), want)
        found.add(op.name)
    assert {"conv", "max_pool", "add", "reshape", "gather", "winograd_conv"} <= found


@pytest.mark.parametrize(
    ("op", "n_operands", "attrs"),
    [
        (ops.matmul, 2, {}),  # a column of the right operand is in every row
        (ops.einsum, 2, {"equation": "ij,ji->ij"}),
        (ops.transpose, 1, {"perm": (1, 0)}),
        (ops.trilu, 1, {}),  # it counts rows
        (ops.roll, 1, {"axes": (0,), "shifts": (1,)}),
        (ops.reverse, 1, {"axes": (0,)}),
        (ops.cumsum, 1, {"axis": 0}),
        (ops.gather, 2, {"axis": 0}),  # by indices that are rows themselves
    ],
)
def test_ops_that_mix_rows(op: OpDef, n_operands: int, attrs: dict) -> None:
    pool = Pool()
    x = pool.input("x", TensorType(types.f32, (4, 4)))
    operands = [x] * n_operands
    if op is ops.gather:
        operands[1] = pool.input("at", TensorType(types.i64, (4,)))
    node = pool.add(op, operands, attrs)
    assert node.shape[0] == 4 and not is_by_rows(node, [True] * n_operands)


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(s, marks=pytest.mark.slow) for s in range(20, 500))])
def test_random_graphs(seed: int) -> None:
    """Any ops in any order, behind all passes before."""
    random = random_graph(seed)
    machine = Target.parse("x86-64-v3")
    passes = [p for p in graph_passes(Options(target=machine.name), machine) if not isinstance(p, InParts)]
    graph = run_pipeline(random.graph, passes)
    made = TIGHTEST.run(graph)
    verify(made)
    with np.errstate(all="ignore"):
        random.assert_close(evaluate_graph(made, random.arrays))


@pytest.mark.parametrize("lengths", [(3, 1), (1, 3), (2, 2)])
def test_a_kernel_s_nodes_stand_operand_by_operand(lengths: tuple[int, int]) -> None:
    b = Builder(Pool())
    inputs = [b.pool.input(name, TensorType(types.f32, (4, 2))) for name in "xy"]
    chains: list[list[Node]] = []
    for x, length in zip(inputs, lengths, strict=True):
        chains.append([x])
        for _ in range(length):
            chains[-1].append(b(ops.sin, chains[-1][-1]))
    (left, right) = chains
    root = b(ops.add, left[-1], right[-1])
    ((kernel,),) = Batch(Graph("chains", b.pool, tuple(inputs), (root,), ("z",)), 4, TIGHT).stages()
    assert kernel.nodes == (*left[1:], *right[1:], root)


@pytest.mark.parametrize("size", [2**39, 2**31 - 1, 2**61 - 1, 2**63 - 1])
def test_batches_of_any_size_are_divided(size: int) -> None:
    """Damaged files state such sizes; trying each number up to them would not end."""
    found = divisors(size)
    assert found[0] == 1 and found[-1] == size and all(size % n == 0 for n in found)
    for n in range(1, 100):
        assert divisors(n) == [k for k in range(1, n + 1) if n % k == 0]
