"""What a kernel needs from outside stays known while steps move its nests."""

from tilewright.core.compute import Axis, Buffer, Computation, Load, Stage
from tilewright.core.expr import Sym
from tilewright.core.types import f32
from tilewright.tile.lower import lower
from tilewright.tile.schedule import ScheduleBuilder


def test_a_size_that_only_an_index_has_stays_while_its_nest_moves() -> None:
    """The nest is taken out of the body, and put in elsewhere: between the two nothing mentions the size."""
    n, at = Sym("n", 1), Sym("at", 0, 3)
    x, y, z = (Buffer(name, f32, (m,)) for name, m in (("X", n + 3), ("Y", n), ("Z", n)))
    i, j = Axis(Sym("i", 0), n), Axis(Sym("j", 0), n)
    stages = (
        Stage((y,), (i,), (i.sym,), (Load(x, (i.sym,)),)),
        Stage((z,), (j,), (j.sym,), (Load(x, (j.sym + at,)),)),
    )
    b = ScheduleBuilder(lower(Computation((x,), (y, z), stages)))
    one, other = (loop.loop.sym.name for loop in b.kernel.body)
    b.do("merge", one, other)
    b.do("kind", one, "parallel")
    assert set(b.kernel.sizes) == {n, at}
