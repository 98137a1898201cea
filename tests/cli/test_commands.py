"""The command line as a user meets it: what each command prints, writes and returns."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch._inductor.config

import tilewright
from cli.models import RNG, Cli, expected, linear_model
from tilewright.cli import bench, machines
from tilewright.cli.inputs import load_inputs
from tilewright.runtime.manifest import TensorSpec

# --- compile, run ---------------------------------------------------------------------------------------------------


def test_compile_writes_a_model_that_loads(cli: Cli, linear: Path, tmp_path: Path) -> None:
    ran = cli("compile", linear, "-o", tmp_path / "out.tw")
    assert (ran.code, ran.err) == (0, "")
    assert "matmul add maximum" in ran.out and "activations" in ran.out and "wrote " in ran.out
    x = RNG.standard_normal((4, 24)).astype(np.float32)
    np.testing.assert_allclose(tilewright.load(tmp_path / "out.tw")(x), expected(x), rtol=1e-5, atol=1e-5)


def test_compile_names_the_file_after_the_model(cli: Cli, linear: Path) -> None:
    ran = cli("compile", linear, "--json", "--fix", "rows=2", "--threads", 1, "-O", 0, "--no-cache")
    made = json.loads(ran.out)
    assert made["output"] == str(linear.with_suffix(".tw"))
    assert made["report"]["options"]["optimize"] == 0
    assert tilewright.load(made["output"]).inputs[0].shape == (2, 24)


def test_every_command_takes_an_exported_program(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(8, 4), (torch.ones(3, 8),)), path)
    assert cli("compile", path).code == 0
    assert json.loads(cli("run", path, "--json").out)[0]["shape"] == [3, 4]
    found = json.loads(cli("bench", path, "--kernels", "--seconds", 0.05, "--threads", 1, "--json").out)
    assert found["threads"] == 1 and found["fma_gflops"] > 0 and found["cache_gb_per_s"] > 0
    assert [k["flops"] for k in found["kernels"]] == [2 * 3 * 8 * 4 + 3 * 4]
    assert cli("ir", path, "--stage", "schedule").code == 0
    (tmp_path / "no.pt2").write_bytes(b"nothing")
    assert cli("run", tmp_path / "no.pt2").err.startswith(f"error: [TW0101] {tmp_path / 'no.pt2'} holds no exported")


@pytest.mark.parametrize(("content", "message"), [
    (None, "can't be read: No such file"), (b"kernel \xff", "is not text"), (b"kernels", "expected 'graph'"),
])  # fmt: skip
def test_texts_that_are_no_ir(cli: Cli, tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "no.txt"
    if content is not None:
        path.write_bytes(content)
    ran = cli("ir", path, "--stage", "llvm")
    assert ran.code == 1 and f"{path}" in ran.err and message in ran.err and "remedy" in ran.err


def test_a_file_of_schedules_that_is_missing(cli: Cli, linear: Path, tmp_path: Path) -> None:
    for command in ("compile", "bench", "explain", "aot"):
        ran = cli(command, linear, "--schedule", tmp_path / "none")
        assert ran.code == 1 and "none' can't be read: No such file" in ran.err and "remedy" in ran.err


def test_commands_that_fix_sizes_say_so(cli: Cli, linear: Path) -> None:
    for command in ("aot", "compile", "ir", "tune"):
        ran = cli(command, linear, "--size", "rows=4")
        assert ran.code == 2 and ran.err.strip().endswith("No such option: --size (Possible options: --fix)")
    assert "--fix" not in cli("inspect", linear, "--size", "rows=4").err


def test_run_reads_and_writes_arrays(cli: Cli, linear: Path, tmp_path: Path) -> None:
    x = RNG.standard_normal((3, 24)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    for given in (tmp_path / "x.npy", f"x={tmp_path / 'x.npy'}"):  # one input needs no name
        ran = cli("run", linear, "--input", given, "--output", tmp_path / "y.npz")
        assert (ran.code, ran.err) == (0, "")
        np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], expected(x), rtol=1e-5, atol=1e-5)


def test_run_reads_npz_and_draws_the_rest(cli: Cli, pair: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "given.npz", a=np.zeros((6, 3), np.float32))
    rows = json.loads(cli("run", pair, "-i", tmp_path / "given.npz", "--json").out)
    assert [r["name"] for r in rows] == ["d", "n"]
    assert rows[0]["shape"] == [6, 3]  # b took its size from a
    assert rows[1] == {"name": "n", "dtype": "int64", "shape": [2], "min": 3, "mean": 4.5, "max": 6}


def test_run_draws_the_same_inputs_for_the_same_seed(cli: Cli, linear: Path) -> None:
    first, again, other = (cli("run", linear, "--json", "--size", "rows=5", "--seed", s).out for s in (1, 1, 2))
    assert first == again != other
    assert json.loads(first)[0]["shape"] == [5, 5]


def test_run_says_what_json_can_not(cli: Cli, pair: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", a=np.full((1, 3), np.inf, np.float32), b=np.full((1, 3), np.inf, np.float32))
    rows = json.loads(cli("run", pair, "-i", tmp_path / "odd.npz", "--json").out, parse_constant=pytest.fail)
    assert rows[0]["max"] == "nan"


def test_tables_show_six_digits_and_shapes(cli: Cli, linear: Path) -> None:
    lines = cli("run", linear, "--size", "rows=1").out.splitlines()
    assert lines[1].split() == ["name", "dtype", "shape", "min", "mean", "max"]
    assert "[1, 5]" in lines[2]
    assert all(len(x.strip("-").replace(".", "").lstrip("0")) <= 6 for x in lines[2].split()[-3:])
    assert not any(x.endswith(" ") for x in lines)


def test_a_compiled_model_runs_as_its_source_does(cli: Cli, linear: Path) -> None:
    cli("compile", linear)
    assert cli("run", linear.with_suffix(".tw"), "--json").out == cli("run", linear, "--json").out


# --- bench, inspect, lists ------------------------------------------------------------------------------------------


def test_bench_alone_and_beside_another(cli: Cli, linear: Path) -> None:
    pytest.importorskip("onnxruntime")
    ran = cli("bench", linear, "--against", "onnxruntime", "--seconds", 0.05, "--threads", 1, "--json")
    made = json.loads(ran.out)
    assert made["threads"] == 1
    assert [r["engine"] for r in made["engines"]] == ["tilewright", "onnxruntime"]
    assert made["engines"][0]["ratio"] == 1 and all(r["runs"] > 0 and r["median_ms"] > 0 for r in made["engines"])
    assert "time / ours" in cli("bench", linear, "--seconds", 0).out


def test_bench_sets_kernels_beside_their_limits(cli: Cli, linear: Path) -> None:
    sizes = ("--size", "rows=64", "--seconds", 0.01, "--threads", 1)
    made = json.loads(cli("bench", linear, "--kernels", *sizes, "--json").out)
    (kernel,) = made["kernels"]
    assert kernel["ops"] == ["matmul", "add", "maximum"] and kernel["flops"] == 64 * 5 * (2 * 24 + 2)
    assert kernel["n_bytes"] == 4 * (64 * 24 + 24 * 5 + 5 + 64 * 5)
    assert 0 < kernel["limit"] < kernel["seconds"] * 2 and kernel["seconds"] < made["seconds"]
    assert "of limit" in cli("bench", linear, "--kernels", *sizes).out
    assert cli("bench", linear, "--kernels", "--against", "onnxruntime").code == 2
    fixed = cli("bench", linear, "--fix", "rows=3", "--against", "onnxruntime", "--seconds", 0, "--json")
    assert len(json.loads(fixed.out)["engines"]) == 2


def test_bench_says_why_a_kernel_has_no_limit(cli: Cli, linear: Path) -> None:
    shown = cli("bench", linear, "--kernels", "--seconds", 0.01, "--threads", 1).out
    assert "depends on rows, which nobody gave a number: --size rows=... fills" in shown
    assert "nobody gave" not in cli("bench", linear, "--kernels", "--size", "rows=3", "--seconds", 0.01).out


def test_bench_names_its_peers_and_what_they_need(cli: Cli, linear: Path) -> None:
    refused = cli("bench", linear, "--against", "glow")
    assert refused.code == 2 and "onnxruntime, openvino, torch, inductor" in refused.err
    both = cli("bench", linear, "--against", "glow", "--against", "torch")  # the last one is not the only one
    assert both.code == 2 and "glow" in both.err
    assert "save it with torch.export.save" in cli("bench", linear, "--against", "inductor").err


def test_bench_gives_inductor_an_exported_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the C++ compile, which the first call would start."""
    monkeypatch.setattr(torch, "compile", lambda module: module)
    module, x = torch.nn.Linear(4, 3), torch.ones(2, 4)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "net.pt2")
    # not monkeypatch's: putting an attribute back, it would delete the setting, which hides it from all of PyTorch
    with torch._inductor.config.patch(freezing=False):
        run = bench.PEERS["inductor"].make(tmp_path / "net.pt2", {"x": x.numpy()}, 1)
        torch.testing.assert_close(run(), module(x))


def test_bench_against_openvino(cli: Cli, linear: Path) -> None:
    pytest.importorskip("openvino")
    ran = cli("bench", linear, "--against", "openvino", "--seconds", 0.05, "--threads", 1, "--json")
    assert [r["engine"] for r in json.loads(ran.out)["engines"]] == ["tilewright", "openvino"]


def test_a_model_without_kernels_is_measured_too(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "same.txt"
    path.write_text('graph "same" {\n  %0 = input "x" : f32[2]\n  return "y": %0\n}\n')
    assert cli("bench", path, "--kernels", "--seconds", 0.01, "--threads", 1).code == 0
    assert cli("tune", path, "--seconds", 0.01, "--threads", 1).code == 0
    assert cli("explain", path).code == 0


def test_explain_says_what_there_was_and_what_it_costs(cli: Cli, linear: Path) -> None:
    sized = ("--size", "rows=64", "--threads", 1)
    shown = cli("explain", linear, *sized)
    assert shown.code == 0 and "matmul_add_maximum" in shown.out and "ms by price" in shown.out
    (kernel,) = json.loads(cli("explain", linear, *sized, "--json").out)
    assert [a["is_chosen"] for a in kernel["alternatives"]].count(True) == 1 and kernel["alternatives"][0]["is_chosen"]
    assert all(a["price"]["seconds"] > 0 for a in kernel["alternatives"])
    candidates = cli("explain", linear, *sized, "--kernel", "matmul").out
    assert "chosen" in candidates and "arithmetic" in candidates
    assert candidates.count("\n") > len(kernel["alternatives"])


def test_explain_wants_sizes_and_names_that_there_are(cli: Cli, linear: Path) -> None:
    unsized = cli("explain", linear)
    assert unsized.code == 2 and "--size rows=..." in unsized.err
    other = cli("explain", linear, "--size", "rows=4", "--kernel", "softmax")
    assert other.code == 2 and "no kernel's name or ops contain 'softmax'" in other.err


def test_bench_shows_prices_beside_times(cli: Cli, linear: Path) -> None:
    how = ("--kernels", "--seconds", 0.01, "--threads", 1, "--json")
    (sized,) = json.loads(cli("bench", linear, *how, "--size", "rows=64").out)["kernels"]
    assert sized["price"] > 0
    (unsized,) = json.loads(cli("bench", linear, *how).out)["kernels"]
    assert unsized["price"] is None


@pytest.mark.parametrize(
    "command", ["compile", "run", "bench", "tune", "explain", "aot", "inspect", "ir", "compare", "reduce"]
)
def test_a_folder_in_place_of_a_model(cli: Cli, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (".", tmp_path, ".."):
        ran = cli(command, folder)
        assert ran.code == 1 and "Traceback" not in ran.err and "remedy: " in ran.err


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kernels", [(), ("--kernels",)])
def test_bench_makes_code_as_told(cli: Cli, linear: Path, kernels: tuple[str, ...]) -> None:
    how = ("--size", "rows=8", "--seconds", 0.01, "--threads", 1, *kernels)
    assert cli("bench", linear, "--target", "native", "--accuracy", "exact", *how).code == 0
    refused = cli("bench", linear, "--target", "cortex-a72", *how)
    assert refused.code == 1 and "compiled for aarch64" in refused.err


def test_inspect_model_text_and_compiled(cli: Cli, linear: Path, tmp_path: Path) -> None:
    shown = cli("inspect", linear).out
    assert "[rows, 24]" in shown and "matmul" in shown and "weights: 500 B" in shown
    cli("ir", linear, "-o", tmp_path / "linear.tw.txt")
    cli("compile", linear)
    for path in (linear, tmp_path / "linear.tw.txt", linear.with_suffix(".tw")):
        facts = json.loads(cli("inspect", path, "--json").out)
        assert [(x["name"], x["shape"]) for x in facts["outputs"]] == [("y", "[rows, 5]")]
        assert facts["weights_bytes"] >= 500
        assert {x["dtype"] for x in facts["inputs"]} == {"float32"}
    assert facts["kernels"] == {"matmul add maximum": 1}


def test_tables_call_types_and_machines_by_one_name(cli: Cli, linear: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.tw"
    assert cli("compile", linear, "-o", made, "--target", "x86-64-v3").code == 0
    shown = cli("inspect", made).out
    assert "compiled for x86-64-v3 (" in shown and "haswell" not in shown
    tables = [shown, cli("inspect", linear).out, cli("run", linear, "--size", "rows=2").out, cli("ir", linear).out]
    assert all("f32" in text and "float32" not in text for text in tables)


def test_inspect_reads_a_file_for_another_machine(cli: Cli, linear: Path, tmp_path: Path) -> None:
    path = tmp_path / "arm.tw"
    assert cli("compile", linear, "-o", path, "--target", "aarch64").code == 0
    shown = cli("inspect", path)
    assert shown.code == 0 and "compiled for" in shown.out and "aarch64" in shown.out
    assert "matmul add maximum" in shown.out


def test_progress_names_each_stage_and_its_share() -> None:
    told: list[tuple[str, int, int]] = []
    tilewright.compile(linear_model(), cache=False, progress=lambda *at: told.append(at))
    assert [stage for stage, _, total in told if total == 0][:3] == ["import", "graph", "partition"]
    assert ("kernels", 0, 1) in told and ("llvm (wait)", 0, 1) in told


def test_passes_and_ops_are_listed_with_their_docs(cli: Cli) -> None:
    passes = json.loads(cli("passes", "--json").out)
    assert {"canonicalize", "fold-constants", "recognise", "decompose", "layout"} <= {p["name"] for p in passes}
    assert all(p["what"].endswith((".", ";")) or p["what"] for p in passes)
    rows = json.loads(cli("ops", "--json").out)
    matmul = next(r for r in rows if r["op"] == "matmul")
    assert matmul == {"op": "matmul", "operands": "a, b", "attributes": "out_dtype", "lowering": "compute"}
    table = cli("ops").out.splitlines()
    assert table[0] == f"{len(rows)} ops" and len([x for x in table if x]) == len(rows) + 2  # a line each, none wrapped


def test_ops_of_the_sources_are_listed(cli: Cli) -> None:
    rows = json.loads(cli("ops", "--of", "onnx", "--json").out)
    onnx_ways = {r["op"]: r["how"] for r in rows if r["domain"] == "ai.onnx"}
    assert onnx_ways["Conv"] == "converted" and onnx_ways["StringConcat"].startswith("refused: works on strings")
    assert set(x.partition(":")[0] for x in onnx_ways.values()) == {"converted", "by its definition", "refused"}
    assert "addmm.default" in cli("ops", "--of", "torch").out


def test_cache_that_is_off_says_why(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    assert cli("cache").out.startswith("the cache is off: ")
    assert json.loads(cli("cache", "--json").out)["enabled"] is False


def test_cache_is_filled_listed_and_cleared(cli: Cli, linear: Path) -> None:
    cli("run", linear)
    found = json.loads(cli("cache", "list", "--json").out)
    assert found["enabled"] and "model" in {e["kind"] for e in found["entries"]}
    assert cli("cache").out.startswith(f"{len(found['entries'])} entries")
    assert cli("cache", "clear").out == f"removed {len(found['entries'])} entries\n"
    assert json.loads(cli("cache", "--json").out)["entries"] == []


def test_doctor_measures_this_machine(cli: Cli) -> None:
    facts = json.loads(cli("doctor", "--json").out)
    assert facts["tilewright"] == tilewright.__version__
    assert facts["fma_gflops"] > 0 and facts["read_gb_per_s"] > 0 and facts["cores"] >= facts["threads"] >= 1


def test_doctor_keeps_what_it_measures(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "measure_numbers", lambda target: {"ghz": 3.125, "l2_store_bytes_per_cycle": 17.0})
    assert json.loads(cli("doctor", "--json").out)["calibrated"] is False
    made = json.loads(cli("doctor", "--calibrate", "--json").out)
    ghz, stores = made["numbers"]
    assert (ghz["measured"], ghz["unit"], ghz["record"]) == (3.125, "GHz", 2.5) and stores["record"] is None
    assert "3.125" in cli("doctor", "--calibrate").out
    shown = {n["number"]: n for n in json.loads(cli("targets", "native", "--json").out)["numbers"]}
    assert shown["ghz"]["value"] == 3.125 and shown["ghz"]["source"] == "measured here"
    assert json.loads(cli("doctor", "--json").out)["calibrated"] is True

    Path(made["file"]).write_text("{")
    ran = cli("doctor", "--json")
    assert ran.code == 0 and json.loads(ran.out)["calibrated"] is False
    assert "[TW0403]" in ran.err and "doctor --calibrate" in ran.err

    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    assert "not kept: the cache is turned off" in cli("doctor", "--calibrate").out
    ran = cli("doctor", "--calibrate=yes")
    assert ran.code == 2 and "--calibrate" in ran.err


# --- ir -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "part"),
    [
        ("graph", "matmul("),
        ("kernels", "fold add"),
        ("tile", "body"),
        ("llvm", "define"),
        ("asm", "ret"),
        ("entry", "tw_"),
    ],
)
def test_ir_at_every_stage(cli: Cli, linear: Path, stage: str, part: str) -> None:
    ran = cli("ir", linear, "--stage", stage, "--target", "x86-64-v3")
    assert (ran.code, ran.err) == (0, "") and part in ran.out


def test_ir_for_a_gpu_at_every_stage(cli: Cli, linear: Path, tmp_path: Path) -> None:
    for stage, part in {"graph": "matmul(", "tile": " block", "llvm": "ptx_kernel", "asm": ".target sm_90a"}.items():
        ran = cli("ir", linear, "--stage", stage, "--target", "cuda-sm90a")
        assert (ran.code, ran.err) == (0, "") and part in ran.out
    refused = cli("ir", linear, "--stage", "entry", "--target", "cuda-sm90a")
    assert refused.code == 2 and "has no entry" in refused.err and "remedy: " in refused.err
    kernels = tmp_path / "kernels.txt"
    assert cli("ir", linear, "--stage", "tile", "--target", "cuda-sm90a", "-o", kernels).code == 0
    assert ".target sm_80" in cli("ir", kernels, "--stage", "asm", "--target", "cuda").out
    assert "ptx_kernel" in cli("ir", kernels, "--stage", "llvm", "--target", "cuda").out


def test_gpus_are_targets(cli: Cli) -> None:
    assert "cuda-sm90a" in cli("targets").out
    shown = cli("targets", "cuda-sm90a").out
    assert "sm_shared_bytes" in shown and "CUDA C++ Programming Guide" in shown.replace("\n", " ")


def test_ir_after_a_pass(cli: Cli, linear: Path) -> None:
    before, after = (cli("ir", linear, "--print-after", p).out for p in ("fold-affine", "decompose"))
    assert before.startswith("# after fold-affine\n") and "relu(" in before
    assert "relu(" not in after and "maximum(" in after
    assert cli("ir", linear, "--print-after", "all").out.count("# after ") > 5


def test_ir_runs_the_passes_that_are_named(cli: Cli, linear: Path) -> None:
    assert "relu(" in cli("ir", linear, "--pass-pipeline", "").out
    assert "relu(" in cli("ir", linear, "--pass-pipeline", "decompose{keep=relu}").out
    assert "relu(" not in cli("ir", linear, "--pass-pipeline", "canonicalize,decompose").out


def test_graph_text_goes_in_again(cli: Cli, linear: Path, tmp_path: Path) -> None:
    imported, once, twice = (tmp_path / f"{k}.tw.txt" for k in ("imported", "once", "twice"))
    assert cli("ir", linear, "--pass-pipeline", "", "-o", imported) == (0, "", "")
    assert imported.with_suffix(".npz").exists()  # the weight is too large to stand in the text
    cli("ir", linear, "-o", once)
    cli("ir", imported, "-o", twice)
    assert once.read_text() == twice.read_text()
    assert cli("run", twice, "--json").out == cli("run", linear, "--json").out


def test_edited_graph_text_is_what_runs(cli: Cli, linear: Path, tmp_path: Path) -> None:
    path = tmp_path / "edited.tw.txt"
    cli("ir", linear, "-o", path)
    path.write_text(path.read_text().replace("maximum(", "minimum("))
    assert json.loads(cli("run", path, "--json").out)[0]["max"] == 0


def test_dump_writes_a_file_per_pass_and_stage(cli: Cli, linear: Path, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    ran = cli("ir", linear, "--dump", folder, "--target", "x86-64-v3")
    assert ran.code == 0 and ran.out.startswith("wrote ")
    names = sorted(p.name for p in folder.iterdir())
    assert names[0] == "00-input.tw.txt" and {"constants.npz", "entry.ll", "kernels.s", "tile.txt"} <= set(names)
    assert "decompose-relu: relu at" in "".join(p.read_text() for p in folder.glob("*-decompose.tw.txt"))
    assert (folder / "kernels.ll").read_text().startswith("; k_")
    last = [folder / n for n in names if n.endswith(".tw.txt")][-1]
    assert cli("run", last, "--json").out == cli("run", linear, "--json").out  # resumed from there


def test_kernel_text_goes_on_to_assembly(cli: Cli, linear: Path, tmp_path: Path) -> None:
    path, again = tmp_path / "kernels.txt", tmp_path / "again.txt"
    cli("ir", linear, "--stage", "tile", "--kernel", "matmul", "--target", "x86-64-v3", "-o", path)
    cli("ir", path, "--stage", "tile", "-o", again)
    assert path.read_text().split("\n", 1)[1] == again.read_text()  # but for the comment with its ops
    direct = cli("ir", linear, "--stage", "asm", "--kernel", "matmul", "--target", "x86-64-v3").out
    assert cli("ir", path, "--stage", "asm", "--target", "x86-64-v3").out.strip() in direct


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["compile"],
        ["compile", "m.onnx", "-O", "7"],
        ["run", "m.onnx", "--threads", "0"],
        ["run", "m.onnx", "--size", "rows"],
        ["run", "m.onnx", "--size", "rows=-1"],
        ["ir", "m.onnx", "--stage", "nowhere"],
        ["ir", "m.onnx", "--stage", "tile", "--print-after", "layout"],
        ["bench", "m.onnx", "--against", "nobody"],
        ["cache", "burn"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(cli: Cli, args: list[str]) -> None:
    ran = cli(*args)
    assert ran.code == 2 and "Error: " in ran.err and "--help" in ran.err and ran.out == ""


@pytest.mark.parametrize("words", [["--precision", "int8"], ["-O", "0"], ["--target", "x86-64-v2"]], ids=" ".join)
def test_a_compiled_model_takes_no_options_of_a_compile(
    cli: Cli, linear: Path, tmp_path: Path, words: list[str]
) -> None:
    """Such an option has no effect on code that is made already, and saying nothing would hide that."""
    made = tmp_path / "made.tw"
    assert cli("compile", linear, "-o", made).code == 0
    ran = cli("bench", made, "--seconds", "0", *words)
    assert ran.code == 2 and "is compiled already" in ran.err and "remedy" in ran.err


def test_a_pipeline_that_is_not_well_formed_is_wrong_usage(cli: Cli, linear: Path) -> None:
    ran = cli("ir", linear, "--pass-pipeline", "decompose{x")
    assert ran.code == 2 and "expected a pass at" in ran.err and "remedy" in ran.err


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["compile", "{missing}"], "there is no file"),
        (["run", "{missing}"], "there is no file"),
        (["inspect", "{missing}"], "there is no file"),
        (["inspect", "{folder}"], "is a folder"),
        (["ir", "{missing}"], "missing.onnx"),
        (["compile", "{broken}"], "broken.onnx"),
        (["inspect", "{broken}"], "broken.onnx"),
        (["run", "{cut}"], "truncated"),
        (["inspect", "{cut}"], "truncated"),
        (["compile", "{cut}"], "compiled already"),
        (["ir", "{cut}"], "machine code"),
        (["ir", "{text}"], "line 2: expected"),
        (["ir", "{kernels}", "--stage", "llvm"], "line 2"),
        (["compile", "{model}", "-o", "{missing}/m.tw"], "[TW0105] can't write"),
        (["run", "{model}", "-o", "{folder}"], "[TW0105] can't write"),
        (["run", "{model}", "-i", "{missing}"], "can't read"),
        (["run", "{model}", "-i", "{text}"], "not a NumPy file"),
        (["run", "{model}", "-i", "z={array}"], "no inputs ['z']"),
        (["run", "{model}", "-i", "{array}"], "x"),
        (["bench", "{cut}", "--against", "onnxruntime"], "truncated"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_a_bad_file_or_name_is_1_with_a_message(
    cli: Cli, linear: Path, tmp_path: Path, args: list[str], part: str
) -> None:
    files = {"model": linear, "folder": tmp_path, "missing": tmp_path / "missing.onnx"}
    files |= {k: tmp_path / f"{k}{s}" for k, s in (("broken", ".onnx"), ("cut", ".tw"), ("text", ".txt"))}
    files |= {"kernels": tmp_path / "kernels.txt", "array": tmp_path / "array.npy"}
    files["broken"].write_bytes(linear.read_bytes()[:100])
    files["cut"].write_bytes(b"\x40" + bytes(7) + b"{")
    files["text"].write_text('graph "g" {\n  %0 = nothing\n}\n')
    files["kernels"].write_text("kernel k\n  plaice x\n")
    np.save(files["array"], np.zeros((2, 25), np.float32))
    ran = cli(*(a.format(**files) for a in args))
    assert ran.code == 1 and part in ran.err and ran.err.startswith("error: ")
    assert "Traceback" not in ran.err and ran.out == ""


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["compile", "{model}", "--target", "z80"], "there is no target 'z80'"),
        (["compile", "{model}", "--target", "cuda-sm91"], "did you mean cuda-sm90a?"),
        (["aot", "{model}", "--target", "cuda-sm90a"], "cuda-sm90a is a GPU"),
        (["compile", "{model}", "--target", "x86_64"], "did you mean x86-64?"),
        (["compile", "{model}", "--target", "cortex-m4f"], "did you mean cortex-m4?"),
        (["compile", "{model}", "--target", "m4"], "did you mean cortex-m4?"),
        (["compile", "{model}", "--target", "CortexA53"], "did you mean cortex-a53?"),
        (["aot", "{model}", "--target", "a53"], "did you mean cortex-a53?"),
        (["aot", "{model}", "--target", "zen4"], "did you mean znver4?"),
        (["compile", "{model}", "--target", "v3"], "did you mean x86-64-v3?"),
        (["compile", "{model}", "--target", "m1"], "did you mean apple-m1?"),
        (["aot", "{model}", "--target", "aarch64-linux-gnu"], "did you mean aarch64?"),
        (["aot", "{model}", "--target", "thumbv7em-none-eabihf"], "did you mean cortex-m4?"),
        (["aot", "{model}", "--fix", "rows=1", "--target", "cortex-m4", "--threads", "4"], "has no threads"),
        (["compile", "{model}", "--precision", "fp7"], "fp7"),
        (["compile", "{model}", "--accuracy", "some"], "some"),
        (["ir", "{model}", "--target", "z80", "--stage", "tile"], "z80"),
        (["ir", "{model}", "--pass-pipeline", "polish"], "no pass 'polish'"),
        (["ir", "{model}", "--print-after", "polish"], "no pass 'polish'"),
        (["ir", "{model}", "--stage", "tile", "--kernel", "conv"], "conv"),
        (["run", "{model}", "--size", "columns=3"], "the model's are: rows"),
        (["compile", "{model}", "--fix", "columns=3"], "columns"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_a_value_that_no_option_has_is_2(cli: Cli, linear: Path, args: list[str], part: str) -> None:
    ran = cli(*(a.format(model=linear) for a in args))
    assert ran.code == 2 and part in ran.err and "remedy: " in ran.err and ran.out == ""


def test_a_failed_write_has_a_code_and_a_remedy(cli: Cli, linear: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device", "out.npz")

    monkeypatch.setattr(np, "savez", full)
    ran = cli("run", linear, "-o", linear.with_suffix(".npz"))
    assert ran.code == 1 and "[TW0105] out.npz: No space left on device" in ran.err and "remedy: " in ran.err


def test_targets_are_listed_by_the_names_that_options_take(cli: Cli, linear: Path) -> None:
    rows = json.loads(cli("targets", "--json").out)
    assert rows[0]["target"] == "native" and {"x86-64-v3", "aarch64", "cortex-m4", "wasm32-simd128"} <= {
        r["target"] for r in rows
    }
    v3 = next(r for r in rows if r["target"] == "x86-64-v3")
    assert v3["vector bits"] == "256" and "avx2" in v3["also"] and v3["threads"] == "yes"
    made = json.loads(cli("compile", linear, "--target", "avx2", "--json").out)
    assert made["report"]["target"] == "x86-64-v3"


def test_a_target_shows_its_numbers_and_where_they_are_from(cli: Cli) -> None:
    shown = {n["number"]: n for n in json.loads(cli("targets", "znver4", "--json").out)["numbers"]}
    assert shown["fma_cycles"]["value"] == 2 and "57647" in shown["fma_cycles"]["source"]
    assert shown["ghz"] == {"number": "ghz", "value": 2.5, "unit": "GHz", "source": "assumed"}
    assert "57647" in cli("targets", "znver4").out
    ran = cli("targets", "zenver4")
    assert ran.code == 2 and "did you mean znver4?" in ran.err


def test_bench_names_an_engine_that_fails(cli: Cli, linear: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = linear_model()
    model.ir_version = 99
    onnx.save(model, linear)
    ran = cli("bench", linear, "--against", "onnxruntime", "--seconds", 0)
    assert ran.code == 1 and "onnxruntime can't run" in ran.err and "Traceback" not in ran.err


def test_bench_can_not_hand_another_engine_our_file(cli: Cli, linear: Path) -> None:
    cli("compile", linear)
    ran = cli("bench", linear.with_suffix(".tw"), "--against", "onnxruntime", "--seconds", 0)
    assert ran.code == 2 and "the .onnx file" in ran.err


COMMANDS = (
    "compile aot sign verify run bench inspect ir passes ops targets cache doctor explain refit tune quantize prune"
)


@pytest.mark.parametrize("command", ["", *COMMANDS.split()])
def test_every_command_has_help(cli: Cli, command: str) -> None:
    ran = cli(*command.split(), "--help")
    assert ran.code == 0 and ran.out.startswith(f"Usage: tilewright {command}".rstrip()) and ran.err == ""
    assert "..." not in ran.out.partition("Commands:")[2]  # no summary is cut


def test_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"tilewright {tilewright.__version__}\n", "")
    ran = subprocess.run([sys.executable, "-m", "tilewright", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"tilewright {tilewright.__version__}\n"


def test_a_complex_number_as_an_input_file(tmp_path: Path) -> None:
    """It has no axis of its own, and two parts."""
    for a in (np.array(1 + 2j, np.complex64), np.array([[1j, 2]], np.complex64).T):
        np.save(tmp_path / "x.npy", a)
        (given,) = load_inputs([str(tmp_path / "x.npy")], [TensorSpec("x", "float32", (*a.shape, 2))]).values()
        np.testing.assert_array_equal(given, np.stack([a.real, a.imag], -1))
