"""Calls of a model on a GPU, by a driver that checks the protocol and runs the kernels here."""

from dataclasses import replace

import numpy as np
import pytest

from ptx import by_hand
from ptx.recorder import Recorder
from ptx.threads import Threads
from tilewright.codegen.ptx.compile import compile_kernel
from tilewright.core.expr import to_text
from tilewright.runtime.cuda.device_tensors import GpuArray, borrow
from tilewright.runtime.cuda.errors import GpuError, GpuMemoryError
from tilewright.runtime.cuda.model import GpuModel
from tilewright.runtime.cuda.program import (
    CheckStep,
    CopyStep,
    DevicePlace,
    GpuCode,
    GpuEntry,
    GpuKernel,
    GpuProgram,
    LaunchStep,
)
from tilewright.runtime.errors import ArtifactError, ExecutionError, InputError
from tilewright.runtime.manifest import Manifest, SymbolSpec, TargetSpec, TensorSpec
from tilewright.runtime.shapes import compile_size
from tilewright.target.gpu import Gpu

RNG = np.random.default_rng(7)
X, Y, HALF = DevicePlace("arg", 0), DevicePlace("arg", 1), DevicePlace("arena", 0)


def size(d):
    return d if isinstance(d, int) else compile_size(to_text(d))


def packaged(text: str, ops: str, arch: str) -> tuple[GpuKernel, Threads]:
    kernel = by_hand.kernel(text)
    made = compile_kernel(kernel, Gpu.parse(arch))
    entries = tuple(GpuEntry(x.entry, tuple(map(size, x.grid)), x.block, x.dynamic_shared_bytes) for x in made.launches)
    packed = GpuKernel(kernel.name, ops, made.ptx, entries, tuple(s.name for s in kernel.sizes))
    return packed, Threads(kernel, arch)


def ragged_twice(recorder: Recorder | None = None, steps=(), arch="cuda-sm90a", failures=(), **given) -> GpuModel:
    """`y = x + 1 + 1` by two launches of one kernel, the first of which writes into the arena."""
    kernel, threads = packaged(by_hand.RAGGED, 'add at node "a"', arch)
    recorder = recorder or Recorder(**given)
    recorder.threads["ragged"] = threads
    steps = steps or (LaunchStep(0, (X, HALF)), LaunchStep(0, (HALF, Y)))
    code = GpuCode(Gpu.parse(arch).arch, (kernel,), GpuProgram(tuple(steps)), compile_size("4*n"))
    manifest = Manifest(
        "0", TargetSpec("nvptx64-nvidia-cuda", code.arch), (TensorSpec("x", "float32", ("n",)),),
        (TensorSpec("y", "float32", ("n",)),), (SymbolSpec("n", 1),), n_dims=1, failures=failures,
    )  # fmt: skip
    return GpuModel(manifest, code, np.arange(64, dtype=np.uint8), recorder)


def floats(n: int) -> np.ndarray:
    return RNG.standard_normal(n).astype(np.float32)


def test_a_call() -> None:
    recorder = Recorder()
    model = ragged_twice(recorder)
    x = floats(70)
    np.testing.assert_array_equal(model(x), x + 1 + 1)
    assert recorder.named("launch") == ["launch"] * 2 and ("launch", "ragged", (3, 1, 1)) in recorder.calls
    np.testing.assert_array_equal(model.run({"x": x[:33]})["y"], x[:33] + 1 + 1)
    with pytest.raises(InputError, match="dtype float64"):
        model(x.astype(np.float64))


def test_weights_lie_on_the_gpu_before_the_first_call() -> None:
    recorder = Recorder()
    model = ragged_twice(recorder, [CopyStep(DevicePlace("weights", 0), Y, 64)])
    assert recorder.named()[-2:] == ["to_device", "wait"]
    np.testing.assert_array_equal(model(floats(16)).view(np.uint8), np.arange(64))


def test_the_third_call_of_a_size_is_one_replay() -> None:
    recorder = Recorder()
    model = ragged_twice(recorder)
    for n in (40, 40, 40, 100, 40):
        x = floats(n)
        np.testing.assert_array_equal(model(x), x + 1 + 1)
    # Launched, recorded and replayed, replayed, launched in a larger arena, and so launched anew.
    assert model.n_replayed == 2 and recorder.named("begin_capture", "replay") == ["begin_capture", "replay", "replay"]
    assert recorder.named("drop") == ["drop"]  # what the recording knew of addresses was no longer so
    model.close()
    assert not recorder.memory and not recorder.modules and not recorder.graphs


def test_recordings_are_few() -> None:
    recorder = Recorder()
    model = ragged_twice(recorder)
    model(floats(100))
    for n in range(1, 41):
        model(floats(n))
        model(floats(n))
    assert len(recorder.graphs) == 16


def test_a_recording_is_dropped_when_its_own_stream_has_run_it() -> None:
    first, other = 901, 902
    recorder = Recorder(foreign=(first, other))
    model = ragged_twice(recorder)
    memory = recorder.allocate(3 * 256)
    recorder.waited.clear()
    for n in range(1, 19):
        for _ in range(2):
            plan = model.plan_for([(n,)])
            model.run_at(plan, (memory, memory + 256), memory + 512, first if n == 1 else other)
    assert recorder.waited == [first, other] and len(recorder.graphs) == 16


def test_checks_of_the_program_are_seen_by_the_host() -> None:
    recorder = Recorder()
    failures = ("", "sizes must agree")
    model = ragged_twice(recorder, [CheckStep(X, 1), CopyStep(X, Y, compile_size("4*n"))], failures=failures)
    x = floats(4)
    np.testing.assert_array_equal(model(x), x)
    with pytest.raises(ExecutionError, match="sizes must agree"):
        model(np.zeros(4, np.float32))
    for _ in range(3):
        model(x)
    assert "begin_capture" not in recorder.named()  # what the host looks into can't be recorded


def test_a_launch_that_the_driver_refuses_names_kernel_and_op() -> None:
    model = ragged_twice(fails={"launch": ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", 1)})
    with pytest.raises(GpuError, match=r'\[TW0107\] kernel ragged \(add at node "a"\), \(1, 1, 1\) blocks') as error:
        model(floats(5))
    assert (error.value.call, error.value.status) == ("culaunch", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
    x = floats(5)
    np.testing.assert_array_equal(model(x), x + 1 + 1)  # the next call is not hurt


@pytest.mark.parametrize("after", range(4))
def test_a_failure_within_a_recording_leaves_the_stream_usable(after: int) -> None:
    recorder = Recorder(fails={"launch": ("CUDA_ERROR_UNKNOWN", after)})
    model, x = ragged_twice(recorder), floats(5)
    failed = 0
    for _ in range(4):
        try:
            np.testing.assert_array_equal(model(x), x + 1 + 1)
        except GpuError:
            failed += 1
    assert failed == 1 and recorder.recording is None and model.n_replayed > 0


@pytest.mark.parametrize("call", ["load", "function"])
def test_a_kernel_that_does_not_load_is_named(call: str) -> None:
    with pytest.raises(GpuError, match=r"kernel ragged .* could not be loaded"):
        ragged_twice(fails={call: ("CUDA_ERROR_INVALID_PTX", 0)})


def test_no_memory_says_for_what() -> None:
    model = ragged_twice(memory_bytes=1 << 14)
    np.testing.assert_array_equal(model(np.zeros(100, np.float32)), np.full(100, 2))
    with pytest.raises(GpuMemoryError, match=r"\[TW0108\] the GPU has no 16,384 bytes for arrays of the host"):
        model(np.zeros(2000, np.float32))
    np.testing.assert_array_equal(model(np.zeros(100, np.float32)), np.full(100, 2))


def test_a_failure_that_comes_to_light_while_waiting() -> None:
    model = ragged_twice(fails={"wait": ("CUDA_ERROR_ILLEGAL_ADDRESS", 1)})
    with pytest.raises(GpuError, match=r"one of the kernels of add at node .*CUDA_ERROR_ILLEGAL_ADDRESS"):
        model(floats(5))


def test_code_of_one_generation_alone_runs_there_alone() -> None:
    with pytest.raises(ArtifactError, match=r"the model is for sm_90a, and a recorder has 10.0"):
        ragged_twice(capability=(10, 0))
    x = floats(3)
    np.testing.assert_array_equal(ragged_twice(arch="cuda", capability=(10, 0))(x), x + 1 + 1)
    with pytest.raises(ArtifactError, match="sm_80"):
        ragged_twice(arch="cuda", capability=(7, 5))


def test_too_many_blocks() -> None:
    model = ragged_twice(Recorder())
    run = model._new_run([256, 256], {"n": 1 << 40})
    with pytest.raises(GpuError, match=r"kernel ragged .* would need \(34359738368, 1, 1\) blocks"):
        run.program(GpuProgram((LaunchStep(0, (X, Y)),)))


class Lent(GpuArray):
    """An array of the recorder's memory, as another library would hold it."""

    def __init__(self, recorder: Recorder, array: np.ndarray, start: int = 0) -> None:
        given_back = self.given_back = []
        address = recorder.allocate(array.nbytes + start)
        recorder.to_device(address + start, array.ctypes.data, array.nbytes, recorder.streams[0])
        super().__init__(address + start, array.shape, array.dtype.name, 0, lambda: given_back.append(1))


def test_arrays_of_the_gpu_stay_there() -> None:
    recorder = Recorder()
    model = ragged_twice(recorder)
    x = floats(50)
    lent = Lent(recorder, x)
    recorder.calls.clear()
    y = model(lent)
    assert isinstance(y, GpuArray) and y.shape == (50,)
    assert not {"to_device", "to_host"} & {*recorder.named()}
    found = np.empty(50, np.float32)
    recorder.to_host(found.ctypes.data, y.address, y.n_bytes, recorder.streams[0])
    np.testing.assert_array_equal(found, x + 1 + 1)
    address = y.address
    taken = borrow(y, 0)
    del y
    assert address in recorder.memory  # who took it keeps it
    del taken
    assert address not in recorder.memory


def test_capsules_that_nobody_takes_give_back_what_they_hold() -> None:
    recorder = Recorder()
    ragged_twice(recorder)
    lent = Lent(recorder, floats(4))
    capsule = lent.__dlpack__()
    given_back = lent.given_back
    del lent
    assert not given_back
    del capsule
    assert given_back == [1]


def test_what_is_wrong_with_arrays_of_the_gpu() -> None:
    recorder = Recorder()
    model = ragged_twice(recorder)
    with pytest.raises(InputError, match=r"begins at address 0x\w+; kernels read 16 bytes"):
        model(Lent(recorder, floats(8), start=4))
    with pytest.raises(InputError, match="dtype int32"):
        model(Lent(recorder, np.arange(8, dtype=np.int32)))
    far = Lent(recorder, floats(8))
    far.device = 3
    with pytest.raises(InputError, match="it lies on GPU 3; the model is on GPU 0"):
        model(far)


def test_arrays_of_the_host_beside_those_of_the_gpu_are_checked_too() -> None:
    recorder = Recorder()
    kept = ragged_twice(recorder)
    inputs = (*kept.inputs, TensorSpec("z", "float32", ("n",)))
    manifest = replace(kept.manifest, inputs=inputs)
    step = CopyStep(DevicePlace("arg", 1), DevicePlace("arg", 2), compile_size("4*n"))
    model = GpuModel(manifest, replace(kept.code, program=GpuProgram((step,))), kept._host_weights, recorder)
    x, z = Lent(recorder, floats(8)), floats(8)
    y = model(x, z)
    found = np.empty(8, np.float32)
    recorder.to_host(found.ctypes.data, y.address, y.n_bytes, recorder.streams[-1])
    np.testing.assert_array_equal(found, z)
    with pytest.raises(InputError, match="'z': dtype float64"):
        model(x, z.astype(np.float64))


def test_nothing_runs_for_empty_arrays_of_the_gpu() -> None:
    recorder = Recorder()
    model = ragged_twice(recorder, [CheckStep(X, 1)], failures=("", "it ran"))
    x = Lent(recorder, np.zeros(1, np.float32))
    x.shape = (0,)
    assert model(x).shape == model(np.zeros(0, np.float32)).shape == (0,)
