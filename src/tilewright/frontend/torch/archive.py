"""Files of ``torch.export.save``: does loading one run code that its writer chose?

In: a ``.pt2`` file. Out: nothing, or an ``InputError`` that names what would run. Not its business: reading the program
(``frontend.torch.export``), and bytes that are damaged, of which PyTorch says itself what is wrong.

``torch.export.load`` is no reader for strangers' files: it unpickles without limits where limits fail, evaluates the
texts of sizes, writes names into Python source that it then runs, imports modules that containers name, and loads
shared libraries. So every text of a file has a rule here, and what has none is a word: letters, digits and a few signs
that make neither a call nor a statement. The records are read by PyTorch's own reader, so that both see the same file.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import InputError

WORD = re.compile(r"[\w.\-+ /:]*")
LINE = re.compile(r"[ !-\"$-\[\]-~]*")
"""Letters, digits and signs of ASCII on one line, but for those of comments and of lines that go on."""
SYMBOLIC = re.compile(r"_?sym_\w+")
POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})
MOST_EXPONENT = 64
MOST_POWERS = 3
"""Powers within each other: the root of a sum of squares has two."""
FREE = frozenset({"metadata", "as_string", "as_strings"})
"""Keys of what PyTorch keeps as text: traces, and arguments of calls, which it quotes."""
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
PLAIN = (
    ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Constant, ast.Load, ast.UnaryOp, ast.BinOp, ast.BoolOp,
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
            yield from _of_program(json.loads(read(name)))


def _of_payloads(folder: str, config: Mapping[str, Any], read: Callable[[str], bytes]) -> Iterator[str]:
    """Weights that are no plain numbers are pickles, and so are objects."""
    yield from _of_program(config)
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


def _of_program(value: Any, key: str = "") -> Iterator[str]:
    """The texts below ``key`` that have no right to be there."""
    if isinstance(value, Mapping):
        is_name = NAMES.get(key, _is_word)
        for name, below in value.items():
            if not is_name(name):
                yield f"the name {name!r}"
            if not _is_free(name, below):
                yield from _of_program(below, name)
    elif isinstance(value, list):
        for below in value:
            yield from _of_program(below, key)
    elif isinstance(value, str) and not RULES.get(key, _is_word)(value):
        yield f"the text {value[:200]!r} of {key!r}"


def _is_free(name: str, value: Any) -> bool:
    """Is it text that nobody evaluates? A writer may name a tensor so, whose description is no text."""
    if name not in FREE:
        return False
    texts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    return all(isinstance(text, str) for text in texts)


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
    for name in names[2:]:
        found = getattr(found, name, None)
    return found is None or isinstance(found, torch._ops.OperatorBase)


def _is_size(text: str) -> bool:
    """Is it arithmetic on symbols, as SymPy writes it?"""
    return _is_plain(text, MADE, frozenset())


def _is_condition(text: str) -> bool:
    return _is_plain(text, ASKED, ASKED)


def _is_plain(text: str, called: frozenset[str], asked: frozenset[str]) -> bool:
    """Is it an expression that calls nothing but ``called``, and names nothing but ``asked`` behind a dot?

    On one line and without what Python and SymPy, which takes lines for one, could read in two ways.
    """
    if LINE.fullmatch(text) is None:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _powers(tree) <= MOST_POWERS and all(_is_plain_node(node, called, asked) for node in ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_plain_node(node: ast.AST, called: frozenset[str], asked: frozenset[str]) -> bool:
    if isinstance(node, ast.Attribute):
        return bool(asked) and (node.attr in asked or SYMBOLIC.fullmatch(node.attr) is not None)
    if isinstance(node, ast.Subscript):
        return bool(asked)
    if isinstance(node, ast.Constant):
        return _is_number_or_word(node.value)
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


def _is_number_or_word(value: object) -> bool:
    return _is_word(value) if isinstance(value, str) else isinstance(value, int | float)


def _is_structure(value: object, *, of_words: bool) -> bool:
    """Is it a tree of containers, as JSON with JSON in its texts, that imports nothing? ``of_words``: its keys are."""
    if isinstance(value, str):
        try:
            held = json.loads(value)
        except ValueError:
            return _is_word(value) or not of_words
        return _is_structure(held, of_words=of_words) if isinstance(held, dict | list) else True
    if isinstance(value, Mapping):
        factory = value.get("default_factory_module", "builtins"), value.get("default_factory_name", "list")
        if "__enum__" in value or factory[0] != "builtins" or factory[1] not in CONTAINERS:
            return False
        value = [*value, *value.values()]
    return not isinstance(value, list) or all(_is_structure(below, of_words=of_words) for below in value)


RULES: Mapping[str, Callable[[str], bool]] = {
    "target": _is_call, "as_operator": _is_call, "expr_str": _is_size, "guards_code": _is_condition,
    "in_spec": partial(_is_structure, of_words=True), "out_spec": partial(_is_structure, of_words=False),
}  # fmt: skip
"""What a text has to be, by its key."""
NAMES: Mapping[str, Callable[[str], bool]] = {"range_constraints": _is_size}
"""What the names in a table have to be, by the table's key."""
