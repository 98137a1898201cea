"""``tilewright.quantize``: a model in f32 and data in, a graph of 8-bit products and a report out.

In: what the user wrote. Out: a ``QuantizedGraph``. The steps stand in order in ``quantize``.
Not its business: what a step does.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from tilewright.build.options import GROUPS
from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph, Node
from tilewright.core.passes import run_pipeline
from tilewright.frontend.onnx.writer.model import save_onnx
from tilewright.frontend.source import Called, import_called
from tilewright.graph.canonical.canonicalize import Canonicalize
from tilewright.graph.canonical.fold import FoldConstants
from tilewright.graph.forms.affine import FoldAffine
from tilewright.graph.quantize.equalise import equalised
from tilewright.graph.quantize.places import Layer, kept_by_calls, layers_of
from tilewright.graph.quantize.recurrent import RECURRENT, opened
from tilewright.graph.quantize.smooth import Smoothed, columns_of, smoothable, smoothed
from tilewright.runtime.files import writing
from tilewright.tools.quantize.batches import Batch, batches_of, read_arrays
from tilewright.tools.quantize.measure import channels_of, observe, warn_of
from tilewright.tools.quantize.measured import Evaluate, Measured
from tilewright.tools.quantize.report import QuantizeReport
from tilewright.tools.quantize.scheme import (
    AUTO,
    GPTQ,
    OBSERVER,
    PER_CHANNEL,
    STATIC,
    STORED,
    STORED_WEIGHTS,
    Scheme,
)
from tilewright.tools.quantize.stored import SPARED, stored
from tilewright.tools.tell import Tell


@dataclass(frozen=True, eq=False)
class QuantizedGraph(Graph):
    """A graph like any other, with the report of how it was quantised."""

    report: QuantizeReport = field(default=QuantizeReport((), 0))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph as an ONNX model: with ``QuantizeLinear`` and ``DequantizeLinear``, with ``MatMulInteger``
        where it was made with ``mode="dynamic"``, with ``DequantizeLinear`` in blocks or ``Cast`` of small floats where
        weights alone are stored in few bits. Levels of code books take 8 bits in a file.

        Raises ``CompileError`` naming nodes that ONNX has no op for, ``FileError`` where the file can't be written.
        """
        with writing(path):
            save_onnx(self, Path(path))


def quantize(
    source: Any,
    data: Any = None,
    *,
    mode: str = STATIC,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    fix_dims: Mapping[str, int] | None = None,
    activations: str = "u8",
    weights: str | None = None,
    weight_bits: int = 8,
    group: int = GROUPS[0],
    observer: str = OBSERVER,
    bias_correction: bool = False,
    smooth: float | str | None = AUTO,
    equalize: bool = False,
    rounding: str = GPTQ,
    split_outliers: bool = False,
    spare: Collection[str] = (),
    max_drop: float | None = None,
    evaluate: Evaluate | None = None,
    batch_size: int = 32,
    measured_batches: int = 8,
    progress: Tell | None = None,
) -> QuantizedGraph:
    """Quantise a model's products and convolutions to 8 bits, by what its tensors hold on ``data``; or its weights.

    With ``mode="dynamic"`` each call chooses the scales of activations, one for each row that a product sums over (a
    token), and for each image that a convolution reads: then no data are needed. With data channels are made more equal
    and weights chosen there, too; without, ``smooth`` and ``rounding`` are None and ``"nearest"``. With
    ``mode="weights"`` activations stay in f32, and the weights of matrix products, recurrences and embeddings are
    stored as ``weights`` says: ``"int4"`` (the default), ``"int8"``, the code books ``"nf4"`` and ``"fp4"``, ``"fp8"``
    (E4M3), ``"fp8e5m2"`` or ``"fp16"``, with a scale for each ``group`` of 32, 64 or 128 (f16 has none); with data
    their codes are chosen by GPTQ.

    ``source`` and the four options after ``mode`` are those of ``tilewright.compile``. ``data`` are samples without
    labels: an array or a dict of arrays by input name, whose first axis is cut into batches (of ``batch_size`` where
    the model's is symbolic), the path of an ``.npy`` or ``.npz`` file of such, or any iterable of batches, read once.
    ``activations`` are ``"u8"`` or ``"i8"``, with a zero point, or ``"u16"`` or ``"i16"``, whose error is that of the
    weights alone, and whose products are two of bytes or one of floats; weights are i8 without one, with a scale for
    each output channel (``weights="per-channel"``) or one for all (``"per-tensor"``). With ``weight_bits=7`` they are
    from -63 to 63, for ONNX Runtime on x86 without VNNI, whose sums of two products saturate with more; Tilewright's
    sums are exact with 8. ``observer`` chooses ranges: ``"minmax"``, ``"percentile"`` (all but one number in 10,000),
    ``"entropy"`` or ``"mse"``. ``bias_correction`` takes each layer's mean error out of its bias (Nagel et al.,
    Data-Free Quantization, 2019). ``smooth`` makes channels of what matrix products read more equal and weights less so
    (Xiao et al., SmoothQuant, 2023), by a power of their size. ``"auto"`` chooses it for each operand by the error that
    it expects; None leaves operands as they are. It looks at all data; where those are an iterator, which can't be read
    twice, at the first ``measured_batches`` batches. ``split_outliers`` reads channels of matrix products' operands
    that are larger than all others in several columns, each of a part of the number (Zhao et al., Outlier Channel
    Splitting, 2019), as many as are worth their time. ``rounding="gptq"`` chooses the bytes of weights for the results
    on the data (Frantar et al., 2023), of a convolution for some of its windows; ``"nearest"`` each for itself.
    ``equalize`` gives channels between two layers weights of one size before and behind them, where ReLU, pooling or
    nothing lies between (Nagel et al.), before anything is measured. Layers named in ``spare`` stay f32.

    With ``max_drop``, ``evaluate(model)`` is asked for a score of compiled models (greater is better), and as many
    layers as needed stay f32, the ones that disturb the model's results most first, until the score is at most
    ``max_drop`` below that of the f32 model. Errors of layers are measured on the first ``measured_batches`` batches.
    ``progress`` is told a step, how much is done and how much there is, 0 where that is not known.

    Returns a graph to compile, export or save; its ``report`` has every layer. Warns with ``CalibrationWarning`` naming
    tensors that are constant in all data. Raises ``InputError`` for data that are empty, not finite or not the model's,
    ``OptionError`` for options, ``CompileError`` for the model.
    """
    chosen = weights or (STORED_WEIGHTS if mode == STORED else PER_CHANNEL)
    scheme = Scheme(
        activations, chosen, weight_bits, observer, bias_correction, mode, smooth, equalize, group, rounding,
        split_outliers,
    )  # fmt: skip
    _check_arguments(spare, batch_size, measured_batches, max_drop, evaluate, progress)
    _check_measures(scheme, data, max_drop, evaluate)
    if data is None and scheme.is_dynamic:
        scheme = scheme.without_data()
    called = import_called(source, example_inputs, dynamic_shapes, input_shapes, fix_dims)
    graph, tell = prepared(_stateless(called)), progress or _tell_nobody
    data = read_arrays(data) if isinstance(data, str | Path) else data
    # Layers are measured on the first batches again and again, and the data may be a stream that is read once.
    batches = batches_of(data, graph.inputs, batch_size) if data is not None else iter(())
    if scheme.is_stored:
        made, report = stored(graph, scheme, batches if data is not None else None, spare)
        warn_of(report.warnings)
        return _with_report(made, report)
    graph = FoldConstants().run(opened(graph, lambda node: str(node.loc) not in spare))
    if equalize:
        graph = equalised(graph, layers_of(graph)[0])
    first, n_batches = list(islice(batches, measured_batches)), 0
    graph, shifts = _smoothed(graph, scheme, data, first, batch_size, tell)
    layers, kept, spared = _parted(graph, scheme, spare)
    found = Measured(graph, layers, scheme, shifts)
    if data is not None:
        seen, n_batches = observe(graph, list(found.places.group), chain(first, batches), tell, found.watched())
        found.measure(first, seen, tell)
    scores = list[float]()
    if max_drop is not None and evaluate is not None:
        found.rank(first, tell)
        spared, *scores = found.spare_until(spared, max_drop, evaluate, tell)
    texts = found.warnings()
    warn_of(texts)
    report = QuantizeReport(found.reports(spared, kept), n_batches, texts, asdict(scheme), *scores)
    return _with_report(found.graph_without(spared), report)


def _check_arguments(
    spare: object, batch_size: object, measured_batches: object, max_drop: object, *functions: object
) -> None:
    """``OptionError`` for names that are no names, counts that are no counts, and functions that can't be called."""
    if isinstance(spare, str) or not isinstance(spare, Collection) or not all(isinstance(x, str) for x in spare):
        raise OptionError(f"spare={spare!r:.80} is no list of names", remedy='use spare=["name of a layer"]')
    for name, count in (("batch_size", batch_size), ("measured_batches", measured_batches)):
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
            raise OptionError(f"{name}={count!r:.80} is no number of them", remedy="use 1 or more")
    if max_drop is not None and not (isinstance(max_drop, Real) and max_drop == max_drop):
        raise OptionError(f"max_drop={max_drop!r:.80} is no number", remedy="say by how much the score may fall: 0.01")
    for name, function in zip(("evaluate", "progress"), functions, strict=True):
        if function is not None and not callable(function):
            raise OptionError(f"{name}={function!r:.80} can't be called", remedy="give a function, or None")


def _check_measures(scheme: Scheme, data: Any, max_drop: float | None, evaluate: Evaluate | None) -> None:
    """``OptionError`` where the scheme, or a limit to what it costs, asks for what is not given."""
    if scheme.is_stored and max_drop is not None:
        raise OptionError('max_drop says nothing where mode="weights"', remedy="spare layers by name")
    if data is None and (max_drop is not None or scheme.needs_data):
        raise OptionError("there are no data to measure on", remedy='pass samples, or mode="dynamic" alone')
    if (max_drop is None) != (evaluate is None):
        raise OptionError("max_drop and evaluate go together", remedy="give both, or neither")


def _stateless(called: Called) -> Graph:
    """The graph of a function of its inputs; ``OptionError`` for any other."""
    if called.convention.state or called.convention.written:
        raise OptionError("a model that keeps state can't be quantised", remedy="quantise a function of its inputs")
    return called.graph


def _with_report(made: Graph, report: QuantizeReport) -> QuantizedGraph:
    """The graph in a pool without the weights that it was made of, which take most of what there is."""
    made = made.apart()
    return QuantizedGraph(
        made.name, made.pool, made.inputs, made.outputs, made.output_names, made.constraints, made.checks, report
    )


def _tell_nobody(stage: str, done: int, total: int) -> None:
    """Progress, where nobody listens."""


def _smoothed(graph: Graph, scheme: Scheme, data: Any, first: Sequence[Batch], batch_size: int, tell: Tell) -> Smoothed:
    """The graph with channels of operands of more equal size, where the scheme asks for it."""
    layers = smoothable(layers_of(graph)[0]) if scheme.smooth is not None else []
    if not layers:
        return Smoothed(graph, {})  # without a run over the data
    operands = list(dict.fromkeys(x.node.inputs[0] for x in layers))
    # A channel that is larger in later batches widens the range of all: so all data, if they can be read twice.
    every = first if isinstance(data, Iterator) else batches_of(data, graph.inputs, batch_size)
    seen = channels_of(graph, operands, every, tell, of_rows=scheme.is_dynamic)
    alpha = scheme.smooth if isinstance(scheme.smooth, float) else None
    # Affine ops are not folded again: that would give the weights back what divides their operand.
    columns = columns_of(layers, seen, scheme.rounded, alpha, scheme.split_outliers)
    return smoothed(graph, layers, columns, of_rows=scheme.is_dynamic)


def _layers(graph: Graph, scheme: Scheme) -> tuple[list[Layer], list[tuple[Node, str]]]:
    """The layers that the scheme quantises, and the products that stay with the reason."""
    layers, kept = layers_of(graph)
    if not scheme.is_dynamic:
        return layers, kept
    reasons = [(x, kept_by_calls(x)) for x in layers]
    return [x for x, why in reasons if why is None], [*kept, *((x.node, why) for x, why in reasons if why is not None)]


def _parted(
    graph: Graph, scheme: Scheme, spare: Collection[str]
) -> tuple[list[Layer], list[tuple[Node, str]], dict[Node, str]]:
    """The layers, the products that are none with the reason of each, and the layers that ``spare`` names.

    A recurrence that is spared was left whole, so that it is none of the layers.
    """
    layers, kept = _layers(graph, scheme)
    whole = {node: SPARED for node, _ in kept if node.op in RECURRENT and str(node.loc) in spare}
    spared = _spared(spare, layers, {str(node.loc) for node in whole})
    return layers, [(node, whole.get(node, why)) for node, why in kept], spared


def _spared(names: Collection[str], layers: Sequence[Layer], whole: Collection[str]) -> dict[Node, str]:
    """The layers of these names; ``OptionError`` for a name that no layer has, and no recurrence that stays whole."""
    unknown = sorted(set(names) - {x.name for x in layers} - set(whole))
    if unknown:
        shown = ", ".join(map(repr, list(dict.fromkeys(x.name for x in layers))[:20]))
        raise OptionError(f"there is no layer {unknown[0]!r} to spare", remedy=f"the layers are {shown}")
    return {x.node: SPARED for x in layers if x.name in names}


def prepared(graph: Graph) -> Graph:
    """The graph with constants folded and batch norms within weights, which are quantised as they are then."""
    fold = (FoldAffine(), FoldConstants())
    # A batch norm leaves a sum of constants beside the bias, and the next round makes one of the two.
    return run_pipeline(graph, (Canonicalize(), FoldConstants(), *fold, *fold, Canonicalize()))
