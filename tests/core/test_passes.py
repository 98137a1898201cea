"""Pipelines print, parse, hash, report and bisect; verification between passes names the pass at fault."""

import gc
import os
import threading
from dataclasses import dataclass
from typing import ClassVar

import pytest

from core.tiny import OPS, add, graph_of, neg, typed
from tilewright.core.diag import OptionError, VerifyError
from tilewright.core.graph import Builder, Pool
from tilewright.core.passes import Pass, first_bad_pass, parse_pipeline, print_pipeline, run_pipeline
from tilewright.core.rewrite import Rule, rewrite
from tilewright.core.text import load_graph

NEG_NEG = Rule("neg-neg", (neg,), lambda b, n: n.inputs[0].inputs[0] if n.inputs[0].op is neg else None, "-(-x) is x")


@dataclass(frozen=True)
class Simplify(Pass):
    """Cancels double negation."""

    name: ClassVar[str] = "simplify"
    max_bytes: int = 64
    fast: bool = False
    keep: tuple[str, ...] = ()

    def run(self, graph, journal=None):
        return rewrite(graph, [NEG_NEG], journal)


@dataclass(frozen=True)
class Break(Pass):
    """Moves the output to another pool's node."""

    name: ClassVar[str] = "break"

    def run(self, graph, journal=None):
        other = Builder(Pool())
        x = other.pool.input("x", typed("f32"))
        return graph.with_outputs([other(neg, x)])


KNOWN = (Simplify, Break)


def example():
    b = Builder(Pool())
    x = b.pool.input("x", typed("f32"))
    return graph_of(b.pool, [x], b(add, b(neg, b(neg, x)), x))


@pytest.mark.parametrize("text", [
    "simplify", "simplify,break", "simplify{max-bytes=8}", "simplify{max-bytes=8 fast=true keep=a+b},simplify", "",
])  # fmt: skip
def test_text_round_trip(text):
    assert print_pipeline(parse_pipeline(text, KNOWN)) == text


@pytest.mark.parametrize(("text", "error", "message"), [
    ("nothing", OptionError, r"no pass 'nothing'\n.*there are break, simplify"),
    ("simplify{max=1}", OptionError, "has no option 'max'"),
    ("simplify{max-bytes=x}", OptionError, "must be int"),
    ("simplify{fast=1}", OptionError, "true or false"),
    ("simplify{", OptionError, "expected a pass at 'simplify{'"),
    ("simplify,", OptionError, "expected a pass"),
    ("simplify{fast}", OptionError, "'fast' is no option of a pass"),
])  # fmt: skip
def test_bad_pipelines(text, error, message):
    with pytest.raises(error, match=message):
        parse_pipeline(text, KNOWN)


def test_reports_and_dump(tmp_path):
    reports = []
    out = run_pipeline(example(), [Simplify(), Simplify()], on_pass=reports.append, check=True, dump=tmp_path)
    assert [(r.index, r.changed, len(r.fired)) for r in reports] == [(0, True, 1), (1, False, 0)]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "00-input.tw.txt", "01-simplify.tw.txt", "02-simplify.tw.txt",
    ]  # fmt: skip
    assert "# neg-neg: neg at unknown location" in (tmp_path / "01-simplify.tw.txt").read_text()
    assert len(load_graph(tmp_path / "02-simplify.tw.txt", OPS.__getitem__).nodes()) == len(out.nodes())


def test_verification_names_the_pass():
    with pytest.raises(VerifyError, match="after pass 1, break"):
        run_pipeline(example(), [Simplify(), Break()], check=True)


def test_bisection():
    def is_good(graph):
        return graph.pool.owns(graph.outputs[0])

    assert first_bad_pass(example(), [Simplify(), Simplify(), Break(), Simplify()], is_good) == 2
    assert first_bad_pass(example(), [Simplify()], is_good) is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_runs_passes_collects_garbage():
    is_inside, may_leave = threading.Event(), threading.Event()

    def held(_):
        is_inside.set()
        may_leave.wait(60)

    worker = threading.Thread(target=run_pipeline, args=(example(), [Simplify()]), kwargs={"on_pass": held})
    worker.start()
    assert is_inside.wait(60) and not gc.isenabled()
    if not (child := os.fork()):
        os._exit(0 if gc.isenabled() else 1)
    may_leave.set()
    worker.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and gc.isenabled()
