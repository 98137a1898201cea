"""What the system tells of this machine's caches, and what it may leave out."""

from pathlib import Path

from tilewright.runtime.host import DataCache, data_caches

CACHES = (
    {"level": "1", "type": "Data", "size": "48K", "ways_of_associativity": "12"},
    {"level": "1", "type": "Instruction", "size": "64K", "ways_of_associativity": "16"},
    {"level": "2", "type": "Unified", "size": "2048K", "ways_of_associativity": "16"},
)


def described(folder: Path, *caches: dict[str, str]) -> dict[int, DataCache]:
    """What is read of a system that describes its caches so."""
    for k, cache in enumerate(caches):
        entry = folder / f"index{k}"
        entry.mkdir()
        for name, text in cache.items():
            (entry / name).write_text(text + "\n")
    return data_caches(str(folder))


def test_data_caches_have_sizes_and_ways(tmp_path: Path) -> None:
    assert described(tmp_path, *CACHES) == {1: DataCache(48 << 10, 12), 2: DataCache(2 << 20, 16)}


def test_a_system_that_tells_no_ways_still_tells_sizes(tmp_path: Path) -> None:
    silent = {k: v for k, v in CACHES[2].items() if k != "ways_of_associativity"}
    assert described(tmp_path, silent) == {2: DataCache(2 << 20, 0)}


def test_caches_without_a_size_and_systems_without_caches_are_left_out(tmp_path: Path) -> None:
    assert described(tmp_path, CACHES[0], {"level": "2", "type": "Unified"}) == {1: DataCache(48 << 10, 12)}
    assert data_caches(str(tmp_path / "nothing")) == {}
