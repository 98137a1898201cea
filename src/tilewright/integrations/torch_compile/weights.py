"""Weights that a captured graph has taken for constants, and whether they still are what they were.

In: the tensors, and the arguments of calls. Out: whether to compile again, and with which constants. Not its business:
how changes are noticed (``runtime.python.watch``), compiling (``torch_compile``).

Code for new weights is worth its compile where the weights before them lasted as long as theirs took. Weights that
change faster than that are inputs from then on: such code is slower, and never out of date.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tilewright.core.diag import OptionError
from tilewright.frontend.source import is_a
from tilewright.runtime.python.watch import Watch
from tilewright.runtime.values import is_cut_short

if TYPE_CHECKING:
    import torch

clock = time.perf_counter


def refresh(module: torch.nn.Module) -> None:
    """Have every compiled form of ``module`` look at all of its weights when it is called next.

    Needed only after writes to a part of a weight that PyTorch does not count (through ``.data`` or NumPy), where the
    system does not track pages: see docs/promises.md. To PyTorch, this counts as a write. ``OptionError`` for what is
    no module.
    """
    if not is_a(module, "torch.nn", "Module"):
        rule = f"refresh takes a torch.nn.Module, not a {type(module).__name__}"
        raise OptionError(rule, remedy="pass the module that was compiled")
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
    """The constants of one piece of code, by their positions among its arguments.

    Make this before the tensors are read: from then on changes are noticed.
    """

    def __init__(self, tensors: dict[int, torch.Tensor], *, is_promised: bool = False) -> None:
        """``is_promised``: the user says that nothing changes."""
        self.tensors = tensors
        self._watch = Watch(list(tensors.items())) if tensors and not is_promised else None
        self._started = self._ready = clock()

    def is_ready(self) -> bool:
        """Call this when the code that holds the tensors is ready. False: they were written to while it was made."""
        self._ready = clock()
        return self._watch is None or self._watch.is_untouched()

    def are_current(self, args: tuple[Any, ...]) -> bool:
        """Are the tensors among ``args`` those that were remembered, with the same content? Once False, always so."""
        watch = self._watch
        return watch is None or watch.unchanged(args) or watch.look(args)

    def replaced(self, args: tuple[Any, ...]) -> dict[int, torch.Tensor]:
        """The tensors among ``args`` to take instead; none where they change too fast."""
        lasted, took = clock() - self._ready, self._ready - self._started
        return {i: args[i] for i in self.tensors if may_freeze(args[i])} if lasted >= took else {}
