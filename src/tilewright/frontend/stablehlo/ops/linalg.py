"""Linear algebra and Fourier transforms: StableHLO's own operations.

In: calls. Out: nodes or pairs. Not its business: calls of LAPACK, which JAX writes for the CPU (``custom``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.graph import Node
from tilewright.core.types import product
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.fourier import transform_along, transform_of_real, transform_to_real
from tilewright.frontend.matrices import solve_triangular, swapped
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result
from tilewright.frontend.stablehlo.ops.elementwise import as_pair

Convert = Callable[[Operation], Result]

COMPLEX_MATRICES = ("matrices of complex numbers", "solve the real system of twice the size")


def real_matrix(c: Operation, k: int) -> Node:
    """Operand ``k``, matrices of real numbers."""
    x = c.operands[k]
    if isinstance(x, Pair):
        raise NoForm(*COMPLEX_MATRICES)
    return x


def cholesky(c: Operation, x: Node, *, is_lower: bool) -> tuple[Node, Node]:
    """The factor, its other triangle 0, and what did not work."""
    made, info = c.b.results(c.b(ops.cholesky, x if is_lower else swapped(c.b, x)))
    return (made if is_lower else swapped(c.b, made)), info


def _cholesky(c: Operation) -> Node:
    made, info = cholesky(c, real_matrix(c, 0), is_lower=c.flag("lower"))
    return or_nan(c, made, info)


def or_nan(c: Operation, made: Node, info: Node) -> Node:
    """Matrices that could not be factored are NaN."""
    failed = c.b(ops.ne, info, c.b.const(0, info.dtype))
    failed = c.reshape(failed, (*failed.shape, *[1] * (len(made.shape) - len(failed.shape))))
    return c.b(ops.where, failed, c.b.const(float("nan"), made.dtype), made)


def _triangular_solve(c: Operation) -> Node:
    return solve_triangular(
        c.b, real_matrix(c, 0), real_matrix(c, 1), not c.flag("lower"), unit=c.flag("unit_diagonal"),
        transposed="NO_TRANSPOSE" not in c.text("transpose_a"), left=c.flag("left_side"),
    )  # fmt: skip


# --- Fourier transforms ---------------------------------------------------------------------------------------------


def _fft(c: Operation) -> Result:
    """Along the last axes, of which a real transform takes the last one first, or last."""
    lengths = c.ints("fft_length")
    kind = c.text("fft_type").rstrip(">").split()[-1]
    x = c.operands[0]
    rank = len(x.shape)
    axes = list(range(rank - len(lengths), rank))
    sign = -1 if kind in ("FFT", "RFFT") else 1
    if kind == "RFFT":
        pair, others = transform_of_real(c.b, c.node(0), sign), axes[:-1]
    else:
        pair, others = as_pair(c, x), axes[:-1] if kind == "IRFFT" else axes
    for axis in others:
        pair = transform_along(c.b, pair, axis, sign)
    if kind == "IRFFT":
        return _scaled(c, transform_to_real(c.b, pair, lengths[-1], sign), lengths)
    if kind != "IFFT":
        return pair
    return Pair(_scaled(c, pair.re, lengths), _scaled(c, pair.im, lengths))


def _scaled(c: Operation, x: Node, lengths: tuple[int, ...]) -> Node:
    n = product(lengths)
    assert is_known(n)
    return c.b(ops.mul, x, c.b.const(1 / n, x.dtype))


TABLE: Mapping[str, Convert] = {
    "stablehlo.cholesky": _cholesky,
    "stablehlo.triangular_solve": _triangular_solve,
    "stablehlo.fft": _fft,
}
