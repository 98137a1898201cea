"""StableHLO programs into the graph IR: modules of MLIR, files of them, and what ``jax.export`` makes.

In: an ``Exported``, or the text or bytecode of a module. Out: a ``Graph`` whose inputs have the names of the program's
arguments, and how it is called; or one ``ImportFailed`` that lists everything that stops the import.
Not its business: reading modules (``module``), walking operations (``walk``), and which op each becomes (``ops``).

A symbolic size of ``jax.export`` is a symbol of ours of the same name and at least 1, as JAX has it; of a module that
says only that a size is dynamic, one called ``<input>_d<axis>``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tilewright.core.diag import ImportFailed, Loc, Problem
from tilewright.core.expr import Dim, Expr, Sym
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import TensorType
from tilewright.frontend.complex_pairs import Pair, from_parts, join_parts
from tilewright.frontend.size_rules import with_size_rules
from tilewright.frontend.stablehlo.module import parse
from tilewright.frontend.stablehlo.operation import NoForm, value_type
from tilewright.frontend.stablehlo.sizes import Shape, argument_shapes
from tilewright.frontend.stablehlo.structure import convention_of
from tilewright.frontend.stablehlo.walk import LOST, BlockWalker, Held, Several, ValueScope, members_of
from tilewright.runtime.files import map_file
from tilewright.runtime.structure import FLAT, Convention

SUFFIXES = (".mlir", ".mlirbc", ".stablehlo")
"""What the names of StableHLO's files end in."""


@dataclass(frozen=True)
class ImportedModule:
    """A graph, how it is called, and the names of inputs and outputs that are parts of complex numbers."""

    graph: Graph
    convention: Convention = FLAT
    complex_inputs: frozenset[str] = frozenset()
    complex_outputs: frozenset[str] = frozenset()


def import_exported(exported: Any) -> ImportedModule:
    """The graph of a ``jax.export.Exported``, called with arguments of the structure that it was exported with."""
    module = parse(exported.mlir_module_serialized, exported.fun_name, is_trusted=True)
    kept = exported.module_kept_var_idx
    avals = [exported.in_avals[k] for k in kept]
    made = import_module(module, exported.fun_name, argument_shapes(avals))
    names, results = made.graph.input_names, len(made.graph.outputs)
    convention = convention_of(exported.in_tree, exported.out_tree, list(kept), names, results)
    return ImportedModule(made.graph, convention, made.complex_inputs, made.complex_outputs)


def import_file(path: Path, data: bytes | None = None) -> ImportedModule:
    """The graph of a file's module, text or bytecode."""
    from_file = bytes(map_file(path)[0]) if data is None else data
    return import_module(parse(from_file, str(path)), path.stem)


def import_module(module: Any, name: str, shapes: Sequence[Shape] | None = None) -> ImportedModule:
    """The graph of ``@main``, the function called so or the only public one."""
    try:
        return _imported(module, name, shapes)
    except RuntimeError as e:
        if UNREADABLE_NAME not in str(e):
            raise
        problem = Problem(Loc(name), "module", "a name in it is no text in UTF-8", "export it anew")
        raise ImportFailed("the StableHLO module can't be read", [problem]) from e


UNREADABLE_NAME = "conversion error"
"""What MLIR's bindings say, in an error of no type of its own, where a name is no text."""


def _imported(module: Any, name: str, shapes: Sequence[Shape] | None) -> ImportedModule:
    functions = {
        op.operation.attributes["sym_name"].value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    main = _main_of(functions)
    pool = Pool()
    walker = BlockWalker(functions, ValueScope(pool))
    block, inputs = main.regions[0].blocks[0], _Inputs(walker)
    arguments = [
        inputs.add(argument.type, _argument_name(argument, k), () if shapes is None else shapes[k])
        for k, argument in enumerate(block.arguments)
    ]
    outputs = walker.block(block, arguments)
    if walker.problems:
        raise ImportFailed(
            f"{len(walker.problems)} operations of the StableHLO program have no form here", walker.problems
        )
    made = members_of(outputs)
    nodes = tuple(join_parts(Builder(pool), x) if isinstance(x, Pair) else x for x in made)
    names = _result_names(main, len(nodes))
    complex_outputs = frozenset(n for n, x in zip(names, made, strict=True) if isinstance(x, Pair))
    title, rules = re.sub(r"\W+", "_", name) or "main", walker.rules()
    graph = with_size_rules(Graph(title, pool, tuple(inputs.nodes), nodes, names, rules))
    return ImportedModule(graph, FLAT, frozenset(inputs.complex_names), complex_outputs)


def _main_of(functions: dict[str, Any]) -> Any:
    public = [
        f
        for f in functions.values()
        if "sym_visibility" not in f.attributes or f.attributes["sym_visibility"].value == "public"
    ]
    main = functions.get("main") or (public[0] if len(public) == 1 else None)
    if main is None or not main.regions[0].blocks:
        problem = Problem(Loc("the module"), "func.func", f"no function @main among {sorted(functions)}", "name one so")
        raise ImportFailed("the StableHLO module can't be called", [problem])
    return main


@dataclass
class _Inputs:
    """The inputs of a graph, one for each tensor of the arguments; complex ones as their parts along a last axis."""

    walker: BlockWalker
    nodes: list[Node] = field(default_factory=list)
    complex_names: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def add(self, mlir_type: Any, name: str, given: Shape) -> Held:
        """What stands for an argument, or a member of one; ``given`` is what the export says of its sizes."""
        if hasattr(mlir_type, "num_types"):
            types = [mlir_type.get_type(k) for k in range(mlir_type.num_types)]
            return Several(tuple(self.add(t, f"{name}_{k}", ()) for k, t in enumerate(types)))
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        loc, pool = Loc(f'input "{name}"'), self.walker.scope.pool
        try:
            t = value_type(mlir_type)
        except NoForm as e:
            self.walker.problems.append(Problem(loc, "input", e.rule, e.remedy))
            return LOST
        sizes = zip_longest(t.shape, given[: len(t.shape)])  # of random keys all but the axis of their numbers is given
        shape = tuple(_dim(n, d, f"{name}_d{a}") for a, (n, d) in enumerate(sizes))
        node = pool.input(name, TensorType(t.dtype, (*shape, 2) if t.is_complex else shape), loc)
        self.nodes.append(node)
        self.complex_names += [name] if t.is_complex else []
        return from_parts(Builder(pool, loc), node) if t.is_complex else node


def _dim(stated: int | None, given: Dim | None, name: str) -> Dim:
    """A size: the number that the program states, else what the export says, else a symbol."""
    if stated is not None:
        return stated
    return given if isinstance(given, int | Expr) else Sym(name, 1)


def _argument_name(argument: Any, k: int) -> str:
    """The user's name for an argument, where the program keeps it: ``params['w']`` is ``params_w``."""
    found = re.match(r'loc\("([^"]+)"\)$', str(argument.location))
    name = re.sub(r"\W+", "_", found.group(1)).strip("_") if found else ""
    return name if name and not name[0].isdigit() else f"arg{k}"


def _result_names(main: Any, n: int) -> tuple[str, ...]:
    """The places of results in what the function gives, where the program keeps them: ``result['a']`` is ``a``."""
    names: list[str] = []
    attributes = list(main.attributes["res_attrs"]) if "res_attrs" in main.attributes else []
    for k in range(n):
        info = attributes[k] if k < len(attributes) else {}
        text = info["jax.result_info"].value if "jax.result_info" in info else ""
        name = re.sub(r"\W+", "_", text.removeprefix("result")).strip("_")
        if not name or name[0].isdigit():
            name = "output" if n == 1 else f"output_{name or k}"
        while name in names:
            name += "_"
        names.append(name)
    return tuple(names)
