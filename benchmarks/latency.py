"""Latency of Tilewright beside every engine that is installed: one run, own processes, interleaved rounds, ratios.

    python -m benchmarks.latency resnet50 bert_base mobilenet_v2 --threads 1 2
    python -m benchmarks.latency resnet50 bert_base --precision bf16
    python -m benchmarks.latency all --threads 1 2 --folder models --json record.json
    python -m benchmarks.page record.json docs/performance.md

In: names from ``benchmarks.zoo``. Out: a line per model (``--json`` for a record) of median milliseconds per inference,
the ratio of each engine's time to ours, and our share of the fp32 FMA peak measured in the same run. With bf16 each
engine runs in its own bf16 mode: OpenVINO by its precision hint, PyTorch by autocast. With ``--clock cpu`` the times
are CPU seconds of the engine's process, which a busy machine changes less.
Not its business: kernels one by one (``benchmarks/kernels.py``).

Each engine answers in a process of its own, so that thread pools and allocators do not meet; only one runs at a time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = {
    "fp32": ("tilewright", "onnxruntime", "openvino", "torch", "inductor"),
    "bf16": ("tilewright", "openvino", "torch", "inductor"),
}
PACKAGES = {"torch": "torch", "inductor": "torch"}


@dataclass(frozen=True)
class Task:
    """What an engine is to run: a model of the zoo, also as an ONNX file, and how."""

    path: Path
    name: str
    small: bool
    threads: int
    precision: str
    clock: str = "wall"


def prepare(name: str, small: bool, folder: Path) -> tuple[Path, float]:
    """Write the model's ONNX file and inputs, unless they are there; the file and its FLOPs as PyTorch counts them."""
    path = folder / f"{name}.onnx"
    counted = folder / f"{name}.flops"
    if counted.exists():
        return path, float(counted.read_text())
    import onnx
    import torch
    from benchmarks import zoo
    from torch.utils.flop_counter import FlopCounterMode

    model = zoo.build(name, small=small)
    onnx.save(zoo.to_onnx(model), path)
    np.savez(folder / f"{name}.npz", *[x.numpy() for x in model.inputs])
    with (
        FlopCounterMode(display=False) as counter,
        torch.no_grad(),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        model.module(*model.inputs)
    counted.write_text(str(counter.get_total_flops()))
    return path, float(counter.get_total_flops())


# --- one engine's process -------------------------------------------------------------------------------------------


def make_runner(engine: str, task: Task) -> Callable[[], Any]:
    """A function that runs the model once in this process."""
    arrays = list(np.load(task.path.with_suffix(".npz")).values())
    return {
        "tilewright": _tilewright,
        "onnxruntime": _onnxruntime,
        "openvino": _openvino,
        "torch": _torch,
        "inductor": _torch,
    }[engine](engine, task, arrays)


def _tilewright(engine: str, task: Task, arrays: list[Any]) -> Callable[[], Any]:
    import tilewright

    model = tilewright.compile(task.path, threads=task.threads, precision=task.precision, cache=False)
    return lambda: model(*arrays)


def _onnxruntime(engine: str, task: Task, arrays: list[Any]) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.threads
    session = onnxruntime.InferenceSession(str(task.path), options, providers=["CPUExecutionProvider"])
    feed = {i.name: x for i, x in zip(session.get_inputs(), arrays, strict=True)}
    return lambda: session.run(None, feed)


def _openvino(engine: str, task: Task, arrays: list[Any]) -> Callable[[], Any]:
    import openvino

    hint = {"fp32": "f32", "bf16": "bf16"}[task.precision]
    config = {"INFERENCE_NUM_THREADS": task.threads, "INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(task.path, "CPU", config).create_infer_request()
    return lambda: request.infer(arrays, share_inputs=True, share_outputs=True)


def _torch(engine: str, task: Task, arrays: list[Any]) -> Callable[[], Any]:
    import torch
    from benchmarks import zoo

    torch.set_num_threads(task.threads)
    model = zoo.build(task.name, small=task.small)
    call: Any = torch.compile(model.module) if engine == "inductor" else model.module

    def run() -> Any:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=task.precision == "bf16"):
            return call(*model.inputs)

    return run


def serve(engine: str, task: Task) -> None:
    """Prepare, say how long that took, then answer each line (seconds) with the times of calls in that long."""
    start = time.perf_counter()
    run = make_runner(engine, task)
    run()
    print(json.dumps({"ready": time.perf_counter() - start}), flush=True)
    now = time.process_time if task.clock == "cpu" else time.perf_counter
    for line in sys.stdin:
        times: list[float] = []
        end = time.perf_counter() + float(line)
        while not times or time.perf_counter() < end:
            begin = now()
            run()
            times.append(now() - begin)
        print(json.dumps(times), flush=True)


# --- the run --------------------------------------------------------------------------------------------------------


class Worker:
    """An engine's process."""

    def __init__(self, engine: str, task: Task) -> None:
        arguments = [task.name, "--serve", engine, "--path", str(task.path), "--threads", str(task.threads)]
        arguments += ["--precision", task.precision, "--clock", task.clock, *(["--small"] if task.small else [])]
        command = [sys.executable, "-m", "benchmarks.latency", *arguments]
        self.engine = engine
        self.times: list[float] = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        first = self._line()
        self.ready = float(first["ready"])

    def _line(self) -> Any:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith(("{", "[")):
                return json.loads(line)
        assert self.process.stderr is not None
        raise RuntimeError(f"{self.engine} failed: {self.process.stderr.read()[-600:]}")

    def round(self, seconds: float) -> None:
        """Run for about ``seconds`` and keep the times."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        self.times += self._line()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def installed(engine: str) -> bool:
    return importlib.util.find_spec(PACKAGES.get(engine, engine)) is not None


def measure(task: Task, flops: float, engines: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    """Interleaved rounds of every engine on one model."""
    from tilewright.codegen.peak import measure_peak

    workers: list[Worker] = []
    failed: dict[str, str] = {}
    for engine in engines:
        try:
            workers.append(Worker(engine, task))
        except RuntimeError as e:
            failed[engine] = str(e)
    try:
        for _ in range(rounds):
            for w in workers:
                w.round(seconds)
        peak = measure_peak()
    finally:
        for w in workers:
            w.close()
    median = {w.engine: statistics.median(w.times) for w in workers}
    own = median.get("tilewright")
    return {
        "model": task.name,
        "threads": task.threads,
        "precision": task.precision,
        "median_ms": {k: round(v * 1e3, 3) for k, v in median.items()},
        "ratio": {k: round(v / own, 3) for k, v in median.items()} if own else {},
        "ready_s": {w.engine: round(w.ready, 3) for w in workers},
        "share_of_peak": round(flops / own / 1e9 / (peak.fma_gflops * task.threads), 3) if own else None,
        "failed": failed,
    }


def every_name() -> list[str]:
    from benchmarks import zoo  # PyTorch takes long to import, and a prepared folder needs none of it

    return list(zoo.MODELS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", help="names of benchmarks.zoo, or all")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--precision", choices=list(ENGINES), default="fp32")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--engines", default="")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path, help="where to keep the record, after every model")
    parser.add_argument("--folder", type=Path, help="where exported models are kept for another run")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.serve:
        serve(a.serve, Task(a.path, a.models[0], a.small, a.threads[0], a.precision, a.clock))
        return
    engines = [e for e in (a.engines.split(",") if a.engines else ENGINES[a.precision]) if installed(e)]
    records = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in every_name() if a.models == ["all"] else a.models:
            path, flops = prepare(name, a.small, folder)
            for threads in a.threads:
                task = Task(path, name, a.small, threads, a.precision, a.clock)
                record = measure(task, flops, engines, a.rounds, a.seconds)
                records.append(record)
                cells = [f"{k} {v:.2f} ms ({record['ratio'].get(k, '-')}x)" for k, v in record["median_ms"].items()]
                print(f"{name} {threads}t: {'  '.join(cells)}  share of peak {record['share_of_peak']}", flush=True)
                for engine, why in record["failed"].items():
                    print(f"  {engine}: {why}", flush=True)
                if a.json:
                    a.json.write_text(json.dumps(records, indent=2))


if __name__ == "__main__":
    main()
