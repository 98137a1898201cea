"""Small nets of JAX, and what ``grad``, ``vmap`` and ``scan`` make of functions, among the cases of ``jax_cases``."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.ode import odeint

from frontend.jax_cases import CASES, case, f32, i32

x, y, v = f32(4, 5), f32(4, 5), f32(8)
p = np.abs(x) + 0.1


# nets
def mlp(w, x):
    for a, b in w:
        x = jnp.tanh(x @ a + b)
    return x


W = [(f32(5, 8), f32(8)), (f32(8, 3), f32(3))]
case("mlp", mlp, W, x)
case("mlp grad", jax.value_and_grad(lambda w, t: (mlp(w, t) ** 2).mean()), W, x)
case("hess", jax.hessian(lambda t: jnp.sum(jnp.sin(t) * t**2)), v[:4])
case("jac", lambda a: (jax.jacfwd(jnp.sin)(a), jax.jacrev(jnp.cos)(a)), v[:4])
case("jvp", lambda a: jax.jvp(jnp.tanh, (a,), (a,)), x)
case("hvp", lambda a, b: jax.jvp(jax.grad(lambda t: jnp.sum(t**3)), (a,), (b,)), x, y)


def attn(x, wq, wk, wv):
    q, k, w = x @ wq, x @ wk, x @ wv
    s = q @ k.T / jnp.sqrt(8.0)
    s = jnp.where(jnp.tril(jnp.ones((6, 6), bool)), s, -1e9)
    return jax.nn.softmax(s) @ w


case("attn", attn, f32(6, 8), f32(8, 8), f32(8, 8), f32(8, 8))
case(
    "dpa",
    lambda q, k, w: jax.nn.dot_product_attention(q, k, w, is_causal=True),
    f32(2, 6, 4, 8),
    f32(2, 6, 4, 8),
    f32(2, 6, 4, 8),
)


def adam(p, m, var, g):
    m = 0.9 * m + 0.1 * g
    var = 0.999 * var + 0.001 * g * g
    return p - 0.01 * m / (jnp.sqrt(var) + 1e-8), m, var


case("adam", adam, x, y * 0, y * 0, y)


def rk4(y0):
    def f(y):
        return jnp.stack([y[1], -y[0]])

    h = 0.1

    def st(y, _):
        k1 = f(y)
        k2 = f(y + h / 2 * k1)
        k3 = f(y + h / 2 * k2)
        k4 = f(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    return lax.scan(st, y0, None, length=20)


case("rk4", rk4, v[:2])
case("odeint", lambda a: odeint(lambda y, t: -y * t, a, jnp.linspace(0.0, 1.0, 4)), v[:3])
case(
    "image resize",
    lambda a: (
        jax.image.resize(a, (8, 10), "bilinear"),
        jax.image.resize(a, (3, 3), "nearest"),
        jax.image.resize(a, (8, 9), "cubic"),
    ),
    x,
)
case("map_coords", lambda a: jax.scipy.ndimage.map_coordinates(a, [jnp.array([0.5, 1.2]), jnp.array([1.5, 2.2])], 1), x)
case("xent", lambda a, i: -jnp.take_along_axis(jax.nn.log_softmax(a), i[:, None], axis=1).mean(), x, i32(5, 4))


def lstm(w, u, xs):
    def step(state, x):
        h, c = state
        i, f, o, g = jnp.split(x @ w + h @ u, 4)
        c = jax.nn.sigmoid(i) * jnp.tanh(g) + jax.nn.sigmoid(f) * c
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (jnp.zeros(4), jnp.zeros(4)), xs)[1]


case("lstm", lstm, f32(5, 16), f32(4, 16), x)
case("poly", lambda a: (jnp.polyval(jnp.array([1.0, 2.0, 3.0]), a), jnp.vander(a, 3)), v)
case("cov", lambda a: (jnp.cov(a), jnp.corrcoef(a)), x)
case("gradient", jnp.gradient, v)
case("digitize", lambda a: jnp.digitize(a, jnp.array([-1.0, 0.0, 1.0])), v)
case("select", lambda a: jnp.select([a > 1, a > 0], [a, 2 * a], 0.0), x)
case("piecewise", lambda a: jnp.piecewise(a, [a < 0, a >= 0], [lambda t: -t, lambda t: t * 2]), v)
case("triu_idx", lambda a: a[jnp.triu_indices(4)], x)
case("ccall", jax.checkpoint(lambda t: jnp.sin(jnp.sin(t))), x)
case("custom_jvp", jax.grad(lambda t: jax.nn.relu(t).sum()), x)
case("stopgrad", jax.grad(lambda t: (lax.stop_gradient(t) * t).sum()), x)
case("const", lambda a: a + jnp.asarray(np.arange(20, dtype=np.float32).reshape(4, 5)), x)
case("fp16", lambda a: (jnp.sin(a.astype(jnp.float16)), a.astype(jnp.bfloat16).sum(axis=1)), x)
case("f8", lambda a: a.astype(jnp.float8_e4m3fn).astype(jnp.float32), x)
case("int4", lambda a: a.astype(jnp.int4).astype(jnp.int32), i32(7, 5))

__all__ = ["CASES"]
