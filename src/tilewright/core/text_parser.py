"""The reader of the graph IR's text form; its grammar stands in ``core.text``.

In: text, a finder of ops by name and a table of large constants. Out: a graph in a new pool, or a ``ParseError`` that
names the line and what was expected there. Not its business: whether the graph is a good one (``core.verify``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeVar

import numpy as np

from tilewright.core.diag import UNKNOWN, Loc, ParseError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Expr, Sym, parse
from tilewright.core.graph import PROJ, Data, Graph, Node, Pool
from tilewright.core.opdef import AttrKind, OpDef
from tilewright.core.types import Array, DType, TensorType, dtype_named

T = TypeVar("T")

_SKIP = re.compile(r"(?:\s+|#[^\n]*)*")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INT = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"-?(?:inf|nan|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)")
_NODE = re.compile(r"%([0-9]+)")
_SHOWN = 30  # characters of the text that an error quotes


class Parser:
    """A cursor over the text; each method reads one thing of the grammar."""

    def __init__(self, text: str, ops: Callable[[str], OpDef], table: Mapping[str, Array]) -> None:
        self.text, self.ops, self.table = text, ops, table
        self.at = 0

    # --- tokens

    def skip(self) -> None:
        found = _SKIP.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def fail(self, expected: str) -> ParseError:
        line = self.text.count("\n", 0, self.at) + 1
        rest = self.text[self.at : self.at + _SHOWN].split("\n")[0]
        return ParseError(
            f"line {line}: expected {expected}, found {rest!r}" if rest else f"line {line}: expected {expected}"
        )

    def take(self, pattern: re.Pattern[str], expected: str) -> str:
        self.skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.fail(expected)
        self.at = found.end()
        return found[0]

    def peek(self, literal: str) -> bool:
        self.skip()
        return self.text.startswith(literal, self.at)

    def accept(self, literal: str) -> bool:
        if not self.peek(literal):
            return False
        self.at += len(literal)
        return True

    def expect(self, literal: str) -> None:
        if not self.accept(literal):
            raise self.fail(repr(literal))

    def word(self, literal: str) -> bool:
        """Read ``literal`` if the next name is it."""
        self.skip()
        found = _NAME.match(self.text, self.at)
        if found is None or found[0] != literal:
            return False
        self.at = found.end()
        return True

    def string(self) -> str:
        start = self.at
        text = self.take(_STRING, "a string")
        try:
            return str(json.loads(text))
        except json.JSONDecodeError:
            self.at = start
            raise self.fail("a JSON string") from None

    def end(self) -> None:
        self.skip()
        if self.at != len(self.text):
            raise self.fail("the end of the text")

    def listed(self, opening: str, item: Callable[[], T], closing: str) -> tuple[T, ...]:
        self.expect(opening)
        items: list[T] = []
        while not self.accept(closing):
            if items and not self.accept(","):
                raise self.fail(f"',' or {closing!r}")
            items.append(item())
        return tuple(items)

    # --- dimensions, types, data

    def dim(self, names: Mapping[str, Sym]) -> Dim:
        """An integer expression: everything up to the comma or bracket that ends it."""
        self.skip()
        start, depth = self.at, 0
        while self.at < len(self.text):
            c = self.text[self.at]
            if depth == 0 and c in ",])}{\n":
                break
            depth += (c in "([") - (c in ")]")
            self.at += 1
        source = self.text[start : self.at]
        try:
            return parse(source, names.__getitem__)
        except KeyError as e:
            self.at = start
            raise self.fail(f"a declared symbol instead of {e.args[0]!r}") from None
        except ValueError:
            self.at = start
            raise self.fail("a dimension") from None

    def dtype(self) -> DType:
        self.skip()
        start = self.at
        try:
            return dtype_named(self.take(_NAME, "a dtype"))
        except KeyError:
            self.at = start
            raise self.fail("a dtype") from None

    def type(self, names: Mapping[str, Sym]) -> TensorType:
        return TensorType(self.dtype(), self.listed("[", lambda: self.dim(names), "]"))

    def integer(self) -> int:
        return int(self.take(_INT, "an integer"))

    def number(self) -> float:
        return float(self.take(_NUMBER, "a number"))

    def boolean(self) -> bool:
        if self.word("true"):
            return True
        if self.word("false"):
            return False
        raise self.fail("true or false")

    def data(self) -> Data:
        dtype = self.dtype()
        start = self.at
        shape = self.listed("[", self.integer, "]")
        if min(shape, default=0) < 0:
            self.at = start
            raise self.fail("sizes of 0 or more")
        n = prod(shape)
        start = self.at
        if self.word("file"):
            return Data(self.stored(dtype, shape, n))
        if self.word("hex"):
            try:
                raw = bytes.fromhex(self.string())
            except ValueError:
                # Too few for any shape but an empty one, of which nothing is read.
                raw = b""
            if len(raw) != n * dtype.n_bytes:
                self.at = start
                raise self.fail(f"{n * dtype.n_bytes} bytes in hexadecimal")
            return Data(np.frombuffer(raw, dtype.numpy).reshape(shape))
        values: tuple[float, ...] | tuple[int, ...]
        values = self.listed("(", self.number, ")") if dtype.is_float else self.listed("(", self.integer, ")")
        if len(values) != n:
            self.at = start
            raise self.fail(f"{n} numbers instead of {len(values)}")
        try:
            # Python's integers have no largest one: NumPy's refusal of one that does not fit is the check.
            wide = np.array(values, np.float64) if dtype.is_float else np.array(values, object)
            return Data(wide.astype(dtype.numpy).reshape(shape))
        except OverflowError:
            self.at = start
            raise self.fail(f"numbers that {dtype.name} holds") from None

    def stored(self, dtype: DType, shape: tuple[int, ...], n: int) -> Array:
        start = self.at
        name = self.take(_NAME, "a constant's name")
        raw = self.table.get(name)
        if raw is None:
            self.at = start
            raise self.fail(f"a constant of the side table, which has no {name}")
        if raw.nbytes != n * dtype.n_bytes:
            self.at = start
            raise self.fail(f"a constant of {n * dtype.n_bytes} bytes ({name} has {raw.nbytes})")
        return np.frombuffer(raw.tobytes(), dtype.numpy).reshape(shape)

    def loc(self) -> Loc:
        if not self.word("loc"):
            return UNKNOWN
        self.expect("(")
        text = self.string()
        file, line = "", 0
        if self.accept(","):
            file = self.string()
            self.expect(",")
            line = self.integer()
        self.expect(")")
        return Loc(text, file, line)

    # --- graphs

    def graph(self, outer: Mapping[str, Sym]) -> Graph:
        if not self.word("graph"):
            raise self.fail("'graph'")
        return _GraphReader(self, self.string(), outer).read()


class _GraphReader:
    """Reads one graph's statements."""

    def __init__(self, parser: Parser, name: str, outer: Mapping[str, Sym]) -> None:
        self.p, self.name = parser, name
        self.names: dict[str, Sym] = dict(outer)
        self.pool = Pool()
        self.nodes: dict[int, Node] = {}
        self.inputs: list[Node] = []
        self.constraints: list[Expr] = []
        self.checks: list[str] = []

    def read(self) -> Graph:
        p = self.p
        p.expect("{")
        while True:
            if p.word("symbol"):
                self.symbol()
            elif p.word("require"):
                self.constraint()
            elif p.word("check"):
                self.checks.append(p.string())
            elif p.word("return"):
                break
            else:
                self.node()
        # All nodes are known by now, so that a result may name any of them.
        names: list[str] = []
        outputs: list[Node] = []
        while not p.accept("}"):
            if names:
                p.expect(",")
            names.append(p.string())
            p.expect(":")
            outputs.append(self.ref())
        return Graph(
            self.name, self.pool, tuple(self.inputs), tuple(outputs), tuple(names), tuple(self.constraints),
            tuple(self.checks),
        )  # fmt: skip

    def symbol(self) -> None:
        p = self.p
        alias = p.take(_NAME, "a symbol's name")
        name = alias if p.peek(":") else p.string()
        p.expect(":")
        lo = None if p.peek("..") else p.integer()
        p.expect("..")
        bound = re.compile(r"[ \t]*(-?[0-9]+)").match(p.text, p.at)
        if bound:
            p.at = bound.end()
        self.names[alias] = Sym(name, lo, int(bound[1]) if bound else None)

    def constraint(self) -> None:
        start = self.p.at
        d = self.p.dim(self.names)
        if is_known(d):
            self.p.at = start
            raise self.p.fail("an expression with a symbol")
        self.constraints.append(d)

    def ref(self) -> Node:
        start = self.p.at
        number = int(self.p.take(_NODE, "a node such as %0, a statement or 'return'")[1:])
        if number not in self.nodes:
            self.p.at = start
            self.p.skip()
            raise self.p.fail(f"a node that is already defined; %{number} is not")
        return self.nodes[number]

    def node(self) -> None:
        p = self.p
        number = int(p.take(_NODE, "a statement: symbol, require, %n = ..., or return")[1:])
        p.expect("=")
        if p.word("input"):
            name = p.string()
            p.expect(":")
            made = self.pool.input(name, p.type(self.names), p.loc())
            self.inputs.append(made)
        elif p.word("const"):
            data = p.data()
            made = self.pool.const(data.array, loc=p.loc())
        else:
            made = self.call()
        self.nodes[number] = made

    def call(self) -> Node:
        p = self.p
        p.skip()
        start = p.at
        name = p.take(_NAME, "an op's name")
        try:
            op = PROJ if name == PROJ.name else p.ops(name)
        except KeyError:
            p.at = start
            raise p.fail("an op's name") from None
        inputs = p.listed("(", self.ref, ")")
        attrs = dict(p.listed("{", lambda: self.attribute(op), "}")) if p.peek("{") else {}
        p.expect(":")
        p.skip()
        types_at = p.at
        types = [p.type(self.names)]
        while p.accept(","):
            types.append(p.type(self.names))
        made = self.pool.add(op, inputs, attrs, p.loc())
        if made.types != tuple(types):
            p.at = types_at
            raise p.fail(", ".join(map(str, made.types)))
        return made

    def attribute(self, op: OpDef) -> tuple[str, Any]:
        p = self.p
        p.skip()
        start = p.at
        name = p.take(_NAME, "an attribute's name")
        if name not in op.attrs:
            p.at = start
            raise p.fail(f"an attribute of {op.name}: {', '.join(op.attrs) or 'it has none'}")
        p.expect("=")
        return name, self.value(op.attrs[name].kind)

    def value(self, kind: AttrKind) -> Any:
        p = self.p
        readers: dict[AttrKind, Callable[[], Any]] = {
            "int": p.integer,
            "dim": self.dim,
            "float": p.number,
            "bool": p.boolean,
            "str": p.string,
            "dtype": p.dtype,
            "data": p.data,
            "graph": lambda: p.graph(self.names),
            "pads": lambda: p.listed("[", self.pair, "]"),
            "ints": lambda: p.listed("[", p.integer, "]"),
            "dims": lambda: p.listed("[", self.dim, "]"),
            "floats": lambda: p.listed("[", p.number, "]"),
            "strs": lambda: p.listed("[", p.string, "]"),
        }
        return readers[kind]()

    def dim(self) -> Dim:
        return self.p.dim(self.names)

    def pair(self) -> tuple[Dim, Dim]:
        self.p.expect("(")
        lo = self.dim()
        self.p.expect(",")
        hi = self.dim()
        self.p.expect(")")
        return lo, hi
