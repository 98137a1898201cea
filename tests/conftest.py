"""What holds for every test.

In: the command line. Out: the option ``--update-golden``; an environment in which the compiler verifies what it has
after every pass, and a rule that breaks is an error; where ``TILEWRIGHT_REQUIRE`` names the marker ``emulation``, tests
that have it fail instead of being skipped. Not its business: what a test does with the option (``golden``).
"""

import os
from collections.abc import Iterator

import pytest

REQUIRED = os.environ.get("TILEWRIGHT_REQUIRE", "").replace(",", " ").split()  # noqa: TID251 - of the tests alone


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


@pytest.fixture(scope="session", autouse=True)
def _strict() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_STRICT", "compiler")
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    required = [name for name in REQUIRED if item.get_closest_marker(name)]
    if report.skipped and required:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{why}; TILEWRIGHT_REQUIRE={required[0]} wants it run (docs/deploy.md names the tools)"
    return report
