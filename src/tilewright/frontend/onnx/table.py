"""Every ONNX op that has a converter, and why some have none.

In: the tables of the families. Out: one table by (domain, op type), read by the walker and by coverage reports.
Not its business: ops that ONNX defines by other ops and that have no converter; the walker expands those.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontend.onnx.call import Converter
from tilewright.frontend.onnx.microsoft import attention as microsoft_attention
from tilewright.frontend.onnx.microsoft import fused as microsoft_fused
from tilewright.frontend.onnx.microsoft import image as microsoft_image
from tilewright.frontend.onnx.microsoft import lstm as microsoft_lstm
from tilewright.frontend.onnx.microsoft import quant as microsoft_quant
from tilewright.frontend.onnx.microsoft import tensor as microsoft_tensor
from tilewright.frontend.onnx.microsoft import weights as microsoft_weights
from tilewright.frontend.onnx.ml import features as ml_features
from tilewright.frontend.onnx.ml import linear as ml_linear
from tilewright.frontend.onnx.ml import trees as ml_trees
from tilewright.frontend.onnx.ops import (
    attention,
    contract,
    control,
    elementwise,
    index,
    movement,
    norm,
    pool,
    quant,
    reduce,
    regions,
    resize,
    rnn,
    sampling,
    signal,
    source,
    text,
)

_FAMILIES = (
    attention,
    contract,
    control,
    elementwise,
    index,
    movement,
    norm,
    pool,
    quant,
    reduce,
    regions,
    resize,
    rnn,
    sampling,
    signal,
    source,
    text,
)

_MICROSOFT = (
    microsoft_fused,
    microsoft_attention,
    microsoft_image,
    microsoft_lstm,
    microsoft_quant,
    microsoft_tensor,
    microsoft_weights,
)
_LEARNED = (ml_features, ml_linear, ml_trees)

CONVERTERS: Mapping[tuple[str, str], Converter] = {
    **{("", op): converter for family in _FAMILIES for op, converter in family.TABLE.items()},
    **{("com.microsoft", op): converter for family in _MICROSOFT for op, converter in family.TABLE.items()},
    **{("ai.onnx.ml", op): converter for family in _LEARNED for op, converter in family.TABLE.items()},
    **{("ai.onnx.preview.training", op): converter for op, converter in text.TRAINING.items()},
    ("", "SimplifiedLayerNormalization"): microsoft_fused.simplified_layer_norm,
}

_STRINGS = ("works on strings, and tensors hold numbers only", "do the text processing before the model")
_TEXT_EDGE = (
    "works on strings, which Python does where all that reads or makes them lies before the nodes of numbers",
    "do the text processing before the model",
)
_MAPS = "takes or gives maps from labels to numbers, and tensors hold numbers only"
_BLOCKED = (
    "works on channels in blocks whose size depends on the CPU that optimised the model, and the file doesn't say it",
    "give the model before optimisation, or save it with graph_optimization_level ORT_ENABLE_EXTENDED",
)
_BLOCKED_OPS = (
    "AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReorderInput", "ReorderOutput", "Upsample",
)  # fmt: skip
_GENERATION = ("runs a decoder in a loop of its own", "give the decoder, and search outside of the model")
REFUSED: Mapping[tuple[str, str], tuple[str, str]] = {
    ("ai.onnx.ml", "ZipMap"): (_MAPS, "export the probabilities as a tensor (skl2onnx: options={'zipmap': False})"),
    ("ai.onnx.ml", "CastMap"): (_MAPS, "give the model a tensor with a column for each key"),
    ("ai.onnx.ml", "DictVectorizer"): (_MAPS, "vectorize before the model, and give it the tensor"),
    ("ai.onnx.ml", "CategoryMapper"): (_STRINGS[0], "map categories to integers before the model"),
    **{("", op): _TEXT_EDGE for op in ("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch")},
    ("", "ImageDecoder"): ("decodes image files, whose bytes decide every size", "decode images before the model"),
    **{("com.microsoft.nchwc", op): _BLOCKED for op in _BLOCKED_OPS},
    **{("com.microsoft", op): _GENERATION for op in ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")},
    ("com.microsoft", "EPContext"): (
        "holds code that was compiled for another machine",
        "compile the model that it was made of",
    ),
    ("com.microsoft", "MurmurHash3"): ("hashes the bytes of strings", "hash before the model"),
    ("com.microsoft", "SparseToDenseMatMul"): ("takes a sparse tensor at run time", "export the product densely"),
    ("com.microsoft", "Tokenizer"): (_STRINGS[0], _STRINGS[1]),
    ("ai.onnx.preview.training", "Gradient"): (
        "asks for derivatives of a part of the graph, and no op has a gradient rule here",
        "export the gradient's graph as ordinary nodes, or train with PyTorch",
    ),
}
