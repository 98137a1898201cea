"""Does native code fit this machine?

In: the ``TargetSpec`` of a manifest. Out: nothing, or an ``ArtifactError`` that names what is missing.
Not its business: choosing a target for new code (the compiler's).
"""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

import llvmlite.binding as llvm

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.manifest import TargetSpec
from tilewright.runtime.threads import available_cpus

_SAME_ARCH = {"amd64": "x86_64", "arm64": "aarch64"}


def check_target(target: TargetSpec) -> None:
    """Raise unless this process's machine can run code for ``target``."""
    if (problem := misfit(target)) is not None:
        raise problem


def misfit(target: TargetSpec) -> ArtifactError | None:
    """Why this process's machine can't run code for ``target``; None when it can."""
    host_triple, host_features = _host()
    if _platform(target.triple) != _platform(host_triple):
        return ArtifactError(
            f"the model is compiled for {target.triple}, this machine is {host_triple}",
            remedy="run it there, or compile the model for this machine",
        )
    missing = sorted(set(target.features) - host_features)
    if missing:
        return ArtifactError(
            f"the model needs CPU features that this machine lacks: {', '.join(missing)}",
            remedy="compile the model on this machine, or for an older CPU",
        )
    return None


@lru_cache(1)
def _host() -> tuple[str, frozenset[str]]:
    return llvm.get_process_triple(), frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)


def machine_text() -> str:
    """What code for this very machine depends on: its CPU, what the process may use of it, its caches."""
    features = llvm.get_host_cpu_features().flatten()
    known = [llvm.get_process_triple(), llvm.get_host_cpu_name(), features, available_cpus()]
    return repr([*known, sorted(cache_sizes().items())])


@lru_cache(1)
def cpu_model() -> str:
    """The CPU's name as its maker writes it, as Linux or the system tells it; may be empty."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), platform.processor())


def cache_sizes() -> dict[int, int]:
    """Bytes of the first CPU's data caches by level, as Linux describes them."""
    sizes: dict[int, int] = {}
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            if (entry / "type").read_text().strip() != "Instruction":
                sizes[int((entry / "level").read_text())] = _n_bytes((entry / "size").read_text().strip())
        except (OSError, ValueError):
            continue
    return sizes


def _n_bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _platform(triple: str) -> tuple[str, str]:
    """Instruction set and operating system; vendor and C library make no difference to our objects."""
    parts = triple.split("-")
    systems = [s for s in ("linux", "darwin", "macos", "windows") if any(p.startswith(s) for p in parts[1:])]
    system = "darwin" if systems == ["macos"] else systems[0] if systems else "none"
    return _SAME_ARCH.get(parts[0], parts[0]), system
