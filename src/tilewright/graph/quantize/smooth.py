"""SmoothQuant: large channels of an operand become smaller, and their weights larger (Xiao et al., 2023).

In: a graph, its layers, what the channels of their operands held. Out: factors, and a graph that is equal but for
rounding, whose operands have channels of more equal size. Not its business: which data those are of, quantising.

``x @ w`` is ``(x / s) @ (s w)`` for a positive factor of each channel. A few channels of a transformer's activations
are many times as large as all others in every token, and one scale for a tensor, or for a row, leaves the others few
steps. Weights have room: their scales are of columns, and their channels differ by much less.

How much of a channel's size its factor takes is chosen by the error that is to be expected of the result (``Rounded``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tilewright import ops
from tilewright.core.graph import Builder, Graph, Node
from tilewright.core.types import Array
from tilewright.graph.facts import array_of
from tilewright.graph.forms.affine import along
from tilewright.graph.quantize.places import Layer

EXPONENTS = np.linspace(0, 1, 21)
"""Powers of channels' sizes that are tried as their factors; with 1 all channels get one size."""


class Channels(NamedTuple):
    """The least and the greatest number of each channel of a tensor, and the mean of their squares; f64[K] each."""

    low: Array
    high: Array
    square: Array

    @property
    def peak(self) -> Array:
        """The greatest magnitude of each channel."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


@dataclass(frozen=True)
class Rounded:
    """What operands and weights are rounded to: how many steps a range has, and whether columns have their own.

    ``n_steps`` is that of activations, ``greatest`` the largest number of a weight.
    """

    n_steps: int
    greatest: int
    per_channel: bool

    def error(self, seen: Channels, weights: Sequence[Array], factors: Array) -> float:
        """The expected square of the error of a row of ``x @ w``, all weights that ``x`` meets together.

        Rounding to steps of ``d`` has a mean square of ``d**2 / 12``, no more than that of what is rounded, and the
        errors of different numbers have nothing to do with each other. That of an operand's channel is multiplied by
        the weights that it meets, that of a weight by what the channel holds.
        """
        low, high = min(float((seen.low / factors).min()), 0.0), max(float((seen.high / factors).max()), 0.0)
        of_operand = np.minimum(np.square(factors * ((high - low) / self.n_steps)) / 12, seen.square)
        held, error = float((seen.square / np.square(factors)).sum()), 0.0
        for w in weights:
            peaks = np.abs(w * factors[:, None]).max(axis=0, initial=0)
            steps = (peaks if self.per_channel else np.full_like(peaks, peaks.max(initial=0))) / self.greatest
            error += float(of_operand @ np.square(w).sum(axis=1)) + float(np.square(steps).sum()) / 12 * held
        return error


def smoothable(layers: Sequence[Layer]) -> list[Layer]:
    """The layers whose channels get factors: matrix products. Convolutions lie between pools and joins of bytes."""
    return [x for x in layers if x.is_matrix]


def factors_of(
    layers: Sequence[Layer], seen: Mapping[Node, Channels], rounded: Rounded, alpha: float | None
) -> dict[Node, Array]:
    """Factors f32[K] of the channels of each operand of ``layers``, where they are not 1.

    A factor is ``peak**alpha`` over ``weight**(1 - alpha)``, ``weight`` being the greatest one that the channel meets
    in all layers of that operand. Without an ``alpha``, each operand gets the one with the least expected error, or no
    factors where that is least. Nothing is known of the channels of an operand that held one number everywhere.
    """
    of_operand: dict[Node, list[Array]] = {}
    for layer in layers:
        of_operand.setdefault(layer.node.inputs[0], []).append(layer.weights.astype(np.float64))
    found: dict[Node, Array] = {}
    for x, weights in of_operand.items():
        if seen[x].low.min(initial=np.inf) >= seen[x].high.max(initial=-np.inf):
            continue
        largest = np.max([np.abs(w).max(axis=1, initial=0) for w in weights], axis=0)
        exponents = EXPONENTS if alpha is None else [alpha]
        tried = [_factors(seen[x].peak, largest, float(exponent)) for exponent in exponents]
        if alpha is None:
            tried.append(np.ones(len(largest), np.float32))
        best = min(tried, key=lambda factors: rounded.error(seen[x], weights, factors))
        if (best != 1).any():
            found[x] = best
    return found


def smoothed(graph: Graph, layers: Sequence[Layer], factors: Mapping[Node, Array]) -> Graph:
    """The graph with operands of ``layers`` divided by ``factors``, and their weights multiplied.

    Where nothing else reads an operand, constants that made its channels are divided, a norm's gain for instance.
    """
    pool, read = graph.pool, {x.node: x for x in layers if x.node.inputs[0] in factors}
    divisible = _read_by(graph, read)
    made: dict[Node, Node] = {}
    divided: dict[Node, Node] = {}
    for node in graph.nodes():
        inputs = [made[x] for x in node.inputs]
        if node in read:
            x = node.inputs[0]
            if x not in divided:
                b = Builder(pool, node.loc)
                over = _over(b, x, made, factors[x]) if x in divisible else None
                divided[x] = over if over is not None else b(ops.mul, made[x], b.const(1 / factors[x]))
            inputs = [divided[x], pool.const(read[node].weights * factors[x][:, None])]
        made[node] = pool.with_inputs(node, tuple(inputs))
    return graph.with_outputs([made[n] for n in graph.outputs])


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
    """Positive factors; 1 for channels that are always 0, or meet no weight."""
    known = (peaks > 0) & (weights > 0)
    with np.errstate(all="ignore"):
        found = np.where(known, peaks**alpha / weights ** (1 - alpha), 1)
    return np.where(np.isfinite(found) & (found > 0), found, 1).astype(np.float32)
