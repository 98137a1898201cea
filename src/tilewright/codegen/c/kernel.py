"""A kernel of the tile IR as a C function.

In: a scheduled ``tile.ir.Kernel``. Out: ``static void NAME(void *param..., int64_t size..., int32_t threads, void
*scratch)`` and the scratch that it needs. Not its business: values (``values``), programs (``program``).

Loops of every kind become loops in their order, on one thread: ``parallel`` and ``vector`` ones have independent
iterations, which a C compiler may see. Buffers of registers are arrays, which it keeps in registers where it can.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.codegen.c.elements import MEMORY, VALUE, Helpers, stored_number
from tilewright.codegen.c.values import Identifiers, Statements, ValueTexts
from tilewright.codegen.cpu.scratch import Locals
from tilewright.codegen.errors import CodegenError
from tilewright.codegen.rooms import most_elements
from tilewright.core.compute import Binary, Buffer, Fma, Load, Value
from tilewright.runtime.manifest import ScratchSpec
from tilewright.tile.ir import (
    Fold,
    For,
    If,
    Kernel,
    Kind,
    Place,
    Prefetch,
    Role,
    Space,
    Stmt,
    Store,
    Update,
    walk,
    written,
)
from tilewright.tile.rewrite import loads_of

_ON_GPUS = (Kind.BLOCK, Kind.THREAD, Kind.WARP)
_ROW = 12
"""Numbers of a table that stand in a line."""


@dataclass(frozen=True)
class CKernel:
    """A function's text, and the memory that it wants."""

    text: str
    scratch: ScratchSpec


def kernel_text(kernel: Kernel, helpers: Helpers, label: str = "") -> CKernel:
    """The function of a kernel; ``label`` says in a comment what it computes."""
    return _CFunction(kernel, helpers).made(label)


class _CFunction:
    def __init__(self, kernel: Kernel, helpers: Helpers) -> None:
        self.kernel, self.helpers = kernel, helpers
        self.written = {b for s in walk(kernel.body) for b in written(s)}
        self.read = {x.buffer for s in walk(kernel.body) for x in loads_of(s)}
        self.names = Identifiers()
        self.values = ValueTexts(self.names, helpers, self.access)
        self.locals = Locals()

    def made(self, label: str) -> CKernel:
        params = [self.names.fresh(f"p{k}") for k in range(len(self.kernel.params))]
        # a prefix, as models name sizes as they like: like C's own functions, types and macros too
        sizes = [self.names.of(s, f"n_{s.name}") for s in self.kernel.sizes]
        threads, scratch = self.names.fresh("threads"), self.names.fresh("scratch")
        buffers = [self.names.of(p.buffer, p.buffer.name) for p in self.kernel.places]
        body = Statements([], 1, {})
        for s in self.kernel.body:
            self.stmt(s, body)
        head, words = Statements([], 1, {}), _words(body)
        given = iter(params)
        for place, name in zip(self.kernel.places, buffers, strict=True):
            where = next(given) if place.space is Space.GLOBAL else scratch
            if name in words:  # what is folded or packed away is a parameter all the same
                self.declare(place, name, where, head)
        words |= _words(head)
        unused = [f"  (void){name};" for name in (*params, *sizes, threads, scratch) if name not in words]
        arguments = [*[f"void *{p}" for p in params], *[f"int64_t {s}" for s in sizes]]
        listed = ", ".join([*arguments, f"int32_t {threads}", f"void *{scratch}"])
        note = f"/* {label.replace('*/', '* /')} */\n" if label else ""
        text = "\n".join([f"{note}static void {self.kernel.name}({listed}) {{", *unused, *head.lines, *body.lines, "}"])
        return CKernel(text, ScratchSpec(self.locals.in_scratch))

    # --- buffers

    def declare(self, place: Place, name: str, where: str, block: Statements) -> None:
        """A variable for a buffer: a pointer to memory of the caller's, or an array."""
        buffer, element = place.buffer, MEMORY[place.buffer.dtype]
        if place.table is not None:
            numbers = [stored_number(x, buffer.dtype) for x in place.table.reshape(-1)] or ["0"]
            block.write(f"static const {element} {name}[] = {{")
            for k in range(0, len(numbers), _ROW):
                block.write(f"  {', '.join(numbers[k : k + _ROW])},")
            block.write("};")
        elif place.space is Space.GLOBAL:
            const = "const " if place.role in (Role.IN, Role.CONST) and buffer not in self.written else ""
            block.write(f"{const}{element} *restrict {name} = {where};")
        else:
            n = most_elements(buffer)
            # C compilers keep small arrays in registers; the others would be too much for a thread's stack.
            offset = None if place.space is Space.REG else self.locals.place(n * buffer.dtype.n_bytes)
            if offset is None:
                block.write(f"{element} {name}[{n}];")
                if buffer not in self.read:  # results that nobody asks for
                    block.write(f"(void){name};")
            else:
                block.write(f"{element} *restrict {name} = (void *)((char *){where} + {offset});")

    def access(self, buffer: Buffer, at: str) -> str:
        """A buffer's element."""
        bare = at[1:-1] if at.startswith("(") and at.find(")") == len(at) - 1 else at
        return f"{self.names.of(buffer, buffer.name)}[{bare}]"

    # --- statements

    def stmt(self, s: Stmt, block: Statements) -> None:
        """Write a statement; what it computes is forgotten behind it, as it may have changed what was read."""
        here = Statements(block.lines, block.depth, {})
        match s:
            case For():
                self.loop(s, here)
            case If():
                here.write(f"if ({self.values.value(s.cond, here)}) {{")
                self.body(s.body, here)
            case Store():
                self.braced(s, here)
            case Update():
                self.braced(Store(s.buffer, s.index, _updated(s)), here)
            case Fold():
                here.write("{")
                self.fold(s, here.inner())
                here.write("}")
            case Prefetch():
                pass
            case _:
                raise CodegenError(f"{type(s).__name__} is a statement of threads of a GPU, which C has no word for")

    def loop(self, s: For, block: Statements) -> None:
        if s.loop.kind in _ON_GPUS:
            raise CodegenError(f"a {s.loop.kind.value} loop is of a GPU's grid, and C has no word for it")
        name, extent = self.names.of(s.loop.sym, s.loop.sym.name), self.values.dim(s.loop.extent)
        block.write(f"for (int64_t {name} = 0; {name} < {extent}; ++{name}) {{")
        self.body(s.body, block)

    def body(self, body: tuple[Stmt, ...], block: Statements) -> None:
        for s in body:
            self.stmt(s, block.inner())
        block.write("}")

    def braced(self, s: Store, block: Statements) -> None:
        """An assignment, in braces where it needs variables."""
        inner = Statements([], block.depth + 1, {})
        self.assign(s, inner)
        if len(inner.lines) == 1:
            block.write(inner.lines[0].lstrip())
        else:
            block.write("{")
            block.lines += inner.lines
            block.write("}")

    def assign(self, s: Store, block: Statements) -> None:
        value = self.helpers.stored(self.values.value(s.value, block), s.buffer.dtype)
        target = self.access(s.buffer, self.values.place(s.buffer, s.index, block))
        block.write(f"{target} = {value};")

    def fold(self, s: Fold, block: Statements) -> None:
        """The state and the new values as variables, then the results, then the assignments."""
        c, at = s.combiner, self.values.place(s.buffers[0], s.index, block)
        place = self.names.fresh("at")
        block.write(f"const int64_t {place} = {at};")
        olds = [self.helpers.loaded(self.access(b, place), b.dtype) for b in s.buffers]
        news = [self.values.value(v, block) for v in s.values]
        known = dict(block.known)
        for p, text in zip((*c.state, *c.value), (*olds, *news), strict=True):
            name = self.names.fresh(p.name)
            block.write(f"const {VALUE[p.dtype]} {name} = {text};")
            known[p] = name
        results = Statements(block.lines, block.depth, known)
        texts = [self.values.value(r, results) for r in c.result]
        for b, text in zip(s.buffers, texts, strict=True):
            block.write(f"{self.access(b, place)} = {self.helpers.stored(text, b.dtype)};")


def _words(block: Statements) -> set[str]:
    return {word for line in block.lines for word in re.findall(r"\w+", line)}


def _updated(s: Update) -> Value:
    """What an update leaves; a sum with a product is one operation."""
    old = Load(s.buffer, s.index)
    if s.op == "add" and s.buffer.dtype.is_float and isinstance(s.value, Binary) and s.value.op == "mul":
        return Fma(s.value.a, s.value.b, old)
    return Binary(s.op, old, s.value)
