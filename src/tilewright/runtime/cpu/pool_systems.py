"""What the thread pool asks of a CPU and a system: a pause, threads, a clock, and two words to sleep on.

In: a machine's triple, as LLVM writes it. Out: its :class:`PoolAbi`, and the parts of the pool's text that differ
between systems. Not its business: how the pool works (``pool``).
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import replace

from tilewright.runtime.cpu.float_mode import FloatMode, float_mode
from tilewright.runtime.plain import dataclass


@dataclass(frozen=True, slots=True)
class PoolAbi:
    """What differs between CPUs and systems.

    ``futex`` is the number of Linux's system call, or None: then threads sleep on a condition variable, of POSIX, which
    any system with pthread has, or of Windows where ``is_windows``, whose threads and clock are then Windows' too.
    ``mutex`` and ``condition`` are what these begin with before their first use.
    ``pause`` is the call of the intrinsic that hints a pause, ``pause_type`` its declaration, ``features`` what the
    target machine must have on to know it. (Inline assembly would need the target's assembly parser, which only the
    host's target has.) ``long`` is C's type of that name, ``clock`` the number of the monotonic clock, ``set_mask``
    what tells ``pthread_sigmask`` to set, ``mode`` the register that a job's threads have the caller's of.
    """

    futex: int | None
    pause: str
    pause_type: str
    features: str = ""
    long: str = "i64"
    clock: int = 1
    set_mask: int = 2
    mutex: int = 0
    condition: int = 0
    is_windows: bool = False
    mode: FloatMode = float_mode("")


POOL_ABIS = {
    "x86_64": PoolAbi(202, "@llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()", mode=float_mode("x86_64")),
    # "yield" does nothing on most cores; "isb sy" waits some tens of cycles.
    "aarch64": PoolAbi(98, "@llvm.aarch64.isb(i32 15)", "@llvm.aarch64.isb(i32)", mode=float_mode("aarch64")),
    # Zihintpause is encoded as a fence that does nothing on cores without it.
    "riscv64": PoolAbi(98, "@llvm.riscv.pause()", "@llvm.riscv.pause()", "+zihintpause"),
    # "yield"; glibc's and musl's 32-bit clock_gettime has a 32-bit time, of which differences are taken.
    "armv7": PoolAbi(None, "@llvm.arm.hint(i32 1)", "@llvm.arm.hint(i32)", long="i32"),
}
"""Linux on the CPUs we emit pools for, by the first part of the LLVM triple."""

_DARWIN = ("darwin", "macos", "ios")


def pool_abi(triple: str) -> PoolAbi | None:
    """The pool of a machine and its system; None where there is none (bare metal)."""
    cpu, *rest = triple.split("-")
    linux = POOL_ABIS.get({"arm64": "aarch64"}.get(cpu, cpu))
    if any(p.startswith(_DARWIN) for p in rest):  # pthread_impl.h: signatures; time.h: CLOCK_MONOTONIC; signal.h
        return linux and replace(linux, futex=None, clock=6, set_mask=3, mutex=0x32AAABA7, condition=0x3CB0B1BB)
    if any(p.startswith("windows") for p in rest):
        return linux and replace(linux, futex=None, is_windows=True)
    return linux if "linux" in rest else None


def system_parts(abi: PoolAbi) -> Mapping[str, str]:
    """The parts of the pool's text that differ between systems, by the names of their places."""
    start = {"mutex": abi.mutex, "condition": abi.condition}
    locks = _WINDOWS_LOCKS if abi.is_windows else _POSIX_LOCKS
    threads = _WINDOWS_THREADS if abi.is_windows else _POSIX_THREADS
    own = {"long": abi.long, "set_mask": abi.set_mask}
    own |= {"clock": abi.clock, "widen": "sext" if abi.long == "i32" else "bitcast"}
    parts = {part: string.Template(text).substitute(own) for part, text in threads.items()}
    if abi.futex is not None:
        return parts | {"sleeping": _FUTEX.substitute(futex=abi.futex), "reset_sleeping": ""}
    # A child that a fork made may have inherited a lock that nobody will give back: it begins with new ones.
    reset = _RESET_CONDITION.substitute(start)
    return parts | {"sleeping": _CONDITION.substitute(locks, **start), "reset_sleeping": reset}


_FUTEX = string.Template(r"""
declare i64 @syscall(i64, ...)

; FUTEX_WAIT_PRIVATE: sleep while *word == value (woken early for no reason at times: callers loop).
define internal void @wait(ptr %word, i32 %value) noinline {
  call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i32 128, i32 %value, ptr null, ptr null, i32 0)
  ret void
}

; FUTEX_WAKE_PRIVATE after a change of the word, so that a thread just about to sleep does not.
define internal void @wake(ptr %word, i32 %count) noinline {
  atomicrmw add ptr %word, i32 1 seq_cst
  call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i32 129, i32 %count, ptr null, ptr null, i32 0)
  ret void
}
""")

_POSIX_LOCKS = {
    "declared": """\
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
""",
    "lock": "i32 @pthread_mutex_lock(ptr @mutex)",
    "unlock": "i32 @pthread_mutex_unlock(ptr @mutex)",
    "sleep": "i32 @pthread_cond_wait(ptr @condition, ptr @mutex)",
    "wake": "i32 @pthread_cond_broadcast(ptr @condition)",
}
_WINDOWS_LOCKS = {
    "declared": """\
declare void @AcquireSRWLockExclusive(ptr)
declare void @ReleaseSRWLockExclusive(ptr)
declare i32 @SleepConditionVariableSRW(ptr, ptr, i32, i32)
declare void @WakeAllConditionVariable(ptr)
""",
    "lock": "void @AcquireSRWLockExclusive(ptr @mutex)",
    "unlock": "void @ReleaseSRWLockExclusive(ptr @mutex)",
    "sleep": "i32 @SleepConditionVariableSRW(ptr @condition, ptr @mutex, i32 -1, i32 0)",
    "wake": "void @WakeAllConditionVariable(ptr @condition)",
}
_CONDITION = string.Template(
    r"""
@mutex = internal global [16 x i64] [i64 $mutex, INIT], align 64
@condition = internal global [16 x i64] [i64 $condition, INIT], align 64
$declared
; Sleep while *word == value.
define internal void @wait(ptr %word, i32 %value) noinline {
entry:
  call $lock
  br label %look
look:
  %now = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %now, %value
  br i1 %same, label %sleep, label %out
sleep:
  call $sleep
  br label %look
out:
  call $unlock
  ret void
}

; Change the word and wake whoever sleeps: those of the other word look and sleep again.
define internal void @wake(ptr %word, i32 %count) noinline {
  call $lock
  atomicrmw add ptr %word, i32 1 seq_cst
  call $wake
  call $unlock
  ret void
}
""".replace("INIT", ", ".join(["i64 0"] * 15))
)
_RESET_CONDITION = string.Template("""\
  call void @llvm.memset.p0.i64(ptr @mutex, i8 0, i64 128, i1 false)
  call void @llvm.memset.p0.i64(ptr @condition, i8 0, i64 128, i1 false)
  store i64 $mutex, ptr @mutex
  store i64 $condition, ptr @condition
""")

_POSIX_THREADS = {
    "declared_threads": """\
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach($long)
declare i32 @pthread_sigmask(i32, ptr, ptr)
""",
    "now": """\
define internal i64 @now() noinline {
  %ts = alloca { $long, $long }
  call i32 @clock_gettime(i32 $clock, ptr %ts)
  %s0 = load $long, ptr %ts
  %s = $widen $long %s0 to i64
  %nsp = getelementptr { $long, $long }, ptr %ts, i32 0, i32 1
  %ns0 = load $long, ptr %nsp
  %ns = $widen $long %ns0 to i64
  %s_ns = mul i64 %s, 1000000000
  %t = add i64 %s_ns, %ns
  ret i64 %t
}
""",
    "thread_room": """\
  %tid = alloca i64
  %all = alloca [16 x i64]
  %old = alloca [16 x i64]
""",
    "block_signals": """\
  call void @llvm.memset.p0.i64(ptr %all, i8 -1, i64 128, i1 false)
  call i32 @pthread_sigmask(i32 $set_mask, ptr %all, ptr %old)
""",
    "start_thread": """\
  %rc = call i32 @pthread_create(ptr %tid, ptr null, ptr @work, ptr %arg)
  %ok = icmp eq i32 %rc, 0
""",
    "let_go": """\
  %t = load $long, ptr %tid
  call i32 @pthread_detach($long %t)
""",
    "unblock_signals": """\
  call i32 @pthread_sigmask(i32 $set_mask, ptr %old, ptr null)
""",
}
_WINDOWS_THREADS = {
    "declared_threads": """\
declare i32 @QueryPerformanceCounter(ptr)
declare i32 @QueryPerformanceFrequency(ptr)
declare ptr @CreateThread(ptr, i64, ptr, ptr, i32, ptr)
declare i32 @CloseHandle(ptr)
""",
    "now": """\
define internal i64 @now() noinline {
  %counted = alloca i64
  %rate = alloca i64
  call i32 @QueryPerformanceCounter(ptr %counted)
  call i32 @QueryPerformanceFrequency(ptr %rate)
  %ticks = load i64, ptr %counted
  %hz = load i64, ptr %rate
  %s = udiv i64 %ticks, %hz
  %rest = urem i64 %ticks, %hz
  %s_ns = mul i64 %s, 1000000000
  %rest_ns = mul i64 %rest, 1000000000
  %ns = udiv i64 %rest_ns, %hz
  %t = add i64 %s_ns, %ns
  ret i64 %t
}
""",
    "thread_room": "",
    "block_signals": "",
    "start_thread": """\
  %thread = call ptr @CreateThread(ptr null, i64 0, ptr @work, ptr %arg, i32 0, ptr null)
  %ok = icmp ne ptr %thread, null
""",
    "let_go": "  call i32 @CloseHandle(ptr %thread)\n",
    "unblock_signals": "",
}
"""What the pool asks of a system's threads; a thread's function returns nothing of use on either."""
