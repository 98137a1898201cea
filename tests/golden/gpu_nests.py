"""A graph for each strategy of GPUs, of sizes that nets have: what the rows of ``ptxas.json`` are about.

In: nothing. Out: ``GPU_NESTS``, functions that make graphs, by what they show. Not its business: what is made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tilewright import ops
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import DType, TensorType, bf16, bool_, f16, f32, i8

Body = Callable[..., Node]


def _graph(body: Body, *inputs: tuple[DType, tuple[int, ...]]) -> Graph:
    b = Builder(Pool())
    given = tuple(b.pool.input(f"x{k}", TensorType(t, shape)) for k, (t, shape) in enumerate(inputs))
    return Graph("nest", b.pool, given, (body(b, *given),), ("y",))


def _matmul(b: Builder, x: Node, y: Node) -> Node:
    return b(ops.matmul, x, y)


def _product(dtype: DType, rows: int, columns: int, terms: int) -> Callable[[], Graph]:
    return partial(_graph, _matmul, (dtype, (rows, terms)), (dtype, (terms, columns)))


def _conv(b: Builder, x: Node, w: Node) -> Node:
    pads, ones = ((1, 1), (1, 1)), (1, 1)
    return b(ops.relu, b(ops.conv, x, w, strides=ones, pads=pads, dilations=ones, groups=1))


def _attention(b: Builder, *operands: Node, causal: bool = False) -> Node:
    depth = operands[0].shape[-1]
    assert isinstance(depth, int)
    return b(ops.attention, *operands, scale=depth**-0.5, causal=causal)


def _attended(
    depth: int, *, mask: DType | None = None, causal: bool = False, tokens: int = 2048
) -> Callable[[], Graph]:
    """Attention of all tokens in bf16."""
    masks = () if mask is None else ((mask, (tokens, tokens)),)
    each = ((bf16, (2, 8, tokens, depth)),) * 3
    return partial(_graph, partial(_attention, causal=causal), *each, *masks)


def _decoded(dtype: DType, depth: int) -> Callable[[], Graph]:
    """Attention of one query."""
    cache = (dtype, (2, 8, 1024, depth))
    return partial(_graph, _attention, (dtype, (2, 8, 1, depth)), cache, cache)


def _by_bytes(b: Builder, x: Node, w: Node) -> Node:
    """Few rows by weights of bytes."""
    return b(ops.matmul, x, b(ops.cast, w, dtype=bf16))


def _cumsum(b: Builder, x: Node) -> Node:
    return b(ops.cumsum, x, axis=1)


def _sorted(b: Builder, x: Node) -> Node:
    return b.results(b(ops.sort, x, axis=1))[0]


def _elements(b: Builder, x: Node, y: Node) -> Node:
    return b(ops.mul, b(ops.sigmoid, b(ops.add, x, y)), x)


def _sum(axis: int) -> Body:
    return lambda b, x: b(ops.reduce_sum, x, axes=(axis,))


GPU_NESTS: Mapping[str, Callable[[], Graph]] = {
    "elements f32": partial(_graph, _elements, (f32, (1024, 4096)), (f32, (1024, 4096))),
    "elements bf16": partial(_graph, _elements, (bf16, (1024, 4096)), (bf16, (1024, 4096))),
    "softmax f32": partial(_graph, lambda b, x: b(ops.softmax, x, axis=1), (f32, (1024, 4096))),
    "softmax bf16, long rows": partial(_graph, lambda b, x: b(ops.softmax, x, axis=1), (bf16, (32, 50257))),
    "sums of rows": partial(_graph, _sum(1), (f32, (1024, 4096))),
    "sums of columns": partial(_graph, _sum(0), (f32, (4096, 1024))),
    "sum of everything": partial(_graph, lambda b, x: b(ops.reduce_sum, x, axes=(0, 1)), (f32, (256, 256))),
    "transpose f32": partial(_graph, lambda b, x: b(ops.transpose, x, perm=(1, 0)), (f32, (2048, 1024))),
    "transpose bf16": partial(_graph, lambda b, x: b(ops.transpose, x, perm=(0, 2, 1)), (bf16, (16, 196, 768))),
    "product f32": _product(f32, 1024, 1024, 1024),
    "product bf16": _product(bf16, 4096, 4096, 4096),
    "product f16, odd": _product(f16, 1000, 513, 300),
    "product bf16, terms in parts": _product(bf16, 256, 256, 16384),
    "convolution f32": partial(_graph, _conv, (f32, (8, 64, 28, 28)), (f32, (128, 64, 3, 3))),
    "convolution bf16": partial(_graph, _conv, (bf16, (8, 64, 28, 28)), (bf16, (128, 64, 3, 3))),
    "attention 64": _attended(64),
    "attention 64, causal": _attended(64, causal=True),
    "attention 64, added mask": _attended(64, mask=bf16),
    "attention 64, odd, bool mask": _attended(64, mask=bool_, tokens=333),
    "attention 128": _attended(128),
    "attention 128, causal": _attended(128, causal=True),
    "attention 128, odd, added mask": _attended(128, mask=bf16, tokens=333),
    "attention 256, odd": _attended(256, tokens=333),
    "attention 256, added mask": _attended(256, mask=bf16),
    "attention 256, odd, added mask": _attended(256, mask=bf16, tokens=333),
    "one query f32": _decoded(f32, 64),
    "one query bf16": _decoded(bf16, 128),
    "few rows f32": _product(f32, 4, 4096, 4096),
    "few rows bf16": _product(bf16, 16, 4096, 4096),
    "few rows bf16 by bytes": partial(_graph, _by_bytes, (bf16, (4, 4096)), (i8, (4096, 4096))),
    "scan": partial(_graph, _cumsum, (f32, (256, 1000))),
    "sort": partial(_graph, _sorted, (f32, (64, 1000))),
}

SHOWN = {
    "averages", "columns", "elements", "few_rows", "matrix_units", "products", "rows", "single_rows", "sums",
    "transposes",
}  # fmt: skip
"""The strategies that the graphs are for: every one of ``choose/gpu.py`` but ``row_sums``, which has what ``rows``
refuses."""
