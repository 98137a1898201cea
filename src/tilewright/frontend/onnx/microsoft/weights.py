"""Converters of ONNX Runtime's ops over weights packed by bits or chosen by a router.

In: a ``Call`` with weights of 2, 4 or 8 bits packed in bytes, low bits first. Out: nodes of the graph IR: products with
codes, or one byte a weight, dequantised by blocks in front of a product. Not its business: products of 8-bit operands
(``quant``).
"""

from __future__ import annotations

import numpy as np

from tilewright import ops
from tilewright.core import expr
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Node
from tilewright.core.types import WHOLE, Array, f32, i64, product, u8
from tilewright.frontend.onnx.arithmetic import Formula
from tilewright.frontend.onnx.call import Call, Table
from tilewright.frontend.onnx.ops.contract import matmul
from tilewright.ops import coded

BITS = (2, 4, 8)
# The numbers of bitsandbytes' FP4 that have no sign, by their codes.
FP4 = (0, 0.00520833, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25)
TABLES = ((*FP4, *(-v for v in FP4)), coded.NF4)


def _unpacked(c: Call, x: Node, bits: int) -> Node:
    """Bytes as numbers of ``bits``, 8 / ``bits`` of them in the place of each along the last axis, u8."""
    if bits == 8:
        return x
    n, mask = 8 // bits, c.const((1 << bits) - 1, u8)
    parts = [x if k == 0 else c(ops.shift_right, x, c.const(k * bits, u8)) for k in range(n)]
    cut = [c.reshape(c(ops.bitwise_and, p, mask), (*x.shape, 1)) for p in parts]
    return c.reshape(c(ops.concat, *cut, axis=len(x.shape)), (*x.shape[:-1], x.shape[-1] * n))


def _bits(c: Call, name: str = "bits") -> int:
    bits = c.int_(name, 4)
    if bits not in BITS:
        c.refuse(f"{name}={bits} is not supported", f"supported: {', '.join(map(str, BITS))}")
    return bits


def _real(
    c: Call, codes: Node, scales: Node, zeros: Node | None, block: int, bits: int, of_term: Node | None = None
) -> Node:
    """``(codes - zeros) * scales``: codes u8[..., K], one scale and zero point for each ``block`` of the last axis.

    Zero points are packed like codes, or floats, or in the middle of the range where there are none. ``of_term`` i32[K]
    says which of the blocks' scales and zero points each place has, where that is not its own block's.
    """
    axis, n_blocks = len(codes.shape) - 1, scales.shape[-1]
    if zeros is None:
        point = c.full(1 << (bits - 1), u8, scales.shape)
    elif zeros.dtype.is_float:
        point = c.reshape(zeros, scales.shape)
    else:
        width = expr.ceildiv(n_blocks * bits, 8)
        rows = c.reshape(zeros, (*scales.shape[:-1], width))
        point = c.slice_axis(_unpacked(c, rows, bits), axis, 0, n_blocks)
    if of_term is not None:
        scales, point, block = *(c(ops.gather, t, of_term, axis=axis) for t in (scales, point)), 1
    if point.dtype.is_float:
        m = Formula(c)
        wide = [_spread(c, c.cast(t, f32), codes.shape, block) for t in (scales, point)]
        return c.cast(m.mul(m.sub(c.cast(codes, f32), wide[1]), wide[0]), scales.dtype)
    return c(ops.dequantize_linear, codes, scales, point, axis=axis, block_size=block)


def _spread(c: Call, x: Node, shape: tuple[Dim, ...], block: int) -> Node:
    """Each number ``block`` times along the last axis, cut to ``shape``."""
    spread = c.expand(c.reshape(x, (*x.shape, 1)), (*x.shape, block))
    whole = c.reshape(spread, (*x.shape[:-1], x.shape[-1] * block))
    return c.slice_axis(whole, len(shape) - 1, 0, shape[-1])


def _bits_matmul(c: Call) -> Node:
    """``A @ B^T``: B is [N, blocks, bytes of a block]; ``g_idx`` says of each of the K terms whose scale it has."""
    a, b, scales, zeros, of_term = c.x(0), c.x(1), c.x(2), c.opt(3), c.opt(4)
    if c.int_("weight_prepacked", 0):
        c.refuse("weights packed for a GPU are not supported", "quantise with weight_prepacked=0")
    c.ignore("accuracy_level")  # a lower bound: f32 keeps it
    bits, n, k, block = _bits(c), c.int_("N"), c.int_("K"), c.int_("block_size")
    if n < 1 or k < 1 or block < 1:
        c.refuse(f"N={n}, K={k} and block_size={block} must be positive")
    n_blocks = -(-k // block)
    if (y := _coded_matmul(c, bits, n, k, block)) is not None:
        return y
    codes = c.reshape(_unpacked(c, c.reshape(b, (n, n_blocks, block * bits // 8)), bits), (n, n_blocks * block))
    codes, scales = c.slice_axis(codes, 1, 0, k), c.reshape(scales, (n, n_blocks))
    if of_term is not None:
        of_term = c.slice_axis(of_term, 0, 0, k)
    real = _real(c, codes, scales, zeros, block, bits, of_term)
    y, bias = matmul(c, a, c.transpose(c.cast(real, a.dtype), (1, 0))), c.opt(5)
    return y if bias is None else c(ops.add, y, bias)


def _coded_matmul(c: Call, bits: int, n: int, k: int, block: int) -> Node | None:
    """The product of f32 rows with constant codes as it is stored, where blocks are whole and columns fill words.

    Terms that ``g_idx`` deals out to groups of one size are put in their groups' order.
    """
    a, scales, zeros, of_term, bias = c.x(0), c.x(2), c.opt(3), c.opt(4), c.opt(5)
    stored = [None if p is None else _array(p) for p in (c.x(1), scales, zeros, of_term)]
    given = (c.x(1), scales, zeros, of_term)
    is_known = all(s is not None for s, p in zip(stored, given, strict=True) if p is not None)
    fits = bits in coded.BITS and k % block == 0 and block <= coded.MOST_ROWS and n % (coded.WORD_BITS // bits) == 0
    if not is_known or not fits or a.dtype is not f32 or (zeros is not None and zeros.dtype.is_float):
        return None
    per_word, n_blocks = coded.WORD_BITS // bits, k // block
    packed, steps, points, groups = stored
    assert packed is not None and steps is not None
    codes = _fields(packed.reshape(n, -1), bits).T
    rows = c.reshape(a, (product(a.shape[:-1]), k))
    if groups is not None:
        order = np.argsort(groups[:k], kind="stable")
        if not np.array_equal(groups[order], np.repeat(np.arange(n_blocks), block)):
            return None
        codes, rows = codes[order], c(ops.gather, rows, c.array(order), axis=1)
    words = coded.packed(codes, bits)
    steps = np.ascontiguousarray(steps.reshape(n, n_blocks).T).reshape(n_blocks, per_word, -1)
    middle = np.full((1, per_word, 1), 1 << (bits - 1))
    if points is not None:
        middle = _fields(points.reshape(n, -1), bits)[:, :n_blocks].T.reshape(steps.shape)
    operands = map(c.array, (words, steps, middle.astype(np.uint8)))
    y = c.reshape(c(ops.coded_matmul, rows, *operands, bits=bits), (*a.shape[:-1], n))
    return y if bias is None else c(ops.add, y, bias)


def _array(x: Node) -> Array | None:
    found: Array | None = x.attrs["data"].array if x.op is CONST else None
    return found


def _fields(packed: Array, bits: int) -> Array:
    """Bytes u8[n, bytes] as their codes u8[n, codes], the lowest bits first."""
    parts = [packed >> (bits * j) & ((1 << bits) - 1) for j in range(8 // bits)]
    return np.stack(parts, axis=-1).reshape(len(packed), -1).astype(np.uint8)


def _table_matmul(c: Call) -> Node:
    """Weights are places in a table of 16 numbers, two in a byte, high bits first, in blocks of the flat matrix."""
    a, packed, greatest = c.x(0), c.x(1), c.x(2)
    kind, n, k, block = c.int_("quant_type"), c.int_("N"), c.int_("K"), c.int_("block_size")
    if kind not in (0, 1) or n < 1 or k < 1 or block < 1:
        c.refuse(f"quant_type={kind}, N={n}, K={k}, block_size={block} make no weights")
    c.ignore("training_mode")
    high = c(ops.shift_right, packed, c.const(4, u8))
    low = c(ops.bitwise_and, packed, c.const(15, u8))
    pair = c(ops.concat, *(c.reshape(t, (*packed.shape, 1)) for t in (high, low)), axis=len(packed.shape))
    codes = c.slice_axis(c.reshape(pair, (pair.type.n_elements,)), 0, 0, n * k)
    values = c(ops.gather, c.array(np.array(TABLES[kind], np.float32)), c.cast(codes, i64), axis=0)
    scale = _spread(c, c.cast(c.reshape(greatest, (greatest.type.n_elements,)), f32), codes.shape, block)
    b = c.cast(c.reshape(c(ops.mul, values, scale), (n, k)), a.dtype)
    return matmul(c, a, c.transpose(b, (1, 0)) if c.flag("transB", True) else b)


def _gather_block_quantized(c: Call) -> Node:
    """Rows are taken with their scales and zero points, and dequantised; a place outside gives zeros."""
    m = Formula(c)
    data, indices, scales, zeros = c.x(0), c.x(1), c.x(2), c.opt(3)
    packed = data.dtype is u8
    bits = _bits(c) if packed else 4  # types of 4 bits say it themselves
    c.ignore("bits")
    if not packed and data.dtype not in WHOLE:
        c.refuse(f"data of {data.dtype} is not supported", "quantise to 2-, 4- or 8-bit integers")
    rank = len(data.shape)
    along, by = c.axis(c.int_("gather_axis", 0), rank), c.axis(c.int_("quantize_axis", 1), rank)
    block = c.int_("block_size", 128)
    n = data.shape[along]
    if packed:
        data = _unpacked(c, data, bits)
        # the last byte of a row may hold more than there are
        zeros = None if zeros is None else c.slice_axis(_unpacked(c, zeros, bits), rank - 1, 0, scales.shape[-1])
    # without zero points: the middle of the codes, or 0 where these have a sign
    zero = c.full(1 << (bits - 1) if packed else 0, u8, scales.shape) if zeros is None else zeros
    data, zero = (c.cast(t, f32) for t in (data, zero))
    taken = [c(ops.gather, t, indices, axis=along) for t in (data, scales, zero)]
    last = rank - 1 + len(indices.shape) - 1
    place = by + len(indices.shape) - 1 if by > along else by  # the indices' axes have come in place of one before it
    order = [k for k in range(last + 1) if k != place] + [place]  # blocks are spread along the last axis
    if by == along:
        c.refuse("quantize_axis and gather_axis are the same", "quantise along another axis")
    data, scale, zero = (c.transpose(t, order) for t in taken)
    wide = [_spread(c, c.cast(t, f32), data.shape, block) for t in (scale, zero)]
    y = m.mul(m.sub(data, wide[1]), wide[0])
    y = c.transpose(y, [order.index(k) for k in range(last + 1)])
    at = c.cast(indices, i64)
    inside = m.both(m.ge(at, c.dim_value(n * -1)), m.lt(at, c.dim_value(n)))
    inside = c.reshape(inside, (*(1,) * along, *indices.shape, *(1,) * (rank - 1 - along)))
    return c.cast(m.where(inside, y, 0.0), scales.dtype)


# --- mixtures of experts --------------------------------------------------------------------------------------------


def _experts(c: Call) -> Node:
    """Stacks of weights [experts, out, in]."""
    x, router = c.x(0), c.x(1)
    weights = (c.x(2), c.x(4), c.opt(6))
    return _mixture(c, x, router, None, weights, (c.opt(3), c.opt(5), c.opt(7)))


def _quantised_experts(c: Call) -> Node:
    """Weights by bits, one scale a row or one a block of a row."""
    if c.str_("quant_type", "int") != "int":
        c.refuse("weights of floats are not supported", "quantise with quant_type='int'")
    c.ignore("weights_prepacked", "accuracy_level")
    block, default = c.int_("block_size", 0), c.int_("expert_weight_bits", 4)
    weights = list[Node | None]()
    for name, at, zero in (("fc1", 2, 11), ("fc2", 5, 12), ("fc3", 8, 13)):
        packed = c.opt(at)
        attribute = f"{name}_expert_weight_bits"
        bits = c.int_(attribute, default)
        if bits not in BITS:
            c.refuse(f"{attribute}={bits} is not supported", f"supported: {', '.join(map(str, BITS))}")
        if packed is None:
            weights.append(None)
            continue
        codes, scales = _unpacked(c, packed, bits), c.x(at + 1)
        if len(scales.shape) == 2:
            weights.append(_by_row(c, codes, scales, c.opt(zero), bits))
        else:
            weights.append(_real(c, codes, scales, c.opt(zero), block, bits))
    first, second, third = weights
    if first is None or second is None:
        c.refuse("the weights of fc1 or fc2 are missing")
    return _mixture(c, c.x(0), c.x(1), c.opt(14), (first, second, third), (c.opt(4), c.opt(7), c.opt(10)))


def _by_row(c: Call, codes: Node, scales: Node, zeros: Node | None, bits: int) -> Node:
    m = Formula(c)
    column = (*scales.shape, 1)
    point = c.full(1 << (bits - 1), f32, column)
    if zeros is not None:
        point = c.reshape(c.cast(c.slice_axis(_unpacked(c, zeros, bits), 1, 0, scales.shape[1]), f32), column)
    return c.cast(m.mul(m.sub(c.cast(codes, f32), point), c.reshape(c.cast(scales, f32), column)), scales.dtype)


def _mixture(
    c: Call, x: Node, router: Node, shares: Node | None, weights: tuple[Node, Node, Node | None],
    biases: tuple[Node | None, Node | None, Node | None],
) -> Node:  # fmt: skip
    """Each token through its ``k`` best experts, weighted by softmax of the router's scores or by ``shares``."""
    m = Formula(c)
    if c.flag("use_sparse_mixer"):
        c.refuse("use_sparse_mixer=1 is not supported", "export with an ordinary router")
    width, k = x.shape[-1], c.int_("k", 1)
    n_tokens = product(x.shape[:-1])
    best, which = c.results(c(ops.top_k, router, k=k, axis=1, largest=True, sorted=True))
    normal = c.flag("normalize_routing_weights")
    if shares is not None:
        part = c(ops.gather_elements, shares, which, axis=1)
        part = m.div(part, c(ops.reduce_sum, part, axes=(1,), keepdims=True)) if normal else part
    elif normal:
        part = c(ops.softmax, best, axis=1)
    else:
        part = c(ops.gather_elements, c(ops.softmax, router, axis=1), which, axis=1)
    rows = c.reshape(c.expand(c.reshape(x, (n_tokens, 1, width)), (n_tokens, k, width)), (n_tokens * k, width))
    group = c.reshape(which, (n_tokens * k,))
    y = _activated(c, rows, group, weights, biases)
    y = m.mul(_through(c, y, weights[1], biases[1], group), c.reshape(part, (n_tokens * k, 1)))
    joined = c(ops.reduce_sum, c.reshape(y, (n_tokens, k, y.shape[1])), axes=(1,), keepdims=False)
    return c.reshape(joined, (*x.shape[:-1], y.shape[1]))


def _through(c: Call, rows: Node, weights: Node, bias: Node | None, group: Node) -> Node:
    y = c(ops.grouped_matmul, rows, c.transpose(c.cast(weights, rows.dtype), (0, 2, 1)), group)
    return y if bias is None else c(ops.add, y, c(ops.gather, bias, group, axis=0))


def _activated(
    c: Call, rows: Node, group: Node, weights: tuple[Node, Node, Node | None],
    biases: tuple[Node | None, Node | None, Node | None],
) -> Node:  # fmt: skip
    """The hidden layer; SwiGLU's gate and linear part are one product or two."""
    m = Formula(c)
    name = c.choice("activation_type", ("relu", "gelu", "silu", "swiglu", "identity"), "relu")
    fusion, alpha = c.int_("swiglu_fusion", 0), c.float_("activation_alpha", 1.0)
    beta = c.float_("activation_beta", 0.0)
    limit = c.float_("swiglu_limit", float("inf"))
    y = _through(c, rows, weights[0], biases[0], group)
    if name != "swiglu":
        if weights[2] is not None:
            gate = c(ops.mul, y, c(ops.sigmoid, y)) if name == "silu" else _plain(c, y, name)
            return m.mul(gate, _through(c, rows, weights[2], biases[2], group))
        return _plain(c, y, name)
    if weights[2] is not None:
        gate, linear = y, _through(c, rows, weights[2], biases[2], group)
    else:
        n, half = y.shape[0], expr.floordiv(y.shape[1], 2)
        if fusion == 1:  # gate and linear part alternate; else one lies behind the other
            pairs = c.reshape(y, (n, half, 2))
            gate, linear = m.row(pairs, 0), m.row(pairs, 1)
        else:
            gate, linear = c.slice_axis(y, 1, 0, half), c.slice_axis(y, 1, half, y.shape[1])
    if limit != float("inf"):  # the gate only from above
        gate, linear = m.min(gate, limit), m.clip(linear, -limit, limit)
    return m.mul(m.mul(gate, c(ops.sigmoid, m.mul(gate, alpha))), m.add(linear, beta))


def _plain(c: Call, y: Node, name: str) -> Node:
    if name == "relu":
        return c(ops.relu, y)
    if name == "gelu":
        return c(ops.gelu, y, approximate="tanh")
    return c(ops.mul, y, c(ops.sigmoid, y)) if name == "silu" else y


TABLE: Table = {
    "GatherBlockQuantized": _gather_block_quantized,
    "MatMulBnb4": _table_matmul,
    "MatMulNBits": _bits_matmul,
    "MoE": _experts,
    "QMoE": _quantised_experts,
}
