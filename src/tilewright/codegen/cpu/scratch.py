"""Where a kernel's local buffers live: a little on the stack, the rest in memory that the caller brings.

In: sizes, as functions are emitted. Out: places; what a kernel needs is a ``ScratchSpec``. Not its business: who has
the memory (``codegen.cpu.program`` for calls, ``runtime`` and ``aot`` for models).

A kernel's last argument is its scratch. Threads may be short of stack (128 KiB with musl, 512 KiB on macOS), so that
only ``STACK_LIMIT`` bytes of a function's buffers lie there. The memory, by rising addresses::

    flags of the threads, FLAG_BYTES each | the kernel's own buffers | a slot of the buffers of tasks for each thread
                                          ^ the argument

Tasks are not told which thread runs them, and a program may bring threads of its own. So a task takes a free slot by
its flag, at first the one that its place among the tasks suggests (the pool deals neighbours to one thread), and gives
it back. There are as many slots as threads at most, so that nobody waits. All flags are zero when a kernel begins.
"""

from __future__ import annotations

from tilewright.runtime.manifest import ScratchSpec

STACK_LIMIT = 4096
"""Bytes of buffers that a function may have on the stack."""
FLAG_BYTES = 64
"""A thread's flag has a cache line of its own."""
ALIGNMENT = 64


def start_of(scratch: ScratchSpec, threads: int) -> int:
    """Bytes of flags, which lie before what a kernel's argument points to."""
    return FLAG_BYTES * threads if scratch.per_thread else 0


class Locals:
    """The local buffers of one function: addresses for as many bytes as asked for, each a multiple of ``ALIGNMENT``."""

    def __init__(self) -> None:
        self.on_stack = 0
        self.in_scratch = 0

    def place(self, n_bytes: int) -> int | None:
        """Bytes from the scratch's start, or None where the buffer fits on the stack."""
        n_bytes = -(-n_bytes // ALIGNMENT) * ALIGNMENT
        if self.on_stack + n_bytes <= STACK_LIMIT:
            self.on_stack += n_bytes
            return None
        at = self.in_scratch
        self.in_scratch += n_bytes
        return at


def zero_flags(threads: str) -> list[str]:
    """LLVM text that clears the flags of ``threads`` (i64, at least 1) threads, from ``%memory`` on."""
    return [
        "  br label %flags",
        "flags:",
        "  %flag = phi i64 [ 0, %entry ], [ %flag1, %flags ]",
        f"  %flag.offset = mul i64 %flag, {FLAG_BYTES}",
        "  %flag.at = getelementptr i8, ptr %memory, i64 %flag.offset",
        f"  store i32 0, ptr %flag.at, align {FLAG_BYTES}",
        "  %flag1 = add i64 %flag, 1",
        f"  %flag.more = icmp slt i64 %flag1, {threads}",
        "  br i1 %flag.more, label %flags, label %begin",
        "begin:",
    ]


def with_slot(call: str, n_bytes: int) -> list[str]:
    """LLVM text of a task that runs ``call`` with a slot of ``n_bytes`` at ``%slot``.

    It finds ``%scratch``, ``%slots``, ``%threads``, ``%n_tasks`` and its number ``%task``.
    """
    # Tasks far apart begin their search at different slots, so that they seldom meet; the flag decides all the same.
    return [
        "  %part = mul i64 %task, %threads",
        "  %home = udiv i64 %part, %n_tasks",
        "  br label %try",
        "try:",
        "  %k = phi i64 [ %home, %entry ], [ %next, %taken ]",
        f"  %below = mul i64 %k, {-FLAG_BYTES}",
        f"  %under = sub i64 %below, {FLAG_BYTES}",
        "  %flag = getelementptr i8, ptr %scratch, i64 %under",
        "  %was = atomicrmw xchg ptr %flag, i32 1 acquire",
        "  %is_free = icmp eq i32 %was, 0",
        "  br i1 %is_free, label %begin, label %taken",
        "taken:",
        "  %after = add i64 %k, 1",
        "  %is_last = icmp eq i64 %after, %threads",
        "  %next = select i1 %is_last, i64 0, i64 %after",
        "  br label %try",
        "begin:",
        f"  %offset = mul i64 %k, {n_bytes}",
        "  %slot = getelementptr i8, ptr %slots, i64 %offset",
        call,
        "  store atomic i32 0, ptr %flag release, align 4",
    ]
