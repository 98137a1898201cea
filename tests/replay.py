"""``make replay``: does a change leave the code that the compiler emits as it was, byte for byte?

    python -m replay                          this working tree beside its last commit, five targets
    python -m replay --base HEAD~3            beside another commit
    python -m replay --only 'zoo/|odd/' --targets native
    python -m replay --only full/ --targets native       the zoo at full size
    python -m replay --pieces 'llvm|packing'             kernels alone, without the entry that calls them

In: two states of the sources. Out: for each model and target whose schedules, kernels' LLVM text, entry or packed
weights differ, the first piece that does and where; exit code 1 if any differs. Each state is recorded in a process of
its own by its own copy of this file, so that modules may move between them; models that only one state's corpus holds
are left out.
Not its business: the models (``replay_corpus``), whether the code is right.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGETS = ("x86-64-v4", "x86-64-v3", "x86-64", "aarch64", "cortex-m4")
SHOWN_LINES = 30
Pieces = dict[str, str]
"""The text of each piece of one compile, by name, in order: entry, then kernels; digests for weights."""


def main() -> None:
    options = _options()
    if options.record:
        record(options.record, options.only, options.targets, options.part, options.parts)
        return
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        base, old, new = (Path(scratch) / name for name in ("base", "old", "new"))
        _check_out(options.base, base)
        for tree, folder in ((base, old), (ROOT, new)):
            _record_apart(tree, folder, options)
        n_compared, differences = 0, 0
        for name in sorted({p.name for p in new.iterdir()} & {p.name for p in old.iterdir()}):
            n_compared += 1
            before, after = (chosen(read(state / name), options.pieces) for state in (old, new))
            if difference := first_difference(before, after):
                differences += 1
                print(f"{name.removesuffix('.gz').replace('~', '/')}: {difference}\n", flush=True)
    print(f"{n_compared} compiles compared with {options.base}: {differences} differ")
    sys.exit(1 if differences or not n_compared else 0)


def record(folder: Path, only: str, targets: Sequence[str], part: int, parts: int) -> None:
    """Write the pieces of every model of the corpus for every target, a file each; ``part`` of ``parts``."""
    from replay_corpus import CORPUS, FULL

    warnings.simplefilter("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [n for n in CORPUS if re.search(only, n) and (only.startswith(FULL) or not n.startswith(FULL))]
    for name in wanted[part::parts]:
        try:
            graph = CORPUS[name]()
        except Exception as e:  # what PyTorch cannot trace is the same in both states
            print(f"{name} is left out: {type(e).__name__}: {e}"[:200], file=sys.stderr)
            continue
        for target in targets:
            try:
                made = pieces(graph, target)
            except Exception as e:
                made = {"refused": f"{type(e).__name__}: {e}"}
            text = json.dumps(made)
            (folder / f"{name.replace('/', '~')} {target}.gz").write_bytes(gzip.compress(text.encode(), 1, mtime=0))


def pieces(graph: object, target: str) -> Pieces:
    """Everything that the compiler decides about a graph before LLVM sees it."""
    from tilewright.driver import optimise_and_split
    from tilewright.options import Clock, Options
    from tilewright.tile.schedule.book import schedule_text

    options = Options(target=target)
    split = optimise_and_split(graph, options, options.machine, Clock())  # type: ignore[arg-type]
    kernels, found = split.kernels, Pieces()
    texts = kernels.texts()
    found["entry"] = split.entry(None)
    for name, text in texts.items():
        found[f"{name} schedule"] = schedule_text(name, kernels.schedules[name], kernels.labels[name])
        found[f"{name} llvm"] = text
    for spec in kernels.specs.values():
        layouts = [packing.layout for _, packing in spec.reads if packing is not None]
        found[f"{spec.name} packing"] = "\n".join(layouts)
    found["weights"] = sha256(split.planner.weights.blob()).hexdigest()
    return found


def read(path: Path) -> Pieces:
    """What ``record`` wrote."""
    pieces: Pieces = json.loads(gzip.decompress(path.read_bytes()))
    return pieces


def chosen(pieces: Pieces, names: str) -> Pieces:
    """The pieces whose name a regular expression finds."""
    return {name: text for name, text in pieces.items() if re.search(names, name)}


def first_difference(old: Pieces, new: Pieces) -> str:
    """The first piece that differs, with the lines in question; nothing where all are equal."""
    for name in (*old, *(n for n in new if n not in old)):
        if old.get(name) == new.get(name):
            continue
        if name not in old or name not in new:
            return f"{name} is only in the {'new' if name in new else 'old'} state"
        return "\n".join([f"{name} differs", *_lines_apart(old[name], new[name])])
    return ""


def _lines_apart(old: str, new: str) -> Iterator[str]:
    apart = difflib.unified_diff(old.splitlines(), new.splitlines(), "old", "new", lineterm="", n=2)
    for k, line in enumerate(apart):
        if k == SHOWN_LINES:
            yield "..."
            return
        yield line[:200]


def _check_out(revision: str, folder: Path) -> None:
    """The sources of a commit, without touching the repository."""
    archive = subprocess.run(
        ["git", "archive", revision, "src", "tests", "benchmarks", "pyproject.toml"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def _record_apart(tree: Path, folder: Path, options: argparse.Namespace) -> None:
    """Record a tree in processes of its own, with its own recorder and corpus where it has them."""
    for name in ("replay.py", "replay_corpus.py"):
        if not (tree / "tests" / name).exists():  # a state from before there was a recorder
            shutil.copy(ROOT / "tests" / name, tree / "tests")
    paths = [tree / "src", tree / "tests", tree]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}  # noqa: TID251
    command = [
        sys.executable,
        "-m",
        "replay",
        "--record",
        str(folder),
        "--only",
        options.only,
        "--targets",
        *options.targets,
    ]
    running = [
        subprocess.Popen([*command, "--part", str(k), "--parts", str(options.jobs)], cwd=tree, env=environment)
        for k in range(options.jobs)
    ]
    if any([process.wait() for process in running]):
        raise SystemExit(f"recording {tree} failed")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m replay", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--base", default="HEAD", help="the commit to compare with")
    parser.add_argument("--only", default="", help="regular expression over the models' names")
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--pieces", default="", help="regular expression over entry, weights, KERNEL llvm, ...")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--parts", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
