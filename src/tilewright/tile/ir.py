"""The tile IR: a kernel as an immutable tree of loops over buffers, the last form before instructions.

In: a ``core.compute.Computation`` lowered by ``tile.lower``; rewritten only by the primitives of ``tile.schedule``.
Out: a ``Kernel`` that ``tile.interp`` runs and ``codegen`` turns into LLVM text.
Not its business: which schedule is good (``choose.default``), or how a target spells an operation.

Grammar (the whole of it)::

    kernel := Kernel(name, params, sizes, locals, body)            params: Place(buffer, space=global, role)
    stmt   := For(loop, stmt*) | Store(buffer, index, value) | Update(buffer, index, op, value)
            | Fold(buffers, index, combiner, values) | If(cond, stmt*) | Prefetch(buffer, index)
            | Barrier(pending, running) | Commit()
    loop   := Loop(sym, extent, kind)     kind: serial | parallel | unroll | step | vector | dot | block | thread
            | warp | matrix
    value  := as in core.compute; index := as in core.compute
    space  := global (a kernel parameter) | local (a thread's scratch in cache) | reg (registers, SSA)
            | table (compile-time numbers; a constant index reads a literal) | shared (one copy for each block)
            | matrix (registers that hold a matrix each)

Kinds: ``unroll`` copies the body; ``step`` copies it with a basic-block boundary between copies (stops LLVM from
keeping equal loads alive across copies); ``vector`` loops are lanes (nested: two-dimensional lanes); ``dot`` is a group
of 2 or 4 narrow elements inside one 32-bit lane; ``parallel`` is split over the thread pool, iterations independent.
An extent may depend on outer loops and on sizes. Iterations of a ragged tile are ``min(f, n - f*outer)``.
A ``reg`` buffer's indices are constants once ``unroll``/``step``/``vector`` loops are expanded.

``matrix`` loops mean what serial loops mean, and are the rows and columns of a CPU's matrix registers: perfectly
nested, they are one instruction, which fills a matrix of sums, moves it, or multiplies two matrices and adds the
products to it (``tile.matrix`` has the three forms). A ``matrix`` buffer is touched by such instructions alone.

Kernels for GPUs hold grids and nothing else: every statement of the body is one, and is launched when the one before it
has ended, so that it sees all that was written. A grid is one to three ``block`` loops, perfectly nested, the last of
them along x. Inside of them stand *phases*: one to three ``thread`` loops of constant extents, perfectly nested, the
last along x. Iterations of block loops, and of the thread loops of one phase, don't depend on each other.
``tile.grid`` tells the two forms that a grid may have:

* *scheduled*: several phases follow each other, loops that all threads walk together may be around them, and a
  statement in no phase is run by one thread, or by all where it writes registers alone. A phase begins when all threads
  of the block have ended the one before it, so that block and thread loops mean what serial loops mean. A ``local``
  buffer is the block's, like a ``shared`` one.
* *flat*: all that is in the block loops is one nest of thread loops, and every thread runs its body. At a ``Barrier``
  all threads of the block meet, and see what the others have written before it; all or none of them must come there.
  ``reg`` and ``local`` buffers are a thread's own. Back ends read this form.

What is stored to a ``shared`` buffer whose place says ``ahead`` may be copied asynchronously: it comes any time until
the thread has waited for it, and nobody may touch the element meanwhile. The copies of a thread up to a ``Commit`` are
a group; a ``Barrier`` with ``pending`` lets so many of its last groups be on their way, and waits for the others.

``warp`` loops inside of a flat grid are shared out among the lanes of a warp (``codegen.ptx.warps`` says how), and mean
what serial loops mean. In a grid with some, thread loops count warps, of which each has the kernel's ``lanes`` along x,
and a ``reg`` buffer that is indexed by warp loops is the warp's. Where a single one of as many iterations as there are
lanes is its first index, each lane has its own; such a loop around one update of registers that it does not index gives
all lanes what they come to.

A ``swizzled`` shared buffer lies as matrix units read it without bank conflicts (``tile.swizzle`` says where each
element is), which changes nothing of what it means. A matrix instruction that reads two of them is one of four
neighbouring warps (``codegen.ptx.warpgroups``), which all come to it. It reads them any time until the warp has waited
for it at a ``Barrier``; one with ``running`` lets those instructions go on that came since the barrier before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from tilewright.core.compute import Buffer, Combiner, IndexLike, Value, buffers_of_value, symbols_of_value
from tilewright.core.expr import Dim, Sym, symbols
from tilewright.core.indices import chosen, mentioned_at
from tilewright.core.types import Array
from tilewright.runtime.once import computed
from tilewright.target.matrices import WARP


class Kind(Enum):
    """How a loop runs; the module's docstring defines each."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    UNROLL = "unroll"
    STEP = "step"
    VECTOR = "vector"
    DOT = "dot"
    BLOCK = "block"
    THREAD = "thread"
    WARP = "warp"
    MATRIX = "matrix"


class Space(Enum):
    """Where a buffer lives."""

    GLOBAL = "global"
    LOCAL = "local"
    REG = "reg"
    TABLE = "table"
    SHARED = "shared"
    MATRIX = "matrix"


IN_MEMORY = (Space.GLOBAL, Space.LOCAL, Space.SHARED)
"""The spaces whose buffers have addresses that are written to."""


class Role(Enum):
    """What a kernel parameter is for."""

    IN = "in"
    OUT = "out"
    CONST = "const"
    TMP = "tmp"


@dataclass(frozen=True)
class Place:
    """A buffer's home: its space, role, and the numbers of a ``table``.

    ``ahead``: how many iterations of a loop it is filled before it is read; 0 where that is done in the same one.
    ``swizzled``: its elements lie as ``tile.swizzle`` says.
    """

    buffer: Buffer
    space: Space
    role: Role = Role.TMP
    table: Array | None = field(default=None, compare=False)
    ahead: int = 0
    swizzled: bool = False


@dataclass(frozen=True)
class Loop:
    """A loop's identity: the variable, ``0 <= sym < extent``, and its kind."""

    sym: Sym
    extent: Dim
    kind: Kind = Kind.SERIAL


@dataclass(frozen=True)
class For:
    loop: Loop
    body: tuple[Stmt, ...]

    @computed
    def loops(self) -> tuple[Loop, ...]:
        """This loop and all below, in program order; found once for what steps leave as it is."""
        return (self.loop, *_loops_below(self.body))

    @computed
    def written(self) -> frozenset[Buffer]:
        """The buffers that statements below write."""
        return _written_below(self.body)

    @computed
    def touched(self) -> frozenset[Buffer]:
        """The buffers that statements below read or write."""
        return _touched_below(self.body)

    @computed
    def mentioned(self) -> frozenset[Sym]:
        """The symbols of the extent and of statements below, loop variables included."""
        return symbols(self.loop.extent) | mentioned(self.body)


@dataclass(frozen=True)
class Store:
    buffer: Buffer
    index: tuple[IndexLike, ...]
    value: Value


@dataclass(frozen=True)
class Update:
    """``buffer[index] = op(buffer[index], value)``; ``add`` of a product becomes a fused multiply-add."""

    buffer: Buffer
    index: tuple[IndexLike, ...]
    op: str
    value: Value


@dataclass(frozen=True)
class Fold:
    """One step of a tuple-state reduction: all of ``buffers[index]`` are read, combined and written together."""

    buffers: tuple[Buffer, ...]
    index: tuple[IndexLike, ...]
    combiner: Combiner
    values: tuple[Value, ...]


@dataclass(frozen=True)
class If:
    cond: Value
    body: tuple[Stmt, ...]

    @computed
    def loops(self) -> tuple[Loop, ...]:
        """All loops below, in program order."""
        return _loops_below(self.body)

    @computed
    def written(self) -> frozenset[Buffer]:
        """The buffers that statements below write."""
        return _written_below(self.body)

    @computed
    def touched(self) -> frozenset[Buffer]:
        """The buffers that the condition reads, or statements below read or write."""
        return buffers_of_value(self.cond) | _touched_below(self.body)

    @computed
    def mentioned(self) -> frozenset[Sym]:
        """The symbols of the condition and of statements below, loop variables included."""
        return symbols_of_value(self.cond) | mentioned(self.body)


@dataclass(frozen=True)
class Prefetch:
    """A hint that ``buffer[index]`` will be read soon; out of bounds is allowed and harmless."""

    buffer: Buffer
    index: tuple[IndexLike, ...]


@dataclass(frozen=True)
class Barrier:
    """All threads of a block meet here, and see what each of them has written to shared and global memory before.

    With ``pending`` each first waits for its asynchronous copies, but for those of so many of its last groups. Each
    also waits for its matrix instructions; with ``running`` only for those that came before the last barrier.
    """

    pending: int | None = None
    running: bool = False


@dataclass(frozen=True)
class Commit:
    """A thread's asynchronous copies since the last one of these are a group."""


Stmt: TypeAlias = "For | Store | Update | Fold | If | Prefetch | Barrier | Commit"
NESTS = (For, If)
"""The statements that hold others, in their ``body``."""


def _loops_below(body: tuple[Stmt, ...]) -> tuple[Loop, ...]:
    return tuple([loop for s in body if isinstance(s, NESTS) for loop in s.loops])


def _written_below(body: tuple[Stmt, ...]) -> frozenset[Buffer]:
    return frozenset[Buffer]().union(*map(written_in, body))


def written_in(s: Stmt) -> Collection[Buffer]:
    """The buffers that a statement, or one in it, writes."""
    return s.written if isinstance(s, NESTS) else written(s)


def _touched_below(body: tuple[Stmt, ...]) -> frozenset[Buffer]:
    return frozenset[Buffer]().union(*map(touched_by, body))


def touched_by(s: Stmt) -> frozenset[Buffer]:
    """The buffers that a statement, or one in it, reads or writes."""
    match s:
        case For() | If():
            return s.touched
        case Store() | Update():
            values = (s.value, *chosen(s.index))
        case Fold():
            values = (*s.values, *chosen(s.index))
        case Prefetch():
            values = chosen(s.index)
        case _:
            values = ()
    return frozenset(written(s)).union(*map(buffers_of_value, values))


def mentioned(body: tuple[Stmt, ...]) -> frozenset[Sym]:
    """Every symbol that the statements use, loop variables included."""
    return frozenset[Sym]().union(*[s.mentioned if isinstance(s, NESTS) else _mentioned_by(s) for s in body])


def _mentioned_by(s: Stmt) -> frozenset[Sym]:
    match s:
        case Store() | Update():
            values: tuple[Value, ...] = (s.value,)
        case Fold():
            values = s.values
        case Prefetch():
            values = ()
        case _:
            return frozenset()
    return frozenset[Sym]().union(*map(mentioned_at, s.index), *map(symbols_of_value, values))


def written(s: Stmt) -> tuple[Buffer, ...]:
    """The buffers that one statement (not its children) writes."""
    match s:
        case Store() | Update():
            return (s.buffer,)
        case Fold():
            return s.buffers
    return ()


@dataclass(frozen=True)
class Packed:
    """A constant parameter that the kernel reads in another layout than the model's, prepared once at compile time.

    ``grid`` names the parameter's dimensions, in order. ``param[grid] = source[index]`` where ``index``, expressions of
    the grid's symbols, is inside the source, and 0 elsewhere. ``tile.pack.packed_array`` evaluates it.
    """

    param: Buffer
    source: Buffer
    grid: tuple[Sym, ...]
    index: tuple[Dim, ...]


@dataclass(frozen=True)
class Kernel:
    """One function of machine code: ``void name(ptr param..., i64 size..., i32 threads)``.

    ``sizes`` are the symbolic dimensions that it needs; ``places`` hold every buffer: the computation's inputs and
    outputs in its order, then temporaries. A packed constant stands where its source stood. ``packed`` says how
    constants are re-laid before the first run. ``notes`` are for the report: rules that did not fit, and why.
    ``lanes`` is how many threads are a warp, for warp loops.
    """

    name: str
    places: tuple[Place, ...]
    sizes: tuple[Sym, ...]
    body: tuple[Stmt, ...]
    packed: tuple[Packed, ...] = ()
    notes: tuple[str, ...] = ()
    lanes: int = WARP

    @property
    def params(self) -> tuple[Buffer, ...]:
        return tuple(p.buffer for p in self.places if p.space is Space.GLOBAL)


def walk(body: Sequence[Stmt]) -> Iterator[Stmt]:
    """Every statement, parents before children, in program order."""
    rest = list(reversed(body))
    while rest:
        s = rest.pop()
        yield s
        if isinstance(s, NESTS):
            rest.extend(reversed(s.body))
