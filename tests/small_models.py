"""Small networks as graphs, sized so that kernels run in parallel: what tests of the whole system compile and call."""

from __future__ import annotations

import numpy as np

from graph.networks import Net, transformer
from tilewright import ops
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import Array, Dim, TensorType, f32


def _graph(name: str, shape: tuple[Dim, ...], body: object) -> Graph:
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, shape))
    y: Node = body(b, x)  # type: ignore[operator]
    return Graph(name, b.pool, (x,), (y,), ("y",))


def convnet() -> Graph:
    """Dense, strided, depthwise and pointwise convolutions, a residual, a classifier."""

    def body(b: Builder, x: Node) -> Node:
        net = Net(b)
        y = net.relu(net.batch_norm(net.conv(x, 32, kernel=5, stride=2)))
        y = net.residual_block(y, 32)
        y = net.relu(net.conv(net.conv(y, 32, groups=32), 48, kernel=1))
        return net.linear(b(ops.reduce_mean, y, axes=(2, 3)), 10)

    return _graph("convnet", (2, 3, 64, 64), body)


def language_model() -> Graph:
    """One transformer layer of width 64; batch and length may vary."""
    shape = (Sym("batch", 1), Sym("tokens", 1), 64)
    return _graph("language_model", shape, transformer)


def perceptron() -> Graph:
    """Two layers on rows of 64; what compiles soonest and still has kernels of products."""
    return _graph("perceptron", (Sym("rows", 1), 64), _two_layers)


def sequences() -> Graph:
    """Those layers with the language model's input, for tests of sizes, files and calls: a tenth of its compile."""
    return _graph("sequences", (Sym("batch", 1), Sym("tokens", 1), 64), _two_layers)


def _two_layers(b: Builder, x: Node) -> Node:
    net = Net(b)
    return net.linear(net.relu(net.linear(x, 64)), 64)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
