"""Cold start: from the start of a process to its first answer and end, beside ONNX Runtime and OpenVINO.

    python -m benchmarks.cold_start resnet50 mobilenet_v2 bert_base bert_base:tokens=32 --folder /tmp/cold

A size behind a net's name cuts its inputs along the dimensions that the zoo calls so.
Ours is a C program (`examples/aot/run.c`) with the exported object and its weights in a mapped file; and the shared
library through the Python loader. The peers are Python with their wheel's package, which is how most people start
them. Each process reads zeros as inputs, runs once and exits; processes of all kinds take turns, files are in the page
cache, all use the same number of threads. Wall time is what a user waits; CPU time (user and system, of all threads) is
nearly free of what else the machine does. Needs `cc`, and the extra `bench`.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from benchmarks import zoo

import tilewright as tw
from tilewright.aot.export import Exported
from tilewright.aot.interface import c_name
from tilewright.runtime.library import LibraryModel

ROOT = Path(__file__).parents[1]
ORT = """
import sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions(); options.intra_op_num_threads = int(sys.argv[3])
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, dict(np.load(sys.argv[2])))
"""
OPENVINO = """
import sys, numpy as np, openvino as ov
options = {"INFERENCE_NUM_THREADS": int(sys.argv[3]), "INFERENCE_PRECISION_HINT": "f32"}
model = ov.Core().compile_model(sys.argv[1], "CPU", options)
model(dict(np.load(sys.argv[2])))
"""
LIBRARY = """
import sys, numpy as np
from tilewright.runtime.library import LibraryModel
LibraryModel(sys.argv[1]).run(dict(np.load(sys.argv[2])))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["resnet50", "mobilenet_v2"])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--folder", type=Path, required=True, help="where models are kept between runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    rows = {name: measure(name, options.folder, options.runs, options.threads) for name in options.models}
    for name, row in rows.items():
        print(name)
        for kind, (wall, median, cpu) in row.items():
            times = f"wall best {wall * 1e3:8.1f} median {median * 1e3:8.1f} ms, CPU best {cpu * 1e3:8.1f} ms"
            print(f"  {kind:24s} {times}, {cpu / row['C program'][2]:6.1f}x")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def measure(spec: str, folder: Path, runs: int, threads: int) -> dict[str, tuple[float, float, float]]:
    """Best and median seconds of wall time and best of CPU time, of each kind of process."""
    onnx, made = prepared(spec, folder, threads)
    name = c_name(spec)
    raw, arrays = folder / f"{name}.bin", folder / f"{name}.npz"
    program = folder / name
    commands = {
        "C program": [str(program)],
        "shared library, Python": [sys.executable, "-c", LIBRARY, str(made.library), str(arrays)],
        "ONNX Runtime, Python": [sys.executable, "-c", ORT, str(onnx), str(arrays), str(threads)],
        "OpenVINO, Python": [sys.executable, "-c", OPENVINO, str(onnx), str(arrays), str(threads)],
        "Python and NumPy alone": [sys.executable, "-c", "import numpy"],
    }
    seconds: dict[str, list[tuple[float, float]]] = {kind: [] for kind in commands}
    for _ in range(runs):
        for kind, command in commands.items():
            with raw.open("rb") as given:
                start, used = time.perf_counter(), cpu_of_children()
                subprocess.run(command, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
                seconds[kind].append((time.perf_counter() - start, cpu_of_children() - used))
    walls = {kind: [wall for wall, _ in s] for kind, s in seconds.items()}
    return {k: (min(w), statistics.median(w), min(c for _, c in seconds[k])) for k, w in walls.items()}


def cpu_of_children() -> float:
    """CPU seconds of all processes that have ended, user and system."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def sized(spec: str) -> zoo.ZooModel:
    """The net of ``NAME`` or ``NAME:DIMENSION=SIZE,...``."""
    name, _, sizes = spec.partition(":")
    model = zoo.build(name)
    for dimension, _, size in (part.partition("=") for part in sizes.split(",") if part):
        found = [(key, axis) for key, axes in model.axes.items() for axis, n in axes.items() if n == dimension]
        if not found:
            known = sorted({n for axes in model.axes.values() for n in axes.values()})
            raise SystemExit(f"{name} has no dimension {dimension!r}; it has {known}")
        for key, axis in found:
            model.named_inputs[key] = model.named_inputs[key].narrow(axis, 0, int(size)).contiguous()
    return model


def prepared(spec: str, folder: Path, threads: int) -> tuple[Path, Exported]:
    """The model as ONNX, exported and linked."""
    folder.mkdir(parents=True, exist_ok=True)
    name = c_name(spec)
    onnx = folder / f"{name}.onnx"
    if not onnx.exists():
        onnx.write_bytes(zoo.to_onnx(sized(spec)).SerializeToString())
    made = tw.export(onnx, folder, name=name, threads=threads, weights="file", shared=True)
    flags = [f"-DMODEL={name}", f'-DWEIGHTS="{made.weights}"', "-include", str(made.header), "-O1"]
    source = ROOT / "examples" / "aot" / "run.c"
    subprocess.run(["cc", *flags, str(source), str(made.object), "-o", str(folder / name), "-lm"], check=True)
    assert made.library is not None
    model = LibraryModel(made.library)
    zeros = {t.name: np.zeros(t.shape, t.dtype) for t in model.inputs}
    np.savez(folder / f"{name}.npz", **zeros)
    (folder / f"{name}.bin").write_bytes(b"".join(a.tobytes() for a in zeros.values()))
    return onnx, made


if __name__ == "__main__":
    main()
