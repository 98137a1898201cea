"""Looking inside: each stage of a compile as text, and a stage's text as what goes on from there.

In: a graph, or the file of one, and options. Out: texts, or a folder of them. Not its business: the grammars
(``core.text``, ``tile.text``).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tilewright import ops
from tilewright.build.kernels import KernelBuilder, default_checks
from tilewright.build.options import LEVELS, Clock, Options
from tilewright.build.passes import FormPrices, graph_passes, storing_passes
from tilewright.codegen.cpu.llvm import assembly, emit_kernel
from tilewright.codegen.cpu.program import emit_program
from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph
from tilewright.core.passes import Pass, PassReport, parse_pipeline, print_pipeline, run_pipeline
from tilewright.core.specialize import fix_symbols
from tilewright.core.text import load_graph, print_graph
from tilewright.frontend.source import import_source
from tilewright.graph.pipeline import PASSES
from tilewright.partition.program import dimension_slots
from tilewright.runtime.env import read_environment
from tilewright.runtime.files import write_text
from tilewright.target.target import Target
from tilewright.tile.schedule.book import schedule_text
from tilewright.tile.text import kernel_text

COMMENT = {"llvm": ";", "asm": "#"}
"""What begins a comment, where a stage's own language has them; the others are ours, with ``//``."""
DUMPED = {
    "kernels": "kernels.txt", "schedule": "schedules.txt", "tile": "tile.txt", "llvm": "kernels.ll",
    "asm": "kernels.s", "entry": "entry.ll",
}  # fmt: skip  # fmt: skip


def read_graph(path: Path, *, fix_dims: Mapping[str, int] | None = None) -> Graph:
    """The graph of an ONNX model, an exported program (``.pt2``) or a graph's text (``.txt``), before any pass."""
    if path.suffix == ".txt":
        return fix_symbols(load_graph(path, ops.by_name), fix_dims or {})
    return import_source(path, fix_dims=fix_dims)


def chosen_passes(options: Options, passes: str | None) -> tuple[Pass, ...]:
    """The level's passes, or those that the text ``passes`` spells."""
    if passes is not None:
        return FormPrices.on(options.machine).given_to(parse_pipeline(passes, PASSES))
    return (*storing_passes(options), *graph_passes(options, options.machine))


def optimise(
    graph: Graph, options: Options, passes: str | None, *, after: str = "", show: Callable[[str], None] = print
) -> Graph:
    """Run the level's pipeline, or the one that ``passes`` spells; ``show`` gets the text after the pass ``after``."""
    chosen = chosen_passes(options, passes)
    if after and after != "all" and after not in {p.name for p in chosen}:
        raise OptionError(f"no pass {after!r} in this pipeline", remedy=f"it runs {print_pipeline(chosen)}")

    def on_pass(report: PassReport) -> None:
        if after in ("all", report.of.name):
            show(f"# after {report.of}\n{print_graph(report.after)}")

    return run_pipeline(graph, chosen, on_pass=on_pass, check=True)


class PlannedKernels:
    """The kernels of an optimised graph, planned and scheduled once for the texts of all stages."""

    def __init__(self, graph: Graph, options: Options) -> None:
        self.graph, self.target = graph, options.machine
        self.made = KernelBuilder(
            self.target,
            Clock(),
            options.schedule,
            default_checks(),
            priced=options.priced,
            gpu=options.gpu,
            emulates=options.emulate,
        )
        self.program, _ = self.made.plan(graph, graph_passes(options, self.target), options)
        self.made.check_book()
        self.on_gpu = None if options.emulate else self.made.on_gpu

    def texts(self, stage: str, only: str) -> Iterator[str]:
        """Of each kernel at ``kernels``, ``schedule``, ``tile``, ``llvm`` or ``asm``; or the entry's, at ``entry``."""
        made, on_gpu = self.made, self.on_gpu
        if stage == "entry":
            yield self._entry()
            return
        texts = {spec.name: text for text, spec in made.specs.items()}
        for name, kernel in made.kernels.items():
            if only not in name and only not in made.labels[name]:
                continue
            if stage != "schedule":
                # PTX has the comments of C, and not those of the host's assembler; AMD's assembler takes both.
                comment = "//" if on_gpu is not None and stage == "asm" else COMMENT.get(stage, "//")
                yield f"{comment} {name}: {made.labels[name]}"
            match stage:
                case "kernels":
                    yield texts[name]
                case "tile":
                    yield kernel_text(kernel)
                case "schedule":
                    yield schedule_text(name, made.schedules[name], made.labels[name])
                case "llvm":
                    yield emit_kernel(kernel, self.target) if on_gpu is None else on_gpu.llvm_text(kernel)
                case "asm":
                    yield assembly(kernel, self.target) if on_gpu is None else on_gpu.assembly(kernel)

    def _entry(self) -> str:
        if self.on_gpu is not None:
            remedy = "see --stage asm for the kernels' assembly"
            raise OptionError("a program for a GPU has no entry: the runtime goes through its steps", remedy=remedy)
        made, shapes = self.made, [n.shape for _, n in self.graph.results()]
        slots = dimension_slots([(self.graph, self.program)])
        # Code first: from it is known what the entry passes to a kernel, and how much scratch there is.
        made.texts()
        return emit_program(self.program, slots, shapes, self.target, made.parameter_counts(), made.most_scratch())


def kernel_texts(graph: Graph, options: Options, stage: str, only: str) -> Iterator[str]:
    """The text of each kernel of an optimised graph at a stage (:class:`PlannedKernels`)."""
    return PlannedKernels(graph, options).texts(stage, only)


def schedules(graph: Graph, options: Options) -> str:
    """The file of schedules (``docs/schedules.md``) by which the kernels of a graph, before any pass, are made."""
    done = optimise(graph, options, None)
    return "\n".join(text.rstrip("\n") for text in kernel_texts(done, options, "schedule", "")) + "\n"


def dump_stages(graph: Graph, options: Options, folder: Path, passes: str | None = None) -> None:
    """Write a numbered graph per pass, with what fired at its end, and a file for each stage of the kernels.

    ``passes`` spells a pipeline other than the level's.
    """
    done = run_pipeline(graph, chosen_passes(options, passes), check=True, dump=folder)
    kernels = PlannedKernels(done, options)
    for stage, name in DUMPED.items():
        if stage == "entry" and options.alone_on_gpu is not None:
            continue
        texts = [text.rstrip("\n") for text in kernels.texts(stage, "")]
        write_text(folder / name, "\n".join(texts) + "\n")


def dump_if_asked(graph: Graph, options: Options) -> None:
    """``TILEWRIGHT_DUMP``: every compile that the cache does not answer gets a numbered folder there."""
    root = read_environment().dump
    if root is None:
        return
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", graph.name)[:80]
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{len(os.listdir(root)):03d}-{name}-", dir=root))
        dump_stages(graph, options, folder)
    except OSError as error:
        remedy = "make the folder writable, or unset the variable"
        raise OptionError(f"TILEWRIGHT_DUMP={root!r} can't be written: {error.strerror}", remedy=remedy) from error


def pass_table() -> list[dict[str, str]]:
    """Every pass with the optimisation levels that use it and the first line of its docstring."""
    numbers = [k for k in LEVELS if isinstance(k, int)]
    levels = {k: {p.name for p in graph_passes(Options(optimize=k), Target.host())} for k in numbers}
    return [
        {
            "name": cls.name,
            "levels": " ".join(str(k) for k, names in levels.items() if cls.name in names),
            "what": (cls.__doc__ or "").strip().splitlines()[0],
        }
        for cls in PASSES
    ]
