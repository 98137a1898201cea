"""PyTorch programs into the graph IR, by way of ``torch.export``.

In: an ``ExportedProgram``, or a module with example inputs. Out: a ``Graph`` whose weights are constants, inputs keep
the names of ``forward``'s arguments, and dynamic dimensions are symbols with bounds.
Not its business: ``torch.compile`` (``torch_compile``); the meaning of single calls (``torch.aten``).
"""

from __future__ import annotations

import inspect
import io
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tilewright import ops
from tilewright.core.diag import UNKNOWN, ImportFailed, Loc, OptionError, Problem
from tilewright.core.dims import is_known
from tilewright.core.expr import Sym, maximum
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.types import Array, i64
from tilewright.frontend.complex_pairs import COMPLEX_PARTS, HALF_PARTS, Pair, join_parts
from tilewright.frontend.nodes import dim_scalar
from tilewright.frontend.size_rules import with_size_rules
from tilewright.frontend.torch.archive import refuse_code
from tilewright.frontend.torch.aten.call import Draws, SymFloat, Unsupported, as_node
from tilewright.frontend.torch.examples import capture_failure, check_dynamic_shapes, check_examples, check_has_elements
from tilewright.frontend.torch.functional import decomposed
from tilewright.frontend.torch.fx.forms import has_form, is_about_complex
from tilewright.frontend.torch.fx.guards import Promises, promised
from tilewright.frontend.torch.fx.inplace import NO_WRITES, Writes, writes_of
from tilewright.frontend.torch.fx.rounded import RoundedSize
from tilewright.frontend.torch.fx.symbols import SymbolTable, lone_symbol
from tilewright.frontend.torch.fx.walk import FAILED, IGNORED, TOKEN, Failed, Importer
from tilewright.frontend.torch.guards import guards_of
from tilewright.frontend.torch.ones import least_sizes, slices_inside
from tilewright.frontend.torch.splice import spliced
from tilewright.frontend.torch.structure import module_names, parameters_of, register_containers, result_of
from tilewright.frontend.torch.tensors import to_numpy
from tilewright.frontend.torch.tracing import tracing
from tilewright.runtime.errors import InputError
from tilewright.runtime.files import map_file
from tilewright.runtime.formats import EXPORTED, recognise
from tilewright.runtime.once import MAKING
from tilewright.runtime.structure import FLAT, Convention, State

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

STATE_WRITES = frozenset({"BUFFER_MUTATION", "PARAMETER_MUTATION"})
"""What a program does to its module's own tensors."""

RANDOM = ""
"""In place of a tensor's name: the state of the random numbers."""

Examples: TypeAlias = "Sequence[Any] | Mapping[str, Any]"
"""Arguments of a module's ``forward``, in order or by name."""


def import_module(
    module: torch.nn.Module, example_inputs: Examples, dynamic_shapes: Any = None, *, name: str | None = None
) -> Graph:
    """The graph of ``module`` in evaluation mode on inputs like ``example_inputs``.

    ``dynamic_shapes`` is ``torch.export.export``'s. Raises ``ImportFailed`` with every unsupported call.
    """
    return import_called(module, example_inputs, dynamic_shapes, name=name).graph


def import_called(
    module: torch.nn.Module, example_inputs: Examples, dynamic_shapes: Any = None, *, name: str | None = None
) -> ImportedProgram:
    """:func:`import_module`, with how the module is called."""
    program = export_module(module, example_inputs, dynamic_shapes)
    dimensions = _dimension_names(program, _specs(module, example_inputs, dynamic_shapes))
    args, _ = _arguments(example_inputs)
    names = module_names(inspect.signature(module.forward).parameters, len(args))
    return import_with_values(
        program, name=name or type(module).__name__, dimension_names=dimensions, argument_names=names
    )


def module_of(function: Callable[..., Any]) -> torch.nn.Module:
    """A module whose ``forward`` is the function, which is what ``torch.export`` takes.

    Tensors and modules that the function reads beside its arguments are constants of the program.
    """
    import torch

    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    # torch.export asks for code, which an object with __call__ has not, and for a signature, which a function that is
    # no Python need not tell.
    has_code, module = isinstance(function, FunctionType | MethodType | partial), torch.nn.Module()
    try:
        called.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    except ValueError:
        has_code = False
    module.forward = function if has_code else called
    return module


def export_module(module: torch.nn.Module, inputs: Examples, dynamic_shapes: Any = None) -> ExportedProgram:
    """The program of ``module`` in evaluation mode."""
    import torch

    check_examples(module, inputs)
    check_dynamic_shapes(dynamic_shapes)
    register_containers()
    with tracing(), torch.no_grad(), _evaluating(module), _quickly(dynamic_shapes):
        return _export(module, inputs, dynamic_shapes)


def _quickly(dynamic_shapes: Any) -> Any:
    """A context in which ``torch.export`` does not keep what calls gave for calls alike.

    Where sizes are symbols, keeping that costs more than it spares: a third of the time of an export.
    """
    import torch._dynamo.config as settings

    return settings.patch(fake_tensor_cache_enabled=False) if dynamic_shapes else nullcontext()


def _arguments(inputs: Examples) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What ``forward`` is called with: arguments in order, arguments by name."""
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})


def _export(module: torch.nn.Module, inputs: Examples, dynamic_shapes: Any) -> ExportedProgram:
    """Capture by ``torch.export``; relations between sizes that it can't prove become run-time constraints."""
    import torch

    args, kwargs = _distinct(*_arguments(inputs))
    export = partial(torch.export.export, module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    try:
        return export()
    except Exception as e:  # it raises many kinds, all of which say why the module can't be captured
        if dynamic_shapes:
            with suppress(Exception):
                return export(prefer_deferred_runtime_asserts_over_guards=True)
        raise capture_failure(module, e) from e


def _distinct(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, where a tensor that is given twice is two: ``torch.export`` would take one for both ever after."""
    import torch
    from torch.utils import _pytree as pytree

    seen: set[int] = set()

    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        is_new = id(x) not in seen
        seen.add(id(x))
        return x if is_new else x.detach().clone()

    made: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(one, (args, kwargs))
    return made


def load_program(path: Path, data: bytes | None = None) -> ExportedProgram:
    """An exported program of a ``.pt2`` file, or of its bytes where they have been read."""
    if not path.is_file():
        raise InputError(f"there is no file {path}", remedy="check the path")
    found = recognise(map_file(path)[0] if data is None else memoryview(data))
    if found is not EXPORTED:  # of which PyTorch would log a trace first
        why, remedy = (f": it is {found.what}", found.remedy) if found else ("", "write it with torch.export.save")
        raise InputError(f"{path} holds no exported program{why}", remedy=remedy)
    try:
        with MAKING:
            import torch
    except ImportError as e:
        raise OptionError(f"{path} needs PyTorch", remedy='pip install "tilewright[torch]"') from e
    logged: list[BaseException] = []
    try:
        with tracing(), _kept_from_log("torch.export", logged):
            refuse_code(path, data)
            return torch.export.load(path if data is None else io.BytesIO(data))
    except InputError:
        raise
    except Exception as e:  # it raises many kinds for a file that is not one
        cause = logged[-1] if logged else e
        raise InputError(f"{path} holds no exported program: {cause}", remedy="write it with torch.export.save") from e


@contextmanager
def _kept_from_log(name: str, kept: list[BaseException]) -> Iterator[None]:
    """PyTorch logs the trace of what it fails at, tries an older format, and then raises what that fails at."""

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info is None or record.exc_info[1] is None:
            return True
        kept.append(record.exc_info[1])
        return False

    logger = logging.getLogger(name)
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def import_exported(
    program: ExportedProgram, *, name: str = "main", dimension_names: Mapping[str, str] | None = None
) -> Graph:
    """The graph of an exported program; programs of the training dialect are functionalised first."""
    return import_with_values(program, name=name, dimension_names=dimension_names).graph


@dataclass(frozen=True)
class ImportedProgram:
    """A graph with the program that was read, functional, and the node behind each fx node that has one.

    What in-place calls write, and what they write to, is not among ``nodes``. ``start`` has the arrays with which the
    convention's state begins. ``complex_inputs`` and ``complex_outputs`` name what the graph has as parts of complex
    numbers along a last axis.
    """

    graph: Graph
    program: ExportedProgram
    nodes: Mapping[Any, Node]
    convention: Convention = FLAT
    start: tuple[Array, ...] = ()
    complex_inputs: frozenset[str] = frozenset()
    complex_outputs: frozenset[str] = frozenset()


def import_with_values(
    program: ExportedProgram,
    *,
    name: str = "main",
    dimension_names: Mapping[str, str] | None = None,
    argument_names: Sequence[str] = (),
) -> ImportedProgram:
    """:func:`import_exported`, for those who want to know what became of each call, and how the program is called."""
    check_has_elements("the exported program", program.state_dict)
    given = program
    program, writes = _of_known_calls(program)
    symbols = SymbolTable(dimension_names, _place_names(program, dimension_names or {}))
    symbols.add_ranges(program.range_constraints, down_to=1)
    for symbol, least in least_sizes(program).items():
        symbols.at_least(symbol, least)
    importer = Importer(Pool(), symbols, program.graph_module)
    importer.checks = {}
    importer.draws = Draws(importer.pool, _unused("random_state", {n.name for n in program.graph.nodes}))
    _read_guards(importer, given, program)  # before the calls, whose sizes may rest on them
    symbols.measure_by(partial(_measured, importer))
    importer.read_assertions(program.graph)
    inputs, kept = _bind_inputs(importer, program)
    outputs = importer.run(program.graph, writes)
    if importer.draws.first is not None:  # the generator's state is an input like the module's own
        kept[RANDOM] = _Kept(importer.draws.first, np.array([_seed(), 0], np.uint64))
    nodes, names, convention, complex_outputs = _bind_outputs(importer, program, outputs, inputs, kept, argument_names)
    if importer.problems:
        raise ImportFailed(
            f"{len(importer.problems)} calls of the PyTorch program have no form here", importer.problems
        )
    every = (*inputs, *(k.node for k in kept.values()))
    rules = dict.fromkeys([*importer.constraints, *slices_inside(every, nodes)])
    graph = with_size_rules(Graph(name, importer.pool, every, nodes, names, tuple(rules))).with_checks(importer.checks)
    changed = writes.changing
    # a node that is written to has no one value to compare
    values = {k: v for k, v in importer.env.items() if isinstance(v, Node) and k not in changed}
    start = tuple(k.start for k in kept.values())
    return ImportedProgram(
        graph, program, values, convention, start, frozenset(importer.complex_inputs), complex_outputs
    )


def _read_guards(importer: Importer, given: ExportedProgram, program: ExportedProgram) -> None:
    """Let callers keep what the program was traced under; PyTorch loses some of it as it makes ``program`` of it."""
    try:
        guards = [*guards_of(given), *(guards_of(program) if program is not given else [])]
        for guard in guards:
            importer.require(guard.condition, f"the guard {guard.text}")
        equal = promised((guard.condition for guard in guards), program.range_constraints).equal
        importer.symbols.promise(Promises(equal))
    except Unsupported as e:
        importer.add_problems([Problem(Loc("the exported program"), "guard", e.rule, e.remedy)])


def _measured(importer: Importer, found: RoundedSize, name: str) -> Sym:
    """A size that a kernel works out from other sizes, once for a call: all other kernels are given the number."""
    b = importer.builder(Loc("a size"))
    marker, _ = b.results(b(ops.as_size, dim_scalar(b, found.size, i64), count=name, most=maximum(found.most, 0)))
    size = marker.shape[1]
    assert isinstance(size, Sym)
    return size


def _seed() -> int:
    """What PyTorch's generator was seeded with."""
    import torch

    return torch.initial_seed() % (1 << 64)


def _of_known_calls(program: ExportedProgram) -> tuple[ExportedProgram, Writes]:
    """The program as calls that have a form here, and what they write."""
    is_functional = program.dialect != "TRAINING"
    lacking = [n for n in program.graph.nodes if not has_form(n) and (is_about_complex(n) or not is_functional)]
    if is_functional and not lacking:
        return program, NO_WRITES
    known = spliced(program, lacking, has_form) if lacking else program
    writes = None if known is None else writes_of(known.graph, IGNORED)
    if known is None or writes is None:  # a write that only PyTorch's rewriting can follow
        return decomposed(program), NO_WRITES
    return known, writes


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode; each submodule gets its own mode back."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, mode in modes:
            m.training = mode


# --- inputs and outputs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kept:
    """A tensor of the module's that the program writes to: the graph's input, and what it holds at first."""

    node: Node
    start: Array


def _bind_inputs(importer: Importer, program: ExportedProgram) -> tuple[tuple[Node, ...], dict[str, _Kept]]:
    """Placeholders: weights become constants, the user's tensors become inputs, as does what is written to."""
    inputs: list[Node] = []
    kept: dict[str, _Kept] = {}
    written = {s.target for s in program.graph_signature.output_specs if s.kind.name in STATE_WRITES}
    placeholders = [n for n in program.graph.nodes if n.op == "placeholder"]
    taken = {n.name for n in placeholders} | ({importer.draws.name} if importer.draws else set())
    for spec, node in zip(program.graph_signature.input_specs, placeholders, strict=True):
        kind = spec.kind.name
        try:
            if kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR") and spec.target in written:
                name = _unused(re.sub(r"\W+", "_", str(spec.target)), taken)
                # what is written to can't be a constant: it comes in, and begins as it was stored
                entry = importer.input(node, name, Loc(f'state "{spec.target}"'))
                kept[str(spec.target)] = _Kept(entry, to_numpy(_stored(program, spec.target)).copy())
            elif kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
                importer.env[node] = importer.constant(_stored(program, spec.target), Loc(f'weight "{spec.target}"'))
            elif kind == "USER_INPUT" and type(spec.arg).__name__ == "TensorArgument":
                inputs.append(importer.input(node, node.name, Loc(f'input "{node.name}"')))
            elif kind == "USER_INPUT" and type(spec.arg).__name__ == "ConstantArgument":
                importer.env[node] = spec.arg.value
            elif kind == "TOKEN":  # orders calls without a result, which are left out
                importer.env[node] = TOKEN
            else:
                raise Unsupported(f"an input of kind {kind} ({type(spec.arg).__name__})", "pass tensors")
        except Unsupported as e:
            importer.env[node] = FAILED  # calls that read it are silent
            importer.fail(node, Problem(Loc(f'input "{node.name}"'), "input", e.rule, e.remedy))
    return tuple(inputs), kept


def _unused(name: str, taken: set[str]) -> str:
    """A name that is not ``taken`` yet, made of ``name``; it is from now on."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _stored(program: ExportedProgram, target: str | None) -> torch.Tensor:
    """A weight, buffer or lifted constant."""
    assert target is not None
    found: torch.Tensor = program.state_dict[target] if target in program.state_dict else program.constants[target]
    return found


def _bind_outputs(
    importer: Importer,
    program: ExportedProgram,
    values: Sequence[Any],
    inputs: Sequence[Node],
    kept: Mapping[str, _Kept],
    argument_names: Sequence[str],
) -> tuple[tuple[Node, ...], tuple[str, ...], Convention, frozenset[str]]:
    """The user's outputs in order, then what the program leaves in its own state and in its inputs; the names, and
    those of complex numbers.

    A program that writes to anything else is not a function, which is a problem.
    """
    b = importer.builder(UNKNOWN)
    user: list[Any] = []
    state: dict[str, Any] = {RANDOM: importer.draws.state} if importer.draws and RANDOM in kept else {}
    written: dict[int, Any] = {}
    places = {n.attrs["name"]: k for k, n in enumerate(inputs)}
    for spec, value in zip(program.graph_signature.output_specs, values, strict=True):
        kind = spec.kind.name
        if kind == "USER_OUTPUT":
            user.append(None if isinstance(value, str) else value)  # text is put back by the convention
        elif kind in STATE_WRITES:
            state[str(spec.target)] = value
        elif kind == "USER_INPUT_MUTATION" and spec.target in places:
            written[places[spec.target]] = value
        elif kind != "TOKEN":
            what = f"{kind.lower().replace('_', ' ')} of {spec.target}"
            remedy = "take the state as an input and return its new value as an output"
            importer.add_problems([Problem(Loc(f'state "{spec.target}"'), "in-place write", what, remedy)])
    resized = [(kept[t].node, v) for t, v in state.items()] + [(inputs[k], v) for k, v in written.items()]
    importer.add_problems([p for before, after in resized if (p := _resizing(before, after)) is not None])
    names = _output_names(program, len(user))
    for n, v in zip(names, user, strict=True):
        if isinstance(v, Pair) and v.dtype not in COMPLEX_PARTS:  # NumPy has no such type
            rule = "complex numbers of half precision"
            importer.add_problems([Problem(Loc(f'output "{n}"'), "output", rule, HALF_PARTS)])
    made = [(n, v) for n, v in zip(names, user, strict=True) if v is not None and not isinstance(v, Failed)]
    taken = {n for n, _ in made}
    rows = [State(k.node.attrs["name"], _unused(f"{k.node.attrs['name']}_next", taken)) for k in kept.values()]
    # in the order of `kept`, as rows and inputs are
    after = [(row.output, state[target]) for row, target in zip(rows, kept, strict=True)]
    after += [(_unused(f"{inputs[k].attrs['name']}_after", taken), v) for k, v in written.items()]
    every = [*made, *((n, v) for n, v in after if v is not FAILED)]
    convention = Convention(
        parameters_of(program, argument_names, list(places)), result_of(program, user), tuple(rows), tuple(written)
    )
    is_complex = frozenset(n for n, v in every if isinstance(v, Pair))
    return tuple(_output_node(b, v) for _, v in every), tuple(n for n, _ in every), convention, is_complex


def _resizing(before: Node, after: Any) -> Problem | None:
    """What is wrong where a write gives a tensor another shape, as ``out=`` does to an empty one: its memory stays."""
    if not isinstance(after, Node | Pair):
        return None
    shape = (*after.shape, 2) if isinstance(after, Pair) else after.shape
    known = [(d, e) for d, e in zip(before.shape, shape, strict=False) if is_known(d) and is_known(e)]
    if len(shape) == len(before.shape) and all(d == e for d, e in known):
        return None
    rule = f"makes a tensor of shape {list(before.shape)} one of shape {list(shape)}"
    return Problem(before.loc, "in-place write", rule, "give out= a tensor of the result's shape, or return the result")


def _output_node(b: Builder, value: Any) -> Node:
    if isinstance(value, Pair):
        return join_parts(b, value)
    if isinstance(value, Node | SymFloat | bool | float | int):
        return as_node(b, value)
    return dim_scalar(b, value, i64)


def _output_names(program: ExportedProgram, n: int) -> list[str]:
    """Names from the keys of the module's result, else numbers."""
    from torch.utils import _pytree as pytree

    if n == 1:
        return ["output"]
    spec = program.call_spec.out_spec
    try:
        assert spec is not None
        paths, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(n)), spec))
    except Exception:  # a user's own container that can't be rebuilt from numbers: plain names do
        return [f"output_{i}" for i in range(n)]
    texts = [re.sub(r"\W+", "_", pytree.keystr(path)).strip("_") for path, _ in paths]
    return [t if t and not t[0].isdigit() else f"output_{t or i}" for i, t in enumerate(texts)]


# --- names of dimensions --------------------------------------------------------------------------------------------


def _specs(module: torch.nn.Module, inputs: Examples, dynamic_shapes: Any) -> list[Any]:
    """The shape spec of each tensor input, in the order of the placeholders."""
    import torch

    if not dynamic_shapes:
        return []
    args, kwargs = _arguments(inputs)
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    if isinstance(dynamic_shapes, Mapping):
        dynamic_shapes = [dynamic_shapes.get(k) for k in bound]
    found: list[Any] = []

    def visit(value: Any, spec: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append(spec)
        elif isinstance(value, Mapping):
            for k in value:
                visit(value[k], spec.get(k) if spec else None)
        elif isinstance(value, tuple | list):
            for i, v in enumerate(value):
                visit(v, spec[i] if spec else None)

    visit(list(bound.values()), dynamic_shapes)
    return found


def _dimension_names(program: ExportedProgram, specs: Sequence[Any]) -> dict[str, str]:
    """The user's names for PyTorch's symbols, where a dimension's spec is a named ``Dim`` or derived from one."""
    names: dict[str, str] = {}
    derived: dict[str, str] = {}
    tensors = [
        n for n in program.graph.nodes if n.op == "placeholder" and n.name in program.graph_signature.user_inputs
    ]
    for node, spec in zip(tensors, specs, strict=False):
        entries = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
        for axis, dim in entries:
            size = node.meta["val"].shape[axis]
            expression = getattr(getattr(size, "node", None), "expr", None)
            own = getattr(dim, "root", dim)  # of ``2 * half`` the ``half``, whose only place that may be
            name = getattr(own, "__name__", None)
            if expression is None or not isinstance(name, str):
                continue
            if expression.is_Symbol:
                names[expression.name] = dim.__name__
            elif own is not dim and len(expression.free_symbols) == 1:
                derived |= {symbol.name: name for symbol in expression.free_symbols}
    return derived | names


def _place_names(program: ExportedProgram, given: Mapping[str, str]) -> dict[str, str]:
    """A name made of its place for each of PyTorch's symbols that is a size of an input and that the user did not name.

    PyTorch's own (``s77``) is a number made of the place, and a file of an exported program keeps no other.
    """
    names: dict[str, str] = {}
    taken = set(given.values())
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in program.graph_signature.user_inputs:
            continue
        for axis, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
            symbol = lone_symbol(size)
            if symbol is not None and symbol not in given and symbol not in names:
                names[symbol] = _unused(f"{node.name}_dim{axis}", taken)
    return names
