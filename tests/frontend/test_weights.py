"""Weights in files of their own: GGUF files are whole models, other files replace a model's numbers by name."""

from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import save_file

import tilewright as tw
from frontend.gguf_build import MODELS, model_of, write
from small_models import numbers
from tilewright.frontend.weights.decoders import decoder_of
from tilewright.frontend.weights.gguf_file import READ, open_gguf


@pytest.mark.parametrize("kind", MODELS)
def test_a_file_is_the_model_that_it_was_made_of(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, tokens = model_of(kind), torch.tensor([[3, 1, 4, 1, 5]])
    write(tmp_path / "model.gguf", kind, model)
    with torch.no_grad():
        found, expected = (m(tokens).logits for m in (decoder_of(open_gguf(tmp_path / "model.gguf")), model))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_factors_of_rotations_stretch_them(tmp_path: Path) -> None:
    model, factors = model_of("llama"), np.array([1, 1, 2, 4, 4, 8, 8, 8], np.float32)
    write(tmp_path / "m.gguf", "llama", model, more=lambda w: w.add_tensor("rope_freqs.weight", factors))
    model.model.rotary_emb.inv_freq /= torch.from_numpy(factors)
    tokens = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        found, expected = (m(tokens).logits for m in (decoder_of(open_gguf(tmp_path / "m.gguf")), model))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow  # compiles two programs
def test_a_decoder_of_a_file_generates_what_transformers_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = model_of("llama")
    write(tmp_path / "model.gguf", "llama", model)
    made = tw.decoder(tmp_path / "model.gguf", max_length=16, chunk=4, cache=False, threads=1)
    expected = model.generate(torch.tensor([[3, 1, 4]]), max_new_tokens=6, do_sample=False)[0]
    assert made.generate([3, 1, 4], max_new_tokens=6).tolist() == expected.tolist()


def _with_blocks(path: Path, kind: str) -> np.ndarray:
    """A file with one tensor of random blocks; scales are small numbers, so that all values are finite."""
    chosen = gguf.GGMLQuantizationType[kind]
    n, size = gguf.GGML_QUANT_SIZES[chosen]
    rows = np.random.default_rng(0).integers(0, 60, (3, 512 // n * size), np.uint8)
    if kind in ("F32", "F16", "F64"):
        rows = numbers(3, 512).astype({"F32": np.float32, "F16": np.float16, "F64": np.float64}[kind])
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", rows, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rows


@pytest.mark.parametrize("kind", sorted(READ))
def test_every_type_of_block_becomes_numbers(kind: str, tmp_path: Path) -> None:
    rows = _with_blocks(tmp_path / "w.gguf", kind)
    tensor = open_gguf(tmp_path / "w.gguf").tensors["w"]
    made = tensor.numbers()
    assert made.shape == tensor.shape == (3, 512) and made.dtype == np.float32 and np.isfinite(made).all()
    assert isinstance(tensor.data.base, np.memmap) or isinstance(tensor.data, np.memmap)  # nothing was read ahead
    if kind == "Q8_0":  # 32 signed bytes behind a scale in f16
        blocks = rows.reshape(-1, 34)
        values = blocks[:, 2:].view(np.int8).astype(np.float32) * blocks[:, :2].copy().view(np.float16)
        np.testing.assert_array_equal(made, values.reshape(3, 512))
    elif kind == "Q4_0":  # 32 halves of bytes, low ones first, less 8
        blocks = rows.reshape(-1, 18)
        codes = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], 1).astype(np.float32) - 8
        np.testing.assert_array_equal(made, (codes * blocks[:, :2].copy().view(np.float16)).reshape(3, 512))
    elif not tensor.kind.startswith(("Q", "I", "B")):
        np.testing.assert_array_equal(made, rows.astype(np.float32))


def test_codes_keep_a_model_near_itself(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, tokens = model_of("llama"), torch.tensor([[3, 1, 4, 1, 5]])
    write(tmp_path / "model.gguf", "llama", model, "Q8_0")
    with torch.no_grad():
        found, expected = (m(tokens).logits for m in (decoder_of(open_gguf(tmp_path / "model.gguf")), model))
    assert 0 < (found - expected).abs().max() < 0.02 * expected.abs().max()


def _damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """A file cut, or with some bytes changed, mostly in the part that says how the rest is to be read."""
    if rng.random() < 0.2:
        return content[: rng.integers(4, len(content))]
    damaged = bytearray(content)
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(4, 2000 if rng.random() < 0.9 else len(content)))
        damaged[at] = int(rng.choice([0, 1, 127, 255, rng.integers(256)]))
    return bytes(damaged)


def _reads_or_refuses(path: Path, contents: bytes, seeds: range) -> int:
    """How many damaged files are refused; anything but a typed error fails the test."""
    n_refused = 0
    for seed in seeds:
        path.write_bytes(_damaged(contents, np.random.default_rng(seed)))
        try:
            decoder_of(open_gguf(path))
        except tw.ImportFailed:
            n_refused += 1
    return n_refused


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", "qwen2", model_of("qwen2"))
    contents = (tmp_path / "model.gguf").read_bytes()
    assert _reads_or_refuses(tmp_path / "damaged.gguf", contents, range(40)) >= 10


@pytest.mark.slow  # 2,000 files
def test_many_damaged_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", "llama", model_of("llama"))
    contents = (tmp_path / "model.gguf").read_bytes()
    assert _reads_or_refuses(tmp_path / "damaged.gguf", contents, range(1000, 3000)) >= 500


@pytest.mark.parametrize(("change", "message"), [
    (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "scaled by 'yarn' are not known"),
    (lambda w: w.add_tensor("blk.0.ffn_gate_exps.weight", np.ones((2, 2), np.float32)), "ffn_gate_exps.weight is no"),
    (lambda w: w.add_tensor("odd", np.ones((2, 2), np.float32)), "odd is no tensor"),
    (lambda w: w.add_tensor("blk.7.attn_norm.weight", np.ones(64, np.float32)), "layers.7.input_layernorm.weight is"),
])  # fmt: skip
def test_what_no_known_model_has_is_named(change, message: str, tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", "llama", model_of("llama"), more=change)
    with pytest.raises(tw.ImportFailed, match=message):
        tw.decoder(tmp_path / "model.gguf")
    other = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(other, "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(tw.ImportFailed, match="architecture 'bert' is none of llama"):
        tw.decoder(other)


# --- with_weights ---------------------------------------------------------------------------------------------------


def test_a_module_without_memory_reads_a_mapped_file(tmp_path: Path) -> None:
    arrays = {"weight": numbers(4, 3), "bias": numbers(4)}
    save_file(arrays, tmp_path / "w.safetensors")
    with torch.device("meta"):
        empty = torch.nn.Linear(3, 4)
    made = tw.with_weights(empty, tmp_path / "w.safetensors")
    assert empty.weight.is_meta and not made.weight.is_meta
    x = numbers(2, 3)
    compiled = tw.compile(made, (torch.from_numpy(x),), cache=False, threads=1)
    np.testing.assert_allclose(compiled(x), x @ arrays["weight"].T + arrays["bias"], rtol=1e-5, atol=1e-5)


def test_tensors_under_two_names_are_there_once() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    module, table = Tied(), numbers(5, 3)
    made = tw.with_weights(module, {"embed.weight": table})
    np.testing.assert_array_equal(made.head.weight.detach(), table)
    assert not np.array_equal(module.head.weight.detach(), table)


def test_bf16_goes_over_by_its_bits() -> None:
    a = numbers(4, 3).astype(ml_dtypes.bfloat16)
    made = tw.with_weights(torch.nn.Linear(3, 4, bias=False).bfloat16(), {"weight": a})
    assert made.weight.dtype is torch.bfloat16 and made.weight.view(torch.int16).numpy().tobytes() == a.tobytes()


SMALL = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e3m4", "float6_e2m3fn", "float4_e2m1fn")


@pytest.mark.parametrize("source", ["torch", "onnx"])
@pytest.mark.parametrize("dtype", [*(getattr(ml_dtypes, n) for n in SMALL), np.longdouble, np.dtype(">f4")], ids=str)
def test_floats_of_every_width_stand_for_those_of_another(dtype: object, source: str) -> None:
    a = np.array([1, 2, 4, 1], np.float32).astype(dtype)
    if source == "torch":
        made = tw.with_weights(torch.nn.LayerNorm(4, bias=False), {"weight": a}).weight.detach().numpy()
    else:
        proto = onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[4] x) => (float[4] y)'
            " <float[4] w = {0, 0, 0, 0}> { y = Add(x, w) }"
        )
        proto = tw.with_weights(proto, {"w": a})
        made = onnx.numpy_helper.to_array(proto.graph.initializer[0])
    np.testing.assert_array_equal(made, [1, 2, 4, 1])


def test_tensors_without_a_form_are_named() -> None:
    given = {
        "weight": torch.zeros(4, 3).to_sparse(), "bias": torch.zeros(4, device="meta"), "a": np.zeros(4, "f4,f4"),
    }  # fmt: skip
    with pytest.raises(tw.ImportFailed) as failed:
        tw.with_weights(torch.nn.Linear(3, 4), given)
    for part in ("weight is laid out as torch.sparse_coo", "bias has no memory", "a is of [('f0', '<f4'), ("):
        assert part in str(failed.value)
    packed = torch.empty(4, dtype=torch.float4_e2m1fn_x2)
    for source in (torch.nn.LayerNorm(4, bias=False), onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))):
        with pytest.raises(tw.ImportFailed, match="weight is float4_e2m1fn_x2"):
            tw.with_weights(source, {"weight": packed})


def test_what_is_no_model_or_holds_no_numbers_is_named(tmp_path: Path) -> None:
    layer, folder = torch.nn.Linear(3, 4), tmp_path
    for weights in (tmp_path / "none.safetensors", tmp_path / "none.gguf", folder, None, 3, ["weight"]):
        with pytest.raises(
            tw.TilewrightError, match=r"can't read .*\n.*pass the path of a safetensors or GGUF file"
        ) as e:
            tw.with_weights(layer, weights)
        assert type(e.value).__name__ == "FileError"
    with pytest.raises(tw.ImportFailed) as failed:
        tw.with_weights(layer, {"weight": np.array([["a"]]), "bias": [[1], [2, 3]]})
    assert "weight is of <U1, and not of numbers" in str(failed.value) and "bias is no array" in str(failed.value)
    (tmp_path / "net.onnx").write_bytes(b"\xff\xfe\xfd" * 9)
    for source in (tmp_path / "none.onnx", folder, tmp_path / "net.onnx", b"\xff\xfe\xfd" * 9):
        with pytest.raises(tw.ImportFailed, match="the ONNX model can't be read"):
            tw.with_weights(source, {})
    for source in ("layer.tflite", tmp_path / "layer.pt2", "layer.mlir", None):
        with pytest.raises(tw.OptionError, match="has no weights to replace by name"):
            tw.with_weights(source, {})


def test_numbers_beside_a_model_that_are_gone_are_named(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y)'
        " <float[2] b = {5, 6}> { y = Add(x, b) }"
    )
    proto.graph.initializer[0].raw_data = numbers(2).tobytes()
    proto.graph.initializer[0].ClearField("float_data")
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert tw.with_weights(tmp_path / "m.onnx", {}).graph.initializer[0].raw_data == numbers(2).tobytes()
    (tmp_path / "m.data").unlink()
    with pytest.raises(tw.TilewrightError, match=r"can't read .*m\.onnx(.|\n)*put the file with the numbers of b"):
        tw.with_weights(tmp_path / "m.onnx", {})
    tw.with_weights(tmp_path / "m.onnx", {"b": numbers(2)})


def test_onnx_initializers_are_replaced_by_name(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[N, 2] x) => (float[N, 2] y)'
        " <float[2, 2] w = {1, 0, 0, 1}, float[2] b = {5, 6}> { h = MatMul(x, w) y = Add(h, b) }"
    )
    onnx.save(proto, tmp_path / "m.onnx")
    save_file({"w": np.array([[0, 2], [3, 0]], np.float32)}, tmp_path / "w.safetensors")
    made = tw.compile(tw.with_weights(tmp_path / "m.onnx", tmp_path / "w.safetensors"), cache=False, threads=1)
    np.testing.assert_array_equal(made(np.array([[1, 10]], np.float32)), [[35, 8]])


def test_all_that_does_not_fit_is_named() -> None:
    with pytest.raises(tw.ImportFailed) as failed:
        tw.with_weights(torch.nn.Linear(3, 4), {"weight": numbers(3, 4), "scale": numbers(2)})
    text = str(failed.value)
    for part in ("bias is missing", "scale is no tensor", "weight has the shape (3, 4), and the model's has (4, 3)"):
        assert part in text


def test_pickles_are_refused_and_damaged_files_named(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(4, 3)}, tmp_path / "w.pt")
    with pytest.raises(tw.OptionError, match=r"is a pickle.*\n.*weights_only=True"):
        tw.with_weights(torch.nn.Linear(3, 4), tmp_path / "w.pt")
    (tmp_path / "w.pt").rename(tmp_path / "w.safetensors")
    with pytest.raises(tw.OptionError, match="is a pickle"):
        tw.with_weights(torch.nn.Linear(3, 4), tmp_path / "w.safetensors")
    save_file({"weight": numbers(4, 3), "bias": numbers(4)}, tmp_path / "whole.safetensors")
    content = (tmp_path / "whole.safetensors").read_bytes()
    for k in range(0, len(content), 7):
        damaged = bytearray(content[: k + 8] if k % 2 else content)
        damaged[min(k, len(damaged) - 1)] ^= 0xFF
        (tmp_path / "damaged.safetensors").write_bytes(damaged)
        try:
            tw.with_weights(torch.nn.Linear(3, 4), tmp_path / "damaged.safetensors")
        except (tw.ImportFailed, tw.OptionError):
            continue
