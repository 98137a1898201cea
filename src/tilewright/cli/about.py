"""``tilewright inspect``, ``ops``, ``cache`` and ``doctor``: what is in a model, in the compiler, on this machine.

In: a model file or nothing. Out: tables. Not its business: compiling.
"""

from __future__ import annotations

import platform
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright import driver, ops
from tilewright.cli import show
from tilewright.cli.compile_run import Json
from tilewright.codegen.peak import measure_peak
from tilewright.codegen.target import Target
from tilewright.core.diag import OptionError
from tilewright.core.graph import CONST, Graph
from tilewright.core.opdef import OpDef
from tilewright.runtime.cache import Cache
from tilewright.runtime.model import load
from tilewright.runtime.threads import default_threads

CAPABILITIES = ("fma", "masks", "f16c", "bf16", "vnni")
PACKAGES = ("numpy", "llvmlite", "ml_dtypes", "onnx", "torch", "onnxruntime")


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("inspect")(inspect_command)
    app.command("ops")(ops_command)
    app.command("cache")(cache_command)
    app.command("doctor")(doctor_command)


def inspect_command(
    model: Annotated[Path, typer.Argument(help="An .onnx, .tw or graph text file.")], json: Json = False
) -> None:
    """Show a model's inputs, outputs, ops and weights."""
    facts = _artifact_facts(model) if model.suffix == ".tw" else _graph_facts(driver.read_graph(model))
    if json:
        show.emit_json(facts)
        return
    for title in ("inputs", "outputs"):
        show.table(title, ("name", "dtype", "shape"), [list(r.values()) for r in facts[title]])
    for title in ("ops", "kernels"):
        if title in facts:
            show.table(title, ("name", "count"), facts[title].items())
    show.OUT.print(f"weights: {show.human_bytes(facts['weights_bytes'])}", highlight=False)


def _graph_facts(graph: Graph) -> dict[str, Any]:
    nodes = graph.nodes()
    counts = Counter(n.op.name for n in nodes)
    return {
        "inputs": [_row(name, n.type) for name, n in zip(graph.input_names, graph.inputs, strict=True)],
        "outputs": [_row(name, n.type) for name, n in zip(graph.output_names, graph.outputs, strict=True)],
        "ops": dict(counts.most_common()),
        "weights_bytes": sum(n.attrs.data.array.nbytes for n in nodes if n.op is CONST),
    }


def _row(name: str, type_: Any) -> dict[str, str]:
    return {"name": name, "dtype": str(type_.dtype), "shape": f"[{', '.join(map(str, type_.shape))}]"}


def _artifact_facts(path: Path) -> dict[str, Any]:
    made = load(path)
    report = made.report()
    return {
        "inputs": [_row(s.name, s) for s in made.inputs],
        "outputs": [_row(s.name, s) for s in made.outputs],
        "kernels": {" ".join(k["ops"]): k["calls"] for k in report["kernels"]},
        "weights_bytes": report["memory"]["weights_bytes"],
    }


def ops_command(json: Json = False) -> None:
    """List every op of the compiler: operands, attributes, and how it is lowered."""
    rows = [
        {
            "op": op.name,
            "operands": ", ".join(op.operands),
            "attributes": ", ".join(op.attrs),
            "lowering": _lowering(op),
        }
        for op in ops.ALL
    ]
    if json:
        show.emit_json(rows)
    else:
        show.table(f"{len(rows)} ops", ("op", "operands", "attributes", "lowering"), [list(r.values()) for r in rows])


def _lowering(op: OpDef) -> str:
    ways = {"compute": op.compute, "decompose": op.decompose, "kernel": op.kernel}
    return next((name for name, way in ways.items() if way is not None), "built in")


def cache_command(
    action: Annotated[str, typer.Argument(help="list or clear")] = "list", json: Json = False
) -> None:
    """Show or empty the disk cache."""
    cache = Cache()
    if action == "clear":
        show.OUT.print(f"removed {cache.clear()} entries", highlight=False)
        return
    if action != "list":
        raise OptionError(f"no cache action {action!r}", remedy="use list or clear")
    rows = [{"kind": e.kind, "digest": e.digest[:16], "n_bytes": e.n_bytes} for e in cache.entries()]
    if json:
        show.emit_json({"enabled": cache.enabled, "problem": cache.problem, "entries": rows})
    else:
        if cache.problem:
            show.OUT.print(f"the cache is off: {cache.problem}")
        show.table(f"{len(rows)} entries", ("kind", "digest", "bytes"), [list(r.values()) for r in rows])


def doctor_command(json: Json = False) -> None:
    """Show the target, CPU features, threads, measured FMA peak and bandwidth, and versions."""
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
        "threads": default_threads(),
        **{k: v for k, v in vars_of(peak).items()},
        **{name: _version(name) for name in PACKAGES},
    }
    if json:
        show.emit_json(facts)
    else:
        show.table("this machine", ("what", "value"), facts.items())


def vars_of(record: Any) -> dict[str, str]:
    """The fields of a measurement, rounded."""
    return {k.replace("_", " "): f"{getattr(record, k):.1f}" for k in record.__dataclass_fields__}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
