"""The command line for the tests of quantising, and calibration that NumPy computes.

In: a test of what quantising decides and writes. Out: what it measures of its small net, without compiling the net for
it, which takes two thirds of such a test's time. What a module's fixtures quantise is measured by native code, as for
users, and a test that asks for ``native_calibration`` has that too. Not its business: whether native code computes what
the graph means, which these tests ask of the compiled result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from cli.conftest import cli
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Graph
from tilewright.core.types import Array
from tilewright.tools.quantize import measure

__all__ = ["cli"]


@dataclass(frozen=True)
class Evaluated:
    """What calibration asks of a compiled model."""

    graph: Graph

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        arrays = [np.asarray(inputs[x.attrs["name"]]) for x in self.graph.inputs]
        return dict(zip(self.graph.output_names, evaluate_graph(self.graph, arrays), strict=True))


@pytest.fixture
def native_calibration() -> None:
    """For a test of what calls of compiled models refuse."""


@pytest.fixture(autouse=True)
def _calibration_by_numpy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "native_calibration" not in request.fixturenames:
        monkeypatch.setattr(measure, "compile_graph", Evaluated)
