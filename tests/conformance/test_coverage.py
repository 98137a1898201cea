"""The coverage page: a section per suite, the others kept."""

from __future__ import annotations

from tilewright.tools.conformance.coverage import HEAD, updated_page
from tilewright.tools.conformance.outcome import Outcome

REFUSAL = (
    '[TW0202] the ONNX model can\'t be imported\n  - node "a" (Foo): ai.onnx.Foo (opset 3): no converter\n    remedy: b'
)


def outcome(name: str, group: str, status, detail: str = "") -> Outcome:
    return Outcome("first", name, group, status, detail, 0.1, ("plain",))


def test_sections_are_written_and_kept() -> None:
    facts = {"suite": "first", "versions": {"onnx": "1.23"}}
    found = [outcome("x", "Add", "passed"), outcome("y", "Foo", "refused", REFUSAL), outcome("z", "Foo", "passed")]
    page = updated_page("", facts, found)
    assert page.startswith(HEAD) and "With onnx 1.23." in page
    assert "| all | 3 | 2 | 1 | 66.7 % |" in page and "| plain | 3 | 2 | 1 | 66.7 % |" in page
    assert "All right: Add." in page and "| Foo | 2 | 1 | 1 | 50.0 % |" in page
    assert "- 1 refused: ai.onnx.Foo (opset 3): no converter (`y`)" in page
    both = updated_page(page, {**facts, "suite": "second-all"}, [outcome("x", "Add", "passed")])
    assert both.count("<!-- suite") == 2 and page.split("\n\n", 2)[2] in both
    assert updated_page(both, facts, found) == both


def test_a_run_of_a_part_says_so() -> None:
    facts = {"suite": "first", "versions": {"onnx": "1.23"}, "cases": 9}
    page = updated_page("", facts, [outcome(f"x{k}", "Foo", "refused", REFUSAL) for k in range(5)])
    assert "5 of the suite's 9 cases were run." in page
    assert "- 5 refused: ai.onnx.Foo (opset 3): no converter (such as `x0`)" in page
