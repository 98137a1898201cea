"""PyTorch's operator database: a fixed part in every run, the whole of it when asked for."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from tilewright.tools.conformance.outcome import by_group, counts, share_passed
from tilewright.tools.conformance.workers import run_cases

QUICK = ("add[float32]", "index_put[float32]", "scatter_reduce.mean[int64]", "stft[float32]", "unfold[int64]")


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    """The tool with PyTorch's database, whose loading takes two seconds: only who runs these tests waits for it."""
    return importlib.import_module("tilewright.tools.conformance.torch")


def test_the_database_is_all_there(suite: ModuleType) -> None:
    assert len(suite.cases()) > 2500
    assert {t for c in suite.cases() for t in c.tags} == {"float32", "float64", "bfloat16", "int64", "bool"}


@pytest.mark.parametrize("name", QUICK)
def test_entries_are_right_and_compiled_whole(name: str, suite: ModuleType) -> None:
    status, detail = suite.run_entry(name, 2)
    assert status == "passed", detail


@pytest.mark.parametrize(("name", "status"), [("linalg.eigvals", "refused"), ("equal", "skipped")])
def test_what_is_not_ours_does_not_count_as_passed(name: str, status: str, suite: ModuleType) -> None:
    assert suite.run_entry(f"{name}[float32]", 1)[0] == status


def test_a_wrong_result_is_seen(suite: ModuleType) -> None:
    x = torch.arange(6.0)
    assert suite._differences([x], [x + 1e-3], lambda: [x.double() + 1e-3])
    assert suite._differences([x], [x.double()], lambda: [])
    assert suite._differences([x[:3]], [x], lambda: [])
    assert not suite._differences([x], [x * (1 + 1e-7)], lambda: [])
    assert suite._aliasing(x[:2], [x], x[:2].clone(), [x])


@pytest.mark.slow
def test_the_whole_database(suite: ModuleType) -> None:
    outcomes = list(run_cases("tilewright.tools.conformance.torch", suite.cases(), jobs=2, seconds=300.0))
    bad = [f"{o.name}: {o.status} {o.detail}" for o in outcomes if o.is_bad]
    assert counts(outcomes)["passed"] >= 0.95 * len(outcomes), by_group(o for o in outcomes if o.status == "refused")
    assert share_passed(outcomes) >= 0.95
    assert not bad
