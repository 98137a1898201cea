"""``make fuzz``: random graphs, code for every machine, and damaged files, in worker processes; it stops and resumes.

    python -m fuzz [--suite graphs] [--only TEXT] [--first 0] [--last 20000] [--jobs 2] [--log fuzz.log]

In: ranges of seeds. Out: a line for every seed that failed, counts at the end, exit code 1 if anything failed. Every
finished seed goes to the log with the digest of the sources; a later run skips the seeds that passed with the same
sources. A crash or a hang ends one seed only.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tilewright.tools.conformance.workers import Case, load_suite, run_cases, select

SUITES = {"graphs": "fuzz_graphs", "machines": "fuzz_machines", "files": "fuzz_files", "programs": "fuzz_programs",
          "families": "fuzz_families", "schedules": "fuzz_schedules", "quantised": "fuzz_quantised",
          "control": "fuzz_control", "gpu": "fuzz_gpu"}  # fmt: skip
SECONDS = 240.0  # of one case, on a machine that others use too
SECONDS_BETWEEN_REPORTS = 60.0
TESTS = Path(__file__).parent
SOURCES = (TESTS.parent / "src", TESTS)


def sources_digest() -> str:
    """Changes with any line of the compiler or of the tests' own modules."""
    state = hashlib.sha256()
    for folder, pattern in zip(SOURCES, ("**/*.py", "*.py"), strict=True):
        for path in sorted(folder.glob(pattern)):
            if not path.name.startswith("test_"):
                state.update(path.read_bytes())
    return state.hexdigest()[:12]


class Log:
    """A text file, a line for each seed: digest, suite, seed, status, detail."""

    def __init__(self, path: Path) -> None:
        self.path, self.digest = path, sources_digest()
        lines = path.read_text().splitlines() if path.exists() else []
        self.records = [tuple(line.split(maxsplit=4)) for line in lines if line.startswith(self.digest)]

    def passed(self, suite: str) -> set[str]:
        return {r[2] for r in self.records if r[1] == suite and r[3] in ("passed", "refused")}

    def add(self, suite: str, seed: str, status: str, detail: str) -> None:
        record = (self.digest, suite, seed, status, detail)
        self.records.append(record)
        with self.path.open("a") as file:
            file.write(" ".join(record).rstrip() + "\n")


def run_suite(suite: str, cases: Sequence[Case], log: Log, jobs: int) -> Counter[str]:
    """Counts of the statuses of ``cases``, those that the log knows included."""
    known = log.passed(suite)
    wanted = [c for c in cases if c.name not in known]
    counts = Counter(r[3] for r in log.records if r[1] == suite and r[2] in known)
    print(f"{suite}: {len(cases)} seeds, {len(cases) - len(wanted)} done before, sources {log.digest}", flush=True)
    started = told = time.monotonic()
    for n, o in enumerate(run_cases(SUITES[suite], wanted, jobs=jobs, seconds=SECONDS), 1):
        detail = " ".join(o.detail.split())
        log.add(suite, o.name, o.status, detail if o.is_bad else "")
        counts[o.status] += 1
        if o.is_bad:
            print(f"{suite} {o.name} ({o.group}): {o.status}: {detail}", flush=True)
        if time.monotonic() - told > SECONDS_BETWEEN_REPORTS:
            told = time.monotonic()
            print(f"{suite}: {n} of {len(wanted)}, {n / (told - started):.1f} a second", flush=True)
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="random graphs and damaged files by the thousand")
    parser.add_argument("--suite", choices=SUITES, action="append", help="which (default: all)")
    parser.add_argument("--only", default="", help="cases whose names or groups this regular expression finds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--last", type=int, help="behind the last seed (default: as many as the suite has)")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--log", type=Path, default=Path("fuzz.log"), help="what has been done")
    options = parser.parse_args(arguments)
    log = Log(options.log)
    bad = 0
    for suite in options.suite or SUITES:
        module = load_suite(SUITES[suite])
        last = module.COUNT if options.last is None else options.last
        counts = run_suite(suite, select(module.cases(options.first, last), options.only), log, options.jobs)
        print(f"{suite}: {counts.total()} seeds: {', '.join(f'{n} {s}' for s, n in counts.most_common())}", flush=True)
        bad += sum(n for status, n in counts.items() if status not in ("passed", "refused"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
