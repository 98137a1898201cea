"""What NVIDIA's assembler makes of kernels for GPUs: registers, spills and shared memory, kept in ``ptxas.json``.

A change of the compiler that changes what a kernel takes of a GPU changes a row there, and its diff is part of the
change: ``pytest tests/golden/test_ptxas.py --update-golden`` writes them, with ``-m ""`` the slow ones too. No kernel
there spills. Without ``ptxas`` all of it is skipped; with other versions of the tools than the rows were written by
registers are not compared, because they are the tools' choice.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from golden.gpu_nests import GPU_NESTS, SHOWN
from golden.gpu_rows import Row, RowFile, difference, model_and_strategies
from ptx.assembler import assemble, needs_ptxas, tool
from tilewright.target.gpu import CUDA_TRIPLE, Gpu, named_gpus

FILE = RowFile(Path(__file__).parent / "ptxas.json", named_gpus(CUDA_TRIPLE))
QUICK = {
    "transpose bf16": "sm_80",
    "product bf16": "sm_90a",
    "attention 64, causal": "sm_90a",
    "few rows f32": "sm_100a",
}
"""What every run of the tests assembles, for one GPU each; slow runs assemble all for every GPU."""
CASES = [
    pytest.param(name, gpu, id=f"{name}-{gpu.arch}", marks=() if QUICK.get(name) == gpu.arch else pytest.mark.slow)
    for name in GPU_NESTS
    for gpu in FILE.gpus
]
HOW = "If the change is meant: pytest tests/golden/test_ptxas.py --update-golden, then read and commit the diff."


def rows_of(name: str, gpu: Gpu, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """A row for each grid, in the order of their launches."""
    model, taken = model_and_strategies(name, gpu, monkeypatch)
    found = []
    for strategies, kernel in zip(taken, model.code.kernels, strict=True):
        used = assemble(kernel.ptx, gpu.arch, folder)
        for e in kernel.entries:
            u = used[e.name]
            found.append(Row(strategies, u.registers, u.spilled_bytes, u.shared_bytes + e.dynamic_shared_bytes))
    return found


def tools() -> str:
    """The versions on which registers depend."""
    said = subprocess.run([str(tool("ptxas")), "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"V([\d.]+)", said)
    return f"ptxas {version[1] if version else said}, LLVM {'.'.join(map(str, llvm.llvm_version_info))}"


@needs_ptxas
@pytest.mark.parametrize(("name", "gpu"), CASES)
def test_kernels_take_what_they_took(
    name: str, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    rows, version = rows_of(name, gpu, tmp_path, monkeypatch), tools()
    assert not [row for row in rows if row.spilled_bytes], "registers are spilled"
    if request.config.getoption("--update-golden"):
        FILE.write(name, gpu, rows, version)
    FILE.check(name, gpu, rows, version, HOW)


def test_every_kernel_has_rows_and_every_strategy_has_a_kernel() -> None:
    assert FILE.strategies() == SHOWN


def test_a_difference_says_what() -> None:
    old, spilled, wider = Row("rows", 40, 0, 64), Row("rows", 40, 8, 64), Row("rows", 48, 0, 64)
    assert difference([old], [old], same_tools=True) == "" == difference([old], [wider], same_tools=False)
    assert "registers=40" in difference([old], [wider], same_tools=True)
    assert "spilled_bytes=8" in difference([old], [spilled], same_tools=False)
    assert difference([old], [old, old], same_tools=False)
