"""``tilewright.tune``: search for faster schedules of a model, and leave them where ``compile`` finds them.

In: a model as ``compile`` takes it, inputs, a budget of time. Out: ``Tuned``; a database, perhaps a file.
Not its business: the search (``tools.search``).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.build.found_schedules import FoundSchedules, cached_schedules
from tilewright.build.options import Level, Options, read_schedule
from tilewright.core.diag import OptionError
from tilewright.frontend.source import Source
from tilewright.runtime.cache import Cache
from tilewright.runtime.files import check_writable, write_text, writing
from tilewright.runtime.threads import checked_threads
from tilewright.tools.debug.compare import Inputs, load_source
from tilewright.tools.search import Tuned, search
from tilewright.tools.tell import Tell, silent


def tune(
    source: Source,
    inputs: Inputs,
    *,
    budget: float = 60.0,
    output: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    dynamic_shapes: Any = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix_dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    precision: str = "fp32",
    optimize: Level = 2,
    accuracy: str = "default",
    schedule: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Tell | None = None,
) -> Tuned:
    """Search for faster schedules of a model's kernels for ``budget`` seconds, compiling counted.

    The model as it is gets measured once, whatever the budget is.
    ``source`` is what ``compile`` takes, ``inputs`` are arrays or tensors in order or by name, whose sizes are those
    that are tuned. Candidates run in a process of their own, and one that crashes, hangs or gives other results than
    the rules' schedule does no harm. What is found goes into the database ``store``, by default the one of the cache
    folder, from which ``compile`` takes it by itself; with ``output`` also into a file for ``compile(schedule=...)``.
    The other arguments are ``compile``'s. Ctrl-C ends the search and keeps what was found. ``progress`` is told
    "round", how many there were, and 0, since nobody knows how many there will be.

    Raises ``OptionError`` for options and for symbolic sizes that ``fix_dims`` leaves open, ``FileError`` for a place
    where no file can be written, ``InputError`` for inputs that don't fit, ``CompileError`` for a model that is
    refused, ``ExecutionError`` where the model itself can't run.
    """
    start = time.perf_counter()
    if type(budget) not in (int, float) or not 0 < budget < math.inf:
        raise OptionError(f"budget={budget!r:.80} is no time to search", remedy="give seconds, more than 0")
    if type(seed) is not int:
        raise OptionError(f"seed={seed!r:.80} is no integer", remedy="give one, such as 0")
    if progress is not None and not callable(progress):
        raise OptionError(f"progress={progress!r:.80} can't be called", remedy="give a function, or None")
    for what, path in (("output", output), ("store", store)):
        if path is not None and not isinstance(path, str | os.PathLike):
            raise OptionError(f"{what}={path!r:.80} is no path", remedy="give one as text or pathlib.Path, or None")
    if output is not None:
        check_writable(Path(output))
    options = Options("native", precision, optimize, accuracy, read_schedule(schedule))
    graph, arrays = load_source(source, inputs, dynamic_shapes, input_shapes, fix_dims)
    found = search(
        graph, arrays, options, threads=checked_threads(threads), budget=budget - (time.perf_counter() - start),
        seed=seed, store=FoundSchedules(store) if store is not None else cached_schedules(Cache()),
        tell=progress or silent,
    )  # fmt: skip
    if output is not None and found.text:
        with writing(output):
            write_text(Path(output), found.text)
    return found
