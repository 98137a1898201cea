"""Movement ops: types, reference and index maps agree; symbolic sizes work; bad operands are refused."""

import numpy as np
import pytest

from ops.oracle import case_id, check_case, check_symbolic, sample_cases
from tilewright.core import types as T
from tilewright.core.compute import Buffer, Stage
from tilewright.core.diag import OpError
from tilewright.core.expr import Sym
from tilewright.core.graph import Attrs
from tilewright.core.shapes import reshape_groups, reshape_index
from tilewright.core.types import TensorType
from tilewright.ops import movement as m
from tilewright.ops import window as w

OPS = (
    m.reshape, m.transpose, m.expand, m.concat, m.tile, m.reverse, m.roll, m.depth_to_space, m.space_to_depth,
    w.slice_, w.pad, w.trilu,
)  # fmt: skip
S = Sym("S", 1)
X = np.arange(24, dtype=np.float32).reshape(6, 4)
XT = TensorType(T.f32, (S, 4))


@pytest.mark.parametrize("case", sample_cases(OPS), ids=case_id)
def test_samples(case) -> None:
    check_case(case)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        (m.reshape, {"shape": (S * 4,)}),
        (m.reshape, {"shape": (2, S * 2)}),
        (m.reshape, {"shape": (S // 2, 8)}),
        (m.reshape, {"shape": (S, 2, 2)}),
        (m.transpose, {"perm": (1, 0)}),
        (m.expand, {"shape": (2, S, 4)}),
        (m.tile, {"repeats": (2, S)}),
        (m.reverse, {"axes": (0,)}),
        (m.roll, {"shifts": (S - 1,), "axes": (0,)}),
        (w.slice_, {"starts": (S - 2, 0), "stops": (S, 3), "steps": (1, 2)}),
        (w.slice_, {"starts": (S - 1, 0), "stops": (-1, 4), "steps": (-2, 1)}),
        (w.trilu, {"k": S - 5, "upper": False}),
    ],
)
def test_symbolic_sizes(op, attrs) -> None:
    check_symbolic(op, (X,), (XT,), attrs)


@pytest.mark.parametrize("mode", w.PAD_MODES)
@pytest.mark.parametrize("pads", [((1, 2), (3, 0)), ((-1, S), (-2, 9))])
def test_symbolic_pads(mode, pads) -> None:
    zero = np.array(-1, np.float32)
    check_symbolic(w.pad, (X, zero), (XT, TensorType(T.f32, ())), {"pads": pads, "mode": mode})


def test_symbolic_concat_adds_sizes() -> None:
    types = (XT, TensorType(T.f32, (3, 4)), XT)
    assert m.concat.infer(types, Attrs({"axis": 0})).shape == (S * 2 + 3, 4)
    check_symbolic(m.concat, (X, X[:3], X), types, {"axis": 0})


def test_concat_is_one_stage_per_operand() -> None:
    ins = tuple(Buffer(f"x{k}", T.f32, (S, 4)) for k in range(3))
    stages = m.concat.compute(ins, (Buffer("y", T.f32, (S * 3, 4)),), Attrs({"axis": 0}))
    assert [s.index[0] - s.axes[0].sym for s in stages if isinstance(s, Stage)] == [0, S, S * 2]


def test_reshape_groups_are_minimal() -> None:
    assert reshape_groups((S, 6, 1, 4), (S, 2, 3, 4)) == [((0,), (0,)), ((1,), (1, 2)), ((3,), (3,))]
    assert reshape_groups((2, S, 8), (2, S * 8)) == [((0,), (0,)), ((1, 2), (1,))]
    assert reshape_groups((4, 6), (8, 3)) == [((0, 1), (0, 1))]
    assert reshape_groups((), (1, 1)) == []


def test_reshape_index_divides_only_inside_a_group() -> None:
    b, s, h = Sym("b", 0), Sym("s", 0), Sym("h", 0, 767)
    assert reshape_index((4, S, 12, 64), (4, S, 768), (b, s, h)) == (b, s, h // 64, h % 64)
    head, lane = Sym("i", 0, 11), Sym("j", 0, 63)
    assert reshape_index((4, S, 768), (4, S, 12, 64), (b, s, head, lane)) == (b, s, head * 64 + lane)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        (m.reshape, [(2, 3)], {"shape": (4, 2)}),
        (m.reshape, [(S, 3)], {"shape": (S, 4)}),
        (m.reshape, [(2, 3)], {"shape": (-1, 6)}),
        (m.transpose, [(2, 3)], {"perm": (0, 0)}),
        (m.expand, [(2, 3)], {"shape": (2, 4)}),
        (m.expand, [(2, 3)], {"shape": (3,)}),
        (m.concat, [], {"axis": 0}),
        (m.concat, [(2, 3), (2, 4)], {"axis": 0}),
        (m.concat, [(2, 3), (2,)], {"axis": 0}),
        (m.concat, [()], {"axis": 0}),
        (m.tile, [(2,)], {"repeats": (-1,)}),
        (m.reverse, [(2, 3)], {"axes": (0, 0)}),
        (m.roll, [(2, 3)], {"shifts": (1, 2), "axes": (0,)}),
        (m.depth_to_space, [(1, 6, 2, 2)], {"block": 2, "mode": "DCR"}),
        (m.space_to_depth, [(1, 6, 3, 2)], {"block": 2, "mode": "DCR"}),
        (m.space_to_depth, [(6, 3, 2)], {"block": 2, "mode": "DCR"}),
        (w.slice_, [(4,)], {"starts": (0,), "stops": (5,), "steps": (1,)}),
        (w.slice_, [(4,)], {"starts": (0,), "stops": (4,), "steps": (0,)}),
        (w.pad, [(2,), (1,)], {"pads": ((0, 1),), "mode": "constant"}),
        (w.pad, [(2,), ()], {"pads": ((-2, -1),), "mode": "constant"}),
        (w.pad, [(2,), ()], {"pads": ((1, 1),), "mode": "odd"}),
        (w.pad, [(0,), ()], {"pads": ((1, 1),), "mode": "edge"}),
        (w.trilu, [(2,)], {"k": 0, "upper": True}),
    ],
)
def test_refused(op, shapes, attrs) -> None:
    with pytest.raises(OpError):
        op.infer([TensorType(T.f32, s) for s in shapes], Attrs(attrs))
