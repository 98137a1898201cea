"""What the pages name is there: paths, names of code, commands with their options, targets of make.

Read are README, ``docs/*.md`` and the decision records: text between backticks, and blocks of shell commands. A name in
capitals (``NAME.json``) stands for any. Of the sources, the texts below names and at the top of files.
"""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

import tilewright
from sources import FILES, PACKAGE, ROOT, relative_path, statements
from test_docs import DOCS, README
from test_layers import LAYERS
from tilewright.cli.main import app
from tilewright.runtime.python.model import CompiledModel, LoadedModel

PAGES = [README, *sorted(DOCS.glob("*.md")), *sorted((DOCS / "adr").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOUBLE = re.compile(r"``([^`\n]+)``")
INLINE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:[\w-]+/)+[\w.-]+\.(?:py|c|h|mjs|json|md|svg|onnx|toml)")
DOTTED = re.compile(r"[a-z_]\w*(?:\.[A-Za-z_]\w*)+")
PLACEHOLDER = re.compile(r"\b[A-Z]{4,}\b")
SHORT = {"tw": "tilewright", "np": "numpy"}
FOREIGN = ("torch", "jax", "numpy", "functools", "ml_dtypes", "copy")
WORD = re.compile(r"\w+")
NAME = re.compile(r"[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+|[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+")
"""A word that only code has: ``SeveralCapitals`` or ``with_underscores``."""
CODE = (".py", ".c", ".h", ".cpp", ".rs", ".mjs")
OTHERS_WORDS = {
    "aten_pool",  # a file that moved, in the record that moved it
    "cython_blas", "cython_lapack",  # SciPy's
    "five_hundred",  # a part of a test's name, for pytest's option -k
    "x_dim1",  # made of an input's name
    "MADV_POPULATE_READ", "MAP_POPULATE",  # Linux's
    "ORT_ENABLE_ALL",  # ONNX Runtime's
}  # fmt: skip
"""What pages quote that no source of ours says."""
OPTION = re.compile(r"--?[a-z][\w-]*")
MADE = "out/"
"""A folder that examples write."""
COMMANDS: Any = typer.main.get_command(app)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def inline(page: Path) -> list[str]:
    return INLINE.findall(FENCE.sub("", page.read_text()))


def commands(page: Path) -> Iterator[list[str]]:
    """Words of each command that a page shows, up to a pipe; without a prompt, a comment or assignments before it."""
    blocks = [body for kind, body in FENCE.findall(page.read_text()) if kind in ("", "sh", "console")]
    shown = [line.removeprefix("$ ") for body in blocks for line in body.replace("\\\n", " ").split("\n")]
    for text in [*shown, *inline(page)]:
        if re.match(r"(?:[A-Z_]+=\S+ )*(?:tilewright|make|python -m) ", text):
            words = shlex.split(re.split(r" \| | > |;|&&", text)[0], comments=True)
            yield [word for k, word in enumerate(words) if "=" not in word or (k and not word[0].isupper())]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_paths_exist(page: Path) -> None:
    roots = (ROOT, page.parent, DOCS, ROOT / "tests", PACKAGE)
    named = {x for x in inline(page) if PATH.fullmatch(x) and not x.startswith(MADE) and not PLACEHOLDER.search(x)}
    assert sorted(x for x in named if not any((root / x).exists() for root in roots)) == []


def resolves(name: str) -> bool:
    """Whether a dotted name of ours, or of a library that pages speak of, leads to something; True for any other."""
    first, *rest = name.split(".")
    if first in ("m", "model"):
        return any(hasattr(kind, rest[0]) for kind in (CompiledModel, LoadedModel))
    root = SHORT.get(first, first)
    if (root in LAYERS and root not in FOREIGN) or root == "ops":
        root = f"tilewright.{root}"
    elif root not in (*FOREIGN, "tilewright"):
        return True
    found: Any = importlib.import_module(root)
    for k, attribute in enumerate(rest):
        if not hasattr(found, attribute):
            try:
                importlib.import_module(".".join([root, *rest[: k + 1]]))
            except ImportError:
                return False
        found = getattr(found, attribute)
    return True


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "coverage.md"], ids=lambda p: p.name)
def test_names_of_code_exist(page: Path) -> None:
    """Not those on the page that quotes what others say of their own code."""
    suffixes = (".py", ".onnx", ".tw", ".npz", ".txt")
    named = {m[0] for x in inline(page) if (m := DOTTED.match(x)) and not m[0].endswith(suffixes)}
    assert sorted(name for name in named if not resolves(name)) == []


@cache
def words_of_the_sources() -> frozenset[str]:
    """Every word of the code, tests, benchmarks and examples, and the names of their files."""
    files = [p for f in ("src", "tests", "benchmarks", "examples") for p in (ROOT / f).rglob("*") if p.suffix in CODE]
    read = (*files, ROOT / "Makefile", ROOT / "pyproject.toml")
    texts = [path.read_text() for path in read if path != Path(__file__)]  # this one quotes words of others
    return frozenset(WORD.findall(" ".join([*(p.stem for p in files), *texts])))


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "coverage.md"], ids=lambda p: p.name)
def test_words_of_code_exist(page: Path) -> None:
    """Names of classes and functions that stand alone: what is called otherwise by now is called so nowhere."""
    named = {word for x in inline(page) for word in WORD.findall(x) if NAME.fullmatch(word)}
    known = words_of_the_sources() | OTHERS_WORDS
    assert sorted(word for word in named if word not in known and not {*word.split("_")} & {"NAME", "DTYPE"}) == []


def test_the_words_of_others_are_used() -> None:
    texts = "".join(page.read_text() for page in PAGES)
    assert [word for word in OTHERS_WORDS if word not in texts or word in words_of_the_sources()] == []


def docstrings() -> Iterator[tuple[str, str]]:
    """Every text that stands alone in the sources, below a name or at the top, with the place of its end."""
    for path in FILES:
        for node in statements(path):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield f"{relative_path(path)} line {node.end_lineno}", text


def test_docstrings_name_what_exists() -> None:
    """Modules with their folder, what is in them, and files."""
    wrong, seen = [], 0
    for place, text in docstrings():
        for name in DOUBLE.findall(text):
            if PATH.fullmatch(name) and name.endswith(".py"):
                seen += 1
                roots = (ROOT, PACKAGE, ROOT / "tests", PACKAGE / Path(place).parent)
                wrong += [] if any((root / name).exists() for root in roots) else [f"{place}: {name}"]
            elif DOTTED.fullmatch(name) and name.split(".")[0] in LAYERS:
                seen += 1
                wrong += [] if resolves(name) else [f"{place}: {name}"]
    assert seen > 60 and wrong == []


def problem(words: list[str]) -> str | None:
    """What is wrong with a command."""
    match words:
        case ["make", target, *_]:
            return None if target in TARGETS else f"no target {target}"
        case ["python", "-m", module, *_] if module.split(".")[0] in ("benchmarks", "fuzz", "aot", "replay"):
            path = module.replace(".", "/")
            files = [root / f"{path}{end}" for root in (ROOT, ROOT / "tests") for end in (".py", "/__main__.py")]
            return None if any(file.exists() for file in files) else f"no module {module}"
        case ["tilewright", *rest]:
            return wrong_use(COMMANDS, rest)
    return None


def wrong_use(command: Any, words: list[str]) -> str | None:
    """Which sub-command or option a command line names that is not there."""
    if hasattr(command, "commands"):
        name = words[0].rstrip(",") if words else ""
        if not re.fullmatch(r"[a-z][\w-]*", name):
            return None  # a placeholder, or an option of all
        return wrong_use(command.commands[name], words[1:]) if name in command.commands else f"no command {name}"
    known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)} | {"--help"}
    named = [word.split("=")[0].rstrip(",") for word in words]
    wrong = [word for word in named if OPTION.fullmatch(word) and word not in known]
    return f"{command.name} has no {', '.join(wrong)}" if wrong else None


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_are_there_with_their_options(page: Path) -> None:
    assert [f"{' '.join(words)}: {why}" for words in commands(page) if (why := problem(words))] == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["tilewright", "compile", "model.onnx", "-o", "model.tw"], None),
        (["tilewright", "compile", "model.onnx", "--no-such"], "compile has no --no-such"),
        (["tilewright", "conformance", "page", "x.json", "--note=a"], None),
        (["tilewright", "frobnicate"], "no command frobnicate"),
        (["make", "testing"], "no target testing"),
        (["python", "-m", "benchmarks.nothing"], "no module benchmarks.nothing"),
    ],
)
def test_a_wrong_command_is_seen(words: list[str], why: str | None) -> None:
    assert problem(words) == why


def test_a_wrong_name_is_seen() -> None:
    assert tilewright.compile and resolves("tw.compile") and resolves("tile.interp") and resolves("m.save")
    assert not resolves("tw.compiles") and not resolves("tile.interpreter") and not resolves("model.report_all")
