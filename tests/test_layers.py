"""Who may import whom: the layers of the package, read from its source and never by importing it.

A module imports from lower layers and its own folder; folders of one layer never import each other; `runtime` stands
alone and anyone may import it. An import stands at the top of its file: inside a function it is either the lazy load
of a foreign library (in a frontend, the command line, a package's `__init__`) or it has a reason in the table below.
"""

import ast
import re
from collections import Counter
from collections.abc import Container, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from sources import FILES, PACKAGE, ROOT, SOURCE, nodes, parsed, relative_path

LAYERS = {
    "runtime": 0,  # beside the compiler: may_import gives it its own rule
    "core": 0,
    "target": 1,
    "ops": 1,
    "frontend": 2,
    "graph": 2,
    "partition": 3,
    "tile": 3,
    "choose": 4,
    "codegen": 5,
    "aot": 6,
    "build": 7,
    "integrations": 8,
    "language": 8,
    "tools": 9,
    "jax": 9,
    "lang": 9,
    "numpy": 9,
    "front": 10,
    "cli": 11,
    "__init__": 12,
    "__main__": 12,
}

RUNTIME_ROOMS = ("runtime", "runtime.cpu", "runtime.python", "runtime.cuda")
"""What is stored, what works with this process's machine code, what serves calls from Python, and GPUs: none imports a
later one. A model in a shared library (`runtime/library.py`) is called from Python too, and whoever loads a model
(`runtime/models.py`) knows all kinds; their names are at the top."""

LAZY_FOLDERS = ("frontend/", "integrations/", "tools/conformance/", "cli/")
LAZY_FILES: dict[str, str] = {
    "front.py": "the compiler is loaded only where the cache has no answer",
    "build/later.py": "what makes other weights is loaded with the first that are asked for",
    "choose/cost/learned.py": "XGBoost is an extra: only a search asks its trees",
    "build/driver.py": "ahead-of-time export is loaded only where a model is exported, the way to a GPU for one, "
    "SQLite where there is a database of schedules",
    "tile/polyhedral/isl.py": "islpy is an extra, and only nests whose order counts need it",
    "runtime/models.py": "what runs models on GPUs is loaded only for one",
    "build/kernels.py": "schedules and PTX of grids are loaded only for GPUs",
    "tools/debug/onnx_part.py": "ONNX is loaded only for ONNX models",
    "tools/debug/peers.py": "PyTorch, ONNX and ONNX Runtime are loaded only where a comparison asks for them",
    "runtime/artifact.py": "signatures are checked for who gives a key, and nobody else needs what reads them",
    "runtime/cpu/linker.py": "what writes calls of LAPACK is loaded only for models that have some, LLVM for objects "
    "that are not for our own linker",
    "runtime/host.py": "LLVM is asked about a machine once, and takes longer to load than a model",
    "runtime/values.py": "types that NumPy lacks are loaded with the first model that has some",
    "runtime/cpu/routines.py": "SciPy is loaded only for models that decompose matrices, where it is installed",
    "runtime/cpu/transforms.py": "what NumPy transforms by is loaded only for models that have no other library",
    "runtime/cuda/driver.py": "cuda-bindings is an extra: only who runs a model on a GPU needs it",
    "runtime/signature.py": "cryptography is an extra: only who signs or checks a signature needs it",
}

ENVIRONMENT_READER = "runtime/env.py"
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
MAX_LINES = 600
LONG = 25
"""Lines of a function from which on it needs comments."""
COMMENT = re.compile(r"(?:^ *|  )#(?! ?(?:noqa|type:|fmt:|---))")


ASKED = {
    "int": {"ops", "graph", "partition", "tile", "choose", "codegen"},  # where a number or else is a part of an index
    "Value": LAYERS.keys() - {"core"},
}
"""Types that no file of these folders tells a size or an index apart by."""
TOLD_APART = {
    "choose/mutations.py": "int",  # arguments of steps: numbers and names
    "choose/strategies/pointwise.py": "int",  # estimates, which may be floats
    "codegen/llvm/index.py": "int",  # takes expressions apart
    "ops/resize.py": "Value",  # truth values, Python's or the kernel's
    "tile/elementary/build.py": "int",  # limits of dtypes, which may be floats
}
"""Files that tell them apart, or something else of the type."""


class Import(NamedTuple):
    """One imported module, as a dotted name."""

    module: str
    line: int
    inside_function: bool


@cache
def imports(path: Path) -> list[Import]:
    """Every import of a file, `if TYPE_CHECKING` and `import_module("a.literal")` among them."""
    package = path.relative_to(SOURCE).parent.parts
    found: list[Import] = []
    ahead: list[tuple[ast.AST, bool]] = [(parsed(path), False)]
    while ahead:
        node, inside_function = ahead.pop()
        found += [Import(name, node.lineno, inside_function) for name in imported_names(node, package)]  # type: ignore[attr-defined]
        inside_function |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        ahead += [(child, inside_function) for child in ast.iter_child_nodes(node)]
    return found


def imported_names(node: ast.AST, package: tuple[str, ...]) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            base = ".".join((*(package[: len(package) - level + 1] if level else ()), *([module] if module else ())))
            # `from tilewright import x` may name a module of any layer: resolve each name
            return [f"{base}.{alias.name}" for alias in names] if base == "tilewright" else [base]
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
        case ast.Call(func=ast.Name(id="import_module" | "__import__"), args=[ast.Constant(value=str(name)), *_]):
            return [name]
    return []


def unit_of_file(path: Path) -> str:
    """The folder, or for a file at the top its name."""
    return relative_path(path).split("/")[0].removesuffix(".py")


def unit_of_module(module: str) -> str | None:
    """The folder or top file that a dotted name lies in; None for foreign modules; the public API is `__init__`."""
    root, _, rest = module.partition(".")
    if root != "tilewright":
        return None
    unit = rest.split(".")[0]
    return unit if unit in LAYERS else "__init__"


def may_import(unit: str, other: str) -> bool:
    if unit == other:
        return True
    if unit == "runtime":
        return False
    return other == "runtime" or LAYERS[other] < LAYERS[unit]


def test_every_module_has_a_layer() -> None:
    """And every layer has a module."""
    assert {unit_of_file(path) for path in FILES} == LAYERS.keys()


def test_imports_point_down() -> None:
    wrong = []
    for path in FILES:
        unit = unit_of_file(path)
        for module, line, _ in imports(path):
            other = unit_of_module(module)
            if other and not may_import(unit, other):
                wrong.append(f"{relative_path(path)} line {line}: {unit} imports {module}")
    assert wrong == []


def test_rooms_of_the_runtime_have_an_order() -> None:
    rooms = [f"tilewright.{room}" for room in RUNTIME_ROOMS]
    wrong = []
    for path in (PACKAGE / "runtime").rglob("*.py"):
        own = ".".join(path.relative_to(SOURCE).parent.parts)
        if relative_path(path) in ("runtime/library.py", "runtime/models.py") or path.name == "__init__.py":
            continue
        for module, line, _ in imports(path):
            later = [r for r in rooms[rooms.index(own) + 1 :] if module == r or module.startswith(f"{r}.")]
            wrong += [f"{relative_path(path)} line {line}: {module}"] if later else []
    assert wrong == []


def test_no_imports_go_in_a_circle() -> None:
    """Between files, when Python loads them: imports for type checkers are not counted, nor those in functions."""
    names = {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    needs = {name: set(loaded(path, names)) - {name} for name, path in names.items()}
    assert list(TopologicalSorter(needs).static_order())  # raises CycleError, which names the circle


def test_rooms_beside_each_other_go_in_no_circle() -> None:
    """A folder and those inside it are one house: its page may call its rooms, and they its words."""
    names = {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    needs: dict[Path, set[Path]] = {path.parent: set() for path in FILES}
    for path in FILES:
        needs[path.parent] |= {names[name].parent for name in loaded(path, names)}
    for folder, used in needs.items():
        used -= {folder, *folder.parents, *(f for f in used if folder in f.parents)}
    assert list(TopologicalSorter(needs).static_order())  # raises CycleError, which names the circle


def loaded(path: Path, names: Container[str]) -> Iterator[str]:
    """Which of `names` importing a file loads; `from package import name` may name a module."""
    for node in parsed(path).body:
        match node:
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                found = [f"{module}.{a.name}" if f"{module}.{a.name}" in names else module for a in aliases]
            case ast.Import(names=aliases):
                found = [a.name for a in aliases]
            case _:
                continue
        yield from (name for name in found if name in names)


def test_imports_stand_at_the_top() -> None:
    wrong = []
    for path in FILES:
        name = relative_path(path)
        if not (name.startswith(LAZY_FOLDERS) or name.endswith("__init__.py") or name in LAZY_FILES):
            wrong += [f"{name} line {line}: {module}" for module, line, is_inside in imports(path) if is_inside]
    assert wrong == []


def imports_that_forks_break(node: ast.AST, *, is_late: bool = False, is_extra: bool = False) -> Iterator[ast.AST]:
    """Imports in functions, of modules of ours and of what may be missing, without ``MAKING`` or ``once`` around."""
    match node:
        case ast.With(items=[ast.withitem(context_expr=ast.Name(id="MAKING")), *_]):
            return
        case ast.FunctionDef(decorator_list=ways):
            if any(ast.unparse(way) == "once" for way in ways):
                return
            is_late = True
        case ast.Try(handlers=handlers):
            is_extra |= any(
                handler.type and ast.unparse(handler.type).endswith(("ImportError", "NotFoundError"))
                for handler in handlers
            )
        case ast.Import() | ast.ImportFrom() if is_late:
            if is_extra or any(name.startswith("tilewright.") for name in imported_names(node, ())):
                yield node
    for child in ast.iter_child_nodes(node):
        yield from imports_that_forks_break(child, is_late=is_late, is_extra=is_extra)


def test_late_imports_hold_the_lock_that_forks_wait_for() -> None:
    """But for commands and what they alone use, which begin in a process of one thread."""
    wrong = []
    for path in FILES:
        if not relative_path(path).startswith(("cli/", "tools/")):
            wrong += [(relative_path(path), ast.unparse(n)) for n in imports_that_forks_break(parsed(path))]
    assert wrong == []


def test_reasons_name_existing_files() -> None:
    assert [name for name, reason in LAZY_FILES.items() if not (PACKAGE / name).is_file() or not reason] == []


def test_files_are_short() -> None:
    """Those of tests, benchmarks and examples too."""
    found = [path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in found}
    assert len(found) > len(FILES) and {name: n for name, n in lengths.items() if n > MAX_LINES} == {}


def comment_lines(path: Path) -> set[int]:
    """Lines with a comment that a person reads: no directive of a tool, no heading.

    Read from the text, because tokens take long; a string that holds a hash after two blanks counts too.
    """
    return {k for k, line in enumerate(path.read_text().splitlines(), 1) if COMMENT.search(line)}


def test_long_functions_say_why() -> None:
    """Of lines below the docstring. A share is no measure of what a comment is worth, and 0.4 % were of too little."""
    lines, said = Counter[str](), Counter[str]()
    for path in FILES:
        comments = comment_lines(path)
        for node in nodes(path):
            if not isinstance(node, ast.FunctionDef):
                continue
            first = node.body[0].lineno if ast.get_docstring(node) is None else (node.body[0].end_lineno or 0) + 1
            inside = range(first, (node.end_lineno or 0) + 1)
            if len(inside) >= LONG:
                lines[unit_of_file(path)] += len(inside)
                said[unit_of_file(path)] += len(comments.intersection(inside))
    assert said.total() >= 0.04 * lines.total() > 0
    assert {unit: said[unit] / n for unit, n in lines.items() if said[unit] < 0.03 * n} == {}


def test_every_class_has_one_home() -> None:
    """So that a reader who meets a name knows which it is, and a search for it finds one thing. Nested classes too."""
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(f"{relative_path(path)} line {node.lineno}")
    assert len(homes) > 400 and {name: at for name, at in homes.items() if len(at) > 1} == {}


def types_asked_for(path: Path) -> Iterator[tuple[str, str]]:
    """The types that ``isinstance`` is called with, each behind its place."""
    for node in nodes(path):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, types]):
                at = f"{relative_path(path)} line {node.lineno}"
                yield from ((at, name.id) for name in ast.walk(types) if isinstance(name, ast.Name))


def test_sizes_and_indices_are_asked_what_they_are() -> None:
    """``core.dims`` and ``core.indices`` answer, so that a change of the two unions is a change of these files.

    Frontends, the runtime and what faces callers tell values of other languages apart, which may be numbers too.
    """
    wrong = []
    for path in FILES:
        unit, told_apart = unit_of_file(path), TOLD_APART.get(relative_path(path))
        by_type = {kind for kind, folders in ASKED.items() if unit in folders}
        found = [(at, kind) for at, kind in types_asked_for(path) if kind in by_type]
        if told_apart is None:
            wrong += found
        else:
            assert {kind for _, kind in found} == {told_apart}
    assert wrong == []


def test_only_one_file_reads_the_environment() -> None:
    """Ruff bans it too; this also sees what a `noqa` would hide."""
    others = [path for path in FILES if relative_path(path) != ENVIRONMENT_READER]
    readers = [(relative_path(p), ast.unparse(n)) for p in others for n in nodes(p) if reads_environment(n)]
    assert readers == []


def reads_environment(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr=name):
            return name in ENVIRONMENT_NAMES
        case ast.ImportFrom(module="os", names=names):
            return not ENVIRONMENT_NAMES.isdisjoint(alias.name for alias in names)
    return False


@pytest.mark.parametrize(
    ("unit", "other", "allowed"),
    [
        ("graph", "core", True),
        ("graph", "graph", True),
        ("graph", "frontend", False),
        ("graph", "tile", False),
        ("core", "runtime", True),
        ("runtime", "core", False),
        ("cli", "build", True),
        ("build", "__init__", False),
        ("__init__", "cli", True),
    ],
)
def test_the_rule_itself(unit: str, other: str, allowed: bool) -> None:
    assert may_import(unit, other) is allowed
