"""The pass ``unscale-weights``: weights that a call scales stay constant; their operand and result are scaled instead.

In: a graph. Out: an equal graph where such contractions have constant weights, which are packed, transformed (Winograd)
and rounded at compile time. Not its business: constant scales (``affine``), weights that are sums of several.

A style-modulated convolution (Karras et al., 2020, section 2.2) multiplies its weight by a number for each input
channel, and then by one for each output channel. Both commute with the sum: ``sum_c x[c] (w[o, c] s[c]) d[o]`` is
``d[o] sum_c (x[c] s[c]) w[o, c]``. The scale of the result is an epilogue; that of the operand a pass over it, unless
it joins what makes the operand. With a batch, such models have a group for each image, each with its own scales of one
weight: that is a batch of a convolution without groups.
``docs/choices.md`` ("Layers that were behind") has what it is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright import ops
from tilewright.core.dims import is_known, known_at_least
from tilewright.core.estimates import OUTWEIGHING
from tilewright.core.expr import Dim
from tilewright.core.graph import CONST, Graph, Node
from tilewright.core.opdef import OpDef
from tilewright.core.passes import Pass
from tilewright.core.rewrite import Journal, Rewriting, Rule, RuleTable, rewrite
from tilewright.core.types import product

_Shape = Callable[[Node], Sequence[Dim]]
"""The shape that a factor gets."""


@dataclass(frozen=True)
class UnscaleWeights(Pass):
    """``conv(x, w * s * d)`` becomes ``conv(x * s, w) * d`` for a constant ``w``; likewise ``matmul``, and ``w / s``.

    ``s`` varies along input channels, ``d`` along output channels, either along groups too if ``w`` does not: those
    become a batch. It does not fire on integers, where a factor varies along taps or along both kinds of channels or
    widens the constant, where all are constants, on groups of a batch of several, and where scaling a large operand
    would not pay: less than ``OUTWEIGHING`` products for each of its elements, and more of them than the weight has.
    """

    name: ClassVar[str] = "unscale-weights"

    def run(self, graph: Graph, journal: Journal | None = None) -> Graph:
        return rewrite(graph, RULES, journal)


@dataclass(frozen=True)
class _Scaled:
    """A constant, and what it is multiplied with or divided by; shapes have the weight's rank."""

    weight: Node
    factors: tuple[tuple[OpDef, Node], ...] = ()


def _scaled(node: Node, allowed: Callable[[tuple[Dim, ...]], bool]) -> _Scaled | None:
    """``node`` as a constant with factors of ``allowed`` shapes; None when it is anything else."""
    if node.op is CONST:
        return _Scaled(node)
    if node.op not in (ops.mul, ops.div):
        return None
    a, b = node.inputs
    for base, factor in ((a, b), (b, a))[: 1 if node.op is ops.div else 2]:
        if not allowed(_wide(factor, node.type.rank)):
            continue
        found = _scaled(base, allowed)
        if found is not None:
            return _Scaled(found.weight, (*found.factors, (node.op, factor)))
    return None


def _fills(weight: Node, w: Node, n_lead: int) -> bool:
    """Is the constant as large as what was made of it, but for the first axes? A factor may have widened it."""
    shape = _wide(weight, w.type.rank)
    return product(shape[:n_lead]) == 1 and shape[n_lead:] == tuple(w.shape[n_lead:])


def _wide(node: Node, rank: int) -> tuple[Dim, ...]:
    return (1,) * (rank - node.type.rank) + tuple(node.shape)


def _applied(b: Rewriting, x: Node, factors: Sequence[tuple[OpDef, Node]], shape: _Shape) -> Node:
    """``x`` multiplied with, or divided by, the factors in new shapes."""
    for op, f in factors:
        x = b(op, x, b(ops.reshape, f, shape=shape(f)))
    return x


def _convolution(b: Rewriting, node: Node) -> Node | None:
    x, w = node.inputs
    groups, n_taps = node.attrs["groups"], node.type.rank - 2
    if w.op is CONST or not _is_plain(node) or node.attrs["layout"] != "NCHW":
        return None
    # A convolution for each image of the batch is written as one with groups, whose weights are scaled for each image.
    if w.op is ops.reshape and w.inputs[0].shape == (groups, node.shape[1] // groups, *w.shape[1:]):
        w = w.inputs[0]
    elif groups != 1:
        return None
    rank = w.type.rank
    outs, ins = rank - n_taps - 2, rank - n_taps - 1

    def allowed(shape: tuple[Dim, ...]) -> bool:
        # A factor of each input channel can go to the input, one of each output channel to the result.
        return all(n == 1 for n in shape[ins + 1 :]) and 1 in (shape[outs], shape[ins])

    found = _scaled(w, allowed)
    if found is None or not found.factors or not _fills(found.weight, w, outs):
        return None
    weight = b(ops.reshape, found.weight, shape=(node.shape[1] // groups, *node.inputs[1].shape[1:]))
    if groups != 1 and (x.shape[0] != 1 or weight.type.n_elements != found.weight.type.n_elements):
        return None
    before, after = _split(found, ins, rank)
    products = product(weight.shape) // weight.shape[1] if is_known(weight.shape[1]) else 0
    # Scaling the input costs a pass over it, scaling the weights one over them.
    if before and not _pays(x, weight, products):
        return None

    def shape(f: Node) -> Sequence[Dim]:
        wide = (1, *_wide(f, rank))[-(n_taps + 3) :]
        return (wide[0], wide[1] if wide[2] == 1 else wide[2], *[1] * n_taps)

    if groups != 1:
        x = b(ops.reshape, x, shape=(groups, weight.shape[1], *x.shape[2:]))
    x = _applied(b, x, before, shape)
    y = b(ops.conv, x, weight, **{**node.attrs, "groups": 1})
    return b(ops.reshape, _applied(b, y, after, shape), shape=node.shape)


def _product(b: Rewriting, node: Node) -> Node | None:
    x, w = node.inputs
    if w.op is CONST or not _is_plain(node) or min(x.type.rank, w.type.rank) < 2:
        return None
    rank, is_turned = w.type.rank, w.op is ops.transpose
    # PyTorch's linear layers multiply by the transpose of a weight: the scales are in what is stored.
    if is_turned:
        if tuple(w.attrs["perm"]) != (*range(rank - 2), rank - 1, rank - 2):
            return None
        w = w.inputs[0]
    ins, outs = (rank - 1, rank - 2) if is_turned else (rank - 2, rank - 1)
    batch = tuple(node.shape[:-2])

    def allowed(shape: tuple[Dim, ...]) -> bool:
        # Factors of a batch of matrices fit where each has operands of its own.
        fits = all(n == 1 for n in shape[:-2]) or (rank == node.type.rank and tuple(x.shape[:-2]) == batch)
        return fits and 1 in (shape[outs], shape[ins])

    found = _scaled(w, allowed)
    if found is None or not found.factors or not _fills(found.weight, w, rank - 2):
        return None
    weight = b(ops.reshape, found.weight, shape=w.shape[-2:])
    if is_turned:
        weight = b(ops.transpose, weight, perm=(1, 0))
    before, after = _split(found, ins, rank)
    # Factors along the terms multiply the other operand, which every call pays for; all others multiply the result.
    if before and not _pays(x, weight, 0):
        return None

    def shape(f: Node) -> Sequence[Dim]:
        wide = _wide(f, rank)
        last = wide[ins] if wide[outs] == 1 else wide[outs]
        return (*wide[:-2], 1, last) if any(n != 1 for n in wide[:-2]) else (last,)

    y = b(ops.matmul, _applied(b, x, before, shape), weight, **node.attrs)
    return _applied(b, y, after, shape) if y.shape == node.shape else None


def _is_plain(node: Node) -> bool:
    return node.dtype.is_float and all(i.dtype is node.dtype for i in node.inputs)


def _split(found: _Scaled, ins: int, rank: int) -> tuple[list[tuple[OpDef, Node]], list[tuple[OpDef, Node]]]:
    """Factors along the sum, and the others."""
    before = [(op, f) for op, f in found.factors if _wide(f, rank)[ins] != 1]
    return before, [(op, f) for op, f in found.factors if (op, f) not in before]


def _pays(x: Node, weight: Node, products: Dim) -> bool:
    """May the operand be scaled: are there many products for each element, or few elements?"""
    if known_at_least(products, OUTWEIGHING):
        return True
    own, other = x.type.n_elements, weight.type.n_elements
    return is_known(own) and is_known(other) and own <= other


RULES = RuleTable(
    (
        Rule("unscale-conv", (ops.conv,), _convolution, "a factor that no term of a sum lacks commutes with it"),
        Rule("unscale-matmul", (ops.matmul,), _product, "a factor that no term of a sum lacks commutes with it"),
    )
)
