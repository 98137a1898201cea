"""What kernels take of a GPU, kept in a file: a row for each grid, for each GPU, for each graph of `gpu_nests`.

In: rows of one graph and GPU. Out: the file with them, or what changed. Not its business: who says what a kernel takes
(`test_ptxas`, `test_amdgpu`).
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from golden.gpu_nests import GPU_NESTS
from tilewright.build import gpu_kernels
from tilewright.build.gpu import build_for_gpu
from tilewright.build.options import Clock, Options
from tilewright.choose.default import Scheduled
from tilewright.runtime.cuda.compiled import CompiledGpuModel
from tilewright.runtime.models import model_of
from tilewright.target.gpu import Gpu


@dataclass(frozen=True)
class Row:
    """One grid: the strategies of its kernel, and what a block or a thread of it takes."""

    strategies: str
    registers: int
    spilled_bytes: int
    shared_bytes: int


@contextmanager
def noted_strategies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The strategies of each kernel that is scheduled inside."""
    taken: list[str] = []
    schedule = gpu_kernels.schedule_for_gpu

    def noting(*args, **kwargs) -> Scheduled:
        made = schedule(*args, **kwargs)
        taken.append(", ".join(dict.fromkeys(t.taken for t in made.tried)))
        return made

    monkeypatch.setattr(gpu_kernels, "schedule_for_gpu", noting)
    yield taken
    monkeypatch.setattr(gpu_kernels, "schedule_for_gpu", schedule)


def model_and_strategies(name: str, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> tuple[CompiledGpuModel, list[str]]:
    """A graph's model, and the strategies of each of its kernels."""
    with noted_strategies(monkeypatch) as taken:
        model = model_of(build_for_gpu(GPU_NESTS[name](), Options(gpu.name), Clock()))
    assert isinstance(model, CompiledGpuModel) and len(taken) == len(model.code.kernels)
    return model, taken


def difference(old: list[Row], new: list[Row], *, same_tools: bool) -> str:
    """What changed in the rows of a kernel; nothing where they are as they were."""

    def compared(rows: list[Row]) -> list[tuple[str, int, int, int]]:
        return [(r.strategies, r.registers if same_tools else 0, r.spilled_bytes, r.shared_bytes) for r in rows]

    if compared(old) == compared(new):
        return ""
    return "\n".join(["took", *[f"  {row}" for row in old], "and takes", *[f"  {row}" for row in new]])


@dataclass(frozen=True)
class RowFile:
    """The rows of some GPUs, and the versions of the tools that they are by."""

    path: Path
    gpus: Sequence[Gpu]

    def kept(self) -> dict:
        return json.loads(self.path.read_text(encoding="utf-8"))

    def check(self, name: str, gpu: Gpu, rows: list[Row], version: str, how: str) -> None:
        """Fail where a kernel takes what it didn't."""
        kept = self.kept()
        old = [Row(**row) for row in kept["rows"][name][gpu.arch]]
        if said := difference(old, rows, same_tools=kept["tools"] == version):
            pytest.fail(f"{name} for {gpu.arch} {said}\n{how}", pytrace=False)

    def strategies(self) -> set[str]:
        """All that rows name, once every graph has rows for every GPU."""
        kept = self.kept()["rows"]
        archs = [gpu.arch for gpu in self.gpus]
        assert {name: list(by_arch) for name, by_arch in kept.items()} == dict.fromkeys(GPU_NESTS, archs)
        return {x for by_arch in kept.values() for rows in by_arch.values() for row in rows
                for x in row["strategies"].split(", ")}  # fmt: skip

    def write(self, name: str, gpu: Gpu, rows: list[Row], version: str) -> None:
        """Put the rows in the file, in the order of `GPU_NESTS`; other processes of the tests wait meanwhile."""
        with self.path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            kept = json.loads(file.read() or "{}").get("rows", {})
            kept.setdefault(name, {})[gpu.arch] = [asdict(row) for row in rows]
            order = [g.arch for g in self.gpus]
            whole = {n: {a: kept[n][a] for a in order if a in kept[n]} for n in GPU_NESTS if n in kept}
            text = json.dumps({"tools": version, "rows": whole}, indent=1)
            # A row is a line, so that a diff shows what changed.
            text = re.sub(r"\{\s+(\"strategies\"[^}]*?)\s+\}", lambda m: f"{{{' '.join(m[1].split())}}}", text)
            file.truncate(0)
            file.write(f"{text}\n")
