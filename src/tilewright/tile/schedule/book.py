"""Schedules as a file: the steps of each kernel under the kernel's name, as text that a person can edit.

In: text, or kernels with their steps. Out: a ``ScheduleBook``, whose ``problems`` list every line that can't be read;
text; a kernel made by its own steps. Not its business: which steps are good (``choose.default``).

The form, with a comment behind ``//``; ``docs/schedules.md`` describes the steps::

    schedule k_7d1a4dd99101e97c  // matmul_add_maximum
      split(i0_2, 14)
      kind(i0_2_i, unroll)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.core.diag import Loc, Problem
from tilewright.core.dims import is_known
from tilewright.core.effort import EFFORT
from tilewright.core.types import product
from tilewright.tile.errors import ScheduleError, ScheduleFileError, TileVerifyError
from tilewright.tile.ir import For, If, Kernel, Kind, Space
from tilewright.tile.reach import check_reach
from tilewright.tile.rewrite import Body
from tilewright.tile.schedule.script import PRIMITIVES, Arg, Schedule, Step, apply_step
from tilewright.tile.verify import verify

MAX_STEPS = 4 * EFFORT.nodes
"""A few for each nest of the largest kernel: each may add loops, which every later one walks."""
MAX_COPIES = 1 << 13
"""Unrolled copies of one statement: beyond it code takes minutes to make and never fits a cache."""
MAX_LANES = 1 << 10
_HEAD = re.compile(r"schedule\s+(\w+)")
_STEP = re.compile(r"(\w+)\((.*)\)")


@dataclass(frozen=True)
class Line:
    """A step and the number of the line that it stands on."""

    number: int
    step: Step


@dataclass(frozen=True)
class ScheduleBook:
    """Steps by the name of the kernel, where all could be read; ``heads`` are the lines of the names."""

    lines: Mapping[str, tuple[Line, ...]]
    heads: Mapping[str, int]
    problems: tuple[Problem, ...] = ()

    @staticmethod
    def parse(text: str) -> ScheduleBook:
        """Read the form of the module's docstring; what can't be read is in ``problems``."""
        lines: dict[str, list[Line]] = {}
        heads: dict[str, int] = {}
        problems: list[Problem] = []
        broken: set[str] = set()
        here = ""
        for number, raw in enumerate(text.split("\n"), 1):
            line = raw.split("//")[0].strip()
            if not line:
                continue
            if head := _HEAD.fullmatch(line):
                here = head[1]
                if here in heads:
                    problems.append(_problem(number, here, "", f"line {heads[here]} begins a schedule of it already"))
                # Reading goes on after a mistake, so that one look shows all of them.
                heads.setdefault(here, number)
                lines.setdefault(here, [])
                continue
            try:
                step = read_step(line)
            except ScheduleError as e:
                problems.append(_problem(number, here, line, e.rule, e.remedy))
                broken.add(here)
                continue
            if here:
                lines[here].append(Line(number, step))
            else:
                problems.append(_problem(number, "", line, "it stands before the first kernel's name", _FORM))
        # Steps build on each other: a schedule with one line that can't be read is not applied at all.
        good = {name: tuple(x) for name, x in lines.items() if name not in broken}
        return ScheduleBook(good, heads, tuple(problems))


_LOOK = "go step by step from what `tilewright ir --stage schedule` prints, and look at --stage tile"
_FORM = "write: schedule KERNEL, then a step a line: primitive(argument, ...)"


def read_step(text: str) -> Step:
    """``primitive(argument, ...)``; ``ScheduleError`` when it is no step of a known primitive with such arguments."""
    found = _STEP.fullmatch(text)
    if found is None:
        raise ScheduleError("", text, "it is neither a kernel's name nor a step", remedy=_FORM)
    name, inside = found[1], found[2].strip()
    if name not in PRIMITIVES:
        known = ", ".join(sorted(PRIMITIVES))
        raise ScheduleError(name, text, f"there is no primitive {name!r}", remedy=f"primitives: {known}")
    args = tuple(_argument(x.strip()) for x in inside.split(",")) if inside else ()
    if not _fits(name, args):
        raise ScheduleError(name, text, "these are not its arguments", remedy=f"write {signature(name)}")
    return Step(name, args)


def _argument(text: str) -> Arg:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


def _parameters(name: str) -> list[inspect.Parameter]:
    return list(inspect.signature(PRIMITIVES[name]).parameters.values())[1:]


def _fits(name: str, args: Sequence[Arg]) -> bool:
    parameters = _parameters(name)
    if parameters and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return bool(args) and all(isinstance(x, str) for x in args)
    needed = sum(p.default is inspect.Parameter.empty for p in parameters)
    kinds = [int if p.annotation in (int, "int") else str for p in parameters]
    return needed <= len(args) <= len(kinds) and all(isinstance(x, k) for x, k in zip(args, kinds, strict=False))


def signature(name: str) -> str:
    """How a step of a primitive is written."""
    shown = []
    for p in _parameters(name):
        text = f"{p.name}, ..." if p.kind is inspect.Parameter.VAR_POSITIONAL else p.name
        shown.append(text if p.default is inspect.Parameter.empty else f"[{text}]")
    return f"{name}({', '.join(shown)})"


def schedule_text(name: str, schedule: Schedule, label: str = "") -> str:
    """A kernel's schedule in the file's form."""
    head = f"schedule {name}  // {label}" if label else f"schedule {name}"
    return "\n".join([head, *(f"  {step}" for step in schedule.steps)]) + "\n"


def apply_lines(kernel: Kernel, lines: Sequence[Line]) -> Kernel:
    """The kernel that the steps make of plain loops; ``ScheduleFileError`` names the first step that is not legal."""
    if len(lines) > MAX_STEPS:
        raise _error(lines[MAX_STEPS], kernel, f"over {MAX_STEPS} steps")
    plain, last = kernel, lines[-1] if lines else Line(0, Step("", ()))
    for line in lines:
        try:
            kernel = apply_step(kernel, line.step)
        except ScheduleError as e:
            raise _error(line, kernel, e.rule, e.remedy) from e
        except (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, ValueError) as e:
            raise _error(line, kernel, f"it does not fit this kernel ({type(e).__name__}: {e})", _LOOK) from e
    try:
        verify(kernel)
        check_size(kernel)
        check_reach(plain, kernel)
    except TileVerifyError as e:
        raise _error(last, kernel, f"what its steps make can't be run: {e.message}", _LOOK) from e
    except ScheduleError as e:
        raise _error(last, kernel, e.rule, e.remedy) from e
    return kernel


def check_size(kernel: Kernel) -> None:
    """Refuse a kernel that would take too much memory for each thread, or minutes of compiling."""
    scratch = [p.buffer for p in kernel.places if p.space is Space.LOCAL]
    n_bytes = sum(n * b.dtype.n_bytes for b in scratch if is_known(n := product(b.shape)))
    if n_bytes > EFFORT.added_bytes:  # every thread of a call has its own
        raise TileVerifyError(f"its scratch takes {n_bytes} bytes for each thread, more than {EFFORT.added_bytes}")
    for copies, lanes in _expansions(kernel.body, 1, 1):
        if copies > MAX_COPIES or lanes > MAX_LANES:
            raise TileVerifyError(f"a statement has {copies} unrolled copies of {lanes} lanes each")


def _expansions(body: Body, copies: int, lanes: int) -> Iterator[tuple[int, int]]:
    """Of every statement: how often it is copied, and its lanes."""
    for s in body:
        if isinstance(s, For):
            n = (s.loop.sym.hi or 0) + 1
            is_copied = s.loop.kind in (Kind.UNROLL, Kind.STEP)
            is_lanes = s.loop.kind in (Kind.VECTOR, Kind.DOT)
            yield from _expansions(s.body, copies * n if is_copied else copies, lanes * n if is_lanes else lanes)
        elif isinstance(s, If):
            yield from _expansions(s.body, copies, lanes)
        else:
            yield copies, lanes


def _error(line: Line, kernel: Kernel, rule: str, remedy: str = "") -> ScheduleFileError:
    return ScheduleFileError([_problem(line.number, kernel.name, str(line.step), rule, remedy)])


def _problem(number: int, kernel: str, step: str, rule: str, remedy: str = "") -> Problem:
    what = f"kernel {kernel}: {step}" if kernel and step else f"kernel {kernel}" if kernel else step
    return Problem(Loc(f"line {number} of the schedule", "", number), what, rule, remedy)


def unknown_kernel(number: int, name: str, known: Sequence[str]) -> Problem:
    """A schedule of a kernel that the model does not have."""
    some = ", ".join([*known[:8], *(["..."] if known[8:] else [])])
    return _problem(number, name, "", "the model has no such kernel", f"its kernels: {some}" if some else "")


def no_code(number: int, name: str, error: Exception) -> Problem:
    """A kernel whose steps are legal, and that no code can be made of."""
    return _problem(number, name, "", f"its steps make no code ({type(error).__name__}: {error})", _LOOK)
