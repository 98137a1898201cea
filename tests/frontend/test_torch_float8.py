"""PyTorch's floats of 8 bits: every number, what lies between them and beyond, buffers, inputs and results."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright

torch = pytest.importorskip("torch")

TYPES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


def compiled(module, *args):
    return tilewright.compile(module.eval(), args, cache=False)


class Back(torch.nn.Module):
    def forward(self, x):
        return x.to(torch.float32) * 2


class There(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return x.to(self.dtype)


@pytest.mark.parametrize("name", TYPES)
def test_numbers_become_floats_and_floats_become_the_nearest(name):
    dtype = getattr(torch, name)
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    wide = codes.to(torch.float32)
    found = np.asarray(compiled(Back(), codes)(codes))
    np.testing.assert_array_equal(found, (wide * 2).numpy())
    known = wide[torch.isfinite(wide)].sort().values
    middle = (known[1:] + known[:-1]) / 2
    ends = torch.tensor([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-40, -1e-40, 0.0, -0.0])
    largest = known[-1] * torch.tensor([1.01, 1.03, 1.06, 1.2, 1.5, 2.0])
    above, below = (torch.nextafter(middle, k) for k in (known[1:], known[:-1]))
    x = torch.cat([known, middle, above, below, ends, largest])
    found = compiled(There(dtype), x)(x)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.to(torch.float32).numpy(), x.to(dtype).to(torch.float32).numpy())


class Kept(torch.nn.Module):
    """A buffer of codes, a row of which is replaced; results are the codes and what they stand for."""

    def __init__(self):
        super().__init__()
        rows = torch.linspace(-3, 3, 40).reshape(8, 5)
        self.register_buffer("rows", rows.to(torch.float8_e4m3fn))

    def forward(self, x, at):
        codes = torch.index_copy(self.rows.view(torch.uint8), 0, at, x.to(torch.float8_e4m3fn).view(torch.uint8))
        joined = torch.cat([self.rows, x.to(torch.float8_e4m3fn)])
        return joined, joined.to(torch.float32).sum(1), codes


def test_buffers_and_results_are_codes():
    module, x, at = Kept(), torch.tensor([[0.3, -7.0, 447.0, 0.0, 1e-4]]), torch.tensor([2])
    wanted = [y.view(torch.uint8) if y.dtype == torch.float8_e4m3fn else y for y in module(x, at)]
    joined, sums, codes = compiled(module, x, at)(x.numpy(), at.numpy())
    np.testing.assert_array_equal(np.asarray(joined).view(np.uint8), wanted[0].numpy())
    np.testing.assert_allclose(np.asarray(sums), wanted[1].numpy(), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(codes), wanted[2].numpy())


def test_a_compiled_module_takes_and_gives_them():
    def f(x):
        return (x.to(torch.float32) * 0.5).to(x.dtype)

    x = torch.linspace(-9, 9, 24).to(torch.float8_e5m2)
    found = torch.compile(f, backend="tilewright")(x)
    assert found.dtype == x.dtype
    assert torch.equal(found.view(torch.uint8), f(x).view(torch.uint8))
