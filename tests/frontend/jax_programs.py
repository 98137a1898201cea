"""Programs of JAX beyond one function of ``jax_cases``: statistics, solvers, scans, sampling, attention, spectra.

Read by ``test_stablehlo`` with the other cases; each is compared with JAX on the CPU.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frontend.jax_cases import R, case, f32, i32
from frontend.jax_nets import CASES

x, y, v, M = f32(4, 5), f32(4, 5), f32(9), f32(5, 5)
p, S = np.abs(x) + 0.1, M @ M.T + 5 * np.eye(5, dtype=np.float32)

case("program stft", lambda a: jnp.abs(jax.scipy.signal.stft(a, nperseg=16, noverlap=8)[2]), f32(64))
case(
    "program istft",
    lambda a: jax.scipy.signal.istft(jax.scipy.signal.stft(a, nperseg=16, noverlap=8)[2], nperseg=16, noverlap=8)[1],
    f32(64),
)
case("program unwrap", lambda a: jnp.unwrap(a * 4), v)
case("program expi", lambda a: (jax.scipy.special.expi(a), jax.scipy.special.exp1(a)), p)
case("program expn", lambda a: jax.scipy.special.expn(2, a), p)
case("program hyp1f1", lambda a: jax.scipy.special.hyp1f1(1.5, 2.5, a), x)
case("program gammaln-grad", jax.grad(lambda a: jax.scipy.special.gammaln(a).sum()), p)
case(
    "program beta fns",
    lambda a, b: (
        jax.scipy.special.beta(a, b),
        jax.scipy.special.betaln(a, b),
        jax.scipy.special.multigammaln(a + 3, 2),
    ),
    p,
    p[::-1].copy(),
)
case(
    "program rel_entr",
    lambda a, b: (
        jax.scipy.special.rel_entr(a, b),
        jax.scipy.special.kl_div(a, b),
        jax.scipy.special.xlog1py(a, b),
        jax.scipy.special.boxcox(a, 0.3),
    ),
    p,
    p[::-1].copy(),
)
case("program gammainc grad", jax.grad(lambda a: jax.scipy.special.gammainc(a, a + 0.3).sum()), p)
case(
    "program stats norm",
    lambda a: (
        jax.scipy.stats.norm.logpdf(a),
        jax.scipy.stats.norm.cdf(a),
        jax.scipy.stats.norm.ppf(jax.nn.sigmoid(a)),
        jax.scipy.stats.t.logpdf(a, 3.0),
        jax.scipy.stats.cauchy.cdf(a),
        jax.scipy.stats.laplace.logpdf(a),
        jax.scipy.stats.logistic.sf(a),
    ),
    x,
)
case(
    "program stats pos",
    lambda a: (
        jax.scipy.stats.gamma.logpdf(a, 2.0),
        jax.scipy.stats.gamma.cdf(a, 2.0),
        jax.scipy.stats.beta.logpdf(a / 3, 2.0, 3.0),
        jax.scipy.stats.beta.cdf(a / 5, 2.0, 3.0),
        jax.scipy.stats.chi2.logpdf(a, 3.0),
        jax.scipy.stats.chi2.cdf(a, 3.0),
        jax.scipy.stats.expon.logpdf(a),
        jax.scipy.stats.pareto.logpdf(a + 1, 2.0),
        jax.scipy.stats.truncnorm.logpdf(a, -1.0, 2.0),
        jax.scipy.stats.vonmises.pdf(a, 2.0),
        jax.scipy.stats.gennorm.logpdf(a, 2.5),
    ),
    p,
)
case(
    "program stats int",
    lambda a: (
        jax.scipy.stats.poisson.logpmf(a, 3.0),
        jax.scipy.stats.poisson.cdf(a, 3.0),
        jax.scipy.stats.binom.logpmf(a, 9, 0.3),
        jax.scipy.stats.nbinom.logpmf(a, 4, 0.3),
        jax.scipy.stats.geom.logpmf(a + 1, 0.3),
        jax.scipy.stats.betabinom.logpmf(a, 9, 2.0, 3.0),
        jax.scipy.stats.bernoulli.logpmf(a % 2, 0.3),
    ),
    i32(6, 7),
)
case("program stats mvn", lambda a, s: jax.scipy.stats.multivariate_normal.logpdf(a, jnp.zeros(5), s), x, S)
case("program kde", lambda a, b: jax.scipy.stats.gaussian_kde(a)(b), f32(20), v)
case(
    "program nan family",
    lambda a: (
        jnp.nanmean(a, 0),
        jnp.nanstd(a, 1),
        jnp.nanmedian(a, 0),
        jnp.nanpercentile(a, 40.0, axis=1),
        jnp.nanargmax(a, 1),
        jnp.nancumsum(a, 0),
        jnp.nanprod(a),
    ),
    np.where(x > 1, np.nan, x).astype(np.float32),
)
case(
    "program set ops",
    lambda a, b: (
        jnp.isin(a, b),
        jnp.intersect1d(a, b, size=4, fill_value=-1),
        jnp.union1d(a, b, size=8, fill_value=-1),
        jnp.setdiff1d(a, b, size=5, fill_value=-1),
        jnp.unique(a, return_inverse=True, return_counts=True, return_index=True, size=6),
    ),
    i32(5, 8),
    i32(6, 7),
)
case("program unique rows", lambda a: jnp.unique(a, axis=0, size=4), i32(2, 6, 3))
case(
    "program apply",
    lambda a: (
        jnp.apply_along_axis(lambda r: r / r.sum(), 1, a),
        jnp.apply_over_axes(jnp.sum, a, [0, 1]),
        jnp.vectorize(lambda r, s: (r * s).sum(), signature="(n),(n)->()")(a, a),
    ),
    x,
)
case(
    "program trapezoid",
    lambda a: (jnp.trapezoid(a, axis=1), jnp.ediff1d(a), jnp.diff(a, n=2, axis=1), jnp.cross(a[:, :3], a[:, 2:])),
    x,
)
case(
    "program poly ops",
    lambda a: (
        jnp.polyadd(a[:3], a),
        jnp.polymul(a[:3], a[:4]),
        jnp.polyder(a[:4]),
        jnp.polyint(a[:4]),
        jnp.polyfit(jnp.arange(9.0), a, 2),
        jnp.polydiv(a[:5], a[:2]),
    ),
    v,
)
case(
    "program windows",
    lambda a: (
        a * jnp.hanning(9),
        a * jnp.kaiser(9, 4.0),
        a * jnp.blackman(9),
        jnp.bartlett(9) + a,
        jnp.sinc(a),
        jnp.i0(a),
    ),
    v,
)
case(
    "program bit packs",
    lambda a: (
        jnp.packbits(a > 0, axis=1),
        jnp.unpackbits(jnp.packbits(a > 0, axis=1), axis=1),
        jnp.gcd(a.astype(jnp.int32) * 6, 4),
        jnp.lcm(a.astype(jnp.int32) + 3, 4),
        jnp.ldexp(a, 3),
        jnp.frexp(a),
        jnp.modf(a),
        jnp.signbit(a),
        jnp.float_power(jnp.abs(a), 1.3),
        jnp.spacing(a),
    ),
    x,
)
case(
    "program einsum odd",
    lambda a, b: (
        jnp.einsum("ij,ij->", a, b),
        jnp.einsum("ii->i", a[:4, :4]),
        jnp.einsum("i,j,k->ijk", a[0], b[0], a[1]),
        jnp.einsum("ij,jk,kl->il", a, b.T, a),
        jnp.einsum("...i,...i", a, b),
        jnp.linalg.multi_dot([a, b.T, a]),
    ),
    x,
    y,
)
case(
    "program toeplitz",
    lambda a: (
        jax.scipy.linalg.toeplitz(a),
        jax.scipy.linalg.block_diag(a[None], a[:2, None]),
        jax.scipy.linalg.hilbert(3),
        jax.scipy.linalg.pascal(4),
    ),
    v,
)
case("program cho update", lambda a, b: jnp.linalg.cholesky(a + jnp.outer(b, b)), S, v[:5])
case("program qr grad", jax.grad(lambda a: jnp.linalg.qr(a)[1].sum()), f32(5, 3))
case("program svd grad", jax.grad(lambda a: jnp.linalg.svd(a, compute_uv=False).sum()), f32(5, 3))
case("program eigh grad", jax.grad(lambda a: jnp.linalg.eigh(a + a.T)[0][0]), M)
case("program inv jac", jax.jacrev(lambda a: jnp.linalg.inv(a)[0]), S)
case("program cg", lambda a, b: jax.scipy.sparse.linalg.cg(lambda t: a @ t, b, maxiter=20)[0], S, v[:5])
case("program gmres", lambda a, b: jax.scipy.sparse.linalg.gmres(lambda t: a @ t, b, maxiter=5)[0], S, v[:5])
case("program bicgstab", lambda a, b: jax.scipy.sparse.linalg.bicgstab(lambda t: a @ t, b, maxiter=20)[0], S, v[:5])
case(
    "program implicit grad",
    jax.grad(
        lambda b: lax.custom_root(
            lambda t: t**3 - b,
            1.5,
            lambda fn, t0: lax.fori_loop(0, 30, lambda i, t: t - fn(t) / (3 * t * t), t0),
            lambda g, yy: yy / g(1.0),
        )
    ),
    np.float32(3.0),
)
case(
    "program linear solve",
    lambda a, b: lax.custom_linear_solve(lambda t: a @ t, b, lambda mv, t: jnp.linalg.solve(a, t), symmetric=True),
    S,
    v[:5],
)
case(
    "program scan2",
    lambda a: lax.scan(
        lambda c, t: ({"s": c["s"] + t, "m": jnp.maximum(c["m"], t)}, c["m"]),
        {"s": jnp.zeros(5), "m": jnp.full(5, -jnp.inf)},
        a,
    ),
    x,
)
case(
    "program viterbi",
    lambda e, t: lax.scan(lambda c, q: ((c[:, None] + t).max(0) + q, (c[:, None] + t).argmax(0)), e[0], e[1:]),
    f32(6, 4),
    f32(4, 4),
)
case(
    "program hmm fwd",
    lambda e, t: lax.scan(lambda c, q: (jax.nn.logsumexp(c[:, None] + t, axis=0) + q,) * 2, e[0], e[1:]),
    f32(6, 4),
    f32(4, 4),
)
case(
    "program mandel",
    lambda c: lax.fori_loop(0, 8, lambda i, z: jnp.where(jnp.abs(z) < 2, z * z + c, z), jnp.zeros_like(c)),
    (f32(4, 4) + 1j * f32(4, 4)).astype(np.complex64),
)
case(
    "program sinkhorn",
    lambda c: lax.fori_loop(0, 10, lambda i, u: 1 / (jnp.exp(-c) @ (1 / (jnp.exp(-c).T @ u))), jnp.ones(4)),
    np.abs(f32(4, 4)),
)
case(
    "program nms",
    lambda s: lax.while_loop(
        lambda c: (c[0] < 3) & (c[1].max() > 0),
        lambda c: (c[0] + 1, c[1].at[jnp.argmax(c[1])].set(-1.0), c[2].at[c[0]].set(jnp.argmax(c[1]))),
        (0, s, jnp.full(3, -1)),
    ),
    np.abs(v),
)
case(
    "program gcn",
    lambda h, s, d, w: jax.nn.relu(
        jax.ops.segment_sum((h @ w)[s], d, num_segments=4)
        / jnp.maximum(jax.ops.segment_sum(jnp.ones(7), d, num_segments=4), 1)[:, None]
    ),
    x,
    i32(4, 7),
    i32(4, 7),
    f32(5, 3),
)
case(
    "program seg all",
    lambda a, i: (
        jax.ops.segment_prod(a, i, 4),
        jax.ops.segment_min(a, i, 4),
        jax.ops.segment_sum(a, i, 4, mode="drop"),
        jnp.bincount(i, weights=a, length=5),
    ),
    v,
    i32(4, 9),
)
case(
    "program kv cache",
    lambda cache, k, pos: lax.dynamic_update_slice(cache, k[None], (pos, 0)).sum(1),
    f32(6, 4),
    f32(4),
    np.int32(3),
)
case(
    "program cumreduce",
    lambda a: (
        jnp.cumulative_sum(a, axis=1, include_initial=True),
        lax.cumprod(a, 1, reverse=True),
        lax.cumlogsumexp(a, 0, reverse=True),
    ),
    x,
)
case(
    "program dpa bias mask",
    lambda q, k, w, b, m: jax.nn.dot_product_attention(q, k, w, bias=b, mask=m > 0, scale=0.3),
    f32(2, 6, 4, 8),
    f32(2, 5, 2, 8),
    f32(2, 5, 2, 8),
    f32(2, 4, 6, 5),
    f32(2, 1, 6, 5) + 0.5,
)
case(
    "program dpa window",
    lambda q, k, w: jax.nn.dot_product_attention(q, k, w, is_causal=True, local_window_size=(2, 0)),
    f32(2, 6, 4, 8),
    f32(2, 6, 4, 8),
    f32(2, 6, 4, 8),
)
case("program conv patches", lambda a: lax.conv_general_dilated_patches(a, (2, 2), (1, 1), "SAME"), f32(1, 3, 5, 5))
case("program rw logsumexp", lambda a: lax.reduce_window(a, -jnp.inf, jnp.logaddexp, (1, 3), (1, 1), "SAME"), x)
case(
    "program sort multi",
    lambda a, b: lax.sort((a, b), dimension=0, num_keys=2, is_stable=True),
    i32(2, 6, 3),
    f32(6, 3),
)
case("program topk grad", jax.grad(lambda a: (lax.top_k(a, 3)[0] ** 2).sum()), x)
case("program vmap cond", jax.vmap(lambda t: lax.cond(t.sum() > 0, jnp.sin, lambda u: u * 2, t)), x)
case("program vmap switch", jax.vmap(lambda k, t: lax.switch(k, [jnp.sin, jnp.cos, jnp.tanh], t)), i32(3, 4), x)
case(
    "program vmap rng",
    lambda s: jax.vmap(lambda k: jax.random.normal(k, (3,)))(jax.random.split(jax.random.key(s), 4)),
    np.int32(1),
)
case("program vmap scan", jax.vmap(lambda t: lax.scan(lambda c, u: (c * 0.5 + u, c), 0.0, t)), x)
case("program linearize", lambda a, b: jax.linearize(lambda t: jnp.sin(t) * t, a)[1](b), x, y)
case("program hess vmap", jax.vmap(jax.hessian(lambda t: jnp.prod(jnp.cos(t)))), f32(3, 4))
case(
    "program remat scan",
    jax.grad(lambda w, a: lax.scan(jax.checkpoint(lambda c, t: (jnp.tanh(c @ w + t), None)), jnp.zeros(5), a)[0].sum()),
    f32(5, 5) * 0.3,
    x,
)
case("program per ex grad", jax.vmap(jax.grad(lambda w, t: jnp.tanh(t @ w).sum()), in_axes=(None, 0)), f32(5, 3), x)
case(
    "program rnd more2",
    lambda s: (
        jax.random.weibull_min(jax.random.key(s), 1.0, 2.0, (3,)),
        jax.random.pareto(jax.random.key(s), 2.0, (3,)),
        jax.random.rayleigh(jax.random.key(s), 1.0, (3,)),
        jax.random.maxwell(jax.random.key(s), (3,)),
        jax.random.triangular(jax.random.key(s), 0.0, 0.5, 1.0, (3,)),
        jax.random.lognormal(jax.random.key(s), 1.0, (3,)),
        jax.random.f(jax.random.key(s), 3.0, 4.0, (2,)),
        jax.random.chisquare(jax.random.key(s), 3.0, shape=(2,)),
        jax.random.geometric(jax.random.key(s), 0.3, (4,)),
    ),
    np.int32(4),
)
case(
    "program rnd mvn",
    lambda s, c: jax.random.multivariate_normal(jax.random.key(s), jnp.zeros(5), c, (2,)),
    np.int32(4),
    S,
)
case(
    "program rnd shuffle",
    lambda s, a: (
        jax.random.permutation(jax.random.key(s), a, axis=1, independent=True),
        jax.random.choice(jax.random.key(s), a, (3,), p=jnp.array([0.1, 0.2, 0.3, 0.4])),
        jax.random.categorical(jax.random.key(s), a, axis=1, shape=(3, 4)),
        jax.random.gumbel(jax.random.key(s), (2, 2), mode="high"),
    ),
    np.int32(9),
    x,
)
case(
    "program rnd u8",
    lambda s: (
        jax.random.bits(jax.random.key(s), (9,), "uint8"),
        jax.random.bits(jax.random.key(s), (5,), "uint16"),
        jax.random.randint(jax.random.key(s), (5,), -5, 5, "int8"),
        jax.random.uniform(jax.random.key(s), (4,), jnp.float16),
        jax.random.normal(jax.random.key(s), (4,), jnp.bfloat16),
        jax.random.normal(jax.random.key(s), (3,), jnp.complex64),
    ),
    np.int32(4),
)
case(
    "program spectral", lambda a: jnp.fft.irfftn(jnp.fft.rfftn(a) * jnp.exp(-0.1 * jnp.arange(5)), s=(8, 8)), f32(8, 8)
)
case(
    "program fft more",
    lambda a: (
        jnp.fft.ifftn(jnp.fft.fftn(a)).real,
        jnp.fft.hfft(a[0]),
        jnp.fft.ihfft(a[0]),
        jnp.fft.fft(a, n=12, axis=0, norm="ortho"),
        jnp.fft.rfftfreq(8) + a[0, :5],
        jnp.fft.ifftshift(a),
    ),
    f32(6, 8),
)
case("program dct", lambda a: (jax.scipy.fft.dct(a), jax.scipy.fft.idct(a), jax.scipy.fft.dctn(a)), f32(4, 8))
case(
    "program hist",
    lambda a: (
        jnp.histogram(a, bins=jnp.array([-2.0, -1, 0, 1.5, 2])),
        jnp.histogram2d(a, a[::-1], bins=3),
        jnp.histogram(a, bins=4, range=(-1.0, 1.0), weights=a * a, density=True),
        jnp.histogram_bin_edges(a, bins=3),
    ),
    v,
)
case(
    "program quant",
    lambda a: (
        jnp.quantile(a, jnp.array([0.1, 0.5]), axis=0, method="nearest"),
        jnp.quantile(a, 0.3, method="lower"),
        jnp.quantile(a, 0.3, method="midpoint"),
        jnp.median(a, keepdims=True),
    ),
    x,
)
case(
    "program u32 div",
    lambda a: (a // 7, a % 7, a >> 3, lax.population_count(a), jnp.bitwise_count(a)),
    R.integers(0, 2**32, 6).astype(np.uint32),
)
case(
    "program i8 wrap",
    lambda a: (a * a, a // 3, -a, jnp.abs(a), a << 1, jnp.right_shift(a, 1), a.sum(), a.mean(), a.prod()),
    np.array([-128, 127, -1, 5, 64], np.int8),
)
case("program cplx grad", jax.grad(lambda a: jnp.abs(jnp.fft.fft(a)).sum()), v)
case(
    "program empty",
    lambda a: (
        a[:0].sum(),
        a[:0] @ a.T,
        jnp.concatenate([a[:0], a]),
        jnp.sort(a[:0]),
        jnp.zeros((0, 3)) @ jnp.ones((3, 2)),
    ),
    x,
)
case(
    "program while multi",
    lambda a: lax.while_loop(
        lambda s: jnp.linalg.norm(s["r"]) > 1e-3,
        lambda s: {"t": s["t"] + 0.1 * s["r"], "r": a - (s["t"] + 0.1 * s["r"])},
        {"t": jnp.zeros(5), "r": a},
    ),
    v[:5],
)
case(
    "program fori unroll",
    lambda a: lax.fori_loop(0, 6, lambda i, c: c.at[i].set(c[i - 1] * 0.5 + a[i]), a, unroll=2),
    v,
)
case(
    "program ppo loss",
    jax.value_and_grad(
        lambda lp, old, adv: -jnp.minimum(jnp.exp(lp - old) * adv, jnp.clip(jnp.exp(lp - old), 0.8, 1.2) * adv).mean()
    ),
    v,
    v + 0.1,
    f32(9),
)
case(
    "program gae",
    lambda r, vv: lax.scan(
        lambda c, t: (t[0] + 0.9 * t[2] - t[1] + 0.85 * c,) * 2, jnp.float32(0), (r[:-1], vv[:-1], vv[1:]), reverse=True
    )[1],
    v,
    f32(9),
)

__all__ = ["CASES"]
