"""Runs the same computation by eager PyTorch and by the interpreter of the imported graph, and compares.

In: named functions of tensors, or a module. Out: the graph, after asserting that shapes, dtypes and numbers agree.
Not its business: native code.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tilewright.core.graph import Graph
from tilewright.frontend.torch.export import import_module
from tilewright.frontend.torch.tensors import to_numpy
from tilewright.graph.interp import run

Functions = Mapping[str, Callable[..., Any]]


class Several(torch.nn.Module):
    """Many functions of the same inputs in one program: exporting once is far faster than once per function."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: torch.Tensor) -> dict[str, Any]:
        return {name: f(*args) for name, f in self.functions.items()}


def check_functions(functions: Functions, *inputs: torch.Tensor, rtol: float = 1e-5) -> Graph:
    return check(Several(functions), inputs, rtol=rtol)


def check(module: torch.nn.Module, inputs: tuple[Any, ...], dynamic_shapes: Any = None, *, rtol: float = 1e-5) -> Graph:
    """Import ``module`` and compare every output at the example inputs."""
    graph = import_module(module, inputs, dynamic_shapes)
    compare(graph, module, inputs, rtol=rtol)
    return graph


def compare(graph: Graph, module: torch.nn.Module, inputs: tuple[Any, ...], *, rtol: float = 1e-5) -> None:
    """Compare an imported graph with its module, at any inputs."""
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(module.eval()(*inputs))
    tensors = [t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    found = run(graph, [to_numpy(t) for t in tensors])
    assert len(found) == len(expected)
    for name, a, b in zip(dict(graph.results()), found, expected, strict=True):
        b = to_numpy(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), name
        scale = float(np.max(np.abs(np.nan_to_num(b.astype(np.float64), posinf=0, neginf=0)), initial=1e-3))
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol, rtol * scale, err_msg=name)
