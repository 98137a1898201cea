"""Walks an ONNX graph and calls the converter of each node.

In: a ``GraphProto`` and the scope its names are read in. Out: nodes of the graph IR bound to names, and ``Problem``
records for everything that can't be converted, so that one import reports them all.
Not its business: files and model inputs (``onnx``), and the meaning of ops (``onnx_ops_*``).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.core.diag import CompileError, Loc, Problem
from tilewright.core.expr import Expr, Sym, symbols
from tilewright.core.graph import INPUT, Builder, Graph, Node, Pool, topological
from tilewright.core.types import TensorType
from tilewright.frontend.asked import add_check
from tilewright.frontend.homes import Homes
from tilewright.frontend.onnx.call import (
    Absent,
    Body,
    BodySpec,
    Call,
    Converter,
    Emitter,
    Items,
    NotTensors,
    Refused,
    Stacked,
    Undecided,
    UseDefinition,
    Value,
)
from tilewright.frontend.onnx.file import STRINGS_REMEDY, STRINGS_RULE, BadTensor, StringTensor, TensorReader
from tilewright.frontend.onnx.schema import (
    body_of,
    check_schema,
    has_body,
    names_read,
    unsupported,
    without_operands,
    written,
)
from tilewright.frontend.onnx.table import CONVERTERS, REFUSED
from tilewright.frontend.onnx.wire import Numbers

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

MIN_OPSET = 1
MAX_DEPTH = 24
MAX_EXPANDED_NODES = 100_000
IN_SUB_GRAPH = "its sub-graph can't be converted, for the reasons listed with its nodes"
# What a contradictory model makes NumPy and Python raise; each becomes a problem with the node's location.
MODEL_ERRORS = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    AssertionError,
)


class Broken:
    """Stands for the result of a node that could not be converted."""


class Strings(Broken):
    """Stands for a tensor of strings, which every node that reads it reports."""


BROKEN = Broken()
STRINGS = Strings()


@dataclass
class Scope:
    """Names bound to values. A closed scope turns what it reads from outside into inputs of its graph.

    ``parent`` is where names are looked up next, ``caller`` the scope around a function's body, which shares only
    symbols; ``homes`` has a node for each symbol, whose shape gives the symbol its value; ``rules`` are what each run
    of the graph keeps at 0 or above, ``checks`` what it asks of values.
    """

    parent: Scope | None = None
    prefix: str | None = None
    caller: Scope | None = None
    names: dict[str, Value | Broken] = field(default_factory=dict)
    captures: dict[Node, Node] = field(default_factory=dict)
    homes: dict[Sym, Node] = field(default_factory=dict)
    rules: dict[Expr, None] = field(default_factory=dict)
    checks: dict[str, Node] = field(default_factory=dict)

    def bind(self, name: str, value: Value | Broken) -> None:
        """Give ``value`` a name."""
        self.names[name] = value
        for node in value.nodes if isinstance(value, Items) else [value.node if isinstance(value, Stacked) else value]:
            if isinstance(node, Node):
                self.house(node)

    def house(self, node: Node) -> None:
        """Let the node's shape give values to its symbols."""
        for t in node.types:
            for d in t.shape:
                if isinstance(d, Sym):
                    self.homes.setdefault(d, node)

    @property
    def closed(self) -> bool:
        return self.prefix is not None


@dataclass(frozen=True)
class Frame:
    """What a list of nodes is read under: opset versions, a function's attributes, and where it is called from."""

    opsets: Mapping[str, int]
    bound: Mapping[str, AttributeProto] | None = None
    inside: str = ""
    depth: int = 0


class Walker:
    """Converts nodes; one per import."""

    def __init__(
        self, pool: Pool, reader: TensorReader, functions: Mapping[tuple[str, str, str], FunctionProto]
    ) -> None:
        self.emitter, self.reader, self.functions = Emitter(pool), reader, functions
        self.problems: list[Problem] = []
        self.undecided: dict[str, list[Problem]] = {}  # per input of the model, what waits for its value
        self.misfits: set[Problem] = set()  # those of operands' types
        self.constraints: dict[Expr, None] = {}
        self.checks: dict[str, Node] = {}
        self.input_symbols: set[Sym] = set()
        self._n_nodes = 0
        self._n_inputs = 0

    # --- graphs ---

    def graph(
        self, graph: GraphProto, scope: Scope, frame: Frame, numbers: Sequence[Numbers] = ()
    ) -> list[Value | Broken]:
        """Bind the graph's initializers, convert its nodes, and give its outputs.

        ``numbers`` are the bytes of initializers that were parsed without them.
        """
        where = Loc(f'graph "{graph.name}"{frame.inside}')
        for k, tensor in enumerate(graph.initializer):
            self._initializer(tensor.name, tensor, scope, where, numbers[k] if numbers else None)
        for sparse in graph.sparse_initializer:
            self._initializer(sparse.values.name, sparse, scope, where)
        outputs = [o.name for o in graph.output]
        self.nodes(graph.node, outputs, scope, frame, where)
        return [self.output(name, scope, where) for name in outputs]

    def waits_for(self) -> tuple[str, ...]:
        """The inputs whose values alone stand in the way; none where anything else does."""
        waiting = {id(p) for problems in self.undecided.values() for p in problems}
        if any(id(p) not in waiting and p.rule != IN_SUB_GRAPH for p in self.problems):
            return ()
        left = {id(p) for p in self.problems}
        return tuple(name for name, problems in self.undecided.items() if any(id(p) in left for p in problems))

    def output(self, name: str, scope: Scope, where: Loc) -> Value | Broken:
        """The value of an output's name; a problem when nothing computes it."""
        value = self.lookup(name, scope)
        if value is None:
            self._problem(
                where, "output", f'nothing computes the output "{name}"', "the model is damaged; export it again"
            )
            return BROKEN
        if isinstance(value, Strings):
            self._problem(where, "output", f'the output "{name}" {STRINGS_RULE}', STRINGS_REMEDY)
        return value

    def lookup(self, name: str, scope: Scope) -> Value | Broken | None:
        """What ``name`` means in ``scope``; None when it means nothing."""
        crossed: list[Scope] = []
        at: Scope | None = scope
        while at is not None and name not in at.names:
            crossed.append(at)
            at = at.parent
        if at is None:
            return None
        value = at.names[name]
        for inner in reversed(crossed):
            if inner.closed and isinstance(value, Node):
                value = self.captured(value, inner)
            elif inner.closed and isinstance(value, Items):
                value = Items(tuple(self.captured(n, inner) for n in value.nodes))
            elif inner.closed and isinstance(value, Stacked):
                value = Stacked(self.captured(value.node, inner), value.waits_for)
        return value

    def captured(self, node: Node, scope: Scope) -> Node:
        if not node.inputs and node.op is not INPUT:
            return node
        if node not in scope.captures:
            scope.captures[node] = self.new_input(f"{scope.prefix}capture", node.type, node.loc)
            self.emitter.formals.outside[scope.captures[node]] = node
            values = self.emitter.values(node)
            if values is not None:
                self.emitter.note(scope.captures[node], values)
        return scope.captures[node]

    def close(self, scope: Scope, inputs: Sequence[Node], outputs: Sequence[Node]) -> None:
        """Capture what gives values to the symbols that a body uses and its inputs don't define."""
        defined = {d for n in (*inputs, *scope.captures.values()) for d in n.shape if isinstance(d, Sym)}
        for symbol in sorted(_symbols_used(outputs, inputs) - defined, key=lambda s: s.name):
            self._capture_home(symbol, scope)

    def _capture_home(self, symbol: Sym, scope: Scope) -> None:
        crossed: list[Scope] = []
        at: Scope | None = scope
        while at is not None and (at is scope or symbol not in at.homes):
            crossed.append(at)
            at = at.parent or at.caller
        if at is None:
            return
        node = at.homes[symbol]
        for inner in reversed(crossed):
            if inner.closed:
                node = self.captured(node, inner)

    def new_input(self, name: str, type_: TensorType, loc: Loc) -> Node:
        """An input of a sub-graph, under a name that no other has."""
        self._n_inputs += 1
        return self.emitter.pool.input(f"{name}_{self._n_inputs}", type_, loc)

    def _initializer(self, name: str, tensor: Any, scope: Scope, where: Loc, numbers: Numbers = None) -> None:
        if not name or name in scope.names:
            self._problem(where, "initializer", f'the name "{name}" is used twice or empty', "rename one of them")
            return
        loc = Loc(f'initializer "{name}"')
        try:
            sparse = hasattr(tensor, "indices")
            array = self.reader.read_sparse(tensor) if sparse else self.reader.read(tensor, numbers)
            scope.bind(name, self.emitter.pool.const(array, None, loc))
        except StringTensor:
            scope.names[name] = STRINGS
        except BadTensor as e:
            self._problem(loc, "tensor", e.rule, e.remedy)
            scope.names[name] = BROKEN
        except MODEL_ERRORS as e:
            self._problem(loc, "tensor", f"can't be read: {e}")
            scope.names[name] = BROKEN

    # --- nodes ---

    def nodes(self, nodes: Sequence[NodeProto], outputs: Sequence[str], scope: Scope, frame: Frame, where: Loc) -> None:
        """Convert the nodes that the outputs depend on, in an order that respects their names."""
        for i in self._order(nodes, outputs, scope, frame, where):
            self._node(nodes[i], i, scope, frame)

    def _order(
        self, nodes: Sequence[NodeProto], outputs: Sequence[str], scope: Scope, frame: Frame, where: Loc
    ) -> list[int]:
        """Indices of the live nodes, operands first, otherwise as given; problems for repeated names and cycles."""
        producer: dict[str, int] = {}
        for i, node in enumerate(nodes):
            for name in filter(None, node.output):
                if name in producer or name in scope.names:
                    self._problem(
                        _loc(node, i, frame), node.op_type, f'the name "{name}" is computed twice', "rename one"
                    )
                producer.setdefault(name, i)
        needs = [sorted({producer[n] for n in names_read(node) if n in producer}) for node in nodes]
        # what no output needs may well have no form here
        live, stack = set[int](), [producer[n] for n in outputs if n in producer]
        while stack:
            i = stack.pop()
            if i not in live:
                live.add(i)
                stack.extend(needs[i])
        waiting = {i: len(needs[i]) for i in live}
        users: dict[int, list[int]] = {i: [] for i in live}
        for i in live:
            for j in needs[i]:
                users[j].append(i)
        ready = [i for i in live if not waiting[i]]
        heapq.heapify(ready)  # of those that can be next the first in the file: problems come in its order
        order: list[int] = []
        while ready:
            i = heapq.heappop(ready)
            order.append(i)
            for j in users[i]:
                waiting[j] -= 1
                if not waiting[j]:
                    heapq.heappush(ready, j)
        if len(order) < len(live):
            stuck = sorted(live - set(order))
            names = ", ".join(str(_loc(nodes[i], i, frame)) for i in stuck[:5])
            self._problem(
                where, "graph", f"{len(stuck)} nodes form or follow a cycle: {names}", "a graph must be acyclic"
            )
            for i in stuck:
                # told once, not again by every reader
                scope.names.update({name: BROKEN for name in nodes[i].output if name})
        return order

    def _node(self, node: NodeProto, i: int, scope: Scope, frame: Frame) -> None:
        loc = _loc(node, i, frame)
        results: list[Value | None] | None = None
        try:
            results = self._converted(node, loc, scope, frame)
        except Refused as e:
            self._problem(loc, _spelled(node, frame), e.rule, e.remedy)
            for name in e.inputs if isinstance(e, Undecided) else ():
                self.undecided.setdefault(name, []).append(self.problems[-1])
        except CompileError as e:
            found = [_relocated(p, loc, _spelled(node, frame)) for p in e.problems]
            self.problems += found
            self.misfits.update(found)
        except BadTensor as e:
            self._problem(loc, _spelled(node, frame), e.rule, e.remedy)
        except MODEL_ERRORS as e:
            self._problem(loc, _spelled(node, frame), f"contradicts itself ({type(e).__name__}: {str(e)[:200]})")
        for k, name in enumerate(node.output):
            if name:
                value = results[k] if results is not None and k < len(results) else None
                if results is not None and value is None:
                    self._problem(loc, _spelled(node, frame), f'result {k} ("{name}") is not supported')
                scope.bind(name, BROKEN if value is None else value)

    def _converted(self, node: NodeProto, loc: Loc, scope: Scope, frame: Frame) -> list[Value | None] | None:
        """The node's results; None when an operand is broken, which was reported already."""
        self._n_nodes += 1
        if self._n_nodes > MAX_EXPANDED_NODES:
            raise Refused(f"the model has more than {MAX_EXPANDED_NODES} nodes after expanding functions")
        attributes = _bound_attributes(node, frame)
        operands: list[Value | None] = []
        broken = False
        strings: list[str] = []
        for k, name in enumerate(node.input):
            value = self.lookup(name, scope) if name else None
            if name and value is None:
                raise Refused(
                    f'operand "{name}" is computed by no node, input or initializer', "export the model again"
                )
            broken |= isinstance(value, Broken)
            strings += [f'{k} ("{name}")'] if isinstance(value, Strings) else []
            operands.append(None if isinstance(value, Broken) else value)
        # the model's own comes before an op of that name
        function = self.functions.get((node.domain, node.op_type, getattr(node, "overload", "")))
        if function is not None:
            return None if broken else self._call_function(function, operands, attributes, loc, frame, scope)
        domain = "" if node.domain == "ai.onnx" else node.domain
        opset = self._opset(domain, node, frame)
        converter = CONVERTERS.get((domain, node.op_type))
        schema = check_schema(node, domain, opset, attributes)
        if strings and (domain, node.op_type) not in REFUSED and (schema or converter):
            raise Refused(f"operand {', '.join(strings)} {STRINGS_RULE}{written(node)}", STRINGS_REMEDY)
        # an op that nobody knows is a problem of its own, also behind another
        if converter is None and (broken or not (schema and has_body(schema))):
            if broken and schema and has_body(schema):
                return None
            raise unsupported(node, domain, opset)
        if broken:
            return None
        host = _BoundHost(self, scope, frame, loc)
        call = Call(self.emitter, self.reader, host, loc, node.op_type, opset, operands, attributes, node.output)
        if converter is not None:
            try:
                return _run(converter, call)
            except UseDefinition:  # a form that the converter leaves to ONNX's own definition
                if not (schema and has_body(schema)):
                    raise unsupported(node, domain, opset) from None
        return self._expand(schema, node, call, operands, attributes, loc, frame, scope)

    def _opset(self, domain: str, node: NodeProto, frame: Frame) -> int:
        if domain in frame.opsets:
            return frame.opsets[domain]
        if domain == "com.microsoft" or (domain, node.op_type) in CONVERTERS:
            return 1
        raise Refused(f'the model imports no opset of domain "{domain}"', "the model is damaged or lacks its functions")

    # --- functions ---

    def _call_function(
        self,
        function: FunctionProto,
        operands: Sequence[Value | None],
        attributes: Mapping[str, AttributeProto],
        loc: Loc,
        frame: Frame,
        caller: Scope,
    ) -> list[Value | None] | None:
        """The function's nodes in the place of the call."""
        if frame.depth >= MAX_DEPTH:
            raise Refused(f"functions are nested more than {MAX_DEPTH} deep", "a function must not call itself")
        bound = {a.name: a for a in function.attribute_proto} | dict(attributes)  # defaults, then what the call says
        opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in function.opset_import}
        # a function's nodes are written in opsets of its own
        inner = Frame(opsets or frame.opsets, bound, f" in {loc}", frame.depth + 1)
        scope = Scope(caller=caller)
        for k, name in enumerate(function.input):
            value = operands[k] if k < len(operands) else None
            if value is not None:
                scope.bind(name, value)
        # a reader of an operand that is left out must find it left out, and no unknown name
        absent = set(function.input) - scope.names.keys()
        nodes = [without_operands(n, absent) for n in function.node] if absent else function.node
        n_before = len(self.problems)
        self.nodes(nodes, function.output, scope, inner, loc)
        found = [self.lookup(name, scope) for name in function.output]
        if len(self.problems) > n_before:
            return None
        return [None if isinstance(v, Broken) else v for v in found]

    def _expand(
        self,
        schema: Any,
        node: NodeProto,
        call: Call,
        operands: Sequence[Value | None],
        attributes: Mapping[str, AttributeProto],
        loc: Loc,
        frame: Frame,
        caller: Scope,
    ) -> list[Value | None] | None:
        """An op that ONNX defines by other ops, expanded from that definition."""
        function = body_of(schema, node, call.opset, operands, attributes, frame.opsets.get("", call.opset))
        if function is None:
            raise unsupported(node, node.domain, call.opset)
        defaults = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
        return self._call_function(function, operands, defaults | dict(attributes), loc, frame, caller)

    def _problem(self, loc: Loc, op: str, rule: str, remedy: str = "") -> None:
        self.problems.append(Problem(loc, op, rule, remedy))


@dataclass(frozen=True)
class _BoundHost:
    """The walker as converters of nodes with sub-graphs see it."""

    walker: Walker
    scope: Scope
    frame: Frame
    loc: Loc

    def _deeper(self) -> Frame:
        if self.frame.depth >= MAX_DEPTH:
            raise Refused(f"graphs are nested more than {MAX_DEPTH} deep")
        f = self.frame
        return Frame(f.opsets, f.bound, f" in {self.loc}", f.depth + 1)

    def inline(self, graph: GraphProto, operands: Sequence[Value]) -> list[Value]:
        scope = Scope(self.scope)
        if len(operands) != len(graph.input):
            raise Refused(f"the sub-graph takes {len(graph.input)} inputs, not {len(operands)}")
        scope.names.update(zip((i.name for i in graph.input), operands, strict=True))
        return _whole(self.walker.graph(graph, scope, self._deeper()))

    def call(self, function: str, operands: Sequence[Value]) -> list[Value]:
        from onnx import parser

        w, frame = self.walker, self.frame
        made = w._call_function(parser.parse_function(function), operands, {}, self.loc, frame, self.scope)
        return _whole([BROKEN] if made is None else [BROKEN if v is None else v for v in made])

    def bodies(self, specs: Sequence[BodySpec]) -> Body:
        captures: dict[Node, Node] = {}  # shared: both branches of an If take the same inputs
        made: list[tuple[str, list[Node], list[Node], Scope]] = []
        for spec in specs:
            graph = spec.graph
            scope = Scope(self.scope, f"{graph.name or 'body'}.", captures=captures)
            formals = [self.walker.new_input(f"{scope.prefix}x", t, self.loc) for t in spec.types]
            self.walker.emitter.formals.own.update(formals)
            operands = spec.bind(formals, lambda n: self.walker.captured(n, scope)) if spec.bind else formals  # noqa: B023
            if len(operands) != len(graph.input):
                raise Refused(f"the sub-graph takes {len(graph.input)} inputs, not {len(operands)}")
            for formal in formals:
                scope.house(formal)  # a size that the body uses may be told by its own inputs
            for info, operand in zip(graph.input, operands, strict=True):
                scope.bind(info.name, operand)
            emitter = self.walker.emitter
            homes, emitter.homes = emitter.homes, Homes()  # nodes are tied to sizes of their own graph only
            try:
                outputs = _whole(self.walker.graph(graph, scope, self._deeper()))
                results = [v for v in outputs if isinstance(v, Node)]
                if len(results) != len(outputs):
                    raise NotTensors
                results = spec.finish(results) if spec.finish else results
            finally:
                emitter.homes = homes
            self.walker.close(scope, formals, results)  # may capture more, so inputs are listed after it
            made.append((graph.name or "body", formals, results, scope))
        extra = tuple(captures.values())
        pool = self.walker.emitter.pool
        graphs = []
        for name, formals, outs, at in made:
            names = tuple(f"y{k}" for k in range(len(outs)))
            closed = Graph(name, pool, (*formals, *extra), tuple(outs), names, tuple(at.rules))
            graphs.append(closed.with_checks(at.checks))
        return Body(tuple(graphs), tuple(captures))

    def require(self, nonneg: Expr) -> None:
        body = self._body()
        (self.walker.constraints if body is None else body.rules)[nonneg] = None

    def assume(self, nonneg: Expr) -> bool:
        is_given = self._body() is None and symbols(nonneg) <= self.walker.input_symbols
        if is_given:
            self.require(nonneg)
        return is_given

    def check(self, holds: Node, text: str) -> None:
        body = self._body()
        builder = Builder(self.walker.emitter.pool, self.loc)
        add_check(self.walker.checks if body is None else body.checks, builder, holds, text)

    def _body(self) -> Scope | None:
        """The scope of the closed graph that this is in; what is in none always runs, once."""
        at: Scope | None = self.scope
        while at is not None and not at.closed:
            at = at.parent or at.caller
        return at

    def mark(self) -> int:
        return len(self.walker.problems)

    def reset(self, mark: int) -> None:
        del self.walker.problems[mark:]

    def only_misfits(self, mark: int) -> bool:
        found = {p for p in self.walker.problems[mark:] if p.rule != IN_SUB_GRAPH}
        return bool(found) and found <= self.walker.misfits


def _whole(outputs: Sequence[Value | Broken]) -> list[Value]:
    found = [v for v in outputs if not isinstance(v, Broken)]
    if len(found) != len(outputs):
        raise Refused(IN_SUB_GRAPH)
    return found


def _symbols_used(outputs: Sequence[Node], inputs: Sequence[Node]) -> set[Sym]:
    """The symbols in the attributes of the nodes under ``outputs`` and in the shapes of ``inputs``."""
    found: set[Sym] = set()
    stack: list[Any] = [d for n in inputs for d in n.shape]
    for node in topological(outputs):
        stack.extend(node.attrs.values())
    while stack:
        v = stack.pop()
        if isinstance(v, tuple):
            stack.extend(v)
        elif isinstance(v, Expr):
            found |= symbols(v)
    return found


def _run(converter: Converter, call: Call) -> list[Value | None]:
    results = converter(call)
    unread = call.unread()
    if unread:
        raise Refused(f"attribute {', '.join(unread)} is not supported here", "remove it or give it its default value")
    return [results] if isinstance(results, Node | Items | Stacked | Absent) else list(results)


# --- what a node says -----------------------------------------------------------------------------------------------


def _loc(node: NodeProto, i: int, frame: Frame) -> Loc:
    first = next(filter(None, node.output), "")
    name = f'node "{node.name}"' if node.name else f'node {i} giving "{first}"'
    return Loc(f"{name} ({node.op_type}){frame.inside}"[:400])


def _spelled(node: NodeProto, frame: Frame) -> str:
    domain = node.domain or "ai.onnx"
    version = frame.opsets.get("" if node.domain == "ai.onnx" else node.domain)
    return f"{domain}.{node.op_type}" + (f" (opset {version})" if version else "")


def _relocated(p: Problem, loc: Loc, op: str) -> Problem:
    return Problem(loc, op, p.rule if p.op in op else f"{p.op}: {p.rule}", p.remedy)


def _bound_attributes(node: NodeProto, frame: Frame) -> dict[str, AttributeProto]:
    """The node's attributes by name, references to a function's attributes resolved."""
    found: dict[str, AttributeProto] = {}
    for a in node.attribute:
        if a.name in found:
            raise Refused(f"attribute {a.name} is given twice")
        if not a.ref_attr_name:
            found[a.name] = a
        elif frame.bound is None:
            raise Refused(f"attribute {a.name} refers to {a.ref_attr_name} of a function, outside of a function")
        elif a.ref_attr_name in frame.bound:
            found[a.name] = frame.bound[a.ref_attr_name]
    return found
