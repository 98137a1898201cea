"""What writes each op that StableHLO has.

In: nothing. Out: ``WRITERS``. Not its business: ops without an entry (``frontend.spellings``).
"""

from __future__ import annotations

from tilewright import ops
from tilewright.core.opdef import OpDef
from tilewright.frontend.stablehlo.writer import linalg, moves
from tilewright.frontend.stablehlo.writer import ops as arithmetic
from tilewright.frontend.stablehlo.writer.lines import Writer
from tilewright.frontend.stablehlo.writer.ops import comparison, extreme, of_chlo, one, reduction, together
from tilewright.ops.common import highest, lowest

WRITERS: dict[OpDef, Writer] = {
    **{op: one(name) for op, name in arithmetic.SAME.items()},
    **{op: of_chlo(name) for op, name in arithmetic.CHLO.items()},
    **{op: together(name) for op, name in arithmetic.TOGETHER.items()},
    **{op: comparison(name) for op, name in arithmetic.COMPARED.items()},
    ops.shift_right: arithmetic.shift_right, ops.isnan: arithmetic.isnan, ops.isinf: arithmetic.isinf,
    ops.reciprocal: arithmetic.reciprocal, ops.bitcast: arithmetic.reinterpret, ops.clamp: moves.clamp,
    ops.reduce_sum: reduction("add", lambda d: 0), ops.reduce_prod: reduction("multiply", lambda d: 1),
    ops.reduce_max: reduction("maximum", lambda d: lowest(d).value),
    ops.reduce_min: reduction("minimum", lambda d: highest(d).value),
    ops.reduce_any: reduction("or", lambda d: 0), ops.reduce_all: reduction("and", lambda d: 1),
    ops.argmax: extreme("GT"), ops.argmin: extreme("LT"), ops.matmul: arithmetic.matmul, ops.conv: arithmetic.conv,
    ops.conv_transpose: arithmetic.conv_transpose, ops.max_pool: arithmetic.max_pool,
    ops.avg_pool: arithmetic.avg_pool,
    ops.cholesky: linalg.cholesky, ops.solve_triangular: linalg.solve_triangular,
    # moves, lookups, orders, sources, control flow
    ops.reshape: moves.reshape, ops.expand: moves.expand, ops.transpose: moves.transpose, ops.reverse: moves.reverse,
    ops.concat: moves.concat, ops.slice: moves.slice_, ops.pad: moves.pad, ops.iota: moves.sources,
    ops.dim_values: moves.sources, ops.full: moves.sources, ops.with_sizes: moves.with_sizes,
    ops.dynamic_slice: moves.dynamic_slice, ops.dynamic_update_slice: moves.dynamic_update_slice,
    ops.gather: moves.gather, ops.gather_elements: moves.gather_elements, ops.gather_nd: moves.gather_nd,
    ops.scatter_nd: moves.scatter_nd, ops.scatter_elements: moves.scatter_elements, ops.sort: moves.sort,
    ops.if_: moves.if_, ops.loop: moves.loop,
}  # fmt: skip
"""How each op is written that has a counterpart."""
