"""NVIDIA's bindings take every call of ours as we make it: they speak with a library that stands for the driver.

The extra `cuda` and a C compiler are needed; without them this skips. What the driver then does only a GPU can show.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "stub_driver.c"
CALLS = """
import ctypes
from tilewright.runtime.cuda.driver import CudaDriver, DriverError

cuda = CudaDriver()
facts = cuda.facts(0)
assert (facts.name, facts.capability, facts.memory_bytes) == ("stub", (9, 0), 80 << 30)
cuda.enter(0)
module = cuda.load("good")
function = cuda.function(module, "entry", 60000)
try:
    cuda.load("bad")
except DriverError as error:
    assert error.status == "CUDA_ERROR_INVALID_PTX" and error.said == "a text\\nline 1 is bad"
try:
    cuda.allocate(1 << 41)
except DriverError as error:
    assert error.status == "CUDA_ERROR_OUT_OF_MEMORY"
first, second, stream = cuda.allocate(256), cuda.allocate(256), cuda.new_stream()
given, found = ctypes.create_string_buffer(b"some bytes", 256), ctypes.create_string_buffer(256)
cuda.to_device(first, ctypes.addressof(given), 256, stream)
cuda.on_device(second, first, 256, stream)
cuda.to_host(ctypes.addressof(found), second, 256, stream)
cuda.wait(0)
assert found.raw == given.raw
cuda.launch(function, (1, 2, 3), (32, 4, 2), 60000, 0, [7, 8])
cuda.begin_capture(stream)
cuda.launch(function, (1, 2, 3), (32, 4, 2), 0, stream, [7, 9])
graph = cuda.end_capture(stream)
cuda.replay(graph, 0)
cuda.drop(graph)
cuda.unload(module)
cuda.free(first)
"""
PRINTED = """context 0x11
function 0x22 entry
attribute 0x33 8 60000
stream 1
wait (nil)
launch 0x33 (1, 2, 3) (32, 4, 2) 60000 (nil) 7 8
capture 0x44 1
launch 0x33 (1, 2, 3) (32, 4, 2) 0 0x44 7 9
graph 0x55
destroy 0x55
replay 0x66 (nil)
drop 0x66
unload 0x22
"""


def has_bindings() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings.driver") is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.skipif(not has_bindings(), reason="cuda-bindings is not installed (the extra `cuda`)")
@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="there is no C compiler for Linux")
def test_the_bindings_take_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(SOURCE), "-ldl"], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED
