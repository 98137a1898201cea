"""Plots as SVG, written by hand: ratios to peers with shares of peak, and rooflines of kernels.

In: numbers. Out: the text of an SVG file, light on any background. Not its business: what is measured (``page``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10
from typing import Any

COLOURS = ("#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e", "#a6761d", "#377eb8")
STYLE = "text{font:11px sans-serif;fill:#333} .axis{stroke:#bbb} .one{stroke:#333} .bar{fill:#8fb3d9}"
ROW, LABELS, WIDE, GAP, NARROW, TOP = 16, 150, 380, 40, 200, 46

Row = tuple[str, Mapping[str, float], float | None]


def svg(width: float, height: float, parts: Sequence[str]) -> str:
    """The file around the parts."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}">'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", background, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "axis") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def dot(x: float, y: float, radius: float, colour: str, title: str) -> str:
    shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity="0.75">'
    return f"{shape}<title>{escape(title)}</title></circle>"


def ratios(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """A row per net: a dot per peer at its time divided by ours (right of the line at 1: we are faster), and a bar for
    our share of the FMA peak."""
    peers = [e for e in titles if any(e in found for _, found, _ in rows)]
    colours = dict(zip(peers, COLOURS, strict=False))
    most = max([4.0, *(x for _, found, _ in rows for x in found.values())])
    least = min([0.8, *(x for _, found, _ in rows for x in found.values())])
    height, x0, x1 = TOP + ROW * len(rows), LABELS, LABELS + WIDE + GAP

    def across(ratio: float) -> float:
        return x0 + WIDE * (log10(ratio / least) / log10(most / least))

    parts = []
    for tick in (0.5, 0.8, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000):
        if least <= tick <= most and (most < 12 or tick in (1, 2, 5, 10, 20, 50, 100, 1000)):
            parts.append(line(across(tick), TOP - 6, across(tick), height, "one" if tick == 1 else "axis"))
            parts.append(text(across(tick), TOP - 10, f"{tick:g}", "middle"))
    top_share = max([1.0, *(s for _, _, s in rows if s)])
    for tick in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0):
        if tick <= top_share:
            x = x1 + NARROW * tick / top_share
            parts += [
                line(x, TOP - 6, x, height, "one" if tick == 1 else "axis"),
                text(x, TOP - 10, f"{tick:g}", "middle"),
            ]
    x = float(x0)
    for e in peers:
        parts += [dot(x, 12, 4, colours[e], titles[e]), text(x + 8, 16, f"{titles[e]} / ours")]
        x += 32 + 6.2 * len(titles[e]) + 30
    parts.append(text(max(x, x1), 16, "share of FMA peak"))
    for k, (name, found, share) in enumerate(rows):
        y = TOP + ROW * (k + 0.5)
        parts.append(text(LABELS - 8, y + 4, name, "end"))
        parts += [dot(across(found[e]), y, 4, colours[e], f"{titles[e]}: {found[e]:.2f}") for e in peers if e in found]
        if share:
            bar = NARROW * share / top_share
            parts.append(f'<rect x="{x1}" y="{y - 5:.1f}" width="{bar:.1f}" height="10" class="bar"/>')
    return svg(max(x1 + NARROW + 20, x + 130), height + 10, parts)


def roofline(found: Mapping[str, Any], title: str) -> str:
    """Operations per byte against GFLOP/s, both logarithmic; ``found`` is what ``tilewright bench --kernels`` found."""
    threads = found.get("threads", 1)
    peak = found["fma_gflops"] * threads
    roofs = {"memory": found["memory_gb_per_s"], "caches": found["cache_gb_per_s"] * threads}
    kernels = [k for k in found["kernels"] if k["flops"] and k["n_bytes"] and k["seconds"] > 0]
    points = [(k["flops"] / k["n_bytes"], k["flops"] / k["seconds"] / 1e9, k) for k in kernels]
    width, height, left, bottom = 640, 380, 60, 340
    low_x, high_x = 0.05, max([400.0, *(x * 1.3 for x, _, _ in points)])
    low_y, high_y = max(min([peak / 30, *(y * 0.8 for _, y, _ in points)]), 0.1), peak * 2

    def at(x: float, y: float) -> tuple[float, float]:
        across = (log10(max(x, low_x)) - log10(low_x)) / (log10(high_x) - log10(low_x))
        up = (log10(min(max(y, low_y), high_y)) - log10(low_y)) / (log10(high_y) - log10(low_y))
        return left + across * (width - left - 20), bottom - up * (bottom - 30)

    parts = [text(left, 18, f"{title}: GFLOP/s over operations per byte"), line(*at(low_x, low_y), *at(high_x, low_y))]
    for power in range(floor(log10(low_x)) + 1, floor(log10(high_x)) + 1):
        parts.append(text(at(10.0**power, low_y)[0], bottom + 16, f"{10.0**power:g}", "middle"))
    for power in range(floor(log10(low_y)) + 1, floor(log10(high_y)) + 1):
        parts.append(text(left - 6, at(low_x, 10.0**power)[1] + 4, f"{10.0**power:g}", "end"))
    parts += [line(*at(peak / max(roofs.values()), peak), *at(high_x, peak), "one")]
    parts.append(text(width - 20, at(high_x, peak)[1] - 5, f"FMA peak {peak:.0f} GFLOP/s", "end"))
    for name, rate in roofs.items():
        start = max(low_x, low_y / rate)
        parts.append(line(*at(start, start * rate), *at(peak / rate, peak), "one"))
        x, y = at(start, start * rate)
        parts.append(text(x + 16, y - 3, f"{name} {rate:.0f} GB/s"))
    total = sum(k["seconds"] for k in found["kernels"])
    for x, y, k in points:
        radius = 3 + 30 * (k["seconds"] / total) ** 0.5
        parts.append(dot(*at(x, y), radius, COLOURS[6], f"{' '.join(k['ops'])}: {y:.0f} GFLOP/s"))
    return svg(width, height, parts)
