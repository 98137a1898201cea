"""A suite of random ONNX control flow by seed: code for this machine against ONNX Runtime.

In: seeds. Out: passed, refused by a typed error, or an error that names the call and the output. A call that ONNX
Runtime does not make is made all the same, and only must not break anything. Not its business: what a model is made of
(``control_graphs``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime
import pytest

import tilewright
from control_graphs import Feeds, control_graph
from fuzz_graphs import kernels_shared
from tilewright.core.diag import CompileError
from tilewright.runtime.errors import ExecutionError, InputError
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "control"
COUNT = 20_000


def cases(first: int = 0, last: int = COUNT) -> Sequence[Case]:
    return [Case(str(seed), "control") for seed in range(first, last)]


def run_case(case: Case) -> tuple[Status, str]:
    with kernels_shared(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_STRICT", "compiler")
        return check(int(case.name)), ""


def check(seed: int) -> Status:
    """Every call that ONNX Runtime makes gives its results; refused where no call does."""
    made = control_graph(seed)
    try:
        judge = session(made.model.SerializeToString())
    except Exception:  # of many types: a sequence where ONNX Runtime has none
        judge = None
    how = {"optimize": 1 + seed % 2, "threads": 1 + seed // 2 % 2}
    n_right = 0
    for k, feeds in enumerate(made.calls):
        wanted = None if judge is None else answers(judge, feeds)
        try:
            if not k:
                model = tilewright.compile(made.model, cache=False, **how)
            found = model.run(feeds)
        except (CompileError, ExecutionError, InputError) as e:
            if wanted is not None and not isinstance(e, CompileError):
                e.add_note(f"seed {seed}, call {k}, {how}")
                raise
            if not k and isinstance(e, CompileError):
                return "refused"
            continue
        if wanted is not None:
            for name, theirs in wanted.items():
                compare(found[name], theirs, f"seed {seed}, call {k}, {how}: {name}")
            n_right += 1
    return "passed" if n_right else "refused"


def session(data: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def answers(judge: onnxruntime.InferenceSession, feeds: Feeds) -> dict[str, object] | None:
    """None where ONNX Runtime fails: it knows the sizes of a loop's rows only after a trip, say."""
    try:
        names = [o.name for o in judge.get_outputs()]
        return dict(zip(names, judge.run(names, feeds), strict=True))
    except Exception:
        return None


def compare(ours: object, theirs: object, what: str) -> None:
    """Equal; of what has no elements ONNX Runtime does not always know the other sizes."""
    if isinstance(theirs, list):
        assert isinstance(ours, list | tuple) and len(ours) == len(theirs), f"{what}: a sequence of {len(theirs)}"
        for a, b in zip(ours, theirs, strict=True):
            compare(a, b, what)
        return
    a, b = np.asarray(ours), np.asarray(theirs)
    assert a.dtype == b.dtype, what
    assert a.shape == b.shape or (a.ndim == b.ndim and not a.size and not b.size), f"{what}: {a.shape}, not {b.shape}"
    if a.size:
        np.testing.assert_array_equal(a, b, err_msg=what)
