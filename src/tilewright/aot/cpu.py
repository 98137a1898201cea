"""Does this CPU have what an object's code needs? Asked before the first instruction that it might lack.

In: a ``Target``. Out: LLVM text of ``NAME_cpu_is_fit()``, and which attributes keep the code around it plain.
Not its business: choosing among several codes (``dispatch``), whose words of CPU features it reads.

The answer is found once and kept in a word that any thread may write, because all write the same. For other CPUs than
x86-64 there is no question: their targets need what every CPU of the kind has, or are built for a known device.
"""

from __future__ import annotations

from tilewright.aot.dispatch import DETECT
from tilewright.codegen.isa import x86
from tilewright.codegen.target import Target


def needs_of(target: Target) -> dict[str, int]:
    """By word of ``x86.WORDS``, the bits that a CPU must show; empty where nothing is to ask."""
    if not target.triple.startswith("x86_64"):
        return {}
    return x86.needs_of(target.cpu, {f[1:] for f in target.features.split(",") if f.startswith("+")})


def plain_attributes(target: Target) -> str:
    """Attributes of functions that run before the question is answered."""
    return '"target-cpu"="x86-64" "target-features"="+sse2"' if needs_of(target) else ""


def cpu_text(target: Target, name: str) -> str:
    """``i1 NAME_cpu_is_fit()``; empty where nothing is to ask."""
    needs, plain = needs_of(target), plain_attributes(target)
    if not needs:
        return ""
    lines = [
        f"@{name}_cpu_answer = internal global i32 0",
        f"define internal i1 @{name}_cpu_is_fit() nounwind {plain} {{",
        f"  %known = load atomic i32, ptr @{name}_cpu_answer monotonic, align 4",
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
    lines += [
        f"  %answer = select i1 {met}, i32 1, i32 2",
        f"  store atomic i32 %answer, ptr @{name}_cpu_answer monotonic, align 4",
        f"  ret i1 {met}",
        "}",
        "",
    ]
    return DETECT.replace("nounwind {", f"nounwind {plain} {{") + "\n".join(lines)
