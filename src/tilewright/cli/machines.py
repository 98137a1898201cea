"""``tilewright targets`` and ``doctor``: the machines that there are targets of, and this one.

In: a target's name or nothing. Out: tables. Not its business: the facts (``target``).
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from tilewright.cli import show
from tilewright.cli.compile_run import Json
from tilewright.codegen.cpu.peak import measure_peak
from tilewright.runtime.threads import default_threads
from tilewright.target.target import NUMBERS, Target, named_targets

CAPABILITIES = ("fma", "masks", "f16c", "bf16", "vnni")
PACKAGES = ("numpy", "llvmlite", "ml_dtypes", "onnx", "torch", "onnxruntime")


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("targets")(targets_command)
    app.command("doctor")(doctor_command)


def targets_command(
    name: Annotated[str | None, typer.Argument(help="One of them: its numbers, and where each is from.")] = None,
    json: Json = False,
) -> None:
    """List the machines that --target knows, or one's numbers."""
    if name is not None:
        _show_numbers(Target.parse(name), json)
        return
    rows = [_target_row(t) for t in (Target.host(), *named_targets())]
    if json:
        show.emit_json(rows)
        return
    show.table(f"{len(rows)} targets", list(rows[0]), [list(r.values()) for r in rows])
    show.line("Behind a name of x86-64 or AArch64 may stand another system: -windows or -macos.")


def _target_row(t: Target) -> dict[str, str]:
    able = [n for n in (*CAPABILITIES, "f64", "dotprod", "i8mm") if getattr(t, f"has_{n}")]
    return {
        "target": t.name,
        "also": "" if t.is_native else ", ".join(t.aliases),
        "triple": t.triple,
        "cpu": t.cpu,
        "vector bits": str(t.vector_bytes * 8),
        "threads": "yes" if t.has_threads else "no",
        "capabilities": " ".join(able),
    }


def _show_numbers(target: Target, json: bool) -> None:
    rows = [
        {"number": name, "value": getattr(target, name), "unit": unit, "source": target.source_of(name)}
        for name, unit in NUMBERS.items()
    ]
    if json:
        show.emit_json({**_target_row(target), "numbers": rows})
        return
    title = f"{target.name}: {target.cpu} ({target.triple})"
    show.table(title, ("number", "value", "unit", "source"), [list(r.values()) for r in rows])


def doctor_command(json: Json = False) -> None:
    """Show this machine: cores, FMA peak, bandwidth, versions."""
    target = Target.host()
    peak = measure_peak(target)
    facts = {
        "tilewright": version("tilewright"),
        "python": platform.python_version(),
        "cpu": target.cpu,
        "triple": target.triple,
        "vector": f"{target.vector_bytes * 8} bits, {target.n_vector_registers} registers",
        "capabilities": ", ".join(n for n in CAPABILITIES if getattr(target, f"has_{n}")),
        "caches": " / ".join(show.human_bytes(n) for n in (target.l1_bytes, target.l2_bytes, target.llc_bytes)),
        "cores": target.n_cores,
        "threads": default_threads(),
        "fma_gflops": round(peak.fma_gflops, 1),
        "read_gb_per_s": round(peak.read_gb_per_s, 1),
        **{name: _version(name) for name in PACKAGES},
    }
    if json:
        show.emit_json(facts)
        return
    titles = {"fma_gflops": "fma peak of a core", "read_gb_per_s": "memory reads of a core"}
    units = {"fma_gflops": "GFLOP/s", "read_gb_per_s": "GB/s"}
    rows = [(titles.get(k, k), f"{v} {units[k]}" if k in units else str(v)) for k, v in facts.items()]
    show.table("this machine", ("what", "value"), rows)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
