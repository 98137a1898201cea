"""ATen on complex tensors, which are pairs of real ones.

In: calls whose arguments or results hold pairs. Out: pairs, or nodes where the result is real.
Not its business: Fourier transforms (``aten_fft``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.frontend.aten_call import Call, Result

COMPLEX: Mapping[str, Callable[[Call], Result]] = {}
