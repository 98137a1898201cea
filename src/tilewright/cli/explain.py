"""``tilewright explain``: what a kernel could have been, what each form would cost, and what bounds the one it is.

In: a model with fixed sizes. Out: a table of kernels, or of one kernel's candidates.
Not its business: what a price is (``choose.cost.price``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from tilewright.build import texts
from tilewright.build.options import Options, read_schedule
from tilewright.choose.cost.price import RESOURCES, Price
from tilewright.cli import inputs, show
from tilewright.cli.compile_run import (
    Accuracy,
    Fix,
    Json,
    Optimize,
    PrecisionOption,
    ScheduleFile,
    Size,
    Source,
    Target,
    Threads,
)
from tilewright.cli.machines import this_machine
from tilewright.core.diag import OptionError
from tilewright.graph.bits import ComputedType
from tilewright.runtime.errors import InputError
from tilewright.tools.explain import Explanation, explain, explain_types


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command("explain")(explain_command)


def explain_command(
    model: Source,
    kernel: Annotated[str, typer.Option(metavar="TEXT", help="All candidates of kernels that contain this.")] = "",
    size: Size = [],  # noqa: B006
    fix: Fix = [],  # noqa: B006
    target: Target = "native",
    threads: Threads = None,
    optimize: Optimize = 2,
    precision: PrecisionOption = "fp32",
    accuracy: Accuracy = "default",
    schedule: ScheduleFile = None,
    json: Json = False,
) -> None:
    """Say why each kernel has its schedule, and each op its type.

    Prices are estimates, from what a schedule asks of the machine: `bench --kernels` has measured times beside them.
    """
    show.check_model(model)
    if model.suffix == ".tw":
        raise InputError(f"{model} is compiled already", remedy="give the model that it was made of")
    sizes = inputs.parse_sizes(size, "--size") | inputs.parse_sizes(fix, "--fix")
    options = Options(target, precision, optimize, accuracy, read_schedule(schedule))
    machine = this_machine() if target == "native" else None
    graph = texts.read_graph(model, fix_dims=sizes)
    found = explain(graph, options, threads=threads, machine=machine)
    chosen = [e for e in found if kernel in e.name or kernel in e.ops]
    if kernel and not chosen:
        raise OptionError(f"no kernel's name or ops contain {kernel!r}", remedy="see all of them without --kernel")
    if json:
        show.emit_json([asdict(e) for e in chosen])
    elif kernel:
        for e in chosen:
            _candidates(e)
    else:
        _kernels(model.name, chosen)
        _types(explain_types(graph, options))


def _types(found: Mapping[ComputedType, Sequence[str]]) -> None:
    rows = [(len(at), t.op, t.type, t.why, at[0] if t.why else "") for t, at in found.items()]
    rows.sort(key=lambda row: (not row[3], -row[0]))
    columns = ("ops", "op", "multiplies or reads", "why it has no fewer bits", "the first")
    show.table("types", columns, rows)


def _kernels(name: str, found: Sequence[Explanation]) -> None:
    whole = sum(e.chosen.seconds * e.calls for e in found)
    rows = []
    for e in found:
        best = min(e.alternatives, key=lambda a: a.price.seconds)
        other = "" if best.is_chosen else f"{best.made}: {best.price.seconds / e.chosen.seconds:.2f} of its price"
        price = e.chosen.seconds * e.calls
        rows.append((price / whole, price * 1e6, e.calls, e.chosen.bound, len(e.alternatives), other, e.name, e.ops))
    columns = ("share", "price, us", "calls", "bound by", "candidates", "a lower price", "kernel", "ops")
    show.table(f"{name}: {whole * 1e3:.4g} ms by price", columns, rows)


def _candidates(e: Explanation) -> None:
    used = [r for r in RESOURCES if any(a.price.by_resource[r] for a in e.alternatives)]
    rows = [
        ("chosen" if a.is_chosen else "", a.made, a.price.seconds * 1e6, *_microseconds(a.price, used), a.price.bound)
        for a in e.alternatives
    ]
    show.table(f"{e.name}: {e.ops}, us a call", ("", "candidate", "price", *used, "bound by"), rows)


def _microseconds(price: Price, resources: Sequence[str]) -> list[float]:
    return [round(price.by_resource[r] * 1e6, 3) for r in resources]
