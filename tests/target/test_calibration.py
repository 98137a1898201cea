"""What is measured of a CPU: plausible, kept for its model, refused when damaged, and read by no choice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.build.options import Options
from tilewright.codegen.cpu import calibrate as calibrate_module
from tilewright.codegen.cpu.calibrate import calibrate
from tilewright.core.diag import OptionError
from tilewright.target.calibration import RATES, calibration_file, store_calibration, stored_calibration, with_measured
from tilewright.target.errors import CalibrationError
from tilewright.target.sources import MEASURED
from tilewright.target.target import NUMBERS, Target

HOST = Target.host()


def test_this_machine_is_measured_in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds are those of any machine under any load: the best of a few rounds, of less than is read for good."""
    monkeypatch.setattr(calibrate_module, "MAX_MEMORY_BYTES", 1 << 24)
    monkeypatch.setattr(calibrate_module, "FORKS", 400)
    found = calibrate(HOST, seconds=0.002)
    alone = {"memory_gb_per_s_all", "fork_cycles", "wake_us"} if HOST.n_cores == 1 else set()
    assert found.keys() == RATES.keys() - alone and all(value > 0 for value in found.values())
    assert 0.1 < found["ghz"] < 10 and 1 < found["fma_latency"] < 100 and 0.05 < found["fmas_per_cycle"] < 10
    one_core = calibrate(replace(HOST, n_cores=1), seconds=0.0)
    assert one_core.keys() == RATES.keys() - {"memory_gb_per_s_all", "fork_cycles", "wake_us"}


def test_another_machine_can_not_be_measured() -> None:
    with pytest.raises(OptionError, match="cortex-m4 can't be measured here"):
        calibrate(Target.parse("cortex-m4"))


def test_numbers_come_back_and_no_choice_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    before = Options("native").machine
    assert stored_calibration(HOST, tmp_path) == {}
    numbers = {name: 3.5 for name in RATES}
    path = store_calibration(HOST, tmp_path, numbers)
    assert path == calibration_file(HOST, tmp_path) and path.parent.parent == tmp_path
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing is left beside it
    assert stored_calibration(HOST, tmp_path) == numbers

    measured = with_measured(HOST, numbers)
    of_record = RATES.keys() & NUMBERS.keys()
    assert of_record and all(getattr(measured, n) == 3.5 and measured.source_of(n) == MEASURED for n in of_record)
    assert measured.judged() == HOST.judged() == before == Options("native").machine


def test_models_of_cpus_are_kept_apart(tmp_path: Path) -> None:
    other = replace(HOST, vector_bytes=2 * HOST.vector_bytes)
    store_calibration(other, tmp_path, {"ghz": 1.0})
    assert stored_calibration(HOST, tmp_path) == {} and stored_calibration(other, tmp_path) == {"ghz": 1.0}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"cpu": "z80"},
        {"vector_bytes": "wide"},
        {"numbers": {"ghz": -1}},
        {"numbers": {"ghz": True}},
        {"numbers": {"ghz": 1e999}},
        {"numbers": {"gigahertz": 2.0}},
        {"numbers": []},
        {"more": 1},
    ],
    ids=str,
)
def test_a_damaged_file_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    path = store_calibration(HOST, tmp_path, {"ghz": 2.0})
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CalibrationError, match="is not used") as refused:
        stored_calibration(HOST, tmp_path)
    assert str(path) in str(refused.value) and "doctor --calibrate" in refused.value.remedy


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * (1 << 17)])
def test_what_is_no_json_is_refused(content: bytes, tmp_path: Path) -> None:
    store_calibration(HOST, tmp_path, {"ghz": 2.0}).write_bytes(content)
    with pytest.raises(CalibrationError):
        stored_calibration(HOST, tmp_path)
