"""Nets of JAX through ``tilewright.jax.jit`` beside ``jax.jit``, one thread, calls and conversions included.

    python -m benchmarks.jax_nets               every net
    python -m benchmarks.jax_nets scan          nets whose name contains a word
    python -m benchmarks.jax_nets --seconds 0.5 --json

In: nothing. Out: a table: shortest microseconds of XLA and of ours, called in turn until the result is there, and their
ratio; with ``--json`` as rows. XLA takes as many threads as the process may use, so the process keeps to one core.
Not its business: exactness (``tests/frontend/test_stablehlo.py``).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.interleaved import best_times, geometric_mean
from jax import lax

import tilewright.jax

RNG = np.random.default_rng(0)
IMAGES = ("NHWC", "HWIO", "NHWC")
Net = tuple[Callable[..., Any], tuple[Any, ...]]


def weights(*shape: int) -> Any:
    """Normal numbers of a size that keeps activations near 1."""
    fan_in = int(np.prod(shape[:-1])) or 1
    return jnp.asarray(RNG.standard_normal(shape).astype(np.float32) / np.sqrt(fan_in))


def data(*shape: int) -> Any:
    return jnp.asarray(RNG.standard_normal(shape).astype(np.float32))


def mlp(params: Any, x: Any) -> Any:
    for w in params:
        x = jax.nn.relu(x @ w)
    return x


def cnn(params: Any, x: Any) -> Any:
    """Convolutions with ReLU and pooling, as Flax's examples lay them out: N, height, width, channels."""
    for w in params[:-1]:
        x = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=IMAGES)
        x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.mean((1, 2)) @ params[-1]


def layer_norm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def transformer(params: Any, x: Any) -> Any:
    """Encoder layers with 4 heads."""
    n, d = x.shape
    for qkv, out, up, down in params:
        q, k, v = jnp.moveaxis((layer_norm(x) @ qkv).reshape(n, 3, 4, d // 4), 1, 0)
        scores = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k) / np.sqrt(d // 4))
        x = x + jnp.einsum("hqk,khd->qhd", scores, v).reshape(n, d) @ out
        x = x + jax.nn.gelu(layer_norm(x) @ up) @ down
    return x


def rnn(params: Any, xs: Any) -> Any:
    w, u = params
    return lax.scan(lambda h, x: (jnp.tanh(x @ w + h @ u),) * 2, jnp.zeros((xs.shape[1], u.shape[0])), xs)[1]


def diffusion_step(params: Any, x: Any, t: Any, key: Any) -> Any:
    """One step of a sampler: a small net of image and time, and fresh noise."""
    h = x
    for w in params:
        h = lax.conv_general_dilated(h, w, (1, 1), "SAME", dimension_numbers=IMAGES)
        h = jax.nn.silu(h + jnp.sin(t))
    return x - 0.1 * h[..., : x.shape[-1]] + 0.01 * jax.random.normal(key, x.shape)


def ode(w: Any, y: Any) -> Any:
    """Runge-Kutta steps of a linear system with a squashing."""

    def step(y: Any, _: Any) -> Any:
        k1 = jnp.tanh(w @ y)
        k2 = jnp.tanh(w @ (y + 0.05 * k1))
        k3 = jnp.tanh(w @ (y + 0.05 * k2))
        k4 = jnp.tanh(w @ (y + 0.1 * k3))
        return y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

    return lax.scan(step, y, None, length=50)[0]


def sampling(key: Any, logits: Any) -> Any:
    return jax.random.categorical(key, logits), jax.random.normal(key, logits.shape)


def adam(params: Any, grads: Any, m: Any, v: Any) -> Any:
    m = jax.tree_util.tree_map(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
    v = jax.tree_util.tree_map(lambda a, g: 0.999 * a + 0.001 * g * g, v, grads)
    new = jax.tree_util.tree_map(lambda p, a, b: p - 1e-3 * a / (jnp.sqrt(b) + 1e-8), params, m, v)
    return new, m, v


def loss(params: Any, x: Any, labels: Any) -> Any:
    picked = jnp.take_along_axis(jax.nn.log_softmax(mlp(params, x)), labels[:, None], axis=1)
    return -picked.mean()


def gram(xs: Any) -> Any:
    """A function of one pair, mapped over all pairs."""
    kernel = jax.vmap(jax.vmap(lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2)), (None, 0)), (0, None))
    return kernel(xs, xs)


def lstm(params: Any, xs: Any) -> Any:
    w, u = params

    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(x @ w + h @ u, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((xs.shape[1], u.shape[0]))
    return lax.scan(step, (start, start), xs)[1]


def group_norm(x: Any, groups: int = 8) -> Any:
    n, h, w, c = x.shape
    parts = x.reshape(n, h * w, groups, c // groups)
    mean, var = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    return ((parts - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape)


def residual(params: Any, x: Any) -> Any:
    """Residual blocks with group normalisation."""
    for a, b in params:
        h = lax.conv_general_dilated(jax.nn.silu(group_norm(x)), a, (1, 1), "SAME", dimension_numbers=IMAGES)
        x = x + lax.conv_general_dilated(jax.nn.silu(group_norm(h)), b, (1, 1), "SAME", dimension_numbers=IMAGES)
    return x


def rotated(x: Any) -> Any:
    """Rotary positions."""
    n, d = x.shape[-2:]
    angle = jnp.arange(n)[:, None] / 10000 ** (jnp.arange(0, d, 2) / d)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), a * jnp.sin(angle) + b * jnp.cos(angle)], -1)


def causal(params: Any, x: Any) -> Any:
    """Attention of 8 heads to 2 heads of keys, each position to those before it."""
    q, k, v = (jnp.moveaxis((x @ w).reshape(x.shape[0], -1, 32), 1, 0) for w in params[:3])
    q, k = rotated(q).reshape(2, 4, -1, 32), rotated(k)
    scores = jnp.einsum("ghqd,gkd->ghqk", q, k) / np.sqrt(32)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    mixed = jnp.einsum("ghqk,gkd->qghd", jax.nn.softmax(scores), v)
    return mixed.reshape(x.shape[0], -1) @ params[3]


def gaussian_process(xs: Any, ys: Any, at: Any) -> Any:
    """Mean and variance at places, from what is known at others."""
    factor = jnp.linalg.cholesky(gram(xs) + 0.1 * jnp.eye(len(xs)))
    across = jax.vmap(lambda a: jnp.exp(-jnp.sum((xs - a) ** 2, -1)))(at)
    half = jax.scipy.linalg.solve_triangular(factor, across.T, lower=True)
    return half.T @ jax.scipy.linalg.solve_triangular(factor, ys, lower=True), 1.1 - jnp.sum(half**2, axis=0)


def nets() -> Mapping[str, Net]:
    """The functions with arguments, by name."""
    layers = [weights(256, 256) for _ in range(4)]
    convs = [weights(3, 3, 3, 32), weights(3, 3, 32, 64), weights(3, 3, 64, 64), weights(64, 10)]
    blocks = [[weights(128, 384), weights(128, 128), weights(128, 512), weights(512, 128)] for _ in range(2)]
    steps = [weights(3, 3, 4, 32), weights(3, 3, 32, 32), weights(3, 3, 32, 4)]
    pairs = [(weights(3, 3, 32, 32), weights(3, 3, 32, 32)) for _ in range(2)]
    heads = [weights(256, 256), weights(256, 64), weights(256, 64), weights(256, 256)]
    labels = jnp.asarray(RNG.integers(0, 256, 32).astype(np.int32))
    key = jax.random.key(0)
    return {
        "mlp": (mlp, (layers, data(32, 256))),
        "cnn": (cnn, (convs, data(4, 32, 32, 3))),
        "transformer": (transformer, (blocks, data(64, 128))),
        "rnn by scan": (rnn, ((weights(64, 64), weights(64, 64)), data(64, 4, 64))),
        "diffusion step": (diffusion_step, (steps, data(1, 32, 32, 4), jnp.float32(0.3), key)),
        "ode": (ode, (weights(64, 64), data(64))),
        "sampling": (sampling, (key, data(64, 512))),
        "adam step": (adam, (layers, layers, layers, layers)),
        "grad of mlp": (jax.grad(loss), (layers, data(32, 256), labels)),
        "vmapped kernel": (gram, (data(128, 16),)),
        "lstm by scan": (lstm, ((weights(64, 256), weights(64, 256)), data(64, 4, 64))),
        "residual": (residual, (pairs, data(1, 32, 32, 32))),
        "causal attention": (causal, (heads, data(128, 256))),
        "grad of cnn": (jax.grad(lambda ps, x: jnp.sum(cnn(ps, x) ** 2)), (convs, data(4, 32, 32, 3))),
        "gaussian process": (gaussian_process, (data(64, 16), data(64), data(100, 16))),
    }


def measured(net: Net, seconds: float) -> tuple[float, float]:
    """Shortest microseconds of XLA and of ours."""
    function, arguments = net
    functions = [jax.jit(function), tilewright.jax.jit(function, threads=1)]
    calls = [lambda f=f: jax.block_until_ready(f(*arguments)) for f in functions]
    for call in calls:
        call()
    xla, ours = best_times(calls, seconds)
    return xla * 1e6, ours * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="of the names of nets; all without any")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each net")
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    asked = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before XLA makes its threads, with the first array
    rows = []
    for name, net in nets().items():
        if not asked.words or any(word in name for word in asked.words):
            xla, ours = measured(net, asked.seconds)
            rows.append([name, round(xla, 1), round(ours, 1)])
            if not asked.json:
                print(f"{name:16} {xla:10.1f} {ours:10.1f} {xla / ours:7.2f}", flush=True)
    if asked.json:
        print(json.dumps(rows))
    else:
        print(f"geometric mean {geometric_mean([xla / ours for _, xla, ours in rows]):.2f}")


if __name__ == "__main__":
    main()
