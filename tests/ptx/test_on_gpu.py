"""On a GPU: `make test-gpu`. Without one these tests skip, and they have not met one yet."""

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


def model_of(op: OpDef, sample) -> GpuModel:
    return driver.compile_graph(graph_of(op, sample), target="cuda").on(0)


@pytest.mark.parametrize("op", SAMPLED, ids=lambda op: op.name)
def test_every_op(op: OpDef, cuda: CudaDriver) -> None:
    for sample in op.samples(np.random.default_rng(0)):
        if has_no_bound(op, sample):
            continue
        with np.errstate(all="ignore"):
            want = evaluate_graph(graph_of(op, sample), sample.arrays)
        model = model_of(op, sample)
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
