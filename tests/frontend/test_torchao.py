"""Modules that torchao quantised: results are PyTorch's, weights stay in their bits."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw

torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")


def layers() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 64)).eval()


def quantised(config: Any) -> torch.nn.Module:
    module = copy.deepcopy(layers())
    torchao.quantize_(module, config)
    return module


def off(module: torch.nn.Module, x: torch.Tensor) -> tuple[float, Any]:
    """The largest difference from PyTorch, of the largest result, and the compiled model."""
    model = tw.compile(module, (x,), cache=False)
    want = module(x).detach().numpy()
    return float(np.abs(np.asarray(model(x.numpy())) - want).max() / np.abs(want).max()), model


def test_eight_bits_are_pytorch_s_but_for_the_order_of_sums() -> None:
    for config in (torchao.Int8WeightOnlyConfig(), torchao.Int8DynamicActivationInt8WeightConfig()):
        error, model = off(quantised(config), torch.randn(5, 256))
        assert error < 2e-6
        assert model.manifest.report["memory"]["weights_bytes"] < 1.1 * (256 * 512 + 512 * 64)


def test_four_bits_in_groups_are_stored_in_four_and_rounded_as_our_own() -> None:
    four_bits = torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(32))
    error, model = off(quantised(four_bits), torch.randn(5, 256))
    assert error < 1e-4
    assert model.manifest.report["memory"]["weights_bytes"] < 0.7 * (256 * 512 + 512 * 64)


def test_rows_in_eight_bits_by_four_are_off_by_a_step_of_a_row_at_most() -> None:
    """What the first layer gives is rounded to bytes again, and a number next to a half may go the other way."""
    both = torchao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=torchao.PerGroup(32)
    )
    error, _ = off(quantised(both), torch.randn(5, 256))
    assert error < 1 / 255
