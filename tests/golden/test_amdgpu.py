"""What kernels for AMD's GPUs take: registers of a thread, spilled ones and shared memory, kept in ``amdgpu.json``.

The numbers are those of the note in each code object that LLVM makes, so nothing has to be installed. A change of the
compiler that changes what a kernel takes changes a row there, and its diff is part of the change:
``pytest -m "" tests/golden/test_amdgpu.py --update-golden`` writes them. No kernel there spills.
"""

from __future__ import annotations

from pathlib import Path

import llvmlite.binding as llvm
import pytest

from golden.gpu_nests import GPU_NESTS, SHOWN
from golden.gpu_rows import Row, RowFile, model_and_strategies
from tilewright.codegen.amd.notes import usage_of
from tilewright.target.gpu import REGISTER_BYTES as WORD
from tilewright.target.gpu import ROCM_TRIPLE, Gpu, named_gpus

FILE = RowFile(Path(__file__).parent / "amdgpu.json", named_gpus(ROCM_TRIPLE))
QUICK = ("elements f32", "softmax f32", "product f32", "one query bf16")
"""What every run of the tests makes objects of; slow runs do of all."""
CASES = [
    pytest.param(name, gpu, id=f"{name}-{gpu.arch}", marks=() if name in QUICK else pytest.mark.slow)
    for name in GPU_NESTS
    for gpu in FILE.gpus
]
HOW = "If the change is meant: pytest tests/golden/test_amdgpu.py --update-golden, then read and commit the diff."
NOT_YET = {"averages"}
"""Strategies of NVIDIA's matrix instructions alone."""


def rows_of(name: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """A row for each grid, in the order of their launches."""
    model, taken = model_and_strategies(name, gpu, monkeypatch)
    found = []
    for strategies, kernel in zip(taken, model.code.kernels, strict=True):
        used = usage_of(model.code_objects[kernel.name])
        for e in kernel.entries:
            u = used[e.name]
            found.append(Row(strategies, u.vector_registers, WORD * u.spilled_registers, u.shared_bytes))
    return found


@pytest.mark.parametrize(("name", "gpu"), CASES)
def test_kernels_take_what_they_took(
    name: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    rows, version = rows_of(name, gpu, monkeypatch), f"LLVM {'.'.join(map(str, llvm.llvm_version_info))}"
    assert not [row for row in rows if row.spilled_bytes], "registers are spilled"
    if request.config.getoption("--update-golden"):
        FILE.write(name, gpu, rows, version)
    FILE.check(name, gpu, rows, version, HOW)


def test_every_kernel_has_rows_and_every_strategy_has_a_kernel() -> None:
    assert FILE.strategies() == SHOWN - NOT_YET
