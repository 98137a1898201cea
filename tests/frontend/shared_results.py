"""Random functions of views: what they return, and who shares memory with whom, beside eager PyTorch.

``program`` writes one as Python text; ``difference`` says what a compiled one does unlike the text run as it is.
"""

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

VIEWS = (
    "{v}[:]", "{v}[1:]", "{v}[..., ::2]", "{v}[..., :2]", "{v}[-1]", "{v}[None]", "{v}.t()", "{v}.transpose(0, -1)",
    "{v}.flatten()", "{v}.reshape(-1, 2)", "{v}.view(2, -1)", "{v}.unsqueeze(-1)", "{v}.squeeze()", "{v}.diagonal()",
    "{v}.expand(2, *{v}.shape)", "{v}.unfold(0, 2, 1)", "{v}.chunk(2)[1]", "{v}.split(1, -1)[0]", "{v}.unbind()[0]",
    "{v}.detach()", "{v}.as_strided((2, 2), (2, 1))", "{v}.movedim(0, -1)", "{v}.narrow(0, 0, 1)", "{v}.real",
    "{v}.contiguous()", "{v}.to({v}.dtype)", "torch.view_as_real({v})", "torch.view_as_complex({v})", "{v}.imag",
    "{v}.conj()", "{v}.swapaxes(0, 1)", "{v}.expand_as({w})", "{v}.view_as({w})", "{v}.view(torch.int32)",
    "{v}.unflatten(0, (2, -1))", "{v}.permute(1, 0)", "{v}.tensor_split(3)[1]",
)  # fmt: skip
ITSELF = (
    "{v}.conj()", "{v}.contiguous()", "{v}.real", "+{v}", "{v}.resolve_neg()", "{v}.to({v}.dtype)", "{v}.cpu()",
    "{v}.flatten(0, 0)", "{v}.sum_to_size({v}.shape)", "torch.atleast_1d({v})", "torch.as_tensor({v})",
    "torch.broadcast_tensors({v}, {v})[1]", "{v}.add_(1)", "torch.nn.functional.relu({v}, inplace=True)",
    "torch.nn.functional.dropout({v}, training=False)", "torch.dropout({v}, 0.5, False)",
    "torch.nn.functional.dropout(input={v}, p=0.0)", "torch.nn.functional.dropout2d({v}, 0.5, False)",
)  # fmt: skip
"""Calls that return their operand itself, of real numbers."""
NEW = (
    "{v} * 2", "{v} + {w}", "{v}.clone()", "{v}.sum(0)", "torch.cat([{v}, {v}])", "{v} + 0", "{v} * 1", "{v}.flip(0)",
    "torch.complex({v}, {w})", "torch.zeros_like({v})", "{v}.exp().nonzero()", "{v}.contiguous().view(-1)",
    "torch.linalg.eigvals({v}).real",
)  # fmt: skip
WRITES = (
    "{v}.add_(3)", "{v}.mul_(0.5)", "{v}[{v} > 0] += 3", "{v}.zero_()", "{v}.copy_({w})", "{v} -= {w}", "{v}[0] = 7",
    "if {v}.sum() > 0: {v}.fill_(2)", "{v}.t_()", "{v}.unsqueeze_(0)",
)  # fmt: skip
_INPUTS = {
    "x": lambda: torch.arange(24.0).reshape(4, 6) - 11,
    "y": lambda: (torch.arange(16.0) - 5).reshape(4, 4).t(),
}


def program(seed: int, most: int = 9, views: Sequence[str] = VIEWS) -> str:
    """A function ``f(x, y)`` of views, new values and writes that eager PyTorch runs, and that returns tensors."""
    choose = random.Random(seed)
    values = {name: make() for name, make in _INPUTS.items()}
    lines: list[str] = []
    while len(lines) < most:
        kind = choose.choices((views, NEW, WRITES, ("torch._dynamo.graph_break()",)), (6, 3, 2, 1))[0]
        v, w = (choose.choice(list(values)) for _ in range(2))
        text = choose.choice(kind).format(v=v, w=w)
        line = text if kind is WRITES or "graph_break" in text else f"v{len(lines)} = {text}"
        try:
            exec("" if "graph_break" in text else line, {"torch": torch}, values)  # noqa: S102  (text of our own)
        except (RuntimeError, IndexError, TypeError, ValueError):
            continue
        lines.append(line)
        if all(isinstance(t, torch.Tensor) and t.numel() < 500 and not t.isnan().any() for t in values.values()):
            continue
        return program(seed + 1_000_003, most, views)  # too large, or comparisons of NaN
    names = [n for n in values if n not in _INPUTS] or ["x"]
    returned = choose.sample(names, min(len(names), choose.randint(1, 5)))
    return "\n    ".join(["def f(x, y):", *lines, f"return {', '.join(returned)},"])


def function(text: str, **names: Any) -> Callable[..., Any]:
    """The function ``f`` of a text, which may use ``torch`` and ``names``."""
    scope: dict[str, Any] = {"torch": torch, **names}
    exec(text, scope)  # noqa: S102  (text of our own)
    f: Callable[..., Any] = scope["f"]
    return f


def places(tensors: list[torch.Tensor]) -> list[tuple[int, Any, Any]]:
    """Of each tensor: the first that shares its memory, and if that is another, where in it the elements are."""
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    found = []
    for t, storage in zip(tensors, storages, strict=True):
        strides = [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1]
        is_shared = t.numel() > 0 and storages.count(storage) > 1
        found.append((storages.index(storage), strides, t.storage_offset()) if is_shared else (-1, None, None))
    return found


def difference(f: Callable[..., Any], compiled: Callable[..., Any]) -> str | None:
    """How results, or who shares memory, differ after a call of each; None where they do not."""
    given = [[make() for make in _INPUTS.values()] for _ in range(2)]
    wanted, got = ([*args, *g(*args)] for g, args in zip((f, compiled), given, strict=True))
    if places(wanted) != places(got):
        return f"memory: {places(wanted)}, but {places(got)}"
    for step in range(len(wanted) + 1):
        for k, (a, b) in enumerate(zip(wanted, got, strict=True)):
            same = a.dtype == b.dtype and a.shape == b.shape
            if not same or not torch.allclose(a, b, rtol=1e-4, atol=1e-4):
                return f"after {step} writes, value {k}: {a}, but {b}"
        if step < len(wanted):
            for t in (wanted[step], got[step]):
                with contextlib.suppress(RuntimeError):  # of elements that lie on each other
                    t[...] = step + 2
    return None
