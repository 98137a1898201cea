"""Results of calls in the sizes that PyTorch knows them to have.

In: a converter's results, and the types that PyTorch's shape propagation gives. Out: the results, with numbers and
symbols in the place of longer sizes. Not its business: where the knowledge comes from (``fx.symbols``, ``fx.guards``).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Builder, Node
from tilewright.core.types import TensorType
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.nodes import reshape
from tilewright.frontend.torch.aten.call import Result, is_decided_by_data


def pinned(b: Builder, made: Result, types: Sequence[TensorType | None]) -> Result:
    """Results in the sizes that PyTorch knows them to have: numbers and symbols in the place of longer expressions.

    Guards may hold an equation that gives no symbol a value (``2*a + 3*b == 30``). What reads the result needs the
    number then: no rule of an op could tell that the expression fits another operand's 30.
    """
    if isinstance(made, Node | Pair):
        return _reshaped(b, made, types[0])
    return [None if x is None else _reshaped(b, x, t) for x, t in zip(made, types, strict=False)]


def _reshaped(b: Builder, x: Node | Pair, promised: TensorType | None) -> Node | Pair:
    if promised is None:
        return x
    shape = [_shorter(own, d) for own, d in zip(x.shape, promised.shape, strict=True)]
    return reshape(b, x, shape) if isinstance(x, Node) else Pair(reshape(b, x.re, shape), reshape(b, x.im, shape))


def _shorter(own: Dim, promised: Dim) -> Dim:
    if is_known(promised) and is_decided_by_data(own):
        return promised
    is_short = is_known(promised) or (isinstance(promised, Sym) and not is_known(own))
    return promised if is_short and not isinstance(own, Sym) and not is_decided_by_data(promised) else own
