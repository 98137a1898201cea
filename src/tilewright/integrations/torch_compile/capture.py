"""What Dynamo captures for this back end: more than it does by default, and a word where it captures nothing.

In: Dynamo's work on a frame. Out: settings of Dynamo for that time, less of them where it fails, and a
``FallbackWarning`` for a frame, or a call where Dynamo breaks the graph, that is left to Python: Dynamo says so only in
its logs. Where nothing may fall back (``fallback=False``, ``TILEWRIGHT_STRICT=1``), ``ImportFailed`` instead.
Not its business: graphs that were captured (``torch_compile``).

PyTorch looks a back end up when ``torch.compile`` is called, and calls it when a graph is captured; in between it tells
a back end nothing. So Dynamo's function for a frame is followed, and asked whose frame it is. Other back ends keep
their settings: those are changed and put back around each frame of ours.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType
from typing import Any, NoReturn

from tilewright.core.diag import CompileError, ImportFailed, Loc, Problem
from tilewright.frontend.torch.custom_ops import make_unasked
from tilewright.integrations.torch_compile.faults import first_line
from tilewright.integrations.torch_compile.recurrence import keep_lengths_symbolic
from tilewright.integrations.torch_compile.resampling import keep_resamplings_whole
from tilewright.integrations.torch_compile.selections import bound_selections_by_both
from tilewright.runtime.env import read_environment

FINDS_SIZES = "capture_dynamic_output_shape_ops"
SETTINGS = {"allow_rnn": True, FINDS_SIZES: True}
"""Modules of recurrences are one call each (``torch_compile.recurrence``); a graph finds the places where a mask is
true."""

ASKED_FOR = ("torch._dynamo.graph_break", "torch.compiler.disable", "torch._dynamo.disable")
"""What users write to break a graph; such breaks are not told."""

REMEDIES = {
    ("ScriptObject", "quantized"): "quantise the float module by tilewright.quantize or torchao",
    ("data-dependent", "Data dependent"): "choose by torch.where or torch.cond, or compile the parts around it",
    ("Tensor.item()",): "keep the number a tensor",
}
"""What helps, by words of Dynamo's explanation: packed weights, branches that data decide, numbers."""

NOT_CAPTURED = "{} runs in PyTorch, not in Tilewright: Dynamo captured no graph of it"


@dataclass(frozen=True)
class _Frame:
    """What Dynamo works on for us. ``one_graph``: with ``fullgraph=True`` the user gets Dynamo's own error."""

    loc: Loc
    one_graph: bool
    is_strict: bool

    def tell(self, what: str, text: str) -> None:
        """Of a part of the frame that Python runs: ``what`` has a place for the frame's, ``text`` is Dynamo's."""
        if self.one_graph or any(name in text for name in ASKED_FOR):
            return
        if self.is_strict:
            remedy = _remedy(text) or "write it as Dynamo captures it, or keep it out by torch.compiler.disable"
            problem = Problem(self.loc, "torch.compile", _reason(text), remedy)
            raise ImportFailed("PyTorch's Dynamo leaves a part of the program to Python", [problem])
        told = "; ".join([f"{what.format(self.loc)} ({_reason(text)})", *filter(None, [_remedy(text)])])
        warnings.warn(told, FallbackWarning, stacklevel=_depth_of_caller())


_frame: ContextVar[_Frame | None] = ContextVar("frame", default=None)
"""What this thread's Dynamo works on, where that is for a back end of ours."""


class FallbackWarning(UserWarning):
    """A call that has no form in Tilewright is left to PyTorch; the text names the call, the line and the reason."""


@functools.cache
def watch() -> None:
    """Follow Dynamo's function for a frame from now on."""
    from torch._dynamo import convert_frame

    convert = convert_frame._compile

    @functools.wraps(convert)
    def followed(
        code: CodeType, globals: Any, locals: Any, builtins: Any, closure: Any, compiler_fn: Any, one_graph: bool,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        given = code, globals, locals, builtins, closure, compiler_fn, one_graph, *args
        options = _options_of_ours(compiler_fn)
        if options is None:
            return convert(*given, **kwargs)
        make_unasked()
        with _following(_Frame(_place(code, closure), one_graph, is_strict(options))):
            return convert(*given, **kwargs)

    convert_frame._compile = followed
    _tell_of_generators()
    _tell_of_traced_modules()


def is_strict(options: Mapping[str, Any]) -> bool:
    """May nothing of what is compiled with these ``options`` of ``torch.compile`` be left to PyTorch?"""
    return not options.get("fallback", not read_environment().strict)


@contextmanager
def _following(frame: _Frame) -> Iterator[None]:
    """Around Dynamo's work on ``frame``; its own lock lets one thread work at a time."""
    from torch._dynamo.exc import Unsupported
    from torch._dynamo.utils import counters

    n_before = dict(counters["graph_break"])
    token = _frame.set(frame)
    try:
        with _capturing_more():
            yield
    except Unsupported as e:
        frame.tell(NOT_CAPTURED, str(e))
        raise
    except Exception as e:
        if frame.is_strict or frame.one_graph or not _is_of_tracing(e):
            raise
        _leave_to_python(e, frame)
    finally:
        _frame.reset(token)
    for text in [text for text, n in counters["graph_break"].items() if n > n_before.get(text, 0)]:
        frame.tell("a call in {} runs in PyTorch, not in Tilewright: Dynamo broke the graph there", text)


@contextmanager
def _capturing_more() -> Iterator[None]:
    """``SETTINGS`` for as long as Dynamo works; what it fails on with them may be tried with less."""
    import torch._dynamo.config as config

    keep_lengths_symbolic(_is_frame_of_ours)
    keep_resamplings_whole(_is_frame_of_ours)
    bound_selections_by_both(_is_frame_of_ours)
    _break_where_a_size_decides()
    _capture_again_without_sizes()
    before = {name: getattr(config, name) for name in SETTINGS}
    try:
        for name, value in SETTINGS.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def _is_of_tracing(error: Exception) -> bool:
    """Did Dynamo itself fail, in the middle of a frame? Back ends have their own fallback, or mean their errors."""
    from torch._dynamo.exc import BackendCompilerFailed, ResumePrologueTracingError, Unsupported, UserError

    meant = (Unsupported, UserError, BackendCompilerFailed, ResumePrologueTracingError, CompileError, Warning)
    return not isinstance(error, meant) and not isinstance(error.__cause__, meant)


def _leave_to_python(error: Exception, frame: _Frame) -> NoReturn:
    """Have Python run this call of the frame: what it does there, an error of the user's own too, is what is right.

    The next call is traced again, since it may have other arguments.
    """
    from torch._dynamo.exc import Unsupported
    from torch._dynamo.types import FrameAction, FrameExecStrategy  # type: ignore[attr-defined]

    reason = Unsupported(f"{type(error).__name__}: {first_line(error)}")
    reason.frame_exec_strategy = FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT)
    frame.tell("a call of {} runs in PyTorch, not in Tilewright: Dynamo failed to trace it", reason.msg)
    raise reason from error


@functools.cache
def _tell_of_generators() -> None:
    """Say that a generator's own frame runs in Python; Dynamo refuses it before it begins with the frame."""
    from torch._dynamo import convert_frame

    asked = convert_frame.is_generator  # type: ignore[attr-defined]

    def is_generator(code: CodeType) -> bool:
        found: bool = asked(code)
        convert = sys._getframe(1).f_locals.get("self")
        options = _options_of_ours(getattr(convert, "_torchdynamo_orig_backend", None)) if found else None
        if options is not None:
            frame = _Frame(_place(code), getattr(convert, "_one_graph", False), is_strict(options))
            frame.tell(NOT_CAPTURED, "it is a generator: call it in a function, and compile that")
        return found

    setattr(convert_frame, "is_generator", is_generator)  # noqa: B010 - PyTorch does not export it


@functools.cache
def _tell_of_traced_modules() -> None:
    """Say that a module of TorchScript runs in PyTorch: it has no frame of Python's, so Dynamo never hears of it."""
    import torch
    from torch._dynamo.eval_frame import OptimizedModule

    initialize = OptimizedModule._initialize

    def _initialize(self: Any) -> None:
        initialize(self)
        options = _options_of_ours(getattr(self.dynamo_ctx, "callback", None))
        if options is not None and isinstance(self._orig_mod, torch.jit.ScriptModule):
            loc = Loc(f"module {self._orig_mod.original_name}")
            frame = _Frame(loc, bool(getattr(self.dynamo_ctx, "fullgraph", False)), is_strict(options))
            frame.tell(NOT_CAPTURED, "it is TorchScript: compile the module that it was made of")

    OptimizedModule._initialize = _initialize  # type: ignore[method-assign]


@functools.cache
def _break_where_a_size_decides() -> None:
    """Let ``if size:`` of a size that data decide break the graph, as ``if size > 0:`` does.

    Dynamo catches one kind of error there and asks by a function that raises another, which the user would get as soon
    as graphs have sizes that data decide (``SETTINGS``).
    """
    import torch._dynamo.symbolic_convert as convert
    from torch._dynamo.exc import UserError, UserErrorType
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    asked = convert.guard_bool  # type: ignore[attr-defined]

    def guard_bool(condition: Any) -> Any:
        try:
            return asked(condition)
        except GuardOnDataDependentSymNode as e:
            raise UserError(UserErrorType.ANTI_PATTERN, str(e)) from e

    setattr(convert, "guard_bool", guard_bool)  # noqa: B010 - PyTorch does not export it


@functools.cache
def _capture_again_without_sizes() -> None:
    """Let a frame that can't be captured with sizes that data decide be captured without them.

    Such a size is a symbol of Dynamo's, and so is a comparison of it. Code that wants a Python number or truth there
    (the index of a list, the end of a slice) makes Dynamo raise where eager PyTorch works. Without such sizes the graph
    breaks at the call that finds one, and what follows sees a number.
    """
    import torch._dynamo.config as config
    from torch._dynamo import convert_frame
    from torch._dynamo.exc import BackendCompilerFailed, RestartAnalysis, SkipFrame, Unsupported

    capture = convert_frame.compile_frame
    of_others = (BackendCompilerFailed, RestartAnalysis, SkipFrame, Unsupported)

    def compile_frame(*args: Any, **options: Any) -> Any:
        try:
            return capture(*args, **options)
        except of_others:
            raise
        except Exception as error:
            frame = _frame.get()
            if frame is None or frame.one_graph or not getattr(config, FINDS_SIZES):
                raise
            failed = getattr(error, "_torch_dynamo_tracer_output", None)
        if failed is not None:
            failed._cleanup_output_graph()  # as Dynamo does before it starts a frame again
        setattr(config, FINDS_SIZES, False)
        return capture(*args, **options)

    convert_frame.compile_frame = compile_frame


def _reason(text: str) -> str:
    """The first lines of Dynamo's explanation: what, and why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    why = [line.removeprefix("Explanation: ") for line in lines[1:] if line.startswith("Explanation: ")]
    return ": ".join([*lines[:1], *why[:1]])


def _remedy(text: str) -> str:
    """What helps against what Dynamo explains; empty where that is not known."""
    return next((remedy for words, remedy in REMEDIES.items() if any(word in text for word in words)), "")


def _place(code: CodeType, closure: Any = ()) -> Loc:
    """Where a frame's code was written: of the frame that PyTorch puts around modules of its own, their ``forward``."""
    from torch._dynamo import external_utils

    if code.co_filename == external_utils.__file__ and "fn" in code.co_freevars:
        called = closure[code.co_freevars.index("fn")].cell_contents
        code = getattr(getattr(called, "forward", called), "__code__", code)
    text = f"{code.co_qualname} at {code.co_filename}:{code.co_firstlineno}"
    return Loc(text, code.co_filename, code.co_firstlineno)


def _depth_of_caller() -> int:
    """As ``warnings.warn`` counts for the caller of this function: the nearest frame outside of PyTorch and of us."""
    passed = ("torch.", "tilewright.", "contextlib")
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(passed):
        depth, frame = depth + 1, frame.f_back
    return depth


def _is_frame_of_ours() -> bool:
    return _frame.get() is not None


def _options_of_ours(compiler: Any) -> Mapping[str, Any] | None:
    """The options that a back end of ours was chosen with; PyTorch wraps one, once or several times."""
    options: Mapping[str, Any] = {}
    while compiler is not None and not getattr(compiler, "is_tilewright", False):
        options = (getattr(compiler, "kwargs", None) or {}).get("options") or options
        compiler = getattr(compiler, "_torchdynamo_orig_backend", None) or getattr(compiler, "compiler_fn", None)
    return None if compiler is None else options
