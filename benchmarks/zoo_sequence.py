"""Sequence models of the zoo: MLPs, LSTM and GRU taggers, a temporal CNN, the Whisper-tiny encoder, wav2vec 2.0.

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


def mlp_micro(small: bool) -> Built:
    """A net so small that the cost of a call decides."""
    layers = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)]
    return nn.Sequential(*layers), {"x": torch.randn(1 if not small else 2, 16)}, {"x": {0: "batch"}}


class GRUForecaster(nn.Module):
    """Two layers of GRU over a series, and a linear head on the last step."""

    def __init__(self, features: int, hidden: int, horizon: int) -> None:
        super().__init__()
        self.gru = nn.GRU(features, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, horizon)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.gru(series)[0][:, -1])


def gru(small: bool) -> Built:
    module = GRUForecaster(3, 16, 4) if small else GRUForecaster(32, 256, 24)
    return module, {"series": torch.randn(2, 7, 3) if small else torch.randn(1, 96, 32)}, {"series": {0: "batch"}}


class TemporalBlock(nn.Module):
    """Two dilated causal convolutions with a residual."""

    def __init__(self, c_in: int, c_out: int, dilation: int) -> None:
        super().__init__()
        self.cut = 2 * dilation
        self.conv1 = nn.Conv1d(c_in, c_out, 3, padding=self.cut, dilation=dilation)
        self.conv2 = nn.Conv1d(c_out, c_out, 3, padding=self.cut, dilation=dilation)
        self.shortcut = nn.Conv1d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv1(x)[..., : -self.cut])
        y = torch.relu(self.conv2(y)[..., : -self.cut])
        return torch.relu(y + self.shortcut(x))


def temporal_cnn(small: bool) -> Built:
    width, depth, steps = (8, 2, 20) if small else (128, 6, 1000)
    blocks = [TemporalBlock(4 if i == 0 else width, width, 2**i) for i in range(depth)]
    module = nn.Sequential(*blocks, nn.Conv1d(width, 6, 1))
    return module, {"signal": torch.randn(2 if small else 1, 4, steps)}, {"signal": {0: "batch"}}


def wav2vec2(small: bool) -> Built:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    class Features(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, waveform: Tensor) -> Tensor:
            return self.model(waveform).last_hidden_state

    less = {
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "conv_dim": (16,) * 7,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
    }
    config = Wav2Vec2Config(**(less if small else {}), attn_implementation="sdpa")
    waveform = torch.randn(2 if small else 1, 4000 if small else 16000)
    return Features(Wav2Vec2Model(config)), {"waveform": waveform}, {"waveform": {0: "batch"}}


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
