"""What a user chooses about a compile, and the clock that says where its time went.

In: the options of ``compile``, ``export`` and the command line. Out: ``Options``, checked.
Not its business: their passes (``build.passes``), what a stage does with them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from tilewright.build.exact import Sizes, read_exact_sizes
from tilewright.core.diag import OptionError
from tilewright.graph.quantize.books import BOOKS
from tilewright.graph.quantize.weights import QuantizeWeights
from tilewright.runtime.errors import FileError
from tilewright.target.gpu import Gpu, gpu_names, is_gpu
from tilewright.target.target import Target

GROUPS = (32, 64, 128)
"""Weights that share a scale."""
FEW_BITS = {
    f"{name}{f'-{group}' if group != GROUPS[0] else ''}": QuantizeWeights(name, group)
    for name in BOOKS
    for group in (GROUPS if name != "fp16" else GROUPS[:1])
}
"""Precisions that store weights as codes; ``int4-64`` has groups of 64, ``int4`` the smallest; f16 has none."""
PRECISIONS: tuple[str, ...] = ("fp32", "bf16", *FEW_BITS)
ACCURACIES: tuple[str, ...] = ("default", "exact")
SIZE = "size"
BY_PRICE = 3
BESIDE_A_GPU = "x86-64-v3"
"""Which ops share a kernel is asked of a CPU's record, for GPUs too until they have prices; the same one everywhere."""
LEVELS = (0, 1, 2, BY_PRICE, SIZE)
Level = int | str
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Options:
    """Everything besides the model that decides the code; all of it is part of the cache key.

    ``target`` is a name that ``Target.parse`` knows; ``optimize`` is 0 (a kernel per op), 1 (no layout changes),
    2 (all passes), 3 (all passes, and of a kernel's schedules the one with the least price), or "size": all passes, and
    of every choice the one with less code and smaller weights.
    ``precision`` "bf16" lets products and convolutions of f32 read bf16 (``graph.precision``); one of ``FEW_BITS``
    stores weights that products read as codes or small floats (``graph.quantize.weights``).
    ``accuracy`` "default" allows forms whose error stays within 1e-4 of the largest output, "exact" none of them.
    ``schedule`` is the text of a file of schedules (``tile.schedule.book``); kernels that it leaves out get the rules'.
    ``specialize`` has combinations of sizes that get code of their own beside the general code (``build.exact``).
    ``found`` is what searches found for this machine, as JSON of the steps by the kernel's name: it has kernels of all
    models, and steps that do not fit are left aside (``build.found_schedules``).
    With ``flush_denormals`` numbers too small for all their digits count as 0, where the CPU has a choice.
    With ``emulate`` the schedules are those of the GPU that ``target`` names, and this machine's CPU runs them.
    """

    target: str = "native"
    precision: str = "fp32"
    optimize: Level = 2
    accuracy: str = "default"
    schedule: str = ""
    specialize: tuple[Sizes, ...] = ()
    emulate: bool = False
    found: str = ""
    flush_denormals: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.target, str):
            raise OptionError(f"target={self.target!r:.80} is no name", remedy="use a name that Target.parse knows")
        if self.accuracy not in ACCURACIES:
            raise OptionError(f"accuracy {self.accuracy!r} is not offered", remedy=f"use one of {list(ACCURACIES)}")
        if self.precision not in PRECISIONS:
            raise OptionError(f"precision {self.precision!r} is not offered", remedy=f"use one of {list(PRECISIONS)}")
        if type(self.optimize) not in (int, str) or self.optimize not in LEVELS:
            raise OptionError(f"optimize={self.optimize!r} is not a level", remedy='use 0, 1, 2, 3 or "size"')
        check_flags(emulate=self.emulate, flush_denormals=self.flush_denormals)
        if self.emulate and not is_gpu(self.target):
            remedy = f"name a GPU as the target: {', '.join(gpu_names())}"
            raise OptionError(f"the target {self.target!r:.80} is no GPU to emulate", remedy=remedy)
        object.__setattr__(self, "specialize", read_exact_sizes(self.specialize))

    @property
    def machine(self) -> Target:
        """The target as choices read it, and as the level wants it; of an emulated GPU the CPU that runs it."""
        if self.emulate:
            return Target.parse("native").judged()
        if self.gpu is not None:
            return replace(Target.parse(BESIDE_A_GPU).judged(), n_cores=1)
        target = Target.parse(self.target).judged()
        return target.for_size() if self.optimize == SIZE else target

    @property
    def gpu(self) -> Gpu | None:
        """The GPU that schedules are made for; None for a CPU."""
        return Gpu.parse(self.target) if is_gpu(self.target) else None

    @property
    def alone_on_gpu(self) -> Gpu | None:
        """The GPU that code is made for; None where a CPU runs the code, as it does when it emulates a GPU."""
        return None if self.emulate else self.gpu

    @property
    def priced(self) -> Target | None:
        """The target whose numbers schedules are priced by; None where the rules choose."""
        return Target.parse(self.target) if self.optimize == BY_PRICE and self.gpu is None else None

    def shown(self) -> dict[str, Any]:
        """What a report says of them: of schedules a digest."""
        fields = asdict(self)
        for name in ("schedule", "found"):
            if text := fields.pop(name):
                fields[name] = sha256(text.encode()).hexdigest()[:16]
        for name in ("specialize", "emulate", "flush_denormals"):
            if not fields[name]:
                del fields[name]
        return fields


def read_schedule(path: str | os.PathLike[str] | None) -> str:
    """The text of a file of schedules; ``FileError`` when it can't be read, ``OptionError`` when it is no path."""
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as e:
        is_text = not isinstance(e, UnicodeDecodeError)
        why = (e.strerror if isinstance(e, OSError) else e) if is_text else "it is not text"
        remedy = "write one with `tilewright ir MODEL --stage schedule -o FILE`"
        shown = os.fspath(path) if isinstance(path, os.PathLike) else path
        error = FileError if isinstance(e, OSError | UnicodeDecodeError) else OptionError
        raise error(f"the schedules {shown!r:.200} can't be read: {why}", remedy=remedy) from e


def check_flags(**flags: Any) -> None:
    """``OptionError`` unless each is True or False: "no" and 0.5 would be taken for yes."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise OptionError(f"{name}={value!r:.80} says neither yes nor no", remedy="use True or False")


def check_sizes_given(fix_dims: Any, input_shapes: Any) -> None:
    """``OptionError`` unless sizes are numbers by name, and shapes sequences of numbers and names by name."""
    if fix_dims is not None:
        is_right = isinstance(fix_dims, Mapping) and all(
            isinstance(name, str) and _is_size(size) for name, size in fix_dims.items()
        )
        if not is_right:
            raise OptionError(f"fix_dims={fix_dims!r:.80} has no sizes by name", remedy='write {"batch": 4}')
    if input_shapes is not None:
        is_right = isinstance(input_shapes, Mapping) and all(
            isinstance(name, str) and isinstance(shape, tuple | list) and all(map(_is_dim, shape))
            for name, shape in input_shapes.items()
        )
        if not is_right:
            remedy = 'write {"x": (4, "width")}'
            raise OptionError(f"input_shapes={input_shapes!r:.80} has no shapes by name", remedy=remedy)


def _is_size(value: Any) -> bool:
    return hasattr(type(value), "__index__") and not isinstance(value, bool)


def _is_dim(value: Any) -> bool:
    return isinstance(value, str) or _is_size(value)


@dataclass
class Clock:
    """Seconds spent per stage of one compile; a stage within another does not count for that one."""

    progress: Progress | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    _inner: float = 0.0

    def __post_init__(self) -> None:
        if self.progress is not None and not callable(self.progress):
            raise OptionError(f"progress={self.progress!r:.80} can't be called", remedy="pass a function, or None")

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report progress to whoever listens; a ``total`` of 0 says that the number of steps is not known."""
        if self.progress is not None:
            self.progress(stage, done, total)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of a block to a stage, and say that it begins."""
        self.tell(name, 0, 0)
        outer, self._inner = self._inner, 0.0
        start = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inner
            self._inner = outer + took
