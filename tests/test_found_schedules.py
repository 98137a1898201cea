"""The file of what searches found: the better row stays, other machines' are not used, and processes share it."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.build.found_schedules import MEASURED, FoundSchedule, FoundSchedules, Trial, machine_key
from tilewright.runtime.errors import InputError
from tilewright.target.target import Target

SOME = FoundSchedule("k_1", "split(i0, 8)", 2.0, 1.0)
HERE = machine_key(Target.parse("x86-64-v3"), 1)


@pytest.fixture
def file(tmp_path: Path) -> FoundSchedules:
    return FoundSchedules(tmp_path / "found.db")


def test_the_one_that_gained_more_stays(file: FoundSchedules) -> None:
    for factor, after in ((8, 1.0), (4, 1.5), (2, 0.5)):
        file.put(HERE, [replace(SOME, steps=f"split(i0, {factor})", after=after)])
    assert file.get(HERE, ["k_1", "k_2"]) == {"k_1": replace(SOME, steps="split(i0, 2)", after=0.5)}


def test_rows_of_other_machines_are_kept_and_not_used(file: FoundSchedules) -> None:
    target = Target.parse("x86-64-v3")
    others = [machine_key(target, 2), machine_key(replace(target, l2_bytes=target.l2_bytes * 2), 1)]
    assert len({HERE, *others}) == 3
    for machine in others:
        file.put(machine, [SOME])
    assert file.get(HERE, ["k_1"]) == {} and file.others(HERE, ["k_1", "k_2"]) == 1


def test_files_are_merged(file: FoundSchedules, tmp_path: Path) -> None:
    other = FoundSchedules(tmp_path / "other.db")
    other.put(HERE, [replace(SOME, after=0.5), replace(SOME, kernel="k_2")])
    file.put(HERE, [SOME])
    file.merge(other.path)
    assert file.get(HERE, ["k_1", "k_2"]) == {"k_1": replace(SOME, after=0.5), "k_2": replace(SOME, kernel="k_2")}


def test_a_file_that_is_not_there_is_not_made_by_reading(file: FoundSchedules, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        file.merge(tmp_path / "typo.db")
    assert file.get(HERE, ["k_1"]) == {} and file.others(HERE, ["k_1"]) == 0
    assert not list(tmp_path.iterdir())


def test_a_file_of_something_else(file: FoundSchedules) -> None:
    Path(file.path).write_bytes(b"no database at all, but long enough to be taken for one" * 20)
    with pytest.raises(InputError, match="can't be used"):
        file.get(HERE, ["k_1"])


ODD = (None, b"\0no text", "no number", -1.0, 0.0, float("inf"), 1 << 40)
COLUMNS = {
    "found": ("kernel", "machine", "steps", "before", "after"),
    "tried": ("kernel", "machine", "steps", "outcome", "seconds", "beside"),
}
DAMAGES = [(table, column, odd) for table, columns in COLUMNS.items() for column in columns for odd in ODD]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("table, column, odd", DAMAGES)
def test_a_damaged_row_hides_no_other(
    table: str, column: str, odd: object, file: FoundSchedules, tmp_path: Path
) -> None:
    """SQLite keeps any value in any column. Every question is answered, and of sound rows nothing is lost."""
    good, second = Trial("k_1", "", MEASURED, 1.0, 2.0), replace(SOME, kernel="k_2")
    file.put(HERE, [SOME, second])
    file.add(HERE, [good, replace(good, kernel="k_2")])
    with closing(sqlite3.connect(file.path)) as connection, connection:
        connection.execute(f"update {table} set {column} = ? where kernel = 'k_2'", (odd,))
    assert file.get(HERE, ["k_1", "k_2"])["k_1"] == SOME and (HERE, SOME) in file.all()
    assert good in file.trials(HERE, ["k_1", "k_2"]) and not file.without_gain(HERE, ["k_1"])
    assert '"k_1"' in file.book(HERE) and file.others(HERE, ["k_1"]) == 0
    for take in ("merge", "take"):
        other = FoundSchedules(tmp_path / f"{take}.db")
        getattr(other, take)(file.path if take == "merge" else file.exported())
        assert other.get(HERE, ["k_1"]) == {"k_1": SOME}
    assert file.forget() >= 1 and not file.all()


@pytest.mark.parametrize("n_bytes", [0, 1, 100, 4096, 5000])
def test_a_file_cut_off_is_refused_or_read(n_bytes: int, file: FoundSchedules) -> None:
    """An empty one is new. Whatever else is left of a file, it is no reason for another error than its own."""
    file.put(HERE, [SOME])
    path = Path(file.path)
    path.write_bytes(path.read_bytes()[:n_bytes])
    for ask in (file.all, file.exported, lambda: file.get(HERE, ["k_1"]), lambda: file.put(HERE, [SOME])):
        try:
            ask()
        except InputError as e:
            assert "can't be used" in e.message and n_bytes


def test_processes_that_write_at_once_lose_nothing(file: FoundSchedules) -> None:
    """One of them is killed in the middle."""
    program = (
        "import sys; from tilewright.build.found_schedules import FoundSchedule, FoundSchedules\n"
        "file = FoundSchedules(sys.argv[1])\n"
        "for k in range(20): file.put('m', [FoundSchedule(f'k_{sys.argv[2]}_{k}', '', 2.0, 1.0)])\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", program, file.path, name]) for name in "abc"]
    killed = workers.pop()
    killed.kill()
    killed.wait()
    assert [w.wait() for w in workers] == [0, 0]
    names = [f"k_{name}_{k}" for name in "ab" for k in range(20)]
    assert file.get("m", names).keys() == set(names)
