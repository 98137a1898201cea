"""Mistakes of the compiler: users get a slower model with a note, tests, ``compare`` and ``--verify`` get an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nests import NESTS
from tilewright.build import driver, kernels
from tilewright.build.options import Clock, Options
from tilewright.choose import default
from tilewright.cli.main import app
from tilewright.core.diag import VerifyError
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.graph import Graph, Node
from tilewright.core.passes import Journal
from tilewright.core.text import save_graph
from tilewright.core.types import TensorType, f64
from tilewright.graph.canonical.canonicalize import Canonicalize
from tilewright.runtime.env import read_environment
from tilewright.tile.errors import RuleBroke
from tilewright.tools.debug.flow import compare_graph

X = np.linspace(-1, 1, 140, dtype=np.float32).reshape(7, 20)


def net() -> Graph:
    return NESTS["matmul"]()


@pytest.fixture
def broken_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def contract(*args: object, **kwargs: object) -> None:
        raise KeyError("a mistake of ours")

    for name in ("contract", "narrow", "few_columns"):
        monkeypatch.setattr(default, name, contract)


@pytest.fixture
def broken_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the graph's result another type, and tells nobody."""

    def run(self: Canonicalize, graph: Graph, journal: Journal | None = None) -> Graph:
        (y,) = graph.outputs
        return graph.with_outputs([Node(y.op, y.inputs, y.attrs, (TensorType(f64, y.shape),), y.loc, y.serial)])

    monkeypatch.setattr(Canonicalize, "run", run)


def test_the_environment_says_how_strict_to_be() -> None:
    """The tests' own says ``compiler``."""
    assert read_environment().strict_compiler
    wanted = {"": (False, False), "off": (False, False), "1": (True, True), "Compiler": (False, True)}
    for value, strict in wanted.items():
        found = read_environment({"TILEWRIGHT_STRICT": value})
        assert (found.strict, found.strict_compiler) == strict


@pytest.mark.usefixtures("broken_rule")
def test_a_rule_that_breaks_leaves_users_a_model_and_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_STRICT", "")
    model = driver.compile_graph(net())
    np.testing.assert_allclose(model(X), evaluate_graph(net(), [X])[0], rtol=1e-5, atol=1e-6)
    (kernel,) = model.report()["kernels"]
    assert [n for n in kernel["notes"] if "a rule broke: KeyError: 'a mistake of ours'" in n]


@pytest.mark.usefixtures("broken_rule")
@pytest.mark.parametrize("value", ["1", "compiler"])
def test_a_rule_that_breaks_raises_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TILEWRIGHT_STRICT", value)
    with pytest.raises(RuleBroke, match=r"kernel k_\w+, .*a rule broke: KeyError: 'a mistake of ours'") as caught:
        driver.compile_graph(net())
    assert isinstance(caught.value.cause, KeyError) and "TILEWRIGHT_STRICT" in caught.value.remedy


@pytest.mark.usefixtures("broken_rule")
def test_a_rule_that_breaks_is_a_fault_to_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_STRICT", "")
    fault = compare_graph(net(), [X], Options(), threads=1).fault
    assert fault is not None and fault.stage == "compile" and "a mistake of ours" in str(fault)


@pytest.mark.usefixtures("broken_pass")
def test_a_pass_that_breaks_the_graph_is_named() -> None:
    with pytest.raises(VerifyError, match=r"after pass \d+, canonicalize") as caught:
        kernels.optimise_and_split(net(), Options(), Options().machine, Clock())
    assert "maximum" in str(caught.value)


@pytest.mark.parametrize("mistake", ["broken_rule", "broken_pass"])
def test_the_command_line_verifies(
    mistake: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a model that the cache has an answer for."""
    monkeypatch.setenv("TILEWRIGHT_STRICT", "")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "net.txt"
    save_graph(net(), model)
    command = ["compile", str(model), "-o", str(tmp_path / "net.tw")]
    assert CliRunner().invoke(app, [*command, "--verify"]).exit_code == 0
    assert CliRunner().invoke(app, command).exit_code == 0
    request.getfixturevalue(mistake)
    result = CliRunner().invoke(app, [*command, "--verify"])
    assert result.exit_code != 0
    assert isinstance(result.exception, RuleBroke | VerifyError)
