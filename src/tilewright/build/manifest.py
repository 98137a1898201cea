"""What a loader must know of a compiled model: its manifest, and how its source is called.

In: a graph in kernels, and what an import found out of calls. Out: a ``Manifest``, and what stands behind the weights.
Not its business: how it is stored (``runtime.manifest``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.build.kernels import SplitGraph
from tilewright.build.options import Options
from tilewright.build.report import make_report
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, symbol_order, symbols, to_text
from tilewright.core.graph import Node
from tilewright.core.relations import rules_of
from tilewright.core.types import Array
from tilewright.frontend.source import Called
from tilewright.runtime.artifact import ALIGNMENT, Artifact
from tilewright.runtime.manifest import (
    COMPLEX_OF,
    Constraint,
    Manifest,
    SymbolSpec,
    TargetSpec,
    TensorSpec,
)
from tilewright.runtime.structure import Convention
from tilewright.runtime.version import __version__
from tilewright.target import aarch64, x86
from tilewright.target.target import Target

_OF_A_NAME = (("x86_64-", x86.features_of), ("aarch64-", aarch64.features_of))


def manifest_of(split: SplitGraph, options: Options, weights_bytes: int, n_dims: int) -> Manifest:
    """The manifest of a graph whose kernels are emitted, with a report, for a table of ``n_dims`` dimensions."""
    graph, made = split.graph, split.kernels
    target, caps, slots = made.target, split.planner.caps, split.slots
    given = graph.symbols()
    known = {s.name for s in given}
    found = (d for _, n in graph.results() for d in n.shape)
    computed = {s.name: s for d in found for s in sorted(symbols(d), key=symbol_order)}
    by_slot = sorted((s for s in computed.values() if s.name not in known), key=lambda s: slots[s.name])
    return Manifest(
        tilewright_version=__version__,
        target=machine_of(target),
        inputs=tuple(tensor_spec(name, n) for name, n in zip(graph.input_names, graph.inputs, strict=True)),
        outputs=tuple(tensor_spec(name, n) for name, n in graph.results()),
        symbols=tuple(SymbolSpec(s.name, s.lo or 0, s.hi) for s in given),
        computed=tuple(SymbolSpec(s.name, s.lo or 0, _size(caps.get(s, s.hi))) for s in by_slot),
        n_dims=n_dims,
        scratch=split.scratch,
        constraints=tuple(map(Constraint, rules_of(c for c in graph.constraints if symbols(c) <= {*given}))),
        failures=("", *split.planner.failures) if split.planner.failures else (),
        report=make_report(graph, split.program, made, options, weights_bytes, slots, split.scratch, split.exact),
    )


def tensor_spec(name: str, node: Node) -> TensorSpec:
    """What a caller must know of a graph's input or output."""
    return TensorSpec(name, node.dtype.numpy.name, tuple(d if is_known(d) else to_text(d) for d in node.shape))


def _size(d: Dim | None) -> int | str | None:
    return d if d is None or is_known(d) else to_text(d)


def machine_of(target: Target) -> TargetSpec:
    """The machine that code for a CPU needs, as a loader compares it with its own."""
    return TargetSpec(target.triple, target.cpu, _features(target))


def _features(target: Target) -> tuple[str, ...]:
    """LLVM's names of what a CPU must have: those that the target lists, and those that its CPU's name stands for."""
    on, off = ({f[1:] for f in target.features.split(",") if f.startswith(sign)} for sign in "+-")
    named = next((of for start, of in _OF_A_NAME if target.triple.startswith(start)), None)
    return tuple(sorted(on.union(named(target.cpu, on, off) if named else ())))


def with_convention(artifact: Artifact, called: Called | None) -> Artifact:
    """A compiled graph with how its source is called; the start of what it keeps stands behind the weights."""
    if called is None:
        return artifact
    artifact = replace(artifact, manifest=with_complex(artifact.manifest, called))
    if not called.convention:
        return artifact
    weights, convention = with_start(artifact.weights, called)
    return replace(artifact, manifest=replace(artifact.manifest, convention=convention), weights=weights)


def with_start(weights: Array, called: Called) -> tuple[Array, Convention]:
    """The weights with the start of what a source keeps behind them, and its convention with the places there."""
    offset = -(-weights.nbytes // ALIGNMENT) * ALIGNMENT
    pieces, rows = [weights, np.zeros(offset - weights.nbytes, np.uint8)], []
    for row, array in zip(called.convention.state, called.start, strict=True):
        rows.append(replace(row, offset=offset))
        raw = np.frombuffer(array.tobytes(), np.uint8)
        pieces += [raw, np.zeros(-raw.nbytes % ALIGNMENT, np.uint8)]
        offset += raw.nbytes + pieces[-1].nbytes
    return np.concatenate(pieces) if rows else weights, replace(called.convention, state=tuple(rows))


def with_complex(manifest: Manifest, called: Called) -> Manifest:
    """The manifest with complex numbers where the graph has their parts along a last axis: one and the same memory."""
    if not (called.complex_inputs or called.complex_outputs):
        return manifest
    inputs, outputs = (
        tuple(replace(t, dtype=COMPLEX_OF[t.dtype], shape=t.shape[:-1]) if t.name in names else t for t in tensors)
        for tensors, names in ((manifest.inputs, called.complex_inputs), (manifest.outputs, called.complex_outputs))
    )
    return replace(manifest, inputs=inputs, outputs=outputs)
