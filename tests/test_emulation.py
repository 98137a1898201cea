"""A GPU's schedules on this machine's CPU: every op's samples, and the options that ask for it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import zoo

import tilewright as tw
from test_every_op import assert_close, graph_of, has_no_bound
from test_models import check
from tilewright import ops
from tilewright.build import driver
from tilewright.core.diag import CompileError, OptionError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.opdef import OpDef
from tilewright.tools.conformance.onnx import Test, in_turn, problem

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


@pytest.mark.one_in(2)
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


NETS = (
    "mlp", "resnet50", "mobilenet_v2", "bert_base", "vit_b16", "gpt2", "llama_decode", "unet", "lstm", "densenet121",
    "efficientnet_b0", "whisper_tiny_encoder",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_nets_against_eager_pytorch(name: str) -> None:
    model = zoo.build(name, small=True)
    compiled = tw.compile(model.module, example_inputs=model.inputs, cache=False, target="cuda-sm90a", emulate=True)
    check(compiled, model)


@pytest.mark.slow
def test_node_tests_of_onnx() -> None:
    tests = list(islice(in_turn("plain"), 200))
    assert len(tests) == 200
    wrong = [f"{t.case.name}: {found}" for t in tests if (found := node_problem(t))]
    assert wrong == []


def node_problem(test: Test) -> str:
    """What is wrong with the emulated model's answers to a node test."""
    model = test.model()
    try:
        compiled = driver.compile(model, cache=False, target="cuda-sm90a", emulate=True)
    except CompileError as e:
        return f"refused: {e}" if not is_refused_by_cpus(model) else ""
    for inputs, expected in test.data(model):
        answer = compiled(*inputs)
        results = [answer] if len(compiled.outputs) == 1 else list(answer)
        if found := problem(test, model, inputs, expected, results):
            return found
    return ""


def is_refused_by_cpus(model: Any) -> bool:
    try:
        driver.compile(model, cache=False)
    except CompileError:
        return True
    return False


def test_only_a_gpu_is_emulated() -> None:
    sample = next(iter(ops.add.samples(np.random.default_rng(0)))) if ops.add.samples else None
    assert sample is not None
    graph = graph_of(ops.add, sample)
    with pytest.raises(OptionError, match="no GPU to emulate"):
        driver.compile_graph(graph, emulate=True)
    with pytest.raises(OptionError, match="neither yes nor no"):
        driver.compile_graph(graph, target="cuda-sm90a", emulate="yes")


def test_an_emulated_model_is_not_exported(tmp_path: Path) -> None:
    model = zoo.build("mlp", small=True)
    compiled = tw.compile(model.module, example_inputs=model.inputs, cache=False, target="cuda-sm90a", emulate=True)
    with pytest.raises(OptionError, match="emulates a GPU can't be exported") as caught:
        compiled.export(tmp_path)
    assert "without emulate=True" in caught.value.remedy
