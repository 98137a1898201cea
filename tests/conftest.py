"""What holds for every test.

In: the command line. Out: the option ``--update-golden``; an environment in which the compiler verifies what it has
after every pass, and a rule that breaks is an error. Not its business: what a test does with the option (``golden``).
"""

from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")


@pytest.fixture(scope="session", autouse=True)
def _strict() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_STRICT", "compiler")
        yield
