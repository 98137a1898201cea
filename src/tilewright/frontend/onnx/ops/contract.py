"""Converters of ONNX contractions: matrix products, einsum, convolutions.

In: a ``Call``. Out: nodes of the graph IR. Not its business: pooling windows, whose helpers come from here.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import NoReturn

from tilewright import ops
from tilewright.core import expr
from tilewright.core.diag import CompileError, Problem
from tilewright.core.dims import is_known, known_under
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import i32
from tilewright.frontend.onnx.call import Call, Table

Pads = tuple[tuple[Dim, Dim], ...]
AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def matmul(c: Call, a: Node, b: Node) -> Node:
    """NumPy's matmul: vectors become matrices and lose the added dimension again."""
    if not a.shape or not b.shape:
        c.refuse("operands must have rank 1 or more")
    lead = (1, *a.shape) if len(a.shape) == 1 else a.shape
    tail = (*b.shape, 1) if len(b.shape) == 1 else b.shape
    result = c(ops.matmul, c.reshape(a, lead), c.reshape(b, tail))
    shape = list(result.shape)
    if len(b.shape) == 1:
        shape.pop()
    if len(a.shape) == 1:
        shape.pop(-1 if len(b.shape) == 1 else -2)
    return c.reshape(result, shape)


def _matmul(c: Call) -> Node:
    return matmul(c, c.x(0), c.x(1))


def gemm(c: Call, a: Node, b: Node, bias: Node | None, alpha: float, beta: float) -> Node:
    """``alpha * a @ b + beta * bias``."""
    y = c(ops.matmul, a, b)
    if alpha != 1.0:
        y = c(ops.mul, y, c.const(alpha, y.dtype))
    if bias is None or beta == 0.0:
        return y
    if beta != 1.0:
        bias = c(ops.mul, bias, c.const(beta, bias.dtype))
    return c(ops.add, y, bias)


def gemm_of(c: Call) -> Node:
    """The product that the node's operands and attributes describe."""
    a, b = c.x(0), c.x(1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        c.refuse(f"A and B must have rank 2, not {len(a.shape)} and {len(b.shape)}")
    a = c.transpose(a, (1, 0)) if c.flag("transA") else a
    b = c.transpose(b, (1, 0)) if c.flag("transB") else b
    alpha, beta = c.float_("alpha", 1.0), c.float_("beta", 1.0)
    c.ignore("broadcast")  # before opset 7; a C of the result's own shape is the same without it
    return gemm(c, a, b, c.opt(2), alpha, beta)


def explicit_equation(c: Call, equation: str, ranks: Sequence[int]) -> str:
    """The einsum equation with an explicit result and letters in the place of ellipses."""
    equation = "".join(equation.split())
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        c.refuse(f"equation {equation!r} names {len(terms)} operands and there are {len(ranks)}")
    free = [x for x in string.ascii_letters if x not in equation]
    widths = [rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True) if "..." in t]
    width = max(widths, default=0)
    if width > len(free) or any(w < 0 for w in widths):
        c.refuse(f"equation {equation!r} doesn't fit operands of ranks {list(ranks)}")
    spread = "".join(free[:width])
    full = []
    for t, rank in zip(terms, ranks, strict=True):
        n = rank - len(t.replace("...", ""))
        full.append(t.replace("...", spread[width - n :] if n else ""))
    if not arrow:
        letters = "".join(full)
        right = spread + "".join(sorted(x for x in set(letters) - set(spread) if letters.count(x) == 1))
    else:
        right = right.replace("...", spread)
    if not all(t.isalpha() or not t for t in (*full, right)):
        c.refuse(f"equation {equation!r} is malformed")
    return ",".join(full) + "->" + right


def _einsum(c: Call) -> Node:
    xs = c.nodes()
    return c(ops.einsum, *xs, equation=explicit_equation(c, c.str_("equation"), [len(x.shape) for x in xs]))


# --- windows --------------------------------------------------------------------------------------------------------


def spatial_ints(c: Call, name: str, n: int) -> tuple[int, ...]:
    """A positive number per spatial dimension, 1 by default."""
    values = c.ints(name, [1] * n)
    if len(values) != n or any(v < 1 for v in values):
        c.refuse(f"attribute {name}={values} must have {n} positive numbers")
    return tuple(values)


def window_pads(
    c: Call, spatial: Sequence[Dim], kernel: Sequence[Dim], strides: Sequence[int], dilations: Sequence[int]
) -> Pads:
    """Explicit padding from ``pads`` and ``auto_pad``."""
    n = len(spatial)
    auto = c.choice("auto_pad", AUTO_PADS, "NOTSET")
    pads = c.ints("pads", [0] * (2 * n))
    if auto == "VALID":
        return ((0, 0),) * n
    if auto == "NOTSET":
        if len(pads) != 2 * n or any(p < 0 for p in pads):
            c.refuse(f"attribute pads={pads} must have {2 * n} numbers of at least 0")
        return tuple(zip(pads[:n], pads[n:], strict=True))
    result = []
    for size, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
        total = expr.maximum((expr.ceildiv(size, s) - 1) * s + (k - 1) * d + 1 - size, 0)
        small = expr.floordiv(total, 2)
        result.append((small, total - small) if auto == "SAME_UPPER" else (total - small, small))
    return tuple(result)


def check_kernel(c: Call, w: Node, rank: int) -> tuple[Dim, ...]:
    """The spatial size of convolution weights, checked against ``kernel_shape``."""
    if not 3 <= rank <= 5 or len(w.shape) != rank:
        c.refuse(
            f"operands of rank {rank} and {len(w.shape)}; convolutions have 1 to 3 spatial dimensions, so rank 3 to 5"
        )
    kernel = w.shape[2:]
    if not c.has("kernel_shape"):
        return kernel
    given = c.ints("kernel_shape")
    if len(given) != len(kernel) or any(is_known(k) and k != g for k, g in zip(kernel, given, strict=True)):
        c.refuse(f"attribute kernel_shape={given} differs from the weights' {list(kernel)}")
    for k, g in zip(kernel, given, strict=True):
        c.assume_equal(k, g)
    return kernel


def add_channels(c: Call, y: Node, bias: Node | None) -> Node:
    """``bias`` added per channel of a channels-first tensor."""
    return y if bias is None else c(ops.add, y, c.align(bias, 1, len(y.shape)))


def conv(c: Call, x: Node, w: Node) -> Node:
    """The channels-first convolution that the node's attributes describe."""
    kernel = check_kernel(c, w, len(x.shape))
    strides, dilations = (spatial_ints(c, name, len(kernel)) for name in ("strides", "dilations"))
    pads = window_pads(c, x.shape[2:], kernel, strides, dilations)
    y = c(ops.conv, x, w, strides=strides, pads=pads, dilations=dilations, groups=c.int_("group", 1))
    return holding_windows(c, x, y, kernel, pads, dilations)


def holding_windows(c: Call, x: Node, y: Node, kernel: Sequence[Dim], pads: Pads, dilations: Sequence[int]) -> Node:
    """``y``, the windows over ``x``; refused where ``x`` holds none, which is a mistake as it is everywhere else.

    The division in a count of windows rounds down, so that one window too large for its input may count as none.
    """
    for n, size, k, pad, d in zip(y.shape[2:], x.shape[2:], kernel, pads, dilations, strict=True):
        if known_under(n, 1) and x.shape[0] != 0:  # of a batch of nothing there is nothing to take a window of
            rule = f"a window of {k} with dilation {d} does not fit into {size} with pads {pad}"
            refuse_misfit(c, rule, "use a larger input, a smaller kernel or more padding")
    c.assume(*(n - 1 for n in y.shape[2:]))
    return y


def refuse_misfit(c: Call, rule: str, remedy: str) -> NoReturn:
    """Refuse sizes as an op's own rule does, so that a branch with them may wait for the calls that take it."""
    raise CompileError(f"invalid {c.op_type}", [Problem(c.loc, c.op_type, rule, remedy)])


def _conv(c: Call) -> Node:
    return add_channels(c, conv(c, c.x(0), c.x(1)), c.opt(2))


def _conv_transpose(c: Call) -> Node:
    x, w = c.x(0), c.x(1)
    kernel = check_kernel(c, w, len(x.shape))
    n = len(kernel)
    strides, dilations = (spatial_ints(c, name, n) for name in ("strides", "dilations"))
    extra = c.ints("output_padding", [0] * n)
    auto = c.choice("auto_pad", AUTO_PADS, "NOTSET")
    wanted: list[Dim] = list(c.ints("output_shape")) if c.has("output_shape") else []
    wanted = wanted[-n:] if len(wanted) == n + 2 else wanted  # some exporters give batch and channels, too
    if len(extra) != n or (wanted and len(wanted) != n):
        c.refuse(f"output_padding and output_shape need {n} numbers")
    if not wanted and auto.startswith("SAME"):  # by definition as large as the operand times the strides
        c.ignore("pads")
        wanted = [size * s for size, s in zip(x.shape[2:], strides, strict=True)]
    if wanted:
        c.ignore("pads")
        pads: Pads = tuple(
            # what the result has too much is cut off, by auto_pad's rule
            _transposed_pads((size - 1) * s + e + (k - 1) * d + 1 - out, auto)
            for size, s, e, k, d, out in zip(x.shape[2:], strides, extra, kernel, dilations, wanted, strict=True)
        )
    else:
        pads = window_pads(c, x.shape[2:], kernel, strides, dilations)
    y = c(
        ops.conv_transpose, x, w, strides=strides, pads=pads, dilations=dilations,
        groups=c.int_("group", 1), output_padding=tuple(extra),
    )  # fmt: skip
    if any(known_under(n, 1) for n in y.shape[2:]) and x.shape[0] != 0:
        rule = f"of the size {list(x.shape[2:])} nothing is left by pads {pads}"
        refuse_misfit(c, rule, "use a larger input, a larger kernel or less padding")
    c.assume(*(n - 1 for n in y.shape[2:]))
    return add_channels(c, y, c.opt(2))


def _transposed_pads(total: Dim, auto: str) -> tuple[Dim, Dim]:
    """How much to take away in front and behind: half on each side, by the specification.

    ``auto`` decides where the odd one goes, also where there is less than nothing to take away, because the stride is
    beyond the kernel's reach. ONNX Runtime then takes nothing away, and its result is smaller than the specified one.
    For a given shape without SAME it puts all of what is missing behind, and so does this.
    """
    half = expr.floordiv(total, 2)
    if auto == "SAME_UPPER":
        return half, total - half
    start = total - half if auto == "SAME_LOWER" else expr.maximum(total - half, 0)
    return start, total - start


# --- integers -------------------------------------------------------------------------------------------------------


def centred(c: Call, x: Node, zero_point: Node | None, axis: int) -> Node:
    """``x - zero_point`` in i32; a 1-D zero point lies along ``axis``."""
    wide = c.cast(x, i32)
    if zero_point is None:
        return wide
    values = c.emitter.values(zero_point)
    if values is not None and all(v == 0 for v in values.flat):
        return wide
    zero = c.cast(zero_point, i32)
    if len(zero.shape) == 1 and zero.shape[0] == 1:
        zero = c.reshape(zero, ())
    if len(zero.shape) == 1:
        zero = c.align(zero, axis % len(x.shape), len(x.shape))
    return c(ops.sub, wide, zero)


def _matmul_integer(c: Call) -> Node:
    a, b = c.x(0), c.x(1)
    left = centred(c, a, c.opt(2), max(len(a.shape) - 2, 0))
    return matmul(c, left, centred(c, b, c.opt(3), len(b.shape) - 1))


def _conv_integer(c: Call) -> Node:
    return conv(c, centred(c, c.x(0), c.opt(2), 1), centred(c, c.x(1), c.opt(3), 0))


TABLE: Table = {
    "Conv": _conv,
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Gemm": gemm_of,
    "MatMul": _matmul,
    "MatMulInteger": _matmul_integer,
}
