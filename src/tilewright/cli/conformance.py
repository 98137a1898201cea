"""``tilewright conformance``: suites written by others, run through native code.

In: the name of a suite and which of its cases. Out: a table, a JSON file with ``--output``, and exit code 1 when a case
gave a wrong answer, crashed, hung or failed without a reason. Not its business: the suites (``conformance``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.cli import show
from tilewright.cli.compile_run import Json
from tilewright.core.diag import OptionError
from tilewright.runtime.files import check_writable, write_text
from tilewright.target.gpu import Gpu, is_gpu
from tilewright.target.target import Target
from tilewright.tools.conformance import coverage, workers
from tilewright.tools.conformance.outcome import Outcome, by_group, by_tag, counts, read_json, table, write_json

PAGE = Path("docs/coverage.md")
SAVE_SECONDS = 60.0  # a run of hours that is stopped goes on with --resume


class SuiteEntry(NamedTuple):
    """A suite's module, the packages it needs, the extra that brings them, and what it is."""

    module: str
    packages: tuple[str, ...]
    extra: str
    help: str


SUITES = {
    "onnx": SuiteEntry("tilewright.tools.conformance.onnx", ("onnx",), "onnx", "The onnx package's own backend tests."),
    "torch": SuiteEntry("tilewright.tools.conformance.torch", ("torch",), "torch", "PyTorch's operator database."),
    "torch-all": SuiteEntry(
        "tilewright.tools.conformance.torch_all", ("torch",), "torch", "PyTorch's operator database, every sample."
    ),
    "hf": SuiteEntry(
        "tilewright.tools.conformance.hf",
        ("torch", "transformers"),
        "dev",
        "Hugging Face architectures, small and random.",
    ),
}


def register(app: typer.Typer) -> None:
    """Add ``conformance`` with a sub-command for each suite that this build has."""
    group = typer.Typer(help="Run test suites written by others through native code.", no_args_is_help=True)
    for name, known in SUITES.items():
        if find_spec(known.module) is not None:
            group.command(name, help=known.help)(_command(known))
    group.command("page")(page_command)
    app.add_typer(group, name="conformance")


def page_command(
    outcomes: Annotated[Path, typer.Argument(help="A file that --output wrote.", show_default=False)],
    page: Annotated[Path, typer.Option(help="The page to write; its data lie in a folder beside it.")] = PAGE,
    note: Annotated[
        str, typer.Option(help="What a reader should know of the run: its commit, its date, its limits.")
    ] = "",
) -> None:
    """Keep a suite's run as data, and write the coverage page from all that are kept."""
    facts, found = read_json(outcomes)
    check_writable(page)
    made = coverage.record(facts, found, note)
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / f"{made['suite']}.json", json_text(made))
    write_text(page, coverage.page(kept_records(folder)))


def kept_records(folder: Path) -> list[coverage.Record]:
    """The records of all suites, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def json_text(made: coverage.Record) -> str:
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _command(known: SuiteEntry) -> Callable[..., None]:
    def command(
        only: Annotated[str, typer.Option(metavar="PATTERN", help="Cases whose name or group it finds.")] = "",
        jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Worker processes.")] = 1,
        seconds: Annotated[float, typer.Option(min=1.0, help="Time limit of one case.")] = 120.0,
        output: Annotated[Path | None, typer.Option(help="Write all outcomes to this JSON file.")] = None,
        resume: Annotated[bool, typer.Option(help="Run only what --output's file lacks.")] = False,
        target: Annotated[
            str, typer.Option(help="The CPU or GPU to make code for, which is to run it: one of `tilewright targets`.")
        ] = workers.NATIVE,
        verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List every case that did not pass.")] = False,
        as_json: Json = False,
    ) -> None:
        missing = [p for p in known.packages if find_spec(p) is None]
        if missing:
            raise OptionError(
                f"this suite needs {', '.join(missing)}", remedy=f"pip install 'tilewright[{known.extra}]'"
            )
        if output is not None:
            check_writable(output)
        elif resume:
            raise OptionError("--resume needs the file to go on with", remedy="name it by --output")
        suite = workers.load_suite(known.module)
        if target != workers.NATIVE and not workers.takes_targets(suite):
            raise OptionError(f"this suite runs on this CPU alone, not on {target}", remedy="leave --target away")
        machine = _checked_target(target)
        cases = workers.select(suite.cases(), only)
        facts = {**_facts(known, machine), "only": only, "cases": len(suite.cases())}
        # Outcomes of a run that was stopped; a case that is gone from the suite is left out.
        found = _outcomes_so_far(output, machine) if resume and output is not None and output.exists() else {}

        def save(outcomes: list[Outcome]) -> None:
            if output is not None:
                write_json(output, suite.NAME, outcomes, facts)

        outcomes = _run(known.module, suite.NAME, cases, (jobs, seconds, target), found, save, quiet=as_json)
        save(outcomes)
        if as_json:
            show.emit_json({"facts": facts, "counts": counts(outcomes), "outcomes": [vars(o) for o in outcomes]})
        else:
            _print(suite.NAME, outcomes, verbose)
        if any(o.is_bad for o in outcomes):
            raise typer.Exit(1)

    return command


def _run(
    module: str,
    name: str,
    cases: list[workers.Case],
    how: tuple[int, float, str],
    found: dict[str, Outcome],
    save: Callable[[list[Outcome]], None],
    *,
    quiet: bool,
) -> list[Outcome]:
    """All outcomes in the suite's own order, with a progress bar; ``found`` are known, ``save`` gets those so far.

    ``how`` is the number of workers, the seconds of a case, and the target.
    """
    jobs, seconds, target = how
    err = show.console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    todo = [c for c in cases if c.name not in found]
    saved = time.monotonic()
    with Progress(*columns, console=err, transient=True, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(name, total=len(cases), completed=len(cases) - len(todo))
        for outcome in workers.run_cases(module, todo, jobs=jobs, seconds=seconds, target=target):
            found[outcome.name] = outcome
            if time.monotonic() > saved + SAVE_SECONDS:
                save([found[c.name] for c in cases if c.name in found])
                saved = time.monotonic()
            bar.update(task, advance=1, description=f"{name}: {outcome.name}"[:60])
    return [found[c.name] for c in cases]


def _outcomes_so_far(path: Path, machine: str) -> dict[str, Outcome]:
    """Outcomes of a run that was stopped, by name; ``OptionError`` for those of another machine than this run's."""
    facts, outcomes = read_json(path)
    if (other := facts.get("cpu")) != machine:
        remedy = "name another file by --output, leave --resume away, or go on with that run's --target"
        raise OptionError(f"{path} has outcomes of {other}, and this run is for {machine}", remedy=remedy)
    return {o.name: o for o in outcomes}


def _checked_target(name: str) -> str:
    """What kind of machine runs the cases; ``UnknownTargetError`` for a name that there is none of."""
    return Gpu.parse(name).arch if is_gpu(name) else Target.parse(name).cpu


def _facts(known: SuiteEntry, machine: str) -> dict[str, Any]:
    """Versions and the machine's kind: what a result depends on."""
    packages = ("tilewright", "numpy", "llvmlite", "ml_dtypes", *known.packages)
    return {"versions": {p: _version(p) for p in packages}, "cpu": machine}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _print(name: str, outcomes: list[Outcome], verbose: bool) -> None:
    show.table(f"{name}, by group", *table(by_group(outcomes)))
    if verbose:
        for o in outcomes:
            if o.status != "passed":
                show.line(f"{o.status:8} {o.name}: {' '.join(o.detail.split())[:400]}")
        show.line("")
    groups = {"all": outcomes, **by_tag(outcomes)}
    show.table(f"{name}, {sum(o.seconds for o in outcomes):.0f} s of work", *table(groups))
