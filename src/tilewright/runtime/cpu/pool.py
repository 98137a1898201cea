"""The fork-join thread pool, as LLVM IR text.

In: a ``PoolAbi``, the few facts that differ between CPUs. Out: the text of one module, the same for JIT and for
ahead-of-time objects. Not its business: compiling the text (``linker``), choosing thread counts (``threads``), what a
system calls its threads, locks and clock (``pool_systems``).

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
* Workers round, and treat denormal numbers, as the caller does (``float_mode``): its mode is a field of the job.
* Workers block all signals, so that Python's handlers run where Python expects them.

Measured by ``python benchmarks/fork_join.py`` (2 threads, 2-core Cascade Lake VM at a load of 6 from other processes,
200,000 forks, three runs): an empty body 0.05 to 0.25 us median (0.43 us at the 99th percentile); a body that can't end
before both threads run it, so the whole way there and back, 0.10 to 0.46 us median (0.82 us). Waking sleeping workers
takes 16 us at best and whatever the scheduler takes on a loaded machine; the caller works meanwhile. Idle: 0.01 % of a
core, all of it the measuring process's own.
"""

from __future__ import annotations

import string

from tilewright.runtime.cpu.pool_systems import PoolAbi, system_parts

MAX_THREADS = 1024
"""Most threads a job may ask for; more are treated as this many."""

CHUNKS = 16
"""Chunks for each thread: fewer swaps than tasks, and an uneven chunk is a small part of a thread's work."""

RANGES = 64
"""Threads with a range of their own; more share them."""

DEFAULT_SPIN_NS = 50_000
"""Longer than the serial gaps inside a model, shorter than a scheduler's time slice by far."""


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
_MODE = "getelementptr (%job_t, ptr @job, i64 0, i32 6)"


def pool_ir(abi: PoolAbi) -> str:
    """The text of the pool's module for one CPU."""
    return _IR.substitute(
        system_parts(abi),
        pause=abi.pause,
        pause_type=abi.pause_type,
        mode_declared=abi.mode.declared,
        save_mode=abi.mode.save.format(at=_MODE, n=0),
        take_mode=abi.mode.restore.format(at=_MODE, n=0),
        max_workers=MAX_THREADS - 1,
        spin_ns=DEFAULT_SPIN_NS,
        seat=1 << 48,
        join=(1 << 48) + 1,
        task_mask=(1 << 48) - 1,
        chunks=CHUNKS,
        ranges=RANGES,
        **_FIELDS,
    )


_IR = string.Template(r"""
; A cache line each: the job (word, fn, ctx, n, tasks of a chunk, ranges, mode), its end (done, waiter, bell), the crew,
; the settings; the chunks of a range (next, end).
%job_t = type { i64, ptr, ptr, i64, i64, i64, i64, [8 x i8] }
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
$mode_declared
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
$take_mode  br label %pick
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
$save_mode  store atomic i64 0, ptr $done monotonic, align 64
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
