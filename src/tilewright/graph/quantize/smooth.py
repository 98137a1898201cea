"""SmoothQuant: large channels of an operand become smaller, and their weights larger (Xiao et al., 2023).

In: a graph, its layers, what the channels of their operands held. Out: factors, and a graph that is equal but for
rounding, whose operands have channels of more equal size. Not its business: which data those are of, quantising.

``x @ w`` is ``(x / s) @ (s w)`` for a positive factor of each channel. A few channels of a transformer's activations
are many times as large as all others in every token, and one scale for a tensor, or for a row, leaves the others few
steps. Weights have room: their scales are of columns, and their channels differ by much less.

How much of a channel's size its factor takes is chosen by the error that is to be expected of the result (``Rounded``).
Channels that are still larger than all others are read in parts (``parts``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core.graph import Builder, Graph, Node
from tilewright.core.types import Array
from tilewright.graph.facts import array_of
from tilewright.graph.forms.affine import along
from tilewright.graph.quantize.parts import SplitChannels, most_worth
from tilewright.graph.quantize.places import Layer
from tilewright.graph.quantize.rounded import Channels, Rounded

EXPONENTS = np.linspace(0, 1, 21)
"""Powers of channels' sizes that are tried as their factors; with 1 all channels get one size."""


def smoothable(layers: Sequence[Layer]) -> list[Layer]:
    """The layers whose channels get factors: matrix products. Convolutions lie between pools and joins of bytes.

    What a scan multiplies is what it makes, with one size for all units.
    """
    return [x for x in layers if x.is_matrix and not x.is_scan]


def columns_of(
    layers: Sequence[Layer],
    seen: Mapping[Node, Channels],
    rounded: Rounded,
    alpha: float | None,
    may_split: bool = False,
) -> dict[Node, SplitChannels]:
    """What products read of the channels of each operand of ``layers``, where that is not the channels as they are.

    A factor is ``peak**alpha`` over ``weight**(1 - alpha)``, ``weight`` being the greatest one that the channel meets
    in all layers of that operand. Without an ``alpha``, each operand gets the one with the least expected error, or no
    factors where that is least. With ``may_split`` channels are read in as many parts as they are worth. Nothing is
    known of the channels of an operand that held one number everywhere.
    """
    of_operand: dict[Node, list[Array]] = {}
    for layer in layers:
        of_operand.setdefault(layer.node.inputs[0], []).append(layer.weights.astype(np.float64))
    found: dict[Node, SplitChannels] = {}
    for x, weights in of_operand.items():
        if seen[x].low.min(initial=np.inf) >= seen[x].high.max(initial=-np.inf):
            continue
        largest = np.max([np.abs(w).max(axis=1, initial=0) for w in weights], axis=0)
        exponents = EXPONENTS if alpha is None else [alpha]
        tried = [_factors(seen[x].peak, largest, float(exponent)) for exponent in exponents]
        if alpha is None:
            tried.append(np.ones(len(largest), np.float32))
        best = most_worth(tried, seen[x], weights, rounded, may_split)
        if best.changes:
            found[x] = best
    return found


class Smoothed(NamedTuple):
    """A graph, and the shares of a row's step by which calls move the columns of operands before they round them."""

    graph: Graph
    shifts: Mapping[Node, Array]


def smoothed(
    graph: Graph, layers: Sequence[Layer], columns: Mapping[Node, SplitChannels], of_rows: bool = False
) -> Smoothed:
    """The graph with operands of ``layers`` divided as ``columns`` say, and their weights multiplied.

    Where nothing else reads an operand whose channels are whole, constants that made them are divided, a norm's gain
    for instance. Columns of channels in parts are moved, by the graph or, where scales are ``of_rows``, by calls.
    """
    pool, read = graph.pool, {x.node: x for x in layers if x.node.inputs[0] in columns}
    divisible = _read_by(graph, read)
    made: dict[Node, Node] = {}
    divided: dict[Node, Node] = {}
    shifts: dict[Node, Array] = {}
    for node in graph.nodes():
        inputs = [made[x] for x in node.inputs]
        if node in read:
            x = node.inputs[0]
            if x not in divided:
                b = Builder(pool, node.loc)
                whole = x in divisible and not columns[x].n_added
                over = _over(b, x, made, columns[x].factors) if whole else None
                divided[x] = over if over is not None else columns[x].taken_from(b, made[x])
                if not of_rows:
                    divided[x] = columns[x].moved(b, divided[x])
                elif columns[x].n_added:
                    shifts[divided[x]] = columns[x].shifts
            inputs = [divided[x], pool.const(columns[x].weights(read[node].weights))]
        made[node] = pool.with_inputs(node, tuple(inputs))
    return Smoothed(graph.with_outputs([made[n] for n in graph.outputs]), shifts)


def _read_by(graph: Graph, layers: Collection[Node]) -> set[Node]:
    """Left operands of ``layers`` that nothing else reads."""
    others = {x for node in graph.nodes() for k, x in enumerate(node.inputs) if node not in layers or k > 0}
    return {node.inputs[0] for node in layers} - others - set(graph.outputs)


def _over(b: Builder, x: Node, made: Mapping[Node, Node], factors: Array) -> Node | None:
    """``x`` over the factors of its channels without a further op, by other constants in what makes it; or None."""
    b, last, operands = b.at(x.loc), x.type.rank - 1, x.inputs
    if x.op in (ops.layer_norm, ops.rms_norm) and x.attrs["axis"] == last:
        constants = [array_of(c) for c in operands[1:]] or [np.ones(1, np.float32)]
    elif x.op is ops.mul and operands[0].type == x.type and along(operands[1], x.type.rank, last) is not None:
        constants = [array_of(operands[1])]
    else:
        return None
    if any(c is None for c in constants):
        return None
    return b(x.op, made[operands[0]], *[b.const(np.asarray(c / factors, np.float32)) for c in constants], **x.attrs)


def _factors(peaks: Array, weights: Array, alpha: float) -> Array:
    """Factors that are normal floats as their inverses are; 1 for other channels: always 0, or without a weight."""
    least = float(np.finfo(np.float32).tiny)
    with np.errstate(all="ignore"):
        found = peaks**alpha / weights ** (1 - alpha)
    known = (peaks > 0) & (weights > 0) & (found >= least) & (found <= 1 / least)
    return np.where(known, found, 1).astype(np.float32)
