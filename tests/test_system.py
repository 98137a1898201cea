"""The compiled model as a citizen of its process: threads, fork, affinity, memory, no PATH, no compiler loaded."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from frontend.onnx_build import info, model, node
from small_models import convnet, language_model, numbers
from tilewright.build.driver import compile_graph
from tilewright.core.evaluate import evaluate_graph
from tilewright.runtime.python.model import LoadedModel

ROOT = Path(__file__).parents[1]
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def run_python(script: str, *args: object, timeout: float = 250, **env: str) -> str:
    """What ``script`` prints in a fresh interpreter without any variable but ``env`` and the path of modules.

    Where every thread of one that does not end stands is the only trace that a rare hang leaves.
    """
    where = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}", "TILEWRIGHT_CACHE": "off", **env}
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script), *map(str, args)]
    started = subprocess.Popen(command, env=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = started.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        started.send_signal(signal.SIGABRT)
        out, err = started.communicate()
    assert started.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def language() -> LoadedModel:
    return compile_graph(language_model(), threads=2)


@pytest.fixture(scope="module")
def saved(language: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "language.tw"
    language.save(path)
    return path


def tiny_onnx() -> bytes:
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["y"])]
    weights = {"w": numbers(4, 3, 3, 3)}
    return model(nodes, [info("x", ["n", 3, 8, 8])], ["y"], weights).SerializeToString()


def test_compiles_and_runs_with_an_empty_path_and_starts_no_program(tmp_path: Path) -> None:
    (tmp_path / "tiny.onnx").write_bytes(tiny_onnx())
    script = """
        import sys
        def no_programs(event, args):
            if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"):
                raise RuntimeError(f"{event} {args}")
        sys.addaudithook(no_programs)
        import numpy as np
        import tilewright as tw
        m = tw.compile(sys.argv[1])
        m.save(sys.argv[2])
        x = np.ones((2, 3, 8, 8), np.float32)
        assert np.array_equal(m(x), tw.load(sys.argv[2])(x))
        print(m(x).shape)
    """
    out = run_python(script, tmp_path / "tiny.onnx", tmp_path / "tiny.tw", PATH="", HOME=str(tmp_path))
    assert out.strip() == "(2, 4, 8, 8)"


def test_loading_needs_no_compiler(saved: Path) -> None:
    script = """
        import sys
        import numpy as np
        import tilewright as tw
        y = tw.load(sys.argv[1])(np.ones((1, 5, 64), np.float32))
        ours = {n.split(".")[1] for n in sys.modules if n.startswith("tilewright.")}
        print(sorted(ours), sorted({"torch", "onnx", "typer", "rich"} & set(sys.modules)), y.shape)
    """
    assert run_python(script, saved).strip() == "['runtime'] [] (1, 5, 64)"


def test_sixteen_threads_call_one_model(language: LoadedModel) -> None:
    graph = language_model()
    cases = [numbers(1 + k % 3, 3 + k, 64, seed=k) for k in range(16)]
    expected = [evaluate_graph(graph, [x])[0] for x in cases]
    problems: list[BaseException] = []

    def caller(k: int) -> None:
        try:
            for step in range(40):
                which = (k + step) % 16
                np.testing.assert_allclose(language(cases[which]), expected[which], **CLOSE)
        except BaseException as error:
            problems.append(error)

    callers = [threading.Thread(target=caller, args=(k,)) for k in range(16)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not problems, problems[0]


def test_a_child_after_fork_works(saved: Path) -> None:
    script = """
        import os, sys, threading, time
        import numpy as np
        import tilewright as tw
        m = tw.load(sys.argv[1], threads=2)
        x = np.random.default_rng(0).standard_normal((4, 50, 64)).astype(np.float32)
        want = m(x)
        stop = False
        def busy():
            while not stop:
                m(x)
        t = threading.Thread(target=busy)
        t.start()
        for k in range(20):
            pid = os.fork()
            if pid == 0:
                ok = all(np.array_equal(m(x), want) for _ in range(5))
                os._exit(0 if ok else 1)
            assert os.waitpid(pid, 0)[1] == 0
            time.sleep(0.001 * (k % 3))
        stop = True
        t.join()
        assert np.array_equal(m(x), want)
    """
    run_python(script, saved)


def test_two_models_share_one_pool(saved: Path) -> None:
    script = """
        import sys
        import numpy as np
        import tilewright as tw
        from tilewright.runtime.cpu.linker import pool_workers
        a, b = (tw.load(sys.argv[1], threads=3) for _ in range(2))
        x = np.ones((8, 100, 64), np.float32)
        assert np.array_equal(a(x), b(x))
        print(pool_workers())
    """
    assert run_python(script, saved).strip() == "2"


def test_one_cpu_gives_one_thread(saved: Path) -> None:
    script = """
        import os, sys
        import numpy as np
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        import tilewright as tw
        from tilewright.runtime.cpu.linker import pool_workers
        m = tw.load(sys.argv[1])
        m(np.ones((8, 100, 64), np.float32))
        print(m.threads, pool_workers(), len(os.listdir("/proc/self/task")))
    """
    assert run_python(script, saved, OPENBLAS_NUM_THREADS="1").strip() == "1 0 1"


@pytest.mark.parametrize("n_calls", [3_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_memory_stays_flat(saved: Path, n_calls: int) -> None:
    """Shapes change with every call, more of them than the model keeps plans for."""
    script = """
        import os, sys
        import numpy as np
        import tilewright as tw
        m = tw.load(sys.argv[1], threads=2)
        n_calls = int(sys.argv[2])
        data = np.random.default_rng(0).standard_normal(48 * 48 * 64).astype(np.float32)
        def call(k):
            batch, tokens = 1 + k * 7 % 29, 1 + k * 11 % 31
            y = m(data[:batch * tokens * 64].reshape(batch, tokens, 64))
            assert y.shape == (batch, tokens, 64) and np.isfinite(y[-1, -1, -1])
        def resident():
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        for k in range(1200):
            call(k)
        before = resident()
        for k in range(n_calls):
            call(k)
        print((resident() - before) / 2**20)
    """
    assert float(run_python(script, saved, n_calls, timeout=800)) < 4


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["convnet", "language_model"])
def test_the_number_of_threads_changes_no_bit(name: str, tmp_path: Path) -> None:
    graph = {"convnet": convnet, "language_model": language_model}[name]()
    shapes = [(2, 3, 64, 64)] if name == "convnet" else [(1, 1, 64), (2, 33, 64), (3, 128, 64)]
    compile_graph(graph).save(tmp_path / "m.tw")
    models = [tw.load(tmp_path / "m.tw", threads=n) for n in (1, 2, 5)]
    for shape in shapes:
        x = numbers(*shape)
        first, *others = (m(x) for m in models)
        np.testing.assert_allclose(first, evaluate_graph(graph, [x])[0], **CLOSE)
        for other in others:
            assert other.tobytes() == first.tobytes()
        for _ in range(20):
            assert models[2](x).tobytes() == first.tobytes()
