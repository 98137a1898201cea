"""The fork-join pool: every task exactly once, whoever calls; asleep when idle; alive after fork."""

import ctypes
import os
import random
import threading
import time

import llvmlite.binding as llvm
import numpy as np
import pytest
from benchmarks.fork_join import MEETING

from runtime.tiny import object_of, scale_model
from tilewright.runtime.cpu.linker import link, pool, pool_workers, set_spin
from tilewright.runtime.cpu.pool import CHUNKS, DEFAULT_SPIN_NS, RANGES, pool_ir
from tilewright.runtime.cpu.pool_systems import POOL_ABIS

# count(counts, n, threads): counts[task] += 1, no atomics: a task that runs twice at once may lose one, which shows too
# nest(counts, n, threads): each of n tasks forks 3 tasks of its own
# owners(owners, n, threads): owners[task] = the thread that ran it
# serve(flags, n, threads): every task waits until all have begun, so that all need a thread of their own
IR = (
    MEETING
    + """
declare void @tw_parallel_for(ptr, ptr, i64, i32)

define internal void @add(ptr %counts, i64 %task) {
  %p = getelementptr i64, ptr %counts, i64 %task
  %v = load i64, ptr %p
  %v1 = add i64 %v, 1
  store i64 %v1, ptr %p
  ret void
}

define void @count(ptr %counts, i64 %n, i32 %threads) {
  call void @tw_parallel_for(ptr @add, ptr %counts, i64 %n, i32 %threads)
  ret void
}

define internal void @outer(ptr %counts, i64 %task) {
  %at = mul i64 %task, 3
  %mine = getelementptr i64, ptr %counts, i64 %at
  call void @tw_parallel_for(ptr @add, ptr %mine, i64 3, i32 4)
  ret void
}

define void @nest(ptr %counts, i64 %n, i32 %threads) {
  call void @tw_parallel_for(ptr @outer, ptr %counts, i64 %n, i32 %threads)
  ret void
}

declare i64 @pthread_self()

define internal void @sign(ptr %owners, i64 %task) {
  %p = getelementptr i64, ptr %owners, i64 %task
  %me = call i64 @pthread_self()
  store i64 %me, ptr %p
  ret void
}

define void @owners(ptr %owners, i64 %n, i32 %threads) {
  call void @tw_parallel_for(ptr @sign, ptr %owners, i64 %n, i32 %threads)
  ret void
}

define void @serve(ptr %ctx, i64 %n, i32 %threads) {
  store i64 0, ptr %ctx
  %at = getelementptr i64, ptr %ctx, i64 8
  store i64 %n, ptr %at
  call void @tw_parallel_for(ptr @meeting, ptr %ctx, i64 %n, i32 %threads)
  ret void
}
"""
)
LIBRARY = link([object_of(IR)], ("count", "nest", "owners", "serve"))


def native(name: str):
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)
    return kind(LIBRARY.addresses[name])


COUNT, NEST, OWNERS, SERVE = native("count"), native("nest"), native("owners"), native("serve")


def stress(seed: int, n_forks: int) -> None:
    """Random numbers of tasks and threads; every task must run exactly once a fork."""
    rng = random.Random(seed)
    counts, expected = np.zeros(3000, np.int64), np.zeros(3000, np.int64)
    for _ in range(n_forks):
        n = rng.choice([0, 1, 2, 3, rng.randrange(20), rng.randrange(20), rng.randrange(3000)])
        COUNT(counts.ctypes.data, n, rng.choice([-1, 0, 1, 2, 2, 2, 3, 5]))
        expected[:n] += 1
        if rng.random() < 0.003:
            time.sleep(rng.choice([0.00002, 0.00006, 0.0005]))  # workers drowse and sleep in between
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("spin_us", [50, 0])
def test_every_task_runs_exactly_once(spin_us: int) -> None:
    set_spin(pool(), spin_us)
    try:
        stress(1, 6_000)
    finally:
        set_spin(pool(), DEFAULT_SPIN_NS // 1000)


@pytest.mark.slow
def test_every_task_runs_exactly_once_for_long() -> None:
    for seed in range(20):
        stress(seed, 50_000)


def test_concurrent_callers() -> None:
    errors: list[BaseException] = []

    def caller(seed: int) -> None:
        try:
            stress(seed, 700)
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=caller, args=(k,)) for k in range(6)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert errors == []


def test_nested_calls_run_inline() -> None:
    counts = np.zeros(300, np.int64)
    for _ in range(200):
        NEST(counts.ctypes.data, 100, 3)
    assert (counts == 200).all()


def test_tasks_really_run_at_once() -> None:
    context = np.zeros(9, np.int64)
    for _ in range(3):
        SERVE(context.ctypes.data, 3, 3)  # would never return with fewer than 3 threads
    assert pool_workers() >= 2


def test_two_models_share_one_pool() -> None:
    before = pool_workers()
    models = [scale_model(1, threads=2), scale_model(2, threads=2)]
    for model in models:
        assert model(np.ones((10, 4), np.float32)).shape == (10, 4)
    assert pool_workers() == max(before, 1)


@pytest.mark.parametrize("threads", [2, 3])
def test_neighbours_stay_together(threads: int) -> None:
    owners = np.zeros(5000, np.int64)
    for _ in range(300):
        OWNERS(owners.ctypes.data, len(owners), threads)
        assert np.count_nonzero(np.diff(owners)) <= (CHUNKS + 1) * threads


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_more_threads_than_ranges() -> None:
    def work() -> None:
        counts = np.zeros(5000, np.int64)
        for _ in range(50):
            COUNT(counts.ctypes.data, len(counts), RANGES + 20)
        assert (counts == 50).all()

    assert in_child(work) == 0


def test_idle_workers_use_no_cpu() -> None:
    COUNT(np.zeros(100, np.int64).ctypes.data, 100, 4)
    time.sleep(0.05)
    start = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - start < 0.02


def test_workers_take_no_signals() -> None:
    COUNT(np.zeros(100, np.int64).ctypes.data, 100, 3)
    blocked = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as file:
            mask = next(line for line in file if line.startswith("SigBlk")).split()[1]
        blocked.append(int(mask, 16) & 2)  # bit 1 is SIGINT
    assert sum(map(bool, blocked)) >= 2


def in_child(work) -> int:
    """Fork, run, and report the child's exit status (its threads and buffers are gone with it)."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    model, x = scale_model(threads=3), np.ones((50, 4), np.float32)
    model(x)
    assert pool_workers() >= 2

    def work() -> None:
        assert pool_workers() == 0
        stress(3, 300)
        assert (model(x) == 12).all()
        assert pool_workers() >= 2
        assert in_child(lambda: stress(4, 100)) == 0

    assert in_child(work) == 0
    stress(5, 300)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_other_threads_are_inside_the_pool() -> None:
    stop = threading.Event()

    def busy() -> None:
        counts = np.zeros(100, np.int64)
        while not stop.is_set():
            COUNT(counts.ctypes.data, 100, 3)

    callers = [threading.Thread(target=busy) for _ in range(2)]
    for c in callers:
        c.start()
    try:
        assert [in_child(lambda: stress(6, 50)) for _ in range(10)] == [0] * 10
    finally:
        stop.set()
        for c in callers:
            c.join()


@pytest.mark.parametrize(
    ("cpu", "triple", "features", "wanted"),
    [
        ("x86_64", "x86_64-unknown-linux-gnu", "", ["pause", "lock\t", "$202"]),
        ("aarch64", "aarch64-unknown-linux-gnu", "+lse", ["isb", "casal", "#98"]),
        ("aarch64", "aarch64-unknown-linux-musl", "", ["ldaxr", "stlxr"]),
        ("armv7", "armv7-unknown-linux-gnueabihf", "+neon", ["ldrexd", "strexd", "yield", "pthread_cond_wait"]),
        ("riscv64", "riscv64-unknown-linux-gnu", "+m,+a,+f,+d,+c,+zihintpause", ["pause", "lr.d", "sc.d.rl", "98"]),
    ],
)
def test_the_same_text_compiles_for_every_cpu(cpu: str, triple: str, features: str, wanted: list[str]) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    name = {"riscv64": "generic-rv64", "x86_64": "x86-64"}.get(cpu, "generic")
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=name, features=features, opt=3, reloc="pic")
    module = llvm.parse_assembly(pool_ir(POOL_ABIS[cpu]))
    module.triple = triple
    module.verify()
    text = machine.emit_assembly(module)
    assert [part for part in wanted if part not in text] == []
    assert machine.emit_object(module).startswith(b"\x7fELF")
