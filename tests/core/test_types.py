"""The types of tensors, as users write them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright.core.diag import OptionError
from tilewright.core.expr import Sym
from tilewright.core.types import f32

N = Sym("n", 1)


def test_sizes_are_integers_or_texts() -> None:
    assert f32("n", 3, np.int64(4), "2*n - 1", "0").shape == (N, 3, 4, 2 * N - 1, 0)
    assert all(type(d) is int for d in f32(np.int32(4), np.uint8(0)).shape)


@pytest.mark.parametrize("size", [-1, "-1", "-n", "1 - 2*n", "n +", "", "n < 3", "n // 0", True, np.True_, 1.0, None])
def test_what_is_no_size_is_refused(size) -> None:
    with pytest.raises(OptionError, match=re.escape(f"{size!r} is no size")) as error:
        f32(size)
    assert error.value.remedy
