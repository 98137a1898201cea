"""Windows in a graph: a product or convolution whose elements, changed one by one, a window alone slides over.

In: the graph's nodes in order, their facts, who reads them. Out: the nodes to put into the window's kernel.
Not its business: what else joins the group (``partition.fuse``), whether loops share rows (``choose.strategies.ring``).

An expanding convolution before a depthwise one, a stem before a pooling. Only where what lies between is so large that
it would go to memory and come back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.core.compute import Stage
from tilewright.core.dims import is_known
from tilewright.core.estimates import over_batches
from tilewright.core.expr import Dim, Sym, coef_of, substitute, symbols
from tilewright.core.graph import Node
from tilewright.core.indices import placed, placed_by_dimension
from tilewright.core.types import product
from tilewright.partition.chains import Readers
from tilewright.partition.facts import Facts, Form


def find_windows(
    order: Sequence[Node], facts: Mapping[Node, Facts], readers: Readers, pinned: Collection[Node], large: int
) -> dict[Node, Node]:
    """The window that each node is made for, when it slides over ``large`` bytes or more; no node is made for two."""
    found: dict[Node, Node] = {}
    for window in order:
        if facts[window].form is Form.CONTRACT and len(facts[window].items) == 1 and window not in found:
            for k, slid in enumerate(window.inputs):
                if bytes_of_batch(slid) >= large and slides(facts[window], k):
                    members = made_for(window, slid, order, facts, readers)
                    members = members if facts[slid].is_elementwise else []
                    if not any(n in pinned or n in found for n in members):
                        found.update(dict.fromkeys(members, window))
    return found


def bytes_of_batch(images: Node) -> float:
    """What a batch takes, one of a run-time size as a mean of sizes; 0 where a call decides more than the batch."""
    batch, one = product(images.shape[:1]), product(images.shape[1:])
    return over_batches(batch, lambda n: n * one * images.dtype.n_bytes) if is_known(one) else 0


def slides(window: Facts, operand: int) -> bool:
    """Is it a reduction whose windows over the operand overlap, each channel by itself?"""
    if window.form is not Form.CONTRACT or len(window.items) != 1 or not window.slides(operand):
        return False
    if not any(_overlaps(window.main, i) for x in window.reads(operand) for i in placed(x.index)):
        return False
    main = window.main
    single: dict[Sym, Dim] = {a.sym: 0 for a in main.reduction.axes if a.extent == 1} if main.reduction else {}
    last = placed((main.index[-1], *(x.index[-1] for x in window.reads(operand))))
    return len({substitute(i, single) for i in last}) == 1


def _overlaps(window: Stage, index: Dim) -> bool:
    """Does one step along an axis of the result move a place by less than the window's extent there?"""
    assert window.reduction is not None
    taps = {a.sym: (coef_of(index, a.sym), a.extent) for a in window.reduction.axes}
    span = sum(abs(c) * (n - 1) for c, n in taps.values() if is_known(n)) + 1
    return any(0 < abs(coef_of(index, a.sym)) < span for a in window.axes)


def reach(window: Facts, operand: int, n: int) -> tuple[int, int]:
    """The first dimension of the operand along which windows slide, and how many elements of it ``n`` of them span."""
    assert window.main.reduction is not None
    taps = {a.sym: a.extent for a in window.main.reduction.axes if is_known(a.extent) and a.extent > 1}
    places = [(d, i) for x in window.reads(operand) for d, i in placed_by_dimension(x.index)]
    d, place = min((p for p in places if symbols(p[1]) & taps.keys()), key=lambda p: p[0])
    span = sum(abs(coef_of(place, s)) * (size - 1) for s, size in taps.items()) + 1
    return d, span + max(abs(coef_of(place, a.sym)) for a in window.main.axes) * (n - 1)


def made_for(
    reader: Node, slid: Node, order: Sequence[Node], facts: Mapping[Node, Facts], readers: Readers
) -> list[Node]:
    """The first reduction and the arithmetic on its elements up to ``slid``, all read for ``reader`` only."""
    if {r for r, _ in readers[slid]} != {reader}:
        return []
    if facts[slid].form is Form.CONTRACT:
        return [slid]
    if not facts[slid].is_elementwise:
        return []
    inside = {slid}
    for node in reversed(order[: order.index(slid)]):
        if not {r for r, _ in readers[node]} <= inside or not readers[node] or node.shape != slid.shape:
            continue
        if facts[node].form is Form.CONTRACT:
            return _over(node, inside, order) if len(facts[node].items) == 1 else []
        if facts[node].is_elementwise:
            inside.add(node)
    return []


def _over(first: Node, inside: Collection[Node], order: Sequence[Node]) -> list[Node]:
    """``first`` and those of ``inside`` that are made of it."""
    found = [first]
    for node in order:
        if node in inside and any(i in found for i in node.inputs):
            found.append(node)
    return found
