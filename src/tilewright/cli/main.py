"""The command line: ``tilewright COMMAND``.

In: arguments. Out: tables (or JSON with ``--json``) on standard output, problems on standard error, and an exit code:
0 done, 1 the model, file or input is at fault, 2 wrong usage, 3 a difference that ``compare`` found, 130 interrupted.
Not its business: the work itself (``driver``, ``runtime``).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from tilewright.cli import (
    about,
    aot,
    bench,
    compile_run,
    conformance,
    convert,
    debug,
    explain,
    found,
    ir,
    machines,
    poly,
    prune,
    quantize,
    sign,
    tune,
)
from tilewright.core.diag import OptionError
from tilewright.runtime.errors import FileError, TilewrightError


class _Commands(typer.core.TyperGroup):
    """All commands. One that can fix sizes but draws no inputs says so where it is given ``--size``."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except typer.TyperException as e:
            asked = vars(e)
            if asked.get("option_name") == "--size" and _has_fix(asked["ctx"]):
                asked["possibilities"] = ["--fix"]
            raise


def _has_fix(ctx: Any) -> bool:
    return ctx is not None and any("--fix" in p.opts for p in ctx.command.params)


app = typer.Typer(
    name="tilewright",
    cls=_Commands,
    help="Compile trained models to native code, run and inspect them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
compile_run.register(app)
aot.register(app)
convert.register(app)
bench.register(app)
tune.register(app)
found.register(app)
quantize.register(app)
prune.register(app)
explain.register(app)
ir.register(app)
about.register(app)
machines.register(app)
sign.register(app)
conformance.register(app)
poly.register(app)
debug.register(app)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tilewright {version('tilewright')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Compile trained models to native code, run and inspect them."""


@functools.cache
def _command() -> Callable[..., object]:
    """What the functions' signatures say, which takes longer to read than many commands take to run."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line; a Tilewright error, or a file that can't be used, becomes a message and an exit code."""
    try:
        _command()(prog_name="tilewright")
    except TilewrightError as e:
        _fail(e)
    except OSError as e:
        what = f"{e.filename}: {e.strerror}" if e.filename else str(e.strerror or e)
        _fail(FileError(what, remedy="check that the path exists and may be used, and that the disk has space left"))
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(error: TilewrightError) -> NoReturn:
    """Say what is wrong; an option's value that is not offered is wrong usage."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2 if isinstance(error, OptionError) else 1)


if __name__ == "__main__":
    main()
