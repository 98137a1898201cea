"""Objects for other machines: what they are, and that they run right where an emulator is (``aot.emulated``).

The quick tests look at every target's object without any tool; the slow ones run 200 of ONNX's node tests and six nets
as one program on each machine that can be imitated here.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from aot.emulated import many
from aot.emulated.platforms import PLATFORMS

NETS = ("mlp", "lstm", "resnet50", "mobilenet_v2", "bert_base", "llama_decode")
QUICK = ("aarch64", "wasm32")


def available(name: str) -> object:
    """A platform, skipped with the reason where a tool is missing."""
    missing = PLATFORMS[name].missing()
    return pytest.param(name, marks=pytest.mark.skipif(bool(missing), reason=missing))


@pytest.mark.parametrize("name", [available(n) for n in QUICK])
def test_a_few_models_on_another_machine(name: str, tmp_path: Path) -> None:
    trials = chain(many.node_tests(12), many.nets(["mlp", "lstm"]))
    assert many.wrong(PLATFORMS[name], trials, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [available(n) for n in PLATFORMS])
def test_conformance_on_another_machine(name: str, tmp_path: Path) -> None:
    """A CPU without an instruction that the object holds would end the program."""
    trials = chain(many.node_tests(200), many.nets(NETS))
    assert many.wrong(PLATFORMS[name], trials, tmp_path) == {}
