"""Linear algebra and Fourier transforms: StableHLO's own operations.

In: calls. Out: nodes or pairs. Not its business: calls of LAPACK, which JAX writes for the CPU (``custom``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.dims import are_known, is_known
from tilewright.core.graph import Node
from tilewright.core.types import product
from tilewright.frontend.complex_matrices import complex_cholesky, solve_complex_triangular
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.fourier import transform_along, transform_of_real, transform_to_real
from tilewright.frontend.matrices import solve_triangular, swapped
from tilewright.frontend.stablehlo.operation import NoForm, Operation, Result, Value
from tilewright.frontend.stablehlo.ops.elementwise import as_pair
from tilewright.frontend.stablehlo.ops.movement import each

Convert = Callable[[Operation], Result]


def matrix(c: Operation, k: int) -> Value:
    """Operand ``k``, matrices; complex ones must be of fixed sizes."""
    x = c.operands[k]
    if isinstance(x, Pair) and not are_known(x.shape[-2:]):
        raise NoForm("complex matrices of a symbolic size", "give their rows and columns fixed sizes")
    return x


def cholesky(c: Operation, x: Value, *, is_lower: bool) -> tuple[Value, Node]:
    """The factor, its other triangle 0, and what did not work."""
    if isinstance(x, Pair):
        return complex_cholesky(c.b, x, is_lower=is_lower)
    made, info = c.b.results(c.b(ops.cholesky, x if is_lower else swapped(c.b, x)))
    return (made if is_lower else swapped(c.b, made)), info


def triangular(
    c: Operation, a: Value, right: Value, upper: bool, *, unit_diagonal: bool, transposed: str, left: bool
) -> Value:
    """``x`` with ``op(a) @ x = right``, or the other way round; ``transposed`` is LAPACK's letter N, T or C."""
    if isinstance(a, Pair) or isinstance(right, Pair):
        return solve_complex_triangular(
            c.b, as_pair(c, a), as_pair(c, right), upper, unit_diagonal=unit_diagonal, transposed=transposed, left=left
        )
    return solve_triangular(c.b, a, right, upper, unit=unit_diagonal, transposed=transposed != "N", left=left)


def _cholesky(c: Operation) -> Value:
    made, info = cholesky(c, matrix(c, 0), is_lower=c.flag("lower"))
    return each(c, made, lambda part: or_nan(c, part, info))


def or_nan(c: Operation, made: Node, info: Node) -> Node:
    """Matrices that could not be factored are NaN."""
    failed = c.b(ops.ne, info, c.b.const(0, info.dtype))
    failed = c.reshape(failed, (*failed.shape, *[1] * (len(made.shape) - len(failed.shape))))
    return c.b(ops.where, failed, c.b.const(float("nan"), made.dtype), made)


_LETTERS = {"NO_TRANSPOSE": "N", "TRANSPOSE": "T", "ADJOINT": "C"}


def _triangular_solve(c: Operation) -> Value:
    return triangular(
        c, matrix(c, 0), matrix(c, 1), not c.flag("lower"), unit_diagonal=c.flag("unit_diagonal"),
        transposed=_LETTERS[c.text("transpose_a").rstrip(">").split()[-1]], left=c.flag("left_side"),
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
