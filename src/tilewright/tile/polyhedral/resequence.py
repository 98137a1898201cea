"""The primitive ``resequence``: a nest whose order counts, in the order of Pluto's loops.

In: a kernel, the name of its nest's outermost loop, forms of the new loops' bands. Out: a kernel that means the same,
or a ``ScheduleError``. Not its business: which forms there are and which are fast (``choose.strategies.ordered``).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Kernel, Place, Space, Stmt
from tilewright.tile.polyhedral.alone import alone
from tilewright.tile.polyhedral.bands import Bands, bands_of, nest_alone
from tilewright.tile.polyhedral.emitted import NestEmitter
from tilewright.tile.polyhedral.orders import RunOrder, order_of, read_forms
from tilewright.tile.schedule.tree import find_loop, fresh_among, replace_stmt

FUSION = ("fused", "apart")


@alone
def resequence(
    kernel: Kernel, loop: str, fusion: str = "fused", bands: str = "", lanes: int = 0, copies: int = 1
) -> Kernel:
    """The nest of ``loop`` as loops that its dependences suggest, whose order and tiles ``bands`` has.

    ``for t: for i: a[i] = a[i-1] + a[i+1]`` -> ``for t: for t + i``, either of which may be outside, and both of which
    may be tiled. ``fusion``: statements share loops where they can (``fused``) or only where
    they must (``apart``). ``bands``: for each group of loops that may be exchanged, in the order of the text, a
    permutation, and perhaps the size of a tile along each: ``1 0 2:0 32 32; 0``. ``0 1+2 2`` has waves: the sum of two
    loops round the second of them, whose iterations then never wait for each other. Other innermost loops that may run
    at one time are vectors of ``lanes`` elements, ``copies`` of them at a time; a sum is one of as many partial sums.
    Where one iteration of a row changes what the others read, the row is cut there. Where the integer program of a nest
    is too large, its outermost loop stays, and each nest inside has bands of its own.
    Fails: an index, an extent or a condition that is not affine; loops that are not serial; a form that does not fit
    the bands; an integer program that is too large for one nest without loops around others.
    """
    if fusion not in FUSION:
        raise ScheduleError("resequence", loop, f"unknown fusion {fusion!r}", remedy=f"use {' or '.join(FUSION)}")
    if lanes < 0 or copies < 1:
        raise ScheduleError("resequence", loop, f"{copies} copies of {lanes} lanes")
    nest = find_loop(kernel, loop, "resequence")
    if not any(s is nest for s in kernel.body):
        raise ScheduleError("resequence", loop, "it is inside of another loop", remedy="name the outermost loop")
    found = bands_of(nest_alone(kernel, nest), is_fused=fusion == "fused")
    return resequenced(kernel, nest, found, order_of(found, read_forms(bands, found.bands)), lanes, copies)


def resequenced(kernel: Kernel, nest: Stmt, bands: Bands, order: RunOrder, lanes: int, copies: int) -> Kernel:
    """:func:`resequence` of a nest whose bands are known, in an order of them."""
    taken = set[str]()
    emitter = NestEmitter(
        bands.instances,
        order,
        bands.parameters,
        lanes,
        copies,
        lambda name: fresh_among(kernel, name, taken),
    )
    made = replace_stmt(kernel, nest, *emitter.body())
    return replace(made, places=(*made.places, *(Place(x, Space.REG) for x in emitter.partial)))
