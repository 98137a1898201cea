"""``tilewright bench --tokens``: rates of a decoder of which there is a configuration alone."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from cli.models import Cli


@pytest.fixture
def transformers() -> ModuleType:
    """Loaded by those tests alone that use it: it takes most of a second."""
    return pytest.importorskip("transformers")


@pytest.mark.slow
def test_rates_of_a_configuration(transformers: ModuleType, cli: Cli, tmp_path: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=64, bos_token_id=None, eos_token_id=None
    )
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(tmp_path)
    ran = cli("bench", "--tokens", tmp_path, "--precision", "int4", "--threads", 1, "--json")
    assert ran.code == 0, ran.err
    rates = json.loads(ran.out)
    n_weights = 32 * (3 * 32 + 32 + 4 * 32 + 4 * 32 + 64)
    assert rates["weights_bytes"] == n_weights // 2 + n_weights // 32 * 2
    assert rates["decode_per_s"] > 0 and rates["prefill_per_s"] > 0


def test_what_is_no_model_of_transformers(transformers: ModuleType, cli: Cli, tmp_path: Path) -> None:
    ran = cli("bench", "--tokens", tmp_path / "nothing")
    assert ran.code == 2 and "config.json" in ran.err
