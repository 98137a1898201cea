"""Architectures of Hugging Face: one of each family in every run, all of them where time allows; many sizes of one."""

from __future__ import annotations

import importlib
import random
from types import ModuleType

import numpy as np
import pytest
import torch

from tilewright.build import driver
from tilewright.runtime.errors import InputError
from tilewright.tools.conformance import workers
from tilewright.tools.conformance.outcome import by_tag, share_passed

ONE_OF_EACH = (
    "BertModel-dynamic",
    "LlamaForCausalLM-dynamo",
    "MixtralForCausalLM-export",
    "ResNetForImageClassification-export",
    "DetrForObjectDetection-export",
    "Wav2Vec2ForCTC-export",
    "CLIPModel-export",
    "Mamba2ForCausalLM-export",
)
MANY_SIZES = (
    "BertModel",
    "GPT2LMHeadModel",
    "T5EncoderModel",
    "ViTForImageClassification",
    "ResNetForImageClassification",
    "LlamaForCausalLM",
    "MixtralForCausalLM",
    "MambaForCausalLM",
    "BartForConditionalGeneration",
    "CLIPModel",
    "Wav2Vec2ForCTC",
)
SIZES = {"batch": (2, 9), "seq": (2, 40), "target": (2, 12), "images": (2, 6), "samples": (400, 1500)}


@pytest.fixture(scope="module")
def hf() -> ModuleType:
    """The tool with ``transformers``, whose loading takes a second: only who runs these tests waits for it."""
    return importlib.import_module("tilewright.tools.conformance.hf")


@pytest.mark.one_in(8)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_one_of_each_family(name: str, hf: ModuleType) -> None:
    case = next(c for c in hf.cases() if c.name == name)
    status, detail = hf.run_case(case)
    assert status == "passed", detail


def check_sizes(hf: ModuleType, name: str, count: int) -> None:
    """One compile, ``count`` random sizes of every dimension, each against eager PyTorch, whose symbols begin at 2."""
    architecture = next(a for a in hf.ARCHITECTURES if a.name == name)
    with hf.quiet(), torch.no_grad():
        model = hf.build(architecture)
        program = hf.capture(architecture, model, hf.make_inputs(architecture, architecture.dims), hf.AUTO)
        fixed = hf.fixed_dimensions(architecture, program)
        compiled = driver.compile(program, cache=False)
        draw = random.Random(name)
        for k in range(count):
            sizes = {d: n if d in fixed else draw.randint(*SIZES[d]) for d, n in architecture.dims.items()}
            inputs = hf.make_inputs(architecture, sizes, k)
            assert not hf.differences(hf.call(compiled, inputs), hf.flat(model(**inputs, **architecture.call))), sizes


@pytest.mark.slow
def test_twenty_sizes(hf: ModuleType) -> None:
    check_sizes(hf, "BertModel", 20)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", MANY_SIZES)
def test_five_hundred_sizes(name: str, hf: ModuleType) -> None:
    check_sizes(hf, name, 500)


def test_constraints_are_named() -> None:
    """A size outside of what the program was captured for is refused with the dimension's name."""
    rows = torch.export.Dim("rows", min=2, max=6)
    model = driver.compile(
        torch.nn.Linear(4, 3), example_inputs=(torch.ones(3, 4),), dynamic_shapes=({0: rows},), cache=False
    )
    with pytest.raises(InputError, match=r"rows.*6|6.*rows"):
        model(np.ones((7, 4), np.float32))


@pytest.mark.slow
@pytest.mark.timeout(36000)
def test_all_architectures(hf: ModuleType) -> None:
    """At least 97 of 100 programs that PyTorch can capture are right, in each of the three ways."""
    module = hf.__name__
    outcomes = list(workers.run_cases(module, workers.load_suite(module).cases(), jobs=2, seconds=600))
    for mode in hf.MODES:
        found = [o for o in by_tag(outcomes)[mode] if o.status != "skipped"]
        assert share_passed(found) >= 0.97, [o.name for o in found if o.status != "passed"]
        assert not [o.name for o in found if o.status in ("wrong", "crashed")]
