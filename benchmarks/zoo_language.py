"""Language models of the zoo, from transformers' configurations with random weights: (AL)BERT, GPT-2, Llama, T5, BART.

In: ``small``. Out: (module, inputs by name, axes that may vary). A decoder's cache is explicit: tensors in and out.
Not its business: tokenisers, sampling, pretrained weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, dict[str, Tensor], dict[str, dict[int, str]]]
SEQUENCE = {0: "batch", 1: "tokens"}


def _ids(vocabulary: int, tokens: int, batch: int = 1) -> Tensor:
    return torch.randint(0, vocabulary, (batch, tokens))


class HiddenStates(nn.Module):
    """An encoder from token ids and mask to its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Decoder(nn.Module):
    """A causal model with its cache as tensors: ``(ids, k0, v0, k1, v1, ...) -> (logits, k0, v0, k1, v1, ...)``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        from transformers import DynamicCache  # here: Dynamo follows no import of a part of a package

        self.model = model
        self.cache_of = DynamicCache

    def forward(self, input_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        cache = self.cache_of([(past[i], past[i + 1]) for i in range(0, len(past), 2)] or None)
        start = past[0].shape[2] if past else 0
        positions = torch.arange(start, start + input_ids.shape[1], device=input_ids.device)[None]
        result = self.model(input_ids=input_ids, past_key_values=cache, position_ids=positions, use_cache=True)
        return (result.logits, *(t for layer in cache.layers for t in (layer.keys, layer.values)))


def _decode(model: nn.Module, config: Any, heads: int, head_dim: int, layers: int, past_tokens: int) -> Built:
    """One token given a cache of ``past_tokens``."""
    inputs = {"input_ids": _ids(config.vocab_size, 1)}
    axes = {}
    for layer in range(layers):
        for kind in ("key", "value"):
            inputs[f"past_{kind}_{layer}"] = torch.randn(1, heads, past_tokens, head_dim)
            axes[f"past_{kind}_{layer}"] = {2: "past"}
    return Decoder(model), inputs, axes


def _encoder_inputs(vocabulary: int, small: bool) -> dict[str, Tensor]:
    batch, tokens = (2, 16) if small else (1, 128)
    mask = torch.ones(batch, tokens, dtype=torch.int64)
    mask[0, tokens - tokens // 8 :] = 0
    return {"input_ids": _ids(vocabulary, tokens, batch), "attention_mask": mask}


def bert_base(small: bool) -> Built:
    from transformers import BertConfig, BertModel

    sizes = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 101,
    }
    config = BertConfig(**(sizes if small else {}), attn_implementation="sdpa")
    model = HiddenStates(BertModel(config, add_pooling_layer=False))
    inputs = _encoder_inputs(config.vocab_size, small)
    return model, inputs, {name: SEQUENCE for name in inputs}


def bert_base_batch8(small: bool) -> Built:
    model, inputs, axes = bert_base(small)
    return model, {name: x if small else x.expand(8, -1).contiguous() for name, x in inputs.items()}, axes


def albert_base(small: bool) -> Built:
    from transformers import AlbertConfig, AlbertModel

    full = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    less = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 101,
        "embedding_size": 24,
    }
    config = AlbertConfig(**(less if small else full), attn_implementation="sdpa")
    model = HiddenStates(AlbertModel(config, add_pooling_layer=False))
    inputs = _encoder_inputs(config.vocab_size, small)
    return model, inputs, {name: SEQUENCE for name in inputs}


class DecoderStep(nn.Module):
    """A decoder's step without a cache: tokens so far and the encoder's states in, logits out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, decoder_input_ids: Tensor, encoder_states: Tensor) -> Tensor:
        from transformers.modeling_outputs import BaseModelOutput

        states = BaseModelOutput(last_hidden_state=encoder_states)
        result = self.model(decoder_input_ids=decoder_input_ids, encoder_outputs=states, use_cache=False)
        return result.logits


def bart_decoder(small: bool) -> Built:
    from transformers import BartConfig, BartForConditionalGeneration

    width = 48 if small else 768
    sizes = {
        "d_model": width,
        "encoder_layers": 1,
        "decoder_layers": 2 if small else 6,
        "vocab_size": 101 if small else 50265,
    }
    heads = {"encoder_attention_heads": 4 if small else 12, "decoder_attention_heads": 4 if small else 12}
    ffn = {"encoder_ffn_dim": 4 * width, "decoder_ffn_dim": 4 * width}
    tokens = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "forced_eos_token_id": None}
    config = BartConfig(**sizes, **heads, **ffn, **tokens, attn_implementation="sdpa")
    inputs = {
        "decoder_input_ids": torch.randint(3, config.vocab_size, (1, 5 if small else 16)),
        "encoder_states": torch.randn(1, 9 if small else 128, width),
    }
    return DecoderStep(BartForConditionalGeneration(config)), inputs, {"encoder_states": {1: "source"}}


def _gpt2(small: bool) -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 101, "n_positions": 64}
    tokens = {"bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(**(sizes if small else {}), **tokens, attn_implementation="sdpa")
    return GPT2LMHeadModel(config), config


def gpt2_prefill(small: bool) -> Built:
    model, config = _gpt2(small)
    return Decoder(model), {"input_ids": _ids(config.vocab_size, 12 if small else 128)}, {"input_ids": {1: "tokens"}}


def gpt2_decode(small: bool) -> Built:
    model, config = _gpt2(small)
    head_dim = config.n_embd // config.n_head
    return _decode(model, config, config.n_head, head_dim, config.n_layer, 9 if small else 128)


def _llama(small: bool) -> tuple[nn.Module, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    small_sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 101}
    full_sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8, "vocab_size": 32000}
    heads = {"num_attention_heads": 8 if small else 16, "num_key_value_heads": 2 if small else 4}
    tokens = {"bos_token_id": None, "eos_token_id": None, "max_position_embeddings": 2048}
    config = LlamaConfig(**(small_sizes if small else full_sizes), **heads, **tokens, attn_implementation="sdpa")
    return LlamaForCausalLM(config), config


def llama(small: bool) -> Built:
    model, config = _llama(small)
    return Decoder(model), {"input_ids": _ids(config.vocab_size, 12 if small else 128)}, {"input_ids": {1: "tokens"}}


def llama_decode(small: bool) -> Built:
    model, config = _llama(small)
    head_dim = config.hidden_size // config.num_attention_heads
    return _decode(model, config, config.num_key_value_heads, head_dim, config.num_hidden_layers, 9 if small else 128)


def t5_encoder(small: bool) -> Built:
    from transformers import T5Config, T5EncoderModel

    sizes = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 101}
    config = T5Config(**(sizes if small else {}))
    inputs = _encoder_inputs(config.vocab_size, small)
    return HiddenStates(T5EncoderModel(config)), inputs, {name: SEQUENCE for name in inputs}
