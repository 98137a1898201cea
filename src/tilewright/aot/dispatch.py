"""One object for several CPUs of a kind: the code of every level, and a choice when it first runs.

In: the modules of a compile for each level, the plainest first. Out: modules of one model, whose ``tw_run`` and
``tw_plan`` call those of the best level that the CPU has. Not its business: which levels there are (``target``).

Each function carries its level's CPU as an attribute, everything else is made for the first. Levels lay weights out in
their own ways, so each has a region of the weights; equal regions are stored once. The level is read by ``cpuid`` and
``xgetbv`` once and kept in a word that any thread may write, because all write the same. Those two have no LLVM
intrinsic that works without an assembler: their few bytes of machine code are given as a function's prologue.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core.diag import OptionError
from tilewright.runtime.manifest import ScratchSpec
from tilewright.target import x86

if TYPE_CHECKING:
    from tilewright.aot.export import Modules
    from tilewright.target.target import Target

_REGION = 64
_CPUID = bytes.fromhex("53 89f0 89d1 0fa2 8907 895f04 894f08 89570c 5b c3")
"""push rbx; eax, ecx = esi, edx; cpuid; store eax, ebx, ecx, edx at rdi; pop rbx; ret."""
_XGETBV = bytes.fromhex("31c9 0f01d0 c3")
"""ecx = 0; xgetbv; ret with the low half in eax."""


@dataclass(frozen=True)
class Region:
    """Where a level's weights lie."""

    offset: int
    n_bytes: int


def level_target(target: Target) -> Target:
    """The target of a level in an object with others: its functions say themselves which CPU they are for."""
    if target.cpu not in x86.NEEDS:
        known = ", ".join(x86.LEVELS)
        raise OptionError(f"there is no run-time choice of {target.name}", remedy=f"choose among {known}")
    attributes = f'"target-cpu"="{target.cpu}" {target.attributes}'.rstrip()
    return replace(target, attributes=attributes)


def merge(levels: Sequence[Modules]) -> Modules:
    """One model of all levels; what is said of sizes and memory holds for each of them."""
    base = levels[0]
    regions, weights = _regions(levels)
    texts = {"choice": _choice([m.target for m in levels], regions)}
    kernels, rows = [], []
    seen: set[int] = set()
    for n, (level, region) in enumerate(zip(levels, regions, strict=True)):
        for name, text in level.texts.items():
            texts[f"{name}.{n}"] = _renamed(text, n)  # each level has a `tw_run`, and may name a kernel as another does
        for kernel in level.manifest.report["kernels"]:
            kernels.append({**kernel, "name": f"{kernel['name']}_{n}", "ops": [*kernel["ops"], level.target.name]})
        if region.offset not in seen:  # equal weights are stored once, so their bytes count once
            seen.add(region.offset)
            rows += [(f"{label} ({level.target.name})", size) for label, size in level.weight_rows]
    arena = _largest([m.manifest.report["memory"]["arena_bytes"] for m in levels])
    scratch = ScratchSpec.most(m.manifest.scratch for m in levels)  # a handle has room for whichever level it runs
    memory = {
        **base.manifest.report["memory"], "arena_bytes": arena, "weights_bytes": int(weights.nbytes),
        "scratch_bytes": scratch.fixed, "scratch_bytes_per_thread": scratch.per_thread,
    }  # fmt: skip
    report = {**base.manifest.report, "kernels": kernels, "n_kernels": len(kernels), "memory": memory}
    if "exact_sizes" in report:
        report["exact_sizes"] = _exact_sizes(levels)
    n_dims = max(m.manifest.n_dims for m in levels)  # the slots behind the sizes are each level's own
    manifest = replace(base.manifest, report=report, n_dims=n_dims, scratch=scratch)
    return replace(base, manifest=manifest, texts=texts, weights=weights, weight_rows=rows)


def _largest(arenas: Sequence[int | str]) -> int | str:
    """Bytes that are enough for each level; a symbolic arena is a formula, and sizes decide which is the largest."""
    known = [a for a in arenas if isinstance(a, int)]
    return max(known) if len(known) == len(arenas) else f"max({', '.join(map(str, arenas))})"


def _exact_sizes(levels: Sequence[Modules]) -> list[dict[str, Any]]:
    """The sizes that have code of their own, with the kernels and the memory of all levels."""
    found = []
    for rows in zip(*(m.manifest.report["exact_sizes"] for m in levels), strict=True):
        calls = {f"{name}_{n}": count for n, row in enumerate(rows) for name, count in row["calls"].items()}
        arena = _largest([row["arena_bytes"] for row in rows])
        found.append({"sizes": rows[0]["sizes"], "calls": calls, "arena_bytes": arena})
    return found


def _regions(levels: Sequence[Modules]) -> tuple[list[Region], np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """Each level's place in the weights of all."""
    places: dict[bytes, Region] = {}
    found, pieces, at = [], [], 0
    for level in levels:
        data = np.asarray(level.weights).view(np.uint8).reshape(-1)
        key = data.tobytes()
        if key not in places:
            places[key] = Region(at, data.nbytes)
            padding = -data.nbytes % _REGION
            pieces += [data, np.zeros(padding, np.uint8)]
            at += data.nbytes + padding
        found.append(places[key])
    return found, np.concatenate(pieces)


def _renamed(text: str, n: int) -> str:
    """A level's functions under names of their own (a dot and a number is what LLVM itself makes names differ by)."""
    own = r"tw_run\b|tw_kept\b|tw_plan\b|tw_(?:sub|sized)\d+\b|tw_beside\d+(?:_at)?\b"
    return re.sub(rf'@("k_[0-9a-f]+|{own})', rf"@\g<1>_{n}", text)


def _choice(targets: Sequence[Target], regions: Sequence[Region]) -> str:
    """``tw_run`` and ``tw_plan`` of all levels."""
    last = len(targets) - 1
    signature = "(ptr %args, ptr %dims, ptr %weights, ptr %memory, i32 %threads)"
    lines = [DETECT, *_level([t.cpu for t in targets])]
    for n in range(last + 1):
        lines += [f"declare i32 @tw_run_{n}(ptr, ptr, ptr, ptr, i32)", f"declare void @tw_plan_{n}(ptr, ptr)"]
    cases = " ".join(f"i32 {n}, label %level{n}" for n in range(1, last + 1))
    lines.append(f"define i32 @tw_run{signature} nounwind {{")
    lines += ["  %level = call i32 @tw_level()", f"  switch i32 %level, label %level0 [ {cases} ]"]
    for n, region in enumerate(regions):
        lines += [
            f"level{n}:",
            f"  %w{n} = getelementptr i8, ptr %weights, i64 {region.offset}",
            f"  %r{n} = call i32 @tw_run_{n}(ptr %args, ptr %dims, ptr %w{n}, ptr %memory, i32 %threads)",
            f"  ret i32 %r{n}",
        ]
    lines += ["}", "define void @tw_plan(ptr %dims, ptr %out) nounwind {"]
    lines += ["  %level = call i32 @tw_level()", f"  switch i32 %level, label %level0 [ {cases} ]"]
    for n in range(last + 1):
        lines += [f"level{n}:", f"  call void @tw_plan_{n}(ptr %dims, ptr %out)", "  ret void"]
    return "\n".join([*lines, "}", ""])


def _level(cpus: Sequence[str]) -> list[str]:
    """``tw_level()``: the last level all of whose needs are met, found once."""
    lines = [
        "@tw_known_level = internal global i32 -1",
        "define internal i32 @tw_level() nounwind {",
        "  %known = load atomic i32, ptr @tw_known_level monotonic, align 4",
        "  %is_known = icmp sge i32 %known, 0",
        "  br i1 %is_known, label %told, label %find",
        "told:",
        "  ret i32 %known",
        "find:",
        *[f"  %{word} = call i32 @tw_feature_{word}()" for word in _asked(cpus)],
    ]
    result = "0"
    for n, cpu in enumerate(cpus):
        if n == 0:  # the plainest level needs nothing, and is the answer where no other is met
            continue
        met = "true"
        for word, bits in x86.NEEDS[cpu].items():
            lines.append(f"  %m{n}.{word} = and i32 %{word}, {bits}")
            lines.append(f"  %e{n}.{word} = icmp eq i32 %m{n}.{word}, {bits}")
            lines.append(f"  %a{n}.{word} = and i1 {met}, %e{n}.{word}")
            met = f"%a{n}.{word}"
        # from the plainest up: a later level that is met takes the place of those before it
        lines.append(f"  %l{n} = select i1 {met}, i32 {n}, i32 {result}")
        result = f"%l{n}"
    return [*lines, f"  store atomic i32 {result}, ptr @tw_known_level monotonic, align 4", f"  ret i32 {result}", "}"]


def _asked(cpus: Sequence[str]) -> list[str]:
    """The words that a choice among these CPUs looks at."""
    return sorted({word for cpu in cpus for word in x86.NEEDS[cpu]})


def _code(head: str, code: bytes) -> str:
    data = "".join(f"\\{b:02X}" for b in code)
    attributes = f'naked noinline prologue [{len(code)} x i8] c"{data}"'
    return f"define internal x86_64_sysvcc {head} {attributes} {{\n  unreachable\n}}"


DETECT = "\n".join(
    [
        _code("void @tw_cpuid(ptr %out, i32 %leaf, i32 %subleaf)", _CPUID),
        _code("i32 @tw_xgetbv()", _XGETBV),
        """
define internal i32 @tw_cpuid_word(i32 %leaf, i32 %subleaf, i32 %word) nounwind {
  %out = alloca [4 x i32], align 16
  %group = and i32 %leaf, -2147483648
  call x86_64_sysvcc void @tw_cpuid(ptr %out, i32 %group, i32 0)
  %most = load i32, ptr %out
  %has = icmp uge i32 %most, %leaf
  br i1 %has, label %first, label %none
first:
  %is_first = icmp eq i32 %subleaf, 0
  br i1 %is_first, label %ask, label %count
count:
  call x86_64_sysvcc void @tw_cpuid(ptr %out, i32 %leaf, i32 0)
  %last = load i32, ptr %out
  %has_it = icmp uge i32 %last, %subleaf
  br i1 %has_it, label %ask, label %none
ask:
  call x86_64_sysvcc void @tw_cpuid(ptr %out, i32 %leaf, i32 %subleaf)
  %at = getelementptr i32, ptr %out, i32 %word
  %bits = load i32, ptr %at
  ret i32 %bits
none:
  ret i32 0
}
define internal i32 @tw_feature_saved() nounwind {
  %basic = call i32 @tw_feature_basic()
  %bit = and i32 %basic, 134217728
  %may = icmp ne i32 %bit, 0
  br i1 %may, label %ask, label %none
ask:
  %bits = call x86_64_sysvcc i32 @tw_xgetbv()
  ret i32 %bits
none:
  ret i32 0
}
""",
        *(
            f"define internal i32 @tw_feature_{word}() nounwind {{\n"
            f"  %bits = call i32 @tw_cpuid_word(i32 {leaf - (leaf >> 31 << 32)}, i32 {subleaf}, i32 {register})\n"
            "  ret i32 %bits\n}\n"
            for word, (leaf, subleaf, register) in x86.WORDS.items()
        ),
    ]
)
