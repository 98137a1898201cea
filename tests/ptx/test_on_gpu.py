"""On a GPU: `make test-gpu`. Without one these tests skip."""

import numpy as np
import pytest

from test_every_op import assert_close, graph_of, has_no_bound
from tilewright import ops
from tilewright.build import driver
from tilewright.core.evaluate import evaluate_graph
from tilewright.core.opdef import OpDef
from tilewright.runtime.cuda.driver import CudaDriver
from tilewright.runtime.cuda.errors import NoGpuError
from tilewright.runtime.cuda.model import GpuModel
from tilewright.target.gpu import gpu_of_capability

pytestmark = pytest.mark.gpu
SAMPLED = [op for op in ops.ALL if op.samples is not None]
CALLS = 10_000


@pytest.fixture(scope="module")
def cuda() -> CudaDriver:
    try:
        found = CudaDriver()
    except NoGpuError as error:
        pytest.skip(str(error))
    found.enter(0)
    return found


def model_of(op: OpDef, sample, target: str = "cuda") -> GpuModel:
    return driver.compile_graph(graph_of(op, sample), target=target).on(0)


@pytest.mark.parametrize("is_own", [False, True], ids=["any", "own"])
@pytest.mark.parametrize("op", SAMPLED, ids=lambda op: op.name)
def test_every_op(op: OpDef, is_own: bool, cuda: CudaDriver) -> None:
    """By code that every GPU runs, and by code of this one's generation."""
    target = gpu_of_capability(cuda.facts(0).capability).name if is_own else "cuda"
    for sample in op.samples(np.random.default_rng(0)):
        if has_no_bound(op, sample):
            continue
        with np.errstate(all="ignore"):
            want = evaluate_graph(graph_of(op, sample), sample.arrays)
        model = model_of(op, sample, target)
        for _ in range(3):  # launched, recorded, replayed
            got = model(*sample.arrays)
            for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
                assert_close(np.asarray(g), w)
        model.close()


def test_memory_does_not_grow(cuda: CudaDriver) -> None:
    sample = next(iter(ops.softmax.samples(np.random.default_rng(0))))
    model = model_of(ops.softmax, sample)
    model(*sample.arrays)
    first = (model._arena.n_bytes, model._io.n_bytes, len(model._replays.graphs))
    for _ in range(CALLS):
        model(*sample.arrays)
    assert (model._arena.n_bytes, model._io.n_bytes) == first[:2] and len(model._replays.graphs) == 1
    assert model.n_replayed >= CALLS - 1


def test_tensors_of_pytorch_stay_on_the_gpu(cuda: CudaDriver) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    sample = next(iter(ops.softmax.samples(np.random.default_rng(0))))
    x = torch.from_numpy(sample.arrays[0]).cuda()
    got = torch.from_dlpack(model_of(ops.softmax, sample)(x))
    (want,) = evaluate_graph(graph_of(ops.softmax, sample), sample.arrays)
    assert got.is_cuda
    assert_close(got.cpu().numpy(), want)


def check_on_gpu(function, *shapes, dtype: str) -> None:
    """Against PyTorch in double precision, with what eager PyTorch is off by as the measure."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    from tilewright.integrations.torch_compile.backend import backend

    torch.manual_seed(0)
    given = [torch.randn(s, device="cuda", dtype=getattr(torch, dtype)) for s in shapes]
    torch._dynamo.reset()
    made = torch.compile(function, backend=backend, options={"fallback": False}, dynamic=False)
    want, eager = function(*[x.double() for x in given]), function(*given)
    # Sums of f32 in another order than PyTorch's may be off by a few units of the largest element.
    bound = 3 * (eager.double() - want).abs().max() + 2e-6 * want.abs().max()
    for _ in range(3):  # launched, recorded, replayed
        assert (made(*given).double() - want).abs().max() <= bound


DTYPES = ["bfloat16", "float16", "float32"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "size", [(64, 64, 64), (1, 768, 3072), (7, 513, 130), (130, 264, 200), (300, 777, 768)], ids=str
)
def test_products_and_what_is_made_of_them(size: tuple[int, int, int], dtype: str, cuda: CudaDriver) -> None:
    def function(x, w, b, r):
        import torch.nn.functional as F

        return F.gelu(x @ w + b, approximate="tanh") + r

    m, n, k = size
    check_on_gpu(function, (m, k), (k, n), (n,), (m, n), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 256, 64), (1, 2, 197, 128), (2, 2, 1, 64), (1, 2, 1000, 64)], ids=str)
def test_attention(shape: tuple[int, int, int, int], is_causal: bool, dtype: str, cuda: CudaDriver) -> None:
    def function(q, k, v):
        import torch.nn.functional as F

        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    check_on_gpu(function, shape, shape, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("image", "weight", "stride"),
    [((2, 64, 28, 28), (128, 64, 3, 3), 1), ((2, 3, 65, 65), (32, 3, 7, 7), 2), ((1, 128, 15, 15), (36, 128, 1, 1), 1)],
)
def test_convolutions(
    image: tuple[int, ...], weight: tuple[int, ...], stride: int, dtype: str, cuda: CudaDriver
) -> None:
    def function(x, w):
        import torch.nn.functional as F

        return F.silu(F.conv2d(x, w, stride=stride, padding=weight[-1] // 2))

    check_on_gpu(function, image, weight, dtype=dtype)
