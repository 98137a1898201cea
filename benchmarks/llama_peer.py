"""llama.cpp as a peer: a Llama's weights as a GGUF file, and its own program for prompts and tokens.

In: a ``LlamaForCausalLM``, a format (``Q4_0``, ``Q8_0``, ``F32``). Out: a file; a program over it, by
``llama-cpp-python``, or by the library in ``xllamacpp``. Not its business: measuring (``benchmarks.tokens``,
``benchmarks.gguf_files``), what the tokens are: rotations are not reordered as llama.cpp has them, which changes
results and no time.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
"""What a layer's parts are called here and there."""
BYTES_OF_32 = {"Q4_0": 18, "Q8_0": 34, "F32": 128}


def product_bytes(model: Any, kind: str) -> int:
    """The bytes of all weights that one token multiplies."""
    n = sum(m.weight.numel() for m in model.modules() if type(m).__name__ == "Linear")
    return n // 32 * BYTES_OF_32[kind]


def write(path: Path, model: Any, kind: str) -> None:
    """The model as a GGUF file without a vocabulary; matrices in the format, norms in f32."""
    import gguf

    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    form = gguf.GGMLQuantizationType[kind]
    for name, array in _tensors(model):
        if array.ndim == 2 and kind != "F32":
            writer.add_tensor(name, gguf.quants.quantize(array, form), raw_dtype=form)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Arrays by the names that llama.cpp looks for; a tied head is the table itself."""
    yield "token_embd.weight", model.model.embed_tokens.weight.detach().numpy()
    yield "output_norm.weight", model.model.norm.weight.detach().numpy()
    for k, layer in enumerate(model.model.layers):
        for own, other in NAMES.items():
            yield f"blk.{k}.{other}.weight", layer.get_submodule(own).weight.detach().numpy()


class _Words(ctypes.Structure):
    """A structure of the library, which passes it by its address: as many words as any has."""

    _fields_ = (("words", ctypes.c_uint32 * 128),)


class _Context(ctypes.Structure):
    """The first fields of a context's parameters, and room for the others."""

    _fields_ = (
        ("n_ctx", ctypes.c_uint32), ("n_batch", ctypes.c_uint32), ("n_ubatch", ctypes.c_uint32),
        ("others", ctypes.c_uint32 * 4), ("n_threads", ctypes.c_int32), ("n_threads_batch", ctypes.c_int32),
        ("rest", ctypes.c_uint32 * 119),
    )  # fmt: skip


def _found() -> Any:
    """llama.cpp's functions by name, of the package that is installed."""
    if importlib.util.find_spec("llama_cpp") is not None:
        return importlib.import_module("llama_cpp")
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise ImportError("llama.cpp is a peer where llama-cpp-python or xllamacpp is installed")
    (path,) = Path(spec.origin).parent.glob("xllamacpp*.so")
    api: Any = ctypes.CDLL(str(path))
    api.llama_token = ctypes.c_int32
    api.llama_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    pointer = ctypes.c_void_p
    for name, result, arguments in (
        ("llama_context_default_params", _Context, ()), ("llama_model_default_params", _Words, ()),
        ("llama_model_load_from_file", pointer, (ctypes.c_char_p, _Words)),
        ("llama_init_from_model", pointer, (pointer, _Context)), ("llama_get_memory", pointer, (pointer,)),
        ("llama_memory_clear", None, (pointer, ctypes.c_bool)),
        ("llama_batch_get_one", _Words, (pointer, ctypes.c_int32)),
        ("llama_decode", ctypes.c_int32, (pointer, _Words)),
    ):  # fmt: skip
        function = getattr(api, name)
        function.restype, function.argtypes = result, arguments
    how = api.llama_context_default_params()
    if (how.n_ctx, how.n_batch, how.n_ubatch, how.n_threads) != (512, 2048, 512, how.n_threads_batch):
        raise ImportError("the parameters of this xllamacpp's contexts lie otherwise")
    return api


class Peer:
    """A model and its context for ``places`` tokens; ``prefill`` and ``step`` as of our ``Decoder``."""

    def __init__(self, path: Path, places: int, threads: int) -> None:
        api = self._api = _found()
        api.llama_backend_init()
        self._silence = api.llama_log_callback(lambda *_: None)
        api.llama_log_set(self._silence, ctypes.c_void_p(0))
        self._model = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        how = api.llama_context_default_params()
        how.n_ctx, how.n_batch, how.n_ubatch, how.n_threads, how.n_threads_batch = places, 512, 512, threads, threads
        self._context = api.llama_init_from_model(self._model, how)
        if not self._context:
            raise RuntimeError(f"llama.cpp made no context of {path}")

    def prefill(self, tokens: Any) -> None:
        """Forget what was read, and read these."""
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
        self._read(tokens)

    def step(self, token: int, place: int) -> None:
        """Read one more token; its place is behind the last one."""
        self._read(np.array([token]))

    def _read(self, tokens: Any) -> None:
        row = (self._api.llama_token * len(tokens))(*map(int, tokens))
        if self._api.llama_decode(self._context, self._api.llama_batch_get_one(row, len(tokens))):
            raise RuntimeError("llama.cpp could not read the tokens")
