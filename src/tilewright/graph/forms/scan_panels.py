"""The pass ``scan-panels``: recurrences of few rows read each weight once for two steps, panel by panel.

In: a graph with scans (``ops.recurrence``). Out: scans with their recurrent weights in panels of a few hidden units.
Not its business: the passes over the panels (``ops.recurrence``).

A step's product needs the whole state before it, but the state comes into being unit by unit. While a panel's weights
are at hand to finish one step, those of its rows whose units are done already can multiply them for the next one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from tilewright.core.dims import is_known, known_at_most
from tilewright.core.estimates import DOUBT
from tilewright.core.graph import PROJ, Builder, Graph, Node
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Fired, Journal, count_reads
from tilewright.core.types import f32
from tilewright.graph.forms.scan_pads import Padding, keeps_zeros
from tilewright.graph.forms.scans import SCANS, is_plain_scan, recurrent_weights
from tilewright.ops.recurrence import in_panels
from tilewright.target.target import Target

MOST_READ = 0.75
"""The part of what all weights at every step take that panels may take: about half, and zeros and waiting besides."""
MAX_ROWS = 3
"""Sequences that share each weight; with more, products take longer than weights."""


@dataclass(frozen=True)
class ScanPanels(Pass):
    """Gives scans of a few sequences their weights in panels.

    ``docs/choices.md`` ("Recurrent scans") says what it is worth. It does not fire on scans that are not plain
    (``scans``), on fewer than ``least_bytes`` of weights or more than ``MAX_ROWS`` sequences, on sizes whose panels
    would read more than ``MOST_READ``, and, with several of ``n_cores``, on scans without others to run beside that are
    worth sharing, which those of ``shared_bytes`` are. Units of zeros may fill up the last panel (``scan_pads``). A
    core that ``multiplies`` no more f32 in a cycle than it ``reads`` from its second-level cache, or several sequences,
    works as long as that cache takes to read: then weights must come from beyond it. ``lanes`` is the number of f32 in
    a vector, ``registers`` how many vectors a core keeps, ``sums`` how many it adds to before the first may go on.
    """

    name: ClassVar[str] = "scan-panels"
    lanes: int = 16
    n_cores: int = 1
    multiplies: int = 32
    l2_bytes: int = 1 << 20
    shared_bytes: int = 1 << 19
    least_bytes: int = 1 << 17
    registers: int = 32
    reads: float = 16.0
    sums: int = 8

    @staticmethod
    def on(target: Target) -> ScanPanels:
        """The pass for a machine."""
        return ScanPanels(
            target.lanes(f32), target.n_cores, target.multiplies, target.l2_bytes, target.l2_kept_bytes,
            4 * target.l1_bytes,  # fewer are read from the first-level cache for the most part
            target.n_vector_registers, target.l2_bytes_per_cycle / f32.n_bytes, target.waiting_sums,
        )  # fmt: skip

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        # Scans of one level don't wait for each other, and run beside each other on the threads that one would use.
        level: dict[Node, int] = {}
        for n in graph.nodes():
            level[n] = max((level[i] for i in n.inputs), default=0) + (n.op in SCANS)
        at_once = Counter(level[n] for n in level if n.op in SCANS)
        reads = count_reads(graph.nodes(), graph.outputs)
        new: dict[Node, Node] = {}
        wider: dict[Node, Padding] = {}
        for n in graph.nodes():
            inputs = tuple(new[i] for i in n.inputs)
            panel = self._panel(n) if is_plain_scan(n) and self._is_alone(n, at_once[level[n]]) else 0
            if panel:
                b, weights = Builder(graph.pool, n.loc), recurrent_weights(n)
                hidden = weights.shape[0]
                # Padded to whole panels, which one loop walks.
                units = -(-hidden // panel) * panel
                if units > hidden:
                    wider[n] = by = Padding(b, new, reads, hidden, units)
                    weights = by.weights(weights)
                    inputs = tuple(x if x is n.inputs[1] else by.operand(x) for x in n.inputs)
                laid = b.const(in_panels(weights, panel, self.lanes))
                new[n] = b(n.op, inputs[0], laid, *inputs[2:], **{**n.attrs, "panel": panel})
                if journal is not None:
                    journal.append(Fired(self.name, n.op.name, n.loc))
            else:
                new[n] = n if inputs == n.inputs else graph.pool.with_inputs(n, inputs)
                if n.op is PROJ and n.inputs[0] in wider:
                    new[n] = wider[n.inputs[0]].result(new[n])
        return graph.with_outputs([new[n] for n in graph.outputs])

    def _is_alone(self, scan: Node, at_once: int) -> bool:
        """Does one thread run it: there are others, it is small, or too large for the caches of a few cores?"""
        n_bytes = recurrent_weights(scan).nbytes
        is_far = n_bytes >= self.n_cores * self.l2_bytes / 2
        # A panel leaves half of the weights to read, as two threads do that read their parts from a far cache.
        return self.n_cores <= at_once or n_bytes < self.shared_bytes or (self.n_cores <= 2 and is_far)

    def _panel(self, scan: Node) -> int:
        """Hidden units of a panel, or 0 where the scan stays as it is.

        Of those that read about as little as any, the fewest that keep lanes and chains busiest.
        """
        weights, (n_steps, n_rows, _) = recurrent_weights(scan), scan.inputs[0].shape
        hidden, columns = weights.shape
        is_slow = self.multiplies <= self.reads
        if not is_known(n_rows) or not 1 <= n_rows <= (1 if is_slow else MAX_ROWS):
            return 0
        if weights.nbytes < (self.l2_bytes if is_slow or n_rows > 1 else self.least_bytes):
            return 0
        if known_at_most(n_steps, 1):
            return 0  # weights are read for two steps at once
        most = self.registers * 3 // 4  # the rest hold weights and what they are multiplied by
        may_pad = keeps_zeros(scan)
        found = []
        for panel in range(1, hidden + 1):
            n_panels, vectors = -(-hidden // panel), -(-columns // hidden * panel // self.lanes)
            sums, units = 2 * n_rows * vectors, n_panels * panel
            idle = units * n_panels * vectors * self.lanes / weights.size - 1
            loss = idle + max(self.sums / sums - 1, 0)
            # A panel's own rows are read once for each of two steps, those of all units before it once for both.
            read = (1 + loss) * (1 + 1 / n_panels) / 2
            if read <= MOST_READ and (may_pad or units == hidden) and sums <= most:
                found.append((read, loss, panel))
        least = min(found, default=(0.0, 0.0, 0))[0]
        alike = [(loss, panel) for read, loss, panel in found if read * (1 - DOUBT) <= least]
        return min(alike, default=(0.0, 0))[1]
