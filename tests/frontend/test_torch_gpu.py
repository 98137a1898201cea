"""Graphs of a GPU's tensors through the back end of ``torch.compile``, on a driver that runs kernels here.

The graphs are traced with PyTorch's fake CUDA tensors; tensors in the recorder's memory stand for real ones.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from ptx.recorder import Recorder
from ptx.test_models import Made
from tilewright.core.diag import ImportFailed, OptionError
from tilewright.integrations.torch_compile.device import CudaSide, OnGpu, target_for
from tilewright.integrations.torch_compile.plan import _detach_draws, plan_graph
from tilewright.runtime.cuda.model import GpuModel

STREAM = 0
"""PyTorch's default stream, on which the driver records nothing."""


class FakeSide:
    """PyTorch on a GPU whose memory is the recorder's; `again` hands out the same memory from the start."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.made: list[int] = []
        self.n = 0
        self.records = False

    def again(self) -> None:
        self.n = 0

    def entered(self) -> AbstractContextManager:
        return nullcontext()

    def here(self, tensor: torch.Tensor) -> torch.Tensor:
        ends = {start: start + block.nbytes for start, block in self.recorder.memory.items()}
        if any(start <= tensor.data_ptr() < end for start, end in ends.items()):
            return tensor
        return self.empty(tensor.shape, tensor.dtype).copy_(tensor)

    def empty(self, shape, dtype: torch.dtype) -> torch.Tensor:
        n = torch.Size(shape).numel() * dtype.itemsize
        if self.n == len(self.made):
            self.made.append(self.recorder.allocate(max(n, 1)))
        memory = (ctypes.c_uint8 * max(n, 1)).from_address(self.made[self.n])
        self.n += 1
        return torch.frombuffer(memory, dtype=torch.uint8)[:n].view(dtype).reshape(tuple(shape))

    def stream(self) -> int:
        return STREAM

    def is_recording(self) -> bool:
        return self.records


class Gpu:
    """A function compiled as a graph of CUDA tensors; `told` has what is left to PyTorch."""

    def __init__(self, f, monkeypatch: pytest.MonkeyPatch, *examples: torch.Tensor, cpu: tuple[int, ...] = ()) -> None:
        self.recorder, self.told = Recorder(foreign=(STREAM,)), []
        self.recorder.enter(0)
        self.side = FakeSide(self.recorder)
        self.monkeypatch = monkeypatch
        self.ptx: list[str] = []
        with FakeTensorMode():
            fakes = [
                torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu" if k in cpu else "cuda")
                for k, x in enumerate(examples)
            ]
        self.run = plan_graph(make_fx(f)(*fakes), {}, self.compile_now, self.told.extend)

    def compile_now(self, graph, gpu: torch.device) -> OnGpu:
        assert gpu.type == "cuda"
        own, model = Made(graph, self.monkeypatch).on_recorder()
        self.recorder.threads |= own.threads
        self.ptx += model.ptx.values()
        return OnGpu(GpuModel(model.manifest, model.code, model._weights, self.recorder), self.side)

    def __call__(self, *args: torch.Tensor) -> list[torch.Tensor]:
        return self.run(args)

    def placed(self, x: torch.Tensor) -> torch.Tensor:
        """The tensor in memory of its own that stands for the GPU's."""
        return FakeSide(self.recorder).here(x)


def wave(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [torch.tanh(x) * y + 1, x + y]


def close(got: list[torch.Tensor], want: list[torch.Tensor], bound: float = 1e-5) -> None:
    torch.testing.assert_close(got, want, rtol=bound, atol=bound)


def test_results_lie_where_pytorch_puts_them_and_calls_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(6, 20), torch.randn(20)
    gpu = Gpu(wave, monkeypatch, x, y)
    args = [gpu.placed(t) for t in (x, y)]
    for _ in range(3):
        gpu.side.again()
        got = gpu(*args)
        close(got, wave(x, y))
        assert [t.data_ptr() for t in got] == gpu.side.made[:2]
    assert gpu.told == []
    called = gpu.recorder.named("begin_capture", "end_capture", "replay", "wait", "to_host")
    assert called == ["begin_capture", "end_capture", "replay", "replay"]  # nobody waits: the stream has an order


def test_nothing_is_recorded_while_pytorch_records(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(6, 20), torch.randn(20)
    gpu = Gpu(wave, monkeypatch, x, y)
    args, gpu.side.records = [gpu.placed(t) for t in (x, y)], True
    for _ in range(3):
        gpu.side.again()
        gpu(*args)
    assert gpu.recorder.named("begin_capture", "replay") == []


def test_arguments_that_kernels_can_not_read_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(20, 6), torch.randn(24)
    gpu = Gpu(wave, monkeypatch, x.t(), y[1:21])
    close(gpu(gpu.placed(x).t(), gpu.placed(y)[1:21]), wave(x.t(), y[1:21]))


def test_calls_with_a_tensor_of_the_cpu_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
        return [torch.tanh(x), torch.sin(scale)]

    x, scale = torch.randn(3, 4), torch.randn(4)
    gpu = Gpu(f, monkeypatch, x, scale, cpu=(1,))
    (problem,) = gpu.told
    assert "tensors on cpu" in problem.rule and "sin" in problem.op
    close(gpu(gpu.placed(x), scale), f(x, scale))


def test_a_number_of_the_cpu_is_copied_to_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
        return [torch.tanh(x) * scale]

    x, scale = torch.randn(3, 4), torch.tensor(2.0)
    gpu = Gpu(f, monkeypatch, x, scale, cpu=(1,))
    assert gpu.told == []
    close(gpu(gpu.placed(x), scale), f(x, scale))


def test_halves_are_multiplied_by_matrix_units(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(16, 32).half(), torch.randn(16, 32).half()
    gpu = Gpu(lambda x, y: [torch.relu(x @ y.t())], monkeypatch, x, y)
    (got,) = gpu(gpu.placed(x), gpu.placed(y))
    assert "mma.sync" in gpu.ptx[0]
    assert got.dtype is torch.float16
    close([got], [torch.relu(x @ y.t())], 1e-2)


@pytest.mark.parametrize(
    ("capability", "name"), [((8, 6), "cuda-sm80"), ((9, 0), "cuda-sm90a"), ((12, 0), "cuda-sm80")]
)
def test_the_gpu_chooses_the_target(capability, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert target_for(torch.device("cuda:1"), {"target": "native"}) == name
    assert target_for(torch.device("cuda:1"), {"target": "cuda-sm100a"}) == "cuda-sm100a"


def test_what_no_gpu_does_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ImportFailed, match=r"compute capability 7\.5"):
        target_for(torch.device("cuda"), {})
    with pytest.raises(OptionError, match="can't be emulated"):
        target_for(torch.device("cuda"), {"emulate": True})


def calls_of(f, monkeypatch: pytest.MonkeyPatch, *examples: torch.Tensor) -> list[torch.Tensor]:
    """The results of a function of which no call is left to PyTorch."""
    gpu = Gpu(f, monkeypatch, *examples)
    assert gpu.told == []
    return gpu(*map(gpu.placed, examples))


ATTENTIONS = {
    "flash": lambda q, k, v, mask: torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0],
    "efficient": lambda q, k, v, mask: torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, mask, False)[0],
    "cudnn": lambda q, k, v, mask: torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, mask, False)[0],
}
"""What PyTorch makes of ``scaled_dot_product_attention`` where tensors lie on a GPU."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_gpus_calls_of_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    mask = torch.randn(1, 2, 8, 8)
    of_mask = {"is_causal": True} if name == "flash" else {"attn_mask": mask}
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, **of_mask)
    got = calls_of(lambda *args: [ATTENTIONS[name](*args)], monkeypatch, q, k, v, mask)
    close(got, [want])


def test_a_gpus_call_of_batch_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 3, 4, 4)
    scale, bias, mean, var = torch.randn(3), torch.randn(3), torch.randn(3), torch.rand(3) + 0.5

    def f(*args: torch.Tensor) -> list[torch.Tensor]:
        return [torch.ops.aten.cudnn_batch_norm(*args, False, 0.1, 0.01)[0]]

    want = torch.nn.functional.batch_norm(x, mean, var, scale, bias, eps=0.01)
    close(calls_of(f, monkeypatch, x, scale, bias, mean, var), [want])


def test_a_gpu_keeps_statistics_of_halves_in_f32(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 64).half()
    _, mean, deviation = calls_of(
        lambda x: list(torch.ops.aten.native_layer_norm(x, [64], None, None, 1e-5)), monkeypatch, x
    )
    assert mean.dtype is deviation.dtype is torch.float32
    wide = x.float()
    close([mean], [wide.mean(-1, keepdim=True)])
    close([deviation], [torch.rsqrt(wide.var(-1, keepdim=True, correction=0) + 1e-5)], 1e-4)


def test_draws_stay_on_the_gpu() -> None:
    """What a draw reads of its operand is the shape, and where it lies: that decides whose generator draws."""
    with FakeTensorMode():
        x = torch.empty(3, 4, device="cuda")
    graph = make_fx(lambda x: torch.randn_like(torch.tanh(x)) * 2)(x).graph
    _detach_draws(graph)
    (empty,) = [n for n in graph.nodes if "empty_strided" in str(n.target)]
    assert empty.kwargs["device"].type == "cuda"
    (draw,) = empty.users
    assert "randn_like" in str(draw.target)


class Called(TorchDispatchMode):
    """The names of PyTorch's operations, as they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_a_number_of_the_cpu_is_no_copy(dtype: torch.dtype) -> None:
    """A recording of PyTorch's takes a kernel that fills, and refuses copies from the CPU's memory."""
    number = torch.tensor(1).to(dtype)
    with Called() as called:  # of a device that needs no GPU
        got = CudaSide(torch.device("meta")).here(number)
    assert (got.shape, got.dtype, got.device.type) == ((), dtype, "meta")
    assert not [name for name in called.names if "copy" in name] and "aten.full.default" in called.names


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**53 + 1])
def test_a_number_keeps_its_value(value: int) -> None:
    number = torch.tensor(value)
    assert torch.equal(torch.full((), number.item(), dtype=number.dtype), number)
