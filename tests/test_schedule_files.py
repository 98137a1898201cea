"""Schedules go out as a file and come in again, edited or not; what does not fit is named, all of it at once."""

import json
import random
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import tilewright
from tilewright import ops
from tilewright.build import driver, texts
from tilewright.build.found_schedules import FoundSchedule, FoundSchedules, machine_key
from tilewright.build.options import Clock, Options
from tilewright.cli.main import app
from tilewright.core.diag import OptionError
from tilewright.core.graph import Builder, Graph, Pool
from tilewright.core.types import TensorType, f32
from tilewright.runtime.errors import FileError
from tilewright.target.target import Target
from tilewright.tile.errors import ScheduleFileError
from tilewright.tile.schedule.book import ScheduleBook
from tilewright.tools.search import Tuned, search

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((40, 96)).astype(np.float32)
X = RNG.standard_normal((37, 40)).astype(np.float32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "own cache"))


def write_net(folder: Path) -> Path:
    """A product with an activation, and a softmax: two kernels."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["r"])]
    nodes.append(helper.make_node("Softmax", ["r"], ["y"], axis=-1))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [37, 40])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [37, 96])
    graph = helper.make_graph(nodes, "net", [x], [y], [numpy_helper.from_array(WEIGHT, "w")])
    path = folder / "net.onnx"
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return write_net(tmp_path)


@pytest.fixture(scope="module")
def by_the_rules(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The schedules that the rules chose, as the command line writes them."""
    folder = tmp_path_factory.mktemp("rules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_CACHE", str(folder / "cache"))
        command = ["ir", str(write_net(folder)), "--stage", "schedule", "-o", str(folder / "net.schedule")]
        ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    return (folder / "net.schedule").read_text()


@pytest.fixture
def saved(net: Path, by_the_rules: str) -> Path:
    path = net.with_suffix(".schedule")
    path.write_text(by_the_rules)
    return path


def expected() -> np.ndarray:
    h = np.maximum(X @ WEIGHT, 0)
    e = np.exp(h - h.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def code(graph: Graph, schedule: str) -> list[bytes]:
    return [o.data for o in driver.build(graph, Options(schedule=schedule), Clock()).objects]


def names_in(text: str) -> list[str]:
    return re.findall(r"^schedule (\w+)", text, re.MULTILINE)


def test_what_was_saved_gives_the_same_code(net: Path, saved: Path) -> None:
    assert len(names_in(saved.read_text())) == 2
    rules = tilewright.compile(net, cache=False)
    book = tilewright.compile(net, schedule=saved, cache=False)
    np.testing.assert_array_equal(book(X), rules(X))
    graph = texts.read_graph(net)
    assert code(graph, saved.read_text()) == code(graph, "")


def test_an_edited_tile_makes_other_code_and_the_same_numbers(net: Path, saved: Path) -> None:
    graph = texts.read_graph(net)
    assert saved.read_text() == texts.schedules(graph, Options())
    found = re.search(r"split\((i0_\w+), (\d+)\)", saved.read_text())
    assert found is not None
    other = 3 if int(found[2]) != 3 else 2
    edited = saved.read_text().replace(found[0], f"split({found[1]}, {other})", 1)
    saved.write_text(edited)
    assert texts.schedules(graph, Options(schedule=edited)) == edited
    model = tilewright.compile(net, schedule=saved, cache=False)
    np.testing.assert_allclose(model(X), expected(), rtol=1e-4, atol=1e-5)
    assert code(graph, edited) != code(graph, "")


def test_kernels_that_the_file_leaves_out_get_the_rules(net: Path, saved: Path) -> None:
    first = saved.read_text().split("schedule ")[1]
    saved.write_text("schedule " + first)
    np.testing.assert_array_equal(tilewright.compile(net, schedule=saved)(X), tilewright.compile(net)(X))


def test_no_steps_are_plain_loops(net: Path, saved: Path) -> None:
    saved.write_text("".join(f"schedule {name}\n" for name in names_in(saved.read_text())))
    np.testing.assert_allclose(tilewright.compile(net, schedule=saved)(X), expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", ["kind(i0, block)", "kind(i0, block)\n  kind(i1, thread)"])
def test_a_grid_of_a_gpu_is_refused_for_a_cpu(steps: str) -> None:
    """It ran as serial loops, and nobody saw that the schedule was for another machine."""
    b = Builder(Pool())
    x = b.pool.input("x", TensorType(f32, (8, 40)))
    graph = Graph("turned", b.pool, (x,), (b(ops.transpose, x, perm=(1, 0)),), ("y",))
    (name,) = names_in(texts.schedules(graph, Options()))
    with pytest.raises(ScheduleFileError, match="i0 is a block loop, of a GPU's grid, and a CPU has none"):
        code(graph, f"schedule {name}\n  {steps}\n")


def test_everything_wrong_is_named_at_once(net: Path, saved: Path) -> None:
    first, second = names_in(saved.read_text())
    saved.write_text(
        f"schedule {first}\n  splice(i0)\nschedule {second}  // the softmax\n  split(nowhere, 4)\nschedule k_0\n"
    )
    with pytest.raises(ScheduleFileError) as caught:
        tilewright.compile(net, schedule=saved, cache=False)
    assert [p.loc.line for p in caught.value.problems] == [2, 4, 5]
    text = str(caught.value)
    assert "TW0505" in text and f"kernel {first}: splice(i0): there is no primitive 'splice'" in text
    assert f"kernel {second}: split(nowhere, 4)" in text and "no loop of this name" in text and "loops here" in text
    assert "kernel k_0: the model has no such kernel" in text and first in text


def test_a_step_out_of_order_names_its_rule(net: Path, saved: Path) -> None:
    (name, _) = names_in(saved.read_text())
    saved.write_text(f"schedule {name}\n  kind(_k, parallel)\n")
    ran = CliRunner().invoke(app, ["compile", str(net), "--schedule", str(saved), "--no-cache"])
    assert isinstance(ran.exception, ScheduleFileError) and "kind(_k, parallel)" in str(ran.exception)


def test_the_schedule_is_part_of_the_key(
    net: Path, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    plain = tilewright.compile(net)
    assert not tilewright.compile(net, schedule=saved).report()["from_cache"]
    assert "schedule" not in plain.report()["options"]
    edited = saved.read_text() + "// a remark\n"
    saved.write_text(edited)
    report = tilewright.compile(net, schedule=saved).report()
    assert not report["from_cache"] and len(report["options"]["schedule"]) == 16


def test_every_command_takes_the_file(net: Path, saved: Path, tmp_path: Path) -> None:
    for command in (
        ["compile", net, "-o", tmp_path / "net.tw", "--no-cache"],
        ["bench", net, "--seconds", "0.05", "--json"],
        ["bench", net, "--seconds", "0.05", "--kernels", "--json"],
        ["aot", net, "-o", tmp_path / "out"],
        ["ir", net, "--stage", "tile"],
    ):
        ran = CliRunner().invoke(app, [*map(str, command), "--schedule", str(saved)])
        assert ran.exit_code == 0, ran.output
    record = next((tmp_path / "out").glob("*.json"))
    assert len(json.loads(record.read_text())["options"]["schedule"]) == 16
    np.testing.assert_allclose(tilewright.load(tmp_path / "net.tw")(X), expected(), rtol=1e-4, atol=1e-5)
    ran = CliRunner().invoke(app, ["bench", str(tmp_path / "net.tw"), "--schedule", str(saved)])
    assert isinstance(ran.exception, OptionError) and "schedules are fixed" in str(ran.exception)


def test_a_file_that_is_not_there_or_no_text(net: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        tilewright.compile(net, schedule=tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="not text"):
        tilewright.compile(net, schedule=tmp_path / "bytes")
    with pytest.raises(OptionError, match="one target"):
        tilewright.export(net, tmp_path, target="x86-64,x86-64-v3", schedule=net)


KINDS = ("vector", "unroll", "serial", "parallel", "step")
SPACES = ("local", "reg", "global")


def edited(text: str, rng: random.Random) -> str:
    """A step left out, moved, repeated, or with another number, kind or space."""
    lines = text.split("\n")
    steps = [k for k, x in enumerate(lines) if x.startswith("  ")]
    k, other = rng.choice(steps), rng.choice(steps)
    match rng.randrange(5):
        case 0:
            del lines[k]
        case 1:
            lines[k], lines[other] = lines[other], lines[k]
        case 2:
            lines.insert(k, lines[other])
        case 3:
            lines[k] = re.sub(r"\b\d+\b", str(rng.choice([-1, 0, 1, 2, 3, 5, 7, 16, 100])), lines[k])
        case _:
            for words in (KINDS, SPACES):
                lines[k] = re.sub(rf"\b({'|'.join(words)})\b", rng.choice(words), lines[k])
    return "\n".join(lines)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(12))
def test_any_edit_is_right_or_refused(net: Path, saved: Path, seed: int) -> None:
    rng = random.Random(seed)
    text = edited(saved.read_text(), rng)
    saved.write_text(edited(text, rng))
    try:
        model = tilewright.compile(net, schedule=saved, threads=2, cache=False)
    except ScheduleFileError as error:
        assert error.problems and all(p.rule for p in error.problems)
        return
    np.testing.assert_allclose(model(X), expected(), rtol=1e-4, atol=1e-5)


def test_tuning_finds_what_is_faster_and_its_file_loads(net: Path, saved: Path) -> None:
    saved.write_text("".join(f"schedule {name}\n" for name in names_in(saved.read_text())))  # plain loops, much slower
    text = saved.read_text()
    output = net.with_suffix(".tuned")
    command = ["tune", net, "--schedule", saved, "--seconds", "0.3", "-o", output, "--threads", "1", "--json"]
    ran = CliRunner().invoke(app, [str(x) for x in command])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert found["after"] < found["before"] and found["n_candidates"] >= 2
    assert set(names_in(output.read_text())) == {g["name"] for g in found["gains"]} <= set(names_in(text))
    assert all(g["after"] < g["before"] for g in found["gains"])
    np.testing.assert_allclose(tilewright.compile(net, schedule=output)(X), expected(), rtol=1e-4, atol=1e-5)


def test_tuning_without_a_gain_writes_nothing(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.cli.tune.search", lambda *args, **options: Tuned("", (), 3, 1e-3, 1e-3))
    ran = CliRunner().invoke(app, ["tune", str(net)])
    path = net.with_suffix(".schedule")
    assert ran.exit_code == 0 and "was not written" in ran.stdout and not path.exists()


def test_tuning_measures_fixed_sizes_on_this_machine(net: Path) -> None:
    graph = texts.read_graph(net)
    with pytest.raises(OptionError, match="can't be measured here"):
        search(graph, [X], Options(target="aarch64"))
    model = onnx.load(net)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    onnx.save(model, net)
    ran = CliRunner().invoke(app, ["tune", str(net)])
    assert isinstance(ran.exception, OptionError) and "--fix rows=..." in str(ran.exception)


def test_a_search_keeps_its_budget(net: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on for ever, and ends with the round in which the time is over."""
    saved.write_text("".join(f"schedule {name}\n" for name in names_in(saved.read_text())))
    passed, rounds = [0.0], list[int]()

    def tell(stage: str, done: int, total: int) -> None:
        if stage == "round":
            rounds.append(done)
            passed[0] += 2000.0 * (done == 3)

    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + passed[0])
    monkeypatch.setattr(tilewright.tools.search, "time", clock)
    options = Options(schedule=saved.read_text())
    found = search(texts.read_graph(net), [X], options, threads=1, seconds=0.1, budget=1000.0, tell=tell)
    assert found.n_candidates >= 3 and rounds == [0, 1, 2, 3]


@pytest.mark.slow
def test_what_is_stored_and_does_not_fit_costs_no_other_candidate(net: Path, by_the_rules: str) -> None:
    graph = texts.read_graph(net)
    store = FoundSchedules(net.with_suffix(".db"))
    stored = zip(names_in(by_the_rules), ["no step at all", "split(no_such_loop, 8)"], strict=True)
    store.put(machine_key(Target.parse("native"), 1), [FoundSchedule(*pair, 2.0, 1.0) for pair in stored])
    tried = search(graph, [X], Options(), threads=1, seconds=0.3, store=store).n_candidates
    assert tried == search(graph, [X], Options(), threads=1, seconds=0.3).n_candidates > 0


def test_a_search_begins_with_what_an_earlier_one_found(net: Path, saved: Path) -> None:
    saved.write_text("".join(f"schedule {name}\n" for name in names_in(saved.read_text())))
    options, graph = Options(schedule=saved.read_text()), texts.read_graph(net)
    store = FoundSchedules(net.with_suffix(".db"))
    found = search(graph, [X], options, threads=1, seconds=0.3, store=store)
    assert found.gains

    def stop(stage: str, done: int, total: int) -> None:
        if done == len(names_in(saved.read_text())):  # each kernel had its turn once
            raise KeyboardInterrupt

    again = search(graph, [X], options, threads=1, seconds=0.3, store=store, tell=stop)
    one, other = (ScheduleBook.parse(x.text).lines for x in (found, again))
    for name in (g.name for g in found.gains):
        assert [x.step for x in other[name]] == [x.step for x in one[name]]


def test_an_interrupted_search_keeps_what_was_found(net: Path, saved: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    saved.write_text("".join(f"schedule {name}\n" for name in names_in(saved.read_text())))
    options = Options(schedule=saved.read_text())
    found = search(texts.read_graph(net), [X], options, threads=1, seconds=0.3, tell=stop)
    assert found.gains and found.after < found.before
