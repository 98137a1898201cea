"""Steps for control flow: branches and loops over programs of their own.

In: a control node, the places of its graph's results, and a program for each graph within. Out: makers of ``Branch``,
``Repeat`` and ``ForParts`` steps. Not its business: ordinary kernels (``partition.plan``), the graphs
(``partition.inner``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Node
from tilewright.partition.inner import joined_dims, loop_body, part_body, scan_symbols
from tilewright.partition.places import Places
from tilewright.partition.program import (
    Branch,
    Carried,
    ForParts,
    LetDim,
    PartPlace,
    Pointer,
    Program,
    Repeat,
    SetDim,
    Step,
)


def plan_control(
    places: Places, node: Node, programs: Sequence[Program], step: int, *, is_alone: bool
) -> list[Callable[[], Step]]:
    """The steps of a control node that runs ``programs``; its results already have homes.

    With ``is_alone`` a call has one thread, and parts of a batch come one after the other.
    """
    if "then_branch" in node.attrs:
        return _branch(places, node, programs, step)
    if "n_parts" in node.attrs:
        return _for_parts(places, node, programs[0], step, 1 if is_alone else node.attrs.n_threads)
    return _repeat(places, node, programs, step)


def _branch(places: Places, node: Node, programs: Sequence[Program], step: int) -> list[Callable[[], Step]]:
    then_program, else_program = programs
    scratch = places.reserve(_larger(then_program.arena_bytes, else_program.arena_bytes), step)
    dims = joined_dims(node)

    def make() -> Step:
        args = [places.pointer(i) for i in node.inputs[1:]]
        args += [places.result_pointer((node, k)) for k in range(len(node.types))]
        return Branch(
            places.pointer(node.inputs[0]),
            then_program,
            else_program,
            tuple(args),
            scratch(),
            tuple(LetDim(s, x) for s, x, _ in dims),
            tuple(LetDim(s, y) for s, _, y in dims),
        )

    return [make]


def _larger(a: Dim, b: Dim) -> Dim:
    return max(a, b) if is_known(a) and is_known(b) else a + b


def _repeat(places: Places, node: Node, programs: Sequence[Program], step: int) -> list[Callable[[], Step]]:
    body, n_carried = loop_body(node), node.attrs.n_carried
    (program,) = programs
    carried = node.inputs[2 : 2 + n_carried]
    # Two of each, because an iteration reads one while it writes the other.
    buffers = [(places.reserve(c.type.n_bytes, step), places.reserve(c.type.n_bytes, step)) for c in carried]
    cond = places.reserve(1, step), places.reserve(1, step)
    iteration, count = places.reserve(8, step), places.reserve(8, step)
    # One arena for all iterations, which come one after the other.
    scratch = places.reserve(program.arena_bytes, step)

    def make() -> Step:
        return Repeat(
            # Addresses exist only when all reservations have been laid out.
            trips=places.pointer(node.inputs[0]),
            cond=places.pointer(node.inputs[1]),
            body=program,
            carried=tuple(
                Carried(places.pointer(c), (a(), b()), places.result_pointer((node, k)), c.type.n_bytes)
                for k, (c, (a, b)) in enumerate(zip(carried, buffers, strict=True))
            ),
            captures=tuple(places.pointer(i) for i in node.inputs[2 + n_carried :]),
            scanned=tuple(
                PartPlace(places.result_pointer((node, k)), body.outputs[1 + k].type.n_bytes)
                for k in range(n_carried, len(node.types))
            ),
            iteration=iteration(),
            cond_buffers=(cond[0](), cond[1]()),
            count=count(),
            scratch=scratch(),
        )

    makers: list[Callable[[], Step]] = [make]
    makers += [partial(_set_dim, s, count) for s in scan_symbols(node, n_carried)]
    return makers


def _for_parts(places: Places, node: Node, program: Program, step: int, n_threads: int) -> list[Callable[[], Step]]:
    body, n_cut = part_body(node), node.attrs.n_cut
    # Beside each other threads would overwrite what others made: each has an arena.
    scratch = places.reserve(program.arena_bytes * n_threads, step)

    def make() -> Step:
        operands = [
            PartPlace(places.pointer(i), x.type.n_bytes if k < n_cut else 0)
            for k, (i, x) in enumerate(zip(node.inputs, body.inputs, strict=True))
        ]
        results = [PartPlace(places.result_pointer((node, k)), x.type.n_bytes) for k, x in enumerate(body.outputs)]
        return ForParts(node.attrs.n_parts, program, (*operands, *results), scratch(), n_threads)

    return [make]


def _set_dim(symbol: Sym, source: Callable[[], Pointer]) -> Step:
    return SetDim(symbol, source())
