"""``tilewright.reduce``: the smallest graph that fails as a model does.

In: a model as ``compile`` takes it, and inputs. Out: a ``Reduced`` with a graph of few ops and elements.
Not its business: what a failure is (``tools.debug.predicate``), the moves (``tools.debug.candidates``).

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002) with the moves that
graphs have: the shortest front part that fails; of its outputs as few as possible; the longest part at the front that
can come in as values; then node by node, and size by size, until nothing can go. Every candidate runs in a process of
its own, so that crashes and hangs can be reduced like wrong results.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.build.options import Level, Options
from tilewright.core.diag import OptionError
from tilewright.core.graph import CONST, INPUT
from tilewright.core.specialize import fix_symbols
from tilewright.core.text import print_graph, save_graph
from tilewright.frontend.source import Source
from tilewright.runtime.files import replacing, writing
from tilewright.tools.apart import Died
from tilewright.tools.debug.candidates import Candidate
from tilewright.tools.debug.compare import Inputs, load_source
from tilewright.tools.debug.kernel import BROKEN
from tilewright.tools.debug.predicate import Failure, check_graph
from tilewright.tools.debug.worker import Worker
from tilewright.tools.tell import Tell

Test = Callable[[Candidate], Failure]


@dataclass(frozen=True)
class Reduced:
    """A smallest graph that still fails, its inputs, and how: ``n_ops`` of ``n_ops_before``, after ``n_tried`` runs."""

    candidate: Candidate
    failure: Failure
    options: Options
    threads: int | None
    n_ops_before: int
    n_tried: int

    @property
    def n_ops(self) -> int:
        """Ops of the graph."""
        return self.candidate.n_ops

    @property
    def text(self) -> str:
        """The graph's text."""
        return print_graph(self.candidate.graph)

    def save(self, folder: str | Path) -> str:
        """Write ``model.tw.txt`` with its constants and ``inputs.npz``; returns a command that shows the failure."""
        graph = self.candidate.graph
        arrays: dict[str, Any] = dict(zip(graph.input_names, self.candidate.inputs, strict=True))
        with writing(folder):
            where = Path(folder)
            where.mkdir(parents=True, exist_ok=True)
            save_graph(graph, where / "model.tw.txt")
            with replacing(where / "inputs.npz") as file:
                np.savez(file, **arrays)
        return self.command(where)

    def command(self, folder: Path) -> str:
        """The command that shows the failure of what :meth:`save` wrote."""
        words = ["tilewright", "compare", str(folder / "model.tw.txt")]
        if self.candidate.graph.inputs:
            words += ["--input", str(folder / "inputs.npz")]
        default = Options()
        for name, value in asdict(self.options).items():
            if value != getattr(default, name):
                words += [f"--{name}", str(value)]
        if self.threads is not None:
            words += ["--threads", str(self.threads)]
        return shlex.join(words)


def reduce(
    source: Source,
    inputs: Inputs,
    *,
    dynamic_shapes: Any = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix_dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    target: str = "native",
    precision: str = "fp32",
    optimize: Level = 2,
    accuracy: str = "default",
    isolate: bool = True,
    seconds: float = 60.0,
    limit: int = 500,
    progress: Tell | None = None,
) -> Reduced:
    """Shrink a failing model to the smallest graph that still fails in the same way.

    Arguments are ``compare``'s. A failure is a result that differs from the reference by more than rounding, a crash, a
    run of more than ``seconds``, or an error of the compiler (the same code must come back). ``limit`` is the most
    candidates that are run. Sub-graphs of control flow stay whole.

    Raises ``OptionError`` when the model does not fail, and what importing raises.
    """
    options = Options(target, precision, optimize, accuracy)
    graph, arrays = load_source(source, inputs, dynamic_shapes, input_shapes, fix_dims)
    start = Candidate(graph, tuple(arrays))
    with checker(options, threads=threads, isolate=isolate, seconds=seconds) as test:
        search = _Search(test, limit, progress or (lambda *_: None))
        failure = search.begin(start)
        found = search.run(start)
        # for a report of what is left; a failure that needs luck may stay away
        final = search.test(found) if found is not start else failure
    return Reduced(found, final if final.is_like(failure) else failure, options, threads, start.n_ops, search.n_tried)


@contextmanager
def checker(options: Options, *, threads: int | None, isolate: bool, seconds: float) -> Iterator[Test]:
    """What tells how a candidate fails, in a process of its own with ``isolate``."""
    with Worker() as worker:

        def isolated(c: Candidate) -> Failure:
            try:
                answer = worker.ask_about("check", c.graph, c.inputs, options, threads=threads, seconds=seconds)
            except Died as e:
                return Failure("crashes", detail=e.why)
            return Failure(**answer["failure"])

        def here(c: Candidate) -> Failure:
            return check_graph(c.graph, c.inputs, options, threads=threads)

        yield isolated if isolate else here


class _Search:
    """Moves that keep the failure, until none does."""

    def __init__(self, test: Test, limit: int, tell: Tell) -> None:
        self.test, self.limit, self.tell = test, limit, tell
        self.n_tried = 0
        self.failure = Failure("none")

    def begin(self, start: Candidate) -> Failure:
        """The failure to keep."""
        self.failure = self.test(start)
        if self.failure.kind in ("none", "invalid"):
            why = "its reference does not run" if self.failure.kind == "invalid" else "the model does not fail"
            remedy = "give the inputs and options with which it does: tilewright compare"
            raise OptionError(f"there is nothing to reduce: {why} {self.failure.detail}".strip(), remedy=remedy)
        return self.failure

    def fails(self, c: Candidate | None) -> bool:
        """Does a candidate fail in the same way?"""
        if c is None or self.n_tried >= self.limit:
            return False
        self.n_tried += 1
        self.tell(f"{c.n_ops} ops", self.n_tried, self.limit)
        return self.test(c).is_like(self.failure)

    def run(self, c: Candidate) -> Candidate:
        """All moves, again and again."""
        c = self._with_numbers(c)
        while True:
            before = (c.n_ops, len(c.graph.outputs), c.n_elements)
            c = self._nodes(self._back(self._outputs(self._front(c))))
            c = self._sizes(c)
            if (c.n_ops, len(c.graph.outputs), c.n_elements) == before or self.n_tried >= self.limit:
                return c

    def _with_numbers(self, c: Candidate) -> Candidate:
        """Without symbolic sizes, where it fails without them too."""
        sizes = c.values().sizes
        named = {s.name: sizes[s] for s in c.graph.symbols()}
        if not named:
            return c
        fixed = Candidate(fix_symbols(c.graph, named), c.inputs)
        return fixed if self.fails(fixed) else c

    def _front(self, c: Candidate) -> Candidate:
        low, high, best = 0, len(c.graph.nodes()), c
        while high - low > 1:
            middle = (low + high) // 2
            part = c.front(middle)
            if part is not None and self.fails(part):
                high, best = middle, part
            else:
                low = middle
        return best

    def _outputs(self, c: Candidate) -> Candidate:
        for n in reversed(c.graph.outputs):
            if len(c.graph.outputs) > 1 and self.fails(one := c.over((n,))):
                assert one is not None
                return one
        for n in c.graph.outputs:
            rest = c.over([o for o in c.graph.outputs if o is not n])
            if self.fails(rest):
                assert rest is not None
                c = rest
        return c

    def _back(self, c: Candidate) -> Candidate:
        values = c.values()
        low, high, best = 0, len(c.graph.nodes()), c
        while high - low > 1:
            middle = (low + high) // 2
            part = c.back(middle, values)
            if part is not None and part.n_ops < c.n_ops and self.fails(part):
                low, best = middle, part
            else:
                high = middle
        return best

    def _nodes(self, c: Candidate) -> Candidate:
        """Node by node: its value comes in, or an operand of its type takes its place."""
        again = True
        while again and self.n_tried < self.limit:
            again = False
            values = c.values()
            for n in c.interior():
                moves = [c.fed([n], values)]
                moves += [c.bypassed(n, i) for i in n.inputs if len(i.types) == 1 and i.type == n.type]
                smaller = next((m for m in moves if m is not None and m.n_ops < c.n_ops and self.fails(m)), None)
                if smaller is not None:
                    c, again = smaller, True
                    break
            else:
                c, again = self._last(c)
        return c

    def _last(self, c: Candidate) -> tuple[Candidate, bool]:
        """What an output is made of takes its place."""
        for k, n in enumerate(c.graph.outputs):
            for i in n.inputs:
                if i.op in (INPUT, CONST) or len(i.types) > 1:
                    continue
                smaller = c.over([*c.graph.outputs[:k], i, *c.graph.outputs[k + 1 :]])
                if smaller is not None and smaller.n_ops < c.n_ops and self.fails(smaller):
                    return smaller, True
        return c, False

    def _sizes(self, c: Candidate) -> Candidate:
        """Each size as small as it can be: the smallest of a few that fails, then less by one as long as that fails."""
        for size in c.sizes():
            for new in (1, 2, *_falling(size)):
                smaller = self._resized(c, size, new)
                if smaller is not None:
                    c, size = smaller, new
                    break
            while size > 2 and (smaller := self._resized(c, size, size - 1)) is not None:
                c, size = smaller, size - 1
        return c

    def _resized(self, c: Candidate, old: int, new: int) -> Candidate | None:
        """With a size made smaller, if that fails too."""
        if new >= old:
            return None
        try:
            smaller = c.resized(old, new)
        except BROKEN:  # an op does not allow it
            return None
        return smaller if self.fails(smaller) else None


def _falling(size: int) -> list[int]:
    """A quarter, a half and three quarters of a size."""
    return [n for n in (size // 4, size // 2, size * 3 // 4) if n > 2]


__all__ = ["Reduced", "reduce"]
