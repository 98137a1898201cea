"""The graph level's reference interpreter: the meaning that every pass and back end is tested against.

In: a graph and inputs, by name or in order. Out: NumPy arrays, one per output. Not its business: speed; how nodes are
run stands in ``core.evaluate``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Graph
from tilewright.core.types import Array
from tilewright.runtime.errors import InputError


def run(graph: Graph, inputs: Mapping[str, Array] | Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of ``graph``. Raises ``InputError`` when ``inputs`` do not fit."""
    if isinstance(inputs, Mapping):
        names = graph.input_names
        if inputs.keys() != set(names):
            raise InputError(f"{graph.name} takes the inputs {', '.join(names)}, not {', '.join(inputs)}")
        inputs = [inputs[n] for n in names]
    return evaluate_graph(graph, [np.asarray(x) for x in inputs])
