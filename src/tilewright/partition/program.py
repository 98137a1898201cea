"""A program: the steps that run a graph, each with the memory it reads and writes.

In: (by ``partition.plan``) groups, kernels and the arena plan. Out: plain records that ``codegen.cpu.program`` turns
into one function per program, and the report reads.
Not its business: how kernels work inside.

A program runs with ``args`` (input pointers, then output pointers), the table of dimensions, the weights and an arena.
Sub-graphs of control flow are programs of their own, called with pointers into their caller's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tilewright.core.diag import Loc
from tilewright.core.expr import Dim, Sym, symbol_order, symbols
from tilewright.core.graph import Graph


@dataclass(frozen=True)
class Pointer:
    """An address: ``arg`` number ``offset``, or ``offset`` bytes into the weights or the arena."""

    base: Literal["arg", "weights", "arena"]
    offset: Dim


@dataclass(frozen=True)
class RoutineCall:
    """A library's form of a kernel (``runtime.cpu.routines``): symbol, operands and results of the op, sizes."""

    symbol: str
    args: tuple[Pointer, ...]
    sizes: tuple[Dim, ...]


@dataclass(frozen=True)
class KernelCall:
    """Run a kernel. ``kernel`` is its symbol; ``sizes`` are its symbolic dimensions in order, or numbers.

    With ``routine``, the kernel runs only where that declines.
    """

    kernel: str
    args: tuple[Pointer, ...]
    sizes: tuple[Sym | int, ...]
    loc: Loc
    ops: tuple[str, ...] = ()
    routine: RoutineCall | None = None

    @property
    def calls(self) -> tuple[KernelCall, ...]:
        """Itself, where a :class:`Choice` has several."""
        return (self,)

    @property
    def general(self) -> KernelCall:
        """Itself: the call for all sizes."""
        return self

    def taken(self, sizes: Mapping[Sym, int]) -> KernelCall:
        """Itself, whatever the sizes."""
        return self


@dataclass(frozen=True)
class Version:
    """The call of a kernel that was made for one ``size`` of a ``symbol``."""

    symbol: Sym
    size: int
    call: KernelCall


@dataclass(frozen=True)
class Choice:
    """Run one of the kernels that write the same results: the first version whose size is there, else ``general``."""

    versions: tuple[Version, ...]
    general: KernelCall

    @property
    def calls(self) -> tuple[KernelCall, ...]:
        """All of them, the one for all sizes last."""
        return (*(v.call for v in self.versions), self.general)

    def taken(self, sizes: Mapping[Sym, int]) -> KernelCall:
        """The call that runs where symbols have these values."""
        return next((v.call for v in self.versions if sizes[v.symbol] == v.size), self.general)


@dataclass(frozen=True)
class Copy:
    """Copy ``n_bytes``; the two places do not overlap."""

    source: Pointer
    target: Pointer
    n_bytes: Dim


@dataclass(frozen=True)
class SetDim:
    """Define a symbol that the data decided: its value is the ``i64`` at ``source``."""

    symbol: Sym
    source: Pointer


@dataclass(frozen=True)
class LetDim:
    """Define a symbol by other symbols: the most that the data may decide, before they have decided."""

    symbol: Sym
    value: Dim


@dataclass(frozen=True)
class Branch:
    """Run one of two programs, chosen by the bool at ``cond``; both take the same pointers and ``scratch`` as arena.

    ``then_dims`` and ``else_dims`` give the symbols of results whose size depends on the branch their values.
    """

    cond: Pointer
    then_program: Program
    else_program: Program
    args: tuple[Pointer, ...]
    scratch: Pointer
    then_dims: tuple[LetDim, ...] = ()
    else_dims: tuple[LetDim, ...] = ()


@dataclass(frozen=True)
class Carried:
    """A loop-carried value: where it starts, two buffers to swap, where it ends, its size."""

    start: Pointer
    buffers: tuple[Pointer, Pointer]
    result: Pointer
    n_bytes: Dim


@dataclass(frozen=True)
class PartPlace:
    """An operand or result of which each turn has its own part, ``n_bytes`` behind the last; with 0 bytes, the same."""

    place: Pointer
    n_bytes: Dim


@dataclass(frozen=True)
class Repeat:
    """``while i < trips and cond: body``.

    Body inputs: i, cond, carried..., captures...; outputs: cond, carried..., scanned.... ``count`` receives how many
    iterations ran (``i64``).
    """

    trips: Pointer
    cond: Pointer
    body: Program
    carried: tuple[Carried, ...]
    captures: tuple[Pointer, ...]
    scanned: tuple[PartPlace, ...]
    iteration: Pointer
    cond_buffers: tuple[Pointer, Pointer]
    count: Pointer
    scratch: Pointer


@dataclass(frozen=True)
class ForParts:
    """Run the body for each of ``n_parts`` parts of ``args``: its operands, then its results.

    One part after the other, or up to ``n_threads`` at one time, each by one thread. ``scratch`` has an arena of the
    body for each of them, one behind the other.
    """

    n_parts: int
    body: Program
    args: tuple[PartPlace, ...]
    scratch: Pointer
    n_threads: int = 1


@dataclass(frozen=True)
class Require:
    """End the call with ``code`` unless the bool at ``cond`` is true. Of the main program alone."""

    cond: Pointer
    code: int


@dataclass(frozen=True)
class RequireSize:
    """End the call with ``code`` unless ``value``, of dimensions that are known by now, is 0 or more."""

    value: Dim
    code: int


Step: TypeAlias = KernelCall | Choice | Copy | SetDim | LetDim | Branch | Repeat | ForParts | Require | RequireSize


@dataclass(frozen=True)
class Beside:
    """Some calls of a program that may run in any order or at once: as many steps as ``members``, from ``first`` on.

    ``members`` has for each call what threads share: iterations of its kernel, in so many chunks for each thread; None
    for a call that one thread runs as a whole. With more than ``most_threads`` (0: any number) it is faster to run one
    after the other.
    """

    first: int
    members: tuple[tuple[Dim | None, int], ...]
    most_threads: int


@dataclass(frozen=True)
class Program:
    """Steps in order. ``lower_bound`` is the least arena that any order-keeping plan needs, where sizes are known.

    ``beside`` names steps that need not wait for each other.
    """

    name: str
    n_inputs: int
    n_outputs: int
    steps: tuple[Step, ...]
    arena_bytes: Dim
    lower_bound: int | None
    beside: tuple[Beside, ...] = ()


@dataclass(frozen=True)
class SizedProgram:
    """A program for the calls in which each symbol of ``sizes`` has its value; it knows the others as they come."""

    sizes: tuple[tuple[str, int], ...]
    program: Program


def walk_steps(program: Program) -> Iterator[Any]:
    """Every step, those of sub-programs included."""
    return (step for step, _ in counted_steps(program))


def counted_steps(program: Program, times: int = 1) -> Iterator[tuple[Any, int]]:
    """The same with how often a run takes each where that is known, as for parts; else 1."""
    for step in program.steps:
        yield step, times
        match step:
            case Choice():
                yield from ((call, times) for call in step.calls)
            case Branch():
                yield from counted_steps(step.then_program, times)
                yield from counted_steps(step.else_program, times)
            case Repeat():
                yield from counted_steps(step.body, times)
            case ForParts():
                yield from counted_steps(step.body, times * step.n_parts)


def dimension_slots(programs: Sequence[tuple[Graph, Program]]) -> dict[str, int]:
    """Places in the table of dimensions: symbols of the inputs first, then those that the data decide.

    The first graph is the one that callers know.
    """
    first, _ = programs[0]
    names = dict.fromkeys(s.name for s in first.symbols())
    for n in first.outputs:  # the loader reads these back, right behind the inputs'
        names.update(dict.fromkeys(sorted(s.name for d in n.shape for s in symbols(d))))
    for graph, program in programs:
        for n in graph.nodes():
            for t in n.types:
                names.update(dict.fromkeys(s.name for d in t.shape for s in sorted(symbols(d), key=symbol_order)))
        for step in walk_steps(program):
            if isinstance(step, KernelCall):
                names.update(dict.fromkeys(s.name for s in step.sizes if isinstance(s, Sym)))
            if isinstance(step, Choice):
                names.update(dict.fromkeys(v.symbol.name for v in step.versions))
            if isinstance(step, LetDim | SetDim):
                names.setdefault(step.symbol.name)
            if isinstance(step, Branch):  # also sizes that nobody asks for
                names.update(dict.fromkeys(let.symbol.name for let in (*step.then_dims, *step.else_dims)))
            if isinstance(step, RequireSize):
                names.update(dict.fromkeys(s.name for s in sorted(symbols(step.value), key=symbol_order)))
    return {name: k for k, name in enumerate(names)}
