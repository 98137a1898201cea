"""What holds for every test.

In: the command line. Out: the option ``--update-golden``; an environment in which the compiler verifies what it has
after every pass, and a rule that breaks is an error; where ``TILEWRIGHT_REQUIRE`` names the marker ``emulation``, tests
that have it fail instead of being skipped; a test that asks for more time has it from the watch over native code too.
Not its business: what a test does with the option (``golden``).
"""

import faulthandler
import os
from collections.abc import Iterator

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key, get_timeout_config_value

REQUIRED = os.environ.get("TILEWRIGHT_REQUIRE", "").replace(",", " ").split()  # noqa: TID251 - of the tests alone


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


@pytest.fixture(scope="session", autouse=True)
def _strict() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_STRICT", "compiler")
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Move the end that ``faulthandler_timeout`` set a moment ago behind the one of the test's marker ``timeout``.

    That option is one for all tests, and would end a test of an hour, and its worker with it, after minutes.
    """
    marker, watch = item.get_closest_marker("timeout"), get_timeout_config_value(item.config)
    seconds = (marker.args or (marker.kwargs["timeout"],))[0] if marker else 0
    if seconds and 0 < watch < seconds + 60:  # Python's own end comes first, and leaves a report
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(seconds + 60, file=stderr, exit=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    required = [name for name in REQUIRED if item.get_closest_marker(name)]
    if report.skipped and required:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{why}; TILEWRIGHT_REQUIRE={required[0]} wants it run (docs/deploy.md names the tools)"
    return report
