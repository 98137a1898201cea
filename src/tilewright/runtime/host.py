"""Does native code fit this machine?

In: the ``TargetSpec`` of a manifest. Out: nothing, or an ``ArtifactError`` that names what is missing.
Not its business: choosing a target for new code (the compiler's).
"""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from importlib.machinery import PathFinder
from typing import NamedTuple

import llvmlite

from tilewright.runtime.cache import Cache
from tilewright.runtime.cpuid import cpuid_text
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.manifest import TargetSpec
from tilewright.runtime.matrix_registers import usable
from tilewright.runtime.once import once
from tilewright.runtime.threads import available_cpus

_KIND = "host"
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


class HostFacts(NamedTuple):
    """What LLVM says of this process's machine, and which versions of it and of ``ml_dtypes`` are installed.

    ``features`` has a sign and a name for each feature, with commas between.
    """

    triple: str
    cpu: str
    features: str
    llvm: str
    ml_dtypes: str
    llvmlite: str


def host_facts() -> HostFacts:
    """The facts, without loading LLVM where it has said them before to a process like this one."""
    triple, cpu, features, llvm, ml_dtypes = _said()
    return HostFacts(triple, cpu, usable(features), llvm, ml_dtypes, llvmlite.__version__)


@once  # a child forked in the middle of the import, or of a call of LLVM, would wait for it for ever
def _said() -> tuple[str, ...]:
    key = _what_decides()
    store = Cache() if key else None
    known = store.get(_KIND, key) if store and key else None
    if known is not None:
        return tuple(known.decode().split("\n"))
    import llvmlite.binding as llvm
    import ml_dtypes

    version = ".".join(map(str, llvm.llvm_version_info))
    features = llvm.get_host_cpu_features().flatten()
    said = llvm.get_process_triple(), llvm.get_host_cpu_name(), features, version, ml_dtypes.__version__
    if store and key:
        store.put(_KIND, key, "\n".join(said).encode())
    return said


def _what_decides() -> str | None:
    """A text that changes where LLVM might say something else: the CPU, and the libraries as they are installed."""
    cpu = cpuid_text()
    if cpu is None:
        return None
    facts: list[object] = [HostFacts._fields, cpu]  # another version of this file may keep others
    for package, file in (("llvmlite", "binding/libllvmlite.so"), ("ml_dtypes", "__init__.py")):
        found = PathFinder.find_spec(package)
        path = os.path.join(os.path.dirname(found.origin), file) if found and found.origin else ""
        try:
            info = os.stat(path)
        except OSError:
            return None
        facts += [path, info.st_size, info.st_mtime_ns, info.st_ino]
    return repr(facts)


@lru_cache(1)
def _host() -> tuple[str, frozenset[str]]:
    facts = host_facts()
    return facts.triple, frozenset(f[1:] for f in facts.features.split(",") if f.startswith("+"))


def machine_text() -> str:
    """What code for this very machine depends on: its CPU, what the process may use of it, its caches."""
    facts = host_facts()
    known = [facts.triple, facts.cpu, facts.features, available_cpus()]
    return repr([*known, sorted(data_caches().items())])


@lru_cache(1)
def cpu_model() -> str:
    """The CPU's name as its maker writes it, as Linux or the system tells it; may be empty."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = file.read().split("\n")
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), platform.processor())


class DataCache(NamedTuple):
    """A cache's bytes, and how many lines of one address's set it holds; 0 ways where the system does not tell."""

    n_bytes: int
    n_ways: int


def data_caches(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> dict[int, DataCache]:
    """The first CPU's data caches by level, as Linux describes them in a folder."""
    found: dict[int, DataCache] = {}
    try:
        entries = sorted(name for name in os.listdir(folder) if name.startswith("index"))
    except OSError:
        return found
    for entry in entries:
        try:
            if _line(folder, entry, "type") != "Instruction":
                size = _n_bytes(_line(folder, entry, "size"))
                found[int(_line(folder, entry, "level"))] = DataCache(size, _n_ways(folder, entry))
        except (OSError, ValueError):
            continue
    return found


def _n_ways(*path: str) -> int:
    try:
        return int(_line(*path, "ways_of_associativity"))
    except (OSError, ValueError):
        return 0


def _line(*path: str) -> str:
    with open(os.path.join(*path)) as file:
        return file.read().strip()


def _n_bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _platform(triple: str) -> tuple[str, str]:
    """Instruction set and operating system; vendor and C library make no difference to our objects."""
    parts = triple.split("-")
    systems = [s for s in ("linux", "darwin", "macos", "windows") if any(p.startswith(s) for p in parts[1:])]
    system = "darwin" if systems == ["macos"] else systems[0] if systems else "none"
    return _SAME_ARCH.get(parts[0], parts[0]), system
