"""Damaged files of every format: what becomes of each, in a process that has limits of time and memory.

    PYTHONPATH=tests:. python -m benchmarks.hostile
    PYTHONPATH=tests:. python -m benchmarks.hostile tflite "onnx, codes" --count 200 --seed 5000 --jobs 2
    PYTHONPATH=tests:. python -m benchmarks.hostile --only "gguf 1234"
    PYTHONPATH=tests:. python -m benchmarks.hostile --figure --machine zen5 --load "no other work" --commit 1d55db0

In: formats (``benchmarks.hostile_files``), a count of files and the first seed. Out: a row for each format, and a line
for each file that ended otherwise than it may: opened, or refused by a typed error; exit code 1 where there is one.
With ``--figure`` the rows are the figure ``hostile``. Not its business: whether what a damaged file computes is right
(``python -m fuzz --suite files``).
"""

from __future__ import annotations

import argparse
import gc
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from benchmarks.figures import FOLDER, write
from benchmarks.hostile_files import FORMATS, put, total_bytes

import tilewright as tw
from tilewright.tools.conformance.outcome import Outcome, Status
from tilewright.tools.conformance.workers import Case, run_cases

NAME = "hostile"
COUNT = 2000
SECONDS, WAITED = 20, 10
"""A file's processor time, and how many times as long it may take where the machine does other work too."""
BASE_BYTES, BYTES_PER_BYTE = 1 << 29, 64
"""What opening a file may take: the compiler's own memory, and so much for each byte of the file."""
COLUMNS: dict[str, Status] = {
    "opened": "passed", "typed error": "refused", "another error": "failed", "crash": "crashed", "too slow": "timeout",
    "too much memory": "wrong",
}  # fmt: skip


def cases() -> Sequence[Case]:
    """None that are known before; a worker asks for them once it has loaded what it needs, which is not swept again."""
    gc.freeze()
    return ()


def run_case(case: Case) -> tuple[Status, str]:
    """Open one file; ``wrong`` is one that took more memory than it may."""
    of, _, seed = case.name.rpartition(" ")
    made = FORMATS[of]
    files = made.damaged(int(seed))
    used = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + SECONDS + 1, resource.RLIM_INFINITY))
    with tempfile.TemporaryDirectory() as folder:
        path = put(files, Path(folder))
        gc.collect()
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        try:
            made.opened(path)
            ended: tuple[Status, str] = ("passed", "")
        except tw.TilewrightError as e:
            ended = ("refused", type(e).__name__) if str(e) else ("failed", "an error without a text")
        taken, limit = _memory("VmHWM") - before, BASE_BYTES + BYTES_PER_BYTE * total_bytes(files)
    return ended if taken <= limit else ("wrong", f"{taken >> 20} MiB; {ended[0]}, {ended[1]}")


def _of_time(o: Outcome) -> Outcome:
    """A process that ends because its processor time is over was too slow."""
    is_slow = o.status == "crashed" and o.detail.endswith(f"signal {int(signal.SIGXCPU)}")
    return replace(o, status="timeout", detail=f"ran longer than {SECONDS} s") if is_slow else o


def _memory(what: str) -> int:
    """Bytes of this process, by a word of Linux."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) << 10
    raise LookupError(what)


def rows(outcomes: Sequence[Outcome]) -> list[list[str | int | float]]:
    """For each format, files, how many ended in which way, and the longest time."""
    made: list[list[str | int | float]] = []
    for of in dict.fromkeys(o.group for o in outcomes):
        found = [o for o in outcomes if o.group == of]
        n = Counter(o.status for o in found)
        made.append([of, len(found), *(n[s] for s in COLUMNS.values()), max(o.seconds for o in found)])
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.hostile", description=__doc__)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"all of them, or some: {', '.join(FORMATS)}")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0, help="the first file's")
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="files by name, as lines tell them")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--figure", action="store_true")
    for name in ("machine", "load", "commit"):
        parser.add_argument(f"--{name}", default="")
    given = parser.parse_args(arguments)
    if unknown := {*given.formats} - FORMATS.keys():
        parser.error(f"no format {', '.join(sorted(unknown))}; there are {', '.join(FORMATS)}")
    names = given.only or [
        f"{of} {seed}" for of in given.formats or FORMATS for seed in range(given.seed, given.seed + given.count)
    ]
    chosen = [Case(name, name.rpartition(" ")[0]) for name in names]
    outcomes, left = [], Counter(c.group for c in chosen)
    print(f"{'format':<24}{'files':>7}" + "".join(f"{c:>17}" for c in COLUMNS) + f"{'longest, s':>12}")
    for o in run_cases("benchmarks.hostile", chosen, jobs=given.jobs, seconds=SECONDS * WAITED):
        o = _of_time(o)
        outcomes.append(o)
        left[o.group] -= 1
        if o.is_bad or given.only:
            print(f"{o.name}: {o.status}: {o.detail[:300]}", flush=True)
        if not left[o.group]:  # a format's row as soon as it is known
            ((of, n, *counts, longest),) = rows([x for x in outcomes if x.group == o.group])
            print(f"{of:<24}{n:>7}" + "".join(f"{c:>17}" for c in counts) + f"{longest:>12.1f}", flush=True)
    table = rows(outcomes)
    if given.figure:
        _write_figure(table, given)
    return int(any(o.is_bad for o in outcomes))


def _write_figure(table: Sequence[Sequence[str | int | float]], given: argparse.Namespace) -> None:
    n, bad = sum(int(r[1]) for r in table), sum(int(x) for r in table for x in r[4:8])
    figure = {
        "title": "Damaged files of every format",
        "conclude": f"Of {n:,} damaged files {bad:,} ended otherwise than opened or refused by a typed error.",
        "command": [f"PYTHONPATH=tests:. python -m benchmarks.hostile --count {given.count} --seed {given.seed}"],
        "machine": given.machine, "load": given.load, "commit": given.commit, "date": date.today().isoformat(),
        "columns": [{"name": "format"}, {"name": "files"}, *({"name": c} for c in COLUMNS),
                    {"name": "longest", "unit": "s", "digits": 1}],
        "rows": table,
    }  # fmt: skip
    write(FOLDER / "hostile.json", figure)


if __name__ == "__main__":
    sys.exit(main())
