"""What LLVM expects of a C library, for systems without one: ``memcpy``, ``memmove``, ``memset``, Arm's names of them.

In: a ``System`` and a triple. Out: LLVM text of weak definitions, which give way to a program's own; nothing where
there is a libc. Not its business: arithmetic that a CPU lacks (the compiler's own library, such as libgcc, has it).
"""

from __future__ import annotations

from tilewright.aot.system import System

_COPY = """
define weak hidden ptr @memcpy(ptr %to, ptr %from, SIZE %n) nounwind "no-builtins" {
entry:
  %forward = icmp ule ptr %to, %from
  br label %test
test:
  %i = phi SIZE [ 0, %entry ], [ %next, %body ]
  %more = icmp ult SIZE %i, %n
  br i1 %more, label %body, label %done
body:
  %left = sub SIZE %n, %i
  %last = sub SIZE %left, 1
  %at = select i1 %forward, SIZE %i, SIZE %last
  %source = getelementptr i8, ptr %from, SIZE %at
  %target = getelementptr i8, ptr %to, SIZE %at
  %byte = load volatile i8, ptr %source
  store i8 %byte, ptr %target
  %next = add SIZE %i, 1
  br label %test
done:
  ret ptr %to
}
define weak hidden ptr @memmove(ptr %to, ptr %from, SIZE %n) nounwind "no-builtins" {
  %r = call ptr @memcpy(ptr %to, ptr %from, SIZE %n)
  ret ptr %r
}
define weak hidden ptr @memset(ptr %to, i32 %value, SIZE %n) nounwind "no-builtins" {
entry:
  %byte = trunc i32 %value to i8
  br label %test
test:
  %i = phi SIZE [ 0, %entry ], [ %next, %body ]
  %more = icmp ult SIZE %i, %n
  br i1 %more, label %body, label %done
body:
  %target = getelementptr i8, ptr %to, SIZE %i
  store volatile i8 %byte, ptr %target
  %next = add SIZE %i, 1
  br label %test
done:
  ret ptr %to
}
"""
_ARM = """
define weak hidden void @__aeabi_memcpyALIGN(ptr %to, ptr %from, i32 %n) nounwind "no-builtins" {
  call ptr @memcpy(ptr %to, ptr %from, i32 %n)
  ret void
}
define weak hidden void @__aeabi_memmoveALIGN(ptr %to, ptr %from, i32 %n) nounwind "no-builtins" {
  call ptr @memcpy(ptr %to, ptr %from, i32 %n)
  ret void
}
define weak hidden void @__aeabi_memsetALIGN(ptr %to, i32 %n, i32 %value) nounwind "no-builtins" {
  call ptr @memset(ptr %to, i32 %value, i32 %n)
  ret void
}
define weak hidden void @__aeabi_memclrALIGN(ptr %to, i32 %n) nounwind "no-builtins" {
  call ptr @memset(ptr %to, i32 0, i32 %n)
  ret void
}
"""
_PLAIN = ("memcpy", "memmove", "memset")


def freestanding_symbols() -> list[str]:
    """Every name that ``freestanding_text`` may define."""
    return [*_PLAIN, *(f"__aeabi_{f}{a}" for f in (*_PLAIN, "memclr") for a in ("", "4", "8"))]


def freestanding_text(system: System, triple: str) -> str:
    """The definitions; empty where a libc has them."""
    if system.has_libc:
        return ""
    is_arm = triple.startswith(("arm", "thumb"))
    arm = "".join(_ARM.replace("ALIGN", align) for align in ("", "4", "8")) if is_arm else ""
    return _COPY.replace("SIZE", system.size_type) + arm
