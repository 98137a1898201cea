"""ONNX models into the graph IR.

In: a path, bytes or a ``ModelProto``. Out: a ``Graph`` whose nodes carry the names of the model's nodes, or one
``ImportFailed`` that lists everything that stops the import.
Not its business: reading files (``onnx_file``), walking nodes (``onnx_walk``), ops (``onnx_ops_*``), optimisation.

Symbolic dimensions: each ``dim_param`` becomes one symbol of at least 1, each unknown dimension a symbol of its own
called ``<input>_d<axis>``; ``input_shapes`` fixes or names them. Symbols that the nodes need equal to each other or to
a number become that (``onnx_unify``): the shapes of the graph's inputs tell.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.core import expr
from tilewright.core.diag import CompileError, ImportFailed, Loc, Problem
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Graph, Node, Pool
from tilewright.core.types import TensorType
from tilewright.frontend.onnx_file import BadTensor, Source, TensorReader, element_type, read_model
from tilewright.frontend.onnx_unify import solve
from tilewright.frontend.onnx_walk import MIN_OPSET, Frame, Scope, Walker

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

InputShapes: TypeAlias = Mapping[str, Sequence["int | str | None"]]
Shapes: TypeAlias = dict[str, Sequence["int | str | None"]]
MAX_ATTEMPTS = 32


def import_onnx(
    source: str | Path | bytes | ModelProto, *, input_shapes: InputShapes | None = None, name: str | None = None
) -> Graph:
    """The model as a graph.

    ``input_shapes`` maps an input's name to its shape: a number fixes a dimension (everywhere that dimension's name
    occurs), a string names it, None leaves it as the model says.
    """
    read = read_model(source)
    known: dict[Sym, Dim] = {}
    for _ in range(MAX_ATTEMPTS):
        result = _attempt(read, dict(input_shapes or {}), known, name)
        if isinstance(result, Graph):
            return result
        problems, learnt = result
        if not learnt:
            break
        known = {s: expr.substitute(d, learnt) for s, d in known.items()} | learnt
    raise ImportFailed("the ONNX model can't be imported", problems)


def _attempt(
    source: Source, shapes: Shapes, known: Mapping[Sym, Dim], name: str | None
) -> Graph | tuple[list[Problem], dict[Sym, Dim]]:
    """The graph with some symbols of the inputs ``known``; else the problems, and more symbols that they determine."""
    model = source.model
    header = _Header(model, shapes, known)
    pool = Pool()
    walker = Walker(pool, TensorReader(source.folder), header.functions)
    scope = Scope()
    inputs = header.inputs(pool, scope)
    walker.problems = header.problems
    walker.input_symbols = {s for n in inputs for d in n.shape for s in expr.symbols(d)}
    if header.fatal:
        return header.problems, {}
    outputs = walker.graph(model.graph, scope, Frame(header.opsets), source.numbers)
    nodes = [_checked_output(v, o.name, walker) for v, o in zip(outputs, model.graph.output, strict=True)]
    if walker.problems:
        return walker.problems, solve(walker.emitter.wanted_equal, walker.input_symbols)
    found = tuple(n for n in nodes if n is not None)
    output_names = tuple(o.name for o in model.graph.output)
    return Graph(name or model.graph.name or "model", pool, inputs, found, output_names, tuple(walker.constraints))


def _checked_output(value: object, name: str, walker: Walker) -> Node | None:
    if isinstance(value, Node):
        return value
    if not walker.problems:
        rule = "is a sequence or optional, and only tensors can leave a model"
        walker.problems.append(
            Problem(Loc(f'output "{name}"'), "output", rule, "make its elements outputs of their own")
        )
    return None


class _Header:
    """What a model says before its nodes: versions, functions, inputs. Collects problems."""

    def __init__(self, model: ModelProto, input_shapes: Shapes, known: Mapping[Sym, Dim]) -> None:
        self.problems: list[Problem] = []
        self.fatal = False
        self._graph: GraphProto = model.graph
        self._shapes = input_shapes
        self._known = known
        self._syms: dict[str, Sym] = {}
        self._spelled: dict[str, str] = {}
        self._fixed: dict[str, int | str] = {}
        self.opsets = {"" if o.domain == "ai.onnx" else o.domain: int(o.version) for o in model.opset_import}
        self.functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in model.functions}
        self._check(model)

    def _problem(self, where: str, rule: str, remedy: str = "", *, fatal: bool = False) -> None:
        self.problems.append(Problem(Loc(where), "model", rule, remedy))
        self.fatal |= fatal

    def _check(self, model: ModelProto) -> None:
        from onnx import defs

        newest = defs.onnx_opset_version()
        damaged = "the file is damaged or not an ONNX model; export it again"
        if not model.HasField("graph") or not model.graph.output:
            self._problem("model", "has no graph with outputs", damaged, fatal=True)
            return
        version = self.opsets.get("")
        if version is None:
            if any(n.domain in ("", "ai.onnx") for n in model.graph.node):
                self._problem("model", "does not say which opset it is written in", damaged, fatal=True)
        elif not MIN_OPSET <= version <= newest:
            remedy = f"onnx.version_converter.convert_version(model, {newest})"
            rule = f"is written in opset {version}, outside of {MIN_OPSET} to {newest}"
            self._problem("model", rule, remedy, fatal=True)
        names = [o.name for o in model.graph.output]
        for twice in sorted({n for n in names if names.count(n) > 1} if len(names) < 1000 else set()):
            self._problem(f'output "{twice}"', "is listed twice", damaged)

    # --- inputs ---

    def inputs(self, pool: Pool, scope: Scope) -> tuple[Node, ...]:
        """The model's inputs as nodes, bound in ``scope``; initializers that are listed as inputs are constants."""
        initial = {t.name for t in self._graph.initializer} | {t.values.name for t in self._graph.sparse_initializer}
        infos = [i for i in self._graph.input if i.name not in initial]
        for name in sorted(self._shapes.keys() - {i.name for i in infos}):
            known = ", ".join(i.name for i in infos[:20])
            self._problem(f'input_shapes["{name}"]', "names no input of the model", f"inputs: {known}")
        self._fix_names(infos)
        found: list[Node] = []
        for info in infos:
            loc = Loc(f'input "{info.name}"')
            type_ = self._input_type(info)
            if type_ is None:
                self.fatal = True
                continue
            if not info.name or info.name in scope.names:
                self._problem(str(loc), "has no name or that of another input", "rename it", fatal=True)
                continue
            try:
                node = pool.input(info.name, type_, loc)
            except CompileError as e:
                self.problems.extend(e.problems)
                self.fatal = True
                continue
            scope.bind(info.name, node)
            found.append(node)
        return tuple(found)

    def _fix_names(self, infos: Sequence[ValueInfoProto]) -> None:
        """Names of dimensions that ``input_shapes`` fixes or renames, wherever they occur."""
        for info in infos:
            dims = info.type.tensor_type.shape.dim
            given = self._shapes.get(info.name)
            for dim, value in zip(dims, given or (), strict=False):
                if value is None or not dim.dim_param:
                    continue
                if self._fixed.setdefault(dim.dim_param, value) != value:
                    other = self._fixed[dim.dim_param]
                    rule = f"dimension {dim.dim_param} is fixed to {value} here and to {other} elsewhere"
                    self._problem(f'input_shapes["{info.name}"]', rule)

    def _input_type(self, info: ValueInfoProto) -> TensorType | None:
        where = f'input "{info.name}"'
        tensor = info.type.tensor_type
        if info.type.WhichOneof("value") != "tensor_type":
            kind = info.type.WhichOneof("value") or "no type"
            self._problem(where, f"is of {kind}; only tensors can enter a model", "pass its tensors as inputs")
            return None
        try:
            dtype = element_type(tensor.elem_type)
        except BadTensor as e:
            self._problem(where, e.rule, e.remedy)
            return None
        given = self._shapes.get(info.name)
        if not tensor.HasField("shape") and given is None:
            self._problem(where, "does not say its rank", f'give its shape: input_shapes={{"{info.name}": [...]}}')
            return None
        model_dims: list[Any] = list(tensor.shape.dim) if tensor.HasField("shape") else [None] * len(given or ())
        if given is not None and len(given) != len(model_dims):
            self._problem(where, f"has {len(model_dims)} dimensions and input_shapes gives {len(given)}")
            return None
        shape = [self._dim(info.name, k, d, given[k] if given else None) for k, d in enumerate(model_dims)]
        return TensorType(dtype, tuple(expr.substitute(d, self._known) for d in shape))

    def _dim(self, name: str, axis: int, dim: Any, given: int | str | None) -> Dim:
        says = dim is not None and dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0
        fixed = dim.dim_value if says else None
        if fixed is not None:
            if isinstance(given, int) and given != fixed:
                self._problem(
                    f'input "{name}"', f"dimension {axis} is {fixed} in the model and {given} in input_shapes"
                )
            return int(fixed)
        if isinstance(given, int) and not isinstance(given, bool):
            if given < 0:
                self._problem(f'input_shapes["{name}"]', f"dimension {axis} is negative")
            return max(given, 0)
        text = given if isinstance(given, str) and given else (dim.dim_param if dim is not None else "")
        if isinstance(text, bytes):  # what protobuf gives for a name that is not UTF-8
            text = text.decode("utf-8", "replace")
        return self._named(text) if text else self._sym(f"{name}_d{axis}")

    def _named(self, text: str) -> Dim:
        """A ``dim_param``: a name, or an expression of names such as ``past_length + 1``."""
        fixed = self._fixed.get(text, text)
        if isinstance(fixed, int):
            return fixed
        if re.fullmatch(r"[\w\s+*()-]{1,200}", fixed) and not fixed.isidentifier():
            try:
                return expr.parse(fixed, lambda n: self._named(n) if n != fixed else self._sym(n))
            except ValueError:
                pass
        return self._sym(fixed)

    def _sym(self, name: str) -> Sym:
        """The symbol for a dimension's name, spelled so that expressions print and parse."""
        if name not in self._syms:
            spelled = re.sub(r"\W", "_", name, flags=re.ASCII)
            if not spelled or spelled[0].isdigit() or keyword.iskeyword(spelled) or spelled in ("min", "max"):
                spelled = f"d_{spelled}"
            while spelled in self._spelled:
                spelled += "_"
            self._spelled[spelled] = name
            self._syms[name] = Sym(spelled, 1)
        return self._syms[name]
