"""ONNX's own node tests: none is wrong. The table per op is printed by ``onnx_node_suite.py``."""

from __future__ import annotations

import pytest

from frontend import onnx_node_suite


@pytest.mark.slow
def test_no_node_case_is_wrong(capsys) -> None:
    assert onnx_node_suite.main([], verbose=False) == 0, capsys.readouterr().out
