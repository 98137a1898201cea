"""Values that only rounding before them makes differ from a peer's: named, and no fault of their op."""

import numpy as np

from tilewright import ops
from tilewright.cli.debug import verdict
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.tools.debug.compare import _compare_values
from tilewright.tools.debug.peers import Peer, PeerValue
from tilewright.tools.debug.report import Comparison

ULP = np.float32(2.0**-22)  # of numbers from 2 to 4


def peer_of(sums, floors) -> tuple[Peer, list[np.ndarray]]:
    """``floor(x + 1)`` of a number a little above 2, by a peer whose sum lies elsewhere."""
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (1,)))
    total = b(ops.add, x, b.const(np.float32(1)))
    whole = b(ops.floor, total)
    values = (PeerValue("sum", total, np.float32([sums])), PeerValue("whole", whole, np.float32([floors])))
    return Peer(Graph("g", b.pool, (x,), (whole,), ("y",)), values), [np.float32([1 + 7 * ULP])]


def test_a_step_that_rounding_decides_is_no_fault_and_is_named() -> None:
    found = _compare_values(*peer_of(2 - 3 * ULP, 1))
    assert found.fault is None and [r.name for r in found.amplified] == ["whole (floor)"]
    assert not any(r.difference.is_bad for r in found.rows)
    shown = Comparison("g", "torch", values=found.rows, amplified=found.amplified)
    assert "first   whole (floor)" in verdict(shown) and Comparison.from_json(shown.as_json()) == shown


def test_an_op_that_is_wrong_on_the_peers_own_operands_is_a_fault() -> None:
    found = _compare_values(*peer_of(2 + 5 * ULP, 1))
    assert found.fault is not None and (found.fault.op, found.amplified) == ("floor", ())


def test_without_a_difference_nothing_is_amplified() -> None:
    found = _compare_values(*peer_of(2 + 7 * ULP, 2))
    assert found.fault is None and found.amplified == ()
