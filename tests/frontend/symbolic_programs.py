"""Random functions that cut, pad, view, split and join by symbolic sizes; each is a few lines of Python text.

In: a seed. Out: a ``Program``: its text, the function, and arguments of several sizes for which eager PyTorch runs it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

N_SIZES = 3
N_STEPS = 4


@dataclass(frozen=True)
class Program:
    """A function of a tensor, a second one and two integers."""

    text: str
    f: Callable[..., Any]
    calls: list[tuple[Any, ...]]


def program(seed: int) -> Program:
    """The function of a seed: steps that fit its first arguments, kept while eager PyTorch runs them."""
    rng = random.Random(seed)
    rank = rng.choice((1, 2, 3, 3, 4))
    arguments = [_arguments(rng, rank) for _ in range(N_SIZES)]
    lines: list[str] = []
    for _ in range(30):
        step = _step(rng, _value(lines, arguments[0]))
        if step not in lines and _value([*lines, step], arguments[0]) is not None:
            lines.append(step)
        if len(lines) == N_STEPS:
            break
    text = _text(lines)
    f = _function(text)
    calls = [a for a in arguments if _runs(f, a)]
    return Program(text, f, calls)


def _arguments(rng: random.Random, rank: int) -> tuple[Any, ...]:
    torch.manual_seed(rng.randrange(1 << 30))
    shape = [rng.randint(2, 12) for _ in range(rank)]
    return torch.randn(shape), torch.randn(rng.randint(2, 9), shape[-1]), rng.randint(2, 5), rng.randint(1, 6)


def _text(lines: list[str]) -> str:
    return "\n".join(["def f(x, w, q, n):", "    y = x + 0.5", *(f"    {line}" for line in lines), "    return y"])


def _function(text: str) -> Callable[..., Any]:
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(text, scope)  # noqa: S102 - the text is ours, and a failure shows it
    f: Callable[..., Any] = scope["f"]
    return f


def _value(lines: list[str], arguments: tuple[Any, ...]) -> torch.Tensor | None:
    try:
        y = _function(_text(lines))(*arguments)
    except (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError, NotImplementedError):
        return None
    return y if y.numel() < 20_000 and y.dim() < 7 else None


def _runs(f: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    try:
        f(*arguments)
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
        return False
    return True


def _size(rng: random.Random, rank: int) -> str:
    """An integer expression of sizes and integer arguments."""
    d = f"y.shape[{rng.randrange(rank)}]" if rank else "3"
    return rng.choice((
        str(rng.randint(0, 4)), "q", "n", d, f"{d} // 2", f"{d} // q", f"{d} - 1", f"-{d} % q", f"({d} + q - 1) // q",
        f"{d} % q", f"min({d}, n)", f"max({d} - n, 0)", "q * n", f"{d} * q", f"{d} - n", "n - q", "x.shape[0]",
        "w.shape[0]", f"int({d} * 0.75)",
    ))  # fmt: skip


def _bound(rng: random.Random, rank: int) -> str:
    e = _size(rng, rank)
    return rng.choice(("", "", e, e, f"-({e})"))


def _step(rng: random.Random, y: torch.Tensor | None) -> str:
    rank = 1 if y is None else y.dim()
    axis = rng.randrange(-rank, rank) if rank else 0

    def size() -> str:
        return _size(rng, rank)

    def index(with_step: bool) -> str:
        cuts = [f"{_bound(rng, rank)}:{_bound(rng, rank)}" for _ in range(rng.randint(1, max(rank, 1)))]
        if with_step:
            cuts[-1] += rng.choice((":2", ":3", ""))
        return ", ".join(cuts)

    front = "slice(None), " * (axis % rank if rank else 0)
    mode = rng.choice(("constant", "constant", "reflect", "replicate", "circular"))
    return rng.choice((
        lambda: f"y = y[{index(False)}]",
        lambda: f"y = y[{index(True)}]",
        lambda: f"y = y[({front}slice({size()}, {size()}),)]",
        lambda: f"y = y[..., None, :] * {rng.randint(2, 3)}",
        lambda: f"y = F.pad(y, ({size()}, {size()}))",
        lambda: f"y = F.pad(y, ({size()}, -({size()})), value=1.5)",
        lambda: f"y = F.pad(y, (0, 0, {size()}, {size()}))",
        lambda: "y = F.pad(y, (0, -y.shape[-1] % q)).view(*y.shape[:-1], -1, q)",
        lambda: f"y = F.pad(y[None], ({size()}, {size()}), mode={mode!r})[0]",
        lambda: "y = y.reshape(-1)",
        lambda: f"y = y.reshape(-1, {size()})",
        lambda: f"y = y.reshape({size()}, -1)",
        lambda: f"y = y.flatten({rng.randrange(max(rank, 1))})",
        lambda: f"y = y.unflatten({axis}, (-1, {size()}))",
        lambda: f"y = torch.cat(y.split({size()}, {axis})[::-1], {axis})",
        lambda: f"y = y.split({size()}, {axis})[-1]",
        lambda: f"y = torch.cat(y.split([q, y.shape[{axis}] - q], {axis})[::-1], {axis})",
        lambda: f"y = y.chunk({rng.randint(2, 3)}, {axis})[0]",
        lambda: f"y = y.tensor_split({rng.randint(2, 3)}, {axis})[1]",
        lambda: f"y = y.narrow({axis}, {size()}, {size()})",
        lambda: f"y = y.unfold({axis}, {size()}, {rng.choice(('q', '1', '2'))})",
        lambda: f"y = torch.roll(y, {size()}, {axis})",
        lambda: f"y = torch.cat([y, y[:{size()}]], 0)",
        lambda: f"y = torch.stack([y, y * 2.0], {axis})",
        lambda: f"y = y.repeat_interleave({size()}, {axis})",
        lambda: f"y = y.repeat({size()}, *[1] * (y.dim() - 1))",
        lambda: f"y = y.expand({size()}, *y.shape)",
        lambda: f"y = y.transpose({axis}, 0)",
        lambda: f"y = y.flip({axis})",
        lambda: f"y = y.sum({axis})",
        lambda: f"y = y.mean({axis}, keepdim=True) + y",
        lambda: f"y = y.cumsum({axis})",
        lambda: f"y = y.softmax({axis})",
        lambda: f"y = y @ w[:, :{size()}].t()",
        lambda: f"y = y * w[:1, :{size()}]",
        lambda: f"y = y.select({axis}, {size()})",
        lambda: f"y = y[..., torch.arange({size()}) % q]",
        lambda: f"y = y * torch.arange(y.shape[{axis}]).clamp(max={size()}).sum()",
        lambda: f"y = torch.diagonal(y, {size()})",
        lambda: f"y = y.tril({size()})",
        lambda: f"y = torch.where(y > 0, y, y.new_zeros({size()}))",
        lambda: f"y = y[::{rng.choice(('2', 'q'))}]",
    ))()  # fmt: skip
