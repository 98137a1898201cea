"""Rows on GPUs: what lanes make and what every lane has, on the emulated GPU."""

import numpy as np
import pytest
import torch

import tilewright


class Scaled(torch.nn.Module):
    """A row's sum whose terms are made of two elements of another short row."""

    def forward(self, box, at):
        ends = torch.sin(box)
        return torch.relu(ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * at).sum(-1)


@pytest.mark.parametrize("target", ["cuda-sm90a", "rocm-gfx942"])
def test_several_elements_that_lanes_made_are_shared(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_STRICT", "1")
    box, at = torch.randn(5, 2), torch.rand(40)
    made = tilewright.compile(Scaled(), (box, at), target=target, emulate=True)
    np.testing.assert_allclose(np.asarray(made(box, at)), Scaled()(box, at), rtol=1e-5)
