"""Schedules of a model measured in a process of its own, where code that crashes, hangs or is wrong does no harm.

In: a graph, its inputs, files of schedules as texts, or one kernel's tile IR. Out: the ticks of every kernel and the
seconds of whole calls, of one or two schedules in turn, or those of a kernel alone; or an ``Unmeasured``.
``python -m tilewright.tools.measure`` is the other side. Not its business: which schedules are tried
(``tools.search``), how a kernel is measured alone (``tools.alone``).

The process compiles what it is asked for and keeps the latest models, so that the best schedule so far is compiled
once. The results of a schedule are compared with those of the first one, which is believed: they may differ by what
rounding explains. How much that is, is measured on the first one, by inputs that differ in their last places
(``tools.debug.tolerance``), or by such weights where no input has floats.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tilewright import ops
from tilewright.build.driver import build
from tilewright.build.options import Clock, Options
from tilewright.codegen.cpu.peak import PeakMeter
from tilewright.codegen.errors import CodegenError
from tilewright.core import types
from tilewright.core.diag import CompileError, OptionError, ParseError
from tilewright.core.graph import Graph
from tilewright.core.text import SideTable, parse_graph, print_graph
from tilewright.core.types import Array
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.python.model import LoadedModel
from tilewright.target.target import Target
from tilewright.tools.alone import FEWEST_CALLS, ROUNDINGS, LoneKernel
from tilewright.tools.apart import Answer, Apart, Died, module_command, read_case, serve, write_case
from tilewright.tools.debug.tolerance import EPSILON, judge, nudged

MODELS_KEPT = 3
"""The first, the best so far and the one that is tried."""
KERNELS_KEPT = 8
"""Kernels that the process is ready to measure alone: their operands are in memory."""
COMMAND = module_command("tilewright.tools.measure")
REQUEST = "request.json"
Ticks = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Unmeasured:
    """A schedule that gave no measurement: its ``kind`` (``crash``, ``hang``, ``wrong``, ``refused``) and why."""

    kind: str
    why: str


@dataclass(frozen=True)
class Measurement:
    """Of each schedule, in the order in which they were asked for: every kernel's ticks in each call, and the calls'
    seconds. ``spent`` is how long all of it took, what was compiled for it included, but no start of the process."""

    ticks: tuple[Ticks, ...]
    calls: tuple[Sequence[float], ...]
    spent: float


class Measuring:
    """A graph and its inputs, to be measured with schedules in a process that is started again when it ended.

    ``OptionError`` for a graph whose text can't be read back, as one with kernels of its user's own.
    """

    def __init__(self, graph: Graph, inputs: Sequence[Array], options: Options, threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tilewright-")
        self._apart = Apart(COMMAND)
        self.opening = 0.0
        """Seconds until the process was last ready."""
        self.compiling = 0.0
        """Seconds of those for compiling the first schedule."""
        self._has_net = False
        """Has the process compiled the model, or was it started for lone kernels?"""
        folder = Path(self._folder.name)
        write_case(folder, graph, inputs)
        try:
            read_case(folder)
        except ParseError as e:
            self.close()
            remedy = "schedule a kernel of your own with tw.schedule(kernel)"
            raise OptionError(
                "a model with kernels of its own can't be measured in another process", remedy=remedy
            ) from e
        request = {"options": asdict(options), "threads": threads}
        (folder / REQUEST).write_text(json.dumps(request), encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and remove what was written for it."""
        self._apart.end()
        self._folder.cleanup()

    def measure(
        self, schedules: Sequence[str], seconds: float = 0.0, *, limit: float | None = None
    ) -> Measurement | Unmeasured:
        """Call the models of these texts in turn for so many seconds, each ``FEWEST_CALLS`` times at least.

        ``limit`` is how long it may take in all, compiling counted; what takes longer is a ``hang``.
        """
        start = time.perf_counter()
        if not (self._has_net and self._apart.is_running):
            # What has to be known first: a process that was started again has forgotten it.
            answer = self._ask({"folder": self._folder.name}, limit)
            if isinstance(answer, Unmeasured):
                return answer
            self._has_net = True
            self.opening, self.compiling = time.perf_counter() - start, float(answer["compiling"])
        begun = time.perf_counter()
        left = None if limit is None else max(limit - (begun - start), 0.0)
        answer = self._ask({"schedules": schedules, "seconds": seconds}, left)
        if isinstance(answer, Unmeasured):
            return answer
        return Measurement(tuple(answer["ticks"]), tuple(answer["calls"]), time.perf_counter() - begun)

    def ready(self, name: str, first: str, constants: Mapping[str, Array], other_bytes: int) -> None:
        """Note what is needed to measure a kernel alone: the text of its ``first`` code, whose results are believed,
        its constants, and what the rest of the model touches between two of its calls."""
        folder = Path(self._folder.name)
        np.savez(folder / f"{name}.npz", *constants.values())
        request = {"first": first, "constants": [*constants], "other_bytes": other_bytes}
        (folder / f"{name}.json").write_text(json.dumps(request), encoding="utf-8")

    def alone(
        self, name: str, texts: Sequence[str], seconds: float = 0.0, *, limit: float | None = None
    ) -> Measurement | Unmeasured:
        """Call these codes of a kernel that is ``ready`` in turn, each alone; ticks and calls are the kernel's."""
        self._has_net = self._has_net and self._apart.is_running
        begun = time.perf_counter()
        request = {"alone": name, "in": self._folder.name, "schedules": texts, "seconds": seconds}
        answer = self._ask(request, limit)
        if isinstance(answer, Unmeasured):
            return answer
        return Measurement(tuple(answer["ticks"]), tuple(answer["calls"]), time.perf_counter() - begun)

    def _ask(self, request: Mapping[str, Any], limit: float | None) -> dict[str, Any] | Unmeasured:
        try:
            answer = self._apart.ask(json.dumps(request), limit)
            if "kind" in answer:
                if answer["kind"] != "refused":  # it may have written where the next one reads
                    self._apart.end()
                return Unmeasured(str(answer["kind"]), str(answer["why"]))
            if "folder" not in request:
                _check_answer(answer, len(request["schedules"]))
        except Died as e:
            return Unmeasured("hang" if e.is_late else "crash", str(e))
        return answer


def _check_answer(answer: Mapping[str, Any], n: int) -> None:
    """``Died`` for an answer that is no measurement: the code that was tried may have written anywhere."""
    ticks, calls = answer.get("ticks"), answer.get("calls")
    is_right = isinstance(ticks, list) and isinstance(calls, list) and len(ticks) == len(calls) == n
    times = [*(calls or ()), *(x for t in ticks or () for x in (t.values() if isinstance(t, dict) else [t]))]
    if not is_right or not all(map(_are_times, times)):
        raise Died("its answer is no measurement", "measuring")


def _are_times(found: object) -> bool:
    return (
        isinstance(found, list)
        and len(found) >= FEWEST_CALLS
        and all(isinstance(x, int | float) and 0 <= x < float("inf") for x in found)
    )


# --- the other side -------------------------------------------------------------------------------------------------


@dataclass
class _Counted:
    """A model whose kernels count their ticks, by name."""

    names: list[str]
    model: LoadedModel

    def call(self, inputs: Sequence[Array]) -> tuple[list[Array], list[int], float]:
        """Results, ticks of each kernel, seconds of the call."""
        start = time.perf_counter()
        results, ticks = self.model.counted(inputs, len(self.names))
        return results, ticks, time.perf_counter() - start


@dataclass
class _Bench:
    """What the process knows: the case, what its results are, and the latest models by their schedules."""

    graph: Graph
    inputs: list[Array]
    options: Options
    threads: int
    models: dict[str, _Counted] = field(default_factory=dict)
    want: list[Array] = field(default_factory=list)
    others: list[list[Array]] = field(default_factory=list)
    compiling: float = 0.0
    """Seconds for the first schedule."""

    @staticmethod
    def opened(folder: Path) -> _Bench:
        """The case of a folder, with the results of its first schedule and what rounding makes of them."""
        graph, inputs = read_case(folder)
        request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
        made = _Bench(graph, inputs, Options(**request["options"]), request["threads"])
        start = time.perf_counter()
        first = made.model(made.options.schedule)
        made.compiling = time.perf_counter() - start
        made.want = first.call(made.copies())[0]
        if any(judge(a, b).is_bad for a, b in zip(made.want, first.call(made.copies())[0], strict=True)):
            raise OptionError("the model gives other results at each call", remedy="leave out what draws at random")
        rng = np.random.default_rng(0)
        if any(a.dtype.kind not in "iub" for a in inputs):
            varied = [[nudged(a) for a in inputs], [nudged(a, rng) for a in inputs]]
            made.others = [first.call(given)[0] for given in varied]
        else:
            near = replace(made, graph=_nudged_weights(graph, rng), models={})
            made.others = [near.model(made.options.schedule).call(made.copies())[0]]
        return made

    def model(self, schedule: str) -> _Counted:
        """The model with a schedule, compiled unless it is among the latest."""
        found = self.models.pop(schedule, None)
        if found is None:
            options = replace(self.options, schedule=schedule)
            artifact = build(self.graph, options, Clock(), profile=True)
            names = [row["name"] for row in artifact.manifest.report["kernels"]]
            model = LoadedModel(artifact.manifest, artifact.objects, artifact.weights, threads=self.threads)
            found = _Counted(names, model)
        self.models[schedule] = found  # the latest stand last
        while len(self.models) > MODELS_KEPT:
            del self.models[next(s for s in self.models if s != self.options.schedule)]
        return found

    def copies(self) -> list[Array]:
        """The inputs, for a call that may write to them."""
        return [a.copy() for a in self.inputs]

    def wrong(self, schedule: str) -> str:
        """What is wrong with the results of a schedule, or nothing."""
        unit = EPSILON[types.bf16] if self.options.precision == "bf16" else 0.0
        for k, (want, got) in enumerate(zip(self.want, self.model(schedule).call(self.copies())[0], strict=True)):
            dtype = types.dtype_of(want.dtype)
            epsilon = max(unit, EPSILON.get(dtype, 0.0))
            found = judge(want, got, [o[k] for o in self.others], epsilon=epsilon, roundings=ROUNDINGS)
            if found.is_bad:
                return f"result {k}: {found}"
        return ""

    def measured(self, schedules: Sequence[str], seconds: float) -> dict[str, Any]:
        """Ticks and calls of the schedules in turn, or what is wrong with one."""
        for schedule in schedules:
            if schedule not in self.models and (why := self.wrong(schedule)):
                return {"kind": "wrong", "why": why}
        models = [self.model(s) for s in schedules]
        ticks: list[list[list[int]]] = [[] for _ in models]
        calls: list[list[float]] = [[] for _ in models]
        inputs, stop = self.copies(), time.perf_counter() + seconds
        while len(calls[-1]) < FEWEST_CALLS or time.perf_counter() < stop:
            for k, model in enumerate(models):
                _, counts, spent = model.call(inputs)
                ticks[k].append(counts)
                calls[k].append(spent)
        named = [dict(zip(m.names, zip(*t, strict=True), strict=True)) for m, t in zip(models, ticks, strict=True)]
        return {"ticks": named, "calls": calls}


def _limit_memory() -> None:
    """No more memory than was free at the start: what asks for more gets an error, and no other process is ended."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(facts["MemAvailable"].split()[0]) * 1024
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + free, resource.RLIM_INFINITY))


def _lone(folder: Path, name: str) -> LoneKernel:
    """What :meth:`Measuring.ready` noted of a kernel."""
    noted = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    options = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    chosen = Options(**options["options"])
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        constants = {c: stored[f"arr_{k}"] for k, c in enumerate(noted["constants"])}
    unit = EPSILON[types.bf16] if chosen.precision == "bf16" else 0.0
    parts = (chosen.machine, options["threads"], constants, noted["other_bytes"], noted["first"], unit)
    return LoneKernel(*parts)


def _nudged_weights(graph: Graph, rng: np.random.Generator) -> Graph:
    table = SideTable()
    text = print_graph(graph, table)
    return parse_graph(text, ops.by_name, {name: nudged(a, rng) for name, a in table.arrays.items()})


class _Server:
    """Answers requests about one case."""

    def __init__(self) -> None:
        self.bench: _Bench | None = None
        self.kernels: dict[str, LoneKernel] = {}
        self.rate = 0.0
        """Ticks a second, once they were counted."""

    def answer(self, line: str, write: Answer) -> None:
        """Open a folder, or measure schedules; errors on purpose are answers too."""
        request = json.loads(line)
        try:
            if "folder" in request:
                write({"at": ["opening", 0, 0]})
                self.bench = _Bench.opened(Path(request["folder"]))
                write({"compiling": self.bench.compiling})
            elif "alone" in request:
                write({"at": ["measuring", 0, 0]})
                write(self.alone(request["alone"], Path(request["in"]), request["schedules"], request["seconds"]))
            else:
                assert self.bench is not None
                write({"at": ["measuring", 0, 0]})
                write(self.bench.measured(request["schedules"], request["seconds"]))
        except (CompileError, CodegenError, OptionError) as e:
            write({"kind": "refused", "why": str(e)})
        except (MemoryError, TilewrightError) as e:
            write({"kind": "crash", "why": f"{type(e).__name__}: {e}"})

    def alone(self, name: str, folder: Path, texts: Sequence[str], seconds: float) -> dict[str, Any]:
        """Ticks and calls of a kernel's codes in turn, or what is wrong with one."""
        kernel = self.kernels.pop(name, None) or _lone(folder, name)
        self.kernels[name] = kernel  # the latest stand last
        while len(self.kernels) > KERNELS_KEPT:
            del self.kernels[next(iter(self.kernels))]
        found = kernel.measured(texts, seconds)
        if isinstance(found, str):
            return {"kind": "wrong", "why": found}
        self.rate = self.rate or PeakMeter(Target.host()).ticks_per_second()
        return {"ticks": [{name: t} for t in found], "calls": [[x / self.rate for x in t] for t in found]}


if __name__ == "__main__":
    _limit_memory()
    serve(_Server().answer)
