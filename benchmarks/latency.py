"""Latency of Tilewright beside every engine that is installed: one run, own processes, interleaved rounds, ratios.

    python -m benchmarks.latency resnet50 bert_base mobilenet_v2 --threads 1 2
    python -m benchmarks.latency resnet50 bert_base --precision bf16
    python -m benchmarks.latency resnet50 bert_base --isa avx2
    python -m benchmarks.latency all --threads 1 2 --folder models --json record.json
    python -m benchmarks.page record.json --command "python -m benchmarks.latency ..." --commit .. --date ..

In: names from ``benchmarks.zoo``. Out: a line per model (``--json`` for a record) of median milliseconds per inference,
the ratio of each engine's time to ours, and our share of the fp32 FMA peak measured in the same run. With bf16 each
engine runs in its own bf16 mode: OpenVINO by its precision hint, PyTorch by autocast. With ``--isa avx2`` our code is
compiled for an AVX2 CPU, and peers are restricted to AVX2 where they can be. With ``--clock cpu`` the times
are CPU seconds of the engine's process, which a busy machine changes less. An engine that is not installed, that can't
be restricted or that fails on a model is named with the reason.
Not its business: kernels one by one (``benchmarks/kernels.py``).

Each engine answers in a process of its own, so that thread pools and allocators do not meet; only one runs at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.engines import BOTH, ENGINES, Task, make_runner

MARK = "@latency "
"""What begins a line of a worker that is for us: engines print lines of their own."""


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


def serve(engine: str, task: Task) -> None:
    """Prepare, say how long that took, then answer each line (seconds) with the times of calls in that long."""
    start = time.perf_counter()
    run = make_runner(engine, task)
    run()
    print(MARK + json.dumps({"ready": time.perf_counter() - start}), flush=True)
    now = time.process_time if task.clock == "cpu" else time.perf_counter
    for line in sys.stdin:
        times: list[float] = []
        end = time.perf_counter() + float(line)
        while not times or time.perf_counter() < end:
            begin = now()
            run()
            times.append(now() - begin)
        print(MARK + json.dumps(times), flush=True)


# --- the run --------------------------------------------------------------------------------------------------------


class Worker:
    """An engine's process; it must be ready within ``limit`` seconds."""

    def __init__(self, engine: str, task: Task, limit: float) -> None:
        arguments = [task.name, "--serve", engine, "--path", str(task.path), "--threads", str(task.threads)]
        arguments += ["--precision", task.precision, "--clock", task.clock, "--isa", task.isa]
        arguments += ["--small"] if task.small else []
        variables = ENGINES[engine].environment(task)
        command = ["env", *variables, sys.executable, "-m", "benchmarks.latency", *arguments]
        self.engine = engine
        self.times: list[float] = []
        self.log = task.path.with_suffix(f".{engine}.log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        timer = threading.Timer(limit, self._kill)
        timer.start()
        try:
            self.ready = float(self._line()["ready"])
        except BaseException as e:
            self.close()
            if isinstance(e, RuntimeError) and not timer.is_alive():
                raise RuntimeError(f"not ready after {limit:.0f} s") from None
            raise
        finally:
            timer.cancel()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        lines = [x.strip() for x in self.log.read_text(errors="replace").splitlines() if x.strip()]
        errors = [x for x in lines if "Error" in x]
        raise RuntimeError((errors or lines or ["its process ended"])[-1][:300])

    def round(self, seconds: float) -> None:
        """Run for about ``seconds`` and keep the times."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        self.times += self._line()

    def _kill(self) -> None:
        """End the process and the compilers that it may have started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        self._kill()
        self.process.wait()


def measure(task: Task, flops: float, engines: list[str], rounds: int, seconds: float, limit: float) -> dict[str, Any]:
    """Interleaved rounds of every engine on one model; engines that can't take part are named with the reason."""
    from tilewright.codegen.cpu.peak import measure_peak
    from tilewright.target.target import Target

    workers: list[Worker] = []
    failed = {e: why for e in engines if (why := ENGINES[e].unfit(task))}
    for engine in engines:
        if engine not in failed:
            try:
                workers.append(Worker(engine, task, limit))
            except RuntimeError as e:
                failed[engine] = str(e)
    try:
        for _ in range(rounds):
            for w in list(workers):
                try:
                    w.round(seconds)
                except RuntimeError as e:
                    failed[w.engine] = str(e)
                    workers.remove(w)
        peak = measure_peak(Target.parse("haswell") if task.isa == "avx2" else None)
    finally:
        for w in workers:
            w.close()
    median = {w.engine: statistics.median(w.times) for w in workers}
    own = median.get("tilewright")
    return {
        "model": task.name,
        "threads": task.threads,
        "precision": task.precision,
        "isa": task.isa,
        "median_ms": {k: round(v * 1e3, 4) for k, v in median.items()},
        "best_ms": {w.engine: round(min(w.times) * 1e3, 4) for w in workers},
        "ratio": {k: round(v / own, 3) for k, v in median.items()} if own else {},
        "ready_s": {w.engine: round(w.ready, 3) for w in workers},
        "share_of_peak": round(flops / own / 1e9 / (peak.fma_gflops * task.threads), 3) if own else None,
        "peak_gflops": round(peak.fma_gflops, 1),
        "failed": failed,
    }


def every_name() -> list[str]:
    from benchmarks import zoo  # PyTorch takes long to import, and a prepared folder needs none of it

    return list(zoo.MODELS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", help="names of benchmarks.zoo, or all")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--precision", choices=BOTH, default="fp32")
    parser.add_argument(
        "--isa", choices=["native", "avx2"], default="native", help="avx2: all engines restricted to it"
    )
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--engines", default="", help=f"by commas; default: all of {', '.join(ENGINES)}")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--ready", type=float, default=300, help="seconds within which an engine must be ready")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path, help="where to keep the record, after every model")
    parser.add_argument("--folder", type=Path, help="where exported models are kept for another run")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.serve:
        serve(a.serve, Task(a.path, a.models[0], a.small, a.threads[0], a.precision, a.clock, a.isa))
        return
    engines = a.engines.split(",") if a.engines else list(ENGINES)
    if unknown := set(engines) - ENGINES.keys():
        parser.error(f"no engine {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    records = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in every_name() if a.models == ["all"] else a.models:
            path, flops = prepare(name, a.small, folder)
            for threads in a.threads:
                task = Task(path, name, a.small, threads, a.precision, a.clock, a.isa)
                record = measure(task, flops, engines, a.rounds, a.seconds, a.ready)
                records.append(record)
                cells = [f"{k} {v:.4g} ms ({record['ratio'].get(k, '-')}x)" for k, v in record["median_ms"].items()]
                print(f"{name} {threads}t: {'  '.join(cells)}  share of peak {record['share_of_peak']}", flush=True)
                for engine, why in record["failed"].items():
                    print(f"  {engine}: {why}", flush=True)
                if a.json:
                    a.json.write_text(json.dumps(records, indent=2))


if __name__ == "__main__":
    main()
