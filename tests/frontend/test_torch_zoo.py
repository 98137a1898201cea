"""Real architectures, small: the imported graph computes what eager PyTorch computes."""

import pytest
from benchmarks import zoo

from frontend.torch_compare import check, compare

QUICK = ("mlp", "lstm", "resnet50", "vit_b16")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in zoo.MODELS])
def test_small_model_with_sizes_that_vary(name: str) -> None:
    model = zoo.build(name, small=True)
    graph = check(model.module, model.inputs, model.dynamic_shapes(), rtol=1e-4)
    other = {n: t[:1] if model.axes.get(n, {}).get(0) == "batch" else t for n, t in model.named_inputs.items()}
    if any(other[n].shape != t.shape for n, t in model.named_inputs.items()):
        return
    assert graph.symbols() or not model.axes
    compare(graph, model.module, tuple(other.values()), rtol=1e-4)
