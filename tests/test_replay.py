"""``make replay`` sees a difference where there is one, and none where the same sources record the same model twice.

``make moves`` finds the commits that say ``[moves]``, and fails where their parent is not there.
"""

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
    assert replay.first_difference(first, second) == ""


def test_targets_differ_and_the_first_kernel_is_named() -> None:
    old, new = (replay.pieces(NESTS["matmul"](), target) for target in ("x86-64-v3", "x86-64-v4"))
    kernel = next(iter(old)).split()[0]
    assert replay.first_difference(old, new).startswith(f"{kernel} schedule differs\n")


def test_a_difference_of_one_line_is_shown() -> None:
    said = replay.first_difference({"entry": "a\nb", "k": "same"}, {"entry": "a\nc", "k": "same"})
    assert said.startswith("entry differs") and "-b" in said and "+c" in said


def test_a_kernel_of_another_name_is_shown_beside_the_one_in_its_place() -> None:
    old = {"k_1 llvm": "same", "k_2 llvm": "define @k_2\nadd", "entry": "k_1 k_2"}
    new = {"k_1 llvm": "same", "k_3 llvm": "define @k_3\nsub", "entry": "k_1 k_3"}
    said = replay.first_difference(old, new)
    assert said.startswith("k_2 llvm (now k_3) differs") and "-add" in said and "@k_3" not in said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"k_1 llvm": "a", "entry": "b"}, {"entry": "b"}, "k_1 llvm is only in the old state"),
        ({"entry": "b"}, {"entry": "b", "k_1 llvm": "a"}, "k_1 llvm is only in the new state"),
        ({"refused": "no"}, {"entry": "b"}, "refused is only in the old state"),
    ],
)
def test_a_piece_of_one_state_is_a_difference(old, new, said) -> None:
    assert replay.first_difference(old, new) == said


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


def git(folder: Path, *command: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *names, *command], cwd=folder, check=True, capture_output=True, text=True)
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
    assert subjects(replay_moves.claims(repository)) == ["d: [moves] two", "e: [moves] three"]
    assert subjects(replay_moves.claims(repository, "HEAD~1")) == ["e: [moves] three"]
    assert len(replay_moves.claims(repository, "HEAD~4")) == 3
    git(repository, "commit", "-q", "--allow-empty", "-m", "another thing")
    assert replay_moves.claims(repository) == []


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
if options.part == 0:
    (folder / "net cpu.gz").write_bytes(gzip.compress(json.dumps({"k_1 llvm": text[0]}).encode()))
# recorder 2
"""


def test_a_commit_that_changes_code_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """With a recorder that writes the first letter of a source file for the code."""
    for name, text in {"tests/replay.py": RECORDER, "benchmarks/x": "", "pyproject.toml": ""}.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(text)
    for text, subject in (("ab", "start"), ("ac", "[moves] rightly"), ("bc", "[moves] wrongly")):
        (repository / "src" / "file").write_text(text)
        git(repository, "add", ".")
        git(repository, "commit", "-q", "-m", subject)
    monkeypatch.setattr(replay, "ROOT", repository)
    monkeypatch.setattr(sys, "argv", ["replay_moves"])
    for name in ("nests.py", "replay_corpus.py"):
        (repository / "tests" / name).write_text("")
    with pytest.raises(SystemExit) as stopped:
        replay_moves.main()
    said = capsys.readouterr().out
    assert stopped.value.code == 1
    assert "([moves] rightly): 1 compiles compared with its parent, 0 differ" in said
    assert "net cpu: k_1 llvm differs" in said and "([moves] wrongly): 1 compiles compared with its parent, 1 d" in said
