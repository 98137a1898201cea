"""Reading values back from their text form (``core.compute.value_text`` prints it).

In: a line's characters. Out: ``Value`` trees. Not its business: statements (``tile.text``).
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.core.compute import (
    ARITHMETIC_OPS,
    COMPARE_OPS,
    UNARY_OPS,
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Const,
    Fma,
    Index,
    IndexLike,
    Inside,
    Load,
    Lookup,
    Param,
    Select,
    Unary,
    Value,
)
from tilewright.core.expr import Dim
from tilewright.core.types import DType, dtype_named

Fail = Callable[[str], None]


class Words:
    """A cursor over one line."""

    def __init__(self, text: str, fail: Fail) -> None:
        self.text, self.fail, self.at = text, fail, 0

    def rest(self) -> str:
        return self.text[self.at :].lstrip(" ")

    def has(self, mark: str) -> bool:
        """Take ``mark`` if it comes next."""
        if not self.rest().startswith(mark):
            return False
        self.at = len(self.text) - len(self.rest()) + len(mark)
        return True

    def take(self, mark: str) -> None:
        if not self.has(mark):
            self.fail(f"expected {mark!r} before {self.rest()[:20]!r}")

    def end(self) -> None:
        if self.rest():
            self.fail(f"did not expect {self.rest()[:20]!r}")

    def word(self) -> str:
        """Letters, digits, underscores and dots."""
        rest = self.rest()
        n = 0
        while n < len(rest) and (rest[n].isalnum() or rest[n] in "_."):
            n += 1
        if n == 0:
            self.fail(f"expected a word before {rest[:20]!r}")
        self.at = len(self.text) - len(rest) + n
        return rest[:n]

    def name(self) -> str:
        """A buffer's name: a word, or anything in quotes."""
        if not self.has("'"):
            return self.word()
        found = ""
        while self.at < len(self.text) and self.text[self.at] != "'":
            self.at += self.text[self.at] == "\\"
            found += self.text[self.at : self.at + 1]
            self.at += 1
        self.take("'")
        return found

    def integer_or_none(self) -> int | None:
        rest = self.rest()
        n = 1 if rest.startswith("-") else 0
        while n < len(rest) and rest[n].isdigit():
            n += 1
        if n == 0:
            return None
        self.at = len(self.text) - len(rest) + n
        return int(rest[:n])

    def dim_text(self, ends: str) -> str:
        """The text of an index expression up to one of ``ends`` outside of parentheses, which stays."""
        rest, depth = self.rest(), 0
        for n, c in enumerate(rest):
            if depth == 0 and c in ends:
                self.at = len(self.text) - len(rest) + n
                return rest[:n].strip()
            depth += (c == "(") - (c == ")")
        self.fail(f"expected one of {ends!r}")
        raise AssertionError

    def until_bracket(self) -> list[str]:
        """Comma-separated texts up to the closing bracket, which is taken."""
        found: list[str] = []
        while not self.has("]"):
            found.append(self.dim_text(",]"))
            self.has(",")
        return found


class ValueReader:
    """Reads values from a cursor; buffers and index expressions are resolved by the caller."""

    def __init__(self, words: Words, buffer: Callable[[str], Buffer], dim: Callable[[str], Dim], fail: Fail) -> None:
        self.words, self.buffer, self.dim, self.fail = words, buffer, dim, fail

    def index(self) -> tuple[IndexLike, ...]:
        """``[dim or @value, ...]``."""
        self.words.take("[")
        found: list[IndexLike] = []
        while not self.words.has("]"):
            found.append(self.value() if self.words.has("@") else self.dim(self.words.dim_text(",]")))
            self.words.has(",")
        return tuple(found)

    def list_until(self, end: str) -> tuple[Value, ...]:
        found: list[Value] = []
        while not self.words.has(end):
            found.append(self.value())
            self.words.has(",")
        return tuple(found)

    def value(self) -> Value:
        w = self.words
        rest = w.rest()
        if rest.startswith("%"):
            w.take("%")
            name = w.word()
            w.take(":")
            return Param(name, self._dtype(w.word()))
        if rest[:1].isdigit() or rest.startswith(("-", "nan:", "inf:", "True:", "False:")):
            return self._const()
        name = w.name()
        if w.rest().startswith("["):
            buffer = self.buffer(name)
            try:
                return Load(buffer, self.index())
            except ValueError as e:
                self.fail(str(e))
        w.take("(")
        try:
            return self._call(name)
        except ValueError as e:
            self.fail(str(e))
            raise AssertionError from e

    def _const(self) -> Value:
        text = self.words.dim_text(":")
        self.words.take(":")
        dtype = self._dtype(self.words.word())
        if dtype.is_float:
            return Const(float(text), dtype)
        return Const(text == "True" if text in ("True", "False") else int(text), dtype)

    def _dtype(self, name: str) -> DType:
        try:
            return dtype_named(name)
        except KeyError:
            self.fail(f"no dtype {name!r}")
            raise

    def _call(self, name: str) -> Value:
        w = self.words
        if name == "index":
            e = self.dim(w.dim_text(")"))
            w.take(")")
            return Index(e)
        if name == "inside":
            exprs: list[Dim] = []
            while not w.has(")"):
                exprs.append(self.dim(w.dim_text(",)")))
                w.has(",")
            return Inside(tuple(exprs))
        args = self.list_until(")")
        kind, _, dtype = name.partition(".")
        match args:
            case [x] if kind in ("cast", "bitcast") and dtype:
                return (Cast if kind == "cast" else Bitcast)(x, self._dtype(dtype))
            case [x] if kind == "lookup" and dtype:
                return Lookup(tuple(map(int, dtype.split("."))), x)
            case [x] if name in UNARY_OPS:
                return Unary(name, x)
            case [x, y] if name in ARITHMETIC_OPS | COMPARE_OPS:
                return Binary(name, x, y)
            case [x, y, z] if name in ("fma", "select"):
                return (Fma if name == "fma" else Select)(x, y, z)
        raise ValueError(f"no operation {name} of {len(args)} operands")
