"""Newcomer models of serving and adapting language models: pages, packed weights, adapters, drafts, losses.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()

# --- packed weights ------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(2, n, 16),), 3, 5)
class NormalFloatAdapter(nn.Module):
    """QLoRA: two 4-bit codes a byte, a table of quantiles, scales that are quantised once more, and a low-rank path."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.linspace(0.03, 0.97, 16).mul(2).sub(1).erfinv()
        self.register_buffer("table", table / table.abs().max())
        self.register_buffer("codes", randint(0, 256, (8 * 16 // 2,), dtype=torch.uint8))
        self.register_buffer("scales", randint(-127, 128, (16,), dtype=torch.int8))
        self.register_buffer("outer", rand(4) / 127)
        self.register_buffer("offset", torch.tensor(1.5))
        self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        pair = torch.stack([self.codes >> 4, self.codes & 15], -1).flatten().long()
        scales = (self.scales.to(x.dtype).view(4, 4) * self.outer[:, None]).flatten() + self.offset
        weight = (self.table[pair].view(16, -1) * scales[:, None]).view(8, 16).to(x.dtype)
        return F.linear(x, weight) + self.up(self.down(x)) * (16 / 2)


@CASES.module(lambda n: (randn(n, 32),), 3, 5)
class PackedGroups(nn.Module):
    """GPTQ: eight 4-bit numbers in an int32, packed zero points that stand one too low, rows sorted by activation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("qweight", randint(-(2**31), 2**31 - 1, (4, 16), dtype=torch.int32))
        self.register_buffer("qzeros", randint(-(2**31), 2**31 - 1, (4, 2), dtype=torch.int32))
        self.register_buffer("scales", rand(4, 16) / 8)
        self.register_buffer("g_idx", torch.randperm(32) // 8)
        self.register_buffer("wf", torch.arange(0, 32, 4, dtype=torch.int32).unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        zeros = torch.bitwise_right_shift(self.qzeros.unsqueeze(2).expand(-1, -1, 8), self.wf.unsqueeze(0))
        zeros = (zeros.to(torch.int16) & 15) + 1
        zeros = zeros.reshape(self.scales.shape)
        weight = torch.bitwise_right_shift(self.qweight.unsqueeze(1).expand(-1, 8, -1), self.wf.unsqueeze(-1))
        weight = (weight.to(torch.int16) & 15).reshape(-1, weight.shape[2])
        return x @ (self.scales[self.g_idx] * (weight - zeros[self.g_idx]).to(x.dtype))


@CASES.module(lambda n: (randn(n, 16), torch.arange(n) % 3), 4, 7)
class BlocksWithExponents(nn.Module):
    """gpt-oss: 4-bit floats with a shared exponent of 32, experts by number, clamped SwiGLU with a share of one."""

    def __init__(self) -> None:
        super().__init__()
        half = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        self.register_buffer("values", torch.tensor(half + [-v for v in half]))
        self.register_buffer("blocks", randint(0, 256, (3, 24, 1, 8), dtype=torch.uint8))
        self.register_buffer("exponents", randint(123, 127, (3, 24, 1), dtype=torch.uint8))
        self.bias = nn.Parameter(randn(3, 24))

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        rows, high, low = self.blocks.flatten(0, 2), self.blocks >> 4, self.blocks & 0x0F
        out = torch.empty(rows.shape[0], 2 * rows.shape[1], dtype=self.values.dtype)
        out[:, 0::2] = self.values[low.flatten(0, 2).long()]
        out[:, 1::2] = self.values[high.flatten(0, 2).long()]
        torch.ldexp(out, self.exponents.view(-1, 1).to(torch.int32) - 127, out=out)
        weight = out.view(3, 24, 16).to(x.dtype)
        y = torch.einsum("bk,bnk->bn", x, weight[expert]) + self.bias[expert]
        gate, linear = y[..., ::2].clamp(max=7.0), y[..., 1::2].clamp(min=-7.0, max=7.0)
        return gate * torch.sigmoid(1.702 * gate) * (linear + 1)


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0]


@CASES.module(lambda n: (rand(n, 3, 8, 8),), 2, 3)
class LearnedSteps(nn.Module):
    """LSQ: a convolution whose inputs and weights are rounded to steps that are learned; a fold of a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.act_step, self.weight_step = nn.Parameter(torch.tensor(0.013)), nn.Parameter(rand(6, 1, 1, 1) / 20 + 0.01)

    def forward(self, x: Tensor) -> Tensor:
        share = (self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)).view(-1, 1, 1, 1)
        weight = _Round.apply((self.conv.weight * share / self.weight_step).clamp(-8, 7)) * self.weight_step
        inside = x / self.act_step
        x = (inside + (inside.clamp(0, 255).round() - inside).detach()) * self.act_step
        bias = self.norm.bias - self.norm.running_mean * share.flatten()
        result: Tensor = F.hardswish(self.conv._conv_forward(x, weight, bias))
        return result


# --- adapters -------------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(n, 12),), 3, 6)
class KroneckerAdapter(nn.Module):
    """LoKr and OFT of PEFT: a Kronecker product as a difference, and orthogonal blocks by Cayley's transform."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(12, 12)
        self.small, self.left, self.right = (nn.Parameter(randn(*s) / 3) for s in ((3, 3), (4, 2), (2, 4)))
        self.skew = nn.Parameter(randn(3, 6) / 3)

    def _rotations(self) -> Tensor:
        upper = torch.zeros(3, 4, 4, dtype=self.skew.dtype)
        rows, columns = torch.triu_indices(4, 4, 1)
        upper[:, rows, columns] = self.skew
        q = upper - upper.transpose(-1, -2)
        eye = torch.eye(4, dtype=q.dtype).unsqueeze(0).expand_as(q)
        return torch.linalg.solve(eye + q, eye - q, left=False)

    def forward(self, x: Tensor) -> Tensor:
        delta = torch.kron(self.small, self.left @ self.right)
        rotation = torch.block_diag(*self._rotations().unbind(0))
        weight = self.base.weight @ rotation + 0.5 * delta
        return F.linear(x, weight, self.base.bias)


@CASES.module(lambda n: (randn(n, 2, 8), torch.tensor([0, 2, -1, 1])[torch.arange(n) % 4]), 4, 6)
class ManyAdapters(nn.Module):
    """Punica: each sequence of the batch with an adapter of its own, -1 for none, ranks that differ by padding."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.a, self.b = nn.Parameter(randn(3, 4, 8)), nn.Parameter(randn(3, 8, 4))
        self.register_buffer("ranks", torch.tensor([1, 4, 2]))
        self.register_buffer("scale", torch.tensor([0.5, 1.0, 2.0]))

    def forward(self, x: Tensor, adapter: Tensor) -> Tensor:
        y = self.base(x)
        has = (adapter >= 0)[:, None, None]
        used = adapter.clamp(min=0)
        hidden = torch.bmm(x, self.a[used].mT)
        hidden = hidden * (torch.arange(4) < self.ranks[used][:, None])[:, None]
        y += torch.where(has, torch.bmm(hidden, self.b[used].mT) * self.scale[used][:, None, None], 0.0)
        result: Tensor = y
        return result


# --- attention while serving ---------------------------------------------------------------------------------------


def _pages(n: int) -> tuple[Tensor, ...]:
    lengths = torch.tensor([5, 3, 8])[torch.arange(n) % 3]
    tables = torch.arange(2 * n).view(n, 2).flip(0)
    slots = tables.gather(1, ((lengths - 1) // 4)[:, None])[:, 0] * 4 + (lengths - 1) % 4
    qkv = randn(n, 4, 4), randn(n, 2, 4), randn(n, 2, 4)
    return (*qkv, randn(2 * n, 4, 2, 4), randn(2 * n, 4, 2, 4), tables, slots, lengths)


@CASES.function(_pages, 3, 5)
def paged_step(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """vLLM: new keys and values are written to their slots of a pool of pages, which tables then collect."""
    flat_keys, flat_values = keys.view(-1, 2, 4), values.view(-1, 2, 4)
    flat_keys[slots] = k
    flat_values.index_copy_(0, slots, v)
    seen_keys = keys[tables].flatten(1, 2).repeat_interleave(2, dim=2)
    seen_values = values[tables].flatten(1, 2).repeat_interleave(2, dim=2)
    scores = torch.einsum("bhd,bshd->bhs", q, seen_keys) * 4**-0.5
    scores.masked_fill_((torch.arange(scores.shape[-1]) >= lengths[:, None])[:, None], float("-inf"))
    log_sum = scores.logsumexp(-1)
    return torch.einsum("bhs,bshd->bhd", (scores - log_sum[..., None]).exp(), seen_values), log_sum


@CASES.function(lambda n: (randn(1, 4, n, 8), randn(1, 2, n, 8), randn(1, 2, n, 8)), 12, 17)
def kept_by_votes(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """SnapKV: the last queries vote by pooled attention; the best keys of each head stay, and the window."""
    window, keep = 4, 8
    wide_k = k[:, :, None].expand(-1, -1, 2, -1, -1).reshape(1, 4, -1, 8)
    scores = q[..., -window:, :] @ wide_k.transpose(2, 3) / math.sqrt(8)
    mask = torch.full((window, window), torch.finfo(scores.dtype).min)
    order = torch.arange(mask.size(-1))
    mask.masked_fill_(order < (order + 1).view(mask.size(-1), 1), 0)
    scores[:, :, -window:, -window:] += mask[None, None]
    votes = scores.softmax(-1, dtype=torch.float32)[..., :-window].sum(-2).view(1, 2, 2, -1).sum(2)
    votes = F.avg_pool1d(votes, kernel_size=5, padding=2, stride=1)
    places = votes.topk(keep - window, dim=-1).indices.sort().values.unsqueeze(-1).expand(-1, -1, -1, 8)
    kept_k = torch.cat([k[:, :, :-window].gather(2, places), k[:, :, -window:]], 2)
    kept_v = torch.cat([v[:, :, :-window].gather(2, places), v[:, :, -window:]], 2)
    return kept_k, kept_v


@CASES.module(lambda n: (randn(1, n, 16), torch.arange(n)[None]), 6, 20)
class StretchedRotary(nn.Module):
    """Rotary positions whose base grows with the length beyond training, sinks as one more logit, a sliding window."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.sinks = nn.Parameter(randn(2))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        batch, length, _ = x.shape
        base = 100.0
        if length > 8:
            base = base * ((4.0 * length / 8) - 3.0) ** (8 / (8 - 2))
        inverse = 1.0 / (base ** (torch.arange(0, 8, 2, dtype=torch.int64).float() / 8))
        angles = (inverse[None, :, None].expand(batch, -1, 1) @ places[:, None, :].float()).transpose(1, 2)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]
        q, k, v = self.qkv(x).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        q, k = (z * cos + torch.cat((-z[..., 4:], z[..., :4]), -1) * sin for z in (q, k))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(8)
        allowed = torch.ones(length, length, dtype=torch.bool).tril().triu(-4)
        scores = scores.masked_fill(~allowed, -torch.inf)
        joined = torch.cat([scores, self.sinks.reshape(1, -1, 1, 1).expand(batch, -1, length, -1)], -1)
        joined = joined - joined.max(-1, keepdim=True).values
        y = joined.softmax(-1)[..., :-1] @ v
        result: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, -1).contiguous())
        return result


class Drafts(NamedTuple):
    """What a tree of drafted tokens came to."""

    best: Tensor
    accepted: Tensor
    tokens: Tensor


@CASES.function(lambda n: (randn(n, 11), randn(n, 2, 11)), 7, 7)
def verified_tree(logits: Tensor, heads: Tensor) -> Drafts:
    """Medusa: candidates of a tree of drafts, the longest path that greedy decoding agrees with."""
    paths = torch.tensor([[0, 1, 3], [0, 1, 4], [0, 2, 5], [0, 2, 6]])
    first = logits[:1].argmax(-1)
    drafted = torch.cat([first, heads[0, 0].topk(2).indices, heads[0, 1].topk(2).indices.repeat(2)])
    candidates = drafted[paths]
    found = logits[paths].argmax(-1)
    agrees = (candidates[:, 1:] == found[:, :-1]).int()
    accepted = torch.cumprod(agrees, dim=1).sum(dim=1)
    chances = logits.softmax(-1)[paths[:, :-1]].gather(-1, candidates[:, 1:, None])[..., 0]
    entropy = -(logits.softmax(-1) * (logits.softmax(-1) + 1e-5).log()).sum(-1)[paths[:, :-1]]
    typical = (chances > torch.minimum(torch.full_like(entropy, 0.3), entropy.neg().exp() * 0.9)).int()
    best = accepted.argmax() + 0 * typical.cumprod(1).sum()
    return Drafts(best, accepted, candidates[best])


# --- models ---------------------------------------------------------------------------------------------------------


@CASES.module(lambda n: (randn(1, n, 12),), 5, 9)
class GroupsOfExperts(nn.Module):
    """DeepSeek V3: sigmoid scores, a bias that only chooses, the best groups by their two best, shared experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(randn(8, 12))
        self.register_buffer("correction", randn(8) / 4)
        self.up, self.down = nn.Parameter(randn(8, 12, 6) / 3), nn.Parameter(randn(8, 3, 12))
        self.shared = nn.Sequential(nn.Linear(12, 6), nn.SiLU(), nn.Linear(6, 12))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, x.shape[-1])
        scores = F.linear(flat, self.gate).sigmoid()
        choice = scores.view(-1, 8) + self.correction.unsqueeze(0)
        groups = choice.view(-1, 4, 2).topk(2, dim=-1)[0].sum(dim=-1)
        best = torch.topk(groups, k=2, dim=-1, sorted=False)[1]
        mask = torch.zeros_like(groups)
        mask.scatter_(1, best, 1)
        mask = mask.unsqueeze(-1).expand(-1, 4, 2).reshape(-1, 8)
        chosen = torch.topk(choice.masked_fill(~mask.bool(), 0.0), k=3, dim=-1, sorted=False)[1]
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5
        dense = torch.zeros_like(scores).scatter(1, chosen, weights)
        h = torch.einsum("td,edf->tef", flat, self.up)
        h = F.silu(h[..., :3]) * h[..., 3:]
        y = torch.einsum("tef,efd,te->td", h, self.down, dense)
        return (y + self.shared(flat)).view_as(x)


@CASES.module(lambda n: (randn(2, n, 8),), 7, 10)
class GatedDeltaChunks(nn.Module):
    """Qwen3-Next: a causal convolution, unit keys, and the gated delta rule in chunks inverted by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.gates = nn.Linear(8, 24), nn.Linear(8, 4)
        self.conv = nn.Conv1d(24, 24, 3, groups=24, padding=2, bias=False)
        self.rate = nn.Parameter(rand(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, _ = x.shape
        mixed = F.silu(self.conv(self.project(x).transpose(1, 2))[:, :, :length]).transpose(1, 2)
        q, k, v = (z.reshape(batch, length, 2, 4).transpose(1, 2) for z in mixed.chunk(3, -1))
        q, k = (z * torch.rsqrt((z * z).sum(-1, keepdim=True) + 1e-6) for z in (q, k))
        beta, a = self.gates(x).chunk(2, -1)
        beta = beta.sigmoid().transpose(1, 2)
        g = (-self.rate.exp() * F.softplus(a)).transpose(1, 2)
        size = 4
        pad = (size - length % size) % size
        q, k, v = (F.pad(z, (0, 0, 0, pad)) for z in (q, k, v))
        beta, g = F.pad(beta, (0, pad)), F.pad(g, (0, pad))
        scaled_v, scaled_k = v * beta.unsqueeze(-1), k * beta.unsqueeze(-1)
        q, k, scaled_v, scaled_k = (z.reshape(batch, 2, -1, size, 4) for z in (q * 0.5, k, scaled_v, scaled_k))
        g = g.reshape(batch, 2, -1, size).cumsum(-1)
        above = torch.triu(torch.ones(size, size, dtype=torch.bool))
        decay = (g.unsqueeze(-1) - g.unsqueeze(-2)).tril().exp().tril()
        attention = -((scaled_k @ k.transpose(-1, -2)) * decay).masked_fill(above, 0)
        for i in range(1, size):
            row, rest = attention[..., i, :i].clone(), attention[..., :i, :i].clone()
            attention[..., i, :i] = row + (row.unsqueeze(-1) * rest).sum(-2)
        attention = attention + torch.eye(size, dtype=attention.dtype)
        value = attention @ scaled_v
        decayed = attention @ (scaled_k * g.exp().unsqueeze(-1))
        state = torch.zeros(batch, 2, 4, 4).to(value)
        out = torch.zeros_like(value)
        strictly = torch.triu(torch.ones(size, size, dtype=torch.bool), diagonal=1)
        for i in range((length + pad) // size):
            inner = (q[:, :, i] @ k[:, :, i].transpose(-1, -2) * decay[:, :, i]).masked_fill_(strictly, 0)
            new = value[:, :, i] - decayed[:, :, i] @ state
            out[:, :, i] = (q[:, :, i] * g[:, :, i, :, None].exp()) @ state + inner @ new
            last = g[:, :, i, -1, None]
            state = state * last[..., None].exp()
            state = state + (k[:, :, i] * (last - g[:, :, i]).exp()[..., None]).transpose(-1, -2) @ new
        return out.reshape(batch, 2, -1, 4)[:, :, :length].transpose(1, 2).contiguous(), state


@CASES.module(lambda n: (randint(0, 13, (2, n)), torch.tensor([True, False])), 5, 8)
class TwoRates(nn.Module):
    """A hierarchical reasoner: a fast and a slow state in nested loops, reset where a sample was halted."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head, self.halt = nn.Embedding(13, 8), nn.Linear(8, 13, bias=False), nn.Linear(8, 2)
        self.fast, self.slow = (nn.ModuleList(nn.Linear(8, 8) for _ in range(2)) for _ in range(2))
        self.register_buffer("fast_init", randn(8), persistent=True)
        self.register_buffer("slow_init", randn(8), persistent=True)

    @staticmethod
    def _level(layers: nn.ModuleList, x: Tensor, injected: Tensor) -> Tensor:
        x = x + injected
        for layer in layers:
            x = F.rms_norm(x + F.silu(layer(x)), (x.shape[-1],))
        return x

    def forward(self, tokens: Tensor, halted: Tensor) -> dict[str, Tensor]:
        carry = {"fast": self.fast_init.expand(*tokens.shape, -1) * 0.5, "slow": torch.ones(*tokens.shape, 8)}
        for name, start in (("fast", self.fast_init), ("slow", self.slow_init)):
            carry[name] = torch.where(halted.view(-1, 1, 1), start, carry[name].to(start.dtype))
        x = math.sqrt(8) * self.embed(tokens.to(torch.int32))
        fast, slow = carry["fast"], carry["slow"]
        with torch.no_grad():
            for step in range(2 * 2):
                fast = self._level(self.fast, fast, slow + x)
                if step % 2 == 1:
                    slow = self._level(self.slow, slow, fast)
        halt = self.halt(slow[:, 0]).to(torch.float32)
        return {"logits": self.head(slow), "halt": halt[..., 0], "go_on": halt[..., 1], "fast": fast.detach()}


@CASES.function(lambda n: (randint(0, 9, (2, n)), randn(2, n, 10), rand(2, n, 10, dtype=torch.float64)), 8, 11)
def unmasked_step(tokens: Tensor, logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """LLaDA: Gumbel noise in f64, confidences of masked places, as many of the best filled as a schedule says."""
    mask = tokens >= 5
    tokens = torch.where(mask, 9, tokens)
    noisy = logits.to(torch.float64).exp() / (-torch.log(noise.to(torch.float64)))
    guess = noisy.argmax(-1)
    chance = torch.gather(logits.to(torch.float64).softmax(-1), -1, guess.unsqueeze(-1)).squeeze(-1)
    steps = 3
    count = mask.sum(1, keepdim=True)
    schedule = (count // steps).expand(-1, steps) + (torch.arange(steps) < count % steps).long()
    guess = torch.where(mask, guess, tokens)
    confidence = torch.where(mask, chance, -torch.inf)
    rank = confidence.argsort(1, descending=True).argsort(1)
    filled = torch.where((rank < schedule[:, :1]) & mask, guess, tokens)
    return filled, schedule


# --- losses ---------------------------------------------------------------------------------------------------------


@CASES.function(lambda n: (randn(4, n, 9), randn(4, n, 9), randint(0, 9, (4, n)), torch.arange(n) < 4 + 0 * n), 6, 9)
def preferred_answers(policy: Tensor, frozen: Tensor, labels: Tensor, asked: Tensor) -> dict[str, Tensor]:
    """DPO and GRPO: log chances of shifted labels, clipped ratios within groups, an unbiased divergence."""
    labels = torch.where(asked & (labels > 6), -100, labels)[:, 1:].clone()
    mask = labels != -100
    labels[labels == -100] = 0
    ours, theirs = (
        torch.gather(x[:, :-1].log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2) for x in (policy, frozen)
    )
    sums = [(x * mask).sum(-1) for x in (ours, theirs)]
    margins = (sums[0][:2] - sums[0][2:]) - (sums[1][:2] - sums[1][2:])
    dpo = -F.logsigmoid(0.1 * margins) * 0.9 - F.logsigmoid(-0.1 * margins) * 0.1
    reward = sums[1].view(-1, 2)
    advantage = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    ratio = torch.exp(ours - ours.detach() + 0.1 * (ours - theirs).clamp(-1, 1))
    clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
    divergence = torch.exp(theirs - ours) - (theirs - ours) - 1
    grpo = ((-(clipped - 0.04 * divergence) * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    return {"dpo": dpo, "grpo": grpo, "kl": (divergence * mask).sum() / mask.sum()}
