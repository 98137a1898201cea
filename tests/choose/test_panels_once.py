"""Tiles ask for the lines of the next panel once, all together, and not each for all of them."""

from dataclasses import replace
from math import prod

import pytest
from benchmarks import computations

from tilewright.choose.default import schedule
from tilewright.core.expr import Sym
from tilewright.core.types import f32
from tilewright.target.target import Target
from tilewright.tile.ir import For, Kernel, Kind, Loop, Prefetch, walk
from tilewright.tile.rewrite import loops_of
from tilewright.tile.schedule.tree import enclosing, most_iterations

ZEN = replace(Target.parse("znver3"), n_cores=1)
WIDE = replace(Target.parse("x86-64-v4"), n_cores=1)


def product(m, n, k, machine: Target) -> Kernel:
    c = computations.matmul(m, n, k)
    return schedule(c, machine, [b for b in c.inputs if b.name == "B"])


def asking(kernel: Kernel, buffer: str) -> list[tuple[Prefetch, list[Loop]]]:
    """Hints in a buffer, and the loops around each."""
    hints = [s for s in walk(kernel.body) if isinstance(s, Prefetch) and s.buffer.name == buffer]
    return [(s, [x.loop for x in enclosing(kernel.body, s) if isinstance(x, For)]) for s in hints]


@pytest.mark.parametrize("machine", [ZEN, WIDE], ids=["zen", "wide"])
@pytest.mark.parametrize("shape", [(8, 1024, 1024), (64, 1024, 512), (256, 512, 2048), (512, 2048, 320)])
def test_tiles_ask_for_each_line_of_a_panel_once_or_twice(shape, machine):
    kernel = product(*shape, machine)
    (packed,) = kernel.packed
    n_lines = prod(d for d in packed.param.shape if isinstance(d, int)) / machine.line(f32)
    asked = sum(prod(map(most_iterations, around)) for _, around in asking(kernel, packed.param.name))
    n_chunks = prod(most_iterations(x) for x in loops_of(kernel.body) if x.sym.name == "i0_2_o_o")
    assert 0.9 * n_lines * n_chunks <= asked <= 2 * n_lines * n_chunks


def test_few_steps_are_copies_and_many_a_loop():
    few, many = product(16, 1024, 1024, ZEN), product(256, 2048, 2048, ZEN)
    ((_, around),) = asking(few, few.packed[0].param.name)
    assert around[-2].extent == 3  # tiles, of which two ask for a line in 512 steps each
    assert [x.extent for x in loops_of(few.body) if x.kind is Kind.STEP] == [2]
    assert 32 in [x.extent for x in loops_of(many.body) if x.kind is Kind.SERIAL]
    assert not [x for x in loops_of(many.body) if x.kind is Kind.STEP]


def test_tiles_of_an_unknown_number_ask_in_every_step():
    """There may be one: it asks for all."""
    kernel = product(Sym("n", 1, None), 1024, 1024, ZEN)
    assert not [x for x in loops_of(kernel.body) if x.kind is Kind.STEP]


def test_rows_from_memory_are_asked_for_in_parts_too():
    kernel = product(20_000, 256, 1024, ZEN)
    assert {s.buffer.name for s in walk(kernel.body) if isinstance(s, Prefetch)} == {"A", kernel.packed[0].param.name}
