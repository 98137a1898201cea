"""The page of latencies: from the records of ``benchmarks.latency`` to Markdown tables and plots.

    python -m benchmarks.page record.json docs/performance.md --command "python -m benchmarks.latency ..."
    python -m benchmarks.page a.json b.json docs/performance.md --kernels resnet50.json

In: JSON records of one or more runs; for rooflines, what ``tilewright bench --kernels --json`` printed. Out: a page
with a table and a plot per run, restriction, precision and number of threads, and geometric means; the plots lie
beside it, in ``figures/``.
Not its business: measuring, drawing (``benchmarks/plots.py``).
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from itertools import groupby
from math import exp, log, nan
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.engines import ENGINES

PEERS = [name for name in ENGINES if name != "tilewright"]
INTRO = """
    Latency of one inference beside other engines on the same machine, in one run: each engine in a process of its own,
    rounds interleaved, medians. Made by `python -m benchmarks.page`; a machine with other work on it moves times by
    some per cent, so read ratios. The share of peak counts FLOPs as PyTorch's counter does: those of the direct form of
    a convolution, nothing for an LSTM.
"""
RESTRICTED = """
    Our code is compiled for an AVX2 CPU (`--target haswell`), and peers are held to AVX2: PyTorch, XLA, IREE and TVM by
    their own switches, ONNX Runtime and OpenVINO, which have none for all of their code, by what `cpuid` answers them
    (`benchmarks/restricted.py`). The peak is that of AVX2 code here.
"""
ROOFLINES = """
    Every kernel of a net, `tilewright bench MODEL --kernels --json`: operations by the bytes that it must move at least
    against its rate. The lines are the FMA peak and the bandwidths of memory and caches measured in that run; a dot's
    area is its share of the time. Winograd's products count the operations that they do, not those of the direct form.
"""

Record = dict[str, Any]


def page(runs: Sequence[Sequence[Record]], commands: Sequence[str], machine: str, rooflines: Sequence[Path]) -> str:
    """The whole page; its plots by :func:`draw`."""
    lines = ["# Performance", "", filled(INTRO), "", filled(machine), "", "```", *commands, "```"]
    for title, name, records in sections(runs):
        lines += ["", f"## {title}", ""]
        if records[0].get("isa") == "avx2":
            lines += [filled(RESTRICTED), ""]
        lines += [*table(records), "", f"![{title}: ratios and shares of peak](figures/{name}.svg)"]
        lines += absent(records)
    if rooflines:
        lines += ["", "## Kernels", "", filled(ROOFLINES)]
        lines += [f"\n![{path.stem}: kernels](figures/kernels_{path.stem}.svg)" for path in rooflines]
    return "\n".join(lines) + "\n"


def filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118)


def sections(runs: Sequence[Sequence[Record]]) -> list[tuple[str, str, list[Record]]]:
    """Title, file name of the plot and records of each table: one per run, restriction, precision and threads."""

    def kind(r: Record) -> tuple[str, str, int]:
        return r.get("isa", "native"), r["precision"], r["threads"]

    found: dict[str, tuple[str, str, list[Record]]] = {}
    for run in runs:
        for (isa, precision, threads), group in groupby(sorted(run, key=kind), key=kind):
            parts = [precision, f"{threads} thread{'s' if threads > 1 else ''}", *(["AVX2"] if isa == "avx2" else [])]
            records = list(group)
            title = ", ".join(parts)
            if title in found:
                title += ", further peers"
            name = title.replace(",", "").replace(" ", "_").lower()
            found[title] = title, name, [*found.get(title, ("", "", []))[2], *records]
    return list(found.values())


def ratios_of(r: Record) -> dict[str, float]:
    """Each peer's time divided by ours."""
    return {e: r["ratio"][e] for e in PEERS if e in r["ratio"]}


def table(records: Sequence[Record]) -> list[str]:
    """A row per net: our time, each engine's time divided by ours, the best of them, and our share of the FMA peak."""
    engines = [e for e in PEERS if any(e in r["ratio"] for r in records)]
    titles = [ENGINES[e].title for e in engines]
    head = ["net", "Tilewright ms", *(f"{t} / ours" for t in titles), "best peer / ours", "share of FMA peak"]
    rows = [head, ["---"] * len(head)]
    best: dict[str, float] = {}
    for r in records:
        others = ratios_of(r)
        if others:
            best[r["model"]] = min(others.values())
        cells = [f"{others[e]:.2f}" if e in others else "n/a" for e in engines]
        own = r["median_ms"].get("tilewright", nan)
        share = r["share_of_peak"]
        ours = [f"{best[r['model']]:.2f}" if others else "n/a", "n/a" if share is None else f"{share:.2f}"]
        rows.append([r["model"], f"{own:.4g}", *cells, *ours])
    means = [geometric_mean([r["ratio"][e] for r in records if e in r["ratio"]]) for e in engines]
    rows.append(["geometric mean", "", *(f"{m:.2f}" for m in means), f"{geometric_mean(list(best.values())):.2f}", ""])
    return [f"| {' | '.join(row)} |" for row in rows]


def absent(records: Sequence[Record]) -> list[str]:
    """What is n/a, and why; reasons that are the same for every net in one line."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for r in records:
        for engine, why in r.get("failed", {}).items():
            reasons.setdefault((engine, why), []).append(r["model"])
    lines = []
    for (engine, why), nets in reasons.items():
        which = "" if len(nets) == len(records) else f" on {', '.join(nets)}"
        lines.append(f"- {ENGINES[engine].title}{which}: {why.replace('|', '/')}")
    return ["", "n/a:", "", *lines] if lines else []


def draw(runs: Sequence[Sequence[Record]], rooflines: Sequence[Path], folder: Path) -> None:
    """Write every plot of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    titles = {e: ENGINES[e].title for e in PEERS}
    for _, name, records in sections(runs):
        rows = [(r["model"], ratios_of(r), r["share_of_peak"]) for r in records]
        (folder / f"{name}.svg").write_text(plots.ratios(rows, titles))
    for path in rooflines:
        (folder / f"kernels_{path.stem}.svg").write_text(plots.roofline(json.loads(path.read_text()), path.stem))


def geometric_mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--kernels", type=Path, nargs="*", default=[], help="records of `tilewright bench --kernels`")
    parser.add_argument("--command", action="append", default=[], help="what made a record; stands on the page")
    parser.add_argument("--machine", default="", help="a sentence on the machine")
    a = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in a.records]
    a.page.write_text(page(runs, a.command, a.machine, a.kernels))
    draw(runs, a.kernels, a.page.parent / "figures")


if __name__ == "__main__":
    main()
