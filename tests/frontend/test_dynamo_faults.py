"""Errors of ours under ``torch.compile``: a piece falls back, a report is written, and strict users get an error."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tilewright import ops
from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph
from tilewright.core.text import load_graph
from tilewright.frontend.torch.aten.call import AtenCall
from tilewright.frontend.torch.fx import walk as fx
from tilewright.graph.interp import run
from tilewright.integrations.torch_compile.backend import MODES, make_backend
from tilewright.integrations.torch_compile.capture import FallbackWarning
from tilewright.integrations.torch_compile.faults import KEPT_BYTES
from tilewright.runtime.errors import FileError, InputError


@pytest.fixture(autouse=True)
def _reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path))
    monkeypatch.delenv("TILEWRIGHT_STRICT", raising=False)
    torch._dynamo.reset()


def breaks_on(op: str) -> Callable[..., Any]:
    """A compiler that fails on graphs with an op and interprets others."""

    def compile_graph(graph: Graph, **options: Any) -> Any:
        if any(n.op.name == op for n in graph.nodes()):
            raise TypeError("a mistake of ours")

        def execute(*arrays: np.ndarray) -> Any:
            results = run(graph, arrays)
            return results[0] if len(results) == 1 else results

        return execute

    return compile_graph


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.cosh(x.exp()) + 1


def told(warned: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in warned if w.category is FallbackWarning]


def test_the_piece_falls_back_and_a_report_is_written(tmp_path: Path) -> None:
    weight, x = torch.ones(2, KEPT_BYTES // 4), torch.randn(3, 2)
    net = torch.nn.Linear(KEPT_BYTES // 4, 2).eval()

    def g(x: torch.Tensor) -> torch.Tensor:
        return net((x @ weight).exp()[:, : KEPT_BYTES // 4])

    compiled = torch.compile(g, backend=make_backend(breaks_on("exp")))
    with pytest.warns(FallbackWarning) as warned, torch.no_grad():
        torch.testing.assert_close(compiled(x), g(x))
    (text,) = told(list(warned))
    (folder,) = tmp_path.iterdir()
    assert "TypeError: a mistake of ours" in text and str(folder) in text and "report it" in text
    assert "mm" in text and "more)" in text, "it says which calls PyTorch runs"
    assert "a mistake of ours" in (folder / "error.txt").read_text()
    assert "[3, 2]" in (folder / "inputs.txt").read_text()
    assert "aten.exp" in (folder / "fx.py").read_text()
    graph = load_graph(folder / "graph.txt", ops.by_name)
    assert any(n.op is ops.exp for n in graph.nodes())
    constants = [n.attrs["data"].array for n in graph.nodes() if n.op.name == "const"]
    assert all(not c.any() for c in constants if c.nbytes > KEPT_BYTES), "weights stay with their owner"


def test_only_the_call_falls_back_whose_converter_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(c: AtenCall) -> Any:
        return {}[c.name]

    monkeypatch.setitem(fx.CONVERTERS, "cosh.default", broken)  # type: ignore[index]
    graphs: list[Graph] = []

    def compile_graph(graph: Graph, **options: Any) -> Any:
        graphs.append(graph)
        return breaks_on("")(graph)

    x = torch.randn(3)
    with pytest.warns(FallbackWarning, match="KeyError") as warned:
        torch.testing.assert_close(torch.compile(f, backend=make_backend(compile_graph))(x), f(x))
    assert len(told(list(warned))) == 1 and "more)" not in told(list(warned))[0]
    assert len(graphs) == 2, "what is before the call, and what is behind it"


def fails_when_called(graph: Graph, **options: Any) -> Any:
    def execute(*arrays: np.ndarray) -> Any:
        raise ValueError("a mistake of ours")

    return execute


def test_a_call_that_fails_is_pytorch_s(tmp_path: Path) -> None:
    """Where PyTorch has a result, the failure was ours, and is told once."""
    compiled, x = torch.compile(f, backend=make_backend(fails_when_called)), torch.randn(3)
    with pytest.warns(FallbackWarning, match="a mistake of ours") as warned:
        torch.testing.assert_close(compiled(x), f(x))
        torch.testing.assert_close(compiled(x), f(x))
    assert len(told(list(warned))) == len(list(tmp_path.iterdir())) == 1


def test_an_argument_that_compiled_code_cannot_take_is_no_mistake_of_ours(tmp_path: Path) -> None:
    def compile_graph(graph: Graph, **options: Any) -> Any:
        def execute(*arrays: np.ndarray) -> Any:
            raise InputError("a tensor without memory", remedy="pass another")

        return execute

    compiled, x = torch.compile(f, backend=make_backend(compile_graph)), torch.randn(3)
    with pytest.warns(FallbackWarning, match="a tensor without memory; pass another"):
        torch.testing.assert_close(compiled(x), f(x))
    assert not list(tmp_path.iterdir())


def test_a_call_that_fails_in_pytorch_too_raises_pytorch_s_error(tmp_path: Path) -> None:
    compiled = torch.compile(lambda table, at: table[at] * 2, backend=make_backend(fails_when_called))
    with warnings.catch_warnings(), pytest.raises(IndexError):
        warnings.simplefilter("error", FallbackWarning)
        compiled(torch.ones(4), torch.tensor([1, 9]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["option", "variable"])
@pytest.mark.parametrize("fails", ["compiler", "call"])
def test_strict_users_get_an_error(how: str, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_graph = breaks_on("exp") if fails == "compiler" else fails_when_called
    if how == "variable":
        monkeypatch.setenv("TILEWRIGHT_STRICT", "1")
    options = {"fallback": False} if how == "option" else None
    compiled = torch.compile(f, backend=make_backend(compile_graph), options=options)
    with pytest.raises(Exception, match="a mistake of ours"):
        compiled(torch.randn(3))


def test_a_report_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path / "file"))
    x = torch.randn(3)
    with pytest.warns(FallbackWarning, match="could not be written"):
        torch.testing.assert_close(torch.compile(f, backend=make_backend(breaks_on("exp")))(x), f(x))


def test_modes_and_options_of_torch_compile(tmp_path: Path) -> None:
    x, schedule = torch.randn(3), tmp_path / "empty.txt"
    schedule.write_text("")
    given: list[dict[str, Any]] = [{"mode": mode} for mode in MODES]
    given += [{"options": {"threads": 1, "accuracy": "exact", "fallback": False}}, {"options": {"schedule": schedule}}]
    for options in given:
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(f, backend="tilewright", **options)(x), f(x))


@pytest.mark.parametrize(("given", "says"), [
    ({"mode": "fastest"}, "max-autotune"),
    ({"options": {"max_autotune": True}}, "is an option of TorchInductor(?s:.*)tilewright tune"),
    ({"options": {"max-autotune": True}}, "'max-autotune' is an option of TorchInductor(?s:.*)tilewright tune"),
    ({"options": {"triton.max_tiles": 2}}, "is an option of TorchInductor(?s:.*)leave it out"),
    ({"options": {"freezing": True}}, "use 'freeze': True"),
    ({"options": {"optimise": 2}}, "no option 'optimise' here(?s:.*)use 'optimize'"),
    ({"options": {7: 2}}, "use some of target, precision, .*threads, fallback"),
    ({"options": {"accuracy": "perfect"}}, "perfect"),
    ({"options": {"schedule": "nowhere.txt"}}, "nowhere.txt"),
    ({"options": {"target": "cortex-m4"}}, "'cortex-m4' can't run here"),
    ({"options": {"threads": "2"}}, "threads='2' is not an integer"),
    ({"options": {"fallback": "no"}}, "fallback can't be 'no'"),
])  # fmt: skip
def test_a_wrong_option_is_no_fault(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    compiled = torch.compile(f, backend="tilewright", **given)
    with pytest.raises(Exception, match=says) as caught:
        compiled(torch.randn(3))
    error = FileError if "schedule" in given.get("options", {}) else OptionError
    assert isinstance(caught.value.inner_exception, error)  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())
