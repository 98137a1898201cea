"""Newcomer cases for text: attention in its many spellings, recurrences, decoders with caches, heads and losses.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, randint, randn

CASES = Table()
WIDTH = 32


def tokens(n_vocabulary: int = 50, batch: int = 2) -> Any:
    """Token numbers; the sequence is as long as the case's size."""
    return lambda n: (randint(0, n_vocabulary, (batch, n)),)


def sequences(width: int = WIDTH, batch: int = 2) -> Any:
    """Hidden states; the sequence is as long as the case's size."""
    return lambda n: (randn(batch, n, width),)


@CASES.module(tokens(), 11, 17)
class NanoGpt(nn.Module):
    """Causal self-attention with a buffer of ones below the diagonal, tied head, logits of the last position."""

    def __init__(self, block: int = 32) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50, WIDTH), nn.Embedding(block, WIDTH)
        self.ln, self.attn, self.proj = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("bias", torch.tril(torch.ones(block, block)).view(1, 1, block, block))
        self.head = nn.Linear(WIDTH, 50, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, idx: Tensor) -> Tensor:
        b, t = idx.size()
        x = self.wte(idx) + self.wpe(torch.arange(0, t, dtype=torch.long, device=idx.device))
        q, k, v = self.attn(self.ln(x)).split(WIDTH, dim=2)
        q, k, v = (y.view(b, t, 4, WIDTH // 4).transpose(1, 2) for y in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        y = (F.softmax(att, dim=-1) @ v).transpose(1, 2).contiguous().view(b, t, WIDTH)
        return self.head((x + self.proj(y))[:, [-1], :])


@CASES.module(lambda n: (randn(2, n, WIDTH), randint(0, 3, (2,)) + n - 4), 9, 14)
class PackedTagger(nn.Module):
    """A bidirectional LSTM whose padding is masked afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 24, 2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, 7)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        mask = torch.arange(x.size(1))[None, :] < lengths[:, None]
        return self.out(y).masked_fill(~mask[..., None], 0.0)


@CASES.module(sequences(), 8, 13)
class GruAttention(nn.Module):
    """A GRU with additive attention over its states."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, 20, batch_first=True)
        self.query, self.key, self.score = nn.Linear(20, 16), nn.Linear(20, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, last = self.gru(x)
        scores = self.score(torch.tanh(self.query(last[-1])[:, None] + self.key(states))).squeeze(-1)
        weights = scores.softmax(-1)
        return torch.bmm(weights[:, None], states).squeeze(1), weights


@CASES.module(lambda n: (randint(0, 50, (3, n)), randint(0, 50, (3, n + 2))), 7, 10)
class Seq2SeqTransformer(nn.Module):
    """PyTorch's tutorial: embeddings scaled by sqrt, sinusoids, nn.Transformer with a square subsequent mask."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(50, WIDTH), nn.Embedding(50, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 4, 1, 1, 64, 0.0, batch_first=True)
        den = torch.exp(-torch.arange(0, WIDTH, 2) * math.log(10000) / WIDTH)
        pos = torch.arange(0, 40).reshape(40, 1)
        table = torch.zeros(40, WIDTH)
        table[:, 0::2], table[:, 1::2] = torch.sin(pos * den), torch.cos(pos * den)
        self.register_buffer("table", table)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        mask = torch.triu(torch.full((tgt.shape[1], tgt.shape[1]), float("-inf")), diagonal=1)
        x = self.source(src) * math.sqrt(WIDTH) + self.table[: src.size(1)]
        y = self.target(tgt) * math.sqrt(WIDTH) + self.table[: tgt.size(1)]
        return self.transformer(x, y, tgt_mask=mask, src_key_padding_mask=src == 0)


@CASES.module(tokens(), 12, 19)
class EncoderClassifier(nn.Module):
    """nn.TransformerEncoder in evaluation mode with a padding mask, mean over what is not padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH, padding_idx=0)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True, activation="gelu")
        self.encoder, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, 3)

    def forward(self, ids: Tensor) -> Tensor:
        padding = ids.eq(0)
        y = self.encoder(self.embed(ids), src_key_padding_mask=padding).masked_fill(padding[..., None], 0)
        return self.out(y.sum(1) / (~padding).sum(1, keepdim=True).clamp(min=1))


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


@CASES.module(lambda n: (randn(1, n, WIDTH), randn(1, 2, 6, 8), randn(1, 2, 6, 8)), 1, 4)
class LlamaCached(nn.Module):
    """Rotary positions after a cache, grouped queries, a causal mask with an offset, the new cache out."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = (
            nn.Linear(WIDTH, 32, bias=False),
            nn.Linear(WIDTH, 32, bias=False),
            nn.Linear(32, WIDTH),
        )
        self.norm = nn.RMSNorm(WIDTH)
        self.register_buffer("inv", 1.0 / (10000 ** (torch.arange(0, 8, 2) / 8)))

    def forward(self, x: Tensor, past_k: Tensor, past_v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, t, _ = x.shape
        past = past_k.shape[2]
        y = self.norm(x)
        q = self.q(y).view(b, t, 4, 8).transpose(1, 2)
        k, v = self.kv(y).view(b, t, 2, 2, 8).permute(2, 0, 3, 1, 4)
        angles = torch.outer(torch.arange(past, past + t).float(), self.inv)
        cos, sin = (torch.cat([a, a], -1) for a in (angles.cos(), angles.sin()))
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        mask = torch.ones(t, past + t, dtype=torch.bool).tril(past)
        y = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), attn_mask=mask)
        return x + self.o(y.transpose(1, 2).reshape(b, t, -1)), k, v


@CASES.module(sequences(), 12, 16)
class ComplexRotary(nn.Module):
    """Llama's own rotary form: pairs as complex numbers times polar angles."""

    def __init__(self) -> None:
        super().__init__()
        freqs = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
        t = torch.outer(torch.arange(24).float(), freqs)
        self.register_buffer("cis", torch.polar(torch.ones_like(t), t))
        self.q = nn.Linear(WIDTH, 32)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).view(*x.shape[:2], 4, 8)
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.cis[: x.shape[1], None]).flatten(3).type_as(x)


@CASES.module(lambda n: (randn(2 * n, WIDTH),), 6, 9)
class MixtralLoop(nn.Module):
    """Experts one after another, each for the rows that chose it: index_add and where."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 48), nn.SiLU(), nn.Linear(48, WIDTH)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, num_classes=4).permute(2, 1, 0)
        for i, expert in enumerate(self.experts):
            k, rows = torch.where(mask[i])
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, k, None])
        return out


@CASES.module(lambda n: (randn(3 * n, WIDTH),), 5, 8)
class SortedExperts(nn.Module):
    """Rows sorted by expert, one batched product over padded slots, put back in order."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.w = nn.Parameter(randn(experts, WIDTH, WIDTH) / 6)

    def forward(self, x: Tensor) -> Tensor:
        expert = self.router(x).argmax(-1)
        order = torch.argsort(expert, stable=True)
        rows = x[order]
        y = torch.einsum("nd,nde->ne", rows, self.w[expert[order]])
        return torch.empty_like(y).index_copy(0, order, y)


@CASES.module(sequences(), 10, 15)
class AlibiAttention(nn.Module):
    """Linear biases by distance, added to causal scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.register_buffer("slopes", 2.0 ** -(torch.arange(1, 5) * 2.0))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, 4, c // 4).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        position = torch.arange(t)
        bias = -(position[None, :] - position[:, None]).abs()[None] * self.slopes[:, None, None]
        bias = bias.masked_fill(position[None, :] > position[:, None], float("-inf"))
        return (
            F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None].expand(b, -1, -1, -1))
            .transpose(1, 2)
            .reshape(b, t, c)
        )


@CASES.module(sequences(), 12, 20)
class LongformerWindow(nn.Module):
    """A sliding window by chunks that overlap, made by as_strided-like unfolding."""

    def __init__(self, w: int = 4) -> None:
        super().__init__()
        self.w, self.qkv = w, nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        k, v = (F.pad(y, (0, 0, self.w, self.w)).unfold(1, 2 * self.w + 1, 1) for y in (k, v))
        scores = torch.einsum("btc,btcw->btw", q, k) / math.sqrt(WIDTH)
        place = torch.arange(x.shape[1])[:, None] + torch.arange(-self.w, self.w + 1)
        scores = scores.masked_fill((place < 0) | (place >= x.shape[1]), torch.finfo(x.dtype).min)
        return torch.einsum("btw,btcw->btc", scores.softmax(-1), v)


@CASES.module(sequences(), 8, 12)
class DeltaNet(nn.Module):
    """Linear attention with a delta rule, step by step with a matrix state."""

    def __init__(self) -> None:
        super().__init__()
        self.qkvb = nn.Linear(WIDTH, 3 * 8 + 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, beta = self.qkvb(x[:, :6]).split([8, 8, 8, 1], -1)
        k, beta = F.normalize(k, dim=-1), beta.sigmoid()
        state, out = x.new_zeros(x.shape[0], 8, 8), []
        for i in range(6):
            old = torch.einsum("bij,bi->bj", state, k[:, i])
            state = state + torch.einsum("bi,bj->bij", k[:, i], beta[:, i] * (v[:, i] - old))
            out.append(torch.einsum("bij,bi->bj", state, q[:, i]))
        return torch.stack(out, 1)


@CASES.module(tokens(), 10, 16)
class FastTextBag(nn.Module):
    """EmbeddingBag over n-gram buckets made by hashing."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(64, WIDTH, mode="mean"), nn.Linear(WIDTH, 4)

    def forward(self, ids: Tensor) -> Tensor:
        pairs = (ids[:, :-1] * 31 + ids[:, 1:]) % 64
        return self.out(self.bag(pairs)).log_softmax(-1)


@CASES.module(tokens(30), 9, 12)
class CharCnnHighway(nn.Module):
    """Convolutions of several widths over characters, maxima over time, a highway."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.convs = nn.ModuleList(nn.Conv1d(8, 4 * k, k) for k in (1, 2, 3))
        self.gate, self.transform = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(1, 2)
        y = torch.cat([conv(x).tanh().amax(-1) for conv in self.convs], -1)
        g = self.gate(y).sigmoid()
        return g * self.transform(y).relu() + (1 - g) * y


@CASES.module(lambda n: (randn(2, n, 9), randint(0, 2, (2, n)).bool()), 8, 11)
class CrfDecoder(nn.Module):
    """A linear-chain CRF: the partition function in log space over a fixed number of steps, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.transitions, self.start = nn.Parameter(randn(9, 9)), nn.Parameter(randn(9))

    def forward(self, emissions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        score, best = self.start + emissions[:, 0], self.start + emissions[:, 0]
        for i in range(1, 8):
            keep = mask[:, i, None]
            following = torch.logsumexp(score[:, :, None] + self.transitions + emissions[:, i, None], 1)
            score = torch.where(keep, following, score)
            best = torch.where(keep, (best[:, :, None] + self.transitions).max(1)[0] + emissions[:, i], best)
        return torch.logsumexp(score, 1), best.argmax(-1)


@CASES.module(lambda n: (randn(2, n, WIDTH), randn(2, 5, WIDTH)), 7, 10)
class CrossEncoder(nn.Module):
    """Bi-linear matching of two sequences, soft alignment both ways (ESIM)."""

    def __init__(self) -> None:
        super().__init__()
        self.compare, self.out = nn.Linear(4 * WIDTH, 16), nn.Linear(32, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        e = a @ b.mT
        a2, b2 = e.softmax(2) @ b, e.softmax(1).mT @ a

        def mix(x: Tensor, y: Tensor) -> Tensor:
            return self.compare(torch.cat([x, y, x - y, x * y], -1)).relu()

        return self.out(torch.cat([mix(a, a2).amax(1), mix(b, b2).mean(1)], -1))


@CASES.module(sequences(), 12, 18)
class Performer(nn.Module):
    """Positive random features: attention without a matrix of scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        q, _ = torch.linalg.qr(randn(WIDTH, 16))
        self.register_buffer("features", q * math.sqrt(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)

        def feature(y: Tensor, axes: tuple[int, ...]) -> Tensor:
            z = y * WIDTH**-0.25
            f = z @ self.features
            return torch.exp(f - z.square().sum(-1, keepdim=True) / 2 - f.amax(axes, keepdim=True)) + 1e-4

        q, k = feature(q, (-1,)), feature(k, (-1, -2))
        return (q @ (k.mT @ v)) / (q @ k.sum(1)[..., None])


@CASES.module(sequences(), 10, 14)
class TransformerXlAttention(nn.Module):
    """Relative positions by the shift trick: pad, view, slice."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.r = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.u, self.v = nn.Parameter(randn(4, 8)), nn.Parameter(randn(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, 4, 8) for y in self.qkv(x).chunk(3, -1))
        position = torch.arange(t - 1, -1, -1.0)
        inv = 1 / (10000 ** (torch.arange(0, c, 2) / c))
        table = torch.cat([(position[:, None] * inv).sin(), (position[:, None] * inv).cos()], -1)
        ac = torch.einsum("bihd,bjhd->bhij", q + self.u, k)
        bd = torch.einsum("bihd,jhd->bhij", q + self.v, self.r(table).view(t, 4, 8))
        bd = F.pad(bd, (1, 0)).view(b, 4, t + 1, t)[:, :, 1:].reshape(b, 4, t, t)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        att = ((ac + bd) / math.sqrt(8)).masked_fill(mask, -1e30).softmax(-1)
        return torch.einsum("bhij,bjhd->bihd", att, v).reshape(b, t, c)


@CASES.module(sequences(), 11, 15)
class T5Buckets(nn.Module):
    """Relative position buckets with logarithms, looked up and added to scores."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.qk = nn.Embedding(16, 4), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        relative = torch.arange(t)[None, :] - torch.arange(t)[:, None]
        bucket, n = (relative > 0).long() * 8, relative.abs()
        large = 4 + (torch.log(n.float() / 4) / math.log(16 / 4) * 4).long()
        bucket = bucket + torch.where(n < 4, n, large.clamp(max=7))
        q, k = (y.view(b, t, 4, 8).transpose(1, 2) for y in self.qk(x).chunk(2, -1))
        return (q @ k.mT + self.bias(bucket).permute(2, 0, 1)).softmax(-1)


@CASES.module(lambda n: (randn(2, n, WIDTH), randint(0, 20, (2, n))), 8, 12)
class LabelSmoothingHead(nn.Module):
    """Cross entropies in three spellings, one with padding ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, 20)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.out(x)
        smooth = F.cross_entropy(logits.flatten(0, 1), y.flatten(), label_smoothing=0.1)
        masked = F.cross_entropy(logits.mT, y, ignore_index=0, reduction="none")
        kl = F.kl_div(logits.log_softmax(-1), F.one_hot(y, 20) * 0.9 + 0.005, reduction="batchmean")
        return smooth, masked, kl


@CASES.module(sequences(16), 6, 9)
class TreeLstmCell(nn.Module):
    """A child-sum cell over all positions as children."""

    def __init__(self) -> None:
        super().__init__()
        self.iou, self.f = nn.Linear(32, 48), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        root, children = x[:, 0], x[:, 1:]
        i, o, u = self.iou(torch.cat([root, children.sum(1)], -1)).chunk(3, -1)
        f = self.f(torch.cat([root[:, None].expand_as(children), children], -1)).sigmoid()
        c = i.sigmoid() * u.tanh() + (f * children).sum(1)
        return o.sigmoid() * c.tanh(), c


@CASES.module(lambda n: (randn(2, n, WIDTH), randn(2, WIDTH)), 8, 12)
class PointerGenerator(nn.Module):
    """A vocabulary distribution mixed with copies of source tokens by scatter_add."""

    def __init__(self) -> None:
        super().__init__()
        self.vocab, self.gate = nn.Linear(2 * WIDTH, 30), nn.Linear(2 * WIDTH, 1)

    def forward(self, memory: Tensor, state: Tensor) -> Tensor:
        att = torch.einsum("btc,bc->bt", memory, state).softmax(-1)
        both = torch.cat([state, torch.einsum("bt,btc->bc", att, memory)], -1)
        p = self.gate(both).sigmoid()
        ids = (torch.arange(memory.shape[1]) * 7 % 30).expand(memory.shape[0], -1)
        return torch.log((self.vocab(both).softmax(-1) * p).scatter_add(1, ids, att * (1 - p)) + 1e-9)


@CASES.module(tokens(), 12, 18)
class LightConv(nn.Module):
    """Softmaxed depthwise kernels shared by heads (lightweight convolution), GLU before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.weight = nn.Embedding(50, 16), nn.Linear(16, 32), nn.Parameter(randn(4, 1, 5))

    def forward(self, ids: Tensor) -> Tensor:
        x = F.glu(self.inner(self.embed(ids)), -1)
        b, t, c = x.shape
        x = x.transpose(1, 2).reshape(b * c // 4, 4, t)
        return F.conv1d(x, self.weight.softmax(-1), padding=2, groups=4).reshape(b, c, t).transpose(1, 2)


@CASES.module(sequences(), 13, 21)
class ChunkedRetention(nn.Module):
    """Retention in chunks: the sequence is padded to full chunks and viewed."""

    def __init__(self, chunk: int = 4) -> None:
        super().__init__()
        self.chunk, self.qkv = chunk, nn.Linear(WIDTH, 3 * 8)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        s = self.chunk
        q, k, v = F.pad(self.qkv(x), (0, 0, 0, -t % s)).view(b, -1, s, 24).split(8, -1)
        place = torch.arange(s)
        decay = torch.where(place[:, None] >= place, 0.9 ** (place[:, None] - place).clamp(min=0), 0.0)
        inside = (q @ k.mT * decay) @ v
        carried = torch.cumsum(k.mT @ v, 1)
        before = torch.cat([torch.zeros_like(carried[:, :1]), carried[:, :-1]], 1)
        return (inside + q @ before).flatten(1, 2)[:, :t]


@CASES.module(lambda n: (randn(n, 12, 30), randint(1, 30, (n, 5))), 2, 3)
class CtcHead(nn.Module):
    """Log-probabilities and a greedy decode: repeated tokens and blanks become -1."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(30)

    def forward(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logp = self.norm(x).log_softmax(-1)
        best = logp.argmax(-1)
        first = F.pad(best[:, 1:] != best[:, :-1], (1, 0), value=True)
        return logp.gather(2, targets[:, None].expand(-1, 12, -1)), torch.where(first & (best != 0), best, -1)


@CASES.module(sequences(), 16, 32)
class BigBirdGlobal(nn.Module):
    """Blocks of neighbours by rolling, with global tokens before them."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t // 4, 4, c) for y in self.qkv(x).chunk(3, -1))
        k, v = (torch.cat([y.roll(1, 1), y, y.roll(-1, 1), y[:, :1].expand_as(y)], 2) for y in (k, v))
        return F.scaled_dot_product_attention(q, k, v).reshape(b, t, c)


@CASES.module(lambda n: (randn(2, n, WIDTH), randn(3, WIDTH)), 9, 12)
class PerceiverResampler(nn.Module):
    """Latents attend to what comes in and to themselves, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(WIDTH, 4, batch_first=True, bias=False), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, latents: Tensor) -> tuple[Tensor, Tensor]:
        latents = latents.expand(x.shape[0], -1, -1)
        both = self.norm(torch.cat([x, latents], 1))
        y, weights = self.attention(latents, both, both, average_attn_weights=False)
        return y + latents, weights


@CASES.module(tokens(40, 3), 8, 13)
class SentenceEmbedder(nn.Module):
    """Mean, maximum and last-token pooling by an attention mask, unit length, similarity of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(40, 16, padding_idx=0), nn.Linear(48, 16)

    def forward(self, ids: Tensor) -> Tensor:
        x, mask = self.embed(ids), (ids != 0).unsqueeze(-1)
        mean = (x * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        top = x.masked_fill(~mask, -1e9).max(1).values
        last = x[torch.arange(ids.shape[0]), mask.squeeze(-1).long().cumsum(1).argmax(1)]
        y = F.normalize(self.mix(torch.cat([mean, top, last], -1)), dim=-1)
        return y @ y.T


@CASES.module(lambda n: (randn(2, n, WIDTH), torch.arange(n).expand(2, n) // 4), 12, 16)
class PackedDocuments(nn.Module):
    """Several documents in a row: a block-diagonal causal mask from document numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.RMSNorm(8)

    def forward(self, x: Tensor, documents: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 4, 8).permute(2, 0, 3, 1, 4)
        mask = (documents[:, None, :, None] == documents[:, None, None, :]) & torch.ones(t, t, dtype=torch.bool).tril()
        y = F.scaled_dot_product_attention(self.norm(q), self.norm(k), v, attn_mask=mask, scale=0.3)
        return y.transpose(1, 2).flatten(2)
