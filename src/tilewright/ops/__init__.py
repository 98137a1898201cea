"""Every op of the compiler by name: ``ops.add``, ``ops.conv``...; each is an ``OpDef`` of its family's file.

In: nothing. Out: the ops, ``ALL`` in the order of the catalogue, and ``by_name``.
Not its business: what passes, frontends and lowering do with an op; they read its ``OpDef``.
"""

from tilewright.core.opdef import OpDef
from tilewright.ops.activations import (
    celu,
    elu,
    gelu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    mish,
    quick_gelu,
    relu,
    selu,
    sigmoid,
    silu,
    softplus,
    softsign,
)
from tilewright.ops.attend import attention, rotary
from tilewright.ops.blocked import block_matmul
from tilewright.ops.coded import coded_matmul
from tilewright.ops.contract import einsum, matmul
from tilewright.ops.control import if_, loop, map_parts
from tilewright.ops.convolution import conv, conv_transpose
from tilewright.ops.eigen import eigh, eigvalsh, svd, svdvals
from tilewright.ops.elementwise import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitcast,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    cast,
    ceil,
    clamp,
    cos,
    cosh,
    div,
    eq,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    floor_div,
    fmod,
    ge,
    gt,
    isinf,
    isnan,
    le,
    log,
    log1p,
    log2,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    lt,
    maximum,
    minimum,
    mod,
    mul,
    mul_pair,
    ne,
    neg,
    pow,
    prelu,
    reciprocal,
    round,
    rsqrt,
    shift_left,
    shift_right,
    sign,
    sin,
    sinh,
    sqrt,
    sub,
    tan,
    tanh,
    trunc,
    where,
)
from tilewright.ops.fourier import fourier
from tilewright.ops.fourier_library import fourier_library
from tilewright.ops.fourier_pass import fourier_pass
from tilewright.ops.grouped import grouped_matmul
from tilewright.ops.index import dynamic_slice, gather, gather_elements, gather_nd, one_hot
from tilewright.ops.ldl import ldl, solve_ldl
from tilewright.ops.linalg import cholesky, lu, pivot_order, solve_triangular
from tilewright.ops.movement import (
    concat,
    depth_to_space,
    expand,
    reshape,
    reverse,
    roll,
    space_to_depth,
    tile,
    transpose,
)
from tilewright.ops.narrow import decode, encode
from tilewright.ops.norm import (
    batch_norm,
    group_norm,
    instance_norm,
    l2_normalize,
    layer_norm,
    log_softmax,
    lrn,
    rms_norm,
    softmax,
)
from tilewright.ops.order import argwhere, nonzero, ranked, sort, top_k
from tilewright.ops.pool import avg_pool, max_pool, max_pool_indices
from tilewright.ops.qr import geqrf, orthogonal, reflect
from tilewright.ops.quads import quad_matmul
from tilewright.ops.quant import dequantize_linear, dynamic_quantize_linear, quantize_linear, rescale
from tilewright.ops.random import random_normal, random_uniform
from tilewright.ops.recurrence import gru_scan, lstm_scan, rnn_scan
from tilewright.ops.reduce import (
    argmax,
    argmin,
    cummax,
    cummin,
    cumprod,
    cumsum,
    linear_scan,
    logsumexp,
    reduce_all,
    reduce_any,
    reduce_l1,
    reduce_l2,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    variance,
)
from tilewright.ops.resize import resize
from tilewright.ops.rnn import gru, lstm, rnn
from tilewright.ops.scaled import scaled_matmul
from tilewright.ops.scatter import dynamic_update_slice, scatter_elements, scatter_nd
from tilewright.ops.sizes import as_size, with_sizes
from tilewright.ops.source import dim_values, full, iota
from tilewright.ops.special import (
    airy_ai,
    bessel_i0,
    bessel_i0e,
    bessel_i1,
    bessel_i1e,
    bessel_j0,
    bessel_j1,
    bessel_k0,
    bessel_k0e,
    bessel_k1,
    bessel_k1e,
    bessel_y0,
    bessel_y1,
    digamma,
    erfc,
    erfcx,
    erfinv,
    lgamma,
    ndtri,
    polynomial,
    spherical_j0,
    zeta,
)
from tilewright.ops.suppress import suppress
from tilewright.ops.window import pad, trilu
from tilewright.ops.window import slice_ as slice
from tilewright.ops.winograd import winograd_conv

# fmt: off
ALL: tuple[OpDef, ...] = (
    # element-wise, one operand
    neg, abs, sign, exp, exp2, expm1, log, log2, log1p, sqrt, rsqrt, reciprocal, sin, cos, tan, asin, acos, atan, sinh,
    cosh, tanh, asinh, acosh, atanh, erf, floor, ceil, round, trunc, logical_not, bitwise_not, isnan, isinf,
    # special functions
    polynomial, erfc, erfcx, erfinv, ndtri, lgamma, digamma, zeta, bessel_i0, bessel_i0e, bessel_i1, bessel_i1e,
    bessel_k0, bessel_k0e, bessel_k1, bessel_k1e, bessel_j0, bessel_j1, bessel_y0, bessel_y1, spherical_j0, airy_ai,
    # activations
    sigmoid, relu, silu, gelu, leaky_relu, elu, selu, celu, softplus, hard_sigmoid, hard_swish, mish, softsign,
    quick_gelu,
    # element-wise, more operands
    add, sub, mul, div, floor_div, mod, fmod, pow, minimum, maximum, atan2, logical_and, logical_or, logical_xor,
    bitwise_and, bitwise_or, bitwise_xor, shift_left, shift_right, eq, ne, lt, le, gt, ge, where, clamp, cast, bitcast,
    prelu, mul_pair,
    # sources
    iota, dim_values, full, random_uniform, random_normal,
    # reductions
    reduce_sum, reduce_prod, reduce_max, reduce_min, reduce_any, reduce_all, reduce_mean, logsumexp, reduce_l1,
    reduce_l2, variance, argmax, argmin, cumsum, cumprod, cummax, cummin, linear_scan,
    # contractions and pools
    matmul, einsum, grouped_matmul, block_matmul, coded_matmul, scaled_matmul, conv, conv_transpose, winograd_conv,
    quad_matmul, max_pool, avg_pool, max_pool_indices,
    # linear algebra
    cholesky, lu, pivot_order, solve_triangular, geqrf, reflect, orthogonal, eigh, eigvalsh, svd, svdvals, ldl,
    solve_ldl, fourier, fourier_library, fourier_pass,
    # normalisation, softmax, attention
    batch_norm, layer_norm, rms_norm, group_norm, instance_norm, lrn, l2_normalize, softmax, log_softmax, attention,
    rotary,
    # moving data: movement, windows, indices, scatters, sizes, order, size, quantisation, recurrence, control
    concat, depth_to_space, expand, reshape, reverse, roll, space_to_depth, tile, transpose, pad, slice, trilu,
    dynamic_slice, gather, gather_elements, gather_nd, one_hot, dynamic_update_slice, scatter_elements, scatter_nd,
    as_size, with_sizes, argwhere, nonzero, sort, suppress, top_k, ranked, resize, decode, encode, dequantize_linear,
    dynamic_quantize_linear, quantize_linear, rescale, gru_scan, lstm_scan, rnn_scan, gru, lstm, rnn, if_, loop,
    map_parts,
)
# fmt: on

_BY_NAME: dict[str, OpDef] = {op.name: op for op in ALL}


def by_name(name: str) -> OpDef:
    """The op called ``name``; ``KeyError`` when there is none."""
    return _BY_NAME[name]
