"""What an exported program asks of its inputs' sizes beside their ranges: the guards that tracing found.

In: a program; PyTorch keeps and saves its guards as Python text over ``L['x'].size()[1]``. Out: sympy conditions over
the program's size symbols. The text may come from a file: it is read, never executed.
Not its business: the conditions' form in integers (``torch.fx.conditions``).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.frontend.torch.aten.call import Unsupported
from tilewright.runtime.syntax import parse_expression

if TYPE_CHECKING:
    from torch.export import ExportedProgram

LAYOUT = "IsNonOverlappingAndDenseIndicator"
"""In guards on how an example lay in memory: calls take any layout here."""


@dataclass(frozen=True)
class Guard:
    """A condition that the program was traced under; ``text`` is PyTorch's, with the inputs' names."""

    condition: Any
    text: str


def guards_of(program: ExportedProgram) -> list[Guard]:
    """The program's guards; ``Unsupported`` names one that can't be read."""
    texts: list[str] = getattr(program, "_guards_code", None) or []
    sources = dict(_sources(program))
    found = []
    for text in dict.fromkeys(t for t in texts if LAYOUT not in t):
        try:
            condition = _Reader(sources).read(parse_expression(text))
        except (SyntaxError, TypeError, ValueError, RecursionError, ZeroDivisionError) as e:
            raise _unreadable(text) from e
        found.append(Guard(condition, text.replace("L['", "").replace("']", "").replace(".size()", ".shape")))
    return found


def _sources(program: ExportedProgram) -> Iterator[tuple[str, Any]]:
    """The ways in which guards spell an input, with what PyTorch traced it with."""
    from torch.utils import _pytree as pytree

    spec = program.call_spec.in_spec
    inputs = [
        node.meta.get("val")
        for s, node in zip(program.graph_signature.input_specs, _placeholders(program), strict=True)
        if s.kind.name == "USER_INPUT"
    ]
    if spec is None or len(inputs) != spec.num_leaves:
        return
    # numbers in the places of the tensors, so that each path says which
    leaves = pytree.tree_unflatten(list(range(len(inputs))), spec)
    signature = program.module_call_graph[0].signature if program.module_call_graph else None
    names = list(getattr(signature, "forward_arg_names", None) or [])
    paths: list[tuple[tuple[Any, ...], int]] = pytree.tree_flatten_with_path(leaves)[0]
    for path, k in paths:
        yield f"L['flat_args'][{k}]", inputs[k]
        group, first, *rest = path
        tail = pytree.keystr(tuple(rest))
        if group.idx == 1:  # by name
            yield f"L{pytree.keystr((first,))}{tail}", inputs[k]
            continue
        name = names[first.idx] if first.idx < len(names) else ""
        yield f"L['{name}']{tail}", inputs[k]
        base, _, number = name.rpartition("_")  # of *args
        if number.isdigit():
            yield f"L['{base}'][{number}]{tail}", inputs[k]


def _placeholders(program: ExportedProgram) -> list[Any]:
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def _unreadable(text: str) -> Unsupported:
    return Unsupported(f"the guard {text!r}, which can't be read", "give that dimension a fixed size")


class _Reader:
    """Python text, limited to what PyTorch prints of conditions on sizes, as sympy."""

    def __init__(self, sources: Mapping[str, Any]) -> None:
        self.sources = sources

    def read(self, node: ast.expr) -> Any:
        import sympy

        match node:
            case ast.Constant(value=bool()):
                return sympy.true if node.value else sympy.false
            case ast.Constant(value=int(number)):
                return sympy.Integer(number)
            case ast.Constant(value=float(number)):
                return sympy.Float(number)
            case ast.BoolOp(op=op, values=values):
                parts = [self.read(v) for v in values]
                return sympy.And(*parts) if isinstance(op, ast.And) else sympy.Or(*parts)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return sympy.Not(self.read(operand))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.read(operand)
            case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(o) in _COMPARE for o in ops):
                sides = [self.read(n) for n in (left, *rest)]
                pairs = zip(ops, sides, sides[1:], strict=False)
                return sympy.And(*(getattr(sympy, _COMPARE[type(o)])(a, b) for o, a, b in pairs))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](self.read(left), self.read(right))
            case ast.Call(func=func, args=[_, *_] as args, keywords=[]) if (name := ast.unparse(func)) in _CALLS:
                return _CALLS[name](*(self.read(a) for a in args))
            case ast.Subscript(value=ast.Call(func=ast.Attribute(value=of, attr=attr)), slice=ast.Constant(value=k)):
                return _sympy(getattr(self._input(of), _sized(attr))()[k])
            case ast.Call(func=ast.Attribute(value=of, attr="storage_offset")):
                return _sympy(self._input(of).storage_offset())
            case ast.Subscript():  # a number that is an argument itself
                return _sympy(self._input(node))
        raise _unreadable(ast.unparse(node))

    def _input(self, node: ast.expr) -> Any:
        text = ast.unparse(node)
        if text not in self.sources:
            raise _unreadable(text)
        return self.sources[text]


def _sized(attr: str) -> str:
    if attr not in ("size", "stride"):
        raise _unreadable(attr)
    return attr


def _sympy(size: Any) -> Any:
    import sympy

    if isinstance(size, bool | int | float):
        return sympy.sympify(size)
    return size.node.expr


def _functions() -> Any:
    from torch.utils._sympy import functions

    return functions


def _true_div(a: Any, b: Any) -> Any:
    is_whole = a.is_integer and b.is_integer
    return (_functions().IntTrueDiv if is_whole else _functions().FloatTrueDiv)(a, b)


def _power(a: Any, b: Any) -> Any:
    return a**b if a.is_integer and b.is_integer else _functions().FloatPow(a, b)


def _rounding(name: str) -> Callable[[Any], Any]:
    return lambda x: x if x.is_integer else getattr(_functions(), name)(x)


_COMPARE: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "Eq", ast.NotEq: "Ne", ast.Lt: "Lt", ast.LtE: "Le", ast.Gt: "Gt", ast.GtE: "Ge",
}  # fmt: skip

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: _functions().FloorDiv(a, b),
    ast.Mod: lambda a, b: _functions().PythonMod(a, b),
    ast.Div: _true_div,
    ast.Pow: _power,
}

_CALLS: Mapping[str, Callable[..., Any]] = {
    "max": lambda *xs: _functions().Max(*xs),
    "min": lambda *xs: _functions().Min(*xs),
    "abs": lambda x: _functions().Max(x, -x),
    "float": lambda x: _functions().ToFloat(x),
    "torch.sym_float": lambda x: _functions().ToFloat(x),
    "math.sqrt": lambda x: _functions().OpaqueUnaryFn_sqrt(x),
    "torch._sym_sqrt": lambda x: _functions().OpaqueUnaryFn_sqrt(x),
    "math.trunc": _rounding("TruncToInt"),
    "math.floor": _rounding("FloorToInt"),
    "math.ceil": _rounding("CeilToInt"),
    "round": _rounding("RoundToInt"),
}
