"""The ``.tw`` file: round trip, other readers, damage of every kind, other machines."""

import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import small_models
import tilewright as tw
from runtime.tiny import TARGET, scale_model, scale_parts
from tilewright.runtime import artifact, host
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.manifest import TargetSpec
from tilewright.runtime.models import load
from tilewright.runtime.python.model import LoadedModel

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def packed() -> bytes:
    manifest, objects, weights = scale_parts()
    return b"".join(bytes(piece) for piece in artifact.pack(manifest, objects, weights)[1])


GOOD = packed()
N_HEADER = int.from_bytes(GOOD[:8], "little")


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "m.tw"
    model = scale_model(20)
    model.save(path)
    loaded = load(path, threads=1)
    assert loaded.threads == 1
    assert (loaded.inputs, loaded.outputs, loaded.report()) == (model.inputs, model.outputs, model.report())
    np.testing.assert_array_equal(loaded(X), 2 * X + 20)
    loaded.save(tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == path.read_bytes(), "saving is reproducible"


def test_weights_are_mapped_aligned_and_read_only(tmp_path: Path) -> None:
    path = tmp_path / "m.tw"
    scale_model().save(path)
    weights = artifact.load(path).weights
    assert weights.ctypes.data % 64 == 0 and not weights.flags.writeable
    path.unlink()
    assert weights.view(np.float32)[0] == 10, "the map outlives the file's name"


def test_model_without_weights_or_with_unaligned_ones(tmp_path: Path) -> None:
    manifest, objects, weights = scale_parts()
    artifact.save(tmp_path / "m.tw", manifest, objects, b"")
    assert artifact.load(tmp_path / "m.tw").weights.size == 0
    odd = np.frombuffer(b"x" + weights.tobytes(), np.uint8)[1:]
    np.testing.assert_array_equal(LoadedModel(manifest, objects, odd)(X), 2 * X + 10)


def test_saving_replaces_atomically(tmp_path: Path) -> None:
    path = tmp_path / "m.tw"
    scale_model(10).save(path)
    old = load(path)
    scale_model(30).save(path)
    np.testing.assert_array_equal(old(X), 2 * X + 10)
    np.testing.assert_array_equal(load(path)(X), 2 * X + 30)
    assert os.listdir(tmp_path) == ["m.tw"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o400


def test_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "m.tw"
    scale_model().save(path)
    manifest, objects, weights = scale_parts()
    with pytest.raises(OSError):
        artifact.save(tmp_path / "missing" / "m.tw", manifest, objects, weights)
    assert load(path)(X).shape == (3, 4)


def test_other_safetensors_readers_can_list_it(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    path = tmp_path / "m.tw"
    scale_model().save(path)
    with safetensors.safe_open(path, "numpy") as file:
        assert set(file.keys()) == {"weights", "object.0", "object.1"}
        assert json.loads(file.metadata()["manifest"])["tilewright_version"] == "0"
        assert file.get_tensor("weights").tobytes() == np.array([10, 0, 0], np.float32).tobytes()


def check(data: bytes) -> None:
    """Either a typed error, or a model that is the saved one."""
    try:
        found = artifact.parse(data)
    except ArtifactError:
        return
    assert data == GOOD, "a changed file was accepted"
    np.testing.assert_array_equal(LoadedModel(found.manifest, found.objects, found.weights)(X), 2 * X + 10)


def test_the_unchanged_file_is_accepted() -> None:
    check(GOOD)
    assert artifact.parse(GOOD).manifest.objects[0].name == "entry"


@given(st.integers(0, len(GOOD) * 8 - 1))
@settings(max_examples=400)
def test_every_flipped_bit_is_detected(bit: int) -> None:
    data = bytearray(GOOD)
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ArtifactError):
        artifact.parse(bytes(data))


@given(st.integers(0, len(GOOD) - 1))
@example(0)
@example(7)
@example(8)
@settings(max_examples=200)
def test_every_truncation_is_detected(size: int) -> None:
    with pytest.raises(ArtifactError):
        artifact.parse(GOOD[:size])


@given(st.integers(0, len(GOOD)), st.integers(0, 300), st.binary(max_size=300))
@settings(max_examples=300)
def test_any_splice_is_detected(at: int, removed: int, inserted: bytes) -> None:
    check(GOOD[:at] + inserted + GOOD[at + removed :])


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_any_bytes(data: bytes) -> None:
    for made in (data, GOOD[:8] + data, len(data).to_bytes(8, "little") + data):
        check(made)


@given(st.data())
@settings(max_examples=200)
def test_any_header_text(data: st.DataObject) -> None:
    """Headers that are JSON, but not ours: values replaced inside, sizes moved, lengths made up."""
    header = json.loads(GOOD[8 : 8 + N_HEADER])
    name = data.draw(st.sampled_from(sorted(header)))
    entry = header[name]
    key = data.draw(st.sampled_from(sorted(entry)))
    huge = st.sampled_from([0, -1, 2**31, 2**63, 2**64, 2**70, None, "x", [0, 2**64], [2**64, 0], [8, 4], {}, "U8"])
    entry[key] = data.draw(huge)
    raw = json.dumps(header).encode()
    check(len(raw).to_bytes(8, "little") + raw + GOOD[8 + N_HEADER :])


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 10**8 + 1, len(GOOD) - 7])
def test_header_longer_than_the_file(size: int) -> None:
    with pytest.raises(ArtifactError, match="truncated"):
        artifact.parse(size.to_bytes(8, "little") + GOOD[8:])


def test_things_that_are_not_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    for path in (tmp_path, tmp_path / "none", tmp_path / "fifo", tmp_path / "empty", "/dev/zero", "nul\0"):
        with pytest.raises(ArtifactError):
            load(path)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (TargetSpec("riscv64-unknown-linux-gnu", "sifive"), "compiled for riscv64"),
        (TargetSpec(TARGET.triple.replace("linux", "windows"), "generic"), "compiled for"),
        (TargetSpec(TARGET.triple, "future", ("avx2048", "warp-drive")), "avx2048, warp-drive"),
    ],
)
def test_other_machines(target: TargetSpec, words: str, tmp_path: Path) -> None:
    manifest, objects, weights = scale_parts(target=target)
    artifact.save(tmp_path / "m.tw", manifest, objects, weights)
    assert artifact.load(tmp_path / "m.tw").manifest.target == target, "tools can look at it"
    with pytest.raises(ArtifactError, match=words):
        load(tmp_path / "m.tw")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "some"),
    [("x86-64", set()), ("x86-64-v3", {"avx2", "fma", "bmi2"}), ("x86-64-v4", {"avx512f", "avx512vl"}),
     ("znver4", {"avx512vnni", "sse4a"}), ("neoverse-n1", {"dotprod"}), ("aarch64-sve", {"sve"})],
)  # fmt: skip
def test_a_named_target_says_what_it_needs(name: str, some: set[str]) -> None:
    """Code for AVX-512 was run on a CPU without it, and ended the process: the name alone did not tell the loader."""
    found = set(tw.compile(small_models.perceptron(), target=name, cache=False).manifest.target.features)
    assert some <= found and bool(some) == bool(found - {"neon"})


def test_a_file_for_a_cpu_that_this_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triple, flags = host._host()
    monkeypatch.setattr(host, "_host", lambda: (triple, flags - {"avx512f"}))
    if not triple.startswith("x86_64"):
        pytest.skip("for x86-64")
    model = tw.compile(small_models.perceptron(), target="x86-64-v4", cache=False)
    model.save(tmp_path / "m.tw")
    for use in (lambda: model(X), lambda: load(tmp_path / "m.tw")):
        with pytest.raises(ArtifactError, match=r"lacks: .*avx512f"):
            use()


def test_objects_that_do_not_link() -> None:
    manifest, objects, weights = scale_parts()
    for wrong in (objects[:1], objects + objects[:1], [artifact.ObjectImage("junk", b"\x7fELF" + b"junk" * 100)]):
        with pytest.raises(ArtifactError, match="do not link"):
            LoadedModel(manifest, wrong, weights)


def test_loading_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.tw"
    scale_model().save(path)
    code = f"""
        import sys, numpy as np
        import tilewright.runtime as rt
        assert "llvmlite" not in sys.modules
        model = rt.load({str(path)!r})
        assert model(np.ones((2, 4), np.float32)).tolist() == [[12.0] * 4] * 2
        foreign = [m for m in sys.modules if m.startswith("tilewright.") and not m.startswith("tilewright.runtime")]
        assert foreign == [], foreign
        assert "torch" not in sys.modules and "onnx" not in sys.modules
    """
    monkeypatch.setenv("PATH", "")
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_a_small_file_may_be_overwritten_while_its_model_is_loaded(tmp_path: Path) -> None:
    """As ``cp NEW FILE`` does; what is loaded has pages of its own."""
    path = tmp_path / "scale.tw"
    artifact.save(path, *scale_parts(10.0))
    model = load(path)
    x = np.ones((2, 4), np.float32)
    with path.open("r+b") as file:
        file.truncate(100)
        assert model(x)[0, 0] == 12
        file.truncate(0)
        artifact.save(tmp_path / "new.tw", *scale_parts(20.0))
        file.write((tmp_path / "new.tw").read_bytes())
    assert model(x)[0, 0] == 12 and load(path)(x)[0, 0] == 22


@pytest.mark.parametrize("copy", [None, True, False])
def test_saving_over_a_loaded_file_leaves_its_model_alone(copy: bool | None, tmp_path: Path) -> None:
    path = tmp_path / "scale.tw"
    artifact.save(path, *scale_parts(10.0))
    model = load(path, copy=copy)
    artifact.save(path, *scale_parts(20.0))
    x = np.ones((2, 4), np.float32)
    assert model(x)[0, 0] == 12 and load(path, copy=copy)(x)[0, 0] == 22


@pytest.mark.parametrize(("copy", "limit", "is_mapped"), [(None, 0, True), (None, 1 << 20, False), (True, 0, False)])
def test_large_files_are_mapped_unless_asked_otherwise(
    copy: bool | None, limit: int, is_mapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact, "COPIED_TO", limit)
    path = tmp_path / "scale.tw"
    artifact.save(path, *scale_parts(10.0))
    model = load(path, copy=copy)
    assert (str(path) in Path("/proc/self/maps").read_text()) == is_mapped
    assert model(np.ones((2, 4), np.float32))[0, 0] == 12
