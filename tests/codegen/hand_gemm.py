"""A register-tiled GEMM scheduled by hand, in the shape that the default rule produces."""

import numpy as np

from codegen.native import kernel, reg
from tilewright.core import types
from tilewright.core.compute import Buffer, Const
from tilewright.core.expr import Sym, ceildiv, minimum
from tilewright.tile.ir import For, Kind, Loop, Store, Update


def gemm(
    m, n, k, rows, vectors, lanes, *, packed=True, symbolic=False, epilogue=lambda v: v, kind=Kind.PARALLEL, k_step=1
):
    """``C = epilogue(A @ B)`` by tiles of ``rows`` x ``vectors * lanes``; B in panels when ``packed``.

    ``k_step`` > 1 unrolls the reduction and walks the panels of B outermost, so that one stays in the cache.
    """
    f32, width = types.f32, vectors * lanes
    n_panels = -(-n // width)
    m = Sym("M", 0) if symbolic else m
    a, c = Buffer("A", f32, (m, k)), Buffer("C", f32, (m, n))
    b = Buffer("B", f32, (n_panels, k, width) if packed else (k, n))
    acc = Buffer("acc", f32, (rows, width))
    io, jo, kk = Sym("io", 0), Sym("jo", 0, n_panels - 1), Sym("k", 0, k - 1)
    ii, jv, lane = Sym("ii", 0, rows - 1), Sym("jv", 0, vectors - 1), Sym("l", 0, lanes - 1)
    at = (ii, jv * lanes + lane)

    def tile(*statements):
        inner = For(Loop(lane, minimum(lanes, n - width * jo - lanes * jv), Kind.VECTOR), statements)
        columns = For(Loop(jv, minimum(vectors, ceildiv(n - width * jo, lanes)), Kind.UNROLL), (inner,))
        return For(Loop(ii, minimum(rows, m - rows * io), Kind.UNROLL), (columns,))

    ko, ki = Sym("ko", 0, k // k_step - 1), Sym("ki", 0, k_step - 1)
    if k_step > 1:
        kk = ko * k_step + ki
    right = b[jo, kk, at[1]] if packed else b[kk, jo * width + at[1]]
    update = tile(Update(acc, at, "add", a[io * rows + ii, kk] * right))
    reduce = For(Loop(kk, k), (update,)) if k_step == 1 else _unrolled(ko, ki, k, k_step, update)
    body = (
        tile(Store(acc, at, Const(0.0, f32))),
        reduce,
        tile(Store(c, (io * rows + ii, jo * width + at[1]), epilogue(acc[at]))),
    )
    row_loop, panel_loop = Loop(io, ceildiv(m, rows), kind), Loop(jo, n_panels)
    outer, inner = (row_loop, panel_loop) if k_step == 1 else (panel_loop, row_loop)
    nest = For(outer, (For(inner, body),))
    return kernel([nest], a, b, c, reg(acc), sizes=(m,) if symbolic else ())


def _unrolled(ko, ki, k, k_step, update):
    return For(Loop(ko, k // k_step), (For(Loop(ki, k_step, Kind.UNROLL), (update,)),))


def panels(b, width):
    """B re-laid as the kernel walks it: (panel, k, column), zeros behind the last column."""
    k, n = b.shape
    padded = np.zeros((k, -(-n // width) * width), b.dtype)
    padded[:, :n] = b
    return np.ascontiguousarray(padded.reshape(k, -1, width).transpose(1, 0, 2))
