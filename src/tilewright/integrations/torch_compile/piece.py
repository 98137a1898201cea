"""One compiled piece of a captured graph: its graph IR, how arguments reach it, and how results leave it.

In: fx nodes, those that they read, those that are read of them, weights known now. Out: a ``PieceProgram``, or the
calls that have no form here. Not its business: running it, and what happens to calls without a form
(``torch_compile``).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tilewright.core.diag import UNKNOWN, Loc, Problem
from tilewright.core.expr import Dim, Sym, maximum, substitute, symbols
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import Array, TensorType, bool_, f64, i64
from tilewright.frontend.complex_pairs import Pair, from_parts, join_parts
from tilewright.frontend.nodes import dim_scalar, transpose
from tilewright.frontend.torch.aten.call import SymFloat, Unsupported
from tilewright.frontend.torch.fx.checks import promised_by
from tilewright.frontend.torch.fx.guards import Promises
from tilewright.frontend.torch.fx.locations import location_of
from tilewright.frontend.torch.fx.strided import is_all_of_its_memory, lies_densely, readers_of_memory
from tilewright.frontend.torch.fx.symbols import SymbolTable, lone_symbol
from tilewright.frontend.torch.fx.views import IS_RESULT, hint
from tilewright.frontend.torch.fx.walk import FAILED, Importer, OnFault
from tilewright.frontend.torch.tensors import carrier, row_major, to_numpy, to_torch
from tilewright.runtime.errors import InputError
from tilewright.runtime.once import computed

if TYPE_CHECKING:
    import torch

Take = Callable[[Sequence[Any]], Array]
Size = Callable[[Sequence[Any]], int]
Result: TypeAlias = "Array | torch.Tensor"
Give = Callable[[Sequence[Any], Sequence[Result]], Any]
Placement: TypeAlias = tuple[tuple[Dim, ...], tuple[Dim, ...], Dim]
"""Sizes, strides and the offset of a tensor in its memory."""


@dataclass(frozen=True)
class _TakeTensor:
    """The argument's memory."""

    position: int
    is_plain: bool
    """Whether a compiled model understands the argument: real numbers in this machine's memory, or in a GPU's."""
    is_row_major: bool
    """False where it is known to lie otherwise than the compiled code reads it: to copy it first is the shorter way."""
    order: tuple[int, ...] = ()
    """The axes as the compiled code reads them, where that is not their own order."""

    def tensor(self, args: Sequence[Any]) -> torch.Tensor:
        given = self._given(args)
        return given if self.is_row_major else row_major(given)

    def __call__(self, args: Sequence[Any]) -> Array:
        return to_numpy(self._given(args), is_kept=False)

    def _given(self, args: Sequence[Any]) -> torch.Tensor:
        given: torch.Tensor = args[self.position]
        return given.permute(self.order) if self.order else given


@dataclass(frozen=True)
class _GiveTensor:
    """A tensor over the output's memory."""

    k: int
    is_complex: bool
    back: tuple[int, ...] = ()
    """Where each axis is in the output, whose axes are in the order in which the result's lie in memory."""

    def __call__(self, args: Sequence[Any], results: Sequence[Result]) -> Any:
        x = _as_tensor(results[self.k], self.is_complex)
        return x.permute(self.back).data if self.back else x


def _as_tensor(result: Result, is_complex: bool) -> torch.Tensor:
    """A tensor over the result's memory, which is nobody's view, as ``to_torch`` has it."""
    import torch

    if isinstance(result, np.ndarray):
        return to_torch(result, is_complex)
    if not is_complex:
        return result
    if result.stride(-1) != 1:  # a result without elements may have any strides
        result = torch.empty(result.shape, dtype=result.dtype, device=result.device).copy_(result)
    return torch.view_as_complex(result).data


@dataclass(frozen=True)
class PieceProgram:
    """A graph, how to get its inputs from the piece's arguments, and how to make results from its outputs."""

    graph: Graph
    takes: tuple[Take, ...]
    gives: tuple[Give, ...]

    @computed
    def handed(self) -> tuple[Callable[[Sequence[Any]], Any], ...]:
        """As ``takes``, for a compiled model that understands tensors: those that it takes are handed on as they are.

        One at least is then a tensor, so that its results are tensors; else these are ``takes``.
        """
        return tuple(take.tensor if isinstance(take, _TakeTensor) and take.is_plain else take for take in self.takes)

    @computed
    def gives_results(self) -> bool:
        """Are the results of a call of all tensors the piece's own, in order?"""
        wanted = [_GiveTensor(k, is_complex=False) for k in range(self.graph.n_results)]
        return list(self.gives) == wanted and any(isinstance(t, _TakeTensor) and t.is_plain for t in self.takes)


def import_piece(
    owner: Any,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    frozen: Mapping[Any, torch.Tensor],
    promises: Promises | None = None,
    on_fault: OnFault | None = None,
    has_peer: bool = False,
) -> tuple[PieceProgram | None, dict[Any, Problem]]:
    """The program of fx nodes; or None, and the calls that have no form here with the reasons.

    ``outputs`` may hold numbers beside fx nodes. ``frozen`` gives inputs that are constants. ``promises`` are
    those of the whole graph's sizes. ``on_fault`` makes a problem of an error that a converter did not mean to raise.
    With ``has_peer`` PyTorch runs what is refused.
    """
    importer = Importer(Pool(), SymbolTable(promises=promises), owner)
    importer.on_fault, importer.has_peer = on_fault, has_peer
    importer.checks, importer.asks_lookups, importer.promises = {}, False, promised_by(nodes)
    importer.symbols.compute_the_rest()
    bound, takes, parts = _bind(importer, inputs, frozen)
    importer.convert_nodes(nodes)
    failed = dict(importer.failed)
    for node in nodes:
        # PyTorch can't be left an argument: the calls that read one without a form are to blame
        unbound = [x for x in node.all_input_nodes if x in importer.failed and x in inputs]
        if unbound and node not in failed:
            failed[node] = importer.failed[unbound[0]]
    failed = {n: p for n, p in failed.items() if n.op != "placeholder" and n not in inputs}
    if failed:
        return None, failed
    made, gives = _results(importer, inputs, outputs, parts)
    if importer.failed:
        return None, importer.failed
    if not _bind_computed(importer, inputs, bound, takes):
        return None, {}  # nobody to blame: every call will be PyTorch's
    names = tuple(f"output_{i}" for i in range(len(made)))
    graph = Graph("dynamo", importer.pool, tuple(bound), tuple(made), names, tuple(importer.constraints))
    return PieceProgram(graph.with_checks(importer.checks), tuple(takes), tuple(gives)), {}


def _bind(
    importer: Importer, placeholders: Sequence[Any], frozen: Mapping[Any, torch.Tensor]
) -> tuple[list[Node], list[Take], dict[Sym, Size]]:
    """Tensors become inputs or constants; integers are dimensions that tensors' shapes or a carrier provide; floats are
    0-d f64 tensors. An integer that may be negative is the difference of what it is above 0 and below; expressions of
    it are read after that is settled, and shapes after all integers."""
    inputs: list[Node] = []
    takes: list[Take] = []
    sizes: dict[Sym, Size] = {}
    for i, node in sorted(enumerate(placeholders), key=lambda pair: _rank(pair[1].meta.get("val"))):
        value = node.meta.get("val")
        loc = Loc(f'input "{node.name}"')
        try:
            if node in frozen:
                importer.env[node] = importer.constant(frozen[node], Loc(f'weight "{node.name}"'))
            elif hasattr(value, "dtype") and hasattr(value, "shape"):
                order = _dense_order(value)
                entry = importer.pool.input(node.name, _input_type(importer, value, order), loc)
                own = transpose(Builder(importer.pool, loc), entry, _inverse(order)) if order else entry
                importer.env[node] = _split(importer, own) if value.is_complex() else own
                inputs.append(entry)
                is_plain = value.device.type in ("cpu", "cuda") and not value.is_complex()
                takes.append(_TakeTensor(i, is_plain, bool(order) or _is_row_major(value), order))
            elif type(value).__name__ == "SymInt":
                importer.env[node], parts = importer.symbols.integer(value)
                is_promised = [sign for _, sign in parts] == [1]
                sizes |= {size: partial(_integer, i, sign, is_promised) for size, sign in parts}
            elif type(value).__name__ == "SymFloat":
                entry = importer.pool.input(node.name, TensorType(f64, ()), loc)
                importer.env[node] = SymFloat(entry)
                if (symbol := lone_symbol(value)) is not None:  # by which expressions of this number find it
                    importer.numbers[symbol] = entry
                inputs.append(entry)
                takes.append(lambda args, i=i: np.asarray(args[i], np.float64))  # type: ignore[misc]
            else:
                importer.env[node] = value
        except Unsupported as e:
            importer.env[node] = FAILED
            importer.fail(node, Problem(loc, "input", e.rule, e.remedy))
    known = {d for n in inputs for d in n.shape if isinstance(d, Sym)}
    for size, given in sizes.items():
        if size not in known:  # else a tensor's shape says it
            inputs.append(importer.pool.input(f"{size.name}_size", TensorType(bool_, (size,))))
            takes.append(partial(_take_size, given))
    return inputs, takes, sizes


def _rank(value: Any) -> int:
    """When to bind an argument: symbols before their expressions, and both before the shapes that are made of them."""
    if type(value).__name__ != "SymInt":
        return 2
    return 0 if lone_symbol(value) is not None else 1


def _integer(i: int, sign: int, is_promised: bool, args: Sequence[Any]) -> int:
    """Of an argument of either sign what it is above 0, or below.

    One that is promised to be 0 or more may break the promise: an assertion among the piece's calls says so.
    """
    value = sign * int(args[i])
    if is_promised and value < 0:
        raise InputError(f"argument {i} is {value}, which the program promised to be 0 or more")
    return max(value, 0)


def _take_size(given: Size, args: Sequence[Any]) -> Array:
    return carrier(given(args))


def _bind_computed(importer: Importer, placeholders: Sequence[Any], inputs: list[Node], takes: list[Take]) -> bool:
    """Sizes without a form here, such as ``int(h * 0.7)``, come in as carriers that each call works out.

    False where the arguments do not have the sizes that they are computed of.
    """
    homes = _argument_homes(placeholders)
    known = {d for n in inputs for d in n.shape if isinstance(d, Sym)}
    for expression, size in (importer.symbols.computed or {}).items():
        if size in known:
            continue
        over = sorted(expression.free_symbols, key=str)
        if any(s not in homes for s in over):
            return False
        inputs.append(importer.pool.input(f"{size.name}_size", TensorType(bool_, (size,))))
        takes.append(partial(_take_computed, _evaluator(expression, over), [homes[s] for s in over]))
    return True


def _argument_homes(placeholders: Sequence[Any]) -> dict[Any, tuple[int, int | None]]:
    """Where the arguments hold PyTorch's symbolic sizes: the argument, and its axis unless it is the number itself."""
    found: dict[Any, tuple[int, int | None]] = {}
    for i, node in enumerate(placeholders):
        value = node.meta.get("val")
        sizes = {None: value} if type(value).__name__ == "SymInt" else dict(enumerate(getattr(value, "shape", ())))
        for axis, size in sizes.items():
            expression = getattr(getattr(size, "node", None), "expr", None)
            if expression is not None:
                found.setdefault(expression, (i, axis))
    return found


def _evaluator(expression: Any, symbols: Sequence[Any]) -> Callable[..., int]:
    """The value of a sympy expression at numbers for its symbols."""
    import sympy

    @functools.lru_cache(maxsize=256)
    def value(*sizes: int) -> int:
        return int(expression.xreplace({s: sympy.Integer(n) for s, n in zip(symbols, sizes, strict=True)}))

    return value


def _take_computed(value: Callable[..., int], homes: Sequence[tuple[int, int | None]], args: Sequence[Any]) -> Array:
    return carrier(value(*(_size_at(i, axis, args) for i, axis in homes)))


def _input_type(importer: Importer, fake: Any, order: Sequence[int]) -> TensorType:
    """A complex tensor comes in as its parts along a last axis, one with an ``order`` with its axes in it."""
    type_ = importer.type_of(fake)
    if fake.is_complex():
        return type_.with_shape((*type_.shape, 2))
    return type_.with_shape(tuple(type_.shape[i] for i in order)) if order else type_


def _is_row_major(fake: Any) -> bool:
    """Does it lie so, or may it? To ask PyTorch of symbolic sizes would make a guard of the answer."""
    return not all(isinstance(n, int) for n in (*fake.shape, *fake.stride())) or bool(fake.is_contiguous())


def _split(importer: Importer, entry: Node) -> Pair:
    return from_parts(Builder(importer.pool, entry.loc), entry)


def _results(
    importer: Importer, inputs: Sequence[Any], wanted: Sequence[Any], parts: Mapping[Sym, Size]
) -> tuple[list[Node], list[Give]]:
    """One graph output per distinct value; inputs that are results pass by the compiled code.

    ``parts`` are symbols that are parts of integer arguments.
    Results that are different tensors of the program stay so where their values are one: callers may write to each.
    """
    b = importer.builder(UNKNOWN)  # ties a size that data decide to what decides it
    first: dict[Node, Any] = {}
    position = {node: i for i, node in enumerate(inputs)}
    outputs: list[Node] = []
    gives: list[Give] = []
    for source in wanted:
        value = importer.env.get(source, source) if hasattr(source, "op") else source
        if source in position:  # the very argument, as eager PyTorch returns it
            gives.append(lambda args, results, i=position[source]: args[i])  # type: ignore[misc]
        elif value is None or isinstance(value, bool | int | float):
            gives.append(lambda args, results, v=value: v)  # type: ignore[misc]
        else:
            is_tensor = isinstance(value, Node | Pair) and hasattr(source.meta.get("val"), "stride")
            try:
                placed = _placement(importer, source) if is_tensor else None
                # The kernel that computes a result writes it in the order of axes that callers were traced with.
                order = _stride_order(source.meta["val"]) if is_tensor and placed is None else ()
                node = _output_node(b, value)
                if order:
                    node = transpose(b, node, (*order, len(order)) if isinstance(value, Pair) else order)
                if node not in outputs:
                    outputs.append(node)
                k = outputs.index(node)
                give = _give(k, source, placed, order, importer, inputs, parts) if is_tensor else partial(_number, k)
                is_another = is_tensor and first.setdefault(node, source) is not source
                gives.append(partial(_give_copy, give) if is_another else give)
            except Unsupported as e:
                importer.fail(source, Problem(location_of(source), str(source.target), e.rule, e.remedy))
    return outputs, gives


def _give_copy(give: Give, args: Sequence[Any], results: Sequence[Result]) -> torch.Tensor:
    result: torch.Tensor = give(args, results).clone()
    return result


def _output_node(b: Builder, value: Any) -> Node:
    if isinstance(value, Pair):
        return join_parts(b, value)
    if isinstance(value, SymFloat):
        return value.node
    return value if isinstance(value, Node) else dim_scalar(b, value, i64)


def _number(k: int, args: Sequence[Any], results: Sequence[Result]) -> Any:
    return results[k].item()


def _give(
    k: int,
    source: Any,
    placed: Placement | None,
    order: Sequence[int],
    importer: Importer,
    inputs: Sequence[Any],
    parts: Mapping[Sym, Size],
) -> Give:
    """A result that is a tensor: output ``k``, whose axes are in ``order``, or copied to where it is ``placed``."""
    is_complex = source.meta["val"].is_complex()
    if placed is None:
        return _GiveTensor(k, is_complex, _inverse(order))
    homes = {**parts, **_homes(importer, inputs)}
    shape, strides, offset = placed
    over = frozenset[Sym]().union(*(symbols(d) for d in (*strides, offset)))
    if over - set(shape) - homes.keys():
        raise Unsupported("a view of which data decide where it lies", "copy it by clone()")
    return partial(_give_placed, k, is_complex, shape, strides, offset, homes)


def _placement(importer: Importer, source: Any) -> Placement | None:
    """Sizes, strides and offset of a result of symbolic size that is no row-major tensor of its own.

    AOTAutograd makes a result that aliases an argument from nothing but these three. Of known sizes, those of a result
    of the user's whose elements have gaps between them, or lie on each other.
    Raises ``Unsupported`` where PyTorch will read memory beside the elements, which is not ours to give.
    """
    fake = source.meta["val"]
    if not is_all_of_its_memory(source) and any(user not in importer.env for user in readers_of_memory(source)):
        raise Unsupported("a call that PyTorch runs reads more of the memory than the elements", "use slices")
    if all(isinstance(n, int) for n in (*fake.shape, *fake.stride(), fake.storage_offset())):
        has_gaps = source.meta.get(IS_RESULT, False) and not lies_densely(source)
        return (tuple(fake.shape), tuple(fake.stride()), 0) if has_gaps else None
    shape, strides = ([importer.symbols.dim(n) for n in of] for of in (fake.shape, fake.stride()))
    offset = importer.symbols.dim(fake.storage_offset())
    step: Dim = 1
    safe_step: Dim = 1  # PyTorch takes a size of which it knows nothing for 1 where it is 0
    is_dense = offset == 0
    for d, stride in zip(reversed(shape), reversed(strides), strict=True):
        is_dense &= d == 1 or stride in (step, safe_step)
        step, safe_step = step * d, safe_step * maximum(d, 1)
    return None if is_dense else (tuple(shape), tuple(strides), offset)


def _homes(importer: Importer, inputs: Sequence[Any]) -> dict[Sym, Size]:
    """How to read those of our symbols that the arguments hold as they are."""
    found = {importer.symbols.dim(e): home for e, home in reversed(_argument_homes(inputs).items())}
    return {d: partial(_size_at, *home) for d, home in found.items() if isinstance(d, Sym)}


def _size_at(i: int, axis: int | None, args: Sequence[Any]) -> int:
    return int(args[i] if axis is None else args[i].shape[axis])


def _give_placed(
    k: int,
    is_complex: bool,
    shape: Sequence[Dim],
    strides: Sequence[Dim],
    offset: Dim,
    homes: Mapping[Sym, Size],
    args: Sequence[Any],
    results: Sequence[Result],
) -> torch.Tensor:
    """Result ``k`` at the strides and the offset that it was traced with."""
    import torch

    x = _as_tensor(results[k], is_complex)
    known: dict[Sym, Dim] = {d: n for d, n in zip(shape, x.shape, strict=True) if isinstance(d, Sym)}
    known |= {s: given(args) for s, given in homes.items()}
    steps = [int(substitute(s, known)) for s in strides]  # type: ignore[arg-type]
    start = int(substitute(offset, known))  # type: ignore[arg-type]
    length = start + 1 + sum((n - 1) * s for n, s in zip(x.shape, steps, strict=True)) if x.numel() else start
    memory = torch.empty(length, dtype=x.dtype, device=x.device)
    y = memory.as_strided(x.shape, steps, start).data  # nobody's view: see ``to_torch``
    written = y
    for axis, s in enumerate(steps):
        if s == 0 and x.shape[axis] > 1:  # one element stands for all
            written, x = written.narrow(axis, 0, 1), x.narrow(axis, 0, 1)
    written.copy_(x)
    return y


def _stride_order(fake: Any) -> tuple[int, ...]:
    """The axes from the slowest to the fastest where that is not the row-major order, else nothing."""
    hints, sizes = [*map(hint, fake.stride())], [*map(hint, fake.shape)]
    if any(h is None for h in (*hints, *sizes)):
        return ()
    moving = [i for i in range(len(hints)) if sizes[i] != 1]
    if all(hints[a] >= hints[b] for a, b in itertools.pairwise(moving)):
        return ()
    return tuple(sorted(range(len(hints)), key=lambda i: -hints[i]))


def _dense_order(fake: Any) -> tuple[int, ...]:
    """The order of axes in which an argument's elements lie one behind the other; nothing for its own, and for none."""
    if fake.is_complex() or not all(isinstance(n, int) for n in (*fake.shape, *fake.stride())):
        return ()
    order, step = _stride_order(fake), 1
    for i in reversed(order):
        if fake.shape[i] != 1 and fake.stride(i) != step:
            return ()
        step *= fake.shape[i]
    return order


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))
