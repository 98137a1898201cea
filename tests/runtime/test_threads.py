"""How many threads a model gets: affinity, container quota, environment."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tilewright.runtime.env import Environment, read_environment
from tilewright.runtime.threads import available_cpus, cgroup_cpus, default_threads


def fake_root(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


V1 = "4:memory:/x\n3:cpu,cpuacct:/docker/ab\n1:name=systemd:/\n"
QUOTAS = {
    "v2": ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
    "v2: the least of all levels": (
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000",
         "sys/fs/cgroup/a/cpu.max": "50000 100000", "sys/fs/cgroup/cpu.max": "300000 100000"}, 0.5,
    ),
    "v2: inside a container only the root is mounted": (
        {"proc/self/cgroup": "0::/../../host/path\n", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0,
    ),
    "v2: no limit": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
    "v1": (
        {"proc/self/cgroup": V1, "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "250000",
         "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_period_us": "100000"}, 2.5,
    ),
    "v1: mounted as cpu, container's root": (
        {"proc/self/cgroup": V1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n",
         "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 1.0,
    ),
    "v1: no limit": (
        {"proc/self/cgroup": V1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
         "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None,
    ),
    "nothing": ({}, None),
    "nonsense": ({"proc/self/cgroup": "0::/\nzzz\n", "sys/fs/cgroup/cpu.max": "1e9 x\n"}, None),
    "period of zero": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1000 0\n"}, None),
    "empty": ({"proc/self/cgroup": "", "sys/fs/cgroup/cpu.max": ""}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", QUOTAS)
def test_quota(name: str, tmp_path: Path) -> None:
    files, cpus = QUOTAS[name]
    assert cgroup_cpus(fake_root(tmp_path, files)) == cpus


def test_the_least_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    root = fake_root(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "350000 100000"})
    assert default_threads(Environment(), tmp_path / "empty") == 8
    assert default_threads(Environment(), root) == 4, "rounded up"
    assert default_threads(Environment(threads=3), root) == 3
    assert default_threads(Environment(threads=99), root) == 4
    assert default_threads(Environment(omp_threads=2), root) == 2
    assert default_threads(Environment(threads=3, omp_threads=2), root) == 3, "our own variable goes first"
    root = fake_root(tmp_path, {"sys/fs/cgroup/cpu.max": "1000 100000"})
    assert default_threads(Environment(), root) == 1


def test_environment() -> None:
    assert read_environment({}) == Environment()
    env = read_environment({"TILEWRIGHT_THREADS": " 4 ", "OMP_NUM_THREADS": "3,2", "TILEWRIGHT_CACHE": "/c"})
    assert (env.threads, env.omp_threads, env.cache) == (4, 3, "/c")
    for text in ("0", "-2", "many", "", "1" * 30, "²"):
        env = read_environment({"TILEWRIGHT_THREADS": text, "OMP_NUM_THREADS": text})
        assert (env.threads, env.omp_threads) == (None, None)
    assert read_environment({"HOME": "/h"}).home == "/h/.cache"
    assert read_environment({"HOME": "/h", "XDG_CACHE_HOME": "/x"}).home == "/x"


def test_one_cpu_gives_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
        import os, sys
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        sys.path.insert(0, "tests")
        import numpy as np
        from runtime.tiny import scale_model
        from tilewright.runtime.cpu.linker import pool_workers
        model = scale_model(threads=None)
        assert model.threads == 1
        assert model(np.ones((64, 4), np.float32)).min() == 12
        assert pool_workers() == 0, "the caller is the only worker"
    """
    for name in ("TILEWRIGHT_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=Path(__file__).parents[2])


def test_available_cpus() -> None:
    assert available_cpus() == len(os.sched_getaffinity(0))
