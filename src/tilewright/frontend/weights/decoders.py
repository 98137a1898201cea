"""Language models from GGUF files: which of transformers' models a file holds, and its weights under their names.

In: a ``GgufFile``. Out: a module of transformers, built from the file's metadata alone. Not its business: reading the
container (``weights.gguf_file``), a cache and its steps (``torch.decoder``).

Names and metadata are those that llama.cpp documents. Two things are stored otherwise than transformers has them: in
``llama`` files the rows of queries and keys lie so that a rotary pair are neighbours, and ``gemma`` files hold the
factors of norms with their 1 added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.core.diag import ImportFailed, Loc, OptionError, Problem
from tilewright.core.types import Array
from tilewright.frontend.weights.blocks import Codes
from tilewright.frontend.weights.gguf_file import GgufFile, broken
from tilewright.frontend.weights.given import tensor_over
from tilewright.runtime.once import MAKING

if TYPE_CHECKING:
    import torch

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_ROPE_FACTORS = "rope_freqs.weight"
_SMALL_WORDS = 8
"""Rows of an embedding that is made only for what lies beside it."""


@dataclass(frozen=True)
class _Kind:
    """How an architecture is called in transformers, what its configuration fixes, and how its weights are stored."""

    config: str
    model: str
    fixed: tuple[tuple[str, Any], ...] = ()
    pairs_are_neighbours: bool = False
    norms_hold_one: bool = False


_GEMMA = (("hidden_activation", "gelu_pytorch_tanh"), ("hidden_act", "gelu_pytorch_tanh"))
ARCHITECTURES: dict[str, _Kind] = {
    "llama": _Kind("LlamaConfig", "LlamaForCausalLM", pairs_are_neighbours=True),
    "qwen2": _Kind("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": _Kind("Qwen3Config", "Qwen3ForCausalLM"),
    "gemma": _Kind("GemmaConfig", "GemmaForCausalLM", _GEMMA, norms_hold_one=True),
}
"""By GGUF's name; Mistral's models are of the architecture ``llama``."""


def decoder_of(file: GgufFile, *, keeps_codes: bool = False) -> torch.nn.Module:
    """The causal language model that a file holds, in f32.

    With ``keeps_codes`` matrices that the file has in codes or halves stay so, in layers that widen them as they
    compute; otherwise all weights become f32, with their names.

    Raises ``ImportFailed`` for an architecture that is not known, for scaled positions that are not, and with every
    tensor that is missing, unknown or of another shape.
    """
    try:
        with MAKING:
            import torch
            import transformers
    except ImportError as error:
        remedy = "pip install torch transformers"
        raise OptionError("a GGUF file's model needs torch and transformers", remedy=remedy) from error
    name = file.get("general.architecture", str, "")
    kind = ARCHITECTURES.get(name)
    if kind is None:
        raise broken(file.path, f"the architecture {name!r:.60} is none of {', '.join(ARCHITECTURES)}")
    sizes = _sizes(file, name)
    make = getattr(transformers, kind.model)
    try:
        config = getattr(transformers, kind.config)(**sizes, **dict(kind.fixed))
        with torch.device("meta"):
            model: torch.nn.Module = make(config)
    except Exception as error:  # each class of transformers objects in its own way to sizes that fit no model
        raise broken(file.path, f"{kind.model} can't have these sizes: {error}"[:300]) from error
    coded = _layers_for_codes(model) if keeps_codes else frozenset()
    found = dict(_renamed(file, kind, config, coded))
    _check(file, {n: tuple(t.shape) for n, t in model.state_dict().items()}, found)
    _keep_codes(model, {n: codes for n, codes in found.items() if isinstance(codes, Codes)})
    state = {n: tensor_over(a) for n, a in found.items() if not isinstance(a, Codes)}
    model.load_state_dict(state, assign=True)
    _fill_buffers(model, make, config)
    if _ROPE_FACTORS in file.tensors:
        # Llama 3 stretches slow rotations by a factor for each pair, which the file holds ready.
        rotary: Any = model.get_submodule("model.rotary_emb")
        factors, rates = file.tensors[_ROPE_FACTORS].numbers(), rotary.inv_freq
        if factors.shape != tuple(rates.shape):
            raise broken(file.path, f"{factors.shape} factors of rotations are not one for each of {len(rates)} pairs")
        rotary.inv_freq = rates / tensor_over(factors)
    return model.eval()


def _sizes(file: GgufFile, name: str) -> dict[str, Any]:
    """A configuration's sizes, from the metadata of an architecture."""

    def whole(key: str, default: int | None = None) -> int:
        value: int = file.get(f"{name}.{key}", int, default)
        if not 0 < value < 1 << 31:
            raise broken(file.path, f"{name}.{key} is {value}, which is no size")
        return value

    if file.tensors.get("token_embd.weight") is None or not file.tensors["token_embd.weight"].shape:
        raise broken(file.path, "it has no tensor token_embd.weight")
    # Before a layer is made: each has tensors of its own.
    if whole("block_count") > len(file.tensors):
        raise broken(file.path, f"{len(file.tensors)} tensors are too few for {whole('block_count')} layers")
    hidden, heads = whole("embedding_length"), whole("attention.head_count")
    return {
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": whole("feed_forward_length"),
        "num_hidden_layers": whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": whole("attention.head_count_kv", heads),
        "head_dim": whole("attention.key_length", max(hidden // heads, 1)),
        "max_position_embeddings": whole("context_length"),
        "rms_norm_eps": _positive(file, f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rotation(file, name),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _positive(file: GgufFile, key: str, default: float | None = None) -> float:
    """A number above 0; others make every logit NaN, or none at all."""
    value = float(file.get(key, float, default))
    if not 0 < value < math.inf:
        raise broken(file.path, f"{key} is {value:g} and must be a number above 0")
    return value


def _rotation(file: GgufFile, name: str) -> dict[str, Any]:
    """The rotary embedding: its base, and by how much positions are stretched."""
    base = _positive(file, f"{name}.rope.freq_base", 10000.0)
    scaling = file.get(f"{name}.rope.scaling.type", str, "none")
    if scaling == "none":
        return {"rope_type": "default", "rope_theta": base}
    if scaling == "linear":
        factor = _positive(file, f"{name}.rope.scaling.factor")
        return {"rope_type": "linear", "rope_theta": base, "factor": factor}
    raise broken(file.path, f"positions that are scaled by {scaling!r:.40} are not known")


def _layers_for_codes(model: torch.nn.Module) -> Container[str]:
    """The names of matrices whose layers compute what ``coded_layers`` does."""
    import torch

    plain = (torch.nn.Linear, torch.nn.Embedding)
    return {f"{name}.weight" for name, layer in model.named_modules() if type(layer) in plain}


def _keep_codes(model: torch.nn.Module, matrices: Mapping[str, Codes]) -> None:
    """Put layers with these matrices in the place of a model's own."""
    with MAKING:
        import torch

        from tilewright.frontend.weights.coded_layers import CodedEmbedding, CodedLinear

    for name, codes in matrices.items():
        place = name.removesuffix(".weight")
        old = model.get_submodule(place)
        new = CodedLinear(codes, old.bias) if isinstance(old, torch.nn.Linear) else CodedEmbedding(codes)
        model.set_submodule(place, new)


def _renamed(file: GgufFile, kind: _Kind, config: Any, coded: Container[str]) -> Iterator[tuple[str, Array | Codes]]:
    """Every tensor under the name that transformers has for it, stored as it has it; ``coded`` ones as codes."""
    for tensor in file.tensors.values():
        name = _name_of(tensor.name)
        if name is None:
            continue  # factors of rotations are no parameter
        codes = tensor.codes() if name in coded else None
        numbers = tensor.numbers() if codes is None else None
        if kind.pairs_are_neighbours and (layer := name.rpartition(".")[0]).endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if layer.endswith("q_proj") else config.num_key_value_heads
            codes = None if codes is None else codes.of_rows(partial(_halves_apart, file, heads))
            numbers = None if numbers is None else _halves_apart(file, heads, numbers)
        if kind.norms_hold_one and "norm" in tensor.name and numbers is not None:
            with np.errstate(all="ignore"):  # numbers are anybody's
                numbers = numbers - 1
        made = numbers if codes is None else codes
        assert made is not None
        yield name, made
        if tensor.name == "token_embd.weight" and config.tie_word_embeddings:
            yield "lm_head.weight", made


def _name_of(name: str) -> str | None:
    """What transformers calls a tensor; its own name where that is not known, so that it is reported."""
    if name == _ROPE_FACTORS:
        return None
    stem, _, suffix = name.rpartition(".")
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{suffix}"
    block, _, rest = stem.removeprefix("blk.").partition(".")
    return f"model.layers.{block}.{_LAYER[rest]}.{suffix}" if rest in _LAYER else name


def _halves_apart(file: GgufFile, heads: int, rows: Array) -> Array:
    """Rows of each head with the pairs of a rotation half a head apart instead of side by side."""
    if rows.ndim == 0 or rows.shape[0] % (2 * heads):
        raise broken(file.path, f"{rows.shape} rows of queries or keys are not {heads} heads of pairs")
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _check(file: GgufFile, wanted: dict[str, tuple[int, ...]], found: Mapping[str, Array | Codes]) -> None:
    """Raise ``ImportFailed`` with every difference between the tensors of a file and those of its model."""
    rules = [f"{n} is missing" for n in wanted if n not in found]
    rules += [f"{n} is no tensor of this architecture" for n in found if n not in wanted]
    rules += [
        f"{n} has the shape {a.shape}, and the metadata ask for {wanted[n]}"
        for n, a in found.items()
        if n in wanted and a.shape != wanted[n]
    ]
    if rules:
        remedy = "convert the model anew, or build it in PyTorch and pass that"
        problems = [Problem(Loc(str(file.path)), "GGUF", rule, remedy) for rule in rules]
        raise ImportFailed("the GGUF file's tensors are not those of its architecture", problems)


def _fill_buffers(model: torch.nn.Module, make: Callable[[Any], torch.nn.Module], config: Any) -> None:
    """Give a model without memory the buffers that no file holds, such as rotations, from a model of one layer."""
    few = {"num_hidden_layers": 1, "vocab_size": _SMALL_WORDS, "intermediate_size": 1}
    small = make(type(config)(**{**config.to_dict(), **few, "layer_types": None}))
    for name, buffer in small.named_buffers():
        owner, _, own = name.rpartition(".")
        model.get_submodule(owner).register_buffer(own, buffer, persistent=False)
