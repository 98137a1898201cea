"""The rule for nests without reductions: vectors along the last axis, unrolled, outermost loop over threads.

A last axis of 2 to 4 elements that lie beside each other makes vectors together with the one before it. Where an
operand lies along another axis than the result, blocks of that axis are unrolled inside, so that whole rows of it are
loaded and transposed in registers.

In: a builder and the buffer that the nest writes. Out: steps. Not its business: reductions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, lcm
from operator import itemgetter
from typing import NamedTuple

from tilewright.choose.cost.tile import FUNCTION_OPERATIONS, MOVED, WORK_PER_BYTE, estimate, pays_threads
from tilewright.choose.strategies.butterflies import butterflies, choosing_loops
from tilewright.choose.strategies.hints import hint_pages, hint_rows
from tilewright.choose.strategies.steps import follow
from tilewright.choose.strategies.threads import min_tasks, parallel
from tilewright.choose.strategies.view import (
    computes_function,
    depends,
    may_vectorize,
    n_arithmetic,
    n_operations,
    statement_of,
    vector_width,
)
from tilewright.core.compute import Buffer
from tilewright.core.dims import is_known, known_at_least, known_over
from tilewright.core.estimates import SHUFFLED_STRIDE
from tilewright.core.expr import BinaryExpr, Dim, Sym, const_of, evaluate, floordiv, mod, symbols, terms_of
from tilewright.core.indices import chosen, placed
from tilewright.core.types import f32
from tilewright.target.target import MANY_COPIES, Target
from tilewright.tile.affine import coefficient, stride_along
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, If, Kind, Loop, Store, Update, walk, written
from tilewright.tile.rewrite import Body, dims_of, loads_of, values_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import Nest, find_loop, find_place, nest_of, writers

UNROLL_OPERATIONS = 24
"""Of the vectors that are done at a time: so many copies of a longer body hide nothing more."""
GROUPS = (2, 3, 4)


def pointwise(b: ScheduleBuilder, machine: Target, buffer: str, *, threads: bool = True) -> None:
    """``out[i.., j] = e``: j in vectors, a few unrolled; with ``threads`` the outermost loop over them where it pays.

    All plain nests that write the buffer and that no rule has touched yet: a concatenation has several, and a state
    that a loop over time updates has one before the loop and one in it. Parts of rows are written row by row, and rows
    that a scatter fills and changes.
    """
    place = find_place(b.kernel, buffer, "pointwise").buffer
    nests = _nests_in(b.kernel.body, place)
    row = _parts_of_rows(b, machine, nests) or _changed_rows(b, nests)
    for nest in _nests_in(b.kernel.body, place):
        if nest.loops and all(x.kind is Kind.SERIAL for x in nest.loops) and len(nest.leaf) == 1:
            _one(b, machine, nest, threads=threads and row is None)
    n_bytes = estimate(place.shape) * place.dtype.n_bytes
    if row is not None and threads and pays_threads(n_bytes * WORK_PER_BYTE, machine, 1):
        parallel(b, machine, [row])


def _parts_of_rows(b: ScheduleBuilder, machine: Target, found: list[Nest]) -> str | None:
    """Merge the outermost loop of all nests, each of which copies a part of every row; its name, None where it stays.

    What they write then is one stream, not one with gaps for each of them.
    """
    if len(found) < 2 or not all(_copies_in_order(machine, nest) for nest in found):
        return None
    n = found[0].loops[0].extent
    return _merged(b, found) if known_at_least(n, min_tasks(machine)) else None  # threads share rows


def _changed_rows(b: ScheduleBuilder, found: list[Nest]) -> str | None:
    """Likewise where rows are filled, and then changed at places that the data choose: while they are in the cache."""
    if len(found) < 2 or any(not nest.loops or nest.loops[0].kind is not Kind.SERIAL for nest in found):
        return None
    leaves = [nest.leaf[0] for nest in found[1:] if len(nest.leaf) == 1]
    is_scattered = any(chosen(x.index) for x in leaves if isinstance(x, Store | Update))
    return _merged(b, found) if is_scattered else None


def _merged(b: ScheduleBuilder, found: list[Nest]) -> str | None:
    """One outermost loop for all nests; its name, or None where an iteration needs other ones of the nests before."""
    first, *others = (nest.loops[0].sym.name for nest in found)
    mark = b.mark()
    try:
        for other in others:
            b.do("merge", first, other)
    except ScheduleError:
        b.back(mark)
        return None
    return first


def _copies_in_order(machine: Target, nest: Nest) -> bool:
    """Are the elements that its last loop writes and reads neighbours, a vector of them to a page?

    More are streams of their own.
    """
    if len(nest.loops) < 2 or any(x.kind is not Kind.SERIAL for x in nest.loops):
        return False
    leaf, last = nest.leaf[0], nest.loops[-1]
    if not isinstance(leaf, Store) or not is_known(last.extent):
        return False
    if last.extent < vector_width(machine, nest.leaf) or last.extent * leaf.buffer.dtype.n_bytes > machine.page_bytes:
        return False
    places = [(leaf.buffer, leaf.index), *((x.buffer, x.index) for x in loads_of(leaf))]
    return all(stride_along(buffer, index, last.sym) == 1 for buffer, index in places)


def _nests_in(body: Body, buffer: Buffer) -> list[Nest]:
    """Every nest that writes the buffer, in loops around several statements too, and under conditions on these."""
    found: list[Nest] = []
    for s in writers(body, buffer):
        nest = nest_of(s)
        first, *others = nest.leaf
        if isinstance(first, If) and not nest.loops:
            found.extend(_nests_in(first.body, buffer))
        else:
            found.extend(_nests_in(nest.leaf, buffer) if others else [nest])
    return found


def _one(b: ScheduleBuilder, machine: Target, nest: Nest, *, threads: bool) -> None:
    leaf = statement_of(nest)
    last = nest.loops[-1]
    width = vector_width(machine, nest.leaf)
    if not isinstance(leaf, Store) or chosen(leaf.index):
        if width > 1 and _writes_a_row(nest) and may_vectorize(nest.leaf, last.sym):
            vectorize(b, machine, last.sym.name, last.extent, width, machine.partial_sums)
        return
    work = sum(n_operations(v) + MOVED for v in values_of(leaf))
    points = estimate([x.extent for x in nest.loops])
    read = dict.fromkeys(x.buffer for x in loads_of(leaf))
    n_bytes = sum(min(estimate(x.shape), points) * x.dtype.n_bytes for x in (leaf.buffer, *read))
    total = points * sum(n_arithmetic(v) + MOVED for v in values_of(leaf)) + n_bytes * WORK_PER_BYTE
    threads = threads and pays_threads(total, machine, width)
    names = [x.sym.name for x in nest.loops]
    if choosing := choosing_loops(nest, leaf):
        butterflies(b, machine, nest, choosing, width, threads)
        return
    # Over each run between seams every index is plain, so that each is vectors by itself.
    if pieces := _pieces(b, machine, nest, width):
        for name, extent in pieces:
            piece = nest_of(find_loop(b.kernel, name, "pointwise"))
            if may_vectorize(piece.leaf, piece.loops[0].sym, gathers=_reads_others(leaf)):
                vectorize(b, machine, name, extent, width, machine.partial_sums)
            elif block := _repeating_block(machine, piece, width):
                _repeated(b, machine, piece.loops[0], width, block)
        outer = []
        names = names[:-1]
    elif _is_group(nest, leaf, width):
        b.do("kind", names[-1], "vector")
        names = names[:-1]
        assert is_known(last.extent)
        # One group fills a part of a register: as many neighbouring groups as fill it are lanes together.
        block = width // last.extent if width % last.extent == 0 else width
        across = _axis_across(nest, leaf, width, last.extent * estimate([nest.loops[-2].extent]))
        if across and is_known(across.extent) and across not in nest.loops[-2:]:
            _transpose_groups(b, machine, nest, across, block, width, threads)
            return
        outer = vectorize(b, machine, names[-1], nest.loops[-2].extent, block, 1).walkers
    elif may_vectorize(nest.leaf, last.sym, gathers=_reads_others(leaf)) and width > 1:
        if across := _axis_across(nest, leaf, width, last.extent):
            _transpose(b, machine, nest, leaf.buffer, across, width, threads)
            return
        if threads:  # before the last loop is cut: its blocks of vectors hide that rows are apart
            parallel(b, machine, names[:-1][:2])
        is_long = any(computes_function(v, last.sym) for v in values_of(leaf))
        unrolled = unrolling(work, machine.rows_in_step if is_long else machine.waiting_sums)
        outer, _, n_vectors = vectorize(b, machine, names[-1], last.extent, width, unrolled, in_step=is_long)
        if outer:
            hint_pages(b, machine, outer[0], leaf, n_vectors * sum(n_arithmetic(v) + MOVED for v in values_of(leaf)))
    elif width > 1 and (block := _repeating_block(machine, nest, width)):
        outer = _repeated(b, machine, last, width, block)
    else:
        outer = [names[-1]]
    if threads:
        parallel(b, machine, [*names[:-1], *outer][:2])


def _pieces(b: ScheduleBuilder, machine: Target, nest: Nest, width: int) -> list[tuple[str, int]]:
    """Cut the last loop into runs that are vectors by themselves; their loops and extents, empty when none pay.

    At seams every index becomes plain; at edges each run repeats itself after some vectors (``_cut_at_edges``). The
    form with the fewest vectors is taken, and none if there are more than without a cut: a loop that repeats itself is
    vectors as it is. Of any other each element is moved by itself, in little code: runs are half a vector, on average.
    Loops of a vector or less, whose lanes all are constants, stay whole.
    """
    last = nest.loops[-1]
    if not known_over(last.extent, width):
        return []
    is_vectors = width == 1 or _repeating_block(machine, nest, width) > 0
    most = -(-last.extent // width) if is_vectors else min(-(-2 * last.extent // width), last.extent - 1)
    mark = b.mark()
    by_edges = _cut_at_edges(b, machine, nest, width, most)
    b.back(mark)
    if by_edges:
        most = _n_vectors([n for _, n in by_edges], width)
    found = _cut_at(b, machine, nest, width, _seam, most)
    return _cut_at_edges(b, machine, nest, width, most) if by_edges and not found else found


def _n_vectors(extents: Sequence[int], width: int) -> int:
    return sum(-(-n // width) for n in extents)


def _cut_at_edges(b: ScheduleBuilder, machine: Target, nest: Nest, width: int, most: int) -> list[tuple[str, int]]:
    """Cuts where minima and maxima alone change form, when each run then repeats itself after some vectors.

    So grows an image by means of neighbours: ``x[min(max((j + 1) // 2 - 1, 0) + 1, 27)]`` has an edge at either end.
    """
    mark = b.mark()
    done = _cut_at(b, machine, nest, width, _edge, most)
    if all(_repeating_block(machine, nest_of(find_loop(b.kernel, name, "pointwise")), width) for name, _ in done):
        return done
    b.back(mark)
    return []


def _cut_at(
    b: ScheduleBuilder,
    machine: Target,
    nest: Nest,
    width: int,
    place: Callable[[Body, Sym, int], int | None],
    most: int,
) -> list[tuple[str, int]]:
    """Cut the last loop where ``place`` says, and what is left of it again, into at most ``most`` vectors."""
    last = nest.loops[-1]
    assert is_known(last.extent)
    mark = b.mark()
    done: list[tuple[str, int]] = []
    left = [(last.sym.name, last.extent)]
    while left:
        name, extent = left.pop()
        loop = find_loop(b.kernel, name, "pointwise")
        seam = place(loop.body, loop.loop.sym, extent)
        if seam is None:
            done.append((name, extent))
        else:
            first, second = b.do("cut", name, seam).loops
            left += [(second, extent - seam), (first, seam)]
        runs = [n for _, n in (*done, *left)]
        if len(runs) > machine.max_copies // machine.partial_sums or _n_vectors(runs, width) > most:
            b.back(mark)
            return []
    return done if len(done) > 1 else []


def _seam(body: Body, sym: Sym, extent: int) -> int | None:
    """The first place inside of the loop where a quotient, remainder, minimum or maximum in an index changes form."""
    atoms = {atom for s in walk(body) for x in loads_of(s) for i in placed(x.index) for atom in _changing(i, sym)}
    found = {_changes_at(atom, sym) for atom in atoms}
    return min((at for at in found if at is not None and 0 < at < extent), default=None)


def _edge(body: Body, sym: Sym, extent: int) -> int | None:
    """The first place inside of the loop where a minimum or maximum in an index becomes its other operand."""
    indices = [i for s in walk(body) for x in loads_of(s) for i in placed(x.index)]
    found = [_edge_of(atom, sym, extent) for i in indices for atom in _extremes(i, sym)]
    return min((at for at in found if at is not None), default=None)


def _extremes(e: Dim, sym: Sym) -> list[BinaryExpr]:
    """The minima and maxima of ``sym`` in an expression."""
    atoms = [a for a, _ in terms_of(e) if isinstance(a, BinaryExpr) and sym in symbols(a)]
    inner = [x for a in atoms for x in (*_extremes(a.a, sym), *_extremes(a.b, sym))]
    return inner + [a for a in atoms if a.op in ("min", "max")]


def _edge_of(atom: BinaryExpr, sym: Sym, extent: int) -> int | None:
    """The least value of ``sym`` from which on its operands compare otherwise than at 0; they differ by what grows."""
    e = atom.a - atom.b
    if symbols(e) != {sym} or not (_is_growing(e, sym) or _is_growing(-1 * e, sym)):
        return None
    low, high = 0, extent - 1
    is_less = evaluate(e, {sym: low}) < 0
    if (evaluate(e, {sym: high}) < 0) == is_less:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if (evaluate(e, {sym: middle}) < 0) == is_less else (low, middle)
    return high


def _is_growing(e: Dim, sym: Sym) -> bool:
    """Does it never fall as ``sym`` grows: a sum of it and of quotients, minima and maxima of such sums?"""
    for atom, factor in terms_of(e):
        if isinstance(atom, BinaryExpr) and atom.op in ("floordiv", "min", "max"):
            fits = _is_growing(atom.a, sym) and (
                _is_growing(atom.b, sym) if atom.op != "floordiv" else known_over(atom.b, 0)
            )
        else:
            fits = atom == sym
        if not fits or factor < 0:
            return False
    return True


def _changing(e: Dim, sym: Sym) -> list[BinaryExpr]:
    """The quotients, remainders, minima and maxima of ``sym`` in an expression, inner ones first."""
    if is_known(e) or sym not in symbols(e):
        return []
    found: list[BinaryExpr] = []
    for atom, _ in terms_of(e):
        if isinstance(atom, BinaryExpr):
            inner = [*_changing(atom.a, sym), *_changing(atom.b, sym)]
            found += inner or [atom]
    return found


def _changes_at(atom: BinaryExpr, sym: Sym) -> int | None:
    """The least positive value of ``sym`` from which on the atom is another form; None when other symbols decide."""
    compared = atom.op in ("min", "max")
    e = atom.a - atom.b if compared else atom.a
    step = coefficient(e, sym)
    if not is_known(step) or step == 0 or symbols(e) != {sym} or not (compared or is_known(atom.b)):
        return None
    start = const_of(e)
    unit = 1 if compared else atom.b
    assert is_known(unit)
    if unit <= 0:
        return None
    edge = 0 if compared else (start // unit + (step > 0)) * unit
    at = -((start - edge) // step) if step > 0 else (start - edge) // -step + 1
    return at if compared or at > 0 else None


def _repeating_block(machine: Target, nest: Nest, width: int) -> int:
    """Iterations of the last loop after which quotients and remainders in loads are at the same phase again; or 0.

    ``x[j // 3]``, as an image grows, is a shuffle of known elements in each vector of a block of 48. 0 where other
    loops decide the phase, blocks are large, or an index of another form, or of the result, is not affine.
    """
    sym, block, leaf = nest.loops[-1].sym, width, nest.leaf[0]
    assert isinstance(leaf, Store)
    written = list(placed(leaf.index))
    read = [i for x in loads_of(leaf) for i in placed(x.index)]
    others = [d for d in dims_of(leaf, besides={x.buffer for x in loads_of(leaf)}) if d not in written]
    if not _reads_others(leaf) or any(coefficient(d, sym) is None for d in (*written, *others)):
        return 0
    if any(depends(i, sym) for x in loads_of(leaf) for i in chosen(x.index)):
        return 0
    for atom, _ in (t for d in read for t in terms_of(d)):
        if atom == sym or sym not in symbols(atom):
            continue
        if not isinstance(atom, BinaryExpr) or atom.op not in ("floordiv", "mod") or symbols(atom.a) != {sym}:
            return 0
        step = coefficient(atom.a, sym)
        if not is_known(atom.b) or not is_known(step) or atom.b <= 0:
            return 0
        block = lcm(block, atom.b // gcd(step, atom.b))
    return block if block <= machine.n_vector_registers // 2 * width else 0


def _repeated(b: ScheduleBuilder, machine: Target, last: Loop, width: int, block: int) -> list[str]:
    """Vectors along a loop in blocks, each vector of which is at a phase of its own; the loop that walks the blocks."""
    name = last.sym.name
    if is_known(last.extent) and width < last.extent <= block:
        vectors, lanes = b.split(name, width)
        b.do("kind", lanes, "vector")
        b.do("kind", vectors, "unroll")
        return []
    return vectorize(b, machine, name, last.extent, width, block // width).walkers


def _is_group(nest: Nest, leaf: Store, width: int) -> bool:
    """Are the two last axes a contiguous run of the result in which the last one is a small part of a vector?"""
    if len(nest.loops) < 2 or nest.loops[-1].extent not in GROUPS or width <= GROUPS[-1]:
        return False
    outer, inner = nest.loops[-2:]
    return follow(leaf, outer, inner) and all(may_vectorize(nest.leaf, x.sym) for x in (outer, inner))


def _reads_others(leaf: Store) -> bool:
    """Is nothing read of the buffer that is written, so that each lane may read wherever its data say?"""
    return all(x.buffer is not leaf.buffer for x in loads_of(leaf))


def _axis_across(nest: Nest, leaf: Store, width: int, extent: Dim | float) -> Loop | None:
    """The loop along which an operand's elements lie, or every other or third, that jumps along the last one.

    ``extent``: elements of the last loop's vectors.
    """
    last = nest.loops[-1].sym
    if _is_few(extent, width) or n_operations(leaf.value) > FUNCTION_OPERATIONS:
        return None
    for x in loads_of(leaf):
        if x.buffer is leaf.buffer or stride_along(x.buffer, x.index, last) in (0, 1, None):
            continue
        strides = [(stride_along(x.buffer, x.index, loop.sym), loop) for loop in nest.loops[:-1]]
        near = [(s, loop) for s, loop in strides if is_known(s) and 1 <= s <= SHUFFLED_STRIDE]
        if near:
            _, loop = min(near, key=itemgetter(0))
            return None if _is_few(loop.extent, width) else loop
    return None


def _is_few(extent: Dim | float, width: int) -> bool:
    """Too few elements for blocks; of a number known at run time, where it never fills one."""
    if isinstance(extent, int | float):
        return isinstance(extent, int) and extent < min(width, GROUPS[-1])
    return floordiv(extent, width) == 0


def _transpose(
    b: ScheduleBuilder, machine: Target, nest: Nest, to: Buffer, across: Loop, width: int, threads: bool
) -> None:
    """Vectors along the last loop for blocks of ``across`` at a time; the last block begins within the one before.

    Axes of run-time size, or with so few elements behind full blocks that a block for them costs more: full blocks,
    then the rest by vectors along the last loop, without a transposition.
    """
    names, extent = [x.sym.name for x in nest.loops], nest.loops[-1].extent
    loop, last, n = across.sym.name, names[-1], across.extent
    block = min([width, *(1 << (x.bit_length() - 1) for x in (n, extent) if is_known(x))])
    if not is_known(extent):
        names, last, extent = _full(b, machine, names, last, width)
    # Each element behind is loaded and moved to its place, and its vector stored; a block's vectors are loaded,
    # exchanged by halves, quarters and so on, and stored.
    each, of_block = 2 * width + 1, block * (block.bit_length() + 1)
    if not is_known(n) or (n > block and 0 < n % block * each <= of_block):
        names, loop, n = _full(b, machine, names, loop, block)
    blocks, copies = b.split(loop, block, "shift" if mod(n, block) != 0 else "min")
    walkers, lanes, _ = vectorize(b, machine, last, extent, width, 1)
    b.do("kind", copies, "unroll")
    outer = [blocks if name == loop else name for name in names[:-1]]
    order = [*outer, *walkers, copies, lanes]
    b.do("reorder", *order)
    if threads:
        parallel(b, machine, order[:2])
    hint_rows(b, machine, copies, to)


def _transpose_groups(
    b: ScheduleBuilder, machine: Target, nest: Nest, across: Loop, block: int, width: int, threads: bool
) -> None:
    """Vectors along the two last loops, ``block`` steps of the outer one, for blocks of ``across`` at a time."""
    *names, vectors, group = (x.sym.name for x in nest.loops)
    loop, n = across.sym.name, estimate([across.extent])
    size = min(width, 1 << (int(n).bit_length() - 1))
    blocks, copies = b.split(loop, size, "shift" if n % size else "min")
    walkers, lanes, _ = vectorize(b, machine, vectors, nest.loops[-2].extent, block, 1)
    b.do("kind", copies, "unroll")
    outer = [blocks if name == loop else name for name in names]
    order = [*outer, *walkers, copies, lanes, group]
    b.do("reorder", *order)
    if threads:
        parallel(b, machine, order[:2])


def _full(b: ScheduleBuilder, machine: Target, names: list[str], loop: str, size: int) -> tuple[list[str], str, Dim]:
    """A nest's loop in full blocks: the new loops' names, that loop's, its extent.

    The rest becomes a nest of its own, in vectors. The loop goes outermost for that.
    """
    order = [loop, *(n for n in names if n != loop)]
    if len(order) > 1:
        b.do("reorder", *order)
    full, *copies = b.do("divide", loop, size).loops
    if len(copies) != len(order):  # whatever the size is, blocks leave nothing, or there are none
        raise ScheduleError("pointwise", loop, f"blocks of {size} and a rest are not both there")
    copy_of = dict(zip(order, copies, strict=True))
    names, rest = [full if n == loop else n for n in names], [copy_of[n] for n in names]
    if len(names) > 1:
        b.do("reorder", *names)
        b.do("reorder", *rest)
    extents = {x.loop.sym.name: x.loop.extent for x in _fors(b)}
    vectorize(b, machine, rest[-1], extents[rest[-1]], size, 1)
    return names, full, extents[full]


def unrolling(work: int, most: int) -> int:
    """How many vectors, each of ``work`` operations, go together: a power of two, up to the first from ``most`` on."""
    unrolled = 1
    while unrolled < most and work * unrolled <= UNROLL_OPERATIONS:
        unrolled *= 2
    return unrolled


def plain(b: ScheduleBuilder, machine: Target, buffers: list[str]) -> None:
    """Nests that no rule fits stay as they are; the outermost loop runs over threads where that is legal and pays."""
    for s in b.kernel.body:
        nest = nest_of(s)
        names = {x.name for leaf in nest.leaf for x in written(leaf)}
        if not nest.loops or not names & set(buffers) or any(x.kind is not Kind.SERIAL for x in nest.loops):
            continue
        work = estimate([x.extent for x in nest.loops]) * MOVED
        if pays_threads(work, machine, 1):
            parallel(b, machine, [nest.loops[0].sym.name])


def _writes_a_row(nest: Nest) -> bool:
    """Does the last loop walk neighbours of what is written, wherever that starts, and is nothing else of it read?"""
    if len(nest.leaf) != 1:
        return False
    leaf, sym = nest.leaf[0], nest.loops[-1].sym
    if not isinstance(leaf, Store | Update) or not leaf.index or leaf.index[-1] != sym:
        return False
    fixed = placed(leaf.index[:-1])
    return not any(sym in symbols(i) for i in fixed) and all(x.buffer is not leaf.buffer for x in loads_of(leaf))


class Vectors(NamedTuple):
    """Of a loop in vectors: loops that walk blocks of ``n`` of them (none for a single vector), and the lanes."""

    walkers: list[str]
    lanes: str
    n: int = 1


def vectorize(
    b: ScheduleBuilder, machine: Target, loop: str, extent: Dim, width: int, unrolled: int, *, in_step: bool = False
) -> Vectors:
    """Split a loop into blocks of ``unrolled`` vectors or fewer; of a divided loop, those of its full blocks.

    Where each vector is a long row of instructions that wait for each other, all vectors of a block may go ``in_step``,
    as lanes of one: a core that looks so many instructions ahead sees several rows then, and not one to its end.
    Functions of 16 bits are computed in f32, so that a vector of them is several rows already.
    """
    if in_step:
        unrolled = max(unrolled // max(width // machine.lanes(f32), 1), 1)
    unrolled = min(unrolled, max(machine.n_vector_registers // 2 * machine.max_copies // MANY_COPIES, 1))
    if is_known(extent) and extent <= width:
        b.do("kind", loop, "vector")
        return Vectors([], loop)
    while unrolled > 1 and floordiv(extent, width * unrolled) == 0:
        unrolled //= 2
    is_even = mod(extent, width * unrolled) == 0
    if unrolled == 1 or is_even or (is_known(extent) and not in_step):
        return _vectors(b, loop, width, unrolled, in_step)
    full, rest, *_ = b.do("divide", loop, width * unrolled).loops
    _vectors(b, rest, width, 1, in_step)
    return _vectors(b, full, width, unrolled, in_step)


def _vectors(b: ScheduleBuilder, loop: str, width: int, unrolled: int, in_step: bool) -> Vectors:
    if unrolled > 1 and in_step:
        walker, lanes = b.split(loop, width * unrolled)
        b.do("kind", lanes, "vector")
    elif unrolled > 1:
        walker, block = b.split(loop, width * unrolled)
        copies, lanes = b.split(block, width)
        b.do("kind", lanes, "vector")
        b.do("kind", copies, "unroll")
    else:
        walker, lanes = b.split(loop, width)
        b.do("kind", lanes, "vector")
    return Vectors([walker], lanes, unrolled)


def _fors(b: ScheduleBuilder) -> list[For]:
    return [s for s in walk(b.kernel.body) if isinstance(s, For)]
