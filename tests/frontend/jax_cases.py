"""Functions of jax.numpy and jax.lax with arguments, by families, to compare with JAX itself.

``CASES`` has a function and its arguments by name; ``jax_nets`` adds whole nets.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

R = np.random.default_rng(0)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def f32(*shape):
    return R.standard_normal(shape).astype(np.float32)


def i32(limit, *shape):
    return R.integers(0, limit, shape).astype(np.int32)


def case(name, function, *arguments):
    assert name not in CASES
    CASES[name] = (function, arguments)


x = f32(4, 5)
y = f32(4, 5)
v = f32(8)
p = np.abs(x) + 0.1
for n in (
    "sin cos tan tanh exp expm1 sqrt abs sign floor ceil round "
    "arctan arcsinh cbrt square negative sinh cosh trunc rint isnan isfinite isinf nan_to_num"
).split():
    case(n, getattr(jnp, n), x)
for n in "log log1p log2 log10 exp2 reciprocal".split():
    case(n, getattr(jnp, n), p)
for n in "arcsin arccos arctanh".split():
    case(n, getattr(jnp, n), np.tanh(x))
case("arccosh", jnp.arccosh, p + 1)
for n in (
    "add subtract multiply divide maximum minimum arctan2 hypot "
    "logaddexp copysign nextafter heaviside floor_divide mod remainder fmod"
).split():
    case(n, getattr(jnp, n), x, y)
case("power", jnp.power, p, y)
case("intpow", lambda a: a**3, x)
case(
    "idiv",
    lambda a, b: (a // b, a % b, lax.div(a, b), lax.rem(a, b)),
    i32(9, 6) - 4,
    np.array([0, 1, -1, 2, -3, 5], np.int32),
)
for n in "erf erfc erfinv gammaln digamma i0 i0e i1 i1e ndtr ndtri logit expit xlogy entr log_ndtr".split():
    given = (p, p) if n == "xlogy" else (np.tanh(p) * 0.9,) if n in ("ndtri", "logit", "erfinv") else (p,)
    case("sp." + n, getattr(jax.scipy.special, n), *given)
case("polygamma", lambda a: jax.scipy.special.polygamma(1, a), p)
case("zeta", lambda a: jax.scipy.special.zeta(a + 1.5, a), p)
case("betainc", lambda a: jax.scipy.special.betainc(a + 0.5, a + 0.3, 0.3), p)
case("gammainc", lambda a: jax.scipy.special.gammainc(a, a + 0.3), p)
case(
    "bits",
    lambda a, b: (
        a & b,
        a | b,
        a ^ b,
        ~a,
        a << 2,
        a >> 1,
        lax.shift_right_logical(a, jnp.int32(1)),
        lax.population_count(a),
        lax.clz(a),
    ),
    i32(99999, 6) - 50000,
    i32(999, 6),
)
case(
    "bitcast",
    lambda a: (
        lax.bitcast_convert_type(a, jnp.int32),
        lax.bitcast_convert_type(a, jnp.uint8),
        lax.bitcast_convert_type(lax.bitcast_convert_type(a, jnp.uint16), jnp.float32),
    ),
    x,
)
case(
    "casts",
    lambda a: (
        a.astype(jnp.int32),
        a.astype(jnp.bfloat16),
        a.astype(jnp.float16),
        a.astype(bool),
        a.astype(jnp.uint8),
        a.astype(jnp.int8),
    ),
    x * 3,
)
case("redprec", lambda a: lax.reduce_precision(a, 8, 7), x)
case("bf16 matmul", lambda a, b: a.astype(jnp.bfloat16) @ b.astype(jnp.bfloat16).T, x, y)
case("compare", lambda a, b: (a < b, a == b, a != b, a >= b, jnp.where(a > b, a, b)), x, y)
case(
    "boolcmp",
    lambda a, b: ((a > 0) < (b > 0), (a > 0) == (b > 0), (a > 0) & (b > 0), jnp.logical_xor(a > 0, b > 0)),
    x,
    y,
)
# reductions
for n in "sum prod max min mean var std argmax argmin cumsum cumprod ptp median nansum nanmax any all".split():

    def along_both(a, name=n):
        of = getattr(jnp, name)
        return of(a, axis=1), of(a, axis=0)

    case(f"red.{n}", along_both, x > 0 if n in ("any", "all") else x)
case(
    "argmax nan",
    lambda a: (jnp.argmax(a), jnp.argmin(a), jnp.argmax(a.astype(jnp.int32))),
    np.array([1, np.nan, 3, np.nan, 2], np.float32),
)
case(
    "cummax", lambda a: (lax.cummax(a, 0), lax.cummin(a, 1), lax.cumlogsumexp(a, 1), lax.cumsum(a, 0, reverse=True)), x
)
case("logsumexp", lambda a: jax.scipy.special.logsumexp(a, axis=1), x)
case("softmax", lambda a: (jax.nn.softmax(a), jax.nn.log_softmax(a)), x)
case("general reduce", lambda a: lax.reduce(a, np.float32(0), lambda p, q: p + q + p * q * 0.1, (1,)), np.abs(x) * 0.1)
case(
    "reduce and int",
    lambda a: (
        lax.reduce(a, np.int32(-1), lax.bitwise_and, (0,)),
        lax.reduce(a, np.int32(0), lax.bitwise_or, (0,)),
        lax.reduce(a, np.int32(0), lax.bitwise_xor, (0,)),
        a.sum(),
        a.max(),
        a.prod(),
    ),
    i32(99, 3, 4),
)
case(
    "reduce pair",
    lambda a, b: lax.reduce((a, b), (np.float32(0), np.float32(1)), lambda p, q: (p[0] + q[0], p[1] * q[1]), (0,)),
    x,
    y,
)
for n in (
    "relu gelu silu elu selu celu softplus leaky_relu "
    "hard_swish log_sigmoid glu mish squareplus hard_tanh relu6 soft_sign"
).split():
    case("nn." + n, getattr(jax.nn, n), f32(4, 6))
case("nn.normalize", jax.nn.standardize, x)
case("one_hot", lambda i: jax.nn.one_hot(i, 5), i32(5, 4))
# movement
case(
    "reshape etc",
    lambda a: (
        a.T,
        a.reshape(2, 10),
        jnp.flip(a, 1),
        jnp.roll(a, 2, 0),
        jnp.tile(a, (2, 1)),
        jnp.repeat(a, 2, axis=1),
        jnp.stack([a, a]),
        jnp.concatenate([a, a], 1),
        jnp.expand_dims(a, 1),
        jnp.squeeze(a[None]),
        jnp.rot90(a),
        jnp.swapaxes(a, 0, 1),
        jnp.moveaxis(a, 0, 1),
        jnp.ravel(a),
        jnp.split(a, 2),
    ),
    x,
)
case(
    "pad",
    lambda a: (
        jnp.pad(a, 1),
        jnp.pad(a, 2, mode="reflect"),
        jnp.pad(a, 1, mode="edge"),
        lax.pad(a, np.float32(9), ((1, -1, 2), (-2, 3, 0))),
        lax.pad(a, np.float32(9), ((-1, 0, 1), (0, 0, 1))),
    ),
    x,
)
case("slices", lambda a: (a[1:3], a[::2, 1::2], a[::-1], a[-1], a[..., None], a[1, 2]), x)
case("tri", lambda a: (jnp.tril(a), jnp.triu(a, 1), jnp.diag(a[:4, :4]), jnp.eye(3), jnp.diagonal(a), jnp.trace(a)), x)
case(
    "arange",
    lambda a: (jnp.arange(5) + a[0, 0], jnp.linspace(0.0, a[0, 1], 7), jnp.zeros((2,)), jnp.full((2, 3), 7.0)),
    x,
)
case("meshgrid", jnp.meshgrid, v, v[:3])
# index
case(
    "take",
    lambda a, i: (
        a[i],
        a[:, i],
        jnp.take(a, i, axis=0),
        a[i, i],
        a[i, 1:3],
        jnp.take_along_axis(a, i[:, None], axis=1),
    ),
    x,
    i32(4, 4),
)
case(
    "gather oob",
    lambda a, i: (a.at[i].get(mode="fill", fill_value=-1), a.at[i].get(mode="clip"), a[i]),
    v,
    np.array([-9, -1, 0, 7, 8, 100], np.int32),
)
case(
    "scatter",
    lambda a, i, u: (
        a.at[i].set(u),
        a.at[i].add(u),
        a.at[i].mul(u),
        a.at[i].min(u),
        a.at[i].max(u),
        a.at[1].set(0),
        a.at[:, 2].add(1.0),
        a.at[1:3, 2:4].set(5.0),
        a.at[0, 0].set(3.0),
    ),
    x,
    np.array([0, 2, 2], np.int32)[:3],
    f32(3, 5),
)
case(
    "scatter oob",
    lambda a, i, u: (a.at[i].add(u, mode="drop"), a.at[i].set(u, mode="clip")),
    v,
    np.array([1, 20, -30], np.int32),
    f32(3),
)
case("scatter bool", lambda a, i: (a > 0).at[i].set(True), v, np.array([1, 3], np.int32))
case("scatter 2d", lambda a, i, j, u: a.at[i, j].add(u), x, i32(4, 6), i32(5, 6), f32(6))
case(
    "dyn",
    lambda a, i: (
        lax.dynamic_slice(a, (i, i), (2, 3)),
        lax.dynamic_update_slice(a, jnp.ones((2, 2)), (i, 0)),
        lax.dynamic_index_in_dim(a, i, 1),
    ),
    x,
    np.int32(2),
)
case(
    "segment",
    lambda a, i: (jax.ops.segment_sum(a, i, 4), jax.ops.segment_max(a, i, 4)),
    x,
    np.array([0, 2, 2, 1], np.int32),
)
case("bincount", lambda i: jnp.bincount(i, length=6), i32(6, 20))
case("searchsorted", lambda a, b: jnp.searchsorted(jnp.sort(a), b), v, v[:3])
case("histogram", lambda a: jnp.histogram(a, bins=5)[0], v)
case("where idx", lambda a: jnp.nonzero(a > 0, size=10, fill_value=0), x)
case("interp", lambda a: jnp.interp(a, jnp.arange(5.0), jnp.arange(5.0) ** 2), p)
case("unique", lambda i: jnp.unique(i, size=5, fill_value=0), i32(4, 8))
# sort
case(
    "sort",
    lambda a: (jnp.sort(a), jnp.sort(a, axis=0), jnp.argsort(a, axis=1), -jnp.sort(-a), jnp.sort(a, descending=True)),
    x,
)
case("sort nan", lambda a: (jnp.sort(a), jnp.argsort(a)), np.array([1, np.nan, -np.inf, -0.0, 0.0, 3], np.float32))
case("lexsort", lambda a, b: jnp.lexsort((a, b)), i32(3, 8), i32(3, 8))
case("sort kv", lambda a, b: lax.sort((a, b), num_keys=1), i32(3, 8), v)
case("sort 2k", lambda a, b, c: lax.sort((a, b, c), num_keys=2), i32(3, 8), i32(3, 8), v)
case("topk", lambda a: lax.top_k(a, 3), x)
case("sort i", lambda a: (jnp.sort(a), jnp.sort(a.astype(jnp.uint8))), i32(200, 8) - 100)
case("percentile", lambda a: jnp.percentile(a, 30.0, axis=0), x)
# dots
case(
    "dots",
    lambda a, b: (
        a @ b.T,
        jnp.dot(a[0], b[0]),
        jnp.einsum("ij,kj->ik", a, b),
        jnp.outer(a[0], b[0]),
        jnp.tensordot(a, b, 2),
        jnp.inner(a, b),
        jnp.vdot(a, b),
        jnp.kron(a[:2, :2], b[:2, :2]),
    ),
    x,
    y,
)
case(
    "bmm",
    lambda a, b: (
        jnp.einsum("bij,bjk->bik", a, b),
        jnp.einsum("bhij,bhkj->bhik", a[:, None], b.swapaxes(1, 2)[:, None]),
        jnp.matmul(a, b),
    ),
    f32(3, 4, 5),
    f32(3, 5, 6),
)
case(
    "int dot",
    lambda a, b: (a @ b, lax.dot(a.astype(jnp.int8), b.astype(jnp.int8), preferred_element_type=jnp.int32)),
    i32(9, 3, 4),
    i32(9, 4, 2),
)
dn = ("NHWC", "HWIO", "NHWC")
case(
    "conv",
    lambda a, w: lax.conv_general_dilated(a, w, (2, 1), "SAME", dimension_numbers=dn),
    f32(2, 7, 8, 3),
    f32(3, 3, 3, 4),
)
case("conv nchw", lambda a, w: lax.conv(a, w, (1, 1), "VALID"), f32(2, 3, 7, 8), f32(4, 3, 3, 3))
case(
    "conv dil",
    lambda a, w: lax.conv_general_dilated(a, w, (1, 1), ((1, 2), (0, 3)), rhs_dilation=(2, 1), dimension_numbers=dn),
    f32(2, 7, 8, 3),
    f32(3, 3, 3, 4),
)
case(
    "conv lhs",
    lambda a, w: lax.conv_general_dilated(a, w, (1, 1), ((1, 2), (0, 3)), lhs_dilation=(2, 3), dimension_numbers=dn),
    f32(2, 5, 4, 3),
    f32(3, 2, 3, 4),
)
case(
    "conv lhs stride",
    lambda a, w: lax.conv_general_dilated(a, w, (2, 1), ((1, 2), (0, 3)), lhs_dilation=(2, 3), dimension_numbers=dn),
    f32(2, 5, 4, 3),
    f32(3, 2, 3, 4),
)
case(
    "conv grp",
    lambda a, w: lax.conv_general_dilated(a, w, (1, 1), "SAME", dimension_numbers=dn, feature_group_count=2),
    f32(2, 5, 4, 4),
    f32(3, 2, 2, 6),
)
case(
    "conv depth",
    lambda a, w: lax.conv_general_dilated(a, w, (1, 1), "SAME", dimension_numbers=dn, feature_group_count=4),
    f32(2, 5, 4, 4),
    f32(3, 2, 1, 4),
)
case(
    "conv batchgrp",
    lambda a, w: lax.conv_general_dilated(a, w, (1, 1), "SAME", dimension_numbers=dn, batch_group_count=2),
    f32(4, 5, 4, 3),
    f32(3, 2, 3, 6),
)
case(
    "conv 1d",
    lambda a, w: lax.conv_general_dilated(a, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")),
    f32(2, 9, 3),
    f32(3, 3, 4),
)
case("conv 3d", lambda a, w: lax.conv_general_dilated(a, w, (1, 2, 1), "SAME"), f32(1, 2, 4, 5, 6), f32(3, 2, 3, 2, 1))
case(
    "conv transp",
    lambda a, w: lax.conv_transpose(a, w, (2, 2), "SAME", dimension_numbers=dn),
    f32(2, 4, 4, 3),
    f32(3, 3, 3, 4),
)
case(
    "convolve",
    lambda a, b: (jnp.convolve(a, b), jnp.correlate(a, b), jax.scipy.signal.convolve2d(a[None], b[None])),
    v,
    v[:3],
)
case(
    "conv grad",
    jax.grad(lambda w, a: jnp.sum(lax.conv_general_dilated(a, w, (2, 2), "SAME", dimension_numbers=dn) ** 2), (0, 1)),
    f32(3, 3, 3, 4),
    f32(2, 8, 8, 3),
)
# windows
case(
    "maxpool",
    lambda a: (
        lax.reduce_window(a, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        lax.reduce_window(a, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
        lax.reduce_window(a, jnp.inf, lax.min, (1, 2, 3, 1), (1, 1, 2, 1), "SAME"),
    ),
    f32(2, 6, 7, 3),
)
case(
    "rw dil",
    lambda a: (
        lax.reduce_window(
            a, 0.0, lax.add, (2, 3), (2, 1), ((1, 1), (0, 2)), base_dilation=(2, 1), window_dilation=(1, 2)
        ),
        lax.reduce_window(a, 1.0, lax.mul, (2, 2), (1, 1), "VALID"),
    ),
    x,
)
case(
    "rw int",
    lambda a: (
        lax.reduce_window(a, 0, lax.add, (2, 2), (1, 1), "SAME"),
        lax.reduce_window(a, np.int32(-(2**31)), lax.max, (2, 2), (1, 1), "SAME"),
    ),
    i32(9, 4, 5),
)
case(
    "maxpool grad",
    jax.grad(lambda a: jnp.sum(lax.reduce_window(a, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") ** 2)),
    f32(2, 7, 7, 3),
)
case(
    "avgpool grad",
    jax.grad(lambda a: jnp.sum(lax.reduce_window(a, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") ** 2)),
    f32(2, 6, 6, 3),
)
# control
case("scan", lambda a: lax.scan(lambda c, t: (c * 0.9 + t, c - t), jnp.zeros(5), a), x)
case("scan rev", lambda a: lax.scan(lambda c, t: (c * 0.9 + t, c - t), jnp.zeros(5), a, reverse=True), x)
case("scan len", lambda a: lax.scan(lambda c, _: (c * 1.1, c.sum()), a, None, length=3), x)
case("fori", lambda a: lax.fori_loop(0, 4, lambda i, c: c + i * a, a), x)
case("fori dyn", lambda a, n: lax.fori_loop(0, n, lambda i, c: c * 1.5 + i, a), x, np.int32(5))
case(
    "while",
    lambda a: lax.while_loop(lambda c: c[1] < 20.0, lambda c: (c[0] + 1, c[1] * 1.7 + 1), (0, a)),
    np.float32(0.3),
)
case("cond", lambda a, k: lax.cond(k > 1, lambda t: t * 2, lambda t: t - 1, a), x, np.int32(2))
case("switch", lambda a, k: lax.switch(k, [lambda t: t, lambda t: t * 2, jnp.sin], a), x, np.int32(1))
case("cond grad", jax.grad(lambda a, k: lax.cond(k > 1, lambda t: (t**2).sum(), lambda t: t.sum(), a)), x, np.int32(2))
case(
    "scan grad",
    jax.grad(lambda w, a: lax.scan(lambda c, t: (jnp.tanh(c @ w + t), c.sum()), jnp.zeros(5), a)[0].sum()),
    f32(5, 5) * 0.3,
    x,
)
case("nested scan", lambda a: lax.scan(lambda c, t: lax.scan(lambda d, u: (d + u, d), c, t), 0.0, a), x)
case("map", lambda a: lax.map(lambda t: jnp.sort(t) * 2, a), x)
case("assoc", lambda a: lax.associative_scan(jnp.add, a), x)
case("vmap", jax.vmap(lambda p, q: jnp.dot(p, q) * jnp.linalg.norm(p)), x, y)
case("vmap gather", jax.vmap(lambda t, k: t[k]), x, i32(5, 4))
case("vmap scatter", jax.vmap(lambda t, k: t.at[k].add(1.0)), x, i32(5, 4))
case("vmap dyn", jax.vmap(lambda t, k: lax.dynamic_slice(t, (k,), (2,))), x, i32(4, 4))
case(
    "vmap while",
    jax.vmap(lambda t: lax.while_loop(lambda c: c < 5.0, lambda c: c * 1.5 + 0.5, t)),
    np.abs(v),
)
# random
case(
    "rnd",
    lambda s: (
        jax.random.normal(jax.random.key(s), (5,)),
        jax.random.uniform(jax.random.key(s), (4, 3)),
        jax.random.bits(jax.random.key(s), (7,)),
        jax.random.randint(jax.random.key(s), (5,), 0, 100),
    ),
    np.int32(3),
)
case(
    "rnd2",
    lambda s: (
        jax.random.permutation(jax.random.key(s), 10),
        jax.random.categorical(jax.random.key(s), jnp.arange(5.0)),
        jax.random.bernoulli(jax.random.key(s), 0.3, (9,)),
        jax.random.truncated_normal(jax.random.key(s), -1, 1, (4,)),
        jax.random.exponential(jax.random.key(s), (4,)),
        jax.random.key_data(jax.random.split(jax.random.key(s), 3)),
        jax.random.key_data(jax.random.fold_in(jax.random.key(s), 7)),
    ),
    np.int32(3),
)
case(
    "rnd3",
    lambda s: (
        jax.random.gumbel(jax.random.key(s), (4,)),
        jax.random.choice(jax.random.key(s), 10, (3,), replace=False),
        jax.random.dirichlet(jax.random.key(s), jnp.ones(3)),
        jax.random.laplace(jax.random.key(s), (3,)),
    ),
    np.int32(5),
)
case(
    "gamma",
    lambda s: (
        jax.random.gamma(jax.random.key(s), 2.0, (4,)),
        jax.random.poisson(jax.random.key(s), 3.0, (4,)),
        jax.random.beta(jax.random.key(s), 2.0, 3.0, (3,)),
    ),
    np.int32(5),
)
# linalg
A = f32(4, 4)
S = A @ A.T + 4 * np.eye(4, dtype=np.float32)
case("chol", jnp.linalg.cholesky, S)
case("solve", jnp.linalg.solve, S, f32(4))
case("inv", jnp.linalg.inv, S)
case("det", lambda a: (jnp.linalg.det(a), jnp.linalg.slogdet(a)), S)
case("qr", lambda a: jnp.abs(jnp.linalg.qr(a)[1]), f32(5, 3))
case("qr full", lambda a: jnp.abs(jnp.linalg.qr(a, mode="complete")[0]), f32(5, 3))
case("eigh", lambda a: (jnp.linalg.eigh(a)[0], jnp.linalg.eigvalsh(a)), S)
case(
    "svd",
    lambda a: (jnp.linalg.svd(a, compute_uv=False), jnp.abs(jnp.linalg.svd(a, full_matrices=False)[0])),
    f32(5, 3),
)
case("svd full", lambda a: jnp.linalg.svd(a)[1], f32(3, 5))
case("lstsq", lambda a, b: jnp.linalg.lstsq(a, b)[0], f32(6, 3), f32(6))
case("pinv", jnp.linalg.pinv, f32(5, 3))
case(
    "trsolve",
    lambda a, b: (
        jax.scipy.linalg.solve_triangular(a, b, lower=True),
        jax.scipy.linalg.solve_triangular(a, b, lower=False, trans=1),
        lax.linalg.triangular_solve(a, b.T, left_side=False),
    ),
    S,
    f32(4, 3),
)
case("norm", lambda a: (jnp.linalg.norm(a), jnp.linalg.norm(a, ord=2), jnp.linalg.norm(a, axis=1)), S)
case("matpow", lambda a: jnp.linalg.matrix_power(a, 3), S)
case("expm", jax.scipy.linalg.expm, A * 0.3)
case("cho", lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b), S, f32(4))
case("batched chol", jnp.linalg.cholesky, np.stack([S, S * 2]))
case("chol grad", jax.grad(lambda a: jnp.linalg.cholesky(a).sum()), S)
case("lu", lambda a: jax.scipy.linalg.lu(a)[1:], S)
# complex fft
cx = (f32(8) + 1j * f32(8)).astype(np.complex64)
case(
    "fft", lambda a: (jnp.fft.fft(a), jnp.fft.ifft(a), jnp.fft.rfft(a.real), jnp.fft.irfft(a), jnp.fft.fftshift(a)), cx
)
case("fft2", jnp.fft.fft2, f32(4, 8))
case("rfft2", lambda a: (jnp.fft.rfft2(a), jnp.fft.irfft2(jnp.fft.rfft2(a))), f32(4, 8))
case(
    "complex",
    lambda a, b: (
        a * b,
        a / b,
        jnp.abs(a),
        jnp.angle(a),
        jnp.exp(a),
        jnp.conj(a),
        a.real + a.imag,
        jnp.sqrt(a),
        jnp.log(a),
        a**2,
        jnp.sin(a),
        jnp.tanh(a),
    ),
    cx,
    cx[::-1].copy(),
)
case(
    "complex mm",
    lambda a, b: (jnp.outer(a, b) @ jnp.outer(b, a), jnp.vdot(a, b), a.sum(), a == b, jnp.where(a.real > 0, a, b)),
    cx,
    cx[::-1].copy(),
)
case("i64like", lambda a: (a.astype(jnp.uint32) * np.uint32(2654435761), jnp.clip(a, -3, 3), a.sum()), i32(99, 5))
