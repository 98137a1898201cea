"""A suite of random PyTorch programs by seed: each is held against eager PyTorch, or against its own export.

In: seeds; each is one case of every family. Out: passed, refused where neither an example nor the compiler takes a
program, or an error that shows what differs. The families are programs with conditions on sizes, weights that change
between calls, cuts and pads by symbolic sizes, functions and modules whose results share memory, selections by masks
among mixed types, and attention with functions of scores; then there are calls with random arguments, and files that
are overwritten while in use. Not its business: what a program is made of and when it is right (the tests of
``tests/frontend`` and ``tests/runtime``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch

from frontend import (
    shared_results,
    test_dynamo_sharing,
    test_dynamo_symbolic,
    test_dynamo_weights,
    test_flex_attention,
    test_mixed_masks,
    test_torch_guards,
)
from runtime import test_random_calls
from tilewright.integrations.torch_compile import weights
from tilewright.integrations.torch_compile.backend import make_backend
from tilewright.tools.conformance.outcome import Status
from tilewright.tools.conformance.workers import Case

NAME = "families"
COUNT = 2_000
N_UPDATES = 20


def guards(seed: int) -> Status:
    """One program at some sizes; PyTorch does not trace every one, and the compiler refuses some conditions."""
    found = test_torch_guards.check_family(range(seed, seed + 1))
    return "passed" if found.keys() & {"same", "both refuse"} else "refused"


def updates(seed: int) -> Status:
    with mock.patch.object(weights, "clock", lambda: 0.0):  # every change is worth a compile
        torch._dynamo.reset()
        test_dynamo_weights.check_updates(seed, N_UPDATES)
    return "passed"


def slices(seed: int) -> Status:
    test_dynamo_symbolic.check_seed(seed, _sometimes_native(seed))
    return "passed"


def flex(seed: int) -> Status:
    test_flex_attention.check_seed(seed, _sometimes_native(seed))
    return "passed"


def _sometimes_native(seed: int) -> Any:
    """One of four back ends makes native code, which takes time."""
    return "tilewright" if seed % 4 == 0 else make_backend(test_dynamo_sharing.interpreted)


def sharing(seed: int) -> Status:
    test_dynamo_sharing.check(seed)
    return "passed"


def names(seed: int) -> Status:
    """Half of the views are calls that return the tensor that they are given, so that it has several names."""
    test_dynamo_sharing.check(seed, [*shared_results.VIEWS, *2 * shared_results.ITSELF])
    return "passed"


def modules(seed: int) -> Status:
    test_dynamo_sharing.check_module(seed)
    return "passed"


def masks(seed: int) -> Status:
    test_mixed_masks.check(seed)
    return "passed"


def calls(seed: int) -> Status:
    test_random_calls.check(seed)
    return "passed"


def files(seed: int) -> Status:
    with TemporaryDirectory() as folder:
        test_random_calls.overwrite(seed, Path(folder))
    return "passed"


FAMILIES: dict[str, Callable[[int], Status]] = {
    "guards": guards, "updates": updates, "slices": slices, "sharing": sharing, "names": names, "modules": modules,
    "masks": masks, "flex": flex,
    "calls": calls,
    "files": files,
}  # fmt: skip


def cases(first: int = 0, last: int = COUNT) -> Sequence[Case]:
    return [Case(f"{family}:{seed}", family) for seed in range(first, last) for family in FAMILIES]


def run_case(case: Case) -> tuple[Status, str]:
    family, _, seed = case.name.partition(":")
    return FAMILIES[family](int(seed)), ""
