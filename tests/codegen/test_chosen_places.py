"""Places that the data choose: whatever they hold, what is touched lies in the buffer, and the usual place is cheap."""

import numpy as np
import pytest

from codegen.native import HOST, kernel
from codegen.test_loops import agree, every_target, lanes, loop, sym
from tilewright.codegen.cpu import llvm
from tilewright.core import types
from tilewright.core.compute import Buffer
from tilewright.core.expr import Sym
from tilewright.ops.stages import wrapped
from tilewright.tile.ir import Kind, Store, Update

f32, i32, i64 = types.f32, types.i32, types.i64
PLACES = np.array([0, 8, -1, -9, 9, -10, 3, 3, 1 << 62, -(1 << 63)])
"""Inside a row of 9, from its end, and outside of it on either side."""


def added(n, dtype=i64):
    """``y[j[i]] += x[i]`` into ``n`` elements."""
    j, x, y = Buffer("j", dtype, (10,)), Buffer("x", f32, (10,)), Buffer("y", f32, (n,))
    i = sym("i", 10)
    return kernel(
        [loop(i, 10, Update(y, (wrapped(j[i], n),), "add", x[i]))], j, x, y, sizes=(n,) if isinstance(n, Sym) else ()
    )


@every_target
def test_wherever_the_place_is(target):
    agree(added(9), target, given={"j": PLACES})
    agree(added(Sym("n", 1)), target, sizes=(9,), given={"j": PLACES})


@every_target
def test_places_of_32_bits(target):
    agree(added(9, i32), target, given={"j": np.clip(PLACES, -(1 << 31), (1 << 31) - 1).astype(np.int32)})


@pytest.mark.parametrize("n", [9, Sym("n", 1)], ids=str)
def test_the_place_of_an_element_is_one_comparison(n):
    """What is done to places outside is behind a branch."""
    text = llvm.emit(added(n), HOST).text
    assert "icmp uge i64" in text
    assert text.index("br i1", text.index("icmp uge i64")) < text.index("@llvm.smin.i64")


@every_target
@pytest.mark.parametrize("kind", [Kind.SERIAL, Kind.UNROLL])
def test_a_place_that_many_elements_share(target, kind):
    """A loop that does not change the place has no branch inside, since nothing would move it out."""
    j, x, y = Buffer("j", i64, (10,)), Buffer("x", f32, (9, 64)), Buffer("y", f32, (10, 64))
    i, o, lane = sym("i", 10), sym("o", 8), sym("l", 8)
    row = lanes(lane, 8, Store(y, (i, 8 * o + lane), x[wrapped(j[i], 9), 8 * o + lane]))
    shared = kernel([loop(i, 10, loop(o, 8, row, kind=kind))], j, x, y)
    agree(shared, target, given={"j": PLACES})
    assert ("icmp uge i64" in llvm.emit(shared, target).text) == (kind is Kind.UNROLL)


@every_target
def test_places_of_lanes(target):
    j, x, y = Buffer("j", i64, (10,)), Buffer("x", f32, (9,)), Buffer("y", f32, (10,))
    lane = sym("l", 10)
    agree(kernel([lanes(lane, 10, Store(y, (lane,), x[wrapped(j[lane], 9),]))], j, x, y), target, given={"j": PLACES})
