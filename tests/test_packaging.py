"""The package as installed: quick to import, light, typed, with one version and working entry points."""

import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tilewright"
HEAVY = ("llvmlite", "onnx", "onnxruntime", "openvino", "sklearn", "torch", "transformers")
IMPORT_SECONDS = 0.3

PROBE = """
import json, sys, time
start = time.process_time()
import tilewright
seconds = time.process_time() - start
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
"""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    metadata: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return metadata


def import_in_new_process() -> dict[str, Any]:
    ran = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=60)
    probed: dict[str, Any] = json.loads(ran.stdout)
    return probed


def test_import_is_quick() -> None:
    """Processor time, the best of five: the limit is on what the import does, not on how busy the machine is."""
    assert min(import_in_new_process()["seconds"] for _ in range(5)) < IMPORT_SECONDS


def test_import_brings_nothing_heavy() -> None:
    modules = import_in_new_process()["modules"]
    assert [name for name in HEAVY if name in modules] == []


def test_compiling_loads_nothing_of_export() -> None:
    """What only `export` needs is loaded by the first one."""
    program = """
import json, sys, tilewright
from tilewright.cli.main import app
model = tilewright.compile(sys.argv[1], cache=False)
before = [m for m in sys.modules if m.startswith(("tilewright.aot", "tilewright.build.deploy"))]
model.export(sys.argv[2])
print(json.dumps([before, "tilewright.build.deploy" in sys.modules]))
"""
    model = ROOT / "examples" / "digits" / "digits.onnx"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", program, str(model), folder]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(ran.stdout) == [[], True]


def test_version_is_the_same_everywhere(project: dict[str, Any]) -> None:
    assert importlib.metadata.version("tilewright") == project["version"]
    stated = getattr(importlib.import_module("tilewright"), "__version__", project["version"])
    assert stated == project["version"]


def test_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_every_extra_but_torch_is_free_of_torch(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    bring = [name for name, needs in extras.items() if any(re.match(r"torch\b", need) for need in needs)]
    assert bring == ["torch"]
    assert "torch" not in " ".join(project["dependencies"])


@pytest.mark.parametrize("group", ["console_scripts", "torch_dynamo_backends"])
def test_entry_point_loads(project: dict[str, Any], group: str) -> None:
    """What the project file names, which is what a fresh install gets."""
    value = project["scripts" if group == "console_scripts" else "entry-points"]
    value = value if group == "console_scripts" else value[group]
    module, _, name = value["tilewright"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    assert importlib.metadata.entry_points(group=group, name="tilewright")


def test_demo_model_is_small_and_committed() -> None:
    assert 0 < (ROOT / "examples" / "digits" / "digits.onnx").stat().st_size < 300_000
