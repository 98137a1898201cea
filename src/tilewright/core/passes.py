"""Passes and pipelines: graph to graph, with options that print, parse and hash.

In: a graph and a sequence of passes. Out: the last pass's graph; what each did on the way, by a callback or a dump
folder. Not its business: which passes there are and their order (``graph.pipeline``).

A pass is a frozen dataclass. Its text is derived from its name and its options that differ from their defaults, as in
``fold-constants{max-bytes=4096}``; its options are the fields by which passes are compared. A pipeline's text is its
passes' texts, joined by commas.
"""

from __future__ import annotations

import gc
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph
from tilewright.core.rewrite import Journal
from tilewright.core.text import DumpFolder
from tilewright.core.verify import verify
from tilewright.runtime.once import in_forked_child


@dataclass(frozen=True)
class Pass(ABC):
    """A rewrite of a whole graph. Subclasses are frozen dataclasses; their fields are the options."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        """The rewritten graph: ``graph`` itself when there was nothing to do. Appends to ``journal`` what it did."""

    def __str__(self) -> str:
        return self.text()

    def text(self) -> str:
        """``name{option=value ...}``, without options at their defaults."""
        shown = []
        for f in _options(self):
            value = getattr(self, f.name)
            if value != f.default:
                shown.append(f"{f.name.replace('_', '-')}={_print_option(value)}")
        return f"{self.name}{{{' '.join(shown)}}}" if shown else self.name

    @classmethod
    def with_options(cls, options: Mapping[str, str]) -> Self:
        """The pass from its options' texts; raises :class:`OptionError`."""
        known = {f.name.replace("_", "-"): f for f in _options(cls)}
        values = {}
        for key, text in options.items():
            if key not in known:
                raise OptionError(f"pass {cls.name} has no option {key!r}; it has {sorted(known) or 'none'}")
            values[known[key].name] = _parse_option(f"{cls.name}: {key}", text, known[key].default)
        return cls(**values)


def _options(of: Pass | type[Pass]) -> list[Field[Any]]:
    """The fields that are options: those that count where passes are compared."""
    return [f for f in fields(of) if f.compare]


def _print_option(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "+".join(value) or "none"
    return str(value)


def _parse_option(what: str, text: str, default: Any) -> Any:
    """The option's value; its kind is its default's."""
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise OptionError(f"{what} must be true or false, not {text!r}")
        return text == "true"
    if isinstance(default, tuple):
        return () if text == "none" else tuple(text.split("+"))
    try:
        return type(default)(text)
    except ValueError:
        raise OptionError(f"{what} must be {type(default).__name__}, not {text!r}") from None


_PASS = re.compile(r"\s*([a-z][a-z0-9-]*)\s*(?:\{([^{}]*)\})?\s*(,|$)")


def print_pipeline(passes: Iterable[Pass]) -> str:
    return ",".join(p.text() for p in passes)


def parse_pipeline(text: str, known: Iterable[type[Pass]]) -> tuple[Pass, ...]:
    """Read a pipeline back. Raises :class:`OptionError` for its form, a name or an option."""
    classes = {cls.name: cls for cls in known}
    passes: list[Pass] = []
    at = 0
    while at < len(text):
        found = _PASS.match(text, at)
        if found is None or (found[3] == "," and found.end() == len(text)):
            rule = f"expected a pass at {text[at:]!r} in the pipeline {text!r}"
            raise OptionError(rule, remedy="write name or name{option=value ...}, with commas between passes")
        at = found.end()
        if found[1] not in classes:
            raise OptionError(f"no pass {found[1]!r}", remedy=f"there are {', '.join(sorted(classes))}")
        passes.append(classes[found[1]].with_options(_split_options(found[2] or "")))
    return tuple(passes)


def _split_options(text: str) -> dict[str, str]:
    options = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise OptionError(f"{word!r} is no option of a pass", remedy="write option=value")
        options[key] = value
    return options


@dataclass(frozen=True)
class PassReport:
    """What one pass did: its position, graphs before and after, seconds, and the rules that fired."""

    index: int
    of: Pass
    before: Graph
    after: Graph
    seconds: float
    fired: Journal

    @property
    def changed(self) -> bool:
        return self.after is not self.before


def run_pipeline(
    graph: Graph,
    passes: Sequence[Pass],
    *,
    on_pass: Callable[[PassReport], None] | None = None,
    check: bool = False,
    dump: Path | None = None,
) -> Graph:
    """Run ``passes`` in order.

    ``on_pass`` sees each pass's report; ``check`` verifies the graph before and after each; ``dump`` is a folder for
    one file per pass, ``00-input.tw.txt`` onwards, with what fired at its end.
    """
    with _collector_paused():
        return _run(graph, passes, on_pass, check, DumpFolder(dump) if dump is not None else None)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Passes make many small objects and no cycles, and one full collection beside PyTorch takes 0.8 s."""
    thread, was_enabled = threading.get_ident(), gc.isenabled()
    if was_enabled:
        _pausing.add(thread)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
            _pausing.discard(thread)


_pausing: set[int] = set()
"""Threads that will turn the collector on again."""


@in_forked_child
def _collect_again() -> None:
    """A child has no thread that could turn the collector on again after a pause of one of the parent's."""
    if _pausing:
        gc.enable()
        _pausing.clear()


def _run(
    graph: Graph,
    passes: Sequence[Pass],
    on_pass: Callable[[PassReport], None] | None,
    check: bool,
    folder: DumpFolder | None,
) -> Graph:
    if check:
        verify(graph)
    if folder:
        folder.write("00-input", graph)
    for i, p in enumerate(passes):
        journal: Journal = []
        start = time.perf_counter()
        after = p.run(graph, journal)
        report = PassReport(i, p, graph, after, time.perf_counter() - start, journal)
        if check and report.changed:
            verify(after, f"after pass {i}, {p}")
        if folder:
            folder.write(f"{i + 1:02d}-{p.name}", after, [str(f) for f in journal])
        if on_pass:
            on_pass(report)
        graph = after
    return graph


def first_bad_pass(graph: Graph, passes: Sequence[Pass], is_good: Callable[[Graph], bool]) -> int | None:
    """The index of the pass after which ``is_good`` first fails, by bisection; None when the last graph is good.

    Takes it that a graph, once bad, stays bad.
    """
    if is_good(run_pipeline(graph, passes)):
        return None
    low, high = 0, len(passes) - 1
    while low < high:
        middle = (low + high) // 2
        if is_good(run_pipeline(graph, passes[: middle + 1])):
            low = middle + 1
        else:
            high = middle
    return low
