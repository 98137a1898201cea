"""A suite of random quantised ONNX models by seed: code for several x86 machines against ONNX's own reference.

In: seeds. Out: passed, refused by a typed error, or an error that names the output. Not its business: what a model is
made of, and which of its results are exact (``quantised_graphs``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import tilewright
from codegen.native import runs_here
from quantised_graphs import quantised_graph
from quantised_grower import Made, Value
from tilewright.core.diag import CompileError
from tilewright.target.target import Target
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "quantised"
COUNT = 20_000
LEVELS = ("x86-64", "x86-64-v3", "x86-64-v4")
WITH_BYTES = ("alderlake", "cascadelake", "sapphirerapids")
"""Machines whose instructions sum products of bytes: in vectors of 256 bits, of 512, and on matrix registers."""
RTOL = 2e-3  # of what floats decide, over the largest number of a tensor


def cases(first: int = 0, last: int = COUNT) -> Sequence[Case]:
    return [Case(str(seed), "quantised") for seed in range(first, last)]


def run_case(case: Case) -> tuple[Status, str]:
    return check(int(case.name)), ""


def machines(seed: int) -> list[str]:
    """The levels, and one of the machines that multiply bytes, of those that this CPU runs."""
    return [m for m in (*LEVELS, WITH_BYTES[seed // 4 % len(WITH_BYTES)]) if runs_here(Target.parse(m))]


def check(seed: int, levels: Sequence[str] | None = None) -> Status:
    """Every level's results are right, or the import says why it takes none."""
    made = quantised_graph(seed)
    for k, level in enumerate(machines(seed) if levels is None else levels):
        exact = (seed + k) % 4 > 0
        how = {"optimize": 1 + seed % 2, "accuracy": "exact" if exact else "default", "threads": 1 + seed // 2 % 2}
        try:
            model = tilewright.compile(made.model, target=level, cache=False, **how)
        except CompileError:
            return "refused"
        try:
            compare(made, model(*(made.feeds[s.name] for s in model.inputs)), exact)
        except Exception as e:
            e.add_note(f"seed {seed}, {level}, {how}")
            raise
    return "passed"


def compare(made: Made, results: object, exact: bool) -> None:
    found = results if isinstance(results, tuple | list) else (results,)
    for ours, wanted in zip(found, made.expected, strict=True):
        compare_one(np.asarray(ours), wanted, exact)


def compare_one(ours: np.ndarray, wanted: Value, exact: bool = True) -> None:
    """Equal bits, or near where rounding of floats decides: one code, or a share of the largest number."""
    theirs = wanted.array
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), f"{wanted.name}: {ours.dtype}{ours.shape}"
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    if wanted.exact and exact:
        np.testing.assert_array_equal(a, b, err_msg=wanted.name)
    elif theirs.dtype.kind in "iu" or "int" in theirs.dtype.name:
        assert np.abs(a - b).max(initial=0) <= 1, f"{wanted.name}: by {np.abs(a - b).max()}"
    else:
        few_bits = theirs.dtype.itemsize == 1
        atol = RTOL * np.abs(b[np.isfinite(b)]).max(initial=1.0)
        np.testing.assert_allclose(a, b, rtol=0.5 if few_bits else RTOL, atol=atol, err_msg=wanted.name)
