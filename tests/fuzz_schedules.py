"""A suite of random schedules by seed: whatever steps the checks let through, the kernel computes the same.

In: seeds. Out: passed, refused where no step was legal, or an error that shows the steps and what differs. A seed draws
a program (pipelines and loops in integers, and the thirty of PolyBench in f64), sizes, and steps of any primitive that
a CPU has, with loops, tensors and numbers at random; those that are refused are left out. The loops before and after
are interpreted on small numbers: integers must be equal, floats within what another order of sums explains.
Not its business: machine code (``fuzz_graphs``), packed weights, which are laid out outside of the kernel.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

import numpy as np
from benchmarks.polybench import PROGRAMS, STEPS

import tilewright as tw
from language.test_schedules import KERNELS, blur
from tilewright import lang as tl
from tilewright.core.expr import evaluate, symbol_order, symbols
from tilewright.core.types import Array
from tilewright.language.trace import Traced
from tilewright.tile.errors import ScheduleError, TileVerifyError
from tilewright.tile.interp import run
from tilewright.tile.ir import For, Kernel, Role, walk
from tilewright.tile.lower import lower
from tilewright.tile.reach import check_reach
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.schedule.script import PRIMITIVES
from tilewright.tile.verify import verify
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "schedules"
COUNT = 20_000
MOST_STEPS = 6
TRIES = 40
FOR_GPUS = ("enclose", "fill", "pipeline", "online", "online_fours", "swizzle", "fetch", "tree")
LAID_OUT_OUTSIDE = ("pack",)
STEPS_OF_CPUS = tuple(p for p in PRIMITIVES if p not in (*FOR_GPUS, *LAID_OUT_OUTSIDE))
OFTEN = ("split", "reorder", "reorder", "kind", "merge", *("slide", "compute_at", "stage", "rfactor", "fork") * 4)
WORDS: Mapping[str, Sequence[str]] = {
    "tail": ("min", "shift", "guard"),
    "kind": ("serial", "parallel", "unroll", "step", "vector"),
    "space": ("local", "reg", "global"),
    "order": ("walk", "rows"),
    "fusion": ("fused", "apart"),
    "bands": ("", "0 1", "1 0", "0 1:2 3", "1 0 2:0 2 2"),
}
NUMBERS = (-1, 0, 1, 2, 2, 3, 3, 4, 4, 8)


@tw.kernel
def chain(x: tl.i64("h", "w")) -> Any:
    """Stages that read each other, one of them twice."""
    h, w = x.shape
    a = tl.compute((h, w - 1), lambda y, c: x[y, c + 1] - x[y, c])
    b = tl.compute((h - 1, w - 1), lambda y, c: a[y + 1, c] * a[y, c])
    d = tl.compute((h - 1, w - 2), lambda y, c: b[y, c] + b[y, c + 1] + a[y, c])
    return tl.compute((h - 2, w - 2), lambda y, c: d[y, c] - d[y + 1, c])


@tw.kernel
def centred(x: tl.i64("h", "w")) -> Any:
    """Reductions of rows, and what is made of them."""
    h, w = x.shape
    most = tl.compute(h, lambda y: tl.max(lambda k: x[y, k], w))
    off = tl.compute((h, w), lambda y, c: most[y] - x[y, c])
    total = tl.compute(h, lambda y: tl.sum(lambda k: off[y, k] * off[y, k], w))
    return tl.compute((h, w), lambda y, c: off[y, c] * 3 + total[y])


def cases(first: int = 0, last: int = COUNT) -> Sequence[Case]:
    return [Case(str(seed), "schedule") for seed in range(first, last)]


def run_case(case: Case) -> tuple[Status, str]:
    return check(int(case.name)), ""


def check(seed: int) -> Status:
    """Passed if some steps were legal and changed no result; an error if they did."""
    builder, start, traced, sizes, arrays = scheduled(Random(seed))
    if not builder.steps:
        return "refused"
    try:
        verify(builder.kernel)
        check_reach(start, builder.kernel, traced.constraints)
    except ScheduleError:
        return "refused"
    except TileVerifyError as e:
        # A later step may unroll loops around registers, move loops out of lanes or cut them: it is told at the end.
        told = ("at the run-time index", "a vector loop holds only", "a vector loop whose extent")
        if any(text in str(e) for text in told):
            return "refused"
        raise
    # Iterations that may run at one time are run backwards half of the time.
    before, after = (
        run(k, {b: a.copy() for b, a in arrays.items()}, sizes, reverse=k is not start and seed % 2 == 1)
        for k in (start, builder.kernel)
    )
    for b in traced.computation.outputs:
        tolerance = 1e-9 if b.dtype.is_float else 0.0
        said = f"{sizes}\n{builder.schedule}"
        np.testing.assert_allclose(after[b.name], before[b.name], tolerance, tolerance, err_msg=said)
    return "passed"


def scheduled(random: Random) -> tuple[ScheduleBuilder, Kernel, Traced, dict[str, int], dict[str, Array]]:
    """The loops after random steps, as they were, and what to run them on."""
    traced, sizes, arrays = drawn(random)
    start = lower(traced.computation, "k")
    builder = ScheduleBuilder(start)
    n_steps = random.randint(1, MOST_STEPS)
    for _ in range(TRIES):
        if len(builder.steps) < n_steps:
            with suppress(ScheduleError):
                primitive, args = drawn_step(random, builder.kernel)
                builder.do(primitive, *args)
    return builder, start, traced, sizes, arrays


@cache
def programs() -> tuple[tuple[str, Traced], ...]:
    """Those with intermediate tensors several times: they have more to choose from."""
    own = [(k.__name__, k.traced()) for k in (*KERNELS, *(chain, centred, blur) * 3)]
    return (*own, *((name, p.kernel.traced()) for name, p in PROGRAMS.items()))


def drawn(random: Random) -> tuple[Traced, dict[str, int], dict[str, Array]]:
    """A program, its sizes, and arrays for it: whole numbers, with a large diagonal so that none is divided by zero."""
    name, traced = random.choice(programs())
    c = traced.computation
    syms = sorted({s for b in c.inputs for d in b.shape for s in symbols(d)}, key=symbol_order)
    sizes = {s.name: random.randint(3, 7) for s in syms}
    if name == "fdtd-2d":
        sizes |= {s.name: STEPS for s in symbols(c.inputs[-1].shape[0])}
    if name in ("gramschmidt", "covariance", "correlation"):  # at least as many rows as columns
        first, second = (next(iter(symbols(d))).name for d in c.inputs[0].shape)
        sizes[first] = sizes[second] + 1
    rng = np.random.default_rng(random.randrange(1 << 32))
    arrays = {}
    for b in (*c.inputs, *c.outputs):
        shape = [evaluate(d, {s: sizes[s.name] for s in syms}) for d in b.shape]
        made = rng.integers(0, 4, shape)
        if b.dtype.is_float:
            made = made / 8 + 4 * np.eye(*shape) if len(shape) == 2 else made / 8 + 1 / 16
        arrays[b.name] = made.astype(b.dtype.numpy)
    return traced, sizes, arrays


def drawn_step(random: Random, kernel: Kernel) -> tuple[str, list[Any]]:
    """A step with arguments of the right kinds, which is legal only by luck."""
    primitive = random.choice((*STEPS_OF_CPUS, *OFTEN))
    loops = [s.loop.sym.name for s in walk(kernel.body) if isinstance(s, For)]
    buffers = [p.buffer.name for p in kernel.places]
    if primitive in ("compute_at", "place", "fork", "fold", "ring"):
        buffers = [p.buffer.name for p in kernel.places if p.role is Role.TMP] or buffers
    if not loops:
        raise ScheduleError(primitive, "", "there is no loop")
    if primitive == "reorder":
        first = random.randrange(len(loops))
        nest = loops[first : first + random.randint(2, 4)]
        return primitive, random.sample(nest, len(nest))
    if primitive == "slide":
        bodies = [kernel.body, *(s.body for s in walk(kernel.body) if isinstance(s, For))]
        rows = random.choice([[s.loop.sym.name for s in body if isinstance(s, For)] for body in bodies])
        first = random.randrange(max(len(rows) - 1, 1))
        return primitive, rows[first : first + random.randint(2, 4)]
    args: list[Any] = []
    for parameter in list(inspect.signature(PRIMITIVES[primitive]).parameters.values())[1:]:
        if parameter.default is not parameter.empty and random.random() < 0.5:
            break
        if parameter.name in WORDS:
            args.append(random.choice(WORDS[parameter.name]))
        elif parameter.name in ("buffer", "other"):
            args.append(random.choice(buffers))
        elif parameter.annotation == "str":
            args.append(random.choice(loops))
        elif parameter.name == "dim":
            args.append(random.randrange(-1, 3))
        else:
            args.append(random.choice(NUMBERS))
    return primitive, args
