"""The page of latencies: tables, reasons and plots from records."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from benchmarks import page, restricted
from benchmarks.engines import ENGINES, Task


def record(model: str, ratio: dict[str, float], **more: object) -> page.Record:
    own = {"threads": 1, "precision": "fp32", "isa": "native", "share_of_peak": 0.9, "failed": {}}
    return {**own, "model": model, "median_ms": {"tilewright": 2.0}, "ratio": {"tilewright": 1.0, **ratio}, **more}


def test_tables_hold_ratios_means_and_reasons() -> None:
    runs = [
        [
            record("a", {"openvino": 2.0, "onnxruntime": 1.5}),
            record("b", {"openvino": 0.5}, failed={"onnxruntime": "why"}),
        ],
        [record("a", {"openvino": 2.0, "tvm": 900.0}), record("a", {"openvino": 1.1}, isa="avx2", threads=2)],
    ]
    text = page.page(runs, ["a command"], "A machine.", [])
    assert "| a | 2 | 1.50 | 2.00 | 1.50 | 0.90 |" in text
    assert "| b | 2 | n/a | 0.50 | 0.50 | 0.90 |" in text
    assert "| geometric mean |  | 1.50 | 1.00 | 0.87 |  |" in text
    assert "- ONNX Runtime on b: why" in text
    assert "## fp32, 1 thread, further peers" in text and "TVM, untuned / ours" in text
    assert "## fp32, 2 threads, AVX2" in text and "--target haswell" in text


def test_a_net_on_which_we_fail_is_shown_as_that() -> None:
    lost = {"median_ms": {"openvino": 3.0}, "ratio": {}, "share_of_peak": None, "failed": {"tilewright": "why"}}
    mine = {**record("b", {}), **lost}
    text = page.page([[record("a", {"openvino": 2.0}), mine]], [], "", [])
    assert "| b | nan | n/a | n/a | n/a |" in text and "- Tilewright on b: why" in text
    assert "| geometric mean |  | 2.00 | 2.00 |  |" in text


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
    page.draw(runs, [tmp_path / "net.json"], tmp_path / "figures")
    tag = "{http://www.w3.org/2000/svg}circle"
    ratios, kernels = (ET.parse(tmp_path / "figures" / name) for name in ("fp32_1_thread.svg", "kernels_net.svg"))
    titles = [x[0].text for x in ratios.iter(tag)]
    assert titles[2:] == ["OpenVINO: 2.00", "TVM, untuned: 900.00", "OpenVINO: 0.50"]  # behind the two of the legend
    assert [x[0].text for x in kernels.iter(tag)] == ["conv <add>: 100 GFLOP/s"]
    text = page.page(runs, [], "", [tmp_path / "net.json"])
    assert all(f"figures/{p.name}" in text for p in (tmp_path / "figures").iterdir())


def test_engines_say_why_they_cannot_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(Path("net.onnx"), "net", True, 2, "fp32", isa="avx2")
    monkeypatch.setattr(restricted, "missing_tools", lambda: ["objdump"])
    assert ENGINES["onnxruntime"].unfit(task) == "restricting it to AVX2 needs objdump"
    assert "not measured in bf16" in (ENGINES["onnxruntime"].unfit(Task(Path("n"), "n", True, 1, "bf16")) or "")
    assert ENGINES["tilewright"].unfit(task) is None
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in ENGINES["torch"].environment(task)
    assert ENGINES["tvm"].environment(Task(Path("n"), "n", True, 2, "fp32")) == ["TVM_NUM_THREADS=2"]
