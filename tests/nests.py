"""A small graph for each kind of loop nest that the compiler makes: what golden kernels and ``make replay`` show.

In: nothing. Out: ``NESTS``, functions that make graphs, by kind. Sizes are odd, so that nests have rests, and small, so
that their text can be read. Not its business: right answers (``test_every_op`` and the tests of each level).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from tilewright import ops
from tilewright.core.expr import Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import DType, TensorType, bool_, f32, i8, i32, i64, u8

Made = Node | tuple[Node, ...]
Body = Callable[..., Made]


def _graph(name: str, body: Body, *inputs: tuple[DType, tuple[object, ...]]) -> Graph:
    """A graph whose outputs ``body(builder, *inputs)`` makes."""
    b = Builder(Pool())
    given = tuple(b.pool.input("xyzuvw"[k], TensorType(t, shape)) for k, (t, shape) in enumerate(inputs))  # type: ignore[arg-type]
    made = body(b, *given)
    results = made if isinstance(made, tuple) else (made,)
    return Graph(name, b.pool, given, results, tuple(f"out{k}" for k in range(len(results))))


def _weights(b: Builder, *shape: int, dtype: DType = f32) -> Node:
    """Numbers that every computer's NumPy makes alike, to the last bit."""
    whole = (np.arange(np.prod(shape)) * 7 % 100 - 50).reshape(shape)
    return b.const((whole / 64 if dtype.is_float else whole).astype(dtype.numpy))


# --- products -------------------------------------------------------------------------------------------------------


def _matmul(b: Builder, x: Node) -> Node:
    """With what follows it: a bias, then a maximum."""
    y = b(ops.add, b(ops.matmul, x, _weights(b, 20, 24)), _weights(b, 24))
    return b(ops.maximum, y, b.const(0.0, f32))


def _conv(b: Builder, x: Node, *, out: int, kernel: int, groups: int = 1) -> Node:
    assert isinstance(x.shape[1], int)
    pads = ((kernel // 2, kernel // 2),) * 2
    w = _weights(b, out, x.shape[1] // groups, kernel, kernel)
    return b(ops.relu, b(ops.conv, x, w, strides=(1, 1), pads=pads, dilations=(1, 1), groups=groups))


def _attention(b: Builder, q: Node, k: Node, v: Node) -> Node:
    return b(ops.attention, q, k, v, scale=0.25)


def _quantised(b: Builder, x: Node) -> Node:
    """Bytes times bytes in 32 bits, scaled back to bytes."""
    product = b(ops.matmul, x, _weights(b, 40, 24, dtype=i8), out_dtype=i32)
    scaled = b(ops.round, b(ops.mul, b(ops.cast, product, dtype=f32), b.const(0.01, f32)))
    return b(ops.cast, b(ops.clamp, scaled, b.const(-128.0, f32), b.const(127.0, f32)), dtype=i8)


def _quantised_rows(b: Builder, x: Node) -> Node:
    """Rows enough for registers of matrices, and some beyond: 20 by 24 results of bytes."""
    return b(ops.cast, b(ops.matmul, x, _weights(b, 64, 24, dtype=i8), out_dtype=i32), dtype=f32)


def _quantised_conv(b: Builder, x: Node) -> Node:
    y = b(ops.dequantize_linear, x, b.const(0.02, f32), b.const(np.uint8(3)))
    y = _conv(b, y, out=8, kernel=3)
    return b(ops.quantize_linear, y, b.const(0.1, f32), b.const(np.uint8(0)), dtype=u8)


def _decoded(b: Builder, x: Node) -> Node:
    """Weights of four bits with a scale a block of rows."""
    w = b(ops.dequantize_linear, _weights(b, 32, 24, dtype=i8), _weights(b, 4, 24), _weights(b, 4, 24, dtype=i8),
          axis=0, block_size=8)  # fmt: skip
    return b(ops.matmul, x, w)


# --- rows, windows, elements ----------------------------------------------------------------------------------------


def _pooling(b: Builder, x: Node) -> Node:
    return b(ops.max_pool, x, kernel=(3, 3), strides=(2, 2), pads=((1, 1), (1, 1)))


def _softmax(b: Builder, x: Node) -> Node:
    return b(ops.softmax, x, axis=1)


def _elementwise(b: Builder, x: Node, y: Node) -> Node:
    return b(ops.mul, b(ops.sigmoid, b(ops.add, x, y)), x)


def _reduction(b: Builder, x: Node) -> Node:
    return b(ops.reduce_sum, b(ops.mul, x, x), axes=(0,))


def _transposition(b: Builder, x: Node) -> Node:
    return b(ops.transpose, x, perm=(1, 0))


# --- order, indices, steps ------------------------------------------------------------------------------------------


def _gather(b: Builder, rows: Node) -> Node:
    return b(ops.gather, _weights(b, 30, 20), rows, axis=0)


def _sort(b: Builder, x: Node) -> tuple[Node, ...]:
    return b.results(b(ops.sort, x, axis=1))


def _scan(b: Builder, x: Node) -> Node:
    return b(ops.cumsum, x, axis=0)


def _recurrence(b: Builder, x: Node) -> tuple[Node, ...]:
    hidden = 12
    w, r = _weights(b, 1, 4 * hidden, 9), _weights(b, 1, 4 * hidden, hidden)
    start = b.const(np.zeros((1, 1, hidden), np.float32))
    return b.results(b(ops.lstm, x, w, r, _weights(b, 1, 8 * hidden), start, start, hidden=hidden))


# --- control flow ---------------------------------------------------------------------------------------------------


def _branch(b: Builder, cond: Node, x: Node) -> Node:
    arms = [_graph(name, lambda b, p, op=op: b(op, p), (f32, x.shape)) for name, op in _ARMS.items()]
    return b(ops.if_, cond, x, then_branch=arms[0], else_branch=arms[1], name="if")


_ARMS = {"then": ops.exp, "else": ops.neg}


def _repeat(b: Builder, trips: Node, x: Node) -> Node:
    def body(b: Builder, trip: Node, go: Node, carried: Node) -> tuple[Node, ...]:
        return go, b(ops.tanh, b(ops.matmul, carried, _weights(b, 8, 8)))

    inner = _graph("body", body, (i64, ()), (bool_, ()), (f32, x.shape))
    return b(ops.loop, trips, b.const(np.asarray(True)), x, body=inner, n_carried=1, name="loop")


NESTS: Mapping[str, Callable[[], Graph]] = {
    name: partial(_graph, name, body, *inputs)
    for name, body, inputs in (
        ("matmul", _matmul, ((f32, (7, 20)),)),
        ("matmul_dynamic", _matmul, ((f32, (Sym("n", 1), 20)),)),
        ("conv", partial(_conv, out=8, kernel=3), ((f32, (1, 5, 9, 9)),)),
        ("depthwise", partial(_conv, out=16, kernel=3, groups=16), ((f32, (1, 16, 9, 14)),)),
        ("pooling", _pooling, ((f32, (1, 16, 9, 9)),)),
        ("softmax", _softmax, ((f32, (6, 37)),)),
        ("elementwise", _elementwise, ((f32, (6, 37)), (f32, (37,)))),
        ("reduction", _reduction, ((f32, (19, 37)),)),
        ("attention", _attention, ((f32, (1, 1, 5, 16)),) * 3),
        ("recurrence", _recurrence, ((f32, (5, 1, 9)),)),
        ("scan", _scan, ((f32, (11, 20)),)),
        ("gather", _gather, ((i64, (7,)),)),
        ("sort", _sort, ((f32, (3, 20)),)),
        ("quantised", _quantised, ((u8, (7, 40)),)),
        ("quantised_rows", _quantised_rows, ((u8, (20, 64)),)),
        ("quantised_conv", _quantised_conv, ((u8, (1, 5, 9, 9)),)),
        ("quantised_blocks", _decoded, ((f32, (3, 32)),)),
        ("transposition", _transposition, ((f32, (20, 37)),)),
        ("branch", _branch, ((bool_, ()), (f32, (6, 8)))),
        ("repeat", _repeat, ((i64, ()), (f32, (3, 8)))),
    )
}
