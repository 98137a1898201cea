"""Selections by masks among numbers of mixed types, under ``torch.compile``, against eager PyTorch.

LLVM once aborted the process on such a program. Random ones are made beside their eager values, so that what selections
found meets other operands where it happens to fit. Values are small whole numbers, on which most ops are exact in every
type; a mask is computed from exact values alone, so that rounding can't change how much is selected.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from tilewright.integrations.torch_compile.capture import FallbackWarning
from tilewright.integrations.torch_compile.faults import HOW_TO_REPORT
from tilewright.runtime.errors import ExecutionError

DTYPES = (
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool,
)  # fmt: skip
TOLERANCE = {torch.bfloat16: 4e-2, torch.float16: 4e-3, torch.float32: 1e-5, torch.float64: 1e-9}
EXACT_BELOW = 32  # magnitudes that stay whole numbers in every type, also as a product of two
MOST_ELEMENTS = 2_000

ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": torch.add, "*": torch.mul, "max": torch.maximum, "min": torch.minimum,
}  # fmt: skip
COMPARED: dict[str, Callable[[Any, Any], Any]] = {">": torch.gt, "<=": torch.le, "==": torch.eq, "!=": torch.ne}
ROUNDED: dict[str, Callable[[Any], Any]] = {
    "log_softmax": lambda x: x.log_softmax(-1), "softmax": lambda x: x.softmax(-1), "tanh": torch.tanh,
    "exp": torch.exp, "mean": lambda x: x.mean(-1, keepdim=True), "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
}  # fmt: skip
ANY: dict[str, Callable[[Any], Any]] = {
    "flip": lambda x: x.flip(-1), "turned": lambda x: x.transpose(0, -1).contiguous(), "first": lambda x: x[:1],
    "twice": lambda x: torch.cat([x, x]), "greatest": lambda x: x.amax(-1, keepdim=True),
}  # fmt: skip
KINDS = (
    "arithmetic", "compare", "rounded", "any", "cast", "mask", "isnan", "select", "select", "where", "where",
)  # fmt: skip
MASKS: dict[str, Callable[[Any, Any], Any]] = {
    "or": torch.logical_or, "and": torch.logical_and, "xor": torch.logical_xor,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """``apply`` of the values at ``places``, which is what eager PyTorch found without rounding where ``exact``."""

    name: str
    apply: Callable[..., Any]
    places: tuple[int, ...]
    exact: bool


def program(seed: int) -> tuple[list[torch.Tensor], list[Step]]:
    """The inputs and the steps of a random program; every step's value is an output."""
    rng = random.Random(seed)
    draws = torch.Generator().manual_seed(seed)
    shape = [rng.choice([1, 2, 3, 7, 8, 17]) for _ in range(rng.randint(1, 4))]
    inputs = []
    for _ in range(rng.randint(2, 3)):
        own = [n if rng.random() < 0.8 else 1 for n in shape[rng.randrange(len(shape)) :]]
        dtype = rng.choice(DTYPES)
        low = 0 if dtype in (torch.uint8, torch.bool) else -3
        inputs.append(torch.randint(low, 4 if dtype != torch.bool else 2, own, generator=draws).to(dtype))
    values, exact, steps = list(inputs), [True] * len(inputs), list[Step]()
    n_wanted = rng.randint(3, 8)
    for _ in range(20 * n_wanted):
        if len(steps) == n_wanted:
            break
        step = _step(rng, values, exact)
        try:
            value = step.apply(*(values[p] for p in step.places)) if step else None
        except RuntimeError:  # shapes or types that do not fit
            continue
        if step is None or value is None or not 0 < value.numel() <= MOST_ELEMENTS or value.dim() == 0:
            continue
        steps.append(step)
        values.append(value)
        exact.append(step.exact)
    return inputs, steps


def _step(rng: random.Random, values: list[torch.Tensor], exact: list[bool]) -> Step | None:
    """A step that may fit; None where what was drawn does not."""

    def place(fits: Callable[[int], bool]) -> int:
        return rng.choice([i for i in range(len(values)) if fits(i)])

    def is_mask(i: int) -> bool:
        return values[i].dtype == torch.bool

    def is_small(i: int) -> bool:
        return exact[i] and not is_mask(i) and float(values[i].double().abs().max()) < EXACT_BELOW

    kind = rng.choice(KINDS)
    try:
        if kind == "arithmetic":
            name = rng.choice(sorted(ARITHMETIC))
            return Step(name, ARITHMETIC[name], (place(is_small), place(is_small)), True)
        if kind == "compare":
            name = rng.choice(sorted(COMPARED))
            return Step(name, COMPARED[name], (place(lambda i: exact[i]), place(lambda i: exact[i])), True)
        if kind == "rounded":
            name = rng.choice(sorted(ROUNDED))
            return Step(name, ROUNDED[name], (place(lambda i: values[i].is_floating_point()),), False)
        if kind == "any":
            name, p = rng.choice(sorted(ANY)), place(lambda i: True)
            return Step(name, ANY[name], (p,), exact[p])
        if kind == "cast":
            dtype, p = rng.choice(DTYPES[:-1]), place(is_small)
            low = 0 if dtype == torch.uint8 else -EXACT_BELOW  # PyTorch promises nothing of negative floats there
            return Step(f"to {dtype}", lambda x: x.clamp(min=low).to(dtype), (p,), True)
        if kind == "mask":
            name = rng.choice(sorted(MASKS))
            return Step(name, MASKS[name], (place(is_mask), place(is_mask)), True)
        if kind == "isnan":
            p = place(lambda i: values[i].is_floating_point())
            return Step("isnan", lambda x: x.isnan() | (x == 9), (p,), True)
        if kind == "select":
            p = place(lambda i: True)
            return Step("select", torch.masked_select, (p, place(is_mask)), exact[p])
        a, b = place(lambda i: True), place(lambda i: True)
        return Step("where", torch.where, (place(is_mask), a, b), exact[a] and exact[b])
    except IndexError:  # nothing fits
        return None


STRAY = "must hold where the data decide"
"""What is said of a selection that is not as long as PyTorch's trace took it for."""
TOO_FEW = "PyTorch's trace takes it for"
"""What is said of one that cannot be as long."""


def stretches_a_selection(steps: list[Step], values: list[torch.Tensor]) -> bool:
    """Does a selection that found one element meet a longer operand? PyTorch's trace takes both to be of one size."""
    n_inputs = len(values) - len(steps)
    decided = [False] * n_inputs  # do the data decide how long each value is?
    for step, result in zip(steps, values[n_inputs:], strict=True):
        short = [p for p in step.places if decided[p] and values[p].shape[-1] == 1]
        if step.name != "select" and any(values[p].numel() < result.numel() for p in short):
            return True
        if step.name == "select" and short and values[step.places[0]].shape != values[step.places[1]].shape:
            return True
        decided.append(step.name == "select" or any(decided[p] for p in step.places))
    return False


def check(seed: int) -> None:
    """One program, in one shape and with dynamic sizes."""
    inputs, steps = program(seed)

    def run(*xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(xs)
        for step in steps:
            values.append(step.apply(*(values[p] for p in step.places)))
        return tuple(values[len(xs) :])

    want = run(*inputs)
    is_stretched = stretches_a_selection(steps, [*inputs, *want])
    torch._dynamo.reset()
    compiled = torch.compile(run, backend="tilewright", dynamic=[None, True][seed % 2])
    for _ in range(2):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                results = compiled(*inputs)
            except (ExecutionError, BackendCompilerFailed) as e:  # nothing may fall back (TILEWRIGHT_STRICT)
                assert is_stretched and (STRAY in str(e) or TOO_FEW in str(e)), (seed, e)
                return
        assert is_stretched or not any(STRAY in str(one.message) for one in told), seed
        assert not [one for one in told if HOW_TO_REPORT in str(one.message)], (
            seed,
            [str(one.message) for one in told],
        )
        for step, got, expected in zip(steps, results, want, strict=True):
            tolerance = 0.0 if step.exact else TOLERANCE.get(expected.dtype, 0.0)
            torch.testing.assert_close(
                got, expected, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, s=step: f"{s.name}: {m}"
            )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(4))
def test_random_masks_among_mixed_types(seed: int) -> None:
    check(seed)


def test_what_a_mask_selects_of_bf16_meets_int16() -> None:
    """LLVM once folded this to a vector of bf16 and aborted."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        v = x.log_softmax(-1)
        return torch.where(y > 0, y, torch.masked_select(v, v.isnan() | (v == 0)))

    x = torch.zeros(8, 3, dtype=torch.bfloat16)
    x[0] = torch.nan  # of which three elements are selected
    y = torch.randint(-3, 4, (3, 7, 7, 3), dtype=torch.int16)
    torch._dynamo.reset()
    got = torch.compile(f, backend="tilewright")(x, y)
    torch.testing.assert_close(got, f(x, y), equal_nan=True)


def test_a_selection_that_pytorch_takes_for_as_long_as_another_tensor_is_no_mistake_of_ours() -> None:
    """The code was made for one size of both operands, as PyTorch's trace has them; here one has a single element."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mask = x == y
        return torch.where(torch.masked_select(mask, mask), y, x)

    x, y = torch.tensor([3, 1]), torch.tensor([1], dtype=torch.int16)
    torch._dynamo.reset()
    with pytest.warns(FallbackWarning) as told:
        got = torch.compile(f, backend="tilewright", dynamic=True)(x, y)
    assert torch.equal(got, f(x, y))
    said = [str(one.message) for one in told]
    assert any(STRAY in text for text in said)
    assert not any("mistake" in text for text in said)


def test_one_marked_element_that_pytorch_stretches_is_no_mistake_of_ours() -> None:
    """The code was made for as many elements as the other operand has."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x[x > 0] + w

    w = torch.tensor([1.0, 2.0, 3.0])
    torch._dynamo.reset()
    made = torch.compile(f, backend="tilewright", dynamic=False)
    assert torch.equal(made(torch.tensor([1.0, 2.0, 3.0, -1.0]), w), torch.tensor([2.0, 4.0, 6.0]))
    one = torch.tensor([1.0, -1.0, -1.0, -2.0])
    with pytest.warns(FallbackWarning, match=STRAY) as told:
        assert torch.equal(made(one, w), f(one, w))
    assert not any("mistake" in str(said.message) for said in told)
    with pytest.raises(RuntimeError, match="must match the size"):
        made(-one.abs(), w)


def test_a_bound_that_64_bits_do_not_hold_bounds_nothing() -> None:
    """PyTorch asserts that what is selected of ``[2, u0]`` is at most twice the greatest number of 64 bits."""

    def f(mask: torch.Tensor) -> torch.Tensor:
        return torch.masked_select(torch.where(torch.masked_select(mask, mask), 1, mask), mask)

    torch._dynamo.reset()
    mask = torch.tensor([[True], [True]])
    compiled = torch.compile(f, backend="tilewright", options={"fallback": False})
    assert torch.equal(compiled(mask), f(mask))


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_mask_larger_than_what_it_selects_from(dynamic: bool | None) -> None:
    """PyTorch's tracing bounds what is selected by the smaller one's elements, and asserts it."""

    def f(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.masked_select(mask) * 2

    x, mask = torch.arange(7.0).reshape(7, 1), torch.arange(17) % 2 == 0
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright", dynamic=dynamic)
    for each in (mask, ~mask, mask & False, mask | True):
        torch.testing.assert_close(compiled(x, each), f(x, each))


@pytest.mark.parametrize("f", [
    lambda y, x: y.masked_select(x > -9),
    torch.dist,
    torch.dot,
    lambda y, x: torch.addmm(y, x[:, None], x[None]),
    lambda y, x: torch.polar(y, x).real,
])  # fmt: skip
def test_a_selection_as_long_as_another_tensor_meets_it_in_any_call(f: Callable[..., Any]) -> None:
    """That both have one size is known since they met in an addition; only element-wise calls knew it."""

    def g(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.masked_select(x > -9)
        return y + x, f(y, x)

    x = torch.tensor([3.0, 1.0, 2.0])
    torch._dynamo.reset()
    compiled = torch.compile(g, backend="tilewright", dynamic=True, options={"fallback": False})
    torch.testing.assert_close(compiled(x), g(x))


def test_masks_that_were_selected_themselves() -> None:
    """That both operands of the last selection have one size is known, as in an addition."""

    def f(mask: torch.Tensor) -> torch.Tensor:
        few = mask.masked_select(mask)
        return few.masked_select(few.masked_select(mask))

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright", options={"fallback": False})
    for mask in (torch.tensor([True]), torch.tensor([False])):
        assert torch.equal(compiled(mask), f(mask))


def test_fewer_elements_than_the_trace_has_are_said_to_be_too_few() -> None:
    """One selected element meets a longer tensor; PyTorch's trace has both in one size. As a number, it is spread."""

    def f(x: torch.Tensor, mask: torch.Tensor, as_number: bool) -> torch.Tensor:
        found = mask.masked_select(mask)
        return torch.where(found[0] if as_number else found, x, -x)

    x, mask = torch.tensor([1, 2]), torch.tensor([True])
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="tilewright", options={"fallback": False})
    assert torch.equal(compiled(x, mask, True), x)
    with pytest.raises(BackendCompilerFailed, match=rf"at most 1, and {TOO_FEW} 2\n.*take the element as y\[0\]"):
        compiled(x, mask, False)
