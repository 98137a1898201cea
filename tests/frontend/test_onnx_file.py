"""What a model file may and may not do: sizes, element types, external data."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from frontend.onnx_build import F32, answers, evaluated, info, model, node
from tilewright.core.diag import ImportFailed
from tilewright.core.graph import CONST
from tilewright.frontend.onnx.importer import import_onnx
from tilewright.frontend.onnx.wire import without_large_tensors

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def with_tensor(tensor: TensorProto) -> onnx.ModelProto:
    """A model whose output is the tensor ``w``."""
    m = model([node("Identity", ["w"], ["y"])], [], ["y"])
    m.graph.initializer.append(tensor)
    return m


def failure(m: object, **options: object) -> str:
    with pytest.raises(ImportFailed) as caught:
        import_onnx(m, **options)  # type: ignore[arg-type]
    return str(caught.value)


def external(location: str, offset: int | None = None, length: int | None = None) -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=F32, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    entries = {"location": location, "offset": offset, "length": length}
    for key, value in entries.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return with_tensor(tensor)


def saved(folder: Path, m: onnx.ModelProto) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(m.SerializeToString())
    return path


# --- tensors in the file --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [*"bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split(), ml_dtypes.bfloat16],
)
@pytest.mark.parametrize("raw", [True, False])
def test_every_element_type_is_read(dtype, raw) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    tensor = numpy_helper.from_array(array, "w")
    if not raw:
        bits = {np.dtype(np.float16): np.uint16, np.dtype(ml_dtypes.bfloat16): np.uint16, np.dtype(bool): np.uint8}
        values = array.view(bits.get(array.dtype, array.dtype))
        field = {1: "float_data", 7: "int64_data", 11: "double_data", 12: "uint64_data", 13: "uint64_data"}
        tensor.ClearField("raw_data")
        getattr(tensor, field.get(tensor.data_type, "int32_data")).extend(values.reshape(-1).tolist())
    (y,) = answers(with_tensor(tensor), {})
    assert y.dtype == array.dtype
    np.testing.assert_array_equal(y, array)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"dims": [2, 4]}, "8 f32 elements need 32"),
        ({"dims": [10**9, 10**6]}, "has 24 bytes where"),
        ({"dims": [-2, -3]}, "negative dimension"),
        ({"dims": [1] * 65}, "dimensions"),
        ({"data_type": 999}, "unknown element type code 999"),
        ({"data_type": TensorProto.COMPLEX64}, "element type complex64 is not supported"),
        ({"data_type": TensorProto.INT4}, "has 24 bytes where 6 i4 elements"),
        ({"data_type": TensorProto.BOOL, "dims": [24]}, "neither 0 nor 1"),
    ],
)
def test_contradictory_tensor(change, rule) -> None:
    tensor = numpy_helper.from_array(X, "w")
    for field, value in change.items():
        if field == "dims":
            del tensor.dims[:]
            tensor.dims.extend(value)
        else:
            setattr(tensor, field, value)
    message = failure(with_tensor(tensor))
    assert rule in message and 'initializer "w"' in message


def test_typed_field_of_wrong_length() -> None:
    tensor = TensorProto(name="w", data_type=F32, dims=[3], float_data=[1.0, 2.0])
    assert "has 2 elements where its shape needs 3" in failure(with_tensor(tensor))


def test_typed_field_out_of_range() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.INT8, dims=[1], int32_data=[300])
    assert "outside the range of i8" in failure(with_tensor(tensor))


def test_sparse_constant() -> None:
    values = numpy_helper.from_array(np.array([5.0, 7.0], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 5]), "i")
    sparse = helper.make_sparse_tensor(values, indices, [2, 3])
    m = model([node("Identity", ["w"], ["y"])], [], ["y"])
    m.graph.sparse_initializer.append(sparse)
    np.testing.assert_array_equal(answers(m, {})[0], [[0, 5, 0], [0, 0, 7]])
    m.graph.sparse_initializer[0].dims[:] = [1 << 40, 1 << 40]
    assert "too large to make dense" in failure(m)


def test_constant_shape_of_terabytes_is_never_allocated() -> None:
    nodes = [node("ConstantOfShape", ["n"], ["z"]), node("Gather", ["z", "i"], ["y"])]
    g = import_onnx(model(nodes, [], ["y"], {"n": np.array([10**15]), "i": np.array(0)}))
    assert g.outputs[0].shape == ()


# --- large tensors are views of the file ------------------------------------------------------------------------------


def large() -> onnx.ModelProto:
    """Two large initializers around a small one, all of whose numbers differ."""
    arrays = {"a": np.arange(3000.0), "b": np.arange(3.0), "c": -np.arange(3000.0)}
    nodes = [node("Sum", ["a", "c"], ["s"]), node("Identity", ["b"], ["t"]), node("Identity", ["c"], ["u"])]
    return model(nodes, [], ["s", "t", "u"], {k: v.astype(np.float32) for k, v in arrays.items()})


def test_large_tensors_are_not_copied(tmp_path) -> None:
    g = import_onnx(saved(tmp_path, large()))
    shared = [n.attrs.data.array for n in g.nodes() if n.op is CONST and n.attrs.data.array.size == 3000]
    assert len(shared) == 2 and not any(a.flags.owndata or a.flags.writeable for a in shared)
    for source in (large(), large().SerializeToString(), tmp_path / "m.onnx"):
        s, t, u = answers(source, {})
        assert not s.any() and t.tolist() == [0, 1, 2] and u[-1] == -2999


def test_message_without_large_tensors() -> None:
    data = large().SerializeToString()
    message, numbers = without_large_tensors(memoryview(data))
    assert len(message) < 400 and [n and len(n) for n in numbers] == [12000, None, 12000]
    parsed = onnx.ModelProto.FromString(bytes(message))
    assert [t.name for t in parsed.graph.initializer] == ["a", "b", "c"] and len(parsed.graph.node) == 3


def test_a_graph_in_two_parts_is_one_graph() -> None:
    """Protobuf joins repeated sub-messages: the numbers must follow the tensors."""
    m, extra = large(), onnx.ModelProto()
    extra.graph.initializer.append(numpy_helper.from_array(np.full(2000, 5, np.float32), "d"))
    extra.graph.output.append(helper.make_empty_tensor_value_info("d"))
    assert answers(m.SerializeToString() + extra.SerializeToString(), {})[3][-1] == 5


def test_large_tensor_of_wrong_size() -> None:
    m = large()
    m.graph.initializer[2].dims[:] = [3001]
    assert "12000 bytes where 3001 f32 elements need 12004" in failure(m.SerializeToString())


@pytest.mark.parametrize("data", [b"\x3a\xff", b"\x3a\x7f\x00", b"\x00\x00", b"\x3b\x3c", b"\xff" * 20])
def test_bytes_that_are_no_fields_are_left_to_protobuf(data) -> None:
    assert without_large_tensors(memoryview(data)) == (data, [])


# --- the model itself -----------------------------------------------------------------------------------------------


def test_path_bytes_and_message_give_the_same(tmp_path) -> None:
    m = model([node("Relu", ["x"], ["y"])], [info("x", [2, 3])], ["y"])
    path = saved(tmp_path, m)
    for source in (m, m.SerializeToString(), path, str(path)):
        np.testing.assert_array_equal(answers(source, {"x": X - 3})[0], np.maximum(X - 3, 0))


@pytest.mark.parametrize("data", [b"", b"not a model", b"\xff" * 100])
def test_not_a_model(data) -> None:
    failure(data)


def test_unreadable_paths(tmp_path) -> None:
    assert "can't be read" in failure(tmp_path / "none.onnx")
    assert "regular file" in failure(tmp_path) or "can't be read" in failure(tmp_path)
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "not a regular file" in failure(tmp_path / "pipe.onnx")
    assert "expected a path" in failure(3)


# --- external data --------------------------------------------------------------------------------------------------


def test_external_data_is_mapped(tmp_path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 64 + X.tobytes())
    g = import_onnx(saved(tmp_path, external("w.bin", 64, 24)))
    (w,) = [n for n in g.nodes() if n.op is CONST]
    assert not w.attrs.data.array.flags.owndata
    np.testing.assert_array_equal(evaluated(g, {})[0], X)


def test_external_data_in_a_folder_below(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(X.tobytes())
    np.testing.assert_array_equal(answers(saved(tmp_path, external("data/w.bin")), {})[0], X)


@pytest.mark.parametrize(
    ("offset", "length", "rule"),
    [
        (0, 25, "belongs to another model"),
        (1 << 62, 24, "belongs to another model"),
        (None, 20, "external data has 20 bytes"),
        (-1, 24, "not a natural number"),
        ("0x10", 24, "not a natural number"),
        (1, None, "belongs to another model"),
    ],
)
def test_external_range_outside_of_the_file(tmp_path, offset, length, rule) -> None:
    (tmp_path / "w.bin").write_bytes(X.tobytes())
    assert rule in failure(saved(tmp_path, external("w.bin", offset, length)))


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "", ".", "a/../w.bin", "a//w.bin", "a\\w.bin", "a\0b"])
def test_external_location_outside_of_the_folder(tmp_path, location) -> None:
    (tmp_path / "w.bin").write_bytes(X.tobytes())
    (tmp_path / "inner").mkdir()
    assert "plain relative path" in failure(saved(tmp_path / "inner", external(location)))


def test_external_links_and_special_files_are_refused(tmp_path) -> None:
    real = tmp_path / "real.bin"
    real.write_bytes(X.tobytes())
    (tmp_path / "soft.bin").symlink_to(real)
    (tmp_path / "linked").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.bin")
    (tmp_path / "folder.bin").mkdir()
    assert "symbolic links are refused" in failure(saved(tmp_path, external("soft.bin")))
    assert "can't be opened" in failure(saved(tmp_path, external("linked/real.bin")))
    assert "not a regular file" in failure(saved(tmp_path, external("pipe.bin")))
    assert "not a regular file" in failure(saved(tmp_path, external("folder.bin")))
    assert "can't be opened" in failure(saved(tmp_path, external("none.bin")))
    os.link(real, tmp_path / "hard.bin")
    assert "hard link" in failure(saved(tmp_path, external("hard.bin")))


def test_external_data_without_a_path() -> None:
    assert "given without a path" in failure(external("w.bin"))
