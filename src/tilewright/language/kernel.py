"""``@tw.kernel``: a Python function over indices as a compiled function of arrays, and as an op of models.

In: the function, perhaps a schedule. Out: ``UserKernel``. Not its business: what the function may say (``trace``).

A parameter with a type, ``image: f32("h", "w")``, is a tensor, whose named sizes are those of each call. One without is
what a call hands over: an array of its very shape, or a Python value that the function uses as it is.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.build.deploy import export
from tilewright.build.driver import compile as compile_graph
from tilewright.core.diag import Loc, OptionError
from tilewright.core.dims import is_known
from tilewright.core.expr import Dim, Expr, to_text
from tilewright.core.graph import Builder, Graph, Node, Pool
from tilewright.core.keys import key_of
from tilewright.core.opdef import AuthorSchedule, OpDef
from tilewright.core.types import TensorType, bool_, tensor_type_of
from tilewright.frontend.torch.aten.call import Unsupported
from tilewright.frontend.torch.custom_ops import UNASKED, kernel_op, torch_types
from tilewright.language.errors import KernelError, loc_of, refused
from tilewright.language.inside import checked
from tilewright.language.instance import op_of, relations
from tilewright.language.lanes import BlockValue
from tilewright.language.nests import raised_kernel
from tilewright.language.trace import Tensor, Traced, trace
from tilewright.language.values import Element, IndexExpr
from tilewright.runtime.python.model import CompiledModel

INSIDE = (Tensor, Element, IndexExpr, BlockValue)
"""What values are while another kernel is traced: one that gets any of them is a part of that kernel."""


class UserKernel:
    """A kernel of the language; call it with arrays or tensors.

    Equal calls share compiled code: one for all sizes of a parameter's type, one for each shape of an untyped one.
    """

    def __init__(self, function: Callable[..., Any], author: AuthorSchedule | None = None) -> None:
        if not hasattr(function, "__code__"):
            raise OptionError(f"{function!r:.80} is no Python function", remedy="put @tw.kernel before a def")
        self.function, self.author = function, author
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self.loc = loc_of(function)
        self._signature: inspect.Signature | None = None
        self._known: dict[tuple[object, ...], tuple[Traced, OpDef]] = {}
        self._models: dict[tuple[object, ...], CompiledModel] = {}
        self._torch: Any = None
        UNASKED.add(self)

    def __repr__(self) -> str:
        return f"<kernel {self.__name__} at {self.loc}>"

    @property
    def signature(self) -> inspect.Signature:
        """The function's parameters; types that are written as text are read when they are first asked for."""
        if self._signature is None:
            try:
                self._signature = inspect.signature(self.function, eval_str=True)
            except Exception as e:  # whatever the text of an annotation raises
                raise KernelError(self.__name__, f"a parameter's type can't be read: {e}", loc=self.loc) from e
        return self._signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it: arrays in, new arrays out; of tensors of PyTorch, tensors out.

        Within another kernel it computes the same as a part of that one, by the schedule of the whole.
        """
        given = self._bound(args, kwargs)
        if any(isinstance(v, INSIDE) for v in given.values()):
            self._check_types(given)
            try:
                return self.function(*args, **kwargs)
            except RecursionError:
                raise refused(f"{self.__name__} calls itself without an end", "write a loop: tl.loop") from None
        tensors = [v for v in given.values() if _is_tensor(v)]
        plain = {p: v for p, v in given.items() if p not in self._operands}
        is_default = all(v is self.signature.parameters[p].default for p, v in plain.items())
        if tensors and is_default and len(tensors) == len(self._operands) and _is_torch(tensors[0]):
            return self.torch(*tensors)
        types = {p: self._type_of(p, v) for p, v in given.items()}
        return self._model(types)(*[v for p, v in given.items() if isinstance(types[p], TensorType)])

    def _check_types(self, given: Mapping[str, Any]) -> None:
        """``KernelError`` at the line of the kernel that calls where a tensor of its has another type than declared."""
        sizes: dict[Dim, Dim] = {}
        for p, value in given.items():
            declared = self.signature.parameters[p].annotation
            if not isinstance(declared, TensorType):
                continue
            if not isinstance(value, Tensor) or (value.dtype, len(value.shape)) != (declared.dtype, declared.rank):
                of = f"{value.dtype} of {len(value.shape)} dimensions" if isinstance(value, Tensor) else value
                raise refused(f"{p} of {self.__name__} is {of!s:.80}", f"it takes {type_text(declared)}")
            for own, size in zip(declared.shape, value.buffer.shape, strict=True):
                if sizes.setdefault(own, size) != size or (is_known(own) and own != size):
                    rule = f"{p} of {self.__name__} has the size {to_text(size)}, where it takes {to_text(own)}"
                    first = "" if sizes[own] == size else f", which is {to_text(sizes[own])} here"
                    raise refused(f"{rule}{first}", "give tensors whose sizes are equal by what they are made of")

    def _model(self, types: Mapping[str, Any]) -> CompiledModel:
        key = self._key(types)
        if key not in self._models:
            self._models[key] = compile_graph(self._graph(types))
        return self._models[key]

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        found = self._arguments(self.signature.bind, args, kwargs)
        found.apply_defaults()
        return dict(found.arguments)

    def _arguments(
        self, bind: Callable[..., inspect.BoundArguments], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> inspect.BoundArguments:
        try:
            return bind(*args, **kwargs)
        except TypeError as e:
            raise KernelError(self.__name__, str(e), f"it is called {self._call_text()}", self.loc) from e

    def _call_text(self) -> str:
        """How it is called, as a user writes it."""
        parts = []
        for p, parameter in self.signature.parameters.items():
            declared = parameter.annotation
            text = f"{p}: {type_text(declared)}" if isinstance(declared, TensorType) else p
            parts.append(text if parameter.default is parameter.empty else f"{text} = {parameter.default!r:.40}")
        return f"{self.__name__}({', '.join(parts)})"

    def _type_of(self, parameter: str, value: Any) -> Any:
        """The type to trace a parameter with: the declared one, or the argument's, or a value that is no tensor."""
        declared = self.signature.parameters[parameter].annotation
        if isinstance(declared, TensorType):
            return declared
        if isinstance(value, TensorType) or not _is_tensor(value):
            return value
        try:
            return torch_types([value])[0] if hasattr(value, "untyped_storage") else tensor_type_of(np.asarray(value))
        except (KeyError, Unsupported) as e:
            rule = f"{parameter} is a tensor of {value.dtype}"
            raise KernelError(self.__name__, rule, "use numbers or bools that a dtype of tl has", self.loc) from e

    # --- what it computes ---

    def traced(self, *args: Any, **kwargs: Any) -> Traced:
        """What it computes for these arguments or types; a parameter with a type may be left out."""
        return self._trace({p: self._type_of(p, v) for p, v in self._filled(args, kwargs).items()})[0]

    def _filled(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments, with the declared types in the place of those that lack."""
        given = self._arguments(self.signature.bind_partial, args, kwargs).arguments
        for p, parameter in self.signature.parameters.items():
            if p not in given and isinstance(parameter.annotation, TensorType):
                given[p] = parameter.annotation
        lacking = [p for p, x in self.signature.parameters.items() if x.default is x.empty and p not in given]
        if lacking:
            remedy = f'write {lacking[0]}: tl.f32("n") in the kernel, or give an array or such a type here'
            raise KernelError(self.__name__, f"the parameter {lacking[0]} has no type", remedy, self.loc)
        return self._bound((), given)

    def _trace(self, types: Mapping[str, Any]) -> tuple[Traced, OpDef]:
        """What it computes, and the op that does; the same objects for equal types."""
        key = self._key(types)
        if key not in self._known:
            traced = raised_kernel(checked(trace(self.function, self.__name__, types)))
            self._known[key] = traced, op_of(traced, self.author)
        return self._known[key]

    def _key(self, types: Mapping[str, Any]) -> tuple[object, ...]:
        key = tuple((p, *key_of(v)) for p, v in types.items())
        try:
            hash(key)
        except TypeError as e:
            raise KernelError(self.__name__, f"an argument that is no tensor: {e}", "pass numbers", self.loc) from e
        return key

    def graph(self, *args: Any, **kwargs: Any) -> Graph:
        """A graph of this one op: what ``tw.compile`` and ``tw.export`` take, for these arguments or types."""
        return self._graph({p: self._type_of(p, v) for p, v in self._filled(args, kwargs).items()})

    def _graph(self, types: Mapping[str, Any]) -> Graph:
        return graph_of(*self._trace(types), self.loc)

    def export(self, folder: str | os.PathLike[str], *args: Any, **options: Any) -> Any:
        """C files of the kernel for these arguments or types, as ``tw.export`` writes them."""
        return export(self.graph(*args), folder, **options)

    # --- in models of PyTorch ---

    @property
    def torch(self) -> Any:
        """The kernel as an op of ``torch.library``: for modules that ``tw.compile`` and ``torch.compile`` take."""
        if self._torch is None:
            self._torch = kernel_op(self.__name__, len(self._operands), self._run, self._shapes, self._nodes)
        return self._torch

    def _run(self, arrays: Sequence[Any]) -> Any:
        return self._model(self._types_of(arrays))(*arrays)

    def _shapes(self, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Of the results, for operands of these types."""
        b = Builder(Pool(), self.loc)
        return b(self._trace(self._types_of(types))[1], *[b.pool.input(f"x{k}", t) for k, t in enumerate(types)]).types

    def _nodes(self, b: Builder, inputs: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Expr, ...]]:
        """The results over nodes of a model's graph, and the relations between sizes that its callers have to keep."""
        types = [n.type for n in inputs]
        traced, op = self._trace(self._types_of(types))
        return b.results(b(op, *inputs)), relations(traced, types)

    def _types_of(self, operands: Sequence[Any]) -> dict[str, Any]:
        given = self._bound((), dict(zip(self._operands, operands, strict=True)))
        return {p: self._type_of(p, x) for p, x in given.items()}

    @property
    def _operands(self) -> list[str]:
        """The parameters that have no default: those of the op in PyTorch, where the others are their defaults."""
        return [p for p, x in self.signature.parameters.items() if x.default is x.empty]


def graph_of(traced: Traced, op: OpDef, loc: Loc) -> Graph:
    """A graph of the one op that a kernel is."""
    b, c = Builder(Pool(), loc), traced.computation
    inputs = tuple(b.pool.input(x.name, TensorType(x.dtype, x.shape), loc) for x in c.inputs)
    outputs = b.results(b(op, *inputs))
    return Graph(traced.name, b.pool, inputs, outputs, tuple(x.name for x in c.outputs), traced.constraints)


def type_text(declared: TensorType) -> str:
    """A parameter's type as a user writes it: ``tl.f32("h", 3)``."""
    sizes = ", ".join(str(d) if is_known(d) else f'"{to_text(d)}"' for d in declared.shape)
    word = "bool_" if declared.dtype is bool_ else declared.dtype.name
    return f"tl.{word}({sizes})"


def _is_tensor(value: Any) -> bool:
    """Is it an array, a tensor or the type of one, and no plain number?"""
    return isinstance(value, np.ndarray | TensorType) or hasattr(value, "untyped_storage")


def _is_torch(value: Any) -> bool:
    return type(value).__module__.startswith("torch")


def kernel(function: Callable[..., Any]) -> UserKernel:
    """Make a kernel of a function over indices (``tilewright.lang`` has its words).

    >>> @tw.kernel
    ... def scale(x: tl.f32("n")):
    ...     (n,) = x.shape
    ...     return tl.compute(n, lambda i: 2 * x[i])
    """
    return UserKernel(function)
