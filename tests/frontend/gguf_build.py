"""Small language models of transformers, written as GGUF files the way llama.cpp's converter stores them."""

from pathlib import Path

import gguf
import numpy as np

from tilewright.core.types import Array

COMMON = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
MODELS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 32}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {"head_dim": 16, "tie_word_embeddings": True}),
}
_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def model_of(kind: str):
    import transformers  # here: it loads a second's worth of modules for few tests

    config, make, more = MODELS[kind]
    model = getattr(transformers, make)(getattr(transformers, config)(**COMMON, **more)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.uniform_(-0.5, 0.5)  # norms and biases begin as ones and zeros, which hide mistakes
    return model


def _side_by_side(rows: Array, heads: int) -> Array:
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write(path: Path, kind: str, model, of: str = "F32", more=lambda writer: None) -> None:
    """``model`` as a file of an architecture, matrices in blocks of the type ``of``."""
    writer, config = gguf.GGUFWriter(path, kind), model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    more(writer)
    for name, tensor in model.state_dict().items():
        stem, suffix = name.rsplit(".", 1)
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        block, rest = "", stem
        if stem.startswith("model.layers."):
            block, rest = stem.removeprefix("model.layers.").split(".", 1)
            block = f"blk.{block}."
        numbers = tensor.numpy()
        if kind == "llama" and rest in ("self_attn.q_proj", "self_attn.k_proj"):
            heads = config.num_attention_heads if "q_proj" in rest else config.num_key_value_heads
            numbers = _side_by_side(numbers, heads)
        if kind == "gemma" and "norm" in rest:
            numbers = numbers + 1
        chosen = gguf.GGMLQuantizationType[of if numbers.ndim == 2 else "F32"]
        writer.add_tensor(f"{block}{_NAMES[rest]}.{suffix}", gguf.quants.quantize(numbers, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
