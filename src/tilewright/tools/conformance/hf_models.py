"""The Hugging Face architectures that ``hf`` compiles: a configuration class, small sizes, a model class, inputs.

In: nothing. Out: ``ARCHITECTURES``, data only; ``transformers`` is not imported here.
Not its business: building models and running them (``hf``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["tokens", "mask", "normal", "zeros", "ones", "boxes", "types", "positive", "images"]
"""How an input is filled: token numbers below ``vocab``; ones with a run of zeros at the end of each row but the first;
normal numbers; numbers below 30; zeros; ones; corners of boxes on a page of 0..1000; zeros and ones; token numbers with
16 places of an image, the last token of the vocabulary, near the front."""


@dataclass(frozen=True)
class Input:
    """An argument of ``forward``: its dimensions are numbers, or names from ``Architecture.dims``."""

    kind: Kind
    dims: tuple[int | str, ...]


@dataclass(frozen=True)
class Architecture:
    """One architecture; ``dims`` are the example's sizes of the named dimensions.

    ``others`` are sizes to run the program of symbolic sizes at. ``sizes`` may hold ``{"": "ClassName", ...}`` for a
    configuration inside of the configuration.
    """

    family: str
    config: str
    model: str
    sizes: Mapping[str, Any]
    inputs: Mapping[str, Input]
    dims: Mapping[str, int]
    others: tuple[Mapping[str, int], ...]
    vocab: int = 97
    call: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.model


# --- inputs ---------------------------------------------------------------------------------------------------------

IDS = Input("tokens", ("batch", "seq"))
MASK = Input("mask", ("batch", "seq"))
TARGET = Input("tokens", ("batch", "target"))
TEXT = {"input_ids": IDS, "attention_mask": MASK}
TYPED = {**TEXT, "token_type_ids": Input("types", ("batch", "seq"))}
PAIR = {**TEXT, "decoder_input_ids": TARGET}
TEXT_DIMS = {"batch": 2, "seq": 9}
TEXT_OTHERS = ({"batch": 3, "seq": 14}, {"batch": 5, "seq": 7}, {"batch": 2, "seq": 21})
PAIR_DIMS = {"batch": 2, "seq": 9, "target": 5}
PAIR_OTHERS = ({"batch": 3, "seq": 14, "target": 8}, {"batch": 4, "seq": 6, "target": 11})
IMAGE_DIMS = {"batch": 2}
IMAGE_OTHERS = ({"batch": 3}, {"batch": 5})


def _image(size: int, channels: int = 3) -> dict[str, Input]:
    return {"pixel_values": Input("normal", ("batch", channels, size, size))}


# --- sizes that many configurations share -----------------------------------------------------------------------------

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, **SPECIAL,
}  # fmt: skip
DECODER = {**ENCODER, "num_key_value_heads": 2, "use_cache": False}
BART = {
    "vocab_size": 97, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "decoder_start_token_id": 2, "use_cache": False, **SPECIAL,
}  # fmt: skip
T5 = {
    "vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "decoder_start_token_id": 0, "use_cache": False,
    "pad_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
VIT = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
WAVE = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": (16, 16, 16), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0, **SPECIAL,
}  # fmt: skip


def _text(config: str, model: str, sizes: Mapping[str, Any] = ENCODER, family: str = "text encoder",
          inputs: Mapping[str, Input] = TEXT, **more: Any) -> Architecture:  # fmt: skip
    return Architecture(family, config, model, {**sizes, **more}, inputs, TEXT_DIMS, TEXT_OTHERS)


def _decoder(config: str, model: str, sizes: Mapping[str, Any] = DECODER, **more: Any) -> Architecture:
    return _text(config, model, sizes, "text decoder", **more)


def _moe(config: str, model: str, sizes: Mapping[str, Any] = DECODER, **more: Any) -> Architecture:
    return _text(config, model, sizes, "mixture of experts", **more)


def _state(config: str, model: str, sizes: Mapping[str, Any], inputs: Mapping[str, Input] = TEXT,
           **more: Any) -> Architecture:  # fmt: skip
    return _text(config, model, sizes, "state space", inputs, **more)


def _pair(config: str, model: str, sizes: Mapping[str, Any] = BART, **more: Any) -> Architecture:
    return Architecture("encoder-decoder", config, model, {**sizes, **more}, PAIR, PAIR_DIMS, PAIR_OTHERS)


def _vision(config: str, model: str, sizes: Mapping[str, Any] = VIT, *, size: int = 32, **more: Any) -> Architecture:
    return Architecture("vision", config, model, {**sizes, **more}, _image(size), IMAGE_DIMS, IMAGE_OTHERS)


def _wave(config: str, model: str, sizes: Mapping[str, Any] = WAVE, **more: Any) -> Architecture:
    inputs = {"input_values": Input("normal", ("batch", "samples"))}
    others = ({"batch": 3, "samples": 1100}, {"batch": 2, "samples": 1503})
    return Architecture(
        "audio", config, model, {**sizes, **more}, inputs, {"batch": 2, "samples": 800}, others)  # fmt: skip


def _multi(config: str, model: str, sizes: Mapping[str, Any], inputs: Mapping[str, Input],
           dims: Mapping[str, int], *others: Mapping[str, int], call: Mapping[str, Any] | None = None,
           family: str = "multimodal") -> Architecture:  # fmt: skip
    return Architecture(family, config, model, sizes, inputs, dims, others, call=call or {})


ENCODERS = (
    _text("BertConfig", "BertModel", inputs=TYPED),
    _text("BertConfig", "BertForMaskedLM"),
    _text("RobertaConfig", "RobertaModel"),
    _text("RobertaPreLayerNormConfig", "RobertaPreLayerNormModel"),
    _text("XLMRobertaConfig", "XLMRobertaForSequenceClassification"),
    _text("CamembertConfig", "CamembertForTokenClassification"),
    _text("AlbertConfig", "AlbertModel", embedding_size=16, inputs=TYPED),
    _text("DistilBertConfig", "DistilBertModel", vocab_size=97, dim=32, hidden_dim=64, n_layers=2, n_heads=4),
    _text("ElectraConfig", "ElectraForQuestionAnswering", embedding_size=16),
    _text("MobileBertConfig", "MobileBertModel", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    _text("DebertaConfig", "DebertaModel", relative_attention=True, pos_att_type=["c2p", "p2c"],
          max_relative_positions=-1, type_vocab_size=0),
    _text("DebertaV2Config", "DebertaV2Model", relative_attention=True, pos_att_type=["c2p", "p2c"],
          position_buckets=8, share_att_key=True, norm_rel_ebd="layer_norm", type_vocab_size=0),
    _text("MPNetConfig", "MPNetModel", relative_attention_num_buckets=32),
    _text("SqueezeBertConfig", "SqueezeBertModel", embedding_size=32),
    _text("ConvBertConfig", "ConvBertModel", embedding_size=16, conv_kernel_size=5),
    _text("FNetConfig", "FNetModel", inputs={"input_ids": IDS}),
    _text("LayoutLMConfig", "LayoutLMModel", max_2d_position_embeddings=1024,
          inputs={**TEXT, "bbox": Input("boxes", ("batch", "seq", 4))}),
    _text("LiltConfig", "LiltModel", max_2d_position_embeddings=1024, channel_shrink_ratio=2, hidden_size=48,
          inputs={**TEXT, "bbox": Input("boxes", ("batch", "seq", 4))}),
    _text("EsmConfig", "EsmModel", position_embedding_type="rotary", mask_token_id=3),
    _text("FunnelConfig", "FunnelModel", {"vocab_size": 97}, d_model=32, n_head=4, d_head=8, d_inner=48,
          block_sizes=[1, 1]),
    _text("RoFormerConfig", "RoFormerModel", embedding_size=32),
    _text("MegatronBertConfig", "MegatronBertModel"),
    _text("ModernBertConfig", "ModernBertModel", local_attention=8, global_attn_every_n_layers=2, cls_token_id=1,
          sep_token_id=2, max_position_embeddings=128),
    _text("IBertConfig", "IBertModel"),
    _text("ErnieConfig", "ErnieModel"),
    _text("RemBertConfig", "RemBertModel", input_embedding_size=16),
    _text("Data2VecTextConfig", "Data2VecTextModel"),
    _text("NystromformerConfig", "NystromformerModel", segment_means_seq_len=64, num_landmarks=64,
          conv_kernel_size=5),
    _text("XLNetConfig", "XLNetModel", {"vocab_size": 97}, d_model=32, n_layer=2, n_head=4, d_inner=48,
          use_mems_eval=False),
    _text("XLMConfig", "XLMModel", emb_dim=32, n_layers=2, n_heads=4, use_cache=False),
    _text("FlaubertConfig", "FlaubertModel", emb_dim=32, n_layers=2, n_heads=4, use_cache=False),
    _text("EuroBertConfig", "EuroBertModel", num_key_value_heads=2),
    _text("NomicBertConfig", "NomicBertModel"),
    _text("CanineConfig", "CanineModel", num_hash_functions=4, num_hash_buckets=64, local_transformer_stride=8,
          downsampling_rate=2, upsampling_kernel_size=4),
    _text("BigBirdConfig", "BigBirdModel", attention_type="original_full"),
    _text("LongformerConfig", "LongformerModel", attention_window=4),
    _text("TapasConfig", "TapasModel", type_vocab_sizes=[3, 64, 64, 2, 64, 64, 10], inputs={
        **TEXT, "token_type_ids": Input("types", ("batch", "seq", 7))}),
    _text("LukeConfig", "LukeModel", entity_vocab_size=20, entity_emb_size=16),
    _text("MraConfig", "MraModel", num_blocks=2, block_per_row=2),
    _text("YosoConfig", "YosoModel", use_expectation=True),
)  # fmt: skip

GPT2 = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "use_cache": False, **SPECIAL}

DECODERS = (
    _decoder("GPT2Config", "GPT2LMHeadModel", GPT2),
    _decoder("GPTNeoConfig", "GPTNeoForCausalLM", DECODER, num_layers=2, num_heads=4, window_size=4,
             attention_types=[[["global", "local"], 1]]),
    _decoder("GPTNeoXConfig", "GPTNeoXForCausalLM"),
    _decoder("GPTJConfig", "GPTJForCausalLM", {**GPT2, "rotary_dim": 4}),
    _decoder("GPTBigCodeConfig", "GPTBigCodeForCausalLM", GPT2),
    _decoder("CodeGenConfig", "CodeGenForCausalLM", {**GPT2, "rotary_dim": 4, "n_ctx": 64}),
    _decoder("OPTConfig", "OPTForCausalLM", ffn_dim=48, word_embed_proj_dim=32),
    _decoder("BloomConfig", "BloomForCausalLM", n_layer=2, n_head=4),
    _decoder("LlamaConfig", "LlamaForCausalLM"),
    _decoder("LlamaConfig", "LlamaForSequenceClassification"),
    _decoder("MistralConfig", "MistralForCausalLM", sliding_window=4),
    _decoder("GemmaConfig", "GemmaForCausalLM", head_dim=8),
    _decoder("Gemma2Config", "Gemma2ForCausalLM", head_dim=8, sliding_window=4),
    _decoder("Gemma3TextConfig", "Gemma3ForCausalLM", head_dim=8, sliding_window=4),
    _decoder("Qwen2Config", "Qwen2ForCausalLM", use_sliding_window=True, sliding_window=4, max_window_layers=1),
    _decoder("Qwen3Config", "Qwen3ForCausalLM", head_dim=8),
    _decoder("PhiConfig", "PhiForCausalLM", partial_rotary_factor=0.5),
    _decoder("Phi3Config", "Phi3ForCausalLM", sliding_window=5),
    _decoder("StableLmConfig", "StableLmForCausalLM", partial_rotary_factor=0.5),
    _decoder("FalconConfig", "FalconForCausalLM", alibi=False, multi_query=True),
    _decoder("FalconConfig", "FalconModel", alibi=True, multi_query=False, new_decoder_architecture=False),
    _decoder("MptConfig", "MptForCausalLM", d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
    _decoder("CohereConfig", "CohereForCausalLM"),
    _decoder("Cohere2Config", "Cohere2ForCausalLM", sliding_window=4, head_dim=8),
    _decoder("Starcoder2Config", "Starcoder2ForCausalLM"),
    _decoder("OlmoConfig", "OlmoForCausalLM"),
    _decoder("Olmo2Config", "Olmo2ForCausalLM"),
    _decoder("GraniteConfig", "GraniteForCausalLM"),
    _decoder("GlmConfig", "GlmForCausalLM", head_dim=8),
    _decoder("Glm4Config", "Glm4ForCausalLM", head_dim=8),
    _decoder("HeliumConfig", "HeliumForCausalLM", head_dim=8),
    _decoder("NemotronConfig", "NemotronForCausalLM"),
    _decoder("PersimmonConfig", "PersimmonForCausalLM"),
    _decoder("BioGptConfig", "BioGptForCausalLM"),
    _decoder("XGLMConfig", "XGLMForCausalLM", d_model=32, ffn_dim=48, num_layers=2, attention_heads=4),
    _decoder("CTRLConfig", "CTRLLMHeadModel", {**GPT2, "dff": 48}),
    _decoder("OpenAIGPTConfig", "OpenAIGPTLMHeadModel", GPT2),
    _decoder("SmolLM3Config", "SmolLM3ForCausalLM"),
    _decoder("DiffLlamaConfig", "DiffLlamaForCausalLM"),
    _decoder("Exaone4Config", "Exaone4ForCausalLM", sliding_window=4),
    _decoder("ApertusConfig", "ApertusForCausalLM"),
    _decoder("ArceeConfig", "ArceeForCausalLM"),
    _decoder("ModernBertDecoderConfig", "ModernBertDecoderForCausalLM", local_attention=8,
             global_attn_every_n_layers=2, max_position_embeddings=128),
    _decoder("ImageGPTConfig", "ImageGPTModel", {**GPT2, "vocab_size": 97}),
    _decoder("TrOCRConfig", "TrOCRForCausalLM", {**BART, "cross_attention_hidden_size": 32}),
)  # fmt: skip

EXPERTS = (
    _moe("MixtralConfig", "MixtralForCausalLM", num_local_experts=4, num_experts_per_tok=2),
    _moe("Qwen2MoeConfig", "Qwen2MoeForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
         shared_expert_intermediate_size=32),
    _moe("Qwen3MoeConfig", "Qwen3MoeForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
         head_dim=8),
    _moe("OlmoeConfig", "OlmoeForCausalLM", num_experts=4, num_experts_per_tok=2),
    _moe("PhimoeConfig", "PhimoeForCausalLM", num_local_experts=4, num_experts_per_tok=2),
    _moe("GraniteMoeConfig", "GraniteMoeForCausalLM", num_local_experts=4, num_experts_per_tok=2),
    _moe("DeepseekV2Config", "DeepseekV2ForCausalLM", n_routed_experts=4, num_experts_per_tok=2, n_group=1,
         topk_group=1, kv_lora_rank=16, q_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8,
         moe_intermediate_size=24, first_k_dense_replace=1, num_key_value_heads=4),
    _moe("DeepseekV3Config", "DeepseekV3ForCausalLM", n_routed_experts=4, num_experts_per_tok=2, n_group=2,
         topk_group=1, kv_lora_rank=16, q_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8,
         moe_intermediate_size=24, first_k_dense_replace=1, num_key_value_heads=4),
    _moe("GptOssConfig", "GptOssForCausalLM", num_local_experts=4, num_experts_per_tok=2, head_dim=8,
         sliding_window=4),
    _moe("DbrxConfig", "DbrxForCausalLM", d_model=32, n_heads=4, n_layers=2, max_seq_len=64,
         attn_config={"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 4.0}, ffn_config={
             "moe_num_experts": 4, "moe_top_k": 2, "ffn_hidden_size": 48, "hidden_size": 32}),
    _moe("Glm4MoeConfig", "Glm4MoeForCausalLM", n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
         moe_intermediate_size=24, first_k_dense_replace=1, head_dim=8),
    _moe("Ernie4_5_MoeConfig", "Ernie4_5_MoeForCausalLM", moe_num_experts=4, moe_k=2, moe_intermediate_size=24,
         moe_layer_start_index=1),
    _moe("Dots1Config", "Dots1ForCausalLM", n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1,
         topk_group=1, moe_intermediate_size=24, first_k_dense_replace=1),
    Architecture("mixture of experts", "SwitchTransformersConfig", "SwitchTransformersForConditionalGeneration",
                 {**T5, "num_experts": 4, "expert_capacity": 8, "num_sparse_encoder_layers": 1,
                  "num_sparse_decoder_layers": 1}, PAIR, PAIR_DIMS, PAIR_OTHERS),
)  # fmt: skip

MAMBA = {"vocab_size": 97, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "use_cache": False, **SPECIAL}

STATE_SPACE = (
    _state("MambaConfig", "MambaForCausalLM", MAMBA, {"input_ids": IDS}),
    _state("Mamba2Config", "Mamba2ForCausalLM", MAMBA, {"input_ids": IDS}, num_heads=8, head_dim=8, n_groups=2,
           chunk_size=4),
    _state("FalconMambaConfig", "FalconMambaForCausalLM", MAMBA, {"input_ids": IDS}),
    _state("RwkvConfig", "RwkvForCausalLM", MAMBA, {"input_ids": IDS}, context_length=64, attention_hidden_size=32,
           intermediate_size=48),
    _state("BambaConfig", "BambaForCausalLM", DECODER, mamba_n_heads=8, mamba_d_head=8, mamba_d_state=8,
           mamba_n_groups=1, mamba_chunk_size=4, attn_layer_indices=[1]),
    _state("JambaConfig", "JambaForCausalLM", DECODER, num_experts=2, num_experts_per_tok=1, attn_layer_period=2,
           attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, mamba_d_state=8, mamba_dt_rank=4,
           use_mamba_kernels=False),
    _state("RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", DECODER, lru_width=32, num_hidden_layers=3,
           attention_window_size=8, conv1d_width=4, partial_rotary_factor=0.5),
    _state("Zamba2Config", "Zamba2ForCausalLM", DECODER, mamba_d_state=8, mamba_headdim=8, n_mamba_heads=8,
           chunk_size=4, mamba_ngroups=1, layers_block_type=["mamba", "hybrid"], num_key_value_heads=4,
           num_mem_blocks=1),
    _state("FalconH1Config", "FalconH1ForCausalLM", DECODER, mamba_d_ssm=64, mamba_n_heads=8, mamba_d_head=8,
           mamba_d_state=8, mamba_n_groups=1, mamba_chunk_size=4),
    _state("Lfm2Config", "Lfm2ForCausalLM", DECODER, layer_types=["conv", "full_attention"], conv_L_cache=3),
    _state("Qwen3NextConfig", "Qwen3NextForCausalLM", DECODER, num_experts=4, num_experts_per_tok=2, head_dim=8,
           moe_intermediate_size=24, shared_expert_intermediate_size=24, linear_key_head_dim=8,
           linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4,
           layer_types=["linear_attention", "full_attention"]),
    _state("xLSTMConfig", "xLSTMForCausalLM", MAMBA, {"input_ids": IDS}, num_heads=4, num_blocks=2, chunk_size=8,
           embedding_dim=32),
)  # fmt: skip

PAIRS = (
    _pair("T5Config", "T5ForConditionalGeneration", T5),
    _pair("MT5Config", "MT5ForConditionalGeneration", T5, feed_forward_proj="gated-gelu"),
    _pair("UMT5Config", "UMT5ForConditionalGeneration", T5),
    Architecture("text encoder", "T5Config", "T5EncoderModel", T5, TEXT, TEXT_DIMS, TEXT_OTHERS),
    _pair("LongT5Config", "LongT5ForConditionalGeneration", T5, local_radius=4, encoder_attention_type="local"),
    _pair("BartConfig", "BartForConditionalGeneration"),
    _pair("MBartConfig", "MBartForConditionalGeneration"),
    _pair("PegasusConfig", "PegasusForConditionalGeneration"),
    _pair("MarianConfig", "MarianMTModel"),
    _pair("BlenderbotConfig", "BlenderbotForConditionalGeneration"),
    _pair("BlenderbotSmallConfig", "BlenderbotSmallForConditionalGeneration"),
    _pair("M2M100Config", "M2M100ForConditionalGeneration"),
    _pair("PLBartConfig", "PLBartForConditionalGeneration"),
    _pair("MvpConfig", "MvpForConditionalGeneration"),
    _pair("LEDConfig", "LEDForConditionalGeneration", attention_window=4, max_encoder_position_embeddings=64,
          max_decoder_position_embeddings=64),
    _pair("ProphetNetConfig", "ProphetNetForConditionalGeneration", {
        "vocab_size": 97, "pad_token_id": 0, "use_cache": False}, encoder_ffn_dim=48, decoder_ffn_dim=48,
          max_position_embeddings=64, hidden_size=32, num_encoder_layers=2,
          num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4, ngram=2,
          num_buckets=8, relative_max_distance=16),
    _pair("FSMTConfig", "FSMTForConditionalGeneration", langs=["en", "de"], src_vocab_size=97, tgt_vocab_size=97),
)  # fmt: skip

SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}

VISION = (
    _vision("ViTConfig", "ViTForImageClassification"),
    _vision("DeiTConfig", "DeiTModel"),
    _vision("BeitConfig", "BeitModel", use_relative_position_bias=True),
    _vision("Dinov2Config", "Dinov2Model"),
    _vision("Dinov2WithRegistersConfig", "Dinov2WithRegistersModel"),
    _vision("DINOv3ViTConfig", "DINOv3ViTModel"),
    _vision("IJepaConfig", "IJepaModel"),
    _vision("ViTMSNConfig", "ViTMSNModel"),
    _vision("YolosConfig", "YolosForObjectDetection", image_size=[32, 32], num_detection_tokens=5),
    _vision("SwinConfig", "SwinForImageClassification", SWIN),
    _vision("Swinv2Config", "Swinv2Model", SWIN),
    _vision("ConvNextConfig", "ConvNextForImageClassification", {}, num_stages=4, hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1]),
    _vision("ConvNextV2Config", "ConvNextV2ForImageClassification", {}, num_stages=4, hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1]),
    _vision("ResNetConfig", "ResNetForImageClassification", STAGES),
    _vision("RegNetConfig", "RegNetForImageClassification", STAGES, groups_width=4),
    _vision("BitConfig", "BitForImageClassification", STAGES, num_groups=4, size=64),
    _vision("MobileNetV1Config", "MobileNetV1ForImageClassification", {"depth_multiplier": 0.25}, size=64),
    _vision("MobileNetV2Config", "MobileNetV2ForImageClassification", {"depth_multiplier": 0.35}, size=64),
    _vision("MobileViTConfig", "MobileViTForImageClassification", {}, hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 12, 16, 24, 32, 48], num_attention_heads=4, image_size=64, size=64),
    _vision("MobileViTV2Config", "MobileViTV2ForImageClassification", {}, width_multiplier=0.25,
            image_size=64, size=64),
    _vision("EfficientNetConfig", "EfficientNetForImageClassification", {}, width_coefficient=0.25,
            depth_coefficient=0.25, image_size=64, hidden_dim=320, size=64),
    _vision("SegformerConfig", "SegformerForSemanticSegmentation", {}, hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16, size=64),
    _vision("PvtConfig", "PvtForImageClassification", {}, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 3, 4], image_size=64, size=64),
    _vision("PvtV2Config", "PvtV2ForImageClassification", {}, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 3, 4], size=64),
    _vision("PoolFormerConfig", "PoolFormerForImageClassification", {}, hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1], size=64),
    _vision("LevitConfig", "LevitForImageClassification", {}, image_size=64, hidden_sizes=[16, 24, 32],
            num_attention_heads=[2, 3, 4], depths=[1, 1, 1], key_dim=[8, 8, 8], size=64),
    _vision("CvtConfig", "CvtForImageClassification", {}, embed_dim=[8, 16, 24], num_heads=[1, 2, 3],
            depth=[1, 2, 3], cls_token=[False, False, True], size=64),
    _vision("FocalNetConfig", "FocalNetForImageClassification", {}, image_size=64, embed_dim=16, depths=[1, 1, 1, 1],
            hidden_sizes=[16, 24, 32, 48], size=64),
    _vision("SwiftFormerConfig", "SwiftFormerForImageClassification", {}, embed_dims=[8, 16, 24, 32],
            depths=[1, 1, 1, 1], size=64),
    _vision("HieraConfig", "HieraModel", {}, image_size=[64, 64], embed_dim=16, depths=[1, 1, 1, 1],
            num_heads=[1, 1, 2, 2], size=64),
    _vision("VitDetConfig", "VitDetModel", VIT, window_block_indices=[0], window_size=2),
    _vision("DPTConfig", "DPTForDepthEstimation", VIT, backbone_out_indices=[0, 1, 2, 3], num_hidden_layers=4,
            neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8, head_in_index=-1, is_hybrid=False, size=32,
            reassemble_factors=[4, 2, 1, 0.5]),
    _vision("GLPNConfig", "GLPNForDepthEstimation", {}, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16, size=64),
    _vision("DepthAnythingConfig", "DepthAnythingForDepthEstimation", {}, neck_hidden_sizes=[8, 8],
            fusion_hidden_size=8, head_hidden_size=8, reassemble_hidden_size=32, reassemble_factors=[1, 0.5],
            patch_size=8, backbone_config={"": "Dinov2Config", **VIT, "out_features": ["stage1", "stage2"],
                                           "reshape_hidden_states": False}),
    _vision("Swin2SRConfig", "Swin2SRForImageSuperResolution", {}, image_size=32, embed_dim=16, depths=[1, 1],
            num_heads=[2, 2], window_size=4, upscale=2),
    _vision("SuperPointConfig", "SuperPointForKeypointDetection", {}, encoder_hidden_sizes=[8, 8, 16, 16],
            decoder_hidden_size=16, keypoint_decoder_dim=65, descriptor_decoder_dim=16, size=64),
    Architecture("vision", "ViTMAEConfig", "ViTMAEModel", VIT, {
        **_image(32), "noise": Input("positive", ("batch", 16))}, IMAGE_DIMS, IMAGE_OTHERS),
    Architecture("vision", "VideoMAEConfig", "VideoMAEForVideoClassification", {**VIT, "num_frames": 4,
                 "tubelet_size": 2}, {"pixel_values": Input("normal", ("batch", 4, 3, 32, 32))}, IMAGE_DIMS,
                 IMAGE_OTHERS),
    Architecture("vision", "TimesformerConfig", "TimesformerForVideoClassification", {**VIT, "num_frames": 4},
                 {"pixel_values": Input("normal", ("batch", 4, 3, 32, 32))}, IMAGE_DIMS, IMAGE_OTHERS),
    Architecture("vision", "VivitConfig", "VivitForVideoClassification",
                 {**VIT, "num_frames": 4, "tubelet_size": [2, 8, 8]},
                 {"pixel_values": Input("normal", ("batch", 4, 3, 32, 32))}, IMAGE_DIMS, IMAGE_OTHERS),
)  # fmt: skip

RESNET = {"": "ResNetConfig", **STAGES, "out_features": ["stage4"]}
DETR = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "num_queries": 5,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "use_timm_backbone": False,
    "use_pretrained_backbone": False, "backbone": None, "backbone_config": RESNET,
}  # fmt: skip

DETECTION = (
    _vision("DetrConfig", "DetrForObjectDetection", DETR, size=64),
    _vision("ConditionalDetrConfig", "ConditionalDetrForObjectDetection", DETR, size=64),
    _vision("TableTransformerConfig", "TableTransformerForObjectDetection", DETR, size=64),
    _vision("DabDetrConfig", "DabDetrForObjectDetection", {**DETR, "hidden_size": 32}, size=64),
    _vision("DeformableDetrConfig", "DeformableDetrForObjectDetection", {
        **DETR, "num_feature_levels": 2, "backbone_config": {**RESNET, "out_features": ["stage3", "stage4"]}},
        size=64),
    _vision("RTDetrConfig", "RTDetrForObjectDetection", {}, d_model=32, encoder_hidden_dim=32, num_queries=5,
            encoder_in_channels=[16, 24, 32], decoder_in_channels=[32, 32, 32], encoder_attention_heads=4,
            feat_strides=[8, 16, 32], decoder_layers=2, decoder_attention_heads=4, encoder_ffn_dim=48,
            decoder_ffn_dim=48, num_denoising=0, backbone_config={
                "": "RTDetrResNetConfig", **STAGES, "out_features": ["stage2", "stage3", "stage4"],
                "layer_type": "basic"}, size=64),
    _vision("MaskFormerConfig", "MaskFormerForInstanceSegmentation", {}, fpn_feature_size=32, mask_feature_size=32,
            backbone_config={"": "SwinConfig", **SWIN, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 2, 2],
                             "out_features": ["stage1", "stage2", "stage3", "stage4"], "image_size": 64},
            decoder_config={"": "DetrConfig", **DETR}, size=64),
    _vision("UperNetConfig", "UperNetForSemanticSegmentation", {}, hidden_size=16, auxiliary_in_channels=24,
            auxiliary_channels=8, pool_scales=[1, 2], backbone_config={
                "": "ConvNextConfig", "num_stages": 4, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
                "out_features": ["stage1", "stage2", "stage3", "stage4"]}, size=64),
)  # fmt: skip

FEATURES = {"input_features": Input("normal", ("batch", "frames", 16))}
FEATURES_DIMS = {"batch": 2, "frames": 40}
FEATURES_OTHERS = ({"batch": 3, "frames": 56}, {"batch": 2, "frames": 72})

AUDIO = (
    _wave("Wav2Vec2Config", "Wav2Vec2ForCTC"),
    _wave("Wav2Vec2Config", "Wav2Vec2Model", do_stable_layer_norm=True, feat_extract_norm="layer"),
    _wave("HubertConfig", "HubertModel"),
    _wave("SEWConfig", "SEWModel", squeeze_factor=2),
    _wave("SEWDConfig", "SEWDModel", squeeze_factor=2, position_buckets=8, max_position_embeddings=64),
    _wave("UniSpeechConfig", "UniSpeechModel"),
    _wave("UniSpeechSatConfig", "UniSpeechSatModel"),
    _wave("WavLMConfig", "WavLMModel", num_buckets=16, max_bucket_distance=32),
    _wave("Wav2Vec2ConformerConfig", "Wav2Vec2ConformerModel", position_embeddings_type="relative",
          conv_depthwise_kernel_size=5),
    _wave("Data2VecAudioConfig", "Data2VecAudioModel", conv_pos_kernel_size=3, num_conv_pos_embeddings=2),
    _multi("Wav2Vec2BertConfig", "Wav2Vec2BertModel", {**WAVE, "feature_projection_input_dim": 16,
           "conv_depthwise_kernel_size": 5}, FEATURES, FEATURES_DIMS, *FEATURES_OTHERS, family="audio"),
    _multi("WhisperConfig", "WhisperForConditionalGeneration", {**BART, "num_mel_bins": 8, "max_source_positions": 20,
           "max_target_positions": 32}, {"input_features": Input("normal", ("batch", 8, 40)),
           "decoder_input_ids": TARGET}, {"batch": 2, "target": 5}, {"batch": 3, "target": 8},
           {"batch": 4, "target": 11}, family="audio"),
    _multi("Speech2TextConfig", "Speech2TextForConditionalGeneration", {**BART, "input_feat_per_channel": 16,
           "input_channels": 1, "conv_channels": 16, "max_source_positions": 64, "max_target_positions": 32,
           "num_conv_layers": 2}, {**FEATURES, "decoder_input_ids": TARGET}, {**FEATURES_DIMS, "target": 5},
           *({**o, "target": 7} for o in FEATURES_OTHERS), family="audio"),
    _multi("MoonshineConfig", "MoonshineForConditionalGeneration", {**ENCODER, "encoder_num_hidden_layers": 2,
           "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
           "use_cache": False, "decoder_start_token_id": 1},
           {"input_values": Input("normal", ("batch", "samples")), "decoder_input_ids": TARGET},
           {"batch": 2, "samples": 1600, "target": 5}, {"batch": 3, "samples": 2300, "target": 7}, family="audio"),
    _multi("ASTConfig", "ASTForAudioClassification", {**VIT, "num_mel_bins": 16, "max_length": 32,
           "frequency_stride": 4, "time_stride": 4}, {"input_values": Input("normal", ("batch", 32, 16))},
           IMAGE_DIMS, *IMAGE_OTHERS, family="audio"),
    _multi("EncodecConfig", "EncodecModel", {"num_filters": 4, "hidden_size": 16, "codebook_size": 16,
           "num_lstm_layers": 1, "upsampling_ratios": [4, 2], "codebook_dim": 16, "target_bandwidths": [24.0]},
           {"input_values": Input("normal", ("batch", 1, "samples"))}, {"batch": 2, "samples": 320},
           {"batch": 3, "samples": 480}, family="audio", call={"bandwidth": 24.0}),
    _multi("DacConfig", "DacModel", {"encoder_hidden_size": 8, "decoder_hidden_size": 64, "n_codebooks": 2,
           "codebook_size": 16, "codebook_dim": 4, "downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2]},
           {"input_values": Input("normal", ("batch", 1, "samples"))}, {"batch": 2, "samples": 320},
           {"batch": 3, "samples": 480}, family="audio"),
    _multi("SpeechT5Config", "SpeechT5ForSpeechToText", {**BART, **WAVE, "encoder_layers": 2, "decoder_layers": 2,
           "max_speech_positions": 128, "max_text_positions": 64, "vocab_size": 97},
           {"input_values": Input("normal", ("batch", "samples")), "decoder_input_ids": TARGET},
           {"batch": 2, "samples": 800, "target": 5}, {"batch": 3, "samples": 1100, "target": 7}, family="audio"),
)  # fmt: skip

CLIP_TEXT = {**ENCODER, "projection_dim": 16}
CLIP_VISION = {**VIT, "projection_dim": 16}
CLIP = {"text_config": CLIP_TEXT, "vision_config": CLIP_VISION, "projection_dim": 16}
IMAGE_TEXT = {**TEXT, "pixel_values": Input("normal", ("images", 3, 32, 32))}
IMAGE_TEXT_DIMS = {**TEXT_DIMS, "images": 3}
IMAGE_TEXT_OTHERS = ({"batch": 3, "seq": 14, "images": 2}, {"batch": 4, "seq": 6, "images": 5})
ONE_IMAGE_TEXT = {**TEXT, "pixel_values": Input("normal", ("batch", 3, 32, 32))}

MULTIMODAL = (
    _multi("CLIPConfig", "CLIPModel", CLIP, IMAGE_TEXT, IMAGE_TEXT_DIMS, *IMAGE_TEXT_OTHERS),
    _multi("CLIPTextConfig", "CLIPTextModelWithProjection", CLIP_TEXT, TEXT, TEXT_DIMS, *TEXT_OTHERS),
    _multi("CLIPVisionConfig", "CLIPVisionModel", CLIP_VISION, _image(32), IMAGE_DIMS, *IMAGE_OTHERS),
    _multi("SiglipConfig", "SiglipModel", CLIP, IMAGE_TEXT, IMAGE_TEXT_DIMS, *IMAGE_TEXT_OTHERS),
    _multi("ChineseCLIPConfig", "ChineseCLIPModel", CLIP, IMAGE_TEXT, IMAGE_TEXT_DIMS, *IMAGE_TEXT_OTHERS),
    _multi("AltCLIPConfig", "AltCLIPModel", {**CLIP, "text_config": {**CLIP_TEXT, "project_dim": 16}}, IMAGE_TEXT,
           IMAGE_TEXT_DIMS, *IMAGE_TEXT_OTHERS),
    _multi("CLIPSegConfig", "CLIPSegForImageSegmentation", {**CLIP, "extract_layers": [0, 1], "reduce_dim": 16,
           "decoder_num_attention_heads": 4, "decoder_intermediate_size": 32}, ONE_IMAGE_TEXT, TEXT_DIMS,
           *TEXT_OTHERS),
    _multi("OwlViTConfig", "OwlViTForObjectDetection", {**CLIP, "projection_dim": 32}, {
        "input_ids": Input("tokens", ("batch", 9)), "attention_mask": Input("mask", ("batch", 9)),
        "pixel_values": Input("normal", ("batch", 3, 32, 32))}, IMAGE_DIMS, *IMAGE_OTHERS),
    _multi("GroupViTConfig", "GroupViTModel", {**CLIP, "projection_intermediate_dim": 24, "vision_config": {
        **CLIP_VISION, "depths": [1, 1, 1], "num_group_tokens": [4, 2, 0], "num_output_groups": [4, 2, 0]}},
        IMAGE_TEXT, IMAGE_TEXT_DIMS, *IMAGE_TEXT_OTHERS),
    _multi("BlipConfig", "BlipForConditionalGeneration", {**CLIP, "text_config": {
        **ENCODER, "encoder_hidden_size": 32, "projection_dim": 16, "use_cache": False}}, ONE_IMAGE_TEXT,
        TEXT_DIMS, *TEXT_OTHERS),
    _multi("BlipConfig", "BlipForImageTextRetrieval", {**CLIP, "image_text_hidden_size": 16, "text_config": {
        **ENCODER, "encoder_hidden_size": 32, "projection_dim": 16}}, ONE_IMAGE_TEXT, TEXT_DIMS, *TEXT_OTHERS),
    _multi("ViltConfig", "ViltModel", {**VIT, **ENCODER, "modality_type_vocab_size": 2}, {
        **ONE_IMAGE_TEXT, "pixel_mask": Input("ones", ("batch", 32, 32))}, TEXT_DIMS, *TEXT_OTHERS),
    _multi("VisualBertConfig", "VisualBertModel", {**ENCODER, "visual_embedding_dim": 16}, {
        **TEXT, "visual_embeds": Input("normal", ("batch", 5, 16))}, TEXT_DIMS, *TEXT_OTHERS),
    _multi("LxmertConfig", "LxmertModel", {**ENCODER, "l_layers": 1, "x_layers": 1, "r_layers": 1,
           "visual_feat_dim": 16}, {**TEXT, "visual_feats": Input("normal", ("batch", 5, 16)),
           "visual_pos": Input("normal", ("batch", 5, 4))}, TEXT_DIMS, *TEXT_OTHERS),
    _multi("FlavaConfig", "FlavaModel", {"text_config": ENCODER, "image_config": VIT, "multimodal_config": {
        **ENCODER}, "hidden_size": 32, "projection_dim": 16}, ONE_IMAGE_TEXT, TEXT_DIMS, *TEXT_OTHERS),
    _multi("BridgeTowerConfig", "BridgeTowerModel", {"text_config": {**ENCODER}, "vision_config": {
        **CLIP_VISION, "hidden_size": 64}, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        ONE_IMAGE_TEXT, TEXT_DIMS, *TEXT_OTHERS),
    _multi("GitConfig", "GitForCausalLM", {**DECODER, "vision_config": VIT}, ONE_IMAGE_TEXT, TEXT_DIMS,
           *TEXT_OTHERS),
    _multi("ClapTextConfig", "ClapTextModelWithProjection", {**ENCODER, "projection_dim": 16}, TEXT, TEXT_DIMS,
           *TEXT_OTHERS),
    _multi("LlavaConfig", "LlavaForConditionalGeneration", {"text_config": {"": "LlamaConfig", **DECODER},
           "vision_config": {"": "CLIPVisionConfig", **CLIP_VISION}, "image_token_index": 96,
           "vision_feature_layer": -1}, {"input_ids": Input("images", ("batch", "seq")), "pixel_values": Input(
               "normal", ("batch", 3, 32, 32))}, {"batch": 2, "seq": 24}, {"batch": 3, "seq": 30}),
    _multi("VisionEncoderDecoderConfig", "VisionEncoderDecoderModel", {"encoder": {"": "ViTConfig", **VIT},
           "decoder": {"": "GPT2Config", **GPT2, "add_cross_attention": True, "is_decoder": True}},
           {**_image(32), "decoder_input_ids": TARGET}, {"batch": 2, "target": 5}, {"batch": 3, "target": 8}),
    _multi("PerceiverConfig", "PerceiverModel", {"num_latents": 6, "d_latents": 32, "d_model": 16,
           "num_self_attends_per_block": 2, "num_self_attention_heads": 4, "num_cross_attention_heads": 4},
           {"inputs": Input("normal", ("batch", "seq", 16))}, TEXT_DIMS, *TEXT_OTHERS),
    _multi("DecisionTransformerConfig", "DecisionTransformerModel", {"state_dim": 5, "act_dim": 3, "hidden_size": 32,
           "n_layer": 2, "n_head": 4, "max_ep_len": 97, "n_positions": 128}, {
               "states": Input("normal", ("batch", "seq", 5)), "actions": Input("normal", ("batch", "seq", 3)),
               "rewards": Input("normal", ("batch", "seq", 1)), "returns_to_go": Input(
                   "normal", ("batch", "seq", 1)), "timesteps": Input("tokens", ("batch", "seq")),
               "attention_mask": MASK}, TEXT_DIMS, *TEXT_OTHERS),
    _multi("SamConfig", "SamModel", {"vision_config": {"hidden_size": 32, "num_hidden_layers": 2,
           "num_attention_heads": 4, "image_size": 32, "patch_size": 8, "output_channels": 16, "mlp_dim": 48,
           "window_size": 2, "global_attn_indexes": [1], "num_pos_feats": 8}, "prompt_encoder_config": {
               "hidden_size": 16, "image_size": 32, "patch_size": 8, "mask_input_channels": 4},
           "mask_decoder_config": {"hidden_size": 16, "mlp_dim": 24, "num_hidden_layers": 1,
                                   "num_attention_heads": 2, "iou_head_hidden_dim": 16}},
           {**_image(32), "input_points": Input("positive", ("batch", 1, 2, 2))}, IMAGE_DIMS, *IMAGE_OTHERS),
)  # fmt: skip

PATCHES = {
    "num_input_channels": 3, "context_length": 24, "patch_length": 4, "patch_stride": 4, "prediction_length": 6,
    "d_model": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 24, "num_layers": 2,
}  # fmt: skip
PAST = {"past_values": Input("normal", ("batch", 24, 3))}
FORECAST = {
    "prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2, 3], "d_model": 16, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24, "num_time_features": 2, "use_cache": False,
}  # fmt: skip
SERIES = {
    "past_values": Input("normal", ("batch", 11)), "past_time_features": Input("normal", ("batch", 11, 2)),
    "past_observed_mask": Input("ones", ("batch", 11)), "future_values": Input("normal", ("batch", 4)),
    "future_time_features": Input("normal", ("batch", 4, 2)),
}  # fmt: skip


def _series(config: str, model: str, sizes: Mapping[str, Any], inputs: Mapping[str, Input]) -> Architecture:
    return _multi(config, model, sizes, inputs, IMAGE_DIMS, *IMAGE_OTHERS, family="time series")


TIME_SERIES = (
    _series("PatchTSTConfig", "PatchTSTForPrediction", PATCHES, PAST),
    _series("PatchTSMixerConfig", "PatchTSMixerForPrediction", PATCHES, PAST),
    _series("TimeSeriesTransformerConfig", "TimeSeriesTransformerModel", FORECAST, SERIES),
    _series("InformerConfig", "InformerModel", {**FORECAST, "distil": False, "attention_type": "full"}, SERIES),
    _series("AutoformerConfig", "AutoformerModel", {**FORECAST, "moving_average": 3, "label_length": 2}, SERIES),
)  # fmt: skip

ARCHITECTURES: tuple[Architecture, ...] = (
    *ENCODERS, *DECODERS, *EXPERTS, *STATE_SPACE, *PAIRS, *VISION, *DETECTION, *AUDIO, *MULTIMODAL, *TIME_SERIES,
)  # fmt: skip
