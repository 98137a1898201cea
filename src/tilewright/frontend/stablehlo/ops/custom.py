"""Calls of functions outside of StableHLO that JAX writes for the CPU: LAPACK, annotations, assertions on sizes.

In: ``custom_call``, by its target. Out: nodes. LAPACK's are our own linear algebra; what only marks values is left out;
any other target is refused by its name. Not its business: how a matrix is factored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright import ops
from tilewright.core.expr import Dim, Expr, is_nonneg
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import i32
from tilewright.frontend.complex_matrices import (
    adjoint,
    complex_eigh,
    complex_geqrf,
    complex_lu,
    complex_orthogonal,
    complex_svd,
)
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.matrices import orthogonal, swapped
from tilewright.frontend.stablehlo.operation import DAMAGED, NoForm, Operation, Result, Value
from tilewright.frontend.stablehlo.ops import order, window
from tilewright.frontend.stablehlo.ops.linalg import cholesky, matrix, triangular
from tilewright.frontend.tridiagonal import solve_tridiagonal

Convert = Callable[[Operation], Result]

CALLBACKS = ("it calls back to Python", "compute it with jax.numpy, or outside of the compiled function")


def _letter(c: Operation, name: str) -> str:
    """A choice of LAPACK's, which JAX writes as the code of a letter."""
    config = c.attribute("mhlo.backend_config")
    is_dict = hasattr(config, "get_named")  # of MLIR's attributes, dictionaries alone
    code = getattr(config[name], "value", None) if is_dict and name in config else None
    if not isinstance(code, int) or not 0 <= code < 128:
        raise NoForm(f"no letter {name} in its configuration", DAMAGED)
    return chr(code)


def _info(c: Operation, info: Node) -> Node:
    return c.cast(info, i32)


def _none(c: Operation, batch: tuple[Dim, ...]) -> Node:
    """The report of success."""
    return c.expand(c.b.const(0, i32), batch)


def _potrf(c: Operation) -> Result:
    made, info = cholesky(c, matrix(c, 0), is_lower=_letter(c, "uplo") == "L")
    return [made, _info(c, info)]


def _getrf(c: Operation) -> Result:
    x = matrix(c, 0)
    packed, pivots, info = complex_lu(c.b, x) if isinstance(x, Pair) else c.b.results(c.b(ops.lu, x))
    return [packed, _info(c, pivots), _info(c, info)]


def _trsm(c: Operation) -> Result:
    return triangular(
        c, matrix(c, 0), matrix(c, 1), _letter(c, "uplo") != "L", unit_diagonal=_letter(c, "diag") == "U",
        transposed=_letter(c, "trans_x"), left=_letter(c, "side") == "L",
    )  # fmt: skip


def _geqrf(c: Operation) -> Result:
    x = matrix(c, 0)
    return complex_geqrf(c.b, x) if isinstance(x, Pair) else list(c.b.results(c.b(ops.geqrf, x)))


def _orgqr(c: Operation) -> Result:
    x, taus = matrix(c, 0), c.operands[1]
    if isinstance(x, Pair) and isinstance(taus, Pair):
        return complex_orthogonal(c.b, x, taus, x.shape[-1])
    return orthogonal(c.b, c.node(0), c.node(1), x.shape[-1])


def _syevd(c: Operation) -> Result:
    x, is_lower = matrix(c, 0), _letter(c, "uplo") == "L"
    if isinstance(x, Pair):
        values, pair = complex_eigh(c.b, x if is_lower else adjoint(c.b, x))
        return [pair, values, _none(c, x.shape[:-2])]
    values, vectors = c.b.results(c.b(ops.eigh, x if is_lower else swapped(c.b, x)))
    return [vectors, values, _none(c, x.shape[:-2])]


def _gesdd(c: Operation) -> Result:
    x, mode = matrix(c, 0), _letter(c, "mode")
    if isinstance(x, Pair):
        pairs = complex_svd(c.b, x, full=mode == "A")
        parts: Sequence[Value] = pairs if mode != "N" else (_blank(c, x, 2), pairs[1], _blank(c, x, 3))
        left, values, right = parts
    elif mode == "N":
        left, values, right = _blank(c, x, 2), c.b(ops.svdvals, x), _blank(c, x, 3)
    else:
        left, values, right = c.b.results(c.b(ops.svd, x, full=mode == "A"))
    return [x, values, left, right, _none(c, x.shape[:-2])]


def _gtsv(c: Operation) -> Result:
    lower, diagonal, upper, right = (c.node(k) for k in range(4))
    found, info = solve_tridiagonal(c.b, lower, diagonal, upper, right)
    return [lower, diagonal, upper, found, info]


def _blank(c: Operation, like: Value, k: int) -> Value:
    """What result ``k`` is when nobody wants it."""
    zero = c.expand(c.b.const(0, like.dtype), [n or 0 for n in c.type(k).shape])
    return Pair(zero, zero) if isinstance(like, Pair) else zero


def _same(c: Operation) -> Result:
    """What only says where a value lies or how it is laid out."""
    return c.operands


def _assertion(c: Operation) -> Result:
    """A relation between sizes that the caller keeps, such as the constraints of an export: every call checks it."""
    condition = c.node(0)
    if condition.op in _LEAST:
        a, b = (c.known.size(x) for x in condition.inputs)
        if a is not None and b is not None:
            rules = [least(a, b) for least in _LEAST[condition.op]]
            c.walker.constraints.extend(e for e in rules if isinstance(e, Expr) and not is_nonneg(e))
    return []


_LEAST: Mapping[OpDef, Sequence[Callable[[Dim, Dim], Dim]]] = {
    ops.ge: [lambda a, b: a - b], ops.gt: [lambda a, b: a - b - 1], ops.le: [lambda a, b: b - a],
    ops.lt: [lambda a, b: b - a - 1], ops.eq: [lambda a, b: a - b, lambda a, b: b - a],
}  # fmt: skip
"""What is at least 0 where a comparison of sizes holds."""


_LAPACK: Mapping[str, Convert] = {
    "potrf": _potrf, "getrf": _getrf, "trsm": _trsm, "geqrf": _geqrf, "orgqr": _orgqr, "syevd": _syevd,
    "gesdd": _gesdd, "gtsv": _gtsv, "ungqr": _orgqr, "heevd": _syevd,
}  # fmt: skip
_BEFORE = "compute it outside of what is compiled, by JAX itself"
_NOT_SYMMETRIC = {
    "geev": ("the eigenvalue problem", f"{_BEFORE}; jnp.linalg.eigh is for symmetric matrices"),
    "gees": ("the Schur form", _BEFORE), "gehrd": ("the Hessenberg form", _BEFORE),
}  # fmt: skip
TARGETS: Mapping[str, Convert] = {
    **{f"lapack_{kind}{name}_ffi": made for name, made in _LAPACK.items() for kind in "sdcz"},
    "Sharding": _same,
    "annotate_device_placement": _same,
    "xla.sdy.FuncResultSharding": _same,
    "shape_assertion": _assertion,
    "ApproxTopK": order.approximate_top_k,
    "mhlo.topk": order.TABLE["chlo.top_k"],
    "stablehlo.dynamic_reduce_window": window.TABLE["stablehlo.dynamic_reduce_window"],
}


def _custom_call(c: Operation) -> Result:
    target = c.text("call_target_name")
    if target in TARGETS:
        return TARGETS[target](c)
    if "callback" in target:
        raise NoForm(*CALLBACKS)
    for name, (of, remedy) in _NOT_SYMMETRIC.items():
        if target in {f"lapack_{kind}{name}_ffi" for kind in "sdcz"}:
            raise NoForm(f"{of} of a matrix that need not be symmetric ({target}) has no form here", remedy)
    raise NoForm(f"a call of {target}, which has no form here", "write it by operations of jax.numpy or jax.lax")


TABLE: Mapping[str, Convert] = {"stablehlo.custom_call": _custom_call, "sdy.sharding_constraint": _same}
