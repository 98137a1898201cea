"""``tilewright.decoder``: a language model with its cache, ready to generate.

In: a causal language model of transformers, and options. Out: a ``Decoder``. Not its business: the step as a module
(``frontend.torch.decoder``), the loop over tokens (``runtime.python.decoder``).
"""

from __future__ import annotations

from typing import Any

from tilewright.build.driver import compile
from tilewright.core.diag import OptionError
from tilewright.frontend.torch.decoder import decoder_step
from tilewright.runtime.python.decoder import Decoder
from tilewright.runtime.python.model import LoadedModel


def decoder(
    model: Any,
    *,
    max_length: int = 2048,
    chunk: int = 64,
    precision: str = "fp32",
    threads: int | None = None,
    cache: bool = True,
) -> Decoder:
    """Compile a causal language model of transformers, such as a ``LlamaForCausalLM``, for generating.

    The cache holds ``max_length`` tokens (rounded up to whole chunks), in f32. There is code for one token and for
    ``chunk`` of them, in which prompts are read; both read the same weights. ``precision``, ``threads`` and ``cache``
    are as for ``compile``. ``OptionError`` for an option or a model that this can't be done for; ``CompileError`` as
    ``compile`` raises.
    """
    numbers: dict[str, Any] = {"max_length": max_length, "chunk": chunk}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise OptionError(f"{name}={value!r:.80} is no number of tokens", remedy="use 1 or more")
    chunk = min(max(chunk, 2), max(max_length, 2))
    step = decoder_step(model, -(-max_length // chunk) * chunk, chunk)
    made = compile(
        step.module, step.arguments, dynamic_shapes=step.dynamic_shapes, precision=precision, threads=threads,
        cache=cache, specialize={"tokens": [1, chunk]},
    )  # fmt: skip
    assert isinstance(made, LoadedModel)
    return Decoder(made, chunk)
