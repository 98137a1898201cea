"""Which tiles a GPU's products and rows take where a size is known at run time only, or is nothing."""

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.choose.strategies.gpu.block_tiles import Extents, WarpTile, tile_of
from tilewright.choose.strategies.gpu.matrices import factors_of
from tilewright.core.compute import Binary, Buffer, Cast, Const, Load, Reduction, Stage, axes_for, syms
from tilewright.core.expr import Dim, Sym
from tilewright.core.types import bf16, f32
from tilewright.target.gpu import Gpu, named_gpus
from tilewright.target.matrices import SHAPES

N = Sym("N", 1)
HOPPER = "cuda-sm90a"


@pytest.mark.parametrize("gpu", named_gpus(), ids=lambda g: g.arch)
@pytest.mark.parametrize("unit", [None, SHAPES[1]], ids=["threads", "matrix units"])
@pytest.mark.parametrize(("rows", "columns"), [(N, 4096), (4096, N), (N, N)])
def test_an_unknown_size_counts_as_a_large_one(gpu: Gpu, unit, rows: Dim, columns: Dim) -> None:
    """The same number for every tile: if each counted as many blocks, the smallest would seem the cheapest."""
    found = tile_of(gpu, f32, unit, Extents(1, rows, columns, 4096))
    assert found == tile_of(gpu, f32, unit, Extents(1, 1 << 20, 1 << 20, 4096))


def test_a_tile_is_found_soon_for_any_size() -> None:
    found = tile_of(Gpu.parse(HOPPER), f32, SHAPES[1], Extents(1, 1 << 40, 64, 64))
    assert isinstance(found, WarpTile)


def test_what_taps_read_again_is_no_traffic_of_memory() -> None:
    """Of an image nine taps read each element; else memory alone would decide, and every tile would seem as good."""
    gpu = Gpu.parse(HOPPER)
    once, often = (tile_of(gpu, f32, SHAPES[0], Extents(1, 102400, 64, 576, n)) for n in (1, 9))
    assert often.rows > once.rows
    axes = axes_for((2, 64, 18, 18, 64), "a")
    taps = axes_for((3, 3, 64), "k")
    image, weight = Buffer("x", bf16, (2, 20, 20, 64)), Buffer("w", bf16, (3, 3, 64, 64))
    (b, c, i, j, _), (r, q, k) = syms(axes), syms(taps)
    value = Binary("mul", Cast(Load(image, (b, i + r, j + q, k)), f32), Cast(Load(weight, (r, q, k, c)), f32))
    own = (axes[0], axes[2], axes[3], axes[1])
    out = Buffer("y", f32, tuple(a.extent for a in own))
    factors = factors_of(Stage((out,), own, syms(own), (value,), Reduction(taps, "add", (Const(0.0, f32),))), gpu)
    assert factors is not None
    assert factors.extents == Extents(1, 2 * 18 * 18, 64, 9 * 64, repeats=7)  # a border's elements less often


class Empty(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.bmm(x, x.transpose(1, 2)), torch.softmax(x.float(), -1), x.float().sum(-1), x.float().sum(0)


@pytest.mark.parametrize("shape", [(0, 64, 64), (64, 0, 64), (64, 64, 0)])
def test_nothing_has_a_schedule_too(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_STRICT", "1")
    x = torch.zeros(shape, dtype=torch.bfloat16)
    got = tw.compile(Empty(), (x,), target=HOPPER, emulate=True, cache=False)(x)
    for g, w in zip(got, Empty()(x), strict=True):
        np.testing.assert_array_equal(torch.as_tensor(g).float().numpy(), w.float().numpy())
