"""How fast the machine is: a number, also where its clock of processor time moves in jumps."""

import time

import pytest

import pace


def test_a_clock_that_moves_in_jumps_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([1.0, 1.0, 1.0, 1.01])
    monkeypatch.setattr(time, "process_time", lambda: next(ticks))
    assert pace.loop_ms() == pytest.approx(10 * 1_000_000 / (3 * pace.STEPS))
