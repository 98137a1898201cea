"""Does a graph still fail, and how: what a reduction asks of every candidate.

In: a graph, inputs, options. Out: a ``Failure``. Not its business: processes that die (``tools.debug.worker``),
candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from tilewright.build.driver import compile_graph
from tilewright.build.options import Options
from tilewright.core.graph import Graph
from tilewright.core.types import Array
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.threads import default_threads
from tilewright.tools.debug.passes import ROOM
from tilewright.tools.debug.steps import judge_run
from tilewright.tools.debug.values import values_of, worst

Kind = Literal["none", "differs", "error", "crashes", "invalid"]
RUNS = 3
"""With several threads a wrong result may need luck."""


@dataclass(frozen=True)
class Failure:
    """How a graph fails: ``differs`` from its reference, an ``error`` (``code`` is its name), ``crashes``, not at all.

    ``invalid``: the reference itself does not run, so there is nothing to compare with.
    """

    kind: Kind
    code: str = ""
    detail: str = ""

    def is_like(self, other: Failure) -> bool:
        """The same failure, for a reduction's purposes."""
        return self.kind == other.kind and self.code == other.code

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def check_graph(graph: Graph, inputs: Sequence[Array], options: Options, *, threads: int | None = None) -> Failure:
    """Compile ``graph``, run it and judge it."""
    try:
        want = values_of(graph, inputs).outputs()
    except Exception as e:  # a candidate may be any nonsense that its types allow
        return Failure("invalid", type(e).__name__, str(e))
    try:
        model = compile_graph(graph, threads=threads, **asdict(options))
        n_runs = RUNS if (threads or default_threads()) > 1 else 1
        room = ROOM if options.accuracy == "default" else 0.0
        seen: set[bytes] = set()
        for _ in range(n_runs):
            answer = model(*inputs)
            got = list(answer) if isinstance(answer, tuple) else [answer]
            content = b"".join(np.asarray(g).tobytes() for g in got)
            if content in seen:  # judging takes longer than running
                continue
            seen.add(content)
            found = worst(judge_run(graph, inputs, want, got, room))
            if found.is_bad:
                return Failure("differs", detail=str(found))
    except TilewrightError as e:
        return Failure("error", e.code, str(e))
    except Exception as e:
        return Failure("error", type(e).__name__, str(e))
    return Failure("none")
