"""What became of a suite's cases: one record each, counts, a table, and a JSON file that reads back.

In: outcomes. Out: rows, counts and files. Not its business: running cases (``workers``) and what a case is (the
suites' own modules).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from tilewright.runtime.errors import InputError
from tilewright.runtime.files import write_text

Status = Literal["passed", "wrong", "refused", "failed", "crashed", "timeout", "skipped"]
STATUSES: tuple[Status, ...] = get_args(Status)
BAD: frozenset[Status] = frozenset({"wrong", "failed", "crashed", "timeout"})
"""What must not happen: everything but a right answer, a reasoned refusal and a case that has no answer."""


@dataclass(frozen=True)
class Outcome:
    """One case's end.

    ``passed``: every result right. ``wrong``: a result differs. ``refused``: a typed error said why before anything
    ran. ``failed``: any other exception. ``crashed``: the process died. ``timeout``: it ran past its limit.
    ``skipped``: the suite itself gives nothing to check. ``group`` is the row of the table (an op, a model), ``detail``
    what differs or why not, ``seconds`` the time of compiling and running, ``tags`` the subsets that it counts in.
    """

    suite: str
    name: str
    group: str
    status: Status
    detail: str = ""
    seconds: float = 0.0
    tags: tuple[str, ...] = ()

    @property
    def is_bad(self) -> bool:
        return self.status in BAD


def counts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """The number of outcomes of each status, and ``total``."""
    found = Counter(o.status for o in outcomes)
    return {"total": found.total(), **{s: found[s] for s in STATUSES}}


def share_passed(outcomes: Sequence[Outcome]) -> float:
    """Passed cases per case; what gives nothing to check has not passed. 1 of none."""
    return sum(o.status == "passed" for o in outcomes) / len(outcomes) if outcomes else 1.0


def by_group(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes of each group, groups in alphabetical order whatever their case."""
    groups: dict[str, list[Outcome]] = {}
    for o in outcomes:
        groups.setdefault(o.group, []).append(o)
    return dict(sorted(groups.items(), key=lambda item: (item[0].lower(), item[0])))


def by_tag(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes of each subset, in order of first sight."""
    tags: dict[str, list[Outcome]] = {}
    for o in outcomes:
        for tag in o.tags:
            tags.setdefault(tag, []).append(o)
    return tags


def table(groups: Mapping[str, Sequence[Outcome]]) -> tuple[list[str], list[list[object]]]:
    """Column names and a row for each group; only the statuses that occur have a column."""
    seen = Counter(o.status for outcomes in groups.values() for o in outcomes)
    columns = [s for s in STATUSES if s == "passed" or seen[s]]
    rows: list[list[object]] = []
    for group, outcomes in groups.items():
        found = Counter(o.status for o in outcomes)
        rows.append([group, len(outcomes), *(found[s] for s in columns), f"{100 * share_passed(outcomes):.1f} %"])
    return ["group", "total", *columns, "share"], rows


def write_json(path: Path, suite: str, outcomes: Sequence[Outcome], facts: Mapping[str, Any]) -> None:
    """Write all outcomes with their counts; ``facts`` says of what and on what they were measured."""
    tags = {tag: {**counts(found), "share": share_passed(found)} for tag, found in by_tag(outcomes).items()}
    document = {
        "suite": suite,
        "facts": dict(facts),
        "counts": counts(outcomes),
        "share": share_passed(outcomes),
        "subsets": tags,
        "outcomes": [asdict(o) for o in outcomes],
    }
    write_text(path, json.dumps(document, indent=1) + "\n")


def read_json(path: Path) -> tuple[dict[str, Any], list[Outcome]]:
    """The facts and outcomes of a written file; ``InputError`` for any other file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        names = {f.name for f in fields(Outcome)}
        records = [{k: v for k, v in o.items() if k in names} for o in document["outcomes"]]
        found = [Outcome(**{**o, "tags": tuple(o.get("tags", ()))}) for o in records]
        if not {o.status for o in found} <= set(STATUSES):
            raise ValueError("an outcome has an unknown status")
        return {"suite": document["suite"], **document["facts"]}, found
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise InputError(f"{path} holds no outcomes: {e}", remedy="write it with tilewright conformance") from e
