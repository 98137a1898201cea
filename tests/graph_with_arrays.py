"""A random graph with arrays to call it on, and whether results are what they should be.

In: a graph and its inputs. Out: its values, and a check that allows for what rounding may do, measured by moving the
inputs a little. Not its business: what the graph is made of (``graphs``, ``contractions``, ``networks``, ``edges``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.core import types
from tilewright.core.evaluate import bind_inputs, evaluate_graph, evaluate_nodes
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.opdef import Trait
from tilewright.core.shapes import bind_shape
from tilewright.core.types import Array
from tilewright.runtime.once import computed
from tilewright.tools.debug.tolerance import EPSILON, nudged


@dataclass
class RandomGraph:
    """A graph with an array for each input."""

    graph: Graph
    arrays: list[Array]
    seed: int

    def expected(self) -> tuple[Array, ...]:
        return evaluate_graph(self.graph, self.arrays)

    @computed
    def answers(self) -> tuple[Sequence[Array], ...]:
        """Of the outputs: their values, those for inputs a little away, those with other roundings on the way."""
        moved = evaluate_graph(self.graph, [nudged(a) for a in self.arrays])
        values = self.rounded()
        return self.expected(), moved, [values[n] for _, n in self.graph.results()]

    def rounded(self) -> dict[Node, Array]:
        """Every node's value when each op that rounds gives a result that is off by a unit or two in the last place."""
        rng = np.random.default_rng(self.seed)
        values: dict[Node, Array] = dict(zip(self.graph.inputs, self.arrays, strict=True))
        sizes = bind_inputs(self.graph, self.arrays)
        for n in self.graph.nodes():
            if n in values or len(n.types) > 1:
                continue
            values[n] = evaluate_nodes((n,), values, sizes)[0]
            bind_shape(n.shape, values[n].shape, sizes)
            if n.op is not CONST and Trait.MOVEMENT not in n.op.traits:
                values[n] = nudged(values[n], rng)
        return values

    def assert_close(self, got: Sequence[Array], factor: float = 64.0) -> None:
        """``got`` has the right dtypes, shapes and values, give or take ``factor`` roundings."""
        for k, (want, *others, have) in enumerate(zip(*self.answers, got, strict=True)):
            where = f"output {k} of random graph {self.seed}"
            assert have.dtype == want.dtype and have.shape == want.shape, where
            if types.dtype_of(want.dtype) not in EPSILON:
                np.testing.assert_array_equal(have, want, where)
                continue
            wide = want.astype(np.float64)
            coarsest = max(EPSILON.get(n.dtype, 0) for n in self.graph.nodes() if len(n.types) == 1)
            with np.errstate(invalid="ignore"):
                reach = max(np.nan_to_num(np.abs(o.astype(np.float64) - wide)).max(initial=0) for o in others)
                scale = np.nan_to_num(np.abs(wide), posinf=0).max(initial=0)
            np.testing.assert_allclose(
                have.astype(np.float64), wide, rtol=factor * coarsest, err_msg=where,
                atol=factor * (reach + coarsest * scale) + 1e-30,
            )  # fmt: skip
