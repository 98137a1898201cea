"""Other models of the zoo: an MLP, an LSTM tagger, the Whisper-tiny encoder.

In: ``small``. Out: (module, inputs by name, axes that may vary). Not its business: audio features, training.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, dict[str, Tensor], dict[str, dict[int, str]]]


def mlp(small: bool) -> Built:
    sizes = (16, 32, 24, 10) if small else (784, 2048, 2048, 2048, 10)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), {"x": torch.randn(4, sizes[0])}, {"x": {0: "batch"}}


class Tagger(nn.Module):
    """Embedding, a bidirectional LSTM of two layers, and a linear head per token."""

    def __init__(self, vocabulary: int, width: int, hidden: int, n_tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, n_tags)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(ids))[0])


def lstm(small: bool) -> Built:
    module = Tagger(50, 12, 16, 5) if small else Tagger(10000, 256, 512, 20)
    return module, {"ids": torch.randint(0, 50, (2, 7) if small else (1, 64))}, {"ids": {0: "batch"}}


class WhisperEncoder(nn.Module):
    """Log-mel features in, hidden states out."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, features: Tensor) -> Tensor:
        return self.encoder(features).last_hidden_state


def whisper_tiny_encoder(small: bool) -> Built:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder as Encoder

    tiny = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536}
    less = {"d_model": 48, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 96}
    positions = 20 if small else 1500
    config = WhisperConfig(**(less if small else tiny), max_source_positions=positions, attn_implementation="sdpa")
    features = torch.randn(2 if small else 1, 80, 2 * positions)
    return WhisperEncoder(Encoder(config)), {"features": features}, {"features": {0: "batch"}}
