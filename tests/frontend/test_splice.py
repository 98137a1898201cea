"""Calls without a form here are followed one by one: sizes, views, writes and places in the user's file stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import tilewright as tw
from frontend.torch_compare import Functions, Several, check, compare
from tilewright.core.graph import topological
from tilewright.frontend.torch import export
from tilewright.frontend.torch.export import export_module, import_exported
from tilewright.frontend.torch.functional import decomposed
from tilewright.frontend.torch.fx.forms import has_form

X = torch.arange(12.0).view(3, 4) / 7 - 0.5


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The programs that were followed as a whole."""
    found: list[Any] = []

    def noted(program: Any, of: Callable[..., Any] = decomposed) -> Any:
        found.append(program)
        return of(program)

    monkeypatch.setattr(export, "decomposed", noted)
    return found


def written(x: torch.Tensor, view: Callable[..., Any], by: Callable[..., Any] = torch.Tensor.zero_) -> torch.Tensor:
    """A copy of ``x`` of which a view has been written to."""
    whole = x.clone()
    by(view(whole)[0])
    return whole


CALLS: Functions = {
    "mT": lambda x: x.mT * 2,
    "einsum": lambda x: torch.einsum("ij,kj->ki", x, x),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[:, 0], indexing="ij"),
    "view_as": lambda x: (x * 3).view_as(x),
    "heaviside": lambda x: torch.heaviside(x, x[0]),
    "trapezoid": lambda x: torch.trapezoid(x, dim=1),
    "complex": lambda x: torch.einsum("ij,kj->ik", torch.complex(x, x + 1), torch.complex(x, -x)).abs(),
}
WRITES: Functions = {
    "mT": lambda x: written(x, lambda t: t.mT),
    "a view by einsum": lambda x: written(x, lambda t: torch.einsum("ij->ji", t)),
    "nothing by einsum": lambda x: written(x, lambda t: torch.einsum("ij->ij", t)),
    "view_as": lambda x: written(x, lambda t: t.view_as(x * 1)),
    "a copy": lambda x: written(x, lambda t: torch.narrow_copy(t, 0, 0, 2)),
    "a result": lambda x: torch.logaddexp(x, x.exp()).mul_(2),
    "a constant": lambda x: torch.tensor([1.0, 2.0, 3.0, 4.0]).mul_(2) + x.mT.mT,
}


def test_sizes_stay_symbols(followed: list[Any]) -> None:
    module, free = Several(CALLS), ({0: Dim.AUTO, 1: Dim.AUTO},)
    program = export_module(module, (X,), (free,))
    assert not all(has_form(n) for n in program.graph.nodes)
    graph = import_exported(program)
    for shape in ((3, 4), (5, 2), (1, 7)):
        compare(graph, module, (torch.randn(shape, generator=torch.Generator().manual_seed(1)),))
    assert not followed


@pytest.mark.parametrize("name", WRITES)
def test_views_are_written_through_and_copies_are_not(name: str, followed: list[Any]) -> None:
    check(Several({name: WRITES[name]}), (X,))
    assert not followed


def test_a_size_that_an_element_gives_is_the_one_that_the_program_has(followed: list[Any]) -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        k = n.item()
        torch._check(k >= 1)
        torch._check(k <= 3)
        return torch.einsum("ij,j->ij", x[:k], x[0]) * n.double().item()

    check(Several({"f": f}), (X, torch.tensor(2)))
    assert not followed


def test_a_call_that_resizes_does_not_do_it_to_the_trace() -> None:
    program = export_module(Several({"f": lambda x, k: torch.sum(x, 0, out=k)}), (X, torch.empty(0)))
    with pytest.raises(tw.ImportFailed, match=r"of shape \[0\] one of shape \[4\]"):
        import_exported(program)


class Module(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ij,kj->ki", x, x)


def test_what_is_made_of_a_call_knows_its_line() -> None:
    nodes = topological(import_exported(export_module(Module(), (X,))).outputs)
    assert {str(n.loc).rpartition(":")[0] for n in nodes if n.op.name != "input"} == {"test_splice.py"}
