"""Projections in a graph: a product, point by point, of what a window makes, where nothing else reads the window's.

In: the graph's nodes in order, their facts, who reads them. Out: the nodes to put into the product's kernel.
Not its business: what else joins the group (``partition.fuse``), how its loops share rows
(``choose.strategies.projected``).

A depthwise convolution, with the arithmetic on its elements, before a pointwise one. As two kernels they send the
window's result through memory; as one they do not, but go through small blocks of rows: what the window's blocks share
is read again, and so are the product's weights. It is one kernel where memory takes long beside the arithmetic: large
results, few taps and few channels of the product.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

from tilewright.core.dims import is_known
from tilewright.core.estimates import BLOCK_SHARE, DOUBT, RING_SHARE, WAITED_FOR
from tilewright.core.expr import Dim, Sym, substitute
from tilewright.core.graph import CONST, Node
from tilewright.core.indices import placed
from tilewright.partition.chains import Readers
from tilewright.partition.facts import Facts, Form
from tilewright.partition.windows import bytes_of_batch, made_for, reach, slides
from tilewright.target.target import Target

BLOCK_ROWS = 2
"""Blocks of one row are slower than two kernels: register tiles of windows have two."""


def find_projections(
    order: Sequence[Node],
    facts: Mapping[Node, Facts],
    readers: Readers,
    pinned: Collection[Node],
    taken: Mapping[Node, Node],
    target: Target,
) -> dict[Node, Node]:
    """The product that each window, with the arithmetic on its elements, is computed for, where that pays.

    Values that are ``pinned`` are written; nodes that are ``taken`` are computed for others, a window's among them.
    """
    found: dict[Node, Node] = {}
    for product in order:
        if facts[product].form is not Form.CONTRACT or product in taken:
            continue
        for made in _read_by_points(product, facts[product]):
            if not _is_long(product, made, target):
                continue
            members = made_for(product, made, order, facts, readers)
            if not members or any(n in pinned or n in taken for n in members):
                continue
            window = members[0]
            slid = [k for k in range(len(window.inputs)) if slides(facts[window], k)]
            is_ring = any(taken.get(window.inputs[k]) is window for k in slid)
            fits = slid and _fits(facts[window], window, slid[0], target, is_ring)
            if fits and _pays(facts[window], window, slid[0], product, made, target):
                found.update(dict.fromkeys(members, product))
    return found


def _read_by_points(product: Node, facts: Facts) -> Iterator[Node]:
    """The operand of a product with constants whose rows, of channels, make the result's, each at its own place."""
    main = facts.main
    if len(facts.items) != 1 or not main.axes or main.reduction is None or main.reduction.op != "add":
        return
    single: dict[Sym, Dim] = {a.sym: 0 for a in (*main.axes, *main.reduction.axes) if a.extent == 1}
    reduced = [a.sym for a in main.reduction.axes if a.sym not in single]
    *rows, lanes = [substitute(a.sym, single) for a in main.axes]
    for k, made in enumerate(product.inputs):
        others = [i for i in product.inputs if i is not made]
        places = {x.index for x in facts.reads(k)}
        if len(places) != 1 or len(reduced) != 1 or lanes == 0 or not all(i.op is CONST for i in others):
            continue
        at = [substitute(i, single) for i in placed(next(iter(places)))]
        if at == [*rows, reduced[0]]:
            yield made


def _is_long(product: Node, made: Node, target: Target) -> bool:
    """Does what is made leave the second-level cache, while the product's weights stay?"""
    weights = _size([product.shape[-1], made.shape[-1]]) * made.dtype.n_bytes
    return bytes_of_batch(made) > target.l2_bytes and weights <= target.l2_part_bytes


def _fits(facts: Facts, window: Node, operand: int, target: Target, is_ring: bool) -> bool:
    """Do two rows of the window fit, and with ``is_ring`` the rows that they are made of?"""
    dim, n_rows = reach(facts, operand, BLOCK_ROWS)
    rows = _block_bytes(window, dim)
    slid = window.inputs[operand]
    kept = n_rows * _size(slid.shape[dim + 1 :]) * slid.dtype.n_bytes if is_ring else 0
    return rows <= target.l2_bytes / BLOCK_SHARE and kept <= target.l2_bytes / RING_SHARE


def _pays(facts: Facts, window: Node, operand: int, product: Node, made: Node, target: Target) -> bool:
    """Is what is waited for on the way of ``made`` to a far cache and back more than reading weights for each block?

    Those that the first-level cache keeps are not read again. By more than prices that can't be told apart differ, as a
    part of the arithmetic on ``made``.
    """
    assert facts.main.reduction is not None
    lanes = target.lanes(made.dtype)
    width = -(-_size(product.shape[-1:]) // lanes) * lanes
    taps = _size([a.extent for a in facts.main.reduction.axes])
    n_bytes = bytes_of_batch(made)
    arithmetic = n_bytes / made.dtype.n_bytes * (taps + width) / (lanes * target.fma_ports)
    waited = WAITED_FOR * (n_bytes - target.l2_bytes) / target.llc_bytes_per_cycle
    weights = _size([product.shape[-1], made.shape[-1]]) * made.dtype.n_bytes
    again = weights / target.l2_bytes_per_cycle if weights > target.l1_bytes else 0.0
    dim, _ = reach(facts, operand, BLOCK_ROWS)
    n_blocks = n_bytes / _block_bytes(window, dim)
    return waited - n_blocks * again >= DOUBT * arithmetic


def _block_bytes(window: Node, dim: int) -> int:
    return BLOCK_ROWS * _size(window.shape[dim + 1 :]) * window.dtype.n_bytes


def _size(extents: Sequence[Dim]) -> int:
    """Elements; sizes that a call decides count as 1."""
    return prod(e for e in extents if is_known(e))
