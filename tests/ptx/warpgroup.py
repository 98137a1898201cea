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
    r'= call (\{[^}]*\}) asm sideeffect "\{ [^"]*setp\.ne\.b32 p, (\d), 0; wgmma\.mma_async\.sync\.aligned\.m64n(\d+)'
    r'k16\.f32\.(\w+)\.\w+ \{[^}]*\}, (\$\d+|\{[^}]*\}), \$\d+, p, 1, 1, (?:(\d), )?(\d); \}", "[^"]*"\((.*)\)$'
)
_WAIT = re.compile(r'= call (\{[^}]*\}) asm sideeffect "wgmma\.wait_group\.sync\.aligned \d+;", "[^"]*"\((.*)\)$')
_ORDER = re.compile(r'  call void (@llvm\.nvvm\.wgmma\.|asm sideeffect "fence\.proxy\.async).*\n')


@dataclass(frozen=True)
class Shape:
    """Columns, dtype, which factors lie by columns, if the left one is in registers, if it adds to sums."""

    columns: int
    dtype: str
    is_left_turned: bool
    is_right_turned: bool
    is_held: bool = False
    adds: bool = True
    has_sums: bool = True

    @property
    def kind(self) -> int:
        flags = (self.dtype == "f16", self.is_left_turned, self.is_right_turned, self.is_held, self.adds, self.has_sums)
        return FIRST + 64 * self.columns + sum(1 << k for k, x in enumerate(flags) if x)

    @staticmethod
    def of(kind: int) -> "Shape":
        columns, rest = divmod(kind - FIRST, 64)
        is_f16, *others = (bool(rest >> k & 1) for k in range(6))
        return Shape(columns, "f16" if is_f16 else "bf16", *others)

    @property
    def n_left(self) -> int:
        """Operands of the left factor: words or a descriptor."""
        return 4 if self.is_held else 1

    @property
    def n_operands(self) -> int:
        return self.n_left + 1 + self.n_sums * self.has_sums

    @property
    def n_sums(self) -> int:
        return self.columns // 2


def host_calls(text: str) -> str:
    """The text with a function for each instruction, which hands its operands over by memory."""
    wrappers: dict[str, str] = {}

    def product(found: re.Match[str]) -> str:
        result, adds, columns, dtype, left, left_turned, right_turned, operands = found.groups()
        turned, has_sums = (left_turned == "1", right_turned == "1"), "float" in operands
        shape = Shape(int(columns), dtype, *turned, left[0] == "{", adds == "1", has_sums)
        name = f"wgmma.{shape.kind}"
        wrappers[name] = _wrapper(name, result, shape)
        return f'= call {result} @"{name}"({operands})'

    def wait(found: re.Match[str]) -> str:
        result, operands = found.groups()
        n, kinds = len(result.split(",")), [x.split()[0] for x in operands.split(", ")]
        name = f"same.{len(kinds)}.{n}"
        lines = [f'define internal {result} @"{name}"({_parameters(kinds)}) nounwind {{']
        last = "poison"
        for k in range(n):  # what is only held comes before what is handed on
            lines.append(f"  %r{k} = insertvalue {result} {last}, float %a{len(kinds) - n + k}, {k}")
            last = f"%r{k}"
        wrappers[name] = "\n".join([*lines, f"  ret {result} {last}", "}"])
        return f'= call {result} @"{name}"({operands})'

    text = _ORDER.sub("", text)
    lines = [_WAIT.sub(wait, _PRODUCT.sub(product, line)) for line in text.splitlines()]
    return "\n".join([*lines, *wrappers.values(), ""])


def _parameters(kinds: list[str]) -> str:
    return ", ".join(f"{kind} %a{k}" for k, kind in enumerate(kinds))


def _wrapper(name: str, result: str, shape: Shape) -> str:
    kinds = [*(["i32"] * 4 if shape.is_held else ["i64"]), "i64", *["float"] * (shape.n_sums * shape.has_sums)]
    lines = [f'define internal {result} @"{name}"({_parameters(kinds)}) {{']
    lines.append(f"  %given = alloca [{shape.n_operands} x i64]\n  %made = alloca [{shape.n_sums} x float]")
    for k, kind in enumerate(kinds):
        lines.append(f"  %g{k} = getelementptr i64, ptr %given, i64 {k}\n  store {kind} %a{k}, ptr %g{k}")
    lines.append(f"  call void @exchange(i32 {shape.kind}, ptr %given, ptr %made)")
    last = "poison"
    for k in range(shape.n_sums):
        lines.append(f"  %m{k} = getelementptr float, ptr %made, i64 {k}\n  %v{k} = load float, ptr %m{k}")
        lines.append(f"  %r{k} = insertvalue {result} {last}, float %v{k}, {k}")
        last = f"%r{k}"
    return "\n".join([*lines, f"  ret {result} {last}", "}"])


def product(shape: Shape, operands: list[bytes], shared: int) -> np.ndarray:
    """The sums' registers by thread, of 128 threads' operands; `shared` is where the block's memory begins."""
    words = np.array([np.frombuffer(x, np.uint64) for x in operands])
    at = shape.n_left
    assert (words[:, at] == words[0, at]).all(), "threads of one instruction give several descriptors"
    right = _matrix(int(words[0, at]), shape.columns, shape.dtype, shape.is_right_turned, shared)
    if shape.is_held:
        left = _held(words[:, :4].astype(np.uint32), shape.dtype)
    else:
        assert (words[:, 0] == words[0, 0]).all(), "threads of one instruction give several descriptors"
        left = _matrix(int(words[0, 0]), 64, shape.dtype, shape.is_left_turned, shared)
    places = [[(16 * (t // 32) + t % 32 // 4 + 8 * (e // 2 % 2), 8 * (e // 4) + 2 * (t % 4) + e % 2)
               for e in range(shape.n_sums)] for t in range(128)]  # fmt: skip
    rows, columns = np.moveaxis(np.array(places), -1, 0)
    made = (left @ right.T)[rows, columns]
    if shape.adds:
        made = made + np.ascontiguousarray(words[:, at + 1 :].astype(np.uint32)).view(np.float32)
    return made.astype(np.float32)


def _held(words: np.ndarray, dtype: str) -> np.ndarray:
    """The left factor of 128 threads' words, two neighbours in a row each."""
    halves = np.ascontiguousarray(words).view(np.uint16).view(DTYPES[dtype]).astype(np.float32).reshape(128, 4, 2)
    left = np.zeros((64, 16), np.float32)
    for t, w in np.ndindex(128, 4):
        row, column = 16 * (t // 32) + t % 32 // 4 + 8 * (w % 2), 2 * (t % 4) + 8 * (w // 2)
        left[row, column : column + 2] = halves[t, w]
    return left


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


_NAME = re.compile(r"%[\w.]+")


def too_early(text: str) -> list[str]:
    """Lines that use sums of products that may still run, or wait for fewer than those whose sums they hand on.

    Sums have a new name once they were waited for, so an old one is for products, waits and loops alone.
    """
    lines = [line.strip().partition(" = ") for line in text.splitlines()]
    running: set[str] = set()
    while more := {name for name, _, right in lines if name not in running and _may_run(right, running)}:
        running |= more  # loops carry some from a turn's end to the next one's begin
    group_of: dict[str, int] = {}
    n_groups, found = 0, list[str]()
    for name, _, right in lines:
        used = [x for x in _NAME.findall(right) if x in running]
        if name.startswith("define"):
            group_of, n_groups = {}, 0
        elif name in running:
            older = n_groups - 1 if right.startswith("phi") else group_of.get(used[0], n_groups) if used else n_groups
            group_of[name] = n_groups if "wgmma.mma_async" in right else older
        elif "@llvm.nvvm.wgmma.commit_group" in name:
            n_groups += 1
        elif wait := re.search(r"\"wgmma\.wait_group\.sync\.aligned (\d+);\"", right):
            found += [right] if any(n_groups - 1 - group_of[x] < int(wait[1]) for x in used) else []
        elif used:
            found.append(right)
    return found


def _may_run(right: str, running: set[str]) -> bool:
    """Is a value one of sums that a product may still change?"""
    is_passed = right.startswith(("extractvalue", "phi"))
    return "wgmma.mma_async" in right or (is_passed and not running.isdisjoint(_NAME.findall(right)))
