"""``tilewright bench``: latency, alone or beside other engines in one interleaved run.

In: a model, engines to compare with. Out: medians and ratios. Not its business: tuning.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.build import manifest, texts
from tilewright.build.options import Options, read_schedule
from tilewright.cli import inputs, show
from tilewright.cli.compile_run import (
    Accuracy,
    Fix,
    InputFile,
    Json,
    Model,
    Optimize,
    PrecisionOption,
    ScheduleFile,
    Seed,
    Size,
    Target,
    Threads,
    obtain,
)
from tilewright.cli.tokens import bench_tokens
from tilewright.core.diag import OptionError
from tilewright.core.types import Array
from tilewright.frontend.torch.decoder import CACHES
from tilewright.frontend.torch.export import load_program
from tilewright.runtime.errors import ExecutionError, TilewrightError
from tilewright.runtime.manifest import SymbolSpec
from tilewright.runtime.threads import default_threads
from tilewright.tools.profile import profile

Run = Callable[[], Any]
Engine = Callable[[Path, Mapping[str, Array], int], Run]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command("bench")(bench_command)


def bench_command(
    model: Model,
    against: Annotated[
        list[str], typer.Option(help="Other engines: onnxruntime, openvino, torch, inductor. By commas, or repeated.")
    ] = [],  # noqa: B006
    input: InputFile = [],  # noqa: B006
    size: Size = [],  # noqa: B006
    fix: Fix = [],  # noqa: B006
    seed: Seed = 0,
    target: Target = "native",
    threads: Threads = None,
    optimize: Optimize = 2,
    precision: PrecisionOption = "fp32",
    accuracy: Accuracy = "default",
    schedule: ScheduleFile = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time for each engine.")] = 2.0,
    kernels: Annotated[bool, typer.Option("--kernels", help="Each kernel's time beside its roofline limit.")] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Tokens per second of a language model in transformers' format.")
    ] = False,
    kv_cache: Annotated[
        str, typer.Option(help=f"With --tokens, what its cache is held in: {', '.join(CACHES)}.")
    ] = "fp32",
    json: Json = False,
) -> None:
    """Measure latency, alone or beside other engines.

    With --against, engines take turns within one run, so that a busy machine slows all of them; read the ratios.
    With --kernels, the model is compiled with counters, for the sizes that --size and --fix give.
    """
    if tokens:
        bench_tokens(model, precision, kv_cache, threads or default_threads(), json=json)
        return
    fixed = inputs.parse_sizes(fix, "--fix")
    if kernels:
        if against:
            raise typer.BadParameter("other engines' kernels can't be seen; leave one out", param_hint="'--kernels'")
        given = _Given(input, inputs.parse_sizes(size, "--size") | fixed, seed)
        options = Options(target, precision, optimize, accuracy, read_schedule(schedule))
        _kernels(model, given, options, threads or default_threads(), seconds, json)
        return
    asked = [name.strip() for text in against for name in text.split(",") if name.strip()]
    engines = {name: _engine(name) for name in asked}
    sizes = inputs.parse_sizes(size, "--size")
    n_threads = threads or default_threads()
    made = obtain(
        model,
        target=target,
        threads=n_threads,
        optimize=optimize,
        precision=precision,
        accuracy=accuracy,
        schedule=schedule,
        fix=fixed,
        quiet=json,
    )
    arrays = inputs.gather(input, made.inputs, made.symbols, sizes, seed)
    runs: dict[str, Run] = {"tilewright": lambda: made.run(arrays)}
    for name, make in engines.items():
        # All engines start before any is measured: loading one would disturb another's turn.
        runs[name] = _started(name, make, model, arrays, n_threads)
    times = interleave(runs, seconds)
    own = statistics.median(times["tilewright"])
    rows = [
        {
            "engine": name,
            "median_ms": round(statistics.median(t) * 1e3, 4),
            "min_ms": round(min(t) * 1e3, 4),
            "runs": len(t),
            "ratio": round(statistics.median(t) / own, 3),
        }
        for name, t in times.items()
    ]
    if json:
        show.emit_json({"threads": n_threads, "engines": rows})
        return
    names = ("engine", "median ms", "min ms", "runs", "time / ours")
    show.table(f"{model.name}, {n_threads} thread(s)", names, [list(r.values()) for r in rows])


@dataclass(frozen=True)
class _Given:
    """Where a command's inputs come from."""

    files: list[str]
    sizes: dict[str, int]
    seed: int


def _kernels(path: Path, given: _Given, options: Options, threads: int, seconds: float, json: bool) -> None:
    if path.suffix == ".tw":
        raise OptionError(f"{path} was compiled without counters", remedy="give the model that it was made of")
    graph = texts.read_graph(path, fix_dims=given.sizes)
    specs = tuple(manifest.tensor_spec(name, n) for name, n in zip(graph.input_names, graph.inputs, strict=True))
    symbols = tuple(SymbolSpec(s.name, s.lo or 0, s.hi) for s in graph.symbols())
    arrays = inputs.gather(given.files, specs, symbols, {}, given.seed)
    found = profile(graph, list(arrays.values()), options, threads=threads, seconds=seconds)
    if json:
        show.emit_json({"threads": threads, **asdict(found)})
        return
    rows = []
    for k in found.kernels:
        share = None if k.limit is None else k.limit / k.seconds
        gflops = None if k.flops is None else k.flops / k.seconds / 1e9
        moved = None if k.n_bytes is None else k.n_bytes / k.seconds / 1e9
        price = None if k.price is None else k.price * 1e6
        rows.append([k.seconds / found.seconds, k.seconds * 1e6, price, k.calls, gflops, moved, share, " ".join(k.ops)])
    title = (
        f"{path.name}, {threads} thread(s), {found.seconds * 1e3:.4g} ms a run; one core here: {found.fma_gflops:.0f} "
        f"GFLOP/s, {found.memory_gb_per_s:.0f} GB/s of memory, {found.cache_gb_per_s:.0f} GB/s cached"
    )
    show.table(title, ("share", "us", "price, us", "calls", "GFLOP/s", "GB/s", "of limit", "ops"), rows)
    if any(k.limit is None for k in found.kernels):
        show.line(_unknown_work([s.name for s in symbols]))


def _unknown_work(symbols: Sequence[str]) -> str:
    """Why a kernel has no limit in the table."""
    if symbols:
        sizes = " ".join(f"--size {name}=..." for name in symbols)
        return (
            f"A kernel's work depends on {', '.join(symbols)}, which nobody gave a number: {sizes} fills its columns."
        )
    return "A kernel without limit does work that the data decide, or runs in a loop whose trips they decide."


def interleave(runs: Mapping[str, Run], seconds: float) -> dict[str, list[float]]:
    """Seconds per call of each engine, a few calls of one after a few of the other until the time is used."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end or not all(times.values()):
        for name, run in runs.items():
            slice_end = time.perf_counter() + 0.05
            while not times[name] or time.perf_counter() < slice_end:
                start = time.perf_counter()
                run()
                times[name].append(time.perf_counter() - start)
    return times


@dataclass(frozen=True)
class _Peer:
    """Another engine: the package that must be installed, and how to get a call of a model."""

    package: str
    make: Engine


def _engine(name: str) -> Engine:
    if name not in PEERS:
        raise typer.BadParameter(f"there is no engine {name!r}; use {', '.join(PEERS)}", param_hint="'--against'")
    peer = PEERS[name]
    if importlib.util.find_spec(peer.package) is None:
        raise OptionError(f"{peer.package} is not installed", remedy=f"pip install {peer.package}")
    return peer.make


def _started(name: str, make: Engine, model: Path, arrays: Mapping[str, Array], threads: int) -> Run:
    """The engine's call, tried once; whatever the engine raises becomes an error that names it."""
    try:
        run = make(model, arrays, threads)
        run()
    except TilewrightError:
        raise
    except Exception as e:
        raise ExecutionError(f"{name} can't run {model}: {e}", remedy="leave it out of --against") from e
    return run


def _onnxruntime(model: Path, arrays: Mapping[str, Array], threads: int) -> Run:
    _check_onnx("onnxruntime", model)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(arrays))


def _openvino(model: Path, arrays: Mapping[str, Array], threads: int) -> Run:
    """In f32, whatever the CPU offers: its own choice would be bf16 where there is hardware for that."""
    _check_onnx("openvino", model)
    import openvino

    config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(model, "CPU", config)
    request = compiled.create_infer_request()
    feeds = {compiled.input(name): openvino.Tensor(a, shared_memory=True) for name, a in arrays.items()}
    return lambda: request.infer(feeds, share_outputs=True)


def _check_onnx(engine: str, model: Path) -> None:
    if model.suffix != ".onnx":
        raise OptionError(f"{engine} can't run {model}", remedy="give the .onnx file that it was made of")


def _torch(model: Path, arrays: Mapping[str, Array], threads: int) -> Run:
    return _of_exported("torch", model, arrays, threads, lambda torch, module: module)


def _inductor(model: Path, arrays: Mapping[str, Array], threads: int) -> Run:
    """TorchInductor with the weights as constants, which needs a C++ compiler on this machine."""

    def compile_frozen(torch: Any, module: Any) -> Any:
        torch._inductor.config.freezing = True
        return torch.compile(module)  # an exported module has no mode to change

    return _of_exported("inductor", model, arrays, threads, compile_frozen)


def _of_exported(
    engine: str, model: Path, arrays: Mapping[str, Array], threads: int, finish: Callable[[Any, Any], Any]
) -> Run:
    """PyTorch can't read ONNX; it runs the program of a ``.pt2`` file with the model's name, by ``torch.export``."""
    import torch

    path = model.with_suffix(".pt2")
    if not path.exists():
        raise OptionError(f"{engine} needs the exported program {path}", remedy="save it with torch.export.save")
    torch.set_num_threads(threads)
    module = finish(torch, load_program(path).module(check_guards=False))
    tensors = [torch.from_numpy(a) for a in arrays.values()]

    def run() -> Any:
        with torch.no_grad():
            return module(*tensors)

    return run


PEERS: Mapping[str, _Peer] = {
    "onnxruntime": _Peer("onnxruntime", _onnxruntime),
    "openvino": _Peer("openvino", _openvino),
    "torch": _Peer("torch", _torch),
    "inductor": _Peer("torch", _inductor),
}
"""Other engines by the names that ``--against`` takes."""
