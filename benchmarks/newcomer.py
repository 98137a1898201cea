"""Models and functions that nobody tuned for, through the four ways that PyTorch's users come in.

    python -m benchmarks.newcomer                        every case, four entry points
    python -m benchmarks.newcomer --only 'vit|nms'       some, by a regular expression over names and entry points
    python -m benchmarks.newcomer --json out.json        every outcome as a record

In: nothing. Out: a table of outcomes for each entry point, and a line for all that did not pass. A result is right
where it lies within a small multiple of eager PyTorch's own distance from the same computation in f64; arguments that a
call writes are compared too. ``refused`` is a typed error before anything ran, ``skipped`` what PyTorch itself cannot
trace. A piece that PyTorch was left to run counts as passed only if a warning named it.
Not its business: speed (``random_layers.py``, ``other_nets.py``); the cases (``newcomer_*.py``).
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmarks import (
    newcomer_backbones,
    newcomer_blocks,
    newcomer_bodies,
    newcomer_calls,
    newcomer_corners,
    newcomer_decoding,
    newcomer_detection,
    newcomer_estimation,
    newcomer_fields,
    newcomer_functions,
    newcomer_geometry,
    newcomer_idioms,
    newcomer_language,
    newcomer_libraries,
    newcomer_methods,
    newcomer_mixtures,
    newcomer_models,
    newcomer_pictures,
    newcomer_recent,
    newcomer_repositories,
    newcomer_research,
    newcomer_science,
    newcomer_sequences,
    newcomer_serving,
    newcomer_signals,
    newcomer_speech,
    newcomer_toolkits,
    newcomer_trackers,
    newcomer_vision,
)
from benchmarks.newcomer_cases import Newcomer, joined

import tilewright
from tilewright.build import driver
from tilewright.integrations.torch_compile.backend import make_backend
from tilewright.tools.conformance.outcome import STATUSES, Outcome, Status, by_group, table, write_json
from tilewright.tools.conformance.workers import Case, load_suite, run_cases, select

NAME = "newcomer"
TABLES = (
    newcomer_vision,
    newcomer_geometry,
    newcomer_language,
    newcomer_science,
    newcomer_functions,
    newcomer_pictures,
    newcomer_sequences,
    newcomer_signals,
    newcomer_speech,
    newcomer_blocks,
    newcomer_models,
    newcomer_methods,
    newcomer_detection,
    newcomer_decoding,
    newcomer_estimation,
    newcomer_repositories,
    newcomer_corners,
    newcomer_backbones,
    newcomer_toolkits,
    newcomer_research,
    newcomer_mixtures,
    newcomer_recent,
    newcomer_fields,
    newcomer_serving,
    newcomer_bodies,
    newcomer_idioms,
    newcomer_libraries,
    newcomer_calls,
    newcomer_trackers,
)
NEWCOMERS = joined([module.CASES for module in TABLES])
TIMES_EAGER = 16.0
"""How much farther from the f64 result than eager PyTorch an f32 result may lie: sums are added up in another order."""
FLOOR = 2e-5
"""Distance from the f64 result, by the largest element, that is always taken for right."""


def cases() -> Sequence[Case]:
    """Every case at every entry point."""
    return [Case(f"{name} {entry}", entry) for name in NEWCOMERS for entry in ENTRIES]


def run_case(case: Case) -> tuple[Status, str]:
    """Compile and call one case; compare with eager PyTorch at each size."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, about its own trees
    name, entry = case.name.split(" ", 1)
    return run_entry(NEWCOMERS[name], entry)


def run_entry(newcomer: Newcomer, entry: str) -> tuple[Status, str]:
    """A case at an entry point, by its name in ``ENTRIES``."""
    try:
        return ENTRIES[entry](newcomer)
    except tilewright.TilewrightError as e:
        return "refused", f"{type(e).__name__}: {e}"


def _made(newcomer: Newcomer) -> Callable[..., Any]:
    torch.manual_seed(0)
    return newcomer.make()


def _arguments(newcomer: Newcomer, size: int) -> tuple[Any, ...]:
    torch.manual_seed(size)
    return newcomer.inputs(size)


def _export(newcomer: Newcomer, *, is_dynamic: bool) -> tuple[Status, str]:
    """``tilewright.compile(module, inputs)``: fixed, or with ``Dim.AUTO`` for each axis that varies."""
    made = _made(newcomer)
    module = made if isinstance(made, torch.nn.Module) else _Function(made)
    sizes = newcomer.sizes if is_dynamic else newcomer.sizes[:1]
    given = [_arguments(newcomer, n) for n in sizes]
    shapes = _varying(given) if is_dynamic else None
    if isinstance(module, _Function) and shapes is not None:
        shapes = (shapes,)
    try:
        program = torch.export.export(module, given[0], dynamic_shapes=shapes, strict=False).module()
    except Exception as e:
        return "skipped", f"torch.export: {type(e).__name__}: {e}"[:300]
    model = tilewright.compile(module, given[0], dynamic_shapes=shapes, threads=1, cache=False)
    return _compared(newcomer, [n for n in sizes if _is_taken(program, _arguments(newcomer, n))], model)


def _is_taken(program: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Does PyTorch itself run the program at these sizes? Its trace may have fixed one that was to vary."""
    try:
        with torch.no_grad():
            program(*args)
    except Exception:
        return False
    return True


def _compile(newcomer: Newcomer, *, is_dynamic: bool) -> tuple[Status, str]:
    """``torch.compile(f, backend="tilewright")``, with the pieces that it compiled counted."""
    made = _made(newcomer)
    torch._dynamo.reset()
    compiled: list[Any] = []

    def count(graph: Any, **options: Any) -> Any:
        compiled.append(graph)
        return driver.compile_graph(graph, **options)

    sizes = newcomer.sizes if is_dynamic else newcomer.sizes[:1]
    fast = torch.compile(made, backend=make_backend(count), dynamic=is_dynamic)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with torch.no_grad():
            status, detail = _compared(newcomer, sizes, fast)
    said = [str(w.message) for w in heard if issubclass(w.category, tilewright.FallbackWarning)]
    if inner := [text for text in said if "the compiler failed" in text]:
        return "failed", inner[0]
    if status == "passed" and not compiled and not said:
        return "failed", "nothing was compiled, and no warning said so"
    return status, detail or "; ".join(text.split("\n")[0] for text in said)


ENTRIES: Mapping[str, Callable[[Newcomer], tuple[Status, str]]] = {
    "torch.compile": lambda newcomer: _compile(newcomer, is_dynamic=False),
    "torch.compile, dynamic": lambda newcomer: _compile(newcomer, is_dynamic=True),
    "tw.compile": lambda newcomer: _export(newcomer, is_dynamic=False),
    "tw.compile, Dim.AUTO": lambda newcomer: _export(newcomer, is_dynamic=True),
}


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Any) -> Any:
        return self.function(*tensors)


def _varying(given: Sequence[tuple[Any, ...]]) -> Any:
    """``Dim.AUTO`` for the axes whose lengths differ between calls."""
    auto = torch.export.Dim.AUTO

    def of(*leaves: Any) -> Any:
        if not isinstance(leaves[0], torch.Tensor):
            return None
        lengths = zip(*(x.shape for x in leaves), strict=True)
        return {axis: auto for axis, n in enumerate(lengths) if len(set(n)) > 1} or None

    return torch.utils._pytree.tree_map(of, given[0], *given[1:])


def _compared(newcomer: Newcomer, sizes: Sequence[int], fast: Callable[..., Any]) -> tuple[Status, str]:
    """One model is called at each size, as eager PyTorch's is: what the module keeps between calls is kept in both."""
    eager, double = _made(newcomer), _double(_made(newcomer))
    for size in sizes:
        ours, theirs, exact = (_arguments(newcomer, size) for _ in range(3))
        with torch.no_grad():
            expected = eager(*theirs)
        found = fast(*ours)
        try:
            with torch.no_grad():
                reference = double(*_to_double(exact))
        except Exception:  # what insists on f32 has eager's numbers alone
            reference, exact = expected, theirs
        if problem := _difference((found, ours), (expected, theirs), (reference, exact)):
            return "wrong", f"size {size}: {problem}"
    return "passed", ""


def _double(function: Callable[..., Any]) -> Callable[..., Any]:
    return copy.deepcopy(function).double() if isinstance(function, torch.nn.Module) else function


def _to_double(args: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda x: x.double() if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x, args
    )


def _difference(found: Any, expected: Any, exact: Any) -> str:
    leaves = [torch.utils._pytree.tree_leaves(x) for x in (found, expected, exact)]
    if len(leaves[0]) != len(leaves[1]):
        return f"{len(leaves[0])} values instead of {len(leaves[1])}"
    for k, (a, b, c) in enumerate(zip(*leaves, strict=True)):
        if isinstance(b, torch.Tensor):
            if problem := _tensor_difference(torch.as_tensor(a), b, c):
                return f"value {k}: {problem}"
        elif a != b and not (isinstance(b, float) and abs(a - b) <= FLOOR * max(abs(b), 1.0)):
            return f"value {k}: {a!r} instead of {b!r}"
    return ""


def _tensor_difference(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> str:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return f"{a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
    if not (b.is_floating_point() or b.is_complex()):
        n_differ = int((a != b).sum())
        return f"{n_differ} of {b.numel()} elements differ" if n_differ else ""
    wide = torch.complex128 if b.is_complex() else torch.float64
    a, b, c = a.to(wide), b.to(wide), c.to(wide) if c.shape == b.shape else b.to(wide)
    odd = ~b.isfinite()
    if (
        not torch.equal(a[odd].nan_to_num(2.0, 3.0, -3.0), b[odd].nan_to_num(2.0, 3.0, -3.0))
        or not a[~odd].isfinite().all()
    ):
        return "NaN or infinity at other places"
    a, b, c = (x[~odd].nan_to_num() for x in (a, b, c))
    if not b.numel():
        return ""
    largest = float(b.abs().max()) or 1.0
    allowed = max(FLOOR * largest, TIMES_EAGER * float((b - c).abs().max()))
    apart = float((a - b).abs().max())
    return f"{apart:.3g} apart where {allowed:.3g} is allowed, largest {largest:.3g}" if apart > allowed else ""


def _parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression over case names and entry points")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--seconds", type=float, default=240.0, help="limit for a case")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    return parser


def main(module: str = "benchmarks.newcomer") -> None:
    """Run the suite in ``module``, which has cases like ours, by the command line."""
    suite = load_suite(module)
    options = _parser(suite.__doc__).parse_args()
    outcomes: list[Outcome] = []
    chosen = select(suite.cases(), options.only)
    for outcome in run_cases(module, chosen, jobs=options.jobs, seconds=options.seconds):
        outcomes.append(outcome)
        if outcome.status != "passed" or outcome.detail:
            print(f"{outcome.status:8} {outcome.name}: {outcome.detail[:400]}", flush=True)
    columns, rows = table(by_group(outcomes))
    for row in (columns, *rows):
        print("  ".join(f"{x!s:>8}" if i else f"{x!s:24}" for i, x in enumerate(row)))
    if options.json:
        write_json(options.json, suite.NAME, outcomes, {"cases": len(chosen), "statuses": list(STATUSES)})


if __name__ == "__main__":
    main()
