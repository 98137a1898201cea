"""The order of the graph passes, per optimisation level: the page to read top to bottom.

In: the level, and the composites that later stages have kernels for. Out: passes. Not its business: running them
(``core.passes.run_pipeline``), and what comes after (``partition``).
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright import ops
from tilewright.core.opdef import OpDef
from tilewright.core.passes import Pass
from tilewright.core.types import f32
from tilewright.graph.canonical.canonicalize import Canonicalize
from tilewright.graph.canonical.fold import FoldConstants
from tilewright.graph.decompose import Decompose
from tilewright.graph.forms.affine import FoldAffine
from tilewright.graph.forms.ahead import ProjectAhead
from tilewright.graph.forms.blocked import BlockProducts
from tilewright.graph.forms.coded import CodedProducts
from tilewright.graph.forms.depthwise import DepthwiseFloats
from tilewright.graph.forms.even_sums import EvenSums
from tilewright.graph.forms.fourier import FourierBlocks
from tilewright.graph.forms.fourier_lengths import FourierLengths
from tilewright.graph.forms.hoist import HoistArithmetic
from tilewright.graph.forms.in_parts import InParts
from tilewright.graph.forms.integers import IntegerProducts
from tilewright.graph.forms.joined import JoinInReaders
from tilewright.graph.forms.layout import Layout
from tilewright.graph.forms.merge import MergeMatmuls
from tilewright.graph.forms.move_bytes import MoveBytes
from tilewright.graph.forms.ordering import Ordering
from tilewright.graph.forms.pad_first import PadFirst
from tilewright.graph.forms.phases import SharePhases
from tilewright.graph.forms.planes import InPlanes
from tilewright.graph.forms.quads import QuadProducts
from tilewright.graph.forms.requantise import Requantise
from tilewright.graph.forms.scaled import ScaledProducts
from tilewright.graph.forms.scan_panels import ScanPanels
from tilewright.graph.forms.scans import SCANS
from tilewright.graph.forms.separate import SeparateWindows
from tilewright.graph.forms.skipped import SkipPoints
from tilewright.graph.forms.tap_products import TapProducts
from tilewright.graph.forms.taps import FewTaps
from tilewright.graph.forms.unscale import UnscaleWeights
from tilewright.graph.forms.winograd import Winograd
from tilewright.graph.precision import Precision
from tilewright.graph.quantize.recurrent import OpenRecurrences
from tilewright.graph.quantize.weights import QuantizeWeights
from tilewright.graph.recognise.composites import Recognise
from tilewright.target.target import Target

LAID_OUT = ("conv_transpose", "group_norm")
"""Composites whose pieces would not show which layout they are best in."""

PASSES: tuple[type[Pass], ...] = (
    OpenRecurrences,
    QuantizeWeights,
    Canonicalize,
    ScaledProducts,
    MoveBytes,
    IntegerProducts,
    CodedProducts,
    FoldConstants,
    Requantise,
    Recognise,
    FoldAffine,
    UnscaleWeights,
    BlockProducts,
    QuadProducts,
    DepthwiseFloats,
    Ordering,
    FourierLengths,
    FourierBlocks,
    Decompose,
    SeparateWindows,
    FewTaps,
    Layout,
    SkipPoints,
    TapProducts,
    SharePhases,
    InPlanes,
    Winograd,
    PadFirst,
    ScanPanels,
    ProjectAhead,
    HoistArithmetic,
    JoinInReaders,
    MergeMatmuls,
    Precision,
    EvenSums,
    InParts,
)


PORTABLE: tuple[Pass, ...] = (
    Canonicalize(),
    FoldConstants(kept=(ops.dequantize_linear.name,)),  # weights in bytes stay bytes
    Recognise(),  # composites that the format that is written may have by name
    FoldAffine(),
    FoldConstants(),
    Canonicalize(),
)
"""What makes a graph smaller for any machine and any reader: no form that only our own kernels are made for."""


BY_SIZE: Mapping[type[Pass], tuple[OpDef, ...]] = {Winograd: (ops.conv,), ScanPanels: SCANS}
"""Passes with forms that depend on how many images or sequences there are, or exist for a known number of them only, by
the ops that they have them of."""


def passes_for(
    optimize: int,
    keep: tuple[str, ...] = (),
    target: Target | None = None,
    *,
    per_lane: int = 1,
    has_libraries: bool = False,
) -> tuple[Pass, ...]:
    """The passes of level ``optimize``: 0 only makes the graph runnable, 1 cleans it, 2 is everything.

    ``keep`` names the composites that stay whole. ``target`` is the machine, or None when results must be those of
    plain sums: then nothing is rewritten to forms with a larger error. ``per_lane`` is how many products of a lane a
    plain sum adds at once. ``has_libraries``: the code runs in a process that has those of ``runtime.cpu.transforms``.
    ``merge-matmuls`` is in no level: it is for those who ask for it.
    """
    lengths = FourierLengths(has_libraries)
    if optimize == 0:
        return (lengths, Decompose())
    if optimize == 1:
        return (
            Canonicalize(),
            FoldConstants(),
            lengths,
            Decompose(keep),
            Canonicalize(),
            FoldConstants(),
        )
    return (
        Canonicalize(),  # one form for equal things: the next passes look for forms
        *((ScaledProducts(),) if target is not None else ()),  # before small floats are folded to f32
        FoldConstants(kept=(ops.dequantize_linear.name,)),  # and for constants; those that are bytes stay bytes
        MoveBytes(),  # so that products find bytes behind pools and joins
        IntegerProducts.on(target) if target is not None else IntegerProducts(floats=False),
        *((CodedProducts.on(target),) if target is not None else ()),  # those that are left whose weights are codes
        FoldConstants(),
        Canonicalize(),  # what folding laid bare
        *((Requantise.on(target),) if target is not None else ()),  # with biases known and in their place
        Recognise(),  # composites in their pieces
        FoldAffine(),  # batch norms and scales into weights
        UnscaleWeights(),  # weights that would be made in each call
        FoldConstants(),  # the biases that it summed
        *(  # weights are final, and scales stay beside them
            (BlockProducts.on(target), QuadProducts.on(target), *(() if target.has_word_fma else (DepthwiseFloats(),)))
            if target is not None and target.lanes(f32) > 1
            else ()
        ),
        Ordering(),  # algorithms of sorts
        lengths,  # so that all others are known
        *((FourierBlocks.on(target),) if target is not None else ()),
        Decompose((*keep, *LAID_OUT)),  # all but those that have a better kernel
        Canonicalize(),
        FoldConstants(),
        SeparateWindows(),  # large pools axis by axis
        FewTaps(),  # convolutions that are arithmetic need no layout
        Layout(),  # channels last, as few transposes as possible
        SkipPoints(),  # when it is known which are left
        *(  # transposed convolutions before their phases are apart
            (TapProducts(per_lane), SharePhases.on(target, per_lane)) if target is not None else ()
        ),
        Decompose(keep),  # in the layout that was chosen
        Canonicalize(),  # transposes of ones are reshapes
        FoldConstants(),  # weights of phases
        *((InPlanes.on(target, per_lane),) if target is not None else ()),  # when it is known which stand alone
        *((Winograd.on(target, per_lane),) if target is not None else ()),  # when the layout and the weights are final
        *((PadFirst(),) if per_lane == 1 else ()),  # of those that are left
        *((ScanPanels.on(target),) if target is not None and target.lanes(f32) > 1 and per_lane == 1 else ()),
        *((ProjectAhead.on(target),) if target is not None and per_lane == 1 else ()),  # scans that stay as they are
        HoistArithmetic(),  # to where a product can take it along
    )


def passes_for_gpu(optimize: int) -> tuple[Pass, ...]:
    """The passes of level ``optimize`` for a GPU: from 2 on those whose forms its schedules are made for.

    Channels come last because a warp reads neighbours in memory at one time: of an image those are the terms of a
    convolution's sum then, whose number hardly changes within a net, and not the columns of the image, which are fewer
    in each layer. Forms that serve a CPU's vectors and caches are left out.
    """
    if optimize < 2:
        return passes_for(optimize)
    return (
        Canonicalize(),
        FoldConstants(),
        FoldAffine(),  # batch norms and scales into weights that are known
        FoldConstants(),  # the biases that it summed
        Decompose(LAID_OUT),
        Canonicalize(),
        FoldConstants(),
        Layout(),  # channels last, as few transposes as possible
        Decompose(),  # in the layout that was chosen
        Canonicalize(),  # transposes of ones are reshapes
        FoldConstants(),
        JoinInReaders(),  # a part of a join is a launch
        HoistArithmetic(),  # to where a product can take it along
    )
