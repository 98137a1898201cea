"""Files that are no model for us: what they are, by their bytes, and what their owner can do today.

In: the bytes of a file. Out: a ``Format``, or None for bytes that nothing here knows. Nothing of a file is executed or
unpacked. Not its business: reading models (``artifact``, the frontends).
"""

from __future__ import annotations

import re

from tilewright.runtime.plain import dataclass

TAIL_BYTES = 1 << 16
"""Bytes at a zip file's end that are searched for the names in it: its table of contents stands there."""
ZIP_END = b"PK\x05\x06"
"""What begins the record at a zip file's end."""
MODULE = "compile the PyTorch module: tilewright.compile(module, example_inputs=(x,))"


@dataclass(frozen=True)
class Format:
    """What a file is, in words that follow "is", and what to do with it."""

    what: str
    remedy: str


GGUF = Format(
    "a GGUF file, which holds weights and no graph",
    "a language model: tilewright.decoder(path); a module's weights: tilewright.with_weights(module, path)",
)
TFLITE = Format("a TensorFlow Lite model", "name the file .tflite")
SAFETENSORS = Format(
    "a safetensors file, which holds weights and no graph",
    "give them to their module or ONNX model: tilewright.with_weights(model, path)",
)
COMPILED = Format("compiled by Tilewright already", "load it: tilewright.load(path), or tilewright run PATH")
STABLEHLO = Format("an MLIR module such as StableHLO", "name the file .mlir (text) or .mlirbc (bytecode)")
TORCHSCRIPT = Format("a TorchScript program", f"{MODULE} that was scripted or traced; its Python is not in the file")
EXPORTED = Format("an exported PyTorch program", "name it with the suffix .pt2")
PICKLED = Format(
    "a PyTorch checkpoint, which holds pickled tensors and no graph",
    f"load it into its module by torch.load and load_state_dict, and {MODULE}",
)
PICKLE = Format("a Python pickle, which would run code to be read", f"open it where you trust it, and {MODULE}")
KERAS = Format("a Keras model", "export it in Keras: model.export('MODEL.onnx', format='onnx')")
HDF5 = Format("an HDF5 file, as Keras writes them", "load it in Keras: model.export('MODEL.onnx', format='onnx')")
NUMPY = Format("arrays of NumPy", "give the model; arrays go to --input")
LFS = Format("a Git LFS pointer, not the file itself", "fetch the file: git lfs pull")
HTML = Format(
    "a web page, which some downloads save in a file's place",
    "download the file itself (on Hugging Face: /resolve/ in the address, not /blob/)",
)
OPENVINO = Format("an OpenVINO model", "give the ONNX model that it was converted from")
XML = Format("XML, perhaps a server's error message", "look into it, and download the file again")
PACKED = Format("a compressed file or an archive", "unpack it, and give the model in it")
CUT = Format("an archive without an end", "it was cut short on its way: export or download it again")
JSON = Format("JSON, perhaps a model's configuration", "give the model's own file (.onnx or .pt2)")
OBJECT = Format("machine code", "give the model that it was made of; exported libraries load as runtime.library says")

EMPTY = Format("an empty file", "export or download it again")
ORT = Format("in ONNX Runtime's own format (.ort)", "give the ONNX model that it was converted from")
IMAGE = Format("an image", "give the model; arrays go to --input")
PYTHON = Format("a Python program", f"run it, and {MODULE} in it")

_MAGIC: tuple[tuple[bytes, Format], ...] = (
    (b"GGUF", GGUF),
    (b"ML\xefR", STABLEHLO),
    (b"\x89HDF\r\n\x1a\n", HDF5),
    (b"\x93NUMPY", NUMPY),
    (b"version https://git-lfs.github.com/spec/", LFS),
    (b"\x1f\x8b", PACKED),
    (b"BZh", PACKED),
    (b"\xfd7zXZ\x00", PACKED),
    (b"\x28\xb5\x2f\xfd", PACKED),
    (b"7z\xbc\xaf\x27\x1c", PACKED),
    (b"\x89PNG\r\n", IMAGE),
    (b"\xff\xd8\xff", IMAGE),
    (b"\x7fELF", OBJECT),
    (b"\xcf\xfa\xed\xfe", OBJECT),
    (b"MZ", OBJECT),
)
_TEXTS: tuple[tuple[str, Format], ...] = (
    (r"<!doctype html|<html", HTML),
    (r"(<\?xml[^>]*>\s*)?<net\b", OPENVINO),
    (r"<\?xml|<[a-z]+[ >]", XML),
    (r"(//[^\n]*\n|#[\w.]+\s*=[^\n]*\n|\s)*(builtin\.)?module\b[^\n]*\{|(//[^\n]*\n|\s)*func\.func\b", STABLEHLO),
    (r"[{\[]\s*[\"{\[\]}]", JSON),
    (r"(#[^\n]*\n|\s)*(import \w|from [\w.]+ import |\"\"\")", PYTHON),
)
_IN_ZIPS: tuple[tuple[bytes, Format], ...] = (
    (b"serialized_exported_program", EXPORTED),
    (b"archive_format", EXPORTED),
    (b"/constants.pkl", TORCHSCRIPT),
    (b"/data.pkl", PICKLED),
    (b"model.weights.h5", KERAS),
    (b".npy", NUMPY),
)


def recognise(data: memoryview) -> Format | None:
    """What a file with these bytes is, if it is one of those that people have in a model's place."""
    head = bytes(data[:4096])
    if not head:
        return EMPTY
    for magic, found in _MAGIC:
        if head.startswith(magic):
            return found
    if head[4:8] == b"TFL3":
        return TFLITE
    if head[4:8] == b"ORTM":
        return ORT
    if head.startswith(b"PK\x03\x04"):
        names = head + bytes(data[-TAIL_BYTES:])
        return next((found for part, found in _IN_ZIPS if part in names), PACKED if ZIP_END in names else CUT)
    if re.match(rb"\x80[\x02-\x05][\x8a\x95c}\]X(]", head):
        return PICKLED if b"torch" in head or head[2:3] == b"\x8a" else PICKLE
    if head[257:262] == b"ustar":
        return PACKED
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= len(data) - 8:
        return COMPILED if b'"format":"tilewright"' in head else SAFETENSORS
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n").lower()
    return next((found for pattern, found in _TEXTS if re.match(pattern, text)), None)
