"""Modules of SPIR-V run by PoCL's OpenCL, where it is installed: kernels by hand, and every op's samples."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from amd.test_models import EVERY, Made, as_ptx
from ptx import by_hand
from ptx.recorder import Recorder
from ptx.test_kernels import floats
from spirv.opencl import Module, is_installed
from spirv.test_modules import ANY, CAPABILITY, PLAIN, SHUFFLES, operations
from test_every_op import assert_close, graph_of, has_no_bound
from tilewright import ops
from tilewright.codegen.spirv.compile import compile_kernel, emit
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.opdef import OpDef
from tilewright.runtime.cuda.model import GpuModel

pytestmark = pytest.mark.skipif(
    not is_installed(), reason="no OpenCL (Debian's pocl-opencl-icd, ocl-icd-libopencl1, llvm-spirv-15)"
)
HALVES = 9
"""The capability of numbers of 16 bits."""
QUICK = (ops.exp, ops.softmax)
"""Elements that are no numbers among others, and rows."""


def through_opencl(made: Made) -> GpuModel:
    """The model, whose kernels are the modules that the compiler made."""
    recorder, stated = Recorder(), []
    for kernel in made.model.code.kernels:
        module = Module(made.model.code_objects[kernel.name], emit(made.kernels[kernel.name], ANY).launches)
        recorder.threads |= dict.fromkeys(module.launches, module)
        stated.append(replace(kernel, ptx="".join(map(as_ptx, module.launches.values()))))
    code = replace(made.model.code, arch="sm_90a", kernels=tuple(stated))
    return GpuModel(made.model.manifest, code, made.model.weights, recorder, 0)


def may_run(module: bytes) -> bool:
    """Has PoCL's device all that the module asks for? It has no sub-groups and computes no halves."""
    asked = [words[0] for operation, words in operations(module) if operation == CAPABILITY]
    return HALVES not in asked and SHUFFLES not in asked


def samples_agree(op: OpDef, which: slice, monkeypatch: pytest.MonkeyPatch) -> None:
    assert op.samples is not None
    for sample in list(op.samples(np.random.default_rng(0)))[which]:
        if has_no_bound(op, sample):
            continue
        graph = graph_of(op, sample)
        made = Made(graph, ANY, monkeypatch)
        if not all(map(may_run, made.model.code_objects.values())):
            continue
        with np.errstate(all="ignore"):
            want = evaluate_graph(graph, sample.arrays)
        got = through_opencl(made)(*sample.arrays)
        for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            assert_close(np.asarray(g), w)


def written(name: str, sizes: dict[str, int], **arrays: np.ndarray) -> Sequence[np.ndarray]:
    made = compile_kernel(by_hand.kernel(PLAIN[name]), ANY)
    Module(made.module, made.launches)(arrays, sizes)
    return list(arrays.values())


def test_a_kernel_by_hand() -> None:
    x, y = written("pointwise", {"n": 3}, x=floats(3, 512), y=floats(3, 512))
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)


def test_threads_meet_and_share_memory() -> None:
    x, y = written("rows", {"n": 3}, x=floats(3, 96), y=floats(3, 96))
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("op", QUICK, ids=lambda op: op.name)
def test_ops_of_each_kind(op: OpDef, monkeypatch: pytest.MonkeyPatch) -> None:
    samples_agree(op, slice(2), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.name)
def test_every_op(op: OpDef, monkeypatch: pytest.MonkeyPatch) -> None:
    samples_agree(op, slice(2), monkeypatch)
