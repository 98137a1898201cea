"""The command line for the tests of quantising."""

from cli.conftest import cli

__all__ = ["cli"]
