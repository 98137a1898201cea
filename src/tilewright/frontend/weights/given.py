"""``tilewright.with_weights``: a model with the numbers of a file of weights in place of its own.

In: a PyTorch module or an ONNX model, and a safetensors or GGUF file, or arrays by name. Out: a model of the same kind,
which whatever takes models takes. Not its business: models that a file of weights describes itself (``decoders``).

PyTorch modules read the mapped file where the types are equal: nothing is copied, and the module may have been made
without memory (``torch.device("meta")``). Nothing of a file is ever executed, so pickles are refused.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from tilewright.core.diag import CompileError, ImportFailed, Loc, OptionError, Problem
from tilewright.core.types import Array
from tilewright.frontend.onnx.file import MAX_PROTO_BYTES, whole_model
from tilewright.frontend.source import is_a
from tilewright.frontend.stablehlo.importer import SUFFIXES as STABLEHLO
from tilewright.frontend.tflite.importer import SUFFIX as TFLITE
from tilewright.frontend.tflite.importer import is_tflite
from tilewright.frontend.torch.tensors import to_numpy
from tilewright.frontend.weights.gguf_file import open_gguf
from tilewright.runtime.files import map_file, open_regular, reading
from tilewright.runtime.formats import COMPILED, SAFETENSORS, recognise
from tilewright.runtime.once import MAKING

if TYPE_CHECKING:
    import torch

PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".npy")
"""Suffixes of files that hold Python objects."""
_STARTS = (b"\x80", b"PK\x03\x04")
"""How a pickle begins, and PyTorch's archive of one."""

_SMALL_FLOATS = frozenset(
    made
    for name in dir(ml_dtypes)
    if name.startswith(("float", "bfloat")) and isinstance(made := getattr(ml_dtypes, name), type)
)
"""Types of floats that NumPy itself lacks."""
_BITS = {1: np.uint8, 2: np.int16}
"""By size, whole numbers as which such floats pass from NumPy to PyTorch."""
_WIDER: Mapping[type, type] = {
    ml_dtypes.int2: np.int8, ml_dtypes.int4: np.int8, ml_dtypes.uint2: np.uint8, ml_dtypes.uint4: np.uint8,
    np.longdouble: np.float64, np.clongdouble: np.complex128,
}  # fmt: skip
"""Types that PyTorch lacks."""
GIVE = "pass the path of a safetensors or GGUF file, or a dict of arrays by name"
Weights = str | os.PathLike[str] | Mapping[str, Any]


def with_weights(source: Any, weights: Weights) -> Any:
    """``source`` with the numbers of ``weights``: the path of a safetensors or GGUF file, or arrays by name.

    ``source`` is a ``torch.nn.Module``, whose parameters and buffers are meant by their names, or the path, bytes or
    ``ModelProto`` of an ONNX model, whose initializers are. It is not changed; what comes back is a module or a
    ``ModelProto`` that ``compile`` and all else take. A module needs every tensor; an ONNX model keeps what is not
    named.

    Tensors that a module has under two names stay one, and are given under either name.

    ``ImportFailed`` names every tensor that is missing, unknown or of another shape or kind of number, and a
    damaged file. ``OptionError`` for a pickle, which would execute what it holds, and for other
    sources. ``FileError`` where there is no such file.
    """
    if is_a(source, "torch.nn", "Module"):
        return _module_with(source, _tensors(weights))
    if is_onnx(source):
        return _onnx_with(source, numbers_of(weights))
    raise _without_names(source)


def named_tensors(source: Any) -> dict[str, Array]:
    """The tensors of a PyTorch module or an ONNX model by name, over the same memory where that is possible.

    ``OptionError`` for other sources.
    """
    if is_a(source, "torch.nn", "Module"):
        return {n: to_numpy(t) for n, t in _state_of(source).items()}
    if is_onnx(source):
        import onnx

        model = _onnx_with(source, {})
        return {t.name: np.asarray(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer}
    raise _without_names(source)


def names_of_one(module: torch.nn.Module) -> list[list[str]]:
    """The names of each tensor that a module has under several."""
    names: dict[int, list[str]] = {}
    for name, t in _state_of(module).items():
        names.setdefault(id(t), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def is_onnx(source: Any) -> bool:
    """Is it what ``compile`` takes for an ONNX model, in a form whose weights can be replaced?"""
    if isinstance(source, bytes):
        return not is_tflite(source)
    if isinstance(source, str | os.PathLike):
        return Path(os.fsdecode(source)).suffix not in (".pt2", TFLITE, *STABLEHLO)
    return is_a(source, "onnx", "ModelProto")


def without_numbers(source: Any, names: Container[str]) -> bytes:
    """An ONNX model whose initializers of these names have a type and a shape and no numbers."""
    model = _onnx_with(source, {})
    for tensor in model.graph.initializer:
        if tensor.name in names:
            name, data_type, dims = tensor.name, tensor.data_type, list(tensor.dims)
            tensor.Clear()
            tensor.name, tensor.data_type = name, data_type
            tensor.dims.extend(dims)
    content: bytes = model.SerializeToString()
    return content


def numbers_of(weights: Weights) -> Mapping[str, Array]:
    """The arrays of a file of weights, or of a mapping, by name; ``ImportFailed`` names types that NumPy has not."""
    made, rules = {}, []
    for name, t in _tensors(weights).items():
        try:
            made[name] = to_numpy(t) if is_a(t, "torch", "Tensor") else t
        except TypeError as error:
            rules.append(f"{name} is {_type_name(t.dtype)}, which has no form here: {error}"[:200])
    _refuse(rules)
    return made


def _without_names(source: Any) -> OptionError:
    what = str(source) if isinstance(source, str | os.PathLike) else f"a {type(source).__qualname__}"
    return OptionError(
        f"{what:.200} has no weights to replace by name", remedy="pass a torch.nn.Module or an ONNX model"
    )


def tensor_over(a: Array) -> torch.Tensor:
    """An array as a PyTorch tensor over the same memory, which nothing writes."""
    import torch

    dense = np.ascontiguousarray(a).reshape(a.shape)
    bits = _BITS.get(dense.dtype.itemsize)
    own = getattr(torch, dense.dtype.name, None) if dense.dtype.type in _SMALL_FLOATS else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch warns of memory that can't be written
        if own is not None and bits is not None:  # PyTorch knows NumPy's type of them by its bits only
            return torch.from_numpy(dense.view(bits)).view(own)
        return torch.from_numpy(_widened(dense))


def _widened(a: Array) -> Array:
    """The numbers in a type that PyTorch takes from NumPy: their own, or the next wider one that there is."""
    if a.dtype.type in _SMALL_FLOATS:
        return a.astype(np.float32)
    wide = _WIDER.get(a.dtype.type)
    return a if wide is None else a.astype(wide)


# --- files ----------------------------------------------------------------------------------------------------------


def _tensors(weights: Weights) -> Mapping[str, Any]:
    """Tensors of PyTorch, or arrays of numbers, by name."""
    if isinstance(weights, Mapping):
        return _of_numbers(weights)
    with reading(weights, GIVE):
        path = Path(weights)
        with open_regular(path) as file:
            start = file.read(4)
    if path.suffix == ".gguf" or start == b"GGUF":
        return {name: t.numbers() for name, t in open_gguf(path).tensors.items()}
    if path.suffix in PICKLES or start.startswith(_STARTS):
        raise OptionError(
            f"{path} is a pickle, which would execute what it holds",
            remedy="where you trust it: safetensors.torch.save_file(torch.load(path, weights_only=True), new_path)",
        )
    found = recognise(map_file(path)[0])
    if found is not None and found not in (SAFETENSORS, COMPILED):  # a compiled model has the form of such a file
        problem = Problem(Loc(str(path)), "safetensors", f"it is {found.what}", found.remedy)
        raise ImportFailed("the file of weights can't be read", [problem])
    return _safetensors(path)


def _of_numbers(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was given by name, as tensors or arrays; ``ImportFailed`` names all that are no numbers."""
    made, rules = {}, []
    for name, x in given.items():
        try:
            if is_a(x, "torch", "Tensor"):
                made[name] = x
                if x.is_meta or str(x.layout) != "torch.strided":
                    rules.append(f"{name} {'has no memory' if x.is_meta else f'is laid out as {x.layout}'}")
                continue
            made[name] = a = np.asarray(x)
            if a.dtype.kind in "OSUMm" or a.dtype.type is np.void:
                rules.append(f"{name} is of {a.dtype}, and not of numbers")
            elif not a.dtype.isnative:
                made[name] = a.astype(a.dtype.newbyteorder("="))
        except (ValueError, TypeError, RuntimeError) as error:
            rules.append(f"{name} is no array: {error}"[:200])
    _refuse(rules)
    return made


def _safetensors(path: Path) -> Mapping[str, Any]:
    """The tensors of a safetensors file, over the mapped file."""
    try:
        with MAKING:
            from safetensors import SafetensorError
            from safetensors.torch import load_file
    except ImportError as error:
        remedy = 'pip install "tilewright[weights]" torch'
        raise OptionError("safetensors files need the package safetensors and PyTorch", remedy=remedy) from error
    try:
        tensors: Mapping[str, Any] = load_file(path)
        return tensors
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError, RuntimeError) as error:
        problem = Problem(Loc(str(path)), "safetensors", f"it is damaged: {error}"[:200], "download it anew")
        raise ImportFailed("the file of weights can't be read", [problem]) from error


# --- models ---------------------------------------------------------------------------------------------------------


def _module_with(module: torch.nn.Module, tensors: Mapping[str, Any]) -> torch.nn.Module:
    """A copy of a module's structure whose parameters and buffers are ``tensors``."""
    own, tied = _state_of(module), names_of_one(module)
    given = dict(tensors)
    # A tensor that a module holds under two names is stored once.
    for names in tied:
        found = next((given[n] for n in names if n in given), None)
        given.update({n: found for n in names if found is not None and n not in given})
    check_weights({n: (str(t.dtype), tuple(t.shape)) for n, t in own.items()}, given, needs_all=True)
    made_of = {id(t): tensor_over(t) if isinstance(t, np.ndarray) else t for t in given.values()}
    state = _converted({n: (made_of[id(t)], own[n].dtype) for n, t in given.items()})
    # The structure is copied, tensors are not: they are replaced right after.
    shared = {id(t): t for t in (*module.parameters(), *module.buffers())}
    made = copy.deepcopy(module, shared)
    made.load_state_dict(state, assign=True)
    for first, *others in tied:
        different = [n for n in others if not _equal(state[first], state[n])]
        _refuse([f"{n} and {first} are one tensor of the model, and get different numbers" for n in different])
        for name in others:
            _hold(made, name, made.state_dict(keep_vars=True)[first])
    return made


def _converted(tensors: Mapping[str, tuple[torch.Tensor, torch.dtype]]) -> dict[str, torch.Tensor]:
    """Each tensor in its type; ``ImportFailed`` names those that PyTorch can't convert."""
    made, rules = {}, []
    for name, (t, dtype) in tensors.items():
        try:
            made[name] = t if t.dtype is dtype else t.to(dtype)
        except (RuntimeError, TypeError) as error:
            rules.append(f"{name} is {_type_name(t.dtype)}, and the model's {_type_name(dtype)}: {error}"[:200])
    _refuse(rules)
    return made


def _state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a module has by name, its own tensors; ``OptionError`` for one that keeps other things there."""
    import torch

    own = module.state_dict(keep_vars=True)
    for name, t in own.items():
        if not isinstance(t, torch.Tensor):
            rule = f"{name} of the module's state is a {type(t).__qualname__}, and no tensor"
            raise OptionError(rule, remedy="load the weights by load_state_dict, and compile the module")
    return own


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Have they equal bits?"""
    import torch

    return a is b or torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def _hold(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Let a module have a tensor under this name."""
    owner, _, own = name.rpartition(".")
    setattr(module.get_submodule(owner), own, tensor)


def _onnx_with(source: Any, arrays: Mapping[str, Array]) -> Any:
    """The model with initializers replaced by name."""
    model, folder = whole_model(source)
    import onnx

    # What stays keeps its numbers, which lie in files beside the model.
    for tensor in model.graph.initializer:
        outside = tensor.name not in arrays and onnx.external_data_helper.uses_external_data(tensor)
        if folder is not None and outside:
            with reading(source, f"put the file with the numbers of {tensor.name} beside it"):
                _load_external(tensor, folder)
    own = {t.name: t for t in model.graph.initializer}
    dtypes = {n: onnx.helper.tensor_dtype_to_np_dtype(own[n].data_type) for n in arrays if n in own}
    wanted = {n: (str(dtypes.get(n, "")), tuple(t.dims)) for n, t in own.items()}
    check_weights(wanted, arrays, needs_all=False)
    if sum(a.nbytes for a in arrays.values()) > MAX_PROTO_BYTES:
        raise CompileError(
            f"the weights take more than {MAX_PROTO_BYTES} bytes, which an ONNX model in memory can't hold",
            remedy="write them as external data of the model",
        )
    for name, a in arrays.items():
        own[name].CopyFrom(onnx.numpy_helper.from_array(np.asarray(a).astype(dtypes[name], copy=False), name))
    return model


def _load_external(tensor: Any, folder: Path) -> None:
    """Read a tensor's numbers; ``ValueError`` or ``OSError`` where they can't be."""
    import onnx

    try:
        onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
    except onnx.checker.ValidationError as error:
        raise ValueError(str(error)[:200]) from error


def check_weights(
    wanted: Mapping[str, tuple[str, tuple[int, ...]]],
    given: Mapping[str, Any],
    *,
    needs_all: bool,
    others: Sequence[str] = (),
) -> None:
    """Raise ``ImportFailed`` with every name, shape and kind of number that does not fit.

    ``wanted`` has types by name, and shapes. ``others`` may be given and are not read. Floats of one width may
    stand for those of another; whole numbers, which are mostly codes of a scale, may not stand for floats, nor floats
    for them, nor those of a type for the numbers of one that does not hold them all.
    """
    rules = [f"{n} is missing" for n in wanted if needs_all and n not in given]
    rules += [f"{n} is no tensor of the model" for n in given if n not in wanted and n not in others]
    rules += [
        f"{n} has the shape {tuple(t.shape)}, and the model's has {wanted[n][1]}"
        for n, t in given.items()
        if n in wanted and tuple(t.shape) != wanted[n][1]
    ]
    rules += [
        f"{n} holds {_numbers_in(t.dtype)} ({_type_name(t.dtype)}), and the model's {_numbers_in(wanted[n][0])} "
        f"({_type_name(wanted[n][0])})"
        for n, t in given.items()
        if n in wanted and _numbers_in(t.dtype) != _numbers_in(wanted[n][0])
    ]
    rules += [
        f"{n} is {_type_name(t.dtype)}, some of whose numbers are none of the model's {_type_name(wanted[n][0])}"
        for n, t in given.items()
        if n in wanted and not _holds(_type_name(wanted[n][0]), _type_name(t.dtype))
    ]
    _refuse(rules)


def _type_name(dtype: Any) -> str:
    """``float32`` for NumPy's type, PyTorch's, and a name of either."""
    return str(dtype).removeprefix("torch.")


def _numbers_in(dtype: Any) -> str:
    """What a type holds, in words."""
    name = _type_name(dtype)
    is_float = name.startswith(("float", "bfloat"))
    return "floats" if is_float else "complex numbers" if name.startswith("complex") else "whole numbers"


def _holds(wanted: str, given: str) -> bool:
    """Are all numbers of a type, where both are whole ones that NumPy knows, among those of another?"""
    known = all(
        name == "bool" or name.removeprefix("u") in ("int8", "int16", "int32", "int64") for name in (wanted, given)
    )
    return not known or np.can_cast(given, wanted, "safe")


def _refuse(rules: Sequence[str]) -> None:
    """Raise ``ImportFailed`` with all that is wrong with weights."""
    if rules:
        problems = [
            Problem(Loc("the weights"), "weights", rule, "pass the weights of this model, as numbers of its types")
            for rule in rules
        ]
        raise ImportFailed("the weights are not those of the model", problems)
