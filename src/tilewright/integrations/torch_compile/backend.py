"""``torch.compile(module, backend="tilewright")``: graphs that Dynamo captures, made functional by AOTAutograd.

In: an fx graph and example inputs. Out: a callable from tensors to tensors. Inference graphs have their weights
frozen into the compiled model; weights that changed are noticed before the next call (``torch_compile.weights``), and
the graph is compiled again. Graphs that need gradients take their weights as run-time inputs; the backward graph is
compiled like any other when it first runs.
Not its business: what ATen calls mean (``fx``, ``torch.aten``); calls that have no form here (``torch_compile.plan``).
"""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.build.exact import Sizes, fitting, place_of, read_exact_sizes, symbol_of, with_inputs
from tilewright.core.diag import OptionError
from tilewright.core.graph import Graph
from tilewright.frontend.torch.aten.table import CONVERTERS, TAKEN_APART
from tilewright.frontend.torch.custom_ops import DECOMPOSITIONS
from tilewright.frontend.torch.foreach import decompositions as on_lists
from tilewright.frontend.torch.fx.views import OfArgument, mark_results, separate_views
from tilewright.integrations.torch_compile.apart import (
    REMEDY,
    ArgumentsOverlap,
    WritesLost,
    WrittenArguments,
    found_out,
    refuse_writes_beside_elements,
    refuse_writes_that_are_lost,
    views_of_arguments,
)
from tilewright.integrations.torch_compile.arguments import (
    argument_names,
    name_arguments,
    read_sizes_as_given,
)
from tilewright.integrations.torch_compile.capture import is_strict, watch
from tilewright.integrations.torch_compile.device import on_gpu, target_for
from tilewright.integrations.torch_compile.faults import Faults, InternalError, first_line
from tilewright.integrations.torch_compile.flex import spell_out_attention
from tilewright.integrations.torch_compile.gradients import GRADIENTS
from tilewright.integrations.torch_compile.losses import spell_out_losses
from tilewright.integrations.torch_compile.one_tensor import leave_out_idle_dropout, results_that_are_one
from tilewright.integrations.torch_compile.option_names import unknown_option
from tilewright.integrations.torch_compile.plan import (
    Execute,
    OnFallback,
    plan_graph,
    refuse_fallback,
    warn_of_fallback,
)
from tilewright.integrations.torch_compile.recurrence import keep_recurrences_whole
from tilewright.integrations.torch_compile.scalar_indices import keep_scalar_indices
from tilewright.integrations.torch_compile.weights import FrozenWeights, may_freeze
from tilewright.integrations.torch_compile.widths import guard_widths
from tilewright.runtime.errors import InputError
from tilewright.runtime.host import misfit
from tilewright.runtime.once import MAKING, ForkLock
from tilewright.runtime.threads import checked_threads

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

CompileGraph = Callable[..., Execute]
"""``compile_graph(graph, **options)``."""

TRAINING_ONLY = frozenset({"native_batch_norm.default", "native_dropout.default", "dropout.default"})
"""Calls whose training form only PyTorch's decomposition expresses."""


MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""What ``torch.compile`` calls ``mode``. All give the same code: schedules follow from a model of the machine, not from
trials, and calls go through a native entry. Measured schedules come from ``tilewright tune`` and the option
``schedule``."""

OWN_OPTIONS = ("fallback", "freeze")
"""Options that say how a captured graph is taken, beside those of ``driver.compile_graph``."""


def backend(
    gm: GraphModule, example_inputs: Sequence[Any], *, mode: str = "default", options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The entry point that ``torch.compile`` calls; ``options`` are those of ``driver.compile_graph``, but for
    ``schedule``, which is a path, and ``OWN_OPTIONS``. ``OptionError`` for others, and for another machine."""
    with MAKING:
        from tilewright.build.driver import OFFERED, compile_graph
        from tilewright.build.manifest import machine_of
        from tilewright.build.options import Options, read_schedule

    given = dict(options or {})
    if unknown := sorted(given.keys() - {*OFFERED, *OWN_OPTIONS}, key=str):
        raise unknown_option(unknown[0], [*OFFERED, *OWN_OPTIONS])
    if "schedule" in given:
        given["schedule"] = read_schedule(given["schedule"])
    chosen = Options(**{name: value for name, value in given.items() if name not in ("threads", *OWN_OPTIONS)})
    if chosen.gpu is None and (problem := misfit(machine_of(chosen.machine))) is not None:
        rule = f"target={chosen.target!r} can't run here, and torch.compile runs what it compiles: {problem.message}"
        raise OptionError(rule, remedy="leave target out, or make files for that machine by tilewright.export")
    try:
        checked_threads(given.get("threads"))
    except InputError as e:  # which would be taken for a failure of the compiler, and fall back
        raise OptionError(e.message, remedy=e.remedy) from e
    return make_backend(compile_graph)(gm, example_inputs, mode=mode, options=given)


def make_backend(
    compile_graph: CompileGraph, on_fallback: OnFallback = warn_of_fallback
) -> Callable[..., Callable[..., Any]]:
    """A Dynamo back end over any way to make a graph callable: ``compile_graph(graph, **options)`` on arrays.

    ``on_fallback`` is told of the calls that PyTorch is left to run; by default each warns once. The option
    ``fallback=False``, or ``TILEWRIGHT_STRICT=1``, makes them an error.
    """

    def compile_captured(
        gm: GraphModule,
        example_inputs: Sequence[Any],
        *,
        mode: str = "default",
        options: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        from torch._dynamo.backends.common import aot_autograd

        if mode not in MODES:
            raise OptionError(f"mode {mode!r} is not offered", remedy=f"use one of {list(MODES)}")
        given = dict(options or {})
        freeze = given.pop("freeze", None)
        # None: freeze, and look at the weights before each call; True: they never change
        if freeze not in (None, True, False):
            raise OptionError(f"freeze can't be {freeze!r}", remedy="use True, False, or leave it out")
        # before AOTAutograd traces: it leaves no recurrence in one piece, and then Dynamo collects no more guards
        read_sizes_as_given(gm)
        leave_out_idle_dropout(gm)
        keep_recurrences_whole(gm)
        spell_out_attention(gm)
        spell_out_losses(gm)
        keep_scalar_indices(gm)
        guard_widths(gm)
        strict = is_strict(given)
        if (fallback := given.pop("fallback", True)) not in (True, False):
            raise OptionError(f"fallback can't be {fallback!r}", remedy="use True, False, or leave it out")

        exact = read_exact_sizes(given.pop("specialize", None))
        inputs: dict[str, str] = {}

        def compile_now(graph: Graph, gpu: torch.device | None = None) -> Execute:
            chosen = given if gpu is None else {**given, "target": target_for(gpu, given)}
            if exact:
                # one option for all graphs of a program: each has its own sizes, and some of them are numbers
                _tell_of_unknown_sizes(graph, exact, inputs)
                own = fitting(graph, [with_inputs(sizes, inputs) for sizes in exact])
                chosen = {**chosen, "specialize": own}
            made: Any = compile_graph(graph, **chosen)
            return made if gpu is None else on_gpu(made, gpu)

        plan = partial(plan_graph, compile_now=compile_now, on_fallback=on_fallback, strict=strict)

        names = argument_names(gm)
        written = WrittenArguments(names)

        def inference(functional: GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
            written.find(gm, example_inputs)
            inputs.update(name_arguments(functional, names))
            refuse_writes_beside_elements(functional)
            _mark_results(functional)
            views = views_of_arguments(functional)
            tensors = {} if freeze is False else _freezable(functional, example_inputs)
            return _boxed(_Compiled(functional, plan, tensors, views, is_promised=freeze is True))

        def forward(functional: GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
            written.find(gm, example_inputs)
            inputs.update(name_arguments(functional, names))
            refuse_writes_beside_elements(functional)
            _mark_results(functional)
            return _boxed(_Compiled(functional, plan, {}, views_of_arguments(functional)))

        def backward(functional: GraphModule, fakes: Sequence[Any]) -> Callable[..., Any]:
            return _boxed(_Compiled(functional, plan, {}, lazy=True))  # compiled when it first runs, if it ever does

        table = {**_decompositions(), **DECOMPOSITIONS}  # ours take the place of PyTorch's
        compiler = aot_autograd(
            fw_compiler=forward, bw_compiler=backward, inference_compiler=inference, decompositions=table
        )
        eager = _LeftToPyTorch(gm, refuse_fallback if strict else on_fallback)
        try:
            refuse_writes_that_are_lost(gm)
            result: Callable[..., Any] = compiler(gm, example_inputs)
        except Exception as error:
            if strict or _is_for_dynamo(error):  # Dynamo's own signals, as for a graph break, must reach it
                raise
            eager.tell_of(error)
            return eager
        if (one_tensor := results_that_are_one(gm)) is not None:
            result = partial(one_tensor.unite, result)
        # only graphs that write pay for looking at addresses
        return partial(_call_apart, result, eager, written) if written.written else result

    compile_captured.is_tilewright = True  # type: ignore[attr-defined]
    watch()
    return compile_captured


backend.is_tilewright = True  # type: ignore[attr-defined]


@functools.cache
def _decompositions() -> dict[Any, Any]:
    """PyTorch's decompositions of everything that has no converter here; making the table takes 0.1 s."""
    import torch
    from torch._decomp import core_aten_decompositions, decomposition_table

    table = dict(core_aten_decompositions().items())
    table.update({op: f for op, f in decomposition_table.items() if _name(op) in TAKEN_APART})
    table[torch.ops.aten.native_dropout.default] = _native_dropout
    with suppress(ImportError):  # PyTorch 2.13 and newer; the module makes its ops when it is first imported
        import torch.nn.modules.linear_cross_entropy

        table[torch.ops.torch_nn._linear_cross_entropy_batch_chunked.default] = _linear_cross_entropy
        table[torch.ops.torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default] = _linear_cross_entropies
    table = {op: f for op, f in table.items() if _name(op) not in CONVERTERS or _name(op) in TRAINING_ONLY}
    table[torch.ops.aten.unique_consecutive.default] = _unique_consecutive
    table.update(on_lists())
    for name, how in GRADIENTS.items():
        packet, overload = name.split(".")
        table[getattr(getattr(torch.ops.aten, packet), overload)] = how
    return table


def _unique_consecutive(
    x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Along an axis counted from the first: PyTorch 2.13 propagates a wrong shape where it is counted from the last."""
    import torch

    if dim is None or dim >= 0:
        return NotImplemented
    return torch.ops.aten.unique_consecutive.default(x, return_inverse, return_counts, dim + x.dim())


def _native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """As PyTorch's own kernel draws the mask, so that a seed gives the same one; its decomposition draws another."""
    import torch

    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.bernoulli(torch.empty(x.shape, dtype=torch.bool, device=x.device), 1 - p)
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


def _linear_cross_entropies(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None,
    ignore_index: int,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
    reduction: str = "none",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The product and the loss in one piece: chunks save memory that a compiled loss does not need."""
    from torch.nn import functional

    bias, weight = (None if t is None else t.to(acc_dtype) for t in (linear_bias, weight))
    logits = functional.linear(input.to(acc_dtype), linear_weight.to(acc_dtype), bias)
    loss = functional.cross_entropy(
        logits, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )
    return loss.to(input.dtype)


def _linear_cross_entropy(
    input: torch.Tensor,
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    linear_bias: torch.Tensor | None,
    weight: torch.Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
    allow_retain_graph: bool,
    *gradients: bool,
) -> Any:
    """As above, with empty gradients; where any is wanted PyTorch's own code computes them with the loss."""
    if any(gradients):
        return NotImplemented
    loss = _linear_cross_entropies(
        input, linear_weight, target, linear_bias, weight, ignore_index, batch_chunk_size, acc_policy, acc_dtype,
        reduction, label_smoothing,
    )  # fmt: skip
    nothing = input.new_empty((0, 0))
    return loss, nothing, input.new_empty((0, 0)), input.new_empty((0,))


def _name(op: Any) -> str:
    return str(op).removeprefix("aten.")


def _tell_of_unknown_sizes(graph: Graph, exact: Sequence[Sizes], inputs: Mapping[str, str]) -> None:
    """Warn of names in the option ``specialize`` that a graph lacks: another graph may have them, or none.

    An axis of an argument that is there is no such name, also where this graph has one size for it.
    """
    names = {name for sizes in exact for name, _ in sizes}
    unknown = sorted(n for n in names if symbol_of(graph, n) is None and n.rpartition("[")[0] not in inputs)
    if unknown and (symbols := graph.symbols()):
        known = ", ".join(f"{s.name} ({place_of(graph, s)})" for s in symbols)
        for name, own in inputs.items():
            known = known.replace(f"({own}[", f"({name}[")
        text = f"specialize names {', '.join(unknown)}, which a graph of this program lacks: it has {known}"
        warnings.warn(text, stacklevel=2)


def _mark_results(functional: GraphModule) -> None:
    """Tell results of the user's from what else a graph gives, as far as AOTAutograd says where they are."""
    if (meta := found_out()) is not None:
        mark_results(functional, meta.num_forward_returns, meta.num_mutated_inp_runtime_indices)


def _freezable(functional: GraphModule, example_inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Positions of inputs that are weights which the graph does not write to, with their tensors."""
    meta = found_out()
    n_placeholders = sum(n.op == "placeholder" for n in functional.graph.nodes)
    if meta is None or n_placeholders != len(example_inputs):
        return {}
    written = {i for i, info in enumerate(meta.input_info) if info.mutates_data or info.mutates_metadata}
    static = [i for i in meta.static_input_indices if i < len(example_inputs) and i not in written]
    return {i: example_inputs[i] for i in static if may_freeze(example_inputs[i])}


class _Code(NamedTuple):
    """Code, and the weights that it holds."""

    frozen: FrozenWeights
    run: Callable[[Sequence[Any]], list[Any]]


class _Compiled:
    """One functional graph as a callable on flat arguments; compiles again when a frozen weight has changed.

    Threads: a call checks the weights of the very code that it then runs. Where they have changed, one thread compiles,
    and the others wait for it.
    """

    def __init__(
        self,
        functional: GraphModule,
        plan: Callable[[GraphModule, dict[int, torch.Tensor]], Callable[[Sequence[Any]], list[Any]]],
        weights: dict[int, torch.Tensor],
        of_arguments: Mapping[int, OfArgument] | None = None,
        *,
        is_promised: bool = False,
        lazy: bool = False,
    ) -> None:
        """``weights`` may be frozen; ``is_promised``: they never change. ``of_arguments``: see ``separate_views``."""
        self._functional = functional
        self._plan = plan
        self._is_promised = is_promised
        self._views = separate_views(functional, of_arguments)
        self._guard = ForkLock()
        self._code = None if lazy else self._compile(weights)

    def _compile(self, weights: dict[int, torch.Tensor]) -> _Code:
        """Code that holds ``weights``; one that holds none where they are written to meanwhile."""
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():  # AOTAutograd compiles under its fake tensors; weights are real
            frozen = FrozenWeights(weights, is_promised=self._is_promised)
            run = self._plan(self._functional, weights)
            return _Code(frozen, run) if frozen.is_ready() else self._compile({})

    def _renewed(self, args: tuple[Any, ...]) -> _Code:
        """Code for the weights as they are now."""
        with self._guard.lock:
            code = self._code
            if code is None or not code.frozen.are_current(args):
                code = self._code = self._compile(code.frozen.replaced(args) if code is not None else {})
            return code

    def __call__(self, *args: Any) -> list[Any]:
        code = self._code
        if code is None or not code[0].are_current(args):  # by its place: a name takes longer, in every call
            code = self._renewed(args)
        results = code[1](args)
        return results if self._views is None else self._views(args, results)


class _LeftToPyTorch:
    """A captured graph as a callable that PyTorch runs; ``react`` is told of the first reason for it."""

    def __init__(self, gm: GraphModule, react: OnFallback) -> None:
        self._gm = gm
        self._react = react
        self._is_told = False

    def __call__(self, *args: Any) -> Any:
        return self._gm(*args)

    def tell_of(self, error: Exception) -> None:
        """Raises what ``react`` raises: where nothing may fall back, ``ImportFailed``."""
        if self._is_told:
            return
        self._is_told = True
        faults = Faults(self._gm, strict=False)
        nodes = [n for n in self._gm.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
        if isinstance(error, ArgumentsOverlap):
            problem = faults.about(nodes, f"{error} share memory, and the graph writes there", REMEDY)
        elif isinstance(error, WritesLost):
            problem = faults.about(nodes, f"{error}, which PyTorch's tracing loses", error.remedy)
        elif _is_of_pytorch(error):
            what = f"{type(error).__name__}: {first_line(error)}"
            problem = faults.about(nodes, f"PyTorch failed to trace the graph for a compiler ({what})")
        else:
            problem = faults.problem(error, nodes)
        self._react([problem])


def _is_for_dynamo(error: Exception) -> bool:
    """Does the error tell Dynamo to go another way, or the user of an option or, as a warning does, of a fallback?"""
    from torch._dynamo.exc import TorchDynamoException, exceptions_allowed_to_be_fallback

    passed_on = (TorchDynamoException, *exceptions_allowed_to_be_fallback, OptionError, InternalError, Warning)
    return isinstance(error, passed_on)


def _is_of_pytorch(error: Exception) -> bool:
    """Was no code of ours running below the call of AOTAutograd?"""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not any(name.startswith("tilewright.") for name in modules[1:])


def _call_apart(compiled: Callable[..., Any], eager: _LeftToPyTorch, written: WrittenArguments, *args: Any) -> Any:
    if (found := written.overlap(args)) is None:
        return compiled(*args)
    eager.tell_of(ArgumentsOverlap(found))
    return eager(*args)


def _boxed(compiled: _Compiled) -> Callable[[list[Any]], list[Any]]:
    """The calling convention of AOTAutograd: one list, which may be emptied to free what nobody else holds."""

    def call(args: list[Any]) -> list[Any]:
        given = tuple(args)
        args.clear()
        return compiled(*given)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


watch()  # PyTorch imports this file when ``torch.compile`` names the back end, and traces afterwards
