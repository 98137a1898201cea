"""What `make demo` runs: compile the digit classifier, read the held-out digits, stand beside ONNX Runtime.

Every figure that it prints was measured in this run. Both engines get the same file, the same images and the same
number of threads, and take turns, so that a busy machine slows both. Exits with 1 if they disagree on a digit.

    python examples/digits/demo.py
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import tilewright as tw
from digits_data import Digits, load

MODEL_PATH = Path(__file__).with_name("digits.onnx")
N_ROUNDS = 15
TURN_SECONDS = 0.03

Images = NDArray[np.float32]
Engine = Callable[[Images], Images]


def tilewright_engine(n_threads: int) -> Engine:
    """The network compiled to native code."""
    model: Engine = tw.compile(str(MODEL_PATH), threads=n_threads)
    return model


def onnxruntime_engine(n_threads: int) -> Engine:
    """The same file in ONNX Runtime with its default optimisations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    session = onnxruntime.InferenceSession(MODEL_PATH, options, providers=["CPUExecutionProvider"])

    def run(images: Images) -> Images:
        scores: Images = session.run(["scores"], {"image": images})[0]
        return scores

    return run


def wait_for_sleep() -> None:
    """Wait until no thread of this process works, for a second at the most.

    Some engines' threads look for work for 60 ms after a call, on the cores that the other engine is timed on.
    """
    end = time.perf_counter() + 1.0
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.005)
        if time.process_time() - before < 0.001:
            return


def turn(engine: Engine, images: Images) -> float:
    """Median seconds of a call over one turn; the turn's first third is not timed, it wakes caches and threads."""
    wait_for_sleep()
    call_seconds: list[float] = []
    start = time.perf_counter()
    while (before := time.perf_counter()) < start + TURN_SECONDS or not call_seconds:
        engine(images)
        if before > start + TURN_SECONDS / 3:
            call_seconds.append(time.perf_counter() - before)
    return statistics.median(call_seconds)


def answers_table(ours: Images, theirs: Images, digits: Digits) -> Table:
    """Accuracy of both, and how far apart they are."""
    our_digits, their_digits = ours.argmax(1), theirs.argmax(1)
    table = Table("held-out digits", "tilewright", "ONNX Runtime", title="Answers", title_justify="left")
    accuracies = [f"{np.mean(answer == digits.labels):.2%}" for answer in (our_digits, their_digits)]
    table.add_row("accuracy", *accuracies)
    table.add_row("equal predictions", f"{np.sum(our_digits == their_digits)} of {len(digits.labels)}", "")
    table.add_row("largest difference of a score", f"{np.abs(ours - theirs).max():.2e}", "")
    table.add_row("largest score", f"{np.abs(ours).max():.2f}", f"{np.abs(theirs).max():.2f}")
    return table


def latency_table(digits: Digits, thread_counts: list[int]) -> Table:
    """Median latency of a call; the ratio is the median over rounds, in each of which both took a turn."""
    table = Table("batch", "threads", "tilewright", "ONNX Runtime", "speed-up", title="Latency", title_justify="left")
    for n_threads in thread_counts:
        ours, theirs = tilewright_engine(n_threads), onnxruntime_engine(n_threads)
        for images in (digits.images[:1], digits.images):
            rounds = [(turn(ours, images), turn(theirs, images)) for _ in range(N_ROUNDS)]
            our_us, their_us = (f"{statistics.median(seconds) * 1e6:,.1f} us" for seconds in zip(*rounds, strict=True))
            speed_up = statistics.median(their_seconds / our_seconds for our_seconds, their_seconds in rounds)
            table.add_row(str(len(images)), str(n_threads), our_us, their_us, f"{speed_up:.2f}x")
    return table


def main() -> int:
    """Compile, compare, print; 0 if every prediction is equal."""
    console = Console()
    _, held_out = load()
    start = time.perf_counter()
    model = tw.compile(str(MODEL_PATH))
    console.print(f"compiled {MODEL_PATH.name} in {time.perf_counter() - start:.3f} s\n")

    ours, theirs = model(held_out.images), onnxruntime_engine(1)(held_out.images)
    console.print(answers_table(ours, theirs, held_out))
    console.print(latency_table(held_out, sorted({1, joblib.cpu_count()})))
    print(model.report())
    return 0 if np.array_equal(ours.argmax(1), theirs.argmax(1)) else 1


if __name__ == "__main__":
    sys.exit(main())
