"""What goes together: every op's rule beside its reference, and whole nets beside themselves with weights of zero."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from networks import network
from tilewright import ops
from tilewright.core import types
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import CONST, Attrs, Builder, Graph, Node, Pool
from tilewright.core.opdef import OpDef
from tilewright.core.types import Array, tensor_type_of
from tilewright.graph.prune.coupling import Coupling
from tilewright.graph.prune.cut import ADJUST, cut, kept_of
from tilewright.graph.prune.links import STAYS, Ids
from tilewright.graph.prune.rules import RULES

SUMMED = {ops.conv: 1, ops.conv_transpose: 0}
"""The axis of the weights that is summed over, where the other brings channels of the result."""


class Open(Coupling):
    """As if inputs and outputs were tensors in the midst of a graph."""

    def ends(self) -> list[Ids]:
        return []


def is_precise(arrays: Iterable[Array]) -> bool:
    """Are there no numbers of 16 bits, whose sums in another order differ much?"""
    return not any(a.dtype.name in ("float16", "bfloat16") for a in arrays)


def without(array: Array, axis: int, kept: Ids) -> Array:
    """The array with zeros at all other positions of an axis."""
    mask = np.zeros(array.shape[axis], bool)
    mask[kept] = True
    return np.where(mask.reshape([-1 if k == axis else 1 for k in range(array.ndim)]), array, array.dtype.type(0))


def summed_axis(op: OpDef, place: int, rank: int) -> int | None:
    """The axis of operand ``place`` over which a product sums, where it is constant."""
    if op is ops.matmul:
        return rank - 2 + (place == 0)
    return SUMMED.get(op) if place == 1 else None


def equal(got: Array, want: Array) -> None:
    assert got.shape == want.shape
    if not types.dtype_of(want.dtype).is_float:
        np.testing.assert_array_equal(got, want)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * max(1, np.abs(b[np.isfinite(b)]).max(initial=0)))


@pytest.mark.parametrize("op", [*RULES, ops.reshape], ids=lambda op: op.name)
def test_what_is_left_of_a_result_is_made_of_what_is_left_of_operands(op: OpDef) -> None:
    """Each class of positions of each sample is removed in turn; a product's weights are constant and zero there."""
    n_removed = 0
    for sample in list((op.samples or (lambda _: ()))(np.random.default_rng(3)))[:40]:
        arrays = [np.asarray(a) for a in sample.arrays]
        if not is_precise(arrays) or not all(a.size for a in arrays):
            continue
        b = Builder(Pool())
        is_product = op in (ops.matmul, ops.einsum, ops.conv, ops.conv_transpose)
        nodes = [
            b.const(a) if is_product and k == 1 else b.pool.input(f"x{k}", tensor_type_of(a))
            for k, a in enumerate(arrays)
        ]
        node = b(op, *nodes, **sample.attrs)
        if len(node.types) > 1:
            continue
        graph = Graph("g", b.pool, tuple(n for n in nodes if n.op is not CONST), (node,), ("y",))
        coupling = Open(graph)
        tensor = coupling.tensors.outputs[0]
        if len(tensor.inputs) != len(arrays):
            continue
        labels = {int(n) for t in (tensor, *tensor.inputs) for a in t.axes for n in coupling.labels(a)} - {STAYS}
        for label in labels:
            kept = kept_of(coupling, {label})
            if any(not len(k) for x in (tensor, *tensor.inputs) for k in kept[x]):
                continue
            zeroed = list(arrays)
            for place, x in enumerate(tensor.inputs):
                axis = summed_axis(op, place, len(x.axes)) if x.is_constant else None
                if axis is not None:
                    zeroed[place] = without(arrays[place], axis, kept[x][axis])
                elif x.is_constant and op is ops.einsum:
                    # Zero whatever goes: of axes that the result has, the result has them no more.
                    for k in range(len(x.axes)):
                        zeroed[place] = without(zeroed[place], k, kept[x][k])
            left = [a[np.ix_(*kept[x])] for a, x in zip(arrays, tensor.inputs, strict=True)]
            attrs = dict(node.attrs) | (ADJUST[op](tensor, kept) if op in ADJUST else {})
            with np.errstate(all="ignore"):
                want = np.asarray(op.reference(zeroed, node.attrs))[np.ix_(*kept[tensor])]
                got = np.asarray(op.reference(left, Attrs(op.complete_attrs(attrs))))
            equal(got, want)
            n_removed += 1
    assert n_removed, "no sample lets anything be removed: the rule is not tested"


@pytest.mark.parametrize("seed", range(60))
def test_a_net_without_channels_is_the_net_that_does_not_read_them(seed: int) -> None:
    made = next(g for k in range(20) if is_precise((g := network(seed + 1000 * k)).arrays))
    coupling = Coupling(made.graph)
    rng = np.random.default_rng(seed)
    removed: set[int] = set()
    for group in coupling.groups():
        order = rng.permutation(group.labels)
        removed |= set(order[: rng.integers(0, len(order))].tolist())
    kept = kept_of(coupling, removed)
    replaced: dict[Node, Node] = {}
    for p in coupling.products:
        place = p.tensor.inputs.index(p.weights)
        axis = summed_axis(p.tensor.node.op, place, p.weights.rank)
        assert axis is not None
        constant = p.weights.constant()
        assert constant is not None
        array = without(p.weights.array(), axis, kept[p.weights][axis])
        replaced[p.tensor.node] = made.graph.pool.add(
            p.tensor.node.op,
            [made.graph.pool.const(array) if k == place else x.node for k, x in enumerate(p.tensor.inputs)],
            p.tensor.node.attrs,
        )
    new: dict[Node, Node] = {}
    for node in made.graph.nodes():
        base = replaced.get(node, node)
        inputs = tuple(new.get(x, x) for x in base.inputs)
        new[node] = made.graph.pool.with_inputs(base, inputs) if inputs else base
    masked = made.graph.with_outputs([new[n] for n in made.graph.outputs])
    with np.errstate(all="ignore"):
        want = evaluate_graph(masked, made.arrays)
        got = evaluate_graph(cut(coupling, removed), made.arrays)
    for g, w in zip(got, want, strict=True):
        equal(g, w)
