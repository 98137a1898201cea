"""Many models as one program for another machine: ONNX's node tests and small nets, compared with what is expected.

In: a ``Platform``, cases and a folder. Out: what is wrong, by case. Not its business: tools (``platforms``).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fuzz_quantised
from aot.emulated.platforms import Platform
from quantised_graphs import quantised_graph
from quantised_grower import Made
from tilewright.aot.export import Exported, ExportOptions, export
from tilewright.aot.header import common_text
from tilewright.build import deploy
from tilewright.build.options import Clock, Options
from tilewright.core.diag import CompileError
from tilewright.core.types import Array
from tilewright.frontend.onnx.given import NeedsCall
from tilewright.frontend.source import import_source
from tilewright.runtime.manifest import Manifest, TensorSpec
from tilewright.runtime.shapes import ShapeBinder
from tilewright.runtime.values import dtype_of
from tilewright.tools.conformance import onnx as suite

_FUNCTIONS = {
    "info": "const tw_model_info *(*info)(void)",
    "input_shape": "tw_status (*input_shape)(const int64_t *, int32_t, int64_t *)",
    "output_shape": "tw_status (*output_shape)(const int64_t *, int32_t, int64_t *)",
    "workspace": "tw_status (*workspace)(const int64_t *, int64_t *)",
    "create": "tw_status (*create)(void *, void *, int64_t, const void *, int32_t)",
    "run": "tw_status (*run)(void *, const int64_t *, const void *const *, void *const *)",
    "result_shape": "tw_status (*result_shape)(const void *, int32_t, int64_t *)",
    "destroy": "void (*destroy)(void *)",
}
"""What the program calls of each model; handles are ``void *``, so that models share a type."""


@dataclass(frozen=True)
class Trial:
    """A model with inputs and what ``judge`` says of its outputs: empty when they are right."""

    name: str
    source: Any
    example_inputs: Any
    inputs: list[Array]
    judge: Callable[[list[Array]], str]


@dataclass(frozen=True)
class Built:
    """An exported trial: its object, and what its answers look like."""

    trial: Trial
    exported: Exported
    manifest: Manifest

    def request(self, number: int) -> bytes:
        """What the program reads."""
        m = self.manifest
        values, violations = ShapeBinder(m.inputs, m.symbols, m.constraints).bind([a.shape for a in self.trial.inputs])
        assert not violations, violations
        head = struct.pack(f"<{1 + len(m.symbols)}q", number, *(values[s.name] for s in m.symbols))
        return head + b"".join(a.tobytes() for a in self.trial.inputs)


def node_tests(n: int) -> Iterator[Trial]:
    """ONNX's node tests, one of each op in turn, of those whose structure no input decides."""
    found = 0
    for test in suite.in_turn("plain"):
        model = test.model()
        (inputs, expected), *_ = test.data(model)
        try:
            graph = import_source(model, None, None, None)
        except (NeedsCall, CompileError):
            continue
        judge = partial(suite.problem, test, model, inputs, expected)
        yield Trial(test.case.name, graph, None, [np.array(a, order="C") for a in inputs], judge)
        found += 1
        if found == n:
            return


def nets(names: Sequence[str]) -> Iterator[Trial]:
    """Small versions of real networks, compared with PyTorch."""
    from benchmarks import zoo

    for name in names:
        net = zoo.build(name, small=True)
        expected = [y.numpy() for y in net.expected()]
        inputs = [np.array(x.numpy(), order="C") for x in net.inputs]
        yield Trial(name, net.module, net.inputs, inputs, partial(_close, expected))


def quantised(seeds: Iterable[int]) -> Iterator[Trial]:
    """Random quantised models, but for those that are refused."""
    for seed in seeds:
        made = quantised_graph(seed)
        try:
            graph = import_source(made.model, None, None, None)
        except CompileError:
            continue
        inputs = [np.array(made.feeds[x.attrs["name"]], order="C") for x in graph.inputs]
        yield Trial(f"quantised {seed}", graph, None, inputs, partial(_as_made, made))


def _as_made(made: Made, results: list[Array]) -> str:
    try:
        fuzz_quantised.compare(made, tuple(results), exact=False)
    except AssertionError as error:
        return str(error)
    return ""


def _close(expected: Sequence[Array], results: Sequence[Array]) -> str:
    for k, (y, e) in enumerate(zip(results, expected, strict=True)):
        error, size = np.abs(y - e).max(), np.abs(e).max()
        if y.shape != e.shape or not error <= 1e-4 * size:
            return f"output {k} is off by {error}, its largest element is {size}"
    return ""


def export_all(platform: Platform, trials: Iterable[Trial], folder: Path) -> list[Built]:
    """Objects of all trials, each with symbols of its own."""
    made = []
    options = Options(target=platform.target)
    for n, t in enumerate(trials):
        graph = import_source(t.source, t.example_inputs, None, None)
        modules = deploy.export_modules(graph, options, 1, Clock())
        made.append(Built(t, export(modules, folder, ExportOptions(f"m{n}", 1, "embedded")), modules.manifest))
    return made


def wrong(platform: Platform, trials: Iterable[Trial], folder: Path) -> dict[str, str]:
    """Run every trial in one process of the emulator; what is wrong, by the trial's name."""
    built = export_all(platform, trials, folder)
    (folder / "models.h").write_text(_models([_stack_bytes(b.exported) for b in built]))
    program = platform.link([b.exported.object for b in built], folder)
    answer = platform.run(program, b"".join(b.request(n) for n, b in enumerate(built)))
    found, at = {}, 0
    for b in built:
        if at + 8 > len(answer):
            found[b.trial.name] = "no answer"
            break
        (status,) = struct.unpack_from("<q", answer, at)
        at += 8
        if status:
            found[b.trial.name] = f"status {status}"
            break
        results = []
        for spec in b.manifest.outputs:
            array, at = _read(answer, at, spec)
            results.append(array)
        if problem := b.trial.judge(results):
            found[b.trial.name] = problem
    return found


def _read(answer: bytes, at: int, spec: TensorSpec) -> tuple[Array, int]:
    shape = struct.unpack_from(f"<{len(spec.shape)}q", answer, at)
    at += 8 * len(spec.shape)
    dtype = dtype_of(spec.dtype)
    n = math.prod(shape)
    return np.frombuffer(answer, dtype, n, at).reshape(shape), at + n * dtype.itemsize


def _stack_bytes(made: Exported) -> int:
    """What the header says of the stack, or -1."""
    found = json.loads(made.record.read_text())["memory"]["stack_bytes"]
    return -1 if found is None else int(found)


def _models(stacks: Sequence[int]) -> str:
    fields = "".join(f"  {kind};\n" for kind in _FUNCTIONS.values()) + "  int64_t stack_bytes;\n"
    lines = [common_text(), f"typedef struct {{\n{fields}}} Model;"]
    for k in range(len(stacks)):
        lines += [f"extern {kind.replace(f'(*{f})', f'm{k}_{f}')};" for f, kind in _FUNCTIONS.items()]
    rows = ",\n".join("{" + ", ".join(f"m{k}_{f}" for f in _FUNCTIONS) + f", {n}}}" for k, n in enumerate(stacks))
    return "\n".join([*lines, f"static const Model MODELS[] = {{\n{rows}}};\n"])
