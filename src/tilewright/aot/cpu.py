"""Does this CPU have what an object's code needs? Asked before the first instruction that it might lack.

In: a ``Target``. Out: LLVM text of ``NAME_cpu_is_fit()``, and which attributes keep the code around it plain.
Not its business: choosing among several codes (``dispatch``), whose words of CPU features it reads, and which bits a
CPU's code needs (``target``).

The answer is found once and kept in a word that any thread may write, because all write the same. On x86-64 the CPU
itself is asked, and Linux for matrix registers where code has some; on AArch64, Armv7 and RISC-V with Linux the system
is, by ``getauxval``. Elsewhere nothing is asked: code is for what every CPU of the system has, or for a known device.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from tilewright.aot.dispatch import DETECT
from tilewright.target import aarch64, arm, riscv, x86
from tilewright.target.target import Target

_ASK_FOR_TILES = """\
  br i1 {met}, label %ask, label %asked
ask:
  %refused = call i64 (i64, ...) @syscall(i64 158, i64 4131, i64 18)
  %is_given = icmp eq i64 %refused, 0
  br label %asked
asked:
  %fit = phi i1 [ false, %find ], [ %is_given, %ask ]
"""
"""Linux's ``arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)``, without which matrix registers are a fault."""
_WORD = """
define internal i32 @tw_feature_{name}() nounwind {{
  %bits = call {long} @getauxval({long} {key})
  %word = {cut}
  ret i32 %word
}}
"""
_SYSCALL = "declare i64 @syscall(i64, ...)"
_VECTORS = (
    f"\n{_SYSCALL}"
    + """
define internal i32 @tw_feature_vectors() nounwind {
  %pair = alloca [2 x i64], align 8
  store i64 4, ptr %pair
  %at = getelementptr i64, ptr %pair, i64 1
  store i64 0, ptr %at
  %failed = call i64 (i64, ...) @syscall(i64 258, ptr %pair, i64 1, i64 0, ptr null, i32 0)
  %key = load i64, ptr %pair
  %told = load i64, ptr %at
  %is_done = icmp eq i64 %failed, 0
  %is_known = icmp eq i64 %key, 4
  %is_told = and i1 %is_done, %is_known
  %bit = and i64 %told, 4
  %has = icmp ne i64 %bit, 0
  %word = call i32 @tw_feature_hwcap()
  %moved = lshr i32 %word, 21
  %old = and i32 %moved, 1
  %new = zext i1 %has to i32
  %answer = select i1 %is_told, i32 %new, i32 %old
  ret i32 %answer
}
"""
)
"""``riscv_hwprobe`` (Linux 6.4) tells the ratified vectors from drafts; an older system's word has a bit for either."""


def _linux_words(long: str) -> str:
    cut = "trunc i64 %bits to i32" if long == "i64" else "add i32 %bits, 0"
    words = [_WORD.format(name=name, long=long, cut=cut, key=key) for name, key in (("hwcap", 16), ("hwcap2", 26))]
    return f"declare {long} @getauxval({long})\n" + "".join(words)


@dataclass(frozen=True)
class _Questions:
    """How a kind of machine is asked: ``needs`` by CPU, features that are on and others that are off, the functions
    that read a word, and the attributes of code that any machine of the kind runs."""

    needs: Callable[[str, Set[str], Set[str]], dict[str, int]]
    text: str
    plain: str


def _plain(cpu: str, features: str) -> str:
    return f'"target-cpu"="{cpu}" "target-features"="{features}"'


_BY_TRIPLE = (
    ("x86_64-", "", _Questions(x86.needs_of, DETECT, _plain("x86-64", "+sse2"))),
    ("aarch64-", "linux", _Questions(aarch64.needs_of, _linux_words("i64"), _plain("generic", "+neon"))),
    ("armv7-", "linux", _Questions(arm.needs_of, _linux_words("i32"), _plain("generic", "+vfp3d16,-neon"))),
    ("riscv64-", "linux",
     _Questions(riscv.needs_of, _linux_words("i64") + _VECTORS, _plain("generic-rv64", "+m,+a,+f,+d,+c"))),
)  # fmt: skip


def _questions(target: Target) -> _Questions | None:
    found = (q for start, system, q in _BY_TRIPLE if target.triple.startswith(start) and system in target.triple)
    return next(found, None)


def needs_of(target: Target) -> dict[str, int]:
    """By word, the bits that a CPU must show; empty where nothing is to ask."""
    of = _questions(target)
    features = target.features.split(",")
    on, off = ({f[1:] for f in features if f.startswith(sign)} for sign in "+-")
    return {} if of is None else of.needs(target.cpu, on, off)


def plain_attributes(target: Target) -> str:
    """Attributes of functions that run before the question is answered."""
    of = _questions(target)
    return of.plain if of is not None and needs_of(target) else ""


def cpu_text(target: Target, name: str) -> str:
    """``i1 NAME_cpu_is_fit()``; empty where nothing is to ask."""
    needs, plain, of = needs_of(target), plain_attributes(target), _questions(target)
    if not needs or of is None:
        return ""
    lines = [
        f"@{name}_cpu_answer = internal global i32 0",
        f"define internal i1 @{name}_cpu_is_fit() nounwind {plain} {{",
        f"  %known = load atomic i32, ptr @{name}_cpu_answer monotonic, align 4",  # 0 not asked yet, 1 fit, 2 not
        "  %is_known = icmp ne i32 %known, 0",
        "  br i1 %is_known, label %told, label %find",
        "told:",
        "  %yes = icmp eq i32 %known, 1",
        "  ret i1 %yes",
        "find:",
    ]
    met = "true"
    for word, bits in needs.items():
        lines += [
            f"  %{word} = call i32 @tw_feature_{word}()",
            f"  %m.{word} = and i32 %{word}, {bits}",
            f"  %e.{word} = icmp eq i32 %m.{word}, {bits}",
            f"  %a.{word} = and i1 {met}, %e.{word}",
        ]
        met = f"%a.{word}"
    if x86.asks_for_tiles(needs):
        lines = [_SYSCALL, *lines, *_ASK_FOR_TILES.format(met=met).splitlines()]
        met = "%fit"
    lines += [
        f"  %answer = select i1 {met}, i32 1, i32 2",
        f"  store atomic i32 %answer, ptr @{name}_cpu_answer monotonic, align 4",
        f"  ret i1 {met}",
        "}",
        "",
    ]
    # the questions, too, run before it is known what the CPU has
    return of.text.replace("nounwind {", f"nounwind {plain} {{") + "\n".join(lines)
