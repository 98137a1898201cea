"""Values and indices of the tile IR as C expressions, with a variable for what several uses share.

In: ``core.compute`` values and index expressions. Out: expression texts, and statements that must run before them.
Not its business: loops and stores (``kernel``), what an operation is called (``elements``).

Loads under a false ``Inside`` guard do not happen: such a selection becomes an ``if`` with statements of its own, and
what is computed in there is forgotten behind it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from tilewright.codegen.c.elements import VALUE, Helpers, number
from tilewright.core.compute import (
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
    loads,
    operands,
)
from tilewright.core.dims import is_known
from tilewright.core.expr import Atom, BinaryExpr, Dim, Mul, Sym, const_of, is_nonneg, terms_of
from tilewright.core.indices import is_chosen
from tilewright.core.types import DType

LONG = 90
"""Characters beyond which an expression gets a variable: C promises to read 63 nested parentheses, and people fewer."""
_INDEX = {"min": "tw_least", "max": "tw_most", "floordiv": "tw_floordiv", "mod": "tw_mod"}
_C_WORDS = frozenset(
    "auto bool break case char const continue default do double else enum extern false float for goto if inline int "
    "long register restrict return short signed sizeof static struct switch true typedef union unsigned void volatile "
    "while I NAN INFINITY".split()
)


class Identifiers:
    """C identifiers for things that have names, all different."""

    def __init__(self) -> None:
        self._of: dict[object, str] = {}
        self._taken: set[str] = set(_C_WORDS)

    def of(self, thing: object, name: str) -> str:
        """The identifier of a thing, like its name."""
        if thing not in self._of:
            self._of[thing] = self.fresh(name)
        return self._of[thing]

    def fresh(self, name: str) -> str:
        """An identifier that nothing else has."""
        stem = re.sub(r"\W", "_", name, flags=re.ASCII)
        stem = stem if stem[:1].isalpha() else f"x{stem}"
        found, k = stem, 2
        while found in self._taken:
            found, k = f"{stem}_{k}", k + 1
        self._taken.add(found)
        return found


class Statements:
    """Statements being written: lines, and the texts of values that are known there."""

    def __init__(self, lines: list[str], depth: int, known: dict[Value, str]) -> None:
        self.lines, self.depth, self.known = lines, depth, known

    def write(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def inner(self) -> Statements:
        """The block of a statement in this one: it knows what this one does, and this one learns nothing."""
        return Statements(self.lines, self.depth + 1, dict(self.known))


class ValueTexts:
    """Texts of values; ``access`` gives that of a buffer's element in memory."""

    def __init__(self, names: Identifiers, helpers: Helpers, access: Callable[[Buffer, str], str]) -> None:
        self.names, self.helpers, self.access = names, helpers, access

    # --- indices

    def dim(self, d: Dim) -> str:
        """An index expression, in parentheses where it is a sum."""
        if is_known(d):
            return str(d) if d >= 0 else f"({d})"
        if isinstance(d, Atom):
            return self._atom(d)
        parts = [str(const_of(d))] if const_of(d) else []
        for atom, coef in terms_of(d):
            parts.append(self._atom(atom) if coef == 1 else f"{self._atom(atom)} * {coef}")
        return f"({' + '.join(parts)})".replace("+ -", "- ")

    def _atom(self, a: Atom) -> str:
        if isinstance(a, Sym):
            return self.names.of(a, a.name)
        if isinstance(a, Mul):
            return f"({' * '.join(map(self.dim, a.factors))})"
        assert isinstance(a, BinaryExpr)
        x, y = self.dim(a.a), self.dim(a.b)
        if a.op in ("floordiv", "mod") and is_nonneg(a.a) and is_known(a.b) and a.b > 0:
            return f"({x} {'/' if a.op == 'floordiv' else '%'} {y})"
        return f"{self.helpers.fixed(_INDEX[a.op])}({x}, {y})"

    def place(self, buffer: Buffer, index: Sequence[IndexLike], block: Statements) -> str:
        """How many elements an access is behind the buffer's first."""
        fixed: Dim = 0
        chosen: list[str] = []
        stride: Dim = 1
        for i, extent in zip(reversed(index), reversed(buffer.shape), strict=True):
            if is_chosen(i):
                at = f"(int64_t){self.value(i, block)}"
                chosen.append(at if stride == 1 else f"{at} * {self.dim(stride)}")
            else:
                fixed = fixed + i * stride
            stride = stride * extent
        text = self.dim(fixed)
        return " + ".join([text, *chosen] if text != "0" or not chosen else chosen)

    # --- values

    def value(self, v: Value, block: Statements) -> str:
        """The text of a value; statements that it needs are written to the block."""
        uses = _uses(v, block)
        ahead: list[tuple[Value, bool]] = [(v, False)]
        while ahead:
            x, is_ready = ahead.pop()
            if x in block.known:
                continue
            if _is_guard(x):
                self._guarded(x, block)
            elif is_ready:
                text = self._text(x, block)
                is_shared = uses[x] > 1 and not isinstance(x, Const | Param)
                is_long = len(text) > LONG and x is not v
                block.known[x] = self._named(text, x.dtype, block) if is_shared or is_long else text
            else:
                ahead.append((x, True))
                ahead += [(o, False) for o in reversed(operands(x))]
        return block.known[v]

    def _named(self, text: str, dtype: DType, block: Statements) -> str:
        name = self.names.fresh("t")
        block.write(f"const {VALUE[dtype]} {name} = {text};")
        return name

    def _guarded(self, v: Value, block: Statements) -> None:
        """A selection of which one side may read where it must not: a statement."""
        assert isinstance(v, Select)
        name, cond = self.names.fresh("t"), self.value(v.cond, block)
        block.write(f"{VALUE[v.dtype]} {name};")
        for head, side in ((f"if ({cond}) {{", v.a), ("} else {", v.b)):
            block.write(head)
            inner = block.inner()
            inner.write(f"{name} = {self.value(side, inner)};")
        block.write("}")
        block.known[v] = name

    def _text(self, v: Value, block: Statements) -> str:
        """The text of a value whose operands have theirs."""
        of, known = self.helpers, block.known
        match v:
            case Const():
                return number(v.value, v.dtype)
            case Param():
                return self.names.of(v.name, v.name)
            case Index():
                return self.dim(v.expr)
            case Inside():
                return f"({' && '.join([f'{self.dim(e)} >= 0' for e in v.exprs]) or 'true'})"
            case Load():
                return of.loaded(self.access(v.buffer, self.place(v.buffer, v.index, block)), v.dtype)
            case Unary():
                return of.unary(v.op, known[v.a], v.a.dtype)
            case Binary():
                return of.combined(v.op, known[v.a], known[v.b], v.a.dtype)
            case Fma():
                return of.fma(known[v.a], known[v.b], known[v.c], v.dtype)
            case Select():
                return f"({known[v.cond]} ? {known[v.a]} : {known[v.b]})"
            case Cast():
                return of.cast(known[v.a], v.a.dtype, v.dtype)
            case Bitcast():
                return of.bitcast(known[v.a], v.a.dtype, v.dtype)
            case Lookup():
                levels = ", ".join(map(str, v.levels))
                return f"(({VALUE[v.dtype]})((const uint8_t[]){{{levels}}})[{known[v.a]}])"
        raise TypeError(f"not a value: {v!r}")


def _is_guard(v: Value) -> bool:
    return isinstance(v, Select) and isinstance(v.cond, Inside) and bool(loads(v.a))


def _uses(v: Value, block: Statements) -> Counter[Value]:
    """How often each value below is an operand of another, where all of it is computed in one block."""
    found: Counter[Value] = Counter()
    ahead = [v]
    while ahead:
        x = ahead.pop()
        found[x] += 1
        if found[x] == 1 and x not in block.known and not _is_guard(x):
            ahead += operands(x)
    return found
