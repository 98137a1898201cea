"""How a captured graph runs: compiled pieces, and between them the calls that PyTorch runs itself.

In: a functional fx graph, weights known now, a way to compile. Out: a function from flat arguments to results.
Not its business: capturing (``torch_compile``), the meaning of calls (``torch.aten``).

PyTorch runs four kinds of calls. A draw of random numbers belongs to PyTorch's generator, whose state is the user's:
drawing there, in the program's order, gives the numbers that the seed promises. A check computes nothing, and raises
PyTorch's own error. Where data decide a size that nothing bounds, it is read between two pieces, as memory is planned
when a piece begins. A call that has no form here falls back: it is named to ``on_fallback``, which warns.

An error of ours is nobody's refusal: the piece that it came of falls back as a whole (``torch_compile.faults``), when
it is compiled or, where a call of it fails, when it is called; PyTorch's own error then is what the user meets.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tilewright.core.diag import CompileError, ImportFailed, OptionError, Problem
from tilewright.core.types import Array
from tilewright.frontend.torch.aten.places import UNBOUNDED
from tilewright.frontend.torch.fx.guards import Promises, promises_of
from tilewright.frontend.torch.fx.locations import location_of
from tilewright.frontend.torch.fx.strided import make_row_major
from tilewright.integrations.torch_compile.arguments import only_pytorch_reads, refuse_cut_short
from tilewright.integrations.torch_compile.capture import FallbackWarning
from tilewright.integrations.torch_compile.device import calls_elsewhere, gpu_of
from tilewright.integrations.torch_compile.faults import Faults, InternalError, is_refusal
from tilewright.integrations.torch_compile.piece import PieceProgram, import_piece
from tilewright.integrations.torch_compile.recurrence import DRAWS as DRAWING_RECURRENCES
from tilewright.integrations.torch_compile.sizes import size_read_before, stray_size
from tilewright.integrations.torch_compile.split import Piece, calls, split
from tilewright.runtime.errors import ExecutionError, InputError, ResourceError, TilewrightError

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

Execute = Callable[..., "Array | Sequence[Array]"]
"""A compiled graph on arrays: one result is given as itself, several as a sequence.

One that has a true attribute ``understands_tensors`` takes PyTorch's tensors, too, and then gives tensors."""
CompileNow = Callable[..., Execute]
"""``compile_now(graph)``, or ``compile_now(graph, gpu=device)`` where the graph's tensors lie on a GPU."""
OnFallback = Callable[[Sequence[Problem]], None]
"""Told of the calls of one graph that PyTorch is left to run, with the reasons."""
Step = Callable[[dict[Any, Any]], None]

DRAWS = frozenset({
    "rand.default", "randn.default", "randint.default", "randint.low", "randperm.default", "rand_like.default",
    "randn_like.default", "randint_like.default", "randint_like.low_dtype", "bernoulli.p", "uniform.default",
    "normal_functional.default", "normal.float_float", "exponential.default", "geometric.default", "cauchy.default",
    "log_normal.default", "random.default", "random.from", "random.to", "bernoulli.default", "normal.Tensor_Tensor",
    "normal.Tensor_float", "normal.float_Tensor", "multinomial.default", "poisson.default", "binomial.default",
    "_sample_dirichlet.default", "_standard_gamma.default", "rrelu_with_noise_functional.default",
    *DRAWING_RECURRENCES,
})  # fmt: skip
"""Calls that draw from PyTorch's generator."""

SHAPE_ONLY = frozenset({
    "rand_like.default", "randn_like.default", "randint_like.default", "randint_like.low_dtype", "bernoulli.p",
    "uniform.default", "normal_functional.default", "exponential.default", "geometric.default", "cauchy.default",
    "log_normal.default", "random.default", "random.from", "random.to",
})  # fmt: skip
"""Draws that read nothing of their first operand but its shape, strides and dtype."""


def warn_of_fallback(problems: Sequence[Problem]) -> None:
    """Warn of each call; Python shows equal warnings once."""
    for p in problems:
        text = f"{p.op} at {p.loc} runs in PyTorch, not in Tilewright: {p.rule}"
        warnings.warn(f"{text}; {p.remedy}" if p.remedy else text, FallbackWarning, stacklevel=2)


def refuse_fallback(problems: Sequence[Problem]) -> None:
    """Raise ``ImportFailed`` with every call."""
    raise ImportFailed(f"{len(problems)} calls of the captured graph have no form here", problems)


@dataclass(frozen=True)
class _Refusals:
    """The calls that PyTorch keeps, and why; draws, and reading sizes, need no reason."""

    problems: dict[Any, Problem]
    draws: frozenset[Any]
    faults: Faults
    promises: Promises
    sizes: set[Any] = field(default_factory=set)

    @property
    def nodes(self) -> set[Any]:
        return {*self.problems, *self.draws, *self.sizes}

    def read_sizes(self) -> None:
        """Where all that a call lacks is its result's size, let that be read before it."""
        for node in [n for n, p in self.problems.items() if p.rule == UNBOUNDED]:
            read = size_read_before(node)
            if read not in self.sizes:
                self.sizes.add(read)
                del self.problems[node]

    def refuse_all(self, graph: Any) -> None:
        """Where pieces fail and no call of theirs is left to blame, every call is PyTorch's.

        Raises ``ImportFailed`` where all are already.
        """
        rest = [n for n in graph.nodes if n.op == "call_function" and n not in self.nodes]
        rule, remedy = "numbers computed between pieces of the graph have no form here", "compute them from tensors"
        self.problems.update({n: Problem(location_of(n), str(n.target), rule, remedy) for n in rest})
        if not rest:
            raise ImportFailed("the captured graph cannot be split into pieces", list(self.problems.values()))


def plan_graph(
    functional: GraphModule,
    frozen: Mapping[int, torch.Tensor],
    compile_now: CompileNow,
    on_fallback: OnFallback,
    *,
    strict: bool = False,
) -> Callable[[Sequence[Any]], list[Any]]:
    """A function of the graph's flat arguments; ``frozen`` says which of them are weights known now.

    ``strict`` makes what would fall back an error: of refusals ``ImportFailed``, of ours ``InternalError``.
    """
    faults = Faults(functional, strict)
    gpu = gpu_of(functional.graph)
    if gpu is not None:
        compile_now = partial(compile_now, gpu=gpu)
    _detach_draws(functional.graph)
    absolute = make_row_major(functional.graph)
    try:
        run, problems = _planned(functional, absolute, frozen, compile_now, on_fallback, faults)
    except (OptionError, InternalError):  # the user's own mistake, and what `strict` asks for
        raise
    except Exception as e:
        if strict and is_refusal(e):
            raise
        nodes = [n for n in functional.graph.nodes if n.op not in ("placeholder", "output")]
        problems = getattr(e, "problems", ()) if is_refusal(e) else [faults.problem(e, nodes)]
        # there are no pieces: PyTorch runs the whole graph
        run = partial(_run_steps, *_ends(functional), [partial(_run_eagerly, functional, nodes)])
    if problems:
        react = refuse_fallback if strict else on_fallback
        react(problems)
    return run


def _ends(functional: GraphModule) -> tuple[list[Any], Sequence[Any]]:
    """The inputs of a graph, and what it gives."""
    placeholders = [n for n in functional.graph.nodes if n.op == "placeholder"]
    return placeholders, next(n for n in functional.graph.nodes if n.op == "output").args[0]


def _planned(
    functional: GraphModule,
    left: Sequence[Any],
    frozen: Mapping[int, torch.Tensor],
    compile_now: CompileNow,
    on_fallback: OnFallback,
    faults: Faults,
) -> tuple[Callable[[Sequence[Any]], list[Any]], Sequence[Problem]]:
    """The function, and why it leaves calls to PyTorch besides those of ``left``."""
    graph = functional.graph
    placeholders, wanted = _ends(functional)
    weights = {placeholders[i]: t for i, t in frozen.items()}
    draws = [n for n in graph.nodes if _name(n) in DRAWS or _is_check(n)]
    # operands without data: nothing to compile
    shapes = [n.args[0] for n in draws if _name(n) in SHAPE_ONLY and _name(n.args[0]) == "empty_strided.default"]
    gpu = gpu_of(graph)
    elsewhere = {} if gpu is None else calls_elsewhere(graph, gpu)
    mine = frozenset([*shapes, *draws, *left])
    elsewhere = {node: problem for node, problem in elsewhere.items() if node not in mine}
    refused = _Refusals(elsewhere, mine, faults, promises_of(graph))
    while True:  # each turn refuses more calls, at last all of them
        n_refused = len(refused.nodes)
        if not refused.nodes:  # what nearly every graph is: one piece
            whole = _whole(functional, placeholders, wanted, weights, compile_now, on_fallback, refused)
            if whole is not None:
                return whole, []
        else:
            steps = _steps(functional, weights, compile_now, on_fallback, refused)
            if steps is not None:
                break
        refused.read_sizes()
        if len(refused.nodes) == n_refused:
            refused.refuse_all(graph)
    return partial(_run_steps, placeholders, wanted, steps), list(dict.fromkeys(refused.problems.values()))


def _is_check(node: Any) -> bool:
    """Is it a check of the error codes of linear algebra, kept in its place by an effect token?"""
    names = [_name(node), *(str(a).removeprefix("aten.") for a in node.args[1:2])]
    return "_linalg_check_errors.default" in names and (node.op == "call_function")


def _detach_draws(graph: Any) -> None:
    """Give draws that read only a shape an operand of that shape without data, so that they wait for nothing."""
    import torch

    for node in list(graph.nodes):
        if _name(node) not in SHAPE_ONLY or _name(node.args[0]) == "empty_strided.default":
            continue
        fake = node.args[0].meta["val"]
        if all(isinstance(d, int) for d in (*fake.shape, *fake.stride())):
            with graph.inserting_before(node):
                args, kwargs = (list(fake.shape), list(fake.stride())), {"dtype": fake.dtype, "device": fake.device}
                empty = graph.call_function(torch.ops.aten.empty_strided.default, args, kwargs)
            empty.meta = {**node.meta, "val": fake}
            node.replace_input_with(node.args[0], empty)


def _name(node: Any) -> str:
    """The overload that a node calls."""
    return str(node.target).removeprefix("aten.") if getattr(node, "op", "") == "call_function" else ""


def _whole(
    owner: Any,
    placeholders: Sequence[Any],
    wanted: Sequence[Any],
    weights: Mapping[Any, torch.Tensor],
    compile_now: CompileNow,
    on_fallback: OnFallback,
    refused: _Refusals,
) -> Callable[[Sequence[Any]], list[Any]] | None:
    """The graph as one compiled piece; None when something in it is refused."""
    nodes = [n for n in owner.graph.nodes if n.op not in ("placeholder", "output")]
    whole = Piece(True, tuple(nodes), tuple(placeholders), tuple(wanted))
    program = _import(owner, whole, weights, refused)
    execute = _compile(program, calls(nodes), compile_now, refused)
    if execute is None or program is None:
        return None
    return partial(_run_program, program, execute, _Rescue(owner, whole, refused.faults, on_fallback))


def _import(owner: Any, piece: Piece, weights: Mapping[Any, torch.Tensor], refused: _Refusals) -> PieceProgram | None:
    """A piece as a graph; None, with the calls that are to blame in ``refused``, where it can't be one."""
    try:
        faults = refused.faults
        has_peer = not faults.strict
        program, failed = import_piece(
            owner, piece.nodes, piece.inputs, piece.outputs, weights, refused.promises, faults.of_call, has_peer
        )
    except InternalError:
        raise
    except Exception as e:
        blamed = calls(piece.nodes)
        if not blamed:
            raise
        problem = refused.faults.problem(e, blamed)
        program, failed = None, dict.fromkeys(blamed, problem)
    refused.problems.update(failed)
    return program


def _compile(
    program: PieceProgram | None, nodes: Sequence[Any], compile_now: CompileNow, refused: _Refusals
) -> Execute | None:
    """Compile a piece. Where the compiler refuses, or fails, its calls are refused, and so is the result."""
    if program is None:
        return None
    try:
        return compile_now(program.graph) if program.graph.outputs else _nothing
    except Exception as e:
        if not nodes or isinstance(e, OptionError):
            raise
        if isinstance(e, CompileError) and is_refusal(e):
            rule = "; ".join(dict.fromkeys(p.rule for p in e.problems)) or str(e)
            refused.problems.update({n: Problem(location_of(n), str(n.target), rule) for n in nodes})
        else:
            refused.problems.update(dict.fromkeys(nodes, refused.faults.problem(e, nodes, program.graph)))
    return None


def _nothing(*arrays: Array) -> Sequence[Array]:
    return ()


def _run_program(program: PieceProgram, execute: Execute, rescue: _Rescue, args: Sequence[Any]) -> list[Any]:
    try:
        takes_tensors = getattr(execute, "understands_tensors", False)
        found: Any = execute(*[take(args) for take in (program.handed if takes_tensors else program.takes)])
        results = [found] if program.graph.n_results == 1 else found
        if takes_tensors and program.gives_results:
            return list(results)
        return [give(args, results) for give in program.gives]
    except Exception as e:
        return rescue(e, args)


@dataclass
class _Rescue:
    """PyTorch runs a compiled piece whose call failed: it raises its own error, or the failure was ours."""

    owner: Any
    piece: Piece
    faults: Faults
    on_fallback: OnFallback
    is_told: bool = False

    def __call__(self, error: Exception, args: Sequence[Any]) -> list[Any]:
        if self.faults.strict:
            raise error
        values = dict(zip(self.piece.inputs, args, strict=True))
        _run_eagerly(self.owner, self.piece.nodes, values)
        if not self.is_told:
            self.is_told = True
            self.on_fallback([self._problem(error, args)])
        return [values[x] if hasattr(x, "op") else x for x in self.piece.outputs]

    def _problem(self, error: Exception, args: Sequence[Any]) -> Problem:
        """An argument that compiled code cannot take, a want of memory, or a size of data that PyTorch's trace took for
        another one, is no mistake of ours."""
        nodes = calls(self.piece.nodes)
        unread = only_pytorch_reads(args, self.piece.inputs) if isinstance(error, InputError) else None
        if unread is not None and nodes:
            return Problem(location_of(nodes[0]), str(nodes[0].target), unread, "pass x.clone(), which has memory")
        stray = stray_size(self.piece.inputs, args) if isinstance(error, InputError) else None
        if isinstance(error, ExecutionError):  # as where one marked element is stretched to the size of another tensor
            stray = error.message
        if stray is not None and nodes:
            return Problem(
                location_of(nodes[0]), str(nodes[0].target), stray, "use torch.where in the place of a selection"
            )
        is_refusal = isinstance(error, ResourceError) or (isinstance(error, InputError) and not error.violations)
        if isinstance(error, TilewrightError) and is_refusal and nodes:
            return Problem(location_of(nodes[0]), str(nodes[0].target), error.message, error.remedy)
        return self.faults.problem(error, nodes)


# --- several pieces -------------------------------------------------------------------------------------------------


def _steps(
    functional: GraphModule,
    weights: Mapping[Any, torch.Tensor],
    compile_now: CompileNow,
    on_fallback: OnFallback,
    refused: _Refusals,
) -> list[Step] | None:
    """A step for each piece; None when more is refused, which then is in ``refused``."""
    pieces = split(functional.graph, refused.nodes, refused.draws)
    programs = [_import(functional, piece, weights, refused) if piece.is_compiled else None for piece in pieces]
    if any(p.is_compiled and program is None for p, program in zip(pieces, programs, strict=True)):
        return None
    steps: list[Step] = []
    for piece, program in zip(pieces, programs, strict=True):
        if not piece.is_compiled:
            steps.append(partial(_run_eagerly, functional, piece.nodes))
            continue
        execute = _compile(program, calls(piece.nodes), compile_now, refused)
        if execute is None or program is None:
            return None
        rescue = _Rescue(functional, piece, refused.faults, on_fallback)
        steps.append(partial(_run_piece, piece, program, execute, rescue))
    return steps


def _run_steps(
    placeholders: Sequence[Any], wanted: Sequence[Any], steps: Sequence[Step], args: Sequence[Any]
) -> list[Any]:
    values: dict[Any, Any] = dict(zip(placeholders, args, strict=True))
    for step in steps:
        step(values)
    return [values[x] if hasattr(x, "op") else x for x in wanted]


def _run_piece(piece: Piece, program: PieceProgram, execute: Execute, rescue: _Rescue, values: dict[Any, Any]) -> None:
    results = _run_program(program, execute, rescue, [values[x] for x in piece.inputs])
    values.update(zip(piece.outputs, results, strict=True))


def _run_eagerly(owner: Any, nodes: Sequence[Any], values: dict[Any, Any]) -> None:
    """Let PyTorch run calls; a draw that reads only a shape gets a tensor of that shape.

    An argument without memory is refused here, whether our code has refused it before or not: PyTorch would crash. What
    reads a value of another piece for its size alone is left out: the piece has the size as an argument.
    """
    import torch
    from torch.fx import map_arg

    def value(node: Any) -> Any:
        if node.op == "placeholder":
            refuse_cut_short(values[node], node)
        return _attribute(owner, node) if node.op == "get_attr" else values[node]

    for node in nodes:
        if node.op == "get_attr" or any(x.op != "get_attr" and x not in values for x in node.all_input_nodes):
            continue
        args, kwargs = map_arg((node.args, dict(node.kwargs)), value)
        with torch.no_grad():
            values[node] = node.target(*args, **kwargs)


def _attribute(owner: Any, node: Any) -> Any:
    for part in str(node.target).split("."):
        owner = getattr(owner, part)
    return owner
