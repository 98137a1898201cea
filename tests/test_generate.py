"""``tilewright.decoder``: greedy tokens are transformers', the cache is appended in place, drawing follows its rule."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.build.options import Options
from tilewright.core.diag import OptionError
from tilewright.runtime.errors import ArtifactError, InputError
from tilewright.runtime.python.decoder import Decoder, _drawn

pytestmark = pytest.mark.usefixtures("shared_kernels")  # most tests compile one small decoder

torch = pytest.importorskip("torch")
N_WORDS = 96


@cache
def transformers() -> Any:
    """Loaded when a test asks for it: it takes most of a second."""
    return pytest.importorskip("transformers")


def model(kind: str) -> Any:
    """A decoder of one layer with weights so large that tokens differ."""
    torch.manual_seed(0)
    if kind == "llama":
        config = transformers().LlamaConfig(
            vocab_size=N_WORDS, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, initializer_range=0.4, eos_token_id=None,
        )  # fmt: skip
        return transformers().LlamaForCausalLM(config).eval()
    config = transformers().GPT2Config(
        vocab_size=N_WORDS, n_embd=32, n_layer=1, n_head=2, n_positions=64, initializer_range=0.4, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    return transformers().GPT2LMHeadModel(config).eval()


@cache
def small() -> tuple[Any, Decoder]:
    made = model("gpt2")
    return made, tilewright.decoder(made, max_length=40, chunk=8, cache=False, threads=1)


def check_greedy(made: Any, decoder: Decoder) -> None:
    for n in (1, 8, 19):
        prompt = np.random.default_rng(n).integers(0, N_WORDS, n)
        want = made.generate(torch.tensor(prompt)[None], max_new_tokens=12, do_sample=False, pad_token_id=0)[0].numpy()
        np.testing.assert_array_equal(decoder.generate(prompt, max_new_tokens=12), want)


def test_greedy_tokens_are_those_of_transformers() -> None:
    check_greedy(*small())


def test_a_cache_of_one_chunk_is_always_read_whole() -> None:
    """PyTorch exports no dimension of a single size."""
    made, prompt = small()[0], np.arange(1, 6)  # transformers hides the token that pads, 0
    decoder = tilewright.decoder(made, max_length=8, cache=False, threads=1)
    want = made.generate(torch.tensor(prompt)[None], max_new_tokens=3, do_sample=False, pad_token_id=0)[0].numpy()
    np.testing.assert_array_equal(decoder.generate(prompt, max_new_tokens=3), want)


@pytest.mark.slow
def test_a_decoder_with_rotated_positions_and_shared_heads() -> None:
    made = model("llama")
    check_greedy(made, tilewright.decoder(made, max_length=40, chunk=8, cache=False))


def windowed(kind: str) -> Any:
    """Two layers whose tokens look at six places: both of them, or the second one alone."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": N_WORDS, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.4, "eos_token_id": None,
        "sliding_window": 6,
    }  # fmt: skip
    if kind == "mistral":
        return transformers().MistralForCausalLM(transformers().MistralConfig(**shape)).eval()
    config = transformers().Qwen2Config(**shape, use_sliding_window=True, max_window_layers=1)
    return transformers().Qwen2ForCausalLM(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_layers_look_at_windows_of_the_cache(kind: str) -> None:
    made = windowed(kind)
    check_greedy(made, tilewright.decoder(made, max_length=40, chunk=8, cache=False))


@pytest.mark.slow
def test_few_bits_generate_what_the_quantised_model_does() -> None:
    """One code path for a prompt and for a token: the same tokens, whichever way a prompt is cut."""
    made = model("llama")
    one = tilewright.decoder(made, max_length=40, chunk=8, cache=False, precision="int4")
    other = tilewright.decoder(made, max_length=40, chunk=5, cache=False, precision="int4")
    prompt = np.arange(11)
    np.testing.assert_array_equal(one.generate(prompt, max_new_tokens=9), other.generate(prompt, max_new_tokens=9))
    assert one.model.report()["options"]["precision"] == Options(precision="int4").precision


@cache
def held(form: str) -> Decoder:
    return tilewright.decoder(small()[0], max_length=40, chunk=8, kv_cache_precision=form, cache=False, threads=1)


BYTES = 0.25 + 1 / 16
FORMS = [("fp8", BYTES, 2**-2), ("bf16", 0.5, 2**-7), ("int8", BYTES, 2**-5), ("fp8e5m2", BYTES, 2**-2)]


@pytest.mark.one_in(4)  # int8 is asked below
@pytest.mark.parametrize(("form", "share", "error"), FORMS)
def test_a_cache_in_fewer_bits(form: str, share: float, error: float, tmp_path: Path) -> None:
    """Keys and values of 16 numbers a head: in 8 bits a quarter of f32's bytes, and a scale for each 16."""
    made, fewer = small()[1], held(form)
    assert sum(c.nbytes for c in fewer._cache) == share * sum(c.nbytes for c in made._cache)
    prompt = np.random.default_rng(1).integers(0, N_WORDS, 19)
    want, got = made.prefill(prompt).copy(), fewer.prefill(prompt).copy()
    assert 0 < np.abs(got - want).max() < error * np.abs(want).max()
    want, got = made.step(3, 19).copy(), fewer.step(3, 19).copy()
    assert 0 < np.abs(got - want).max() < error * np.abs(want).max()
    fewer.save(tmp_path / "d.tw")
    again = tilewright.load_decoder(tmp_path / "d.tw", threads=1)
    np.testing.assert_array_equal(again.generate([3], max_new_tokens=8), fewer.generate([3], max_new_tokens=8))


def test_a_cache_of_small_floats_holds_what_pytorch_rounds_keys_to() -> None:
    """The layers' own keys, of which the first layer's don't depend on what a cache holds."""
    decoder, dtype = held("fp8"), torch.float8_e4m3fn
    tokens = torch.arange(5)[None]
    wanted = small()[0](tokens, use_cache=True).past_key_values.layers[0].keys.detach().permute(2, 0, 1, 3)
    decoder.prefill(np.arange(5))
    codes, scales = (c[:5] for c in decoder._cache[:2])
    largest = wanted.abs().amax(-1, keepdim=True)
    np.testing.assert_allclose(scales, (largest / torch.finfo(dtype).max).numpy(), rtol=1e-4)
    rounded = (wanted / torch.from_numpy(scales)).to(dtype).to(torch.float32).numpy()
    assert (codes.astype(np.float32) == rounded).mean() > 0.95  # keys are sums in another order


@pytest.mark.parametrize("form", ["fp32", "int8"])
def test_a_token_writes_its_own_row_of_the_cache(form: str) -> None:
    decoder = small()[1] if form == "fp32" else held(form)
    decoder.prefill(np.arange(5))
    before = [c.copy() for c in decoder._cache]
    places = [c.ctypes.data for c in decoder._cache]
    decoder.step(7, 5)
    assert [c.ctypes.data for c in decoder._cache] == places
    for old, new in zip(before, decoder._cache, strict=True):
        assert [k for k in range(len(new)) if not np.array_equal(old[k], new[k])] == [5]


def test_a_saved_decoder_generates_the_same_without_the_compiler(tmp_path: Path) -> None:
    _, decoder = small()
    decoder.save(tmp_path / "d.tw")
    again = tilewright.load_decoder(tmp_path / "d.tw", threads=1)
    assert (again.chunk, again.max_length) == (decoder.chunk, decoder.max_length)
    np.testing.assert_array_equal(
        again.generate([3, 1], max_new_tokens=8), decoder.generate([3, 1], max_new_tokens=8)
    )  # fmt: skip
    decoder.model.save(tmp_path / "step.tw")
    with pytest.raises(ArtifactError, match="holds no decoder"):
        tilewright.load_decoder(tmp_path / "step.tw")


def test_drawing_follows_the_seed_and_ends_at_a_stop() -> None:
    _, decoder = small()
    options: dict[str, Any] = {"max_new_tokens": 16, "temperature": 5.0, "top_k": 40, "top_p": 0.95}
    first, again, other = (decoder.generate([3, 4], seed=s, **options) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert first.tolist() != other.tolist()
    stopped = decoder.generate([3, 4], seed=1, stop=[int(first[6])], **options)
    assert stopped.tolist() == first[: first.tolist().index(first[6], 2) + 1].tolist()


def test_few_and_likely_tokens_are_drawn_by_their_probability() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
    rng = np.random.default_rng(0)

    def shares(temperature: float, top_k: int, top_p: float) -> list[float]:
        drawn = [_drawn(logits, temperature, top_k, top_p, rng) for _ in range(4000)]
        return [drawn.count(k) / len(drawn) for k in range(4)]

    np.testing.assert_allclose(shares(1, 0, 1), [0.1, 0.4, 0.2, 0.3], atol=0.04)
    np.testing.assert_allclose(shares(1, 2, 1), [0, 4 / 7, 0, 3 / 7], atol=0.04)
    np.testing.assert_allclose(shares(1, 0, 0.75), [0, 4 / 9, 2 / 9, 3 / 9], atol=0.04)
    np.testing.assert_allclose(shares(0.5, 0, 1), np.array([0.01, 0.16, 0.04, 0.09]) / 0.3, atol=0.04)


def test_a_stream_ends_where_another_takes_the_cache() -> None:
    _, decoder = small()
    stream = decoder.stream([3, 4], max_new_tokens=8)
    next(stream)
    decoder.generate([5], max_new_tokens=2)
    with pytest.raises(InputError, match="used for other tokens"):
        next(stream)


def test_what_can_not_be_generated_is_refused() -> None:
    _, decoder = small()
    for tokens, options, what in (
        ([], {}, "row of whole numbers"),
        ([N_WORDS], {}, f"no token {N_WORDS}"),
        ([1], {"max_new_tokens": 1000}, "don't fit a cache of 40"),
        ([1], {"temperature": -1.0}, "temperature=-1.0"),
        ([1], {"top_p": 0.0}, "top_p=0.0"),
    ):
        with pytest.raises(InputError, match=what):
            decoder.generate(tokens, **{"max_new_tokens": 2, **options})
    with pytest.raises(OptionError, match="no causal language model"):
        tilewright.decoder(torch.nn.Linear(2, 2))
    with pytest.raises(OptionError, match="kv_cache_precision='int3' is no form"):
        tilewright.decoder(model("llama"), kv_cache_precision="int3")
    with pytest.raises(OptionError, match="chunk=0"):
        tilewright.decoder(model("llama"), chunk=0)
    with pytest.raises(OptionError, match="max_length=65, but the model has 64 positions"):
        tilewright.decoder(model("gpt2"), max_length=65)
