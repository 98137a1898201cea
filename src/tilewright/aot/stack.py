"""How much stack the functions of an object take, read from the instructions that LLVM writes.

In: assembly of one module as LLVM prints it, and its triple. Out: bytes by function, everything it calls included.
Not its business: what is not in the module (the C library, the compiler's helpers): ``Stack.foreign`` names it.

A function's instructions are followed in order with the depth of the stack below its entry; a label has the depth of
the jumps to it. ``Rules`` say, for each instruction set, what an instruction does to the depth. Frames have a fixed
size, so that is exact, but for two bounds: an alignment of the stack counts with the most that it can take, and an
indirect call is one of any function whose address is taken and that makes none itself (the pool calls tasks so). Where
a depth cannot be told (a vector length that only the CPU knows), the answer is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

_LABEL = re.compile(r'^"?([\w.$@]+)"?:')
_LOCAL = re.compile(r"\.?LBB\d+_\d+|\.?LJTI\d+_\d+")
_LITERAL = re.compile(r"^(\.LCPI\w+):\n\t\.long\t(\d+)\b", re.MULTILINE)
_LITERAL_READ = re.compile(r"^(ldr\s+\w+, )(\.LCPI\w+)$")
"""Thumb's first form has no other way to numbers beyond a byte, such as a frame's size."""
_NAME = r'"?([A-Za-z_.$][\w.$]*)"?'


@dataclass
class StackState:
    """``depth``: bytes below the entry. Registers: the depths they hold in ``known``, their numbers in ``numbers``."""

    depth: int = 0
    known: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def copy(self, register: str, less: int = 0) -> None:
        self.known[register] = self.depth - less

    def restore(self, register: str, less: int = 0) -> None:
        self.depth = self.known[register] - less

    def lower(self, register: str, by: int, source: str = "") -> None:
        """A register gets the depth that it or ``source`` holds, and ``by`` more; none where that holds none."""
        held = self.known.get(source or register)
        if held is None:
            self.known.pop(register, None)
        else:
            self.known[register] = held + by

    def forget(self, register: str) -> None:
        self.numbers.pop(register, None)

    def align(self, register: str, mask: int, at_entry: int) -> None:
        """The stack pointer is rounded down; it was a multiple of ``at_entry``."""
        self.depth = (self.depth if register == "sp" else self.known[register]) + max((mask & -mask) - at_entry, 0)


Effect = Callable[[StackState, re.Match[str]], None]


@dataclass(frozen=True)
class Rules:
    """``effects`` change the depth, the first that matches; ``call``, ``ends`` are calls and what ends a block.

    ``pushed``: bytes that a call instruction itself puts on the stack. ``touches``: an instruction that may change the
    stack pointer, so that none is overlooked. ``indirect``: calls by address.
    """

    effects: tuple[tuple[re.Pattern[str], Effect], ...]
    call: re.Pattern[str]
    indirect: re.Pattern[str]
    ends: re.Pattern[str]
    touches: re.Pattern[str]
    pushed: int = 0


def _number(text: str) -> int:
    return int(text, 0)


def _push(n: int) -> Effect:
    def effect(s: StackState, m: re.Match[str]) -> None:
        s.depth += n

    return effect


def _moved(sign: int) -> Effect:
    def effect(s: StackState, m: re.Match[str]) -> None:
        s.depth += sign * _number(m[1]) << (int(m[2]) if m.lastindex and m.lastindex > 1 and m[2] else 0)

    return effect


def _listed(sign: int) -> Effect:
    """Registers in braces: d registers have 8 bytes, q 16, all others 4."""

    def effect(s: StackState, m: re.Match[str]) -> None:
        for name in m[1].split(","):
            s.depth += sign * {"d": 8, "q": 16}.get(name.strip()[0], 4)

    return effect


def _vectors_more(s: StackState, m: re.Match[str]) -> None:
    """``addvl to, of, #n``: ``n`` vectors, or with ``addpl`` eighths of one, on the stack pointer or a copy of it."""
    _, to, of, n = m.groups()
    by = -int(n) * (_LONGEST_VECTOR if m[1] == "addvl" else _LONGEST_VECTOR // 8)
    if of != "sp":
        s.lower(to, by, of)
    elif to == "sp":
        s.depth += by
    else:
        s.copy(to, -by)
    if to == "sp" and of != "sp":
        s.restore("sp")


def _nothing(s: StackState, m: re.Match[str]) -> None:
    """No change that lasts."""


def _rows(*rows: tuple[str, Effect]) -> tuple[tuple[re.Pattern[str], Effect], ...]:
    return tuple((re.compile(pattern), effect) for pattern, effect in rows)


_X86 = Rules(
    _rows(
        (r"pushq\s", _push(8)),
        (r"popq\s", _push(-8)),
        (r"subq\s+\$(-?\d+), %rsp", _moved(1)),
        (r"addq\s+\$(-?\d+), %rsp", _moved(-1)),
        (r"andq\s+\$(-\d+), %rsp", lambda s, m: s.align("sp", int(m[1]), 16)),
        (r"movq\s+%rsp, %(\w+)", lambda s, m: s.copy(m[1])),
        (r"leaq\s+(-?\d+)\(%rsp\), %rsp", _moved(-1)),
        (r"leaq\s+(-?\d+)\(%rsp\), %(\w+)", lambda s, m: s.copy(m[2], int(m[1]))),
        (r"leaq\s+(-?\d+)\(%(\w+)\), %rsp", lambda s, m: s.restore(m[2], int(m[1]))),
        (r"movq\s+%(\w+), %rsp", lambda s, m: s.restore(m[1])),
        (r"movl\s+\$(\d+), %eax", lambda s, m: s.numbers.update(rax=int(m[1]))),
        (r"subq\s+%rax, %rsp", lambda s, m: setattr(s, "depth", s.depth + s.numbers["rax"])),
    ),
    call=re.compile(rf"(?:callq?|jmp|j\w+)\s+{_NAME}(?:@PLT)?$"),
    indirect=re.compile(r"(?:callq?|jmpq?)\s+\*(?!.*JTI)"),
    ends=re.compile(r"retq?$|jmpq?\s|ud2"),
    touches=re.compile(r"(push|pop|enter|leave)|.*, %(rsp|esp|sp)$"),
    pushed=8,
)
_LONGEST_VECTOR = 256
"""Bytes of the longest vector that SVE has: so many count for each, as only the CPU knows its own."""
_AARCH64 = Rules(
    _rows(
        (r"st[pr]\s.*\[sp, #(-\d+)\]!", _moved(-1)),
        (r"ld[pr]\s.*\[sp\], #(\d+)", _moved(-1)),
        (r"sub\s+sp, sp, #(\d+)(?:, lsl #(\d+))?", _moved(1)),
        (r"add\s+sp, sp, #(\d+)(?:, lsl #(\d+))?", _moved(-1)),
        (r"mov\s+(x\d+), sp", lambda s, m: s.copy(m[1])),
        (r"add\s+(x\d+), sp, #(\d+)$", lambda s, m: s.copy(m[1], int(m[2]))),
        (r"sub\s+(x\d+), sp, #(\d+)(?:, lsl #(\d+))?$",
         lambda s, m: s.copy(m[1], -(int(m[2]) << int(m[3] or 0)))),
        (r"sub\s+(x\d+), (x\d+), #(\d+)$",
         lambda s, m: s.lower(m[1], int(m[3]), m[2])),
        (r"mov\s+sp, (x\d+)", lambda s, m: s.restore(m[1])),
        (r"sub\s+sp, (x\d+), #(\d+)", lambda s, m: s.restore(m[1], -int(m[2]))),
        (r"and\s+sp, (x\d+), #(0x[0-9a-f]+)", lambda s, m: s.align(m[1], _number(m[2]), 16)),
        (r"mov\s+[xw]15, #(\d+)", lambda s, m: s.numbers.update(x15=int(m[1]))),
        (r"sub\s+sp, sp, x15, lsl #4", lambda s, m: setattr(s, "depth", s.depth + 16 * s.numbers["x15"])),
        (r"(addvl|addpl)\s+(\w+), (\w+), #(-?\d+)", _vectors_more),
    ),
    call=re.compile(rf"(?:bl?|b\.\w+)\s+{_NAME}$"),
    indirect=re.compile(r"bl?r\s+x"),
    ends=re.compile(r"ret\b|b\s|br\s|brk"),
    touches=re.compile(r"\w+\s+sp,|.*\[sp, #-?\d+\]!|.*\[sp\], #"),
)  # fmt: skip
_CONDITIONS = "eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le"
_ARM = Rules(
    _rows(
        # Part of a conditional return: what comes next is where it was not taken, and has the depth of before.
        (rf"(?:v?pop|addw?|ldr)(?:{_CONDITIONS})(?:\.w)?\s+(?:sp,|\{{|.*\[sp\], #)", _nothing),
        (r"v?pop(?!\S*\s*\{.*pc)[.\w]*\s+\{(.*)\}", _listed(-1)),
        (r"pop\S*\s+\{.*pc\}", _nothing),
        (r"v?push(?:\.w)?\s+\{(.*)\}", _listed(1)),
        (r"sub(?:w|\.w)?\s+sp, (?:sp, )?#(\d+)", _moved(1)),
        (r"add(?:w|\.w)?\s+sp, (?:sp, )?#(\d+)", _moved(-1)),
        (r"ldr\s+(\w+), =(-?\d+)$", lambda s, m: s.numbers.update({m[1]: int(m[2])})),
        (r"add\s+sp, (r\d+)$", lambda s, m: setattr(s, "depth", s.depth - s.numbers[m[1]])),
        (r"str\s.*\[sp, #(-\d+)\]!", _moved(-1)),
        (r"ldr\s.*\[sp\], #(\d+)", _moved(-1)),
        (r"mov\s+(\w+), sp", lambda s, m: s.copy(m[1])),
        (r"add(?:w|\.w)?\s+(\w+), sp, #(\d+)", lambda s, m: s.copy(m[1], int(m[2]))),
        (r"sub(?:w|\.w)?\s+(\w+), sp, #(\d+)", lambda s, m: s.copy(m[1], -int(m[2]))),
        (r"bfc\s+sp, #0, #(\d+)", lambda s, m: s.align("sp", 1 << int(m[1]), 8)),
        (r"bfc\s+(\w+), #0, #(\d+)",
         lambda s, m: s.lower(m[1], max((1 << int(m[2])) - 8, 0))),
        (r"lsrs\s+(\w+), \1, #(\d+)",
         lambda s, m: s.lower(m[1], max((1 << int(m[2])) - 8, 0))),
        (r"mov\s+sp, (\w+)", lambda s, m: s.restore(m[1])),
        (r"sub(?:w|\.w)?\s+sp, (\w+), #(\d+)", lambda s, m: s.restore(m[1], -int(m[2]))),
        (r"sub(?:s|w|\.w)?\s+(\w+), (\w+), #(\d+)",
         lambda s, m: s.lower(m[1], int(m[3]), m[2])),
        (r"subs\s+(r\d+), #(\d+)$", lambda s, m: s.lower(m[1], int(m[2]))),
        (r"(?:stm|stmib|ldm|ldmib|vstmia|vldmia)(?:\.w)?\s+sp, \{", _nothing),
    ),
    call=re.compile(rf"(?:(?:blx?|b)(?:{_CONDITIONS})?(?:\.w)?|cbn?z\s+\w+,)\s+(?!(?:r\d+|lr|ip)$){_NAME}$"),
    indirect=re.compile(rf"blx(?:{_CONDITIONS})?\s+(?:r\d+|lr|ip)\b"),
    ends=re.compile(r"b(?:\.w)?\s|bx\s|pop(?:\.w)?\s+\{.*pc\}|ldr\s+pc|mov\s+pc|\.?inst|udf|tbb|tbh"),
    touches=re.compile(r"v?(push|pop)|\w[\w.]*\s+sp\b(?!\])|.*\[sp, #-?\d+\]!|.*\[sp\], #"),
)  # fmt: skip
_RISCV = Rules(
    _rows(
        (r"addi\s+sp, sp, (-?\d+)", _moved(-1)),
        (r"addi\s+(\w+), sp, (-?\d+)", lambda s, m: s.copy(m[1], int(m[2]))),
        (r"mv\s+(\w+), sp", lambda s, m: s.copy(m[1])),
        (r"addi\s+sp, (\w+), (-?\d+)", lambda s, m: s.restore(m[1], int(m[2]))),
        (r"mv\s+sp, (\w+)", lambda s, m: s.restore(m[1])),
        (r"andi\s+sp, sp, (-\d+)", lambda s, m: s.align("sp", int(m[1]), 16)),
        (r"csrr\s+(\w+), vlenb", lambda s, m: s.forget(m[1])),
        (r"lui\s+(\w+), (\d+)", lambda s, m: s.numbers.update({m[1]: int(m[2]) << 12})),
        (r"li\s+(\w+), (-?\d+)", lambda s, m: s.numbers.update({m[1]: int(m[2])})),
        (r"addiw?\s+(\w+), \1, (-?\d+)",
         lambda s, m: s.numbers.update({m[1]: s.numbers[m[1]] + int(m[2])} if m[1] in s.numbers else {})),
        (r"sub\s+sp, sp, (\w+)", lambda s, m: setattr(s, "depth", s.depth + s.numbers[m[1]])),
        (r"add\s+sp, sp, (\w+)", lambda s, m: setattr(s, "depth", s.depth - s.numbers[m[1]])),
    ),
    call=re.compile(rf"(?:call|tail|j|b\w+\s.*,)\s+{_NAME}$"),
    indirect=re.compile(r"jalr\s"),
    ends=re.compile(r"ret\b|j\s|jr\s|tail\s|unimp"),
    touches=re.compile(r"\w+\s+sp,(?! *-?\d+\()"),
)  # fmt: skip


def _held(s: StackState, m: re.Match[str]) -> None:
    """WebAssembly's stack pointer goes to a local on its way to a subtraction: ``reads`` while it is the last value."""
    if "reads" in s.numbers and "lowered" not in s.numbers:
        s.numbers[f"local {m[1]}"] = 1


def _read(s: StackState, m: re.Match[str]) -> None:
    if f"local {m[1]}" in s.numbers:
        s.numbers["reads"] = 1
    else:
        s.forget("reads")


def _lowered(s: StackState, m: re.Match[str]) -> None:
    """The first subtraction is the frame."""
    if "reads" in s.numbers and "lowered" not in s.numbers:
        s.depth += s.numbers["constant"]
        s.numbers["lowered"] = 1


def _rounded(s: StackState, m: re.Match[str]) -> None:
    if "reads" in s.numbers and "lowered" in s.numbers:
        s.align("sp", s.numbers["constant"], 16)
        s.forget("reads")


_WASM = Rules(
    _rows(
        (r"global\.get\s+__stack_pointer", lambda s, m: s.numbers.update(reads=1)),
        (r"i32\.const\s+(-?\d+)", lambda s, m: s.numbers.update(constant=int(m[1]))),
        (r"i32\.sub", _lowered),
        (r"i32\.and", _rounded),
        (r"local\.(?:tee|set)\s+(\d+)", _held),
        (r"local\.get\s+(\d+)", _read),
        (r"global\.set", lambda s, m: s.forget("reads")),
    ),
    call=re.compile(rf"call\s+{_NAME}$"),
    indirect=re.compile(r"call_indirect"),
    ends=re.compile(r"(?!)"),
    touches=re.compile(r"(?!)"),
)
_BY_PREFIX = (("x86_64", _X86), ("aarch64", _AARCH64), ("arm64", _AARCH64), ("arm", _ARM), ("thumb", _ARM),
              ("riscv", _RISCV), ("wasm", _WASM))  # fmt: skip


@dataclass(frozen=True)
class Stack:
    """``n_bytes`` by function, None where it cannot be told; ``foreign``: functions that somebody else defines."""

    n_bytes: dict[str, int | None]
    foreign: frozenset[str]

    def most(self, names: Iterable[str]) -> int | None:
        """The most that one of several functions takes; None where that cannot be told."""
        found = [self.n_bytes[n] for n in names if n in self.n_bytes]
        known = [n for n in found if n is not None]
        return max(known) if known and len(known) == len(found) else None


@dataclass
class _Function:
    most: int | None = 0
    calls: dict[str, int] = field(default_factory=dict)
    by_address: int = -1


def stack_of(asm: str, triple: str) -> Stack:
    """Stack by function."""
    rules = next((r for prefix, r in _BY_PREFIX if triple.startswith(prefix)), None)
    if rules is None:
        return Stack({}, frozenset())
    functions: dict[str, _Function] = {}
    addresses: set[str] = set()
    for name, lines in _functions(asm):
        functions[name] = _follow(lines, rules, addresses)
    prefix = "_" if _is_mach_o(triple) else ""
    return _summed(functions, addresses, rules, prefix)


def _is_mach_o(triple: str) -> bool:
    return any(p in triple for p in ("darwin", "macos", "ios"))


def _functions(asm: str) -> Iterator[tuple[str, list[str]]]:
    """Names and instructions; a function begins at a label that is not local, in a section of code."""
    name, lines = "", list[str]()
    literals = {label: _signed(int(value)) for label, value in _LITERAL.findall(asm)}
    for raw in asm.splitlines():
        line = raw.split("//")[0].split("\t@")[0].split(" ##")[0].split("\t#")[0].split(";")[0].rstrip()
        label = _LABEL.match(line)
        if label and not label[1].startswith((".L", "L", "$", ".Lfunc")):
            if name:
                yield name, lines
            name, lines = label[1], []
        elif label:
            lines.append(line)
        elif line.startswith("\t") and not line.startswith("\t."):
            lines.append(_LITERAL_READ.sub(lambda m: f"{m[1]}={literals.get(m[2], m[2])}", line.strip()))
    if name:
        yield name, lines


def _signed(word: int) -> int:
    """A number of 32 bits, with its sign."""
    return word - (1 << 32) if word >= 1 << 31 else word


def _follow(lines: list[str], rules: Rules, addresses: set[str]) -> _Function:
    made, state, at_label, deepest, ended = _Function(), StackState(), dict[str, int](), 0, False
    for line in lines:
        label = _LABEL.match(line)
        if label:
            # behind an end a label that nothing has jumped to is for a later jump: of the whole frame
            state.depth = at_label.get(label[1], deepest if ended else state.depth)
            ended = False
            continue
        if ended:  # behind a jump and without a label: nothing arrives here
            continue
        try:
            matched = False
            for pattern, effect in rules.effects:
                found = pattern.match(line)
                if found:
                    effect(state, found)
                    matched = True
                    break
            if not matched and rules.touches.match(line):
                made.most = None
                return made
        except KeyError:  # it depends on a number that the instructions do not say
            made.most = None
            return made
        deepest = max(deepest, state.depth)
        for target in _LOCAL.findall(line):  # the first is enough: all come at one depth, as frames have a fixed size
            at_label.setdefault(target, state.depth)
        called = rules.call.match(line)
        if called and not _LOCAL.fullmatch(called[1]):  # the patterns of calls fit some jumps within the function
            made.calls[called[1]] = max(made.calls.get(called[1], 0), state.depth + rules.pushed)
        elif rules.indirect.match(line):
            made.by_address = max(made.by_address, state.depth + rules.pushed)
        elif not called:  # a name in any other instruction: its address is taken
            addresses.update(re.findall(_NAME, line))
        ended = bool(rules.ends.match(line))
    made.most = deepest
    return made


def _calls_by_address(name: str, functions: dict[str, _Function]) -> bool:
    reached, new = {name}, [name]
    while new:
        of = functions[new.pop()]
        if of.by_address >= 0:
            return True
        found = of.calls.keys() & functions.keys() - reached
        reached |= found
        new += found
    return False


def _summed(functions: dict[str, _Function], addresses: set[str], rules: Rules, prefix: str) -> Stack:
    totals: dict[str, int | None] = {}
    tasks = [f for f in sorted(addresses & functions.keys()) if not _calls_by_address(f, functions)]

    def total(name: str, above: frozenset[str]) -> int | None:
        if name in totals or name in above:  # a function that calls itself: no bound
            return totals.get(name)
        of = functions[name]
        most = of.most
        calls = [(c, at) for c, at in of.calls.items() if c in functions]
        calls += [(t, of.by_address) for t in tasks if of.by_address >= 0]
        for callee, at in calls:
            below = total(callee, above | {name})
            most = None if most is None or below is None else max(most, at + below)
        most = None if most is None else max([most, *of.calls.values(), of.by_address])
        totals[name] = most
        return most

    for name in functions:
        total(name, frozenset())
    foreign = {c for f in functions.values() for c in f.calls} - functions.keys()
    found = {n.removeprefix(prefix): b if b is None else b + rules.pushed for n, b in totals.items()}
    return Stack(found, frozenset(n.removeprefix(prefix) for n in foreign))
