"""Equal input gives equal bytes: in any process, whatever its hash seed and wherever its objects lie in memory."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

import small_models
import tilewright as tw
from sources import FILES, PACKAGE, parsed, statements, statements_of

NETS = (
    "convnet", "language_model", *(f"network:{seed}" for seed in (0, 1, 2, 3, 4, 6, 9, 12, 15, 18)),
    *(f"edges:{seed}" for seed in range(4)), *(f"wide:{seed}" for seed in range(4)),
)  # fmt: skip
TARGETS = ("x86-64-v3", "cortex-m4", "aarch64", "x86-64-v4")
GPUS = ("cuda-sm80", "cuda-sm90a")
WORKER = """
import hashlib, json, random, sys, tempfile
from pathlib import Path
random.seed(int(sys.argv[1]))
junk = [[object() for _ in range(random.randrange(1, 400))] for _ in range(random.randrange(1, 3000))]
random.shuffle(junk)
del junk[::2]  # holes of all sizes, so that what comes next lies in another order
import small_models, edges, graphs, networks, tilewright as tw
from tilewright.build.gpu import build_for_gpu
from tilewright.build.options import Clock, Options
make = {"network": networks.network, "edges": edges.edge_graph, "wide": lambda s: graphs.random_graph(s, 8, wide=True)}
found = {}
for k, net in enumerate(json.loads(sys.argv[2])):
    name, _, seed = net.partition(":")
    graph = make[name](int(seed)).graph if seed else getattr(small_models, name)()
    with tempfile.TemporaryDirectory() as folder:
        targets = json.loads(sys.argv[3])
        target = targets[k % len(targets)]
        if target.startswith("cuda"):  # there are no exports for GPUs; a model's parts are its PTX and what launches it
            for part in build_for_gpu(graph, Options(target), Clock()).objects:
                (Path(folder) / part.name).write_bytes(part.data)
        else:
            tw.export(graph, folder, name="m", target=target, threads=2)
        for file in sorted(Path(folder).iterdir()):
            found[f"{net} {file.name}"] = hashlib.sha256(file.read_bytes()).hexdigest()
print(json.dumps(found))
"""


def digests(process: int, nets: tuple[str, ...], targets: tuple[str, ...]) -> dict[str, str]:
    """The digests of every file that one process exports."""
    paths = os.pathsep.join([str(PACKAGE.parents[1] / "tests"), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": str(process), "PYTHONPATH": paths}  # noqa: TID251
    command = [sys.executable, "-c", WORKER, str(process), json.dumps(nets), json.dumps(targets)]
    ran = subprocess.run(command, check=True, env=environment, capture_output=True, text=True, timeout=3000)
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def test_two_processes_agree() -> None:
    one, two = (digests(k, ("network:9", "perceptron"), (TARGETS[0], GPUS[1])) for k in (1, 2))
    assert one == two and len(one) > 3 + 1 and any(file.endswith(".ptx") for file in one)


@pytest.fixture(scope="module")
def first_process() -> dict[str, str]:
    return digests(0, NETS, TARGETS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("process", range(1, 6))
def test_six_processes_agree_on_twenty_nets(process: int, first_process: dict[str, str]) -> None:
    assert len(first_process) == 3 * len(NETS) == 60
    other = digests(process, NETS, TARGETS)
    assert [k for k in first_process if first_process[k] != other[k]] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_six_processes_agree_on_code_for_gpus() -> None:
    first, *others = (digests(process, NETS, GPUS) for process in range(6))
    assert len(first) > 2 * len(NETS)
    for other in others:
        assert [k for k in first | other if first.get(k) != other.get(k)] == []


@pytest.mark.slow
@pytest.mark.emulation
@pytest.mark.parametrize("target", ["x86-64-windows", "aarch64", "apple-m1"])
def test_libraries_hold_neither_time_nor_place(target: str, tmp_path: Path) -> None:
    """A DLL's header has a time stamp, and its debug information an identity of its own."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("no ziglang")
    found = []
    for folder in (tmp_path / "one", tmp_path / "another folder"):
        made = tw.export(small_models.convnet(), folder, name="m", target=target, shared=True)
        found.append(made.library.read_bytes())
        time.sleep(1.1)  # time stamps count seconds
    assert found[0] == found[1]


# --- walks of sets --------------------------------------------------------------------------------------------------

ORDER_FREE = {
    "sorted", "len", "set", "frozenset", "any", "all", "sum", "min", "max", "Counter", "isdisjoint", "issubset",
    "issuperset", "union", "intersection", "difference", "update", "difference_update", "intersection_update",
}  # fmt: skip
"""What gives the same whatever the order of what it is given: ``update`` of a set, and a dict's takes no set."""
IN_ORDER = {"list", "tuple", "enumerate", "iter", "zip", "map", "join", "extend", "fromkeys", "deque", "chain", "array"}
MADE = {"union", "intersection", "difference", "symmetric_difference"}
ALLOWED = {
    ("partition/projections.py", "_read_by_points"): "a set of one",
    ("runtime/expressions.py", "is_line"): "one value for all",
    ("tile/schedule/stages.py", "fold"): "replaced by one number",
}
"""Walks whose order reaches nothing, by file and function, with the reason."""


@functools.cache
def set_makers() -> frozenset[str]:
    """Names of functions, and of annotated attributes, that are sets wherever the package says what they are."""
    found: dict[str, set[bool]] = {}
    for path in FILES:
        for node in statements(path):
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                found.setdefault(node.name, set()).add(is_set_type(node.returns))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                found.setdefault(node.target.attr, set()).add(is_set_type(node.annotation))
    return frozenset(name for name, kinds in found.items() if kinds == {True})


@functools.cache
def all_makers() -> frozenset[str]:
    return frozenset({"set", "frozenset", *MADE, *set_makers()})


def is_set_type(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Name(id=name):
            return name in ("set", "frozenset", "AbstractSet", "MutableSet")
        case ast.Subscript(value=inner) | ast.BinOp(left=inner):  # set[int], set[int] | None
            return is_set_type(inner)
    return False


LEAVES = (ast.Name, ast.Constant, ast.alias, ast.arg)


class Walks(ast.NodeVisitor):
    """Where one file walks a set in the order of its hashes, by function."""

    def __init__(self, tree: ast.AST) -> None:
        self.found: list[tuple[str, int]] = []
        self._names: list[dict[str, bool]] = [{}]
        self._functions = [""]
        self._free: set[ast.AST] = set()
        self.visit(tree)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.append(node.name)
        known = [a for a in ast.walk(node.args) if isinstance(a, ast.arg) and a.annotation is not None]
        self._names.append(self._names[-1] | {a.arg: is_set_type(a.annotation) for a in known if a.annotation})
        for child in statements_of(node):
            match child:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._names[-1][name] = self.is_set(value)
                case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                    self._names[-1][name] = is_set_type(annotation)
        self.generic_visit(node)
        self._names.pop()
        self._functions.pop()

    def is_set(self, e: ast.expr) -> bool:
        match e:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return self._names[-1].get(name, False)
            case ast.Attribute(attr=name):
                return name in set_makers()
            case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() | ast.Sub() | ast.BitXor(), right=right):
                sides = (left, right)
                return any(self.is_set(x) for x in sides) or all(is_call_of(x, {"keys"}) for x in sides)
            case ast.IfExp(body=body, orelse=other):
                return self.is_set(body) or self.is_set(other)
            case ast.Call(func=ast.Subscript(value=made)):
                return isinstance(made, ast.Name) and made.id in ("set", "frozenset")
            case ast.Call():
                return is_call_of(e, all_makers())
        return False

    def walked(self, e: ast.expr) -> None:
        if self.is_set(e):
            self.found.append((self._functions[-1], e.lineno))

    def generic_visit(self, node: ast.AST) -> None:
        """As Python's, which takes twice as long: parts that have none of their own are nothing that is walked."""
        for name in node._fields:
            part = getattr(node, name)
            for child in part if isinstance(part, list) else (part,):
                if isinstance(child, ast.AST) and child._fields and not isinstance(child, LEAVES):
                    self.visit(child)

    def visit_For(self, node: ast.For) -> None:
        self.walked(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        if node not in self._free:
            self.walked(node.value)
        self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> None:
        self._free.update(node.elts)
        self.generic_visit(node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self.walked(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if is_call_of(node, ORDER_FREE):
            self._free.update(e.value if isinstance(e, ast.Starred) else e for e in node.args)
        elif is_call_of(node, IN_ORDER):
            for e in node.args:
                self.walked(e)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        if node not in self._free:
            for g in node.generators:
                self.walked(g.iter)
        self.generic_visit(node)

    visit_GeneratorExp = visit_ListComp
    visit_DictComp = visit_ListComp


def is_call_of(e: ast.expr, names: AbstractSet[str]) -> bool:
    match e:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in names
    return False


def walks() -> Iterator[tuple[str, str, int]]:
    for path in FILES:
        for function, line in Walks(parsed(path)).found:
            yield path.relative_to(PACKAGE).as_posix(), function, line


def test_no_set_is_walked_in_the_order_of_its_hashes() -> None:
    """Hashes of texts differ from process to process, those of objects by where they lie: sort, or use a dict."""
    found = list(walks())
    assert [(file, function, line) for file, function, line in found if (file, function) not in ALLOWED] == []
    assert ALLOWED.keys() <= {(file, function) for file, function, _ in found}, "an excuse for what is not there"


def test_a_walk_is_seen() -> None:
    """The forms in which sets were walked, one a line, beside forms that are fine."""
    wrong = """
def f(a, b: set[int], d: dict[int, int]):
    for x in {a, b}: pass
    for x in set(a) - {1}: pass
    c = [x for x in b]
    c = list(frozenset(a))
    c = {x: 1 for x in d.keys() & b}
    ', '.join(b)
    print(*b)
"""
    assert [line for _, line in Walks(ast.parse(wrong)).found] == list(range(3, 10))
    right = "def f(a, b: set[int]):\n  for x in sorted(b): pass\n  return any(x for x in b), {x for x in b}, max(b)"
    assert Walks(ast.parse(right)).found == []
