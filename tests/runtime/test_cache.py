"""The disk cache: exact keys, damage, races, killed writers, limits; never an exception."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.tiny import scale_parts
from tilewright.runtime import cache as cache_module
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.cache import Cache
from tilewright.runtime.digest import digest_bytes
from tilewright.runtime.files import write_atomically
from tilewright.runtime.python.model import LoadedModel

X = np.ones((2, 4), np.float32)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def scale_artifact(shift: float = 10.0) -> Artifact:
    manifest, objects, weights = scale_parts(shift)
    return Artifact(manifest, tuple(objects), weights.view(np.uint8))


def the_file(cache: Cache) -> Path:
    assert cache.directory is not None
    (entry,) = cache.entries()
    return Path(cache.directory) / "v1" / entry.kind / entry.digest


def test_round_trip(cache: Cache) -> None:
    assert cache.get("object", "key") is None
    assert cache.put("object", "key", b"payload")
    assert cache.get("object", "key") == b"payload"
    assert cache.get("object", "key ") is None and cache.get("other", "key") is None
    assert cache.put("object", "key", b"")
    assert cache.get("object", "key") == b""
    assert (cache.stats.hits, cache.stats.misses, cache.stats.stored) == (2, 3, 2)
    assert cache.stats.reasons == {"not found": 3}


def test_entries_and_clear(cache: Cache) -> None:
    for i in range(5):
        cache.put("object", f"key {i}", bytes(i))
    assert {e.kind for e in cache.entries()} == {"object"} and len(cache.entries()) == 5
    assert cache.clear() == 5
    assert cache.entries() == [] and cache.get("object", "key 1") is None


def test_whole_models(cache: Cache) -> None:
    assert cache.get_artifact("k") is None
    assert cache.put_artifact("k", scale_artifact(30))
    found = cache.get_artifact("k")
    assert found is not None and found.weights.ctypes.data % 64 == 0
    model = LoadedModel(found.manifest, found.objects, found.weights)
    assert (model(X) == 32).all()
    cache.clear()
    assert (model(X) == 32).all(), "a model in use outlives its entry"


def test_a_large_model_is_written_beside_and_waited_for(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.cache.LARGE_BYTES", 0)
    put, may_write, written = Cache.put_artifact, threading.Event(), list[bool]()
    monkeypatch.setattr(Cache, "put_artifact", lambda *args: (written.append(may_write.wait(100)), put(*args))[1])
    cache.put_artifact_soon("k", scale_artifact(30))
    assert not written, "the compile went on"
    threading.Timer(0.2, may_write.set).start()
    found = cache.get_artifact("k")
    assert found is not None and written == [True]
    assert (LoadedModel(found.manifest, found.objects, found.weights)(X) == 32).all()


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "extend", "directory", "link", "writable", "swap"])
@pytest.mark.parametrize("kind", ["object", "model"])
def test_damaged_entries_are_misses_and_removed(cache: Cache, kind: str, damage: str, tmp_path: Path) -> None:
    def store() -> None:
        assert cache.put_artifact("k", scale_artifact()) if kind == "model" else cache.put(kind, "k", b"x" * 1000)

    def find() -> object:
        return cache.get_artifact("k") if kind == "model" else cache.get(kind, "k")

    store()
    path = the_file(cache)
    data = path.read_bytes()
    path.unlink()
    match damage:
        case "truncate":
            path.write_bytes(data[:-1])
        case "flip":
            path.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
        case "empty":
            path.touch()
        case "extend":
            path.write_bytes(data + b"\0")
        case "directory":
            path.mkdir()
        case "link":
            (tmp_path / "elsewhere").write_bytes(data)
            path.symlink_to(tmp_path / "elsewhere")
        case "writable":
            path.write_bytes(data)
            path.chmod(0o666)
        case "swap":  # an entry of another key under this one's name
            cache.put("other", "k2", b"y")
            os.rename(the_file(cache), path)
    assert find() is None
    assert damage == "directory" or not os.path.lexists(path), "removed"
    if damage != "directory":
        store()
        assert find() is not None


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_an_entry_is_a_miss(cache: Cache, data: st.DataObject) -> None:
    cache.put("object", "key", b"some object code" * 5)
    path = the_file(cache)
    raw = path.read_bytes()
    at = data.draw(st.integers(0, len(raw)))
    changed = raw[:at] + data.draw(st.binary(max_size=20)) + raw[at + data.draw(st.integers(0, 20)) :]
    path.write_bytes(changed)
    found = cache.get("object", "key")
    assert found is None or found == b"some object code" * 5


def test_a_key_is_compared_whole_not_by_its_hash(cache: Cache) -> None:
    cache.put("object", "key a", b"payload of a")
    path = the_file(cache)
    other = cache._path("object", "key b")
    os.rename(path, other)
    assert cache.get("object", "key b") is None
    assert cache.stats.reasons["another key with the same hash"] == 1


def test_limit_drops_the_least_recently_used(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=10_000)
    for i in range(8):
        cache.put("object", f"{i}", bytes(1000))
        os.utime(cache._path("object", f"{i}"), (1000 + i, 1000 + i))
    assert cache.get("object", "0") is not None  # used just now
    for i in range(8, 11):
        cache.put("object", f"{i}", bytes(1000))
    assert cache.stats.evicted > 0
    assert sum(e.n_bytes for e in cache.entries()) <= 10_000
    assert cache.get("object", "0") is not None and cache.get("object", "10") is not None
    assert cache.get("object", "1") is None
    assert not cache.put("object", "big", bytes(20_000)), "an entry larger than the whole cache is not stored"


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null/x", "nul\0"])
def test_an_unusable_folder_turns_the_cache_off(folder: str) -> None:
    cache = Cache(folder)
    assert not cache.enabled and cache.problem
    assert not cache.put("object", "k", b"") and cache.get("object", "k") is None
    assert not cache.put_artifact("k", scale_artifact()) and cache.get_artifact("k") is None
    assert cache.entries() == [] and cache.clear() == 0
    assert cache.stats.reasons["cache is off"] == 2


def test_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "c"))
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "12345")
    assert (Cache().directory, Cache().max_bytes, Cache().enabled) == (str(tmp_path / "c"), 12345, True)
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    assert "turned off" in Cache().problem
    monkeypatch.delenv("TILEWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert Cache().directory == str(tmp_path / "x" / "tilewright")


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    Cache(tmp_path)
    (tmp_path / "v1").chmod(0o777)
    assert "other users" in Cache(tmp_path).problem


@pytest.mark.parametrize("is_trusted", [True, False])
def test_digest_of_a_file_is_remembered_until_it_changes(
    is_trusted: bool, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"a" * 1000)
    monkeypatch.setattr(cache_module, "file_system", lambda fd: 0xEF53 if is_trusted else 0x01021994)

    def digest() -> str:
        known = cache.known_of_file(path, "digest")
        return cache.read_file(path, "digest", digest_bytes)[1] if known is None else known

    fresh = digest()
    assert cache.entries() == [], "it may still be changing"
    old = time.time() - 100
    os.utime(path, (old, old))
    assert digest() == fresh
    assert cache.entries() == [], "its inode has changed just now"
    monkeypatch.setattr(cache_module, "_SETTLED_NS", 0)
    time.sleep(0.05)
    assert digest() == fresh and len(cache.entries()) == is_trusted
    hits = cache.stats.hits
    assert digest() == fresh and cache.stats.hits == hits + is_trusted
    path.write_bytes(b"b" * 1000)
    os.utime(path, (old, old))
    assert digest() != fresh
    with pytest.raises(OSError):
        cache.known_of_file(tmp_path / "none", "digest")
    with pytest.raises(OSError):
        cache.read_file(tmp_path / "none", "digest", digest_bytes)


def test_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    def pieces():
        yield b"x" * 100
        raise OSError(28, "No space left on device")

    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(OSError):
        write_atomically(tmp_path / "f", pieces(), durable=True)
    assert os.listdir(tmp_path) == ["f"] and (tmp_path / "f").read_bytes() == b"old"


WRITER = """
    import sys
    from tilewright.runtime.cache import Cache
    cache = Cache(sys.argv[1])
    print("ready", flush=True)
    k = 0
    while True:
        k += 1
        text = f"key {k % 7}"
        cache.put("object", text, (text * (1 + k % 50_000)).encode())
        found = cache.get("object", text)
        assert found is None or found.startswith(text.encode()), "torn"
"""


def test_killed_writers_leave_no_torn_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
    for round_number in range(4):
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        time.sleep(0.02 + 0.05 * round_number)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            assert writer.wait() == -signal.SIGKILL, "it ran until killed"
            writer.stdout.close()
        for k in range(7):
            found = cache.get("object", f"key {k}")
            assert found is None or found == f"key {k}".encode() * (len(found) // 5)
    assert set(cache.stats.reasons) <= {"not found"}
    leftovers = list(tmp_path.rglob("*.tmp"))
    for path in leftovers:
        os.utime(path, (0, 0))
    cache.entries()
    assert list(tmp_path.rglob("*.tmp")) == [], "old temporary files are cleared up"
