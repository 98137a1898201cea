"""``tilewright inspect``, ``ops`` and ``cache``: what is in a model, in the compiler, on the disk.

In: a model file or nothing. Out: tables. Not its business: compiling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tilewright import ops
from tilewright.build import texts
from tilewright.cli import show
from tilewright.cli.compile_run import Json, Model
from tilewright.core.diag import OptionError
from tilewright.core.graph import CONST, Graph
from tilewright.core.opdef import OpDef
from tilewright.frontend.onnx import table as onnx_ops
from tilewright.frontend.torch.aten import table as aten
from tilewright.runtime import artifact
from tilewright.runtime.cache import Cache
from tilewright.runtime.python.model import CompiledModel


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("inspect")(inspect_command)
    app.command("ops")(ops_command)
    app.command("cache")(cache_command)


def inspect_command(model: Model, json: Json = False) -> None:
    """Show a model's inputs, outputs, ops and weights."""
    show.check_model(model)
    facts = _artifact_facts(model) if model.suffix == ".tw" else _graph_facts(texts.read_graph(model))
    if json:
        show.emit_json(facts)
        return
    for title in ("inputs", "outputs"):
        rows = [(r["name"], show.element_type(r["dtype"]), r["shape"]) for r in facts[title]]
        show.table(title, ("name", "dtype", "shape"), rows)
    for title in ("ops", "kernels"):
        if title in facts:
            show.table(title, ("name", "count"), facts[title].items())
    show.line(f"weights: {show.human_bytes(facts['weights_bytes'])}")
    if "target" in facts:
        show.line(f"compiled for {facts['target']}")


def _graph_facts(graph: Graph) -> dict[str, Any]:
    nodes = graph.nodes()
    counts = Counter(n.op.name for n in nodes)
    return {
        "inputs": [_row(name, n.type) for name, n in zip(graph.input_names, graph.inputs, strict=True)],
        "outputs": [_row(name, n.type) for name, n in graph.results()],
        "ops": dict(counts.most_common()),
        "weights_bytes": sum(n.attrs.data.array.nbytes for n in nodes if n.op is CONST),
    }


def _row(name: str, type_: Any) -> dict[str, str]:
    """A tensor's facts, its dtype by NumPy's name as in ``model.inputs``, whatever it was read from."""
    dtype = type_.dtype if isinstance(type_.dtype, str) else type_.dtype.numpy.name
    return {"name": name, "dtype": dtype, "shape": f"[{', '.join(map(str, type_.shape))}]"}


def _artifact_facts(path: Path) -> dict[str, Any]:
    """What a compiled file says of itself; its code may be for another machine."""
    found = artifact.load(path)
    made = CompiledModel(found.manifest, found.objects, found.weights)
    report = made.report()
    kernels: Counter[str] = Counter()
    for k in report["kernels"]:
        kernels[" ".join(k["ops"])] += k["calls"]
    return {
        "inputs": [_row(s.name, s) for s in made.inputs],
        "outputs": [_row(s.name, s) for s in made.outputs],
        "kernels": dict(kernels.most_common()),
        "weights_bytes": report["memory"]["weights_bytes"],
        "target": f"{report.get('target', made.manifest.target.cpu)} ({made.manifest.target.triple})",
    }


def ops_command(
    of: Annotated[
        Literal["tilewright", "onnx", "torch"], typer.Option(help="Whose ops: the compiler's own, or a source's.")
    ] = "tilewright",
    json: Json = False,
) -> None:
    """List the ops and how each is lowered, or a source's coverage."""
    rows = _own_ops() if of == "tilewright" else _onnx_ops() if of == "onnx" else _torch_ops()
    if json:
        show.emit_json(rows)
    else:
        show.table(f"{len(rows)} ops", list(rows[0]), [list(r.values()) for r in rows])


def _own_ops() -> list[dict[str, str]]:
    return [
        {
            "op": op.name,
            "operands": ", ".join(op.operands),
            "attributes": ", ".join(op.attrs),
            "lowering": _lowering(op),
        }
        for op in ops.ALL
    ]


def _onnx_ops() -> list[dict[str, str]]:
    """Every op that ONNX defines, those of other domains that have a converter, and what becomes of them."""
    try:
        import onnx
    except ImportError as error:
        raise OptionError("a list of ONNX's ops needs its package", remedy='pip install "tilewright[onnx]"') from error
    latest = {s.name: s for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    keys = {*(("", name) for name in latest), *onnx_ops.CONVERTERS, *onnx_ops.REFUSED}
    return [{"domain": d or "ai.onnx", "op": name, "how": _onnx_way(d, name, latest)} for d, name in sorted(keys)]


def _onnx_way(domain: str, name: str, schemas: Mapping[str, Any]) -> str:
    if (domain, name) in onnx_ops.CONVERTERS:
        return "converted"
    if (domain, name) in onnx_ops.REFUSED:
        return f"refused: {onnx_ops.REFUSED[domain, name][0]}"
    schema = schemas.get(name)
    is_defined = schema is not None and (schema.has_function or schema.has_context_dependent_function)
    return "by its definition" if is_defined else "refused: no op expresses it yet"


def _torch_ops() -> list[dict[str, str]]:
    """ATen overloads that have a converter; PyTorch takes others apart into these."""
    return [{"op": name, "family": family} for family, table in aten.FAMILIES.items() for name in sorted(table)]


def _lowering(op: OpDef) -> str:
    ways = {"compute": op.compute, "decompose": op.decompose, "kernel": op.kernel}
    return next((name for name, way in ways.items() if way is not None), "built in")


def cache_command(
    action: Annotated[Literal["list", "clear"], typer.Argument(help="What to do.")] = "list", json: Json = False
) -> None:
    """Show or empty the disk cache."""
    cache = Cache()
    if action == "clear":
        n = cache.clear()
        if json:
            show.emit_json({"removed": n})
        else:
            show.line(f"removed {n} entries")
        return
    rows = [{"kind": e.kind, "digest": e.digest[:16], "n_bytes": e.n_bytes} for e in cache.entries()]
    if json:
        enabled = {"enabled": cache.enabled, "problem": cache.problem}
        show.emit_json({**enabled, "folder": cache.directory, "entries": rows})
        return
    if cache.problem:
        show.line(f"the cache is off: {cache.problem}")
        return
    total = show.human_bytes(sum(e.n_bytes for e in cache.entries()))
    title = f"{len(rows)} entries, {total}, in {cache.directory}"
    show.table(title, ("kind", "digest", "bytes"), [list(r.values()) for r in rows])
