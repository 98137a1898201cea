"""Newcomer functions of mixed types, odd sizes, writes into views, dynamic programmes, transport and contrasts.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


@CASES.module(lambda n: (randn(n, 2, 5), torch.tensor([n, n - 2])), 6, 9)
class RandomField(nn.Module):
    """A conditional random field: log partition, Viterbi with pointers followed back, masked lengths, marginals."""

    def __init__(self) -> None:
        super().__init__()
        self.move, self.start, self.end = nn.Parameter(randn(5, 5)), nn.Parameter(randn(5)), nn.Parameter(randn(5))

    def forward(self, scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = scores.shape[0]
        seen = torch.arange(n)[:, None] < lengths
        alpha = best = self.start + scores[0]
        pointers = []
        for t in range(1, n):
            step = alpha[:, :, None] + self.move + scores[t][:, None]
            alpha = torch.where(seen[t, :, None], step.logsumexp(1), alpha)
            value, pointer = (best[:, :, None] + self.move).max(1)
            best = torch.where(seen[t, :, None], value + scores[t], best)
            pointers.append(torch.where(seen[t, :, None], pointer, torch.arange(5)))
        score, tag = (best + self.end).max(1)
        path = [tag]
        for pointer in reversed(pointers):
            path.append(pointer.gather(1, path[-1][:, None])[:, 0])
        tags = torch.stack(path[::-1]).masked_fill(~seen, -1)
        return torch.logsumexp(alpha + self.end, 1), score, tags


@CASES.function(lambda n: (randn(n, 2, 6).log_softmax(-1), randint(1, 6, (2, 3)), torch.tensor([n, n - 1])), 8, 11)
def ctc_by_hand(logp: Tensor, targets: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The lattice of blanks and labels with skips where labels differ, beside PyTorch's own loss."""
    n, batch, _ = logp.shape
    labels = torch.zeros(batch, 7, dtype=torch.long)
    labels[:, 1::2] = targets
    emit = logp.gather(2, labels.expand(n, -1, -1))
    skip = torch.zeros(batch, 7, dtype=torch.bool)
    skip[:, 3::2] = targets[:, 1:] != targets[:, :-1]
    low = -1e30
    alpha = torch.full((batch, 7), low)
    alpha[:, :2] = emit[0, :, :2]
    rows = [alpha]
    for t in range(1, n):
        one = F.pad(alpha, (1, 0), value=low)[:, :-1]
        two = torch.where(skip, F.pad(alpha, (2, 0), value=low)[:, :-2], low)
        alpha = torch.stack([alpha, one, two]).logsumexp(0) + emit[t]
        rows.append(alpha)
    last = torch.stack(rows)[lengths - 1, torch.arange(batch)]
    mine = -last[:, -2:].logsumexp(-1)
    return mine, F.ctc_loss(logp, targets, lengths, torch.tensor([3, 3]), reduction="none")


@CASES.function(lambda n: (rand(n, 3), rand(n + 2, 3), rand(n)), 5, 8)
def entropic_distance(x: Tensor, y: Tensor, mass: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sinkhorn's divergence in log space with shrinking temperature, and barycentric images."""
    a = (mass / mass.sum()).log()
    b = torch.full((len(y),), -math.log(len(y)))
    cost = torch.cdist(x, y) ** 2 / 2
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    for eps in (1.0, 0.5, 0.25, 0.1, 0.1, 0.1):
        f, g = (
            0.5 * (f - eps * torch.logsumexp(b + (g - cost) / eps, 1)),
            0.5 * (g - eps * torch.logsumexp(a[:, None] + (f[:, None] - cost) / eps, 0)),
        )
    plan = (a[:, None] + b + (f[:, None] + g - cost) / 0.1).exp()
    return (plan * cost).sum(), plan @ y / plan.sum(1, keepdim=True), plan.argmax(1)


@CASES.function(lambda n: (randn(2 * n, 6), randint(0, 3, (2 * n,))), 4, 6)
def contrasts(z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """NT-Xent, a supervised contrast, hardest triplets and a sigmoid loss of pairs."""
    z = F.normalize(z, dim=1)
    n = len(z) // 2
    sim = z @ z.T / 0.2
    self_mask = torch.eye(2 * n, dtype=torch.bool)
    partner = torch.arange(2 * n).roll(n)
    nt = F.cross_entropy(sim.masked_fill(self_mask, -1e9), partner)
    same = (labels[:, None] == labels) & ~self_mask
    logp = sim - sim.masked_fill(self_mask, -torch.inf).logsumexp(1, keepdim=True)
    supervised = -(logp * same).sum(1) / same.sum(1).clamp(min=1)
    far = torch.where(same, 1 - sim, -torch.inf).amax(1)
    near = torch.where(same | self_mask, torch.inf, 1 - sim).amin(1)
    triplet = F.softplus(far - near)
    pairs = -F.logsigmoid((2.0 * torch.eye(n) - 1) * (10 * z[:n] @ z[n:].T - 5)).sum() / n
    return nt, supervised, triplet, pairs


@CASES.function(lambda n: (randint(-128, 128, (n, 8)).char(), randint(-8, 8, (5, 8)).char(), rand(n, 1), rand(5)), 4, 7)
def eight_bit_linear(x: Tensor, w: Tensor, sx: Tensor, sw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of bytes in 32 bits, rescaled in bf16 and f64, packed into nibbles and back."""
    sums = torch.matmul(x.int(), w.int().T)
    y = sums.float() * sx * sw
    nibbles = ((w[:, ::2] & 15) | (w[:, 1::2] << 4)).view(torch.uint8)
    low = ((nibbles & 15).to(torch.int8) << 4) >> 4
    high = nibbles.view(torch.int8) >> 4
    back = torch.stack([low, high], -1).flatten(1)
    return y.bfloat16(), y.double().mean(0), back


@CASES.function(lambda n: (randn(n, 6).bfloat16(), randn(6).double(), randn(n, 6) > 0, randn(n, 6).half()), 5, 9)
def promotions(b: Tensor, d: Tensor, m: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """What types come of sums, products, comparisons and means of mixed ones."""
    one = b * d
    two = b + h
    three = torch.where(m, b, 2)
    four = m.sum(0) * b[0]
    five = (m | (b > 0)).float().mean(1) + d[0]
    six = torch.cat([b, h.to(b.dtype)]).softmax(0, dtype=torch.float32)
    seven = (m.to(torch.uint8) - 2).to(torch.int16) * b.round().to(torch.int8)
    eight = torch.addmm(b[:, :1].float(), b.float(), h.float().T)
    nine = F.layer_norm(b.double(), (6,), d) @ d
    return one, two, three, four, five, six, seven, eight, nine, (h / 3).floor_divide(2), m.long() << 2


@CASES.function(lambda n: (randn(n, 6, 5),), 7, 10)
def views_written_through(x: Tensor) -> tuple[Tensor, ...]:
    """Writes through slices with steps, transposes, diagonals, unfolded windows and real parts."""
    a = x.clone()
    a[1::3, ::2].mul_(2).add_(1)
    a.transpose(0, 1)[2, 1:-1] = 7
    a.diagonal(0, 1, 2).zero_()
    a[..., -1].copy_(a[..., 0])
    b = a.view(-1, 30)
    b[:, 3:9].sub_(b.mean(1, keepdim=True))
    c = torch.zeros(len(x), 4, dtype=torch.cfloat)
    torch.view_as_real(c)[..., 1] = a[:, 0, :4]
    c.real.add_(1)
    a.flatten()[::7].clamp_(min=0)
    windows = a[:, 0].unfold(1, 3, 1)
    a[:, 0].relu_()
    first, *rest = a.unbind(1)
    first += 1
    rest[0].mul_(first)
    return a, b, c, windows + 0, a.sum(0)


@CASES.function(lambda n: (randn(2, n, 6), randn(n)), 7, 9)
def backwards(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    """Steps from the end: flips, reversed sums, rolls, negative bounds, circular buffers."""
    a = x.flip(1)[:, ::2]
    b = s.flip(0).cumsum(0).flip(0)
    c = x[:, -5:-1:2, -3:]
    d = x.roll((1, -2), (1, 2))
    e = torch.narrow(x, 1, -3, 2) * x[:, -1:]
    f = s[-3:].flip(0).outer(s[:3])
    g = x.index_select(1, torch.arange(x.shape[1] - 1, -1, -1))[:, 1:]
    h = torch.take_along_dim(x, x.argsort(stable=True, dim=1, descending=True), 1)
    i = torch.cat([s[-1:], s[:-1]]) - torch.rot90(x[0], 1, (0, 1))[0]
    return a, b, c, d, e, f, g, h, i, x[:, 3:3].sum(1), x.movedim(-1, 0)[-2].T


@CASES.function(lambda n: (randn(n - 4, 3), randn(3, 1), randn(1, 1, 1)), 4, 5)
def nothing_and_one(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """Empty batches and lone elements through sums, products, joins, pads, norms, sorts and convolutions."""
    a = F.pad(x, (0, 0, 1, 0), value=1.0)
    b = x.sum(0) + x.prod(0)
    c = x @ y
    d = torch.cat([x, y.T, x])
    e = F.conv1d(z, z, padding=1)
    f = z.softmax(-1) + F.layer_norm(z, (1,)) + z.std(correction=0)
    g, h = d.sort(0)
    i = torch.einsum("ni,nj->ij", x, x)
    j = x.new_zeros(x.shape[0], 0).sum(1) + x.square().sum(1)
    k = z.squeeze().expand(2).cumsum(0).view(2, 1).repeat(1, 0)
    return a, b, c, d, e, f, g, h, i, j, k, x.any(0), x.all(0), (x > 0).sum(), x.reshape(3, -1).mT


@CASES.module(lambda n: (randn(2, n, 8),), 6, 9)
class ByteLatentPatches(nn.Module):
    """Patches begin where entropy jumps: segment numbers by sums of marks, means by scatter, bytes read their patch."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.mix = nn.Linear(8, 12), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n, length, width = x.shape
        logp = self.head(x).log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1)
        starts = F.pad(entropy.diff() > 0, (1, 0), value=True)
        patch = starts.long().cumsum(1) - 1
        index = patch[..., None].expand(-1, -1, width)
        means = x.new_zeros(n, length, width).scatter_reduce(1, index, x, "mean", include_self=False)
        mixed = self.mix(means).gather(1, index)
        return x + mixed, patch


@CASES.module(lambda n: (rand(2, 4, n, n),), 9, 12)
class OrientedFilters(nn.Module):
    """Kernels turned by sampling their weights at rotated places, soft arg-max, a pyramid of blurs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(randn(3, 4, 5, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        outs = []
        for k in range(3):
            c, s = math.cos(k * math.pi / 3), math.sin(k * math.pi / 3)
            grid = F.affine_grid(torch.tensor([[[c, -s, 0], [s, c, 0]]]).expand(3, -1, -1), [3, 4, 5, 5], False)
            outs.append(F.conv2d(x, F.grid_sample(self.weight, grid, align_corners=False), padding=2))
        y = torch.stack(outs, 2).amax(2)
        small = F.avg_pool2d(F.pad(y, (1, 1, 1, 1), mode="replicate"), 3, 2)
        p = small.flatten(2).softmax(-1).view_as(small)
        rows, columns = torch.arange(small.shape[2]) + 0.5, torch.arange(small.shape[3]) + 0.5
        return y, torch.stack([(p.sum(3) * rows).sum(2), (p.sum(2) * columns).sum(2)], -1)


@CASES.function(lambda n: (rand(n, n + 1),), 9, 14)
def scaled_by_fractions(image: Tensor) -> tuple[Tensor, ...]:
    """Scale factors that are no whole numbers, by each mode, with and without corners aligned."""
    x = image[None, None]
    a = F.interpolate(x, scale_factor=0.7, mode="bilinear")
    b = F.interpolate(x, scale_factor=1.4, mode="nearest")
    c = F.interpolate(x, scale_factor=2.3, mode="bicubic", align_corners=True)
    d = F.interpolate(x[0], scale_factor=1.7, mode="linear", recompute_scale_factor=True)
    e = F.interpolate(x, scale_factor=(0.5, 1.5), mode="area")
    f = F.interpolate(x, scale_factor=0.6, mode="nearest-exact")
    return a, b, c, d, e, f


@CASES.module(lambda n: (randn(2, n, 6), randn(2, 5, 6)), 7, 9)
class GatedCrossState(nn.Module):
    """Minimal gated units by a parallel scan in log space, then cross attention with a learned null key."""

    def __init__(self) -> None:
        super().__init__()
        self.z, self.h = nn.Linear(6, 6), nn.Linear(6, 6)
        self.null = nn.Parameter(randn(2, 1, 1, 6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, add_zero_attn=True)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        k, h = self.z(x), self.h(x)
        log_h = torch.where(h >= 0, (F.relu(h) + 0.5).log(), -F.softplus(-h))
        coefficients = (-F.softplus(k)).cumsum(1)
        values = -F.softplus(-k) + log_h
        states = (coefficients + (values - coefficients).logcumsumexp(1)).exp()
        keys = torch.cat([self.null[0].expand(len(x), -1, -1), memory], 1)
        y, w = self.attention(states, keys, torch.cat([self.null[1].expand(len(x), -1, -1), memory], 1))
        return states + y, w


@CASES.function(lambda n: (randn(n, 4), randint(0, 5, (n,)), randint(0, 5, (n,))), 9, 13)
def keys_and_groups(x: Tensor, key: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    """Joins and groups as data frames have: counts, first and last of a group, ranks within it, a pivot table."""
    count = torch.bincount(key, minlength=5)
    order = torch.argsort(key * len(key) + torch.arange(len(key)))
    start = F.pad(count.cumsum(0), (1, 0))[:-1]
    rank = torch.empty_like(key).scatter_(0, order, torch.arange(len(key))) - start[key]
    pivot = torch.zeros(5, 5).index_put_((key, other), x[:, 0], accumulate=True)
    largest = x.new_full((5, 4), -math.inf).index_reduce_(0, key, x, "amax")
    match = key[:, None] == other
    first = torch.where(match.any(1), match.int().argmax(1), -1)
    lookup = torch.searchsorted(key.sort().values, other)
    among, weighed = torch.isin(key, other), key.bincount(x[:, 1].abs(), 5)
    return count, rank, pivot, largest.nan_to_num(neginf=0), first, lookup, among, weighed


@CASES.function(lambda n: (randn(n, 3, 3), randn(n, 3)), 4, 6)
def small_systems(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Batches of little systems: factors, solves, pseudo-inverse, exponentials, logarithms of determinants."""
    spd = a @ a.mT + 3 * torch.eye(3)
    low = torch.linalg.cholesky(spd)
    x = torch.cholesky_solve(b[..., None], low)[..., 0]
    q, r = torch.linalg.qr(a)
    sign, logdet = torch.linalg.slogdet(spd)
    w = torch.linalg.eigvalsh(spd)
    e = torch.linalg.matrix_exp(a / 4)
    t = torch.linalg.solve_triangular(low, b[..., None], upper=False)
    trace = spd.diagonal(dim1=1, dim2=2).sum(1)
    return x, q @ r, sign * logdet, w, e, t, torch.linalg.pinv(spd), torch.linalg.matrix_power(a, 3), trace


@CASES.module(lambda n: (randint(0, 20, (2, n)), randn(2, 4, 8)), 6, 9)
class CaptionDecoder(nn.Module):
    """Causal text over pictures by PyTorch's own layer, a tied head, smoothed labels with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, activation="gelu", batch_first=True, norm_first=True)
        self.project = nn.Linear(8, 8)

    def forward(self, tokens: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        length = tokens.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length)
        padded = torch.zeros(tokens.shape).masked_fill(tokens == 0, -1e9)
        text = self.embed(tokens) * 8**0.5
        h = self.layer(text, self.project(image), tgt_mask=causal, tgt_key_padding_mask=padded)
        logits = h @ self.embed.weight.T
        flat, wanted = logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        loss = F.cross_entropy(flat, wanted, ignore_index=0, label_smoothing=0.1)
        return logits, loss


@CASES.function(lambda n: (randn(3, n), rand(3, n)), 11, 16)
def time_series(x: Tensor, gaps: Tensor) -> tuple[Tensor, ...]:
    """Rolling statistics, differences of seasons, exponential smoothing, gaps filled forward, autocorrelation."""
    n = x.shape[1]
    windows = x.unfold(1, 5, 1)
    z = (x[:, 4:] - windows.mean(-1)) / (windows.std(-1) + 1e-6)
    season = x[:, 4:] - x[:, :-4]
    power = 0.7 ** torch.arange(n - 1, -1, -1.0)
    smooth = (x * power * 0.3).cumsum(1) / power
    missing = gaps < 0.3
    last = torch.where(missing, -1, torch.arange(n)).cummax(1).values
    filled = torch.where(last >= 0, x.gather(1, last.clamp(min=0)), 0.0)
    centred = x - x.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, 2 * n)
    correlation = torch.fft.irfft(spectrum * spectrum.conj(), 2 * n)[:, :n]
    return z, season, smooth, filled, correlation / correlation[:, :1], windows.median(-1).values, x.quantile(0.25, 1)


@CASES.function(lambda n: (randint(0, 256, (3, n, n + 1), dtype=torch.uint8),), 8, 11)
def camera_pipeline(raw: Tensor) -> tuple[Tensor, ...]:
    """Bytes to floats and back: grey, gamma by a table, histogram, threshold by Otsu, dilation, a packed mask."""
    x = raw.float() / 255
    grey = (x * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(0)
    table = (255 * (torch.arange(256) / 255) ** (1 / 2.2)).round().to(torch.uint8)
    bright = table[raw.long()]
    level = (grey * 255).round().long().clamp(0, 255)
    histogram = torch.zeros(256, dtype=torch.long).scatter_add_(0, level.flatten(), torch.ones_like(level.flatten()))
    weight = histogram.cumsum(0).double()
    mean = (histogram * torch.arange(256)).cumsum(0).double()
    between = (mean[-1] * weight - mean * weight[-1]) ** 2 / (weight * (weight[-1] - weight)).clamp(min=1)
    mask = level > between.argmax()
    wide = F.max_pool2d(mask[None].half(), 3, 1, 1)[0].bool()
    bits = F.pad(wide.flatten().to(torch.uint8), (0, -wide.numel() % 8)).view(-1, 8)
    packed = (bits << torch.arange(7, -1, -1, dtype=torch.uint8)).sum(1, dtype=torch.uint8)
    return bright, histogram, between.argmax(), mask ^ wide, packed, raw // 3 + raw % 5, (raw * 2 - 1) >> 1


@CASES.module(lambda n: (randn(2, 6, n),), 16, 21)
class TimeDomainSeparator(nn.Module):
    """Dilated blocks, cumulative layer norm, weight-normalised and transposed convolutions trimmed to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(6, 8, 4, 2, bias=False)
        self.blocks = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 3, dilation=d, padding=d, groups=4)) for d in (1, 2)
        )
        self.decode = nn.ConvTranspose1d(8, 6, 4, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.encode(F.pad(x, (2, 2 + x.shape[-1] % 2))))
        y = h
        for block in self.blocks:
            count = 8 * torch.arange(1, y.shape[-1] + 1)
            mean = y.sum(1, keepdim=True).cumsum(-1) / count
            var = (y.square().sum(1, keepdim=True).cumsum(-1) / count - mean**2).clamp(min=0)
            y = y + F.prelu(block((y - mean) / (var + 1e-5).sqrt()), torch.tensor(0.2))
        out: Tensor = self.decode(h * y.sigmoid())[..., 2 : 2 + x.shape[-1]]
        return out


@CASES.function(lambda n: (randn(n, 4), torch.tensor(n // 2)), 7, 10)
def numbers_in_tensors(x: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    """A tensor of no axes as an index, a bound, a scale and a shift."""
    at = torch.arange(len(x))
    head = torch.where(at < k, x[:, 0], 0.0)
    row = x[k] + x.index_select(0, k.view(1))[0]
    one = F.one_hot(k, 12).float()
    window = (at - k).abs() <= 1
    scaled = x / k + k**2 - k.float().rsqrt()
    counted = torch.where(window[:, None], x, x.new_tensor(-1.5)).sum(0)
    return head, row, one, counted, scaled, k.clamp(max=3) % 2 == 0, x.roll(1, 0)[k - 1], torch.full_like(x, 2) ** k
