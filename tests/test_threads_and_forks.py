"""Threads that make and call models at once, and children forked meanwhile: no error, no hang, right results."""

from __future__ import annotations

from pathlib import Path

import pytest

from test_system import run_python

THREADS = """
    import faulthandler, random, sys, threading
    faulthandler.enable()
    import numpy as np
    import tilewright as tw
    from small_models import language_model
    from tilewright.core.evaluate import evaluate_graph
    from tilewright.driver import compile_graph
    from tilewright.runtime import entry, linker

    n_models, n_threads, path, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    as_given = as_array = lambda x: x
    if kind == "torch":
        import torch
        as_given, as_array = torch.from_numpy, lambda y: y.numpy()
    rng = np.random.default_rng(0)
    shapes = [(1 + k % 3, 1 + k, 64) for k in range(11)]  # more than a model keeps native entries for
    cases = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    graph = language_model()
    expected = [evaluate_graph(graph, [x])[0] for x in cases]
    compile_graph(graph).save(path)
    problems = []
    sys.setswitchinterval(1e-6)

    def one_model(number):
        for made in (entry._code, entry._exchange):  # as in a fresh process; code is never thrown away
            made.made.clear()
        models = []
        start = threading.Barrier(n_threads)

        def caller(k):
            mine = random.Random(1000 * number + k)
            try:
                start.wait()
                if not models and k < 4:
                    models.append(tw.load(path, threads=1 + number % 2))
                while not models:
                    pass
                model = models[0]
                for _ in range(6):
                    which = mine.randrange(len(cases))
                    for _ in range(mine.choice((1, 3))):
                        y = as_array(model(as_given(cases[which])))
                        np.testing.assert_allclose(y, expected[which], rtol=1e-4, atol=1e-4)
            except BaseException as error:
                problems.append(error)

        callers = [threading.Thread(target=caller, args=(k,)) for k in range(n_threads)]
        for c in callers:
            c.start()
        for c in callers:
            c.join()

    for number in range(n_models):
        one_model(number)
    print(len(problems), problems[:1])
"""


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("n_models", "n_threads"), [(3, 12), pytest.param(50, 64, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])]
)
def test_first_and_later_calls_of_fresh_models(n_models: int, n_threads: int, kind: str, tmp_path: Path) -> None:
    if kind == "torch":
        pytest.importorskip("torch")
    out = run_python(THREADS, n_models, n_threads, tmp_path / "model.tw", kind, timeout=2900)
    assert out.strip() == "0 []"


COMPILES = """
    import sys, threading
    import numpy as np
    import tilewright as tw
    from small_models import convnet, language_model
    from tilewright.core.evaluate import evaluate_graph
    from tilewright.driver import compile_graph

    sys.setswitchinterval(1e-6)
    x = np.random.default_rng(0).standard_normal((2, 5, 64)).astype(np.float32)
    expected = evaluate_graph(language_model(), [x])[0]
    problems, start = [], threading.Barrier(8)

    def compiler(k):
        try:
            start.wait()
            if k == 7:
                compile_graph(convnet())
                return
            np.testing.assert_allclose(compile_graph(language_model())(x), expected, rtol=1e-4, atol=1e-4)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=compiler, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(len(problems), problems[:1])
"""


def test_eight_threads_compile_at_once_in_a_fresh_process() -> None:
    assert run_python(COMPILES).strip() == "0 []"


FORKS = """
    import os, select, signal, sys, threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import numpy as np
    import tilewright as tw
    from small_models import language_model
    from tilewright.driver import compile_graph

    n_forks, path = int(sys.argv[1]), sys.argv[2]
    model = compile_graph(language_model(), threads=2)
    model.save(path)
    x = np.random.default_rng(0).standard_normal((3, 60, 64)).astype(np.float32)  # results that are recycled
    small = x[:1, :4].copy()
    want, want_small = model(x).copy(), model(small).copy()
    stop = False

    def caller():
        while not stop:
            model(x), model(small)

    def compiler():
        while not stop:
            compile_graph(language_model())

    def loader():
        while not stop:
            tw.load(path)(small)

    workers = [threading.Thread(target=w) for w in (caller, caller, compiler, loader)]
    for w in workers:
        w.start()

    def child(k):
        for _ in range(3):
            assert np.array_equal(model(x), want)
            np.testing.assert_allclose(model(small), want_small, rtol=1e-5, atol=1e-5)
        if k % 5 == 1:
            np.testing.assert_allclose(compile_graph(language_model())(x), want, rtol=1e-5, atol=1e-5)
        if k % 5 == 2:
            np.testing.assert_allclose(tw.load(path)(x), want, rtol=1e-5, atol=1e-5)

    hung = wrong = 0
    for k in range(n_forks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(k)
                code = 0
            finally:
                os._exit(code)
        watched = os.pidfd_open(pid)
        if not select.select([watched], [], [], 60)[0]:
            hung += 1
            os.kill(pid, signal.SIGKILL)
        os.close(watched)
        status = os.waitpid(pid, 0)[1]
        wrong += status not in (0, signal.SIGKILL)
    stop = True
    for w in workers:
        w.join()
    print(hung, wrong)
"""


@pytest.mark.parametrize("n_forks", [12, pytest.param(2_000, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
def test_children_forked_while_others_call_compile_and_load(n_forks: int, tmp_path: Path) -> None:
    assert run_python(FORKS, n_forks, tmp_path / "model.tw", timeout=2900).strip() == "0 0"


BUSY = """
    import os, threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import llvmlite.binding.ffi as ffi
    from small_models import language_model
    from tilewright.driver import compile_graph
    from tilewright.runtime import llvm_fork
    from tilewright.runtime.errors import ResourceError

    x = __import__("numpy").ones((1, 2, 64), "float32")
    model = compile_graph(language_model(), threads=1)
    llvm_fork.PATIENCE_S = 0.05
    is_inside, may_leave = threading.Event(), threading.Event()

    def inside_llvm():
        with ffi.lib._lock:
            is_inside.set()
            may_leave.wait()

    worker = threading.Thread(target=inside_llvm)
    worker.start()
    is_inside.wait()
    pid = os.fork()
    if pid == 0:
        model(x)  # what is loaded runs
        try:
            compile_graph(language_model())
        except ResourceError as error:
            print(error, flush=True)
        del model
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    may_leave.set()
    worker.join()
    compile_graph(language_model())
"""


def test_a_child_forked_inside_llvm_says_that_it_cannot_compile() -> None:
    """Where LLVM is busy for longer than a fork waits: loaded models still run there, and nothing hangs."""
    assert "was forked while another thread compiled" in run_python(BUSY)


def test_a_child_forked_in_the_middle_of_its_own_compile_says_so() -> None:
    script = """
        import os
        from small_models import convnet
        from tilewright.driver import build
        from tilewright.options import Clock, Options
        from tilewright.runtime.errors import ResourceError

        class Forked(Exception):
            pass

        def progress(stage, done, n):
            if stage == "kernels" and done == 1 and os.getpid() == parent:
                if pid := os.fork():
                    raise Forked(pid)

        parent = os.getpid()
        try:
            build(convnet(), Options(), Clock(progress))
        except ResourceError as error:
            print(error, flush=True)
            os._exit(0)
        except Forked as fork:
            assert os.waitpid(fork.args[0], 0)[1] == 0
    """
    assert "forked in the middle of a compile" in run_python(script)
