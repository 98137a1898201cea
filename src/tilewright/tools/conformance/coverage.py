"""The coverage page: a section per suite, written from the outcomes of a run.

In: a file of outcomes and the page as it is. Out: the page with that suite's section replaced; other sections stay.
Not its business: running suites.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.tools.conformance.outcome import Outcome, by_group, by_tag, share_passed, table

HEAD = """# Coverage

How much of test suites written by others is right, run through native code. Every section is written by
`tilewright conformance SUITE --output FILE` and then `tilewright conformance page FILE`.
"""
MAX_DETAIL = 160
MAX_NAMES = 4


def updated_page(page: str, facts: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    """The page with the section of the outcomes' suite written anew."""
    suite = str(facts["suite"])
    sections = dict(re.findall(r"<!-- suite ([\w-]+) -->\n(.*?)<!-- end -->\n", page, re.DOTALL))
    sections[suite] = _section(suite, facts, outcomes)
    return HEAD + "".join(f"\n<!-- suite {k} -->\n{body}<!-- end -->\n" for k, body in sorted(sections.items()))


def _section(suite: str, facts: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    groups = by_group(outcomes)
    whole = [g for g, found in groups.items() if share_passed(found) == 1]
    rest = {g: found for g, found in groups.items() if g not in whole}
    versions = ", ".join(f"{name} {v}" for name, v in facts.get("versions", {}).items())
    n_cases = facts.get("cases", len(outcomes))
    part = f" {len(outcomes)} of the suite's {n_cases} cases were run." if len(outcomes) < n_cases else ""
    lines = [f"## {suite}", "", f"With {versions}.{part}", "", *_rows({"all": outcomes, **by_tag(outcomes)}, "subset")]
    lines += ["", f"All right: {', '.join(whole)}.", "", "The others:", "", *_rows(rest, "group")] if rest else []
    lines += ["", "What did not pass, by reason:", ""] if rest else ["", "Every group is all right."]
    lines += [f"- {n} {text}" for text, n in _reasons(outcomes)]
    return "\n".join(lines) + "\n"


def _rows(groups: Mapping[str, Sequence[Outcome]], title: str) -> list[str]:
    columns, rows = table(groups)
    head = [title, *columns[1:]]
    return [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *(f"| {' | '.join(map(str, r))} |" for r in rows)]


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
