"""SmoothQuant: large channels of an operand become smaller, and their weights larger (Xiao et al., 2023).

In: a graph, its layers, the greatest magnitude of each channel of their operands. Out: a graph that is equal but for
rounding, whose operands have channels of more equal size. Not its business: which data those are of, quantising.

``x @ w`` is ``(x / s) @ (s w)`` for a positive factor of each channel. A few channels of a transformer's activations
are many times as large as all others in every token, and one scale for a tensor, or for a row, leaves the others few
steps. Weights have room: their scales are of columns, and their channels differ by much less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright import ops
from tilewright.core.graph import Builder, Graph, Node
from tilewright.core.types import Array
from tilewright.graph.quantize.places import Layer


def smoothable(layers: Sequence[Layer]) -> list[Layer]:
    """The layers whose channels get factors: matrix products. Convolutions lie between pools and joins of bytes."""
    return [x for x in layers if x.node.op is ops.matmul and x.weights.ndim == 2]


def smoothed(graph: Graph, layers: Sequence[Layer], peaks: Mapping[Node, Array], alpha: float) -> Graph:
    """The graph with operands of ``layers`` divided by factors, and their weights multiplied.

    ``peaks`` has the greatest magnitudes f32[K] of the channels of each operand. A factor is ``peak**alpha`` over
    ``weight**(1 - alpha)``, ``weight`` being the greatest one that the channel meets in all layers of that operand.
    """
    pool, read = graph.pool, {x.node: x for x in layers}
    of_operand: dict[Node, list[Array]] = {}
    for layer in layers:
        of_operand.setdefault(layer.node.inputs[0], []).append(np.abs(layer.weights).max(axis=1, initial=0))
    factors = {x: _factors(peaks[x], np.max(each, axis=0), alpha) for x, each in of_operand.items()}
    made: dict[Node, Node] = {}
    divided: dict[Node, Node] = {}
    for node in graph.nodes():
        inputs = [made[x] for x in node.inputs]
        if node in read:
            x = node.inputs[0]
            if x not in divided:
                divided[x] = Builder(pool, node.loc)(ops.mul, made[x], pool.const(1 / factors[x]))
            inputs = [divided[x], pool.const(read[node].weights * factors[x][:, None])]
        made[node] = pool.with_inputs(node, tuple(inputs))
    return graph.with_outputs([made[n] for n in graph.outputs])


def _factors(peaks: Array, weights: Array, alpha: float) -> Array:
    """Positive factors; 1 for channels that are always 0, or meet no weight."""
    known = (peaks > 0) & (weights > 0)
    with np.errstate(all="ignore"):
        found = np.where(known, peaks**alpha / weights ** (1 - alpha), 1)
    return np.where(np.isfinite(found) & (found > 0), found, 1).astype(np.float32)
