"""Files are replaced, never written in place: a reader sees the old one or the new one, whole."""

from __future__ import annotations

import ast
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from nests import NESTS
from sources import PACKAGE, parsed
from tilewright.build import texts
from tilewright.build.options import Options
from tilewright.core.text import save_graph
from tilewright.runtime.files import replacing, write_text

IN_PLACE = {
    "runtime/files.py": "the helper itself",
    "tools/apart.py": "a case in a folder that nobody else knows",
    "tools/measure.py": "a request in such a folder",
    "tools/debug/worker.py": "a request in such a folder",
    "aot/cc.py": "sources for a linker in a temporary folder",
}
"""Files that may write in place, and why."""


def writes_in_place(tree: ast.AST) -> Iterator[int]:
    """Lines that open a file for writing by its path."""
    for n in ast.walk(tree):
        if not isinstance(n, ast.Call):
            continue
        name = n.func.attr if isinstance(n.func, ast.Attribute) else n.func.id if isinstance(n.func, ast.Name) else ""
        modes = [a.value for a in n.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        texts = name in ("write_text", "write_bytes") and isinstance(n.func, ast.Attribute)
        opens = name == "open" and any(m and set(m) <= set("wxabt+") and set(m) & set("wxa") for m in modes)
        first = n.args[0] if n.args else None
        saves = name in ("savez", "savez_compressed", "save") and not isinstance(first, ast.Name)
        is_numpy = isinstance(n.func, ast.Attribute) and isinstance(n.func.value, ast.Name) and n.func.value.id == "np"
        if texts or opens or (saves and is_numpy):
            yield n.lineno


def test_no_module_writes_in_place() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not any(word in path.read_text() for word in ("write_", "open", "np.save")):
            continue  # none of the calls: most files, and to parse them would take seconds
        if lines := list(writes_in_place(parsed(path))):
            found[name] = lines
    assert {name: lines for name, lines in found.items() if name not in IN_PLACE} == {}
    assert set(IN_PLACE) == set(found), "a file that is excused and needs no excuse"


def write_dump(folder: Path) -> None:
    texts.dump_stages(NESTS["softmax"](), Options(target="x86-64"), folder)


def write_graph(folder: Path) -> None:
    save_graph(NESTS["matmul"](), folder / "net.txt")


@pytest.mark.parametrize("write", [write_dump, write_graph])
def test_who_has_a_file_open_keeps_what_it_read(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    before = {p: p.stat().st_ino for p in tmp_path.iterdir()}
    held = [(p, p.open("rb")) for p in before]
    for p, _ in held:
        os.chmod(p, 0o444)  # a file that can't be written can be replaced
    write(tmp_path)
    assert len(before) > 1 and set(tmp_path.iterdir()) == set(before)
    for p, file in held:
        with file:
            assert file.read() and p.stat().st_ino != before[p]


def test_an_error_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        np.savez(file, x=np.zeros(100))
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_pipe_stays_one(tmp_path: Path) -> None:
    """As `-o /dev/stdout` is given: renaming over it would take its place."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=write_text, args=(path, "text"))
    writer.start()
    assert path.read_text() == "text"
    writer.join()
    assert stat.S_ISFIFO(path.stat().st_mode) and list(tmp_path.iterdir()) == [path]
