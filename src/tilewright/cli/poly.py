"""``tilewright poly``: the loops of a function of plain Python: what needs what, and an order that keeps it.

In: a Python file, sizes. Out: statements, dependences and orders as text or JSON; C files; a comparison with Python.
Not its business: reading programs (``language.program``), what is found (``tools.loop_report``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import inputs, show
from tilewright.cli.compile_run import Json, Seed, Target
from tilewright.core.diag import OptionError
from tilewright.runtime.errors import InputError
from tilewright.runtime.files import check_writable

if TYPE_CHECKING:
    import ast

    from tilewright.tools.loop_report import DependenceFacts, LoopReport


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command("poly")(poly_command)


def poly_command(
    file: Annotated[Path, typer.Argument(help="A Python file with functions of loops over arrays.")],
    function: Annotated[str | None, typer.Argument(help="The function (default: the file's only one).")] = None,
    size: Annotated[
        list[str],
        typer.Option("--size", metavar="NAME=NUMBER", help="A parameter or a size of arrays. May be repeated."),
    ] = [],  # noqa: B006
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the function in C, by the order that was chosen.")
    ] = None,
    run: Annotated[
        bool,
        typer.Option("--run", help="Import the file, and compare what the function does with what is compiled of it."),
    ] = False,
    seed: Seed = 0,
    target: Target = "native",
    json: Json = False,
) -> None:
    """Show what loops need of each other, and a better order.

    The function is plain Python: range loops around assignments to elements of arrays. Its text is read and, without
    --run, never executed. For each statement there is the set of its iterations, for each dependence the first two
    iterations that show it, for each nest the step that puts it in order. It needs the extra poly.
    """
    # The language loads what exports models, which no other command that compiles needs.
    from tilewright.build import convert
    from tilewright.language.program import read_program
    from tilewright.tools.loop_report import loop_report
    from tilewright.tools.loop_run import beside_python, program_graph

    if output is not None and check_writable(output).suffix != ".c":
        raise OptionError(f"{output} is no C file", remedy="end its name in .c")
    chosen = _chosen(file, function)
    sizes = inputs.parse_sizes(size, "--size")
    program = read_program(chosen, file, sizes)
    if unknown := sizes.keys() - program.names:
        remedy = f"its are: {', '.join(sorted(program.names)) or 'none'}"
        raise OptionError(f"{chosen.name} has no size {min(unknown)}", remedy=remedy)
    report = loop_report(program, target)
    facts = asdict(report)
    if not json:
        _print(report)
    if output is not None:
        if program.free:
            raise OptionError(
                f"the size {program.free[0]} is no array's, so that the C code can't know it",
                remedy=f"give it: --size {program.free[0]}=NUMBER",
            )
        facts["output"] = str(convert.convert(program_graph(program), output, to="c", target=target))
        if not json:
            show.line(f"wrote {output}")
    if run:
        # Sizes that nobody gives are as large as those that somebody does: an array may have to be a square.
        others = max([inputs.DEFAULT_SIZE, *sizes.values()])
        known = dict.fromkeys(program.names - program.constants.keys(), others) | sizes
        facts["run"] = beside_python(read_program(chosen, file, known), file, seed)
    if json:
        show.emit_json(facts)
    elif run:
        _print_run(facts["run"])
    if run and not facts["run"]["equal"]:
        raise typer.Exit(3)


def _chosen(file: Path, name: str | None) -> ast.FunctionDef:
    """The function of this name, or the only one of the file."""
    from tilewright.language.program import functions_in

    show.check_model(file, "a Python file")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise InputError(f"{file} is no text: {e}", remedy="give a Python file") from e
    functions = functions_in(text, file)
    if name is None and len(functions) == 1:
        (name,) = functions
    if name not in functions:
        what = f"no function {name}" if name else f"{len(functions)} functions"
        raise OptionError(f"{file} has {what}", remedy=f"name one of: {', '.join(functions) or 'none is there'}")
    return functions[name]


def _print(report: LoopReport) -> None:
    show.line("statements")
    for s in report.statements:
        show.line(f"  {s.name}  line {s.line}: {s.text}\n      {s.domain}")
    show.line("\ndependences")
    for d in report.dependences:
        free = ", in any order" if d.commutes else ""
        sizes = _point(d.sizes)
        show.line(f"  {d.kind:6} on {d.array}: {_pair(d)}{f'  with {sizes}' if sizes else ''}{free}")
    if not report.dependences:
        show.line("  none")
    for nest in report.nests:
        show.line(f"\nthe nest of {nest.loop}, line {nest.line}")
        show.line(f"  {nest.step or nest.why_not}\n")
        show.line("\n".join(f"  {x}" for x in nest.loops.splitlines()))


def _pair(d: DependenceFacts) -> str:
    return f"{d.source}({_point(d.before)}) -> {d.target}({_point(d.after)})"


def _point(values: Mapping[str, int]) -> str:
    return ", ".join(f"{k}={v}" for k, v in values.items())


def _print_run(facts: Mapping[str, Any]) -> None:
    times = f"{facts['seconds'] * 1e3:.4g} ms, Python {facts['python_seconds'] * 1e3:.4g} ms"
    show.line(f"\n{times}; the largest difference is {facts['largest_difference']:.1e} of the largest number")
