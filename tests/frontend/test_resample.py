"""Resampling by random factors: the elements that PyTorch picks, at sizes known and free, and the sizes it makes."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch.export import Dim
from torch.utils._sympy.functions import ToFloat, TruncToInt

import tilewright as tw
from frontend.torch_compare import check
from tilewright.core.expr import Sym, evaluate
from tilewright.frontend.torch.fx.rounded import rounded


class Lambda(torch.nn.Module):
    def __init__(self, f: Any) -> None:
        super().__init__()
        self.forward = f


def _factor(r: random.Random) -> float:
    return r.choice([0.3, 0.6, 0.7, 1.1, 1.3, 2.0, 2.1, 2.5, round(r.uniform(0.3, 3), 2)])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_the_nearest_element_is_pytorch_s(mode: str, rank: int) -> None:
    r = random.Random(f"{mode} {rank}")
    for _ in range(30):
        shape = [1, 1, *(r.randint(2, 9) for _ in range(rank - 1)), r.randint(2, 60)]
        if r.random() < 0.3:
            options: dict[str, Any] = {"size": [r.randint(1, 2 * n) for n in shape[2:]]}
        else:
            options = {"scale_factor": [max(_factor(r), 1 / n) for n in shape[2:]]}
        dtype = r.choice([torch.float32, torch.float64])
        x = torch.arange(float(torch.Size(shape).numel()), dtype=dtype).view(shape)
        check(Lambda(partial(F.interpolate, mode=mode, **options)), (x,), rtol=0)


def test_an_axis_whose_size_stays_is_copied_by_pytorch_s_rules() -> None:
    x = torch.randn(1, 2, 13, 8)
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        check(Lambda(partial(F.interpolate, mode=mode, scale_factor=(0.6, 1.1))), (x,))
        check(Lambda(partial(F.interpolate, mode=mode, scale_factor=(1.05, 1.0))), (x,))


@pytest.mark.one_in(10)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("factor", [0.6, (0.7, 1.4), (2.3, 1.1)])
def test_free_sizes(mode: str, factor: Any) -> None:
    f = Lambda(partial(F.interpolate, mode=mode, scale_factor=factor))
    free = {2: Dim.AUTO, 3: Dim.AUTO}
    made = tw.compile(f, (torch.ones(1, 2, 10, 15),), dynamic_shapes=(free,), cache=False)
    for size in ((10, 15), (5, 6), (31, 40), (11, 17), (90, 5)):
        x = torch.randn(1, 2, *size)
        torch.testing.assert_close(made(x), f(x), rtol=1e-4, atol=1e-4)


def test_sizes_of_a_float_product_are_pytorch_s() -> None:
    """Of 0.7, 1.4 and 2.3 some products are rounded to below the whole number: ``int(90 * 0.7)`` is 62."""
    n, size, n_short = sympy.Symbol("n", integer=True, positive=True), Sym("n", 1), 0
    for hundredths in range(5, 400, 10):
        factor = hundredths / 100
        found = rounded(TruncToInt(factor * ToFloat(n)), lambda e: size if e is n else int(e))
        assert found is not None
        sizes = [k * 2**j for k in (*range(1, 150), 190, 270) for j in (0, 13, 29)]
        assert not [k for k in sizes if evaluate(found.size, {size: k}) != int(k * factor)], factor
        n_short += any(int(k * factor) != k * hundredths // 100 for k in sizes)
    assert n_short > 2


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear"])
@pytest.mark.parametrize("align", [False, True])
def test_an_infinite_element_at_an_edge_weighs_what_it_does_in_pytorch(mode: str, align: bool) -> None:
    n = {"linear": 1, "bilinear": 2, "trilinear": 3}[mode]
    x = torch.randn(1, 1, *[4, 5, 3][:n])
    x[..., -1] = -torch.inf
    x[..., 0] = torch.inf
    f = partial(F.interpolate, scale_factor=2, mode=mode, align_corners=align)
    made = tw.compile(Lambda(f), (x,), cache=False)(x)
    torch.testing.assert_close(made, f(x), equal_nan=True)
