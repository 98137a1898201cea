"""What writes each op that ONNX has.

In: nothing. Out: ``WRITERS``. Not its business: ops without an entry (``frontend.spellings``).
"""

from __future__ import annotations

from tilewright import ops
from tilewright.core import types
from tilewright.core.opdef import OpDef
from tilewright.frontend.onnx.writer import control, moves
from tilewright.frontend.onnx.writer import ops as arithmetic
from tilewright.frontend.onnx.writer.nodes import Writer
from tilewright.frontend.onnx.writer.ops import on_bools, plain, position, reduction

_SAME_NAME = {
    ops.neg: "Neg", ops.abs: "Abs", ops.sign: "Sign", ops.exp: "Exp", ops.log: "Log", ops.sqrt: "Sqrt",
    ops.reciprocal: "Reciprocal", ops.sin: "Sin", ops.cos: "Cos", ops.tan: "Tan", ops.asin: "Asin", ops.acos: "Acos",
    ops.atan: "Atan", ops.sinh: "Sinh", ops.cosh: "Cosh", ops.tanh: "Tanh", ops.asinh: "Asinh", ops.acosh: "Acosh",
    ops.atanh: "Atanh", ops.erf: "Erf", ops.floor: "Floor", ops.ceil: "Ceil", ops.round: "Round",
    ops.logical_not: "Not", ops.isnan: "IsNaN", ops.isinf: "IsInf",
    ops.sigmoid: "Sigmoid", ops.relu: "Relu", ops.softplus: "Softplus", ops.mish: "Mish", ops.softsign: "Softsign",
    ops.hard_swish: "HardSwish", ops.leaky_relu: "LeakyRelu", ops.elu: "Elu", ops.selu: "Selu", ops.celu: "Celu",
    ops.hard_sigmoid: "HardSigmoid", ops.gelu: "Gelu", ops.sub: "Sub", ops.div: "Div", ops.pow: "Pow",
    ops.logical_and: "And", ops.logical_or: "Or", ops.logical_xor: "Xor", ops.eq: "Equal",
    ops.prelu: "PRelu", ops.einsum: "Einsum", ops.softmax: "Softmax", ops.log_softmax: "LogSoftmax",
    ops.concat: "Concat", ops.transpose: "Transpose", ops.instance_norm: "InstanceNormalization", ops.lrn: "LRN",
    ops.dynamic_quantize_linear: "DynamicQuantizeLinear",
}  # fmt: skip

_REDUCTIONS = {
    ops.reduce_sum: "ReduceSum", ops.reduce_prod: "ReduceProd", ops.reduce_max: "ReduceMax",
    ops.reduce_min: "ReduceMin", ops.reduce_mean: "ReduceMean", ops.reduce_l1: "ReduceL1", ops.reduce_l2: "ReduceL2",
    ops.logsumexp: "ReduceLogSumExp",
}  # fmt: skip

WRITERS: dict[OpDef, Writer] = {
    **{op: plain(name) for op, name in _SAME_NAME.items()},
    **{op: reduction(name) for op, name in _REDUCTIONS.items()},
    ops.mul: on_bools("Mul", "And"), ops.minimum: on_bools("Min", "And"), ops.maximum: on_bools("Max", "Or"),
    ops.lt: on_bools("Less", "And", negated=0), ops.le: on_bools("LessOrEqual", "Or", negated=0),
    ops.gt: on_bools("Greater", "And", negated=1), ops.ge: on_bools("GreaterOrEqual", "Or", negated=1),
    ops.bitwise_and: on_bools("BitwiseAnd", "And"), ops.bitwise_or: on_bools("BitwiseOr", "Or"),
    ops.bitwise_xor: on_bools("BitwiseXor", "Xor"), ops.bitwise_not: on_bools("BitwiseNot", "Not"),
    ops.fmod: plain("Mod", fmod=1),
    ops.mod: arithmetic.mod, ops.ne: arithmetic.not_equal, ops.add: arithmetic.add, ops.where: arithmetic.where,
    ops.clamp: arithmetic.clamp, ops.cast: arithmetic.cast, ops.decode: arithmetic.cast, ops.exp2: arithmetic.exp2,
    ops.rsqrt: arithmetic.rsqrt,
    ops.silu: arithmetic.silu, ops.reduce_any: arithmetic.any_, ops.reduce_all: arithmetic.any_,
    ops.argmax: position("ArgMax"), ops.argmin: position("ArgMin"), ops.cumsum: moves.cumsum,
    ops.matmul: arithmetic.matmul, ops.conv: arithmetic.conv, ops.conv_transpose: arithmetic.conv,
    ops.max_pool: arithmetic.max_pool, ops.max_pool_indices: arithmetic.max_pool, ops.avg_pool: arithmetic.avg_pool,
    ops.batch_norm: arithmetic.batch_norm, ops.layer_norm: arithmetic.layer_norm, ops.group_norm: arithmetic.group_norm,
    ops.quantize_linear: arithmetic.quantisation("QuantizeLinear"),
    ops.dequantize_linear: arithmetic.quantisation("DequantizeLinear"),
    # moves, lookups, orders, sources
    ops.reshape: moves.reshape, ops.expand: moves.expand, ops.tile: moves.shaped("Tile", "repeats"),
    ops.depth_to_space: moves.blocks("DepthToSpace"), ops.space_to_depth: moves.blocks("SpaceToDepth"),
    ops.pad: moves.pad, ops.slice: moves.slice_, ops.resize: moves.resize, ops.reverse: moves.reverse,
    ops.trilu: moves.trilu, ops.dynamic_slice: moves.dynamic_slice, ops.iota: moves.sources,
    ops.dim_values: moves.sources, ops.full: moves.full, ops.top_k: moves.top_k, ops.sort: moves.sort,
    ops.gather: moves.indexed("Gather"), ops.gather_elements: moves.indexed("GatherElements"),
    ops.gather_nd: moves.indexed("GatherND", (types.i64,)),
    ops.scatter_elements: moves.indexed("ScatterElements"), ops.scatter_nd: moves.indexed("ScatterND", (types.i64,)),
    ops.with_sizes: moves.with_sizes, ops.as_size: moves.as_size, ops.argwhere: moves.argwhere,
    ops.suppress: moves.suppress, ops.fourier: moves.fourier,
    # recurrences and control flow
    ops.lstm: control.recurrent("LSTM"), ops.gru: control.recurrent("GRU"), ops.rnn: control.recurrent("RNN"),
    ops.if_: control.if_, ops.loop: control.loop,
}  # fmt: skip
"""How each op is written that has a counterpart."""
