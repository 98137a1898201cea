"""Outcomes of cases that pass, differ, raise, die and hang; files and selections."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from conformance import tiny_suite
from tilewright.cli import conformance
from tilewright.core.diag import OptionError
from tilewright.runtime.errors import InputError
from tilewright.tools.conformance import workers
from tilewright.tools.conformance.outcome import (
    Outcome,
    by_group,
    by_tag,
    counts,
    read_json,
    share_passed,
    table,
    write_json,
)
from tilewright.tools.conformance.workers import Case

SUITE = "conformance.tiny_suite"


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    found = {o.name: o for o in workers.run_cases(SUITE, tiny_suite.cases(), jobs=2, seconds=3.0)}
    return [found[c.name] for c in tiny_suite.cases()]


def test_one_case_ends_nothing_but_itself(outcomes: list[Outcome]) -> None:
    assert [o.status for o in outcomes] == ["passed", "wrong", "failed", "crashed", "timeout", "passed"]
    assert [o.is_bad for o in outcomes] == [False, True, True, True, True, False]
    assert outcomes[2].detail == "ValueError: an accident" and "signal" in outcomes[3].detail


def test_counts_and_tables(outcomes: list[Outcome]) -> None:
    assert counts(outcomes)["total"] == 6 and counts(outcomes)["passed"] == 2
    assert share_passed(outcomes) == pytest.approx(1 / 3)
    columns, rows = table(by_group(outcomes))
    assert columns == ["group", "total", "passed", "wrong", "failed", "crashed", "timeout", "share"]
    assert rows[-2:] == [["r", 2, 1, 0, 1, 0, 0, "50.0 %"], ["w", 1, 0, 1, 0, 0, 0, "0.0 %"]]
    assert list(by_tag(outcomes)) == ["good"]


def test_a_file_reads_back(outcomes: list[Outcome], tmp_path) -> None:
    path = tmp_path / "tiny.json"
    write_json(path, "tiny", outcomes, {"only": ""})
    assert read_json(path) == ({"suite": "tiny", "only": ""}, outcomes)
    path.write_text('{"outcomes": [{"name": 1}]}')
    with pytest.raises(InputError, match="holds no outcomes"):
        read_json(path)


def test_a_worker_that_can_not_start_is_an_error() -> None:
    with pytest.raises(ModuleNotFoundError):
        list(workers.run_cases("conformance.no_such_suite", [Case("a", "a")]))


def test_a_fresh_process_takes_over_after_some_cases() -> None:
    found = list(workers.run_cases(SUITE, [Case("right", "r")] * 3, cases_per_worker=1))
    assert [o.status for o in found] == ["passed"] * 3


def test_a_fresh_process_takes_over_after_an_error() -> None:
    found = list(workers.run_cases(SUITE, [Case("leaves", "l"), Case("clean", "c")]))
    assert [o.status for o in found] == ["failed", "passed"]


def test_a_run_goes_on_for_the_same_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "SUITES", {"tiny": conformance.SuiteEntry(SUITE, (), "", "Tiny.")})
    app, path = typer.Typer(), tmp_path / "tiny.json"
    conformance.register(app)

    def run(target: str) -> Result:
        options = ["--only", "^right$", "--output", str(path), "--resume", "--target", target]
        return CliRunner().invoke(app, ["conformance", "tiny", *options])

    assert run("cuda-sm80").exit_code == 0 and [o.detail for o in read_json(path)[1]] == ["for cuda-sm80"]
    error = run("cuda-sm90a").exception
    assert isinstance(error, OptionError) and "has outcomes of sm_80, and this run is for sm_90a" in str(error)
    assert run("cuda-sm80").exit_code == 0


def test_a_suite_runs_for_a_target() -> None:
    (found,) = workers.run_cases(SUITE, [Case("right", "r")], target="cuda")
    assert found.detail == "for cuda" and workers.takes_targets(tiny_suite)


def test_selecting() -> None:
    assert [c.name for c in workers.select(tiny_suite.cases(), "^w")] == ["wrong"]
    for pattern in ("no such case", "("):
        with pytest.raises(OptionError):
            workers.select(tiny_suite.cases(), pattern)
