"""What Dynamo captures for this back end: more than it does by default, and a word where it captures nothing.

In: the start and the end of Dynamo's work on a frame. Out: settings of Dynamo for that time, less of them where it
fails, and a ``FallbackWarning`` for a frame, or a call where Dynamo breaks the graph, that is left to Python: Dynamo
says so only in its logs.
Not its business: graphs that were captured (``torch_compile``).

PyTorch looks a back end up when ``torch.compile`` is called, and calls it when a graph is captured; in between it tells
a back end nothing. So callbacks of ``torch._dynamo.callback``, which hears of every frame, ask whose frame it is. Other
back ends keep their settings: those are changed and put back around each frame of ours.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NoReturn

from tilewright.core.diag import CompileError
from tilewright.integrations.torch_compile.faults import first_line
from tilewright.integrations.torch_compile.recurrence import keep_lengths_symbolic
from tilewright.integrations.torch_compile.resampling import keep_resamplings_whole
from tilewright.runtime.env import read_environment

FINDS_SIZES = "capture_dynamic_output_shape_ops"
SETTINGS = {"allow_rnn": True, FINDS_SIZES: True}
"""Modules of recurrences are one call each (``torch_compile.recurrence``); a graph finds the places where a mask is
true."""

ASKED_FOR = ("torch._dynamo.graph_break", "torch.compiler.disable", "torch._dynamo.disable")
"""What users write to break a graph; such breaks are not told."""


@dataclass
class _Before:
    """Dynamo as it was before the frame that it works on. Its own lock lets one thread work at a time."""

    settings: dict[str, Any] = field(default_factory=dict)
    n_breaks: dict[str, int] = field(default_factory=dict)


_before = _Before()


class FallbackWarning(UserWarning):
    """A call that has no form in Tilewright is left to PyTorch; the text names the call, the line and the reason."""


def watch() -> None:
    """Follow Dynamo from now on; ``torch._dynamo.reset`` forgets callbacks, and these are put back."""
    from torch._dynamo.callback import callback_handler

    if _start in callback_handler.start_callbacks:
        return
    forget, install = callback_handler.clear, callback_handler.install_callbacks

    def clear() -> None:
        forget()
        register()

    def register() -> None:
        callback_handler.register_start_callback(_start)
        callback_handler.register_end_callback(_end)

    @contextmanager
    def install_callbacks(*what: Any) -> Iterator[None]:
        with _leaving_failed_frames(), install(*what):
            yield

    register()
    callback_handler.clear = clear  # type: ignore[method-assign]
    callback_handler.install_callbacks = install_callbacks  # type: ignore[method-assign, assignment]


def _start(_: Any) -> None:
    import torch._dynamo.config as config
    from torch._dynamo.utils import counters

    if _is_frame_of_ours():
        keep_lengths_symbolic(_is_frame_of_ours)
        keep_resamplings_whole(_is_frame_of_ours)
        _break_where_a_size_decides()
        _capture_again_without_sizes()
        _before.n_breaks = dict(counters["graph_break"])
        for name, value in SETTINGS.items():
            _before.settings[name] = getattr(config, name)
            setattr(config, name, value)


def _end(_: Any) -> None:
    import torch._dynamo.config as config
    from torch._dynamo.exc import Unsupported
    from torch._dynamo.utils import counters

    while _before.settings:
        setattr(config, *_before.settings.popitem())
    error, frame = sys.exc_info()[1], _frame_of_ours()
    if frame is None or frame["one_graph"]:
        return  # users of ``fullgraph=True`` get Dynamo's error
    place = _place(frame["code"])
    if isinstance(error, Unsupported):
        _tell(f"{place} runs in PyTorch, not in Tilewright: Dynamo captured no graph of it", str(error))
    elif error is None:
        breaks = counters["graph_break"]
        for text in [text for text, n in breaks.items() if n > _before.n_breaks.get(text, 0)]:
            _tell(f"a call in {place} runs in PyTorch, not in Tilewright: Dynamo broke the graph there", text)


def _is_of_tracing(error: Exception) -> bool:
    """Did Dynamo itself fail, in the middle of a frame? Back ends have their own fallback, or mean their errors."""
    from torch._dynamo.exc import BackendCompilerFailed, ResumePrologueTracingError, Unsupported, UserError

    meant = (Unsupported, UserError, BackendCompilerFailed, ResumePrologueTracingError, CompileError, Warning)
    return not isinstance(error, meant) and not isinstance(error.__cause__, meant)


@contextmanager
def _leaving_failed_frames() -> Iterator[None]:
    """Around Dynamo's work on a frame, since a callback that raises is counted as one that never ended."""
    try:
        yield
    except Exception as e:
        frame = _frame_of_ours()
        is_strict = read_environment().strict
        if is_strict or frame is None or frame["one_graph"] or not _is_of_tracing(e):
            raise
        _leave_to_python(e, frame["code"])


def _leave_to_python(error: Exception, code: CodeType) -> NoReturn:
    """Have Python run this call of ``code``: what it does there, an error of the user's own too, is what is right.

    The next call is traced again, since it may have other arguments.
    """
    from torch._dynamo.exc import Unsupported
    from torch._dynamo.types import FrameAction, FrameExecStrategy  # type: ignore[attr-defined]

    reason = Unsupported(f"{type(error).__name__}: {first_line(error)}")
    reason.frame_exec_strategy = FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT)
    _tell(f"a call of {_place(code)} runs in PyTorch, not in Tilewright: Dynamo failed to trace it", reason.msg)
    raise reason from error


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


def _place(code: CodeType) -> str:
    return f"{code.co_qualname} at {code.co_filename}:{code.co_firstlineno}"


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
            frame = _frame_of_ours()
            if frame is None or frame["one_graph"] or not getattr(config, FINDS_SIZES):
                raise
            failed = getattr(error, "_torch_dynamo_tracer_output", None)
        if failed is not None:
            failed._cleanup_output_graph()  # as Dynamo does before it starts a frame again
        _before.settings.setdefault(FINDS_SIZES, True)
        setattr(config, FINDS_SIZES, False)
        return capture(*args, **options)

    convert_frame.compile_frame = compile_frame


def _tell(what: str, text: str) -> None:
    if not any(name in text for name in ASKED_FOR):
        warnings.warn(f"{what} ({_reason(text)})", FallbackWarning, stacklevel=4)


def _reason(text: str) -> str:
    """The first lines of Dynamo's explanation: what, and why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    why = [line.removeprefix("Explanation: ") for line in lines[1:] if line.startswith("Explanation: ")]
    return ": ".join([*lines[:1], *why[:1]])


def _frame_of_ours() -> dict[str, Any] | None:
    """What Dynamo knows of the frame that it works on, if that is for a back end of ours."""
    from torch._dynamo import convert_frame

    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not convert_frame._compile.__code__:
        frame = frame.f_back
    if frame is None:
        return None
    known = frame.f_locals
    return known if _is_ours(known.get("compiler_fn")) else None


def _is_frame_of_ours() -> bool:
    return _frame_of_ours() is not None


def _is_ours(compiler: Any) -> bool:
    """PyTorch wraps a back end, once or several times."""
    while compiler is not None and not getattr(compiler, "is_tilewright", False):
        compiler = getattr(compiler, "_torchdynamo_orig_backend", None) or getattr(compiler, "compiler_fn", None)
    return compiler is not None
