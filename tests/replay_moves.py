"""``make moves``: does every commit whose subject says ``[moves]`` leave the emitted code as it was, byte for byte?

    python -m replay_moves                    the last commit, and those right before it that say so too
    python -m replay_moves --since REV        all such commits since REV

In: a git repository. Out: what ``replay`` says of each such commit beside its parent; exit code 1 if the code differs,
2 if the parent is not there, as in a shallow clone. Commits that leave ``src`` alone need no recording.
Not its business: what is compared, and how (``replay``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import replay

MARK = "[moves]"


@dataclass(frozen=True)
class Commit:
    """``parent`` is empty where the repository has none."""

    name: str
    parent: str
    subject: str

    @property
    def moves(self) -> bool:
        return MARK in self.subject


class NoParent(Exception):
    """What a commit is to be compared with is not there."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m replay_moves", description=__doc__)
    parser.add_argument("--since", default="", help="the commit after which to look")
    replay.add_recording(parser)
    options = parser.parse_args()
    if not (replay.ROOT / ".git").exists():
        print("no git repository: no commit to compare with its parent")
        return
    try:
        commits = claims(replay.ROOT, options.since)
    except NoParent as e:
        print(e, file=sys.stderr)
        sys.exit(2)
    if not commits:
        print(f"no commit says {MARK}")
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        states = _States(Path(scratch), options)
        right = [states.are_equal(c) for c in commits]
    sys.exit(0 if all(right) else 1)


def claims(repository: Path, since: str = "") -> list[Commit]:
    """The commits that say that they only move, oldest first; ``NoParent`` if one has nothing to be compared with."""
    found = history(repository, since)
    chosen = [c for c in found if c.moves] if since else list(takewhile(lambda c: c.moves, found))
    for c in chosen:
        if not c.parent:
            shallow = _git(repository, "rev-parse", "--is-shallow-repository") == "true"
            why = "this clone is shallow: run git fetch --unshallow" if shallow else "it is the first commit"
            raise NoParent(f"{c.name[:12]} ({c.subject}) says {MARK}, and its parent is not here: {why}")
    return chosen[::-1]


def history(repository: Path, since: str = "") -> Iterator[Commit]:
    """Commits by first parents, the newest first."""
    wanted = [f"{since}..HEAD"] if since else ["HEAD"]
    try:
        text = _git(repository, "log", "--first-parent", "--format=%H%x09%P%x09%s", *wanted)
    except subprocess.CalledProcessError as e:
        raise NoParent(e.stderr.strip()) from e
    for line in text.splitlines():
        name, parents, subject = line.split("\t", 2)
        yield Commit(name, parents.split(" ")[0], subject)


class _States:
    """What was recorded of each state of ``src``, once."""

    def __init__(self, scratch: Path, options: argparse.Namespace) -> None:
        self.scratch, self.options = scratch, options

    def are_equal(self, commit: Commit) -> bool:
        """Compare a commit with its parent, and say what came of it."""
        what = f"{commit.name[:12]} ({commit.subject})"
        old, new = (_git(replay.ROOT, "rev-parse", f"{c}:src") for c in (commit.parent, commit.name))
        if old == new:
            print(f"{what}: src is the parent's")
            return True
        n_compared, n_differ = replay.compare(
            self.recorded(commit.parent, old), self.recorded(commit.name, new), self.options.pieces
        )
        print(f"{what}: {n_compared} compiles compared with its parent, {n_differ} differ", flush=True)
        return n_compared > 0 and not n_differ

    def recorded(self, commit: str, sources: str) -> Path:
        folder = self.scratch / f"recorded-{sources}"
        if not folder.exists():
            tree = self.scratch / f"tree-{sources}"
            replay.check_out(commit, tree)
            replay.record_apart(tree, folder, self.options)
        return folder


def _git(repository: Path, *command: str) -> str:
    return subprocess.run(["git", *command], cwd=repository, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
