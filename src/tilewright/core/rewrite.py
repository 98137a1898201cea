"""Rewriting by rule tables: local equalities applied bottom-up until none fires.

In: a graph and rules, each a root op with a small function. Out: a new graph over the same pool (``is`` the old one
when nothing fired), and a journal of what fired where. Not its business: which rules there are (``graph``), or
rewrites that need the whole graph at once (those are passes of their own).

A rule looks from its root towards the operands, which are already rewritten; so one bottom-up walk that also walks
what rules build reaches the fixpoint. Nothing recurses over nodes. Sub-graphs of control ops are rewritten first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tilewright.core.diag import UNKNOWN, Loc
from tilewright.core.expr import Sym, symbols
from tilewright.core.graph import CONST, PROJ, Builder, Graph, Node, Pool
from tilewright.core.opdef import OpDef, Trait
from tilewright.core.shapes import same_shape
from tilewright.runtime.errors import TilewrightError


class RewriteError(TilewrightError):
    """A rule broke its contract: it changed a type, or a set of rules never comes to rest."""

    code = "TW0207"


Bindings = dict[str, Node]
Replacement: TypeAlias = Node | tuple[Node, ...] | None


@dataclass(frozen=True)
class Rewriting(Builder):
    """A builder at the location of the node under rewriting, which also knows how often a node is read.

    ``sizes`` are the symbols that the graph's inputs bring in: known wherever a node stands.
    """

    reads: Mapping[Node, int] = field(default_factory=dict)
    sizes: frozenset[Sym] = frozenset()

    def read_once(self, node: Node) -> bool:
        """Is ``node`` read by one operand position only? True for nodes that this walk just made."""
        return self.reads.get(node, 1) <= 1


@dataclass(frozen=True)
class Rule:
    """A rewrite of every node whose op is in ``roots``: ``apply`` gives an equal node, or None to leave it.

    For a node with several results ``apply`` gives a tuple with a node per result. ``why`` says in a line why the rule
    is sound. A rule must make the graph smaller in some order, or a set of rules does not end.
    """

    name: str
    roots: tuple[OpDef, ...]
    apply: Callable[[Rewriting, Node], Replacement]
    why: str


class Fired(NamedTuple):
    """A journal entry: the rule, the op it replaced and where that came from."""

    rule: str
    op: str
    loc: Loc

    def __str__(self) -> str:
        return f"{self.rule}: {self.op} at {self.loc}"


Journal = list[Fired]


class Limited(list[Fired]):
    """A journal that lets only so many rules fire: to find, by bisection, the firing that makes a graph wrong.

    Every firing gives an equal graph, so the graph of any number of them is one that should be right.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit


class RuleTable:
    """Rules indexed by root op, in the order given; make it once per pass, not per graph."""

    __slots__ = ("by_root", "rules")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        by_root: dict[OpDef, list[Rule]] = {}
        for rule in self.rules:
            for op in rule.roots:
                by_root.setdefault(op, []).append(rule)
        self.by_root = {op: tuple(found) for op, found in by_root.items()}


def rewrite(
    graph: Graph, rules: RuleTable | Sequence[Rule], journal: Journal | None = None, followed: set[Node] | None = None
) -> Graph:
    """``graph`` with ``rules`` applied to fixpoint; appends to ``journal`` what fired.

    What takes the place of one of the nodes ``followed`` is added to them on the way, so that rules can ask for it.
    Raises :class:`RewriteError` when a rule changes a type or the rules do not end.
    """
    table = rules if isinstance(rules, RuleTable) else RuleTable(rules)
    if not table.rules:
        return graph
    return _BottomUp(graph, table, [] if journal is None else journal, set() if followed is None else followed).run()


def map_subgraphs(node: Node, pool: Pool, transform: Callable[[Graph], Graph]) -> Node:
    """A control op with ``transform`` applied to its sub-graphs; the node itself when none changes."""
    changed = {k: new for k, v in node.attrs.items() if isinstance(v, Graph) and (new := transform(v)) is not v}
    return pool.add(node.op, node.inputs, {**node.attrs, **changed}, node.loc) if changed else node


class _BottomUp:
    """One bottom-up rewrite of one graph.

    ``final`` maps a node to its normal form; ``split`` a node with several results to a node per result; ``pending`` a
    node to itself over final operands and what a rule made of that, while the latter is still being normalised.
    """

    def __init__(self, graph: Graph, table: RuleTable, journal: Journal, followed: set[Node]) -> None:
        self.followed = followed
        self.graph, self.pool, self.table, self.journal = graph, graph.pool, table, journal
        self.final: dict[Node, Node] = {}
        self.split: dict[Node, tuple[Node, ...]] = {}
        self.pending: dict[Node, tuple[Node, tuple[Node, ...]]] = {}
        self.nodes = graph.nodes()
        self.control = {op for op in {n.op for n in self.nodes} if Trait.CONTROL in op.traits}
        self.reads = count_reads(self.nodes, graph.outputs)
        self.sizes = frozenset(s for node in graph.inputs for d in node.shape for s in symbols(d))
        self.builder = Rewriting(self.pool, UNKNOWN, self.reads, self.sizes)
        self.budget = 100 * len(self.nodes) + 1000
        self.limit = self.journal.limit if isinstance(self.journal, Limited) else None

    def run(self) -> Graph:
        for node in self.nodes:
            made = self.visit(node)
            if made:
                self.normalize(made)
                self.resolve(node)
        return self.graph.with_outputs([self.final[n] for n in self.graph.outputs])

    def visit(self, node: Node) -> tuple[Node, ...] | None:
        """Settle ``node``, whose operands are final; or say what a rule made of it, which is then pending."""
        final = self.final
        current = self.rebuilt(node)
        if current in final:
            self.settle(node, final[current])
            return None
        if current is not node and self.pending:
            self.check_progress((current,))
        made = self.fire(current) if current.op in self.table.by_root else None
        if made is None:
            final[current] = current
            if current is not node:
                self.settle(node, current)
            return None
        self.pending[node] = self.pending[current] = (current, made)
        for m in made:
            self.reads.setdefault(m, 0)  # it takes over the node's readers, and has no others
        self.check_progress(made)
        return made

    def normalize(self, roots: Sequence[Node]) -> None:
        """Bring ``roots`` and what they are made of to their final forms."""
        final, pending = self.final, self.pending
        stack = [n for n in reversed(roots) if n not in final]
        while stack:
            node = stack[-1]
            if node in final:
                stack.pop()
            elif node in pending:
                self.resolve(node)
                stack.pop()
            elif todo := [i for i in node.inputs if i not in final]:
                self.check_progress(todo)
                stack.extend(reversed(todo))
            elif made := self.visit(node):
                stack.extend(m for m in reversed(made) if m not in final)
            else:
                stack.pop()

    def check_progress(self, needed: Sequence[Node]) -> None:
        """A node that needs one whose own rewriting is still open would wait for ever."""
        for n in needed:
            if n in self.pending:
                raise RewriteError(f"rules turn {n.op.name} at {n.loc} back into itself: {self.last_rules()}")

    def last_rules(self) -> str:
        return ", ".join(dict.fromkeys(f.rule for f in self.journal[-8:]))

    def resolve(self, node: Node) -> None:
        current, made = self.pending.pop(node)
        self.pending.pop(current, None)
        results = tuple(self.final[m] for m in made)
        if current is not node:
            self.reads[current] = self.reads.get(current, 0) + self.reads.get(node, 1)
            self.follow(node, current)
        if len(node.types) == 1:
            self.settle(current, results[0])
        else:
            self.split[node] = self.split[current] = results
            self.final[current] = current
        self.final[node] = self.final[current]

    def settle(self, node: Node, new: Node) -> None:
        self.final[node] = new
        if new is not node:
            self.reads[new] = self.reads.get(new, 0) + self.reads.get(node, 1)
            self.follow(node, new)
            if new in self.split:
                self.split[node] = self.split[new]

    def follow(self, node: Node, new: Node) -> None:
        if node in self.followed:
            self.followed.add(new)

    def rebuilt(self, node: Node) -> Node:
        """``node`` over its operands' normal forms; its sub-graphs rewritten."""
        final = self.final
        if node.op is PROJ and node.inputs[0] in self.split:
            return self.split[node.inputs[0]][node.attrs["index"]]
        for i in node.inputs:
            if final[i] is not i:
                node = self.pool.with_inputs(node, tuple([final[i] for i in node.inputs]))
                break
        if node.op in self.control:
            node = map_subgraphs(node, self.pool, lambda g: rewrite(g, self.table, self.journal))
        return node

    def fire(self, node: Node) -> tuple[Node, ...] | None:
        """What the first rule that applies makes of ``node``."""
        if self.limit is not None and len(self.journal) >= self.limit:
            return None
        builder = self.builder
        if node.loc is not builder.loc:
            builder = self.builder = Rewriting(self.pool, node.loc, self.reads, self.sizes)
        for rule in self.table.by_root[node.op]:
            made = rule.apply(builder, node)
            if made is None or made is node:
                continue
            results = made if isinstance(made, tuple) else (made,)
            if tuple([m.type for m in results]) != node.types:
                self.check_types(rule, node, results)
                continue
            self.journal.append(Fired(rule.name, node.op.name, node.loc))
            self.budget -= 1
            if self.budget < 0:
                raise RewriteError(f"rules do not end: {self.last_rules()}")
            return results
        return None

    def check_types(self, rule: Rule, node: Node, results: Sequence[Node]) -> None:
        """Raise unless the types differ only in how symbolic dimensions are written, where a rule does not fire."""
        types = [m.type for m in results]
        for t, m in zip(node.types, types, strict=False):
            if t.dtype is not m.dtype or not same_shape(t.shape, m.shape):
                break
        else:
            if len(types) == len(node.types):
                return
        shown = ", ".join(map(str, types))
        raise RewriteError(f"rule {rule.name} gives {shown} for {node!r} at {node.loc}")


def count_reads(nodes: Sequence[Node], outputs: Sequence[Node]) -> dict[Node, int]:
    """How many operand positions and outputs read each node."""
    reads = dict.fromkeys(nodes, 0)
    for n in nodes:
        for i in n.inputs:
            reads[i] += 1
    for n in outputs:
        reads[n] += 1
    return reads


def readers_of(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """The nodes that read each node, in order, once for each operand position."""
    readers: dict[Node, list[Node]] = {n: [] for n in nodes}
    for n in nodes:
        for i in n.inputs:
            readers[i].append(n)
    return readers


def replace(graph: Graph, replacements: Mapping[Node, Node]) -> Graph:
    """``graph`` with nodes replaced by others of their types; what replaces a node is not itself searched."""
    new: dict[Node, Node] = dict(replacements)
    for n in graph.nodes():
        if n not in new:
            inputs = tuple(new[i] for i in n.inputs)
            new[n] = n if inputs == n.inputs else graph.pool.with_inputs(n, inputs)
    return graph.with_outputs([new[n] for n in graph.outputs])


def inline(builder: Builder, graph: Graph, arguments: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs of ``graph`` applied to ``arguments``, in the builder's pool; locations stay."""
    made: dict[Node, Node] = dict(zip(graph.inputs, arguments, strict=True))
    for n in graph.nodes():
        if n not in made:
            loc = builder.loc if n.loc is UNKNOWN else n.loc
            made[n] = builder.pool.add(n.op, tuple(made[i] for i in n.inputs), n.attrs, loc)
    return tuple(made[n] for n in graph.outputs)


# --- patterns -------------------------------------------------------------------------------------------------------


class Pattern:
    """A shape of nodes; :meth:`match` binds names to nodes."""

    __slots__ = ()

    def match(self, node: Node) -> Bindings | None:
        """The first way in which ``node`` has this shape, or None."""
        return next(self.ways(node, {}), None)

    def ways(self, node: Node, bound: Bindings) -> Iterator[Bindings]:
        """Every extension of ``bound`` under which ``node`` has this shape."""
        raise AssertionError("each kind of pattern says how it matches")


class Var(Pattern):
    """Any node, bound to ``name``; a name that occurs twice stands for one and the same node."""

    __slots__ = ("name", "where")

    def __init__(self, name: str, where: Callable[[Node], bool] | None = None) -> None:
        self.name, self.where = name, where

    def ways(self, node: Node, bound: Bindings) -> Iterator[Bindings]:
        known = bound.get(self.name)
        if known is not None:
            if known is node:
                yield bound
        elif self.where is None or self.where(node):
            yield {**bound, self.name: node}


def const(name: str, where: Callable[[Node], bool] | None = None) -> Var:
    """A constant, bound to ``name``."""
    return Var(name, lambda n: n.op is CONST and (where is None or where(n)))


class P(Pattern):
    """``op(*operands)``; operands of a commutative op match in both orders.

    ``op`` may be several ops. ``name`` binds the node itself; ``where`` is a further condition on it. Without operand
    patterns any operands match; with them their number must agree.
    """

    __slots__ = ("name", "operands", "ops", "where")

    def __init__(
        self,
        op: OpDef | tuple[OpDef, ...],
        *operands: Pattern,
        name: str | None = None,
        where: Callable[[Node], bool] | None = None,
    ) -> None:
        self.ops = op if isinstance(op, tuple) else (op,)
        self.operands, self.name, self.where = operands, name, where

    def ways(self, node: Node, bound: Bindings) -> Iterator[Bindings]:
        if node.op not in self.ops or (self.where is not None and not self.where(node)):
            return
        if self.name is not None:
            if bound.get(self.name, node) is not node:
                return
            bound = {**bound, self.name: node}
        if not self.operands:
            yield bound
            return
        if len(node.inputs) != len(self.operands):
            return
        yield from _ways_of_all(self.operands, node.inputs, bound)
        if len(self.operands) == 2 and Trait.COMMUTATIVE in node.op.traits:
            yield from _ways_of_all(self.operands, node.inputs[::-1], bound)


class Or(Pattern):
    """The first of several shapes that matches."""

    __slots__ = ("choices",)

    def __init__(self, *choices: Pattern) -> None:
        self.choices = choices

    def ways(self, node: Node, bound: Bindings) -> Iterator[Bindings]:
        for choice in self.choices:
            yield from choice.ways(node, bound)


def _ways_of_all(patterns: Sequence[Pattern], nodes: Sequence[Node], bound: Bindings) -> Iterator[Bindings]:
    if len(patterns) == 1:
        yield from patterns[0].ways(nodes[0], bound)
        return
    for first in patterns[0].ways(nodes[0], bound):
        yield from _ways_of_all(patterns[1:], nodes[1:], first)
