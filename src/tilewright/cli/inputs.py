"""Inputs for a model on the command line: from files, or drawn at random.

In: input specs, ``--input`` and ``--size`` arguments. Out: arrays in the model's order. Not its business: running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import typer

from tilewright.build.options import LEVELS
from tilewright.core.diag import OptionError
from tilewright.core.expr import Sym, evaluate, parse
from tilewright.core.types import Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.manifest import COMPLEX_OF, SymbolSpec, TensorSpec
from tilewright.runtime.python.seen_sizes import read_sizes
from tilewright.tools.quantize.batches import read_arrays

DEFAULT_SIZE = 8
"""A symbolic dimension's size when nobody gives one (within its bounds)."""


def parse_level(text: str) -> int | str:
    """An optimisation level: a number, or a name; another text is wrong usage."""
    levels = {str(level): level for level in LEVELS}
    if str(text) not in levels:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(levels)}", param_hint="'--optimize'")
    return levels[str(text)]


def parse_sizes(texts: Sequence[str], option: str) -> dict[str, int]:
    """``["batch=4"]`` -> ``{"batch": 4}``; a text of another form is wrong usage of ``option``."""
    sizes = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not (name and value.isascii() and value.isdigit()):
            rule = "NAME=NUMBER, with digits alone: a size is 0 or more"
            raise typer.BadParameter(f"{text!r} is not {rule}", param_hint=repr(option))
        sizes[name] = int(value)
    return sizes


def parse_specialize(texts: Sequence[str]) -> dict[str, list[int]] | list[dict[str, int]] | None:
    """``["batch=1,8"]`` -> ``{"batch": [1, 8]}``; ``["@FILE"]`` -> the list in a file of sizes."""
    if len(texts) == 1 and texts[0].startswith("@"):
        return read_sizes(Path(texts[0][1:]))
    found: dict[str, list[int]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        numbers = values.split(",")
        if not (name and all(n.isascii() and n.isdigit() for n in numbers)):
            remedy = "NAME=NUMBER,NUMBER,... (or one @FILE alone)"
            raise typer.BadParameter(f"{text!r} is not {remedy}", param_hint="'--specialize'")
        found.setdefault(name, []).extend(map(int, numbers))
    return found or None


def load_inputs(files: Sequence[str], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Arrays from ``name=file.npy``, ``file.npz`` (by name) or, for a model with one input, ``file.npy``."""
    found: dict[str, Array] = {}
    for text in files:
        name, _, path = text.rpartition("=")
        content = read_arrays(path)
        if isinstance(content, dict):
            found.update(content)
        elif name or len(specs) == 1:
            found[name or specs[0].name] = content
        else:
            raise InputError(f"which input is {text}?", remedy=f"write NAME={text}; inputs: {[s.name for s in specs]}")
    unknown = found.keys() - {s.name for s in specs}
    if unknown:
        raise InputError(f"no inputs {sorted(unknown)}", remedy=f"the model's inputs are {[s.name for s in specs]}")
    given = {s.name: s for s in specs}
    return {name: _as_parts(_as_bfloat16(a), given[name]) for name, a in found.items()}


def _as_parts(a: Array, spec: TensorSpec) -> Array:
    """Complex numbers as their parts along a last axis, where a graph takes those."""
    if COMPLEX_OF.get(spec.dtype) != a.dtype.name or len(spec.shape) != a.ndim + 1:
        return a
    return np.asarray(a, order="C")[..., None].view(spec.dtype)


def _as_bfloat16(a: Array) -> Array:
    """NumPy's files know bfloat16 as two bytes without a meaning."""
    return a.view(ml_dtypes.bfloat16) if a.dtype == np.dtype("V2") else a


def random_inputs(
    specs: Sequence[TensorSpec], symbols: Sequence[SymbolSpec], sizes: Mapping[str, int], seed: int
) -> dict[str, Array]:
    """Seeded arrays: floats from a normal distribution, integers in 0..7, bools true in most places."""
    rng = np.random.default_rng(seed)
    chosen = {s.name: sizes.get(s.name, _clamp(DEFAULT_SIZE, s)) for s in symbols}
    return {spec.name: _draw(rng, _numpy(spec.dtype), _shape(spec, chosen)) for spec in specs}


def _clamp(n: int, symbol: SymbolSpec) -> int:
    return min(max(n, symbol.lo), symbol.hi if isinstance(symbol.hi, int) else n)


def _shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    values = {Sym(k): v for k, v in sizes.items()}
    try:
        return tuple(d if isinstance(d, int) else evaluate(parse(d, Sym), values) for d in spec.shape)
    except ZeroDivisionError as e:
        raise OptionError(f"a size of input {spec.name!r} divides by 0: {e}", remedy="choose other sizes") from e


def _numpy(name: str) -> np.dtype[np.generic]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _draw(rng: np.random.Generator, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
    if dtype.kind == "b":
        return rng.random(shape) < 0.8
    if dtype.kind in "iu":
        return rng.integers(0, 8, shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def gather(
    files: Sequence[str],
    specs: Sequence[TensorSpec],
    symbols: Sequence[SymbolSpec],
    sizes: Mapping[str, int],
    seed: int,
) -> dict[str, Array]:
    """Inputs from files; what they do not give is drawn at random, with sizes taken from those that they give."""
    unknown = sorted(sizes.keys() - {s.name for s in symbols})
    if unknown:
        names = ", ".join(s.name for s in symbols) or "none"
        raise OptionError(f"no symbolic dimension {', '.join(unknown)}", remedy=f"the model's are: {names}")
    given = load_inputs(files, specs)
    known = dict(sizes)
    for spec in specs:
        if spec.name in given:
            pairs = zip(spec.shape, given[spec.name].shape, strict=False)
            known.update({d: n for d, n in pairs if isinstance(d, str) and d.isidentifier()})
    drawn = random_inputs([s for s in specs if s.name not in given], symbols, known, seed)
    return {s.name: given[s.name] if s.name in given else drawn[s.name] for s in specs}
