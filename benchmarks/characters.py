"""Perplexity of a small character model in few bits: trained here on the Python standard library's own text.

    python -m benchmarks.characters             train (minutes), then measure each precision
    python -m benchmarks.characters --steps 50  a quick look

In: the installed standard library. Out: a table: perplexity on text that was not trained on, and how far it
is above f32's. Not its business: speed (``benchmarks.tokens``).
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import tilewright

LENGTH, BATCH, WORDS = 128, 16, 128
PRECISIONS = ("fp32", "fp16", "int8", "fp8", "fp8e5m2", "int4", "nf4", "fp4")
CALIBRATION, HELD_OUT = 24, 40
"""Batches."""


def text() -> np.ndarray[Any, np.dtype[np.int64]]:
    """The standard library's modules as ASCII codes, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts = [p.read_bytes() for p in sorted(folder.glob("*.py"))]
    return np.array([c for c in b"\n".join(parts) if c < WORDS], np.int64)


class Logits(torch.nn.Module):
    """A model's logits for whole rows."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.model(input_ids=tokens, use_cache=False).logits


def trained(codes: Any, steps: int) -> Any:
    """A Llama of a few million weights after so many steps."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    rng = np.random.default_rng(0)
    for step in range(steps):
        rows = torch.tensor(batch(codes, rng))
        loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def batch(codes: Any, rng: np.random.Generator) -> Any:
    starts = rng.integers(0, len(codes) - LENGTH, BATCH)
    return np.stack([codes[s : s + LENGTH] for s in starts])


def perplexity(run: Callable[[Any], Any], batches: list[Any]) -> float:
    total = n = 0.0
    for rows in batches:
        logits = torch.tensor(np.asarray(run(rows)))[:, :-1].reshape(-1, WORDS)
        total += torch.nn.functional.cross_entropy(
            logits, torch.tensor(rows[:, 1:].reshape(-1)), reduction="sum"
        ).item()
        n += len(logits)
    return float(np.exp(total / n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    codes = text()
    cut = len(codes) * 9 // 10
    module = Logits(trained(codes[:cut], options.steps))
    rng = np.random.default_rng(1)
    held_out = [batch(codes[cut:], rng) for _ in range(HELD_OUT)]
    data = [(batch(codes[:cut], rng),) for _ in range(CALIBRATION)]
    example = (torch.tensor(held_out[0]),)
    made = {p: tilewright.compile(module, example, precision=p, cache=False) for p in PRECISIONS}
    for codes, method in (("int8", "gptq"), ("int4", "gptq"), ("int4", "awq"), ("nf4", "gptq"), ("fp4", "gptq")):
        graph = tilewright.quantize_weights(module, data, example_inputs=example, codes=codes, method=method)
        made[f"{codes}, {method.upper()}"] = tilewright.compile(graph, cache=False)
    found = {name: perplexity(run, held_out) for name, run in made.items()}
    for name, value in found.items():
        print(f"{name:12} {value:.4f}  {value / found['fp32']:.4f} of fp32")
    if options.json:
        options.json.write_text(json.dumps({"steps": options.steps, "perplexity": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
