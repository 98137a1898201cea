"""Functions of JAX, imported and taken through all passes, whose graphs NumPy evaluates in quick runs.

In: a file of tests that compares ``tilewright.jax.jit`` with JAX, and takes in ``computed_by_numpy``. Out: the same
tests; runs with the slow ones compile what they call. Not its business: native code of what the graphs hold, which is
asked about with the ops and the code generator, and by the files of tests that don't take this in.
"""

from types import SimpleNamespace

import pytest

from tilewright.build.options import Options
from tilewright.build.texts import optimise
from tilewright.core.evaluate import evaluate_graph
from tilewright.integrations.jax import jit


@pytest.fixture(autouse=True)
def computed_by_numpy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of tests that imports this has it around each of them."""
    if "not slow" in request.config.getoption("-m"):
        monkeypatch.setattr(jit, "driver", SimpleNamespace(compile=evaluated))


def evaluated(graph, **_):
    """What is called as a compiled graph is."""
    left = optimise(graph, Options(), None)

    def call(*arrays):
        results = [x.copy() for x in evaluate_graph(left, arrays)]  # a model's results are the caller's
        return results if len(results) > 1 else results[0]

    return call
