"""The graph IR's text form: prints exactly, parses back exactly, says where a text is wrong.

In: a graph, or its text. Out: the other. Constants up to ``INLINE_BYTES`` stand in the text; larger ones go to a side
table by name, an ``.npz`` file in a dump folder. Not its business: the tile IR's text.

Grammar (one statement a line; names are Python identifiers, strings are JSON)::

    graph      := graph STRING {  statement*  }
    statement  := symbol NAME [STRING]: [INT]..[INT]      a dimension's bounds; STRING where its name is no identifier
                | require DIM                             callers keep DIM >= 0
                | %INT = input STRING : type [loc]
                | %INT = const data [loc]
                | %INT = NAME(%INT, ...) [{NAME = value, ...}] : type, ... [loc]
                | return STRING: %INT, ...
    type       := DTYPE[DIM, ...]
    data       := DTYPE[INT, ...] ( (number, ...) | hex STRING | file NAME )
    loc        := loc(STRING[, STRING, INT])
    value      := by the attribute's kind; a sub-graph is a graph; attributes at their defaults are left out
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.core.diag import UNKNOWN, Loc, ParseError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, substitute, symbol_order, symbols, to_text
from tilewright.core.graph import CONST, INPUT, Data, Graph, Node
from tilewright.core.opdef import REQUIRED, AttrDef, AttrKind, OpDef
from tilewright.core.stored import read_arrays
from tilewright.core.text_parser import Parser
from tilewright.core.types import Array, TensorType, dtype_of
from tilewright.runtime.files import replacing, write_text

INLINE_BYTES = 256
REMEDY = "give a graph's text, as `tilewright ir MODEL -o FILE.txt` writes it"


class SideTable:
    """Constants of more than ``inline_bytes`` by name; one array has one name however often it is printed."""

    def __init__(self, inline_bytes: int = INLINE_BYTES) -> None:
        self.inline_bytes = inline_bytes
        self.arrays: dict[str, Array] = {}
        self._names: dict[int, str] = {}

    def name_of(self, data: Data) -> str:
        name = self._names.get(id(data.array))
        if name is None:
            name = self._names[id(data.array)] = f"c{len(self.arrays)}"
            self.arrays[name] = data.array
        return name

    def save(self, path: Path) -> None:
        """Write the bytes of every array; dtypes and shapes are in the texts."""
        raw: dict[str, Any] = {k: np.frombuffer(a.tobytes(), np.uint8) for k, a in self.arrays.items()}
        with replacing(path) as file:
            np.savez(file, **raw)


def print_graph(graph: Graph, table: SideTable | None = None) -> str:
    """The text of ``graph``; without a ``table`` large constants are named but not kept."""
    lines: list[str] = []
    _Printer(SideTable() if table is None else table, lines, 0, {}, set()).graph(graph)
    return "\n".join(lines) + "\n"


def parse_graph(text: str, ops: Callable[[str], OpDef], table: Mapping[str, Array] | None = None) -> Graph:
    """Read a graph in a pool of its own. ``ops`` finds an op by its name, with ``KeyError`` when there is none.

    Raises ``ParseError`` with the line and what was expected, and ``CompileError`` where operands break an op's rule.
    """
    parser = Parser(text, ops, table or {})
    graph = parser.graph({})
    parser.end()
    return graph


class DumpFolder:
    """A folder of graphs, one text each, that share ``constants.npz``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = SideTable()
        path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, graph: Graph, notes: Sequence[str] = ()) -> None:
        """Write ``name.tw.txt``; ``notes`` follow as comments."""
        n_before = len(self.table.arrays)
        text = print_graph(graph, self.table) + "".join(f"# {note}\n" for note in notes)
        write_text(self.path / f"{name}.tw.txt", text)
        if len(self.table.arrays) != n_before:
            self.table.save(self.path / "constants.npz")


def save_graph(graph: Graph, path: Path) -> None:
    """Write the text of a graph to ``path``, and its large constants, if any, beside it with the suffix ``.npz``."""
    table = SideTable()
    write_text(path, print_graph(graph, table))
    if table.arrays:
        table.save(path.with_suffix(".npz"))


def load_graph(path: Path, ops: Callable[[str], OpDef]) -> Graph:
    """Read a graph that :func:`save_graph` or a :class:`DumpFolder` wrote, edited or not.

    Raises :class:`ParseError`, which names the file, where it or the file of its constants can't be read.
    """
    own, shared = path.with_suffix(".npz"), path.parent / "constants.npz"
    try:
        table = _constants(own if own.exists() else shared)
        return parse_graph(path.read_text(encoding="utf-8"), ops, table)
    except OSError as e:
        raise ParseError(f"{path} can't be read: {e.strerror}", remedy="check the path") from e
    except UnicodeDecodeError as e:
        raise ParseError(f"{path} is not text", remedy=REMEDY) from e
    except ParseError as e:
        raise ParseError(f"{path}: {e.message}", remedy=e.remedy or REMEDY) from e


def _constants(path: Path) -> dict[str, Array]:
    """The arrays of a side table's file; none where there is no file."""
    if not path.exists():
        return {}
    try:
        found = read_arrays(path)
    except (OSError, ValueError) as e:
        raise ParseError(f"the constants in {path.name} can't be read: {e}") from e
    if isinstance(found, dict):
        return found
    raise ParseError(f"{path.name} has an array without a name, and no constants")


class _Printer:
    """Appends a graph's lines; ``aliases`` map symbols whose names can't be printed to ones that can."""

    def __init__(
        self, table: SideTable, lines: list[str], depth: int, aliases: dict[Sym, Dim], taken: set[str]
    ) -> None:
        self.table, self.lines, self.depth, self.aliases, self.taken = table, lines, depth, aliases, taken
        self.known: set[Sym] = set()
        self.numbers: dict[Node, int] = {}

    def graph(self, graph: Graph, prefix: str = "", suffix: str = "") -> None:
        self.line(f"{prefix}graph {json.dumps(graph.name)} {{")
        self.depth += 1
        nodes = [*graph.inputs, *(n for n in graph.nodes() if n.op is not INPUT)]
        for n in nodes:
            self.numbers[n] = len(self.numbers)
        self.symbols(graph, nodes)
        for c in graph.constraints:
            self.line(f"require {self.dim(c)}")
        for n in nodes:
            self.node(n)
        for text in graph.checks:
            self.line(f"check {json.dumps(text)}")
        outputs = zip(graph.output_names, graph.outputs, strict=True)
        self.line("return " + ", ".join(f"{json.dumps(name)}: {self.ref(n)}" for name, n in outputs))
        self.depth -= 1
        self.line("}" + suffix)

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def ref(self, node: Node) -> str:
        return f"%{self.numbers[node]}"

    def symbols(self, graph: Graph, nodes: Sequence[Node]) -> None:
        found: dict[Sym, None] = {}
        for n in nodes:
            dims = [d for t in n.types for d in t.shape]
            dims += [d for v in n.attrs.values() for d in _dims_of(v)]
            for d in dims:
                if not is_known(d):
                    found.update(dict.fromkeys(sorted(symbols(d), key=symbol_order)))
        for c in graph.constraints:
            found.update(dict.fromkeys(sorted(symbols(c), key=symbol_order)))
        for s in found:
            if s in self.aliases:
                continue
            alias = self.alias(s.name)
            self.taken.add(alias)
            self.aliases[s] = s if alias == s.name else Sym(alias, s.lo, s.hi)
            shown = alias if alias == s.name else f"{alias} {json.dumps(s.name)}"
            self.line(f"symbol {shown}: {'' if s.lo is None else s.lo}..{'' if s.hi is None else s.hi}")

    def alias(self, name: str) -> str:
        base = name if name.isidentifier() and name.isascii() and name not in ("min", "max") else "s"
        alias, n = base, 1
        while alias in self.taken:
            alias, n = f"{base}_{n}", n + 1
        return alias

    def dim(self, d: Dim) -> str:
        return str(d) if is_known(d) else to_text(substitute(d, self.aliases))

    def type(self, t: TensorType) -> str:
        return f"{t.dtype.name}[{', '.join(map(self.dim, t.shape))}]"

    def node(self, n: Node) -> None:
        head, loc = f"{self.ref(n)} = ", _loc_text(n.loc)
        if n.op is INPUT:
            self.line(f"{head}input {json.dumps(n.attrs['name'])} : {self.type(n.type)}{loc}")
            return
        if n.op is CONST:
            self.line(f"{head}const {self.data(n.attrs['data'])}{loc}")
            return
        call = f"{head}{n.op.name}({', '.join(map(self.ref, n.inputs))})"
        tail = f" : {', '.join(map(self.type, n.types))}{loc}"
        shown = {k: v for k, v in n.attrs.items() if not _is_default(n.op.attrs[k], v)}
        graphs = [k for k in shown if isinstance(shown[k], Graph)]
        plain = ", ".join(f"{k} = {self.value(n.op.attrs[k].kind, v)}" for k, v in shown.items() if k not in graphs)
        if not graphs:
            self.line(f"{call}{f' {{{plain}}}' if plain else ''}{tail}")
            return
        self.line(f"{call} {{{plain + ',' if plain else ''}")
        for k in graphs:
            inner = _Printer(self.table, self.lines, self.depth + 1, dict(self.aliases), set(self.taken))
            inner.graph(shown[k], f"{k} = ", "" if k == graphs[-1] else ",")
        self.line(f"}}{tail}")

    def value(self, kind: AttrKind, v: Any) -> str:
        match kind:
            case "int" | "dim":
                return self.dim(v)
            case "ints" | "dims":
                return f"[{', '.join(map(self.dim, v))}]"
            case "float":
                return repr(v)
            case "floats":
                return f"[{', '.join(map(repr, v))}]"
            case "bool":
                return "true" if v else "false"
            case "str":
                return json.dumps(v)
            case "strs":
                return f"[{', '.join(map(json.dumps, v))}]"
            case "dtype":
                return str(v.name)
            case "pads":
                return f"[{', '.join(f'({self.dim(lo)}, {self.dim(hi)})' for lo, hi in v)}]"
        assert kind == "data"
        return self.data(v)

    def data(self, data: Data) -> str:
        a = data.array
        dtype = dtype_of(a.dtype)
        head = f"{dtype.name}[{', '.join(map(str, a.shape))}]"
        if a.nbytes > self.table.inline_bytes:
            return f"{head} file {self.table.name_of(data)}"
        if dtype.is_narrow:
            return f"{head} hex {json.dumps(a.tobytes().hex())}"
        if dtype.is_float:
            values = a.astype(np.float64).reshape(-1)
            if np.isnan(values).any():  # NaNs differ in their bits
                return f"{head} hex {json.dumps(a.tobytes().hex())}"
            return f"{head} ({', '.join(repr(float(x)) for x in values)})"
        return f"{head} ({', '.join(str(int(x)) for x in a.reshape(-1))})"


def _dims_of(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [d for v in value for d in _dims_of(v)]
    return [value] if isinstance(value, Sym) or hasattr(value, "terms") else []


def _is_default(definition: AttrDef, value: Any) -> bool:
    """Does leaving the attribute out give this very value back? (0.0 and -0.0, 1 and True are different values.)"""
    return definition.default is not REQUIRED and repr(value) == repr(definition.default)


def _loc_text(loc: Loc) -> str:
    if loc is UNKNOWN:
        return ""
    place = f", {json.dumps(loc.file)}, {loc.line}" if loc.file or loc.line else ""
    return f" loc({json.dumps(loc.text)}{place})"
