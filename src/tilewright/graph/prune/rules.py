"""What an op's meaning says about positions of its operands and of its result: which are removed together.

In: a tensor. Out: pairs of equally long rows of positions. Not its business: joining them (``coupling``), reshapes
(``splits``).

A rule's pairs keep this promise: where positions are removed with all that they are joined to, what is left of the
result is what the op makes of what is left of its operands; of positions that a product with constant weights sums
over, those whose weights are zero. A position that no pair of a rule names must stay, so an op without a rule lets
nothing be removed. A pair of a row with itself says that its positions may go alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from tilewright import ops
from tilewright.core.dims import are_known, is_known
from tilewright.core.expr import Dim
from tilewright.core.opdef import OpDef, Trait
from tilewright.graph.prune.links import Ids
from tilewright.graph.prune.tensors import AxedTensor
from tilewright.ops.contract import einsum_terms
from tilewright.ops.convolution import channel_axis

Pair: TypeAlias = tuple[Ids, Ids]
Rule: TypeAlias = Callable[[AxedTensor], Iterator[Pair]]


def _broadcast(t: AxedTensor) -> Iterator[Pair]:
    """Axes of the size of the result's, from the last on; an axis that is stretched stays."""
    for x in t.inputs:
        yield from _from_last(x, t)


def _from_last(x: AxedTensor, t: AxedTensor) -> Iterator[Pair]:
    for a, b in zip(x.axes[::-1], t.axes[::-1], strict=False):
        if len(a) == len(b):
            yield a, b


def _but(t: AxedTensor, axes: Container[int]) -> Iterator[Pair]:
    """All axes of the first operand but these, which are the result's axes too."""
    for k, (a, b) in enumerate(zip(t.inputs[0].axes, t.axes, strict=True)):
        if k not in axes and len(a) == len(b):
            yield a, b


def _but_axis(t: AxedTensor) -> Iterator[Pair]:
    yield from _but(t, (t.node.attrs["axis"],))


def _but_axes(t: AxedTensor) -> Iterator[Pair]:
    yield from _but(t, t.node.attrs["axes"])


def _but_rows(t: AxedTensor) -> Iterator[Pair]:
    """Norms of rows: from an axis on all numbers share a mean."""
    yield from _but(t, range(t.node.attrs["axis"], t.rank))


def _but_last_two(t: AxedTensor) -> Iterator[Pair]:
    yield from _but(t, (t.rank - 2, t.rank - 1))


def _folded(t: AxedTensor) -> Iterator[Pair]:
    """Reductions: what is not folded."""
    attrs, x = t.node.attrs, t.inputs[0]
    folded = attrs["axes"] if "axes" in attrs else (attrs["axis"],)
    kept = [k for k in range(x.rank) if k not in folded]
    for place, k in enumerate(kept):
        yield x.axes[k], t.axes[k if attrs["keepdims"] else place]


def _channels(t: AxedTensor) -> Iterator[Pair]:
    """Windows over each image of each channel."""
    x, axis = t.inputs[0], channel_axis(t.node.attrs["layout"], t.rank)
    yield x.axes[0], t.axes[0]
    yield x.axes[axis], t.axes[axis]


def _batch_norm(t: AxedTensor) -> Iterator[Pair]:
    yield from _but(t, ())
    axis = t.axes[t.node.attrs["axis"]]
    for x in t.inputs[1:]:
        yield x.axes[0], axis


def _instance_norm(t: AxedTensor) -> Iterator[Pair]:
    yield from _but(t, range(2, t.rank))
    for x in t.inputs[1:]:
        yield x.axes[0], t.axes[1]


def _transpose(t: AxedTensor) -> Iterator[Pair]:
    for k, p in enumerate(t.node.attrs["perm"]):
        yield t.axes[k], t.inputs[0].axes[p]


def _expand(t: AxedTensor) -> Iterator[Pair]:
    """Copies along a new axis may go alone."""
    x = t.inputs[0]
    for k, b in enumerate(t.axes, x.rank - t.rank):
        yield (x.axes[k] if k >= 0 and len(x.axes[k]) == len(b) else b), b


def _full(t: AxedTensor) -> Iterator[Pair]:
    for a in t.axes:
        yield a, a


def _concat(t: AxedTensor) -> Iterator[Pair]:
    axis, start = t.node.attrs["axis"], 0
    is_whole = are_known(x.node.shape[axis] for x in t.inputs)
    for x in t.inputs:
        for k, (a, b) in enumerate(zip(x.axes, t.axes, strict=True)):
            if k != axis:
                yield a, b
        if is_whole:
            yield x.axes[axis], t.axes[axis][start : start + len(x.axes[axis])]
        start += len(x.axes[axis])


def _pad(t: AxedTensor) -> Iterator[Pair]:
    """What is added of a constant stays; axes that are mirrored or cropped stay as they are."""
    is_constant = t.node.attrs["mode"] == "constant"
    for a, b, (low, high) in zip(t.inputs[0].axes, t.axes, t.node.attrs["pads"], strict=True):
        if (low, high) == (0, 0):
            yield a, b
        elif is_constant and is_known(low) and is_known(high) and low >= 0 and high >= 0:
            yield a, b[low : low + len(a)]


def is_run(start: Dim, stop: Dim, step: int, n: int) -> bool:
    """Does a slice take neighbours of an axis of size ``n``?"""
    return is_known(start) and is_known(stop) and step == 1 and 0 <= start <= stop <= n


def _slice(t: AxedTensor) -> Iterator[Pair]:
    """What a slice leaves out may go alone."""
    x, attrs = t.inputs[0], t.node.attrs
    for k, (start, stop, step) in enumerate(zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True)):
        a, b = x.axes[k], t.axes[k]
        if is_known(x.node.shape[k]) and is_run(start, stop, step, len(a)):
            yield a[start:stop], b
            yield from ((rest, rest) for rest in (a[:start], a[stop:]))
        elif x.node.shape[k] == t.node.shape[k] and step == 1:
            yield a, b


def _tile(t: AxedTensor) -> Iterator[Pair]:
    yield from _but(t, [k for k, n in enumerate(t.node.attrs["repeats"]) if n != 1])


def _gather(t: AxedTensor) -> Iterator[Pair]:
    (x, places), axis = t.inputs, t.node.attrs["axis"]
    yield from zip(x.axes[:axis], t.axes[:axis], strict=True)
    yield from zip(places.axes, t.axes[axis : axis + places.rank], strict=True)
    yield from zip(x.axes[axis + 1 :], t.axes[axis + places.rank :], strict=True)


def _resize(t: AxedTensor) -> Iterator[Pair]:
    """Axes that keep their size; where a box is cut out none is known to."""
    attrs, x = t.node.attrs, t.inputs[0]
    for k, (a, b) in enumerate(zip(x.axes, t.axes, strict=True)):
        is_whole = not attrs["scales"] or attrs["scales"][k] == 1
        if is_whole and x.node.shape[k] == t.node.shape[k] and attrs["coordinate_mode"] != "tf_crop_and_resize":
            yield a, b


# --- products: what they sum over may go where the weights there are constant, as if these were zero -----------------


def _matmul(t: AxedTensor) -> Iterator[Pair]:
    a, b = t.inputs
    yield a.axes[-2], t.axes[-2]
    yield b.axes[-1], t.axes[-1]
    if a.is_constant != b.is_constant:
        yield a.axes[-1], b.axes[-2]
    for x in (a, b):
        for mine, result in zip(x.axes[-3::-1], t.axes[-3::-1], strict=False):
            if len(mine) == len(result):
                yield mine, result


def _einsum(t: AxedTensor) -> Iterator[Pair]:
    terms, result = einsum_terms(t.node.attrs["equation"], [x.rank for x in t.inputs])
    if any(len(set(term)) < len(term) for term in (*terms, result)):
        return  # a diagonal
    for label in dict.fromkeys(label for term in terms for label in term):
        having = [(x, x.axes[term.index(label)]) for x, term in zip(t.inputs, terms, strict=True) if label in term]
        rows = [axis for _, axis in having]
        if label in result:
            rows.append(t.axes[result.index(label)])
        elif len(having) != 2 or having[0][0].is_constant == having[1][0].is_constant:
            continue
        if len({len(row) for row in rows}) == 1:
            yield from ((row, rows[0]) for row in rows)


def _conv(t: AxedTensor) -> Iterator[Pair]:
    x, w = t.inputs
    if not w.is_constant or x.is_constant:
        return
    axis, groups = channel_axis(t.node.attrs["layout"], t.rank), t.node.attrs["groups"]
    ins, outs = x.axes[axis], t.axes[axis]
    yield x.axes[0], t.axes[0]
    yield w.axes[0], outs
    if len(ins) == groups > 1:
        yield np.repeat(ins, len(outs) // groups), outs  # each channel is a group, which goes as a whole
        return
    # Groups keep one size: the same places go in each of them.
    yield ins, np.tile(w.axes[1], groups)
    if groups > 1:
        yield outs, np.tile(outs[: len(outs) // groups], groups)


def _conv_transpose(t: AxedTensor) -> Iterator[Pair]:
    x, w = t.inputs
    axis, groups = channel_axis(t.node.attrs["layout"], t.rank), t.node.attrs["groups"]
    ins, outs = x.axes[axis], t.axes[axis]
    if not w.is_constant or x.is_constant or groups not in (1, len(ins)):
        return
    yield x.axes[0], t.axes[0]
    yield w.axes[0], ins
    if groups == 1:
        yield w.axes[1], outs
    else:
        yield np.repeat(ins, len(outs) // groups), outs


def _attention(t: AxedTensor) -> Iterator[Pair]:
    """Heads, with the queries that read the same keys, and the depth of values; whatever is summed over stays."""
    q, k, v, *masks = t.inputs
    yield from ((x.axes[0], t.axes[0]) for x in (q, k, v))
    yield q.axes[1], t.axes[1]
    if are_known(x.node.shape[1] for x in (q, k)):
        n_each = len(q.axes[1]) // len(k.axes[1])
        yield from ((np.repeat(x.axes[1], n_each), t.axes[1]) for x in (k, v))
    yield v.axes[3], t.axes[3]
    for mask in masks:
        yield from ((a, b) for a, b in zip(mask.axes[-3::-1], (t.axes[1], t.axes[0]), strict=False) if len(a) == len(b))


def _rotary(t: AxedTensor) -> Iterator[Pair]:
    yield from _but(t, (t.rank - 1,))
    for angles in t.inputs[1:]:
        yield from ((a, b) for a, b in zip(angles.axes[-2::-1], t.axes[-2::-1], strict=False) if len(a) == len(b))


def _rules(rule: Rule, *of: OpDef) -> dict[OpDef, Rule]:
    return dict.fromkeys(of, rule)


RULES: Mapping[OpDef, Rule] = {
    **_rules(_broadcast, *(op for op in ops.ALL if Trait.ELEMENTWISE in op.traits)),
    **_rules(_folded, *(op for op in ops.ALL if Trait.REDUCTION in op.traits and "keepdims" in op.attrs)),
    **_rules(_channels, ops.max_pool, ops.avg_pool),
    **_rules(_but_axis, ops.softmax, ops.log_softmax, ops.l2_normalize),
    **_rules(_but_axis, ops.cumsum, ops.cumprod, ops.cummax, ops.cummin),
    **_rules(_but_rows, ops.layer_norm, ops.rms_norm),
    **_rules(_but_axes, ops.reverse, ops.roll),
    ops.trilu: _but_last_two,
    ops.batch_norm: _batch_norm,
    ops.instance_norm: _instance_norm,
    ops.transpose: _transpose,
    ops.expand: _expand,
    ops.full: _full,
    ops.concat: _concat,
    ops.pad: _pad,
    ops.slice: _slice,
    ops.tile: _tile,
    ops.gather: _gather,
    ops.resize: _resize,
    ops.matmul: _matmul,
    ops.einsum: _einsum,
    ops.conv: _conv,
    ops.conv_transpose: _conv_transpose,
    ops.attention: _attention,
    ops.rotary: _rotary,
}
