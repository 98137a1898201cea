"""ATen's matrix products and convolutions.

In: calls. Out: ``matmul``, ``conv`` and ``conv_transpose`` with their bias added. PyTorch's weight of a linear layer
is transposed here; cancelling transposes and packing are other stages' business.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from tilewright import ops
from tilewright.core.dims import are_known, is_known
from tilewright.core.expr import Dim, Expr, floordiv
from tilewright.core.graph import Node
from tilewright.core.types import DType, i32, i64, product
from tilewright.frontend.nodes import dim_scalar, reshape, slice_axis, transpose
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, cast
from tilewright.ops.common import wide
from tilewright.ops.convolution import window_size

Convert = Callable[[AtenCall], Result]


def swap_last(c: AtenCall, x: Node) -> Node:
    rank = len(x.shape)
    return transpose(c.b, x, [*range(rank - 2), rank - 1, rank - 2])


def matmul_of(c: AtenCall, a: Node, b: Node, dtype: DType | None = None) -> Node:
    """NumPy's matmul with vectors allowed; sums of operands of another type than ``dtype`` are kept in that."""
    left = reshape(c.b, a, (1, *a.shape)) if len(a.shape) == 1 else a
    right = reshape(c.b, b, (*b.shape, 1)) if len(b.shape) == 1 else b
    y = c.b(ops.matmul, left, right, out_dtype=None if dtype is a.dtype else dtype)
    shape = list(y.shape)
    if len(b.shape) == 1:
        del shape[-1]
    if len(a.shape) == 1:
        del shape[-1 if len(b.shape) == 1 else -2]
    return reshape(c.b, y, shape)


def _product(left: str, right: str) -> Convert:
    return lambda c: matmul_of(c, c.tensor(left, c.dtype), c.tensor(right, c.dtype))


def _add_product(left: str, right: str) -> Convert:
    """``beta * self + alpha * (left @ right)``."""

    def convert(c: AtenCall) -> Node:
        a, b = c.tensor(left, c.dtype), c.tensor(right, c.dtype)
        if c["alpha"] == 1 and c["beta"] == 1:
            return c.b(ops.add, matmul_of(c, a, b), c.tensor("self", c.dtype))
        return _added(c, matmul_of(c, a, b, wide(c.dtype)))

    return convert


def _added(c: AtenCall, product: Node) -> Node:
    """``beta * self + alpha * product`` in the product's type, rounded once."""
    b, dtype = c.b, product.dtype
    y = product if c["alpha"] == 1 else b(ops.mul, product, c.tensor("alpha", dtype))
    if c["beta"] != 0:
        x = c.tensor("self", dtype)
        y = b(ops.add, y, x if c["beta"] == 1 else b(ops.mul, x, c.tensor("beta", dtype)))
    return cast(b, y, c.dtype)


def _linear(c: AtenCall) -> Node:
    x, weight, bias = c.tensor("input"), c.tensor("weight"), c.optional("bias")
    y = matmul_of(c, x, swap_last(c, weight) if len(weight.shape) == 2 else weight)
    return y if bias is None else c.b(ops.add, y, bias)


def _product_of_int8(c: AtenCall) -> Node:
    return c.b(ops.matmul, c.tensor("self"), c.tensor("mat2"), out_dtype=i32)


def _outer(c: AtenCall) -> Node:
    x, y = c.tensor("self", c.dtype), c.tensor("vec2", c.dtype)
    return c.b(ops.mul, reshape(c.b, x, (*x.shape, 1)), y)


def _grouped(rows: str, stack: str) -> Convert:
    """Rows up to each of the rising ``offs`` take its matrix; rows behind the last take none and give zeros."""

    def convert(c: AtenCall) -> Node:
        x, weights, ends = c.tensor(rows), c.tensor(stack), c.optional("offs", i64)
        if len(x.shape) != 2 or len(weights.shape) != 3 or ends is None or c.args.get("bias") is not None:
            raise Unsupported("takes rows, a stack of matrices and the rows' ends", "use torch.bmm for other forms")
        n = x.shape[0]
        row = c.b(ops.iota, extent=n, dtype=i64)
        is_behind = c.b(ops.le, reshape(c.b, ends, (1, *ends.shape)), reshape(c.b, row, (n, 1)))
        group = c.b(ops.reduce_sum, cast(c.b, is_behind, i64), axes=(1,), keepdims=False)
        y = c.b(ops.grouped_matmul, x, cast(c.b, weights, x.dtype), group)
        count = dim_scalar(c.b, weights.shape[0], i64)
        has_matrix = reshape(c.b, c.b(ops.lt, group, count), (n, 1))
        return cast(c.b, c.b(ops.where, has_matrix, y, c.b.const(0, y.dtype)), c.dtype)

    return convert


def _convolution(c: AtenCall) -> Node:
    """Every convolution of ATen: any number of axes, groups, transposed or not."""
    transposed = bool(c.args.get("transposed", False))
    return _conv(c, transposed, c["output_padding"] if transposed else None)


def _conv(c: AtenCall, transposed: bool, output_padding: object) -> Node:
    x, weight, bias = c.tensor("input"), c.tensor("weight"), c.optional("bias")
    n = len(weight.shape) - 2
    if len(x.shape) == n + 1:
        x = reshape(c.b, x, (1, *x.shape))
    strides, dilations = c.pair("stride", n), c.pair("dilation", n)
    pads = _conv_pads(c, weight, dilations, n)
    has_symbolic_groups = isinstance(c["groups"], Expr) and not transposed
    groups = 0 if has_symbolic_groups else c.static("groups")
    if has_symbolic_groups:
        y = _conv_of_symbolic_groups(c, x, weight, strides, pads, dilations)
    elif transposed:
        extra = c.pair("output_padding", n) if output_padding is not None else (0,) * n
        y = c.b(
            ops.conv_transpose, x, weight, strides=strides, pads=pads, dilations=dilations, groups=groups,
            output_padding=extra, layout="NCHW",
        )  # fmt: skip
    else:
        y = c.b(ops.conv, x, weight, strides=strides, pads=pads, dilations=dilations, groups=groups, layout="NCHW")
    if bias is not None:
        y = c.b(ops.add, y, reshape(c.b, bias, (bias.shape[0], *(1,) * n)))
    return reshape(c.b, y, c.shape) if len(c.shape) != len(y.shape) else y


def _conv_of_symbolic_groups(
    c: AtenCall,
    x: Node,
    weight: Node,
    strides: Sequence[int],
    pads: Sequence[tuple[Dim, Dim]],
    dilations: Sequence[int],
) -> Node:
    """A convolution with as many groups as a symbolic batch has samples: each one's windows times its own weights."""
    groups, n = c["groups"], len(strides)
    n_out, depth = weight.shape[:2]
    kernel = [k for k in weight.shape[2:] if is_known(k)]
    if len(kernel) < n:
        raise Unsupported("takes a kernel of fixed size where groups are symbolic", "fix the kernel's size")
    padded = c.b(ops.pad, x, c.b.const(0, x.dtype), pads=((0, 0), (0, 0), *pads), mode="constant")
    sizes = [
        window_size(size, k, s, p, d)
        for size, k, s, p, d in zip(x.shape[2:], kernel, strides, pads, dilations, strict=True)
    ]
    taps = []  # `conv` wants a number of groups: windows are cut out and multiplied as matrices
    for tap in itertools.product(*map(range, kernel)):
        taken = padded
        for axis in range(n):
            taken = slice_axis(c.b, taken, axis + 2, tap[axis] * dilations[axis], sizes[axis], strides[axis])
        taps.append(reshape(c.b, taken, (x.shape[0], groups, depth, 1, product(sizes))))
    windows = reshape(c.b, c.b(ops.concat, *taps, axis=3), (x.shape[0], groups, depth * len(taps), product(sizes)))
    y = c.b(ops.matmul, reshape(c.b, weight, (groups, floordiv(n_out, groups), depth * len(taps))), windows)
    return reshape(c.b, y, (x.shape[0], n_out, *sizes))


def _conv_pads(c: AtenCall, weight: Node, dilations: tuple[int, ...], n: int) -> tuple[tuple[Dim, Dim], ...]:
    given = c["padding"]
    if given == "valid":
        return ((0, 0),) * n
    if given != "same":
        return tuple((p, p) for p in c.pair("padding", n))
    totals = [(k - 1) * d for k, d in zip(weight.shape[2:], dilations, strict=True)]
    if not are_known(totals):
        raise Unsupported('padding="same" with a symbolic kernel', "give the padding as numbers")
    return tuple((t // 2, t - t // 2) for t in totals)


def _sum_of_products(c: AtenCall) -> Node:
    """``beta * self + alpha * sum(batch1 @ batch2)``."""
    products = matmul_of(c, c.tensor("batch1", c.dtype), c.tensor("batch2", c.dtype), wide(c.dtype))
    return _added(c, c.b(ops.reduce_sum, products, axes=(0,), keepdims=False))


def _trilinear(c: AtenCall) -> Node:
    """Three operands with new axes, multiplied and summed."""
    product: Node | None = None
    for k in (1, 2, 3):
        x = c.tensor(f"i{k}", c.dtype)
        shape = list(x.shape)
        for axis in sorted(c[f"expand{k}"]):
            shape.insert(axis, 1)
        x = reshape(c.b, x, shape)
        product = x if product is None else c.b(ops.mul, product, x)
    assert product is not None
    return c.b(ops.reduce_sum, product, axes=tuple(sorted(c["sumdim"])), keepdims=False)


TABLE: Mapping[str, Convert] = {
    "addbmm.default": _sum_of_products, "_trilinear.default": _trilinear,
    "mm.default": _product("self", "mat2"), "_int_mm.default": _product_of_int8,
    "bmm.default": _product("self", "mat2"), "matmul.default": _product("self", "other"),
    "mv.default": _product("self", "vec"), "dot.default": _product("self", "tensor"),
    "vdot.default": _product("self", "other"),
    "addmm.default": _add_product("mat1", "mat2"), "addmv.default": _add_product("mat", "vec"),
    "baddbmm.default": _add_product("batch1", "batch2"), "linear.default": _linear, "outer.default": _outer,
    "_grouped_mm.default": _grouped("self", "mat2"),
    "transformers.grouped_mm_fallback.default": _grouped("input", "weight"),
    "convolution.default": _convolution,
    **{f"conv{n}d.{kind}": _convolution for n in (1, 2, 3) for kind in ("default", "padding")},
    **{f"conv_transpose{n}d.{kind}": lambda c: _conv(c, True, c["output_padding"])
       for n, kind in ((1, "default"), (2, "input"), (3, "input"))},
}  # fmt: skip
