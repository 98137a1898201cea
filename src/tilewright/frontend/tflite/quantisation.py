"""What a TFLite file says of a tensor's codes: real numbers are ``(code - zero) * scale``.

In: a tensor's table. Out: a ``Quantisation``, or ``OpError`` for forms that are not read.
Not its business: what operators do with codes (``codes``, ``integer_*``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core.diag import OpError
from tilewright.core.types import Array, DType

ACTIVATION_LIMITS = {"RELU": (0.0, np.inf), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0)}


@dataclass(frozen=True)
class Quantisation:
    """``scales`` (f32) and ``zeros`` (i64) have one entry, or one for each place along ``axis``."""

    scales: Array
    zeros: Array
    axis: int

    @property
    def scale(self) -> np.float32:
        """The one scale of the tensor."""
        if self.scales.size != 1:
            raise OpError("a tensor that is computed has one scale, not one for each channel")
        return np.float32(self.scales[0])

    @property
    def zero(self) -> int:
        if self.zeros.size != 1:
            raise OpError("a tensor that is computed has one zero point, not one for each channel")
        return int(self.zeros[0])

    def code(self, real: float, dtype: DType) -> int:
        """The code of a number, as far as the type holds it; halves go away from 0."""
        low, high = int(dtype.min), int(dtype.max)
        steps = np.float32(real) / self.scale
        return int(min(max(float(np.trunc(steps + np.copysign(np.float32(0.5), steps))) + self.zero, low), high))

    def limits(self, activation: str, dtype: DType) -> tuple[int, int]:
        """The least and greatest code behind an activation that is fused into an operator."""
        if activation in ("NONE", "TANH", "SIGN_BIT"):  # the kernels of codes leave the last two out
            return int(dtype.min), int(dtype.max)
        low, high = ACTIVATION_LIMITS[activation]
        return self.code(low, dtype), self.code(high, dtype)

    def check_along(self, axis: int) -> None:
        """``OpError`` for scales of weights that lie along another axis than the channels of the result."""
        if self.scales.size > 1 and self.axis != axis:
            raise OpError(f"scales of weights lie along axis {self.axis}, not along the channels of the result")


def quantisation_of(tensor: Any, shape: tuple[int, ...], dtype: DType) -> Quantisation | None:
    """What a tensor's table says; None for a tensor of plain numbers."""
    found = tensor.Quantization()
    if found is None or found.ScaleLength() == 0:
        if found is not None and found.DetailsType():
            raise OpError("scales for blocks of a tensor are not read", remedy="quantise by tensor or by channel")
        return None
    scales = np.asarray(found.ScaleAsNumpy(), np.float32)
    zeros = np.asarray(found.ZeroPointAsNumpy(), np.int64) if found.ZeroPointLength() else np.zeros(1, np.int64)
    axis = found.QuantizedDimension()
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise OpError("its scales must be finite and not negative")
    if scales.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scales.size):
        raise OpError(f"it has {scales.size} scales along axis {axis} of the shape {shape}")
    if zeros.size not in (1, scales.size):
        raise OpError(f"it has {scales.size} scales and {zeros.size} zero points")
    if zeros.size > 1 and (zeros == zeros[0]).all():
        zeros = zeros[:1]
    if dtype.is_integer and not ((zeros >= int(dtype.min)) & (zeros <= int(dtype.max))).all():
        raise OpError(f"its zero points are no numbers of {dtype}")
    return Quantisation(scales, zeros, axis)
