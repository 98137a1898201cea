"""What four warps do together, between threads of this system: `wgmma` on matrices that descriptors tell.

In: LLVM text with inline assembly, and memory. Out: text that calls `exchange` instead; sums. Not its business: who
meets whom (`ptx.warp`), when asynchronous work ends (`tile.simt`): here it ends at once.

Descriptors and layouts are spelled here as NVIDIA's Parallel Thread Execution ISA spells them, apart from the package.
"""

import ctypes
import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np

FIRST = 100
"""Kinds of an exchange from here on are products of four warps."""
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
_PRODUCT = re.compile(
    r'= call (\{[^}]*\}) asm sideeffect "\{ [^"]*wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(\w+)\.\w+ '
    r'\{[^}]*\}, \$\d+, \$\d+, p, 1, 1, (\d), (\d); \}", "[^"]*"\((.*)\)$'
)
_WAIT = re.compile(r'= call (\{[^}]*\}) asm sideeffect "wgmma\.wait_group\.sync\.aligned 0;", "[^"]*"\((.*)\)$')
_ORDER = re.compile(r'  call void (@llvm\.nvvm\.wgmma\.|asm sideeffect "fence\.proxy\.async).*\n')


@dataclass(frozen=True)
class Shape:
    """Columns, dtype, and which of the two factors lie by columns."""

    columns: int
    dtype: str
    is_left_turned: bool
    is_right_turned: bool

    @property
    def kind(self) -> int:
        turned = 2 * self.is_left_turned + self.is_right_turned
        return FIRST + 8 * self.columns + 4 * (self.dtype == "f16") + turned

    @staticmethod
    def of(kind: int) -> "Shape":
        columns, rest = divmod(kind - FIRST, 8)
        return Shape(columns, "f16" if rest & 4 else "bf16", bool(rest & 2), bool(rest & 1))

    @property
    def n_operands(self) -> int:
        return 2 + self.columns // 2


def host_calls(text: str) -> str:
    """The text with a function for each instruction, which hands its operands over by memory."""
    wrappers: dict[str, str] = {}

    def product(found: re.Match[str]) -> str:
        result, columns, dtype, left, right, operands = found.groups()
        shape = Shape(int(columns), dtype, left == "1", right == "1")
        name = f"wgmma.{shape.kind}"
        wrappers[name] = _wrapper(name, result, shape)
        return f'= call {result} @"{name}"({operands})'

    def wait(found: re.Match[str]) -> str:
        result, operands = found.groups()
        n = len(result.split(","))
        parameters = ", ".join(f"float %a{k}" for k in range(n))
        lines, last = [f'define internal {result} @"same.{n}"({parameters}) nounwind {{'], "poison"
        for k in range(n):
            lines.append(f"  %r{k} = insertvalue {result} {last}, float %a{k}, {k}")
            last = f"%r{k}"
        wrappers[f"same.{n}"] = "\n".join([*lines, f"  ret {result} {last}", "}"])
        return f'= call {result} @"same.{n}"({operands})'

    text = _ORDER.sub("", text)
    lines = [_WAIT.sub(wait, _PRODUCT.sub(product, line)) for line in text.splitlines()]
    return "\n".join([*lines, *wrappers.values(), ""])


def _wrapper(name: str, result: str, shape: Shape) -> str:
    kinds = ["i64", "i64", *["float"] * (shape.n_operands - 2)]
    lines = [f'define internal {result} @"{name}"({", ".join(f"{kind} %a{k}" for k, kind in enumerate(kinds))}) {{']
    lines.append(f"  %given = alloca [{shape.n_operands} x i64]\n  %made = alloca [{shape.columns // 2} x float]")
    for k, kind in enumerate(kinds):
        lines.append(f"  %g{k} = getelementptr i64, ptr %given, i64 {k}\n  store {kind} %a{k}, ptr %g{k}")
    lines.append(f"  call void @exchange(i32 {shape.kind}, ptr %given, ptr %made)")
    last = "poison"
    for k in range(shape.columns // 2):
        lines.append(f"  %m{k} = getelementptr float, ptr %made, i64 {k}\n  %v{k} = load float, ptr %m{k}")
        lines.append(f"  %r{k} = insertvalue {result} {last}, float %v{k}, {k}")
        last = f"%r{k}"
    return "\n".join([*lines, f"  ret {result} {last}", "}"])


def product(shape: Shape, operands: list[bytes], shared: int) -> np.ndarray:
    """The sums' registers by thread, of 128 threads' operands; `shared` is where the block's memory begins."""
    words = np.array([np.frombuffer(x, np.uint64) for x in operands])
    assert (words[:, :2] == words[0, :2]).all(), "threads of one instruction give several descriptors"
    left = _matrix(int(words[0, 0]), 64, shape.dtype, shape.is_left_turned, shared)
    right = _matrix(int(words[0, 1]), shape.columns, shape.dtype, shape.is_right_turned, shared)
    sums = np.ascontiguousarray(words[:, 2:].astype(np.uint32)).view(np.float32)
    places = [[(16 * (t // 32) + t % 32 // 4 + 8 * (e // 2 % 2), 8 * (e // 4) + 2 * (t % 4) + e % 2)
               for e in range(shape.columns // 2)] for t in range(128)]  # fmt: skip
    rows, columns = np.moveaxis(np.array(places), -1, 0)
    return (sums + (left @ right.T)[rows, columns]).astype(np.float32)


def _matrix(descriptor: int, lines: int, dtype: str, is_turned: bool, shared: int) -> np.ndarray:
    """A factor, a row for each of its lines, of depth 16."""
    assert descriptor >> 62 == 1, "only rows of 128 bytes that are exchanged"
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    start = (start - shared) % (1 << 18)
    line, depth = np.meshgrid(np.arange(lines), np.arange(16), indexing="ij")
    if is_turned:
        at = start + line // 64 * leading + line % 64 * 2 + depth // 8 * stride + depth % 8 * 128
    else:
        at = start + line // 8 * stride + line % 8 * 128 + depth * 2
    at ^= (at >> 7 & 7) << 4
    memory = np.frombuffer(ctypes.string_at(shared, int(at.max()) + 2), np.uint16)
    return memory[at // 2].view(DTYPES[dtype]).astype(np.float32)
