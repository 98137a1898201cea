"""Calls of functions outside of StableHLO that JAX writes for the CPU: LAPACK, annotations, assertions on sizes.

In: ``custom_call``, by its target. Out: nodes. LAPACK's are our own linear algebra; what only marks values is left out;
any other target is refused by its name. Not its business: matrices of complex numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.types import i32
from tilewright.frontend.matrices import orthogonal, solve_triangular, swapped
from tilewright.frontend.stablehlo.operation import DAMAGED, NoForm, Operation, Result
from tilewright.frontend.stablehlo.ops import order, window
from tilewright.frontend.stablehlo.ops.linalg import cholesky, real_matrix

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
    x = real_matrix(c, 0)
    made, info = cholesky(c, x, is_lower=_letter(c, "uplo") == "L")
    return [made, _info(c, info)]


def _getrf(c: Operation) -> Result:
    made, pivots, info = c.b.results(c.b(ops.lu, real_matrix(c, 0)))
    return [made, c.cast(pivots, i32), _info(c, info)]


def _trsm(c: Operation) -> Result:
    return solve_triangular(
        c.b, real_matrix(c, 0), real_matrix(c, 1), _letter(c, "uplo") != "L", unit=_letter(c, "diag") == "U",
        transposed=_letter(c, "trans_x") != "N", left=_letter(c, "side") == "L",
    )  # fmt: skip


def _geqrf(c: Operation) -> Result:
    return list(c.b.results(c.b(ops.geqrf, real_matrix(c, 0))))


def _orgqr(c: Operation) -> Result:
    x = real_matrix(c, 0)
    return orthogonal(c.b, x, real_matrix(c, 1), x.shape[-1])


def _syevd(c: Operation) -> Result:
    x = real_matrix(c, 0)
    if _letter(c, "uplo") != "L":
        x = swapped(c.b, x)
    values, vectors = c.b.results(c.b(ops.eigh, x))
    return [vectors, values, _none(c, x.shape[:-2])]


def _gesdd(c: Operation) -> Result:
    x = real_matrix(c, 0)
    mode = _letter(c, "mode")
    if mode == "N":
        values = c.b(ops.svdvals, x)
        shapes = [c.type(k).shape for k in (2, 3)]
        blank = [c.expand(c.b.const(0, x.dtype), [n or 0 for n in s]) for s in shapes]
        return [x, values, *blank, _none(c, x.shape[:-2])]
    left, values, right = c.b.results(c.b(ops.svd, x, full=mode == "A"))
    return [x, values, left, right, _none(c, x.shape[:-2])]


def _same(c: Operation) -> Result:
    """What only says where a value lies or how it is laid out."""
    return c.operands


def _assertion(c: Operation) -> Result:
    """A relation between sizes that the caller keeps; the sizes of inputs are checked by every call."""
    return []


_LAPACK: Mapping[str, Convert] = {
    "potrf": _potrf, "getrf": _getrf, "trsm": _trsm, "geqrf": _geqrf, "orgqr": _orgqr, "syevd": _syevd,
    "gesdd": _gesdd,
}  # fmt: skip
TARGETS: Mapping[str, Convert] = {
    **{f"lapack_{kind}{name}_ffi": made for name, made in _LAPACK.items() for kind in "sd"},
    "Sharding": _same,
    "annotate_device_placement": _same,
    "xla.sdy.FuncResultSharding": _same,
    "shape_assertion": _assertion,
    "mhlo.topk": order.TABLE["chlo.top_k"],
    "stablehlo.dynamic_reduce_window": window.TABLE["stablehlo.dynamic_reduce_window"],
}


def _custom_call(c: Operation) -> Result:
    target = c.text("call_target_name")
    if target in TARGETS:
        return TARGETS[target](c)
    if "callback" in target:
        raise NoForm(*CALLBACKS)
    raise NoForm(f"a call of {target}, which has no form here", "write it by operations of jax.numpy or jax.lax")


TABLE: Mapping[str, Convert] = {"stablehlo.custom_call": _custom_call, "sdy.sharding_constraint": _same}
