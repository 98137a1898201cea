"""The strategy that fits everything: a thread an element, elements beside each other to threads beside each other.

In: a builder, a GPU, a loop that begins a nest. Out: steps that make the nest a grid.
Not its business: rows (``rows``) and products (``products``), which share what they read.

Before: ``for i<m: for j<n: Y[i, j] = f(X[i, j])``. After: ``for ij_o (block): for ij_i<128 (thread): if inside(..)``,
with 16 bytes a thread where memory lies that way. Loops that depend on each other stay serial, in one thread if need
be.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from tilewright.choose.strategies.steps import attempt
from tilewright.choose.strategies.view import find_body, nest_with
from tilewright.core.compute import Buffer, IndexLike
from tilewright.core.dims import is_known, known_at_most, known_over
from tilewright.core.expr import Dim, Sym, mod, substitute, symbols
from tilewright.core.indices import is_chosen, symbols_at
from tilewright.target.gpu import Gpu
from tilewright.tile.affine import coefficient, linear, stride_along
from tilewright.tile.errors import ScheduleError
from tilewright.tile.grid import MAX_DIMENSIONS
from tilewright.tile.ir import For, If, Kind, Loop, Store
from tilewright.tile.rewrite import Body, loads_of, loops_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.loops import check_apart
from tilewright.tile.schedule.tree import find_loop, nest_of


def block_threads(gpu: Gpu) -> int:
    """Threads of a block that need nothing of each other: a warp for each of a multiprocessor's schedulers."""
    return gpu.warp_lanes * gpu.sm_schedulers


def elements(b: ScheduleBuilder, gpu: Gpu, loop: str) -> None:
    """Make the nest that ``loop`` begins at the top of the kernel a grid, a thread an element or a few of them.

    A statement without loops, known by what it writes, is one thread's.
    """
    is_loop = any(x.sym.name == loop for x in loops_of(b.kernel.body))
    free = independent(b, loop) if is_loop else []
    # Elements side by side come first: where loops became one, an access may no longer be known to be aligned.
    if len(free) > 1 and _is_one_threads(gpu, find_loop(b.kernel, free[-1], "elements")):
        b.do("kind", free.pop(), "unroll")
    elif free:
        free[-1] = in_vectors(b, gpu, free[-1])
    # Loops that became one may no longer be known to be independent: then the innermost alone is shared among threads.
    if free and attempt(b, lambda: _deal(b, gpu, fused(b, free))):
        return
    if free and attempt(b, lambda: _deal(b, gpu, free)):
        return
    one_thread(b, loop)


def one_thread(b: ScheduleBuilder, loop: str) -> None:
    """The nest as it is, by one thread of one block: what has an order, and nothing to share out."""
    thread = b.do("enclose", loop).loops[0]
    block = b.do("enclose", thread).loops[0]
    b.do("kind", block, "block")
    b.do("kind", thread, "thread")


def independent(b: ScheduleBuilder, loop: str) -> list[str]:
    """The loops from ``loop`` inwards of which no iteration depends on another, as far as they nest perfectly.

    A loop whose extent depends on one outside of it ends them: a grid is a box.
    """
    found: list[Loop] = []
    for x in nest_of(find_loop(b.kernel, loop, "elements")).loops:
        try:
            check_apart(b.kernel, find_loop(b.kernel, x.sym.name, "elements"), Kind.BLOCK, "elements", x.sym.name)
        except ScheduleError:
            break
        if symbols(x.extent) & {o.sym for o in found}:
            break
        found.append(x)
    return [x.sym.name for x in found]


def fused(b: ScheduleBuilder, loops: list[str]) -> list[str]:
    """The loops, of which those of known positive extents became one with the last before them.

    From the outermost on, so that elements are found by one division each, digits of one number.
    """
    at = len(loops) - 1
    while at > 0 and _is_known(b, loops[at]):
        at -= 1
    return [*loops[:at], as_one(b, loops[at:])]


def as_one(b: ScheduleBuilder, loops: Sequence[str]) -> str:
    """Loops, each directly in the one before it, as one, from the outermost on."""
    made = loops[0]
    for inner in loops[1:]:
        made = b.do("fuse", made, inner).loops[0]
    return made


def outermost_first(index: IndexLike, loops: Sequence[str]) -> list[str]:
    """The loops that an index is made of, the one with the longest steps first."""
    if is_chosen(index):
        return []
    inside = sorted(symbols_at(index), key=lambda s: s.name)
    steps = [(coefficient(index, s), s.name) for s in inside if s.name in loops]
    return [name for c, name in sorted(steps, key=lambda x: -x[0] if is_known(x[0]) else 0)]


def at_most(b: ScheduleBuilder, loops: Sequence[str], n: int) -> list[str]:
    """``n`` loops or fewer, of which the last one is all that were too many, from the innermost on."""
    found = list(loops)
    while len(found) > n:
        inner = found.pop()
        found.append(b.do("fuse", found.pop(), inner).loops[0])
    return found


def shared_tile(b: ScheduleBuilder, gpu: Gpu, factor: str, at: str, threads: int) -> tuple[str, str, int]:
    """A factor's tile comes to shared memory at a loop, by threads that are neighbours where memory has them.

    Returns the loop of turns, the one of threads, and how many elements a row of the tile has.
    """
    loops = b.do("compute_at", factor, at, "shared").loops
    for name in loops:
        b.do("kind", name, "serial")
    leaf = nest_with(find_body(b.kernel, at), factor, Store).leaf[0]
    assert isinstance(leaf, Store)
    along = {s.name for s in symbols_at(leaf.index[-1])}
    lines, row = (as_one(b, [x for x in loops if (x in along) is inside]) for inside in (False, True))
    made = b.do("fuse", lines, in_vectors(b, gpu, row)).loops[0]
    turn, thread = b.split(made, threads, "guard")
    row_elements = leaf.buffer.shape[-1]
    assert is_known(row_elements)
    return turn, thread, row_elements


def copied_ahead(b: ScheduleBuilder, factors: Sequence[str], loop: str, stages: int, spare: int = 0) -> None:
    """Two factors' copies run so many iterations of a loop ahead, one after the other in one phase."""
    first, second = (b.do("pipeline", x, loop, stages, spare).loops[0] for x in factors)
    b.do("merge", first, second)


def _is_known(b: ScheduleBuilder, loop: str) -> bool:
    n = extent_of(b, loop)
    return known_over(n, 0)


def extent_of(b: ScheduleBuilder, loop: str) -> Dim:
    return find_loop(b.kernel, loop, "elements").loop.extent


def inner_body(b: ScheduleBuilder, loop: str) -> Body:
    """What a loop does, inside of the condition that there is something to do."""
    body = find_body(b.kernel, loop)
    return body[0].body if len(body) == 1 and isinstance(body[0], If) else body


def in_vectors(b: ScheduleBuilder, gpu: Gpu, loop: str) -> str:
    """Split off as many elements as one access of a thread holds, as lanes, where all of them lie in order."""
    target = find_loop(b.kernel, loop, "elements")
    width = lanes_of(gpu, target) if target.loop.kind is Kind.SERIAL else 1
    if width == 1:
        return loop
    outer, lanes = b.split(loop, width)
    b.do("kind", lanes, "vector")
    return outer


def lanes_of(gpu: Gpu, target: For, apart: Container[str] = ()) -> int:
    """How many iterations of a loop one access holds; 1 where they don't lie side by side, in full aligned groups.

    Rows whose pitch is a multiple of no widest access are read by narrower ones. Buffers ``apart``, by name, are no
    memory.
    """
    if target.loop.extent == 0 or not all(isinstance(s, Store) for s in target.body):
        return 1
    accesses = [x for x in _accesses(target) if x[0].name not in apart]
    width = gpu.access_bytes // max(b.dtype.n_bytes for b, _, _ in accesses)
    while width > 1:
        if mod(target.loop.extent, width) == 0 and all(_is_run(target.loop.sym, width, *x) for x in accesses):
            return width
        width //= 2
    return 1


def _is_one_threads(gpu: Gpu, target: For) -> bool:
    """Is the loop one access of what is written, and across memory of what is read, as of a picture's few channels?

    Neighbouring threads are then neighbours along the loop before it, where they read side by side.
    """
    if target.loop.kind is not Kind.SERIAL or not all(isinstance(s, Store) for s in target.body):
        return False
    strides = [
        (buffer, is_write, stride_along(buffer, index, target.loop.sym))
        for buffer, index, is_write in _accesses(target)
    ]
    is_along = all(stride == 1 for _, is_write, stride in strides if is_write)
    is_across = any(not is_write and stride not in (0, 1) for _, is_write, stride in strides)
    n_bytes = max(buffer.dtype.n_bytes for buffer, is_write, _ in strides if is_write)
    return is_along and is_across and known_at_most(target.loop.extent, gpu.access_bytes // n_bytes)


def _is_run(sym: Sym, width: int, buffer: Buffer, index: tuple[IndexLike, ...], is_write: bool) -> bool:
    """Does each full group of so many iterations access neighbours, from a multiple on, or read one element?

    Also of what is no one line of memory, such as the channels of several places of an image: then a group is a loop's
    over lanes, whose digits are those of its number.
    """
    at = linear(buffer, index)
    if at is None:
        return False
    stride = coefficient(at, sym)
    if stride is None:
        group, lane = Sym("its group", 0), Sym("place in it", 0, width - 1)  # no loop has such a name
        at = substitute(at, {sym: width * group + lane})
        sym, stride = lane, coefficient(at, lane)
    if stride == 0:
        return not is_write
    return stride == 1 and mod(at - sym, width) == 0


def _accesses(target: For) -> Iterator[tuple[Buffer, tuple[IndexLike, ...], bool]]:
    for s in target.body:
        assert isinstance(s, Store)
        yield s.buffer, s.index, True
        yield from ((x.buffer, x.index, False) for x in loads_of(s))


def _deal(b: ScheduleBuilder, gpu: Gpu, loops: list[str]) -> None:
    """The last loop in blocks of threads; those outside of it are blocks too, as many as a grid has dimensions for."""
    *outer, inner = loops
    block, thread = b.split(in_vectors(b, gpu, inner), block_threads(gpu), "guard")
    for name in outer[: MAX_DIMENSIONS - 1]:
        b.do("kind", name, "block")
    if len(outer) < MAX_DIMENSIONS:
        b.do("kind", block, "block")
    b.do("kind", thread, "thread")
