"""What data decide the size of is written within its room: memory behind every result and behind the arena is watched.

Random programs of what finds, selects, counts and repeats, each called with data that find nothing, something and all;
against PyTorch and ONNX Runtime. Fresh memory holds a pattern, so that what is read before it is written shows as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilewright as tw
from frontend.onnx_build import info, model, node, runtime_answers
from tilewright.runtime.plan import OutputPlan
from tilewright.runtime.python import memory
from tilewright.runtime.values import ALIGNMENT, Array, address_of, to_tensor

QUICK, MANY = 3, 500
GUARD, PATTERN = 4096, 0xA5
# The fixture's guards end empty.
TAKEN = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


class Guards:
    """Memory between bytes of a pattern, and whether these still hold it."""

    def __init__(self) -> None:
        self._rooms: list[tuple[Array, int, int]] = []

    def room(self, n_bytes: int) -> tuple[Array, int]:
        block = np.full(GUARD + ALIGNMENT + n_bytes + GUARD, PATTERN, np.uint8)
        start = GUARD + -address_of(block) % ALIGNMENT
        self._rooms.append((block, start, n_bytes))
        return block, start

    def result(self, output: OutputPlan) -> Array:
        return np.ndarray(output.shape, output.dtype, *self.room(output.n_bytes))

    def check(self) -> None:
        for block, start, n_bytes in self._rooms:
            assert (block[:start] == PATTERN).all(), "written before a room"
            assert (block[start + n_bytes :] == PATTERN).all(), f"written behind a room of {n_bytes} bytes"
        self._rooms.clear()


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> Guards:
    made = Guards()
    monkeypatch.setattr(memory, "aligned_buffer", made.room)
    monkeypatch.setattr(memory.ResultPool, "array", lambda _, output, most: made.result(output))
    monkeypatch.setattr(memory.ResultPool, "tensor", lambda _, output, most: to_tensor(made.result(output)))
    return made


def test_a_write_behind_a_room_is_seen(guards: Guards) -> None:
    block, start = guards.room(8)
    block[start + 8] = 0
    with pytest.raises(AssertionError, match="behind a room of 8"):
        guards.check()


# --- PyTorch ----------------------------------------------------------------------------------------------------------

Function = Callable[[torch.Tensor], Any]


def _whole(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1).nan_to_num(0.0).long().clamp(0, 4)


FINDERS: dict[str, Function] = {
    "nonzero": torch.nonzero,
    "nonzero as a tuple": lambda x: torch.nonzero(x, as_tuple=True) if x.dim() else torch.nonzero(x),
    "argwhere": torch.argwhere,
    "nonzero_static": lambda x: torch.nonzero_static(x, size=3),
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "rows": lambda x: x[x.sum(-1) > 0] if x.dim() > 1 else x[x > 0],
    "a column's mask": lambda x: torch.masked_select(x, (x > 0).any(0)) if x.dim() else torch.masked_select(x, x > 0),
    "unique": lambda x: torch.unique(x.nan_to_num(7.0), return_inverse=True, return_counts=True),
    "unique alone": lambda x: torch.unique(x.nan_to_num(7.0)),
    "unique slices": lambda x: torch.unique(x.nan_to_num(7.0), dim=0) if x.dim() else torch.unique(x.nan_to_num(7.0)),
    "unique_consecutive": lambda x: torch.unique_consecutive(x.nan_to_num(7.0), return_inverse=True),
    "repeat_interleave": lambda x: torch.repeat_interleave(_whole(x)),
    "repeated rows": lambda x: torch.repeat_interleave(x.reshape(-1), _whole(x)),
    "bincount": lambda x: torch.bincount(_whole(x), minlength=2),
    "histc": lambda x: torch.histc(x.nan_to_num(0.5).float(), 4, -2, 2),
    "histc by its data": lambda x: torch.histc(x.nan_to_num(0.5).float(), 3),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 2.0])),
    "put": lambda x: x.index_put((x > 0,), torch.tensor(9.0, dtype=x.dtype)),
}  # fmt: skip
USES: dict[str, Function] = {
    "itself": lambda y: y,
    "one more": lambda y: y + 1,
    "sum": lambda y: y.sum(),
    "joined": lambda y: torch.cat([y.reshape(-1), y.reshape(-1)[:1], y.reshape(-1)]),
    "reversed": lambda y: y.flip(0) if y.dim() else y,
    "every second": lambda y: y.reshape(-1)[::2],
    "column": lambda y: y.reshape(-1, 1) * torch.ones(3, dtype=y.dtype),
    "transposed": lambda y: y.t().contiguous() if y.dim() == 2 else y,
    "found again": torch.nonzero,
}
VALUES = (-2.0, -1.0, 0.0, -0.0, 1.0, 2.0, 2.0, float("nan"))
KINDS = (torch.float32, torch.float64, torch.int64, torch.int32, torch.float16)


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, str, list[torch.Tensor]]:
    """A finder, what becomes of what it found, and tensors of one shape."""
    shape = tuple(draw(st.sampled_from([0, 1, 1, 2, 3, 5, 17])) for _ in range(draw(st.integers(0, 3))))
    dtype = draw(st.sampled_from(KINDS))
    values = VALUES if dtype.is_floating_point else VALUES[:-1]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ways = [rng.choice(values, shape), rng.choice(values, shape), np.zeros(shape), np.full(shape, 2.0)]
    xs = [torch.from_numpy(np.array(x)).to(dtype) for x in ways]
    return draw(st.sampled_from(sorted(FINDERS))), draw(st.sampled_from(sorted(USES))), xs


def check_torch(guards: Guards, finder: str, use: str, xs: list[torch.Tensor]) -> bool:
    """Is it compiled? What PyTorch cannot export, and sizes that nothing bounds, are refused."""

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            found = FINDERS[finder](x)
            return tuple(map(USES[use], found)) if isinstance(found, tuple) else USES[use](found)

    try:
        wanted = [Module()(x) for x in xs]
        program = torch.export.export(Module(), (xs[0],), strict=False)
    except Exception:  # of whatever kind: it has no such kernel, or its tracing raises
        return False
    try:
        compiled = tw.compile(program, cache=False, threads=1)
    except tw.ImportFailed as e:
        assert "bound" in str(e) or "not supported" in str(e), str(e)
        return False
    for x, want in zip(xs, wanted, strict=True):
        got = compiled(x.numpy())
        guards.check()
        pairs = zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]
        for w, g in pairs:
            assert tuple(w.shape) == g.shape and w.numpy().dtype == g.dtype
            np.testing.assert_allclose(g, w.numpy(), rtol=1e-3, atol=1e-3, err_msg=f"{finder}, {use}, {x}")
    return True


@settings(TAKEN, max_examples=QUICK)
@given(program=programs())
def test_programs_of_pytorch(guards: Guards, program: tuple[str, str, list[torch.Tensor]]) -> None:
    check_torch(guards, *program)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(TAKEN, max_examples=MANY)
@given(program=programs())
def test_many_programs_of_pytorch(guards: Guards, program: tuple[str, str, list[torch.Tensor]]) -> None:
    check_torch(guards, *program)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("finder", ["nonzero", "masked_select", "unique", "unique_consecutive", "repeat_interleave",
                                    "bincount", "histc"])  # fmt: skip
def test_finders_of_a_number_alone(finder: str, guards: Guards) -> None:
    """Results of no columns, of one element and of none."""
    xs = [torch.tensor(x) for x in (1.0, 0.0, -1.0)]
    assert check_torch(guards, finder, "itself", xs) or finder in ("repeat_interleave", "bincount")


def test_what_a_mask_finds_of_one_number_is_added_up(guards: Guards) -> None:
    """The index is the data's, and can only be 0: the number stays in a register."""
    assert check_torch(guards, "masked_select", "sum", [torch.tensor(x) for x in (2.0, 0.0)])


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
@pytest.mark.parametrize("finder", ["masked_select", "rows"])
def test_selections_of_nothing(finder: str, shape: tuple[int, ...], guards: Guards) -> None:
    """How many elements are found is 0 or left to data, and then read from a dimension of size 0."""
    assert check_torch(guards, finder, "joined", [torch.zeros(shape)])


# --- ONNX -------------------------------------------------------------------------------------------------------------


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Array, Array, int, float, float]:
    """Boxes, scores, how many to keep, and limits of overlap and of scores: everything from nothing to all."""
    n_batch, n_classes, n = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 7, 33]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    corners = rng.uniform(0, draw(st.sampled_from([0.5, 50.0])), (n_batch, n, 2)).astype(np.float32)
    made = np.concatenate([corners, corners + rng.uniform(0.1, 1, (n_batch, n, 2)).astype(np.float32)], -1)
    scores = rng.random((n_batch, n_classes, n)).astype(np.float32)
    limits = draw(st.sampled_from([0.0, 0.5, 1.0])), draw(st.sampled_from([0.0, 0.5, 2.0]))
    return made, scores, draw(st.sampled_from([0, 1, 3, 100])), *limits


def check_boxes(guards: Guards, case: tuple[Array, Array, int, float, float]) -> None:
    made, scores, most, overlap, least = case
    constants = {"most": [most], "overlap": np.array([overlap], np.float32), "least": np.array([least], np.float32)}
    nodes = [node("NonMaxSuppression", ["x", "scores", "most", "overlap", "least"], ["r"])]
    m = model(nodes, [info("x", made.shape), info("scores", scores.shape)], ["r"], constants)
    got = tw.compile(m, cache=False, threads=1)(made, scores)
    guards.check()
    np.testing.assert_array_equal(got, runtime_answers(m, {"x": made, "scores": scores})[0])


@settings(TAKEN, max_examples=3)
@given(case=boxes())
def test_boxes(guards: Guards, case: tuple[Array, Array, int, float, float]) -> None:
    check_boxes(guards, case)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(TAKEN, max_examples=MANY // 5)
@given(case=boxes())
def test_many_boxes(guards: Guards, case: tuple[Array, Array, int, float, float]) -> None:
    check_boxes(guards, case)


def _selections() -> Iterator[tuple[str, list[Any], tuple[int, ...]]]:
    for shape in ((1,), (5,), (3, 4), (2, 3, 2)):
        yield "NonZero", [node("NonZero", ["x"], ["r"])], shape
        yield "Unique", [node("Unique", ["x"], ["r", "", "places", "many"])], shape
        for axis in range(len(shape)):
            yield f"Compress {axis}", [
                node("ReduceMax", ["x"], ["most"], axes=[k for k in range(len(shape)) if k != axis], keepdims=0)
                if len(shape) > 1 else node("Identity", ["x"], ["most"]),
                node("Greater", ["most", "zero"], ["mask"]),
                node("Compress", ["x", "mask"], ["r"], axis=axis),
            ], shape  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "nodes", "shape"), [pytest.param(*c, id=f"{c[0]} {c[2]}") for c in _selections()])
def test_selections(name: str, nodes: list[Any], shape: tuple[int, ...], guards: Guards) -> None:
    outputs = ["r", "places", "many"] if name == "Unique" else ["r"]
    m = model(nodes, [info("x", shape)], outputs, {"zero": np.float32(0)}, opset=17)
    compiled = tw.compile(m, cache=False, threads=1)
    rng = np.random.default_rng(0)
    for numbers in (rng.integers(-1, 2, shape), np.zeros(shape), np.ones(shape)):
        x = numbers.astype(np.float32)
        got = compiled(x)
        guards.check()
        for g, w in zip([got] if len(outputs) == 1 else got, runtime_answers(m, {"x": x}), strict=True):
            np.testing.assert_array_equal(g, w)
