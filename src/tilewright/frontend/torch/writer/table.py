"""What writes each op that PyTorch has.

In: nothing. Out: ``WRITERS``. Not its business: ops without an entry (``frontend.spellings``).
"""

from __future__ import annotations

from tilewright import ops
from tilewright.core.opdef import OpDef
from tilewright.frontend.torch.writer import arithmetic, control, linalg, moves
from tilewright.frontend.torch.writer.arithmetic import cumulative, one, position, reduction, special
from tilewright.frontend.torch.writer.values import Writer, guarded

_FORMS: dict[OpDef, Writer] = {
    **{op: one(name) for op, name in arithmetic.SAME.items()},
    **{op: special(name) for op, name in arithmetic.SPECIAL.items()},
    **arithmetic.ACTIVATIONS,
    ops.gelu: arithmetic.gelu, ops.softplus: arithmetic.softplus, ops.hard_sigmoid: arithmetic.hard_sigmoid,
    ops.div: arithmetic.div, ops.sign: arithmetic.sign, ops.cast: arithmetic.cast, ops.decode: arithmetic.cast,
    # reductions
    ops.reduce_sum: reduction("sum", says_dtype=True),
    ops.reduce_max: reduction("amax"), ops.reduce_min: reduction("amin"),
    ops.reduce_any: reduction("any"), ops.reduce_all: reduction("all"),
    ops.reduce_mean: reduction("mean"), ops.logsumexp: reduction("logsumexp"), ops.reduce_prod: arithmetic.reduce_prod,
    ops.variance: arithmetic.variance, ops.argmax: position("argmax"), ops.argmin: position("argmin"),
    ops.cumsum: cumulative("cumsum"), ops.cumprod: cumulative("cumprod"), ops.cummax: cumulative("cummax"),
    ops.cummin: cumulative("cummin"),
    # products, windows, norms
    ops.matmul: arithmetic.matmul, ops.einsum: arithmetic.einsum, ops.conv: arithmetic.conv,
    ops.conv_transpose: arithmetic.conv_transpose, ops.max_pool: arithmetic.max_pool,
    ops.max_pool_indices: arithmetic.max_pool, ops.avg_pool: arithmetic.avg_pool,
    ops.batch_norm: arithmetic.batch_norm, ops.layer_norm: arithmetic.over_last("layer_norm"),
    ops.rms_norm: arithmetic.over_last("rms_norm"), ops.group_norm: arithmetic.group_norm,
    ops.attention: arithmetic.attention, ops.softmax: arithmetic.softmax("softmax"),
    ops.log_softmax: arithmetic.softmax("log_softmax"),
    # moves, lookups, orders, sources, control flow
    ops.reshape: moves.reshape, ops.expand: moves.expand, ops.transpose: moves.transpose, ops.reverse: moves.reverse,
    ops.roll: moves.roll, ops.concat: moves.concat, ops.tile: moves.tile, ops.slice: moves.slice_, ops.pad: moves.pad,
    ops.trilu: moves.trilu, ops.with_sizes: moves.with_sizes, ops.iota: moves.iota, ops.full: moves.full,
    ops.dim_values: moves.dim_values, ops.argwhere: moves.argwhere, ops.gather: moves.gather,
    ops.gather_elements: moves.gather_elements, ops.gather_nd: moves.gather_nd,
    ops.scatter_elements: moves.scatter_elements, ops.scatter_nd: moves.scatter_nd,
    ops.dynamic_slice: moves.dynamic_slice, ops.sort: moves.sort, ops.top_k: moves.top_k,
    ops.if_: control.if_, ops.loop: control.loop,
    # linear algebra
    ops.cholesky: linalg.cholesky, ops.lu: linalg.lu, ops.pivot_order: linalg.pivot_order,
    ops.solve_triangular: linalg.solve_triangular, ops.geqrf: linalg.geqrf, ops.reflect: linalg.reflect,
    ops.orthogonal: linalg.orthogonal, ops.eigh: linalg.eigh, ops.eigvalsh: linalg.eigvalsh, ops.svd: linalg.svd,
    ops.svdvals: linalg.svdvals, ops.ldl: linalg.ldl, ops.solve_ldl: linalg.solve_ldl, ops.fourier: linalg.fourier,
}  # fmt: skip

WRITERS: dict[OpDef, Writer] = {op: guarded(writer) for op, writer in _FORMS.items()}
"""How each op is written that has a counterpart; what PyTorch refuses is a reason among others."""
