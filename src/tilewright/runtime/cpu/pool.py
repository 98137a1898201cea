"""The fork-join thread pool, as LLVM IR text.

In: a ``PoolAbi``, the few facts that differ between CPUs. Out: the text of one module, the same for JIT and for
ahead-of-time objects. Not its business: compiling the text (``linker``), choosing thread counts (``threads``).

Exports: ``tw_parallel_for(fn, ctx, n_tasks, threads)`` runs ``fn(ctx, task)`` for every task in ``[0, n_tasks)`` with
at most ``threads`` threads, the caller being one; ``tw_pool_reset()`` makes a forked child forget its parent's
workers; ``tw_pool_spin(ns)`` sets how long an idle worker spins; ``tw_pool_workers()`` says how many exist.

How it works, and why it is right:

* Tasks are dealt in chunks of neighbours, ``CHUNKS`` for each thread where there are as many. One 64-bit word holds
  ``seats << 48 | chunks left``. A worker joins a job by taking a seat and a chunk in one compare-and-swap, then takes
  chunks one by one; the caller takes chunks without a seat. Whoever holds an unfinished chunk keeps the job alive,
  because the caller returns only when ``done`` says that workers finished everything it did not do itself. So a
  successful swap, however late, always claims from the *current* job, and the job's other fields may be read after it
  without a lock. A worker that never shows up delays nobody.
* A swap says that a chunk is one's own, not which. Every thread has a range of chunks, the same part of every job, and
  takes them in order; with its own range done it goes on to the next one's. So where one kernel's rows are read by the
  next kernel's, a core finds most of them in its own cache. A range's cursor counts whoever takes from it, and since
  no more chunks are claimed than there are, who holds a claim finds one.
* The caller publishes with a sequentially consistent store of the word and then reads ``sleepers``; a worker adds
  itself to ``sleepers`` and then reads the word again. One of the two must see the other, so no wake-up is lost, and
  a hot fork costs no system call. The same argument covers ``waiter`` (a caller that sleeps) against ``done``.
* A caller that finds the lock taken (another thread, or a nested call) runs its tasks inline.
* An idle worker spins for ``spin`` ns of monotonic time, then sleeps in a futex (where there is none, on a
  condition variable under a lock that only sleepers and wakers take). If its clock jumps by more than
  200 us while spinning, somebody else had its CPU: the machine is oversubscribed, and the worker's next 64 waits skip
  the spinning.
* Workers block all signals, so that Python's handlers run where Python expects them.

Measured by ``python benchmarks/fork_join.py`` (2 threads, 2-core Cascade Lake VM at a load of 6 from other processes,
200,000 forks, three runs): an empty body 0.05 to 0.25 us median (0.43 us at the 99th percentile); a body that can't end
before both threads run it, so the whole way there and back, 0.10 to 0.46 us median (0.82 us). Waking sleeping workers
takes 16 us at best and whatever the scheduler takes on a loaded machine; the caller works meanwhile. Idle: 0.01 % of a
core, all of it the measuring process's own.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, replace

MAX_THREADS = 1024
"""Most threads a job may ask for; more are treated as this many."""

CHUNKS = 16
"""Chunks for each thread: fewer swaps than tasks, and an uneven chunk is a small part of a thread's work."""

RANGES = 64
"""Threads with a range of their own; more share them."""

DEFAULT_SPIN_NS = 50_000
"""Longer than the serial gaps inside a model, shorter than a scheduler's time slice by far."""


@dataclass(frozen=True, slots=True)
class PoolAbi:
    """What differs between CPUs and systems.

    ``futex`` is the number of Linux's system call, or None: then threads sleep on a condition variable, of POSIX, which
    any system with pthread has, or of Windows where ``is_windows``, whose threads and clock are then Windows' too.
    ``mutex`` and ``condition`` are what these begin with before their first use.
    ``pause`` is the call of the intrinsic that hints a pause, ``pause_type`` its declaration, ``features`` what the
    target machine must have on to know it. (Inline assembly would need the target's assembly parser, which only the
    host's target has.) ``long`` is C's type of that name, ``clock`` the number of the monotonic clock, ``set_mask``
    what tells ``pthread_sigmask`` to set.
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


POOL_ABIS = {
    "x86_64": PoolAbi(202, "@llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()"),
    # "yield" does nothing on most cores; "isb sy" waits some tens of cycles.
    "aarch64": PoolAbi(98, "@llvm.aarch64.isb(i32 15)", "@llvm.aarch64.isb(i32)"),
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


_FIELDS = {
    "done": "@end",
    "waiter": "getelementptr (%end_t, ptr @end, i64 0, i32 1)",
    "bell": "getelementptr (%end_t, ptr @end, i64 0, i32 2)",
    "lock": "@crew",
    "workers": "getelementptr (%crew_t, ptr @crew, i64 0, i32 1)",
    "sleepers": "getelementptr (%crew_t, ptr @crew, i64 0, i32 2)",
    "epoch": "getelementptr (%crew_t, ptr @crew, i64 0, i32 3)",
}
"""Parts of the globals; no aliases, whose sizes in the object file are those of the whole."""


def pool_ir(abi: PoolAbi) -> str:
    """The text of the pool's module for one CPU."""
    sleeping = _CONDITION if abi.futex is None else _FUTEX
    start = {"mutex": abi.mutex, "condition": abi.condition}
    locks = _WINDOWS_LOCKS if abi.is_windows else _POSIX_LOCKS
    threads = _WINDOWS_THREADS if abi.is_windows else _POSIX_THREADS
    own = {"long": abi.long, "set_mask": abi.set_mask}
    own |= {"clock": abi.clock, "widen": "sext" if abi.long == "i32" else "bitcast"}
    return _IR.substitute(
        {part: string.Template(text).substitute(own) for part, text in threads.items()},
        sleeping=sleeping.substitute(futex=abi.futex, **locks, **start),
        reset_sleeping=_RESET_CONDITION.substitute(start) if abi.futex is None else "",
        pause=abi.pause,
        pause_type=abi.pause_type,
        max_workers=MAX_THREADS - 1,
        spin_ns=DEFAULT_SPIN_NS,
        seat=1 << 48,
        join=(1 << 48) + 1,
        task_mask=(1 << 48) - 1,
        chunks=CHUNKS,
        ranges=RANGES,
        **_FIELDS,
    )


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

_IR = string.Template(r"""
; A cache line each: the job (word, fn, ctx, n, tasks of a chunk, ranges), its end (done, waiter, bell), the crew, the
; settings; the chunks of a range (next, end).
%job_t = type { i64, ptr, ptr, i64, i64, i64, [16 x i8] }
%range_t = type { i64, i64, [48 x i8] }
%end_t = type { i64, i32, i32, [48 x i8] }
%crew_t = type { i32, i32, i32, i32, [48 x i8] }
@job = internal global %job_t zeroinitializer, align 64
@end = internal global %end_t zeroinitializer, align 64
@crew = internal global %crew_t zeroinitializer, align 64
@ranges = internal global [$ranges x %range_t] zeroinitializer, align 64
@spin = internal global i64 $spin_ns, align 64

${declared_threads}declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare void $pause_type

$now
$sleeping
; Start workers until there are %wanted; returns min(%wanted, number there are). Only the lock's holder calls it.
define internal i64 @hire(i64 %wanted) noinline {
entry:
${thread_room}  %have0 = load atomic i32, ptr $workers monotonic, align 4
  %have = sext i32 %have0 to i64
  %enough = icmp sge i64 %have, %wanted
  br i1 %enough, label %out, label %mask
mask:
${block_signals}  br label %more
more:
  %n = phi i64 [ %have, %mask ], [ %n1, %started ]
  %full = icmp sge i64 %n, %wanted
  br i1 %full, label %restore, label %start
start:
  %home = add i64 %n, 1
  %arg = inttoptr i64 %home to ptr
${start_thread}  br i1 %ok, label %started, label %restore
started:
${let_go}  %n1 = add i64 %n, 1
  br label %more
restore:
  %total = phi i64 [ %n, %more ], [ %n, %start ]
${unblock_signals}  %total32 = trunc i64 %total to i32
  store atomic i32 %total32, ptr $workers monotonic, align 4
  br label %out
out:
  %count = phi i64 [ %have, %entry ], [ %total, %restore ]
  %least = call i64 @llvm.smin.i64(i64 %count, i64 %wanted)
  ret i64 %least
}

; Take chunks until none is left. %step is what the first claim subtracts: a chunk, or a seat and a chunk. A worker's
; first claim also needs a free seat (%word >= %floor). %home is the range to begin with. Returns how many chunks were
; run.
define internal i64 @claim(i64 %step0, i64 %floor0, i64 %home) noinline {
entry:
  br label %look
look:
  %count = phi i64 [ 0, %entry ], [ %count1, %ran ]
  %step = phi i64 [ %step0, %entry ], [ 1, %ran ]
  %floor = phi i64 [ %floor0, %entry ], [ 0, %ran ]
  %from = phi i64 [ %home, %entry ], [ %range, %ran ]
  %seen = load atomic i64, ptr @job monotonic, align 64
  br label %try
try:
  %word = phi i64 [ %seen, %look ], [ %found, %swap ]
  %left = and i64 %word, $task_mask
  %some = icmp ne i64 %left, 0
  %seat = icmp uge i64 %word, %floor
  %may = and i1 %some, %seat
  br i1 %may, label %swap, label %out
swap:
  %next = sub i64 %word, %step
  %pair = cmpxchg weak ptr @job, i64 %word, i64 %next acq_rel monotonic, align 64
  %found = extractvalue { i64, i1 } %pair, 0
  %won = extractvalue { i64, i1 } %pair, 1
  br i1 %won, label %mine, label %try
mine:
  %fn = load ptr, ptr getelementptr (%job_t, ptr @job, i64 0, i32 1)
  %ctx = load ptr, ptr getelementptr (%job_t, ptr @job, i64 0, i32 2)
  %n = load i64, ptr getelementptr (%job_t, ptr @job, i64 0, i32 3)
  %grain = load i64, ptr getelementptr (%job_t, ptr @job, i64 0, i32 4)
  %n_ranges = load i64, ptr getelementptr (%job_t, ptr @job, i64 0, i32 5)
  br label %pick
pick:
  %any = phi i64 [ %from, %mine ], [ %after, %past ]
  %range = urem i64 %any, %n_ranges
  %cursor = getelementptr [$ranges x %range_t], ptr @ranges, i64 0, i64 %range
  %limit = getelementptr %range_t, ptr %cursor, i64 0, i32 1
  %end = load i64, ptr %limit
  %chunk = atomicrmw add ptr %cursor, i64 1 monotonic, align 64
  %is_one = icmp slt i64 %chunk, %end
  br i1 %is_one, label %begin, label %past
past:
  %after = add i64 %range, 1
  br label %pick
begin:
  %first = mul i64 %chunk, %grain
  %full = add i64 %first, %grain
  %stop = call i64 @llvm.smin.i64(i64 %full, i64 %n)
  br label %run
run:
  %task = phi i64 [ %first, %begin ], [ %task1, %run ]
  call void %fn(ptr %ctx, i64 %task)
  %task1 = add i64 %task, 1
  %more = icmp slt i64 %task1, %stop
  br i1 %more, label %run, label %ran
ran:
  %count1 = add i64 %count, 1
  br label %look
out:
  ret i64 %count
}

define internal ptr @work(ptr %arg) {
entry:
  %home = ptrtoint ptr %arg to i64
  br label %idle
idle:  ; %skip > 0: the machine was oversubscribed lately, one short look and then sleep
  %skip = phi i32 [ 0, %entry ], [ %skip1, %nap ], [ %skip, %report ]
  %epoch = load atomic i32, ptr $epoch acquire, align 4
  %start = call i64 @now()
  br label %batch
batch:
  %last = phi i64 [ %start, %idle ], [ %time, %again ]
  br label %poll
poll:
  %i = phi i32 [ 0, %batch ], [ %i1, %pause ]
  %word = load atomic i64, ptr @job monotonic, align 64
  %left = and i64 %word, $task_mask
  %some = icmp ne i64 %left, 0
  %seat = icmp uge i64 %word, $seat
  %may = and i1 %some, %seat
  br i1 %may, label %join, label %pause
pause:
  call void $pause
  %i1 = add i32 %i, 1
  %tired = icmp eq i32 %i1, 32
  br i1 %tired, label %clock, label %poll
clock:
  %time = call i64 @now()
  %limit = load atomic i64, ptr @spin monotonic, align 64
  %spent = sub i64 %time, %start
  %gap = sub i64 %time, %last
  %lost_cpu = icmp sgt i64 %gap, 200000
  %over = icmp sge i64 %spent, %limit
  %skipping = icmp sgt i32 %skip, 0
  %stop0 = or i1 %lost_cpu, %over
  %stop = or i1 %stop0, %skipping
  br i1 %stop, label %drowse, label %again
again:
  br label %batch
drowse:
  %fewer = sub i32 %skip, 1
  %skip_less = select i1 %skipping, i32 %fewer, i32 0
  %skip1 = select i1 %lost_cpu, i32 64, i32 %skip_less
  atomicrmw add ptr $sleepers, i32 1 seq_cst
  %word2 = load atomic i64, ptr @job seq_cst, align 64
  %left2 = and i64 %word2, $task_mask
  %some2 = icmp ne i64 %left2, 0
  %seat2 = icmp uge i64 %word2, $seat
  %may2 = and i1 %some2, %seat2
  br i1 %may2, label %nap, label %sleep
sleep:
  call void @wait(ptr $epoch, i32 %epoch)
  br label %nap
nap:
  atomicrmw sub ptr $sleepers, i32 1 seq_cst
  br label %idle
join:
  %count = call i64 @claim(i64 $join, i64 $seat, i64 %home)
  %none = icmp eq i64 %count, 0
  br i1 %none, label %report, label %tell
tell:
  atomicrmw add ptr $done, i64 %count seq_cst
  %asleep = load atomic i32, ptr $waiter seq_cst, align 4
  %ring = icmp ne i32 %asleep, 0
  br i1 %ring, label %wake, label %report
wake:
  call void @wake(ptr $bell, i32 1)
  br label %report
report:
  br label %idle
}

; Until workers have finished %need tasks: spin as long as an idle worker does, then sleep on the bell.
define internal void @finish(i64 %need) noinline {
entry:
  br label %batch0
batch0:
  br label %poll
poll:
  %i = phi i32 [ 0, %batch0 ], [ %i1, %pause ]
  %done = load atomic i64, ptr $done acquire, align 64
  %ready = icmp eq i64 %done, %need
  br i1 %ready, label %out, label %pause
pause:
  call void $pause
  %i1 = add i32 %i, 1
  %tired = icmp eq i32 %i1, 64
  br i1 %tired, label %clock0, label %poll
clock0:
  %start = call i64 @now()
  br label %batch
batch:
  br label %poll1
poll1:
  %j = phi i32 [ 0, %batch ], [ %j1, %pause1 ]
  %done1 = load atomic i64, ptr $done acquire, align 64
  %ready1 = icmp eq i64 %done1, %need
  br i1 %ready1, label %out, label %pause1
pause1:
  call void $pause
  %j1 = add i32 %j, 1
  %tired1 = icmp eq i32 %j1, 32
  br i1 %tired1, label %clock, label %poll1
clock:
  %time = call i64 @now()
  %limit = load atomic i64, ptr @spin monotonic, align 64
  %spent = sub i64 %time, %start
  %over = icmp sge i64 %spent, %limit
  br i1 %over, label %drowse, label %batch
drowse:
  %bell = load atomic i32, ptr $bell acquire, align 4
  store atomic i32 1, ptr $waiter seq_cst, align 4
  %done2 = load atomic i64, ptr $done seq_cst, align 64
  %ready2 = icmp eq i64 %done2, %need
  br i1 %ready2, label %awake, label %sleep
sleep:
  call void @wait(ptr $bell, i32 %bell)
  br label %drowse
awake:
  store atomic i32 0, ptr $waiter monotonic, align 4
  br label %out
out:
  ret void
}

define void @tw_parallel_for(ptr %fn, ptr %ctx, i64 %n, i32 %threads) {
entry:
  %n_less = sub i64 %n, 1
  %threads64 = sext i32 %threads to i64
  %t_less = sub i64 %threads64, 1
  %few = call i64 @llvm.smin.i64(i64 %n_less, i64 %t_less)
  %wanted = call i64 @llvm.smin.i64(i64 %few, i64 $max_workers)
  %par = icmp sgt i64 %wanted, 0
  br i1 %par, label %acquire, label %inline
acquire:
  %pair = cmpxchg ptr $lock, i32 0, i32 1 acquire monotonic, align 64
  %own = extractvalue { i32, i1 } %pair, 1
  br i1 %own, label %staff, label %inline
staff:
  %crew = call i64 @hire(i64 %wanted)
  %party = add i64 %crew, 1
  %parts = mul i64 %party, $chunks
  %whole = sdiv i64 %n, %parts
  %grain = call i64 @llvm.smax.i64(i64 %whole, i64 1)
  %up = add i64 %n, %grain
  %up1 = sub i64 %up, 1
  %n_chunks = sdiv i64 %up1, %grain
  %n_ranges = call i64 @llvm.smin.i64(i64 %party, i64 $ranges)
  store ptr %fn, ptr getelementptr (%job_t, ptr @job, i64 0, i32 1)
  store ptr %ctx, ptr getelementptr (%job_t, ptr @job, i64 0, i32 2)
  store i64 %n, ptr getelementptr (%job_t, ptr @job, i64 0, i32 3)
  store i64 %grain, ptr getelementptr (%job_t, ptr @job, i64 0, i32 4)
  store i64 %n_ranges, ptr getelementptr (%job_t, ptr @job, i64 0, i32 5)
  store atomic i64 0, ptr $done monotonic, align 64
  br label %deal
deal:
  %k = phi i64 [ 0, %staff ], [ %k1, %deal ]
  %begin = phi i64 [ 0, %staff ], [ %end, %deal ]
  %k1 = add i64 %k, 1
  %share = mul i64 %k1, %n_chunks
  %end = sdiv i64 %share, %n_ranges
  %cursor = getelementptr [$ranges x %range_t], ptr @ranges, i64 0, i64 %k
  %limit = getelementptr %range_t, ptr %cursor, i64 0, i32 1
  store atomic i64 %begin, ptr %cursor monotonic, align 64
  store i64 %end, ptr %limit
  %dealt = icmp sge i64 %k1, %n_ranges
  br i1 %dealt, label %publish, label %deal
publish:
  %seats = shl i64 %crew, 48
  %word = or i64 %seats, %n_chunks
  store atomic i64 %word, ptr @job seq_cst, align 64
  %asleep = load atomic i32, ptr $sleepers seq_cst, align 4
  %ring = icmp ne i32 %asleep, 0
  br i1 %ring, label %wake, label %mine
wake:
  %crew32 = trunc i64 %crew to i32
  call void @wake(ptr $epoch, i32 %crew32)
  br label %mine
mine:
  %count = call i64 @claim(i64 1, i64 0, i64 0)
  %need = sub i64 %n_chunks, %count
  call void @finish(i64 %need)
  store atomic i32 0, ptr $lock release, align 64
  ret void
inline:
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %loop, label %out
loop:
  %task = phi i64 [ 0, %inline ], [ %task1, %loop ]
  call void %fn(ptr %ctx, i64 %task)
  %task1 = add i64 %task, 1
  %more = icmp slt i64 %task1, %n
  br i1 %more, label %loop, label %out
out:
  ret void
}

; In a forked child only the forking thread exists: no workers, no sleepers, no job, and nobody holds the lock.
define void @tw_pool_reset() {
  store atomic i64 0, ptr @job seq_cst, align 64
  store atomic i32 0, ptr $waiter monotonic, align 4
  store atomic i32 0, ptr $workers monotonic, align 4
  store atomic i32 0, ptr $sleepers monotonic, align 4
$reset_sleeping  store atomic i32 0, ptr $lock seq_cst, align 64
  ret void
}

define void @tw_pool_spin(i64 %ns) {
  store atomic i64 %ns, ptr @spin monotonic, align 64
  ret void
}

define i32 @tw_pool_workers() {
  %n = load atomic i32, ptr $workers monotonic, align 4
  ret i32 %n
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
""")
