"""What a comparison found: a row for each layer, and where the first wrong one went wrong.

In: differences. Out: records, and their JSON. Not its business: printing (``cli.debug``), finding (the other modules).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from tilewright.core.diag import UNKNOWN, Loc
from tilewright.tools.debug.tolerance import Difference

Stage = Literal[
    "import", "pass", "op", "partition", "fusion", "normalize", "schedule", "math", "codegen", "threads", "weights",
    "memory", "entry", "compile", "crash",
]  # fmt: skip
MEANING: dict[Stage, str] = {
    "import": "the frontend gave an op another meaning than its source has",
    "pass": "a graph pass changed the meaning",
    "op": "an op's own stages differ from its reference",
    "partition": "the graph was split into kernels and steps wrongly",
    "fusion": "ops that are right one by one are wrong as one kernel",
    "normalize": "the computation was rewritten wrongly before it became loops",
    "schedule": "a schedule step changed what the loops compute",
    "math": "the polynomial of a function is wrong",
    "codegen": "the machine code does not do what the loops say",
    "threads": "the result depends on the number of threads",
    "weights": "a kernel got other constants than the model's",
    "memory": "a value was overwritten, or read from another place, before its last use",
    "entry": "each kernel is right, and the function that calls them is not",
    "compile": "a stage of the compiler raised an error",
    "crash": "the process died",
}


@dataclass(frozen=True)
class Row:
    """One layer: the ops (or the value) compared, the user's line, and how far the two sides are apart."""

    name: str
    loc: Loc
    difference: Difference

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return {"name": self.name, **_place(self.loc), **self.difference.as_json()}


@dataclass(frozen=True)
class Fault:
    """The first wrong layer and what made it so.

    ``stage`` is the part of the compiler, ``name`` the pass, schedule step, op or function there; ``rule`` the pass's
    rule where it has rules; ``op`` and ``loc`` say which op of the model it hit. ``kernel`` is the kernel's symbol.
    """

    stage: Stage
    name: str
    op: str = ""
    loc: Loc = UNKNOWN
    difference: Difference = field(default_factory=Difference)
    rule: str = ""
    kernel: str = ""
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "stage": self.stage, "name": self.name, "rule": self.rule, "op": self.op, **_place(self.loc),
            "kernel": self.kernel, "detail": self.detail, "difference": self.difference.as_json(),
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """The end of a comparison: ``fault`` is None when everything agrees.

    ``values`` are the source's own, imported and by the peer; ``passes`` the graph passes with the difference of the
    outputs after those that were looked at; ``layers`` the kernels in running order; ``outputs`` those of a whole
    native run. ``amplified`` are those of ``values`` that are right on the peer's own operands and not on ours, which
    differ from them by rounding: there the model itself makes much of little (a search, a sort, a steep function).
    """

    model: str
    against: str
    values: tuple[Row, ...] = ()
    layers: tuple[Row, ...] = ()
    passes: tuple[tuple[str, Difference | None], ...] = ()
    outputs: tuple[Row, ...] = ()
    fault: Fault | None = None
    amplified: tuple[Row, ...] = ()

    @property
    def agrees(self) -> bool:
        """Is every difference within its tolerance?"""
        return self.fault is None

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> Comparison:
        """What :meth:`as_json` gave."""
        fault = found["fault"]
        rows = {k: tuple(_row(r) for r in found[k]) for k in ("values", "layers", "outputs", "amplified")}
        passes = tuple((p["pass"], p["difference"] and _difference(p["difference"])) for p in found["passes"])
        return Comparison(
            found["model"], found["against"], passes=passes, fault=None if fault is None else _fault(fault), **rows
        )

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "model": self.model,
            "against": self.against,
            "agrees": self.agrees,
            "fault": None if self.fault is None else self.fault.as_json(),
            "values": [r.as_json() for r in self.values],
            "layers": [r.as_json() for r in self.layers],
            "passes": [{"pass": n, "difference": None if d is None else d.as_json()} for n, d in self.passes],
            "outputs": [r.as_json() for r in self.outputs],
            "amplified": [r.as_json() for r in self.amplified],
        }


def _row(found: Mapping[str, Any]) -> Row:
    return Row(found["name"], _loc(found), _difference(found))


def _fault(found: Mapping[str, Any]) -> Fault:
    texts = {k: found[k] for k in ("stage", "name", "op", "rule", "kernel", "detail")}
    return Fault(**texts, loc=_loc(found), difference=_difference(found["difference"]))


def _difference(found: Mapping[str, Any]) -> Difference:
    values = {f.name: found[f.name] for f in fields(Difference)}
    return Difference(**{**values, "index": tuple(values["index"])})


def _loc(found: Mapping[str, Any]) -> Loc:
    return Loc(found["loc"], found["file"], found["line"])


def _place(loc: Loc) -> dict[str, Any]:
    return {"loc": loc.text, "file": loc.file, "line": loc.line}
