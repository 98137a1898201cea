"""How numbers become 8 bits: what a user chooses.

In: options. Out: a ``Scheme``, checked. Not its business: what they do.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tilewright.build.options import GROUPS
from tilewright.core import types
from tilewright.core.diag import OptionError
from tilewright.core.types import DType
from tilewright.graph.quantize.books import BOOKS
from tilewright.graph.quantize.encoding import greatest_of
from tilewright.graph.quantize.observe import OBSERVERS
from tilewright.graph.quantize.rounded import Rounded

PER_CHANNEL, PER_TENSOR = "per-channel", "per-tensor"
OBSERVER = "minmax"
STATIC, DYNAMIC, STORED = "static", "dynamic", "weights"
STORED_WEIGHTS = "int4"
"""Weights of the mode that stores them alone, where the user names none."""
AUTO = "auto"
"""The exponent of SmoothQuant that has the least expected error, for each operand its own."""
GPTQ, NEAREST = "gptq", "nearest"
"""How weights become bytes: for the results on the data, or each for itself."""
ACTIVATIONS: dict[str, DType] = {"u8": types.u8, "i8": types.i8, "u16": types.u16, "i16": types.i16}
OFFERED: dict[str, tuple[str | int, ...]] = {
    "mode": (STATIC, DYNAMIC, STORED),
    "activations": tuple(ACTIVATIONS),
    "weights": (PER_CHANNEL, PER_TENSOR),
    "weight_bits": (8, 7),
    "observer": tuple(OBSERVERS),
    "rounding": (GPTQ, NEAREST),
}
OFFERED_STORED: dict[str, tuple[str | int, ...]] = {"weights": tuple(BOOKS), "group": GROUPS}
"""What the mode that stores weights offers in the place of that."""


@dataclass(frozen=True)
class Scheme:
    """Types of activations, scales of weights, and how ranges are chosen: from data, or by each call for its rows.

    Raises ``OptionError`` for what is not offered.
    """

    activations: str = "u8"
    weights: str = PER_CHANNEL
    weight_bits: int = 8
    observer: str = OBSERVER
    bias_correction: bool = False
    mode: str = STATIC
    smooth: float | str | None = AUTO
    equalize: bool = False
    group: int = GROUPS[0]
    rounding: str = GPTQ
    split_outliers: bool = False

    def __post_init__(self) -> None:
        for name, offered in (OFFERED | (OFFERED_STORED if self.mode == STORED else {})).items():
            given: object = getattr(self, name)
            if not any(isinstance(given, type(one)) and given == one for one in offered):
                text = f"{name}={getattr(self, name)!r:.80} is not offered"
                raise OptionError(text, remedy=f"use one of {list(offered)}")
        for name in ("bias_correction", "equalize", "split_outliers"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(
                    f"{name}={getattr(self, name)!r:.40} is neither yes nor no", remedy="use True or False"
                )
        smooth: object = self.smooth
        if smooth not in (None, AUTO) and not (isinstance(smooth, int | float) and 0 < smooth < 1):
            text = f"smooth={smooth!r:.40} is no exponent"
            raise OptionError(text, remedy=f'use "{AUTO}", None or a number between 0 and 1: 0.5')
        if self.split_outliers and smooth is None:
            text = "split_outliers=True says nothing where smooth=None"
            raise OptionError(text, remedy="it goes beside the factors that smooth chooses: leave smooth out")
        if not self.is_stored and self.group != GROUPS[0]:
            raise OptionError(f"group={self.group!r:.40} says nothing here", remedy='it is for mode="weights"')
        unread = [f for f in fields(self) if f.name not in ("mode", *OFFERED_STORED)] if self.is_stored else []
        if wrong := next((f.name for f in unread if getattr(self, f.name) != f.default), None):
            text = f'{wrong}={getattr(self, wrong)!r:.40} says nothing where mode="weights"'
            raise OptionError(text, remedy="leave it out: activations stay in f32")
        if self.is_dynamic and self.dtype.bits > types.u8.bits:
            text = f'activations={self.activations!r} are not offered where mode="dynamic"'
            raise OptionError(text, remedy='use "u8" or "i8"')
        if self.is_dynamic and self.observer != OBSERVER:
            raise OptionError(
                f'observer={self.observer!r} says nothing where mode="dynamic"',
                remedy="leave it out: calls take the range of each row",
            )

    @property
    def needs_data(self) -> bool:
        """Does it ask for what only data tell? Where calls choose scales, defaults that follow from data don't."""
        return self.mode == STATIC or self.bias_correction or self.split_outliers or self.smooth not in (None, AUTO)

    def without_data(self) -> Scheme:
        """What is left of it where there are no data."""
        return replace(self, smooth=None, rounding=NEAREST)

    @property
    def is_dynamic(self) -> bool:
        """Do calls choose the scales of activations?"""
        return self.mode == DYNAMIC

    @property
    def is_stored(self) -> bool:
        """Are weights alone stored in fewer bits?"""
        return self.mode == STORED

    @property
    def dtype(self) -> DType:
        """The type of activations."""
        return ACTIVATIONS[self.activations]

    @property
    def rounded(self) -> Rounded:
        """What decides how large errors are."""
        n_steps = int(self.dtype.max) - int(self.dtype.min)
        return Rounded(n_steps, greatest_of(self.weight_bits), self.per_channel)

    @property
    def per_channel(self) -> bool:
        return self.weights == PER_CHANNEL
