"""Modules of PyTorch on a GPU: their containers, numbers, and what they keep, on a driver that runs kernels here."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright
from ptx.recorder import Recorder
from ptx.test_runtime import Lent
from ptx.threads import Threads
from tilewright.build import kernels
from tilewright.core.diag import OptionError
from tilewright.runtime.cuda.compiled import CompiledGpuModel
from tilewright.runtime.cuda.device_tensors import GpuArray
from tilewright.runtime.errors import InputError
from tilewright.runtime.models import load


class Counted(torch.nn.Module):
    """A cache of rows, how often it was called, and containers in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.arange(8.0).reshape(4, 2))
        self.register_buffer("n", torch.tensor(1))

    def forward(self, given: dict, *, scale: torch.Tensor):
        self.rows = torch.cat([self.rows[1:], given["x"] * scale])
        self.n += 1
        return {"sum": self.rows.sum(0), "rest": [given["x"] + self.n]}


def on_recorder(module, args, kwargs, monkeypatch, **options) -> tuple[Recorder, CompiledGpuModel]:
    built = []
    builder = kernels.KernelBuilder

    def keeping(*a, **k):
        built.append(builder(*a, **k))
        return built[-1]

    monkeypatch.setattr(kernels, "KernelBuilder", keeping)
    example = torch.export.export(module, args, kwargs)
    model = tilewright.compile(example, target="cuda-sm90a", cache=False, **options)
    recorder = Recorder()
    for kernel in built[0].kernels.values():
        threads = Threads(kernel)
        recorder.threads |= {launch.entry: threads for launch in threads.launches}
    return recorder, CompiledGpuModel(model.manifest, model.objects, model.weights, open_driver=lambda: recorder)


def call(model, k: int):
    x = torch.full((1, 2), float(k))
    return model({"x": x.numpy()}, scale=np.float32(2.0))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, CompiledGpuModel]:
    args, kwargs = ({"x": torch.zeros(1, 2)},), {"scale": torch.tensor(1.0)}
    return on_recorder(Counted(), args, kwargs, monkeypatch)


def agrees(found, eager: torch.nn.Module, k: int) -> None:
    want = eager({"x": torch.full((1, 2), float(k))}, scale=torch.tensor(2.0))
    assert list(found) == list(want) and isinstance(found["rest"], list)
    np.testing.assert_allclose(found["sum"], want["sum"])
    np.testing.assert_allclose(found["rest"][0], want["rest"][0])


def test_what_a_module_keeps_stays_on_the_gpu(counted) -> None:
    recorder, model = counted
    eager = Counted()
    for k in range(4):
        agrees(call(model, k), eager, k)
    assert recorder.named("replay")  # addresses stay, so a decoder's steps are recorded
    assert {k: v.tolist() for k, v in model.state.items()} == {
        "rows": eager.rows.tolist(), "n": eager.n.tolist(),
    }  # fmt: skip
    assert [spec.name for spec in model.inputs] == ["given_x", "scale"] and len(model.outputs) == 2


def test_arrays_of_the_gpu_stay_there_in_containers(counted) -> None:
    recorder, model = counted
    eager = Counted()
    call(model, 0)  # opens the driver
    model.reset()
    for k in range(3):
        found = model({"x": Lent(recorder, np.full((1, 2), k, np.float32))}, scale=np.float32(2.0))
        assert isinstance(found["rest"][0], GpuArray)
        agrees({"sum": on_host(recorder, found["sum"]), "rest": [on_host(recorder, found["rest"][0])]}, eager, k)


class Total(torch.nn.Module):
    def forward(self, x):
        return x + 1, x.sum().item()


def test_a_number_of_pythons_comes_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, model = on_recorder(Total(), (torch.ones(3),), {}, monkeypatch)
    assert model(np.full(3, 2, np.float32))[1] == 6.0
    y, total = model(Lent(recorder, np.full(3, 2, np.float32)))
    assert isinstance(y, GpuArray) and total == 6.0


def on_host(recorder: Recorder, array: GpuArray) -> np.ndarray:
    made = np.empty(array.shape, array.dtype)
    recorder.to_host(made.ctypes.data, array.address, made.nbytes, recorder.streams[0])
    return made


def test_a_reset_begins_anew_or_from_what_is_given(counted) -> None:
    _, model = counted
    call(model, 1)
    model.reset()
    agrees(call(model, 5), Counted(), 5)
    model.reset(n=np.int64(40))
    assert call(model, 0)["rest"][0].tolist() == [[41.0, 41.0]]
    with pytest.raises(InputError, match="keeps rows, n, not m"):
        model.reset(m=np.int64(1))


def test_a_copy_goes_its_own_way(counted) -> None:
    _, model = counted
    call(model, 1)
    other = copy.deepcopy(model)
    call(model, 2)
    assert (other.state["n"], model.state["n"]) == (2, 3)


def test_a_call_that_fails_leaves_what_is_kept(counted) -> None:
    recorder, model = counted
    call(model, 1)
    recorder.fails["launch"] = ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", 0)
    with pytest.raises(tilewright.TilewrightError):
        call(model, 2)
    recorder.fails.clear()
    assert model.state["n"] == 2


def test_a_saved_model_keeps_too(counted, tmp_path: Path) -> None:
    recorder, model = counted
    model.save(tmp_path / "model.tw")
    read = load(tmp_path / "model.tw")
    assert isinstance(read, CompiledGpuModel)
    read._open_driver = lambda: recorder
    agrees(call(read, 3), Counted(), 3)


class Writing(torch.nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


def test_a_module_that_writes_to_its_inputs_is_refused() -> None:
    with pytest.raises(OptionError, match="writes no inputs"):
        tilewright.compile(Writing(), (torch.zeros(2),), target="cuda")
