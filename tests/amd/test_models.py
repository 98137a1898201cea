"""Whole models for AMD's GPUs: schedules for their warps, the text of their kernels run here, and what objects take.

The kernels' LLVM text runs as threads of this CPU, launched by the program that the compiler made; the driver is the
recorder of NVIDIA's tests, which is told of each entry what its PTX would say.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import tilewright
from ptx.recorder import Recorder
from ptx.test_models import MOST_THREADS, QUICK
from ptx.threads import Threads
from test_every_op import assert_close, graph_of, has_no_bound
from tilewright import ops
from tilewright.build import kernels
from tilewright.build.gpu import build_for_gpu
from tilewright.build.options import Clock, Options
from tilewright.codegen.amd.notes import usage_of
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.opdef import OpDef
from tilewright.runtime.cuda.compiled import CompiledGpuModel
from tilewright.runtime.cuda.errors import NoGpuError
from tilewright.runtime.cuda.model import GpuModel
from tilewright.runtime.models import model_of
from tilewright.target.gpu import ROCM_TRIPLE, Gpu, named_gpus

GPUS = named_gpus(ROCM_TRIPLE)
EACH = pytest.mark.parametrize("gpu", GPUS, ids=lambda g: g.arch)
SPILLED = (ops.bessel_j0, ops.bessel_j1, ops.bessel_y0, ops.bessel_y1, ops.airy_ai, ops.fourier)
"""Ops whose kernels hold more numbers at one time than there are scalar registers, or registers at all."""
EVERY = tuple(op for op in ops.ALL if op.samples is not None)


MEETING = ("s_barrier", "ds_", "_Z7barrierj(i32 3)", "call i32 @_Z21sub_group")
"""What a kernel's text has where threads meet."""


class Made:
    """A graph's model for a GPU, with its kernels."""

    def __init__(self, graph, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
        built: list[kernels.KernelBuilder] = []
        builder = kernels.KernelBuilder

        def keeping(*args, **kwargs):
            built.append(builder(*args, **kwargs))
            return built[-1]

        monkeypatch.setattr(kernels, "KernelBuilder", keeping)
        model = model_of(build_for_gpu(graph, Options(gpu.name), Clock()))
        monkeypatch.setattr(kernels, "KernelBuilder", builder)
        assert isinstance(model, CompiledGpuModel)
        self.model, self.gpu, self.kernels = model, gpu, built[0].kernels

    def here(self) -> GpuModel:
        """The model on this CPU."""
        recorder, stated = Recorder(), []
        for kernel in self.model.code.kernels:
            threads = Threads(self.kernels[kernel.name], self.gpu.name)
            recorder.threads |= {launch.entry: threads for launch in threads.launches}
            stated.append(replace(kernel, ptx="".join(map(as_ptx, threads.launches))))
        code = replace(self.model.code, arch="sm_90a", kernels=tuple(stated))
        return GpuModel(self.model.manifest, code, self.model.weights, recorder, 0)

    @property
    def is_small(self) -> bool:
        """May every grid with barriers run as threads of this system?"""
        meeting = [k for k in self.model.code.kernels if any(x in k.ptx for x in MEETING)]
        entries = [e for k in meeting for e in k.entries]
        return all(isinstance(n, int) for e in entries for n in e.grid) and all(
            np.prod(e.grid) * np.prod(e.block) <= MOST_THREADS for e in entries
        )


def as_ptx(launch) -> str:
    """What the recorder reads of a module's text."""
    params = [".param .ptr"] * len(launch.params) + [".param"] * len(launch.sizes)
    block = ", ".join(map(str, launch.block))
    return f".version .address_size 64 .visible .entry {launch.entry}({', '.join(params)}) .reqntid {block} {{\n"


def samples_agree(op: OpDef, gpu: Gpu, which: slice, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many samples were run; each of them gives what the op means, and no register is spilled."""
    n = 0
    for sample in list(op.samples(np.random.default_rng(0)))[which]:
        if has_no_bound(op, sample):
            continue
        graph = graph_of(op, sample)
        made = Made(graph, gpu, monkeypatch)
        for code_object in made.model.code_objects.values() if gpu.triple == ROCM_TRIPLE else ():
            assert op in SPILLED or not [u for u in usage_of(code_object).values() if u.spilled_registers]
        if not made.is_small:
            continue
        with np.errstate(all="ignore"):
            want = evaluate_graph(graph, sample.arrays)
        got = made.here()(*sample.arrays)
        for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            assert_close(np.asarray(g), w)
        n += 1
    return n


@EACH
@pytest.mark.one_in(12)
@pytest.mark.parametrize("op", QUICK, ids=lambda op: op.name)
def test_ops_of_each_kind(op: OpDef, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert samples_agree(op, gpu, slice(1), monkeypatch)


@EACH
@pytest.mark.slow
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.name)
def test_every_op(op: OpDef, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    samples_agree(op, gpu, slice(3), monkeypatch)


@EACH
def test_schedules_are_emulated_too(gpu: Gpu) -> None:
    x, y = (torch.randn(64, 64) for _ in range(2))
    made = tilewright.compile(Weights(), (x, y), target=gpu.name, emulate=True)
    np.testing.assert_allclose(np.asarray(made(x, y)), torch.softmax(x @ y, -1).numpy(), rtol=1e-4, atol=1e-5)


class Weights(torch.nn.Module):
    """A product and a row's exchanges."""

    def forward(self, x, y):
        return torch.softmax(x @ y, -1)


@EACH
def test_a_model_is_saved_and_read_and_says_that_nothing_launches_it(gpu: Gpu, tmp_path) -> None:
    sample = next(iter(ops.softmax.samples(np.random.default_rng(0))))
    made = model_of(build_for_gpu(graph_of(ops.softmax, sample), Options(gpu.name), Clock()))
    made.save(tmp_path / "model.tw")
    read = tilewright.load(tmp_path / "model.tw")
    assert isinstance(read, CompiledGpuModel) and read.code_objects == made.code_objects
    assert read.code_objects.keys() == read.ptx.keys()
    with pytest.raises(NoGpuError, match=f"(?s)the model is for {gpu.arch}.*can't launch.*HIP, or.*emulate=True"):
        read(*sample.arrays)
