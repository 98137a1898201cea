"""PyTorch's operator database through ``torch.compile(backend="tilewright")``, compared with eager PyTorch.

In: the installed ``torch``, which brings the database and its samples. Out: an outcome for each entry and dtype.
Not its business: gradients.

An entry with a dtype is one case. Of its samples (up to 1,440 of one shape family) at most ``SAMPLES`` run, evenly
spread; ``tools.conformance.torch_all`` runs all. Dynamo's work on a frame is most of the time, so up to ``TOGETHER``
samples are first called in one function; where anything about that is not right, each runs alone. A case is

* ``passed`` when every sample gives what eager gives (dtypes, shapes, values, writes to arguments, aliasing), in whole
  graphs that were compiled without a call left to PyTorch other than draws from its random generator;
* ``wrong`` when a sample differs, whoever ran it;
* ``refused`` when all agree but a call was left to PyTorch, which the detail names;
* ``skipped`` when all agree but Dynamo itself breaks the graph, or eager PyTorch can't run it: there is nothing that a
  back end could be given.

For a target that is a GPU, samples lie on the GPU, and eager PyTorch computes there too.

A graph is whole when ``torch.compile(fullgraph=True)`` captures it, which by itself takes sizes and numbers that only
data decide into the graph. Where that fails for the back end ``aot_eager`` too, the break is Dynamo's; else it is ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
import torch._dynamo as dynamo
from torch.testing._internal import common_methods_invocations as database
from torch.utils import _pytree as pytree

from tilewright.build.driver import compile_graph
from tilewright.core.diag import Problem
from tilewright.integrations.torch_compile.backend import make_backend
from tilewright.target.gpu import is_gpu
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import NATIVE, Case

NAME = "torch"
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
SAMPLES = 8
TOGETHER = 8
TOLERANCES: Mapping[torch.dtype, tuple[float, float]] = {
    torch.float32: (1.3e-6, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float16: (1e-3, 1e-5),
}
"""Relative and absolute, as ``torch.testing.assert_close`` has them by default."""

TIES: Mapping[str, int] = {"topk": 1, "kthvalue": 1, "mode": 0, "sort": 0, "argsort": 0}
"""Entries whose last result is a place that PyTorch leaves open among equal values, and where their axis stands among
the arguments: what lies at the place is compared."""

ERROR_FACTOR = 4.0
"""Where those are exceeded, a result is still right when its error against float64 is no more than this many times
eager's own, or than this many tolerances of the largest element."""

UNINITIALISED = ("empty", "new_empty", "resize_", "resize_as_")
"""Entries whose values are whatever the memory held: dtype and shape are compared."""


@dataclass
class Run:
    """What happened while one case ran, and what it is compiled for."""

    target: str = NATIVE
    fallbacks: dict[str, str] = field(default_factory=dict)
    breaks: dict[str, str] = field(default_factory=dict)

    def note(self, problems: Sequence[Problem]) -> None:
        """Take calls that PyTorch was left to run."""
        self.fallbacks.update({p.op: p.rule for p in problems})

    def backend(self) -> Callable[..., Any]:
        """The back end for the target, which notes here what it leaves to PyTorch."""
        return partial(make_backend(compile_graph, self.note), options={"target": self.target})


@dataclass(frozen=True)
class SampleInEager:
    """A sample, its number, and what eager PyTorch makes of it: the result, and the arguments afterwards."""

    k: int
    sample: Any
    result: Any
    arguments: list[Any]


@cache
def _entries() -> dict[str, tuple[Any, torch.dtype]]:
    """Every entry with a dtype that it supports on the CPU, by the case's name."""
    return {
        f"{op.full_name}[{str(dtype).removeprefix('torch.')}]": (op, dtype)
        for op in database.op_db
        for dtype in DTYPES
        if dtype in op.supported_dtypes("cpu")
    }


def cases() -> Sequence[Case]:
    """Every entry of the database with each of its dtypes."""
    return [Case(name, op.full_name, (str(dtype).removeprefix("torch."),)) for name, (op, dtype) in _entries().items()]


def run_case(case: Case) -> tuple[Status, str]:
    """Run at most ``SAMPLES`` of the entry's samples."""
    return run_entry(case.name, SAMPLES)


def run_case_for(case: Case, target: str) -> tuple[Status, str]:
    """The same by code for a target, which runs on this computer."""
    return run_entry(case.name, SAMPLES, target)


def run_entry(name: str, n_samples: int | None, target: str = NATIVE) -> tuple[Status, str]:
    """Run samples of the entry and dtype called ``name``; all without ``n_samples``."""
    op, dtype = _entries()[name]
    device = "cuda" if is_gpu(target) else "cpu"
    if dtype not in op.supported_dtypes(device):
        return "skipped", f"eager PyTorch has none for {device}"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # workers share the cores
    samples = _spread(list(op.sample_inputs(device, dtype, requires_grad=False)), n_samples)
    run = Run(target)
    known: list[SampleInEager] = []
    for k, sample in enumerate(samples):
        with suppress(Exception):  # eager PyTorch refuses: jiterator on a CPU
            known.append(SampleInEager(k, sample, *_call(op.op, sample)))
    if not known:
        return "skipped", "eager PyTorch runs no sample here"
    with _unmeasured():
        for part in _batched(known, TOGETHER):
            if len(part) > 1 and _are_right_together(op, part, run.target):
                continue
            for one in part:
                problem = _run_alone(op, one, run)
                if problem:
                    return "wrong", f"sample {one.k} of {len(samples)}, {_describe(one.sample)}: {problem}"
    if run.fallbacks:  # ours, so it counts before what Dynamo does
        return "refused", "left to PyTorch: " + "; ".join(f"{op}: {rule}" for op, rule in run.fallbacks.items())
    if run.breaks:
        return "skipped", "Dynamo breaks the graph: " + "; ".join(run.breaks)
    return "passed", ""


def _spread(samples: list[Any], n: int | None) -> list[Any]:
    """``n`` samples evenly spread, the first and the last among them."""
    if n is None or len(samples) <= n:
        return samples
    return [samples[round(i * (len(samples) - 1) / max(n - 1, 1))] for i in range(n)]


def _batched(found: Sequence[SampleInEager], n: int) -> Iterator[list[SampleInEager]]:
    rest = iter(found)
    while part := list(islice(rest, n)):
        yield part


def _describe(sample: Any) -> str:
    def one(x: Any) -> str:
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)

    shown = pytree.tree_map(one, (sample.input, *sample.args, sample.kwargs))
    return " ".join(map(str, shown))[:300]


# --- one sample -----------------------------------------------------------------------------------------------------


def _call(f: Callable[..., Any], sample: Any, dtype: torch.dtype | None = None) -> tuple[Any, list[Any]]:
    """The result of a call on copies of the sample's arguments, and those arguments after it."""
    args, kwargs = _arguments(sample, dtype)
    torch.manual_seed(0)
    with torch.no_grad(), _unseeded():
        result = f(*args, **kwargs)
    return result, list(pytree.tree_leaves((args, kwargs)))


def _arguments(sample: Any, dtype: torch.dtype | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the sample's arguments; what is one tensor stays one."""
    copies: dict[int, torch.Tensor] = {}

    def copy(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in copies:
            copies[id(x)] = _copied(x, dtype)
        return copies[id(x)]

    found: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map(
        copy, ((sample.input, *sample.args), dict(sample.kwargs))
    )
    return found


def _copied(x: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A copy with the same strides and storage offset."""
    if x.layout is not torch.strided or type(x) is not torch.Tensor:
        return x.clone()
    n = x.untyped_storage().nbytes() // x.element_size()
    flat = torch.as_strided(x.detach(), (n,), (1,), 0).clone() if n else x.new_empty(0)
    if dtype is not None and x.dtype.is_floating_point:
        flat = flat.to(dtype)
    copy = flat.as_strided(x.shape, x.stride(), x.storage_offset())
    copy = copy.conj() if x.is_conj() else copy
    return copy if not x.is_neg() else torch._neg_view(copy)


@contextmanager
def _unseeded() -> Iterator[None]:
    """The database seeds inside of what is called, which no graph can hold; here seeds are set before calls."""
    module: Any = database
    kept = module.wrapper_set_seed
    module.wrapper_set_seed = lambda f, *args, **kwargs: f(*args, **kwargs)
    try:
        yield
    finally:
        module.wrapper_set_seed = kept


@contextmanager
def _unmeasured() -> Iterator[None]:
    """Without Dynamo's measuring of its guards, which flushes the processor's caches: a third of a sample's time."""
    module: Any = dynamo.guards
    kept = module.profile_guard_manager
    module.profile_guard_manager = lambda *args: 0.0
    try:
        yield
    finally:
        module.profile_guard_manager = kept


def _are_right_together(op: Any, part: Sequence[SampleInEager], target: str) -> bool:
    """Does one function of all the samples compile whole and give what eager gives for each?"""
    f, run = op.op, Run(target)
    dynamo.reset()

    def traced(calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        return [f(*args, **kwargs) for args, kwargs in calls]

    calls = [_arguments(one.sample) for one in part]
    torch.manual_seed(0)
    try:
        with torch.no_grad(), _unseeded():
            results = torch.compile(traced, backend=run.backend(), fullgraph=True)(calls)
    except Exception:  # running each alone tells of which
        return False
    if run.fallbacks:
        return False
    return not any(
        _problem(op, one, result, list(pytree.tree_leaves(arguments)))
        for one, result, arguments in zip(part, results, calls, strict=True)
    )


def _run_alone(op: Any, one: SampleInEager, run: Run) -> str:
    """Run a sample compiled; how it differs from eager PyTorch, or nothing."""
    f, ours = op.op, run.backend()

    def traced(*args: Any, **kwargs: Any) -> Any:  # Dynamo traces functions of Python only
        return f(*args, **kwargs)

    def compiled(backend: Any, fullgraph: bool) -> tuple[Any, list[Any]]:
        dynamo.reset()
        return _call(torch.compile(traced, backend=backend, fullgraph=fullgraph), one.sample)

    try:
        got = compiled(ours, True)
    except Exception as error:
        if _succeeds(lambda: compiled("aot_eager", True)):  # another back end gets the whole graph: the break is ours
            raise
        run.breaks[_reason(str(error))] = ""
        got = compiled(ours, False)
    problem = _problem(op, one, *got)
    if problem:  # what capturing itself changes is not a back end's
        try:
            captured = compiled("aot_eager", False)
        except Exception:
            return problem
        return problem if _problem(op, SampleInEager(one.k, one.sample, *captured), *got) else ""
    return ""


def _succeeds(f: Callable[[], Any]) -> bool:
    try:
        f()
    except Exception:
        return False
    return True


def _problem(op: Any, want: SampleInEager, got: Any, got_arguments: list[Any]) -> str:
    """How a result and the arguments after the call differ from what is wanted, or nothing."""
    if op.name in UNINITIALISED or op.name.removeprefix("new_").startswith("empty"):
        return _metadata(got, want.result)
    process, expected = want.sample.output_process_fn_grad, want.result
    if op.name in TIES:
        got, expected = (_at_places(op.name, want.sample, r) for r in (got, expected))

    def wider() -> Any:
        result, arguments = _call(op.op, want.sample, torch.float64)
        return process(result), arguments

    problem = _differences((process(got), got_arguments), (process(expected), want.arguments), wider)
    if problem or op.name.startswith("unsafe_"):  # whose results may or may not be views, says their name
        return problem
    return _aliasing(got, got_arguments, expected, want.arguments)


def _at_places(name: str, sample: Any, result: Any) -> Any:
    """A result with its places replaced by what lies there; results for all elements at once have only values."""
    k, x = TIES[name], sample.input
    values, places = (None, result) if isinstance(result, torch.Tensor) else result
    dim = sample.kwargs.get("dim", sample.args[k] if len(sample.args) > k else -1)
    if not x.dim():
        return values, places
    if places.dim() < x.dim():
        return values, x.gather(dim, places.unsqueeze(dim)).squeeze(dim)
    return values, x.gather(dim, places)


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.split("\n")]
    return next((line for line in lines[1:2]), lines[0])[:200]


# --- comparing ------------------------------------------------------------------------------------------------------


def _metadata(got: Any, expected: Any) -> str:
    for k, (g, e) in enumerate(zip(pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True)):
        if isinstance(e, torch.Tensor) and (g.dtype, g.shape) != (e.dtype, e.shape):
            return f"result {k}: {g.dtype}{list(g.shape)}, expected {e.dtype}{list(e.shape)}"
    return ""


def _differences(got: Any, expected: Any, wider: Callable[[], Any]) -> str:
    """How results and written arguments differ; ``wider`` computes them in float64."""
    ours, theirs = pytree.tree_leaves(got), pytree.tree_leaves(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, expected {len(theirs)}"
    exact: list[Any] | None = None
    for k, (g, e) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(e, torch.Tensor):
            if not _equal_scalars(g, e):
                return f"result {k}: {g!r}, expected {e!r}"
            continue
        if not isinstance(g, torch.Tensor) or (g.dtype, g.shape, g.layout) != (e.dtype, e.shape, e.layout):
            shown = f"{g.dtype}{list(g.shape)}" if isinstance(g, torch.Tensor) else type(g).__name__
            return f"result {k}: {shown}, expected {e.dtype}{list(e.shape)}"
        problem = _difference(g, e)
        if problem and e.dtype in TOLERANCES:
            if exact is None:
                exact = _wider_leaves(wider)
            if k < len(exact) and _is_no_worse(g, e, exact[k]):
                continue
        if problem:
            return f"result {k}: {problem}"
    return ""


def _equal_scalars(g: Any, e: Any) -> bool:
    if isinstance(e, float) and isinstance(g, float):
        return g == e or (g != g and e != e) or abs(g - e) <= 1e-5 * abs(e)
    return type(g) is type(e) and bool(g == e)


def _dense(x: torch.Tensor) -> torch.Tensor:
    return (x if x.layout is torch.strided else x.to_dense()).detach().resolve_conj().resolve_neg()


def _difference(g: torch.Tensor, e: torch.Tensor) -> str:
    rtol, atol = TOLERANCES.get(e.dtype, (0.0, 0.0))
    try:
        torch.testing.assert_close(_dense(g), _dense(e), rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def _wider_leaves(wider: Callable[[], Any]) -> list[Any]:
    try:
        return list(pytree.tree_leaves(wider()))
    except Exception:  # an entry may refuse float64, or a mix of dtypes
        return []


def _is_no_worse(g: torch.Tensor, e: torch.Tensor, exact: Any) -> bool:
    """Is the error against float64 within a factor of eager's, or within the tolerance of the largest element?"""
    if not isinstance(exact, torch.Tensor) or exact.shape != e.shape or not g.numel():
        return False
    wide = torch.complex128 if e.dtype.is_complex else torch.float64
    ours, theirs, truth = (_dense(x).to(wide) for x in (g, e, exact))
    rounded = truth.to(e.dtype).to(wide)
    like = theirs if torch.equal(ours.isfinite(), theirs.isfinite()) else rounded  # eager may overflow on the way
    finite = truth.isfinite() & like.isfinite()
    if not torch.equal(ours.isfinite(), like.isfinite()) or not bool(finite.any()):
        return False
    if not torch.equal(ours[~finite].isnan(), like[~finite].isnan()):
        return False
    rtol, atol = TOLERANCES[e.dtype]
    size = truth[finite].abs().max()
    error, usual = ((x[finite] - truth[finite]).abs().max() for x in (ours, like))
    return bool(error <= ERROR_FACTOR * usual) or bool(error <= ERROR_FACTOR * (rtol * size + atol))


def _aliasing(got: Any, got_inputs: list[Any], expected: Any, expected_inputs: list[Any]) -> str:
    """Do results share memory with arguments where eager's do?"""
    ours = [_shared(x, got_inputs) for x in pytree.tree_leaves(got)]
    theirs = [_shared(x, expected_inputs) for x in pytree.tree_leaves(expected)]
    return "" if ours == theirs else f"results alias arguments {ours}, expected {theirs}"


def _shared(x: Any, arguments: list[Any]) -> int | None:
    """The position of the argument whose memory a result lies in."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or not x.numel():
        return None
    address = x.untyped_storage().data_ptr()
    for k, a in enumerate(arguments):
        if isinstance(a, torch.Tensor) and a.layout is torch.strided and a.untyped_storage().data_ptr() == address:
            return k
    return None
