"""Newcomer models of trackers, embeddings, colours and flows.

In: nothing. Out: ``CASES``. Not its business: running them (``newcomer.py``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from benchmarks.newcomer_cases import Table
from torch import Tensor, nn, rand, randint, randn

CASES = Table()


@CASES.function(lambda n: (randn(n, 2), torch.eye(4) + randn(4, 4) / 20, randn(2, 4)), 5, 7)
def backward_smoother(observed: Tensor, motion: Tensor, sensor: Tensor) -> tuple[Tensor, Tensor]:
    """A Kalman filter forwards, and the smoother of Rauch, Tung and Striebel backwards."""
    own = torch.eye(4, dtype=observed.dtype)
    x, spread = torch.zeros(4, dtype=observed.dtype), own
    means, spreads, foreseen, foreseen_spreads = [], [], [], []
    for seen in observed:
        x, spread = motion @ x, motion @ spread @ motion.mT + own * 0.1
        foreseen.append(x)
        foreseen_spreads.append(spread)
        gain = torch.linalg.solve(sensor @ spread @ sensor.mT + own[:2, :2] * 0.5, sensor @ spread).mT
        x, left = x + gain @ (seen - sensor @ x), own - gain @ sensor
        spread = left @ spread @ left.mT + gain @ gain.mT * 0.5
        means.append(x)
        spreads.append(spread)
    for k in range(len(means) - 2, -1, -1):
        back = torch.cholesky_solve(motion @ spreads[k], torch.linalg.cholesky(foreseen_spreads[k + 1])).mT
        means[k] = means[k] + back @ (means[k + 1] - foreseen[k + 1])
        spreads[k] = spreads[k] + back @ (spreads[k + 1] - foreseen_spreads[k + 1]) @ back.mT
    return torch.stack(means), torch.stack(spreads).diagonal(dim1=-2, dim2=-1)


@CASES.module(lambda n: (randn(n, 3),), 3, 5)
class AdaptiveFlow(nn.Module):
    """An ordinary differential equation by steps whose length follows from an estimate of the error."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        time, step = y.new_zeros(()), y.new_full((), 0.3)
        for _ in range(6):
            k1 = self.slope(y)
            k2 = self.slope(y + step * k1 / 2)
            k3 = self.slope(y + step * 3 * k2 / 4)
            tried = y + step * (2 * k1 + 3 * k2 + 4 * k3) / 9
            error = step * (-5 / 72 * k1 + k2 / 12 + k3 / 9 - self.slope(tried) / 8)
            ratio = (error / (1e-4 + 1e-3 * torch.max(y.abs(), tried.abs()))).square().mean().sqrt()
            is_taken = ratio <= 1
            y, time = torch.where(is_taken, tried, y), torch.where(is_taken, time + step, time)
            step = (step * (0.9 * ratio.clamp_min(1e-8) ** (-1 / 3)).clamp(0.2, 10)).minimum(1 - time)
        return y, time, step


@CASES.module(lambda n: (randn(n, 4),), 5, 8)
class JacobiBasis(nn.Module):
    """Splines on edges in a basis of Jacobi polynomials, written column by column, beside one of bumps and waves."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.waves = nn.Parameter(randn(4, 3, 5)), nn.Parameter(randn(2, 3, 4, 3) / 3)
        self.register_buffer("places", torch.linspace(-2, 2, 6))
        self.bumps = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        t = x.tanh()
        basis = torch.ones(len(t), 4, 5, dtype=t.dtype)
        basis[:, :, 1] = 2 * t
        for k in range(2, 5):
            rise = (2 * k + 2) * (2 * k + 1) / (2 * k * (k + 2))
            fall = k * k * (2 * k + 2) / (k * (k + 2) * 2 * k)
            basis[:, :, k] = rise * t * basis[:, :, k - 1].clone() - fall * basis[:, :, k - 2].clone()
        near = torch.exp(-(((x[..., None] - self.places) / 0.8) ** 2)).view(len(x), -1)
        angle = torch.arange(1, 4) * x[:, None, :, None]
        waves = (angle.cos() * self.waves[0:1]).sum((-2, -1)) + (angle.sin() * self.waves[1:2]).sum((-2, -1))
        result: Tensor = torch.einsum("bid,iod->bo", basis, self.weights) + self.bumps(near) + waves
        return result


@CASES.function(lambda n: (rand(2, 3, 2 * n, 2 * n),), 4, 5)
def opponent_colours(rgb: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures in CIELAB and back, and chroma at half the resolution repeated."""
    linear = torch.where(rgb > 0.04045, ((rgb + 0.055) / 1.055).pow(2.4), rgb / 12.92)
    rows = [[0.412453, 0.357580, 0.180423], [0.212671, 0.715160, 0.072169], [0.019334, 0.119193, 0.950227]]
    mixed = torch.tensordot(torch.tensor(rows, dtype=rgb.dtype), linear, dims=([1], [1])).transpose(0, 1)
    white = torch.tensor([0.95047, 1.0, 1.08883], dtype=rgb.dtype)[..., None, None]
    ratio = mixed / white
    x, y, z = torch.where(ratio > 0.008856, ratio.clamp(min=0.008856).pow(1 / 3), 7.787 * ratio + 4 / 29).unbind(-3)
    lab = torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -3)
    level = (lab[..., 0, :, :] + 16) / 116
    cubes = torch.stack([lab[..., 1, :, :] / 500 + level, level, (level - lab[..., 2, :, :] / 200).clamp(min=0)], -3)
    back = torch.where(cubes > 0.2068966, cubes.pow(3), (cubes - 4 / 29) / 7.787) * white
    grey = (rgb * torch.tensor([0.299, 0.587, 0.114], dtype=rgb.dtype)[:, None, None]).sum(1, keepdim=True)
    chroma = torch.cat([rgb[:, 2:] - grey, rgb[:, :1] - grey], 1).unfold(3, 2, 2).unfold(2, 2, 2).mean((-1, -2))
    return lab, back, chroma.repeat_interleave(2, -1).repeat_interleave(2, -2)


@CASES.function(lambda n: (randn(n, 8), randint(0, 3, (n,)), randn(n, 8)), 7, 9)
def hardest_contrasts(first: Tensor, labels: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Supervised contrast, the hardest triplets, decorrelation off the diagonal, and balanced assignments."""
    views, own = F.normalize(torch.cat([first, second]), dim=1), labels.repeat(2)
    others = torch.ones(len(own), len(own), dtype=views.dtype).scatter(1, torch.arange(len(own))[:, None], 0)
    alike = (own[:, None] == own).to(views.dtype) * others
    scores = views @ views.T / 0.1
    scores = scores - scores.amax(1, keepdim=True)
    supervised = -(alike * (scores - (scores.exp() * others).sum(1, keepdim=True).log())).sum(1) / alike.sum(1)
    apart, same = torch.cdist(first, first), labels[:, None] == labels
    nearest = torch.where(same, apart.max() + 1, apart).min(1)[0]
    centred = first - first.mean(0)
    shared = centred.T @ centred / (len(first) - 1)
    crossed = shared.flatten()[:-1].view(7, 9)[:, 1:].flatten().square().sum() / 8
    share = (views @ views[:5].T / 0.5).exp().t()
    for _ in range(3):
        share = share / share.sum(1, keepdim=True) / 5
        share = share / share.sum(0, keepdim=True) / share.shape[1]
    return supervised, F.softplus((apart * same).amax(1) - nearest), crossed, share.t()


@CASES.function(lambda n: (randn(n, 4), randn(n, 4), rand(4), rand(4)), 3, 5)
def averaged_lists(weights: Tensor, steps: Tensor, bias: Tensor, bias_steps: Tensor) -> tuple[Tensor, ...]:
    """A step of an optimiser and of the average of what it trains, in calls on lists of tensors."""
    values, grads = [weights.clone(), bias.clone()], [steps, bias_steps]
    means = torch._foreach_mul(grads, 0.1)
    squares = torch._foreach_mul(grads, grads)
    torch._foreach_sqrt_(squares)
    torch._foreach_add_(squares, 1e-6)
    torch._foreach_addcdiv_(values, means, squares, value=-0.01)
    kept = [weights.clone(), bias.clone()]
    torch._foreach_lerp_(kept, values, 0.25)
    return *values, *kept, *torch._foreach_norm(kept)
