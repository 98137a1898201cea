"""One step of a causal language model of transformers, as a module that takes and gives its cache.

In: a model. Out: a module with plain tensors in and out, and example inputs. Not its business: compiling it, the loop
over tokens (``runtime.python.decoder``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.core.diag import OptionError
from tilewright.frontend.source import is_a

if TYPE_CHECKING:
    import torch


FULL, SLIDING = "full_attention", "sliding_attention"
"""What transformers calls layers whose tokens look at all before them, and at as many as a window holds."""


CACHES = ("fp32", "bf16", "int8", "fp8", "fp8e5m2")
"""What a cache may be held in."""


class DecoderStep(NamedTuple):
    """A module ``(tokens, start, last, *cache) -> (logits, *cache)``, arguments for it, and its dynamic shapes.

    ``tokens`` is i64[1, T] with T from 1 on, ``start`` the place of the first, ``last`` i64[1] the number of the one
    whose logits f32[1, words] are wanted. Each layer has a cache of keys and one of values, [places, 1, heads, width],
    of which a call may get the first places alone: those up to its last token. Each is one tensor or, in 8 bits, two:
    codes, and their scales f32[places, 1, heads, 1].
    """

    module: torch.nn.Module
    arguments: tuple[Any, ...]
    dynamic_shapes: dict[str, Any]


class CacheForm(NamedTuple):
    """How a cache holds what it is given: ``store`` makes its tensors, places first, and ``read`` the rows again."""

    store: Callable[[Any], tuple[Any, ...]]
    read: Callable[..., Any]


def _forms() -> dict[str, CacheForm]:
    """The form of each of ``CACHES``."""
    import torch

    def coded(dtype: torch.dtype, rounded: Callable[[Any], Any] = lambda x: x) -> CacheForm:
        """Each row by its own scale, symmetric: the largest number of a row is the largest of the type."""
        largest = float((torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max)

        def store(x: Any) -> tuple[Any, ...]:
            scale = x.abs().amax(-1, keepdim=True) / largest
            return rounded(x / torch.where(scale == 0, 1.0, scale)).to(dtype), scale

        return CacheForm(store, lambda codes, scale: codes.to(torch.float32) * scale)

    forms = (
        CacheForm(lambda x: (x,), lambda x: x),
        CacheForm(lambda x: (x.to(torch.bfloat16),), lambda x: x.to(torch.float32)),
        coded(torch.int8, torch.round),
        coded(torch.float8_e4m3fn),
        coded(torch.float8_e5m2),
    )
    return dict(zip(CACHES, forms, strict=True))


def decoder_step(model: Any, places: int, chunk: int, kept_in: str = "fp32") -> DecoderStep:
    """The step of a model with a cache of ``places``, in one of ``CACHES``.

    ``OptionError`` for a model that is no causal language model.
    """
    if not is_a(model, "transformers", "PreTrainedModel") or not model.can_generate():
        raise OptionError(
            f"{type(model).__name__} is no causal language model of transformers",
            remedy="pass a model such as LlamaForCausalLM",
        )
    import torch
    import transformers

    window = getattr(model.config, "sliding_window", None)
    kinds = set(getattr(model.config, "layer_types", None) or ())
    if unknown := sorted(kinds - {FULL, SLIDING}):
        raise OptionError(f"layers of {unknown[0]} are not offered", remedy=f"use a model of {FULL} and {SLIDING}")

    layer: Any = transformers.cache_utils.DynamicLayer
    form = _forms()[kept_in]

    class Kept(transformers.cache_utils.Cache):  # type: ignore[misc]  # mypy reads no transformers
        """What layers append to: caches of all places, or, to learn their shapes, nothing."""

        def __init__(self, caches: list[Any], at: Any) -> None:
            self.caches, self.at = caches, at
            self.made: list[Any] = []
            self.layers = [layer() for _ in caches]

        def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
            # Places come first, so that a token's keys are neighbours in memory and appending writes one row.
            rows = [form.store(x.permute(2, 0, 1, 3)) for x in (key_states, value_states)]
            if self.caches:
                old = iter(self.caches[layer_idx])
                rows = [tuple(torch.index_copy(next(old), 0, self.at, x) for x in parts) for parts in rows]
            self.made.append([x for parts in rows for x in parts])
            return tuple(form.read(*parts).permute(1, 2, 0, 3) for parts in rows)

        def get_seq_length(self, *_: Any, **__: Any) -> int:
            return 0

    def masks(at: Any, n_places: int) -> Any:
        """What is added to scores: a mask for all layers, or one for each kind where there are several."""
        distance = at[:, None] - torch.arange(n_places)[None, :]
        seen = {FULL: distance >= 0}
        if window is not None:
            seen[SLIDING] = seen[FULL] & (distance < window)
        added = {kind: torch.where(s, 0.0, torch.finfo(torch.float32).min)[None, None] for kind, s in seen.items()}
        # Models whose layers are of several kinds look a layer's mask up by its kind; others take one.
        return added if SLIDING in kinds else added[FULL if window is None or kinds else SLIDING]

    class OneStep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Any, start: Any, last: Any, *cache: Any) -> Any:
            at = start + torch.arange(tokens.shape[1])
            kept = Kept([cache[k : k + n_parts] for k in range(0, len(cache), n_parts)], at)
            mask = masks(at, cache[0].shape[0])
            logits = self.model(
                input_ids=tokens, attention_mask=mask, position_ids=at[None], past_key_values=kept, use_cache=True,
                logits_to_keep=last,
            ).logits  # fmt: skip
            return logits[:, 0], *[x for made in kept.made for x in made]

    learnt = Kept([], None)
    with torch.no_grad():
        token = torch.zeros((1, 1), dtype=torch.int64)
        model(input_ids=token, position_ids=token, attention_mask=torch.zeros(1, 1, 1, 1), past_key_values=learnt)
    cache = [torch.zeros(places, *x.shape[1:], dtype=x.dtype) for made in learnt.made for x in made]
    n_parts = len(learnt.made[0])
    tokens, at = torch.zeros((1, chunk), dtype=torch.int64), torch.tensor(0)
    length = torch.export.Dim("tokens", min=1, max=chunk)
    # A cache of one chunk is always read whole, and PyTorch has no dimension of a single size.
    seen = {0: torch.export.Dim("places", min=chunk, max=places)} if places > chunk else None
    shapes = {"tokens": {1: length}, "start": None, "last": None, "cache": (seen,) * len(cache)}
    return DecoderStep(OneStep().eval(), (tokens, at, torch.zeros(1, dtype=torch.int64), *cache), shapes)
