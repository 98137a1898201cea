"""Matrix registers are a feature of the process, not of the CPU alone."""

import pytest

from tilewright.runtime import host, matrix_registers
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.manifest import TargetSpec

FEATURES = "+avx512f,+amx-tile,-amx-fp16,+amx-bf16,+amx-movrs"


@pytest.mark.parametrize("is_granted", [True, False])
def test_features_of_registers_that_were_refused_are_off(monkeypatch: pytest.MonkeyPatch, is_granted: bool) -> None:
    monkeypatch.setattr(matrix_registers, "are_granted", lambda: is_granted)
    found = matrix_registers.usable(FEATURES)
    assert found == (FEATURES if is_granted else "+avx512f,-amx-tile,-amx-fp16,-amx-bf16,-amx-movrs")


def test_nobody_asks_for_registers_that_the_cpu_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_registers, "are_granted", lambda: pytest.fail("asked"))
    assert matrix_registers.usable("+avx512f,-amx-tile") == "+avx512f,-amx-tile"


def test_an_artifact_that_needs_them_is_refused_where_they_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    triple, features = host._host()
    left = frozenset(f for f in features if not f.startswith(matrix_registers.PREFIX))
    monkeypatch.setattr(host, "_host", lambda: (triple, left))
    with pytest.raises(ArtifactError, match="amx-bf16, amx-tile"):
        host.check_target(TargetSpec(triple, "sapphirerapids", ("amx-bf16", "amx-tile")))
