"""Work on a graph in a process of its own, so that native code that crashes or hangs ends that process alone.

In: a graph, inputs and a request. Out: an answer, or a ``Died`` that says how and where.
``python -m tilewright.tools.debug.worker`` is the other side: a line with a folder comes in, lines of JSON go out.
Not its business: what is asked (``tools.debug.flow``, ``tools.debug.predicate``), the process (``tools.apart``).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilewright.build.options import Options
from tilewright.core.graph import Graph
from tilewright.core.types import Array
from tilewright.runtime.errors import TilewrightError
from tilewright.tools.apart import Answer, Apart, module_command, read_case, serve, write_case
from tilewright.tools.debug.flow import compare_graph
from tilewright.tools.debug.predicate import check_graph
from tilewright.tools.tell import Tell

REQUEST = "request.json"


class Worker(Apart):
    """One process, started when it is first asked and again after it died."""

    def __init__(self) -> None:
        super().__init__(module_command("tilewright.tools.debug.worker"))

    def ask_about(
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
            return self.ask(str(folder), seconds, tell)


def _answer(line: str, write: Answer) -> None:
    """Answer for the folder of a line; errors on purpose are answers too."""

    def tell(stage: str, done: int, total: int) -> None:
        write({"at": [stage, done, total]})

    folder = Path(line)
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
    serve(_answer)
