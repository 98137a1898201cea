"""``optimize="size"``: less code and fewer bytes of weights, and the same answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fuzz_graphs
import small_models
import tilewright as tw
from aot.in_process import ObjectModel
from tilewright.aot.export import Exported

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"

pytestmark = pytest.mark.usefixtures("shared_kernels")


def spent(made: Exported, kind: str) -> int:
    return sum(row.n_bytes for row in made.sizes if row.kind == kind)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("target", "kernels", "weights"), [("x86-64-v3", 0.6, 0.7), ("cortex-m4", 0.5, 0.5), ("aarch64", 0.5, 0.6)]
)
def test_digits(target: str, kernels: float, weights: float, tmp_path: Path) -> None:
    """Winograd's form, whose weights are up to four times larger, is not taken."""
    made = [
        tw.export(DIGITS, tmp_path / str(o), target=target, fix_dims={"batch": 1}, threads=1, optimize=o)
        for o in (2, "size")
    ]
    assert spent(made[1], "kernel") < kernels * spent(made[0], "kernel")
    assert spent(made[1], "weight") < weights * spent(made[0], "weight")
    assert made[1].object.stat().st_size < made[0].object.stat().st_size


@pytest.mark.one_in(2)
@pytest.mark.parametrize("graph", [small_models.convnet, small_models.language_model])
def test_kernels_are_smaller_and_right(graph: object, tmp_path: Path) -> None:
    fast = tw.compile(graph(), cache=False, threads=1)  # type: ignore[operator]
    made = [fast.export(tmp_path / str(o), optimize=o) for o in (2, "size")]
    assert spent(made[1], "kernel") < 0.7 * spent(made[0], "kernel")
    small = ObjectModel(made[1].object, name=made[1].name)
    arrays = [small_models.numbers(*(2 if isinstance(d, str) else d for d in i.shape)) for i in fast.inputs]
    want = fast(*arrays)
    np.testing.assert_allclose(small(*arrays), want, atol=1e-4 * np.abs(want).max())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("first", range(8_100_000, 8_100_032, 16))
def test_random_graphs(first: int) -> None:
    for seed in range(first, first + 16):
        made = fuzz_graphs.FAMILIES[fuzz_graphs.family(seed)](seed)
        fuzz_graphs.run(made, threads=1, optimize="size")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(tw.OptionError, match="optimize='tiny' is not a level"):
        tw.export(DIGITS, "unused", optimize="tiny")
