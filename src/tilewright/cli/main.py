"""The command line: ``tilewright COMMAND``.

In: arguments. Out: tables (or JSON with ``--json``) on standard output, problems on standard error, and an exit code:
0 done, 1 the model, file or input is at fault, 2 wrong usage, 3 a difference that ``compare`` found, 130 interrupted.
Not its business: the work itself (``driver``, ``runtime``).
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from tilewright.cli import about, aot, bench, compile_run, conformance, debug, ir, sign, tune
from tilewright.runtime.errors import TilewrightError

app = typer.Typer(
    name="tilewright",
    help="Compile trained models to native code, run and inspect them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
compile_run.register(app)
aot.register(app)
bench.register(app)
tune.register(app)
ir.register(app)
about.register(app)
sign.register(app)
conformance.register(app)
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


def main() -> None:
    """Run the command line; a Tilewright error, or a file that can't be used, becomes a message and exit code 1."""
    try:
        app(prog_name="tilewright")
    except TilewrightError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(1)
    except OSError as e:
        print(f"error: {e.strerror or e}{f': {e.filename}' if e.filename else ''}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
