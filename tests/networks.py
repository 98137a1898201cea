"""Random pieces of networks: convolutional ones that the layout pass turns, transformer blocks, recurrent layers.

In: a seed. Out: a ``RandomGraph`` with the odd sizes at which blocked schedules have rests: 3, 17, 100 or 257 channels,
strides of 3, 1x7 kernels, groups; weights as constants or as inputs; symbolic batch and length. Not its business:
single products and convolutions (``contractions``), all other ops (``graphs``).
"""

from __future__ import annotations

from collections.abc import Callable

from contractions import Chain
from graphs import RandomGraph
from tilewright import ops
from tilewright.core import types
from tilewright.core.expr import Sym
from tilewright.core.graph import Node
from tilewright.core.types import dtype_of

MOST_MULTIPLIES = 3e6  # of one convolution, which the reference runs in NumPy


class Network(Chain):
    """Grows one network; every operand that is not an activation is a weight."""

    def weight(self, *shape: int, scale: float = 0.2) -> Node:
        return self.b.const(self.numbers(shape, scale)) if self.chance(0.85) else self.given(*shape)

    def activated(self, x: Node) -> Node:
        b = self.b
        match self.pick(("none", "relu", "relu", "silu", "gelu", "sigmoid", "leaky", "six", "swish")):
            case "relu":
                return b(ops.relu, x)
            case "silu":
                return b(ops.mul, x, b(ops.sigmoid, x))
            case "gelu":
                return b(ops.gelu, x)
            case "sigmoid":
                return b(ops.sigmoid, x)
            case "leaky":
                return b(ops.leaky_relu, x, alpha=0.1)
            case "six":
                return b(ops.clamp, x, b.const(0.0, x.dtype), b.const(6.0, x.dtype))
            case "swish":
                return b(ops.hard_swish, x)
        return x


# --- convolutional --------------------------------------------------------------------------------------------------


class _Images(Network):
    x: Node
    n: int
    channels: int
    spatial: list[int]

    def start(self) -> None:
        self.dtype = self.pick((types.f32,) * 6 + (types.f64, types.f16, types.bf16))
        self.n, self.channels = self.pick((1, 1, 2, 3)), self.pick((1, 3, 4, 8, 16, 17, 32, 100))
        self.spatial = [self.pick((5, 6, 7, 8, 11, 14)) for _ in range(2)]
        if self.chance(0.2):
            self.vary(self.n, self.channels, *self.spatial)
        self.x = self.given(self.n, self.channels, *self.spatial)
        self.sizes = {}  # later sizes are what shape inference makes of it

    def per_channel(self) -> Node:
        return self.b(ops.reshape, self.weight(self.channels), shape=(self.channels, 1, 1))

    def convolve(self) -> None:
        kind = self.pick(("dense", "dense", "dense", "pointwise", "depthwise", "grouped", "long"))
        groups, out = 1, self.pick((1, 3, 5, 8, 16, 17, 24, 32, 33, 64, 100, 257))
        kernel = [self.pick((1, 2, 3, 3, 5))] * 2
        if kind == "pointwise":
            kernel = [1, 1]
        elif kind == "long":
            kernel = [1, 7] if self.chance(0.5) else [7, 1]
        elif kind == "depthwise":
            groups, out = self.channels, self.channels * self.pick((1, 1, 2))
        elif kind == "grouped":
            groups = self.pick([g for g in (1, 2, 4, 8) if self.channels % g == 0])
            out = groups * self.pick((1, 3, 8, 17))
        stride = self.pick((1, 1, 1, 2, 3))
        pads = [(self.pick((0, k // 2)), k - 1) for k in kernel]
        after = [(d + a + b - k) // stride + 1 for d, (a, b), k in zip(self.spatial, pads, kernel, strict=True)]
        cost = self.n * after[0] * after[1] * out * (self.channels // groups) * kernel[0] * kernel[1]
        if min(after) < 1 or cost > MOST_MULTIPLIES:
            return
        scale = min(0.3, 1.5 / (self.channels // groups * kernel[0] * kernel[1]) ** 0.5)
        w = self.weight(out, self.channels // groups, *kernel, scale=scale)
        strides = [stride, stride]
        self.x = self.b(ops.conv, self.x, w, strides=strides, pads=pads, dilations=[1, 1], groups=groups)
        self.channels, self.spatial = out, after
        if self.chance(0.6):
            self.x = self.b(ops.add, self.x, self.per_channel())
        if self.chance(0.4):
            self.normalise()
        self.x = self.activated(self.x)

    def normalise(self) -> None:
        rows = [self.b.const(self.numbers((self.channels,), 0.3)) for _ in range(3)]
        spread = self.b.const(abs(self.numbers((self.channels,))) + self.dtype.numpy.type(0.5))
        if self.chance(0.8):
            self.x = self.b(ops.batch_norm, self.x, *rows, spread)
        else:
            self.x = self.b(ops.instance_norm, self.x, *rows[:2], epsilon=0.1)

    def residual(self) -> None:
        before, shape = self.x, self.x.shape
        kernel = self.pick(([3, 3], [1, 1]))
        if self.n * self.spatial[0] * self.spatial[1] * self.channels**2 * 9 > MOST_MULTIPLIES:
            return
        w = self.weight(self.channels, self.channels, *kernel, scale=0.3 / self.channels**0.5)
        pads = [(k // 2, k // 2) for k in kernel]
        y = self.b(ops.conv, self.x, w, strides=[1, 1], pads=pads, dilations=[1, 1])
        assert y.shape == shape
        self.x = self.activated(self.b(ops.add, y, before))

    def pool(self) -> None:
        k, stride = self.pick((2, 3)), self.pick((1, 2, 2, 3))
        pads = [(self.pick((0, k // 2)),) * 2 for _ in range(2)]
        after = [(d + a + b - k) // stride + 1 for d, (a, b) in zip(self.spatial, pads, strict=True)]
        if min(after) < 1:
            return
        window = {"kernel": [k, k], "strides": [stride, stride], "pads": pads}
        self.x = self.b(self.pick((ops.max_pool, ops.avg_pool)), self.x, **window)
        self.spatial = after

    def gate(self) -> None:
        """Squeeze and excitation."""
        b, c = self.b, self.channels
        mean = b(ops.reduce_mean, self.x, axes=(2, 3), keepdims=True)
        ones = {"strides": [1, 1], "pads": [(0, 0)] * 2, "dilations": [1, 1]}
        few = self.pick((1, 4, 9))
        squeezed = self.activated(b(ops.conv, mean, self.weight(few, c, 1, 1), **ones))
        scale = b(ops.sigmoid, b(ops.conv, squeezed, self.weight(c, few, 1, 1), **ones))
        self.x = b(ops.mul, self.x, scale)

    def join(self) -> None:
        """Concatenation and parts of the channels."""
        if self.chance(0.5):
            self.x = self.b(ops.concat, self.x, self.activated(self.x), axis=1)
            self.channels *= 2
        elif self.channels > 1:
            first = int(self.rng.integers(self.channels))
            stops = [*self.x.shape]
            stops[1] = self.channels
            starts = [0, first, 0, 0]
            self.x = self.b(ops.slice, self.x, starts=starts, stops=stops, steps=[1] * 4)
            self.channels -= first

    def enlarge(self) -> None:
        if self.chance(0.5) and max(self.spatial) < 12:
            sizes = [*self.x.shape[:2], *(2 * d for d in self.spatial)]
            mode = self.pick(("nearest", "linear"))
            self.x = self.b(ops.resize, self.x, sizes=sizes, mode=mode)
            self.spatial = [2 * d for d in self.spatial]
        elif self.channels <= 33 and max(self.spatial) < 12:
            w = self.weight(self.channels, 5, 2, 2, scale=0.4 / self.channels**0.5)
            window = {"strides": [2, 2], "pads": [(0, 0)] * 2, "dilations": [1, 1], "output_padding": [0, 0]}
            self.x = self.b(ops.conv_transpose, self.x, w, **window)
            self.channels, self.spatial = 5, [2 * d for d in self.spatial]

    def turn(self) -> None:
        """To channels last, something there, and back."""
        last = self.b(ops.transpose, self.x, perm=(0, 2, 3, 1))
        if self.channels > 1 and self.chance(0.6):
            last = self.b(ops.layer_norm, last, self.weight(self.channels), axis=3, epsilon=0.1)
        else:
            last = self.activated(last)
        self.x = self.b(ops.transpose, last, perm=(0, 3, 1, 2))

    def surround(self) -> None:
        pads = [(0, 0), (0, 0), (1, 0), (self.pick((0, 2)), 1)]
        mode = self.pick(("constant", "edge", "reflect"))
        self.x = self.b(ops.pad, self.x, self.b.const(0.0, self.dtype), pads=pads, mode=mode)
        self.spatial = [d + a + b for d, (a, b) in zip(self.spatial, pads[2:], strict=True)]

    def head(self) -> Node:
        b, c = self.b, self.channels
        match self.pick(("none", "mean", "flat", "softmax")):
            case "mean":
                mean = b(ops.reduce_mean, self.x, axes=(2, 3))
                return b(ops.matmul, mean, self.weight(c, 10, scale=0.3))
            case "flat":
                size = c * self.spatial[0] * self.spatial[1]
                flat = b(ops.reshape, self.x, shape=(self.x.shape[0], size))
                return b(ops.matmul, flat, self.weight(size, 3, scale=0.5 / size**0.5))
            case "softmax":
                return b(ops.softmax, self.x, axis=1)
        return self.x


def convolutional(seed: int) -> RandomGraph:
    """Two to six blocks, now and then with an output from the middle."""
    c = _Images(seed)
    c.start()
    blocks: tuple[Callable[[], None], ...] = (
        c.convolve, c.convolve, c.convolve, c.convolve, c.residual, c.residual, c.pool, c.gate, c.join, c.enlarge,
        c.turn, c.surround,
    )  # fmt: skip
    outputs = []
    for _ in range(c.pick((2, 3, 4, 6))):
        c.pick(blocks)()
        if c.chance(0.1):
            outputs.append(c.x)
    return c.graph([c.head(), *outputs], seed)


# --- transformers ---------------------------------------------------------------------------------------------------


class _Tokens(Network):
    def start(self) -> None:
        self.dtype = self.pick((types.f32,) * 6 + (types.f64, types.f16, types.bf16))
        self.heads = self.pick((1, 2, 3, 4))
        self.per_head = self.pick((2, 4, 8, 16, 20, 32))
        self.width = self.heads * self.per_head
        self.batch, self.length = self.pick((1, 1, 2, 3)), self.pick((1, 2, 5, 16, 17, 33, 50))
        b: object = self.batch
        t: object = self.length
        if self.chance(0.3):
            t = Sym("t", 1, self.pick((None, 64)))
        if self.chance(0.15):
            b = Sym("b", 1, None)
        self.dims = (b, t)
        self.x = self.b.pool.input("x", types.TensorType(self.dtype, (b, t, self.width)))  # type: ignore[arg-type]
        self.inputs.append(self.x)
        self.arrays.append(self.numbers((self.batch, self.length, self.width)))

    def linear(self, x: Node, n_in: int, n_out: int) -> Node:
        y = self.b(ops.matmul, x, self.weight(n_in, n_out, scale=0.7 / n_in**0.5))
        return self.b(ops.add, y, self.weight(n_out)) if self.chance(0.7) else y

    def normed(self, x: Node) -> Node:
        scale = self.b.const(self.numbers((self.width,), 0.3) + self.dtype.numpy.type(1))
        if self.width > 1 and self.chance(0.5):
            return self.b(ops.layer_norm, x, scale, self.weight(self.width), axis=2, epsilon=0.1)
        return self.b(ops.rms_norm, x, scale, axis=2, epsilon=0.1)

    def split(self, x: Node) -> Node:
        x = self.b(ops.reshape, x, shape=(*self.dims, self.heads, self.per_head))
        return self.b(ops.transpose, x, perm=(0, 2, 1, 3))

    def attend(self) -> None:
        b = self.b
        x = self.normed(self.x)
        q, k, v = (self.split(self.linear(x, self.width, self.width)) for _ in range(3))
        scale = self.per_head**-0.5
        if self.chance(0.5):
            y = b(ops.attention, q, k, v, scale=scale, causal=self.chance(0.5))
        else:
            scores = b(ops.matmul, q, b(ops.transpose, k, perm=(0, 1, 3, 2)))
            scores = b(ops.mul, scores, b.const(scale, self.dtype))
            y = b(ops.matmul, b(ops.softmax, scores, axis=3), v)
        y = b(ops.reshape, b(ops.transpose, y, perm=(0, 2, 1, 3)), shape=(*self.dims, self.width))
        self.x = b(ops.add, self.x, self.linear(y, self.width, self.width))

    def transform(self) -> None:
        inner = self.pick((5, 16, 33, 64, 100))
        x = self.normed(self.x)
        y = self.activated(self.linear(x, self.width, inner))
        if self.chance(0.3):
            y = self.b(ops.mul, y, self.linear(x, self.width, inner))
        self.x = self.b(ops.add, self.x, self.linear(y, inner, self.width))


def transformer(seed: int) -> RandomGraph:
    """One to three blocks of attention or a feed-forward net, each with its norm and residual."""
    c = _Tokens(seed)
    c.start()
    for _ in range(c.pick((1, 2, 3))):
        c.pick((c.attend, c.transform))()
    outputs = [c.normed(c.x) if c.chance(0.5) else c.x]
    if c.chance(0.3):
        outputs.append(c.b(ops.reduce_mean, c.x, axes=(1,)))
    assert all(dtype_of(a.dtype) is n.dtype for a, n in zip(c.arrays, c.inputs, strict=True))
    return c.graph(outputs, seed)


def network(seed: int) -> RandomGraph:
    """A convolutional net or a transformer."""
    return transformer(seed) if seed % 3 == 0 else convolutional(seed)
