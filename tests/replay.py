"""``make replay``: does a change leave the code that the compiler emits as it was, byte for byte?

    python -m replay                          this working tree beside its last commit, five targets
    python -m replay --base HEAD~3            beside another commit
    python -m replay --quick                  a part of the corpus, most models for one target: a minute or two
    python -m replay --only 'zoo/|odd/' --targets native
    python -m replay --only full/ --targets native       the zoo at full size
    python -m replay --pieces 'llvm|packing'             kernels alone, without the entry that calls them

In: two states of the sources. Out: for each model and target whose schedules, kernels' LLVM text, entry or packed
weights differ, how many pieces of each kind do, the first of each kind and where, and the names of the others; exit
code 1 if any differs. Each state is recorded in a process of its own by its own copy of this file, so that modules may
move between them; models that only one state's corpus holds are left out.
Not its business: the models (``replay_corpus``), which commits must be equal (``replay_moves``), whether the code is
right.
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
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGETS = ("x86-64-v4", "x86-64-v3", "x86-64", "aarch64", "cortex-m4")
DOTS = ("cascadelake", "aarch64-dotprod")
"""Targets with an instruction for products of bytes, for the nests of a quick run."""
QUICK = re.compile(r"nest/|zoo/(?!unet|inception|densenet|efficientnet)|dynamic/(mlp|lstm|bert|resnet50$)|odd/|random/")
"""The models of a quick run: all but those of many kernels like the others'."""
NESTS_ONLY = "^nest/"
FULL = "full/"
N_CORES = 4
"""Of every target, whatever this computer has."""
SHOWN_LINES = 30
RECORDER = "recorder 2"
"""A state whose own copy of this file says another number is recorded by ours: it would record other pieces."""
Pieces = dict[str, str]
"""The text of each piece of one compile, by name, in order: kernels' ``NAME KIND``, digest of weights, entry."""


def main() -> None:
    options = _options()
    if options.record:
        record(options.record, options.only, options.targets, options.part, options.parts, quick=options.quick)
        return
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        base, old, new = (Path(scratch) / name for name in ("base", "old", "new"))
        check_out(options.base, base)
        for tree, folder in ((base, old), (ROOT, new)):
            record_apart(tree, folder, options)
        n_compared, n_differ = compare(old, new, options.pieces)
    print(f"{n_compared} compiles compared with {options.base}: {n_differ} differ")
    sys.exit(1 if n_differ or not n_compared else 0)


def compare(old: Path, new: Path, wanted: str = "") -> tuple[int, int]:
    """Print what differs of every compile that both folders hold; how many there are, and how many differ."""
    shared = sorted({p.name for p in new.iterdir()} & {p.name for p in old.iterdir()})
    n_of_kind, n_differ = Counter[str](), 0
    for name in shared:
        before, after = (chosen(read(state / name), wanted) for state in (old, new))
        if found := differences(before, after):
            n_differ += 1
            n_of_kind.update({d.kind for d in found})
            print(f"{name.removesuffix('.gz').replace('~', '/')}: {described(found)}\n", flush=True)
    if n_of_kind:
        print("compiles that differ by kind of piece:", ", ".join([f"{kind} {n}" for kind, n in n_of_kind.items()]))
    return len(shared), n_differ


def record(folder: Path, only: str, targets: Sequence[str], part: int, parts: int, *, quick: bool = False) -> None:
    """Write the pieces of every model of the corpus for every target, a file each; ``part`` of ``parts``."""
    warnings.simplefilter("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    corpus = models(only)
    wanted = [n for n in corpus if re.search(only, n) and (only.startswith(FULL) or not n.startswith(FULL))]
    if quick:
        wanted = [n for n in wanted if QUICK.match(n)]
    for name in wanted[part::parts]:
        try:
            graph = corpus[name]()
        except Exception as e:  # what PyTorch cannot trace is the same in both states
            print(f"{name} is left out: {type(e).__name__}: {e}"[:200], file=sys.stderr)
            continue
        for target in quick_targets(name, targets) if quick else targets:
            try:
                made = pieces(graph, target)
            except Exception as e:
                made = {"refused": f"{type(e).__name__}: {e}"}
            text = json.dumps(made)
            (folder / f"{name.replace('/', '~')} {target}.gz").write_bytes(gzip.compress(text.encode(), 1, mtime=0))


def models(only: str) -> Mapping[str, Callable[[], object]]:
    """The corpus; for nests alone it is made without PyTorch, which takes seconds to load."""
    if only == NESTS_ONLY:
        from nests import NESTS

        return {f"nest/{name}": make for name, make in NESTS.items()}
    from replay_corpus import CORPUS

    return CORPUS


def quick_targets(name: str, targets: Sequence[str]) -> tuple[str, ...]:
    """All and more for a nest; for another model one of them, which its name decides."""
    if name.startswith("nest/"):
        return (*targets, *(t for t in DOTS if t not in targets))
    return (targets[zlib.crc32(name.encode()) % len(targets)],)


def pieces(graph: object, target: str) -> Pieces:
    """Everything that the compiler decides about a graph before LLVM sees it."""
    from tilewright.build.kernels import optimise_and_split
    from tilewright.build.options import Clock, Options
    from tilewright.tile.schedule.book import schedule_text

    options = Options(target=target)
    machine = replace(options.machine, n_cores=N_CORES)
    split = optimise_and_split(graph, options, machine, Clock())  # type: ignore[arg-type]
    kernels, found = split.kernels, Pieces()
    texts, computations = kernels.texts(), {spec.name: text for text, spec in kernels.specs.items()}
    layouts = {
        spec.name: [packing.layout for _, packing in spec.reads if packing is not None]
        for spec in kernels.specs.values()
    }
    for name, text in texts.items():
        found[f"{name} computation"] = computations[name]
        found[f"{name} schedule"] = schedule_text(name, kernels.schedules[name], kernels.labels[name])
        found[f"{name} packing"] = "\n".join(layouts[name])
        found[f"{name} llvm"] = text
    found["weights"] = sha256(split.planner.weights.blob()).hexdigest()
    found["entry"] = split.entry(None)
    return found


def read(path: Path) -> Pieces:
    """What ``record`` wrote."""
    pieces: Pieces = json.loads(gzip.decompress(path.read_bytes()))
    return pieces


def chosen(pieces: Pieces, names: str) -> Pieces:
    """The pieces whose name a regular expression finds."""
    return {name: text for name, text in pieces.items() if re.search(names, name)}


@dataclass(frozen=True)
class Difference:
    """A piece that is not the same in both states; its text is missing where only one state has it.

    A kernel is named by its computation, so one that changed has another name: ``now`` is the name of the kernel in
    its place, and stands where the names are equal too.
    """

    piece: str
    now: str
    old: str | None
    new: str | None

    @property
    def kind(self) -> str:
        """``llvm`` of ``k_1 llvm``: what pieces of several kernels have in common."""
        return self.piece.split()[-1]

    @property
    def verb(self) -> str:
        """What is said of the piece."""
        if self.old is not None and self.new is not None:
            return "differs"
        return f"is only in the {'new' if self.old is None else 'old'} state"

    @property
    def kernel(self) -> str:
        """Its kernel, and what that is called now; the piece's own name where it has no kernel."""
        name, now = self.piece.split()[0], self.now.split()[0]
        return name if name == now else f"{name} (now {now})"


def differences(old: Pieces, new: Pieces) -> list[Difference]:
    """Every piece that differs, in the old state's order, then what only the new state has."""
    found, partners = [], partners_of(old, new)
    renamed = re.compile("|".join(map(re.escape, partners)) or "(?!)")
    seen = set()
    for piece, text in old.items():
        kernel, *kind = piece.split()
        now = " ".join([partners.get(kernel, kernel), *kind])
        seen.add(now)
        # Texts name their kernels, the entry all of them: what differs only by the names of partners is equal.
        if new.get(now) != renamed.sub(lambda name: partners[name[0]], text):
            found.append(Difference(piece, now, text, new.get(now)))
    return [*found, *[Difference(piece, piece, None, text) for piece, text in new.items() if piece not in seen]]


def partners_of(old: Pieces, new: Pieces) -> dict[str, str]:
    """For kernels that only the old state has, those in their places in the new one.

    Places are counted from the nearest kernel that both states have, as one more or one less moves all behind it.
    """
    before, after = ([*dict.fromkeys([name.split()[0] for name in pieces if " " in name])] for pieces in (old, new))
    partners = {}
    for _, i, to_i, k, to_k in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        changed = [name for name in before[i:to_i] if name not in after]
        partners.update(zip(changed, [name for name in after[k:to_k] if name not in before], strict=False))
    return partners


def described(found: Sequence[Difference]) -> str:
    """How many pieces of each kind differ; of each kind the first with its lines, and the kernels of the others."""
    groups: dict[tuple[str, str], list[Difference]] = {}
    for difference in found:
        groups.setdefault((difference.kind, difference.verb), []).append(difference)
    lines = [", ".join([f"{len(group)} {kind}" for (kind, _), group in groups.items()])]
    for (kind, verb), (first, *others) in groups.items():
        of_its_kind = first.kernel if first.piece == kind else f"{first.kernel} {kind}"
        more = f"; the same of {', '.join([d.kernel for d in others])}" if others else ""
        lines += [f"{of_its_kind} {verb}{more}", *_lines_apart(first)]
    return "\n".join(lines)


def _lines_apart(difference: Difference) -> Iterator[str]:
    """The first lines that differ, where both states have the piece."""
    if difference.old is None or difference.new is None:
        return
    old = difference.old.replace(difference.piece.split()[0], difference.now.split()[0])
    apart = difflib.unified_diff(old.splitlines(), difference.new.splitlines(), "old", "new", lineterm="", n=2)
    for k, line in enumerate(apart):
        if k == SHOWN_LINES:
            yield "..."
            return
        yield line[:200]


def check_out(revision: str, folder: Path) -> None:
    """The sources of a commit, without touching the repository."""
    archive = subprocess.run(
        ["git", "archive", revision, "src", "tests", "benchmarks", "pyproject.toml"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def record_apart(
    tree: Path, folder: Path, options: argparse.Namespace, only: str | None = None, part: int = 0, parts: int = 1
) -> None:
    """Record a tree in processes of its own, with its own recorder and corpus where it has them; a part of the models.

    What recorders of older states understand is all that this hands to them.
    """
    own = tree / "tests" / "replay.py"
    if not own.exists() or RECORDER not in own.read_text():
        shutil.copy(ROOT / "tests" / "replay.py", own)
    for name in ("replay_corpus.py", "nests.py"):
        if not (tree / "tests" / name).exists():
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
        options.only if only is None else only,
        "--targets",
        *options.targets,
        *(["--quick"] if options.quick else []),
    ]
    jobs = options.jobs
    running = [
        subprocess.Popen([*command, "--part", str(k), "--parts", str(parts * jobs)], cwd=tree, env=environment)
        for k in range(part * jobs, (part + 1) * jobs)
    ]
    if any([process.wait() for process in running]):
        raise SystemExit(f"recording {tree} failed")


def add_recording(parser: argparse.ArgumentParser) -> None:
    """The options that say what of two states is compared."""
    parser.add_argument("--only", default="", help="regular expression over the models' names")
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument("--pieces", default="", help="regular expression over entry, weights, KERNEL llvm, ...")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--quick", action="store_true", help="a part of the corpus, most models for one target")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m replay", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--base", default="HEAD", help="the commit to compare with")
    add_recording(parser)
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--parts", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
