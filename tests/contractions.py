"""Random products and convolutions with what surrounds them in models: sizes that fill no vector, all dtypes, symbols.

In: a seed. Out: a ``RandomGraph``: a few chained matmuls or convolutions with biases, activations, residuals and
transposes. Not its business: other ops (``graphs``).
"""

from __future__ import annotations

import numpy as np

from graphs import RandomGraph
from tilewright import ops
from tilewright.core import types
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import Array, DType, TensorType

DTYPES = (*[types.f32] * 6, types.f64, types.f16, types.bf16, types.i32, types.i8, types.u8, types.i64)
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 100, 130, 257)


class Chain:
    """Grows one graph; ``size`` may make a dimension symbolic."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = Builder(Pool())
        self.dtype: DType = self.pick(DTYPES)
        self.inputs: list[Node] = []
        self.arrays: list[Array] = []
        self.sizes: dict[int, Dim] = {}

    def pick(self, items):
        return items[int(self.rng.integers(len(items)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def numbers(self, shape: tuple[int, ...], scale: float = 1.0) -> Array:
        if self.dtype.is_float:
            return (self.rng.standard_normal(shape) * scale).astype(self.dtype.numpy)
        return self.rng.integers(0 if not self.dtype.is_signed else -3, 4, shape).astype(self.dtype.numpy)

    def given(self, *shape: int) -> Node:
        """An input; a dimension becomes the symbol that its size has, if any."""
        dims = tuple(self.sizes.get(n, n) for n in shape)
        node = self.b.pool.input(f"x{len(self.inputs)}", TensorType(self.dtype, dims))
        self.inputs.append(node)
        self.arrays.append(self.numbers(shape))
        return node

    def operand(self, *shape: int, scale: float = 1.0) -> Node:
        if self.chance(0.7) and not any(n in self.sizes for n in shape):
            return self.b.const(self.numbers(shape, scale))
        return self.given(*shape)

    def vary(self, n: int, *fixed: int) -> None:
        """Sizes of ``n`` become a symbol, unless dimensions of this size must be numbers."""
        if n > 1 and n not in fixed:
            self.sizes[n] = Sym(f"n{n}", self.pick((0, 1, 1, 2)), self.pick((None, None, n, 4 * n)))

    def epilogue(self, x: Node, axis: int, shape: tuple[int, ...]) -> Node:
        b = self.b
        if self.chance(0.5):
            bias = self.operand(shape[axis])
            wide = [1] * len(shape)
            wide[axis] = bias.shape[0]
            x = b(ops.add, x, b(ops.reshape, bias, shape=wide))
        if self.chance(0.4):
            x = b(self.pick((ops.relu, ops.sigmoid, ops.tanh) if self.dtype.is_float else (ops.relu,)), x)
        if self.chance(0.3):
            x = b(self.pick((ops.add, ops.mul, ops.maximum)), x, self.given(*shape))
        if self.chance(0.15) and len(shape) >= 2:
            x = b(ops.reduce_sum, x, axes=(axis,), keepdims=True)
        return x

    def graph(self, outputs: list[Node], seed: int) -> RandomGraph:
        names = tuple(f"y{k}" for k in range(len(outputs)))
        graph = Graph("contraction", self.b.pool, tuple(self.inputs), tuple(outputs), names)
        return RandomGraph(graph, self.arrays, seed)


def product(seed: int) -> RandomGraph:
    """(batch,) m x k times k x n, operands perhaps transposed or broadcast, then an epilogue, perhaps a second one."""
    c = Chain(seed)
    m, k, n = (c.pick(EXTENTS) for _ in range(3))
    for size in (m, k, n):
        if c.chance(0.2):
            c.vary(size)
    batch = c.pick(((), (), (2,), (3, 2)))

    def matrix(rows: int, columns: int, lead: tuple[int, ...]) -> Node:
        if c.chance(0.3):
            x = c.operand(*lead, columns, rows, scale=0.3)
            return c.b(ops.transpose, x, perm=(*range(len(lead)), len(lead) + 1, len(lead)))
        return c.operand(*lead, rows, columns, scale=0.3)

    left = c.given(*batch, m, k)
    x = c.b(ops.matmul, left, matrix(k, n, batch if c.chance(0.4) else ()))
    x = c.epilogue(x, len(batch) + 1, (*batch, m, n))
    outputs = [x]
    if c.chance(0.4) and x.shape[-1] == c.sizes.get(n, n):
        p = c.pick(EXTENTS)
        outputs = [*([x] if c.chance(0.3) else []), c.b(ops.matmul, x, matrix(n, p, ()))]
    return c.graph(outputs, seed)


def convolution(seed: int) -> RandomGraph:
    """1 to 3 spatial dimensions, groups, strides, dilations, uneven pads, both layouts."""
    c = Chain(seed)
    c.dtype = c.pick((types.f32, types.f32, types.f32, types.f64, types.f16, types.bf16, types.i32))
    rank = c.pick((1, 2, 2, 2, 3))
    spatial = [c.pick((3, 5, 6, 7, 8, 11, 14, 17)) for _ in range(rank)]
    groups, per_in = c.pick((1, 1, 1, 2, 4)), c.pick((1, 3, 4, 8, 16, 17, 100))
    per_out = c.pick((1, 2, 5, 8, 16, 33, 64, 257))
    if c.chance(0.25):
        groups, per_in, per_out = c.pick((3, 8, 16, 19, 32)), 1, c.pick((1, 1, 2))
    n = c.pick((1, 2, 3))
    kernel = [c.pick((1, 2, 3, 3, 5)) for _ in range(rank)]
    if rank == 2 and c.chance(0.1):
        kernel = [1, 7] if c.chance(0.5) else [7, 1]
    if groups * per_in * per_out > 3000:  # the reference is NumPy
        n, spatial = 1, [min(d, 7) for d in spatial]
    for size in (n, spatial[0]):
        if c.chance(0.15):
            c.vary(size, groups * per_in, groups * per_out, per_in, *kernel)
    dilations = [1 if c.chance(0.8) else 2 for _ in range(rank)]
    pads = [(c.pick((0, 1, 2)), (k - 1) * d + c.pick((0, 1))) for k, d in zip(kernel, dilations, strict=True)]
    layout = c.pick(("NCHW", "NCHW", "NHWC"))
    channels = groups * per_in
    shape = (n, channels, *spatial) if layout == "NCHW" else (n, *spatial, channels)
    x = c.given(*shape)
    w = c.operand(groups * per_out, per_in, *kernel, scale=0.2)
    strides = [c.pick((1, 1, 2, 3)) for _ in range(rank)]
    y = c.b(ops.conv, x, w, strides=strides, pads=pads, dilations=dilations, groups=groups, layout=layout)
    if c.chance(0.5):
        bias = c.operand(groups * per_out)
        wide = [bias.shape[0], *[1] * rank] if layout == "NCHW" else [bias.shape[0]]
        y = c.b(ops.add, y, c.b(ops.reshape, bias, shape=wide))
    if c.chance(0.5):
        y = c.b(ops.relu, y)
    if c.chance(0.3):
        y = c.b(ops.mul, y, y)
    return c.graph([y], seed)


def contraction(seed: int) -> RandomGraph:
    """A product or a convolution."""
    return product(seed) if seed % 2 else convolution(seed)
