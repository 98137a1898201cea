"""Nets for text, sound, series and tables of a second sweep, written without looking at the compiler.

In: nothing. Out: ``NETS[name]()`` gives a module and its inputs, with random weights. Not its business: measuring
(``other_nets.py``), nets for images (``other_nets_unseen_vision.py``), for points, fields and control
(``other_nets_unseen_misc.py``).
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from benchmarks.interleaved import Lambda, Tensors
from benchmarks.other_nets_more import First
from benchmarks.other_nets_unseen_vision import Residual, lively
from benchmarks.other_nets_vision import Net, conv
from benchmarks.zoo_language import Decoder
from torch import Tensor, nn, rand, randint, randn

DECODERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM, {"pad_token_id": 0}),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM, {"head_dim": 64, "sliding_window": 64}),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM, {"head_dim": 64, "sliding_window": 64}),
    "falcon": (transformers.FalconConfig, transformers.FalconForCausalLM, {}),
    "bloom": (transformers.BloomConfig, transformers.BloomForCausalLM, {"n_head": 8, "n_layer": 3}),
    "gptj": (
        transformers.GPTJConfig,
        transformers.GPTJForCausalLM,
        {"n_embd": 512, "n_head": 8, "n_layer": 3, "rotary_dim": 32},
    ),
    "olmo2": (transformers.Olmo2Config, transformers.Olmo2ForCausalLM, {}),
    "stablelm": (transformers.StableLmConfig, transformers.StableLmForCausalLM, {}),
    "cohere": (transformers.CohereConfig, transformers.CohereForCausalLM, {}),
}
"""Causal language models: configuration, class, what differs from ``SIZES``."""
SIZES = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 4000,
}  # fmt: skip


def _decoder(name: str) -> nn.Module:
    config, model, more = DECODERS[name]
    return model(config(**{**SIZES, **more}))


def _prefill(name: str) -> tuple[nn.Module, Tensors]:
    return First(_decoder(name)), (randint(0, 4000, (1, 100)),)


def _step(name: str) -> tuple[nn.Module, Tensors]:
    """One token after 200."""
    cache = [randn(1, 4, 200, 64) for _ in range(2 * SIZES["num_hidden_layers"])]
    return Decoder(_decoder(name)), (randint(0, 4000, (1, 1)), *cache)


class Experts(nn.Module):
    """Mixtral: two of eight experts for every token, weighed; each expert sees all tokens."""

    def __init__(self, c: int = 256) -> None:
        super().__init__()
        self.router, self.norm = nn.Linear(c, 8, bias=False), nn.RMSNorm(c)
        self.gates, self.ups = (nn.Parameter(randn(8, c, 2 * c) * 0.05) for _ in range(2))
        self.downs = nn.Parameter(randn(8, 2 * c, c) * 0.05)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        weights, chosen = self.router(y).softmax(-1).topk(2, -1)
        shares = torch.zeros(x.shape[0], 8).scatter(1, chosen, weights / weights.sum(-1, keepdim=True))
        rows = y.expand(8, -1, -1)
        results = (F.silu(rows @ self.gates) * (rows @ self.ups)) @ self.downs
        return x + (results * shares.T[:, :, None]).sum(0)


def experts() -> tuple[nn.Module, Tensors]:
    return nn.Sequential(Experts(), Experts()), (randn(64, 256),)


class ChosenExperts(Experts):
    """One token: the weights of the two chosen experts alone are read."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        weights, chosen = self.router(y).softmax(-1).topk(2, -1)
        gates, ups, downs = (w[chosen[0]] for w in (self.gates, self.ups, self.downs))
        return x + ((F.silu(y @ gates) * (y @ ups)) @ downs * weights[0, :, None, None]).sum(0)


def experts_step() -> tuple[nn.Module, Tensors]:
    return nn.Sequential(ChosenExperts(512), ChosenExperts(512)), (randn(1, 512),)


class Retention(nn.Module):
    """RetNet in its parallel form: products of queries and keys that fade with the distance, a group norm, a gate."""

    def __init__(self, c: int = 256, heads: int = 4, n: int = 128) -> None:
        super().__init__()
        self.qkvg, self.out, self.norm = nn.Linear(c, 4 * c), nn.Linear(c, c), nn.LayerNorm(c)
        self.group, self.heads = nn.GroupNorm(heads, c), heads
        distance = (torch.arange(n)[:, None] - torch.arange(n)[None]).float()
        decay = (1 - 2 ** (-5 - torch.arange(heads).float()))[:, None, None]
        self.register_buffer("fading", torch.where(distance >= 0, decay**distance, torch.zeros(())))
        self.feed = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 2 * c), nn.GELU(), nn.Linear(2 * c, c))

    def forward(self, x: Tensor) -> Tensor:
        batch, n, c = x.shape
        q, k, v, gate = self.qkvg(self.norm(x)).chunk(4, -1)
        q, k, v = (t.view(batch, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = ((q @ k.transpose(2, 3)) * self.fading) @ v
        y = self.group(y.transpose(1, 2).reshape(batch * n, c)).view(batch, n, c)
        x = x + self.out(F.silu(gate) * y)
        return x + self.feed(x)


def retnet() -> tuple[nn.Module, Tensors]:
    return nn.Sequential(*[Retention() for _ in range(3)]), (randn(2, 128, 256),)


class RwkvStep(nn.Module):
    """RWKV: one token, whose states are the last token and the sums of faded keys and values."""

    def __init__(self, c: int = 512) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(c), nn.LayerNorm(c)
        self.mix, self.decay, self.bonus = nn.Parameter(rand(5, c)), nn.Parameter(-rand(c)), nn.Parameter(rand(c))
        self.k, self.v, self.r, self.out, self.gate = (nn.Linear(c, c, bias=False) for _ in range(5))
        self.up, self.down = nn.Linear(c, 4 * c, bias=False), nn.Linear(4 * c, c, bias=False)

    def forward(self, x: Tensor, before: Tensor, above: Tensor, below: Tensor, most: Tensor) -> tuple[Tensor, ...]:
        y = self.norm(x)
        k, v, r = (to(y * m + before * (1 - m)) for to, m in zip((self.k, self.v, self.r), self.mix, strict=False))
        largest = torch.maximum(most, k + self.bonus)
        a, b = torch.exp(most - largest), torch.exp(k + self.bonus - largest)
        x = x + self.out(r.sigmoid() * (a * above + b * v) / (a * below + b))
        largest = torch.maximum(most + self.decay, k)
        a, b = torch.exp(most + self.decay - largest), torch.exp(k - largest)
        z = self.last(x)
        x = x + self.gate(z * self.mix[3]).sigmoid() * self.down(F.relu(self.up(z * self.mix[4])).square())
        return x, y, a * above + b * v, a * below + b, largest


def rwkv_step() -> tuple[nn.Module, Tensors]:
    return RwkvStep(), (randn(1, 512), randn(1, 512), rand(1, 512), rand(1, 512), rand(1, 512))


SMALL = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
ENCODERS: dict[str, tuple[Any, Any, dict[str, Any], int]] = {
    "xlnet": (transformers.XLNetConfig, transformers.XLNetModel, {"d_model": 384, "n_layer": 3, "n_head": 6}, 128),
    "fnet": (transformers.FNetConfig, transformers.FNetModel, {"num_hidden_layers": 3}, 128),
    "funnel": (
        transformers.FunnelConfig,
        transformers.FunnelBaseModel,
        {"block_sizes": [1, 1, 1], "d_model": 384},
        128,
    ),
    "mobilebert": (transformers.MobileBertConfig, transformers.MobileBertModel, {"num_hidden_layers": 4}, 128),
    "convbert": (transformers.ConvBertConfig, transformers.ConvBertModel, {"num_hidden_layers": 3, **SMALL}, 128),
    "roformer": (transformers.RoFormerConfig, transformers.RoFormerModel, {"num_hidden_layers": 3, **SMALL}, 200),
}
"""Encoders of ``transformers``: configuration, class, what is not its default, how many tokens they get."""


def _encoder(name: str) -> tuple[nn.Module, Tensors]:
    config, model, more, tokens = ENCODERS[name]
    return First(model(config(vocab_size=4000, **more))), (randint(1, 4000, (1, tokens)),)


class WhisperStep(nn.Module):
    """One token of Whisper's decoder, keys and values of the tokens so far and of the sound given."""

    def __init__(self, layers: int = 3, c: int = 384, heads: int = 6) -> None:
        super().__init__()
        self.heads, self.words = heads, nn.Embedding(4000, c)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "norms": nn.ModuleList(nn.LayerNorm(c) for _ in range(3)), "qkv": nn.Linear(c, 3 * c),
                "out": nn.Linear(c, c), "query": nn.Linear(c, c), "mixed": nn.Linear(c, c),
                "up": nn.Linear(c, 4 * c), "down": nn.Linear(4 * c, c),
            })
            for _ in range(layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(c)

    def forward(self, token: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        x, made = self.words(token), []
        for k, layer in enumerate(self.layers):
            keys, values, far_keys, far_values = caches[4 * k : 4 * k + 4]
            assert isinstance(layer, nn.ModuleDict)
            n = layer["norms"]
            assert isinstance(n, nn.ModuleList)
            q, a, b = layer["qkv"](n[0](x)).view(1, 1, 3 * self.heads, -1).transpose(1, 2).chunk(3, 1)
            keys, values = torch.cat([keys, a], 2), torch.cat([values, b], 2)
            made += [keys, values]
            x = x + layer["out"](F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(2))
            q = layer["query"](n[1](x)).view(1, 1, self.heads, -1).transpose(1, 2)
            x = x + layer["mixed"](F.scaled_dot_product_attention(q, far_keys, far_values).transpose(1, 2).flatten(2))
            x = x + layer["down"](F.gelu(layer["up"](n[2](x))))
        return (self.norm(x) @ self.words.weight.T, *made)


def whisper_step() -> tuple[nn.Module, Tensors]:
    caches = [randn(1, 6, n, 64) for _ in range(3) for n in (60, 60, 1500, 1500)]
    return WhisperStep(), (randint(0, 4000, (1, 1)), *caches)


class Encodec(nn.Module):
    """A codec's encoder: convolutions of strides 2, 4, 5, 8 with residual blocks of ELU, then two codebooks."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv1d(1, 32, 7, padding=3)]
        for c, stride in zip((32, 64, 128, 256), (2, 4, 5, 8), strict=True):
            layers += [
                Residual(nn.ELU(), nn.Conv1d(c, c // 2, 3, padding=1), nn.ELU(), nn.Conv1d(c // 2, c, 1)), nn.ELU(),
                nn.Conv1d(c, 2 * c, 2 * stride, stride, stride // 2),
            ]  # fmt: skip
        self.body, self.books = (
            nn.Sequential(*layers, nn.ELU(), nn.Conv1d(512, 128, 7, padding=3)),
            nn.Parameter(randn(2, 1024, 128)),
        )

    def forward(self, x: Tensor) -> Tensor:
        rest = self.body(x).transpose(1, 2)
        codes = []
        for book in self.books:
            distance = (rest * rest).sum(-1, keepdim=True) - 2 * rest @ book.T + (book * book).sum(1)
            codes.append(distance.argmin(-1))
            rest = rest - book[codes[-1]]
        return torch.stack(codes, 1)


def encodec() -> tuple[nn.Module, Tensors]:
    return lively(Encodec()), (randn(1, 1, 12000),)


class Demucs(nn.Module):
    """A UNet over samples: strided convolutions and GLUs down, transposed ones up."""

    def __init__(self) -> None:
        super().__init__()
        widths = (2, 32, 64, 128)
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 8, 4, 2), nn.ReLU(), nn.Conv1d(b, 2 * b, 1), nn.GLU(1))
            for a, b in pairwise(widths)
        )
        self.up = nn.ModuleList(
            nn.Sequential(nn.Conv1d(b, 2 * b, 3, padding=1), nn.GLU(1), nn.ConvTranspose1d(b, a, 8, 4, 2))
            for a, b in reversed(list(pairwise(widths)))
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for down in self.down:
            x = down(x)
            kept.append(x)
        for k, up in enumerate(self.up):
            x = up(x + kept.pop())
            x = x if k == len(self.up) - 1 else F.relu(x)
        return x


def demucs() -> tuple[nn.Module, Tensors]:
    return Demucs(), (randn(1, 2, 16384),)


class DeepSpeech(nn.Module):
    """Convolutions over a spectrogram, a GRU both ways, letters."""

    def __init__(self) -> None:
        super().__init__()
        clip = partial(nn.Hardtanh, 0, 20)
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), 2, (20, 5)), nn.BatchNorm2d(32), clip(),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), clip(),
        )  # fmt: skip
        self.gru, self.out = nn.GRU(32 * 41, 256, bidirectional=True, batch_first=True), nn.Linear(512, 29)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x).flatten(1, 2).transpose(1, 2)
        return self.out(self.gru(y)[0]).log_softmax(-1)


def deepspeech() -> tuple[nn.Module, Tensors]:
    return DeepSpeech(), (randn(1, 1, 161, 200),)


class GatedResidual(nn.Module):
    """A temporal fusion transformer's block: two layers, a gate, the input added, a norm."""

    def __init__(self, c: int, out: int) -> None:
        super().__init__()
        self.first, self.second, self.gate = nn.Linear(c, out), nn.Linear(out, out), nn.Linear(out, 2 * out)
        self.skip, self.norm = (nn.Linear(c, out) if c != out else nn.Identity()), nn.LayerNorm(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.skip(x) + F.glu(self.gate(self.second(F.elu(self.first(x)))), -1))


class TemporalFusion(nn.Module):
    """Variables weighed at every time step, an LSTM, attention, quantiles."""

    def __init__(self, n: int = 6, c: int = 64) -> None:
        super().__init__()
        self.embed, self.parts = (
            nn.ModuleList(nn.Linear(1, c) for _ in range(n)),
            nn.ModuleList(GatedResidual(c, c) for _ in range(n)),
        )
        self.choose, self.lstm = GatedResidual(n * c, n), nn.LSTM(c, c, batch_first=True)
        self.attend, self.last, self.out = (
            nn.MultiheadAttention(c, 4, batch_first=True),
            GatedResidual(c, c),
            nn.Linear(c, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = [embed(x[:, :, k : k + 1]) for k, embed in enumerate(self.embed)]
        weights = self.choose(torch.cat(rows, -1)).softmax(-1)
        mixed = torch.stack([part(r) for part, r in zip(self.parts, rows, strict=True)], -1)
        y = self.lstm((mixed * weights[:, :, None]).sum(-1))[0]
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        return self.out(self.last(y + self.attend(y, y, y, attn_mask=mask, need_weights=False)[0]))


def temporal_fusion() -> tuple[nn.Module, Tensors]:
    return TemporalFusion(), (randn(4, 96, 6),)


class Informer(nn.Module):
    """Sparse attention: the queries that differ most from the mean attend, the others get the values' mean."""

    def __init__(self, c: int = 256, heads: int = 8) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(c, 3 * c), nn.Linear(c, c), heads
        self.norm, self.shorter = (
            nn.LayerNorm(c),
            nn.Sequential(nn.Conv1d(c, c, 3, padding=1), nn.ELU(), nn.MaxPool1d(3, 2, 1)),
        )
        self.feed = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))

    def forward(self, x: Tensor) -> Tensor:
        batch, n, c = x.shape
        q, k, v = self.qkv(x).view(batch, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        sample = q @ k[:, :, ::4].transpose(2, 3)
        top = (sample.max(-1)[0] - sample.mean(-1)).topk(25, -1)[1][..., None].expand(-1, -1, -1, c // self.heads)
        found = F.scaled_dot_product_attention(q.gather(2, top), k, v)
        y = v.mean(2, keepdim=True).expand_as(v).scatter(2, top, found)
        x = self.norm(x + self.out(y.transpose(1, 2).reshape(batch, n, c)))
        return self.shorter((x + self.feed(x)).transpose(1, 2)).transpose(1, 2)


def informer() -> tuple[nn.Module, Tensors]:
    return nn.Sequential(Informer(), Informer()), (randn(1, 192, 256),)


class TabTransformer(nn.Module):
    """Categories as tokens, numbers beside them, two encoder layers, a small MLP."""

    def __init__(self, c: int = 32, n: int = 10) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(100 * n, c), nn.LayerNorm(8)
        self.register_buffer("starts", torch.arange(n) * 100)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(c, 8, 4 * c, 0.0, F.gelu, batch_first=True) for _ in range(2)
        )
        self.head = nn.Sequential(nn.Linear(n * c + 8, 256), nn.SELU(), nn.Linear(256, 2))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        x = self.table(categories + self.starts)
        for layer in self.layers:
            x = layer(x)
        return self.head(torch.cat([x.flatten(1), self.norm(numbers)], 1))


def tabtransformer() -> tuple[nn.Module, Tensors]:
    return TabTransformer(), (randint(0, 100, (64, 10)), randn(64, 8))


class Cross(nn.Module):
    """DCN v2: products of the input with layers of it, beside an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, 16) for _ in range(20))
        self.cross = nn.ModuleList(nn.Linear(333, 333) for _ in range(3))
        self.deep, self.out = (
            nn.Sequential(nn.Linear(333, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()),
            nn.Linear(461, 1),
        )

    def forward(self, x: Tensor, categories: Tensor) -> Tensor:
        first = torch.cat([x, *(t(categories[:, k]) for k, t in enumerate(self.tables))], 1)
        y = first
        for layer in self.cross:
            y = first * layer(y) + y
        return self.out(torch.cat([y, self.deep(first)], 1)).sigmoid()


def cross_network() -> tuple[nn.Module, Tensors]:
    return Cross(), (randn(256, 13), randint(0, 1000, (256, 20)))


class Interest(nn.Module):
    """DIN: the items of a history weighed by a net of them and the candidate."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.items = nn.Embedding(5000, c)
        self.weigh = nn.Sequential(nn.Linear(4 * c, 80), nn.PReLU(), nn.Linear(80, 40), nn.PReLU(), nn.Linear(40, 1))
        self.head = nn.Sequential(nn.Linear(2 * c, 200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU(), nn.Linear(80, 1))

    def forward(self, candidate: Tensor, history: Tensor) -> Tensor:
        a, b = self.items(candidate), self.items(history)
        wide = a[:, None].expand_as(b)
        scores = self.weigh(torch.cat([wide, b, wide - b, wide * b], -1)) * (history > 0)[..., None]
        return self.head(torch.cat([a, (scores * b).sum(1)], 1)).sigmoid()


def interest() -> tuple[nn.Module, Tensors]:
    return Interest(), (randint(0, 5000, (64,)), randint(0, 5000, (64, 50)))


def sequence_classifier() -> tuple[nn.Module, Tensors]:
    """InceptionTime's neighbour: a fully convolutional net over a series."""
    layers = [
        nn.Sequential(nn.Conv1d(a, b, k, padding=k // 2), nn.BatchNorm1d(b), nn.ReLU())
        for a, b, k in ((3, 128, 7), (128, 256, 5), (256, 128, 3))
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 10)), (randn(4, 3, 500),)


def keyword_spotter() -> tuple[nn.Module, Tensors]:
    """A sound's squared spectrum by constant filters, its logarithm, a small convolutional net."""
    frames = Lambda(lambda x: x.square()[:, :40] + x.square()[:, 40:])
    log = Lambda(lambda x: torch.log(x + 1e-6)[:, None])
    body = [
        conv(1, 32, 3, 2),
        conv(32, 64, 3, 2),
        conv(64, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 12),
    ]
    return nn.Sequential(nn.Conv1d(1, 80, 400, 160, bias=False), frames, log, *body), (randn(1, 1, 16000),)


NETS: dict[str, Net] = {
    **{f"{name}_prefill": partial(_prefill, name) for name in DECODERS},
    **{f"{name}_step": partial(_step, name) for name in ("phi3", "gemma2", "olmo2", "stablelm")},
    **{name: partial(_encoder, name) for name in ENCODERS},
    **{
        net.__name__: net
        for net in (
            experts, experts_step, retnet, rwkv_step, whisper_step, encodec, demucs, deepspeech, temporal_fusion,
            informer, tabtransformer, cross_network, interest, sequence_classifier, keyword_spotter,
        )
    },
}  # fmt: skip
