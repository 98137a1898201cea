"""Tokens per second of a decoder, in the prompt and one at a time, beside what memory gives.

In: a decoder and how many bytes of weights a token reads. Out: rates, shortest times of turns taken in one run.
Not its business: which model (``cli.tokens``, ``benchmarks``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.build.options import FEW_BITS
from tilewright.codegen.cpu.calibrate import Calibrator
from tilewright.core import types
from tilewright.runtime.python.decoder import Decoder
from tilewright.target.target import Target

TURNS = 5
STEPS = 8
"""Tokens of a turn."""


@dataclass(frozen=True)
class TokenRates:
    """``share`` is what decoding reads of weights in a second, over what a loop that only reads gets from memory."""

    prefill_per_s: float
    decode_per_s: float
    weights_bytes: int
    read_gb_per_s: float

    @property
    def share(self) -> float:
        return self.decode_per_s * self.weights_bytes / (self.read_gb_per_s * 1e9)


def product_bytes(model: Any, precision: str) -> int:
    """The bytes of all weights that one token of a PyTorch model multiplies, as this precision stores them."""
    n = sum(m.weight.numel() for m in model.modules() if type(m).__name__ in ("Linear", "Conv1D"))
    if precision not in FEW_BITS:
        return int(n * (types.bf16 if precision == "bf16" else types.f32).n_bytes)
    few = FEW_BITS[precision]
    steps = n // few.group * types.f16.n_bytes if few.book.has_steps else 0
    return int(n * few.book.bits // types.u8.bits + steps)


def token_rates(decoder: Decoder, weights_bytes: int, n_prompt: int = 512) -> TokenRates:
    """Measure: in every turn memory, a prompt, then some tokens one by one."""
    n_prompt = min(n_prompt, decoder.max_length - STEPS)
    prompt = np.random.default_rng(0).integers(0, decoder.n_words, n_prompt)
    meter = Calibrator(Target.host(), seconds=0.2)

    def steps() -> None:
        for k in range(STEPS):
            decoder.step(k, n_prompt + k)

    read, prefill, decode = 0.0, float("inf"), float("inf")
    for _ in range(TURNS):
        read = max(read, meter.memory_gb_per_s(decoder.model.threads))
        prefill = min(prefill, _seconds(lambda: decoder.prefill(prompt)))
        decode = min(decode, _seconds(steps))
    return TokenRates(n_prompt / prefill, STEPS / decode, weights_bytes, read)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
