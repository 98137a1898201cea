"""What calibration data make of a graph: histograms of tensors, errors of layers, errors of the model.

In: graphs and batches. Out: histograms and sums of squares. Every measurement is a graph of its own that is compiled,
so that data stream through native code. Not its business: what follows from the numbers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright import ops
from tilewright.build.driver import compile_graph
from tilewright.core import types
from tilewright.core.graph import INPUT, Builder, Graph, Node
from tilewright.core.types import Array, TensorType
from tilewright.graph.quantize.encoding import decibels
from tilewright.graph.quantize.insert import ByteForm
from tilewright.graph.quantize.observe import Histogram
from tilewright.graph.quantize.places import Layer
from tilewright.graph.quantize.rounded import Channels, row_reaches
from tilewright.graph.quantize.rows import RowForm
from tilewright.graph.quantize.windows import matrices_of, rows_of, spaced
from tilewright.runtime.errors import InputError
from tilewright.tools.quantize.batches import Batch
from tilewright.tools.tell import Tell

ENOUGH_ROWS = 16
"""Rows for each channel after which more say little new: what channels seem to have in common is chance by 1 / 16."""
LEAST_ROWS = 256
"""Rows that say something however few terms they have: a depthwise window's 9, for instance."""
SAMPLED_ROWS = 16
"""Rows of each batch that say how far rows reach, where scales are of rows."""
MOST_SAMPLED = 128
"""Rows of an operand that are kept for that."""
WHICH = "which layer"
"""The input that says which layer is quantised. No model has one of this name: it is no identifier."""


@dataclass(eq=False)
class Moments:
    """The sums of ``x x^T`` over the rows that a layer sums over, f64[groups, K, K], and the number of rows.

    ``reaches`` is the sum of squares of how far the numbers reach that have one scale where calls choose scales: those
    of a row or, for a convolution, of an image. There are ``n_reaches`` of these. No batch is added where there are
    rows enough already: ``ENOUGH_ROWS`` for each place, and for ``LEAST_ROWS`` places.
    """

    layer: Layer
    sums: Array = field(init=False)
    n_rows: int = 0
    reaches: float = 0.0
    n_reaches: int = 0

    def __post_init__(self) -> None:
        groups, depth, _ = matrices_of(self.layer, self.layer.weights).shape
        self.sums = np.zeros((groups, depth, depth))

    def add(self, array: Array) -> None:
        """Count the rows of one batch of the layer's operand."""
        most = max(self.sums.shape[1], LEAST_ROWS)
        if self.n_rows >= ENOUGH_ROWS * most:
            return
        rows = rows_of(self.layer, array, most)
        self.sums += rows.transpose(0, 2, 1) @ rows
        self.n_rows += rows.shape[1]
        scaled = rows[0] if self.layer.is_matrix else array.reshape(len(array), math.prod(array.shape[1:]))
        self.reaches += float(np.square(row_reaches(scaled), dtype=np.float64).sum())
        self.n_reaches += len(scaled)

    @property
    def row_reach(self) -> float:
        """How far the numbers of a row, or of an image, reach: the root of the mean square."""
        return float(np.sqrt(self.reaches / self.n_reaches))


def observe(
    graph: Graph,
    tensors: Sequence[Node],
    batches: Iterable[Batch],
    tell: Tell,
    moments: Mapping[Node, Collection[Moments]],
) -> tuple[dict[Node, Histogram], int]:
    """A histogram of each tensor over all batches, and their number.

    They are added to ``moments`` of layers that read some of the tensors, too.

    Raises ``InputError`` naming the batch and the tensor for numbers that are not finite, and for no batches at all.
    """
    found = {x: Histogram() for x in tensors}
    model = compile_graph(showing(graph, tensors))
    n = 0
    for n, batch in enumerate(batches, 1):
        _check_inputs(graph, batch, n)
        for x, array in zip(tensors, model.run(batch).values(), strict=True):
            check_finite(array, f"the result of {x.loc}", n, is_float=True)
            found[x].add(array)
            for seen in moments.get(x, ()):
                seen.add(array)
        tell("calibrate", n, 0)
    if n == 0 or any(h.n == 0 for h in found.values()):
        raise nothing()
    return found, n


def _check_inputs(graph: Graph, batch: Batch, n: int) -> None:
    """``InputError`` for numbers of the ``n``-th batch that are not finite."""
    for x in graph.inputs:
        name = x.attrs["name"]
        # An array of another type is refused by the call, which says what the model takes.
        check_finite(batch[name], f"input {name!r}", n, x.dtype.is_float and batch[name].dtype == x.dtype.numpy)


def nothing() -> InputError:
    """The error for data without a batch."""
    return InputError("the calibration data are empty", remedy="give at least one batch with samples")


def channels_of(
    graph: Graph, operands: Sequence[Node], batches: Iterable[Batch], tell: Tell, of_rows: bool = False
) -> dict[Node, Channels]:
    """What each place along the last axis of tensors holds over all batches; ``of_rows``: with some of the rows."""
    b = Builder(graph.pool)
    each: list[Node] = []
    for x in operands:
        rows = {"axes": tuple(range(x.type.rank - 1))}
        each += b(ops.reduce_min, x, **rows), b(ops.reduce_max, x, **rows), b(ops.reduce_mean, b(ops.mul, x, x), **rows)
    each += operands if of_rows else ()
    model = compile_graph(showing(graph, each))
    found: dict[Node, Channels] = {}
    n = 0
    for n, batch in enumerate(batches, 1):
        _check_inputs(graph, batch, n)
        results = list(model.run(batch).values())
        arrays, wholes = iter(results[: 3 * len(operands)]), results[3 * len(operands) :]
        for x, (low, high, square) in zip(operands, zip(arrays, arrays, arrays, strict=True), strict=True):
            check_finite(np.stack([low, high]), f"the result of {x.loc}", n, is_float=True)
            now = Channels(*(a.astype(np.float64) for a in (low, high, square)))
            found[x] = _together(found[x], now) if x in found else now
        for x, array in zip(operands if of_rows else (), wholes, strict=True):
            found[x] = found[x]._replace(rows=_more_rows(found[x].rows, array))
        tell("measure channels", n, 0)
    if n == 0:
        raise nothing()
    return {x: sums._replace(square=sums.square / n) for x, sums in found.items()}


def _together(a: Channels, b: Channels) -> Channels:
    """The ends of both, and the sum of their squares; the rows of the first."""
    return Channels(np.minimum(a.low, b.low), np.maximum(a.high, b.high), a.square + b.square, a.rows)


def _more_rows(known: Array | None, array: Array) -> Array:
    """The rows that are known and some of an array's, equally far apart; every second one where they are too many."""
    rows = array.reshape(-1, array.shape[-1])
    chosen = rows[spaced(len(rows), SAMPLED_ROWS)].astype(np.float64)
    found = chosen if known is None else np.concatenate([known, chosen])
    return found if len(found) <= MOST_SAMPLED else found[::2]


def showing(graph: Graph, outputs: Sequence[Node], inputs: Sequence[Node] = ()) -> Graph:
    """A graph with other results, and more inputs."""
    names = tuple(f"t{k}" for k in range(len(outputs)))
    return Graph(graph.name, graph.pool, (*graph.inputs, *inputs), tuple(outputs), names, graph.constraints)


def says_nothing(tensor: Node, number: float) -> str:
    """The warning of a tensor that is the same number everywhere in all data."""
    what = f'input "{tensor.attrs["name"]}"' if tensor.op is INPUT else tensor.loc
    return f"{what}: every number is {number:.6g} in all calibration data, so its range says nothing"


def check_finite(array: Array, what: str, batch: int, is_float: bool) -> None:
    """``InputError`` naming the tensor and the batch where a number is infinite or none."""
    if is_float and not np.isfinite(array).all():
        raise InputError(
            f"calibration batch {batch}: {what} has numbers that are not finite",
            remedy="leave such samples out: a range can't be chosen for them",
        )


class CalibrationWarning(UserWarning):
    """The calibration data say too little of a tensor; the text names it."""


def warn_of(texts: Iterable[str]) -> None:
    """Warn the one who called the caller."""
    for text in texts:
        warnings.warn(text, CalibrationWarning, stacklevel=3)


@dataclass
class LayerError:
    """Sums of squares of a layer's result and of its error, and its mean error in each channel.

    ``other_noise`` is the error with other weights, where such were measured.
    """

    signal: float = 0.0
    noise: float = 0.0
    shift: Array | float = 0.0
    other_noise: float | None = None

    @property
    def sqnr_db(self) -> float:
        return decibels(self.signal, self.noise)


def layer_errors(
    form: ByteForm | RowForm, batches: Sequence[Batch], tell: Tell, other: ByteForm | RowForm | None = None
) -> dict[Node, LayerError]:
    """What rounding its operand and its weights does to each layer, when nothing before it was rounded.

    ``other`` has the layers with other weights, whose error is measured beside it.
    """
    graph, each = form.graph, 3 if other is None else 4
    found = {layer.node: LayerError(other_noise=None if other is None else 0.0) for layer in form.layers}
    outputs = []
    for layer in form.layers:
        b = Builder(graph.pool, layer.node.loc)
        y = layer.result
        error = b(ops.sub, y, form.layer(b, layer.node, layer)[0])
        others = tuple(k for k in range(y.type.rank) if k != layer.result_axis)
        outputs += [_power(b, y), _power(b, error), b(ops.reduce_mean, error, axes=others)]
        if other is not None:
            outputs.append(_power(b, b(ops.sub, y, other.layer(b, layer.node, layer)[0])))
    model = compile_graph(showing(graph, outputs))
    for n, batch in enumerate(batches, 1):
        numbers = list(model.run(batch).values())
        for k, seen in enumerate(found.values()):
            signal, noise, shift, *more = numbers[each * k : each * (k + 1)]
            if seen.other_noise is not None:
                seen.other_noise += float(more[0])
            seen.signal += float(signal)
            seen.noise += float(noise)
            seen.shift = seen.shift + np.asarray(shift) / len(batches)
        tell("measure layers", n, len(batches))
    return found


def _power(b: Builder, x: Node) -> Node:
    return b(ops.reduce_sum, b(ops.mul, x, x), axes=tuple(range(x.type.rank)))


def model_errors(form: ByteForm | RowForm, batches: Sequence[Batch], tell: Tell) -> dict[Node, float]:
    """The model's signal over its error in decibels when one layer alone is quantised, for each layer.

    One graph computes every layer both ways and takes the rounded one where a number that the call gives says so.
    """
    graph, pool = form.graph, form.graph.pool
    which = pool.input(WHICH, TensorType(types.i32, ()))
    numbers = {layer.node: k for k, layer in enumerate(form.layers)}
    made: dict[Node, Node] = {}
    for node in graph.nodes():
        if node in made:  # one of several results of a layer
            continue
        b = Builder(pool, node.loc)
        made[node] = plain = pool.with_inputs(node, tuple(made[x] for x in node.inputs))
        if node in numbers:
            k = numbers[node]
            is_asked = b(ops.eq, which, b.const(k, types.i32))
            rounded, exact = form.layer(b, plain, form.layers[k]), pool.results(plain)
            for result, r, e in zip(pool.results(node), rounded, exact, strict=True):
                made[result] = b(ops.where, is_asked, r, e)
    results = [made[n] for _, n in graph.results() if n.dtype.is_float]
    model = compile_graph(showing(graph, results, (which,)))
    powers = {node: [0.0, 0.0] for node in numbers}
    for n, batch in enumerate(batches, 1):
        plain_results = list(model.run({**batch, WHICH: np.int32(-1)}).values())
        for node, k in numbers.items():
            rounded_results = model.run({**batch, WHICH: np.int32(k)}).values()
            for a, b_ in zip(plain_results, rounded_results, strict=True):
                powers[node][0] += float(np.square(a, dtype=np.float64).sum())
                powers[node][1] += float(np.square(a.astype(np.float64) - b_).sum())
        tell("measure the model", n, len(batches))
    return {node: decibels(signal, noise) for node, (signal, noise) in powers.items()}
