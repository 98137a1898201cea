"""How many threads a model may use: what the scheduler allows, what the container's quota pays for, what is asked for.

In: the process's affinity, cgroup files, an ``Environment``. Out: a number of at least 1.
Not its business: the threads themselves (``pool``).
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterator
from typing import Any

from tilewright.runtime.env import Environment, read_environment
from tilewright.runtime.errors import InputError

MOST_THREADS = 1 << 22
"""As many threads as Linux can have at once, on all CPUs together: who asks for more means something else."""


def default_threads(env: Environment | None = None, root: str | os.PathLike[str] = "/") -> int:
    """Threads of a model whose user named no number; asked when the model is made, not at import."""
    env = read_environment() if env is None else env
    limits = [available_cpus()]
    quota = cgroup_cpus(root)
    if quota is not None:
        limits.append(math.ceil(quota))
    wanted = env.threads or env.omp_threads
    if wanted is not None:
        limits.append(wanted)
    return max(1, min(limits))


def checked_threads(threads: Any) -> int | None:
    """A number of threads as a user gave it; ``InputError`` unless it is None or an integer of at least 1."""
    if threads is None:
        return None
    remedy = "pass an integer of 1 or more, or None for what this process may use"
    if isinstance(threads, bool) or not hasattr(type(threads), "__index__"):
        raise InputError(f"threads={threads!r:.80} is not an integer", remedy=remedy)
    n = operator.index(threads)
    if not 1 <= n <= MOST_THREADS:
        raise InputError(f"threads={n} is not a number of threads", remedy=remedy)
    return n


def available_cpus() -> int:
    """CPUs that this process may be scheduled on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cgroup_cpus(root: str | os.PathLike[str] = "/") -> float | None:
    """The least CPU quota of this process's control groups, in CPUs; None when there is none (v1 and v2)."""
    quotas = [q for folder in _cpu_groups(root) if (q := _quota_v2(folder) or _quota_v1(folder)) is not None]
    return min(quotas, default=None)


def _cpu_groups(root: str | os.PathLike[str]) -> Iterator[str]:
    """Folders whose quota binds us: our group and all above it. Inside a container the upper ones are all we see."""
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in ("", "unified") if not controllers else (controllers, "cpu", "cpu,cpuacct"):
            base = os.path.join(root, "sys/fs/cgroup", mount)
            names = [name for name in path.split("/") if name]
            yield from (os.path.join(base, *names[:n]) for n in range(len(names), -1, -1))


def _quota_v2(folder: str) -> float | None:
    return _ratio(*_read(os.path.join(folder, "cpu.max")).split()[:2])


def _quota_v1(folder: str) -> float | None:
    quota, period = (_read(os.path.join(folder, f"cpu.cfs_{name}_us")).strip() for name in ("quota", "period"))
    return _ratio(quota, period)


def _ratio(quota: str = "", period: str = "") -> float | None:
    """``max`` and ``-1`` mean no limit; anything unexpected counts as none."""
    if not (quota.isdigit() and period.isdigit()) or int(period) == 0:
        return None
    return int(quota) / int(period) or None


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, ValueError):
        return ""
