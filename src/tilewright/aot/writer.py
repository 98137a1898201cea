"""LLVM text of small functions: instructions, blocks, and integer expressions over symbols.

In: expressions as manifests spell them, and the registers that hold the symbols. Out: lines of LLVM text. Arithmetic of
sizes is watched: what left 64 bits is known at the next ``take_beyond``.
Not its business: which functions there are (``glue``), how expressions parse (``runtime.expressions``).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from tilewright.runtime.expressions import ParsedExpr

_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge",
}  # fmt: skip
_BINARY: dict[type[ast.operator], str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}


class FunctionWriter:
    """One function being written. Values are texts: a register or a number, all i64 where nothing else is said."""

    def __init__(self, head: str) -> None:
        self._head = head
        self._entry: list[str] = ["entry:"]
        self._lines: list[str] = []
        self._beyond: list[str] = []
        self._by_zero: list[str] = []
        self._n = 0

    def text(self) -> str:
        """The whole function."""
        return "\n".join([f"{self._head} {{", *self._entry, *self._lines, "}"])

    # --- instructions

    def emit(self, text: str) -> None:
        self._lines.append("  " + text)

    def let(self, text: str) -> str:
        """A new register with the result of an instruction."""
        self._n += 1
        self.emit(f"%v{self._n} = {text}")
        return f"%v{self._n}"

    def room(self, type_: str) -> str:
        """The address of a place on the stack, wherever it is asked for: frames have a fixed size."""
        self._n += 1
        self._entry.append(f"  %v{self._n} = alloca {type_}, align 8")
        return f"%v{self._n}"

    def label(self, stem: str) -> str:
        self._n += 1
        return f"{stem}{self._n}"

    def start(self, label: str) -> None:
        self._lines.append(f"{label}:")

    def at(self, base: str, n_bytes: int | str) -> str:
        """The address ``n_bytes`` behind ``base``."""
        return base if n_bytes in (0, "0") else self.let(f"getelementptr i8, ptr {base}, i64 {n_bytes}")

    def load(self, base: str, n_bytes: int = 0, type_: str = "i64") -> str:
        return self.let(f"load {type_}, ptr {self.at(base, n_bytes)}")

    def store(self, value: str, base: str, n_bytes: int = 0, type_: str = "i64") -> None:
        self.emit(f"store {type_} {value}, ptr {self.at(base, n_bytes)}")

    def entry(self, table: str, index: int) -> str:
        """The pointer at ``index`` of a table of pointers."""
        return self.let(f"load ptr, ptr {self.let(f'getelementptr ptr, ptr {table}, i64 {index}')}")

    def product(self, values: Sequence[str]) -> str:
        total = values[0] if values else "1"
        for value in values[1:]:
            total = self.let(f"mul i64 {total}, {value}")
        return total

    def watched(self, op: str, x: str, y: str) -> str:
        """``add``, ``sub`` or ``mul`` of two sizes; ``take_beyond`` tells whether it left 64 bits."""
        if op == "mul" and "1" in (x, y):
            return y if x == "1" else x
        pair = self.let(f"call {{i64, i1}} @llvm.s{op}.with.overflow.i64(i64 {x}, i64 {y})")
        self._beyond.append(self.let(f"extractvalue {{i64, i1}} {pair}, 1"))
        return self.let(f"extractvalue {{i64, i1}} {pair}, 0")

    def take_beyond(self) -> str:
        """An i1: has any size computed since the last question left 64 bits? \"\" where none could."""
        found, self._beyond = self._beyond, []
        return self.joined(found, "or") if found else ""

    def take_by_zero(self) -> str:
        """An i1: was any size since the last question divided by zero? \"\" where none could."""
        found, self._by_zero = self._by_zero, []
        return self.joined(found, "or") if found else ""

    def return_if(self, condition: str, status: int | str) -> None:
        """Return a status where an i1 holds."""
        leave, stay = self.label("leave"), self.label("stay")
        self.emit(f"br i1 {condition}, label %{leave}, label %{stay}")
        self.start(leave)
        self.emit(f"ret i32 {status}")
        self.start(stay)

    # --- expressions

    def size(self, size: int | ParsedExpr, symbols: Mapping[str, str]) -> str:
        """The value of a size; ``symbols`` are registers by name."""
        return str(size) if isinstance(size, int) else self._size(size.tree, symbols)

    def rule(self, rule: ParsedExpr, symbols: Mapping[str, str]) -> str:
        """An i1: does the rule hold?"""
        return self._rule(rule.tree, symbols)

    def _size(self, node: ast.expr, symbols: Mapping[str, str]) -> str:
        match node:
            case ast.Constant(value=int(number)):
                return str(number)
            case ast.Name(id=name):
                return symbols[name]
            case ast.UnaryOp(operand=operand):
                return self.watched("sub", "0", self._size(operand, symbols))
            case ast.BinOp(left=left, op=op, right=right):
                x, y = self._size(left, symbols), self._size(right, symbols)
                if type(op) in _BINARY:
                    return self.watched(_BINARY[type(op)], x, y)
                return self.floored(x, y)[isinstance(op, ast.Mod)]
            case ast.Call(func=ast.Name(id=name), args=args):
                best, *rest = [self._size(arg, symbols) for arg in args]
                for value in rest:
                    best = self.let(f"call i64 @llvm.s{name}.i64(i64 {best}, i64 {value})")
                return best
        raise AssertionError(f"{ast.unparse(node)!r} is not a size")

    def _rule(self, node: ast.expr, symbols: Mapping[str, str]) -> str:
        match node:
            case ast.BoolOp(op=op, values=values):
                join = "and" if isinstance(op, ast.And) else "or"
                return self.joined([self._rule(value, symbols) for value in values], join)
            case ast.UnaryOp(operand=operand):
                return self.let(f"xor i1 {self._rule(operand, symbols)}, true")
            case ast.Compare(left=left, ops=ops, comparators=rest):
                sizes = [self._size(n, symbols) for n in (left, *rest)]
                tests = [
                    self.let(f"icmp {_COMPARE[type(op)]} i64 {x}, {y}")
                    for op, x, y in zip(ops, sizes, sizes[1:], strict=False)
                ]
                return self.joined(tests, "and")
        raise AssertionError(f"{ast.unparse(node)!r} is not a rule")

    def joined(self, values: Sequence[str], join: str) -> str:
        """An i1 of several by ``and`` or ``or``."""
        total = values[0]
        for value in values[1:]:
            total = self.let(f"{join} i1 {total}, {value}")
        return total

    def floored(self, x: str, y: str) -> tuple[str, str]:
        """Quotient rounded down and remainder with the divisor's sign; zero divides as one, and ``take_by_zero`` tells.

        What left 64 bits is divided as zero: the least number divided by -1 would end the program.
        """
        if self._beyond:
            self._beyond = [self.joined(self._beyond, "or")]
            x = self.let(f"select i1 {self._beyond[0]}, i64 0, i64 {x}")
        is_zero = self.let(f"icmp eq i64 {y}, 0")
        if y == "0" or not y.isdigit():
            self._by_zero.append(is_zero)
        safe = self.let(f"select i1 {is_zero}, i64 1, i64 {y}")
        rest = self.let(f"srem i64 {x}, {safe}")
        negative = self.let(f"icmp slt i64 {self.let(f'xor i64 {rest}, {safe}')}, 0")
        adjust = self.let(f"and i1 {negative}, {self.let(f'icmp ne i64 {rest}, 0')}")
        fixed = self.let(f"add i64 {rest}, {safe}")
        quotient = self.let(f"sub i64 {self.let(f'sdiv i64 {x}, {safe}')}, {self.let(f'zext i1 {adjust} to i64')}")
        return quotient, self.let(f"select i1 {adjust}, i64 {fixed}, i64 {rest}")
