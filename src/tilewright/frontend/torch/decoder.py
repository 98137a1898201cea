"""One step of a causal language model of transformers, as a module that takes and gives its cache.

In: a model. Out: a module with plain tensors in and out, and example inputs. Not its business: compiling it, the loop
over tokens (``runtime.python.decoder``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.core.diag import OptionError
from tilewright.frontend.source import is_a

if TYPE_CHECKING:
    import torch


FULL, SLIDING = "full_attention", "sliding_attention"
"""What transformers calls layers whose tokens look at all before them, and at as many as a window holds."""


class DecoderStep(NamedTuple):
    """A module ``(tokens, start, last, *cache) -> (logits, *cache)``, arguments for it, and its dynamic shapes.

    ``tokens`` is i64[1, T] with T from 1 on, ``start`` the place of the first, ``last`` i64[1] the number of the one
    whose logits f32[1, words] are wanted. Each layer has two caches f32[places, 1, heads, width], of which a call may
    get the first places alone: those up to its last token.
    """

    module: torch.nn.Module
    arguments: tuple[Any, ...]
    dynamic_shapes: dict[str, Any]


def decoder_step(model: Any, places: int, chunk: int) -> DecoderStep:
    """The step of a model with a cache of ``places``; ``OptionError`` for a model that is no causal language model."""
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

    class Kept(transformers.cache_utils.Cache):
        """What layers append to: caches of all places, or, to learn their shapes, nothing."""

        def __init__(self, pairs: list[Any], at: Any) -> None:
            self.pairs, self.at = pairs, at
            self.made: list[Any] = []
            self.layers = [layer() for _ in pairs]

        def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
            if not self.pairs:
                self.made.append((key_states, value_states))
                return key_states, value_states
            # Places come first, so that a token's keys are neighbours in memory and appending writes one row.
            new = [
                torch.index_copy(old, 0, self.at, x.permute(2, 0, 1, 3))
                for old, x in zip(self.pairs[layer_idx], (key_states, value_states), strict=True)
            ]
            self.made.append(new)
            return tuple(x.permute(1, 2, 0, 3) for x in new)

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
            kept = Kept(list(zip(cache[::2], cache[1::2], strict=True)), at)
            mask = masks(at, cache[0].shape[0])
            logits = self.model(
                input_ids=tokens, attention_mask=mask, position_ids=at[None], past_key_values=kept, use_cache=True,
                logits_to_keep=last,
            ).logits  # fmt: skip
            return logits[:, 0], *[x for pair in kept.made for x in pair]

    learnt = Kept([], None)
    with torch.no_grad():
        token = torch.zeros((1, 1), dtype=torch.int64)
        model(input_ids=token, position_ids=token, attention_mask=torch.zeros(1, 1, 1, 1), past_key_values=learnt)
    cache = [torch.zeros(places, 1, x.shape[1], x.shape[3]) for pair in learnt.made for x in pair]
    tokens, at = torch.zeros((1, chunk), dtype=torch.int64), torch.tensor(0)
    length, seen = torch.export.Dim("tokens", min=1, max=chunk), torch.export.Dim("places", min=chunk, max=places)
    shapes = {"tokens": {1: length}, "start": None, "last": None, "cache": ({0: seen},) * len(cache)}
    return DecoderStep(OneStep().eval(), (tokens, at, torch.zeros(1, dtype=torch.int64), *cache), shapes)
