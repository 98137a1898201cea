"""What a program asserts of values, where it looks something up by values, and what it picks of elements.

In: fx nodes. Out: conditions, as fx nodes or sympy relations, the lookups whose indices may be out of range, and the
sizes that a call needs elements along.
Not its business: assertions about sizes alone, which are constraints of the graph (``fx``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tilewright import ops
from tilewright.core.expr import Dim, is_nonneg
from tilewright.core.graph import Builder, Node
from tilewright.core.opdef import OpDef
from tilewright.core.types import bool_, f64, i64
from tilewright.frontend.complex_pairs import Pair
from tilewright.frontend.nodes import dim_scalar
from tilewright.frontend.torch.aten.call import Unsupported, cast
from tilewright.frontend.torch.fx.floats import float_node
from tilewright.frontend.torch.fx.symbols import SymbolTable, is_about_data

_OF_TENSORS = frozenset({
    "aten._assert_async.default", "aten._assert_async.msg", "aten._functional_assert_async.msg",
})  # fmt: skip
ASSERTIONS = frozenset({"aten._assert_scalar.default", "aten._functional_assert_scalar.default"})
"""Relations between numbers: those between sizes become the graph's constraints."""
_ABOVE = ("LessThan", "StrictLessThan", "GreaterThan", "StrictGreaterThan")
_RANGES = frozenset({"aten.sym_constrain_range.default"})


def is_about_values(node: Any) -> bool:
    """Is it an assertion that the values of a call decide?"""
    name, args = _call(node)
    if name in _OF_TENSORS:
        return hasattr(args[0], "op")
    if name not in ASSERTIONS and name not in _RANGES:
        return False
    expression = _expression(args[0])
    return hasattr(expression, "free_symbols") and is_about_data(expression)


def asserted_values(node: Any) -> Iterator[tuple[Any, str]]:
    """The conditions of an assertion, each an fx node or a sympy relation, with the text of a failure."""
    import sympy

    name, args = _call(node)
    if name in _RANGES:
        low, high = ([*args[1:], None, None][:2]) if len(args) > 1 else (node.kwargs.get("min"), node.kwargs.get("max"))
        x = _expression(args[0])
        text = f"{x} is outside of {'' if low is None else low}..{'' if high is None else high}"
        yield from ((sympy.Ge(x, low), text) for _ in range(low is not None))
        yield from ((sympy.Le(x, high), text) for _ in range(high is not None))
        return
    text = next((a for a in args[1:] if isinstance(a, str)), "an assertion of the program does not hold")
    if name in _OF_TENSORS:
        yield args[0], text
        return
    condition = _expression(args[0])
    if text.startswith("Runtime assertion failed for expression"):  # PyTorch's own, with names of its nodes
        found = ", ".join(sorted(s.name for s in condition.free_symbols if is_about_data(s)))
        text = f"{condition} must hold, where the data decide {found}"
    yield condition, text


def conditions_of(nodes: Iterable[Any]) -> list[Any]:
    """The relations that the assertions among ``nodes`` are about."""
    found = [_expression(n.args[0]) for n in nodes if str(n.target) in ASSERTIONS]
    return [e for e in found if hasattr(e, "free_symbols")]


def promised_by(nodes: Iterable[Any]) -> dict[str, Any]:
    """Data's symbols with the most that an assertion among ``nodes`` says each is."""
    return dict(promise for condition in conditions_of(nodes) for promise in promises_of(condition))


def promises_of(condition: Any) -> Iterator[tuple[str, Any]]:
    """Data's symbols with the most that a condition says each is: a size that is known before the data."""
    kind = type(condition).__name__
    if kind == "And":
        for part in condition.args:
            yield from promises_of(part)
    if kind in _ABOVE:
        less, more = condition.args if kind.endswith("LessThan") else condition.args[::-1]
        if getattr(less, "is_Symbol", False) and is_about_data(less) and not is_about_data(more) and more.is_integer:
            yield less.name, more - 1 if kind.startswith("Strict") else more


def totals_of(condition: Any) -> Iterator[tuple[Any, Any]]:
    """Sums of sizes that data decide, with the size that a condition says each is: as of parts of a split."""
    if type(condition).__name__ == "Equality":
        for total, size in (condition.args, condition.args[::-1]):
            if total.is_Add and is_about_data(total) and not is_about_data(size):
                yield total, size


def counts_of(condition: Any) -> Iterator[tuple[str, str]]:
    """Pairs of sizes that data decide, each a symbol, that a condition says are equal."""
    if type(condition).__name__ == "Equality" and all(a.is_Symbol and is_about_data(a) for a in condition.args):
        first, second = condition.args
        yield first.name, second.name


def _call(node: Any) -> tuple[str, tuple[Any, ...]]:
    """The call's name and arguments, also where PyTorch keeps it in order by a token."""
    if str(node.target) == "with_effects":
        return str(node.args[1]), tuple(node.args[2:])
    return str(node.target), tuple(node.args)


def _expression(x: Any) -> Any:
    value = x.meta.get("val") if hasattr(x, "meta") else x
    return getattr(getattr(value, "node", None), "expr", None)


# --- conditions -----------------------------------------------------------------------------------------------------

_RELATIONS: Mapping[str, OpDef] = {
    "Equality": ops.eq, "Unequality": ops.ne, "GreaterThan": ops.ge, "LessThan": ops.le,
    "StrictGreaterThan": ops.gt, "StrictLessThan": ops.lt,
}  # fmt: skip
_JOINED: Mapping[str, OpDef] = {"And": ops.logical_and, "Or": ops.logical_or}


def follows_from_sizes(symbols: SymbolTable, numbers: Mapping[str, Node], e: Any) -> bool:
    """Does a condition hold whatever the data, as one between sizes whose ranges say so? PyTorch asserts many of those.

    A size that is 0 or more and at most as long as the mask that it was counted in needs no look at the data.
    """
    if settled_by_range(e):
        return True
    kind = type(e).__name__
    if kind not in _ABOVE or any(s.name in numbers for s in e.free_symbols) or not all(a.is_integer for a in e.args):
        return False
    less, more = e.args if kind.endswith("LessThan") else e.args[::-1]
    try:
        room = symbols.dim(more) - symbols.dim(less) - (1 if kind.startswith("Strict") else 0)
    except Unsupported:
        return False
    return is_nonneg(room)


def settled_by_range(e: Any) -> bool | None:
    """What a relation to a whole number beyond 64 bits is: the same for all that a size can be; None of other ones.

    PyTorch asserts that twice a size whose range ends at 64 bits is at most twice that end.
    """
    if type(e).__name__ not in _RELATIONS or not any(_is_beyond(a) for a in e.args):
        return None
    return bool(e.func(*(a if _is_beyond(a) else 0 for a in e.args)))


def _is_beyond(e: Any) -> bool:
    return bool(getattr(e, "is_Integer", False)) and not -(1 << 63) <= int(e) < 1 << 63


def truth(b: Builder, symbols: SymbolTable, numbers: Mapping[str, Node], e: Any) -> Node:
    """A sympy condition as a 0-d bool; ``numbers`` are the symbols that tensors' elements are."""
    kind = type(e).__name__
    if kind in _JOINED:
        first, *rest = (truth(b, symbols, numbers, a) for a in e.args)
        for x in rest:
            first = b(_JOINED[kind], first, x)
        return first
    if kind in ("BooleanTrue", "BooleanFalse"):
        return b.const(kind == "BooleanTrue", bool_)
    if (settled := settled_by_range(e)) is not None:
        return b.const(settled, bool_)
    if kind == "Not":
        return b(ops.logical_not, truth(b, symbols, numbers, e.args[0]))
    if kind not in _RELATIONS:
        raise Unsupported(f"the assertion {e}", "compare numbers by == != < <= > and >=")
    is_whole = all(a.is_integer for a in e.args)
    sides = [integer_node(b, symbols, numbers, a) if is_whole else _float(b, symbols, numbers, a) for a in e.args]
    return b(_RELATIONS[kind], *sides)


def _float(b: Builder, symbols: SymbolTable, numbers: Mapping[str, Node], e: Any) -> Node:
    return cast(b, float_node(b, symbols, numbers, e), f64)


_INTEGERS: Mapping[str, OpDef] = {
    "Add": ops.add, "Mul": ops.mul, "Max": ops.maximum, "Min": ops.minimum, "FloorDiv": ops.floor_div,
    "CleanDiv": ops.floor_div, "Mod": ops.mod, "PythonMod": ops.mod,
}  # fmt: skip


def integer_node(b: Builder, symbols: SymbolTable, numbers: Mapping[str, Node], e: Any) -> Node:
    """A sympy integer as a 0-d i64."""
    if getattr(e, "is_Symbol", False) and e.name in numbers:
        return cast(b, numbers[e.name], i64)
    if _is_beyond(e):
        raise Unsupported(f"the number {e} in an assertion", "compare with numbers of 64 bits")
    if not any(s.name in numbers for s in e.free_symbols):
        return dim_scalar(b, symbols.dim(e), i64)
    kind = type(e).__name__
    if kind == "Piecewise" and type(e.args[-1].args[1]).__name__ == "BooleanTrue":
        value = integer_node(b, symbols, numbers, e.args[-1].args[0])
        for choice, condition in reversed([piece.args for piece in e.args[:-1]]):
            holds = truth(b, symbols, numbers, condition)
            value = b(ops.where, holds, integer_node(b, symbols, numbers, choice), value)
        return value
    if kind not in _INTEGERS:
        raise Unsupported(f"an assertion over {e}", "use + - * // % min and max on numbers")
    first, *rest = (integer_node(b, symbols, numbers, a) for a in e.args)
    for x in rest:
        first = b(_INTEGERS[kind], first, x)
    return first


# --- lookups --------------------------------------------------------------------------------------------------------


def lookup_of(name: str, args: Mapping[str, Any]) -> tuple[tuple[Dim, ...], Node, int, Dim] | None:
    """Shape of the table, indices, axis and least index of a call that looks up rows."""
    if name == "embedding.default":
        table, indices, axis, least = args["weight"], args["indices"], 0, False
    elif name == "index_select.default":
        table, indices, axis, least = args["self"], args["index"], args["dim"], False
    elif name == "index.Tensor":
        table, given = args["self"], [(k, i) for k, i in enumerate(args["indices"]) if i is not None]
        if len(given) != 1:
            return None
        (axis, indices), least = given[0], True
    else:
        return None
    if not isinstance(table, Node | Pair) or not isinstance(indices, Node) or not table.shape:
        return None
    axis %= len(table.shape)
    return table.shape, indices, axis, -1 * table.shape[axis] if least else 0


# --- picks ----------------------------------------------------------------------------------------------------------

_ALONG_ONE = frozenset({
    "max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode.default", "kthvalue.default", "aminmax.default",
    "argmax.default", "argmin.default", "amax.default", "amin.default", "max.default", "min.default",
})  # fmt: skip
_POOLED_AXES = {f"{prefix}adaptive_avg_pool{n}d.default": n for n in (1, 2, 3) for prefix in ("", "_")}
_NORMS = frozenset({"linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar", "dist.default"})


def picked_along(name: str, args: Mapping[str, Any]) -> tuple[Dim, ...]:
    """Sizes of which a call needs 1 or more: it picks one of its operand's elements, and raises where there is none.

    The value of such a call over nothing would be the extreme that every element beats, which PyTorch never gives.
    """
    x = args.get("self")
    if not isinstance(x, Node):
        return ()
    if name in _POOLED_AXES:
        return x.shape[-_POOLED_AXES[name] :]
    if name in _NORMS:
        order = args.get("ord", args.get("p"))
        if not isinstance(order, int | float) or 0 <= order < float("inf"):
            return ()
    elif name not in _ALONG_ONE:
        return ()
    axes = args.get("dim")
    if axes is None or axes == []:
        return x.shape
    return tuple(x.shape[a] for a in ([axes] if isinstance(axes, int) else axes) if x.shape)
