"""Try platforms by hand: ``PYTHONPATH=tests:. python -m aot.emulated [-n NODE_TESTS] PLATFORM...``"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import chain
from pathlib import Path

from aot.emulated import many
from aot.emulated.platforms import PLATFORMS

NETS = ("mlp", "lstm", "resnet50", "mobilenet_v2", "bert_base", "llama_decode")

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--nets", nargs="*", default=NETS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("platform", nargs="*", default=list(PLATFORMS))
    given = parser.parse_args()
    for name in given.platform:
        start = time.perf_counter()
        folder = given.folder or Path(tempfile.mkdtemp(prefix=f"{name}-"))
        trials = list(chain(many.node_tests(given.n), many.nets(given.nets)))
        found = PLATFORMS[name].missing() or many.wrong(PLATFORMS[name], trials, folder)
        print(name, len(trials), "trials", found or "all right", f"{time.perf_counter() - start:.1f} s", flush=True)
