"""``tilewright bench --tokens``: tokens per second of a language model.

In: a folder or file with a configuration of transformers, and weights if it has some. Out: a line of rates.
Not its business: measuring (``tools.tokens``).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilewright.build.decoder import decoder
from tilewright.cli import show
from tilewright.core.diag import OptionError
from tilewright.tools.tokens import product_bytes, token_rates


def bench_tokens(path: Path, precision: str, kv_cache: str, threads: int, *, json: bool) -> None:
    """Compile the decoder, and say how fast it reads a prompt and writes."""
    try:
        import transformers
    except ImportError as error:
        raise OptionError("--tokens needs transformers", remedy="pip install transformers") from error
    folder = path if path.is_dir() else path.parent
    if not (folder / "config.json").is_file():
        raise OptionError(
            f"there is no config.json in or beside {path}", remedy="pass the folder of a model of transformers"
        )
    models: Any = transformers.AutoModelForCausalLM
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    # Rates don't depend on what the weights are, so a configuration alone is enough.
    if any(folder.glob("*.safetensors")):
        model = models.from_pretrained(folder, local_files_only=True)
    else:
        model = models.from_config(config)
    made = decoder(model.eval().float(), precision=precision, kv_cache_precision=kv_cache, threads=threads)
    rates = token_rates(made, product_bytes(model, precision))
    if json:
        show.emit_json(asdict(rates) | {"share": rates.share})
        return
    megabytes = rates.weights_bytes / 1e6
    show.line(
        f"prompt {rates.prefill_per_s:.1f} tokens/s, then {rates.decode_per_s:.1f} tokens/s, which read "
        f"{megabytes:.0f} MB of weights each: {rates.share:.2f} of memory's {rates.read_gb_per_s:.1f} GB/s"
    )
