"""What exact dependences say of a loop program: its statements, what needs what, and an order that keeps all of it.

In: a ``LoopProgram``, a target. Out: ``LoopReport``. Not its business: reading programs (``language.program``), the
search for orders (``choose.strategies.ordered``), how it is printed (``cli.poly``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.choose.strategies.ordered import ordered
from tilewright.core.compute import Axis, Serial, Stage
from tilewright.core.diag import OptionError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, evaluate, substitute
from tilewright.language.errors import KernelError
from tilewright.language.nests import raised
from tilewright.language.program import LoopProgram
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleError
from tilewright.tile.ir import For, Kernel
from tilewright.tile.lower import lower
from tilewright.tile.schedule import ScheduleBuilder
from tilewright.tile.text import body_text

try:
    from tilewright.tile.polyhedral.alone import alone
    from tilewright.tile.polyhedral.dependences import Dependence, dependences_of, first_pair
    from tilewright.tile.polyhedral.sets import Instance, domain_text, instances, parameters
except ImportError:  # the extra poly is not installed: who asks is told so
    IS_INSTALLED = False
else:
    IS_INSTALLED = True

ANY_ORDER = "its iterations may run in any order: the rules for elements and sums schedule it"


@dataclass(frozen=True)
class StatementFacts:
    """A statement by its name in sets, its line in the file, what it does, and its iterations."""

    name: str
    line: int
    text: str
    domain: str


@dataclass(frozen=True)
class DependenceFacts:
    """Iterations of ``source`` that must come before such of ``target``, and the first two of them for some sizes."""

    kind: str
    array: str
    source: str
    target: str
    sizes: Mapping[str, int]
    before: Mapping[str, int]
    after: Mapping[str, int]

    commutes: bool
    """Do both add to one element, or the like, so that either may be first?"""


@dataclass(frozen=True)
class NestFacts:
    """A nest by its outermost loop: the step that puts it in order, or why there is none, and its loops then."""

    loop: str
    line: int
    step: str
    why_not: str
    loops: str


@dataclass(frozen=True)
class LoopReport:
    statements: tuple[StatementFacts, ...]
    dependences: tuple[DependenceFacts, ...]
    nests: tuple[NestFacts, ...]


def loop_report(program: LoopProgram, target: str = "native") -> LoopReport:
    """Everything that is known of the program's nests; what stands outside of loops is left out.

    ``KernelError`` names the line where an index or a range is not affine.
    """
    if not IS_INSTALLED:
        raise OptionError("exact dependences need the extra poly", remedy='pip install "tilewright[poly]"')
    return alone(_report)(program, target)


def _report(program: LoopProgram, target: str) -> LoopReport:
    c, name = program.traced.computation, program.traced.name
    kernel = lower(replace(c, items=program.nests), name)
    stages = list(_stages(program.nests, ()))
    try:
        found = instances(kernel)
    except ScheduleError as e:
        # Sets call the statement by its number, a user by its line.
        k = int(e.where[1:]) if e.where[1:].isdecimal() else None
        loc = program.loc if k is None else program.traced.lines.get(stages[k][0], program.loc)
        remedy = "write indices and ranges as sums of loops and sizes with constant factors"
        raise KernelError(program.traced.name, e.rule, remedy, loc) from e
    said = [_Said(program, x, *s) for s, x in zip(stages, found, strict=True)]
    described = tuple(x.facts(kernel) for x in said)
    needs = tuple(_dependence(kernel, said, d) for d in dependences_of(found))
    machine = Target.parse(target).judged()
    nests = tuple(_nest(program, nest, machine) for nest in program.nests)
    return LoopReport(described, needs, nests)


def _stages(items: Sequence[Serial | Stage], axes: tuple[Axis, ...]) -> Iterator[tuple[Stage, tuple[Axis, ...]]]:
    """Stages with the loops around them, in the order in which they are lowered."""
    for x in items:
        if isinstance(x, Stage):
            yield x, axes
        else:
            yield from _stages(x.body, (*axes, x.axis))


@dataclass(frozen=True)
class _Said:
    """A statement of the program as a set of iterations, and as the stage that the text became.

    Its loops have names of their own in the kernel, and the text's variables may begin elsewhere than at 0.
    """

    program: LoopProgram
    instance: Instance
    stage: Stage
    axes: tuple[Axis, ...]

    @property
    def name(self) -> str:
        name: str = self.instance.domain.get_tuple_name()
        return name

    def variables(self) -> dict[str, Dim]:
        """The text's variables by the kernel's loops."""
        own: dict[Sym, Dim] = {a.sym: x.sym for a, x in zip(self.axes, self.instance.loops, strict=True)}
        return {self.program.name_of(a.sym): substitute(self.program.values[a.sym], own) for a in self.axes}

    def facts(self, kernel: Kernel) -> StatementFacts:
        line = self.program.line_of(self.stage)
        domain = domain_text(kernel, self.instance, self.variables())
        return StatementFacts(self.name, line, self.program.texts[line], domain)

    def point(self, at: Sequence[int], sizes: Mapping[Sym, int]) -> dict[str, int]:
        known = {**sizes, **{x.sym: n for x, n in zip(self.instance.loops, at, strict=True)}}
        return {name: e if is_known(e) else evaluate(e, known) for name, e in self.variables().items()}


def _dependence(kernel: Kernel, said: Sequence[_Said], d: Dependence) -> DependenceFacts:
    numbers, before, after = first_pair(d.pairs)
    sizes = {s: numbers.get(f"n{k}", s.lo or 0) for k, s in enumerate(parameters(kernel))}
    source, target = said[d.source], said[d.target]
    points = source.point(before, sizes), target.point(after, sizes)
    shown = {s.name: n for s, n in sizes.items()}
    return DependenceFacts(d.kind, d.buffer.name, source.name, target.name, shown, *points, d.commutes)


def _nest(program: LoopProgram, nest: Serial, machine: Target) -> NestFacts:
    """The order that the rule for such nests finds, where the order of this one counts."""
    line = program.traced.lines.get(nest.axis, program.loc).line
    computation = replace(program.traced.computation, items=(nest,))
    b, step, why_not = ScheduleBuilder(lower(computation, program.traced.name)), "", ""
    (outermost,) = b.kernel.body
    assert isinstance(outermost, For)
    loop = outermost.loop.sym.name
    if not isinstance(raised((nest,))[0], Serial):
        why_not = ANY_ORDER
    else:
        try:
            ordered(b, machine, loop)
            step = str(b.steps[-1])
        except ScheduleError as e:
            why_not = e.message
    return NestFacts(program.name_of(nest.axis.sym), line, step, why_not, body_text(b.kernel.body))
