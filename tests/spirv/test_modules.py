"""Kernels as SPIR-V: their LLVM text on this CPU, modules that are whole, and what `spirv-val` says of them."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright
from amd.test_models import EVERY, Made, samples_agree
from ptx import by_hand
from ptx.test_kernels import floats
from ptx.threads import Threads
from test_every_op import graph_of
from tilewright import ops
from tilewright.codegen.errors import CodegenError
from tilewright.codegen.spirv.compile import MAGIC, compile_kernel, module_of
from tilewright.core.opdef import OpDef
from tilewright.target.gpu import Gpu

ANY = Gpu.parse("spirv-opencl")
PLAIN = {
    "pointwise": by_hand.POINTWISE, "ragged": by_hand.RAGGED, "rows": by_hand.ROWS, "product": by_hand.PRODUCT,
    "two grids": by_hand.TWO_GRIDS, "long": by_hand.LONG,
}  # fmt: skip
QUICK = (ops.add, ops.softmax, ops.conv, ops.trilu)
"""Elements, rows, and loads by masks, which are made lane by lane."""
VALIDATOR = shutil.which("spirv-val")
needs_validator = pytest.mark.skipif(VALIDATOR is None, reason="spirv-val is not installed (Debian's spirv-tools)")
ENTRY_POINT, CAPABILITY, SHUFFLES, LIBRARY_CALL, FMAX, FMIN = 15, 17, 65, 12, 27, 28
"""Operations of SPIR-V, the capability of exchanges among lanes, two functions of OpenCL's, by their numbers."""


def operations(module: bytes) -> list[tuple[int, list[int]]]:
    """The operations of a module with their words: each says how many it has."""
    words = np.frombuffer(module, np.uint32)
    assert module.startswith(MAGIC) and words[4] == 0
    found, at = [], 5
    while at < len(words):
        n, operation = int(words[at]) >> 16, int(words[at]) & 0xFFFF
        assert n > 0
        found.append((operation, [int(x) for x in words[at + 1 : at + n]]))
        at += n
    assert at == len(words)
    return found


def validate(module: bytes, folder: Path) -> None:
    path = folder / "kernel.spv"
    path.write_bytes(module)
    done = subprocess.run([str(VALIDATOR), str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_text_runs_here() -> None:
    x, y = floats(3, 512), floats(3, 512)
    Threads(by_hand.kernel(by_hand.POINTWISE), ANY.name)({"x": x, "y": y}, {"n": 3})
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)
    x, y = floats(3, 96), floats(3, 96)
    Threads(by_hand.kernel(by_hand.ROWS), ANY.name)({"x": x, "y": y}, {"n": 3})
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("name", ["rows", "two grids"])
def test_modules_are_whole_and_have_an_entry_for_each_launch(name: str) -> None:
    made = compile_kernel(by_hand.kernel(PLAIN[name]), ANY)
    assert sum(operation == ENTRY_POINT for operation, _ in operations(made.module)) == len(made.launches)


def test_lanes_exchange_by_sub_groups_of_one_size() -> None:
    sample = next(iter(ops.softmax.samples(np.random.default_rng(0))))
    made = Made(graph_of(ops.softmax, sample), ANY, pytest.MonkeyPatch())
    (module,) = made.model.code_objects.values()
    (text,) = made.model.ptx.values()
    assert "!intel_reqd_sub_group_size !{i32 32}" in text and "sub_group_shuffle_xor" in text
    assert [SHUFFLES] in [words for operation, words in operations(module) if operation == CAPABILITY]


def test_extremes_are_no_functions_of_opencl_which_drop_what_is_no_number() -> None:
    sample = next(iter(ops.relu.samples(np.random.default_rng(0))))
    made = Made(graph_of(ops.relu, sample), ANY, pytest.MonkeyPatch())
    (module,) = made.model.code_objects.values()
    called = [words[3] for operation, words in operations(module) if operation == LIBRARY_CALL]
    assert FMAX not in called and FMIN not in called


class Rounded(torch.nn.Module):
    """A sum that is rounded."""

    def forward(self, x, y):
        return x + y


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_every_type_of_floats_has_a_module(dtype: torch.dtype) -> None:
    x = torch.arange(8).to(dtype)
    model = tilewright.compile(Rounded(), (x, x), target=ANY.name)
    assert all(module.startswith(MAGIC) for module in model.code_objects.values())


def test_what_ends_llvm_is_an_error_here() -> None:
    with pytest.raises(CodegenError, match=r"LLVM makes no SPIR-V of this kernel, and says: .*bitcast"):
        module_of(MASKED)
    with pytest.raises(CodegenError, match="parsing error"):
        module_of("no text of LLVM")


MASKED = """target triple = "spirv64-unknown-unknown"
define spir_kernel void @f(ptr addrspace(1) %p, i32 %n) {
  %v = insertelement <4 x i32> zeroinitializer, i32 %n, i64 0
  %m = icmp sgt <4 x i32> %v, zeroinitializer
  %x = call <4 x float> @llvm.masked.load(ptr addrspace(1) align 16 %p, <4 x i1> %m, <4 x float> zeroinitializer)
  store <4 x float> %x, ptr addrspace(1) %p
  ret void
}
"""


@pytest.mark.parametrize("op", QUICK, ids=lambda op: op.name)
def test_ops_of_each_kind(op: OpDef, monkeypatch: pytest.MonkeyPatch) -> None:
    assert samples_agree(op, ANY, slice(1), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.name)
def test_every_op(op: OpDef, monkeypatch: pytest.MonkeyPatch) -> None:
    samples_agree(op, ANY, slice(2), monkeypatch)


@needs_validator
@pytest.mark.parametrize("name", PLAIN)
def test_modules_are_valid(name: str, tmp_path: Path) -> None:
    validate(compile_kernel(by_hand.kernel(PLAIN[name]), ANY).module, tmp_path)


@needs_validator
@pytest.mark.slow
@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.name)
def test_modules_of_every_op_are_valid(op: OpDef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for sample in list(op.samples(np.random.default_rng(0)))[:1]:
        for module in Made(graph_of(op, sample), ANY, monkeypatch).model.code_objects.values():
            validate(module, tmp_path)
