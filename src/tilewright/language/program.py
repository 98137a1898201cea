"""Loop programs: functions of plain Python whose loops go over arrays, read from their text and never run.

In: a file's text, the name of a function, numbers for sizes. Out: ``LoopProgram``: what the function computes, as a
kernel's trace. Not its business: dependences and orders (``tile.polyhedral``), what is printed (``tools.loop_report``).

    def relax(a: "f64[n]", steps):
        n = len(a)
        for t in range(steps):
            for i in range(1, n - 1):
                a[i] = (a[i - 1] + a[i] + a[i + 1]) / 3

What a parameter is follows from how it is used: an array where it is subscripted, a size where ranges and subscripts
need it, else a number. Statements are said one by one in the language for kernels, whose rules hold: loops are
``range``, an access is inside of its array for all sizes, what data decide is chosen by a conditional expression.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from math import e, pi
from pathlib import Path
from typing import Any

from tilewright.core import types
from tilewright.core.compute import Serial, Stage
from tilewright.core.diag import Loc
from tilewright.core.expr import Dim, Sym
from tilewright.core.types import DType, TensorType
from tilewright.language import functions
from tilewright.language.conditions import when
from tilewright.language.errors import READ, TRACED, KernelError, refused
from tilewright.language.inside import checked
from tilewright.language.trace import Tensor, Trace, Traced, loop, trace, tracing
from tilewright.language.values import (
    Element,
    IndexExpr,
    checked_condition,
    dim_of,
    element,
    maximum_of,
    minimum_of,
    where,
)

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}  # fmt: skip
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip
_ELEMENTARY: Mapping[str, Callable[[Any], Any]] = {
    name: getattr(functions, name) for name in "sqrt exp log sin cos tan atan tanh erf floor ceil trunc".split()
}
_LIBRARIES, _CONSTANTS = ("math", "np", "numpy"), {"pi": pi, "e": e}
_TYPE = re.compile(r"(\w+)\[([^\]]*)\]")


@dataclass(frozen=True)
class LoopProgram:
    """What a function computes: arrays that it writes to come in as ``a_in``, and go out as ``a``."""

    traced: Traced
    parameters: tuple[str, ...]
    """Of the function, in order, that are arrays or numbers which a call gives."""

    written: tuple[str, ...]
    values: Mapping[Sym, Dim]
    """What the function's own variable is where a loop of the trace, which counts from 0, is at its symbol."""

    free: tuple[str, ...]
    """Sizes that no array has: they are parameters of what is analysed, and numbers where it is compiled."""

    names: frozenset[str]
    """Everything that a number may be given for."""

    constants: Mapping[str, int | float]
    """The parameters that are numbers already."""

    texts: Mapping[int, str]
    """Statements by their lines."""

    loc: Loc
    """The function's first line."""

    @property
    def nests(self) -> tuple[Serial, ...]:
        return tuple(x for x in self.traced.computation.items if isinstance(x, Serial))

    @staticmethod
    def name_of(loop: Sym) -> str:
        """The variable of a loop, without the number that tells loops of one name apart."""
        return re.sub(r"_\d+$", "", loop.name)

    def line_of(self, stage: Stage) -> int:
        """The line that says a statement."""
        return self.traced.lines.get(stage, self.loc).line


def functions_in(text: str, path: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a file by name; ``KernelError`` where it is no Python."""
    try:
        tree = ast.parse(text, str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        said = getattr(error, "msg", error)  # a syntax error's text repeats the file and the line
        raise KernelError(path.name, f"it is no Python: {said}", loc=_loc(path, line)) from error
    return {x.name: x for x in tree.body if isinstance(x, ast.FunctionDef)}


def read_program(function: ast.FunctionDef, path: Path, sizes: Mapping[str, int]) -> LoopProgram:
    """What the function computes; ``sizes`` are numbers for parameters and for sizes of arrays."""
    reader = _ProgramReader(function, path, _Uses(function), sizes)
    with reader.at(function):
        types_of = reader.types()
    traced = checked(trace(lambda **given: reader.run(given), function.name, types_of))
    return LoopProgram(
        traced, tuple(reader.passed), tuple(reader.written), reader.values, tuple(sorted(reader.free)),
        frozenset(reader.names), reader.constants, reader.texts, _loc(path, function.lineno, function.name),
    )  # fmt: skip


def _loc(path: Path, line: int, name: str = "") -> Loc:
    return Loc(f"{path.name}:{line}{f' in {name}' if name else ''}", str(path), line)


class _Uses(ast.NodeVisitor):
    """How a function uses names: ``ranks`` of what it subscripts, what is ``stored`` to, which names are ``whole``
    numbers, what each dimension of an array is called, and how often a name is ``assigned``."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.ranks: dict[str, int] = {}
        self.stored: set[str] = set()
        self.whole: set[str] = set()
        self.dims: dict[tuple[str, int], str] = {}
        self.assigned: dict[str, int] = {}
        for x in function.body:
            self.visit(x)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        name, index = subscripted(node)
        if name:
            self.ranks[name] = max(self.ranks.get(name, 0), len(index))
            if isinstance(node.ctx, ast.Store):
                self.stored.add(name)
        for x in index:
            self.numbers(x)
            self.visit(x)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == "range":
            for x in node.args:
                self.numbers(x)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        (target, *_), value = node.targets, node.value
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        if isinstance(value, ast.Attribute) and value.attr == "shape" and isinstance(value.value, ast.Name):
            self.ranks.setdefault(value.value.id, len(names))
            self.dims.update({(value.value.id, k): x.id for k, x in enumerate(names) if isinstance(x, ast.Name)})
        found = sized(value)
        if found and isinstance(target, ast.Name):
            self.ranks.setdefault(found[0], found[1] + 1)
            self.dims[found] = target.id
        self.count(names)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.count([node.target, node.target])  # it has a value before
        self.generic_visit(node)

    def count(self, targets: Sequence[ast.expr]) -> None:
        for x in targets:
            if isinstance(x, ast.Name):
                self.assigned[x.id] = self.assigned.get(x.id, 0) + 1

    def numbers(self, node: ast.expr) -> None:
        """Names outside of subscripts in an index or a range's end."""
        if isinstance(node, ast.Name):
            self.whole.add(node.id)
        elif not isinstance(node, ast.Subscript | ast.Attribute):
            for x in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
                if isinstance(x, ast.expr):
                    self.numbers(x)


def subscripted(node: ast.Subscript) -> tuple[str, list[ast.expr]]:
    """The name and all indices of ``a[i, j]`` or ``a[i][j]``; no name where something else is subscripted."""
    index: list[ast.expr] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Subscript):
        own = inner.slice.elts if isinstance(inner.slice, ast.Tuple) else [inner.slice]
        index = [*own, *index]
        inner = inner.value
    return (inner.id if isinstance(inner, ast.Name) else ""), index


def sized(node: ast.expr) -> tuple[str, int] | None:
    """The array and dimension of ``len(a)``, ``len(a[0])`` and ``a.shape[k]``."""
    match node:
        case ast.Call(func=ast.Name("len"), args=[ast.Subscript() as row]) if subscripted(row)[0]:
            return subscripted(row)[0], len(subscripted(row)[1])
        case ast.Call(func=ast.Name("len"), args=[ast.Name(name)]):
            return name, 0
        case ast.Subscript(value=ast.Attribute(ast.Name(name), "shape"), slice=ast.Constant(int(k))):
            return name, k
    return None


@dataclass
class _ProgramReader:
    """Says a function's statements in the language, one by one."""

    function: ast.FunctionDef
    path: Path
    uses: _Uses
    sizes: Mapping[str, int]
    env: dict[str, Any] = field(default_factory=dict)
    values: dict[Sym, Dim] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    free: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    constants: dict[str, int | float] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    numbers: DType = types.f64

    @contextmanager
    def at(self, node: ast.stmt | ast.expr) -> Iterator[None]:
        """Let errors name the node's line."""
        token = READ.set(_loc(self.path, node.lineno, self.function.name))
        named = TRACED.set(self.function.name)
        try:
            yield
        finally:
            READ.reset(token)
            TRACED.reset(named)

    # --- parameters ---

    def types(self) -> dict[str, Any]:
        """Of arrays and numbers that a call gives; sizes and defaults are known by their names from here on."""
        found: dict[str, Any] = {}
        a = self.function.args
        if a.vararg or a.kwarg or a.posonlyargs or a.kwonlyargs:
            raise refused("a parameter that is not plain", "write def f(a, b, n):")
        defaults = dict(zip([x.arg for x in a.args[::-1]], a.defaults[::-1], strict=False))
        dims = {d for x in a.args for d in re.findall(r"[A-Za-z_]\w*", self.declared(x)[1])}
        for x in a.args:
            dtype, shape = self.declared(x)
            default = defaults.get(x.arg)
            if shape or x.arg in self.uses.ranks:
                is_written = x.arg in self.uses.stored
                self.passed.append(x.arg)
                self.written += [x.arg] if is_written else []
                found[f"{x.arg}_in" if is_written else x.arg] = TensorType(dtype, self.shape(x.arg, shape))
            elif x.arg in self.sizes or isinstance(default, ast.Constant):
                self.number(x.arg, self.sizes.get(x.arg, getattr(default, "value", None)))
            elif x.arg in self.uses.whole or x.arg in dims:
                self.names.add(x.arg)
                self.env[x.arg] = IndexExpr(Sym(x.arg, 1))
                self.free |= {x.arg} - dims
            else:
                self.passed.append(x.arg)
                found[x.arg] = TensorType(dtype, ())
        arrays = [t.dtype for t in found.values() if t.shape]
        self.numbers = arrays[0] if arrays else types.f64
        return found

    def number(self, name: str, value: object) -> None:
        """A parameter that is a number, by a default or by who asks."""
        if not isinstance(value, int | float):
            raise refused(f"the default {value!r} of {name} is no number", "give an array without a default")
        self.names.add(name)
        self.constants[name] = self.env[name] = value

    def declared(self, x: ast.arg) -> tuple[DType, str]:
        """The dtype and the shape's text of a parameter: those of ``"f32[n, 3]"``, else f64 and none."""
        said = x.annotation.value if isinstance(x.annotation, ast.Constant) else None
        if not isinstance(said, str):
            return types.f64, ""
        match = _TYPE.fullmatch(said.replace(" ", ""))
        dtype = getattr(types, match[1], None) if match else None
        if match is None or not isinstance(dtype, DType):
            raise refused(f"the type {said!r} of {x.arg}", 'write a dtype and sizes, as in "f64[n, m]"')
        return dtype, match[2]

    def shape(self, name: str, said: str) -> tuple[Dim, ...]:
        parts = said.split(",") if said else [""] * self.uses.ranks[name]
        return tuple(self.size(part or self.uses.dims.get((name, k), f"{name}_{k}")) for k, part in enumerate(parts))

    def size(self, text: str) -> Dim:
        if text.isdecimal():
            return int(text)
        if not text.isidentifier():
            raise refused(f"the size {text!r} is neither a number nor a name", "name it, and compute with it in ranges")
        self.names.add(text)
        return self.sizes.get(text, Sym(text, 1))

    # --- statements ---

    def run(self, given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        found = tracing("a program")
        found.sizes |= {n for n, v in self.env.items() if isinstance(v, IndexExpr)}
        for name in self.passed:
            self.env[name] = given[name] if name in given else given[f"{name}_in"].copy(name=name)
        for s in self.function.body:
            self.statement(s, found)
        if not self.written:
            with self.at(self.function):
                raise refused("no array is written to", "store to an element of a parameter: a[i] = ...")
        return tuple(self.env[name] for name in self.written)

    def body(self, statements: Sequence[ast.stmt], found: Trace) -> None:
        for s in statements:
            self.statement(s, found)

    def statement(self, s: ast.stmt, found: Trace) -> None:
        self.texts[s.lineno] = _text(s)
        with self.at(s):
            match s:
                case ast.For():
                    self.loop(s, found)
                case ast.Assign(targets=[target]):
                    self.assign(target, s.value, found)
                case ast.AnnAssign(value=ast.expr() as value):
                    self.assign(s.target, value, found)
                case ast.AugAssign():
                    changed = ast.copy_location(ast.BinOp(s.target, s.op, s.value), s)
                    self.store(s.target, self.value(changed), found)
                case ast.If():
                    self.branch(s, found)
                case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
                    pass
                case ast.Return() if s is self.function.body[-1]:
                    pass  # what it returns are arrays that it writes to, which all go out
                case _:
                    raise refused(f"the statement {_text(s)}", "write range loops, assignments and conditions")

    def loop(self, s: ast.For, found: Trace) -> None:
        if s.orelse or not isinstance(s.target, ast.Name):
            raise refused(f"the loop {_text(s)}", "write for i in range(first, end):")
        match s.iter:
            case ast.Call(func=ast.Name("range"), args=[*args], keywords=[]) if 1 <= len(args) <= 3:
                ends = [self.whole(x) for x in args]
            case _:
                raise refused(f"a loop over {_text(s.iter)}", "write for i in range(first, end):")
        step = ends[2] if len(ends) == 3 else 1
        if not isinstance(step, int):
            raise refused(f"the step {_text(args[2])} is no number", "write it as one, or give it by --size")
        before = self.env.get(s.target.id)
        first, end = (0, ends[0]) if len(ends) == 1 else ends[:2]
        for i in loop(first, end, step, name=s.target.id):
            self.values[found.loops[-1].sym] = dim_of(i)
            self.env[s.target.id] = i
            self.body(s.body, found)
        if before is None:
            del self.env[s.target.id]
        else:
            self.env[s.target.id] = before

    def assign(self, target: ast.expr, value: ast.expr, found: Trace) -> None:
        shape = value if isinstance(value, ast.Attribute) and value.attr == "shape" else None
        if isinstance(target, ast.Tuple):
            if shape is None:
                raise refused(f"{_text(target)} at once", "assign one name at a time")
            sizes = self.array(ast.unparse(shape.value)).shape
            if len(sizes) != len(target.elts):
                raise refused(f"{_text(shape)} has {len(sizes)} sizes")
            for x, n in zip(target.elts, sizes, strict=True):
                self.keep(x, n, found)
        else:
            self.keep(target, self.value(value), found)

    def keep(self, target: ast.expr, value: Any, found: Trace) -> None:
        """A size has another name from here on; what may change is an element of its own."""
        is_once = isinstance(target, ast.Name) and self.uses.assigned.get(target.id) == 1
        if isinstance(target, ast.Name) and is_once and not isinstance(value, Element):
            self.env[target.id] = value
        else:
            self.store(target, value, found)

    def store(self, target: ast.expr, value: Any, found: Trace) -> None:
        if isinstance(target, ast.Name):
            if not isinstance(self.env.get(target.id), Tensor):
                dtype = value.dtype if isinstance(value, Element) else self.numbers
                self.env[target.id] = Tensor(found.temp(target.id, dtype, ()), is_given=False)
            self.env[target.id][()] = value
        elif isinstance(target, ast.Subscript):
            array, index = self.element(target)
            array[index] = value
        else:
            raise refused(f"a store to {_text(target)}", "store to an element: a[i, j] = ...")

    def branch(self, s: ast.If, found: Trace) -> None:
        condition = self.value(s.test)
        if isinstance(condition, bool):
            self.body(s.body if condition else s.orelse, found)
            return
        if s.orelse:
            # The body may change what the condition reads, and the other branch asks it as it was.
            kept = Tensor(found.temp("condition", types.bool_, ()), is_given=False)
            kept[()] = Element(checked_condition(condition))
            condition = kept[()]
        with when(condition):
            self.body(s.body, found)
        if s.orelse:
            with when(~kept[()]):
                self.body(s.orelse, found)

    # --- expressions ---

    def whole(self, node: ast.expr) -> Any:
        """An index or a size."""
        value = self.value(node)
        if not isinstance(value, int | IndexExpr) or isinstance(value, bool):
            raise refused(f"{_text(node)} is no sum of loops and sizes", "data can't decide a range; clamp an index")
        return value

    def index(self, nodes: Sequence[ast.expr]) -> tuple[Any, ...]:
        if any(isinstance(x, ast.Slice) for x in nodes):
            raise refused("a slice", "write a loop over the elements")
        return tuple(self.value(x) for x in nodes)

    def element(self, node: ast.Subscript) -> tuple[Tensor, tuple[Any, ...]]:
        """The array of ``a[i, j]`` or ``a[i][j]``, and the place in it."""
        name, index = subscripted(node)
        return self.array(name or _text(node)), self.index(index)

    def array(self, name: str) -> Tensor:
        found = self.env.get(name)
        if not isinstance(found, Tensor):
            raise refused(f"{name} is no array", "arrays are parameters of the function")
        return found

    def name(self, name: str) -> Any:
        if name not in self.env:
            raise refused(f"{name} has no value here", "parameters, loops around it and names assigned before have one")
        found = self.env[name]
        return found[()] if isinstance(found, Tensor) and not found.buffer.shape else found

    def value(self, node: ast.expr) -> Any:
        """A number, an ``IndexExpr`` or an ``Element``."""
        with self.at(node):
            if (dimension := sized(node)) is not None:
                (name, k), shape = dimension, self.array(dimension[0]).shape
                if not -len(shape) <= k < len(shape):
                    raise refused(f"{name} has {len(shape)} dimensions, and no size {k}", f'write {name}: "f64[n, m]"')
                return shape[k]
            match node:
                case ast.Constant(value=int() | float() as number):
                    return number
                case ast.Name(id=name):
                    return self.name(name)
                case ast.Attribute(value=ast.Name(id=library), attr=name) if library in _LIBRARIES:
                    if name in _CONSTANTS:
                        return _CONSTANTS[name]
                case ast.Subscript():
                    array, index = self.element(node)
                    return array[index]
                case ast.UnaryOp(op=ast.Not(), operand=x):
                    return ~Element(checked_condition(self.value(x)))
                case ast.UnaryOp(op=op, operand=x):
                    return _UNARY[type(op)](self.value(x))
                case ast.BinOp(left=a, op=binary, right=b) if type(binary) in _BINARY:
                    return _divided(self.value(a), self.value(b), binary, self.numbers)
                case ast.Compare():
                    return self.compared(node)
                case ast.BoolOp(op=op, values=parts):
                    join = operator.and_ if isinstance(op, ast.And) else operator.or_
                    return reduce(join, [self.value(x) for x in parts])
                case ast.IfExp(test=test, body=a, orelse=b):
                    condition = self.value(test)
                    if isinstance(condition, bool):
                        return self.value(a if condition else b)
                    return where(condition, self.value(a), self.value(b))
                case ast.Call():
                    return self.call(node)
            raise refused(f"the expression {_text(node)}", "write arithmetic on elements, indices and numbers")

    def compared(self, node: ast.Compare) -> Any:
        sides = [self.value(x) for x in (node.left, *node.comparators)]
        if any(type(op) not in _COMPARED for op in node.ops):
            raise refused(f"the comparison {_text(node)}", "write <, <=, >, >=, == or !=")
        each = zip(node.ops, sides, sides[1:], strict=False)
        return reduce(operator.and_, [_COMPARED[type(op)](a, b) for op, a, b in each])

    def call(self, node: ast.Call) -> Any:
        match node.func:
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="math" | "np" | "numpy"), attr=name):
                args = [self.value(x) for x in node.args]
            case _:
                name, args = "", []
        name = {"minimum": "min", "maximum": "max", "fabs": "abs"}.get(name, name)
        if name in ("min", "max") and len(args) > 1:
            return reduce(minimum_of if name == "min" else maximum_of, args)
        if len(args) == 1 and name == "abs":
            return abs(args[0])
        if len(args) == 1 and name in ("float", "int"):
            return element(args[0]).cast(self.numbers if name == "float" else types.i64)
        if len(args) == 1 and name in _ELEMENTARY:
            return _ELEMENTARY[name](args[0] if isinstance(args[0], Element) else element(args[0], self.numbers))
        known = ", ".join(["min", "max", "abs", "float", "int", *_ELEMENTARY])
        raise refused(f"the call {_text(node)}", f"there are {known}, by themselves and of math and numpy")


def _divided(a: Any, b: Any, op: ast.operator, numbers: DType) -> Any:
    """Python's operator; ``/`` of two whole numbers is one of floats, as in Python."""
    if isinstance(op, ast.Div) and isinstance(a, IndexExpr) and not isinstance(b, Element):
        a = element(a).cast(numbers)
    return _BINARY[type(op)](a, b)


def _text(node: ast.AST) -> str:
    """The first line of what the user wrote."""
    return ast.unparse(node).split("\n")[0][:80]
