"""A stateful module's export holds the values that its state begins with: for C programs, and for the Python loader."""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright as tw
from aot import programs
from aot.in_process import ObjectModel
from tilewright.runtime.library import LibraryModel


class Recent(torch.nn.Module):
    """A counter, and the last three inputs, which begin with numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(7, dtype=torch.int64))
        self.register_buffer("last", torch.arange(12.0).reshape(3, 4))
        self.weight = torch.nn.Parameter(torch.full((4,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.last.copy_(torch.cat([self.last[1:], x]))
        return self.last.sum(0) * self.weight + self.n


Pair = tuple[tw.LoadedModel, Path, Path]


@pytest.fixture(scope="module", params=["embedded", pytest.param("file", marks=pytest.mark.slow)])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    model = tw.compile(Recent(), (torch.ones(1, 4),), cache=False)
    exported = model.export(tmp_path_factory.mktemp("recent"), name="recent", weights=request.param)
    yield model, exported.object, exported.header


def test_the_header_says_what_is_kept(made: Pair) -> None:
    header = made[2].read_text()
    assert "#define RECENT_N_STATE 2" in header and "const void *recent_initial_state(" in header
    assert len(re.findall(r"state: output \d is input \d of the next call", header)) == 2


def test_the_loader_keeps_the_state(made: Pair) -> None:
    model, object_, _ = made
    if object_.with_name("recent.safetensors").exists():
        pytest.skip("an object linked into this process maps no file")
    library = ObjectModel(object_, name="recent")
    model.reset()
    assert library.inputs == model.inputs and library.outputs == model.outputs
    assert library.state.keys() == model.state.keys()
    for _ in range(2):
        for k in range(4):
            x = np.full((1, 4), k, np.float32)
            np.testing.assert_array_equal(library(x), model(x))
            for name, value in model.state.items():
                np.testing.assert_array_equal(library.state[name], value)
        start = {name: np.ones_like(a) for name, a in model.state.items()}
        library.reset(**start)
        model.reset(**start)
    other = copy.deepcopy(library)
    before = library.state
    other(x)
    assert all(np.array_equal(library.state[name], value) for name, value in before.items())
    assert not all(np.array_equal(other.state[name], value) for name, value in before.items())
    library.reset()
    assert [a.tolist() for a in library.state.values() if a.ndim == 0] == [7]
    with pytest.raises(tw.InputError, match="the model keeps"):
        library.reset(other=1)
    with pytest.raises(tw.InputError, match="can't be"):
        library.reset(**dict.fromkeys(start, np.zeros(99, np.float32)))


PROGRAM = r"""
#include <stdio.h>
#include "recent.h"
static _Alignas(64) unsigned char memory[RECENT_WORKSPACE_BYTES];
int main(int argc, char **argv) {
  recent_model *model;
  const void *weights = 0;
  const tw_state_info *state = recent_info()->state;
  static unsigned char kept[2][RECENT_N_STATE][64];
  const void *inputs[RECENT_N_INPUTS];
  void *outputs[RECENT_N_OUTPUTS];
  float x[4] = {1, 2, 3, 4}, y[4];
  (void)argc, (void)argv;
  MAP
  if (recent_create(&model, memory, sizeof memory, weights, 1)) return 1;
  if (recent_info()->n_state != RECENT_N_STATE || recent_initial_state(model, RECENT_N_STATE)) return 2;
  inputs[0] = x, outputs[0] = y;
  for (int k = 0; k < RECENT_N_STATE; k++) inputs[state[k].input] = recent_initial_state(model, k);
  for (int call = 0; call < 5; call++) {
    for (int k = 0; k < RECENT_N_STATE; k++) outputs[state[k].output] = kept[call % 2][k];
    if (recent_run(model, 0, inputs, outputs)) return 3;
    for (int k = 0; k < RECENT_N_STATE; k++) inputs[state[k].input] = kept[call % 2][k];
    for (int k = 0; k < 4; k++) printf("%.9g ", y[k]);
  }
  return 0;
}
"""


@programs.needs_cc
def test_a_program_begins_with_it(made: Pair, tmp_path: Path) -> None:
    model, object_, header = made
    has_file = object_.with_name("recent.safetensors").exists()
    mapping = "if (recent_map_weights(argv[1], &weights)) return 4;" if has_file else ""
    (tmp_path / "main.c").write_text(PROGRAM.replace("MAP", mapping))
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{header.parent}"]
    programs.link([*warnings, str(tmp_path / "main.c"), str(object_), "-lm", "-lpthread"], tmp_path / "main")
    command = [str(tmp_path / "main"), str(object_.with_name("recent.safetensors"))]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    model.reset()
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 4)
    expected = np.concatenate([np.asarray(model(x)) for _ in range(5)])
    np.testing.assert_array_equal(np.array(ran.stdout.split(), np.float32), expected)


@programs.needs_cc
def test_a_shared_library_with_levels_keeps_it(tmp_path: Path) -> None:
    module, example = Recent(), (torch.ones(1, 4),)
    made = tw.export(module, tmp_path, example_inputs=example, name="r", target="x86-64,x86-64-v2", shared=True)
    library = LibraryModel(made.library)
    for k in range(4):
        x = torch.full((1, 4), float(k))
        torch.testing.assert_close(library(x), module(x))
