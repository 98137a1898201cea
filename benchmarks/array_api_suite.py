"""The array API's own conformance suite on ``tilewright.numpy``: how many of its tests pass.

    git clone --recurse-submodules https://github.com/data-apis/array-api-tests
    pip install pytest-json-report ndindex
    python -m benchmarks.array_api_suite array-api-tests
    python -m benchmarks.array_api_suite array-api-tests --examples 20 -k "not test_special_cases" --jobs 2

In: the suite's folder, with the standard in ``array-api`` within it. Out: a line for every test that fails, and the
share that passes. Not its business: traced functions (``tests/test_jit.py`` compares each with NumPy's).

``tilewright.numpy`` has no complex numbers, ``linalg`` or ``fft``; the suite's own switches leave these out.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "2024.12"
"""The standard that ``tilewright.numpy`` follows."""

NO_COMPLEX = "for dt in complex_dtypes], key", "for dt in complex_dtypes] or [(None, 0)], key"
"""The suite asks for the largest complex type also where its switch says that there is none: what is read instead."""

NOT_OFFERED = re.compile(r"real\(x_i\)|imag\(x_i\)|\[fft-|\[linalg-")
"""Tests of complex numbers, and of names in what is left out, which the suite's switches leave in."""

RESULT = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
NAME = re.compile(r"array_api_tests/\S+::.*?(?= (?:PASSED|FAILED|ERROR)|\s*$)")


def results(folder: Path, examples: int, jobs: int, chosen: str) -> dict[str, str]:
    """What became of each test."""
    with tempfile.TemporaryDirectory() as made:
        suite = Path(made) / "suite"
        shutil.copytree(folder, suite, ignore=shutil.ignore_patterns(".git"))
        helpers = suite / "array_api_tests" / "dtype_helpers.py"
        helpers.write_text(helpers.read_text().replace(*NO_COMPLEX))
        settings = {
            "ARRAY_API_TESTS_MODULE": "tilewright.numpy",
            "ARRAY_API_TESTS_VERSION": VERSION,
            "ARRAY_API_TESTS_SKIP_DTYPES": "complex64,complex128",
        }
        command = ["env", *(f"{name}={value}" for name, value in settings.items()), sys.executable, "-m", "pytest"]
        command += ["array_api_tests", "-v", "--tb=no", "-W", "ignore", "-n", str(jobs)]
        command += ["--max-examples", str(examples), "--disable-extension", "fft", "linalg", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-k", chosen] if chosen else command,
            cwd=suite, capture_output=True, text=True, check=False,
        )  # fmt: skip
    found = {}
    for line in done.stdout.split("short test summary")[0].splitlines():
        name, result = NAME.search(line), RESULT.search(line)
        if name and result:
            found[name.group(0).removeprefix("array_api_tests/")] = result.group(1)
    if not found:
        sys.exit(f"the suite did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", type=int, default=10, help="how many a test draws")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-k", dest="chosen", default="", help="only these tests, as pytest has it")
    a = parser.parse_args()
    found = results(a.folder, a.examples, a.jobs, a.chosen)
    failed = sorted(name for name, result in found.items() if result in ("FAILED", "ERROR"))
    passed = sum(result == "PASSED" for result in found.values())
    for name in failed:
        print("failed ", name)
    tried = passed + len(failed)
    print(f"{passed} of {tried} tests pass ({passed / max(1, tried):.1%}); {len(found) - tried} are left out")
    outside = sum(bool(NOT_OFFERED.search(name)) for name in failed)
    share = passed / max(1, tried - outside)
    print(f"without {outside} failed ones of complex numbers and of names in linalg and fft: {share:.1%}")


if __name__ == "__main__":
    main()
