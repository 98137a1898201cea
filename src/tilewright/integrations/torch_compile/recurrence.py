"""Modules of recurrences (``nn.LSTM``, ``nn.GRU``, ``nn.RNN``) as one call each in a captured graph.

In: the graph that Dynamo captured, which calls ``torch.lstm`` and its kin. Out: the same graph with calls of ops of our
own instead: AOTAutograd takes PyTorch's apart, step by step, for the length that it was traced with. Dynamo would, too,
when it asks PyTorch for the shapes of a call's results, which our ops tell instead.
Not its business: what such a call becomes (``torch.aten.rnn``); packed sequences of several lengths, whose calls stay.

The ops compute what PyTorch's do, by PyTorch's own kernels, so that they are right wherever they run. Their gradients
are PyTorch's too: the backward pass computes the forward one again, from the state of the generator where dropout draws
numbers between layers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

SETTINGS = ("has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")
SETTINGS_SCHEMA = "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
N_STATES = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
WITH_DROPOUT = "_dropout"
"""What ends the names of ops that draw numbers; their last result is the generator's state before."""
DRAWS = frozenset(f"tilewright.{kind}{WITH_DROPOUT}.default" for kind in N_STATES)


def keep_recurrences_whole(gm: GraphModule) -> None:
    """Let the graph call our ops in place of PyTorch's recurrences over sequences of one length."""
    import torch

    kinds = {getattr(torch, kind): kind for kind in N_STATES}
    changed = False
    for node in gm.graph.nodes:
        kind = kinds.get(node.target) if node.op == "call_function" else None
        if kind is None or node.kwargs or len(node.args) != 9 or not _is_plain(node.args):
            continue
        x, states, weights, *settings = node.args
        node.target = _ops()[kind + (WITH_DROPOUT if _draws(settings) else "")]
        node.args = (x, list(states) if isinstance(states, tuple | list) else [states], list(weights), *settings)
        changed = True
    if changed:
        gm.recompile()


@functools.cache
def keep_lengths_symbolic(is_ours: Callable[[], bool]) -> None:
    """While ``is_ours()``, have PyTorch tell shapes of its recurrences by our ops.

    Dynamo asks for them while it captures a graph. PyTorch's own answer goes through a GRU step by step, after which
    the graph is for sequences of one length alone.
    """
    import torch
    from torch._C import DispatchKey

    for kind in N_STATES:
        call = getattr(torch.ops.aten, kind).input
        for key in (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd):
            if key in call.py_kernels:
                call.py_kernels[key] = _whole(kind, call.py_kernels[key], is_ours)
        call._dispatch_cache.clear()


def _whole(kind: str, otherwise: Callable[..., Any], is_ours: Callable[[], bool]) -> Callable[..., Any]:
    def call(x: torch.Tensor, hx: Any, params: list[torch.Tensor], *settings: Any) -> Any:
        if not is_ours():
            return otherwise(x, hx, params, *settings)
        op = _ops()[kind + (WITH_DROPOUT if _draws(settings) else "")]
        return op(x, list(hx) if kind == "lstm" else [hx], list(params), *settings)[: 1 + N_STATES[kind]]

    return call


def _is_plain(args: Sequence[Any]) -> bool:
    """Is it a call for sequences of one length?"""
    return isinstance(args[2], tuple | list) and isinstance(args[3], bool)


def _draws(settings: Sequence[Any]) -> bool:
    _, n_layers, dropout, train, *_ = settings
    return bool(train and dropout and n_layers > 1)


@functools.cache
def _ops() -> dict[str, Any]:
    """The ops by their names; made once, as PyTorch's registry is the process's."""
    import torch

    library = torch.library.Library("tilewright", "FRAGMENT")
    _libraries.append(library)
    for kind, n_states in N_STATES.items():
        results = ", ".join(["Tensor"] * (1 + n_states))
        grads = ", ".join(f"Tensor g{k}" for k in range(1 + n_states))
        operands = f"Tensor input, Tensor[] hx, Tensor[] params, {SETTINGS_SCHEMA}"
        seeded = (torch.Tag.nondeterministic_seeded,)
        library.define(f"{kind}({operands}) -> ({results})")
        library.define(f"{kind}{WITH_DROPOUT}({operands}) -> ({results}, Tensor)", tags=seeded)
        library.define(f"{kind}_backward({grads}, Tensor? state, {operands}) -> Tensor[]")
        made = ((kind, _run(kind)), (f"{kind}{WITH_DROPOUT}", _run_drawing(kind)))
        for name, run in (*made, (f"{kind}_backward", _run_backward(kind))):
            library.impl(name, run, "CPU")
        for name, _ in made:
            torch.library.register_fake(f"tilewright::{name}", _fake(name), lib=library)
            torch.library.register_autograd(f"tilewright::{name}", _backward(kind), setup_context=_keep, lib=library)
        torch.library.register_fake(f"tilewright::{kind}_backward", _fake_backward(n_states), lib=library)
    names = [f"{kind}{end}" for kind in N_STATES for end in ("", WITH_DROPOUT)]
    return {name: getattr(torch.ops.tilewright, name).default for name in names}


_libraries: list[Any] = []
"""Ops go when their library does."""


def _run(kind: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """PyTorch's own kernel; its first result lies as the steps follow each other."""
    import torch

    def run(x: torch.Tensor, hx: list[torch.Tensor], params: list[torch.Tensor], *settings: Any) -> Any:
        y, *states = getattr(torch, kind)(x, tuple(hx) if kind == "lstm" else hx[0], params, *settings)
        y = y.transpose(0, 1).contiguous().transpose(0, 1) if settings[-1] else y.contiguous()
        return y, *states

    return run


def _run_drawing(kind: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    import torch

    run = _run(kind)

    def run_drawing(*args: Any) -> tuple[torch.Tensor, ...]:
        state = torch.get_rng_state()
        return *run(*args), state

    return run_drawing


def _fake(name: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    import torch

    def shapes(x: torch.Tensor, hx: list[torch.Tensor], params: list[torch.Tensor], *settings: Any) -> Any:
        *_, bidirectional, batch_first = settings
        steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
        y = x.new_empty((steps, batch, hx[0].shape[2] * (2 if bidirectional else 1)))
        state = [torch.empty(_state_bytes(), dtype=torch.uint8)] if name.endswith(WITH_DROPOUT) else []
        return y.transpose(0, 1) if batch_first else y, *(x.new_empty(h.shape) for h in hx), *state

    return shapes


@functools.cache
def _state_bytes() -> int:
    import torch

    return torch.Generator().get_state().numel()


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, hx, params, *ctx.settings = inputs
    ctx.n_states = len(hx)
    ctx.save_for_backward(*output[1 + ctx.n_states :], x, *hx, *params)


def _backward(kind: str) -> Callable[..., Any]:
    import torch

    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        n_grads = 1 + ctx.n_states
        states, saved = ctx.saved_tensors[: len(grads) - n_grads], ctx.saved_tensors[len(grads) - n_grads :]
        x, hx, params = saved[0], saved[1:n_grads], saved[n_grads:]
        op = getattr(torch.ops.tilewright, f"{kind}_backward")
        dx, *others = op(*grads[:n_grads], states[0] if states else None, x, hx, params, *ctx.settings)
        return dx, others[: ctx.n_states], others[ctx.n_states :], *[None] * len(SETTINGS)

    return backward


def _run_backward(kind: str) -> Callable[..., list[torch.Tensor]]:
    import torch

    n_grads = 1 + N_STATES[kind]

    def run(*args: Any) -> list[torch.Tensor]:
        grads, (state, x, hx, params, *settings) = args[:n_grads], args[n_grads:]
        given = [t.detach().requires_grad_() for t in (x, *hx, *params)]
        states = given[1 : 1 + len(hx)]
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            if state is not None:
                torch.set_rng_state(state)
            results = getattr(torch, kind)(
                given[0], tuple(states) if kind == "lstm" else states[0], given[1 + len(hx) :], *settings
            )
            found = torch.autograd.grad(results, given, grads)
        return [g.contiguous() for g in found]

    return run


def _fake_backward(n_states: int) -> Callable[..., list[torch.Tensor]]:
    def shapes(*args: Any) -> list[torch.Tensor]:
        x, hx, params, *_ = args[2 + n_states :]
        return [t.new_empty(t.shape) for t in (x, *hx, *params)]

    return shapes
