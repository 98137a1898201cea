"""Arguments that a call writes to: ``out=`` and inputs that the model changes; what they hold when a call fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from runtime.tiny import copy_model, positive_model, scale_model
from tilewright.runtime.errors import ExecutionError, InputError
from tilewright.runtime.manifest import TensorSpec
from tilewright.runtime.structure import Convention, State

torch = pytest.importorskip("torch")
X = np.arange(12, dtype=np.float32).reshape(3, 4)


class Copying:
    """An array of a library whose DLPack export is a copy, whatever is asked for."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **_: Any) -> Any:
        return self.array.copy().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Sharing(Copying):
    """An array of a library that exports its own memory."""

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


def negated() -> Any:
    return torch.zeros(3, 4, dtype=torch.complex64).conj().imag


OUTS: dict[str, tuple[Callable[[], Any], str]] = {
    "a negated view": (negated, "C-contiguous|negates"),
    "a dense negated view": (lambda: torch._neg_view(torch.zeros(3, 4)), "negates"),
    "a scalar": (lambda: np.float32(1), "no memory"),
    "an exported copy": (lambda: Copying(np.zeros((3, 4), np.float32)), "copy of itself"),
    "read-only": (lambda: np.broadcast_to(np.float32(0), (3, 4)), "writable"),
    "bytes": (lambda: bytes(48), "an array like that"),
    "masked": (lambda: np.ma.zeros((3, 4), np.float32), "masked"),
    "a number": (lambda: 5, "can't be read"),
    "a dict": (lambda: {"y": np.zeros((3, 4), np.float32)}, "can't be read"),
    "None in a list": (lambda: [None], "can't be read"),
    "two for one": (lambda: [np.zeros((3, 4), np.float32)] * 2, "2 arrays"),
    "strided": (lambda: np.zeros((3, 8), np.float32)[:, ::2], "C-contiguous"),
}


@pytest.mark.parametrize(("make", "why"), OUTS.values(), ids=OUTS)
def test_out_that_can_not_be_written_is_refused(make: Callable[[], Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        scale_model()(X, out=make())


def test_out_is_written_where_it_lies() -> None:
    base = np.zeros((3, 4), np.float32)
    for out in (base, base.view(np.ndarray), Sharing(base), memoryview(base), torch.from_numpy(base)):
        base[:] = 0
        assert scale_model()(X, out=out) is out
        np.testing.assert_array_equal(base, 2 * X + 10)


def test_out_tells_gradients_that_it_was_written() -> None:
    weight, saved = torch.ones(3, 4, requires_grad=True), torch.ones(3, 4)
    product = (weight * saved).sum()
    scale_model()(torch.ones(3, 4), out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_out_for_several_outputs_is_a_tuple_or_list() -> None:
    specs = [TensorSpec(name, "float32", (2,)) for name in "ab"]
    outputs = [TensorSpec(name, "float32", (2,)) for name in "pq"]
    model, a, b = copy_model(specs, outputs, [8, 8], [2, 2]), np.ones(2, np.float32), np.zeros(2, np.float32)
    both = np.zeros((2, 2), np.float32)
    for wrong in (both, 5, {"p": both[0]}, "pq", iter(both)):
        with pytest.raises(InputError, match="the model has 2 outputs"):
            model(a, b, out=wrong)
    model(a, b, out=list(both))
    np.testing.assert_array_equal(both, [[1, 1], [0, 0]])
    with pytest.raises(InputError, match=r"shares some with out: p"):
        model(a, b, out=[both[0], both[0]])
    with pytest.raises(InputError, match="shares some with b"):
        model(a, b, out=[both[0], b])


def test_strided_views_that_share_no_element_may_be_used_together() -> None:
    spec = [TensorSpec("a", "float32", (6,))]
    model, base = copy_model(spec, [TensorSpec("p", "float32", (3, 2))], [24], [3, 2]), np.zeros(12, np.float32)
    base[::2] = np.arange(6)
    with pytest.raises(InputError, match="shares some"):
        model(base[::2], out=base[4:10].reshape(3, 2))
    wide = np.zeros((3, 4), np.float32)
    with pytest.raises(InputError, match="C-contiguous"):  # it overlaps nothing, but lies with gaps
        model(base[::2], out=wide[:, :2])


# --- inputs that the model writes to


@functools.cache
def adder() -> tuple[Any, Any]:
    class Adder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, k: Any, m: Any, x: Any) -> Any:
            self.count += 1
            k.add_(x)
            m.mul_(2).add_(x)
            return k * m + x

    return tw.compile(Adder(), (torch.zeros(2, 3),) * 3, cache=False), Adder


def copying(written: tuple[int, ...], *, state: bool = False) -> Any:
    """Writes to its inputs what they hold; with ``state``, keeps a third that it copies too."""
    names = "abs" if state else "ab"
    specs = [TensorSpec(name, "float32", (2,)) for name in names]
    outputs = [TensorSpec(f"{name}2", "float32", (2,)) for name in names]
    if state:
        specs, outputs = [*specs[:2], specs[2]], [*outputs[:2], outputs[2]]
    convention = Convention(written=written, state=(State("s", "s2", 0),) if state else ())
    return copy_model(specs, outputs, [8] * len(names), [2] * len(names), convention=convention)


WRITTEN: dict[str, tuple[Callable[[], Any], str]] = {
    "read-only": (lambda: np.broadcast_to(np.float32(0), (2, 3)), "read-only"),
    "an exported copy": (lambda: Copying(np.zeros((2, 3), np.float32)), "copy of itself"),
    "an expanded tensor": (lambda: torch.zeros(3).expand(2, 3), "overlaps itself"),
    "sliding windows": (lambda: torch.zeros(4).unfold(0, 3, 1), "overlaps itself"),
    "bytes": (lambda: memoryview(bytes(24)).cast("f", (2, 3)), "read-only"),
    "a masked array": (lambda: np.ma.zeros((2, 3), np.float32), "masked"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("make", "why"), WRITTEN.values(), ids=WRITTEN)
def test_a_refused_call_changes_nothing(make: Callable[[], Any], why: str) -> None:
    model, _ = adder()
    model.reset()
    first, x = torch.zeros(2, 3), torch.ones(2, 3)
    with pytest.raises(InputError, match=why):
        model(first, make(), x)
    assert not first.any() and model.state["count"] == 0


def test_a_tensor_of_inference_mode_is_refused_as_pytorch_refuses_it() -> None:
    model, _ = adder()
    with torch.inference_mode():
        made = torch.zeros(2, 3)
        model(torch.zeros(2, 3), made, torch.ones(2, 3))
        assert (made == 1).all()
    with pytest.raises(InputError, match="inference mode"):
        model(torch.zeros(2, 3), made, torch.ones(2, 3))


def test_a_tensor_that_requires_grad_is_refused_where_gradients_are_recorded() -> None:
    """PyTorch refuses a leaf, and records the write to another one, of which native code would say nothing."""
    model, make = adder()
    first, x = torch.zeros(2, 3), torch.ones(2, 3)
    leaf = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        make()(first, leaf, x)
    for kept in (leaf, leaf * 1, leaf[:]):
        with pytest.raises(InputError, match="requires grad"):
            model(torch.zeros(2, 3), kept, x)
        assert not kept.any()
    eager, wanted = make(), torch.zeros(2, 3)
    for _ in range(2):
        eager(torch.zeros(2, 3), wanted, x)
    with torch.no_grad():
        model(torch.zeros(2, 3), leaf, x)
    model(torch.zeros(2, 3), leaf.detach(), x)
    assert torch.equal(leaf, wanted)


def test_out_that_requires_grad_is_refused_where_gradients_are_recorded() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    x, out = torch.ones(3), torch.zeros(3, requires_grad=True)
    model = tw.compile(Twice(), (x,), cache=False)
    with pytest.raises(InputError, match="requires grad"):
        model(x, out=out)
    with torch.no_grad():
        model(x, out=out)
    assert (out == 2).all()


def test_written_inputs_are_written_through_views() -> None:
    model, make = adder()
    made = [torch.zeros(2, 3, dtype=torch.complex64).conj().imag for _ in range(2)]
    x = torch.arange(6.0).reshape(2, 3)
    ours, theirs = model(torch.zeros(2, 3), made[0], x), make()(torch.zeros(2, 3), made[1], x)
    assert torch.equal(ours, theirs) and torch.equal(made[0], made[1]) and made[0][1, 1] == 4


def test_a_failing_run_changes_neither_state_nor_inputs() -> None:
    class Picking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, k: Any, at: Any) -> Any:
            self.count += 1
            k.add_(1)
            return k[at]

    model, k = tw.compile(Picking(), (torch.zeros(4), torch.zeros(2).long()), cache=False), torch.zeros(4)
    with pytest.raises(InputError):
        model(k, torch.zeros(2))
    assert not k.any() and model.state["count"] == 0
    failing = positive_model()
    with pytest.raises(ExecutionError):
        failing(np.array([-1, 2], np.float32))
    with pytest.raises(InputError, match="give an array"):
        model.reset(count=np.zeros(3))
    assert model.state["count"] == 0


# --- overlap, beside PyTorch

PLACES = st.integers(0, 7)
STEPS = st.sampled_from([1, 2, 3])


@st.composite
def views(draw: Any) -> tuple[int, tuple[int, int]]:
    """Where a view of 2x3 begins in a buffer, and its strides."""
    outer, inner = draw(st.integers(1, 6)), draw(STEPS)
    return draw(PLACES), (outer, inner)


def overlapping(places: list[tuple[int, tuple[int, int]]]) -> None:
    """Views of one buffer as k, l and x: PyTorch's answer, or a refusal that leaves the buffer as it was."""
    model, make = adder()
    ours, theirs = (torch.arange(40.0) for _ in range(2))
    mine, eager = ([b.as_strided((2, 3), s, start) for start, s in places] for b in (ours, theirs))
    arrays = [v.numpy() for v in mine]
    elements = [{start + i * s[0] + j * s[1] for i in range(2) for j in range(3)} for start, s in places]
    k, m, x = elements
    shared = k & m or k & x or m & x or len(k) < 6 or len(m) < 6
    for one in (mine, arrays):
        ours.copy_(torch.arange(40.0))
        try:
            got = model(*one)
        except InputError as error:
            assert shared, error
            assert torch.equal(ours, torch.arange(40.0))
            continue
        assert not shared
        theirs.copy_(torch.arange(40.0))
        np.testing.assert_array_equal(got, make()(*eager))
        assert torch.equal(ours, theirs)


@settings(max_examples=60)
@given(st.lists(views(), min_size=3, max_size=3))
def test_overlap_is_decided_exactly(places: list[tuple[int, tuple[int, int]]]) -> None:
    overlapping(places)


@pytest.mark.slow
@settings(max_examples=2000)
@given(st.lists(views(), min_size=3, max_size=3))
def test_overlap_is_decided_exactly_many_times(places: list[tuple[int, tuple[int, int]]]) -> None:
    overlapping(places)


@pytest.mark.parametrize("same", [(0, 0, 2), (0, 1, 0), (0, 1, 1)])
def test_one_tensor_in_two_places_is_refused(same: tuple[int, ...]) -> None:
    model, _ = adder()
    given_ = [torch.full((2, 3), float(k)) for k in range(3)]
    chosen = [given_[k] for k in same]
    with pytest.raises(InputError, match="shares memory with") as caught:
        model(*chosen)
    assert caught.value.violations[0].remedy == "pass a copy of one of them"
    assert [float(t.sum()) for t in given_] == [0, 6, 12]


def test_many_written_inputs_are_compared_by_their_places_alone() -> None:
    model = copying((0, 1))
    row = np.zeros(4, np.float32)
    model(row[:2], row[2:])
    with pytest.raises(InputError, match="shares memory"):
        model(row[:2], row[1:3])
