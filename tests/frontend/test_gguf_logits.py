"""GGUF files of every type of block and every architecture: logits equal a decoder in NumPy, by GGUF's own names.

That decoder knows nothing of transformers, which our models are built from: rotary pairs are neighbours in files of
``llama`` (Mistral's too) and half a head apart in others, and norms are what the file holds.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

import tilewright as tw
from tilewright.core.types import Array
from tilewright.frontend.weights.blocks import codes_of
from tilewright.frontend.weights.coded_layers import CodedEmbedding, CodedLinear
from tilewright.frontend.weights.decoders import decoder_of
from tilewright.frontend.weights.gguf_file import READ, open_gguf

WIDTH, INNER, WORDS, LAYERS, HEADS, GROUPS, SIZE = 256, 512, 64, 2, 4, 2, 64
EPSILON, BASE = 1e-5, 10000.0
TOKENS = np.array([3, 1, 4, 1, 5, 60])
FLOATS = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
}
"""Where in a block the numbers of f16 are that its codes are multiplied with or added to; at 0 in other types."""


@dataclass(frozen=True)
class Shape:
    """What tells the decoders apart."""

    architecture: str
    pairs_are_neighbours: bool = False
    has_biases: bool = False
    has_norms_of_heads: bool = False
    is_gemma: bool = False
    is_tied: bool = False


SHAPES = {
    "llama": Shape("llama", pairs_are_neighbours=True),
    "mistral": Shape("llama", pairs_are_neighbours=True, is_tied=True),
    "qwen2": Shape("qwen2", has_biases=True, is_tied=True),
    "qwen3": Shape("qwen3", has_norms_of_heads=True),
    "gemma": Shape("gemma", is_gemma=True, is_tied=True),
}


def blocks(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> tuple[Array, Array]:
    """A matrix as a file holds it, of random codes, and what the package ``gguf`` says that they stand for."""
    chosen = GGMLQuantizationType[kind]
    if kind in FLOATS:
        stored = (rng.standard_normal(shape) / 16).astype(FLOATS[kind])
        return stored, stored.astype(np.float32)
    n, size = GGML_QUANT_SIZES[chosen]
    if kind == "BF16":
        stored = gguf.quants.quantize((rng.standard_normal(shape) / 16).astype(np.float32), chosen)
        return stored, gguf.quants.dequantize(stored, chosen)
    made = rng.integers(0, 256, (shape[0], shape[1] // n, size), np.uint8)

    def scaled(step: float) -> Array:
        for at in SCALES.get(kind, (0,)):
            made[:, :, at : at + 2] = np.array([step], np.float16).view(np.uint8)
        return gguf.quants.dequantize(made.reshape(shape[0], -1), chosen)

    numbers = scaled(1 / (16 * float(scaled(1.0).std())))
    return made.reshape(shape[0], -1), numbers


def written(path: Path, shape: Shape, kind: str) -> Mapping[str, Array]:
    """A file of random weights, and these by GGUF's names."""
    rng = np.random.default_rng(0)
    wide, narrow = HEADS * SIZE, GROUPS * SIZE
    matrices = {"token_embd.weight": (WORDS, WIDTH)} | ({} if shape.is_tied else {"output.weight": (WORDS, WIDTH)})
    vectors = {"output_norm.weight": WIDTH}
    for k in range(LAYERS):
        own = {
            "attn_q": (wide, WIDTH),
            "attn_k": (narrow, WIDTH),
            "attn_v": (narrow, WIDTH),
            "attn_output": (WIDTH, wide),
        }
        own |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
        matrices |= {f"blk.{k}.{name}.weight": sizes for name, sizes in own.items()}
        vectors |= {f"blk.{k}.{name}.weight": WIDTH for name in ("attn_norm", "ffn_norm")}
        if shape.has_biases:
            vectors |= {f"blk.{k}.{name}.bias": own[name][0] for name in ("attn_q", "attn_k", "attn_v")}
        if shape.has_norms_of_heads:
            vectors |= {f"blk.{k}.{name}.weight": SIZE for name in ("attn_q_norm", "attn_k_norm")}
    writer, name = gguf.GGUFWriter(path, shape.architecture), shape.architecture
    for key, value in {
        "context_length": 64, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": GROUPS, "attention.key_length": SIZE,
    }.items():  # fmt: skip
        writer.add_uint32(f"{name}.{key}", value)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(BASE)
    found: dict[str, Array] = {}
    for tensor, sizes in matrices.items():
        stored, found[tensor] = blocks(rng, sizes, kind)
        writer.add_tensor(tensor, stored, raw_dtype=GGMLQuantizationType[kind])
    for tensor, n in vectors.items():
        found[tensor] = rng.uniform(0.5, 1.5, n).astype(np.float32)
        writer.add_tensor(tensor, found[tensor])
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return found


def normed(x: Array, factors: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * factors


def rotated(x: Array, are_neighbours: bool) -> Array:
    """``x[token, head, size]``, each pair turned by its token's place times the pair's rate."""
    angles = np.arange(len(x))[:, None, None] * BASE ** (-np.arange(0, SIZE, 2) / SIZE)
    a, b = (x[..., ::2], x[..., 1::2]) if are_neighbours else np.split(x, 2, -1)
    turned = a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)
    return np.stack(turned, -1).reshape(x.shape) if are_neighbours else np.concatenate(turned, -1)


def logits(w: Mapping[str, Array], shape: Shape) -> Array:
    """The decoder in NumPy, in f64."""
    w = {name: a.astype(float) for name, a in w.items()}
    x = w["token_embd.weight"][TOKENS] * (WIDTH**0.5 if shape.is_gemma else 1)
    n, hidden_ones = len(TOKENS), np.triu(np.full((len(TOKENS), len(TOKENS)), -np.inf), 1)

    def heads(k: int, name: str, h: Array) -> Array:
        made = h @ w[f"blk.{k}.{name}.weight"].T + w.get(f"blk.{k}.{name}.bias", 0)
        made = made.reshape(n, -1, SIZE)
        return normed(made, norm) if (norm := w.get(f"blk.{k}.{name}_norm.weight")) is not None else made

    for k in range(LAYERS):
        h = normed(x, w[f"blk.{k}.attn_norm.weight"])
        q, keys, values = (heads(k, name, h) for name in ("attn_q", "attn_k", "attn_v"))
        q, keys = (rotated(t, shape.pairs_are_neighbours) for t in (q, keys))
        keys, values = (np.repeat(t, HEADS // GROUPS, 1) for t in (keys, values))
        scores = np.einsum("qhs,khs->hqk", q, keys) / SIZE**0.5 + hidden_ones
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        seen = np.einsum("hqk,khs->qhs", shares / shares.sum(-1, keepdims=True), values).reshape(n, -1)
        x = x + seen @ w[f"blk.{k}.attn_output.weight"].T
        h = normed(x, w[f"blk.{k}.ffn_norm.weight"])
        gate, up = (h @ w[f"blk.{k}.{name}.weight"].T for name in ("ffn_gate", "ffn_up"))
        if shape.is_gemma:
            gate = gate / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        x = x + (gate * up) @ w[f"blk.{k}.ffn_down.weight"].T
    return normed(x, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(tokens, use_cache=False).logits


def check(found: Array, expected: Array, share: float = 2e-5) -> None:
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=share * np.abs(expected).max())


@pytest.mark.parametrize("kind", sorted(READ))
def test_codes_are_the_numbers_of_the_file(kind: str) -> None:
    stored, expected = blocks(np.random.default_rng(1), (8, 512), kind)
    found = codes_of(stored, kind, (8, 512))
    assert (found is None) == (kind in ("F32", "F64", "BF16"))
    if found is not None:
        made = found.steps * (np.float32(1) if found.scales is None else found.scales.real()[..., None])
        made = made if found.offsets is None else made + found.offsets.real()[..., None]
        assert found.steps.itemsize == (2 if kind == "F16" else 1) and found.shape == expected.shape
        np.testing.assert_array_equal(made.reshape(expected.shape), expected)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("keeps_codes", [False, True])
@pytest.mark.parametrize("kind", sorted(READ))
@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_the_codes(name: str, kind: str, keeps_codes: bool, tmp_path: Path) -> None:
    """The model that is compiled, in PyTorch."""
    expected = logits(written(tmp_path / "m.gguf", SHAPES[name], kind), SHAPES[name])
    model = Logits(decoder_of(open_gguf(tmp_path / "m.gguf"), keeps_codes=keeps_codes))
    with torch.no_grad():
        check(model(torch.from_numpy(TOKENS[None])).numpy(), expected)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("key", ["llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"])
def test_numbers_that_no_decoder_has_are_named(key: str, value: float, tmp_path: Path) -> None:
    written(tmp_path / "m.gguf", SHAPES["llama"], "F32")
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    at = content.index(key.encode()) + len(key) + 4  # behind the number's type
    content[at : at + 4] = np.float32(value).tobytes()
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(tw.ImportFailed, match=f"{key} is .* must be a number above 0"):
        decoder_of(open_gguf(tmp_path / "m.gguf"))


COMPILED = [("llama", kind) for kind in sorted(READ)] + [(name, "Q4_K") for name in SHAPES if name != "llama"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), COMPILED)
def test_compiled_logits_are_those_of_the_codes(name: str, kind: str, tmp_path: Path) -> None:
    expected = logits(written(tmp_path / "m.gguf", SHAPES[name], kind), SHAPES[name])
    tokens = torch.from_numpy(TOKENS[None])
    model = Logits(decoder_of(open_gguf(tmp_path / "m.gguf"), keeps_codes=True))
    compiled = tw.compile(model, (tokens,), threads=1, cache=False)
    # Rows that integers multiply are rounded to 16 bits.
    check(compiled(tokens.numpy()), expected, 2e-4)


@pytest.mark.parametrize(("kind", "bits"), [("Q4_K", 4), ("IQ4_NL", 4), ("Q5_1", 8), ("Q6_K", 8)])
def test_products_read_the_codes_of_the_file(kind: str, bits: int) -> None:
    """A matrix and a table of rows: products of integers in as few bits as a machine word is cut into."""
    stored, matrix = blocks(np.random.default_rng(2), (256, 256), kind)
    codes = codes_of(stored, kind, (256, 256))
    assert codes is not None
    layers = torch.nn.Sequential(CodedEmbedding(codes), CodedLinear(codes, None))
    places = np.array([3, 0, 255])
    made = tw.compile(layers, (torch.from_numpy(places),), threads=1, cache=False)
    assert f"x {bits}-bit " in str(made.report())
    expected = matrix[places] @ matrix.T
    np.testing.assert_allclose(made(places), expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kind", sorted(READ))
def test_a_file_of_gigabytes_is_open_at_once(kind: str, tmp_path: Path) -> None:
    """It is mapped: opening it takes no time that depends on its size, and no memory."""
    n, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rows, columns = 1 << 20, 4096
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    n_bytes = rows * columns // n * size
    writer.add_tensor_info("w", (rows, columns // n * size), np.dtype(np.uint8), n_bytes, GGMLQuantizationType[kind])
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_ti_data_to_file):
        write()
    writer.close()
    with (tmp_path / "m.gguf").open("ab") as file:
        file.truncate(file.tell() + n_bytes + writer.data_alignment)  # a hole, which takes no room
    begin = time.process_time()
    tensor = open_gguf(tmp_path / "m.gguf").tensors["w"]
    assert time.process_time() - begin < 0.2
    assert tensor.shape == (rows, columns) and tensor.data.nbytes == n_bytes > 1 << 30
