"""Latencies as figures: tables, reasons and plots from records."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from benchmarks import figures, page, restricted
from benchmarks.engines import ENGINES, Task


def record(model: str, ratio: dict[str, float], **more: object) -> page.Record:
    own = {"threads": 1, "precision": "fp32", "isa": "native", "share_of_peak": 0.9, "failed": {}}
    return {**own, "model": model, "median_ms": {"tilewright": 2.0}, "ratio": {"tilewright": 1.0, **ratio}, **more}


MEASURED = {
    "command": ["a command"],
    "machine": "m",
    "load": "no other work",
    "commit": "abcdef0",
    "date": "2026-11-23",
}


def blocks(runs: list[list[page.Record]], folder: Path) -> dict[str, str]:
    """What pages show of the figures of some runs."""
    page.write_figures(runs, [MEASURED] * len(runs), folder)
    return {name: figures.block(name, f, {"m": "a machine"}) for name, f in figures.figures(folder).items()}


def test_tables_hold_ratios_means_and_reasons(tmp_path: Path) -> None:
    runs = [
        [
            record("a", {"openvino": 2.0, "onnxruntime": 1.5}),
            record("b", {"openvino": 0.5}, failed={"onnxruntime": "why"}),
        ],
        [record("a", {"openvino": 2.0, "tvm": 900.0}), record("a", {"openvino": 1.1}, isa="avx2", threads=2)],
    ]
    shown = blocks(runs, tmp_path)
    first = shown["fp32_1_thread"]
    assert "| a | 2 | 1.50 | 2.00 | 1.50 | 0.90 |" in first
    assert "| b | 2 |  | 0.50 | 0.50 | 0.90 |" in first
    assert "| geometric mean |  | 1.50 | 1.00 | 0.87 |  |" in first
    assert "fastest on 1 of 2 nets" in first and "0.50 times (b)" in first
    assert "Not run: ONNX Runtime on b, why." in first
    assert "Measured on a machine, no other work, 2026-11-23, commit abcdef0." in first and "\na command\n" in first
    assert "TVM, untuned / ours" in shown["fp32_1_thread_further_peers"]
    assert "held to AVX2" in " ".join(shown["fp32_2_threads_avx2"].split())


def test_a_net_on_which_we_fail_is_shown_as_that(tmp_path: Path) -> None:
    lost = {"median_ms": {"openvino": 3.0}, "ratio": {}, "share_of_peak": None, "failed": {"tilewright": "why"}}
    mine = {**record("b", {}), **lost}
    (text,) = blocks([[record("a", {"openvino": 2.0}), mine]], tmp_path).values()
    assert "| b |  |  |  |" in text and "Not run: Tilewright on b, why." in text
    assert "| geometric mean |  | 2.00 |  |" in text


def test_plots_are_svg_with_a_dot_per_number(tmp_path: Path) -> None:
    runs = [[record("a", {"openvino": 2.0, "tvm": 900.0}), record("b", {"openvino": 0.5}, share_of_peak=None)]]
    kernel = {"ops": ["conv", "<add>"], "flops": 10**9, "n_bytes": 10**7, "seconds": 0.01, "calls": 1}
    copy = {**kernel, "flops": 0}
    found = {
        "threads": 2,
        "kernels": [kernel, copy],
        "fma_gflops": 115.0,
        "memory_gb_per_s": 11.0,
        "cache_gb_per_s": 100.0,
    }
    (tmp_path / "net.json").write_text(json.dumps(found))
    page.draw([tmp_path / "net.json"], tmp_path)
    (tmp_path / "net.json").unlink()
    page.write_figures(runs, [MEASURED], tmp_path)
    tag = "{http://www.w3.org/2000/svg}circle"
    ratios = ET.fromstring(figures.drawn(figures.figures(tmp_path)["fp32_1_thread"]))
    kernels = ET.parse(tmp_path / "kernels_net.svg")
    titles = [x[0].text for x in ratios.iter(tag)]
    assert titles[2:] == ["OpenVINO: 2.00", "TVM, untuned: 900.00", "OpenVINO: 0.50"]  # behind the two of the legend
    assert [x[0].text for x in kernels.iter(tag)] == ["conv <add>: 100 GFLOP/s"]


def test_engines_say_why_they_cannot_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(Path("net.onnx"), "net", True, 2, "fp32", isa="avx2")
    monkeypatch.setattr(restricted, "missing_tools", lambda: ["objdump"])
    assert ENGINES["onnxruntime"].unfit(task) == "restricting it to AVX2 needs objdump"
    assert "not measured in bf16" in (ENGINES["onnxruntime"].unfit(Task(Path("n"), "n", True, 1, "bf16")) or "")
    assert ENGINES["tilewright"].unfit(task) is None
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in ENGINES["torch"].environment(task)
    assert ENGINES["tvm"].environment(Task(Path("n"), "n", True, 2, "fp32")) == ["TVM_NUM_THREADS=2"]
