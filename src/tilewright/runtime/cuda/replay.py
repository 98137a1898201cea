"""Calls that come again as one: the driver records a program's launches and replays them as a graph.

In: a run, and what it depends on. Out: the run's work on its stream, launched or replayed. Not its business: steps
(``run``).

A recording holds addresses and sizes, so it serves calls that have the same of both; these are its key. The second call
of a key is recorded, since the first may be the only one. The latest ``KEPT`` recordings are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from tilewright.runtime.cuda.driver import DriverError
from tilewright.runtime.cuda.errors import GpuError
from tilewright.runtime.cuda.program import GpuProgram
from tilewright.runtime.cuda.run import DeviceRun

KEPT = 16
"""Recordings of one model; each takes the driver some KiB for every kernel."""
Key = tuple[int, int, int, tuple[int, ...], tuple[tuple[str, int], ...]]
"""Stream, arena, weights, arguments, sizes."""


class Replays:
    """The recordings of one model."""

    def __init__(self, stream: int) -> None:
        """``stream`` is the one that work is recorded on, whichever it then runs on: the driver's default one, which
        PyTorch uses, takes no recording."""
        self.stream = stream
        self.graphs: OrderedDict[Key, int] = OrderedDict()
        self.seen: OrderedDict[Key, None] = OrderedDict()
        self.n_replayed = 0

    def run(self, run: DeviceRun, program: GpuProgram) -> None:
        """Launch, record or replay the program. One that the host must look into is always launched."""
        if program.waits:
            run.program(program)
            return
        key = (run.stream, run.arena, run.weights, tuple(run.args), tuple(sorted(run.sizes.items())))
        graph = self.graphs.get(key)
        if graph is None and key not in self.seen:
            self._remember(key)
            run.program(program)
            return
        if graph is None:
            graph = self._record(run, program)
            self._keep(run, key, graph)
        self.graphs.move_to_end(key)
        self.n_replayed += 1
        run.driver.replay(graph, run.stream)

    def forget(self, run: DeviceRun) -> None:
        """Drop every recording: what they hold of addresses is no longer so."""
        for graph in self.graphs.values():
            run.driver.drop(graph)
        self.graphs.clear()
        self.seen.clear()

    def _record(self, run: DeviceRun, program: GpuProgram) -> int:
        run = replace(run, stream=self.stream)
        run.driver.begin_capture(run.stream)
        try:
            run.program(program)
        except BaseException:
            self._end_broken(run)
            raise
        try:
            return run.driver.end_capture(run.stream)
        except DriverError as error:
            raise GpuError(f"a call could not be recorded: {error}", call=error.call, status=error.status) from error

    def _end_broken(self, run: DeviceRun) -> None:
        """Leave recording after a failure, so that the stream can be used again; the failure itself is what counts."""
        try:
            run.driver.drop(run.driver.end_capture(run.stream))
        except DriverError:
            return

    def _remember(self, key: Key) -> None:
        self.seen[key] = None
        if len(self.seen) > KEPT:
            self.seen.popitem(last=False)

    def _keep(self, run: DeviceRun, key: Key, graph: int) -> None:
        self.graphs[key] = graph
        if len(self.graphs) > KEPT:
            (stream, *_), oldest = self.graphs.popitem(last=False)
            run.driver.wait(stream)
            run.driver.drop(oldest)
