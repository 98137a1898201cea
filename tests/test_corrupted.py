"""Two hundred corrupted graphs and kernels, and more: each is refused, and the error names the place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from corrupted import Corrupted, corrupted_graphs, corrupted_kernels
from nests import NESTS
from tilewright.build.kernels import optimise_and_split
from tilewright.build.options import Clock, Options
from tilewright.core.diag import VerifyError
from tilewright.core.graph import Graph
from tilewright.core.verify import verify as verify_graph
from tilewright.tile.errors import TileVerifyError
from tilewright.tile.ir import Kernel
from tilewright.tile.verify import verify as verify_kernel

TARGETS = ("x86-64-v4", "aarch64", "cortex-m4")
N_GRAPHS, N_KERNELS = 100, 300
MOST_OF_ONE = 60


def kernels() -> Iterator[Kernel]:
    for name in ("matmul", "softmax", "reduction", "gather", "sort", "elementwise"):
        for target in TARGETS:
            options = Options(target=target)
            yield from optimise_and_split(NESTS[name](), options, options.machine, Clock()).kernels.kernels.values()


def test_corrupted_graphs_are_refused_with_the_place() -> None:
    found = [c for make in NESTS.values() for c in corrupted_graphs(make)]
    assert len(found) >= N_GRAPHS and len({c.what.split(" of ")[0] for c in found}) == 8
    for c in found:
        assert isinstance(c.module, Graph)
        with pytest.raises(VerifyError) as caught:
            verify_graph(c.module)
        places = [p.loc.text for p in caught.value.problems]
        assert c.place in places, (c.what, str(caught.value))


def test_corrupted_kernels_are_refused_with_the_place() -> None:
    found: list[Corrupted] = []
    for kernel in kernels():
        verify_kernel(kernel)
        found += islice(corrupted_kernels(kernel), MOST_OF_ONE)
    assert len(found) >= N_KERNELS and len({c.what for c in found}) >= 11
    for c in found:
        assert isinstance(c.module, Kernel)
        with pytest.raises(TileVerifyError) as caught:
            verify_kernel(c.module)
        assert c.place in str(caught.value), (c.what, str(caught.value))
