"""Compile time, cold and warm, per stage; TorchInductor's and ONNX Runtime's time to ready in the same run.

    python -m benchmarks.compile_time resnet50 bert_base

In: names from ``benchmarks.zoo``. Out: seconds per stage. Not its business: how fast the code is (``latency.py``).
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.latency import prepare

from tilewright.build.options import Clock, Options

IMPORT = "import time; s = time.perf_counter(); import tilewright; print(time.perf_counter() - s)"


def ours(path: Path, cache: Path) -> dict[str, dict[str, float]]:
    """Seconds of a cold compile per stage, and of a second compile of the same file."""
    import tilewright
    from tilewright.build import driver, texts
    from tilewright.runtime.cache import Cache
    from tilewright.runtime.python.model import LoadedModel

    tilewright.compile(path, cache=False)  # modules imported, LLVM initialised
    result = {}
    start = time.perf_counter()
    model = driver.compile(path, cache=False)
    result["cold"] = {"total": time.perf_counter() - start, **model.report()["seconds"]}
    store = Cache(cache)
    store.put_artifact("key", driver.build(texts.read_graph(path), Options(), Clock()))
    start = time.perf_counter()
    found = store.get_artifact("key")
    assert found is not None
    LoadedModel(found.manifest, found.objects, found.weights)
    result["warm"] = {"total": time.perf_counter() - start}
    return result


def inductor(name: str, small: bool) -> float:
    """Seconds of TorchInductor's first call, in a process with an empty cache of its own."""
    code = (
        "import time, torch, torch._inductor.config as c; c.force_disable_caches = True\n"
        "from benchmarks import zoo\n"
        f"m = zoo.build({name!r}, small={small}); f = torch.compile(m.module); s = time.perf_counter()\n"
        "with torch.no_grad(): f(*m.inputs)\n"
        "print('seconds', time.perf_counter() - s)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    lines = [x for x in done.stdout.splitlines() if x.startswith("seconds")]
    return float(lines[0].split()[1]) if lines else float("nan")


def onnxruntime_ready(path: Path) -> float:
    """Seconds to create a session."""
    import onnxruntime

    start = time.perf_counter()
    onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=["resnet50", "bert_base"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--no-inductor", action="store_true")
    a = parser.parse_args(arguments)
    seconds = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout
    print(f"import tilewright: {float(seconds):.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        for name in a.models:
            path, _ = prepare(name, a.small, Path(folder))
            times = ours(path, Path(folder) / "cache")
            stages = "  ".join(f"{k} {v:.3f}" for k, v in times["cold"].items())
            print(f"{name}: cold {stages}\n{name}: warm {times['warm']['total']:.3f}", flush=True)
            if importlib.util.find_spec("onnxruntime"):
                print(f"{name}: onnxruntime {onnxruntime_ready(path):.3f}", flush=True)
            if not a.no_inductor:
                print(f"{name}: inductor {inductor(name, a.small):.3f}", flush=True)


if __name__ == "__main__":
    main()
