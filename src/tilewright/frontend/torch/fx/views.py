"""Results of a captured graph that share memory with each other or with arguments: views of what is computed.

In: a functional fx graph. Out: the same graph with each group of results that share memory replaced by the one value
that they are views of, and a function that makes the views after a call. Not its business: computing the values
(``torch_compile.plan``); results that alias arguments of a graph in autograd's eyes, which AOTAutograd makes itself.

Sharing is part of what a caller sees: after a graph break the program may write to any of the results. The base of
a result is found by walking up the calls that PyTorch's schemas name views.

* A base that is an argument is never computed: its views are views of the argument.
* So are results that AOTAutograd knows for views of an argument that the graph writes to. It asks such a result where
  it lies, and makes it anew of the argument. The graph views the argument's new value there, which lies elsewhere.
* Results of one base are views of it, with the strides and the offset that the program gave them.
* A result that is alone with its base is computed as itself where it is all of the base in row-major order: nobody can
  tell. Otherwise it is a view: the program may read what lies beside its elements (``as_strided``), and a copy to the
  place where the program expects them would cost more.
* What a graph gives to the backward graph, or writes to an argument, nobody else sees: a part of a base is computed
  alone, and the rest need not be made.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

Number = Callable[[Sequence[Any], Sequence[Any]], Any]
"""A size that a call of a view takes, or a float on the way to it, from the arguments and the computed results."""


@dataclass(frozen=True)
class _Call:
    """What an fx node calls, apart from the graph; ``numbers`` gives the values of the nodes in its arguments."""

    target: Callable[..., Any]
    rest: tuple[Any, ...]
    """The arguments after the tensor; for a call on numbers, all."""
    named: dict[str, Any]
    numbers: dict[Any, Number]

    def __call__(self, first: Sequence[Any], args: Sequence[Any], results: Sequence[Any]) -> Any:
        from torch.fx import map_arg

        rest, named = map_arg((self.rest, self.named), lambda n: self.numbers[n](args, results))
        return self.target(*first, *rest, **named)


@dataclass(frozen=True)
class _Strided:
    """Where a view of fixed size lies, relative to the first element of its base."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    base_stride: tuple[int, ...]


@dataclass(frozen=True)
class _View:
    """A result as calls upon an argument or upon a computed result."""

    of_argument: bool
    base: int
    calls: tuple[_Call, ...]
    strided: _Strided | None
    """The same in one step, where sizes are fixed and the elements stay what they are."""
    is_bare: bool = False

    def make(self, args: Sequence[Any], results: Sequence[Any]) -> torch.Tensor:
        base: torch.Tensor = args[self.base] if self.of_argument else results[self.base]
        s = self.strided
        if s is not None and base.stride() == s.base_stride:
            return base.as_strided(s.size, s.stride, base.storage_offset() + s.offset)
        value: Any = base
        for call in self.calls:
            value = call((value,), args, results)
        view: torch.Tensor = value
        return view.data if self.is_bare else view


@dataclass(frozen=True)
class OfArgument:
    """A result as fx nodes that call views upon an argument, which is given by its position."""

    argument: int
    calls: tuple[Any, ...]
    is_bare: bool = False
    """Whether autograd is to know it for nobody's view."""


@dataclass(frozen=True)
class Views:
    """How the results of a graph come from those that are computed; the first of these stand for themselves."""

    made: tuple[_View | int, ...]

    def __call__(self, args: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        return [results[v] if isinstance(v, int) else v.make(args, results) for v in self.made]


IS_RESULT = "is_result"
"""In the ``meta`` of an fx node: the user gets what it gives, and may ask where in memory its elements lie."""


def mark_results(functional: Any, n_forward: int, n_written: int) -> None:
    """Note which nodes give results of the user's: of ``n_forward`` in front, all behind the first ``n_written``.

    Those are the new values of arguments that were written, which are copied to where the arguments lie; behind the
    others comes what the backward call is to find.
    """
    (given,) = (n.args[0] for n in functional.graph.nodes if n.op == "output")
    for node in given[n_written:n_forward]:
        if hasattr(node, "meta"):
            node.meta[IS_RESULT] = True


def calls_upon(node: Any, base: Any) -> tuple[Any, ...] | None:
    """The calls that lead from ``base`` to a view of it; None where ``node`` gives none.

    None also where one of them speaks of strides in the memory of ``base``: they may be of PyTorch's making.
    """
    calls: list[Any] = []
    while node is not base:
        if node is None or "as_strided" in str(node.target):
            return None
        calls.append(node)
        node = viewed(node)
    return tuple(reversed(calls))


def separate_views(functional: GraphModule, of_arguments: Mapping[int, OfArgument] | None = None) -> Views | None:
    """Let the graph's output name what is computed; how results are made of that, or None where they are the same.

    ``of_arguments`` tells which results, by their positions, are to be views of which arguments.
    """
    output = next(n for n in functional.graph.nodes if n.op == "output")
    wanted: list[Any] = list(output.args[0])
    told = of_arguments or {}
    own = [x for k, x in enumerate(wanted) if hasattr(x, "op") and k not in told]
    chains = {x: _chain(x) for x in own}
    chosen = _chosen(chains)
    if not told and not chosen and len(chains) == len(own):
        return None  # and none is returned twice
    placeholders = {n: i for i, n in enumerate(n for n in functional.graph.nodes if n.op == "placeholder")}
    computed = _Computed(placeholders)
    made: list[_View | int] = []
    for k, x in enumerate(wanted):
        if k in told:
            calls = tuple(map(computed.call, told[k].calls))
            made.append(_View(True, told[k].argument, calls, None, told[k].is_bare))
            continue
        if not hasattr(x, "op") or x not in chosen:
            made.append(computed.add(x))
            continue
        base, views = chains[x]
        of_argument = base in placeholders
        at = placeholders[base] if of_argument else computed.add(base)
        made.append(_View(of_argument, at, tuple(map(computed.call, views)), _strided(base, views)))
    output.args = (tuple(computed.wanted),)
    _erase_unused_views(functional.graph)
    return Views(tuple(made))


def _erase_unused_views(graph: Any) -> None:
    for node in reversed(list(graph.nodes)):
        if not node.users and viewed(node) is not None:
            graph.erase_node(node)


class _Computed:
    """The results that are computed, in order: one for each distinct fx node."""

    def __init__(self, placeholders: dict[Any, int]) -> None:
        self.placeholders = placeholders
        self.wanted: list[Any] = []
        self._at: dict[Any, int] = {}

    def add(self, x: Any) -> int:
        """The position of ``x``, a node or a number, among the results."""
        if hasattr(x, "op") and x in self._at:
            return self._at[x]
        self.wanted.append(x)
        if hasattr(x, "op"):
            self._at[x] = len(self.wanted) - 1
        return len(self.wanted) - 1

    def number(self, node: Any) -> Number:
        """How to know a size after a call: from arguments as far as it is made of them, otherwise as a result."""
        if node in self.placeholders:
            i = self.placeholders[node]
            return lambda args, results: args[i]
        if node.all_input_nodes and all(self._is_known(n) for n in node.all_input_nodes):
            numbers = {n: self.number(n) for n in node.all_input_nodes}
            call = _Call(node.target, tuple(node.args), dict(node.kwargs), numbers)
            return lambda args, results: call((), args, results)
        k = self.add(node)
        return lambda args, results: results[k]

    def call(self, node: Any) -> _Call:
        """The call of a view upon its first argument."""
        numbers = {n: self.number(n) for n in node.all_input_nodes if n is not node.args[0]}
        return _Call(node.target, tuple(node.args[1:]), dict(node.kwargs), numbers)

    def _is_known(self, node: Any) -> bool:
        is_number = not hasattr(node.meta.get("val"), "stride")
        return node in self.placeholders or (is_number and "_local_scalar_dense" not in str(node.target))


def _chosen(chains: dict[Any, tuple[Any, tuple[Any, ...]]]) -> set[Any]:
    """The results that are to be views of their bases."""
    n_of_base = Counter(base for base, _ in chains.values())
    return {
        x for x, (base, calls) in chains.items()
        if calls and base.op != "get_attr"
        and (base.op == "placeholder" or n_of_base[base] > 1 or _is_better_viewed(x, base))
    }  # fmt: skip


def _is_better_viewed(x: Any, base: Any) -> bool:
    """Should the only result of a base that is computed be a view of it?"""
    if x.meta.get(IS_RESULT, False):
        return not (_is_plain(x) and _covers(x, base))
    return not _is_plain(x) and _covers(x, base)


def _chain(node: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a value is a view of, and the calls that lead from there to it."""
    calls: list[Any] = []
    while (base := viewed(node)) is not None:
        calls.append(node)
        node = base
    return node, tuple(reversed(calls))


def viewed(node: Any) -> Any:
    """The tensor, or the list of tensors, that a call gives a view of; None where its result has memory of its own."""
    if node.op != "call_function" or not node.args:
        return None
    if node.target is operator.getitem:
        source = node.args[0]
        return source if viewed(source) is not None else None
    if not _may_view(node.target) or not hasattr(node.args[0], "op"):
        return None
    return node.args[0] if _storage(node) == _storage(node.args[0]) else None  # some, as reshape, may also copy


def _may_view(target: Any) -> bool:
    """Does PyTorch's schema say so, or is it the call that gives a copy's elements another shape without saying so?

    ``reshape`` of what has to be copied is ``_unsafe_view`` of the copy. Where the program then writes to it, what was
    written comes back as the copy's shape, and each later view of it by an ``_unsafe_view`` of its own.
    """
    import torch

    return bool(getattr(target, "is_view", False)) or target is torch.ops.aten._unsafe_view.default


def _storage(node: Any) -> Any:
    from torch.multiprocessing.reductions import StorageWeakRef

    value = node.meta.get("val")
    tensor = value[0] if isinstance(value, list | tuple) and value else value
    return StorageWeakRef(tensor.untyped_storage()) if hasattr(tensor, "untyped_storage") else None


def _is_plain(node: Any) -> bool:
    """Does a result surely lie densely, in row-major order, from the start of its memory?"""
    fake = node.meta["val"]
    step: Any = 1
    is_dense = expression(fake.storage_offset()) == 0 and not fake.is_conj() and not fake.is_neg()
    for size, stride in zip(map(expression, reversed(fake.shape)), reversed(fake.stride()), strict=True):
        is_dense &= size == 1 or expression(stride) == step
        step = step * size
    return bool(is_dense)


def expression(n: Any) -> Any:
    """A size as a number or as sympy's expression, whose comparison guards nothing."""
    return n if isinstance(n, int) else n.node.expr


def hint(n: Any) -> Any:
    """A size as the example had it; None where data decide."""
    return n if isinstance(n, int) else n.node.hint


def _covers(node: Any, base: Any) -> bool:
    """Has a view as many bytes as its base, or more?"""
    sizes = [[*map(hint, x.meta["val"].shape)] for x in (node, base)]
    if any(n is None for n in (*sizes[0], *sizes[1])):
        return False
    n_bytes, n_base_bytes = (math.prod(of) * x.meta["val"].itemsize for of, x in zip(sizes, (node, base), strict=True))
    return bool(n_bytes >= n_base_bytes)


def _is_fixed(fake: Any) -> bool:
    return all(isinstance(n, int) for n in (*fake.shape, *fake.stride(), fake.storage_offset()))


def _strided(base: Any, calls: Sequence[Any]) -> _Strided | None:
    of, to = base.meta["val"], calls[-1].meta["val"]
    if not _is_fixed(of) or not _is_fixed(to) or of.dtype != to.dtype or of.dtype.is_complex:
        return None
    if any("detach" in str(c.target) for c in calls):  # what that gives is no view to autograd
        return None
    if any(hasattr(v := c.meta["val"], "dtype") and (v.dtype != of.dtype or v.is_neg()) for c in calls):
        return None
    size, stride, offset = tuple(to.shape), tuple(to.stride()), to.storage_offset() - of.storage_offset()
    return _Strided(size, stride, offset, tuple(of.stride()))
