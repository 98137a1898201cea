"""One record describes a machine: where its numbers are from, what choices read of it, and what a new CPU takes."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

import tilewright
from sources import FILES, nodes
from tilewright.target.gpu import Gpu
from tilewright.target.sources import ASSUMED, INSTRUCTION_SET
from tilewright.target.target import NUMBERS, UNREAD, Target, named_targets

EVERY = pytest.mark.parametrize("target", named_targets(), ids=lambda t: t.name)


@EVERY
def test_every_number_says_where_it_is_from(target: Target) -> None:
    assert {name for name, _ in target.sources} <= NUMBERS.keys()
    assert target.source_of("vector_bytes") == INSTRUCTION_SET
    assert all(target.source_of(name) for name in NUMBERS) and target.source_of("wake_us") == ASSUMED


def test_numbers_are_fields_of_the_record() -> None:
    named = {f.name for f in fields(Target)}
    assert named >= NUMBERS.keys() >= {*UNREAD}
    assert {f.name for f in fields(Target) if f.type in ("int", "float")} == {
        *NUMBERS, "max_copies", "pointer_bytes", "n_cores"
    }  # fmt: skip


RECORDS = ("target", "machine", "gpu", "host", "core", "self")
"""What functions call a record that they read."""


def last_name(node: ast.expr) -> str:
    """What is asked for an attribute: ``b`` of ``a.b.c``; nothing where that has no name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def test_every_field_is_read() -> None:
    """Nobody keeps true what nothing reads."""
    unread = {f.name for record in (Target, Gpu) for f in fields(record)}
    for path in FILES:
        text = path.read_text()
        if any(f".{name}" in text for name in unread):  # taking a file apart is what takes time
            unread -= read_in(path)
    assert unread == set()


def read_in(path: Path) -> set[str]:
    """Attributes of records that a file reads."""
    return {
        node.attr
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if last_name(node.value).lstrip("_") in RECORDS
    }


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("haswell", {"fma_latency": 5, "l2_ways": 8}),
        ("znver4", {"fma_cycles": 2, "load_cycles": 2, "l2_bytes_per_cycle": 32}),
        ("znver5", {"fma_cycles": 1, "issue_width": 8, "set_span": 4096}),
        ("neoverse-n1", {"fma_latency": 2, "set_span": 16384}),
        ("cortex-m7", {"issue_width": 2, "load_ports": 2}),
    ],
)
def test_cpus_have_numbers_of_their_own(name: str, numbers: dict[str, float]) -> None:
    target = Target.parse(name)
    assert {n: getattr(target, n) for n in numbers} == numbers
    assert all(target.source_of(n) != ASSUMED for n in numbers)


def test_choices_are_made_for_the_family_until_a_number_is_read() -> None:
    """What a CPU's row adds changes no choice; what its flags and caches say does."""
    family, cpu = Target.parse("x86-64-v3"), Target.parse("haswell")
    assert replace(cpu.judged(), name=family.name, aliases=family.aliases) == family.judged()
    assert cpu.fma_latency != cpu.judged().fma_latency and cpu.judged().judged() == cpu.judged()
    assert family.known("a manual", l2_bytes=1 << 19).judged().l2_bytes == 1 << 19
    twice = family.known("a manual", ghz=3.0).known("a measurement", ghz=3.1)
    assert (twice.ghz, twice.judged().ghz, twice.source_of("ghz")) == (3.1, family.ghz, "a measurement")


def test_a_number_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="fma_latencies"):
        Target.parse("x86-64-v3").known("a manual", fma_latencies=5)


ROW = """
        "newest": replace(zen5, cpu="znver5", aliases=("newer",)).known("a manual", fma_latency=3, load_ports=3),
"""
ASKED = """
import json
from tilewright import ops
from tilewright.build.driver import build
from tilewright.build.options import Clock, Options
from tilewright.cli.main import app
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.target.errors import UnknownTargetError
from tilewright.target.target import Target

pool = Pool()
x = pool.input("x", TensorType(f32, (4, 32)))
graph = Graph("g", pool, (x,), (Builder(pool)(ops.exp, x),), ("y",))
made = build(graph, Options("newer"), Clock())
target = Target.parse("newest")
try:
    Target.parse("Newest_")
except UnknownTargetError as error:
    said = str(error)
print(json.dumps([made.manifest.target.cpu, target.load_bytes_per_cycle, target.judged().fma_latency, said]))
app(["targets"], standalone_mode=False)
print("----")
app(["targets", "newest", "--json"], standalone_mode=False)
"""


def test_a_new_cpu_is_a_row_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be compiled for and is listed, measured by its numbers, and suggested for a name that is nearly its."""
    package = Path(tilewright.__file__).parent
    shutil.copytree(package, tmp_path / "tilewright")  # with the bytecode of the files that stay as they are
    file = tmp_path / "tilewright" / "target" / "x86.py"
    last = '        "znver5": replace(zen5, cpu="znver5"),\n'
    assert last in file.read_text()
    file.write_text(file.read_text().replace(last, last + ROW.lstrip("\n")))

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")

    ran = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    known, rest = ran.stdout.split("\n", 1)
    listed, _, shown = rest.partition("----")
    cpu, load_bytes, judged_latency, suggestion = json.loads(known)
    assert cpu == "znver5" and load_bytes == 3 * 64 and judged_latency == 4
    assert "did you mean newest?" in suggestion and "newest" in listed
    row = json.loads(shown)
    assert row["target"] == "newest" and row["also"] == "newer"
    numbers = {n["number"]: n for n in row["numbers"]}
    assert numbers["fma_latency"]["value"] == 3 and numbers["fma_latency"]["source"] == "a manual"
