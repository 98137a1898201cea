"""Whole models for GPUs: the schedules, their code and the runtime together, on a driver that runs kernels here.

What is right here: the flat kernels' LLVM text, launches, addresses, sizes, control flow. What `ptxas` says of the same
kernels is asked too, where it is installed.
"""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import gpu as gpu_benchmark
from benchmarks import gpu_calls

from ptx.assembler import assemble, needs_ptxas
from ptx.recorder import Recorder
from ptx.threads import Threads
from test_every_op import assert_close, graph_of, has_no_bound
from tilewright import ops
from tilewright.build import driver, kernels
from tilewright.build.gpu import build_for_gpu
from tilewright.build.options import Clock, Options
from tilewright.core.diag import OptionError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Graph
from tilewright.core.opdef import OpDef
from tilewright.runtime.cuda.compiled import CompiledGpuModel
from tilewright.runtime.cuda.errors import NoGpuError
from tilewright.runtime.models import model_of
from tilewright.target.gpu import CUDA_TRIPLE, Gpu, named_gpus
from tilewright.target.target import Target

H100 = Gpu.parse("cuda-sm90a")
QUICK = (
    ops.add, ops.softmax, ops.matmul, ops.conv, ops.gather, ops.scatter_nd, ops.sort, ops.cast, ops.attention,
    ops.if_, ops.loop, ops.map_parts, ops.nonzero,
)  # fmt: skip
"""An op of each kind, control flow and sizes that the data decide among them."""
EVERY = tuple(op for op in ops.ALL if op.samples is not None)
MOST_THREADS = 4000
"""Of a grid that meets at barriers, where each is a thread of this system."""


def model_for_gpu(graph: Graph, gpu: Gpu) -> CompiledGpuModel:
    model = model_of(build_for_gpu(graph, Options(gpu.name), Clock()))
    assert isinstance(model, CompiledGpuModel)
    return model


class Made:
    """A graph's model, with what runs its kernels; `captured` has them as they were emitted."""

    def __init__(self, graph, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels = []
        builder = kernels.KernelBuilder

        def keeping(*args, **kwargs):
            self.kernels.append(builder(*args, **kwargs))
            return self.kernels[-1]

        monkeypatch.setattr(kernels, "KernelBuilder", keeping)
        self.model = model_for_gpu(graph, H100)
        monkeypatch.setattr(kernels, "KernelBuilder", builder)

    def on_recorder(self) -> tuple[Recorder, CompiledGpuModel]:
        recorder = Recorder()
        for kernel in self.kernels[0].kernels.values():
            threads = Threads(kernel)
            recorder.threads |= {launch.entry: threads for launch in threads.launches}
        model = self.model
        return recorder, CompiledGpuModel(model.manifest, model.objects, model.weights, open_driver=lambda: recorder)

    @property
    def is_small(self) -> bool:
        """May every grid with barriers run as threads of this system?"""
        barriers = [k for k in self.model.code.kernels if "bar.sync" in k.ptx]
        return all(isinstance(n, int) for k in barriers for e in k.entries for n in e.grid) and all(
            np.prod(e.grid) * np.prod(e.block) <= MOST_THREADS for k in barriers for e in k.entries
        )


def samples_agree(op: OpDef, which: slice, monkeypatch: pytest.MonkeyPatch) -> int:
    n = 0
    for sample in list(op.samples(np.random.default_rng(0)))[which]:
        if has_no_bound(op, sample):
            continue
        graph = graph_of(op, sample)
        made = Made(graph, monkeypatch)
        if not made.is_small:
            continue
        with np.errstate(all="ignore"):
            want = evaluate_graph(graph, sample.arrays)
        _, model = made.on_recorder()
        for _ in range(2):  # launched, then recorded where that is possible
            got = model(*sample.arrays)
            for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
                assert_close(np.asarray(g), w)
        n += 1
    return n


@pytest.mark.one_in(6)
@pytest.mark.parametrize("op", QUICK, ids=lambda op: op.name)
def test_ops_of_each_kind(op: OpDef, monkeypatch: pytest.MonkeyPatch) -> None:
    assert samples_agree(op, slice(1), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.name)
def test_every_op(op: OpDef, monkeypatch: pytest.MonkeyPatch) -> None:
    samples_agree(op, slice(3), monkeypatch)


def spills(op: OpDef, gpu: Gpu, which: slice, folder: Path) -> list[str]:
    """Entries of an op's samples that ptxas spills registers of; it raises for what ptxas refuses."""
    found = []
    for sample in list(op.samples(np.random.default_rng(0)))[which]:
        if has_no_bound(op, sample):
            continue
        model = model_for_gpu(graph_of(op, sample), gpu)
        for kernel in model.code.kernels:
            used = assemble(kernel.ptx, gpu.arch, folder)
            assert used.keys() == {e.name for e in kernel.entries}
            found += [f"{kernel.ops}: {name} {u}" for name, u in used.items() if u.spilled_bytes]
    return found


@needs_ptxas
@pytest.mark.parametrize("op", [ops.softmax, ops.matmul, ops.sort, ops.attention], ids=lambda op: op.name)
def test_ptxas_takes_kernels_without_spills(op: OpDef, tmp_path: Path) -> None:
    assert spills(op, H100, slice(2), tmp_path) == []


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize("gpu", named_gpus(CUDA_TRIPLE), ids=lambda g: g.arch)
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.name)
def test_ptxas_takes_every_op(op: OpDef, gpu: Gpu, tmp_path: Path) -> None:
    """Few spill: one series of a special function does, 16 bytes; products, rows and attention may not (above)."""
    assert len(spills(op, gpu, slice(2), tmp_path)) <= 1


def test_compile_gives_ptx_and_says_what_is_missing() -> None:
    sample = next(iter(ops.softmax.samples(np.random.default_rng(0))))
    model = driver.compile_graph(graph_of(ops.softmax, sample), target="cuda-sm80")
    assert isinstance(model, CompiledGpuModel) and all(".target sm_80" in ptx for ptx in model.ptx.values())
    assert "kernels" in str(model.report())
    try:
        model(*sample.arrays)
    except NoGpuError as error:  # where there is a GPU, the call is right
        assert "remedy: " in str(error)


@pytest.mark.slow
def test_the_benchmark_goes_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_benchmark.main(Recorder, target="cuda-sm90a", scale=64) == 0
    printed = capsys.readouterr().out
    assert "a recorder, compute capability 9.0" in printed and all(
        f"| {case.name} |" in printed for case in gpu_benchmark.cases(64)
    )


def test_the_benchmark_of_calls_goes_through(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_benchmark, "ROUNDS", 1)
    monkeypatch.setattr(gpu_benchmark, "CALLS", 1)
    assert gpu_calls.main(Recorder, counts=(2,)) == 0
    assert capsys.readouterr().out.count("\n") == 3


def test_machine_code_for_the_host_is_refused() -> None:
    sample = next(iter(ops.softmax.samples(np.random.default_rng(0))))
    with pytest.raises(OptionError, match="no machine code for the host"):
        driver.build(graph_of(ops.softmax, sample), Options("cuda"), Clock())


def test_the_code_for_a_gpu_does_not_depend_on_this_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = next(iter(ops.matmul.samples(np.random.default_rng(0))))
    codes = []
    for cpu in ("x86-64-v4", "neoverse-n1"):
        other = Target.parse(cpu)
        monkeypatch.setattr(Target, "host", staticmethod(lambda other=other: other))
        codes.append(driver.compile_graph(graph_of(ops.matmul, sample), target="cuda").ptx)
    assert codes[0] == codes[1]
