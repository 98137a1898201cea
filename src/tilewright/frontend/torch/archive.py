"""Files of ``torch.export.save``: does loading one run code that its writer chose?

In: a ``.pt2`` file. Out: nothing, or an ``InputError`` that names what would run. Not its business: reading the program
(``frontend.torch.export``), and bytes that are damaged, of which PyTorch says itself what is wrong.

``torch.export.load`` is no reader for strangers' files: it unpickles without limits where limits fail, evaluates the
texts of sizes, writes names into Python source that it then runs, imports modules that containers name, and loads
shared libraries. So a program is read here as PyTorch reads it, by the classes of its schema, and every text has the
rule of its place; where none is named it is a word: letters, digits and a few signs that make neither a call nor a
statement. What the schema does not know PyTorch does not read. The records are read by PyTorch's own reader, so that
both see the same file.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from tilewright.runtime.errors import InputError

WORD = re.compile(r"[\w.\-+ /:]*")
LINE = re.compile(r"[ !-\"$-\[\]-~]*")
"""Letters, digits and signs of ASCII on one line, but for those of comments and of lines that go on."""
UNQUOTED = frozenset("'\"\\")
"""What may end a text within quotes, of either kind."""
NOT_FINITE = frozenset({"Infinity", "-Infinity", "NaN"})
"""How PyTorch writes numbers for which JSON has no sign."""
SYMBOLIC = re.compile(r"_?sym_\w+")
POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})
MOST_EXPONENT = 64
MOST_POWERS = 3
"""Powers within each other: the root of a sum of squares has two."""
OPERATORS = frozenset(
    "add sub mul truediv floordiv mod pow neg pos abs and_ or_ xor invert not_ lshift rshift eq ne lt le gt ge "
    "getitem index contains".split()
)
NUMBERS = frozenset("ceil floor trunc sqrt cos cosh sin sinh tan tanh asin acos atan exp log log2 isnan isinf".split())
CONTAINERS = frozenset("list dict set tuple int float str bool".split())
MADE = frozenset(
    "Symbol Integer Float Rational Add Mul Pow Max Min Abs Mod Eq Equality Ne Unequality Lt Le Gt Ge And Or Not Xor "
    "StrictGreaterThan StrictLessThan GreaterThan LessThan Piecewise ExprCondPair ITE floor ceiling sqrt exp log sign "
    "FloorDiv ModularIndexing Where PythonMod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift PowByNatural "
    "FloatPow FloatTrueDiv IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt "
    "RoundDecimal ToFloat Identity".split()
)
"""What the text of a size calls, beside functions of these names' beginnings, which nobody defines."""
UNDEFINED = ("OpaqueUnaryFn_", "BitwiseFn_")
ASKED = frozenset(
    "size stride storage_offset dim numel shape ndim dtype device requires_grad layout is_contiguous math isnan inf "
    "nan sqrt floor ceil trunc float int len max min abs bool isinstance type L args kwargs get keys values".split()
)
"""What a condition on inputs may name behind a dot, or call."""
NAMED = frozenset("L args kwargs math torch inf nan int float bool".split())
"""What it may name without calling it, beside symbols of sizes. Whoever is handed a function may call it."""
SYMBOL = re.compile(r"_?[a-z]+\d+")
FILES = frozenset({"from_file", "save"})
"""Operators whose texts are paths."""
PLAIN = (
    ast.Expression, ast.Call, ast.Name, ast.Constant, ast.Load, ast.UnaryOp, ast.BinOp, ast.BoolOp,
    ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip


def refuse_code(path: Path, data: bytes | None = None) -> None:
    """``InputError`` where ``torch.export.load`` of the file, or of its bytes, would run what its writer chose."""
    import torch

    def source() -> Any:
        return str(path) if data is None else io.BytesIO(data)

    with zipfile.ZipFile(source()) as old:
        if "version" in old.namelist():  # PyTorch reads such a file if it can't read it as a new one
            raise InputError(
                f"{path} is of the format of PyTorch 2.7 and older, which is a pickle",
                remedy="where you trust its writer, load it by torch.export.load, and save it again",
            )
    reader = torch._C.PyTorchFileReader(source())
    for problem in _problems(reader.get_all_records(), reader.get_record):
        raise InputError(
            f"loading {path} could run code of its writer: {problem}",
            remedy="where you trust its writer, compile the program that torch.export.load gives",
        )


def _problems(names: list[str], read: Callable[[str], bytes]) -> Iterator[str]:
    for name in names:
        place = name.lower()  # PyTorch's reader finds a record by any case of its letters
        if place.startswith("data/aotinductor/"):
            yield f"{name} belongs to a compiled library"
        elif place.endswith(".pt"):
            yield from _of_pickle(name, read(name))
        elif place.endswith("_config.json"):
            yield from _of_payloads(place.rpartition("/")[0], json.loads(read(name)), read)
        elif place.startswith("models/"):
            yield from _of_program(json.loads(read(name)), "ExportedProgram")


def _of_payloads(folder: str, config: Mapping[str, Any], read: Callable[[str], bytes]) -> Iterator[str]:
    """Weights that are no plain numbers are pickles, and so are objects."""
    yield from _of_program(config, "PayloadConfig")
    for payload in config["config"].values():
        held = payload["path_name"]
        if folder == "data/constants" and not held.startswith("tensor_"):
            yield f"{held} is an object of a class of its own"
        elif payload["use_pickle"]:
            yield from _of_pickle(held, read(os.path.join(folder, held)))


def _of_pickle(name: str, pickled: bytes) -> Iterator[str]:
    """What PyTorch loads without running anything is loaded so again; it gives up the limits for what it does not."""
    import torch

    if not pickled:
        return
    try:
        torch.load(io.BytesIO(pickled), weights_only=True)
    except Exception as e:  # of many kinds
        yield f"{name} is a pickle of more than tensors ({str(e).strip().splitlines()[0][:200]})"


def _of_program(value: Any, name: str) -> Iterator[str]:
    """The texts in ``value`` that have no right to be there, where PyTorch makes an object of its class ``name``."""
    from torch._export.serde import schema

    def of_kind(value: Any, kind: Any, place: str, around: str) -> Iterator[str]:
        """``place`` is the class and the field that hold the value, ``around`` the place of that class's object."""
        if NoneType in get_args(kind):
            kind = get_args(kind)[0]
        if value is None:
            return
        if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, Mapping):
            for name, held in _kinds(kind):
                yield from of_kind(value.get(name), held, f"{kind.__name__}.{name}", place)
        elif get_origin(kind) is list and isinstance(value, list):
            for below in value:
                yield from of_kind(below, get_args(kind)[0], place, around)
        elif get_origin(kind) is dict and isinstance(value, Mapping):
            yield from (f"the name {name!r:.200} in {place}" for name in value if not NAMES.get(place, _is_word)(name))
            for below in value.values():
                yield from of_kind(below, get_args(kind)[1], place, around)
        elif kind is str and isinstance(value, str):
            rule = RULES.get((around, place)) or RULES.get(place, _is_word)
            yield from () if rule(value) else [f"the text {value[:200]!r} of {place}"]
        elif not _is_number(value, kind):
            yield f"{value!r:.200} is no {getattr(kind, '__name__', kind)}, which {place} holds"

    return of_kind(value, getattr(schema, name), name, "")


@cache
def _kinds(schema_class: type) -> tuple[tuple[str, Any], ...]:
    """Its fields' names, and what each holds."""
    kinds = get_type_hints(schema_class)
    return tuple((field.name, kinds[field.name]) for field in fields(schema_class))


def _is_number(value: Any, kind: Any) -> bool:
    if kind is float and isinstance(value, str):
        return value in NOT_FINITE
    return isinstance(kind, type) and issubclass(kind, int | float) and isinstance(value, int | float)


def _is_free(text: str) -> bool:
    """Text that nobody evaluates."""
    return True


def _is_quoted(text: str) -> bool:
    """Does it stay a text in quotes of either kind? So PyTorch writes it into source."""
    return text.isprintable() and not UNQUOTED & set(text)


def _is_word(text: str) -> bool:
    return WORD.fullmatch(text) is not None


def _is_call(target: str) -> bool:
    """Is it an operator of PyTorch's or of a library of its kind, or arithmetic on numbers?"""
    import torch

    names = target.split(".")
    if names[0] == "_operator":
        return len(names) == 2 and names[1] in OPERATORS
    if names[0] == "math":
        return len(names) == 2 and names[1] in NUMBERS
    if not target.startswith("torch.ops."):
        return len(names) == 2 and names[0] == "torch" and SYMBOLIC.fullmatch(names[1]) is not None
    found: Any = torch.ops
    if FILES & set(names):
        return False
    for name in names[2:]:
        found = getattr(found, name, None)
    return found is None or isinstance(found, torch._ops.OperatorBase)


def _is_size(text: str) -> bool:
    """Is it arithmetic on symbols, as SymPy writes it?"""
    return _is_plain(text, MADE, frozenset(), _is_number_by_name, _is_word)


def _is_condition(text: str) -> bool:
    return _is_plain(text, ASKED, ASKED, lambda name: name in NAMED or SYMBOL.fullmatch(name) is not None, _is_quoted)


def _is_number_by_name(name: str) -> bool:
    """Is it no function of Python's or SymPy's, by whose names sizes are read?"""
    import builtins

    import sympy

    return not name.startswith("__") and not any(callable(getattr(x, name, None)) for x in (builtins, sympy))


def _is_plain(
    text: str, called: frozenset[str], asked: frozenset[str], is_name: Callable[[str], bool],
    is_key: Callable[[str], bool],
) -> bool:  # fmt: skip
    """Is it an expression that calls nothing but ``called``, and names nothing but ``asked`` behind a dot?

    ``is_name``: the names that it does not call are; ``is_key``: its texts are. On one line and without what Python and
    SymPy, which takes lines for one, could read in two ways.
    """
    if LINE.fullmatch(text) is None:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
        nodes = list(ast.walk(tree))
        functions = {id(x.func) for x in nodes if isinstance(x, ast.Call)}
        names = (x.id for x in nodes if isinstance(x, ast.Name) and id(x) not in functions)
        are_plain = (_is_plain_node(node, called, asked, is_key) for node in nodes)
        return _powers(tree) <= MOST_POWERS and all(are_plain) and all(map(is_name, names))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_plain_node(node: ast.AST, called: frozenset[str], asked: frozenset[str], is_key: Callable[[str], bool]) -> bool:
    if isinstance(node, ast.Attribute):
        return bool(asked) and (node.attr in asked or SYMBOLIC.fullmatch(node.attr) is not None)
    if isinstance(node, ast.Subscript):
        return bool(asked)
    if isinstance(node, ast.keyword):  # what a symbol is assumed to be
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Constant):
        return is_key(node.value) if isinstance(node.value, str) else isinstance(node.value, int | float)
    if isinstance(node, ast.Call):
        name = _called(node)
        is_symbolic = bool(asked) and SYMBOLIC.fullmatch(name) is not None
        return name in called or name.startswith(UNDEFINED) or is_symbolic
    return isinstance(node, PLAIN)


def _called(node: ast.Call) -> str:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    assert isinstance(name, str)
    return name


def _powers(node: ast.AST) -> int:
    """How many powers and shifts lie within each other; a large exponent, or one with a power, is more than are read.

    Numbers would take more memory than there is.
    """
    below = max((_powers(x) for x in ast.iter_child_nodes(node)), default=0)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
        exponent: ast.AST | None = node.right
    elif isinstance(node, ast.Call) and _called(node) in POWERS:
        exponent = node.args[-1] if node.args else None
    else:
        return below
    inside = [] if exponent is None else list(ast.walk(exponent))
    numbers = [x.value for x in inside if isinstance(x, ast.Constant) and isinstance(x.value, int | float)]
    is_large = exponent is None or _powers(exponent) > 0 or any(abs(x) > MOST_EXPONENT for x in numbers)
    return MOST_POWERS + 1 if is_large else below + 1


def _is_input_structure(text: str) -> bool:
    """Are containers plain, and is it of ``(args, kwargs)``, where the names of the second are words?

    Names of arguments become names in Python source, and keys further inside are written in quotes.
    """
    try:
        _, tree = json.loads(text)
        names = json.loads(tree["children_spec"][1]["context"] or "null")
    except (ValueError, TypeError, LookupError):
        return False
    are_words = names is None or (isinstance(names, list) and all(isinstance(x, str) and _is_word(x) for x in names))
    return are_words and _is_structure(text, is_key=_is_quoted)


def _is_result_structure(text: str) -> bool:
    return _is_structure(text, is_key=_is_free)


def _is_structure(text: str, *, is_key: Callable[[str], bool]) -> bool:
    """Is it a tree of containers that imports nothing? ``is_key``: the names in it are, just as they stand.

    The tree is JSON, and what a container holds beside its children is JSON in a text of it, which is decoded once: a
    key may look like JSON itself.
    """
    try:
        _, tree = json.loads(text)
        return _is_tree(tree, is_key)
    except (ValueError, TypeError, RecursionError):
        return False


def _is_tree(tree: Any, is_key: Callable[[str], bool]) -> bool:
    if not isinstance(tree, Mapping) or not isinstance(tree.get("children_spec"), list):
        return False
    kind, context = tree.get("type"), tree.get("context")
    if not (kind is None or (isinstance(kind, str) and _is_word(kind))):
        return False
    held = json.loads(context) if isinstance(context, str) else context
    return _are_names(held, is_key) and all(_is_tree(below, is_key) for below in tree["children_spec"])


def _are_names(held: Any, is_key: Callable[[str], bool]) -> bool:
    if isinstance(held, str):
        return is_key(held)
    if isinstance(held, Mapping):
        factory = held.get("default_factory_module", "builtins"), held.get("default_factory_name", "list")
        if "__enum__" in held or factory[0] != "builtins" or factory[1] not in CONTAINERS:
            return False
        held = [*held, *held.values()]
    return not isinstance(held, list) or all(_are_names(below, is_key) for below in held)


RULES: Mapping[str | tuple[str, str], Callable[[str], bool]] = {
    "Node.target": _is_call, "Argument.as_operator": _is_call,
    "SymExpr.expr_str": _is_size, "ExportedProgram.guards_code": _is_condition,
    "ModuleCallSignature.in_spec": _is_input_structure, "ModuleCallSignature.out_spec": _is_result_structure,
    "InputToParameterSpec.parameter_name": _is_quoted, "InputToBufferSpec.buffer_name": _is_quoted,
    "InputToTensorConstantSpec.tensor_constant_name": _is_quoted, "InputToCustomObjSpec.custom_obj_name": _is_quoted,
    "BufferMutationSpec.buffer_name": _is_quoted, "ParameterMutationSpec.parameter_name": _is_quoted,
    "GradientToParameterSpec.parameter_name": _is_quoted, "ModuleCallEntry.fqn": _is_quoted,
    "Argument.as_string": _is_quoted, "Argument.as_strings": _is_quoted, "ConstantValue.as_string": _is_quoted,
    ("NamedArgument.arg", "Argument.as_string"): _is_free, ("NamedArgument.arg", "Argument.as_strings"): _is_free,
    "Node.metadata": _is_free, "GraphModule.metadata": _is_free,
}  # fmt: skip
"""What a text has to be, by its place, or by that of the object which holds it and its own.

PyTorch writes names of weights and texts that are inputs in quotes, and arguments of calls as ``repr`` does."""
NAMES: Mapping[str, Callable[[str], bool]] = {
    "ExportedProgram.range_constraints": _is_size, "PayloadConfig.config": _is_quoted,
    "Node.metadata": _is_free, "GraphModule.metadata": _is_free,
}  # fmt: skip
"""What the names in a table have to be, by its place."""
