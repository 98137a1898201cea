"""Walks an fx program of ATen calls and builds our graph.

In: an ``fx.Graph`` whose placeholders the caller has bound to nodes. Out: the values of its output; problems of every
call that has no form here are collected, so that the user sees them all at once.
Not its business: where programs come from (``torch``, ``torch_compile``), and what each ATen call means
(``torch.aten``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tilewright import ops
from tilewright.core.diag import CompileError, Loc, Problem
from tilewright.core.expr import Dim, Expr, Sym, is_nonneg, maximum, symbols
from tilewright.core.graph import Builder, Node, Pool
from tilewright.core.types import TensorType, bool_, i64
from tilewright.frontend.asked import add_check
from tilewright.frontend.complex_pairs import COMPLEX_PARTS, HALF_PARTS, Pair, from_parts
from tilewright.frontend.homes import Homes, TyingBuilder
from tilewright.frontend.index_checks import Formals, index_check
from tilewright.frontend.nodes import dim_scalar, reshape
from tilewright.frontend.torch.aten.call import (
    AtenCall,
    Draws,
    Result,
    SymFloat,
    Unsupported,
    cast,
    dtype_from_torch,
    is_decided_by_data,
)
from tilewright.frontend.torch.aten.complex import COMPLEX
from tilewright.frontend.torch.aten.places import UNBOUNDED
from tilewright.frontend.torch.aten.table import CONVERTERS, nearest
from tilewright.frontend.torch.custom_ops import KERNELS, AddNodes
from tilewright.frontend.torch.fx.checks import (
    ASSERTIONS,
    asserted_values,
    conditions_of,
    counts_of,
    follows_from_sizes,
    is_about_values,
    lookup_of,
    picked_along,
    promised_by,
    totals_of,
    truth,
)
from tilewright.frontend.torch.fx.control import convert_cond, convert_map, convert_scan, convert_while
from tilewright.frontend.torch.fx.floats import float_node
from tilewright.frontend.torch.fx.forms import ELEMENTS, functional_name, is_symbolic
from tilewright.frontend.torch.fx.inplace import NO_WRITES, Writes, is_in_place, put_back
from tilewright.frontend.torch.fx.known import made_of_numbers
from tilewright.frontend.torch.fx.locations import location_of
from tilewright.frontend.torch.fx.pinned import fitted, given_arguments, pinned
from tilewright.frontend.torch.fx.strided import STRIDED, offset_within
from tilewright.frontend.torch.fx.symbols import SymbolTable, is_about_data, lone_symbol
from tilewright.frontend.torch.fx.views import hint
from tilewright.frontend.torch.tensors import is_complex_tensor, part_dtype, to_numpy
from tilewright.ops.value_bounds import bounds_of

CHECKS = frozenset({
    "aten._assert_async.default", "aten._assert_async.msg",
    "aten._assert_tensor_metadata.default", "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default", "aten._functional_assert_async.msg",
    "aten._linalg_check_errors.default",
})  # fmt: skip
"""Calls without a result: their conditions are in the symbols' bounds, or are the user's own promise."""

IGNORED = CHECKS | ASSERTIONS

TOKEN = "token"
"""What a token of PyTorch's, which orders calls with effects, stands for here."""

HIGHER_ORDER: Mapping[str, Callable[[Importer, Builder, Sequence[Any]], list[Node]]] = {
    "cond": convert_cond,
    "while_loop": convert_while,
    "scan": convert_scan,
    "map_impl": convert_map,
}


OnFault = Callable[[Exception, Any], Problem]
"""Makes a problem of an error that nobody meant to raise, and of the call that it came of."""


class Failed:
    """Stands for the value of a call that could not be converted."""


FAILED = Failed()


class Importer:
    """Converts programs into one pool. ``env`` maps fx nodes to nodes, dimensions, numbers, or tuples of those."""

    def __init__(self, pool: Pool, symbols: SymbolTable, owner: Any = None, homes: Homes | None = None) -> None:
        self.pool = pool
        self.homes = Homes() if homes is None else homes
        self.symbols = symbols
        self.owner = owner
        self.env: dict[Any, Any] = {}
        self.failed: dict[Any, Problem] = {}
        self._more_problems: list[Problem] = []
        self.constraints: list[Expr] = []
        self.promises: dict[str, Any] = {}  # the most that numbers are, by PyTorch's symbols
        self.numbers: dict[str, Node] = {}  # PyTorch's symbols for elements of tensors, 0-d
        self.writes = NO_WRITES
        self.draws: Draws | None = None
        self.on_fault: OnFault | None = None
        self.has_peer = False
        self.complex_inputs: list[str] = []
        self.checks: dict[str, Node] | None = None  # what calls fail without, by the text; None: nothing is asked
        self.asks_lookups = True  # whether indices of the call's inputs are among what is checked
        self.formals = Formals()  # what inputs of sub-graphs stand for
        self._versions: dict[Any, int] = {}  # of views, and of what they are taken of: how often it was written to
        self._constants: dict[int, tuple[Any, Node]] = {}

    def run(self, graph: Any, writes: Writes = NO_WRITES) -> list[Any]:
        """Convert every call; the output's values in order (``FAILED`` where a problem was found)."""
        self.writes = writes
        outputs: list[Any] = []
        self.convert_nodes(graph.nodes)
        for node in graph.nodes:
            if node.op == "output":
                outputs = _flat(self._value(node.args[0]))
        return outputs

    def convert_nodes(self, nodes: Iterable[Any]) -> None:
        """Convert calls and attributes, in order; ``failed`` gets those that have no form here.

        What nothing but checks reads is left out, since the checks are.
        """
        nodes = list(nodes)
        unread = _read_by_checks_only(nodes, self.checks is not None)
        for node in nodes:
            if node in unread:
                continue
            if node.op == "get_attr":
                self.env[node] = self._guarded(node)
            elif node in self.writes.targets:
                self._write(self.writes.targets[node], self._guarded(node))
            elif node.op not in ("placeholder", "output"):
                self.env[node] = self._guarded(node)
                self._versions[node] = self._version(node)

    def _write(self, target: Any, value: Any) -> None:
        """Let ``target`` be ``value``, and what it is a view of be the same with ``value`` put back."""
        bases = self.writes.bases
        changed = [target]
        while changed[-1] in bases:
            view, base = changed[-1], bases[changed[-1]]
            whole = self._value(base)
            changed.append(base)
            self.env[view] = value
            if value is not FAILED and whole is not FAILED:
                value = put_back(self.builder(location_of(view)), view, self._arguments(view), whole, value)
            else:
                value = FAILED
        self.env[changed[-1]] = value
        self._versions[changed[-1]] = self._versions.get(changed[-1], 0) + 1
        for node in changed:
            self._versions[node] = self._versions[changed[-1]]

    def _version(self, node: Any) -> int:
        """How often the tensor that ``node`` is, or is a view of, has been written to."""
        while node in self.writes.bases:
            node = self.writes.bases[node]
        return self._versions.get(node, 0)

    def builder(self, loc: Loc) -> Builder:
        """What adds nodes, tied to the sizes that they use."""
        return TyingBuilder(self.pool, loc, self.homes)

    def type_of(self, fake: Any) -> TensorType:
        """The type of a tensor from PyTorch's shape propagation; of a complex one, the type of each part."""
        return TensorType(dtype_from_torch(part_dtype(fake.dtype)), tuple(self.symbols.dim(d) for d in fake.shape))

    def input(self, node: Any, name: str, loc: Loc) -> Node:
        """An input of the graph for a placeholder, ``env``'s value of it; complex numbers come as their parts along a
        last axis."""
        fake = node.meta["val"]
        type_ = self.type_of(fake)
        if not fake.is_complex():
            entry = self.env[node] = self.pool.input(name, type_, loc)
            return entry
        if type_.dtype not in COMPLEX_PARTS:
            raise Unsupported("complex numbers of half precision", HALF_PARTS)
        entry = self.pool.input(name, type_.with_shape((*type_.shape, 2)), loc)
        self.env[node] = from_parts(Builder(self.pool, loc), entry)
        self.complex_inputs.append(name)
        return entry

    def constant(self, tensor: Any, loc: Loc) -> Node | Pair:
        """A tensor known now; one tensor becomes one constant."""
        if id(tensor) not in self._constants:
            dtype_from_torch(part_dtype(tensor.dtype))
            if type(tensor).__name__ == "FakeTensor":  # what tracing made for itself
                raise Unsupported("a constant that PyTorch gives without its data", "compute it from an argument")
            # The tensor is kept, so that no other one gets its identity.
            self._constants[id(tensor)] = (tensor, self.pool.const(to_numpy(tensor), loc=loc))
        found = self._constants[id(tensor)][1]
        return from_parts(Builder(self.pool, loc), found) if tensor.is_complex() else found

    @property
    def problems(self) -> list[Problem]:
        """Why calls have no form here, in order."""
        return [*self.failed.values(), *self._more_problems]

    def add_problems(self, problems: Sequence[Problem]) -> None:
        """Take over what stops a sub-graph."""
        self._more_problems += problems

    def fail(self, node: Any, problem: Problem) -> None:
        """Note why an fx node has no form here; the first reason is kept."""
        self.failed.setdefault(node, problem)

    def child(self, pool: Pool, owner: Any) -> Importer:
        """An importer for a sub-graph: the same sizes, nodes and problems of its own."""
        made = Importer(pool, self.symbols, owner, self.homes if pool is self.pool else None)
        made.draws = self.draws if pool is self.pool else None
        made.checks = self.checks if pool is self.pool else None
        made.asks_lookups, made.formals = self.asks_lookups, self.formals
        made.on_fault = self.on_fault
        made.has_peer = self.has_peer
        return made

    def read_assertions(self, graph: Any) -> None:
        """Take over what the program asserts of sizes: equalities name a symbol's value, the rest are constraints.

        To be called before inputs are bound, so that equal sizes are equal everywhere.
        """
        conditions = conditions_of(graph.nodes)
        sizes = dict.fromkeys(c for n in graph.nodes for c in _equal_sizes(n))
        asserted = [c for c in conditions if not is_about_data(c)]
        for total, size in (pair for c in conditions for pair in totals_of(c)):
            self.symbols.promise_total(total, size)
        for a, b in (pair for c in conditions for pair in counts_of(c)):
            self.symbols.promise_same(a, b)
        self.promises = promised_by(graph.nodes)
        for condition in dict.fromkeys(asserted):
            self.require(condition, f"the assertion {condition}")
        for condition in sizes:
            if condition not in asserted:
                with suppress(Unsupported):
                    self._require(condition, is_broadcast=True)

    def require(self, condition: Any, what: str) -> None:
        """Let callers keep a sympy condition on sizes; one without a form here is a problem, ``what`` says of what."""
        try:
            self._require(condition)
        except (Unsupported, ValueError) as e:
            rule = e.rule if isinstance(e, Unsupported) else str(e)
            remedy = "give that dimension a fixed size, or decide by whole numbers in forward"
            self.add_problems([Problem(Loc(what), "guard", f"a condition that can't be checked: {rule}", remedy)])

    def _require(self, condition: Any, is_broadcast: bool = False) -> None:
        if self.symbols.equate(condition) or self.symbols.bound(condition):
            return
        if is_broadcast and self.symbols.is_one(condition.lhs):
            return
        for e in self.symbols.nonnegative_when(condition):
            if isinstance(e, Expr) and not is_nonneg(e) and e not in self.constraints:
                self.constraints.append(e)

    def _attribute(self, node: Any) -> Any:
        value = operator.attrgetter(node.target)(self.owner)
        return self.constant(value, Loc(f'constant "{node.target}"')) if hasattr(value, "untyped_storage") else value

    def _guarded(self, node: Any) -> Any:
        """The value of a call or attribute, or ``FAILED`` and a problem; a result that lacks is its call's problem."""
        blamed = node.args[0] if node.target is operator.getitem else node
        try:
            return self._attribute(node) if node.op == "get_attr" else self._call(node)
        except Unsupported as e:
            self.fail(blamed, Problem(location_of(node), str(node.target), e.rule, e.remedy))
        except CompileError as e:
            rules = "; ".join(p.rule for p in e.problems)
            self.fail(blamed, Problem(location_of(node), str(node.target), rules, e.problems[0].remedy))
        except Exception as e:
            if self.on_fault is None:
                raise
            self.fail(blamed, self.on_fault(e, blamed))
        return FAILED

    def _call(self, node: Any) -> Any:
        name = str(node.target)
        if self.checks is not None and is_about_values(node):
            self._check(node)
        if name in CHECKS or name in ASSERTIONS:
            return None
        if name == "with_effects":
            if not _is_left_out(node):
                raise Unsupported(f"an effect of {node.args[1]} must keep its place", "leave that call out")
            return [TOKEN]
        if name in HIGHER_ORDER:
            values = [self._value(x) for x in node.args]
            builder = self.builder(location_of(node))
            return FAILED if any(x is FAILED for x in _flat(values)) else HIGHER_ORDER[name](self, builder, values)
        if node.target is operator.getitem:
            return self._item(node)
        value = node.meta.get("val")
        if name in ELEMENTS:
            return self._number(node, self._value(node.args[0]), value)
        if is_symbolic(value):
            return self._symbolic(value, location_of(node))
        if isinstance(value, bool | int | float) and not name.startswith("aten."):
            return value
        return self._convert(node, name, value)

    def _check(self, node: Any) -> None:
        """Let calls fail where an assertion of the program about values does not hold."""
        assert self.checks is not None
        b = self.builder(location_of(node))
        for condition, text in asserted_values(node):
            if follows_from_sizes(self.symbols, self.numbers, condition):
                continue
            if hasattr(condition, "op"):
                value = self._value(condition)
                holds = cast(b, reshape(b, value, ()), bool_) if isinstance(value, Node) else None
            else:
                holds = truth(b, self.symbols, self.numbers, condition)
            if holds is not None:
                self.require_truth(b, holds, f"{b.loc}: {text}")

    def _number(self, node: Any, x: Any, value: Any) -> Any:
        """An element as a number: a size where it is never negative and something bounds it, else a 0-d tensor."""
        if not isinstance(x, Node):
            return x
        b, symbol = self.builder(location_of(node)), lone_symbol(value)
        x = reshape(b, x, ())
        if (name := symbol or _symbol_of_truth(value)) is not None:
            self.numbers[name] = x
        if symbol is None or not x.dtype.is_integer:
            return x
        size = self.symbols.dim(value)
        promised = self._promised(symbol, size)
        least, most = bounds_of(x)
        most = most if promised is None else promised
        least = self.symbols.least(value) if least is None or not is_nonneg(least) else least
        fits = most is not None and least is not None and is_nonneg(least)
        if not fits and _is_a_size(symbol, node):
            raise Unsupported(UNBOUNDED, "clamp what it is computed of, or promise torch._check(0 <= n <= the most)")
        if not fits or most is None or not isinstance(size, Sym):
            return x
        marker, _ = b.results(b(ops.as_size, x, count=size.name, most=maximum(most, 0)))
        self.symbols.bind(size, marker.shape[1])
        return marker.shape[1]

    def _promised(self, symbol: str, size: Any) -> Dim | None:
        """The most that the program promises of a number: by its range, or by an assertion."""
        if isinstance(size, Sym) and size.hi is not None:
            return size.hi
        with suppress(Unsupported):
            return self.symbols.dim(self.promises[symbol]) if symbol in self.promises else None
        return None

    def _convert(self, node: Any, name: str, value: Any) -> Any:
        args = self._arguments(node)
        results = [value] if not isinstance(value, tuple | list) else list(value)
        flat = _flat(list(args.values()))
        if name in KERNELS:
            return FAILED if any(x is FAILED for x in flat) else self._kernel(node, KERNELS[name], flat)
        if any(x is FAILED for x in flat) and (functional_name(name) in CONVERTERS or functional_name(name) in COMPLEX):
            return FAILED
        is_complex = any(isinstance(x, Pair) for x in flat) or any(map(is_complex_tensor, results))
        convert = (COMPLEX if is_complex else CONVERTERS).get(functional_name(name))
        if convert is None and (made := made_of_numbers(node)) is not None:
            return self.constant(made, location_of(node))
        if convert is None or (is_in_place(node) and node not in self.writes.targets):
            raise _unsupported(name, is_complex=is_complex, is_known=convert is not None)
        if name in STRIDED:
            args["storage_offset"] = offset_within(node, args, self.symbols.dim)
        # Beside tensors some calls give numbers, as attention does the largest length; nobody reads them here.
        types = tuple(self.type_of(v) if hasattr(v, "dtype") else None for v in results)
        gives_complex = is_complex_tensor(results[0]) if results else False
        b = self.builder(location_of(node))
        check = None if self.checks is None else lambda holds, text: self.require_truth(b, holds, f"{b.loc}: {text}")
        known = dict(self._known_counts(types))
        args = fitted(b, node, args)
        made = convert(AtenCall(b, name, args, types, gives_complex, self.draws, self.has_peer, check))
        _check_results(made, types)
        self._bind_sizes(made, types)
        made = self._held_to(b, pinned(b, made, types), types[0], known)
        self._need_elements(node, functional_name(name), args)
        if self.checks is not None and self.asks_lookups:
            self._check_lookup(node, lookup_of(functional_name(name), args))
        return made if isinstance(value, tuple | list) or isinstance(made, Node | Pair) else made[0]

    def _check_lookup(self, node: Any, found: tuple[tuple[Dim, ...], Node, int, Dim] | None) -> None:
        """Let calls fail where an index of theirs is out of range, if ``found`` is a lookup by such indices."""
        b = self.builder(location_of(node))
        check = found and index_check(b, lambda d: dim_scalar(b, d, i64), *found, b.loc, self.formals)
        if check:
            self.require_truth(b, *check)

    def require_truth(self, b: Builder, holds: Node, text: str) -> None:
        """Let calls fail with ``text`` where ``holds`` is false, or what was asked before by the same text is."""
        if self.checks is not None:
            add_check(self.checks, b, holds, text)

    def _need_elements(self, node: Any, name: str, args: Mapping[str, Any]) -> None:
        """Let calls keep sizes along which an element is picked at 1 or more; a check names the line of one that data
        decide."""
        for size in picked_along(name, args):
            short = size - 1
            if is_nonneg(short):
                continue
            if self.checks is None or not any(is_decided_by_data(s) for s in symbols(short)):
                if isinstance(short, Expr) and short not in self.constraints:
                    self.constraints.append(short)
                continue
            b = self.builder(location_of(node))
            holds = b(ops.ge, dim_scalar(b, size, i64), b.const(1, i64))
            self.require_truth(b, holds, f"{b.loc}: {name.partition('.')[0]} needs an element, and {size} is 0")

    def _kernel(self, node: Any, add: AddNodes, operands: Sequence[Any]) -> tuple[Node, ...]:
        """The results of a kernel of the language; callers keep what it asks of their sizes."""
        made, relations = add(self.builder(location_of(node)), operands)
        self.constraints += [e for e in relations if not is_nonneg(e) and e not in self.constraints]
        return made

    def _bind_sizes(self, made: Result, types: Sequence[TensorType | None]) -> None:
        """PyTorch's symbols for sizes that only data decide get the meaning that the call gave them."""
        for value, type_ in zip([made] if isinstance(made, Node | Pair) else made, types, strict=False):
            node = value.re if isinstance(value, Pair) else value
            if node is not None and type_ is not None:
                for size, symbol in zip(node.shape, type_.shape, strict=True):
                    if size != symbol and is_decided_by_data(symbol):
                        self.symbols.bind(symbol, size)

    def _known_counts(self, types: Sequence[TensorType | None]) -> Iterator[tuple[Sym, Dim]]:
        """Of sizes that data decide in results of these types, what the program promises that they are: a size that
        other data have decided."""
        for symbol in (d for t in types if t is not None for d in t.shape):
            if is_decided_by_data(symbol) and not self.homes.has(symbol):
                yield from ((symbol, size) for size in self.symbols.same_as(symbol) if self.homes.has(size))

    def _held_to(self, b: Builder, made: Result, type_: TensorType | None, known: Mapping[Sym, Dim]) -> Result:
        """A result in the sizes that are ``known`` of it; a call ends where data decide on others."""
        if not known or not isinstance(made, Node) or type_ is None:
            return made
        for symbol, size in known.items():
            self.symbols.bind(symbol, size)
        pairs = zip(made.shape, type_.shape, strict=True)
        return reshape(b, made, [known.get(d, own) if isinstance(d, Sym) else own for own, d in pairs])

    def _arguments(self, node: Any) -> dict[str, Any]:
        """Arguments by the schema's names, defaults filled in."""
        if not hasattr(node.target, "_schema"):
            raise Unsupported("is not supported", "replace it by calls of ATen")
        return {name: self._value(given) for name, given in given_arguments(node).items()}

    def _value(self, x: Any) -> Any:
        """An argument with fx nodes and symbols replaced by what they stand for."""
        if isinstance(x, tuple | list):
            return [self._value(i) for i in x]
        if type(x).__name__ in ("SymInt", "SymFloat"):
            return self._symbolic(x, Loc("a size"))
        if isinstance(x, Mapping):
            return {k: self._value(v) for k, v in x.items()}
        try:
            x = self.writes.targets.get(x, x)
            if x in self.writes.bases and self._versions[x] != self._version(x):
                self.env[x] = self._guarded(x)
                self._versions[x] = self._version(x)
            return self.env.get(x, x)
        except TypeError:  # unhashable: not an fx node
            return x

    def _symbolic(self, value: Any, loc: Loc) -> Any:
        kind = type(value).__name__
        if kind == "SymInt":
            return self.symbols.dim(value)
        if kind == "SymBool":
            return truth(self.builder(loc), self.symbols, self.numbers, value.node.expr)
        return SymFloat(float_node(self.builder(loc), self.symbols, self.numbers, value.node.expr))

    def _item(self, node: Any) -> Any:
        source = self._value(node.args[0])
        if source is FAILED:
            return FAILED
        item = source[node.args[1]]
        if item is None and node.users:
            raise Unsupported(f"result {node.args[1]} of {node.args[0].target} is not available")
        return item


def _check_results(made: Result, expected: Sequence[TensorType | None]) -> None:
    """The converter must agree with PyTorch on dtype, rank and static dimensions."""
    nodes = [made] if isinstance(made, Node | Pair) else list(made)
    for value, type_ in zip(nodes, expected, strict=False):
        node = value.re if isinstance(value, Pair) else value
        if node is None or type_ is None:
            continue
        same_rank = len(node.shape) == len(type_.shape)
        if node.dtype is not type_.dtype or not same_rank or any(
            not isinstance(a, Expr) and not isinstance(b, Expr) and a != b
            for a, b in zip(node.shape, type_.shape, strict=True)
        ):  # fmt: skip
            raise Unsupported(f"gives {node.type} where PyTorch has {type_}", "please report this: it is our mistake")


def _symbol_of_truth(value: Any) -> str | None:
    """The symbol that is 1 where a truth of the data holds: PyTorch has ``Eq(u0, 1)`` for a bool's ``.item()``."""
    e: Any = getattr(getattr(value, "node", None), "expr", None)
    is_truth = type(e).__name__ == "Equality" and getattr(e.args[0], "is_Symbol", False) and e.args[1] == 1
    return str(e.args[0]) if is_truth else None


def _is_a_size(symbol: str, number: Any) -> bool:
    """Does a tensor of the program have a size in which the symbol occurs, or is something computed of the number?"""
    values = [node.meta.get("val") for node in number.graph.nodes]
    sizes = (d for v in _flat(values) if hasattr(v, "shape") for d in v.shape if not isinstance(d, int))
    computed = any(type(user.meta.get("val")).__name__ == "SymInt" for user in number.users)
    return computed or any(str(s) == symbol for d in sizes for s in d.node.expr.free_symbols)


def _read_by_checks_only(nodes: Sequence[Any], values_are_checked: bool) -> set[Any]:
    """Calls without effects whose results, and what is made of them, only ``IGNORED`` calls among ``nodes`` read."""
    found: set[Any] = set()
    ignored = {n for n in nodes if str(n.target) in IGNORED or _is_left_out(n)}
    checks = {n for n in ignored if not (values_are_checked and is_about_values(n))}
    numbers: set[Any] = set()  # that assertions have as expressions, over elements that are still needed
    for node in reversed(nodes):
        is_number = is_symbolic(node.meta.get("val"))
        is_computed = is_number and not str(node.target).startswith("aten.")
        if is_computed and node.users and all(u in numbers or u in ignored for u in node.users):
            numbers.add(node)
            continue
        schema = getattr(node.target, "_schema", None)
        is_pure = node.op == "call_function" and not (schema is not None and schema.is_mutable)
        if is_pure and node.users and all(u in found or u in checks for u in node.users):
            found.add(node)
    return found | numbers


def _is_left_out(node: Any) -> bool:
    """Is it a call that is ordered by a token, and that does nothing here?"""
    return str(node.target) == "with_effects" and str(node.args[1]) in CHECKS


def _equal_sizes(node: Any) -> list[Any]:
    """What an element-wise call says of its operands' sizes: ``operand's = result's``, unless the operand's is 1, or
    was 1 in the example where the result's was not."""
    import sympy
    import torch

    out = node.meta.get("val")
    is_elementwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    if not is_elementwise or not isinstance(out, torch.Tensor):
        return []
    found: list[Any] = []
    for x in node.all_input_nodes:
        value = x.meta.get("val")
        if isinstance(value, torch.Tensor):
            pairs = zip(reversed(value.shape), reversed(out.shape), strict=False)
            sizes = [(_sympy(a), _sympy(b)) for a, b in pairs if hint(a) != 1 or hint(b) in (1, None)]
            found += [sympy.Eq(a, b) for a, b in sizes if a != b and a != 1 and a.free_symbols | b.free_symbols]
    return [c for c in found if type(c).__name__ == "Equality"]


def _sympy(size: Any) -> Any:
    import sympy

    return sympy.Integer(size) if isinstance(size, int) else size.node.expr


def _flat(x: Any) -> list[Any]:
    if isinstance(x, Mapping):
        return [y for v in x.values() for y in _flat(v)]
    return [y for v in x for y in _flat(v)] if isinstance(x, tuple | list) else [x]


def _unsupported(name: str, *, is_complex: bool, is_known: bool) -> Unsupported:
    """Why a call has no converter; ``is_known``: it has one, but not for a call that writes to what this one does."""
    if is_known:
        return Unsupported("writes to a tensor in a way that is not followed", "use the form that returns a new tensor")
    own = functional_name(name).removeprefix("aten.")
    if is_complex and functional_name(name) in CONVERTERS:
        remedy = "compute with the parts, as torch.view_as_real gives them"
        return Unsupported("is not supported for complex numbers", remedy)
    if name.startswith("tilewright."):  # ours, which torch.compile makes of modules
        return Unsupported("recurrences are trained by PyTorch's own kernels", "spell the steps out in forward")
    if not name.startswith(("aten.", "prims.")):  # of a library of the user's or of others
        op = "::".join(name.split(".")[:2])
        return Unsupported("is not supported", f'say what it computes: tilewright.decompose("{op}", function)')
    options = [o for o in nearest(name.removeprefix("aten.")) if o not in (own, name.removeprefix("aten."))]
    remedy = f"the nearest supported form is aten.{options[0]}" if options else "replace it by supported ops"
    return Unsupported("is not supported", remedy)
