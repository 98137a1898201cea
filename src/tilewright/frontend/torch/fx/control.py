"""``torch.cond``, ``while_loop`` and ``scan``: fx modules that become sub-graphs of ``if_`` and ``loop``.

In: the higher-order call's values, its fx modules among them. Out: nodes. A sub-graph is closed: sizes that it uses
reach it through the shapes of its inputs, or through an operand made only to carry a size.
Not its business: converting the calls inside (``fx``, of which a child importer does that).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright import ops
from tilewright.core.diag import Loc
from tilewright.core.expr import Expr, Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType, bool_, i64
from tilewright.frontend.nodes import dim_scalar, reshape
from tilewright.frontend.torch.aten.call import SymFloat, Unsupported, as_node

if TYPE_CHECKING:
    from tilewright.frontend.torch.fx.walk import Importer


def convert_cond(importer: Importer, b: Builder, values: Sequence[Any]) -> list[Node]:
    """``cond(pred, true_fn, false_fn, operands)``."""
    pred, true_fn, false_fn, operands = values
    captures = _Captures(b, operands)
    branches = [_branch(importer, m, captures, name) for m, name in ((true_fn, "true"), (false_fn, "false"))]
    condition = reshape(b, as_node(b, pred, bool_), ())
    node = b(ops.if_, condition, *captures.nodes, then_branch=branches[0], else_branch=branches[1])
    return list(b.results(node))


def convert_while(importer: Importer, b: Builder, values: Sequence[Any]) -> list[Node]:
    """``while_loop(cond_fn, body_fn, carried, additional)``: the body computes the next condition too."""
    cond_fn, body_fn, carried, additional = values
    state = [_tensor(b, x) for x in carried]
    captures = _Captures(b, additional)
    first = _inline(importer, cond_fn, b.pool, [*state, *captures.values])[0]
    pool = Pool()
    inner = Builder(pool, b.loc)
    i, going = (pool.input(n, TensorType(d, ())) for n, d in (("i", i64), ("going", bool_)))
    now = [pool.input(f"carried_{k}", x.type, b.loc) for k, x in enumerate(state)]
    given, formals = captures.formals(pool)
    rules: dict[Expr, None] = {}
    after = [_tensor(inner, x) for x in _inline(importer, body_fn, pool, [*now, *given], rules)]
    again = _inline(importer, cond_fn, pool, [*after, *given], rules)[0]
    inputs = (i, going, *now, *formals)
    names = ("going", *(f"carried_{k}" for k in range(len(after))))
    body = Graph("body", pool, inputs, (reshape(inner, again, ()), *after), names, tuple(rules))
    limit = b.const(i64.max, i64)
    node = b(ops.loop, limit, reshape(b, first, ()), *state, *captures.nodes, body=body, n_carried=len(state))
    return list(b.results(node))


def convert_scan(importer: Importer, b: Builder, values: Sequence[Any]) -> list[Node]:
    """``scan(combine_fn, init, xs, additional)``: a loop that takes one slice of each of ``xs`` per step."""
    combine_fn, init, xs, additional = values
    state = [_tensor(b, x) for x in init]
    sources = [_tensor(b, x) for x in xs]
    if not sources:
        raise Unsupported("a scan over nothing", "use torch.while_loop")
    length = sources[0].shape[0]
    captures = _Captures(b, [*sources, *additional])
    pool = Pool()
    inner = Builder(pool, b.loc)
    i, going = (pool.input(n, TensorType(d, ())) for n, d in (("i", i64), ("going", bool_)))
    now = [pool.input(f"carried_{k}", x.type, b.loc) for k, x in enumerate(state)]
    given, formals = captures.formals(pool)
    rows = [inner(ops.gather, x, i, axis=0) for x in given[: len(sources)]]
    rules: dict[Expr, None] = {}
    values = [*now, *rows, *given[len(sources) :]]
    after = [_tensor(inner, x) for x in _inline(importer, combine_fn, pool, values, rules)]
    results = (inner.const(True, bool_), *after)
    names = ("going", *(f"result_{k}" for k in range(len(after))))
    body = Graph("body", pool, (i, going, *now, *formals), results, names, tuple(rules))
    node = b(
        ops.loop, dim_scalar(b, length, i64), b.const(True, bool_), *state, *captures.nodes, body=body,
        n_carried=len(state), length=length,
    )  # fmt: skip
    return list(b.results(node))


class _Captures:
    """Operands of a sub-graph: tensors as they are, sizes through an operand of that length, numbers in place."""

    def __init__(self, b: Builder, values: Sequence[Any]) -> None:
        self.values = [b.const(x) if isinstance(x, bool) else x for x in values]
        self.nodes = [x for x in self.values if isinstance(x, Node)]
        known = {d for n in self.nodes for d in n.shape}
        for size in self.values:
            if isinstance(size, Sym) and size not in known:
                self.nodes.append(b(ops.full, value=0.0, dtype=bool_, shape=(size,)))
        if any(isinstance(x, SymFloat) for x in self.values):
            raise Unsupported("a sub-graph over a float computed from sizes", "compute it from tensors")

    def formals(self, pool: Pool) -> tuple[list[Any], list[Node]]:
        """The values inside of a sub-graph, and its inputs."""
        inputs = [pool.input(f"capture_{k}", n.type, n.loc) for k, n in enumerate(self.nodes)]
        rest = iter(inputs)
        return [next(rest) if isinstance(x, Node) else x for x in self.values], inputs


def _branch(importer: Importer, module: Any, captures: _Captures, name: str) -> Graph:
    pool = Pool()
    values, inputs = captures.formals(pool)
    b = Builder(pool)
    rules: dict[Expr, None] = {}
    outputs = tuple(_tensor(b, x) for x in _inline(importer, module, pool, values, rules))
    names = tuple(f"output_{k}" for k in range(len(outputs)))
    return Graph(name, pool, tuple(inputs), outputs, names, tuple(rules))


def _inline(
    importer: Importer, module: Any, pool: Pool, values: Sequence[Any], rules: dict[Expr, None] | None = None
) -> list[Any]:
    """The module's calls in ``pool``, its placeholders standing for ``values``; what its sizes must keep is added to
    ``rules``, to those of ``importer`` where there are none."""
    child = importer.child(pool, module)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    child.env.update(zip(placeholders, values, strict=True))
    outputs = child.run(module.graph)
    if rules is None:
        importer.constraints += [e for e in child.constraints if e not in importer.constraints]
    else:
        rules |= dict.fromkeys(child.constraints)
    if child.problems:
        importer.add_problems(child.problems)
        named = ", ".join(dict.fromkeys(p.op for p in child.problems))
        raise Unsupported(f"its sub-graph holds unsupported calls: {named}", "express them by other calls")
    return outputs


def _tensor(b: Builder, value: Any) -> Node:
    if isinstance(value, Node):
        return value
    if isinstance(value, bool | int | float):
        return as_node(b.at(Loc("a number")), value)
    raise Unsupported("a size as a value carried by control flow", "carry a tensor instead")
