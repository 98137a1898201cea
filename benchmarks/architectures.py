"""Architectures of ``transformers`` without a case of their own, made small, at PyTorch's users' four entry points.

    python -m benchmarks.architectures                        all of them
    python -m benchmarks.architectures --only '^mamba2 tw'    some, by a regular expression over names and entry points

In: nothing; weights are random and seeded. Out: as ``benchmarks.newcomer``, which compares and counts. An architecture
is ``skipped`` where no small configuration of it was found that eager PyTorch runs, or which PyTorch can't trace.
Not its business: speed, and architectures that ``tilewright.tools.conformance.hf_models`` has with all of their inputs.

A configuration is its class's default one with every number made small that says how large the model is: numbers are
known by their names, which most architectures share. What a small model takes is found by trying: the model's main
input, as tokens, a picture, a clip, a spectrum or samples of sound, until eager PyTorch accepts it. Weights that are
all alike get noise: experts of equal scores are ties, which every program breaks in its own way.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
import transformers
from benchmarks import newcomer
from benchmarks.newcomer_cases import Newcomer
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from tilewright.tools.conformance.hf_models import ARCHITECTURES
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "architectures"
MOST_WEIGHTS = 150_000_000
"""A model with more is not small: its configuration has a number that no pattern knows."""
TEXT = torch.arange(3, 19).view(2, 8)
GRID = torch.tensor([[1, 4, 8]])
MORE: tuple[dict[str, torch.Tensor], ...] = (
    {},
    {"grid_thw": GRID, "image_grid_thw": GRID},
    {"decoder_input_ids": TEXT, "input_ids": TEXT},
    {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 64 * 64).view(2, 3, 64, 64)},
    {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 224 * 224).view(2, 3, 224, 224)},
    {"input_features": torch.linspace(-1, 1, 2 * 3000 * 80).view(2, 80, 3000)},
)
"""What a model may take beside its main input: the rows and columns of patches, text, a picture, a spectrum."""
FEW: tuple[tuple[str, int], ...] = (
    (r"(^|_)(num|n)_(hidden_)?(encoder_|decoder_|text_|global_|local_)?layers?$|(encoder|decoder)_layers$|^depth$", 2),
    (r"num_hidden_layers$|num_layers$|n_layers?$", 2),
    (r"vocab_size$", 120),
    (r"max_position_embeddings$|^n_positions$|^n_ctx$|max_source_positions$|max_target_positions$", 128),
    (r"num_(local_|routed_)?experts$|^n_routed_experts$", 8),
    (r"num_experts_per_tok$|^moe_topk$|^moe_k$", 2),
)
NARROW = (
    (r"num_key_value_heads$|num_kv_heads$|n_head_kv$", 2),
    (r"attention_heads$|num_heads$|n_heads?$", 4),
    (r"(^|_)head_dim$|^d_kv$|^key_size$", 16),
    (r"^hidden_size$|^d_model$|^n_embd$|^embed_dim$|^embedding_size$|^dim$|^emb_dim$|^d_embed$", 64),
    (r"intermediate_size$|ffn_dim$|^d_ff$|^d_inner$|^ffn_hidden_size$|^n_inner$", 128),
    (r"^image_size$", 64),
)
WIDE = (
    (r"num_key_value_heads$|num_kv_heads$|attention_heads$|num_heads$|n_heads?$", 4),
    (r"^hidden_size$|^d_model$|^n_embd$|^embed_dim$|^embedding_size$|^dim$|^emb_dim$|^d_embed$", 512),
    (r"intermediate_size$|ffn_dim$|^d_ff$|^d_inner$|^ffn_hidden_size$|^n_inner$", 256),
)
"""What a number with such a name becomes, where it is larger; the last pattern that fits decides.

``WIDE`` leaves the width of a head, whose parts may have widths of their own.
"""


def shrunk(config: Any, patterns: Sequence[tuple[str, int]]) -> Any:
    """The configuration with small numbers, and those inside of it."""
    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PreTrainedConfig):
            shrunk(value, patterns)
        elif isinstance(value, int) and not isinstance(value, bool):
            for pattern, small in patterns:
                if re.search(pattern, name) and value > small:
                    with contextlib.suppress(Exception):  # some are only read
                        setattr(config, name, small)
        elif name == "depths" and isinstance(value, list | tuple):
            config.depths = type(value)(min(n, 2) for n in value)
    rotary = getattr(config, "rope_parameters", None)
    sections = rotary.get("mrope_section") if isinstance(rotary, dict) else None
    if sections:  # they are parts of half of a narrow head
        rotary["mrope_section"] = [n * 8 // sum(sections) for n in sections]
    if getattr(config, "head_dim", 0) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    special = {"use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    for name, value in list(vars(config).items()):
        if isinstance(value, int) and (name in special or (name.endswith("token_id") and value > 119)):
            setattr(config, name, special.get(name, 0 if "pad" in name else 119))
    config.tie_word_embeddings = getattr(config, "tie_word_embeddings", False)
    return config


class OneInput(nn.Module):
    """A model of one tensor, whose results are its tensors in a tuple: caches and names stay inside."""

    def __init__(self, model: nn.Module, name: str, more: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.name, self.more = model, name, dict(more)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = self.model(**{self.name: x}, **self.more)
        values = made.values() if hasattr(made, "values") else made if isinstance(made, tuple | list) else (made,)
        found = (y for v in values for y in (v if isinstance(v, tuple | list) else (v,)))
        return tuple(y for y in found if isinstance(y, torch.Tensor))


def inputs_of(name: str, config: Any) -> Iterator[Callable[[int], torch.Tensor]]:
    """What the input of this name may be, by the number of images or tokens."""
    if hasattr(config, "patch_size") and isinstance(config.patch_size, int):
        channels = getattr(config, "in_channels", getattr(config, "num_channels", 3))
        frames = getattr(config, "temporal_patch_size", 1)
        width = channels * frames * config.patch_size**2
        yield lambda n, w=width: torch.randn(16 * n, w)
    if "ids" in name:
        yield lambda n: torch.randint(3, 100, (2, 4 * n))
        yield lambda n: torch.randint(3, 100, (1, 32 * n))
    for c, size in ((3, 64), (3, 224), (1, 64), (3, 256), (3, 384)):
        yield lambda n, c=c, size=size: torch.randn(n, c, size, size)
    for frames, size in ((8, 64), (16, 224)):
        yield lambda n, f=frames, s=size: torch.randn(n, f, 3, s, s)
    for bins, frames in ((80, 3000), (128, 3000), (80, 256), (128, 1024)):
        yield lambda n, b=bins, f=frames: torch.randn(n, b, f)
        yield lambda n, b=bins, f=frames: torch.randn(n, f, b)
    yield lambda n: torch.randn(n, 4000)
    yield lambda n: torch.randn(n, 1, 4000)
    for width in (getattr(config, "hidden_size", 64), 64):
        yield lambda n, w=width: torch.randn(2, 4 * n, w)


def made_small(model_type: str, patterns: Sequence[tuple[str, int]]) -> tuple[nn.Module, Any]:
    """A model of the architecture with random weights, in evaluation mode, and its configuration."""
    kind = transformers.CONFIG_MAPPING[model_type]
    config = shrunk(kind(), patterns)
    with torch.device("meta"):
        n_weights = sum(p.numel() for p in transformers.AutoModel.from_config(config).parameters())
    if n_weights > MOST_WEIGHTS:
        raise ValueError(f"{n_weights:,} weights are not small")
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point() and p.numel() > 1 and bool((p == p.flatten()[0]).all()):
                p += 0.1 * torch.randn_like(p)
    return model, config


@cache
def found(model_type: str) -> Newcomer:
    """The architecture as a case; ``ValueError`` where nothing was found that eager PyTorch runs."""
    why = ""
    for patterns in ((*FEW, *NARROW), (*FEW, *WIDE), FEW):  # where narrow heads do not fit, those of the class
        try:
            model, config = made_small(model_type, patterns)
        except Exception as e:
            why = why or f"no small model: {type(e).__name__}: {e}"
            continue
        takes = inspect.signature(model.forward).parameters
        name = getattr(model, "main_input_name", "input_ids")
        name = name if name in takes else next(iter(takes))
        for more, make in itertools.product(MORE, inputs_of(name, config)):
            module = OneInput(model, name, {k: x for k, x in more.items() if k in takes and k != name})
            try:
                return _case(module, make, (2,) if more else (2, 3))
            except Exception as e:
                why = why or f"no input of {name}: {type(e).__name__}: {e}"
    raise ValueError(why[:200])


def _case(module: nn.Module, make: Callable[[int], torch.Tensor], sizes: tuple[int, ...]) -> Newcomer:
    """A model that eager PyTorch runs on an input, with the same results again."""
    torch.manual_seed(1)
    x = make(2)
    with torch.no_grad():
        once, again = module(x), module(x)
    if not once or any(not torch.equal(a, b) for a, b in zip(once, again, strict=True)):
        raise ValueError("it draws random numbers, or gives no tensor")
    return Newcomer(lambda: module, lambda n: (make(n),), sizes)


def cases() -> Sequence[Case]:
    """The others at every entry point; those that share a model class are one."""
    written, seen = {a.config for a in ARCHITECTURES}, dict[str, str]()
    for model_type, kind in MODEL_MAPPING_NAMES.items():  # by names: to import every class takes minutes
        if CONFIG_MAPPING_NAMES.get(model_type) not in written:
            seen.setdefault(str(kind), model_type)
    return [Case(f"{name} {entry}", entry) for name in sorted(seen.values()) for entry in newcomer.ENTRIES]


def run_case(case: Case) -> tuple[Status, str]:
    """As :func:`benchmarks.newcomer.run_case`, for an architecture."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    name, entry = case.name.split(" ", 1)
    try:
        newcomer_case = found(name)
    except ValueError as e:
        return "skipped", str(e)
    status, detail = newcomer.run_entry(newcomer_case, entry)
    if status == "wrong" and not _is_traced_as_it_runs(newcomer_case):
        return "skipped", f"PyTorch's own trace of it computes something else than it does: {detail}"
    return status, detail


def _is_traced_as_it_runs(newcomer_case: Newcomer) -> bool:
    """Does PyTorch compute the same, eagerly, of what it traces? Some code asks whether it is being traced."""
    torch._dynamo.reset()
    module = newcomer_case.make()
    (x,) = newcomer_case.inputs(newcomer_case.sizes[0])
    with torch.no_grad():
        traced, expected = torch.compile(module, backend="eager", dynamic=False)(x), module(x)
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(traced, expected, strict=True))


if __name__ == "__main__":
    newcomer.main("benchmarks.architectures")
