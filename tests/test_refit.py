"""New numbers in a compiled model: what a fresh compile gives, without compiling; or a refusal that says why."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import save_file
from typer.testing import CliRunner

import tilewright as tw
from frontend.tflite_build import TfliteModel
from small_models import numbers
from tilewright.cli.main import app
from tilewright.codegen.cpu import llvm

pytestmark = pytest.mark.usefixtures("shared_kernels")  # each test compiles one of three nets


def module(seed: int = 0, bias: float = 1.0) -> torch.nn.Module:
    """Folded norms, a convolution that Winograd's form takes, packed products; biases of one size that are equal."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(8, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(32 * 64, 40),
        torch.nn.Linear(40, 40),
    ).eval()  # fmt: skip
    for k in (0, 3, 5, 6):
        net[k].bias.data = torch.linspace(0, bias, len(net[k].bias))
    net[1].running_mean = torch.rand(32)
    return net


X = (torch.from_numpy(numbers(1, 8, 8, 8)),)


def weights(net: torch.nn.Module) -> dict[str, np.ndarray]:
    return {n: t.detach().numpy() for n, t in net.state_dict().items()}


def onnx_model(tmp_path: Path, seed: int = 0, bias: float = 1.0) -> Path:
    return tw.convert(module(seed, bias), tmp_path / f"net{seed}.onnx", example_inputs=X)


def initializers(path: Path) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.fixture
def no_llvm(shared_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse even what ``shared_kernels`` has made before."""

    def refuse(*_: object, **__: object) -> bytes:
        raise AssertionError("a refit compiles nothing")

    for name in ("compile_text", "emit"):
        monkeypatch.setattr(llvm, name, refuse)
        monkeypatch.setattr(f"tilewright.build.kernels.{name}", refuse)


def check_equal(refitted: tw.LoadedModel, fresh: tw.LoadedModel) -> None:
    assert refitted.weights.tobytes() == fresh.weights.tobytes()
    assert [o.data for o in refitted.objects] == [o.data for o in fresh.objects]


def test_a_module_in_memory(request: pytest.FixtureRequest) -> None:
    old, fresh = (tw.compile(module(seed), X, cache=False, threads=1) for seed in (0, 1))
    request.getfixturevalue("no_llvm")
    made = old.refit(weights(module(1)))
    check_equal(made, fresh)
    np.testing.assert_array_equal(made(X[0].numpy()), fresh(X[0].numpy()))
    check_equal(made.refit(weights(module(0))), old)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("optimize", [1, 2])
def test_a_file_and_the_one_beside_it(tmp_path: Path, optimize: int, request: pytest.FixtureRequest) -> None:
    paths = [onnx_model(tmp_path, seed) for seed in (0, 1)]
    old, fresh = (tw.compile(p, cache=False, threads=1, optimize=optimize) for p in paths)
    old.save(tmp_path / "net.tw", refit=True)
    save_file(initializers(paths[1]), tmp_path / "new.safetensors")
    for path in paths:
        path.unlink()
    request.getfixturevalue("no_llvm")
    tw.refit(tmp_path / "net.tw", tmp_path / "new.safetensors", tmp_path / "new.tw")
    check_equal(tw.load(tmp_path / "new.tw"), fresh)


def test_a_module_by_its_file(tmp_path: Path) -> None:
    """Equal tensors are one constant of a graph; by the file they have their own names still."""
    old, fresh = (tw.compile(module(seed, 1 + seed), X, cache=False, threads=1) for seed in (0, 1))
    old.save(tmp_path / "net.tw", refit=True)
    tw.refit(tmp_path / "net.tw", weights(module(1, 2.0)), tmp_path / "new.tw")
    check_equal(tw.load(tmp_path / "new.tw"), fresh)


def test_the_command(tmp_path: Path) -> None:
    path = onnx_model(tmp_path)
    save_file(initializers(onnx_model(tmp_path, 1)), tmp_path / "new.safetensors")
    for line in (f"compile {path} -o {tmp_path}/net.tw --refit --no-cache",
                 f"refit {tmp_path}/net.tw {tmp_path}/new.safetensors -o {tmp_path}/new.tw"):  # fmt: skip
        ran = CliRunner().invoke(app, line.split())
        assert ran.exit_code == 0, ran.output
    x = X[0].numpy()
    fresh = tw.compile(tmp_path / "net1.onnx", cache=False)
    np.testing.assert_array_equal(tw.load(tmp_path / "new.tw")(x), fresh(x))


def test_weights_that_ask_for_other_code_are_refused(tmp_path: Path) -> None:
    old = tw.compile(module(), X, cache=False, threads=1)
    other: Mapping[str, np.ndarray] = {**weights(module(1)), "6.bias": np.arange(40, dtype=np.float32)}
    with pytest.raises(tw.ArtifactError, match="other code than the model has"):
        old.refit(other)  # the two biases of 40 were one constant, and lie in two places now
    with pytest.raises(tw.ImportFailed) as failed:
        old.refit({n: a[:1] for n, a in weights(module()).items() if n != "0.weight" and a.ndim})
    assert "0.weight is missing" in str(failed.value) and "6.bias has the shape (1,)" in str(failed.value)


def test_a_file_says_all_that_is_wrong_with_weights(tmp_path: Path) -> None:
    tw.compile(module(), X, cache=False, threads=1).save(tmp_path / "net.tw", refit=True)
    given = {**weights(module()), "6.bias": np.zeros(3, np.float32), "strange": np.zeros(1)}
    del given["0.weight"]
    with pytest.raises(tw.ImportFailed) as failed:
        tw.refit(tmp_path / "net.tw", given, tmp_path / "new.tw")
    rules = [p.rule for p in failed.value.problems]
    assert rules[:2] == ["0.weight is missing", "strange is no tensor of the model"] and "6.bias has" in rules[2]
    assert not (tmp_path / "new.tw").exists()


def test_whole_numbers_do_not_stand_for_floats(tmp_path: Path) -> None:
    """They are codes of a scale that nobody has given, and would be taken for their values."""
    model = tw.compile(module(), X, cache=False, threads=1)
    model.save(tmp_path / "net.tw", refit=True)
    given = {n: (a * 100).astype(np.int8) if n == "0.weight" else a for n, a in weights(module()).items()}
    for refit in (model.refit, lambda w: tw.refit(tmp_path / "net.tw", w, tmp_path / "new.tw")):
        with pytest.raises(tw.ImportFailed, match=r"0.weight holds whole numbers \(int8\), and the model's floats"):
            refit(given)
    halves = {n: a.astype(np.float16) if a.dtype.kind == "f" else a for n, a in weights(module()).items()}
    assert model.refit(halves)(X[0].numpy()).shape == model(X[0].numpy()).shape


def test_whole_numbers_of_a_wider_type_are_refused() -> None:
    """300 is no int8, and would come out as 44."""
    net = Buffers(lambda x, m: x + m, m=np.arange(8, dtype=np.int8))
    with pytest.raises(tw.ImportFailed, match="m is int64, some of whose numbers are none of the model's int8"):
        tw.with_weights(net, {"m": np.full(8, 300)})


class Buffers(torch.nn.Module):
    """A function of an input and of buffers."""

    def __init__(self, f: Callable[..., torch.Tensor], **buffers: np.ndarray) -> None:
        super().__init__()
        self.f = f
        for name, a in buffers.items():
            self.register_buffer(name, torch.from_numpy(a))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(x, **dict(self.named_buffers()))


TRUTHS, OTHERS, ORDER = np.arange(64) % 3 > 0, np.arange(64) % 5 > 0, np.arange(60) * 7 % 60
WHOLE: dict[str, tuple[torch.nn.Module, dict[str, np.ndarray], bool]] = {
    "equal truths": (
        Buffers(lambda x, m, n: torch.where(m, x, 0) + torch.where(n, 2 * x, 1), m=TRUTHS, n=TRUTHS.copy()),
        {"m": TRUTHS, "n": OTHERS}, False,
    ),
    "other truths": (
        Buffers(lambda x, m, n: torch.where(m, x, 0) + torch.where(n, 2 * x, 1), m=TRUTHS, n=OTHERS),
        {"m": OTHERS, "n": TRUTHS}, True,
    ),
    "equal to a number of the program": (
        Buffers(lambda x, m: x[:, m] + x[:, torch.tensor(ORDER.tolist())], m=ORDER), {"m": ORDER[::-1].copy()}, False,
    ),
    "equal and unread": (Buffers(lambda x, m, n: x[:, m], m=ORDER, n=ORDER.copy()), {"m": ORDER, "n": ORDER + 1}, True),
    "in a sum": (Buffers(lambda x, m: x[:, m] + x[:, m + 1], m=ORDER), {"m": ORDER[::-1].copy()}, True),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", WHOLE)
def test_equal_buffers_of_whole_numbers_stay_apart(name: str, tmp_path: Path) -> None:
    net, new, fits = WHOLE[name]
    x = torch.from_numpy(numbers(2, 64))
    tw.compile(net, (x,), cache=False, threads=1).save(tmp_path / "net.tw", refit=True)
    if not fits:
        with pytest.raises(tw.ArtifactError, match="other code than the model has"):
            tw.refit(tmp_path / "net.tw", new, tmp_path / "new.tw")
        return
    tw.refit(tmp_path / "net.tw", new, tmp_path / "new.tw")
    expected = tw.with_weights(net, new)(x)
    np.testing.assert_array_equal(tw.load(tmp_path / "new.tw")(x.numpy()), expected)


def test_truths_that_nothing_tells_apart_are_refused(tmp_path: Path) -> None:
    flags = {n: np.array([True]) for n in "abc"}
    net = Buffers(lambda x, a, b, c: torch.where(a, x, 0) + torch.where(b, x, 1) + torch.where(c, x, 2), **flags)
    made = tw.compile(net, (torch.ones(4),), cache=False, threads=1)
    with pytest.raises(tw.OptionError, match="b has too few elements to be told from others"):
        made.save(tmp_path / "net.tw", refit=True)


def test_bf16(tmp_path: Path) -> None:
    def net(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).bfloat16()

    old, fresh = (tw.compile(net(k), (torch.ones(2, 8).bfloat16(),), cache=False, threads=1) for k in (0, 1))
    new = {n: t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for n, t in net(1).state_dict().items()}
    check_equal(old.refit(new), fresh)
    old.save(tmp_path / "net.tw", refit=True)
    tw.refit(tmp_path / "net.tw", new, tmp_path / "new.tw")
    check_equal(tw.load(tmp_path / "new.tw"), fresh)


def test_a_tensor_under_two_names_stays_one(tmp_path: Path) -> None:
    def net(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        made = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
        made[2].weight = made[0].weight
        return made

    old, fresh = (tw.compile(net(k), (torch.ones(2, 8),), cache=False, threads=1) for k in (0, 1))
    check_equal(old.refit(weights(net(1))), fresh)
    check_equal(old.refit({n: a for n, a in weights(net(1)).items() if n != "0.weight"}), fresh)
    with pytest.raises(tw.ImportFailed, match=r"2\.weight and 0\.weight are one tensor of the model"):
        old.refit({**weights(net(1)), "2.weight": numbers(8, 8)})
    with pytest.raises(tw.OptionError, match=r"0\.weight and 2\.weight are one tensor\n.*call model\.refit"):
        old.save(tmp_path / "net.tw", refit=True)


def test_sources_without_names_are_refused(tmp_path: Path) -> None:
    model = TfliteModel()
    x = model.input(np.ones((2, 3), np.float32))
    model.outputs = model.op("RELU", [x], [((2, 3), np.float32)])
    (tmp_path / "net.tflite").write_bytes(model.bytes())
    for source in (tmp_path / "net.tflite", model.bytes()):
        made = tw.compile(source, cache=False, threads=1)
        for refuse in (partial(made.save, tmp_path / "net.tw", refit=True), partial(made.refit, {})):
            with pytest.raises(tw.OptionError, match="has no weights to replace by name"):
                refuse()


def test_paths_that_hold_no_model_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "zz.tw", tmp_path, None):
        with pytest.raises(tw.ArtifactError, match=r"can't read .*(zz\.tw|None|folder|directory)"):
            tw.refit(path, {}, tmp_path / "new.tw")


def test_models_without_names_or_files_are_refused(tmp_path: Path) -> None:
    made = tw.compile(module(), X, cache=False, threads=1)
    made.save(tmp_path / "net.tw")
    with pytest.raises(tw.ArtifactError, match="is not there"):
        tw.refit(tmp_path / "net.tw", weights(module()), tmp_path / "new.tw")
    with pytest.raises(tw.ArtifactError, match="has no source to take weights from"):
        tw.load(tmp_path / "net.tw").refit(weights(module()))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """Every change ends in an error of ours or in the right weights."""
    made = tw.compile(torch.nn.Linear(8, 8), (torch.ones(2, 8),), cache=False, threads=1)
    made.save(tmp_path / "net.tw", refit=True)
    whole, own = (tmp_path / "net.refit").read_bytes(), weights(torch.nn.Linear(8, 8))
    n_refused, rng = 0, np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(whole if rng.random() < 0.8 else whole[: rng.integers(len(whole))])
        for _ in range(int(rng.integers(1, 4))):
            if damaged:
                damaged[int(rng.integers(len(damaged)))] = int(rng.integers(256))
        (tmp_path / "net.refit").write_bytes(damaged)
        try:
            tw.refit(tmp_path / "net.tw", own, tmp_path / "new.tw")
        except tw.TilewrightError:
            n_refused += 1
        else:
            check_equal(tw.load(tmp_path / "new.tw"), made.refit(own))
    assert n_refused > 30
