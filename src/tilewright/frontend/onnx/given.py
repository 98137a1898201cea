"""What one call's inputs say about a model before it is compiled: values that decide structure, sequences, optionals.

In: the values of a call. Out: frozen, hashable facts that the importer takes in the place of an input, and the flat
tensors that the compiled graph is called with. Not its business: when a model needs them (``onnx``), compiling.

An input whose elements are needed is ``Elements`` (a constant in the graph) or ``Sizes``: its elements are symbols,
which are the dimensions of a further, empty input; so one compile serves every value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tilewright.core.diag import ImportFailed, Problem
from tilewright.core.types import Array

MAX_ELEMENTS = 256
"""Of an input whose values a compile may depend on."""


@dataclass(frozen=True)
class Elements:
    """The input's elements are these."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @staticmethod
    def of(array: Array) -> Elements:
        return Elements(array.dtype.name, array.shape, array.tobytes())

    def array(self, dtype: np.dtype[Any]) -> Array:
        """The elements again."""
        return np.frombuffer(self.data, dtype).reshape(self.shape)


@dataclass(frozen=True)
class Sizes:
    """The input's ``n`` elements are sizes: symbols that the shape of a further input gives."""

    n: int


@dataclass(frozen=True)
class Shape:
    """The shape of an input of which the model says none."""

    dims: tuple[int, ...]


@dataclass(frozen=True)
class Sequence_:
    """A sequence of tensors of these shapes."""

    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Nothing:
    """An optional without an element."""


Given: TypeAlias = "Elements | Sizes | Shape | Sequence_ | Nothing"
Facts: TypeAlias = Mapping[str, Given]


class NeedsCall(ImportFailed):
    """A model that can only be compiled for a call: ``inputs`` names those whose values decide.

    With ``sizes``, the shapes of all inputs decide.
    """

    code = "TW0207"

    def __init__(self, problems: Sequence[Problem], inputs: Sequence[str], *, sizes: bool = False) -> None:
        self.inputs, self.sizes = tuple(inputs), sizes
        what = "symbolic sizes (fix_dims gives them a number)" if sizes else "the values of some inputs"
        super().__init__(f"{what} decide the structure of the ONNX model", problems)


@dataclass(frozen=True)
class InputInfo:
    """An input as the model declares it: what a call must give for it."""

    name: str
    dtype: str
    dims: tuple[int | str, ...] | None
    is_sequence: bool = False
    is_optional: bool = False
