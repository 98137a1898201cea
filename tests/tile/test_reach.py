"""Accesses of scheduled kernels stay inside: what is proved is true, and a schedule that reads beyond is refused."""

from itertools import product
from random import Random

import numpy as np
import pytest

import fuzz_schedules
import tilewright as tw
from language.test_schedules import blur
from tilewright.core.expr import Dim, Sym, evaluate, floordiv, maximum, minimum, mod
from tilewright.language.schedule import StepRefused
from tilewright.tile.errors import ScheduleFileError
from tilewright.tile.ir import Loop
from tilewright.tile.lower import lower
from tilewright.tile.proof import Where
from tilewright.tile.reach import outside
from tilewright.tile.schedule.book import Line, apply_lines, read_step

N, M = Sym("n"), Sym("m")
SIZES = (N, M)
STEPS = ("split(x, 2, guard)", "compute_at(across, x_o)")


def drawn(random: Random, symbols: list[Sym], depth: int = 2) -> Dim:
    """An expression of symbols, as schedules spell indices and extents."""
    e: Dim = random.randint(-3, 3)
    for s in symbols:
        e = e + random.choice((0, 1, 1, 2, -1)) * s
    if depth and random.random() < 0.6:
        a, b = drawn(random, symbols, depth - 1), random.randint(2, 4)
        other = drawn(random, symbols, depth - 1)
        made = random.choice((floordiv(a, b) * b, mod(a, b), minimum(a, other), maximum(a, other), maximum(a, 0)))
        e = random.choice((e + made, e - made, made))
        if symbols and random.random() < 0.2:
            e = e + mod(symbols[0], 2) * random.choice(symbols)
    return e


def drawn_loops(random: Random) -> tuple[Loop, ...]:
    loops: list[Loop] = []
    for name in "ijk"[: random.randint(1, 3)]:
        around = [*SIZES, *(x.sym for x in loops)]
        extent = drawn(random, around, 1)
        if random.random() < 0.4:
            extent = minimum(random.randint(1, 4), extent)
        high = extent - 1 if isinstance(extent, int) else None
        loops.append(Loop(Sym(name, 0, high), extent))
    return tuple(loops)


def runs(loops: tuple[Loop, ...], values: dict[Sym, int]) -> list[dict[Sym, int]]:
    """The values of the loops in every iteration."""
    if not loops:
        return [values]
    n = evaluate(loops[0].extent, values)
    return [x for k in range(n) for x in runs(loops[1:], {**values, loops[0].sym: k})]


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 500), marks=pytest.mark.slow)], ids=str)
def test_what_is_proved_holds_in_every_iteration(seeds: range) -> None:
    n_proved = 0
    for seed in seeds:
        random = Random(seed)
        loops = drawn_loops(random)
        around = [*SIZES, *(x.sym for x in loops)]
        guards = tuple(drawn(random, around, 1) for _ in range(random.randint(0, 2)))
        # An index within a loop's extent, or whatever: the first is often true and often just so.
        e = loops[-1].extent - random.randint(0, 2) - loops[-1].sym if seed % 2 else drawn(random, around)
        e = e + random.choice((0, *guards))
        if not Where(loops, guards).never_negative(e):
            continue
        n_proved += 1
        for sizes in product(range(7), range(4)):
            for at in runs(loops, dict(zip(SIZES, sizes, strict=True))):
                if all(evaluate(g, at) >= 0 for g in guards):
                    assert evaluate(e, at) >= 0, (seed, e, loops, guards, at)
    assert n_proved > len(seeds) // 5


def test_a_factor_that_bends_elsewhere_is_not_looked_at_by_its_ends_alone() -> None:
    i = Sym("i", 0, 2)
    e = Sym("n", 1) * i - 4 * minimum(i, 2 - i)
    assert not Where((Loop(i, 3),)).never_negative(e)  # -3 where n and i are 1


def test_tiles_and_remainders_of_programs_are_proved() -> None:
    """Nearly every random schedule that keeps a result is one whose accesses are proved to stay inside."""
    unproved = 0
    for seed in range(60):
        builder, plain, traced, _, _ = fuzz_schedules.scheduled(Random(seed))
        assert not list(outside(plain, traced.constraints))
        unproved += any(True for _ in outside(builder.kernel, traced.constraints))
    assert unproved <= 1


def test_a_box_that_a_guard_alone_keeps_inside_is_refused_at_the_end() -> None:
    s = tw.schedule(blur)
    for step in STEPS:
        name, args = step.rstrip(")").split("(")
        s.step(name, *(int(a) if a.isdigit() else a.replace("x", "x_1") for a in args.split(", ")))
    with pytest.raises(StepRefused, match=r"picture\[.*\] may be outside of picture"):
        s.compile()
    cut = tw.schedule(blur).split("x_1", 2).compute_at("across", "x_1_o").compile()
    picture = np.arange(35).reshape(5, 7)
    np.testing.assert_array_equal(cut(picture), blur(picture))


def test_a_file_of_steps_is_refused_at_its_last_line() -> None:
    plain = lower(blur.traced().computation, "k")
    lines = [Line(k + 1, read_step(step.replace("x", "x_1"))) for k, step in enumerate(STEPS)]
    with pytest.raises(ScheduleFileError, match="may be outside of picture") as e:
        apply_lines(plain, lines)
    assert e.value.problems[0].loc.line == 2
