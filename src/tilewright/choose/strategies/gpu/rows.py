"""The strategy for rows: warps reduce along a row, and compute what needs the row's results.

In: a builder, a GPU, the buffers of the stages in order (the last is the root). Out: one grid.
Not its business: how many warps a row gets (``row_shape``), sums of a thread's own (``sums``), products (``products``).

Before: one nest per stage (softmax: maximum, exponential, sum, quotient). After, where a row has W warps::

    for row (block):
      for w<W (thread): for lane<32 (warp): for j (unroll): for v<V (vector): x[..] = X[row, ..]     registers
      m = identity; every lane has a partial result, the lanes of a warp exchange theirs, and all warps combine what
      each of them has (the primitive ``tree``)
      for w: for lane: for j: for v: t[..] = f(x[..], m)
      ..

A short row is one warp's, and a block has several. Memory is read once, 16 bytes at a time where rows begin at
multiples of that. What lies between two passes stays in the registers of the lane that made it; in shared memory where
the row is too long for that, and in memory where it is too long for that too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from tilewright.choose.strategies.gpu.elements import fused, inner_body
from tilewright.choose.strategies.gpu.row_shape import RowShape, RowWork, best_shape
from tilewright.choose.strategies.rows import is_scalar, row_loop, with_plain_root
from tilewright.choose.strategies.steps import attempt, cached_name
from tilewright.choose.strategies.view import find_body, n_arithmetic, nests, only_nest
from tilewright.core.compute import Buffer, IndexLike
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, mod
from tilewright.core.indices import symbols_in
from tilewright.core.types import product
from tilewright.target.gpu import Gpu
from tilewright.tile.affine import linear, stride_along
from tilewright.tile.errors import ScheduleError
from tilewright.tile.grid import MAX_DIMENSIONS
from tilewright.tile.ir import For, Kind, Role, Space, Store, Update, walk, written
from tilewright.tile.rewrite import loads_of, places_of, values_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import find_loop, find_place, nest_of


def rows(b: ScheduleBuilder, gpu: Gpu, buffers: list[str]) -> None:
    """Schedule all stages together at the rows of the last one; a single row is one block's."""
    temps = with_plain_root(b, buffers)
    start, reasons = b.mark(), list[str]()
    for space, in_registers in (("local", True), ("local", False), ("global", False)):
        try:
            _rows(b, gpu, temps, buffers[-1], space, in_registers=in_registers)
            return
        except ScheduleError as error:
            reasons.append(str(error))
            b.back(start)
    raise ScheduleError("rows", buffers[-1], "; ".join(dict.fromkeys(reasons)))


def _rows(b: ScheduleBuilder, gpu: Gpu, temps: Sequence[str], root: str, space: str, *, in_registers: bool) -> None:
    nest = only_nest(b.kernel, root)
    row = row_loop(b, nest, set(temps))
    names = [x.sym.name for x in nest.loops]
    if row is None:
        names = [row := b.do("enclose", names[0] if names else root).loops[0]]
    for name in reversed(temps):
        b.do("compute_at", name, row, "reg" if _is_single(b, name, row) else space)
    *outer, at = fused(b, names[: names.index(row) + 1])
    if len(outer) + 1 > MAX_DIMENSIONS:
        raise ScheduleError("rows", root, f"{len(outer) + 1} loops of unknown sizes around a row")
    if in_registers:
        _keep_inputs(b, at)
    _one_loop_each(b, at)
    work = _work(b, gpu, [*outer, at])
    shape = best_shape(gpu, work, in_registers=in_registers)
    if shape is None or (in_registers and not is_known(work.elements) and work.held):
        raise ScheduleError("rows", root, "a row has no room in registers" if in_registers else "nor in shared memory")
    for name in outer:
        b.do("kind", name, "block")
    if shape.warps == 1:
        block, at = b.split(at, shape.rows, "guard")
        b.do("kind", block, "block")
        b.do("kind", at, "thread")
    else:
        b.do("kind", at, "block")
    _share_out(b, gpu, at, shape)


def _is_single(b: ScheduleBuilder, name: str, row: str) -> bool:
    """Does the row's body read the buffer at one and the same element? Lanes that make several hold one each."""
    body = find_body(b.kernel, row)
    read = {x.index for s in walk(body) for x in loads_of(s) if x.buffer.name == name}
    return len(read) <= 1 and is_scalar(b, name, row)


def row_sums(b: ScheduleBuilder, gpu: Gpu, buffers: list[str]) -> None:
    """The sums of a single row, each by one block; what has no sum is left to ``elements``."""
    made = 0
    for name in buffers:
        found = [nest for nest in nests(b.kernel, name) if isinstance(nest.leaf[-1], Update)]
        if found and all(not symbols_in(nest.leaf[-1].index) for nest in found if isinstance(nest.leaf[-1], Update)):
            b.do("cache", name)
            _rows(b, gpu, [cached_name(b, name)], name, "local", in_registers=False)
            made += 1
    if not made:
        raise ScheduleError("row_sums", buffers[-1], "there is no sum of everything")


def _passes(b: ScheduleBuilder, at: str) -> list[For]:
    return [s for s in inner_body(b, at) if isinstance(s, For)]


def _keep_inputs(b: ScheduleBuilder, at: str) -> None:
    """What several passes read of an input they read of a copy in registers."""
    readers: dict[str, int] = {}
    for s in _passes(b, at):
        inner = {x.sym for x in s.loops}
        found = {x.buffer for y in walk((s,)) for x in loads_of(y) if symbols_in(x.index) & inner}
        for buffer in sorted(found, key=lambda x: x.name):
            if find_place(b.kernel, buffer.name, "rows").role in (Role.IN, Role.CONST):
                readers[buffer.name] = readers.get(buffer.name, 0) + 1
    longest = max(
        (product([x.extent for x in nest_of(s).loops]) for s in _passes(b, at)), key=_known_or_none, default=0
    )

    def keep(name: str) -> None:
        copy = b.do("fetch", name).buffer
        b.do("compute_at", copy, at, "local")
        held = product(find_place(b.kernel, copy, "rows").buffer.shape)
        if held != longest:
            raise ScheduleError("rows", name, "a row reads more of it than one element for each of its own")

    for name, n in readers.items():
        if n > 1:
            attempt(b, partial(keep, name))


def _known_or_none(n: Dim) -> int:
    return n if is_known(n) else -1


def _one_loop_each(b: ScheduleBuilder, at: str) -> None:
    """Every pass as one loop."""
    for number in range(len(_passes(b, at))):
        loops = [x.sym.name for x in nest_of(_passes(b, at)[number]).loops]
        if len(fused(b, loops)) > 1:
            raise ScheduleError("rows", loops[0], "a row of unknown sizes")


def _work(b: ScheduleBuilder, gpu: Gpu, around: Sequence[str]) -> RowWork:
    """What is to be done of each row."""
    passes = _passes(b, around[-1])
    spaces = {p.buffer: p.space for p in b.kernel.places}
    extents = [s.loop.extent for s in passes]
    elements = max(extents, key=_known_or_none, default=1)
    if not all(is_known(n) for n in extents):
        elements = next(n for n in extents if not is_known(n))
    rows_of = {find_loop(b.kernel, x, "rows").loop.sym for x in around}
    moved = {x[0] for s in passes for x in _accesses(s) if spaces[x[0]] is Space.GLOBAL and rows_of & symbols_in(x[1])}
    n_bytes = sum(buffer.dtype.n_bytes for buffer in moved)
    leaves = [y for s in passes for y in walk((s,)) if isinstance(y, Store | Update)]
    operations = sum(n_arithmetic(v) + 1 for y in leaves for v in values_of(y))
    held = _held(passes, spaces)
    return RowWork(
        product([find_loop(b.kernel, x, "rows").loop.extent for x in around]), elements, n_bytes,
        _lanes(gpu, passes, spaces), operations, held,
        sum(x.dtype.n_bytes for x, space in spaces.items() if space is Space.LOCAL and _touch(passes, x)),
        sum(isinstance(y, Update) for y in leaves),
    )  # fmt: skip


def _touch(passes: Sequence[For], buffer: Buffer) -> bool:
    return any(x[0] is buffer for s in passes for x in _accesses(s))


def _held(passes: Sequence[For], spaces: dict[Buffer, Space]) -> int:
    """The most registers for an element of a row that are needed between two passes."""
    most = 0
    for n in range(1, len(passes)):
        alive = [
            x for x, space in spaces.items()
            if space is Space.LOCAL and _touch(passes[:n], x) and _touch(passes[n:], x)
        ]  # fmt: skip
        most = max(most, sum(-(-x.dtype.n_bytes // 4) for x in alive))
    return most


def _lanes(gpu: Gpu, passes: Sequence[For], spaces: dict[Buffer, Space]) -> int:
    """How many elements one access holds in every pass; 1 where some don't lie side by side, in full aligned groups."""
    accesses = [(*x, s.loop) for s in passes for x in _accesses(s)]
    width = gpu.access_bytes // max((buffer.dtype.n_bytes for buffer, *_ in accesses), default=gpu.access_bytes)
    while width > 1:
        if all(
            (
                stride == 0
                or (stride == 1 and (e := linear(buffer, index)) is not None and mod(e - loop.sym, width) == 0)
            )
            and mod(loop.extent, width) == 0
            for buffer, index, stride, loop in accesses
        ):
            return width
        width //= 2
    return 1


def _accesses(s: For) -> Iterator[tuple[Buffer, tuple[IndexLike, ...], Dim | None]]:
    """Every access of a pass, and how far apart neighbours are along its loop."""
    for y in walk((s,)):
        for buffer, index in places_of(y):
            yield buffer, index, stride_along(buffer, index, s.loop.sym)


def _share_out(b: ScheduleBuilder, gpu: Gpu, at: str, shape: RowShape) -> None:
    """Every pass by the lanes of the row's warps; what is stored once, by one lane."""
    for s in inner_body(b, at):
        if isinstance(s, For):
            _pass(b, gpu, s, shape)
        elif any(find_place(b.kernel, x.name, "rows").space is not Space.REG for x in written(s)):
            lane = b.do("enclose", written(s)[0].name).loops[0]
            if shape.warps > 1:
                b.do("kind", b.do("enclose", lane).loops[0], "thread")
            b.do("kind", lane, "warp")


def _pass(b: ScheduleBuilder, gpu: Gpu, s: For, shape: RowShape) -> None:
    """One pass: a reduction by a tree, or elements dealt round; in the registers' order, which is the same in all."""
    name, leaf = s.loop.sym.name, s.body[-1]
    if isinstance(leaf, Update) and s.loop.sym not in symbols_in(leaf.index):
        made = b.do("tree", leaf.buffer.name, name, shape.warps, shape.lanes).loops
        # The others are lanes, warps and unrolled: of a lane's own share alone the iterations follow one another.
        (turn,) = [x for x in made if find_loop(b.kernel, x, "rows").loop.kind is Kind.SERIAL]
    else:
        if shape.lanes > 1:
            name, vector = b.split(name, shape.lanes)
            b.do("kind", vector, "vector")
        turn, lane = b.split(name, shape.warps * gpu.warp_lanes, "guard")
        if shape.warps > 1:
            warp, lane = b.split(lane, gpu.warp_lanes)
            b.do("reorder", warp, lane, turn)
            b.do("kind", warp, "thread")
        else:
            b.do("reorder", lane, turn)
        b.do("kind", lane, "warp")
    n = find_loop(b.kernel, turn, "rows").loop.extent
    if is_known(n) and (shape.holds or n <= gpu.thread_accesses):
        b.do("kind", turn, "unroll")
    else:
        b.do("kind", b.split(turn, gpu.thread_accesses)[1], "unroll")
