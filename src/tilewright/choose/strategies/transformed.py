"""The rule for a product between plain stages: what is made for it and of it stays in the second-level cache.

In: a builder and the buffers of the stages in order: two stages that make the product's operand, the product, a stage
that reads it, the root. Out: steps. Not its business: the product's own tile (``contract``), whether such a form pays.

Before: one nest per stage over the whole image (Winograd: columns, points, products, rows, results). After, in blocks:
``for block (parallel): (for channels: columns, points); products; for tile: rows, results``. A block is as many tiles
as keep points and products in the second-level cache, or more of them, up to an image, where the constant operand is so
large that reading it for every block costs more than what goes to the last cache and back. Several cores get blocks
that fall on them evenly, also where a cache would hold all. Where even that costs more than sending points and products
through memory, there are no blocks, and each phase is parallel. Where the number of tiles is known at run time only
there always are blocks, of a size that is a number; those too large for scratch lie in memory that every block uses
again. Groups of channels go one after the other through all blocks, so that a group's constants stay near. Where
channels take turns (the phases of a transposed convolution), the loops over turns are inside of a tile, unless blocks
would be of few tiles then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from tilewright.choose.cost.price import FITTED, joined
from tilewright.choose.cost.tile import balanced, estimate, pays_threads
from tilewright.choose.strategies.contract import contract
from tilewright.choose.strategies.steps import attempt
from tilewright.choose.strategies.threads import min_tasks, parallel
from tilewright.choose.strategies.view import find_body, nest_with, nests, only_nest, statement_of, vector_width
from tilewright.core.compute import IndexLike, Inside, Load, Select
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known
from tilewright.core.effort import EFFORT
from tilewright.core.estimates import DOUBT, EVEN_CHUNKS, WAITED_FOR
from tilewright.core.expr import BinaryExpr, Dim, Sym, ceildiv, symbols
from tilewright.core.indices import placed, symbols_in, terms_at
from tilewright.ops.winograd import BESIDE
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import Loop, Role, Store, Update
from tilewright.tile.rewrite import Body, loads_of, symbols_of_index, values_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.tree import Nest, find_place

MAX_BEFORE = 8
"""Tiles of a block along the walk before the last, at most, where their number is known at run time only."""
EXCHANGED = 1.25
"""What phases cost that exchange their values between cores, with a join after each, by what even blocks cost."""


@dataclass(frozen=True)
class Transformed:
    """The buffers of the five stages, in order; ``first`` is read by ``operand`` only, and so on."""

    first: str
    operand: str
    product: str
    after: str
    root: str


@dataclass(frozen=True)
class _TileWalk:
    """A loop of the root over the elements of tiles: ``n_tiles`` of ``factor`` elements each."""

    loop: str
    factor: int
    n_tiles: Dim


def transformed(b: ScheduleBuilder, machine: Target, names: Transformed) -> None:
    """Schedule the five stages together. ``ScheduleError`` when the structure does not fit."""
    top = only_nest(b.kernel, names.root)
    if not isinstance(statement_of(top), Store):
        raise ScheduleError("transformed", names.root, "the last stage is not a plain assignment")
    groups = _groups(b, names, top)
    top = only_nest(b.kernel, names.root)
    width = vector_width(machine, top.leaf)
    walks = _walks(top, names.after)
    slid = _slid(b, names, top)
    turns = [x for x in _turns(names, top) if x not in groups]
    batch = [x for x in top.loops[:-1] if x.sym.name not in {*slid, *turns, *(w.loop for w in walks)}]
    sizes = _block(b, machine, names, walks, batch, groups)
    # Channels that take turns pay where a block holds many tiles; otherwise they are walked like any other loop. Fewer
    # than keep the multipliers busy are too few to read the constants of all phases at once for.
    if turns and (sizes is None or prod(sizes) < machine.waiting_sums):
        batch, turns = [x for x in top.loops[:-1] if x in batch or x.sym.name in turns], []
        sizes = sizes and _block(b, machine, names, walks, batch, groups)  # which makes its points for each turn
    if not batch and sizes == tuple(w.n_tiles for w in walks):
        sizes = None  # one block, which needs no loops over blocks
    threads = pays_threads(_work(b, names.product), machine, width)
    outer, tiles, inner = _split_root(b, machine, walks, sizes, [x.sym.name for x in batch])
    outer.sort(key=lambda loop: loop not in groups)
    tiles, inner = [*slid, *tiles], [*inner, *turns]
    lanes = top.loops[-1].sym.name
    b.do("reorder", *outer, *tiles, *inner, lanes)
    b.do("compute_at", names.after, tiles[-1], "local")
    if turns:
        _join_channels(b, names.after, tiles[-1], len(turns) + 1)
    # At a block: points of all its tiles are products of one matrix, whose operands stay in the near cache.
    are_own = [_bring(b, name, outer) for name in (names.product, names.operand)] if outer else []
    _results(b, names, tiles[-1], turns, width)
    made = _operand(b, machine, names, outer[-1] if outer else "")
    # The product's rule comes last, because it sees the box that is left at a block.
    contract(b, machine, names.product, None)
    if threads:
        for loops in [outer] if outer and all(are_own) else [made, tiles]:
            parallel(b, machine, loops)


def _bring(b: ScheduleBuilder, name: str, blocks: list[str]) -> bool:
    """Compute the part for one block in scratch of the thread, or, too large for that, in memory used again.

    Is it scratch? Threads share what a block does where it is not.
    """

    def in_scratch() -> None:
        b.do("compute_at", name, blocks[-1], "local")
        if _bytes(b, name) > EFFORT.added_bytes:
            raise ScheduleError("transformed", name, "a block of it is too large for scratch")

    if attempt(b, in_scratch):
        return True
    b.do("compute_at", name, blocks[-1], "global")
    for loop in blocks:
        for dim in range(len(find_place(b.kernel, name, "transformed").buffer.shape)):
            if attempt(b, partial(b.do, "fold", name, dim, loop)):
                break
    return False


def _walks(top: Nest, read: str) -> list[_TileWalk]:
    """The root's loops that it reads ``read`` by the quotient of, outermost first."""
    factors: dict[Sym, int] = {}
    for s in top.leaf:
        for x in loads_of(s):
            for i in x.index if x.buffer.name == read else ():
                for atom, _ in terms_at(i):
                    if isinstance(atom, BinaryExpr) and isinstance(atom.a, Sym) and is_known(atom.b):
                        factors[atom.a] = atom.b
    found: list[_TileWalk] = []
    for loop in top.loops[:-1]:
        n = loop.extent
        if loop.sym in factors:
            found.append(_TileWalk(loop.sym.name, factors[loop.sym], ceildiv(n, factors[loop.sym])))
    if not found:
        raise ScheduleError("transformed", read, "nothing walks tiles of it")
    return found


def _groups(b: ScheduleBuilder, names: Transformed, top: Nest) -> list[str]:
    """The loop over groups of channels that a split of the root's last loop gives, where products are of one group."""
    last, nest = _written(b, names.after)[-1], only_nest(b.kernel, names.after)
    loads = [x for s in nest.leaf for x in loads_of(s) if x.buffer.name == names.product]
    terms = [t for x in loads for i in x.index for t, _ in terms_at(i) if isinstance(t, BinaryExpr)]
    size = next((t.b for t in terms if t.op == "floordiv" and t.a == last), 0)
    return [b.split(top.loops[-1].sym.name, size)[0]] if is_known(size) and size > 0 else []


def _slid(b: ScheduleBuilder, names: Transformed, top: Nest) -> list[str]:
    """The root's loops along which the product's terms overlap, as the taps of a volume's depth do.

    They stay whole in every block: cut, what lies at the cuts would be transformed for both sides.
    """
    product = statement_of(nests(b.kernel, names.product)[-1])
    assert isinstance(product, Update)
    own = {i for i in product.index if isinstance(i, Sym)}
    loads = [x for x in walk_value(product.value) if isinstance(x, Load) and x.buffer.name == names.operand]
    places = [symbols(i) for x in loads for i in placed(x.index)]
    found = {s for used in places if len(used) > 1 for s in used & own}
    for reader, made in ((names.after, names.product), (names.root, names.after)):
        nest = only_nest(b.kernel, reader)
        at = {d for d, i in enumerate(_written(b, made)) if i in found}
        found = {
            s
            for x in (x for statement in nest.leaf for x in loads_of(statement) if x.buffer.name == made)
            for d in at
            for s in symbols_of_index(x.index[d : d + 1])
        }
    return [x.sym.name for x in top.loops if x.sym in found]


def _turns(names: Transformed, top: Nest) -> list[str]:
    """The root's loops that walk channels of what it reads, beside the last: phases of a transposed convolution.

    They are inside of a tile, whose products are of all channels; so no point is made twice.
    """
    *outer, last = top.loops
    loads = [x for s in top.leaf for x in loads_of(s) if x.buffer.name == names.after]
    channels = {s for x in loads for s in symbols_of_index(x.index[-1:])}
    others = {s for x in loads for s in symbols_of_index(x.index[:-1])}
    return [x.sym.name for x in outer if last.sym in channels and x.sym in channels - others]


def _join_channels(b: ScheduleBuilder, after: str, tile: str, n: int) -> None:
    """The nest of ``after`` at a tile: its ``n`` loops over channels as one."""
    nest = nest_with(find_body(b.kernel, tile), after, Store)
    store = statement_of(nest)
    assert isinstance(store, Store)
    used = symbols_of_index(store.index[-1:])
    channels = [x.sym.name for x in nest.loops if x.sym in used]
    b.do("reorder", *(x.sym.name for x in nest.loops if x.sym not in used), *channels)
    for _ in range(n - 1):
        *channels, outer, inner = channels
        b.do("fuse", outer, inner)
        channels.append(f"{outer}_{inner}")


def _written(b: ScheduleBuilder, name: str) -> tuple[IndexLike, ...]:
    statement = statement_of(nests(b.kernel, name)[-1])
    assert isinstance(statement, Store | Update)
    return statement.index


def _work(b: ScheduleBuilder, product: str) -> float:
    return estimate([x.extent for x in nests(b.kernel, product)[-1].loops])


def _block(
    b: ScheduleBuilder,
    machine: Target,
    names: Transformed,
    walks: list[_TileWalk],
    batch: list[Loop],
    groups: list[str],
) -> tuple[int, ...] | None:
    """How many tiles of each walk make a block, which may be all; None: no blocks.

    Of blocks that fit, and of ever larger ones up to the whole image, those that wait least: what of a block is beyond
    its place in the near cache goes to a farther one, and comes back while the block multiplies, as the group's
    constants do for every block but the first. Without blocks all points and products go and come.
    """
    n_groups = estimate([x.extent for x in batch if x.sym.name in groups])
    n_tiles = estimate([w.n_tiles for w in walks]) * estimate([x.extent for x in batch])
    total = sum(_bytes(b, name) for name in (names.operand, names.product))
    constants = _constant_bytes(b, names.product) / n_groups
    # Points, products and constants stay beside what passes through the cache.
    limit = min(machine.l2_bytes - machine.l2_part_bytes, EFFORT.added_bytes) - min(constants, machine.l2_part_bytes)
    fit = int(limit * n_tiles / total)
    counts = [w.n_tiles for w in walks if is_known(w.n_tiles)]
    if len(counts) < len(walks):
        return _ragged_block(walks, max(fit, int(constants * WAITED_FOR / 2 * n_tiles / total)))
    products, come = _product_cycles(b, machine, names), constants / _bytes_per_cycle(machine, constants)

    def waiting(n_blocks: float, beyond: float, n_readings: float) -> float:
        passing = beyond / _bytes_per_cycle(machine, total / n_blocks)
        of_block = {"arithmetic": products / n_blocks, "bytes": passing / n_blocks + come * n_readings / n_blocks}
        return float(passing + n_blocks * (joined(of_block, FITTED) - of_block["arithmetic"]))

    def cycles(sizes: tuple[int, ...]) -> float:
        n_blocks = n_tiles / prod(sizes)
        return waiting(n_blocks, max(total - limit * n_blocks, 0), n_blocks - n_groups)

    apart = waiting(1, total, 0)
    most = [max(fit, 1)]
    while most[-1] < prod(counts):
        most.append(2 * most[-1])
    sizes = min((_sizes(counts, n) for n in most), key=cycles)
    n_blocks = n_tiles / prod(sizes)
    found = sizes if n_blocks >= 2 and cycles(sizes) <= apart else None
    if machine.n_cores > 1 and not batch:
        found = _shared(counts, found, fit, lambda n: waiting(n, 0, n - n_groups) <= apart, machine.n_cores)
    return sizes if found is None and n_blocks == 1 else found


def _sizes(counts: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many tiles: as many as there are along the last walks, and a part of the one before these."""
    sizes: list[int] = []
    for count in reversed(counts):
        sizes.insert(0, _part_of(count, min(count, most)))
        most = most // sizes[0] if sizes[0] == count else 1
    return tuple(sizes)


def _product_cycles(b: ScheduleBuilder, machine: Target, names: Transformed) -> float:
    """Cycles of one core for all products, as many in an instruction as vectors hold numbers of the operand's type."""
    dtype = find_place(b.kernel, names.operand, "transformed").buffer.dtype
    return _work(b, names.product) / (machine.lanes(dtype) * machine.fmas_per_cycle)


def _bytes_per_cycle(machine: Target, n_bytes: float) -> float:
    """How fast bytes come again: from the second-level cache so many as it keeps beside a block, from the last one what
    that keeps beside as many others, else from memory."""
    if n_bytes <= machine.l2_part_bytes:
        return machine.l2_bytes_per_cycle
    is_near = 2 * n_bytes <= machine.llc_kept_bytes
    return machine.llc_bytes_per_cycle if is_near else machine.memory_bytes_per_cycle


def _shared(
    counts: Sequence[int], sizes: tuple[int, ...] | None, fit: int, pays: Callable[[int], bool], n_cores: int
) -> tuple[int, ...] | None:
    """``sizes``, or blocks of at most ``fit`` tiles that ``n_cores`` finish sooner; None: phases for the whole image.

    So many blocks as to read constants again for are tried where that ``pays``.

    A block keeps its points and products on one core, which waits for no other between its phases. The last block
    of the first walk may be smaller where the others are whole: else blocks are not seen to write apart.
    """
    least = _longest(counts, sizes, n_cores) if sizes else prod(counts) / n_cores * EXCHANGED
    even = product(*([n for n in range(1, count + 1) if count % n == 0] for count in counts))
    for other in [*even, *((n, *counts[1:]) for n in range(1, counts[0] + 1))]:
        n_blocks = prod(-(-count // n) for count, n in zip(counts, other, strict=True))
        if prod(other) <= fit and n_cores <= n_blocks <= EVEN_CHUNKS * n_cores and pays(n_blocks):
            takes = _longest(counts, other, n_cores) / (1 - DOUBT)
            if takes < least:
                least, sizes = takes, other
    return sizes


def _longest(counts: Sequence[int], sizes: Sequence[int], n_cores: int) -> float:
    """Tiles of the core that has most to do; one more for each block, for reading constants again."""
    parts = [[min(n, count - at) for at in range(0, count, n)] for count, n in zip(counts, sizes, strict=True)]
    loads = [0] * n_cores
    for block in product(*parts):
        loads[loads.index(min(loads))] += prod(block) + 1
    return max(loads)


def _part_of(count: int, most: int) -> int:
    """At most ``most`` of ``count`` tiles: a divisor where a large one fits, else parts as even as can be.

    Blocks of one size take one form of the code; uneven ones are taken where those would be half as large or less.
    """
    divisor = max(n for n in range(1, most + 1) if count % n == 0)
    even = balanced(count, most)
    return divisor if 2 * divisor > even else even


def _ragged_block(walks: list[_TileWalk], most: int) -> tuple[int, ...]:
    """Tiles of each walk, where numbers of tiles are known at run time only: ``BESIDE`` of the last walk.

    Of the walk before it, as many as fit; few, since small images fill only a part.
    """
    sizes = [min(n, MAX_BEFORE) if is_known(n := w.n_tiles) else MAX_BEFORE for w in walks]
    before = [min(n, max(most // BESIDE, 1)) for n in sizes[-2:-1]]
    return (*[1 for _ in sizes[:-2]], *before, BESIDE)


def _bytes(b: ScheduleBuilder, name: str) -> float:
    buffer = find_place(b.kernel, name, "transformed").buffer
    return estimate(buffer.shape) * buffer.dtype.n_bytes


def _constant_bytes(b: ScheduleBuilder, product: str) -> float:
    update = statement_of(nests(b.kernel, product)[-1])
    assert isinstance(update, Update)
    fixed = {p.buffer for p in b.kernel.places if p.role is Role.CONST}
    return sum(_bytes(b, x.buffer.name) for x in walk_value(update.value) if isinstance(x, Load) and x.buffer in fixed)


def _split_root(
    b: ScheduleBuilder, machine: Target, walks: list[_TileWalk], sizes: tuple[int, ...] | None, batch: list[str]
) -> tuple[list[str], list[str], list[str]]:
    """The root's loops over blocks (the one with tasks enough for the threads first), tiles, elements of a tile.

    Loops over a single block are inside of the batch, which threads share then.
    """
    outer: dict[str, float] = {}
    tiles: list[str] = []
    inner: list[str] = []
    for k, w in enumerate(walks):
        tile, element = b.split(w.loop, w.factor)
        inner.append(element)
        if sizes is not None:
            block, tile = b.split(tile, sizes[k])
            outer[block] = estimate([w.n_tiles]) / sizes[k]
        tiles.append(tile)
    if sizes is None:
        return [], [*batch, *tiles], inner
    order = sorted(outer, key=lambda n: -min(outer[n], min_tasks(machine)))
    single = [n for n in order if outer[n] == 1]
    return [*order[: len(order) - len(single)], *batch, *single], tiles, inner


def _results(b: ScheduleBuilder, names: Transformed, tile: str, turns: list[str], width: int) -> None:
    """At a tile: one loop over vectors of channels, with the stage after the product and the root inside.

    Where channels take turns, a loop for each: the root's vectors are parts of a turn.
    """
    vectors: list[str] = []
    for name, outer in ((names.after, []), (names.root, turns)):
        nest = nest_with(find_body(b.kernel, tile), name, Store)
        vectors.append(_in_vectors(b, nest, outer, width))
    if not turns:
        b.do("merge", *vectors)


def _operand(b: ScheduleBuilder, machine: Target, names: Transformed, at: str) -> list[str]:
    """The product's operand, by vectors of channels, and the stage before it at each; returns the outer loops."""
    first, nest = only_nest(b.kernel, names.first), nest_with(_body(b, at), names.operand, Store)
    store = statement_of(first)
    assert isinstance(store, Store)
    rows = _selecting(first)
    shared = [d for d, i in enumerate(store.index[:-1]) if i not in rows]
    places = [x.index for s in nest.leaf for x in loads_of(s) if x.buffer.name == names.first]
    fixed = [i for i in (places[0][d] for d in shared) if all(i in p for p in places)]
    used = symbols_in(fixed)
    outer = [x.sym.name for x in nest.loops[:-1] if x.sym in used]
    vector = _in_vectors(b, nest, outer, vector_width(machine, nest.leaf))  # 16 bits where the product's sums have 32
    b.do("compute_at", names.first, vector, "local")
    nest = nest_with(find_body(b.kernel, vector), names.first, Store)
    _ordered(b, [], nest, nest.loops[-1].sym.name)
    return [*outer, vector]


def _body(b: ScheduleBuilder, at: str) -> Body:
    return find_body(b.kernel, at) if at else b.kernel.body


def _in_vectors(b: ScheduleBuilder, nest: Nest, outer: list[str], width: int) -> str:
    """``outer``, vectors of the last loop, the rest of the nest, lanes; returns the loop over vectors."""
    last = nest.loops[-1]
    name, n = last.sym.name, last.extent
    vectors, lanes = b.split(name, min(width, n) if is_known(n) else width)
    _ordered(b, [*outer, vectors], nest, lanes)
    return vectors


def _ordered(b: ScheduleBuilder, outer: list[str], nest: Nest, lanes: str) -> None:
    """``outer``, the nest's other loops, those that select a row of a matrix (copied: rows share sums), lanes."""
    rows = [x.sym.name for x in nest.loops[:-1] if x.sym in _selecting(nest)]
    rest = [x.sym.name for x in nest.loops[:-1] if x.sym.name not in (*outer, *rows)]
    if len(order := [*outer, *rest, *rows, lanes]) > 1:
        b.do("reorder", *order)
    for name in rows:
        b.do("kind", name, "unroll")
    b.do("kind", lanes, "vector")


def _selecting(nest: Nest) -> frozenset[Sym]:
    """What chooses between sums in the nest's values, apart from the guards of single loads."""
    values = [y for s in nest.leaf for v in values_of(s) for y in walk_value(v) if isinstance(y, Select)]
    conditions = [v.cond for v in values if isinstance(v.cond, Inside) and not isinstance(v.a, Load)]
    return frozenset().union(*(symbols(e) for c in conditions for e in c.exprs))
