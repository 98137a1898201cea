"""A model compiled for a GPU, wherever it was compiled: code to read, and a callable where there is a GPU.

In: a manifest, objects, weights. Out: what every compiled model has; the first call opens the driver.
Not its business: calls (``model``), what a GPU is (``driver``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from tilewright.runtime.artifact import ObjectImage
from tilewright.runtime.cuda.driver import CudaDriver, Driver
from tilewright.runtime.cuda.errors import NoGpuError
from tilewright.runtime.cuda.files import OBJECT, code_of
from tilewright.runtime.cuda.model import GpuModel
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.manifest import Manifest
from tilewright.runtime.once import ForkLock
from tilewright.runtime.python.model import CompiledModel

SPOKEN = "nvptx"
"""How triples of the GPUs begin that the driver is for."""
LAUNCHERS = {
    "amdgcn": "link the model's code_objects by ld.lld -shared and launch them by HIP",
    "spirv64": "launch the model's code_objects by OpenCL",
}
"""Who launches kernels for other GPUs, by what their triples begin with."""


class CompiledGpuModel(CompiledModel):
    """PTX, a program and weights. Calling it needs a GPU: ``NoGpuError`` says what is missing."""

    understands_tensors = False
    """Its results are arrays, for tensors too."""

    def __init__(
        self,
        manifest: Manifest,
        objects: Sequence[ObjectImage],
        weights: Any,
        *,
        open_driver: Callable[[], Driver] = CudaDriver,
    ) -> None:
        """``ArtifactError`` where the objects are not a GPU's program and its kernels."""
        super().__init__(manifest, objects, weights)
        self.code = code_of(objects)
        self._open_driver = open_driver
        self._opening = ForkLock()
        self._loaded: GpuModel | None = None
        self._begins: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<CompiledGpuModel ({self._signature()}) for {self.code.arch}>"

    @property
    def ptx(self) -> dict[str, str]:
        """The PTX of every kernel by its name; for a GPU of AMD's its assembly, and of SPIR-V LLVM's text."""
        return {kernel.name: kernel.ptx for kernel in self.code.kernels}

    @property
    def code_objects(self) -> dict[str, bytes]:
        """Of every kernel by its name the ELF object, for a GPU of AMD's, or the module of SPIR-V; else none."""
        return {o.name.removesuffix(OBJECT): bytes(o.data) for o in self.objects if o.name.endswith(OBJECT)}

    def on(self, device: int = 0) -> GpuModel:
        """The model on GPU number ``device``, with weights and memory there.

        ``NoGpuError`` where there is none, and for GPUs that this runtime does not speak with.
        """
        triple = self.manifest.target.triple
        if not triple.startswith(SPOKEN):
            launcher = LAUNCHERS.get(triple.partition("-")[0], "launch the model's code by its maker's driver")
            raise NoGpuError(
                f"the model is for {self.code.arch} ({triple}), which this runtime can't launch",
                remedy=f"{launcher}, or compile with emulate=True to run its schedules on this CPU",
            )
        return GpuModel(self.manifest, self.code, self._weights, self._open_driver(), device)

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run on GPU number 0; results are new arrays."""
        if out is not None:
            raise ArtifactError("a model for a GPU makes new results", remedy="leave out= away")
        return self._first()(*args, **kwargs)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run by names: inputs in, all outputs out."""
        return self._first().run(feeds)

    @property
    def state(self) -> dict[str, Any]:
        """What the model keeps on GPU number 0 from call to call, by name: copies on the host."""
        return self._first().state

    def reset(self, **state: Any) -> None:
        """Let the state there be what it was when the model was compiled, except for what is given by name.

        ``InputError`` for a name or an array that does not fit.
        """
        self._first().reset(**state)

    def _twin(self) -> Self:
        made = super()._twin()
        if self.manifest.convention.state:  # else both may share what lies on the GPU
            made._opening = ForkLock()
            with self._opening.lock:
                made._loaded, made._begins = None, self._loaded.state if self._loaded else self._begins
        return made

    def _first(self) -> GpuModel:
        with self._opening.lock:
            if self._loaded is None:
                self._loaded = self.on()
                if self._begins:
                    self._loaded.reset(**self._begins)
            return self._loaded
