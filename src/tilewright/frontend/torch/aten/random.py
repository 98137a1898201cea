"""ATen's draws of random numbers, from a state that the program keeps as a tensor.

In: calls, with the draws of the program that they stand in. Out: nodes. The numbers are Philox's (``ops.random``), not
those of PyTorch's generator. Not its business: where the state is kept (``torch``); draws under ``torch.compile``,
which PyTorch makes itself (``torch_compile.plan``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright import ops
from tilewright.core.expr import Dim
from tilewright.core.graph import Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import DType, bool_, f32, f64, i64
from tilewright.frontend.nodes import expand, reshape
from tilewright.frontend.torch.aten.call import AtenCall, Result, Unsupported, cast

Convert = Callable[[AtenCall], Result]
WIDEST_RANGE = 1 << 53
"""Of integers: as many as an f64 between 0 and 1 tells apart."""


def _drawn(c: AtenCall, op: OpDef, shape: Sequence[Dim], dtype: DType) -> Node:
    """Numbers by the program's state, which moves on."""
    if c.draws is None:
        remedy = "draw them outside and pass them in as an input"
        raise Unsupported("random numbers inside of a branch, a loop or a piece of a program", remedy)
    values, c.draws.state = c.b.results(c.b(op, c.draws.state, shape=tuple(shape), dtype=dtype))
    return values


def uniform(c: AtenCall, dtype: DType, shape: Sequence[Dim] | None = None) -> Node:
    """Evenly spread numbers in [0, 1), of the result's shape."""
    return _drawn(c, ops.random_uniform, c.shape if shape is None else shape, dtype)


def _wide(c: AtenCall) -> DType:
    return f64 if c.dtype is f64 else f32


def _scaled(c: AtenCall, x: Node, scale: Node, offset: Node) -> Node:
    return cast(c.b, c.b(ops.add, c.b(ops.mul, x, scale), offset), c.dtype)


def _rand(c: AtenCall) -> Node:
    return uniform(c, c.dtype)


def _randn(c: AtenCall) -> Node:
    return _drawn(c, ops.random_normal, c.shape, c.dtype)


def _uniform(c: AtenCall) -> Node:
    first, last = (c.b.const(c.static(name), _wide(c)) for name in ("from", "to"))
    return _scaled(c, uniform(c, _wide(c)), c.b(ops.sub, last, first), first)


def _normal(c: AtenCall) -> Node:
    """Means and deviations are numbers or tensors."""
    mean, std = (c.tensor(name, _wide(c)) for name in ("mean", "std"))
    return _scaled(c, _drawn(c, ops.random_normal, c.shape, _wide(c)), std, mean)


def _randint(c: AtenCall) -> Node:
    low, high = c.static("low") if "low" in c.args else 0, c.static("high")
    if high - low > WIDEST_RANGE:
        raise Unsupported(f"random integers out of {high - low}", "draw from fewer than 2**53")
    b = c.b
    at = cast(b, b(ops.mul, uniform(c, f64), b.const(float(high - low), f64)), i64)
    return cast(b, b(ops.add, at, b.const(low, i64)), c.dtype)


def _bernoulli(c: AtenCall) -> Node:
    """1 with the probability ``p``, or each element's own."""
    p = c.tensor("p" if "p" in c.args else "self", _wide(c))
    return cast(c.b, c.b(ops.lt, uniform(c, _wide(c)), p), c.dtype)


def _exponential(c: AtenCall) -> Node:
    u = uniform(c, _wide(c))
    waits = c.b(ops.neg, c.b(ops.log1p, c.b(ops.neg, u)))
    return cast(c.b, c.b(ops.div, waits, c.b.const(c.static("lambd"), _wide(c))), c.dtype)


def _randperm(c: AtenCall) -> Node:
    _, order = c.b.results(c.b(ops.sort, uniform(c, f64), axis=0))
    return cast(c.b, order, c.dtype)


def _multinomial(c: AtenCall) -> Node:
    """The elements that arrive first, each after a wait whose mean is 1 by its weight."""
    b, n = c.b, c["num_samples"]
    weights = c.tensor("self", f64)
    *rows, kinds = weights.shape
    shape = (*rows, n, kinds) if c["replacement"] else (*rows, 1, kinds)
    u = uniform(c, f64, shape)
    waits = b(ops.neg, b(ops.log1p, b(ops.neg, u)))
    each = expand(b, reshape(b, weights, (*rows, 1, kinds)), shape)
    never = b(ops.le, each, b.const(0.0, f64))
    waits = b(ops.where, never, b.const(float("inf"), f64), b(ops.div, waits, each))
    if c["replacement"]:
        return b(ops.argmin, waits, axis=len(rows) + 1, keepdims=False)
    _, order = b.results(b(ops.sort, reshape(b, waits, weights.shape), axis=len(rows)))
    return b(ops.gather, order, b(ops.iota, extent=n, dtype=i64), axis=len(rows))


def dropped(c: AtenCall, x: Node, p: float) -> tuple[Node, Node]:
    """``x`` with each element zero by probability ``p``, the others larger for it; and where it was kept."""
    b = c.b
    kept = b(ops.ge, uniform(c, f32, x.shape), b.const(p, f32))
    scaled = b(ops.mul, x, b.const(0.0 if p >= 1 else 1 / (1 - p), x.dtype))
    return b(ops.where, kept, scaled, b.const(0, x.dtype)), cast(b, kept, bool_)


TABLE: Mapping[str, Convert] = {
    "rand.default": _rand, "rand_like.default": _rand, "randn.default": _randn, "randn_like.default": _randn,
    "uniform.default": _uniform, "exponential.default": _exponential,
    **dict.fromkeys(("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor"), _normal),
    **dict.fromkeys(("normal.default", "normal.float_float", "normal_functional.default"), _normal),
    **dict.fromkeys(("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype"), _randint),
    **dict.fromkeys(("bernoulli.default", "bernoulli.p", "bernoulli.float"), _bernoulli),
    "randperm.default": _randperm, "multinomial.default": _multinomial,
}  # fmt: skip
