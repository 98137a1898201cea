"""The coverage page: records of suites, and the page that is what they give."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from tilewright.cli.conformance import kept_records
from tilewright.cli.main import app
from tilewright.tools.conformance.coverage import HEAD, page, record
from tilewright.tools.conformance.outcome import Outcome, write_json

DOCS = Path(__file__).parents[2] / "docs"

REFUSAL = (
    '[TW0202] the ONNX model can\'t be imported\n  - node "a" (Foo): ai.onnx.Foo (opset 3): no converter\n    remedy: b'
)


def outcome(name: str, group: str, status, detail: str = "") -> Outcome:
    return Outcome("first", name, group, status, detail, 0.1, ("plain",))


def test_a_record_counts_and_names() -> None:
    facts = {"suite": "first", "versions": {"onnx": "1.23"}}
    found = [outcome("x", "Add", "passed"), outcome("y", "Foo", "refused", REFUSAL), outcome("z", "Foo", "passed")]
    made = record(facts, found, "At noon.")
    assert made["passed"] == ["Add"] and made["missed"] == {"Foo": {"total": 2, "passed": 1, "refused": 1}}
    text = page([made])
    assert text.startswith(HEAD) and "With onnx 1.23. At noon." in text
    assert "| **first** | 3 | 2 | 1 | 66.7 % |" in text and "| plain | 3 | 2 | 1 | 66.7 % |" in text
    assert "1 groups are all right; these 1 are not:" in text and "| Foo | 2 | 1 | 1 | 50.0 % |" in text
    assert "- 1 refused: ai.onnx.Foo (opset 3): no converter (`y`)" in text and "Add" not in text


def test_a_run_of_a_part_says_so() -> None:
    facts = {"suite": "first", "versions": {"onnx": "1.23"}, "cases": 9}
    text = page([record(facts, [outcome(f"x{k}", "Foo", "refused", REFUSAL) for k in range(5)])])
    assert "5 of the suite's 9 cases were run." in text
    assert "- 5 refused: ai.onnx.Foo (opset 3): no converter (such as `x0`)" in text


def test_the_command_keeps_the_other_suites(tmp_path: Path) -> None:
    written = tmp_path / "coverage.md"
    for suite, group in (("second", "Bar"), ("first", "Foo"), ("second", "Baz")):
        write_json(
            tmp_path / "outcomes.json", suite, [outcome("y", group, "refused", REFUSAL)], {"versions": {"a": "1"}}
        )
        ran = CliRunner().invoke(app, ["conformance", "page", str(tmp_path / "outcomes.json"), "--page", str(written)])
        assert ran.exit_code == 0, ran.output
    assert (
        "| Foo |" in written.read_text() and "| Baz |" in written.read_text() and "| Bar |" not in written.read_text()
    )


def test_our_page_is_what_its_data_give() -> None:
    records = kept_records(DOCS / "coverage")
    assert {r["suite"] for r in records} == {"hf", "onnx", "torch-all"}
    assert (DOCS / "coverage.md").read_text() == page(records)
    for r in records:
        whole = r["subsets"]["all"]
        assert sum(n for status, n in whole.items() if status != "total") == whole["total"]
        assert not set(r["passed"]) & set(r["missed"])
