"""A GPU's code as objects of a ``.tw`` file, and back.

In: a ``GpuCode``; or objects of a file, which may hold anything. Out: an object of JSON for the program and one of PTX
for each kernel; or the same ``GpuCode``, every field of the type that its record declares, else ``ArtifactError``.
Not its business: the file (``runtime.artifact``), which has checked that the bytes are those that were written.

A record is an object of its fields and its class's name, ``is``; a size is a number, or the text of its expression.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from tilewright.runtime.artifact import ObjectImage
from tilewright.runtime.cuda.program import ChooseStep, GpuCode, LaunchStep, LoopStep, PartsStep
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.expressions import ParsedExpr
from tilewright.runtime.fields import FieldError, decode_json
from tilewright.runtime.shapes import compile_size

PROGRAM = "program.json"
OBJECT = ".o"
"""What the name of a kernel's machine code ends with, where its driver assembles nothing; it follows all texts."""
CLASS = "is"


def objects_of(code: GpuCode) -> tuple[ObjectImage, ...]:
    """The program, then the PTX of every kernel in order."""
    bare = replace(code, kernels=tuple(replace(k, ptx="") for k in code.kernels))
    text = json.dumps(_encoded(bare), separators=(",", ":"))
    kernels = [ObjectImage(f"{k.name}.ptx", k.ptx.encode()) for k in code.kernels]
    return (ObjectImage(PROGRAM, text.encode()), *kernels)


def code_of(objects: Sequence[ObjectImage]) -> GpuCode:
    """The code that :func:`objects_of` made the objects of."""
    try:
        if not objects or objects[0].name != PROGRAM:
            raise FieldError(f"the first object is not {PROGRAM}")
        code: GpuCode = _decoded(GpuCode, decode_json(objects[0].data), "program")
        _check_launches(code)
        given = [o for o in objects[1:] if not o.name.endswith(OBJECT)]
        names, wanted = [o.name for o in given], [f"{k.name}.ptx" for k in code.kernels]
        if names != wanted:
            raise FieldError(f"objects {names[:5]} where the program has kernels {wanted[:5]}")
        texts = [o.data.decode() for o in given]
    except (ValueError, RecursionError) as error:  # steps may be nested deeper than the stack
        raise ArtifactError(f"the GPU's program makes no sense: {error}", remedy="compile the model again") from error
    return replace(code, kernels=tuple(replace(k, ptx=t) for k, t in zip(code.kernels, texts, strict=True)))


def _check_launches(code: GpuCode) -> None:
    """Every launch, in branches and loops too, names a kernel that there is."""
    programs = [code.program]
    while programs:
        for step in programs.pop().steps:
            match step:
                case LaunchStep() if not 0 <= step.kernel < len(code.kernels):
                    raise FieldError(f"kernel {step.kernel} is launched, of {len(code.kernels)}")
                case ChooseStep():
                    programs += step.programs
                case LoopStep() | PartsStep():
                    programs.append(step.body)


def _encoded(value: Any) -> Any:
    if isinstance(value, ParsedExpr):
        return value.text
    if isinstance(value, tuple):
        return [_encoded(v) for v in value]
    if is_dataclass(value):
        return {CLASS: type(value).__name__, **{f.name: _encoded(getattr(value, f.name)) for f in fields(value)}}
    return value


def _decoded(hint: Any, value: Any, path: str) -> Any:
    """The value that a field of this type was written as."""
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint), value, path)
    if get_origin(hint) is Literal:
        return value if value in get_args(hint) else _wrong(path, value, f"one of {get_args(hint)}")
    if isinstance(hint, UnionType):
        return _one_of(get_args(hint), value, path)
    if is_dataclass(hint):
        return _one_of((hint,), value, path)
    return value if type(value) is hint else _wrong(path, value, f"of type {hint.__name__}")


def _tuple(hints: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        _wrong(path, value, "a list")
    if hints[-1] is Ellipsis:
        hints = (hints[0],) * len(value)
    if len(hints) != len(value):
        _wrong(path, value, f"a list of {len(hints)}")
    return tuple(_decoded(h, v, f"{path}[{k}]") for k, (h, v) in enumerate(zip(hints, value, strict=True)))


def _one_of(hints: tuple[Any, ...], value: Any, path: str) -> Any:
    """A number, an expression's text, or a record, as far as the type has them."""
    if ParsedExpr in hints and isinstance(value, str):
        return compile_size(value)
    if int in hints and type(value) is int:
        return value
    classes = (h for h in hints if isinstance(h, type) and h not in (int, ParsedExpr))
    records: dict[str, type] = {h.__name__: h for h in classes}
    name = value.get(CLASS) if isinstance(value, dict) else None
    record = records.get(name) if isinstance(name, str) else None
    if record is None:
        _wrong(path, value, f"one of {sorted(records) or 'numbers and expressions'}")
    hints_of = _hints(record)
    if value.keys() - {CLASS} != hints_of.keys():
        raise FieldError(f"{path} has other fields than {record.__name__}: {sorted(value.keys() ^ hints_of.keys())}")
    return record(**{name: _decoded(hint, value[name], f"{path}.{name}") for name, hint in hints_of.items()})


@cache
def _hints(record: type) -> dict[str, Any]:
    return get_type_hints(record)


def _wrong(path: str, value: Any, wanted: str) -> NoReturn:
    raise FieldError(f"{path} is {str(value)[:80]!r}, not {wanted}")
