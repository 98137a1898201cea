"""``tilewright.decoder``: a language model with its cache, ready to generate.

In: a causal language model of transformers or a GGUF file of one, and options. Out: a ``Decoder``. Not its business:
the step as a module (``frontend.torch.decoder``), the loop over tokens (``runtime.python.decoder``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.build.driver import compile
from tilewright.core.diag import OptionError
from tilewright.frontend.torch.decoder import CACHES, decoder_step
from tilewright.frontend.weights.decoders import decoder_of
from tilewright.frontend.weights.gguf_file import open_gguf
from tilewright.runtime.python.decoder import Decoder
from tilewright.runtime.python.model import LoadedModel

MOST_TOKENS = 2048
"""What a cache holds unless more are asked for."""


def decoder(
    model: Any,
    *,
    max_length: int | None = None,
    chunk: int = 64,
    precision: str = "fp32",
    kv_cache_precision: str = "fp32",
    threads: int | None = None,
    cache: bool = True,
) -> Decoder:
    """Compile a causal language model of transformers, such as a ``LlamaForCausalLM``, for generating.

    The path of a GGUF file (``.gguf``) stands for the model that its metadata describe, with the weights that it holds,
    in the codes that it holds them in; another ``precision`` than "fp32" chooses codes anew (``docs/weights.md``).

    The cache holds ``max_length`` tokens: by default those that the model has positions for, but at most
    ``MOST_TOKENS``. ``kv_cache_precision`` says how: in ``"fp32"``, in ``"bf16"``, or in ``"int8"``, ``"fp8"`` (E4M3)
    or ``"fp8e5m2"`` with a scale for each token's keys and values of a head, symmetric and by its largest number. There
    is code for one token and for ``chunk`` of them, in which prompts are read; both read the same weights.
    ``precision``, ``threads`` and ``cache`` are as for ``compile``. ``OptionError`` for an option or a model that this
    can't be done for; ``CompileError`` as ``compile`` raises.
    """
    if isinstance(model, str | Path):
        model = decoder_of(open_gguf(Path(model)), keeps_codes=precision == "fp32")
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    max_length = min(positions or MOST_TOKENS, MOST_TOKENS) if max_length is None else max_length
    numbers: dict[str, Any] = {"max_length": max_length, "chunk": chunk}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise OptionError(f"{name}={value!r:.80} is no number of tokens", remedy="use 1 or more")
    if positions is not None and max_length > positions:
        raise OptionError(f"max_length={max_length}, but the model has {positions} positions", remedy="use no more")
    if kv_cache_precision not in CACHES:
        rule = f"kv_cache_precision={kv_cache_precision!r:.80} is no form of a cache"
        raise OptionError(rule, remedy=f"use {', '.join(CACHES[:-1])} or {CACHES[-1]}")
    chunk = min(max(chunk, 2), max(max_length, 2))
    step = decoder_step(model, -(-max_length // chunk) * chunk, chunk, kv_cache_precision)
    made = compile(
        step.module, step.arguments, dynamic_shapes=step.dynamic_shapes, precision=precision, threads=threads,
        cache=cache, specialize={"tokens": [1, chunk]},
    )  # fmt: skip
    assert isinstance(made, LoadedModel)
    return Decoder(made, chunk, max_length)
