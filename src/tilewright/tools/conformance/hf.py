"""Hugging Face architectures, small and with random weights, compiled whole and compared with eager PyTorch.

In: ``transformers``, from whose configuration classes models are built; nothing is downloaded. Out: three cases for
each architecture of ``hf_models``:

- ``export``: ``torch.export`` at the example's sizes, ``tw.compile``;
- ``dynamic``: exported once with every named dimension left symbolic as far as ``torch.export`` allows it, run at the
  example's sizes and at others;
- ``torch_compile``: ``torch.compile(backend="tilewright")``; no call may run in PyTorch between compiled pieces.

Not its business: programs that PyTorch itself can't capture, which are ``skipped`` and name its message.
"""

from __future__ import annotations

import logging
import random
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
import transformers
from torch.utils import _pytree as pytree

from tilewright.build import driver
from tilewright.core.diag import CompileError
from tilewright.tools.conformance.hf_models import ARCHITECTURES, Architecture, Input
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "hf"
Sizes = Literal["fixed", "auto"]
FIXED: Sizes = "fixed"
AUTO: Sizes = "auto"
MODES = ("export", "dynamic", "dynamo")
RTOL = 1e-3
ATOL = 1e-4  # of the largest magnitude in the expected result
SPREAD = 0.5  # of the noise on weights, which makes activations about as large as those of trained models


def cases() -> Sequence[Case]:
    """Every architecture in every mode."""
    return [Case(f"{a.name}-{mode}", a.name, (mode, a.family)) for a in ARCHITECTURES for mode in MODES]


def run_case(case: Case) -> tuple[Status, str]:
    """Build the model, run it in PyTorch, capture, compile, run, compare."""
    mode = case.name.rsplit("-", 1)[1]
    architecture = _by_name()[case.group]
    with quiet(), torch.no_grad():
        model = build(architecture)
        return _RUN[mode](architecture, model)


@cache
def _by_name() -> dict[str, Architecture]:
    return {a.name: a for a in ARCHITECTURES}


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' warnings, which say nothing of the result."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    level = logging.getLogger("torch").level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch").setLevel(logging.ERROR)
        yield
    logging.getLogger("torch").setLevel(level)


# --- models and inputs ------------------------------------------------------------------------------------------------


def build(architecture: Architecture) -> torch.nn.Module:
    """The model in evaluation mode with seeded random weights."""
    seed = zlib.crc32(architecture.name.encode())
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    config = _config(architecture.config, architecture.sizes)
    model: torch.nn.Module = getattr(transformers, architecture.model)(config)
    with torch.no_grad():
        for p in model.parameters():
            fan_in = p[0].numel() if p.dim() > 1 else 16
            p.add_(torch.randn_like(p) * (SPREAD / max(fan_in, 1) ** 0.5))
    return model.eval()


def _config(name: str, sizes: Mapping[str, Any]) -> Any:
    def made(value: Any) -> Any:
        return _config(value[""], value) if isinstance(value, Mapping) and "" in value else value

    return getattr(transformers, name)(**{k: made(v) for k, v in sizes.items() if k})


def make_inputs(architecture: Architecture, sizes: Mapping[str, int], seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors for ``forward`` with the named dimensions as ``sizes`` says."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: _tensor(i, [sizes[d] if isinstance(d, str) else d for d in i.dims], architecture.vocab, generator)
        for name, i in architecture.inputs.items()
    }


def _tensor(given: Input, shape: list[int], vocab: int, generator: torch.Generator) -> torch.Tensor:
    match given.kind:
        case "tokens":
            return torch.randint(3, vocab - 1, shape, generator=generator)
        case "types":
            return torch.randint(0, 2, shape, generator=generator)
        case "mask":
            kept = shape[1] - torch.arange(shape[0]) % max(shape[1] - 1, 1)
            return (torch.arange(shape[1]) < kept[:, None]).long()
        case "images":
            ids = torch.randint(3, vocab - 1, shape, generator=generator)
            ids[:, 1:17] = vocab - 1
            return ids
        case "boxes":
            corner = torch.randint(0, 500, (*shape[:-1], 2), generator=generator)
            return torch.cat([corner, corner + torch.randint(1, 500, corner.shape, generator=generator)], -1)
        case "ones":
            return torch.ones(shape)
        case "zeros":
            return torch.zeros(shape)
        case "positive":
            return torch.rand(shape, generator=generator) * 30
    return torch.randn(shape, generator=generator)


# --- modes ------------------------------------------------------------------------------------------------------------


def _run_export(architecture: Architecture, model: torch.nn.Module) -> tuple[Status, str]:
    inputs = make_inputs(architecture, architecture.dims)
    expected = flat(model(**inputs, **architecture.call))
    try:
        program = capture(architecture, model, inputs, FIXED)
    except Exception as e:
        return "skipped", f"torch.export: {_first_line(e)}"
    try:
        compiled = driver.compile(program, cache=False)
    except CompileError as e:
        return "refused", str(e)
    problem = differences(call(compiled, inputs), expected)
    return ("wrong", problem) if problem else ("passed", "")


def _run_dynamic(architecture: Architecture, model: torch.nn.Module) -> tuple[Status, str]:
    inputs = make_inputs(architecture, architecture.dims)
    model(**inputs, **architecture.call)
    try:
        program = capture(architecture, model, inputs, AUTO)
    except Exception as e:
        return "skipped", f"torch.export: {_first_line(e)}"
    fixed = fixed_dimensions(architecture, program)
    if fixed == set(architecture.dims):
        return "skipped", f"torch.export makes constants of all of {', '.join(sorted(fixed))}"
    try:
        compiled = driver.compile(program, cache=False)
    except CompileError as e:
        return "refused", str(e)
    for k, sizes in enumerate((architecture.dims, *architecture.others)):
        sizes = {d: architecture.dims[d] if d in fixed else n for d, n in sizes.items()}
        inputs = make_inputs(architecture, sizes, k)
        problem = differences(call(compiled, inputs), flat(model(**inputs, **architecture.call)))
        if problem:
            return "wrong", f"at {sizes}: {problem}"
    return "passed", f"torch.export makes a constant of {', '.join(sorted(fixed))}" if fixed else ""


def _run_dynamo(architecture: Architecture, model: torch.nn.Module) -> tuple[Status, str]:
    inputs = make_inputs(architecture, architecture.dims)
    expected = flat(model(**inputs, **architecture.call))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="tilewright", options={"fallback": False})
    try:
        results = flat(compiled(**inputs, **architecture.call))
    except torch._dynamo.exc.BackendCompilerFailed as e:
        return "refused", str(e.inner_exception)
    problem = differences([np.asarray(r) for r in results], expected)
    return ("wrong", problem) if problem else ("passed", "")


_RUN = {"export": _run_export, "dynamic": _run_dynamic, "dynamo": _run_dynamo}


def capture(architecture: Architecture, model: torch.nn.Module, inputs: Mapping[str, Any], sizes: Sizes) -> Any:
    """The exported program: every size a number, or every named dimension symbolic if PyTorch allows it."""
    options: dict[str, Any] = {"kwargs": {**inputs, **architecture.call}, "strict": False}
    if sizes == FIXED:
        return torch.export.export(model, (), **options)
    named = {name: [k for k, d in enumerate(i.dims) if isinstance(d, str)] for name, i in architecture.inputs.items()}
    shapes = {name: dict.fromkeys(axes, torch.export.Dim.AUTO) for name, axes in named.items()}
    options["dynamic_shapes"] = {**shapes, **dict.fromkeys(architecture.call)}
    try:
        return torch.export.export(model, (), **options)
    except Exception:  # it raises many kinds; relations that it can't prove then become run-time constraints
        return torch.export.export(model, (), **options, prefer_deferred_runtime_asserts_over_guards=True)


def fixed_dimensions(architecture: Architecture, program: Any) -> set[str]:
    """The named dimensions that the program has as numbers everywhere."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    return {
        d
        for name, i in architecture.inputs.items()
        for k, d in enumerate(i.dims)
        if isinstance(d, str) and name in values and _is_number(values[name].shape[k])
    }


def _is_number(size: Any) -> bool:
    return isinstance(size, int) or size.node.maybe_as_int() is not None


def call(compiled: Any, inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    """The tensors of the compiled model's result; inputs that the program does not read are left out."""
    wanted = {spec.name for spec in compiled.inputs}
    answer = compiled(**{k: v.numpy() for k, v in inputs.items() if k in wanted})
    return [x for x in pytree.tree_leaves(answer) if isinstance(x, np.ndarray)]


def _first_line(e: Exception) -> str:
    return next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)[:300]


# --- comparison -------------------------------------------------------------------------------------------------------


def flat(result: Any) -> list[Any]:
    """The tensors of a model's result in order, as arrays."""
    return [x.detach().numpy() for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def differences(results: Sequence[Any], expected: Sequence[Any]) -> str:
    """How results differ from what is expected; empty when they agree."""
    if len(results) != len(expected):
        return f"{len(results)} results, expected {len(expected)}"
    for k, (r, e) in enumerate(zip(results, expected, strict=True)):
        if r.shape != e.shape or r.dtype != e.dtype:
            return f"result {k}: {r.dtype}{r.shape}, expected {e.dtype}{e.shape}"
        finite = e[np.isfinite(e)]
        atol = ATOL * max(1.0, float(np.abs(finite.astype(np.float64)).max())) if finite.size else ATOL
        try:
            np.testing.assert_allclose(r, e, rtol=RTOL, atol=atol)
        except AssertionError as error:
            return f"result {k}: {' '.join(str(error).split())[:300]}"
    return ""
