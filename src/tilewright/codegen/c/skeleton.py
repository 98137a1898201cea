"""The functions around a model's kernels as C: those that ``codegen.cpu.program`` and ``aot.glue`` write as LLVM text.

In: LLVM text of scalar functions and constants. Out: C text. Not its business: vectors, and any instruction that those
writers don't use: one that is unknown here is an error.

One text of the order of kernels, of the checks of sizes and of the words for each failure serves objects and C files
alike, so that they cannot differ. A register becomes a variable and a block a label. Whole numbers are unsigned here,
and read as signed where an instruction does so. Memory is read and written by copies, so that anything may lie there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

from tilewright.codegen.c.elements import COMPARE_SIGNS
from tilewright.codegen.errors import CodegenError

_TYPES = {"ptr": "char *", "i1": "bool ", "i8": "uint8_t ", "i32": "uint32_t ", "i64": "uint64_t ", "void": "void "}
_FIELDS = {"ptr": "const void *", "i32": "int32_t ", "i64": "int64_t "}
"""Types of constant data, which are those of the header's structures."""
_SIGNED = {"i8": "int8_t", "i32": "int32_t", "i64": "int64_t"}
_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "lshr": ">>", "shl": "<<", "sdiv": "/",
    "srem": "%",
}  # fmt: skip
_LEAVES = {
    "add": "b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b",
    "sub": "b > 0 ? a < INT64_MIN + b : a > INT64_MAX + b",
    "mul": "a > 0 ? (b > 0 ? a > INT64_MAX / b : b < INT64_MIN / a)"
    " : a < 0 ? (b > 0 ? a < INT64_MIN / b : b < INT64_MAX / a) : false",
}
"""Does the result leave 64 bits?"""
_ROW = 20
"""Bytes of weights in a line."""


def prelude(functions: str) -> str:
    """What such functions call: reads, writes, and arithmetic that tells whether it left 64 bits.

    Compilers warn of what nobody calls.
    """
    found = {}
    for name in ("ptr", "i8", "i32", "i64"):
        t, load, store = _TYPES[name], f"tw_load_{name}", f"tw_store_{name}"
        found[load] = f"static inline {t}{load}(const void *p) {{ {t}x; memcpy(&x, p, sizeof x); return x; }}"
        found[store] = f"static inline void {store}(void *p, {t}x) {{ memcpy(p, &x, sizeof x); }}"
    for op, test in _LEAVES.items():
        head = f"static inline bool tw_{op}_leaves(uint64_t x, uint64_t y)"
        body = f"  int64_t a = (int64_t)x, b = (int64_t)y;\n  return {test};"
        found[f"tw_{op}_leaves"] = f"{head} {{\n{body}\n}}"
    return "\n".join(text for name, text in found.items() if f"{name}(" in functions)


class Skeleton:
    """Translates modules.

    ``prototypes`` are the heads, in C, of the functions that others call, by name; ``contents`` the bytes of constants
    that a module only has a place for.
    """

    def __init__(self, prototypes: Mapping[str, str], contents: Mapping[str, memoryview]) -> None:
        self.prototypes, self.contents = prototypes, contents
        self.data: list[str] = []
        self.heads: list[str] = []
        self.functions: list[str] = []

    def text(self) -> str:
        """All that was added, declared before it is used."""
        return "\n".join([*self.data, *self.heads, *self.functions])

    def add(self, module: str) -> None:
        """The types, constants and functions of a module."""
        lines = iter(module.splitlines())
        for line in lines:
            if line.startswith("define "):
                self.function(line, list(iter(lines.__next__, "}")))
            elif line.startswith("%"):
                self.struct(line)
            elif line.startswith("@"):
                self.constant(line)
            elif line.strip() and not line.startswith(("declare ", "target triple")):
                raise _unknown(line)

    def struct(self, line: str) -> None:
        """``%name = type { i32, ptr }``"""
        name, fields = _match(r"%(\w+) = type \{ (.*) \}", line).groups()
        listed = " ".join(f"{_FIELDS[t]}f{k};" for k, t in enumerate(fields.split(", ")))
        self.data.append(f"struct {name}_row {{ {listed} }};")

    def constant(self, line: str) -> None:
        """``@name = private constant [2 x i64] [i64 1, i64 2]``"""
        found = _match(
            r"@([\w.]+) = (?:private|internal) (?:unnamed_addr )?constant (?:\[(\d+) x (\S+)\]|%(\w+)) "
            r"(.*?)(?:, section \S+, align (\d+))?",
            line,
        )
        name, count, element, struct, value, align = found.groups()
        if align:
            data = self.contents[name]
            rows = [", ".join(map(str, data[k : k + _ROW])) for k in range(0, len(data), _ROW)]
            head = f"_Alignas({align}) static const unsigned char {name}[{len(data)}]"
            self.data.append("\n".join([f"{head} = {{", *[f"  {row}," for row in rows], "};"]))
        elif value.startswith('c"'):
            text = _quoted(bytes.fromhex(value[2:-1].replace("\\", ""))[:-1])
            self.data.append(f"static const char {name}[{count}] = {text};")
        else:
            t = f"struct {struct or element[1:]}_row " if struct or element.startswith("%") else _FIELDS[element]
            # `const` behind the star: the pointers are constant too
            t = f"{t}const " if t.endswith("*") else f"const {t}"
            self.data.append(f"static {t}{name}{f'[{count}]' if count else ''} = {_initialiser(value)};")

    def function(self, head: str, body: list[str]) -> None:
        """A ``define`` and what stands between its braces."""
        result, name, listed = _match(r'define (?:internal )?(\w+) @"?([\w.]+)"?\((.*?)\) .*', head).groups()
        params = [p.split(" %") for p in listed.split(", ") if p]
        made = _Body([name for _, name in params])
        if prototype := self.prototypes.get(name):
            # C's parameters have types of their own, and names that may be others
            given = [re.findall(r"\w+", p)[-1] for p in _match(r".*?\((.*)\)", prototype)[1].split(", ")]
            for (t, param), own in zip(params, given if params else [], strict=True):
                made.declare(made.registers[param], t, f"({_TYPES[t].strip()}){own}")
                made.lines.append(f"  (void){own};")
        else:
            args = ", ".join(f"{_TYPES[t]}{made.registers[name]}" for t, name in params)
            prototype = f"static {_TYPES[result]}{name}({args or 'void'})"
            self.heads.append(f"{prototype};")
            made.lines += [f"  (void){made.registers[name]};" for _, name in params]
        for line in body:
            made.line(line.strip())
        self.functions.append("\n".join([f"{prototype} {{", *made.text(), "}"]))


class _Body:
    """The statements of one function; ``variables`` are declarations at its top, by name."""

    def __init__(self, params: list[str]) -> None:
        self.registers = {name: f"p_{name}" for name in params}
        self.variables: dict[str, str] = {}
        self.lines: list[str] = []

    def declare(self, name: str, type_: str, value: str = "") -> None:
        """A variable of the function."""
        self.variables[name] = f"  {_TYPES[type_]}{name}{value and f' = {value}'};"

    def text(self) -> list[str]:
        """Declarations and statements, without variables that nobody reads."""
        counts = Counter(word for line in self.lines for word in re.findall(r"\w+", line))
        lines = []
        for line in self.lines:
            name, is_set, value = line.strip().partition(" = ")
            if is_set and counts[name] == 1:  # what it was set to may be a call, which stays
                self.variables.pop(name)
                lines.append(f"  (void)({value[:-1]});")
            else:
                lines.append(line)
        return [*[text for name, text in self.variables.items() if counts[name]], *lines]

    def line(self, text: str) -> None:
        """A label, an instruction with a result, or one without."""
        if text.endswith(":"):
            self.lines += [] if text == "entry:" else [f"{text};"]
        elif text.startswith("%"):
            name, _, right = text[1:].partition(" = ")
            self.registers[name] = name
            for pattern, write in _RESULTS.items():
                if found := re.fullmatch(pattern, right):
                    type_, value = write(self, name, found)
                    self.declare(name, type_)
                    self.lines.append(f"  {name} = {value};")
                    return
            raise _unknown(text)
        else:
            for pattern, statement in _STATEMENTS.items():
                if found := re.fullmatch(pattern, text):
                    self.lines.append(f"  {statement(self, found)};")
                    return
            raise _unknown(text)

    def value(self, x: str, type_: str) -> str:
        """An operand."""
        if x.startswith("%"):
            return self.registers[x[1:]]
        if x.startswith("@"):
            return f"(char *)&{x[1:]}"
        if x == "null":
            return "(char *)0"
        return x if x in ("true", "false") else _number(int(x), type_)

    def signed(self, x: str, type_: str) -> str:
        return f"({_SIGNED[type_]}){self.value(x, type_)}"

    def arguments(self, listed: str) -> list[str]:
        """Of a call, ``ptr %a, i64 3``."""
        return [self.value(x, t) for t, x in (p.split(" ") for p in listed.split(", ") if p)]

    # --- instructions with a result: its type, and what it is

    def room(self, name: str, found: re.Match[str]) -> tuple[str, str]:
        count, element, single = found.groups()
        self.variables[f"room_{name}"] = f"  {_TYPES[element or single]}room_{name}[{count or 1}];"
        return "ptr", f"(char *)room_{name}"

    def watched(self, name: str, found: re.Match[str]) -> tuple[str, str]:
        op, x, y = found.groups()
        self.declare(f"{name}_leaves", "i1")
        x, y = self.value(x, "i64"), self.value(y, "i64")
        self.lines.append(f"  {name}_leaves = tw_{op}_leaves({x}, {y});")
        return "i64", f"{x} {_SIGNS[op]} {y}"

    def part(self, _: str, found: re.Match[str]) -> tuple[str, str]:
        register, k = found.groups()
        return ("i1", f"{register}_leaves") if k == "1" else ("i64", register)

    def arithmetic(self, _: str, found: re.Match[str]) -> tuple[str, str]:
        op, t, x, y = found.groups()
        if op in ("sdiv", "srem"):
            return t, f"({_TYPES[t].strip()})({self.signed(x, t)} {_SIGNS[op]} {self.signed(y, t)})"
        return t, f"{self.value(x, t)} {_SIGNS[op]} {self.value(y, t)}"

    def compared(self, _: str, found: re.Match[str]) -> tuple[str, str]:
        sign, op, t, x, y = found.groups()
        read = self.signed if sign == "s" else self.value
        return "i1", f"{read(x, t)} {COMPARE_SIGNS[op]} {read(y, t)}"

    def chosen(self, _: str, found: re.Match[str]) -> tuple[str, str]:
        cond, t, x, y = found.groups()
        return t, f"{self.value(cond, 'i1')} ? {self.value(x, t)} : {self.value(y, t)}"

    def loaded(self, _: str, found: re.Match[str]) -> tuple[str, str]:
        t, p = found.groups()
        return t, f"tw_load_{t}({self.value(p, 'ptr')})"

    def address(self, _: str, found: re.Match[str]) -> tuple[str, str]:
        element, p, t, k = found.groups()
        size = "" if element == "i8" else f" * (int64_t)sizeof({_TYPES[element].strip()})"
        return "ptr", f"{self.value(p, 'ptr')} + {self.signed(k, t)}{size}"

    def converted(self, _: str, found: re.Match[str]) -> tuple[str, str]:
        op, source, x, target = found.groups()
        whole = "(uintptr_t)" if op == "ptrtoint" else ""
        return target, f"({_TYPES[target].strip()}){whole}{self.value(x, source)}"

    def extreme(self, _: str, found: re.Match[str]) -> tuple[str, str]:
        op, x, y = found.groups()
        sign, a, b = "<" if op == "min" else ">", self.value(x, "i64"), self.value(y, "i64")
        return "i64", f"(int64_t){a} {sign} (int64_t){b} ? {a} : {b}"

    def called(self, _: str, found: re.Match[str]) -> tuple[str, str]:
        t, name, listed = found.groups()
        return t, f"{name}({', '.join(self.arguments(listed))})"

    # --- instructions without one

    def kept(self, found: re.Match[str]) -> str:
        t, x, p = found.groups()
        return f"tw_store_{t}({self.value(p, 'ptr')}, {self.value(x, t)})"

    def returned(self, found: re.Match[str]) -> str:
        t, x = found.groups()
        return "return" if x is None else f"return {'(void *)' if t == 'ptr' else ''}{self.value(x, t)}"

    def branched(self, found: re.Match[str]) -> str:
        cond, yes, no = found.groups()
        return f"if ({self.value(cond, 'i1')}) goto {yes}; else goto {no}"

    def switched(self, found: re.Match[str]) -> str:
        t, x, default, cases = found.groups()
        listed = "".join(f"case {n}: goto {to}; " for n, to in re.findall(r"i\d+ (\d+), label %([\w.]+)", cases))
        return f"switch ({self.value(x, t)}) {{ {listed}default: goto {default}; }}"

    def copied(self, found: re.Match[str]) -> str:
        target, source, n = self.arguments(found[1])
        return f"memcpy({target}, {source}, {n})"

    def done(self, found: re.Match[str]) -> str:
        name, listed = found.groups()
        return f"{name}({', '.join(self.arguments(listed))})"


_X = r"(%[\w.]+|@[\w.]+|-?\d+|true|false|null)"
_T = r"(i\d+|ptr)"
_RESULTS: Mapping[str, Callable[[_Body, str, re.Match[str]], tuple[str, str]]] = {
    rf"alloca (?:\[(\d+) x {_T}\]|{_T})(?:, align \d+)?": _Body.room,
    rf"call \{{i64, i1\}} @llvm\.s(\w+)\.with\.overflow\.i64\(i64 {_X}, i64 {_X}\)": _Body.watched,
    r"extractvalue \{i64, i1\} %([\w.]+), (\d)": _Body.part,
    rf"({'|'.join(_SIGNS)}) {_T} {_X}, {_X}": _Body.arithmetic,
    rf"icmp ([su]?)(\w\w) {_T} {_X}, {_X}": _Body.compared,
    rf"select i1 {_X}, {_T} {_X}, (?:i\d+|ptr) {_X}": _Body.chosen,
    rf"load {_T}, ptr {_X}": _Body.loaded,
    rf"getelementptr {_T}, ptr {_X}, {_T} {_X}": _Body.address,
    rf"(zext|trunc|ptrtoint) {_T} {_X} to {_T}": _Body.converted,
    rf"call i64 @llvm\.s(min|max)\.i64\(i64 {_X}, i64 {_X}\)": _Body.extreme,
    rf"(?:tail )?call {_T} @(\w+)\((.*)\)": _Body.called,
}
_STATEMENTS: Mapping[str, Callable[[_Body, re.Match[str]], str]] = {
    rf"store {_T} {_X}, ptr {_X}": _Body.kept,
    rf"ret (?:void|{_T} {_X})": _Body.returned,
    r"br label %([\w.]+)": lambda _, found: f"goto {found[1]}",
    rf"br i1 {_X}, label %([\w.]+), label %([\w.]+)": _Body.branched,
    rf"switch {_T} {_X}, label %([\w.]+) \[(.*)\]": _Body.switched,
    r"call void @llvm\.memcpy\.p0\.p0\.i64\((.*), i1 false\)": _Body.copied,
    r'call void @"?(\w+)"?\((.*)\)': _Body.done,
}
"""Instructions, and how each is written."""


def _match(pattern: str, text: str) -> re.Match[str]:
    found = re.fullmatch(pattern, text)
    if found is None:
        raise _unknown(text)
    return found


def _unknown(text: str) -> CodegenError:
    return CodegenError(f"C has no words yet for what stands around kernels: {text[:80]!r}")


def _initialiser(value: str) -> str:
    """``[%row { ptr @name, i32 3 }]`` as C has it."""
    bare = re.sub(r"%\w+ (?=\{)|\b(?:i\d+|ptr) ", "", value).replace("null", "0")
    bare = re.sub(r"-?\b\d{10,}", lambda m: _number(int(m[0]), "i64", signed=True), bare)
    return bare.replace("@", "&").replace("[", "{").replace("]", "}")


def _number(value: int, type_: str, *, signed: bool = False) -> str:
    """A whole number; a negative one as the unsigned number of the same bits."""
    text = "INT64_MIN" if value == -(1 << 63) else f"INT64_C({value})" if abs(value) >= 1 << 31 else str(value)
    return f"({_TYPES[type_].strip()}){text}" if value < 0 and not signed else text


def _quoted(text: bytes) -> str:
    """A literal of C; three octal digits end by themselves, and ?? could begin a trigraph."""
    shown = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text)
    return f'"{"".join(shown)}"'
