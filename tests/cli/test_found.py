"""``tilewright found``: the database of schedules, shown and carried elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.models import Cli
from tilewright.build.found_schedules import MEASURED, FoundSchedule, FoundSchedules, Trial, machine_key
from tilewright.runtime.threads import default_threads
from tilewright.target.target import Target

HERE = machine_key(Target.parse("native"), default_threads())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    database = FoundSchedules(tmp_path / "found.db")
    database.put(HERE, [FoundSchedule("k_1", "split(i0, 4)", 2e-3, 1e-3), FoundSchedule("k_2", "", 4e-3, 3e-3)])
    database.put("elsewhere", [FoundSchedule("k_1", "split(i0, 8)", 2e-3, 1.5e-3)])
    database.add(HERE, [Trial("k_1", "split(i0, 2)", MEASURED, 3e-3, 2e-3)])
    return tmp_path / "found.db"


def listed(cli: Cli, store: Path) -> list[tuple[str, float, bool]]:
    ran = cli("found", "list", "--store", store, "--json")
    return [(row["kernel"], row["after"], row["here"]) for row in json.loads(ran.out)["found"]]


def test_list_says_what_is_for_this_machine(cli: Cli, store: Path) -> None:
    rows = {("k_1", 1e-3, True), ("k_1", 1.5e-3, False), ("k_2", 3e-3, True)}
    assert set(listed(cli, store)) == rows
    said = cli("found", "list", "--store", store).out
    assert "k_1" in said and "3 schedules in" in said


def test_a_database_that_is_not_there_is_empty_and_not_made(cli: Cli, tmp_path: Path) -> None:
    assert listed(cli, tmp_path / "none.db") == []
    assert cli("found", "forget", "k_1", "--store", tmp_path / "none.db").code == 0
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("way", ["merge", "text"])
def test_schedules_are_carried_to_another_database(way: str, cli: Cli, store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    FoundSchedules(other).put(HERE, [FoundSchedule("k_2", "split(i0, 2)", 4e-3, 1e-3)])
    if way == "merge":
        assert cli("found", "merge", store, "--store", other).code == 0
    else:
        assert cli("found", "export", tmp_path / "found.txt", "--store", store).code == 0
        assert cli("found", "import", tmp_path / "found.txt", "--store", other).code == 0
    # Of two schedules of a kernel the one that gained more stays.
    assert set(listed(cli, other)) == {("k_1", 1e-3, True), ("k_1", 1.5e-3, False), ("k_2", 1e-3, True)}


def test_what_is_forgotten_is_tried_again(cli: Cli, store: Path) -> None:
    database = FoundSchedules(store)
    assert "forgot 2 schedules" in cli("found", "forget", "k_1", "--store", store).out
    assert database.every(HERE).keys() == {"k_2"} and not database.trials(HERE, ["k_1"])
    assert cli("found", "forget", "--all", "--store", store).code == 0
    assert database.all() == []


@pytest.mark.parametrize(
    "command", ["forget", "forget k_1 --all", "import missing.txt", "merge missing.db", "import other.txt"]
)
def test_mistakes_are_told(command: str, cli: Cli, store: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_bytes(b"\xff\x00 no export")
    parts = [tmp_path / part if part.endswith((".txt", ".db")) else part for part in command.split()]
    ran = cli("found", *parts, "--store", store)
    assert ran.code != 0 and ran.err and "Traceback" not in ran.err
