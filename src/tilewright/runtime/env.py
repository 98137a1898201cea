"""The only reader of environment variables in Tilewright.

In: a mapping such as ``os.environ``. Out: a frozen ``Environment``. Not its business: what the values lead to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from tilewright.runtime.plain import dataclass


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables Tilewright understands, parsed; None means not set or not usable."""

    threads: int | None = None
    """``TILEWRIGHT_THREADS``: default number of threads of a model."""
    omp_threads: int | None = None
    """``OMP_NUM_THREADS``: used where ``TILEWRIGHT_THREADS`` is not set (first number of a list)."""
    cache: str | None = None
    """``TILEWRIGHT_CACHE``: folder of the disk cache; ``off`` or ``0`` turns it off."""
    cache_bytes: int | None = None
    """``TILEWRIGHT_CACHE_BYTES``: size limit of the disk cache."""
    dump: str | None = None
    """``TILEWRIGHT_DUMP``: where every compile that the cache does not answer writes its stages, in a new folder."""
    strict: bool = False
    """``TILEWRIGHT_STRICT``: under ``torch.compile`` nothing falls back to PyTorch; what would is an error. The value
    ``compiler`` leaves that as it is."""
    strict_compiler: bool = False
    """The same variable, also with the value ``compiler``: the compiler verifies what it has after every pass, and a
    rule that breaks is an error instead of a note."""
    spin_us: int | None = None
    """``TILEWRIGHT_SPIN_US``: how long an idle worker spins before it sleeps."""
    lapack: bool = True
    """``TILEWRIGHT_LAPACK``: ``off`` or ``0`` keeps models that are loaded later from calling another library."""
    pages: bool = True
    """``TILEWRIGHT_PAGES``: ``off`` or ``0`` keeps Linux from being asked which pages of weights were written."""
    home: str | None = None
    """``XDG_CACHE_HOME`` or ``HOME/.cache``: where the default cache folder lies."""


_OFF = ("", "0", "off")


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Parse ``environ`` (the process's own when None); a malformed number counts as not set."""
    env = os.environ if environ is None else environ
    strict = env.get("TILEWRIGHT_STRICT", "").strip().lower()
    return Environment(
        threads=_positive(env.get("TILEWRIGHT_THREADS")),
        omp_threads=_positive(env.get("OMP_NUM_THREADS", "").split(",")[0]),
        cache=env.get("TILEWRIGHT_CACHE") or None,
        cache_bytes=_number(env.get("TILEWRIGHT_CACHE_BYTES")),
        dump=env.get("TILEWRIGHT_DUMP") or None,
        strict=strict not in (*_OFF, "compiler"),
        strict_compiler=strict not in _OFF,
        spin_us=_number(env.get("TILEWRIGHT_SPIN_US")),
        lapack=env.get("TILEWRIGHT_LAPACK") not in ("off", "0"),
        pages=env.get("TILEWRIGHT_PAGES", "").strip().lower() not in ("0", "off"),
        home=_cache_home(env),
    )


def _number(text: str | None) -> int | None:
    stripped = (text or "").strip()
    return int(stripped) if stripped.isascii() and stripped.isdigit() and len(stripped) < 19 else None


def _positive(text: str | None) -> int | None:
    return _number(text) or None


def _cache_home(env: Mapping[str, str]) -> str | None:
    if env.get("XDG_CACHE_HOME"):
        return env["XDG_CACHE_HOME"]
    return os.path.join(env["HOME"], ".cache") if env.get("HOME") else None
