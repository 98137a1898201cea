"""Functions of JAX in the manner of well-known libraries: optimisers, solvers of differential equations, samplers,
physics, graphs, state-space models, codecs. Read by ``test_stablehlo`` with the other cases.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frontend.jax_cases import case, f32, i32
from frontend.jax_programs import CASES

x, y, v, M = f32(4, 5), f32(4, 5), f32(9), f32(5, 5)
S = M @ M.T + 5 * np.eye(5, dtype=np.float32)
PARAMS = {"a": f32(4, 3), "b": {"c": f32(3), "d": np.float32(0.5)}}
GRADS = {"a": f32(4, 3), "b": {"c": f32(3), "d": np.float32(-1.5)}}
of_all = jax.tree_util.tree_map


# --- optimisers


def global_norm(tree):
    return jnp.sqrt(sum(jnp.vdot(t, t) for t in jax.tree_util.tree_leaves(tree)))


def clipped(tree, most):
    norm = global_norm(tree)
    return of_all(lambda t: jnp.where(norm < most, t, t / norm * most), tree)


def lamb(params, grads):
    """Adam's step, scaled for each tensor by the norms' ratio."""

    def update(p, g):
        m, s = 0.1 * g / (1 - 0.9), 0.001 * g * g / (1 - 0.999)
        step = m / (jnp.sqrt(s) + 1e-6) + 0.01 * p
        ratio = jnp.linalg.norm(p.ravel()) / jnp.linalg.norm(step.ravel())
        return p - 0.1 * jnp.where(jnp.isfinite(ratio) & (ratio > 0), ratio, 1.0) * step

    return of_all(update, params, clipped(grads, 1.0))


case("repo lamb", lamb, PARAMS, GRADS)


def adafactor(p, g):
    """Second moments kept as a row and a column."""
    square = g * g + 1e-30
    row, column = square.mean(1), square.mean(0)
    factor = lax.rsqrt(row / row.mean())[:, None] * lax.rsqrt(column)[None]
    step = g * factor
    return p - 0.01 * step / jnp.maximum(1.0, jnp.sqrt((step * step).mean()))


case("repo adafactor", adafactor, x, y)


def lion(p, g, m, steps):
    def body(state, g):
        p, m = state
        return (p - 0.01 * (jnp.sign(0.9 * m + 0.1 * g) + 0.1 * p), 0.99 * m + 0.01 * g), jnp.sum(p)

    return lax.scan(body, (p, m), g * jnp.arange(1.0, steps + 1)[:, None, None])


case("repo lion", partial(lion, steps=4), x, y, y * 0)


def accumulated(params, batches, labels, every=3):
    """Gradients of a few batches are summed, and applied when there are enough, by ``cond`` in ``scan``."""

    def loss(p, a, b):
        return jnp.mean((jnp.tanh(a @ p) - b) ** 2)

    def body(state, batch):
        p, total, n = state
        total = total + jax.grad(loss)(p, *batch)
        apply = (n + 1) % every == 0
        p, total = lax.cond(apply, lambda: (p - 0.5 * total / every, jnp.zeros_like(total)), lambda: (p, total))
        return (p, total, n + 1), apply

    return lax.scan(body, (params, jnp.zeros_like(params), 0), (batches, labels))


case("repo accumulated", accumulated, f32(5, 3), f32(7, 4, 5), f32(7, 4, 3))


def lbfgs(x0, n=4):
    """Two loops over a history that is a ring of pairs."""

    def f(p):
        return jnp.sum(100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2)

    def direction(g, s, t, count):
        def down(q, k):
            k = (count - 1 - k) % n
            rho = jnp.where(jnp.vdot(s[k], t[k]) > 1e-9, 1 / jnp.maximum(jnp.vdot(s[k], t[k]), 1e-9), 0)
            alpha = rho * jnp.vdot(s[k], q)
            return q - alpha * t[k], (alpha, rho, k)

        q, (alphas, rhos, places) = lax.scan(down, g, jnp.arange(n))

        def up(r, args):
            alpha, rho, k = args
            return r + s[k] * (alpha - rho * jnp.vdot(t[k], r)), None

        return -lax.scan(up, q * 0.1, (alphas, rhos, places), reverse=True)[0]

    def step(state):
        p, s, t, count, _ = state
        g = jax.grad(f)(p)
        d = direction(g, s, t, count)
        size = lax.while_loop(lambda a: (f(p + a * d) > f(p) + 1e-4 * a * jnp.vdot(g, d)) & (a > 1e-6),
                              lambda a: a * 0.5, jnp.float32(1))  # fmt: skip
        new = p + size * d
        at = count % n
        return new, s.at[at].set(new - p), t.at[at].set(jax.grad(f)(new) - g), count + 1, f(new)

    start = (x0, jnp.zeros((n, x0.size)), jnp.zeros((n, x0.size)), 0, f(x0))
    return lax.while_loop(lambda c: c[3] < 6, step, start)[::4]


case("repo lbfgs", lbfgs, np.array([0.5, 0.3, 0.8], np.float32))


# --- differential equations


def tsit5(y0, w):
    """Adaptive steps of an embedded pair, accepted or not; the controller's exponent from the error's norm."""

    def f(t, y):
        return jnp.tanh(w @ y) - 0.5 * y + jnp.sin(t)

    def step(c):
        t, y, h, n, rejected = c
        h = jnp.minimum(h, 1.0 - t)
        k1 = f(t, y)
        k2 = f(t + h / 2, y + h / 2 * k1)
        k3 = f(t + 3 * h / 4, y + 3 * h / 4 * k2)
        new = y + h * (2 * k1 + 3 * k2 + 4 * k3) / 9
        k4 = f(t + h, new)
        error = h * (-5 / 72 * k1 + k2 / 12 + k3 / 9 - k4 / 8)
        norm = jnp.sqrt(jnp.mean((error / (1e-3 + 1e-2 * jnp.maximum(jnp.abs(y), jnp.abs(new)))) ** 2))
        accept = norm <= 1
        factor = jnp.clip(0.9 * jnp.maximum(norm, 1e-8) ** (-1 / 3), 0.2, 5.0)
        return (jnp.where(accept, t + h, t), jnp.where(accept, new, y), h * factor, n + 1, rejected + ~accept)

    return lax.while_loop(lambda c: (c[0] < 1.0) & (c[3] < 50), step, (jnp.float32(0), y0, jnp.float32(0.5), 0, 0))


case("repo tsit5", tsit5, v[:4], f32(4, 4))


def adjoint(w, y0):
    """A custom rule of reverse differentiation, that integrates backwards."""

    @jax.custom_vjp
    def solve(w, y0):
        return lax.fori_loop(0, 10, lambda i, s: s + 0.1 * jnp.tanh(w @ s), y0)

    def backward(res, g):
        w, y1 = res

        def step(_, c):
            s, a, gw = c
            pull = jax.vjp(lambda w, s: jnp.tanh(w @ s), w, s)[1]
            dw, ds = pull(a)
            return s - 0.1 * jnp.tanh(w @ s), a + 0.1 * ds, gw + 0.1 * dw

        _, a, gw = lax.fori_loop(0, 10, step, (y1, g, jnp.zeros_like(w)))
        return gw, a

    solve.defvjp(lambda w, y0: (solve(w, y0), (w, solve(w, y0))), backward)
    return jax.value_and_grad(lambda w, y0: jnp.sum(solve(w, y0) ** 2), (0, 1))(w, y0)


case("repo adjoint", adjoint, f32(4, 4) * 0.3, v[:4])


def euler_maruyama(seed, y0):
    """Paths of a stochastic equation, of which each has its own key."""

    def path(key, y0):
        def step(y, k):
            noise = jax.random.normal(k, y.shape)
            y = y - 0.1 * y + 0.3 * jnp.sqrt(jnp.abs(y) + 0.1) * noise
            return y, y

        return lax.scan(step, y0, jax.random.split(key, 6))[1]

    paths = jax.vmap(path, (0, None))(jax.random.split(jax.random.key(seed), 5), y0)
    return paths.mean(0), jnp.percentile(paths, 90, axis=0)


case("repo euler maruyama", euler_maruyama, np.int32(4), v[:3])


def implicit(y0, w):
    """Backward Euler by Newton's iteration, whose linear system has the Jacobian of ``jacfwd``."""

    def f(y):
        return -(y**3) + w @ y

    def step(y, _):
        def newton(_, z):
            residual = z - y - 0.1 * f(z)
            return z - jnp.linalg.solve(jax.jacfwd(lambda t: t - 0.1 * f(t))(z), residual)

        y = lax.fori_loop(0, 3, newton, y)
        return y, y

    return lax.scan(step, y0, None, length=4)


case("repo implicit", implicit, v[:3], f32(3, 3))


# --- samplers


def hmc(seed, q0):
    """Leapfrog steps and a test whether to take them."""

    def potential(q):
        return 0.5 * jnp.sum(q**2) + jnp.sum(jnp.log(jnp.cosh(q - 1)))

    grad = jax.grad(potential)

    def step(q, key):
        kick, test = jax.random.split(key)
        p = jax.random.normal(kick, q.shape)

        def leap(_, s):
            q, p = s
            p = p - 0.05 * grad(q)
            q = q + 0.1 * p
            return q, p - 0.05 * grad(q)

        new, p1 = lax.fori_loop(0, 5, leap, (q, p))
        change = potential(q) + p @ p / 2 - potential(new) - p1 @ p1 / 2
        accept = jnp.log(jax.random.uniform(test)) < change
        q = jnp.where(accept, new, q)
        return q, (q, accept)

    return lax.scan(step, q0, jax.random.split(jax.random.key(seed), 6))


case("repo hmc", hmc, np.int32(2), v[:4])


def particle_filter(seed, observed):
    """Weights, systematic resampling by sorted search, moves."""

    def step(carry, z):
        parts, key = carry
        key, move, draw = jax.random.split(key, 3)
        parts = parts + 0.5 * jax.random.normal(move, parts.shape)
        logw = -0.5 * (z - parts) ** 2
        total = jax.nn.logsumexp(logw)
        places = (jnp.arange(parts.size) + jax.random.uniform(draw)) / parts.size
        at = jnp.searchsorted(jnp.cumsum(jnp.exp(logw - total)), places)
        return (parts[jnp.minimum(at, parts.size - 1)], key), total

    (parts, _), evidence = lax.scan(step, (jnp.zeros(16), jax.random.key(seed)), observed)
    return jnp.sort(parts), evidence


case("repo particle filter", particle_filter, np.int32(3), v)


def gibbs(seed, coupling):
    """Spins of a square in two colours, by bits."""

    def sweep(spins, key):
        for colour, k in enumerate(jax.random.split(key)):
            around = sum(jnp.roll(spins, s, a) for s in (1, -1) for a in (0, 1))
            chance = jax.nn.sigmoid(2 * coupling * around)
            new = jnp.where(jax.random.bernoulli(k, chance), 1, -1).astype(jnp.int8)
            mask = (jnp.arange(6)[:, None] + jnp.arange(6)) % 2 == colour
            spins = jnp.where(mask, new, spins)
        return spins, spins.astype(jnp.int32).sum()

    return lax.scan(sweep, jnp.ones((6, 6), jnp.int8), jax.random.split(jax.random.key(seed), 5))


case("repo gibbs", gibbs, np.int32(5), np.float32(0.3))


def nuts_tree(seed):
    """A walk whose tree of states is a stack in arrays, by bits of a counter."""

    def body(s):
        n, key, stack, out = s
        key, sub = jax.random.split(key)
        value = jax.random.normal(sub)
        depth = lax.population_count(n >> 1)
        trailing = lax.clz(jnp.uint32(1)) - lax.clz(n & -n)
        stack = jnp.where(n % 2 == 0, lax.dynamic_update_index_in_dim(stack, value, depth, 0), stack)
        return n + 1, key, stack, out + value * trailing

    start = (jnp.uint32(1), jax.random.key(seed), jnp.zeros(5), jnp.float32(0))
    return lax.while_loop(lambda s: s[0] < 12, body, start)[2:]


case("repo tree by bits", nuts_tree, np.int32(7))

# --- physics


def springs(pos, vel):
    """Bodies that bounce off a floor, joined in a ring, with friction; the gradient through all steps."""

    def force(p):
        d = jnp.roll(p, -1, 0) - p
        length = jnp.sqrt(jnp.sum(d * d, -1, keepdims=True) + 1e-9)
        pull = (length - 1) * d / length
        floor = jnp.maximum(-p[:, 1], 0) * 50
        return 5 * (pull - jnp.roll(pull, 1, 0)) + jnp.stack([jnp.zeros_like(floor), floor - 9.8], -1)

    def run(pos, vel):
        def step(s, _):
            p, u = s
            u = (u + 0.02 * force(p)) * 0.99
            u = jnp.where((p[:, 1:] < 0) & (jnp.abs(u) < 0.1), 0.0, u)
            return (p + 0.02 * u, u), p.mean(0)

        return lax.scan(step, (pos, vel), None, length=8)

    return run(pos, vel), jax.grad(lambda p: run(p, vel)[1].sum())(pos)


case("repo springs", springs, f32(5, 2), f32(5, 2) * 0.1)


def quaternions(q, w):
    """Rotations, integrated and normalised; vectors turned by them."""

    def mul(a, b):
        return jnp.array([
            a[0] * b[0] - a[1] * b[1] - a[2] * b[2] - a[3] * b[3],
            a[0] * b[1] + a[1] * b[0] + a[2] * b[3] - a[3] * b[2],
            a[0] * b[2] - a[1] * b[3] + a[2] * b[0] + a[3] * b[1],
            a[0] * b[3] + a[1] * b[2] - a[2] * b[1] + a[3] * b[0],
        ])  # fmt: skip

    def step(q, w):
        q = q + 0.05 * mul(jnp.concatenate([jnp.zeros(1), w]), q)
        q = q / jnp.linalg.norm(q)
        turned = mul(mul(q, jnp.array([0.0, 1, 0, 0])), q * jnp.array([1.0, -1, -1, -1]))
        return q, turned[1:]

    return jax.vmap(lambda q, w: lax.scan(step, q / jnp.linalg.norm(q), w))(q, w)


case("repo quaternions", quaternions, f32(3, 4), f32(3, 6, 3))


def fluid(u):
    """Diffusion and advection with periodic edges, pressure by Jacobi's iteration."""

    def advect(f, u):
        i, j = jnp.meshgrid(jnp.arange(6.0), jnp.arange(6.0), indexing="ij")
        at = [(i - 0.1 * u[0]) % 6, (j - 0.1 * u[1]) % 6]
        return jax.scipy.ndimage.map_coordinates(f, at, order=1, mode="wrap")

    u = jnp.stack([advect(u[0], u), advect(u[1], u)])
    div = jnp.roll(u[0], -1, 0) - u[0] + jnp.roll(u[1], -1, 1) - u[1]
    p = lax.fori_loop(
        0, 8, lambda _, p: (sum(jnp.roll(p, s, a) for s in (1, -1) for a in (0, 1)) - div) / 4, jnp.zeros_like(div)
    )
    return u - jnp.stack([p - jnp.roll(p, 1, 0), p - jnp.roll(p, 1, 1)]), p


case("repo fluid", fluid, f32(2, 6, 6))


def neighbours(pos):
    """The nearest three bodies by ``top_k`` of distances, and a sum over pairs within reach."""
    d = pos[:, None] - pos[None]
    square = jnp.sum(d * d, -1) + jnp.where(jnp.eye(len(pos), dtype=bool), jnp.inf, 0.0)
    near, who = lax.top_k(-square, 3)
    energy = jnp.where(square < 2.0, 4 * (1 / square**6 - 1 / square**3), 0.0).sum() / 2
    counts = jnp.zeros(len(pos), jnp.int32).at[who].add(1)
    return -near, who, energy, counts


case("repo neighbours", neighbours, f32(7, 3))

# --- graphs


def graph_attention(h, w, a, senders, receivers):
    """Scores of edges, normalised among the edges that end at a node."""
    z = h @ w
    score = jax.nn.leaky_relu(jnp.concatenate([z[senders], z[receivers]], -1) @ a)
    most = jax.ops.segment_max(score, receivers, 6)
    e = jnp.exp(score - most[receivers])
    share = e / (jax.ops.segment_sum(e, receivers, 6)[receivers] + 1e-9)
    return jax.nn.elu(jax.ops.segment_sum(z[senders] * share[:, None], receivers, 6))


case("repo graph attention", graph_attention, f32(6, 4), f32(4, 3), f32(6), i32(6, 11), i32(6, 11))


def message_grad(h, w, s, r):
    def loss(w):
        m = jax.nn.silu(jnp.concatenate([h[s], h[r]], 1) @ w)
        mean = jax.ops.segment_sum(m, r, 6) / jnp.maximum(jnp.bincount(r, length=6), 1)[:, None]
        return jnp.sum(jax.ops.segment_max(m, r, 6, indices_are_sorted=False).clip(-5) * mean)

    return jax.value_and_grad(loss)(w)


case("repo message grad", message_grad, f32(6, 4), f32(8, 3), i32(6, 11), i32(6, 11))


def components(s, r):
    """Labels that spread until none changes."""

    def body(c):
        label, _ = c
        low = jnp.minimum(label[s], label[r])
        new = label.at[r].min(low).at[s].min(low)
        return new, (new != label).any()

    return lax.while_loop(lambda c: c[1], body, (jnp.arange(8), jnp.bool_(True)))[0]


case("repo components", components, i32(8, 6), i32(8, 6))


def floyd(d):
    return lax.fori_loop(0, 6, lambda k, d: jnp.minimum(d, d[:, k, None] + d[None, k]), d)


case("repo floyd", floyd, np.abs(f32(6, 6)))

# --- sequences


def selective_scan(u, delta, a, b, c):
    """A state-space layer by an associative scan of pairs."""
    da = jnp.exp(delta[..., None] * a)
    db = delta[..., None] * b[:, None] * u[..., None]
    _, h = lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (da, db), axis=0)
    return jnp.einsum("ldn,ln->ld", h, c)


case("repo selective scan", selective_scan, f32(9, 4), np.abs(f32(9, 4)), -np.abs(f32(4, 3)), f32(9, 3), f32(9, 3))


def delta_rule(q, k, w, beta):
    """Linear attention whose state is corrected at each step; grad of a vmapped scan."""

    def head(q, k, w, beta):
        def step(s, t):
            q, k, w, b = t
            k = k / jnp.linalg.norm(k)
            s = s + b * jnp.outer(w - s @ k, k)
            return s, s @ q

        return lax.scan(step, jnp.zeros((4, 4)), (q, k, w, beta))[1]

    run = jax.vmap(head)
    return run(q, k, w, beta), jax.grad(lambda k: jnp.sum(run(q, k, w, beta) ** 2))(k)


case("repo delta rule", delta_rule, f32(2, 6, 4), f32(2, 6, 4), f32(2, 6, 4), np.abs(f32(2, 6)))


def ctc(logits, labels):
    """The loss of an alignment with blanks, by a scan in logarithms, and its gradient."""

    def loss(logits):
        lp = jax.nn.log_softmax(logits)
        ext = jnp.zeros(2 * labels.size + 1, jnp.int32).at[1::2].set(labels)
        skip = jnp.concatenate([jnp.zeros(2, bool), (ext[2:] != ext[:-2]) & (ext[2:] != 0)])
        low = jnp.float32(-1e30)
        start = jnp.full(ext.size, low).at[0].set(lp[0, 0]).at[1].set(lp[0, ext[1]])

        def step(alpha, p):
            one = jnp.concatenate([low[None], alpha[:-1]])
            two = jnp.where(skip, jnp.concatenate([low[None], low[None], alpha[:-2]]), low)
            return jax.nn.logsumexp(jnp.stack([alpha, one, two]), axis=0) + p[ext], None

        alpha = lax.scan(step, start, lp[1:])[0]
        return -jnp.logaddexp(alpha[-1], alpha[-2])

    return jax.value_and_grad(loss)(logits)


case("repo ctc", ctc, f32(8, 5), np.array([1, 3, 3], np.int32))


def beam(logits):
    """Beams that are kept by ``top_k`` over all continuations, backwards through their parents."""

    def step(scores, lp):
        total = scores[:, None] + jax.nn.log_softmax(lp)
        best, at = lax.top_k(total.reshape(-1), 3)
        return best, (at // lp.shape[-1], at % lp.shape[-1])

    scores, (parents, tokens) = lax.scan(step, jnp.array([0.0, -jnp.inf, -jnp.inf]), logits)

    def back(at, t):
        parent, token = t
        return parent[at], token[at]

    return scores, lax.scan(back, jnp.arange(3), (parents, tokens), reverse=True)[1].T


case("repo beam", beam, f32(5, 3, 6))


def generate(w, e, seed):
    """Decoding with a cache that is written in place, until a token ends it; the next token by its chance."""

    def body(s):
        n, tokens, cache, key, _ = s
        key, sub = jax.random.split(key)
        h = e[tokens[n]]
        cache = lax.dynamic_update_slice(cache, h[None], (n, 0))
        score = jnp.where(jnp.arange(10) <= n, cache @ h, -jnp.inf)
        logits = (jax.nn.softmax(score) @ cache + h) @ w
        top = lax.top_k(logits, 4)[0][-1]
        token = jax.random.categorical(sub, jnp.where(logits < top, -jnp.inf, logits))
        return n + 1, lax.dynamic_update_index_in_dim(tokens, token, n + 1, 0), cache, key, token == 2

    start = (0, jnp.zeros(10, jnp.int32), jnp.zeros((10, 4)), jax.random.key(seed), jnp.bool_(False))
    return lax.while_loop(lambda s: (s[0] < 9) & ~s[4], body, start)[:2]


case("repo generate", generate, f32(4, 7), f32(7, 4), np.int32(1))


def moe(x, router, up, down):
    """Tokens sent to two experts each with a capacity, by positions from cumulative counts."""
    gates, who = lax.top_k(jax.nn.softmax(x @ router), 2)
    gates = gates / gates.sum(-1, keepdims=True)
    one = jax.nn.one_hot(who, 3, dtype=jnp.int32)
    place = (jnp.cumsum(one.reshape(-1, 3), 0) - 1).reshape(one.shape)
    place = (place * one).sum(-1)
    kept = place < 3
    slots = jnp.zeros((3, 3, x.shape[1])).at[who, place].add(jnp.where(kept[..., None], x[:, None], 0.0), mode="drop")
    y = jnp.einsum("ecf,efd->ecd", jax.nn.gelu(jnp.einsum("ecd,edf->ecf", slots, up)), down)
    back = y.at[who, place].get(mode="fill", fill_value=0.0) * (gates * kept)[..., None]
    return back.sum(1), one.sum((0, 1))


case("repo moe", moe, f32(6, 4), f32(4, 3), f32(3, 4, 5), f32(3, 5, 4))

__all__ = ["CASES", "of_all"]
