"""``make moves``: does every commit whose subject says ``[moves]`` leave the emitted code as it was, byte for byte?

    python -m replay_moves                    such commits of this branch; on the main branch, those of the last day
    python -m replay_moves --since REV        all such commits since REV
    python -m replay_moves --seconds 0        however long it takes

In: a git repository. Out: what ``replay`` says of each such commit beside its parent; exit code 1 if the code differs,
2 if the parent is not there, as in a shallow clone. Commits that leave ``src`` alone need no recording. The newest come
first, each with one model of every kind of nest; then, with the time that is left, all other models, which the
commits share out among themselves. Commits that were not reached in time are named.
Not its business: what is compared, and how (``replay``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import replay

MARK = "[moves]"
MAIN = "origin/HEAD"
DAY_S = 24 * 60 * 60
SECONDS = 120.0
"""What CI gives to these comparisons, beside the twelve minutes of its tests."""
NESTS, OTHERS = replay.NESTS_ONLY, "^(?!nest/|full/)"
"""Which models, by their names."""


@dataclass(frozen=True)
class Commit:
    """``parent`` is empty where the repository has none, ``time_s`` the time of the commit since 1970."""

    name: str
    parent: str
    time_s: int
    subject: str

    @property
    def moves(self) -> bool:
        return MARK in self.subject


class NoParent(Exception):
    """What a commit is to be compared with is not there."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m replay_moves", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--since", default="", help="the commit after which to look")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for all comparisons, 0 for no limit")
    replay.add_recording(parser)
    options = parser.parse_args()
    if not (replay.ROOT / ".git").exists():
        print("no git repository: no commit to compare with its parent")
        return
    try:
        since = options.since or branch_point(replay.ROOT)
        commits = claims(replay.ROOT, since)
    except NoParent as e:
        print(e, file=sys.stderr)
        sys.exit(2)
    print(f"{len(commits)} commits say {MARK}, of those since {since[:12]}" if since else _of_the_day(commits))
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        end = time.monotonic() + options.seconds if options.seconds else float("inf")
        right = _Comparison(Path(scratch), options, end).are_equal(commits)
    sys.exit(0 if right else 1)


def _of_the_day(commits: Sequence[Commit]) -> str:
    return f"{len(commits)} commits of the last day say {MARK}"


def branch_point(repository: Path) -> str:
    """Where this branch left the main one; nothing on the main branch itself, and where there is none."""
    try:
        common = _git(repository, "merge-base", MAIN, "HEAD")
        return "" if common == _git(repository, "rev-parse", "HEAD") else common
    except subprocess.CalledProcessError:
        return ""


def claims(repository: Path, since: str = "") -> list[Commit]:
    """The commits that say that they only move, the newest first: those since a revision, or of the last day.

    A day before the newest commit, not before now, so that a clone gives the same answer whenever it is asked.
    Raises ``NoParent`` if one has nothing to be compared with.
    """
    found = history(repository, since)
    chosen = [c for c in found if c.moves and (since or c.time_s > found[0].time_s - DAY_S)]
    for c in chosen:
        if not c.parent:
            shallow = _git(repository, "rev-parse", "--is-shallow-repository") == "true"
            why = "this clone is shallow: run git fetch --unshallow" if shallow else "it is the first commit"
            raise NoParent(f"{c.name[:12]} ({c.subject}) says {MARK}, and its parent is not here: {why}")
    return chosen


def history(repository: Path, since: str = "") -> list[Commit]:
    """Commits by first parents, the newest first."""
    wanted = [f"{since}..HEAD"] if since else ["HEAD"]
    try:
        text = _git(repository, "log", "--first-parent", "--format=%H%x09%P%x09%ct%x09%s", *wanted)
    except subprocess.CalledProcessError as e:
        raise NoParent(e.stderr.strip()) from e
    fields = [line.split("\t", 3) for line in text.splitlines()]
    return [Commit(name, parents.split(" ")[0], int(at), subject) for name, parents, at, subject in fields]


class _Comparison:
    """Commits beside their parents until a time; what was recorded of a state of ``src`` is used again."""

    def __init__(self, scratch: Path, options: argparse.Namespace, end_s: float) -> None:
        self.scratch, self.options, self.end_s = scratch, options, end_s

    def are_equal(self, commits: Sequence[Commit]) -> bool:
        """Compare all, and say what came of each."""
        sources = {c: tuple([_git(replay.ROOT, "rev-parse", f"{x}:src") for x in (c.parent, c.name)]) for c in commits}
        changed = [c for c in commits if len(set(sources[c])) > 1]
        for c in commits:
            if c not in changed:
                print(f"{_named(c)}: src is the parent's")
        right = True
        # Nests need no PyTorch and take seconds, so that every commit gets them before any gets more.
        for turn, (only, what) in enumerate(self._turns()):
            for k, c in enumerate(changed):
                if self.end_s < time.monotonic() and (turn, k) != (0, 0):
                    left = ", ".join([x.name[:12] for x in changed[k:]])
                    print(f"out of time before the {what} of {left}; --seconds 0 takes all", flush=True)
                    break
                part, parts = (k, len(changed)) if only == OTHERS else (0, 1)
                right &= self._is_equal(c, sources[c], only, part, parts)
        return right

    def _turns(self) -> tuple[tuple[str, str], ...]:
        """Models that all commits get before any gets the next: a regular expression, and what to call them."""
        if self.options.only:
            return ((self.options.only, "models"),)
        return ((NESTS, "nests"), (OTHERS, "other models"))

    def _is_equal(self, commit: Commit, sources: tuple[str, ...], only: str, part: int, parts: int) -> bool:
        states = [
            self._recorded(name, source, only, part, parts)
            for name, source in zip((commit.parent, commit.name), sources, strict=True)
        ]
        n_compared, n_differ = replay.compare(*states, self.options.pieces)
        print(f"{_named(commit)}: {n_compared} compiles compared with its parent, {n_differ} differ", flush=True)
        # Of a share of the models perhaps none is in both states; of all that are asked for some always are.
        return not n_differ and (n_compared > 0 or only == OTHERS)

    def _recorded(self, commit: str, sources: str, only: str, part: int, parts: int) -> Path:
        folder = self.scratch / f"recorded-{sources}-{'others' if only == OTHERS else 'first'}-{part}-of-{parts}"
        if not folder.exists():
            tree = self.scratch / f"tree-{sources}"
            if not tree.exists():
                replay.check_out(commit, tree)
            replay.record_apart(tree, folder, self.options, only, part, parts)
        return folder


def _named(commit: Commit) -> str:
    return f"{commit.name[:12]} ({commit.subject})"


def _git(repository: Path, *command: str) -> str:
    return subprocess.run(["git", *command], cwd=repository, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
