"""The page of latencies: from the records of ``benchmarks.latency`` to Markdown tables.

    python -m benchmarks.page record.json docs/performance.md --command "python -m benchmarks.latency ..."

In: JSON records of one or more runs. Out: a page with a table per precision and number of threads, and geometric means.
Not its business: measuring.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from itertools import groupby
from math import exp, log
from pathlib import Path
from typing import Any

TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch": "PyTorch", "inductor": "TorchInductor"}


def page(records: list[dict[str, Any]], commands: list[str], machine: str) -> str:
    """The whole page."""
    intro = """Latency of one inference beside other engines on the same machine, in one run:
        each engine in a process of its own, rounds interleaved, medians. Made by `python -m benchmarks.page`;
        a machine with other work on it moves times by some per cent, so read ratios."""
    lines = ["# Performance", "", textwrap.fill(" ".join(intro.split()), 118), "", textwrap.fill(machine, 118), ""]
    lines += ["```", *commands, "```"]

    def kind(r: dict[str, Any]) -> tuple[str, int]:
        return r["precision"], r["threads"]

    for (precision, threads), group in groupby(sorted(records, key=kind), key=kind):
        lines += ["", f"## {precision}, {threads} thread{'s' if threads > 1 else ''}", "", *table(list(group))]
    return "\n".join(lines) + "\n"


def table(records: list[dict[str, Any]]) -> list[str]:
    """A row per net: our time, each engine's time divided by ours, the best of them, and our share of the FMA peak."""
    engines = [e for e in TITLES if any(e in r["ratio"] for r in records)]
    head = ["net", "Tilewright ms", *(f"{TITLES[e]} / ours" for e in engines), "best peer / ours", "share of FMA peak"]
    rows = [head, ["---"] * len(head)]
    best: dict[str, float] = {}
    for r in records:
        others = {e: r["ratio"][e] for e in engines if e in r["ratio"]}
        best[r["model"]] = min(others.values(), default=float("nan"))
        cells = [f"{others[e]:.2f}" if e in others else "fails" for e in engines]
        own = r["median_ms"].get("tilewright", float("nan"))
        rows.append([r["model"], f"{own:.4g}", *cells, f"{best[r['model']]:.2f}", f"{r['share_of_peak']:.2f}"])
    means = [geometric_mean([r["ratio"][e] for r in records if e in r["ratio"]]) for e in engines]
    rows.append(["geometric mean", "", *(f"{m:.2f}" for m in means), f"{geometric_mean(list(best.values())):.2f}", ""])
    return [f"| {' | '.join(row)} |" for row in rows]


def geometric_mean(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--command", action="append", default=[], help="what made a record; stands on the page")
    parser.add_argument("--machine", default="", help="a sentence on the machine")
    a = parser.parse_args()
    records = [r for path in a.records for r in json.loads(path.read_text())]
    a.page.write_text(page(records, a.command, a.machine))


if __name__ == "__main__":
    main()
