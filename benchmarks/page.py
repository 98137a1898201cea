"""Latencies as figures: from the records of ``benchmarks.latency`` to ``docs/figures/*.json``, and plots of kernels.

    python -m benchmarks.page main.json bf16.json --command "python -m benchmarks.latency ..." --machine zen5 \\
        --load "no other work" --commit 1d55db0 --date 2026-11-23
    python -m benchmarks.page --kernels resnet50.json
    python -m benchmarks.figures        (writes the pages and the plots of latencies from these data)

In: JSON records of one or more runs, in the order of their commands; for rooflines, what ``tilewright bench --kernels
--json`` printed. Out: a figure per run, restriction, precision and number of threads, beside the others.
Not its business: measuring, pages and plots of figures (``benchmarks/figures.py``), drawing (``benchmarks/plots.py``).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.engines import ENGINES
from benchmarks.figures import FOLDER, RATIO, geometric_mean, write

PEERS = [name for name in ENGINES if name != "tilewright"]
RESTRICTED = """
    Our code is compiled for an AVX2 CPU (`--target haswell`), and peers are held to AVX2: PyTorch, XLA, IREE and TVM by
    their own switches, ONNX Runtime and OpenVINO, which have none for all of their code, by what `cpuid` answers them
    (`benchmarks/restricted.py`). The peak is that of AVX2 code.
"""
NOT_A_NET = "mlp_micro"
"""A net of half a microsecond: its ratio is that of a call's cost, so a second mean leaves it out."""

Record = dict[str, Any]


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


def figure(title: str, records: Sequence[Record], measured: Mapping[str, Any]) -> dict[str, Any]:
    """The figure of one table; ``measured`` says by which command, where and when."""
    engines = [e for e in PEERS if any(e in r["ratio"] for r in records)]
    names = [f"{ENGINES[e].title} / ours" for e in engines]
    columns: list[dict[str, Any]] = [{"name": "net"}, {"name": "Tilewright", "unit": "ms"}]
    columns += [{"name": name, "unit": RATIO, "digits": 2} for name in names]
    if len(engines) > 1:
        columns.append({"name": "best peer / ours", "unit": RATIO, "digits": 2, "least_of": names})
    columns.append({"name": "share of FMA peak", "digits": 2})
    rows = []
    for r in records:
        own, share = r["median_ms"].get("tilewright"), r["share_of_peak"]
        ratios = [rounded(r["ratio"].get(e), 3) for e in engines]
        rows.append([r["model"], None if own is None else float(f"{own:.4g}"), *ratios, rounded(share, 3)])
    restricted = [" ".join(RESTRICTED.split())] if records[0].get("isa") == "avx2" else []
    mean: list[list[str]] = [[], [NOT_A_NET]] if any(r["model"] == NOT_A_NET for r in records) else [[]]
    said = {"title": title, "conclude": conclusion(records), **measured}
    return {
        **said, "notes": " ".join([*restricted, *absent(records)]), "mean": mean, "plot": "ratios",
        "columns": columns, "rows": rows,
    }  # fmt: skip


def rounded(x: float | None, digits: int) -> float | None:
    return None if x is None else round(x, digits)


def conclusion(records: Sequence[Record]) -> str:
    """What the table says, from its numbers."""
    best = {r["model"]: min(found.values()) for r in records if (found := ratios_of(r))}
    ahead = [x for x in best.values() if x > 1]
    last = min(best, key=lambda net: best[net])
    mean = geometric_mean([x for net, x in best.items() if net != NOT_A_NET])
    return (
        f"Ours is the fastest on {len(ahead)} of {len(best)} nets: the fastest other engine takes {mean:.2f} times as "
        f"long in the geometric mean, and at least {best[last]:.2f} times ({last})."
    )


def absent(records: Sequence[Record]) -> list[str]:
    """Which cells are empty, and why; reasons that are the same for every net in one sentence."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for r in records:
        for engine, why in r.get("failed", {}).items():
            reasons.setdefault((engine, why), []).append(r["model"])
    sentences = []
    for (engine, why), nets in reasons.items():
        which = "" if len(nets) == len(records) else f" on {', '.join(nets)}"
        sentences.append(f"Not run: {ENGINES[engine].title}{which}, {why.replace('|', '/').rstrip('.')}.")
    return sentences


def write_figures(runs: Sequence[Sequence[Record]], measured: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """A file for each table; ``measured`` has an entry for each run."""
    of_run = {id(r): said for run, said in zip(runs, measured, strict=True) for r in run}
    for title, name, records in sections(runs):
        write(folder / f"{name}.json", figure(title, records, of_run[id(records[0])]))


def draw(rooflines: Sequence[Path], folder: Path) -> None:
    """The plots of kernels, whose records are too long to keep."""
    for path in rooflines:
        (folder / f"kernels_{path.stem}.svg").write_text(plots.roofline(json.loads(path.read_text()), path.stem))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", nargs="*", type=Path)
    parser.add_argument("--kernels", type=Path, nargs="*", default=[], help="records of `tilewright bench --kernels`")
    parser.add_argument("--command", action="append", default=[], help="what made a record, one for each")
    parser.add_argument("--machine", default="zen5", help="a name in docs/figures/machines.json")
    parser.add_argument("--load", default="no other work", help="what else the machine did")
    parser.add_argument("--commit", default="", help="of the code that was measured")
    parser.add_argument("--date", default="", help="YYYY-MM-DD")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where figures lie")
    a = parser.parse_args()
    if a.records and (len(a.command) != len(a.records) or not a.commit or not a.date):
        parser.error("records need --commit, --date and one --command each")
    where = {"machine": a.machine, "load": a.load, "commit": a.commit, "date": a.date}
    measured = [{"command": [command], **where} for command in a.command]
    write_figures([json.loads(path.read_text()) for path in a.records], measured, a.folder)
    draw(a.kernels, a.folder)


if __name__ == "__main__":
    main()
