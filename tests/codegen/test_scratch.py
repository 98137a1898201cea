"""Local buffers beyond a few KiB: in memory that the caller brings, a part of it for each thread that runs tasks."""

import threading

import llvmlite.binding as llvm
import numpy as np
import pytest

from codegen import native
from codegen.native import HOST, POOL, TASK, Native, kernel, local
from tilewright.aot.stack import stack_of
from tilewright.codegen.cpu import llvm as codegen
from tilewright.codegen.cpu.scratch import FLAG_BYTES, STACK_LIMIT, Locals, start_of
from tilewright.core import types
from tilewright.core.compute import Buffer
from tilewright.core.expr import Sym
from tilewright.runtime.manifest import ScratchSpec
from tilewright.target.target import Target
from tilewright.tile.ir import For, Kind, Loop, Store

ROWS, WIDTH = 64, 3001
TARGETS = [HOST, Target.parse("x86-64-v3"), Target.parse("x86-64")]


def _loop(s, *body, kind=Kind.SERIAL):
    return For(Loop(s, s.hi + 1, kind), body)


def reversed_rows():
    """Each row goes to scratch and back in reverse order; what all add lies outside of the loop."""
    i, j, k = Sym("i", 0, ROWS - 1), Sym("j", 0, WIDTH - 1), Sym("k", 0, WIDTH - 1)
    x, y = Buffer("x", types.f32, (ROWS, WIDTH)), Buffer("y", types.f32, (ROWS, WIDTH))
    row, shared = Buffer("row", types.f32, (WIDTH,)), Buffer("shared", types.f32, (WIDTH,))
    body = (_loop(j, Store(row, (j,), x[i, j])), _loop(k, Store(y, (i, k), row[WIDTH - 1 - k] + shared[k])))
    first = Sym("first", 0, WIDTH - 1)
    parts = [_loop(first, Store(shared, (first,), x[0, first]))]
    parts += [_loop(i, *body, kind=Kind.PARALLEL)]
    return kernel(parts, x, y, local(row), local(shared))


def expected(x):
    return x[:, ::-1] + x[0]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_rows_that_do_not_fit_on_a_stack(target, threads):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((ROWS, WIDTH), np.float32), np.zeros((ROWS, WIDTH), np.float32)
    Native(reversed_rows(), target)(x, y, threads=threads)
    np.testing.assert_array_equal(y, expected(x))


@pytest.mark.parametrize("at_once", [2, 5])
def test_each_task_that_runs_at_once_has_a_slot_of_its_own(monkeypatch, at_once):
    """Also where a program's own threads are more than the call asked for: some wait then."""

    def pool(task, context, n_tasks, threads):
        run, left, lock = TASK(task), list(range(n_tasks)), threading.Lock()

        def work():
            while True:
                with lock:
                    if not left:
                        return
                    task = left.pop()
                run(context, task)

        workers = [threading.Thread(target=work) for _ in range(at_once)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()

    monkeypatch.setattr(native, "_pool", POOL(pool))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, WIDTH), np.float32)
    made = Native(reversed_rows())
    for _ in range(20):
        y = np.zeros_like(x)
        made(x, y, threads=2)
        np.testing.assert_array_equal(y, expected(x))


def test_what_it_takes():
    padded = -(-4 * (WIDTH + 15) // 64) * 64
    need = codegen.emit(reversed_rows(), HOST).scratch
    assert need.fixed <= padded and need.per_thread <= padded + FLAG_BYTES
    assert need.n_bytes(3) == need.fixed + 3 * need.per_thread and start_of(need, 3) == 3 * FLAG_BYTES
    stack = stack_of(codegen.assembly(reversed_rows(), HOST), llvm.get_process_triple())
    assert max(n for n in stack.n_bytes.values() if n is not None) < 1024


def test_small_buffers_stay_on_the_stack():
    places = Locals()
    assert [places.place(n) for n in (STACK_LIMIT - 64, 65, 1, 100)] == [None, 0, None, 128]
    assert ScratchSpec.most([ScratchSpec(1, 5), ScratchSpec(3, 2)]) == ScratchSpec(3, 5)
    assert ScratchSpec.most([]) == ScratchSpec()
