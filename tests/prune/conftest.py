"""The command line for the tests of pruning."""

from cli.conftest import cli

__all__ = ["cli"]
