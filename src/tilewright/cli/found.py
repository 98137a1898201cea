"""``tilewright found``: the database of schedules that searches have found: show it, carry it elsewhere, forget of it.

In: a database, by default the one that ``compile`` reads. Out: rows, or the database changed.
Not its business: searching (``tune``), what the rows mean (``build.found_schedules``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.build.found_schedules import FoundSchedules, cached_schedules, machine_key
from tilewright.cli import show
from tilewright.cli.compile_run import Json
from tilewright.runtime.cache import Cache
from tilewright.runtime.errors import InputError
from tilewright.runtime.files import check_writable, reading, write_text
from tilewright.runtime.threads import default_threads
from tilewright.target.target import Target

Store = Annotated[Path | None, typer.Option(help="The database (default: the one that compile reads).")]
KERNEL = "Kernels by their names in files of schedules."


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    group = typer.Typer(no_args_is_help=True, help="List, carry elsewhere or forget schedules that were found.")
    for name, command in (
        ("list", list_command), ("merge", merge_command), ("export", export_command), ("import", import_command),
        ("forget", forget_command),
    ):  # fmt: skip
        group.command(name)(command)
    app.add_typer(group, name="found")


def _store(path: Path | None) -> FoundSchedules:
    found = FoundSchedules(path) if path else cached_schedules(Cache())
    if found is None:
        raise InputError("the cache folder can't be used", remedy="name a database with --store")
    return found


def list_command(store: Store = None, json: Json = False) -> None:
    """Show every schedule that was found.

    Those for this machine, version and number of threads are used here.
    """
    here = machine_key(Target.parse("native"), default_threads())
    database = _store(store)
    rows = [
        {"kernel": x.kernel, "before": x.before, "after": x.after, "here": machine == here}
        for machine, x in database.all()
    ]
    if json:
        show.emit_json({"store": database.path, "found": rows})
        return
    shown = [(r["kernel"], r["before"], r["after"], "yes" if r["here"] else "no") for r in rows]
    if shown:
        show.table("schedules that were found", ("kernel", "s before", "s now", "used here"), shown)
    show.line(f"{len(rows)} schedules in {database.path}")


def merge_command(
    other: Annotated[Path, typer.Argument(help="Another database.", show_default=False)], store: Store = None
) -> None:
    """Take over what another database has.

    Of two schedules of a kernel the one that gained more stays.
    """
    database = _store(store)
    database.merge(other)
    show.line(f"{len(database.all())} schedules in {database.path}")


def export_command(
    file: Annotated[Path, typer.Argument(help="The text file to write.", show_default=False)], store: Store = None
) -> None:
    """Write all schedules as text.

    It is for another machine of the same kind, or for version control.
    """
    path, database = check_writable(file), _store(store)
    write_text(path, database.exported())
    show.line(f"wrote {len(database.all())} schedules to {path}")


def import_command(
    file: Annotated[Path, typer.Argument(help="What export wrote.", show_default=False)], store: Store = None
) -> None:
    """Take over the schedules of a text file.

    Of two schedules of a kernel the one that gained more stays.
    """
    with reading(file, "name a file that tilewright found export wrote"):
        text = file.read_text(encoding="utf-8")
    database = _store(store)
    database.take(text)
    show.line(f"{len(database.all())} schedules in {database.path}")


def forget_command(
    kernels: Annotated[list[str] | None, typer.Argument(help=KERNEL, show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all", help="Forget every kernel.")] = False,
    store: Store = None,
) -> None:
    """Forget what was measured and found of kernels.

    It is forgotten for all machines, and compile takes the rules' schedules again.
    """
    if bool(kernels) == every:
        raise InputError("it is not said which kernels to forget", remedy="name kernels, or give --all")
    n = _store(store).forget(kernels or None)
    show.line(f"forgot {n} schedules")
