"""How a PyTorch program is called: its nested arguments and results as trees of the graph's inputs and outputs.

In: an exported program, and its module's parameter names where they are known. Out: a ``Convention``. Containers are
those that PyTorch's own trees know: tuples, lists, dicts, named tuples, dataclasses and classes that were registered.
Not its business: running a call by it (``runtime.structure``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tilewright.runtime.structure import (
    DICT,
    GIVEN,
    LIST,
    NUMBER,
    RECORD,
    TENSOR,
    TUPLE,
    Codec,
    Parameters,
    Tree,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram

PLAIN = {tuple: TUPLE, list: LIST, dict: DICT}


def register_containers() -> None:
    """Let PyTorch's trees know containers that a library in use has a registration for, and leaves to its users.

    Today: the key and value caches of ``transformers``.
    """
    if "transformers" not in sys.modules:
        return
    with suppress(ImportError, AttributeError, ValueError):  # another release of it, or registered already
        from transformers.integrations import executorch

        register: Any = executorch.register_dynamic_cache_export_support
        register()


def parameters_of(program: ExportedProgram, names: Sequence[str], inputs: Sequence[str]) -> Parameters | None:
    """The parameters of a call; None where they are the graph's ``inputs`` as they stand.

    ``names`` are those of the module's arguments in order; without them they are read off the inputs' own names.
    """
    spec = program.call_spec.in_spec
    args = [s.arg for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    if spec is None or len(args) != spec.num_leaves:
        return None
    kinds = [TENSOR if _is_tensor(arg) else GIVEN for arg in args]
    whole = _tree(spec, _leaves(args, kinds))
    positional, by_name = whole.parts
    trees = dict(zip(by_name.keys, by_name.parts, strict=True))
    given = {_name(program, names, k): p for k, p in enumerate(positional.parts)}
    if len(given) != len(positional.parts) or given.keys() & trees.keys() or kinds.count(TENSOR) != len(inputs):
        return None
    made = Parameters({**given, **trees}, len(positional.parts))
    flat = {name: Tree(TENSOR, k) for k, name in enumerate(inputs)}
    return None if list(made.trees.items()) == list(flat.items()) else made


def result_of(program: ExportedProgram, values: Sequence[Any]) -> Tree | None:
    """The result of a call, of the program's output ``values`` (None: no output of the graph); None where it is flat.

    A flat result is one tensor, or several in a tuple.
    """
    spec = program.call_spec.out_spec
    args = [s.arg for s in program.graph_signature.output_specs if s.kind.name == "USER_OUTPUT"]
    if spec is None or len(args) != spec.num_leaves:
        return None
    kinds = [
        GIVEN if value is None else TENSOR if _is_tensor(arg) else NUMBER
        for arg, value in zip(args, values, strict=True)
    ]
    n_outputs = len(kinds) - kinds.count(GIVEN)
    tensors = tuple(Tree(TENSOR, k) for k in range(n_outputs))
    made = _tree(spec, _leaves(args, kinds))
    is_flat = made == tensors[0] if n_outputs == 1 else made == Tree(TUPLE, parts=tensors)
    return None if n_outputs and is_flat else made


def _is_tensor(arg: Any) -> bool:
    """Is an argument of PyTorch's signatures a tensor? Their classes are not public."""
    return type(arg).__name__ == "TensorArgument"


def _leaves(args: Sequence[Any], kinds: Sequence[str]) -> Iterator[Tree]:
    """A leaf for each argument; those that the graph has are numbered, the others keep the value that was given."""
    n = 0
    for arg, kind in zip(args, kinds, strict=True):
        yield Tree(GIVEN, value=getattr(arg, "value", None)) if kind == GIVEN else Tree(kind, n)
        n += kind != GIVEN


def _tree(spec: Any, leaves: Iterator[Tree]) -> Tree:
    """The tree of a spec of PyTorch's, its leaves taken from an iterator."""
    from torch.utils import _pytree as pytree

    if spec.is_leaf():
        return next(leaves)
    parts = tuple(_tree(child, leaves) for child in spec.children())
    kind = PLAIN.get(spec.type)
    if kind == DICT and all(isinstance(k, str | int) for k in spec.context):
        return Tree(DICT, keys=tuple(spec.context), parts=parts)
    if kind in (TUPLE, LIST):
        return Tree(kind, parts=parts)
    node, context = pytree.SUPPORTED_NODES[spec.type], spec.context
    codec = Codec(_taking(node.flatten_fn), lambda values: node.unflatten_fn(values, context))
    keys = _keys(context, len(parts))
    name = getattr(context if isinstance(context, type) else spec.type, "__name__", "record")
    is_dict = isinstance(spec.type, type) and issubclass(spec.type, dict) and not hasattr(spec.type, "to_tuple")
    return Tree(DICT if is_dict else RECORD, keys=keys, parts=parts, name=name, codec=codec)


def _taking(flatten: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any], Sequence[Any]]:
    return lambda value: list(flatten(value)[0])


def _keys(context: Any, n: int) -> tuple[Any, ...]:
    """The names of a container's parts, which its context has in one of a few forms; else their numbers."""
    options = [context, getattr(context, "_fields", None)]
    options += [x for x in context if isinstance(x, list | tuple)] if isinstance(context, list | tuple) else []
    for found in options:
        if isinstance(found, list | tuple) and len(found) == n and all(isinstance(k, str | int) for k in found):
            return tuple(found)
    return tuple(map(str, range(n)))


def _name(program: ExportedProgram, names: Sequence[str], k: int) -> str:
    """The name of argument ``k``: the module's, or what the names of its tensors begin with."""
    from torch.utils import _pytree as pytree

    if k < len(names):
        return names[k]
    spec = program.call_spec.in_spec
    assert spec is not None
    user = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    children = spec.child(0).children()
    at = sum(c.num_leaves for c in children[:k])
    if children[k].is_leaf():
        return str(user[at])
    try:
        whole = pytree.tree_unflatten(list(range(children[k].num_leaves)), children[k])
        (path, _), *_ = pytree.tree_flatten_with_path(whole)[0]
        suffix = re.sub(r"\W+", "_", pytree.keystr(path)).rstrip("_").lower()
        if user[at].endswith(suffix) and len(user[at]) > len(suffix):
            return str(user[at][: -len(suffix)])
    except Exception:  # an empty container, or the user's own, which can't be made of numbers
        pass
    return f"argument_{k}"


def module_names(parameters: Mapping[str, Any], n: int) -> list[str]:
    """The names of the first ``n`` arguments of a function with these parameters; those of ``*args`` are numbered."""
    found: list[str] = []
    for name, p in parameters.items():
        if p.kind is p.VAR_POSITIONAL:
            return [*found, *(f"{name}_{i}" for i in range(n - len(found)))]
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            found.append(name)
    return found[:n]
