"""Random modules whose results, arguments, parameters and buffers share memory; each is a few lines of Python text.

``program`` writes the forward function of one; ``difference`` says what the module does under ``torch.compile`` unlike
as it is. Not its business: functions of two tensors that come apart (``shared_results``, whose views these use too).
"""

from __future__ import annotations

import contextlib
import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from frontend.shared_results import NEW, VIEWS, WRITES, function, places

MOST_STEPS = 8
_WRITES = (
    *WRITES, "for part in {v}.unbind(): part.mul_(2)", "torch.add({v}, 1, out={w})", "{v}.masked_fill_({v} > 2, 1)",
    "{v}.index_fill_(0, torch.tensor([0]), 5)", "{v}.clamp_(-2, 2)", "torch.relu_({v})", "{v}.view(-1)[::2].add_(1)",
    "{v}.transpose(0, -1)[0].zero_()", "{v}.copy_({v}.flip(0))", "{v}.data.mul_(2)", "{v}.detach().add_(1)",
    "{v}.swapaxes_(0, -1)", "torch.mul({v}, {w}, out={v})", "{v}.index_add_(0, torch.tensor([0, 0]), {w}[:2])",
)  # fmt: skip
_KEPT = ("self.kept = {v}", "self.kept = {v}[1:]", "self.s.copy_({v})", "self.s = {v}", "self.w.data = {v}")
_OUTSIDE = ("torch._dynamo.graph_break()", "{n} = apart({v})", "{n} = self.part({v})")
ARGUMENTS: tuple[Callable[[Any], tuple[torch.Tensor, torch.Tensor]], ...] = (
    lambda m: (_numbers(4, 6), _numbers(4, 4)),
    lambda m: (x := _numbers(4, 6), x[:, :4]),
    lambda m: (x := _numbers(6, 4).t(), x),
    lambda m: (_numbers(4, 6), m.s),
    lambda m: (m.w.detach(), _numbers(4, 4)),
)


class Shared(torch.nn.Module):
    """A parameter under two names, a buffer and a view of it, and a tensor that a call may keep."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(_numbers(4, 6) / 4)
        self.tied = self.w
        self.b = torch.nn.Parameter(_numbers(4))
        self.register_buffer("s", _numbers(4, 4))
        self.register_buffer("t", self.s[1:3])
        self.kept = torch.zeros(2, 2)

    def part(self, x: torch.Tensor) -> torch.Tensor:
        """A method that a call within the forward function enters."""
        self.kept = self.s[0]
        return x[..., 1:] if x.dim() > 1 else x.view(-1)

    def tensors(self) -> list[torch.Tensor]:
        return [self.w, self.tied, self.b, self.s, self.t, self.kept]


@torch._dynamo.disable
def apart(x: torch.Tensor) -> torch.Tensor:
    """Runs outside of all graphs; what it returns shares memory with what it changed."""
    with torch.no_grad():
        x.detach().mul_(1.5)
    return x[..., :1]


def _numbers(*shape: int) -> torch.Tensor:
    count = int(torch.Size(shape).numel())
    return (torch.arange(float(count)) - count // 3).reshape(shape)


def program(seed: int) -> str:
    """The text of ``forward(self, x, y)``: steps that eager PyTorch runs, and results of some structure."""
    choose = random.Random(seed)
    lines: list[str] = []
    for _ in range(40):
        names = ["x", "y", "self.w", "self.tied", "self.b", "self.s", "self.t", "self.kept"]
        names += _made(lines) * 2
        kind = choose.choices((VIEWS, NEW, _WRITES, _KEPT, _OUTSIDE), (8, 3, 4, 1, 2))[0]
        v, w = choose.choice(names), choose.choice(names)
        step = choose.choice(kind).format(v=v, w=w, n=f"v{len(lines)}")
        step = f"v{len(lines)} = {step}" if kind in (VIEWS, NEW) else step
        if _runs(seed, [*lines, step]):
            lines.append(step)
        if len(lines) == MOST_STEPS:
            break
    results = [*_made(lines), "self.s", "y"]
    some = choose.sample(results, min(len(results), choose.randint(1, 5)))
    whole = choose.choice(("{}", "({}, self.w)", "[{}], self.t", "dict(zip('abcdef', ({},)))"))
    return _text([*lines, f"return {whole.format(', '.join(some))}"])


def _made(lines: list[str]) -> list[str]:
    """The names that steps give a value."""
    return [found[1] for line in lines if (found := re.match(r"(v\d+) = ", line))]


def _text(lines: list[str]) -> str:
    return "\n    ".join(["def f(self, x, y):", *lines])


def with_gradients(seed: int) -> bool:
    return seed % 2 == 1


def made(seed: int, text: str) -> tuple[torch.nn.Module, Callable[[], tuple[torch.Tensor, ...]]]:
    """A module that runs ``text``, and what makes arguments for it."""
    module = type("Random", (Shared,), {"forward": function(text, apart=apart)})()
    return module, lambda: ARGUMENTS[seed // 2 % len(ARGUMENTS)](module)


def _runs(seed: int, lines: list[str]) -> bool:
    """Does eager PyTorch run it, twice, on numbers that stay few and comparable?

    Not with ``out=`` of another size, which PyTorch deprecates: the memory of a weight that code holds stays as it is.
    """
    module, arguments = made(seed, _text([*lines, "return list(locals().values())[1:]"]))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "An output with one or more elements was resized")
            for _ in range(2):
                with torch.set_grad_enabled(with_gradients(seed)):
                    values = [t for t in module(*arguments()) if isinstance(t, torch.Tensor)]
    except (RuntimeError, IndexError, TypeError, ValueError, UserWarning):
        return False
    return all(map(_is_fit, [*values, *module.tensors()]))


def _is_fit(t: torch.Tensor) -> bool:
    t = t.detach()
    return t.numel() < 500 and t.dim() < 6 and bool((t.abs() < 1e6).all())


def flat(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of nested results, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for part in value.values() if isinstance(value, dict) else value:
            yield from flat(part)


def difference(seed: int, text: str, backend: Any, is_dynamic: bool) -> str | None:
    """How results, the module's own tensors, or who shares memory, differ after two calls; None where they do not."""
    (eager, arguments), (ours, same) = made(seed, text), made(seed, text)
    compiled = torch.compile(ours, backend=backend, dynamic=is_dynamic)
    for call in range(2):
        with torch.set_grad_enabled(with_gradients(seed)):
            given, taken = arguments(), same()
            wanted = [*flat(eager(*given)), *given, *eager.tensors()]
            got = [*flat(compiled(*taken)), *taken, *ours.tensors()]
        if len(wanted) != len(got) or places(wanted) != places(got):
            return f"call {call}: memory: {places(wanted)}, but {places(got)}"
        for step in range(len(wanted) + 1):
            for k, (a, b) in enumerate(zip(wanted, got, strict=True)):
                is_same = a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad
                if not is_same or not torch.allclose(a.detach(), b.detach(), rtol=1e-4, atol=1e-4):
                    return f"call {call} after {step} writes, value {k}: {a}, but {b}"
            if step < len(wanted) and call:
                for t in (wanted[step], got[step]):
                    with contextlib.suppress(RuntimeError), torch.no_grad():  # of elements that lie on each other
                        t[...] = step + 2
    return None
