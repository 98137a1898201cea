"""What NVIDIA's assembler makes of kernels for GPUs: registers, spills and shared memory, kept in ``ptxas.json``.

A change of the compiler that changes what a kernel takes of a GPU changes a row there, and its diff is part of the
change: ``pytest tests/golden/test_ptxas.py --update-golden`` writes them, with ``-m ""`` the slow ones too. No kernel
there spills. Without ``ptxas`` all of it is skipped; with other versions of the tools than the rows were written by
registers are not compared, because they are the tools' choice.
"""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from golden.gpu_nests import GPU_NESTS, SHOWN
from ptx.assembler import assemble, needs_ptxas, tool
from tilewright.build import gpu_kernels
from tilewright.build.gpu import build_for_gpu
from tilewright.build.options import Clock, Options
from tilewright.choose.default import Scheduled
from tilewright.runtime.cuda.compiled import CompiledGpuModel
from tilewright.runtime.models import model_of
from tilewright.target.gpu import Gpu, named_gpus

FILE = Path(__file__).parent / "ptxas.json"
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
    for gpu in named_gpus()
]
HOW = "If the change is meant: pytest tests/golden/test_ptxas.py --update-golden, then read and commit the diff."


@dataclass(frozen=True)
class Row:
    """One grid: the strategies of its kernel, and what a block or a thread of it takes."""

    strategies: str
    registers: int
    spilled_bytes: int
    shared_bytes: int


def rows_of(name: str, gpu: Gpu, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """A row for each grid, in the order of their launches."""
    taken: list[str] = []
    schedule = gpu_kernels.schedule_for_gpu

    def noting(*args, **kwargs) -> Scheduled:
        made = schedule(*args, **kwargs)
        taken.append(", ".join(dict.fromkeys(t.taken for t in made.tried)))
        return made

    monkeypatch.setattr(gpu_kernels, "schedule_for_gpu", noting)
    model = model_of(build_for_gpu(GPU_NESTS[name](), Options(gpu.name), Clock()))
    monkeypatch.setattr(gpu_kernels, "schedule_for_gpu", schedule)
    assert isinstance(model, CompiledGpuModel) and len(taken) == len(model.code.kernels)
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
        write(name, gpu, rows, version)
    kept = kept_rows()
    said = difference([Row(**row) for row in kept["rows"][name][gpu.arch]], rows, same_tools=kept["tools"] == version)
    if said:
        pytest.fail(f"{name} for {gpu.arch} {said}\n{HOW}", pytrace=False)


def test_every_kernel_has_rows_and_every_strategy_has_a_kernel() -> None:
    kept = kept_rows()["rows"]
    assert {name: list(by_arch) for name, by_arch in kept.items()} == {
        name: [gpu.arch for gpu in named_gpus()] for name in GPU_NESTS
    }
    seen = {x for by_arch in kept.values() for rows in by_arch.values() for row in rows
            for x in row["strategies"].split(", ")}  # fmt: skip
    assert seen == SHOWN


def test_a_difference_says_what() -> None:
    old, spilled, wider = Row("rows", 40, 0, 64), Row("rows", 40, 8, 64), Row("rows", 48, 0, 64)
    assert difference([old], [old], same_tools=True) == "" == difference([old], [wider], same_tools=False)
    assert "registers=40" in difference([old], [wider], same_tools=True)
    assert "spilled_bytes=8" in difference([old], [spilled], same_tools=False)
    assert difference([old], [old, old], same_tools=False)


def difference(old: list[Row], new: list[Row], *, same_tools: bool) -> str:
    """What changed in the rows of a kernel; nothing where they are as they were."""

    def compared(rows: list[Row]) -> list[tuple[str, int, int, int]]:
        return [(r.strategies, r.registers if same_tools else 0, r.spilled_bytes, r.shared_bytes) for r in rows]

    if compared(old) == compared(new):
        return ""
    return "\n".join(["took", *[f"  {row}" for row in old], "and takes", *[f"  {row}" for row in new]])


def kept_rows() -> dict:
    return json.loads(FILE.read_text(encoding="utf-8"))


def write(name: str, gpu: Gpu, rows: list[Row], version: str) -> None:
    """Put the rows in the file, in the order of ``GPU_NESTS``; other processes of the tests wait meanwhile."""
    with FILE.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept = json.loads(file.read() or "{}").get("rows", {})
        kept.setdefault(name, {})[gpu.arch] = [asdict(row) for row in rows]
        order = [g.arch for g in named_gpus()]
        whole = {n: {a: kept[n][a] for a in order if a in kept[n]} for n in GPU_NESTS if n in kept}
        text = json.dumps({"tools": version, "rows": whole}, indent=1)
        # A row is a line, so that a diff shows what changed.
        text = re.sub(r"\{\s+(\"strategies\"[^}]*?)\s+\}", lambda m: f"{{{' '.join(m[1].split())}}}", text)
        file.truncate(0)
        file.write(f"{text}\n")
