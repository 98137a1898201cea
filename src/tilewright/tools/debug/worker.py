"""Work on a graph in a process of its own, so that native code that crashes or hangs ends that process alone.

In: a folder with a graph's text, inputs and a request. Out: an answer, or a ``Died`` that says how and where.
``python -m tilewright.tools.debug.worker`` is the other side: a line with a folder comes in, lines of JSON go out.
Not its business: what is asked (``tools.debug.flow``, ``tools.debug.predicate``).
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import numpy as np

from tilewright import ops
from tilewright.build.options import Options
from tilewright.core.graph import Graph
from tilewright.core.text import load_graph, save_graph
from tilewright.core.types import Array
from tilewright.runtime.errors import TilewrightError
from tilewright.tools.debug.flow import compare_graph
from tilewright.tools.debug.predicate import check_graph

Tell = Callable[[str, int, int], None]
GRAPH, INPUTS, REQUEST = "graph.tw.txt", "inputs.npz", "request.json"
CHUNK = 1 << 16
TAIL = 2000
"""Characters of a dead process's last words that are kept."""


class Died(Exception):
    """The process ended: ``why`` says how, ``doing`` what it was at."""

    def __init__(self, why: str, doing: str) -> None:
        self.why, self.doing = why, doing
        super().__init__(f"{why}, at {doing}" if doing else why)


def write_case(folder: Path, graph: Graph, inputs: Sequence[Array]) -> None:
    """A graph and its inputs as files: the graph's text, its large constants and the arrays by name."""
    save_graph(graph, folder / GRAPH)
    arrays: dict[str, Any] = dict(zip(graph.input_names, inputs, strict=True))
    np.savez(folder / INPUTS, **arrays)


def read_case(folder: Path) -> tuple[Graph, list[Array]]:
    """What :func:`write_case` wrote."""
    graph = load_graph(folder / GRAPH, ops.by_name)
    with np.load(folder / INPUTS, allow_pickle=False) as stored:
        arrays = [stored[n.attrs["name"]] for n in graph.inputs]
    # NumPy's files know the types of ml_dtypes as bytes without a meaning
    return graph, [
        a.view(n.dtype.numpy) if a.dtype.kind == "V" else a for a, n in zip(arrays, graph.inputs, strict=True)
    ]


class Worker:
    """One process, started when it is first asked and again after it died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors: TextIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

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

    def ask(
        self,
        what: str,
        graph: Graph,
        inputs: Sequence[Array],
        options: Options,
        *,
        threads: int | None = None,
        seconds: float | None = None,
        tell: Tell | None = None,
    ) -> dict[str, Any]:
        """The answer, which may be an error that the work raised on purpose; raises ``Died`` when there is none."""
        with tempfile.TemporaryDirectory(prefix="tilewright-") as name:
            folder = Path(name)
            write_case(folder, graph, inputs)
            request = {"what": what, "options": asdict(options), "threads": threads}
            (folder / REQUEST).write_text(json.dumps(request), encoding="utf-8")
            return self._answer(folder, seconds, tell)

    def _answer(self, folder: Path, seconds: float | None, tell: Tell | None) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        stop = None if seconds is None else time.monotonic() + seconds
        doing = ""
        try:
            process.stdin.write(f"{folder}\n")
            process.stdin.flush()
        except OSError:
            self._die(doing)
        read = b""  # past Python's buffer: a line that waited there would never be announced
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                while b"\n" not in read:
                    if not selector.select(None if stop is None else max(stop - time.monotonic(), 0.0)):
                        self.end()
                        raise Died(f"it ran longer than {seconds:g} s", doing)
                    more = os.read(process.stdout.fileno(), CHUNK)
                    if not more:
                        self._die(doing)
                    read += more
                line, _, read = read.partition(b"\n")
                answer: dict[str, Any] = json.loads(line)
                if "at" not in answer:
                    return answer
                doing = str(answer["at"][0])
                if tell is not None:
                    tell(*answer["at"])

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - as long as it
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tilewright.tools.debug.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, text=True, bufsize=1,
            )  # fmt: skip
        return self._process

    def _die(self, doing: str) -> None:
        assert self._process is not None and self._errors is not None
        code = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read()[-TAIL:].strip()
        self.end()
        how = f"the process died of signal {-code}" if code < 0 else f"the process ended with {code}"
        raise Died(f"{how}: {last}" if last and code > 0 else how, doing)


def _serve(lines: TextIO, out: TextIO) -> None:
    """Answer every folder that comes; errors on purpose are answers too."""

    def write(answer: Mapping[str, Any]) -> None:
        out.write(json.dumps(answer, default=str) + "\n")
        out.flush()

    def tell(stage: str, done: int, total: int) -> None:
        write({"at": [stage, done, total]})

    for line in lines:
        folder = Path(line.rstrip("\n"))
        request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
        graph, inputs = read_case(folder)
        options, threads = Options(**request["options"]), request["threads"]
        try:
            if request["what"] == "compare":
                write({"comparison": compare_graph(graph, inputs, options, threads=threads, tell=tell).as_json()})
            else:
                write({"failure": check_graph(graph, inputs, options, threads=threads).as_json()})
        except TilewrightError as e:
            write({"error": type(e).__name__, "message": e.message, "remedy": e.remedy})


if __name__ == "__main__":
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print does not go between the answers
    _serve(sys.stdin, answers)
