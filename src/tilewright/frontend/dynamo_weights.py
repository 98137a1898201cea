"""Weights that a captured graph has taken for constants, and whether they still are what they were.

In: the tensors, and the arguments of calls. Out: whether to compile again, and with which constants. Not its business:
how changes are noticed (``runtime.watch``), compiling (``dynamo``).

Code for new weights is worth its compile where the weights before them lasted as long as theirs took. Weights that
change faster than that are inputs from then on: such code is slower, and never out of date.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tilewright.runtime.values import is_cut_short
from tilewright.runtime.watch import Watch

if TYPE_CHECKING:
    import torch

clock = time.perf_counter


def refresh(module: torch.nn.Module) -> None:
    """Have every compiled form of ``module`` look at all of its weights when it is called next.

    Needed only after writes to a part of a weight that PyTorch does not count (through ``.data`` or NumPy), where the
    system does not track pages: see docs/promises.md. To PyTorch, this counts as a write.
    """
    import torch

    tensors = [*module.parameters(), *module.buffers()]
    torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])


def may_freeze(tensor: Any) -> bool:
    """Is it a tensor whose changes can be noticed?"""
    import torch

    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not is_plain or tensor.is_inference() or tensor.layout is not torch.strided or not tensor.is_cpu:
        return False
    return bool(tensor.data_ptr() or not tensor.numel()) and not is_cut_short(tensor)


class FrozenWeights:
    """The constants of one graph, by their positions among its arguments."""

    def __init__(self, tensors: dict[int, torch.Tensor], *, is_promised: bool = False) -> None:
        """``is_promised``: the user says that nothing changes."""
        self.tensors = tensors
        self._is_promised = is_promised
        self._watch: Watch | None = None
        self._started = self._ready = 0.0

    def remember(self) -> None:
        """Call this before the tensors are read: from now on changes are noticed."""
        self._watch = Watch(list(self.tensors.items())) if self.tensors and not self._is_promised else None
        self._started = self._ready = clock()

    def compiled(self) -> None:
        """Call this when the code that holds the tensors is ready."""
        self._ready = clock()

    def are_current(self, args: tuple[Any, ...]) -> bool:
        """Are the tensors among ``args`` those that were remembered, with the same content?"""
        watch = self._watch
        return watch is None or watch.unchanged(args) or watch.look(args)

    def replace(self, args: tuple[Any, ...]) -> None:
        """Take the tensors among ``args`` instead, or none where they change too fast."""
        lasted, took = clock() - self._ready, self._ready - self._started
        self.tensors = {i: args[i] for i in self.tensors if may_freeze(args[i])} if lasted >= took else {}
