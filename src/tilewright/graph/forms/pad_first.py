"""The pass ``pad-first``: a convolution channels last reads its image in N, C order, from the copy that pads it.

In: a graph in which it is known which convolutions are channels last. Out: an equal graph. Not its business: planes,
which have pixels in the lanes (``planes``); the loops of a copy (``choose``).

A convolution whose image is padded reads a copy. Of an image in N, C order that is a second one: it is transposed
first, by a kernel of its own. A product whose lanes are channels of the result reads single elements of the image,
wherever they lie, so that the padded copy may stay in the image's order, and one of the two is not made. Channels that
lie apart cost something else: more lines and pages for a row of results. So the price decides, and in doubt the
image is transposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright import ops
from tilewright.core.dims import are_known, is_padded
from tilewright.core.estimates import DOUBT
from tilewright.core.graph import Graph, Node
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.graph.forms.planes import is_moved, mixes_channels
from tilewright.graph.forms.priced import PricedPass


@dataclass(frozen=True)
class PadFirst(PricedPass):
    """``conv(transpose(x), w, pads)`` becomes ``conv(transpose(pad(x)), w)``, by price.

    It does not fire on sizes, pads or weights that only a call knows, but for the batch, nor where somebody else reads
    the transpose, nor on depthwise convolutions, whose lanes are channels of the image, too.
    """

    name: ClassVar[str] = "pad-first"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        def padded_first(b: Rewriting, node: Node) -> Node | None:
            form = _padded_first(b, node)
            return None if form is None else self.cheaper(node, form, node.inputs[0].inputs[0], DOUBT)

        rule = Rule("pad-first", (ops.conv,), padded_first, "zeros around an image are zeros in any order of its axes")
        return rewrite(graph, RuleTable([rule]), journal)


def _padded_first(b: Rewriting, node: Node) -> Node | None:
    (x, w), a = node.inputs, node.attrs
    numbers = (*node.shape[1:], *x.shape[1:], *(n for around in a["pads"] for n in around))
    if not is_moved(x) or not b.read_once(x) or not are_known(numbers) or not is_padded(a["pads"]):
        return None
    if not mixes_channels(node) or 0 in (*node.shape, *x.shape):
        return None
    image = x.inputs[0]
    zero = b.at(node.loc).const(0.0, image.dtype)
    padded = b.at(node.loc)(ops.pad, image, zero, pads=((0, 0), (0, 0), *a["pads"]))
    moved = b.at(x.loc)(ops.transpose, padded, perm=x.attrs["perm"])
    return b.at(node.loc)(ops.conv, moved, w, **{**a, "pads": ((0, 0),) * len(a["pads"])})
