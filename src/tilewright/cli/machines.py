"""``tilewright targets`` and ``doctor``: the machines that there are targets of, and this one.

In: a target's name or nothing. Out: tables. Not its business: the facts (``target``).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from tilewright.cli import show
from tilewright.cli.compile_run import Json
from tilewright.codegen.cpu.calibrate import calibrate as measure_numbers
from tilewright.codegen.cpu.peak import measure_peak
from tilewright.runtime.cache import Cache
from tilewright.runtime.threads import default_threads
from tilewright.target.calibration import RATES, store_calibration, stored_calibration, with_measured
from tilewright.target.errors import CalibrationError
from tilewright.target.gpu import NUMBERS as GPU_NUMBERS
from tilewright.target.gpu import Gpu, is_gpu, named_gpus
from tilewright.target.sources import MEASURED
from tilewright.target.target import NUMBERS, Target, named_targets

CAPABILITIES = ("fma", "masks", "f16c", "bf16", "vnni", "amx_bf16", "amx_int8")
GPU_CAPABILITIES = ("async_copies", "mma", "warpgroup_mma", "mfma", "wmma")
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
    if is_gpu(name):
        _show_gpu(Gpu.parse(str(name)), json)
        return
    if name is not None:
        _show_numbers(this_machine() if name == "native" else Target.parse(name), json)
        return
    rows = [_target_row(t) for t in (Target.host(), *named_targets())]
    gpus = [_gpu_row(g) for g in named_gpus()]
    if json:
        show.emit_json([*rows, *gpus])
        return
    show.table(f"{len(rows)} targets", list(rows[0]), [list(r.values()) for r in rows])
    show.table(f"{len(gpus)} GPUs", list(gpus[0]), [list(r.values()) for r in gpus])
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


def _gpu_row(g: Gpu) -> dict[str, str]:
    able = [n for n in GPU_CAPABILITIES if getattr(g, f"has_{n}")]
    return {
        "target": g.name,
        "also": ", ".join(g.aliases),
        "triple": g.triple,
        "cpu": g.arch,
        "chip": g.chip,
        "capabilities": " ".join(able),
    }


def _show_gpu(gpu: Gpu, json: bool) -> None:
    rows = [
        {"number": name, "value": _plain(getattr(gpu, name)), "unit": unit, "source": gpu.source_of(name)}
        for name, unit in GPU_NUMBERS.items()
    ]
    _emit_numbers(_gpu_row(gpu), f"{gpu.name}: {gpu.chip} ({gpu.arch})", rows, json)


def _plain(value: float | tuple[int, ...]) -> float | str:
    return " x ".join(map(str, value)) if isinstance(value, tuple) else value


def _emit_numbers(row: dict[str, str], title: str, numbers: Sequence[Mapping[str, object]], json: bool) -> None:
    if json:
        show.emit_json({**row, "numbers": numbers})
        return
    show.table(title, ("number", "value", "unit", "source"), [list(r.values()) for r in numbers])


def _show_numbers(target: Target, json: bool) -> None:
    rows = [
        {"number": name, "value": getattr(target, name), "unit": unit, "source": target.source_of(name)}
        for name, unit in NUMBERS.items()
    ]
    _emit_numbers(_target_row(target), f"{target.name}: {target.cpu} ({target.triple})", rows, json)


def doctor_command(
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure clock, FMA, caches, memory and forks, and keep the numbers.")
    ] = False,
    json: Json = False,
) -> None:
    """Show this machine: cores, FMA peak, bandwidth, versions."""
    if calibrate:
        _calibrate(json)
        return
    target = this_machine()
    # Always measured anew: what a calibration kept may be of a quieter hour.
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
        "calibrated": target.source_of("ghz") == MEASURED,
        **{name: _version(name) for name in PACKAGES},
    }
    if json:
        show.emit_json(facts)
        return
    titles = {"fma_gflops": "fma peak of a core", "read_gb_per_s": "memory reads of a core"}
    units = {"fma_gflops": "GFLOP/s", "read_gb_per_s": "GB/s"}
    words = {True: "yes", False: "no: tilewright doctor --calibrate"}
    shown = {**facts, "calibrated": words[bool(facts["calibrated"])]}
    rows = [(titles.get(k, k), f"{v} {units[k]}" if k in units else str(v)) for k, v in shown.items()]
    show.table("this machine", ("what", "value"), rows)


def _calibrate(json: bool) -> None:
    """Measure, keep, and show what the record said beside what was measured."""
    target, cache = Target.host(), Cache()
    numbers = measure_numbers(target)
    path = None if cache.problem or cache.directory is None else store_calibration(target, cache.directory, numbers)
    rows = [
        {"number": name, "record": getattr(target, name, None), "measured": measured, "unit": RATES[name],
         "source of the record's": target.source_of(name) if name in NUMBERS else ""}
        for name, measured in numbers.items()
    ]  # fmt: skip
    if json:
        show.emit_json({"cpu": target.cpu, "file": path, "problem": cache.problem, "numbers": rows})
        return
    show.table(f"{target.cpu}, measured", list(rows[0]), [list(r.values()) for r in rows])
    show.line(f"not kept: {cache.problem}" if path is None else f"kept in {path}")


def this_machine() -> Target:
    """The host's record with what was measured of it; a file that can't be used is a warning."""
    target, cache = Target.host(), Cache()
    if cache.problem or cache.directory is None:
        return target
    try:
        return with_measured(target, stored_calibration(target, cache.directory))
    except CalibrationError as error:
        typer.echo(f"warning: {error}", err=True)
        return target


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
