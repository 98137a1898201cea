"""TFLite's control flow: sub-graphs as branches, as bodies of loops, and in place.

In: calls that name sub-graphs by number. Out: nodes. Not its business: walking a sub-graph (``walk``), variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright import ops
from tilewright.core import types
from tilewright.core.diag import ImportFailed, OpError
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType
from tilewright.frontend.tflite.call import Converter, TfliteCall


def _operands(c: TfliteCall, first: int = 0) -> list[Node]:
    return [c.x(k) for k in range(first, len(c.inputs))]


def _flag(c: TfliteCall, b: Builder, x: Node) -> Node:
    """A condition as a 0-d bool: the kernels take one element of any rank."""
    if x.dtype is not types.bool_ or any(d != 1 for d in x.shape):
        raise OpError(f"a condition must be one bool, not {x.type}")
    return x if not x.shape else b(ops.reshape, x, shape=())


def _branch(c: TfliteCall, number: int, given: Sequence[Node]) -> Graph:
    """A sub-graph that is closed: its inputs are of the operands' types."""
    b = Builder(Pool(), c.b.loc)
    inputs = [b.pool.input(f"x{k}", n.type) for k, n in enumerate(given)]
    made = c.inner(number, b, inputs)
    return Graph(f"branch_{number}", b.pool, tuple(inputs), tuple(made), tuple(f"y{k}" for k in range(len(made))))


def _if(c: TfliteCall) -> list[Node]:
    given, branches, failed = _operands(c, 1), [], None
    for name in ("Then", "Else"):
        try:
            branches.append(_branch(c, c.option(f"{name}SubgraphIndex"), given))
        except ImportFailed as e:  # when all that stops both is told
            failed = e
    if failed is not None:
        raise failed
    types_of = [[n.type for n in g.outputs] for g in branches]
    if types_of[0] != types_of[1]:
        raise OpError(f"the branches give {_text(types_of[0])} and {_text(types_of[1])}")
    if not branches[0].outputs:
        return []
    made = c.b(
        ops.if_, _flag(c, c.b, c.x(0)), *given, then_branch=branches[0], else_branch=branches[1],
        name=f"if_{c.x(0).serial}",
    )  # fmt: skip
    return list(c.b.results(made))


def _text(found: Sequence[TensorType]) -> str:
    return ", ".join(map(str, found)) or "nothing"


def _while(c: TfliteCall) -> list[Node]:
    """The condition is computed before the loop and again at the end of each turn."""
    given, condition = _operands(c), c.option("CondSubgraphIndex")
    if not given:
        raise OpError("a loop without operands has nothing to change")
    b = Builder(Pool(), c.b.loc)
    turn, going = b.pool.input("i", TensorType(types.i64, ())), b.pool.input("going", TensorType(types.bool_, ()))
    inputs = [b.pool.input(f"x{k}", n.type) for k, n in enumerate(given)]
    made = c.inner(c.option("BodySubgraphIndex"), b, inputs)
    if [n.type for n in made] != [n.type for n in given]:
        raise OpError(f"the body takes {_text([n.type for n in given])} and gives {_text([n.type for n in made])}")
    outputs = (_tested(c, condition, b, made), *made)
    names = ("going", *(f"y{k}" for k in range(len(made))))
    body = Graph(f"loop_{condition}", b.pool, (turn, going, *inputs), outputs, names)
    first = _tested(c, condition, c.b, given)
    most = c.b.const((1 << 63) - 1, types.i64)
    loop = c.b(ops.loop, most, first, *given, body=body, n_carried=len(given), name=f"while_{given[0].serial}")
    return list(c.b.results(loop))


def _tested(c: TfliteCall, number: int, b: Builder, given: Sequence[Node]) -> Node:
    made = c.inner(number, b, given)
    if len(made) != 1:
        raise OpError(f"a condition is one tensor, not {len(made)}")
    return _flag(c, b, made[0])


def _call(c: TfliteCall) -> list[Node]:
    return c.inner(c.option("Subgraph"), c.b, _operands(c))


TABLE: Mapping[str, Converter] = {"IF": _if, "WHILE": _while, "CALL": _call}
