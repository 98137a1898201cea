"""More functions of JAX in the manner of well-known libraries: few bits, linear algebra, rendering, control flow.

Read by ``test_stablehlo`` with the other cases.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frontend.jax_cases import R, case, f32, i32
from frontend.jax_repositories import CASES, of_all

x, y, v, M = f32(4, 5), f32(4, 5), f32(9), f32(5, 5)
S = M @ M.T + 5 * np.eye(5, dtype=np.float32)

# --- half precision, whole numbers, bits


def mixed(params, x, labels):
    """A loss that is scaled in bf16, and gradients that are looked at for overflow."""
    low = of_all(lambda p: p.astype(jnp.bfloat16), params)

    def loss(p):
        h = jax.nn.relu(x.astype(jnp.bfloat16) @ p[0])
        logits = (h @ p[1]).astype(jnp.float32)
        return 8 * -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()

    value, grads = jax.value_and_grad(loss)(low)
    grads = of_all(lambda g: g.astype(jnp.float32) / 8, grads)
    finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in grads]))
    return value / 8, [jnp.where(finite, p - 0.1 * g, p) for p, g in zip(params, grads, strict=True)]


def tolerant(f):
    """Its results are rounded further than sums in bf16 may differ."""
    return lambda *a: of_all(lambda t: jnp.round(t.astype(jnp.float32) * 8) / 8, f(*a))


case(
    "repo hash",
    lambda a: lax.fori_loop(0, 5, lambda i, h: ((h ^ (h >> 15)) * jnp.uint32(0x85EBCA6B)) ^ (h << 7 | h >> 25), a),
    R.integers(0, 2**32, 9).astype(np.uint32),
)


def morton(a, b):
    """Bits of two numbers in turn, and apart again."""

    def spread(n):
        for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
            n = (n | (n << shift)) & jnp.uint32(mask)
        return n

    code = spread(a) | spread(b) << 1
    order = jnp.argsort(code)
    return code, order, lax.clz(code), lax.population_count(code ^ (code >> 1))


case("repo morton", morton, *(R.integers(0, 2**16, (2, 9)).astype(np.uint32)))


def collatz(n):
    def steps(n):
        return lax.while_loop(
            lambda s: s[0] != 1, lambda s: (jnp.where(s[0] & 1, 3 * s[0] + 1, s[0] >> 1), s[1] + 1), (n, 0)
        )[1]

    return jax.vmap(steps)(n)


case("repo collatz", collatz, i32(40, 7) + 1)


def int8_linear(x, w, scale):
    """Rows by their own scales, products of bytes, codes again."""
    s = jnp.max(jnp.abs(x), -1, keepdims=True) / 127
    q = jnp.clip(jnp.round(x / s), -128, 127).astype(jnp.int8)
    y = lax.dot_general(q, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return y.astype(jnp.float32) * s * scale, y


case("repo int8 linear", int8_linear, x, R.integers(-128, 128, (5, 7)).astype(np.int8), np.abs(f32(7)))


def packed_nibbles(w, scale, x):
    low = (w & 0xF).astype(jnp.int8) - 8
    high = (w >> 4).astype(jnp.int8) - 8
    real = jnp.stack([low, high], -1).reshape(w.shape[0], -1) * scale[:, None]
    return x @ real.T


case("repo nibbles", packed_nibbles, R.integers(0, 256, (6, 4)).astype(np.uint8), np.abs(f32(6)), f32(3, 8))


def stochastic_rounding(seed, a):
    bits = lax.bitcast_convert_type(a, jnp.uint32)
    noise = jax.random.bits(jax.random.key(seed), a.shape, jnp.uint16).astype(jnp.uint32)
    return lax.bitcast_convert_type((bits + noise) & jnp.uint32(0xFFFF0000), jnp.float32).astype(jnp.bfloat16)


case("repo stochastic rounding", stochastic_rounding, np.int32(3), x)

# --- linear algebra, transforms


def kalman(z, f, h):
    """Covariances by Cholesky factors, innovations and their likelihood."""
    q, r = 0.1 * jnp.eye(3), 0.5 * jnp.eye(2)

    def step(c, z):
        m, p = c
        m, p = f @ m, f @ p @ f.T + q
        s = h @ p @ h.T + r
        gain = jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(s), h @ p).T
        e = z - h @ m
        ll = jax.scipy.stats.multivariate_normal.logpdf(e, jnp.zeros(2), s)
        return (m + gain @ e, (jnp.eye(3) - gain @ h) @ p), (m, ll)

    return lax.scan(step, (jnp.zeros(3), jnp.eye(3)), z)


case("repo kalman", kalman, f32(6, 2), f32(3, 3) * 0.4, f32(2, 3))


def power_iteration(a, b):
    def body(c):
        u, n, last, _ = c
        u = a @ u
        value = jnp.linalg.norm(u)
        return u / value, n + 1, value, last

    u, n, value, _ = lax.while_loop(lambda c: (jnp.abs(c[2] - c[3]) > 1e-3) & (c[1] < 30), body,
                                    (b, 0, jnp.float32(1), jnp.float32(0)))  # fmt: skip
    return jnp.abs(u), value, n >= 1


case("repo power iteration", power_iteration, S, v[:5])


def spectral_norm_conv(x, w):
    """The Fourier layer: low frequencies mixed by complex weights, and a bypass."""
    k = jnp.fft.rfft(x, axis=0)
    low = jnp.einsum("kc,kcd->kd", k[:3], w)
    out = jnp.zeros((k.shape[0], w.shape[2]), jnp.complex64).at[:3].set(low)
    return jax.nn.gelu(jnp.fft.irfft(out, n=x.shape[0], axis=0) + x)


case("repo fourier layer", spectral_norm_conv, f32(10, 3), (f32(3, 3, 3) + 1j * f32(3, 3, 3)).astype(np.complex64))


def gp_grad(xs, ys, log_length):
    def nll(log_length):
        d = (xs[:, None] - xs[None]) / jnp.exp(log_length)
        k = jnp.exp(-0.5 * d * d) + 0.1 * jnp.eye(xs.size)
        c = jnp.linalg.cholesky(k)
        a = jax.scipy.linalg.solve_triangular(c, ys, lower=True)
        return 0.5 * a @ a + jnp.log(jnp.diagonal(c)).sum()

    return jax.value_and_grad(nll)(log_length), jax.hessian(nll)(log_length)


case("repo gp grad", gp_grad, v, f32(9), np.float32(0.1))


def volume(density, colour, t):
    """Rendering along rays: transmittances by exclusive products, depths, the gradient of the density."""

    def render(density):
        delta = jnp.concatenate([t[1:] - t[:-1], jnp.full(1, 1e10)])
        alpha = 1 - jnp.exp(-jax.nn.relu(density) * delta)
        trans = jnp.cumprod(jnp.concatenate([jnp.ones((alpha.shape[0], 1)), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        w = alpha * trans
        return (w[..., None] * colour).sum(1), (w * t).sum(-1)

    return render(density), jax.grad(lambda d: render(d)[0].sum())(density)


case("repo volume", volume, f32(3, 6), np.abs(f32(3, 6, 3)), np.linspace(0, 1, 6, dtype=np.float32))


def encoding(points, table):
    """A grid's corners by a hash, mixed by where the point lies."""
    scaled = points * 7
    base = jnp.floor(scaled)
    part = scaled - base
    total = 0.0
    for corner in np.ndindex(2, 2, 2):
        at = (base.astype(jnp.uint32) + jnp.array(corner, jnp.uint32)) * jnp.array(
            [1, 2654435761, 805459861], jnp.uint32
        )
        index = (at[:, 0] ^ at[:, 1] ^ at[:, 2]) % jnp.uint32(table.shape[0])
        share = jnp.prod(jnp.where(jnp.array(corner) == 1, part, 1 - part), -1)
        total = total + table[index] * share[:, None]
    return total


case("repo hash encoding", encoding, np.abs(f32(5, 3)), f32(16, 2))


def dynamic_rows(a, lengths):
    """Rows that end at their own lengths: reversed, last of each, and sums of windows that slide."""

    def one(row, n):
        at = jnp.arange(row.size)
        turned = row[jnp.where(at < n, n - 1 - at, at)]
        last = lax.dynamic_index_in_dim(row, n - 1, keepdims=False)
        sums = lax.fori_loop(
            0, n, lambda i, s: s.at[i].set(lax.dynamic_slice(row, (i,), (2,)).sum()), jnp.zeros(row.size)
        )
        return turned, last, sums

    return jax.vmap(one)(a, lengths)


case("repo dynamic rows", dynamic_rows, x, np.array([1, 5, 3, 2], np.int32))


def percentile_clip(a):
    low, high = jnp.percentile(a, jnp.array([5.0, 95.0]))
    ranks = jnp.argsort(jnp.argsort(a.ravel())).reshape(a.shape)
    top = jnp.partition(a.ravel(), 3)[:4]
    return jnp.clip(a, low, high), ranks, jnp.sort(top), jnp.lexsort((a[0], a[1]))


case("repo percentiles", percentile_clip, x)


def scan_of_conds(a):
    """Branches that each loop in their own way, in a loop, under ``vmap`` and ``grad``."""

    def f(a):
        def step(c, t):
            c = lax.switch(
                t.astype(jnp.int32) % 3,
                [
                    lambda c: lax.fori_loop(0, 2, lambda i, s: s * 0.9, c),
                    jnp.sin,
                    lambda c: lax.cond(c.sum() > 0, lambda s: s - 1, lambda s: s * 2, c),
                ],
                c,
            )
            return c, c.max()

        return lax.scan(step, a, jnp.arange(6.0))[1].sum()

    return jax.vmap(jax.value_and_grad(f))(a)


case("repo scan of conds", scan_of_conds, x)


def robust_while(a):
    """A loop in a loop whose bounds follow from data, with a carry of booleans and small integers."""

    def outer(s):
        i, total, seen = s
        inner = lax.while_loop(lambda t: t[0] * t[0] < a[i] * a[i], lambda t: (t[0] + 1, t[1] + t[0]), (0, 0.0))
        return i + jnp.int16(1), total + inner[1], seen.at[i].set(inner[0] > 1)

    return lax.while_loop(lambda s: s[0] < 5, outer, (jnp.int16(0), jnp.float32(0), jnp.zeros(5, bool)))


case("repo loops by data", robust_while, v[:5] * 3)
case("repo mixed", tolerant(mixed), [f32(5, 8), f32(8, 3)], x, i32(3, 4))

__all__ = ["CASES"]
