"""A graph without some of its channels.

In: the coupling of a graph, the labels that go. Out: the graph with smaller shapes. Not its business: which go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, INPUT, AttrValue, Graph, Node
from tilewright.core.opdef import OpDef
from tilewright.graph.prune.coupling import Coupling
from tilewright.graph.prune.links import Ids
from tilewright.graph.prune.rules import is_run
from tilewright.graph.prune.tensors import AxedTensor, kept_positions
from tilewright.ops.convolution import channel_axis

Kept = Mapping[AxedTensor, tuple[Ids, ...]]
"""Of each tensor and axis the positions that are left, counted from 0."""


def kept_of(coupling: Coupling, removed: Collection[int]) -> dict[AxedTensor, tuple[Ids, ...]]:
    """What is left of every axis of every tensor without the channels of these labels."""
    gone = np.array(sorted(removed), np.int64)
    return {
        t: tuple([kept_positions(a, coupling.labels(a), gone) for a in t.axes]) for t in coupling.tensors.order
    }  # fmt: skip


def cut(coupling: Coupling, removed: Collection[int]) -> Graph:
    """The graph without the channels of these labels.

    Its results are those of the graph in which the weights are zero by which products read these channels.
    """
    graph, kept = coupling.graph, kept_of(coupling, removed)
    pool = graph.pool
    made: dict[AxedTensor, Node] = {}
    constants: dict[tuple[Node | bytes, ...], Node] = {}
    for t in coupling.tensors.order:
        is_whole = all(len(k) == len(a) for k, a in zip(kept[t], t.axes, strict=True))
        inputs = tuple([made[x] for x in t.inputs])
        if t.node.op is CONST and not is_whole:
            key: tuple[Node | bytes, ...] = (t.node, *(k.tobytes() for k in kept[t]))
            if key not in constants:  # tensors that layers share are cut once
                array = t.node.attrs["data"].array[np.ix_(*kept[t])]
                constants[key] = pool.const(np.ascontiguousarray(array), loc=t.node.loc)
            made[t] = constants[key]
        elif t.node.op is INPUT or (is_whole and all(a is b.node for a, b in zip(inputs, t.inputs, strict=True))):
            made[t] = t.node
        else:
            adjust = ADJUST.get(t.node.op)
            attrs = dict(t.node.attrs) | (adjust(t, kept) if adjust is not None else {})
            made[t] = pool.add(t.node.op, inputs, attrs, t.node.loc)
        _check(t, made[t], kept[t])
    return graph.with_outputs([made[t] for t in coupling.tensors.outputs])


def _check(t: AxedTensor, made: Node, kept: Sequence[Ids]) -> None:
    """A rule that promised too much must not become another model."""
    if len(t.node.types) == 1 and tuple(made.shape) != shape_of(t, kept):
        raise AssertionError(f"{t.node} without channels has shape {made.shape}, not {shape_of(t, kept)}")


def shape_of(t: AxedTensor, kept: Sequence[Ids]) -> tuple[Dim, ...]:
    """A tensor's shape where these positions of each axis are left."""
    return tuple([len(k) if is_known(d) else d for d, k in zip(t.node.shape, kept, strict=True)])


def _with_shape(t: AxedTensor, kept: Kept) -> dict[str, AttrValue]:
    return {"shape": shape_of(t, kept[t])}


def _with_sizes(t: AxedTensor, kept: Kept) -> dict[str, AttrValue]:
    return {"sizes": shape_of(t, kept[t])}


def _with_bounds(t: AxedTensor, kept: Kept) -> dict[str, AttrValue]:
    """A slice takes what is left of what it took."""
    x, attrs = t.inputs[0], t.node.attrs
    bounds = []
    for axis, left, start, stop, step in zip(
        x.axes, kept[x], attrs["starts"], attrs["stops"], attrs["steps"], strict=True
    ):
        if len(left) < len(axis) and is_run(start, stop, step, len(axis)):
            start, stop = (int((left < n).sum()) for n in (start, stop))
        elif len(left) < len(axis):  # the slice is the whole axis
            stop = len(left)
        bounds.append((start, stop))
    return {"starts": tuple(a for a, _ in bounds), "stops": tuple(b for _, b in bounds)}


def _with_groups(t: AxedTensor, kept: Kept) -> dict[str, AttrValue]:
    """Where each channel is a group there are fewer of both; groups of several channels keep their number."""
    x, axis = t.inputs[0], channel_axis(t.node.attrs["layout"], t.rank)
    groups = t.node.attrs["groups"]
    return {"groups": len(kept[x][axis])} if groups == len(x.axes[axis]) > 1 else {}


ADJUST: Mapping[OpDef, Callable[[AxedTensor, Kept], dict[str, AttrValue]]] = {
    ops.reshape: _with_shape,
    ops.expand: _with_shape,
    ops.full: _with_shape,
    ops.resize: _with_sizes,
    ops.slice: _with_bounds,
    ops.conv: _with_groups,
    ops.conv_transpose: _with_groups,
}
"""Attributes that repeat a size."""
