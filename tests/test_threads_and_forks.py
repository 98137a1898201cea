"""Threads that make and call models at once, and children forked meanwhile: no error, no hang, right results."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import pytest

from test_system import run_python
from tilewright.runtime.once import MAKING
from tilewright.runtime.values import dtype_of

THREADS = """
    import faulthandler, random, sys, threading
    faulthandler.enable()
    import numpy as np
    import tilewright as tw
    from small_models import sequences
    from tilewright.core.evaluate import evaluate_graph
    from tilewright.build.driver import compile_graph
    from tilewright.runtime.python import entry
    from tilewright.runtime.cpu import linker

    n_models, n_threads, path, has_torch = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "True"
    kinds = [(lambda x: x, lambda y: y)]
    if has_torch:
        import torch
        kinds.append((torch.from_numpy, lambda y: y.numpy()))
    rng = np.random.default_rng(0)
    shapes = [(1 + k % 3, 1 + k, 64) for k in range(11)]  # more than a model keeps native entries for
    cases = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    graph = sequences()
    expected = [evaluate_graph(graph, [x])[0] for x in cases]
    compile_graph(graph).save(path)
    problems = []
    sys.setswitchinterval(1e-6)

    def one_model(number, as_given, as_array):
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

    for kind in kinds:
        for number in range(n_models):
            one_model(number, *kind)
    print(len(problems), problems[:1])
"""


@pytest.mark.parametrize(
    ("n_models", "n_threads"), [(2, 8), pytest.param(50, 64, marks=[pytest.mark.slow, pytest.mark.timeout(6000)])]
)
def test_first_and_later_calls_of_fresh_models(n_models: int, n_threads: int, tmp_path: Path) -> None:
    """With arrays of NumPy, then with tensors of PyTorch where it is installed."""
    has_torch = importlib.util.find_spec("torch") is not None
    out = run_python(THREADS, n_models, n_threads, tmp_path / "model.tw", has_torch, timeout=5900)
    assert out.strip() == "0 []"


COMPILES = """
    import sys, threading
    import numpy as np
    import tilewright as tw
    from small_models import convnet, language_model, perceptron
    from tilewright.core.evaluate import evaluate_graph
    from tilewright.build.driver import compile_graph

    sys.setswitchinterval(1e-6)
    is_large = sys.argv[1] == "large"  # small ones compile in a tenth of the time, and meet as often
    nets = [language_model if is_large else perceptron] + [perceptron] * 6
    x = np.random.default_rng(0).standard_normal((2, 5, 64)).astype(np.float32)
    inputs = [x if net is language_model else x[0] for net in nets]
    expected = [evaluate_graph(net(), [x])[0] for net, x in zip(nets, inputs)]
    n_threads = 8 if is_large else 4
    problems, start = [], threading.Barrier(n_threads)

    def compiler(k):
        try:
            start.wait()
            if k == n_threads - 1:
                compile_graph(convnet() if is_large else perceptron())
                return
            np.testing.assert_allclose(compile_graph(nets[k]())(inputs[k]), expected[k], rtol=1e-4, atol=1e-4)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=compiler, args=(k,)) for k in range(n_threads)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(len(problems), problems[:1])
"""


@pytest.mark.parametrize("size", ["small", pytest.param("large", marks=pytest.mark.slow)])
def test_threads_compile_at_once_in_a_fresh_process(size: str) -> None:
    assert run_python(COMPILES, size).strip() == "0 []"


TRACES = """
    import os, sys, threading, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch
    import tilewright as tw
    from tilewright.frontend.torch.tracing import tracing

    # A child forked while its parent traces traces too.
    held, done = threading.Event(), threading.Event()

    def trace():
        with tracing():
            held.set()
            done.wait()

    thread = threading.Thread(target=trace)
    thread.start()
    held.wait()
    if not (child := os.fork()):
        tw.compile(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()

    def net(seed):
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Dropout(), torch.nn.Linear(8, 4))

    torch._dynamo.lookup_backend("tilewright")  # whose own first time is for one thread
    sys.setswitchinterval(1e-6)
    n = {0: torch.export.Dim("n")}
    x, of_all, problems, start = torch.randn(3, 6), net(100), [], threading.Barrier(3)
    nets = [of_all, net(1).eval(), of_all]
    with torch.no_grad():
        expected = [m.eval()(x) for m in nets]
    of_all.train()

    def compiler(k):
        try:
            start.wait()
            if k == 1:
                with torch.no_grad():
                    got = torch.compile(nets[k], backend="tilewright")(x)
            else:
                got = tw.compile(nets[k], (x,), dynamic_shapes=(n,))(x)
            torch.testing.assert_close(torch.as_tensor(got), expected[k])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=compiler, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    print(status, len(problems), problems[:1], of_all.training)
"""


def test_threads_trace_modules_by_turns_and_a_child_though_its_parent_did() -> None:
    """Both in one process, because PyTorch takes seconds to start."""
    pytest.importorskip("torch")
    assert run_python(TRACES).strip() == "0 0 [] True"


FORKS = """
    import os, select, signal, sys, threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import numpy as np
    import tilewright as tw
    from small_models import language_model, perceptron
    from tilewright.build.driver import compile_graph

    n_forks, path = int(sys.argv[1]), sys.argv[2]
    x = np.random.default_rng(0).standard_normal((3, 60, 64)).astype(np.float32)  # results that are recycled
    net = language_model
    if n_forks < 100:  # a net that compiles in a tenth of the time
        net, x = perceptron, x.reshape(-1, 64)
    model = compile_graph(net(), threads=2)
    model.save(path)
    small = (x[:1, :4] if net is language_model else x[:4]).copy()
    want, want_small = model(x).copy(), model(small).copy()
    rows = small.reshape(-1, 64)
    want_perceptron = compile_graph(perceptron())(rows)
    stop, done = False, dict.fromkeys(["calls", "compiles", "loads"], 0)

    def caller():
        while not stop:
            model(x), model(small)
            done["calls"] += 1

    def compiler():
        while not stop:  # one takes ten times as long, so that forks fall into every part of a compile
            compile_graph(net())
            for _ in range(5 if net is language_model else 0):
                compile_graph(perceptron())
            done["compiles"] += 1

    def loader():
        while not stop:
            tw.load(path)(small)
            done["loads"] += 1

    workers = [threading.Thread(target=w) for w in (caller, caller, compiler, loader)]
    for w in workers:
        w.start()

    def child(k):
        for _ in range(3):
            assert np.array_equal(model(x), want)
            np.testing.assert_allclose(model(small), want_small, rtol=1e-5, atol=1e-5)
        if k % 5 == 1:
            np.testing.assert_allclose(compile_graph(perceptron())(rows), want_perceptron, rtol=1e-5, atol=1e-5)
        if k % 25 == 1 and net is language_model:
            np.testing.assert_allclose(compile_graph(net())(x), want, rtol=1e-5, atol=1e-5)
        if k % 5 == 2:
            np.testing.assert_allclose(tw.load(path)(x), want, rtol=1e-5, atol=1e-5)

    alive, hung, wrong = {}, [], []

    def seconds_of(pid):  # of processor time, all threads together
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # A child that waits for a lock takes no processor time, one that only waits its turn on a busy machine goes on
    # taking some: late is one that took none for two minutes, or goes round and round for more than two minutes of it.
    def reap(is_waiting):  # the children that ended, and those that are late
        ended = select.select(list(alive), [], [], 0.5 if is_waiting else 0)[0]
        for watched, (k, pid, seconds, since) in list(alive.items()):
            if watched not in ended and (now := seconds_of(pid)) > seconds:
                alive[watched] = k, pid, now, time.monotonic()
                seconds, since = now, time.monotonic()
            if is_late := watched not in ended and (time.monotonic() - since > 120 or seconds > 120):
                os.kill(pid, signal.SIGKILL)
                hung.append(k)
            if is_late or watched in ended:
                status = os.waitpid(pid, 0)[1]
                wrong.extend([k] if status and not is_late else [])
                os.close(watched)
                del alive[watched]

    # Forks fall into the others' work, whichever is faster on this machine: a hundred of them for each round of the
    # slowest. One stands still where it ends no round while the process spends five minutes of processor time.
    def go_on(n_rounds):
        slowest, since = -1, 0.0
        while (now := min(done.values())) < n_rounds:
            if now > slowest:
                slowest, since = now, time.process_time()
            if time.process_time() - since > 300:
                return False
            reap(True)
        return True

    for k in range(n_forks):
        if not go_on(k // 100):
            break
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(k)
                code = 0
            finally:
                os._exit(code)
        alive[os.pidfd_open(pid)] = (k, pid, 0.0, time.monotonic())
        reap(False)
        while len(alive) >= 6:
            reap(True)
    have_worked = go_on(n_forks // 100 + 1)
    while alive:
        reap(True)
    stop = True
    for w in workers:
        w.join(None if have_worked else 60)
    print(f"{k + 1} forks, hung: {hung}, wrong: {wrong}, others worked: {have_worked}", flush=True)
    print(done, file=sys.stderr, flush=True)
    os._exit(0)  # also where a thread stands still
"""


@pytest.mark.parametrize("n_forks", [6, pytest.param(2_000, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
def test_children_forked_while_others_call_compile_and_load(n_forks: int, tmp_path: Path) -> None:
    out = run_python(FORKS, n_forks, tmp_path / "model.tw", timeout=2900)
    assert out.strip() == f"{n_forks} forks, hung: [], wrong: [], others worked: True"


IMPORTING = """
    import os, signal, sys, threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import tilewright as tw
    from tilewright.runtime import host, values
    from tilewright.runtime.cpu import linker

    def refused(call, *args):
        try:
            call(*args)
        except (tw.ArtifactError, tw.CompileError):
            pass

    asks = {
        "llvmlite.binding": host.host_facts,
        "ml_dtypes": lambda: values.dtype_of("bfloat16"),
        "tilewright.runtime.cpu.llvm": lambda: refused(linker._link, [b""], (), {}),
        "tilewright.runtime.cpu.routines": lambda: refused(linker.link, [b""], (), ("unknown",)),
        "tilewright.build.driver": lambda: refused(tw.compile, "nothing.onnx"),
        "onnx": lambda: refused(tw.compile, b"nothing"),
    }
    name, is_importing = sys.argv[1], threading.Event()
    assert name not in sys.modules
    if name == "tilewright.runtime.cpu.routines":
        linker.pool()

    class Slow:
        def find_spec(found, path=None, target=None):
            if found == name:
                is_importing.set()
                time.sleep(1)  # in which the child is forked, or a fork that waits begins

    sys.meta_path.insert(0, Slow)
    importer = threading.Thread(target=asks[name])
    importer.start()
    is_importing.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(200)
        asks[name]()
        os._exit(0)
    print(os.waitpid(pid, 0)[1])
    importer.join()
"""


@pytest.mark.one_in(3)  # that every late import holds the lock is asked of the source (test_layers)
@pytest.mark.parametrize(
    "module",
    [
        "llvmlite.binding",
        "ml_dtypes",
        "tilewright.runtime.cpu.llvm",
        "tilewright.runtime.cpu.routines",
        "tilewright.build.driver",
        "onnx",
    ],
)
def test_a_child_forked_while_something_is_imported_imports_it_too(module: str) -> None:
    assert run_python(IMPORTING, module).strip() == "0"


def test_a_dtype_that_is_known_waits_for_nobody_who_makes_something() -> None:
    """Calls ask for it, and models run while others are made."""
    known, found = dtype_of("bfloat16"), []
    asker = threading.Thread(target=lambda: found.append(dtype_of("bfloat16")))
    with MAKING:
        asker.start()
        asker.join(60)
        assert found == [known]


BUSY = """
    import os, threading, time, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    import llvmlite.binding.ffi as ffi
    from small_models import perceptron
    from tilewright.build.driver import compile_graph
    from tilewright.runtime.cpu import llvm_fork
    from tilewright.runtime.errors import ResourceError

    x = __import__("numpy").ones((2, 64), "float32")
    model = compile_graph(perceptron(), threads=1)
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
            compile_graph(perceptron())
        except ResourceError as error:
            print(error, flush=True)
        del model
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    may_leave.set()
    worker.join()
    compile_graph(perceptron())
"""


def test_a_child_forked_inside_llvm_says_that_it_cannot_compile() -> None:
    """Where LLVM is busy for longer than a fork waits: loaded models still run there, and nothing hangs."""
    assert "was forked while another thread compiled" in run_python(BUSY)


def test_a_child_forked_in_the_middle_of_its_own_compile_says_so() -> None:
    script = """
        import os
        from small_models import convnet
        from tilewright.build.driver import build
        from tilewright.build.options import Clock, Options
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


STOP = """
    import os, signal, sys, threading, time
    import numpy as np
    from tilewright import ops
    from tilewright.core.graph import Builder, Graph, Pool
    from tilewright.core.types import TensorType, f32
    from tilewright.core.expr import Sym
    from tilewright.build.driver import compile_graph

    is_symbolic = sys.argv[1].startswith("symbolic")
    n_rows, size, n_products = (8000, 2000, 1) if sys.argv[1] == "symbolic, one kernel" else (500, 500, 250)
    b = Builder(Pool())
    x = y = b.pool.input("x", TensorType(f32, (Sym("rows", 1) if is_symbolic else n_rows, size)))
    w = b.const(np.eye(size, dtype=np.float32)[::-1].copy())
    for _ in range(n_products):
        y = b(ops.matmul, y, w)
    model = compile_graph(Graph("long", b.pool, (x,), (y,), ("y",)), threads=1)
    x = np.random.default_rng(0).standard_normal((n_rows, size)).astype(np.float32)
    if is_symbolic:
        assert np.array_equal(model(x[:1]), x[:1, ::-1] if n_products == 1 else x[:1])
    if sys.argv[1] == "one kernel":
        from test_recurrent import layer
        model = layer("rnn", 512, 1, 2, "forward", threads=1)
        x = np.random.default_rng(0).standard_normal((20_000, 2, 1)).astype(np.float32)
    n_words = 2 if n_products > 1 else 0  # what polls between kernels need lies behind the sizes
    assert model.manifest.n_dims == len(model.manifest.symbols) + n_words
    want = model(x)
    start = time.process_time()
    model(x)
    whole = time.process_time() - start

    class Alarm(Exception):
        pass

    def handler(number, frame):
        raise Alarm

    def interrupt():
        global sent
        time.sleep(whole / 10)
        sent = time.process_time()
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, handler)
    late = []
    for _ in range(2):
        sender = threading.Thread(target=interrupt)
        sender.start()
        try:
            while True:
                model(x)
        except Alarm:
            late.append(time.process_time() - sent)
        sender.join()
    assert all(map(np.array_equal, model(x), want))
    print(min(late), whole)
"""


@pytest.mark.one_in(6)  # sizes as given in several kernels, and symbolic ones in one
@pytest.mark.parametrize("kind", ["fixed", "symbolic", "one kernel", "symbolic, one kernel"])
def test_a_signal_stops_a_long_call(kind: str) -> None:
    """CPU time, of which a loaded machine takes none, from the signal to the exception; the model works on.

    The signal comes early in a call, which without polls would go on for nine tenths of its time on any machine.
    """
    late, whole = map(float, run_python(STOP, kind).split())
    assert late < min(0.3, whole / 2)


LOOP = """
    import os, signal, threading, time
    import numpy as np
    import tilewright as tw
    from frontend.onnx_build import info, node
    from frontend.test_onnx_control import looped

    nodes = [node("Sin", ["v"], ["w"]), node("Identity", ["go"], ["again"])]
    model = tw.compile(looped(nodes, ["again", "w"], cond=False), threads=1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's job in the background is started without
    x, forever = np.ones((4, 3), np.float32), np.array(1 << 40)
    want = model(x, np.array(100))

    def interrupt():
        global sent
        time.sleep(0.2)
        sent = time.process_time()
        os.kill(os.getpid(), signal.SIGINT)

    for _ in range(2):
        sender = threading.Thread(target=interrupt)
        sender.start()
        try:
            model(x, forever)
        except KeyboardInterrupt:
            late = time.process_time() - sent
        sender.join()
        assert np.array_equal(model(x, np.array(100)), want)
    print(late)
"""


def test_a_signal_stops_a_loop_without_an_end() -> None:
    assert float(run_python(LOOP)) < 0.3


def test_a_handler_that_returns_lets_the_call_go_on() -> None:
    """It may call the model that it interrupted."""
    script = LOOP.replace("model(x, forever)", "signal.signal(signal.SIGINT, handler); model(x, np.array(5_000_000))")
    script = script.replace(
        "    def interrupt",
        """    seen = []

    def handler(number, frame):
        seen.append(np.array_equal(model(x, np.array(100)), want))

    late = 0
    def interrupt""",
        1,
    )
    script += "    assert seen == [True, True]\n"
    assert float(run_python(script)) == 0
