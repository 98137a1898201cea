"""Scans over time (``ops.recurrence``) as the passes see them: which of them may take their work in another order.

In: nodes. Out: answers. Not its business: what is done with them (``ahead``, ``scan_panels``).
"""

from __future__ import annotations

from tilewright import ops
from tilewright.core import types
from tilewright.core.graph import CONST, Node
from tilewright.core.types import Array

SCANS = (ops.lstm_scan, ops.gru_scan, ops.rnn_scan)


def is_plain_scan(node: Node) -> bool:
    """Is it a scan of f32 by constant weights, as the frontends make it, that reads the whole state at once?

    Without lengths, and not a GRU whose reset gate comes before the product.
    """
    if node.op not in SCANS or node.attrs["behind"] or node.attrs["panel"]:
        return False
    reset_first = node.op is ops.gru_scan and not node.attrs["linear_before_reset"]
    has_lengths = any(i.dtype.is_integer for i in node.inputs)
    is_f32 = node.inputs[0].dtype is types.f32 and node.inputs[1].dtype is types.f32
    return is_f32 and node.inputs[1].op is CONST and not reset_first and not has_lengths


def recurrent_weights(scan: Node) -> Array:
    """Of a plain scan: ``[hidden, gates * hidden]``."""
    data: Array = scan.inputs[1].attrs["data"].array
    return data
