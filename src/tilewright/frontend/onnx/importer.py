"""ONNX models into the graph IR.

In: a path, bytes or a ``ModelProto``. Out: a ``Graph`` whose nodes carry the names of the model's nodes, or one
``ImportFailed`` that lists everything that stops the import.
Not its business: reading files (``onnx.file``), walking nodes (``onnx.walk``), ops (``onnx_ops_*``), optimisation.

Symbolic dimensions: each ``dim_param`` becomes one symbol of at least 1, each unknown dimension a symbol of its own
called ``<input>_d<axis>``; ``input_shapes`` fixes or names them. Symbols that the nodes need equal to each other or to
a number become that (``onnx.unify``): the shapes of the graph's inputs tell.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.core import expr
from tilewright.core.diag import CompileError, ImportFailed, Loc, Problem
from tilewright.core.dims import known_over, numbers
from tilewright.core.expr import Dim, Sym
from tilewright.core.graph import Graph, Node, Pool
from tilewright.core.specialize import chosen
from tilewright.core.types import DType, TensorType, u8
from tilewright.frontend.onnx.call import Absent, Items, Stacked
from tilewright.frontend.onnx.file import (
    ELEMENT_TYPES,
    STRING,
    STRINGS_REMEDY,
    STRINGS_RULE,
    BadTensor,
    Source,
    TensorReader,
    element_type,
    fixed_size,
    read_model,
)
from tilewright.frontend.onnx.given import (
    MAX_ELEMENTS,
    Elements,
    Facts,
    Given,
    InputInfo,
    NeedsCall,
    Nothing,
    Sequence_,
    Shape,
    Sizes,
)
from tilewright.frontend.onnx.shapes import Values, as_values
from tilewright.frontend.onnx.unify import solve
from tilewright.frontend.onnx.walk import IN_SUB_GRAPH, MIN_OPSET, STRINGS, Frame, Scope, Walker
from tilewright.frontend.size_rules import with_size_rules

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

InputShapes: TypeAlias = Mapping[str, Sequence["int | str | None"]]
Shapes: TypeAlias = dict[str, Sequence["int | str | None"]]
MAX_ATTEMPTS = 32
TRIED_SIZES = (512, 64, 1)
"""Numbers for all symbols at once that tell whether only sizes stand in the way of an import."""


def import_onnx(
    source: str | Path | bytes | ModelProto,
    *,
    input_shapes: InputShapes | None = None,
    fix_dims: Mapping[str, int] | None = None,
    name: str | None = None,
) -> Graph:
    """The model as a graph; ``NeedsCall`` when only the values of a call's inputs decide its structure.

    ``input_shapes`` maps an input's name to its shape: a number fixes a dimension (everywhere that dimension's name
    occurs), a string names it, None leaves it as the model says. ``fix_dims`` gives symbolic dimensions a number.
    """
    made = import_for_call(read_model(source), {}, input_shapes, fix_dims, name)
    if any(r is not None for r in made.results):
        raise NeedsCall([], ())
    return made.graph


@dataclass(frozen=True)
class Imported:
    """A graph, and for each output of the model how many results it is: None for a tensor, else a sequence's length.

    An empty optional is -1. The graph has the results of all outputs in order.
    """

    graph: Graph
    results: tuple[int | None, ...]


def import_for_call(
    read: Source,
    facts: Facts,
    input_shapes: InputShapes | None = None,
    fix_dims: Mapping[str, int] | None = None,
    name: str | None = None,
) -> Imported:
    """The model as a graph for all calls of which ``facts`` hold."""
    shapes = dict(input_shapes or {})
    fixed = known = _fixed(read, shapes, facts, fix_dims or {})
    for _ in range(MAX_ATTEMPTS):
        result = _attempt(read, shapes, known, name, facts)
        if isinstance(result, Imported):
            return result
        problems, learnt, waits_for = result
        if waits_for:
            raise NeedsCall(problems, waits_for)
        if not learnt:
            break
        known = {s: expr.substitute(d, learnt) for s, d in known.items()} | learnt
    if _fits_some_sizes(read, shapes, facts, fixed, problems):
        raise NeedsCall(problems, (), sizes=True)
    raise ImportFailed("the ONNX model can't be imported", problems)


def _fits_some_sizes(
    source: Source, shapes: Shapes, facts: Facts, fixed: Mapping[Sym, Dim], problems: Sequence[Problem]
) -> bool:
    """Would the model be read if its symbols were numbers? Tries some; a problem that stays as it is says no."""
    header = _Header(source.model, shapes, fixed, facts)
    free = _symbols(header.inputs(Pool(), Scope()))
    for size in TRIED_SIZES if free else ():
        tried = dict.fromkeys(sorted(free, key=expr.symbol_order), size)
        result = _attempt(source, shapes, {**fixed, **tried}, None, facts)
        if isinstance(result, Imported) or result[2]:
            return True
        if any(p in problems and p.rule != IN_SUB_GRAPH for p in result[0]):
            break
    return False


def _fixed(source: Source, shapes: Shapes, facts: Facts, sizes: Mapping[str, int]) -> dict[Sym, Dim]:
    """The symbols of the inputs that are given a size; ``OptionError`` for a wrong name or size."""
    if not sizes:
        return {}
    header = _Header(source.model, shapes, {}, facts)
    return chosen(_symbols(header.inputs(Pool(), Scope())), sizes)


def _symbols(nodes: Sequence[Node]) -> set[Sym]:
    """The symbols in the nodes' shapes."""
    return {s for n in nodes for d in n.shape for s in expr.symbols(d)}


Failure: TypeAlias = "tuple[list[Problem], dict[Sym, Dim], tuple[str, ...]]"
"""Problems, values of symbols that the nodes determine, and the inputs whose values alone stand in the way."""


def _attempt(
    source: Source, shapes: Shapes, known: Mapping[Sym, Dim], name: str | None, facts: Facts
) -> Imported | Failure:
    """The graph with some symbols of the inputs ``known``; else why not."""
    model = source.model
    header = _Header(model, shapes, known, facts)
    pool = Pool()
    walker = Walker(pool, TensorReader(source.folder), header.functions)
    scope = Scope()
    inputs = header.inputs(pool, scope)
    walker.problems = header.problems  # one list, in the order of the file
    walker.undecided = header.undecided
    walker.emitter.decidable = header.decidable
    for node, values in header.sizes:
        walker.emitter.note(node, values)
    walker.input_symbols = _symbols(inputs)
    if header.fatal:  # nodes would complain of inputs that are not there
        return header.problems + header.strings, {}, walker.waits_for()
    outputs = walker.graph(model.graph, scope, Frame(header.opsets), source.numbers)
    walker.problems += header.strings
    if walker.problems:
        # sizes that the nodes need equal: the next attempt knows them
        return walker.problems, solve(walker.emitter.wanted_equal, walker.input_symbols), walker.waits_for()
    found: list[Node] = []
    names: list[str] = []
    results: list[int | None] = []
    for value, o in zip(outputs, model.graph.output, strict=True):
        if isinstance(value, Stacked):
            rule = "a sequence whose length a call decides"
            problem = Problem(Loc(f'output "{o.name}"'), "output", rule, "give its tensors as one")
            return [problem], {}, value.waits_for
        assert isinstance(value, Node | Items | Absent)
        nodes = (value,) if isinstance(value, Node) else value.nodes if isinstance(value, Items) else ()
        found += nodes
        names += [o.name] if isinstance(value, Node) else [f"{o.name}[{k}]" for k in range(len(nodes))]
        results.append(None if isinstance(value, Node) else -1 if isinstance(value, Absent) else len(nodes))
    graph = Graph(
        name or model.graph.name or "model", pool, inputs, tuple(found), tuple(names), tuple(walker.constraints)
    )
    return Imported(with_size_rules(graph).with_checks(walker.checks), tuple(results))


class _Header:
    """What a model says before its nodes: versions, functions, inputs. Collects problems."""

    def __init__(self, model: ModelProto, input_shapes: Shapes, known: Mapping[Sym, Dim], facts: Facts) -> None:
        self.problems: list[Problem] = []
        self.strings: list[Problem] = []  # inputs of strings, reported after the nodes that read them
        self.undecided: dict[str, list[Problem]] = {}
        self.decidable: set[Node] = set()
        self.sizes: list[tuple[Node, Values]] = []
        self._facts = facts
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
            if not info.name or info.name in scope.names:
                self._problem(str(loc), "has no name or that of another input", "rename it", fatal=True)
                continue
            try:
                found += self._input(info, pool, scope, loc)
            except CompileError as e:
                self.problems.extend(e.problems)
                self.fatal = True
        return tuple(found)

    def _input(self, info: ValueInfoProto, pool: Pool, scope: Scope, loc: Loc) -> list[Node]:
        """The nodes of one input, its name bound; empty where it has no tensor or a problem."""
        given, type_proto = self._facts.get(info.name), info.type
        if _element_code(type_proto) == STRING:
            self.strings.append(Problem(loc, "model", STRINGS_RULE, STRINGS_REMEDY))
            scope.names[info.name] = STRINGS  # not fatal yet: nodes that read it are named, too
            return []
        if isinstance(given, Nothing):  # an optional that the call leaves empty
            scope.bind(info.name, Absent())
            return []
        if type_proto.WhichOneof("value") == "optional_type":
            type_proto = type_proto.optional_type.elem_type
            if given is None:
                return self._waits(info.name, "is an optional, and the call says whether it is there")
        if type_proto.WhichOneof("value") == "sequence_type":
            if not isinstance(given, Sequence_):
                return self._waits(info.name, "is a sequence, and the call says of how many tensors")
            dtype = self._dtype(info.name, type_proto.sequence_type.elem_type.tensor_type.elem_type)
            if dtype is None:
                return []
            types = [TensorType(dtype, s) for s in given.shapes]
            nodes = [pool.input(f"{info.name}[{k}]", t, loc) for k, t in enumerate(types)]
            scope.bind(info.name, Items(tuple(nodes)))
            return nodes
        type_ = self._input_type(info.name, type_proto, given)
        if type_ is None:
            self.fatal = True
            return []
        node = pool.input(info.name, type_, loc)
        scope.bind(info.name, node)
        if isinstance(given, Elements):
            # nodes read the values; the input stays, as calls still pass it
            scope.names[info.name] = pool.const(given.array(type_.dtype.numpy), None, loc)
            return [node]
        size = type_.n_elements
        if type_.rank <= 1 and not known_over(size, MAX_ELEMENTS):
            self.decidable.add(node)  # small enough to be a shape or a condition that a call may settle
        if isinstance(given, Sizes):
            symbols = [self._sym(f"{info.name}_v{k}", 0) for k in range(given.n)]
            shape = numbers(type_.shape)
            self.sizes.append((node, as_values(symbols).reshape(shape)))
            # the values come in once more, as the shape of a tensor without elements
            return [node, pool.input(f"{info.name}.sizes", TensorType(u8, (*symbols, 0)), loc)]
        return [node]

    def _waits(self, name: str, rule: str) -> list[Node]:
        """Note that only a call tells what this input is."""
        self._problem(f'input "{name}"', rule, fatal=True)
        self.undecided.setdefault(name, []).append(self.problems[-1])
        return []

    def _fix_names(self, infos: Sequence[ValueInfoProto]) -> None:
        """Names of dimensions that ``input_shapes`` fixes or renames, wherever they occur."""
        for info in infos:
            dims = info.type.tensor_type.shape.dim
            given = self._shapes.get(info.name)
            for dim, value in zip(dims, given or (), strict=False):
                param = _name_of(dim)
                if value is None or not param:
                    continue
                if self._fixed.setdefault(param, value) != value:
                    rule = f"dimension {param} is fixed to {value} here and to {self._fixed[param]} elsewhere"
                    self._problem(f'input_shapes["{info.name}"]', rule)

    def _dtype(self, name: str, code: int) -> DType | None:
        try:
            return element_type(code)
        except BadTensor as e:
            self._problem(f'input "{name}"', e.rule, e.remedy, fatal=True)
            return None

    def _input_type(self, name: str, type_: TypeProto, fact: Given | None) -> TensorType | None:
        where = f'input "{name}"'
        tensor = type_.tensor_type
        if type_.WhichOneof("value") != "tensor_type":
            kind = type_.WhichOneof("value") or "no type"
            self._problem(where, f"is of {kind}; only tensors can enter a model", "pass its tensors as inputs")
            return None
        dtype = self._dtype(name, tensor.elem_type)
        if dtype is None:
            return None
        given: Sequence[int | str | None] | None = self._shapes.get(name)
        if isinstance(fact, Shape):
            given = fact.dims
        if not tensor.HasField("shape") and given is None:
            self._waits(name, "does not say its rank, which the call does")
            return None
        model_dims: list[Any] = list(tensor.shape.dim) if tensor.HasField("shape") else [None] * len(given or ())
        if given is not None and len(given) != len(model_dims):
            self._problem(where, f"has {len(model_dims)} dimensions and input_shapes gives {len(given)}")
            return None
        shape = [self._dim(name, k, d, given[k] if given else None) for k, d in enumerate(model_dims)]
        return TensorType(dtype, tuple(expr.substitute(d, self._known) for d in shape))

    def _dim(self, name: str, axis: int, dim: Any, given: int | str | None) -> Dim:
        fixed = fixed_size(dim) if dim is not None else None
        if fixed is not None:
            if isinstance(given, int) and given != fixed:
                self._problem(
                    f'input "{name}"', f"dimension {axis} is {fixed} in the model and {given} in input_shapes"
                )
            return fixed
        if isinstance(given, int) and not isinstance(given, bool):
            if given < 0:
                self._problem(f'input_shapes["{name}"]', f"dimension {axis} is negative")
            return max(given, 0)
        text = given if isinstance(given, str) and given else _name_of(dim)
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

    def _sym(self, name: str, lo: int = 1) -> Sym:
        """The symbol for a dimension's name, spelled so that expressions print and parse."""
        if name not in self._syms:
            spelled = re.sub(r"\W", "_", name, flags=re.ASCII)
            if not spelled or spelled[0].isdigit() or keyword.iskeyword(spelled) or spelled in ("min", "max"):
                spelled = f"d_{spelled}"
            while spelled in self._spelled:
                spelled += "_"
            self._spelled[spelled] = name
            self._syms[name] = Sym(spelled, lo)
        return self._syms[name]


def _name_of(dim: Any) -> str:
    """The name of a dimension; empty where it has none, or a sign such as "?" or "_" for whatever size."""
    text = dim.dim_param if dim is not None else ""
    if isinstance(text, bytes):  # what protobuf gives for a name that is not UTF-8
        text = text.decode("utf-8", "replace")
    return str(text) if any(c.isalnum() for c in text) else ""


def _element_code(type_: TypeProto) -> int:
    """The code of the elements, in sequences and optionals too; 0 where the type says none."""
    match type_.WhichOneof("value"):
        case "tensor_type":
            return int(type_.tensor_type.elem_type)
        case "sequence_type":
            return _element_code(type_.sequence_type.elem_type)
        case "optional_type":
            return _element_code(type_.optional_type.elem_type)
    return 0


def declared_inputs(source: Source) -> tuple[InputInfo, ...]:
    """The inputs that a call gives, as the model declares them."""
    graph = source.model.graph
    initial = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return tuple(_declared(i.name, i.type) for i in graph.input if i.name not in initial)


def _declared(name: str, type_: TypeProto) -> InputInfo:
    is_optional = type_.WhichOneof("value") == "optional_type"
    inner = type_.optional_type.elem_type if is_optional else type_
    is_sequence = inner.WhichOneof("value") == "sequence_type"
    tensor = (inner.sequence_type.elem_type if is_sequence else inner).tensor_type
    dims = None
    if tensor.HasField("shape"):
        sizes = [fixed_size(d) for d in tensor.shape.dim]
        dims = tuple(_name_of(d) if size is None else size for d, size in zip(tensor.shape.dim, sizes, strict=True))
    dtype = ELEMENT_TYPES[tensor.elem_type].numpy.name if tensor.elem_type in ELEMENT_TYPES else "unknown"
    return InputInfo(name, dtype, dims, is_sequence, is_optional)
