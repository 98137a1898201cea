"""The system's C compiler as a linker: an object to a shared library, where somebody asks for one.

In: an object and where the library goes. Out: the library. Nothing else of Tilewright calls another program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tilewright.runtime.errors import ResourceError

SECONDS = 600


def link_shared(object_: Path, library: Path, *, name: str, has_threads: bool) -> None:
    """Link a library that exports what the object does; ``ResourceError`` when there is no ``cc`` or it fails."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        remedy = "install a C compiler, or link the object yourself"
        raise ResourceError("a shared library needs a C compiler (cc), and there is none", remedy=remedy)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        command = [compiler, "-shared", "-o", str(made), str(object_), f"-Wl,-soname,{library.name}"]
        command += ["-Wl,-z,relro,-z,now", "-Wl,--build-id=none", "-Wl,-z,noexecstack", "-lm"]
        command += ["-lpthread", "-Wl,-z,nodelete"] if has_threads else []  # idle workers are in its code
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if ran.returncode:
            raise ResourceError(f"{compiler} can't link {name}: {ran.stderr.strip()[-2000:]}", remedy="link the object")
        os.replace(made, library)
