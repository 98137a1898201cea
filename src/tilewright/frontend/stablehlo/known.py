"""What a program's integers are where they are sizes, constants, or the steps of a loop.

In: nodes of one graph. Out: for an integer node of few elements, its elements as numbers and expressions of sizes, or
None where the data decide. Shapes that StableHLO computes (dynamic broadcasts and reshapes), the counters of loops and
the conditions on them are read this way. Not its business: tensors of any other kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright import ops
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, bounds, floordiv, mod, symbols
from tilewright.core.graph import CONST, Node
from tilewright.core.opdef import OpDef
from tilewright.core.rewrite import P, Pattern, Var, const
from tilewright.core.types import bool_
from tilewright.ops.size_arithmetic import ARITHMETIC, COMPARISONS

Elements = tuple[Dim, ...]
TRIP = Sym("trip", 0)
"""The number of the trip in a loop's body. A graph has one: what it reads of the graph around it is not known to it."""
MOST_ELEMENTS = 64
"""As many as no shape has axes."""


class Known:
    """Elements by node; what is noted by :meth:`note` comes first, all else follows from the nodes' own ops."""

    def __init__(self) -> None:
        self._found: dict[Node, Elements | None] = {}

    def count(self, node: Node, last: int | None, first: Dim = 0) -> None:
        """Let ``node`` be the number of a loop's trip, from ``first`` on; ``last`` is the last number from 0 on."""
        self._found[node] = (Sym(TRIP.name, 0, last) + first,)

    def sizes(self, node: Node) -> Elements | None:
        """The elements of ``node`` where they are the same in every trip, so that shapes may be made of them."""
        found = self.of(node)
        is_fixed = found is not None and all(s.name != TRIP.name for e in found for s in symbols(e))
        return found if is_fixed else None

    def size(self, node: Node) -> Dim | None:
        """The only one of :meth:`sizes`."""
        found = self.sizes(node)
        return found[0] if found is not None and len(found) == 1 else None

    def of(self, node: Node) -> Elements | None:
        """The elements of ``node`` in row-major order; None where they are not known."""
        if node not in self._found:
            found = self._elements(node)
            if found is not None and not all(_fits(e, node) for e in found):
                found = None
            self._found[node] = found
        return self._found[node]

    def one(self, node: Node) -> Dim | None:
        """The only element of ``node``."""
        found = self.of(node)
        return found[0] if found is not None and len(found) == 1 else None

    def truth(self, node: Node) -> bool | None:
        """Whether a 0-d condition always or never holds; None where neither is sure."""
        found = self.one(node) if node.dtype is bool_ else None
        return bool(found) if is_known(found) else None

    def _elements(self, node: Node) -> Elements | None:
        if node.dtype.is_float or node.dtype.is_narrow or node.op.bound is not None:
            return None
        if node.op is CONST:
            array = node.attrs["data"].array
            return tuple(int(i) for i in array.ravel()) if array.size <= MOST_ELEMENTS else None
        if node.op is ops.dim_values:
            return tuple(node.attrs["dims"])
        if node.op in _SAME:
            return self.of(node.inputs[0])
        if node.op is ops.concat and all(n == 1 for n in node.shape[: node.attrs["axis"]]):
            parts = [self.of(x) for x in node.inputs]
            return None if any(p is None for p in parts) else tuple(e for p in parts if p is not None for e in p)
        if node.op is ops.slice and len(node.shape) == 1:
            return self._slice(node)
        if node.op in _TWO:
            return self._pairwise(_TWO[node.op], *node.inputs)
        return self._floored(node) if node.op is ops.where else None

    def _floored(self, node: Node) -> Elements | None:
        """``p // q`` and ``p % q`` as JAX spells them, by a quotient and a rest that are rounded towards zero."""
        for pattern, of in ((_FLOOR_QUOTIENT, floordiv), (_FLOOR_REST, mod)):
            found = pattern.match(node)
            divisor = self.one(found["q"]) if found else None
            least = None if divisor is None else bounds(divisor)[0]
            if found and least is not None and least > 0:
                return self._pairwise(of, found["p"], found["q"])
        return None

    def _slice(self, node: Node) -> Elements | None:
        whole, (start,), (stop,), (step,) = (
            self.of(node.inputs[0]),
            *(node.attrs[k] for k in ("starts", "stops", "steps")),
        )
        are_numbers = whole is not None and is_known(start) and is_known(stop) and step > 0
        return whole[start:stop:step] if are_numbers and whole is not None else None

    def _pairwise(self, of: Callable[[Dim, Dim], Dim | None], a: Node, b: Node) -> Elements | None:
        x, y = self.of(a), self.of(b)
        if x is None or y is None or a.shape != b.shape:
            return None
        found = [of(p, q) for p, q in zip(x, y, strict=True)]
        return None if any(e is None for e in found) else tuple(e for e in found if e is not None)


def _fits(e: Dim, node: Node) -> bool:
    """Is ``e`` what ``node`` holds? Integers that wrap, and conditions that are neither 0 nor 1, are not followed."""
    return not is_known(e) or node.dtype.min <= e <= node.dtype.max


def _as_number(compare: Callable[[Dim, Dim], bool | None]) -> Callable[[Dim, Dim], Dim | None]:
    """1 where a comparison is sure to hold, 0 where it is sure not to."""

    def number(a: Dim, b: Dim) -> Dim | None:
        answer = compare(a, b)
        return None if answer is None else int(answer)

    return number


def _quotient(a: Dim, b: Dim) -> Dim | None:
    """Towards zero, which is downwards for sizes."""
    low, high = bounds(a)[0], bounds(b)[0]
    return floordiv(a, b) if low is not None and low >= 0 and high is not None and high > 0 else None


def _rest(a: Dim, b: Dim) -> Dim | None:
    return None if _quotient(a, b) is None else mod(a, b)


def _number(value: int) -> Var:
    return const(f"{value}", lambda node: node.type.is_static and bool((node.attrs["data"].array == value).all()))


def _towards_zero(op: OpDef, of_zero: Pattern) -> Pattern:
    """A quotient or a rest of StableHLO, which says what it is of a divisor of 0."""
    return P(ops.where, P(ops.eq, Var("q"), _number(0)), of_zero, P(op, Var("p"), Var("q")))


def _is_below_zero(x: Pattern) -> Pattern:
    return P(ops.cast, P(ops.lt, x, _number(0)))


_QUOTIENT = _towards_zero(ops.div, _number(-1))
_REST = _towards_zero(ops.fmod, Var("p"))
_HAS_REST = P(ops.ne, _REST, _number(0))
_SIGNS_DIFFER = P(ops.ne, P(ops.sign, Var("p")), P(ops.sign, Var("q")))
_REST_IS_WRONG = P(ops.ne, _is_below_zero(_REST), _is_below_zero(Var("q")))
_FLOOR_QUOTIENT = P(
    ops.where, P(ops.logical_and, _SIGNS_DIFFER, _HAS_REST), P(ops.sub, _QUOTIENT, _number(1)), _QUOTIENT
)
_FLOOR_REST = P(ops.where, P(ops.logical_and, _REST_IS_WRONG, _HAS_REST), P(ops.add, _REST, Var("q")), _REST)

_SAME = frozenset({ops.cast, ops.reshape})
_TWO: Mapping[OpDef, Callable[[Dim, Dim], Dim | None]] = {
    **ARITHMETIC,
    **{op: _as_number(compare) for op, compare in COMPARISONS.items()},
    ops.div: _quotient,
    ops.fmod: _rest,
}
