"""Every builtin op of TFLite's schema: what converts it, or why it is refused.

In: the tables of each family. Out: ``CONVERTERS`` by name for plain numbers, ``QUANTISED`` for codes, ``AS_CODES``, and
``REFUSED`` with a rule and a remedy for all others. Not its business: what a converter does.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontend.tflite import (
    arithmetic,
    boxes,
    control,
    draws,
    integer_arithmetic,
    integer_log_softmax,
    integer_norms,
    integer_products,
    integer_recurrent,
    integer_softmax,
    integer_tables,
    lookups,
    moves,
    recurrent,
    segments,
    spectra,
    stablehlo,
    volumes,
    windows,
)
from tilewright.frontend.tflite.call import Converter

CONVERTERS: Mapping[str, Converter] = {
    **arithmetic.TABLE, **windows.TABLE, **volumes.TABLE, **moves.TABLE, **segments.TABLE, **control.TABLE,
    **recurrent.TABLE, **boxes.TABLE, **lookups.TABLE, **spectra.TABLE,
    **stablehlo.TABLE, **draws.TABLE,
}  # fmt: skip
QUANTISED: Mapping[str, Converter] = {
    **integer_arithmetic.TABLE, **integer_products.TABLE, **integer_softmax.TABLE, **integer_tables.TABLE,
    **integer_norms.TABLE, **integer_log_softmax.TABLE,
    **recurrent.HYBRID, **integer_recurrent.TABLE,
}  # fmt: skip
"""What converts operators with quantised operands or results."""
AS_CODES = frozenset(
    "RESHAPE SQUEEZE EXPAND_DIMS TRANSPOSE PACK UNPACK SPLIT SPLIT_V SLICE STRIDED_SLICE MIRROR_PAD TILE BROADCAST_TO "
    "REVERSE_V2 GATHER GATHER_ND SCATTER_ND EMBEDDING_LOOKUP SELECT SELECT_V2 DYNAMIC_UPDATE_SLICE SHAPE RANK "
    "DEPTH_TO_SPACE SPACE_TO_DEPTH BATCH_TO_SPACE_ND RESIZE_NEAREST_NEIGHBOR ARG_MAX ARG_MIN REDUCE_MAX REDUCE_MIN "
    "TOPK_V2 CAST FILL ZEROS_LIKE ONE_HOT IF WHILE CALL DENSIFY NEG".split()
)
"""Operators that move, compare or negate codes as they are, whatever they stand for."""

OF_COMPLEX = frozenset(spectra.TABLE)
"""Operators whose complex operands and results are pairs along a last axis."""

_REASONS: Mapping[tuple[str, str], str] = {
    ("works on text or tables of keys", "do this part before the model"):
        "HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE SKIP_GRAM CONCAT_EMBEDDINGS",
    ("hashes the bytes of its operands by farmhash, which has no form here", "pass what it projects as an argument"):
        "LSH_PROJECTION",
    ("is code of somebody else's, which the file only names", "convert without custom operators"):
        "CUSTOM DELEGATE PLACEHOLDER_FOR_GREATER_OP_CODES STABLEHLO_CUSTOM_CALL",
    ("is StableHLO within TFLite", "compile the StableHLO program itself"):
        "STABLEHLO_ABS STABLEHLO_AND STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CBRT STABLEHLO_CLAMP "
        "STABLEHLO_COMPARE STABLEHLO_CONCATENATE STABLEHLO_CONVERT STABLEHLO_CONVOLUTION STABLEHLO_COSINE "
        "STABLEHLO_DIVIDE STABLEHLO_DOT_GENERAL STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE "
        "STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_IOTA STABLEHLO_LOG STABLEHLO_LOGISTIC "
        "STABLEHLO_NEGATE STABLEHLO_OR "
        "STABLEHLO_POWER STABLEHLO_REDUCE STABLEHLO_REMAINDER STABLEHLO_RESHAPE "
        "STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SHIFT_LEFT STABLEHLO_SLICE STABLEHLO_SORT "
        "STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_TRANSPOSE STABLEHLO_WHILE",
}  # fmt: skip
REFUSED: Mapping[str, tuple[str, str]] = {name: why for why, names in _REASONS.items() for name in names.split()}
"""The rule and the remedy for each builtin op that is not converted."""
