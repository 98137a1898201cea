"""``make replay`` sees a difference where there is one, and none where the same sources record the same model twice."""

from pathlib import Path

import replay
import small_models


def test_the_same_graph_has_the_same_pieces() -> None:
    first, second = (replay.pieces(small_models.convnet(), "x86-64-v3") for _ in range(2))
    assert any(name.endswith("llvm") for name in first)
    assert replay.first_difference(first, second) == ""


def test_targets_differ_and_the_first_kernel_is_named() -> None:
    old, new = (replay.pieces(small_models.convnet(), target) for target in ("x86-64-v3", "x86-64-v4"))
    said = replay.first_difference(old, new)
    assert "differs\n" in said or "only in the" in said


def test_a_difference_of_one_line_is_shown() -> None:
    said = replay.first_difference({"entry": "a\nb", "k": "same"}, {"entry": "a\nc", "k": "same"})
    assert said.startswith("entry differs") and "-b" in said and "+c" in said


def test_a_record_reads_back(tmp_path: Path) -> None:
    replay.record(tmp_path, "random/contraction-0$", ["x86-64"], 0, 1)
    (file,) = tmp_path.iterdir()
    assert file.name == "random~contraction-0 x86-64.gz"
    assert "entry" in replay.read(file)
