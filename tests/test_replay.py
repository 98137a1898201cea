"""``make replay`` sees a difference where there is one, and none where the same sources record the same model twice.

``make moves`` finds the commits that say ``[moves]``, and fails where their parent is not there.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import replay
import replay_moves
import small_models
from nests import NESTS


def test_the_same_graph_has_the_same_pieces() -> None:
    first, second = (replay.pieces(small_models.convnet(), "x86-64-v3") for _ in range(2))
    assert {name.split()[-1] for name in first} == {"computation", "schedule", "packing", "llvm", "weights", "entry"}
    assert replay.differences(first, second) == []


def said(old: replay.Pieces, new: replay.Pieces) -> list[str]:
    return replay.described(replay.differences(old, new)).splitlines()


def test_targets_differ_and_every_kind_of_piece_is_named() -> None:
    old, new = (replay.pieces(NESTS["matmul"](), target) for target in ("x86-64-v3", "x86-64-v4"))
    kernel = next(iter(old)).split()[0]
    first, *lines = said(old, new)
    assert first == "1 schedule, 1 packing, 1 llvm, 1 weights, 1 entry"
    for kind in ("schedule", "packing", "llvm"):
        assert f"{kernel} {kind} differs" in lines
    assert {"weights differs", "entry differs"} <= set(lines)


def test_a_difference_of_one_line_is_shown() -> None:
    lines = said({"entry": "a\nb", "k": "same"}, {"entry": "a\nc", "k": "same"})
    assert lines[:2] == ["1 entry", "entry differs"] and {"-b", "+c"} <= set(lines)


def test_one_difference_does_not_hide_another() -> None:
    old = {"k_1 packing": "n", "k_1 llvm": "add", "k_2 packing": "n", "k_2 llvm": "same", "k_3 llvm": "mul"}
    new = {"k_1 packing": "m", "k_1 llvm": "sub", "k_2 packing": "m", "k_2 llvm": "same", "k_3 llvm": "div"}
    lines = said(old, new)
    assert lines[0] == "2 packing, 2 llvm"
    assert "k_1 packing differs; the same of k_2" in lines and "k_1 llvm differs; the same of k_3" in lines
    assert "-add" in lines and "-mul" not in lines


def test_a_kernel_of_another_name_is_shown_beside_the_one_in_its_place() -> None:
    old = {"k_1 llvm": "same", "k_2 llvm": "define @k_2\nadd", "entry": "k_1 k_2"}
    new = {"k_1 llvm": "same", "k_3 llvm": "define @k_3\nsub", "entry": "k_1 k_3"}
    lines = said(old, new)
    assert lines[:2] == ["1 llvm", "k_2 (now k_3) llvm differs"] and "-add" in lines and "-define @k_2" not in lines


def test_one_kernel_more_does_not_move_the_others_partners() -> None:
    """The entry, which names them all, is equal but for what is said of the one that came."""
    names, kernels = ("k_a", "k_b", "k_c"), ("k_new", "k_a", "k_now_b", "k_c")
    assert replay.partners_of({f"{n} llvm": n for n in names}, {f"{n} llvm": n for n in kernels}) == {"k_b": "k_now_b"}


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ({"k_1 llvm": "a", "entry": "b"}, {"entry": "b"}, ["1 llvm", "k_1 llvm is only in the old state"]),
        ({"entry": "b"}, {"entry": "b", "k_1 llvm": "a"}, ["1 llvm", "k_1 llvm is only in the new state"]),
        (
            {"refused": "no"},
            {"entry": "b"},
            ["1 refused, 1 entry", "refused is only in the old state", "entry is only in the new state"],
        ),
    ],
)
def test_a_piece_of_one_state_is_a_difference(old: replay.Pieces, new: replay.Pieces, lines: list[str]) -> None:
    assert said(old, new) == lines


def test_a_record_reads_back(tmp_path: Path) -> None:
    replay.record(tmp_path, "random/contraction-0$", ["x86-64"], 0, 1)
    (file,) = tmp_path.iterdir()
    assert file.name == "random~contraction-0 x86-64.gz"
    assert "entry" in replay.read(file)


def test_a_quick_run_takes_every_kind_of_model_and_every_target() -> None:
    from replay_corpus import CORPUS

    taken = {name: replay.quick_targets(name, replay.TARGETS) for name in CORPUS if replay.QUICK.match(name)}
    assert {name.split("/")[0] for name in taken} == {"nest", "zoo", "dynamic", "odd", "random"}
    assert {name for name in CORPUS if name.startswith("nest/")} <= set(taken)
    for kind in ("zoo", "odd", "random"):
        assert {t for name, ts in taken.items() if name.startswith(kind) for t in ts} == set(replay.TARGETS)


# --- commits that say [moves] ---------------------------------------------------------------------------------------


def git(folder: Path, *command: str, at_s: str = "") -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    when = {"GIT_COMMITTER_DATE": f"{at_s} +0000"} if at_s else {}
    environment = {**os.environ, **when}  # noqa: TID251
    done = subprocess.run(
        ["git", *names, *command], cwd=folder, check=True, capture_output=True, text=True, env=environment
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "src").mkdir()
    for k, subject in enumerate(["start", "a: (b) [moves] one", "c: changes", "d: [moves] two", "e: [moves] three"]):
        (folder / "src" / "file").write_text(str(k))
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", subject)
    return folder


def subjects(commits: list[replay_moves.Commit]) -> list[str]:
    return [c.subject for c in commits]


def test_commits_that_say_so_are_found(repository: Path) -> None:
    """Wherever they stand among others, the newest first."""
    git(repository, "commit", "-q", "--allow-empty", "-m", "another thing")
    assert subjects(replay_moves.claims(repository)) == ["e: [moves] three", "d: [moves] two", "a: (b) [moves] one"]
    assert subjects(replay_moves.claims(repository, "HEAD~2")) == ["e: [moves] three"]
    assert len(replay_moves.claims(repository, "HEAD~5")) == 3


def test_without_a_base_a_day_of_commits_is_looked_at(repository: Path) -> None:
    later = str(int(git(repository, "log", "-1", "--format=%ct")) + replay_moves.DAY_S)
    git(repository, "commit", "-q", "--allow-empty", "-m", "[moves] a day later", at_s=later)
    assert subjects(replay_moves.claims(repository)) == ["[moves] a day later"]


def test_of_a_branch_its_own_commits_are_looked_at(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", repository.as_uri(), "clone")
    clone = tmp_path / "clone"
    assert replay_moves.branch_point(repository) == replay_moves.branch_point(clone) == ""
    start = git(clone, "rev-parse", "HEAD")
    git(clone, "commit", "-q", "--allow-empty", "-m", "[moves] here")
    git(clone, "commit", "-q", "--allow-empty", "-m", "and more")
    assert replay_moves.branch_point(clone) == start
    assert subjects(replay_moves.claims(clone, start)) == ["[moves] here"]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shallow_clone_fails_clearly(repository: Path, tmp_path: Path, depth: int) -> None:
    git(tmp_path, "clone", "-q", "--depth", str(depth), repository.as_uri(), "clone")
    with pytest.raises(replay_moves.NoParent, match="shallow: run git fetch --unshallow"):
        replay_moves.claims(tmp_path / "clone")


def test_a_shallow_clone_whose_last_commit_makes_no_claim_has_nothing_to_do(repository: Path, tmp_path: Path) -> None:
    git(repository, "commit", "-q", "--allow-empty", "-m", "another thing")
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), "clone")
    assert replay_moves.claims(tmp_path / "clone") == []


def test_an_unknown_base_fails_clearly(repository: Path) -> None:
    with pytest.raises(replay_moves.NoParent, match="no-such-revision"):
        replay_moves.claims(repository, "no-such-revision")


RECORDER = """
import argparse, gzip, json, pathlib
p = argparse.ArgumentParser()
p.add_argument("--record"); p.add_argument("--part", type=int)
options, _ = p.parse_known_args()
folder = pathlib.Path(options.record)
folder.mkdir(exist_ok=True)
text = pathlib.Path("src/file").read_text()
if options.part in (0, 2):
    (folder / "net cpu.gz").write_bytes(gzip.compress(json.dumps({"k_1 llvm": text[0]}).encode()))
# recorder 2
"""


@pytest.fixture
def claimed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits that claim to move, the first of them rightly, with a recorder that writes the first letter of a
    source file for the code."""
    for name, text in {"tests/replay.py": RECORDER, "benchmarks/x": "", "pyproject.toml": ""}.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(text)
    for text, subject in (("ab", "start"), ("ac", "[moves] rightly"), ("bc", "[moves] wrongly"), ("bd", "and more")):
        (repository / "src" / "file").write_text(text)
        git(repository, "add", ".")
        git(repository, "commit", "-q", "-m", subject)
    for name in ("nests.py", "replay_corpus.py"):
        (repository / "tests" / name).write_text("")
    monkeypatch.setattr(replay, "ROOT", repository)
    return repository


def run_moves(monkeypatch: pytest.MonkeyPatch, *options: str) -> object:
    monkeypatch.setattr(sys, "argv", ["replay_moves", "--since", "HEAD~3", *options])
    with pytest.raises(SystemExit) as stopped:
        replay_moves.main()
    return stopped.value.code


def test_a_commit_that_changes_code_is_named(claimed: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert run_moves(monkeypatch) == 1
    said = capsys.readouterr().out
    assert said.startswith("2 commits say [moves], of those since HEAD~3\n")
    assert said.count("([moves] rightly): 1 compiles compared with its parent, 0 differ") == 2  # nests, other models
    assert "net cpu: 1 llvm\nk_1 llvm differs\n" in said
    assert "([moves] wrongly): 1 compiles compared with its parent, 1 d" in said


def test_commits_that_time_does_not_reach_are_named(claimed: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The newest has its nests compared whatever the time."""
    assert run_moves(monkeypatch, "--seconds", "1e-9") == 1
    first, second, *_ = (c.name[:12] for c in replay_moves.claims(claimed, "HEAD~3"))
    said = capsys.readouterr().out
    assert "([moves] wrongly): 1 compiles compared" in said and "rightly): 1" not in said
    assert f"out of time before the nests of {second}; --seconds 0" in said
    assert f"out of time before the other models of {first}, {second};" in said
