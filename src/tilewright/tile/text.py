"""A kernel's text form: printed, read back to an equal kernel, edited by hand and resumed.

In: a ``Kernel``, or text. Out: text, or a ``Kernel``; ``TileTextError`` names the line that can't be read.
Not its business: checking what was read (``tile.verify``).

Form (one statement a line, two spaces a level)::

    kernel gemm
      lanes 64
      size M[0:]
      place A: f32[M, 8] global in
      pack B_p[g0[0:1], g1[0:7]] = B: f32[8, 2] at [g1, g0]
      note C: a rule did not fit
      body
        for i[0:] < M serial
          T[i, 0] = 0.0:f32
          T[i, 0] max= fma(A[i, 0], 1.0:f32, 2.0:f32)
          fold(m, a)[i] = (%m:f32, %a:i64; %v:f32, %k:i64 -> max(%m:f32, %v:f32), ...) <- A[i, 0], index(i)
          if inside(i - 1)
            prefetch A[i + 1, 0]
          barrier
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import TypeVar

import numpy as np

from tilewright.core.compute import Buffer, Combiner, IndexLike, Load, Param, Value, index_text, value_text
from tilewright.core.compute import walk as walk_value
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Sym, parse, to_text
from tilewright.core.indices import is_chosen
from tilewright.core.types import Array, dtype_named
from tilewright.target.matrices import WARP
from tilewright.tile.errors import TileTextError
from tilewright.tile.ir import (
    Barrier,
    Commit,
    Fold,
    For,
    If,
    Kernel,
    Kind,
    Loop,
    Packed,
    Place,
    Prefetch,
    Role,
    Space,
    Stmt,
    Store,
    Update,
)
from tilewright.tile.rewrite import Body
from tilewright.tile.value_text import ValueReader, Words

_E = TypeVar("_E", bound=Enum)

# --- printing -------------------------------------------------------------------------------------------------------


def kernel_text(kernel: Kernel) -> str:
    """The whole kernel; :func:`parse_kernel` reads it back."""
    lines = [f"kernel {kernel.name}"]
    lines += [] if kernel.lanes == WARP else [f"  lanes {kernel.lanes}"]
    lines += [f"  size {_sym_text(s)}" for s in kernel.sizes]
    lines += [f"  place {_place_text(p)}" for p in kernel.places]
    lines += [f"  pack {_packed_text(p)}" for p in kernel.packed]
    lines += [f"  note {' '.join(n.split())}" for n in kernel.notes]
    lines.append("  body")
    lines += [f"    {line}" for line in _body_lines(kernel.body)]
    return "\n".join(lines) + "\n"


def body_text(body: Body) -> str:
    """The loops and statements alone, without the places of buffers: for people."""
    return "\n".join(_body_lines(body))


def _sym_text(s: Sym) -> str:
    return f"{s.name}[{'' if s.lo is None else s.lo}:{'' if s.hi is None else s.hi}]"


def _buffer_text(b: Buffer) -> str:
    return f"{_name(b.name)}: {b.dtype}[{', '.join(to_text(d) for d in b.shape)}]"


def _name(name: str) -> str:
    """A buffer's name, quoted unless it is a plain word."""
    return name if re.fullmatch(r"[A-Za-z_][\w.]*", name) else "'" + name.replace("\\", r"\\").replace("'", r"\'") + "'"


def _place_text(p: Place) -> str:
    text = f"{_buffer_text(p.buffer)} {p.space.value} {p.role.value}{f' ahead {p.ahead}' if p.ahead else ''}"
    text += " swizzled" if p.swizzled else ""
    if p.table is None:
        return text
    numbers = ", ".join(repr(x.item()) for x in np.asarray(p.table).reshape(-1))
    return f"{text} = [{numbers}]"


def _packed_text(p: Packed) -> str:
    grid = ", ".join(_sym_text(s) for s in p.grid)
    return f"{_name(p.param.name)}[{grid}] = {_buffer_text(p.source)} at [{', '.join(to_text(i) for i in p.index)}]"


def _body_lines(body: Body) -> Iterator[str]:
    for s in body:
        yield _stmt_text(s)
        if isinstance(s, For | If):
            yield from (f"  {line}" for line in _body_lines(s.body))


def _stmt_text(s: Stmt) -> str:
    match s:
        case For():
            return f"for {_sym_text(s.loop.sym)} < {to_text(s.loop.extent)} {s.loop.kind.value}"
        case If():
            return f"if {_value(s.cond)}"
        case Store():
            return f"{_access(s.buffer, s.index)} = {_value(s.value)}"
        case Update():
            return f"{_access(s.buffer, s.index)} {s.op}= {_value(s.value)}"
        case Prefetch():
            return f"prefetch {_access(s.buffer, s.index)}"
        case Fold():
            return _fold_text(s)
        case Barrier():
            return f"barrier{'' if s.pending is None else f' {s.pending}'}{' running' if s.running else ''}"
        case Commit():
            return "commit"


def _fold_text(s: Fold) -> str:
    c = s.combiner
    params = "; ".join(", ".join(_value(p) for p in group) for group in (c.state, c.value))
    results = ", ".join(_value(r) for r in c.result)
    order = "" if c.is_commutative else " ordered"
    at = ", ".join(_index(i) for i in s.index)
    buffers = ", ".join(_name(b.name) for b in s.buffers)
    return f"fold({buffers})[{at}] = ({params} -> {results}){order} <- {', '.join(_value(v) for v in s.values)}"


def _access(b: Buffer, index: tuple[IndexLike, ...]) -> str:
    return f"{_name(b.name)}[{', '.join(_index(i) for i in index)}]"


def _index(i: IndexLike) -> str:
    return f"@{_value(i)}" if is_chosen(i) else index_text(i)


def _value(v: Value) -> str:
    """``core``'s exact form, with names of buffers quoted where they are not plain words."""
    text = value_text(v)
    odd = {x.buffer.name for x in walk_value(v) if isinstance(x, Load) and _name(x.buffer.name) != x.buffer.name}
    for name in sorted(odd, key=lambda name: (-len(name), name)):
        text = text.replace(f"{name}[", f"{_name(name)}[")
    return text


# --- reading --------------------------------------------------------------------------------------------------------


def parse_kernel(text: str) -> Kernel:
    """Read :func:`kernel_text`'s form. Raises ``TileTextError`` with the line's number and content."""
    return _KernelReader(text).kernel()


class _KernelReader:
    """Reads line by line; symbols and buffers are known once they were introduced."""

    def __init__(self, text: str) -> None:
        self.lines = [(n, x) for n, x in enumerate(text.split("\n"), 1) if x.strip()]
        self.at = 0
        self.syms: dict[str, Sym] = {}
        self.buffers: dict[str, Buffer] = {}

    def kernel(self) -> Kernel:
        name = self._keyword(0, "kernel")
        sizes: list[Sym] = []
        places: list[Place] = []
        packed: list[Packed] = []
        notes: list[str] = []
        lanes = WARP
        while True:
            line = self._here(1)
            if line is None:
                raise self._error("the body is missing")
            word, _, rest = line.partition(" ")
            self.at += 1
            if word == "body":
                break
            if word == "lanes":
                lanes = self._lanes(rest)
            else:
                self._header(word, rest, sizes, places, packed, notes)
        body = self._body(2)
        if self.at < len(self.lines):
            raise self._error("a line outside of the body")
        return Kernel(name, tuple(places), tuple(sizes), body, tuple(packed), tuple(notes), lanes)

    def _header(
        self, word: str, rest: str, sizes: list[Sym], places: list[Place], packed: list[Packed], notes: list[str]
    ) -> None:
        words = Words(rest, self._fail)
        if word == "size":
            sizes.append(self._new_sym(words))
        elif word == "place":
            places.append(self._place(words))
        elif word == "pack":
            packed.append(self._packed(words))
        elif word == "note":
            notes.append(rest)
            return
        else:
            self._fail(f"{word!r} is not lanes, size, place, pack, note or body")
        words.end()

    def _lanes(self, rest: str) -> int:
        if not rest.isdecimal() or int(rest) < 1:
            self._fail(f"{rest!r} is no number of lanes")
        return int(rest)

    def _here(self, depth: int) -> str | None:
        """The present line's content when it is at ``depth``; None when it is shallower or the text ended."""
        if self.at >= len(self.lines):
            return None
        line = self.lines[self.at][1]
        indent = len(line) - len(line.lstrip(" "))
        if indent < 2 * depth:
            return None
        if indent > 2 * depth:
            self._fail(f"indented by {indent}, expected {2 * depth}", here=True)
        return line.strip()

    def _keyword(self, depth: int, word: str) -> str:
        line = self._here(depth) or ""
        first, _, rest = line.partition(" ")
        if first != word:
            self._fail(f"expected {word!r}", here=True)
        self.at += 1
        return rest

    def _fail(self, why: str, here: bool = False) -> None:
        if not here:
            self.at = max(self.at - 1, 0)
        raise self._error(why)

    def _error(self, why: str) -> TileTextError:
        n, line = self.lines[min(self.at, len(self.lines) - 1)] if self.lines else (1, "")
        return TileTextError(f"line {n}: {why}: {line.strip()[:80]}", remedy="see tile.text for the form")

    # --- headers

    def _new_sym(self, words: Words) -> Sym:
        name = words.word()
        words.take("[")
        lo = words.integer_or_none()
        words.take(":")
        hi = words.integer_or_none()
        words.take("]")
        sym = self.syms[name] = Sym(name, lo, hi)
        return sym

    def _new_buffer(self, words: Words) -> Buffer:
        name = words.name()
        words.take(":")
        dtype = words.word()
        words.take("[")
        shape = tuple(self.dim(x) for x in words.until_bracket())
        try:
            return Buffer(name, dtype_named(dtype), shape)
        except KeyError:
            self._fail(f"no dtype {dtype!r}")
            raise

    def _place(self, words: Words) -> Place:
        buffer = self._new_buffer(words)
        self.buffers[buffer.name] = buffer
        space, role = self._one_of(Space, words.word()), self._one_of(Role, words.word())
        table: Array | None = None
        ahead = self._ahead(words.word()) if words.has("ahead") else 0
        swizzled = words.has("swizzled")
        if words.has("="):
            words.take("[")
            numbers = [_number(x) for x in words.until_bracket()]
            shape = tuple(d for d in buffer.shape if is_known(d))
            try:
                table = np.array(numbers, buffer.dtype.numpy).reshape(shape)
            except ValueError:
                self._fail("the table's numbers do not fill its shape")
        return Place(buffer, space, role, table, ahead, swizzled)

    def _ahead(self, text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text):
            self._fail(f"{text!r} is no number of iterations")
        return int(text)

    def _one_of(self, kind: type[_E], text: str) -> _E:
        try:
            return kind(text)
        except ValueError:
            self._fail(f"{text!r} is not one of {[x.value for x in kind]}")
            raise

    def _packed(self, words: Words) -> Packed:
        param = self.buffer(words.name())
        words.take("[")
        grid: list[Sym] = []
        while not words.has("]"):
            grid.append(self._new_sym(words))
            words.has(",")
        words.take("=")
        described = self._new_buffer(words)
        source = self.buffers.get(described.name, described)
        words.take("at")
        words.take("[")
        index = tuple(self.dim(x) for x in words.until_bracket())
        for s in grid:
            del self.syms[s.name]
        return Packed(param, source, tuple(grid), index)

    # --- statements

    def _body(self, depth: int) -> Body:
        body: list[Stmt] = []
        while (line := self._here(depth)) is not None:
            self.at += 1
            body.append(self._stmt(line, depth))
        return tuple(body)

    def _stmt(self, line: str, depth: int) -> Stmt:
        words = Words(line, self._fail)
        values = ValueReader(words, self.buffer, self.dim, self._fail)
        if words.has("for "):
            return self._for(words, depth)
        if words.has("if "):
            cond = values.value()
            words.end()
            return If(cond, self._body(depth + 1))
        if words.has("prefetch "):
            buffer, index = self.buffer(words.name()), values.index()
            words.end()
            return Prefetch(buffer, index)
        if found := re.fullmatch(r"barrier(?: (\d{1,9}))?( running)?", line):
            return Barrier(None if found[1] is None else int(found[1]), found[2] is not None)
        if line == "commit":
            return Commit()
        if words.has("fold("):
            return self._fold(words, values)
        # What begins with no word of the language begins with the place that is assigned.
        buffer, index = self.buffer(words.name()), values.index()
        if words.has("="):
            value = values.value()
            words.end()
            return Store(buffer, index, value)
        op = words.word()
        words.take("=")
        value = values.value()
        words.end()
        return Update(buffer, index, op, value)

    def _for(self, words: Words, depth: int) -> Stmt:
        outside = dict(self.syms)
        sym = self._new_sym(words)
        words.take("<")
        extent_text, _, kind = words.rest().strip().rpartition(" ")
        self.syms = outside
        loop = Loop(sym, self.dim(extent_text), self._one_of(Kind, kind))
        self.syms = {**outside, sym.name: sym}
        body = self._body(depth + 1)
        self.syms = outside
        return For(loop, body)

    def _fold(self, words: Words, values: ValueReader) -> Stmt:
        buffers = [self.buffer(words.name())]
        while words.has(","):
            buffers.append(self.buffer(words.name()))
        words.take(")")
        index = values.index()
        words.take("=")
        words.take("(")
        state = self._params(values, words, ";")
        value = self._params(values, words, "->")
        result = values.list_until(")")
        ordered = words.has("ordered")
        words.take("<-")
        given = [values.value()]
        while words.has(","):
            given.append(values.value())
        words.end()
        return Fold(tuple(buffers), index, Combiner(state, value, result, not ordered), tuple(given))

    def _params(self, values: ValueReader, words: Words, end: str) -> tuple[Param, ...]:
        found: list[Param] = []
        while not words.has(end):
            p = values.value()
            if not isinstance(p, Param):
                self._fail("a combiner's parameters look like %name:dtype")
                raise AssertionError
            found.append(p)
            words.has(",")
        return tuple(found)

    def buffer(self, name: str) -> Buffer:
        found = self.buffers.get(name)
        if found is None:
            self._fail(f"no buffer {name!r}")
            raise AssertionError
        return found

    def dim(self, text: str) -> Dim:
        """An index expression over the symbols that are in scope."""
        try:
            return parse(text, lambda name: self.syms[name])
        except KeyError as e:
            self._fail(f"no symbol {e}")
        except ValueError as e:
            self._fail(str(e))
        raise AssertionError


def _number(text: str) -> int | float | bool:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)
