"""The coverage page and its data: what is right of each suite, and what is not by name.

In: the outcomes of a run. Out: a record of a suite, which is kept as JSON (counts of its subsets, the groups that are
all right, the others with their counts, and reasons), and the page that all kept records give.
Not its business: running suites, files (``tilewright conformance page``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.tools.conformance.outcome import STATUSES, Outcome, by_group, by_tag, counts, share_passed

HEAD = """# Coverage

How much of test suites written by others is right, run through native code. Each suite's run is kept in
`docs/coverage/SUITE.json`, also the names of all that passed; `tilewright conformance SUITE --output FILE` and then
`tilewright conformance page FILE` write that file and this page anew.
"""
MAX_DETAIL = 160
MAX_NAMES = 4

Record = dict[str, Any]


def record(facts: Mapping[str, Any], outcomes: Sequence[Outcome], note: str = "") -> Record:
    """What is kept of a run; ``facts`` are those of its file, ``note`` says what else a reader should know."""
    groups = by_group(outcomes)
    return {
        "suite": str(facts["suite"]),
        "versions": dict(facts.get("versions", {})),
        "cases": int(facts.get("cases", len(outcomes))),
        "note": note,
        "subsets": {name: _counts(found) for name, found in {"all": outcomes, **by_tag(outcomes)}.items()},
        "passed": [name for name, found in groups.items() if share_passed(found) == 1],
        "missed": {name: _counts(found) for name, found in groups.items() if share_passed(found) < 1},
        "reasons": [f"{n} {text}" for text, n in _reasons(outcomes)],
    }


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """The number of cases, and of each status that occurs."""
    return {name: n for name, n in counts(outcomes).items() if n or name in ("total", "passed")}


def page(records: Sequence[Record]) -> str:
    """The page: a table of all suites, then what did not pass of each."""
    rows = [(f"**{r['suite']}**" if k == 0 else name, found) for r in records for k, (name, found) in _subsets(r)]
    return "\n".join([HEAD, *_table("suite and its subsets", rows), *(x for r in records for x in _section(r))]) + "\n"


def _subsets(r: Record) -> list[tuple[int, tuple[str, dict[str, int]]]]:
    return list(enumerate(r["subsets"].items()))


def _section(r: Record) -> list[str]:
    versions = ", ".join(f"{name} {v}" for name, v in r["versions"].items())
    total, missed = r["subsets"]["all"]["total"], r["missed"]
    part = f" {total} of the suite's {r['cases']} cases were run." if total < r["cases"] else ""
    note = f" {r['note']}" if r["note"] else ""
    lines = ["", f"## {r['suite']}", "", f"With {versions}.{part}{note}", ""]
    if not missed:
        return [*lines, "Every group is all right."]
    lines += [f"{len(r['passed'])} groups are all right; these {len(missed)} are not:", ""]
    lines += [*_table("group", list(missed.items())), "", "What did not pass, by reason:", ""]
    return [*lines, *(f"- {reason}" for reason in r["reasons"])]


def _table(title: str, rows: Sequence[tuple[str, Mapping[str, int]]]) -> list[str]:
    """Only the statuses that occur have a column."""
    seen = [s for s in STATUSES if s == "passed" or any(found.get(s) for _, found in rows)]
    head = [title, "total", *seen, "share"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for name, found in rows:
        share = f"{100 * found['passed'] / max(found['total'], 1):.1f} %"
        lines.append(f"| {' | '.join([name, str(found['total']), *(str(found.get(s, 0)) for s in seen), share])} |")
    return lines


def _reasons(outcomes: Sequence[Outcome]) -> list[tuple[str, int]]:
    """Details that differ in numbers and names only are one; the most frequent first."""
    found: dict[str, list[Outcome]] = {}
    for o in outcomes:
        if o.status != "passed":
            found.setdefault(f"{o.status}: {_shortened(o.detail)}", []).append(o)
    rows = [(f"{reason} ({_named([o.name for o in cases])})", len(cases)) for reason, cases in found.items()]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def _named(names: Sequence[str]) -> str:
    """A few names, or one of many."""
    return ", ".join(f"`{n}`" for n in names) if len(names) <= MAX_NAMES else f"such as `{names[0]}`"


def _shortened(detail: str) -> str:
    """The first problem of an error, without its place."""
    problem = re.search(r"\n  - (.*)", detail)
    text = problem.group(1) if problem else " ".join(detail.split())
    text = re.sub(r"^(?:node|input|output|initializer) [^:]*?: ", "", text)
    return re.sub(r'"[^"]*"', '"..."', text)[:MAX_DETAIL].replace("|", "/")
