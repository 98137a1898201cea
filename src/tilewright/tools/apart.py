"""A process of its own for native code that may crash or hang: requests are lines, answers are lines of JSON.

In: a module to run, a line. Out: an answer, or a ``Died`` that says how and where. ``serve`` is the other side; a graph
with its inputs goes over as files. Not its business: what is asked (``tools.debug.worker``, ``tools.measure``).
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TextIO

import numpy as np

from tilewright import ops
from tilewright.core.graph import Graph
from tilewright.core.text import load_graph, save_graph
from tilewright.core.types import Array
from tilewright.tools.tell import Tell

Answer = Callable[[Mapping[str, Any]], None]
GRAPH, INPUTS = "graph.tw.txt", "inputs.npz"
CHUNK = 1 << 16
TAIL = 2000
"""Characters of a dead process's last words that are kept."""
LAST_SECONDS = 10.0
"""For a process that has closed its answers to end."""
_DIE_WITH_PARENT = 1
"""Linux's ``PR_SET_PDEATHSIG``."""


class Died(Exception):
    """The process ended: ``why`` says how, ``doing`` what it was at, ``is_late`` that it had no more time."""

    def __init__(self, why: str, doing: str, *, is_late: bool = False) -> None:
        self.why, self.doing, self.is_late = why, doing, is_late
        super().__init__(f"{why}, at {doing}" if doing else why)


def write_case(folder: Path, graph: Graph, inputs: Sequence[Array]) -> None:
    """A graph and its inputs as files: the graph's text, its large constants and the arrays in order."""
    save_graph(graph, folder / GRAPH)
    np.savez(folder / INPUTS, *inputs)  # by names an input called "file" would be taken for the argument of savez


def read_case(folder: Path) -> tuple[Graph, list[Array]]:
    """What :func:`write_case` wrote."""
    graph = load_graph(folder / GRAPH, ops.by_name)
    with np.load(folder / INPUTS, allow_pickle=False) as stored:
        arrays = [stored[f"arr_{k}"] for k in range(len(graph.inputs))]
    # NumPy's files know the types of ml_dtypes as bytes without a meaning
    return graph, [
        a.view(n.dtype.numpy) if a.dtype.kind == "V" else a for a, n in zip(arrays, graph.inputs, strict=True)
    ]


class Apart:
    """One process that runs ``command``, started when it is first asked and again after it died.

    It has a session of its own: a Ctrl-C at the terminal is for the process that asks.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command
        self._process: subprocess.Popen[str] | None = None
        self._errors: TextIO | None = None
        self._is_interrupted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def is_running(self) -> bool:
        """Has it been started, and not been found dead since?"""
        return self._process is not None

    def end(self) -> None:
        """Stop the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout, self._errors):
                if pipe is not None:
                    with suppress(OSError):  # what a dead process did not read can't be flushed
                        pipe.close()
            self._process = self._errors = None

    def interrupt(self) -> None:
        """Stop the process for good while another thread asks it, or is about to: that one gets ``Died``."""
        self._is_interrupted = True
        if (process := self._process) is not None:
            process.kill()

    def ask(self, line: str, seconds: float | None = None, tell: Tell | None = None) -> dict[str, Any]:
        """The answer to a line; ``tell`` hears what the process is at.

        Raises ``Died`` when there is none within ``seconds``. Whatever else ends the wait ends the process too.
        """
        try:
            return self._answer(self._started(), line, seconds, tell)
        except BaseException:  # an answer that nobody waited for would be taken for the next one's
            self.end()
            raise

    def _answer(
        self, process: subprocess.Popen[str], line: str, seconds: float | None, tell: Tell | None
    ) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        stop = None if seconds is None else time.monotonic() + seconds
        doing = ""
        try:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        except OSError:
            self._die(doing)
        read = b""  # past Python's buffer: a line that waited there would never be announced
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                while b"\n" not in read:
                    if not selector.select(None if stop is None else max(stop - time.monotonic(), 0.0)):
                        raise Died(f"it ran longer than {seconds:g} s", doing, is_late=True)
                    more = os.read(process.stdout.fileno(), CHUNK)
                    if not more:
                        self._die(doing)
                    read += more
                answered, _, read = read.partition(b"\n")
                answer = self._read(answered, doing)
                if "at" not in answer:
                    return answer
                doing = str(answer["at"][0])
                if tell is not None:
                    tell(*answer["at"])

    @staticmethod
    def _read(line: bytes, doing: str) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Died(f"its answer makes no sense: {line!r:.80}", doing)
        return answer

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - as long as it
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, bufsize=1,
                start_new_session=True,
            )  # fmt: skip
            if self._is_interrupted:  # before there was a process to stop
                self._process.kill()
        return self._process

    def _die(self, doing: str) -> NoReturn:
        assert self._process is not None and self._errors is not None
        try:
            code = self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired as e:
            raise Died("it answers no more", doing) from e
        self._errors.seek(0)
        last = self._errors.read()[-TAIL:].strip()
        how = f"the process died of signal {-code}" if code < 0 else f"the process ended with {code}"
        raise Died(f"{how}: {last}" if last and code > 0 else how, doing)


def module_command(module: str) -> tuple[str, ...]:
    """What runs a module as a process, by this Python."""
    return (sys.executable, "-m", module)


def serve(answer_one: Callable[[str, Answer], None]) -> None:
    """Answer every line that comes, until there are no more: an answer with ``at`` says what is being done."""
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print does not go between the answers
    if sys.platform == "linux":  # nobody would end a process that hangs when who asked was killed
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)

    def write(answer: Mapping[str, Any]) -> None:
        out.write(json.dumps(answer, default=str) + "\n")
        out.flush()

    for line in sys.stdin:
        answer_one(line.rstrip("\n"), write)
