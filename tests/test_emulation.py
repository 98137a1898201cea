"""A GPU's schedules on this machine's CPU: every op's samples, and the options that ask for it."""

from __future__ import annotations

import numpy as np
import pytest

from test_every_op import assert_close, graph_of, has_no_bound
from tilewright import ops
from tilewright.build import driver
from tilewright.core.diag import OptionError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.opdef import OpDef

QUICK = (
    ops.add, ops.where, ops.softmax, ops.layer_norm, ops.matmul, ops.conv, ops.cumsum, ops.gather, ops.scatter_nd,
    ops.sort, ops.top_k, ops.cast, ops.max_pool, ops.attention, ops.lstm, ops.resize, ops.if_,
)  # fmt: skip
"""An op of each kind."""


def samples_agree(op: OpDef, which: slice) -> None:
    assert op.samples is not None
    for sample in list(op.samples(np.random.default_rng(0)))[which]:
        graph = graph_of(op, sample)
        if has_no_bound(op, sample):
            continue
        with np.errstate(all="ignore"):
            want = evaluate_graph(graph, sample.arrays)
        got = driver.compile_graph(graph, target="cuda-sm90a", emulate=True)(*sample.arrays)
        for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            assert_close(np.asarray(g), w)


@pytest.mark.parametrize("op", QUICK, ids=lambda o: o.name)
def test_ops_of_each_kind(op: OpDef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_STRICT", "1")
    samples_agree(op, slice(2))


@pytest.mark.slow
@pytest.mark.parametrize("op", [o for o in ops.ALL if o.samples is not None], ids=lambda o: o.name)
def test_every_op(op: OpDef, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_LAPACK", "off")
    monkeypatch.setenv("TILEWRIGHT_STRICT", "1")
    samples_agree(op, slice(None))


def test_only_a_gpu_is_emulated() -> None:
    sample = next(iter(ops.add.samples(np.random.default_rng(0)))) if ops.add.samples else None
    assert sample is not None
    graph = graph_of(ops.add, sample)
    with pytest.raises(OptionError, match="no GPU to emulate"):
        driver.compile_graph(graph, emulate=True)
    with pytest.raises(OptionError, match="neither yes nor no"):
        driver.compile_graph(graph, target="cuda-sm90a", emulate="yes")
