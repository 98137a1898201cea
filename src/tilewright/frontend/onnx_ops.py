"""Every ONNX op that has a converter, and why some have none.

In: the tables of the families. Out: one table by (domain, op type), read by the walker and by coverage reports.
Not its business: ops that ONNX defines by other ops and that have no converter; the walker expands those.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontend import (
    onnx_ops_attention,
    onnx_ops_contract,
    onnx_ops_control,
    onnx_ops_elementwise,
    onnx_ops_index,
    onnx_ops_microsoft,
    onnx_ops_microsoft_attention,
    onnx_ops_microsoft_image,
    onnx_ops_microsoft_quant,
    onnx_ops_ml,
    onnx_ops_ml_linear,
    onnx_ops_ml_trees,
    onnx_ops_movement,
    onnx_ops_norm,
    onnx_ops_pool,
    onnx_ops_quant,
    onnx_ops_reduce,
    onnx_ops_resize,
    onnx_ops_rnn,
    onnx_ops_sampling,
    onnx_ops_signal,
    onnx_ops_source,
    onnx_ops_text,
)
from tilewright.frontend.onnx_call import Converter

_FAMILIES = (
    onnx_ops_attention,
    onnx_ops_contract,
    onnx_ops_control,
    onnx_ops_elementwise,
    onnx_ops_index,
    onnx_ops_movement,
    onnx_ops_norm,
    onnx_ops_pool,
    onnx_ops_quant,
    onnx_ops_reduce,
    onnx_ops_resize,
    onnx_ops_rnn,
    onnx_ops_sampling,
    onnx_ops_signal,
    onnx_ops_source,
    onnx_ops_text,
)

_MICROSOFT = (
    onnx_ops_microsoft,
    onnx_ops_microsoft_attention,
    onnx_ops_microsoft_image,
    onnx_ops_microsoft_quant,
)
_LEARNED = (onnx_ops_ml, onnx_ops_ml_linear, onnx_ops_ml_trees)

CONVERTERS: Mapping[tuple[str, str], Converter] = {
    **{("", op): converter for family in _FAMILIES for op, converter in family.TABLE.items()},
    **{("com.microsoft", op): converter for family in _MICROSOFT for op, converter in family.TABLE.items()},
    **{("ai.onnx.ml", op): converter for family in _LEARNED for op, converter in family.TABLE.items()},
    **{("ai.onnx.preview.training", op): converter for op, converter in onnx_ops_text.TRAINING.items()},
    ("", "SimplifiedLayerNormalization"): onnx_ops_microsoft.simplified_layer_norm,
}

_STRINGS = ("works on strings, and tensors hold numbers only", "do the text processing before the model")
_MAPS = "takes or gives maps from labels to numbers, and tensors hold numbers only"
REFUSED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("ai.onnx.ml", "ZipMap"): (_MAPS, "export the probabilities as a tensor (skl2onnx: options={'zipmap': False})"),
    ("ai.onnx.ml", "CastMap"): (_MAPS, "give the model a tensor with a column for each key"),
    ("ai.onnx.ml", "DictVectorizer"): (_MAPS, "vectorize before the model, and give it the tensor"),
    ("ai.onnx.ml", "CategoryMapper"): (_STRINGS[0], "map categories to integers before the model"),
    **{("", op): _STRINGS for op in ("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch")},
    ("", "ImageDecoder"): ("decodes image files, whose bytes decide every size", "decode images before the model"),
    ("ai.onnx.preview.training", "Gradient"): (
        "asks for derivatives of a part of the graph, and no op has a gradient rule here",
        "export the gradient's graph as ordinary nodes, or train with PyTorch",
    ),
}
