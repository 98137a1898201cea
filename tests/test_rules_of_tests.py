"""What the tests' own rules do.

A test for other machines is skipped where a tool is missing, and fails where ``TILEWRIGHT_REQUIRE`` wants it run. One
with a marker ``timeout`` has that time from ``faulthandler_timeout`` too. Of one marked ``one_in(n)`` a quick run has
every n-th case, and ``--cpu-limit`` fails a case that takes more processor time, ``--cpu-budget`` a run. A random test
draws half of its examples there, and none fails because the machine does other work too.
"""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies

TESTS = """
import pytest
@pytest.mark.emulation
@pytest.mark.skipif(True, reason="no such-emulator")
def test_before(): ...
@pytest.mark.emulation
def test_within(): pytest.importorskip("no_such_package")
@pytest.mark.emulation
def test_good(): ...
@pytest.mark.skipif(True, reason="another reason")
def test_of_this_machine(): ...
"""


@pytest.fixture(autouse=True)
def _without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that tests start load no plugins that they do not ask for, which takes longer than their tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def _ran(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of the tests in ``folder`` with our rules."""
    for name in ("conftest.py", "pace.py"):
        shutil.copy(Path(__file__).parent / name, folder)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(
    ("required", "said"),
    [
        ("other", "1 passed, 3 skipped"),
        ("emulation", "1 failed, 1 passed, 1 skipped, 1 error"),
    ],
)
def test_what_is_required_fails_instead(
    required: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = emulation\n")
    monkeypatch.setenv("TILEWRIGHT_REQUIRE", required)
    ran = _ran(tmp_path)
    assert said in ran.stdout, ran.stdout
    assert ("no such-emulator; TILEWRIGHT_REQUIRE=emulation wants it run" in ran.stdout) == (required == "emulation")


SLEEPS = """
import time
import pytest
@pytest.mark.timeout({seconds})
def test_sleeps(): time.sleep(1)
"""


@pytest.mark.parametrize(("marked", "said"), [("30", "1 passed"), ("0", "Timeout (0:00:00.5")])
def test_a_test_has_the_time_that_it_asks_for(marked: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SLEEPS.format(seconds=marked))
    options = "faulthandler_timeout = 0.5\nfaulthandler_exit_on_timeout = true\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{options}")
    ran = _ran(tmp_path)
    assert said in ran.stdout + ran.stderr, ran.stdout + ran.stderr


CASES = """
import pytest
@pytest.mark.one_in(3)
@pytest.mark.parametrize("n", range(7))
def test_some(n): sum(range(20_000_000)) if n == 6 else None
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-m", "not slow", "--cpu-budget", "100"], "3 passed, 4 deselected"),
        (["-p", "xdist.plugin", "-n", "1", "--cpu-budget", "0.02"], "7 passed"),
        (["--cpu-limit", "0.1"], "7 passed, 1 error"),
    ],
)
def test_some_cases_are_slow_and_a_quick_one_has_a_limit(options: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(CASES)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    one_in(n)\n    slow\n")
    ran = _ran(tmp_path, *options)
    assert said in ran.stdout, ran.stdout
    assert ("--cpu-limit is 0.1: do less, or mark it slow" in ran.stdout) == ("--cpu-limit" in options)
    assert "of processor time in" in ran.stdout
    assert ("--cpu-budget is 0.02: make the work cheaper" in ran.stdout) == ("0.02" in options)
    assert (ran.returncode == 0) == ("100" in options)


@pytest.mark.parametrize(("asked", "expected"), [(40, 20), (5, 4), (3, 3)])
def test_a_quick_run_draws_half_of_the_examples(asked: int, expected: int, request: pytest.FixtureRequest) -> None:
    (rules,) = [p for p in request.config.pluginmanager.get_plugins() if hasattr(p, "_fewer_examples")]
    drawn = []

    @settings(max_examples=asked)
    @given(strategies.integers())
    def some(n: int) -> None:
        drawn.append(n)

    rules._fewer_examples(some)
    some()
    assert len(drawn) == expected


def test_no_clock_fails_a_random_test() -> None:
    """Neither profile watches one; a test that sets its own time or its own checks would."""
    for name in ("default", "ci"):
        profile = settings.get_profile(name)
        assert profile.deadline is None and HealthCheck.too_slow in profile.suppress_health_check
    for path in Path(__file__).parent.rglob("*.py"):
        text = path.read_text()
        for call in ast.walk(ast.parse(text)) if "deadline" in text or "suppress_health_check" in text else ():
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "settings":
                own = {k.arg: ast.unparse(k.value) for k in call.keywords}
                checks = own.get("suppress_health_check", "too_slow")
                assert "deadline" not in own and ("too_slow" in checks or checks == "list(HealthCheck)"), path
