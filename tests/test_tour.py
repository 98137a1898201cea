"""The tour is true: a compile of its layer goes through the files that it numbers, in their order and never upward.

A compile is watched call by call. Every numbered file runs, first runs in the order of the numbers, and is called by a
file with a smaller number, directly or through ``core`` alone (which calls the ops and rules that it is given). The
last one hands the instruction to the writer of the text. Besides, of all files that run, only ``core`` and the runtime,
which stands beside the layers, call one of a higher layer.
"""

import re
import sys
import threading
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import tilewright as tw
from sources import PACKAGE
from test_docs import DOCS, run_python
from test_layers import LAYERS

MOST = 14
NUMBERED = re.compile(r"^## (\d+)\. `([a-z_/]+\.py)`", re.MULTILINE)
INSTRUCTION, WRITER = "@llvm.fma.", "codegen/llvm/writer.py"


class Watched(NamedTuple):
    """A compile: files in the order of their first call, which file called which, who wrote the instruction."""

    order: list[str]
    calls: dict[tuple[str, str], int]
    writers: set[str]


def stations() -> list[str]:
    return [path for _, path in NUMBERED.findall((DOCS / "tour.md").read_text())]


@cache
def file_of(code: str) -> str | None:
    """A source file's path inside the package; None for every other."""
    path = Path(code)
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else None


def layer(path: str) -> int:
    return LAYERS[path.split("/", maxsplit=1)[0].removesuffix(".py")]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", "off")
        patch.chdir(tmp_path_factory.mktemp("tour"))
        run_python(DOCS / "tour.md")  # writes the layer; and what is made once in a process is made
        return watch(lambda: tw.compile("layer.onnx", target="x86-64-v4", cache=False))


def watch(compile_layer: Any) -> Watched:
    found = Watched([], {}, set())
    seen: set[str] = set()

    def on_event(frame: FrameType, event: str, value: Any) -> None:
        own = file_of(frame.f_code.co_filename) if event == "call" else None
        if own is None:
            return
        if own not in seen:
            seen.add(own)
            found.order.append(own)
        caller = frame.f_back
        while caller is not None and file_of(caller.f_code.co_filename) is None:
            caller = caller.f_back  # NumPy, or the standard library, between two of ours
        if caller is None:
            return
        edge = str(file_of(caller.f_code.co_filename)), own
        found.calls[edge] = found.calls.get(edge, 0) + 1
        if own == WRITER and edge[0] != WRITER and any(INSTRUCTION in str(x) for x in frame.f_locals.values()):
            found.writers.add(edge[0])

    before = sys.getprofile(), threading.getprofile()
    sys.setprofile(on_event)
    threading.setprofile(on_event)
    try:
        compile_layer()
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])  # type: ignore[arg-type]
    return found


def callers(calls: dict[tuple[str, str], int], path: str) -> set[str]:
    """Who calls a file, through ``core`` where that calls it."""
    direct = {a for a, b in calls if b == path and a != path}
    through, core = set(direct), [a for a in direct if a.startswith("core/")]
    while core:
        at = core.pop()
        new = {a for a, b in calls if b == at} - through
        through |= new
        core += [a for a in new if a.startswith("core/")]
    return through


def test_the_tour_is_short_and_numbered() -> None:
    numbers = [int(n) for n, _ in NUMBERED.findall((DOCS / "tour.md").read_text())]
    assert numbers == list(range(1, len(numbers) + 1)) and 2 < len(numbers) <= MOST


def test_a_compile_enters_the_files_in_their_order(watched: Watched) -> None:
    named = stations()
    assert [path for path in watched.order if path in named] == named


def test_each_file_is_called_by_one_before_it(watched: Watched) -> None:
    named = stations()
    assert [b for k, b in enumerate(named) if k and not callers(watched.calls, b) & set(named[:k])] == []


def test_no_call_goes_upward(watched: Watched) -> None:
    beside = ("core/", "runtime/")
    ours = [(a, b) for a, b in watched.calls if not a.startswith(beside) and not b.startswith("runtime/")]
    assert len(ours) > 100 and [f"{a} calls {b}" for a, b in ours if layer(b) > layer(a)] == []
    named = [path for path in stations() if not path.startswith("build/")]
    assert {layer(path) for path in named} >= {1, 2, 3, 4, 5}


def test_the_last_file_writes_the_instruction(watched: Watched) -> None:
    assert watched.writers == {stations()[-1]}


def test_a_call_upward_and_a_detour_are_seen() -> None:
    calls = {("build/a.py", "core/b.py"): 1, ("core/b.py", "core/c.py"): 1, ("core/c.py", "ops/d.py"): 1}
    assert callers(calls, "ops/d.py") == {"core/c.py", "core/b.py", "build/a.py"}
    assert callers({("build/a.py", "tile/b.py"): 1, ("tile/b.py", "ops/d.py"): 1}, "ops/d.py") == {"tile/b.py"}
    assert [layer(b) > layer(a) for a, b in pairwise(["tile/a.py", "build/b.py", "ops/c.py"])] == [True, False]
