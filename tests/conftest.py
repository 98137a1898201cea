"""Options that this project adds to pytest.

In: the command line. Out: ``--update-golden``. Not its business: what a test does with it (``golden``).
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files instead of comparing")
