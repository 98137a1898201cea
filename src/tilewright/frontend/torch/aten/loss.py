"""ATen's losses that PyTorch's own decompositions get wrong.

In: a ``AtenCall``. Out: nodes of the graph IR. Not its business: other losses, which PyTorch takes apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.graph import Node
from tilewright.core.types import i64
from tilewright.frontend.nodes import dim_scalar, reshape
from tilewright.frontend.torch.aten.call import AtenCall, cast

_MEAN, _SUM = 1, 2


def _multilabel_margin(c: AtenCall) -> Node:
    """For each label of a row, those before the first negative one, how far other classes come near its own score.

    PyTorch's decomposition counts what stands behind the first negative label, as if it were the class 0. Only exported
    programs come here: under ``torch.compile`` the call is spelled out before AOTAutograd sees it
    (``integrations.torch_compile.losses``).
    """
    b, x, labels = c.b, c.tensor("self"), c.tensor("target")
    n, classes = (1, 1, *x.shape)[-2:]
    x, labels = reshape(b, x, (n, classes)), reshape(b, labels, (n, classes))
    place, zero, one = b(ops.iota, extent=classes, dtype=i64), b.const(0, x.dtype), b.const(1, x.dtype)
    n_classes = dim_scalar(b, classes, i64)
    ends = b(ops.where, b(ops.lt, labels, b.const(0, i64)), place, n_classes)
    counts = b(ops.lt, place, b(ops.reduce_min, ends, axes=(1,), keepdims=True))
    known = b(ops.where, counts, labels, b.const(0, i64))
    own = reshape(b, b(ops.gather_elements, x, known, axis=1), (n, classes, 1))
    counts, known = reshape(b, counts, (n, classes, 1)), reshape(b, known, (n, classes, 1))
    is_label = b(ops.reduce_any, b(ops.logical_and, counts, b(ops.eq, known, place)), axes=(1,), keepdims=True)
    near = b(ops.maximum, zero, b(ops.add, b(ops.sub, one, own), reshape(b, x, (n, 1, classes))))
    near = b(ops.where, b(ops.logical_and, counts, b(ops.logical_not, is_label)), near, zero)
    total = b(ops.div, b(ops.reduce_sum, near, axes=(1, 2), keepdims=False), cast(b, n_classes, x.dtype))
    if c["reduction"] in (_MEAN, _SUM):
        total = b(ops.reduce_sum if c["reduction"] == _SUM else ops.reduce_mean, total, axes=(0,), keepdims=False)
    return reshape(b, total, c.shape)


TABLE: Mapping[str, Callable[[AtenCall], Node]] = {"multilabel_margin_loss.default": _multilabel_margin}
