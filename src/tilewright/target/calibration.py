"""What was measured of a CPU, kept in the cache's folder: one file for each model of CPU.

In: numbers by name. Out: the same numbers later, and the record of this machine with them. Not its business: measuring
(``codegen.cpu.calibrate``).

A file is ``<cache folder>/machines/<cpu>-<digest>.json``, written beside and renamed, so that who reads at the same
time finds the old one or the new one. The digest is of what LLVM and the system call the CPU and of how wide its
vectors are here: a virtual machine may hide the widest. A file that holds anything else than numbers in their places is
refused by a ``CalibrationError`` and left alone; ``tilewright doctor`` says so and goes on without.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from tilewright.runtime.fields import FieldError, Fields, decode_json
from tilewright.runtime.files import read_file, write_text
from tilewright.runtime.host import cpu_model
from tilewright.target.errors import CalibrationError
from tilewright.target.sources import MEASURED
from tilewright.target.target import NUMBERS, Target

FORMAT = 1
MAX_BYTES = 1 << 16
RATES = {
    "ghz": "GHz", "fma_latency": "cycles", "fmas_per_cycle": "vectors/cycle", "load_bytes_per_cycle": "B/cycle",
    "store_bytes_per_cycle": "B/cycle", "l2_bytes_per_cycle": "B/cycle", "l2_store_bytes_per_cycle": "B/cycle",
    "llc_bytes_per_cycle": "B/cycle", "llc_store_bytes_per_cycle": "B/cycle", "memory_gb_per_s": "GB/s",
    "memory_store_gb_per_s": "GB/s", "memory_gb_per_s_all": "GB/s", "fork_cycles": "cycles", "wake_us": "us",
}  # fmt: skip
"""What can be measured, with units: fields and properties of the record, and what caches and memory take, which it does
not have. The last three need several threads."""


def calibration_file(target: Target, cache: str | os.PathLike[str]) -> Path:
    """Where a machine's numbers are kept below the cache's folder."""
    key = f"{target.cpu}\n{cpu_model()}\n{target.vector_bytes}"
    return Path(cache) / "machines" / f"{target.cpu}-{sha256(key.encode()).hexdigest()[:12]}.json"


def store_calibration(target: Target, cache: str | os.PathLike[str], numbers: Mapping[str, float]) -> Path:
    """Keep ``numbers``, names of ``RATES``, for this model of CPU; ``OSError`` where the file can't be written."""
    path = calibration_file(target, cache)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = {"format": FORMAT, "cpu": target.cpu, "model": cpu_model(), "vector_bytes": target.vector_bytes}
    write_text(path, json.dumps({**facts, "numbers": dict(numbers)}, indent=2) + "\n")
    return path


def stored_calibration(target: Target, cache: str | os.PathLike[str]) -> dict[str, float]:
    """What was measured of this model of CPU, nothing where nothing was.

    ``CalibrationError`` where the file can't be read, or is not one of ours for this CPU.
    """
    path = calibration_file(target, cache)
    try:
        return _numbers(Fields(decode_json(read_file(path, MAX_BYTES).data), "calibration"), target)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        remedy = "measure again with `tilewright doctor --calibrate`, which replaces it"
        raise CalibrationError(f"{path} is not used: {why}", remedy=remedy) from error


def with_measured(target: Target, numbers: Mapping[str, float]) -> Target:
    """The record with those of ``numbers`` that are its own fields; choices read none of them (``Target.judged``)."""
    return target.known(MEASURED, **{name: value for name, value in numbers.items() if name in NUMBERS})


def _numbers(fields: Fields, target: Target) -> dict[str, float]:
    fields.integer("format", FORMAT, FORMAT)
    for name, wanted in (("cpu", target.cpu), ("model", cpu_model())):
        fields.choice(name, (wanted,))
    fields.integer("vector_bytes", target.vector_bytes, target.vector_bytes)
    inner = fields.child("numbers")
    found = {name: inner.any(name) for name in RATES if inner.has(name)}
    inner.finish()
    fields.finish()
    for name, value in found.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise FieldError(f"{name} is {str(value)[:80]!r}, not a positive number")
    return found
