"""Averages for one row at a time, as attention of a single query has: a block makes weights and averages by them.

In: a computation, a GPU; a builder. Out: an equal computation in which such sums are in parts, and the names of the
stages; one grid. Not its business: several rows that share what they read (``averages``), weights alone (``rows``).

Before, for each ``b``, whatever the weights are made by::

    S[b, j] = sum over k of q[b, k] * x[b, j, k];  ..  W[b, j] = f(S[b, j], sums over j)
    O[b, d] = sum over j of W[b, j] * v[b, j, d]

After, for G parts, each of every G-th ``j``::

    for b (block):
      for w, lane: S[j] = sum over k ..         shared; a thread's own, 16 bytes of x at a time
      ..                                        sums over j by a tree, all else by threads beside each other
      for w, lane: Q[g, d] = sum over t of W[t*G + g] * v[t*G + g, d]       shared; 16 bytes of v at a time
      for w, lane: O[d] = sum over g of Q[g, d]

Everything is read once, by one launch, and nothing between goes to memory. Not when: something that is read does not
depend on every one of the ``b``, because rows would share it; a size is known at run time only; a temporary is wanted
elsewhere; rows are so few and long that launches for all multiprocessors take less; a block lacks the shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from math import isqrt, prod

from tilewright.choose.strategies.gpu.elements import as_one, at_most, extent_of, outermost_first
from tilewright.choose.strategies.gpu.matrices import plain_reader_of
from tilewright.choose.strategies.gpu.sums import in_registers
from tilewright.choose.strategies.rows import is_scalar
from tilewright.choose.strategies.steps import cached_name
from tilewright.choose.strategies.view import find_body, nest_with, nests, only_nest
from tilewright.core.compute import (
    Axis,
    Binary,
    Buffer,
    Computation,
    Inside,
    Load,
    Reduction,
    Select,
    Stage,
    Value,
    buffers_of_value,
    loads,
    loop_symbol,
    stages_alone,
    substitute_value,
    symbols_of_value,
    syms,
)
from tilewright.core.dims import is_known, numbers
from tilewright.core.expr import Sym
from tilewright.core.indices import chosen, symbols_in
from tilewright.target.gpu import Gpu
from tilewright.tile.affine import stride_along
from tilewright.tile.errors import ScheduleError
from tilewright.tile.grid import MAX_DIMENSIONS
from tilewright.tile.ir import For, Kind, Space, Store, Update, written_in
from tilewright.tile.rewrite import loads_of
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.partials import identity_of
from tilewright.tile.schedule.tree import find_place, nest_of


@dataclass(frozen=True)
class SingleRow:
    """The names of the stages: those that make the weights in order, the sums of parts, what they come to, the root.

    ``lanes`` neighbours of a row of values are one access, and the sums are ``of`` a buffer.
    """

    of: str
    weights: tuple[str, ...]
    parts: str
    sums: str
    root: str
    lanes: int

    @property
    def stages(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.weights, self.parts, self.sums, self.root)


def block_threads(gpu: Gpu) -> int:
    """Threads of a block: two warps for each scheduler, as one waits for the memory."""
    return 2 * gpu.sm_schedulers * gpu.warp_lanes


def with_single_rows(
    computation: Computation, gpu: Gpu, taken: Container[str], is_refused: Callable[[str], bool]
) -> tuple[Computation, list[SingleRow]]:
    """The computation with such sums in parts, but for stages ``taken`` and sums of which it ``is_refused``."""
    stages = stages_alone(computation)
    if stages is None:
        return computation, []
    found = [x for s in stages if not is_refused(s.out.name) and (x := _averages(s, stages, computation)) is not None]
    found = _apart([x for x in found if not any(y.out.name in taken for y in x.stages) and _pays(x, gpu)])
    moved = {id(y) for x in found for y in (*x.weights, x.sums)}
    by_root = {id(x.root): x for x in found}
    made, temps, named = list[Stage](), list(computation.temps), list[SingleRow]()
    for s in stages:
        # Behind all that they read: a factor of the root may be made of a result that stands behind the sums.
        if id(s) in by_root:
            own, name = _spelled(by_root[id(s)], gpu)
            temps += [y.out for y in own if y.out not in temps and y.out not in computation.outputs]
            made += own
            named.append(name)
        if id(s) not in moved:
            made.append(s)
    return replace(computation, items=tuple(made), temps=tuple(temps)), named


@dataclass(frozen=True)
class _Averages:
    """The stages that make weights, in order; the sums of what they weigh; the one that reads those, if it is apart."""

    weights: tuple[Stage, ...]
    sums: Stage
    root: Stage

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (*self.weights, self.sums, self.root)


def _averages(s: Stage, stages: Sequence[Stage], computation: Computation) -> _Averages | None:
    """What ``s`` and the stages around it are, where ``s`` averages by weights that are made of rows of their own."""
    red = s.reduction
    if red is None or red.op != "add" or len(red.axes) != 1 or not s.axes or not _is_plain(s):
        return None
    key, column = red.axes[0], s.axes[-1]
    batches = {a.sym for a in s.axes[:-1]}
    match s.expr:
        case Binary(op="mul", a=a, b=b):
            weight, values = (a, b) if column.sym in symbols_of_value(b) else (b, a)
        case _:
            return None
    lies = [stride_along(x.buffer, x.index, column.sym) for x in loads(values)]
    if column.sym in symbols_of_value(weight) or not batches <= symbols_of_value(values) or lies != [1]:
        return None
    epilogue = plain_reader_of(s, stages, computation)
    found = _makers([weight, *([] if epilogue is None else epilogue.values)], s, stages, computation)
    is_row = all(_is_row_of(x, s, key, batches) for x in found)
    reduces = any(x.reduction is not None and len(x.axes) == len(batches) for x in found)
    made = _Averages(tuple(found), s, s if epilogue is None else epilogue)
    inside = {id(x) for x in made.stages}
    own = {x.out for x in found}
    alone = not any(own & buffers_of_value(v) for x in stages if id(x) not in inside for v in x.values)
    known = all(is_known(a.extent) and a.extent > 0 for a in (*s.axes, key))
    return made if is_row and reduces and alone and known else None


def _apart(found: Sequence[_Averages]) -> list[_Averages]:
    """Those that share no stage: of averages whose weights are made of averages, all as one."""
    kept = list[_Averages]()
    for x in reversed(found):
        own = {id(y) for y in x.stages}
        if not any(id(y) in own for z in kept for y in z.stages):
            kept.append(x)
    return kept[::-1]


def _pays(x: _Averages, gpu: Gpu) -> bool:
    """Is one launch, of a block for each row, estimated to take less time than one for each product and one between?

    A multiprocessor gets what its blocks read no faster than its share of the common cache allows.
    """
    rows, row_bytes = prod(numbers([a.extent for a in x.sums.axes[:-1]])), 0
    for s in x.stages:
        points = prod(numbers([a.extent for a in (*s.axes, *(s.reduction.axes if s.reduction else ()))]))
        read = {y for v in s.values for y in loads(v) if y.buffer not in {z.out for z in x.stages}}
        row_bytes += points // rows * max((y.dtype.n_bytes for y in read), default=0)
    together = -(-rows // gpu.n_sms) * row_bytes / (gpu.sm_bytes_per_cycle * gpu.ghz) / 1e3
    products = sum(s.reduction is not None and len(s.axes) == len(x.sums.axes) for s in x.stages)
    apart = rows * row_bytes / gpu.memory_gb_per_s / 1e3 + products * gpu.replay_us
    return together < apart


def _makers(values: Sequence[Value], s: Stage, stages: Sequence[Stage], computation: Computation) -> list[Stage]:
    """The stages but ``s`` that make what values read of temporaries, and what those read, in order."""
    wanted, found = {b for v in values for b in buffers_of_value(v)}, list[Stage]()
    for x in reversed(stages):
        if x.out in wanted and x.out in computation.temps and x is not s:
            found.append(x)
            wanted |= {b for v in x.values for b in buffers_of_value(v)}
    return found[::-1]


def _spelled(x: _Averages, gpu: Gpu) -> tuple[list[Stage], SingleRow]:
    """The stages with sums in parts, and their names."""
    s, lanes = x.sums, _lanes(x.sums, gpu)
    (columns,) = numbers([s.axes[-1].extent])
    made = list[Stage]()
    for y in x.weights:
        of_row = y.reduction is not None and len(y.axes) < len(s.axes)
        made += _in_parts(y, gpu.warp_lanes, together=True) if of_row else [y]
    weights = tuple(y.out.name for y in made)
    part, total = _in_parts(s, block_threads(gpu) * lanes // columns)
    return [*made, part, total], SingleRow(s.out.name, weights, part.out.name, s.out.name, x.root.out.name, lanes)


def _is_plain(s: Stage) -> bool:
    return len(s.outs) == 1 and s.update is None and not chosen(s.index)


def _is_row_of(x: Stage, s: Stage, key: Axis, batches: set[Sym]) -> bool:
    """Is it a stage over the same rows, of elements or of sums? What it reads of inputs depends on every row."""
    n = len(batches)
    rows, rest = x.axes[:n], x.axes[n:]
    same = [a.extent for a in rows] == [a.extent for a in s.axes[:n]]
    is_along = not rest or [a.extent for a in rest] == [key.extent]
    red = x.reduction
    is_sum = red is None or (isinstance(red.op, str) and len(red.axes) == 1 and is_known(red.axes[0].extent))
    if not (same and is_along and is_sum and _is_plain(x)):
        return False
    own = {a.sym for a in rows}
    along = {a.sym for a in rest}
    return all(own <= symbols_in(y.index) for v in x.values for y in loads(v) if along & symbols_in(y.index))


def _lanes(s: Stage, gpu: Gpu) -> int:
    """How many neighbours of a row of values one access holds."""
    column = s.axes[-1]
    read = [x for x in loads(s.expr) if stride_along(x.buffer, x.index, column.sym) == 1]
    lanes = gpu.access_bytes // max(x.dtype.n_bytes for x in read)
    (n,) = numbers([column.extent])
    while n % lanes:
        lanes //= 2
    return lanes


def _in_parts(s: Stage, parts: int, *, together: bool = False) -> list[Stage]:
    """The stage as one that reduces every so many-th term, and one that reduces those.

    Where every thread reduces them ``together``, there are about as many as terms of each: then both take least.
    """
    assert s.reduction is not None and isinstance(s.reduction.op, str)
    (key,) = s.reduction.axes
    (length,) = numbers([key.extent])
    n = min(max(parts, isqrt(length) if together else 1), length)
    turns = -(-length // n)
    own, term = Axis(loop_symbol("g_", n), n), Axis(loop_symbol("t_", turns), turns)
    at = term.sym * n + own.sym
    value = substitute_value(s.expr, {key.sym: at})
    start = identity_of(s.reduction.op, s.out.dtype)
    if turns * n != length:
        value = Select(Inside((length - 1 - at,)), value, start)
    axes, buffer = (own, *s.axes), s.out
    out = Buffer(f"{buffer.name}_g", s.out.dtype, tuple(a.extent for a in axes))
    part = Stage((out,), axes, syms(axes), (value,), Reduction((term,), s.reduction.op, (start,)))
    return [part, replace(s, exprs=(Load(out, syms(axes)),), reduction=replace(s.reduction, axes=(own,)))]


def single_rows(b: ScheduleBuilder, gpu: Gpu, x: SingleRow) -> None:
    """Schedule the stages as one grid, a block a row. Fails: it would have more shared memory than it may."""
    total = x.sums
    if x.root == x.sums:
        b.do("cache", x.root)
        total = cached_name(b, x.root)
    b.do("cache", x.parts)
    own = cached_name(b, x.parts)
    *outer, column = [y.sym.name for y in only_nest(b.kernel, x.root).loops]
    outer = at_most(b, outer, MAX_DIMENSIONS) or [b.do("enclose", column).loops[0]]
    at = outer[-1]
    for name in outer:
        b.do("kind", name, "block")
    b.do("compute_at", total, at, "shared")
    b.do("compute_at", x.parts, at, "shared")
    in_registers(b, gpu, total, column)
    inner = nest_with(find_body(b.kernel, at), x.parts, Store).loops[-1].sym.name
    if x.lanes > 1:
        inner, vector = b.split(inner, x.lanes)
        b.do("kind", vector, "vector")
    in_registers(b, gpu, own, inner)
    for name in reversed(x.weights):
        _brought(b, gpu, name, at)
    # Loops are one only now: what they read was to be known by sums of loops.
    for s in find_body(b.kernel, at):
        if isinstance(s, For) and s.loop.kind is Kind.SERIAL:
            _dealt(b, gpu, s)
    shared = [p.buffer for p in b.kernel.places if p.space is Space.SHARED]
    n_bytes = sum(p.dtype.n_bytes * prod(numbers(p.shape)) for p in shared)
    if n_bytes > gpu.max_block_shared_bytes:
        raise ScheduleError("single_rows", x.root, f"a block would have {n_bytes} bytes of shared memory")


def _brought(b: ScheduleBuilder, gpu: Gpu, name: str, at: str) -> None:
    """A stage of the weights at a row: every thread has what there is one of, all else is in shared memory."""
    if is_scalar(b, name, at):
        b.do("compute_at", name, at, "reg")
        return
    is_sum = isinstance(nests(b.kernel, name)[-1].leaf[-1], Update)
    if is_sum:
        b.do("cache", name)
        own = cached_name(b, name)
    for loop in b.do("compute_at", name, at, "shared").loops:
        b.do("kind", loop, "serial")
    if not is_sum:
        return
    element = nest_with(find_body(b.kernel, at), name, Store).loops[-1].sym.name
    b.do("compute_at", own, element, "reg")
    nest = nest_with(find_body(b.kernel, element), own, Update)
    term = nest.loops[-1]
    beside = [x for x in loads_of(nest.leaf[0]) if stride_along(x.buffer, x.index, term.sym) == 1]
    lanes = [gpu.access_bytes // x.dtype.n_bytes for x in beside]
    if lanes:  # neighbours of a row come by one access
        b.do("rfactor", own, term.sym.name, gpu.thread_accesses, min(lanes))
    else:
        b.do("kind", b.split(term.sym.name, gpu.thread_accesses)[1], "unroll")


def _dealt(b: ScheduleBuilder, gpu: Gpu, s: For) -> None:
    """A pass over a row by all threads of the block; what every thread has it makes by itself."""
    nest = nest_of(s)
    if all(find_place(b.kernel, x.name, "single_rows").space is Space.REG for x in written_in(s)):
        for x in nest.loops:
            b.do("kind", x.sym.name, "unroll")
        return
    loops = [x.sym.name for x in nest.loops if x.kind is Kind.SERIAL]
    last = nest.leaf[-1]
    if isinstance(last, Store) and len(loops) > 1:
        # Loops that are copies of a reader's may be the digits of one number in another order.
        loops = [name for i in last.index for name in outermost_first(i, loops)]
        b.do("reorder", *loops)
    thread = as_one(b, loops)
    n = extent_of(b, thread)
    if not is_known(n) or n > block_threads(gpu):
        turn, thread = b.split(thread, block_threads(gpu), "guard")
        b.do("reorder", thread, turn)
    b.do("kind", thread, "thread")
