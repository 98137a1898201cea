"""Exported programs in which each call without a form here is what PyTorch makes of that call alone.

In: an ``ExportedProgram``, and which calls have a form. Out: one of the same calls otherwise; or nothing, where that
can't be told of the call by itself. Not its business: what has a form (``fx.forms``), following a whole program
(``functional.py``), which is needed for writes that only PyTorch's own rewriting can follow.

PyTorch follows a program twice to take its calls apart, which takes longer than all else that an import does: seconds
where sizes are symbols. Few programs have more than some calls that need it. Each of these is followed on tensors
without memory, of the sizes that the program's trace has for its arguments, and its calls take its place.

Views stay views, and writes stay writes: composites are followed into the calls that eager PyTorch makes, so what
shares memory with what is seen as in a program that made these calls itself. A call that promises a new tensor gives a
copy where its decomposition in Python gives a view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tilewright.frontend.torch.functional import COMPOSITE, taking_apart
from tilewright.frontend.torch.fx.inplace import is_in_place

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

HasForm: TypeAlias = "Callable[[Node], bool]"

_OF_THE_CALL = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node", "custom")
"""What the calls of a decomposition have from the call: where it stands in the user's program."""


class _StaysWhole(Exception):
    """A call can't be taken apart by itself. Never reaches a user."""


def spliced(program: ExportedProgram, lacking: Iterable[Node], has_form: HasForm) -> ExportedProgram | None:
    """The program without the ``lacking`` calls; None where one can't be made of calls that have a form by itself."""
    lacking = set(lacking)
    if any(is_in_place(n) for n in lacking):  # which following would do to the tensors that the program was traced with
        return None
    try:
        with taking_apart(program) as table:
            return _Splicing(program, has_form, table).without(lacking)
    except Exception:  # whatever tracing raises; following the whole program says it
        return None


class _Splicing:
    """One rewriting of a program; ``table`` takes calls apart in Python."""

    def __init__(self, program: ExportedProgram, has_form: HasForm, table: Any) -> None:
        import torch

        self.program, self.has_form, self.table = program, has_form, table
        self.graph = torch.fx.Graph()
        self.env: dict[Node, Any] = {}

    def without(self, lacking: set[Node]) -> ExportedProgram:
        """The program with what ``lacking`` calls make in their places."""
        import operator

        for node in self.program.graph.nodes:
            if node in lacking:
                self.env[node] = self._made_of(node)
            elif node.target is operator.getitem and node.args[0] in lacking:
                self.env[node] = self.env[node.args[0]][node.args[1]]
            else:
                self.env[node] = self.graph.node_copy(node, self.env.__getitem__)
        return self._program()

    def _made_of(self, node: Node) -> Any:
        """What stands for the results of a call."""
        inputs = node.all_input_nodes
        traced = _traced(node, self.table)
        env: dict[Node, Any] = {}
        arguments = iter(inputs)
        for inner in traced.graph.nodes:
            if inner.op == "placeholder":
                env[inner] = self.env[next(arguments)]
            elif inner.op == "output":
                return self._results(node, inner.args[0], env)
            elif inner.op == "call_function" and self.has_form(inner):
                env[inner] = self._add(node, inner.target, _replaced((inner.args, inner.kwargs), env), inner.meta)
            else:
                raise _StaysWhole
        raise AssertionError("a graph without an output")

    def _add(self, node: Node, target: Any, given: tuple[Any, Any], meta: dict[str, Any]) -> Node:
        """A call that is a part of what ``node`` does."""
        made = self.graph.create_node("call_function", target, *given, name=f"{node.name}_{_name(target)}")
        made.meta = {**meta, **{k: node.meta[k] for k in _OF_THE_CALL if k in node.meta}}
        return made

    def _results(self, node: Node, given: Any, env: dict[Node, Any]) -> Any:
        """Of each result what stands for it, of the type that the rest of the program was traced with."""
        import torch

        wanted = node.meta["val"]
        is_one = not isinstance(given, tuple | list)
        if is_one == isinstance(wanted, tuple | list):
            raise _StaysWhole
        found = []
        for inner, value in zip([given] if is_one else given, [wanted] if is_one else wanted, strict=True):
            made = env[inner] if isinstance(inner, torch.fx.Node) else inner
            if isinstance(value, torch.Tensor):
                if not isinstance(made, torch.fx.Node) or not _is_like(inner.meta["val"], value):
                    raise _StaysWhole
                if _promises_new_memory(node):
                    made = self._add(node, torch.ops.aten.clone.default, ((made,), {}), {})
                if inner.op == "call_function":
                    made.meta["val"] = value
            found.append(made)
        return found[0] if is_one else found

    def _program(self) -> ExportedProgram:
        """An exported program of what was made, with the guards that following calls has added."""
        import torch
        from torch.export import ExportedProgram
        from torch.export.exported_program import _get_updated_range_constraints

        old = self.program
        module = torch.fx.GraphModule(old.graph_module, self.graph)
        module.meta.update(old.graph_module.meta)
        (results,) = next(iter(self.graph.find_nodes(op="output"))).args
        outputs = [
            replace(spec, arg=replace(spec.arg, name=made.name)) if isinstance(made, torch.fx.Node) else spec
            for spec, made in zip(old.graph_signature.output_specs, results, strict=True)
        ]
        return ExportedProgram(
            root=module,
            graph=module.graph,
            graph_signature=replace(old.graph_signature, output_specs=outputs),
            state_dict=old.state_dict,
            range_constraints=_get_updated_range_constraints(module, old.range_constraints),
            module_call_graph=old.module_call_graph,
            example_inputs=old.example_inputs,
            constants=old.constants,
            verifiers=old.verifiers,
        )


def _traced(node: Node, table: Any) -> GraphModule:
    """What PyTorch does for a call, on the tensors without memory that its arguments are in the program's trace."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    target: Any = node.target
    inputs = node.all_input_nodes
    values = [n.meta["val"] for n in inputs]
    if not all(isinstance(v, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool) for v in values):
        raise _StaysWhole

    def call(*given: Any) -> Any:
        args, kwargs = _replaced((node.args, node.kwargs), dict(zip(inputs, given, strict=True)))
        return target(*args, **kwargs)

    return make_fx(call, decomposition_table=table)(*values)


def _replaced(given: Any, env: dict[Node, Any]) -> Any:
    from torch.fx.node import map_arg

    return map_arg(given, env.__getitem__)


def _name(target: Any) -> str:
    name: str = getattr(target, "__name__", str(target))
    return name.partition(".")[0]


def _is_like(made: Any, wanted: Any) -> bool:
    """Has a tensor the dtype of another, and its sizes as far as both are known? No size may be one that only data
    decide unless the other has it, too."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    sizes = zip(made.shape, wanted.shape, strict=False)
    return (
        (made.dtype, made.device, len(made.shape)) == (wanted.dtype, wanted.device, len(wanted.shape))
        and all(a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int))
        and free_unbacked_symbols(made) <= free_unbacked_symbols(wanted)
    )


def _promises_new_memory(node: Node) -> bool:
    """Does PyTorch say that no result shares memory with an argument? It says nothing of composites."""
    import torch

    op: Any = node.target
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), COMPOSITE)
    return not is_composite and not op._schema.is_mutable and all(r.alias_info is None for r in op._schema.returns)
