"""Columns behind full vectors, summed along the reduction: exactly these elements, and no byte beyond the operands."""

import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.native import HOST, Native
from codegen.test_lying_across import Fenced
from tile.kernels import convolution, matmul, partial_sums
from tilewright.choose.default import RULE_BROKE, schedule
from tilewright.target.target import Target
from tilewright.tile.pack import packed_array

TARGETS = [HOST, Target.parse("x86-64-v4"), Target.parse("x86-64-v3"), Target.parse("x86-64")]
every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)


def run(computation, target, arrays, at_end):
    """The kernel's result with its second input as a constant, and whether it has a tile of partial sums."""
    tree = schedule(computation, target, computation.inputs[1:2])
    assert not any(RULE_BROKE in note for note in tree.notes), tree.notes
    (out,) = computation.outputs
    given = arrays | {p.param.name: packed_array(p, arrays[p.source.name]) for p in tree.packed}
    given[out.name] = np.zeros(out.shape, np.float32)
    fenced = {name: Fenced(x, at_end) for name, x in given.items() if x.nbytes <= mmap.PAGESIZE}
    given |= {name: f.array for name, f in fenced.items()}
    Native(tree, target)(*(given[b.name] for b in tree.params))
    return given[out.name], any(len(b.shape) > 2 for b in partial_sums(tree))


@pytest.mark.one_in(2)
@every_target
@given(rows=st.integers(8, 16), behind=st.integers(1, 3), depth=st.integers(12, 60), at_end=st.booleans())
@settings(max_examples=5)
def test_products(target, rows, behind, depth, at_end):
    width = target.vector_bytes // 4
    rng, n = np.random.default_rng(depth), width + min(behind, width - 1)
    a, b = rng.standard_normal((rows, depth), np.float32), rng.standard_normal((depth, n), np.float32)
    got, is_tiled = run(matmul(rows, n, depth, False), target, {"A": a, "B": b}, at_end)
    np.testing.assert_allclose(got, a.astype("d") @ b, rtol=1e-4, atol=1e-4)
    assert is_tiled or width < 16 or behind > 1 or depth < 2 * width


@pytest.mark.parametrize("channel", [16, 17])
def test_what_is_beside_a_group_of_channels_does_not_enter_its_sums(channel):
    """The last vector of a sum along 17 channels has one; behind it lie those of the next group, here not a number."""
    target, rng = Target.parse("x86-64-v4"), np.random.default_rng(0)
    x, w = rng.standard_normal((1, 1, 12, 34), np.float32), rng.standard_normal((34, 17, 1, 3), np.float32)
    arrays = {"X": x, "W": w, "bias": np.zeros(34, np.float32)}
    computation = convolution((1, 1, 12, 34), 34, (1, 3), groups=2)
    want, is_tiled = run(computation, target, arrays, at_end=True)
    assert is_tiled
    x[..., channel] = np.nan
    got, _ = run(computation, target, arrays, at_end=True)
    group = slice(17) if channel >= 17 else slice(17, 34)
    np.testing.assert_array_equal(got[..., group], want[..., group])
