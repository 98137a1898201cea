"""The stated bounds of ``docs/numerics.md`` hold: for a strided part of fp32, for all of fp16 and bf16."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from benchmarks.numerics import FUNCTIONS, errors, worst

from tilewright.core import types

DOCS = Path(__file__).parents[1] / "docs" / "numerics.md"
ROWS = re.findall(r"^\| (\w+) \| ([\d.]+) \| .* \| ([\d.]+) \| ([\d.]+) \|$", DOCS.read_text(), re.M)
STRIDE = 65_537  # coprime to the exponents' distance, so that every exponent and many mantissas are met


def test_every_function_has_a_row() -> None:
    assert [r[0] for r in ROWS] == list(FUNCTIONS)


@pytest.mark.one_in(14)
@pytest.mark.parametrize("row", ROWS, ids=lambda r: r[0])
@pytest.mark.parametrize("target", ["native", "x86-64"])
def test_bounds(row: tuple[str, str, str, str], target: str) -> None:
    name, *bounds = row
    for dtype, bound in zip((types.f32, types.f16, types.bf16), bounds, strict=True):
        error, x = worst(name, dtype, STRIDE if dtype is types.f32 else 1, [target])
        assert error <= float(bound) + 0.005, f"{name}({x}) in {dtype}"


def test_errors_are_counted_in_units_of_the_last_place() -> None:
    want = np.array([1.0, 1.0, 1.0, np.inf, np.nan, 1.0, 0.0, 1e39])
    got = np.array([1.0, 1 + 2**-22, 1 - 2**-24, np.inf, np.nan, np.nan, 1e-45, np.inf], np.float32)
    assert errors(got, want).tolist() == [0, 2, 0.5, 0, 0, np.inf, 1, 0]
