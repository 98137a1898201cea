"""The compile report: JSON values that print as a page a person can read.

In: what the compiler wrote into the manifest. Out: ``Report``, a dict. Not its business: gathering the facts.
"""

from __future__ import annotations

from typing import Any


class Report(dict[str, Any]):
    """``report["kernels"]`` and so on for programs; ``str(report)`` for people."""

    def __str__(self) -> str:
        if "kernels" not in self:
            return dict.__repr__(self)
        lines = [
            *self._head(),
            "",
            *self._kernels(),
            *self._searches(),
            "",
            *self._types(),
            *self._memory(),
            *self._exact(),
            "",
            *self._time(),
        ]
        return "\n".join(lines)

    def _head(self) -> list[str]:
        options = ", ".join(f"{k}={v}" for k, v in self["options"].items())
        return [
            f"{self['model']} for {self['target']} ({options})",
            f"{self['n_ops']} ops -> {self['n_kernel_calls']} kernel calls of {self['n_kernels']} kernels",
        ]

    def _searches(self) -> list[str]:
        """What searches found, used or not."""
        lines = []
        if found := self.get("found_schedules"):
            lines.append(f"  {len(found)} of them by schedules that a search found")
        if n := self.get("found_elsewhere"):
            lines.append(f"  {n} of them have such schedules for another machine, version or threads: not used")
        if problem := self.get("searches_problem"):
            lines.append(f"  what searches found is not used: {problem}")
        if at := self.get("anytime"):
            lines.append(f"  the search that goes on meanwhile: {at['state']}")
        return lines

    def _kernels(self) -> list[str]:
        lines = ["kernels (calls, bytes of code, fused ops, what is multiplied)"]
        for k in sorted(self["kernels"], key=lambda k: -int(k["calls"])):
            products = f"  [{' x '.join(k['products'])}]" if k["products"] else ""
            lines.append(f"  {k['calls']:>4} {k['object_bytes']:>7}  {' '.join(k['ops'])}{products}")
            lines += [f"{'':>15}note: {note}" for note in k["notes"]]
        return lines

    def _types(self) -> list[str]:
        """What each op computes in; for those that are not in bytes, why, and where the first one is."""
        rows = self.get("types") or []
        if not rows:  # of a compiler that did not say so
            return []
        lines = ["types (ops, op, what it multiplies or reads, why it has no fewer bits)"]
        for row in sorted(rows, key=lambda r: (not r["why"], -int(r["ops"]))):
            why = f"  {row['why']}; the first: {row['locations'][0]}" if row["why"] else ""
            lines.append(f"  {row['ops']:>4} {row['op']:<24} {row['type']}{why}")
        return [*lines, ""]

    def _memory(self) -> list[str]:
        m = self["memory"]
        arena, bound = m["arena_bytes"], m["lower_bound_bytes"]
        over = f" ({arena / bound:.3f} of the least possible, {bound})" if bound and isinstance(arena, int) else ""
        lines = ["memory (bytes)", f"  activations {arena}{over}", f"  weights     {m['weights_bytes']}"]
        fixed, each = m.get("scratch_bytes", 0), m.get("scratch_bytes_per_thread", 0)
        return [*lines, f"  scratch     {fixed}, and {each} for each thread"] if fixed or each else lines

    def _exact(self) -> list[str]:
        """The sizes that have code of their own."""
        rows = self.get("exact_sizes") or []
        lines = ["", "code for exact sizes (kernel calls, activations in bytes)"] if rows else []
        for row in rows:
            sizes = ", ".join(f"{name}={size}" for name, size in row["sizes"].items())
            lines.append(f"  {sum(row['calls'].values()):>4} {row['arena_bytes']:>10}  {sizes}")
        return lines

    def _time(self) -> list[str]:
        seconds = self["seconds"]
        rows = [f"  {name:<12} {value:8.3f}" for name, value in seconds.items()]
        source = ", from the cache" if self["from_cache"] else ""
        return [f"compile time (seconds, {sum(seconds.values()):.3f} in all{source})", *rows]
