"""The manifest as JSON: exact round trip, every field checked."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.tiny import scale_parts
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.manifest import (
    Constraint,
    Manifest,
    ObjectSpec,
    ScratchSpec,
    SymbolSpec,
    TensorSpec,
    WeightsSpec,
)
from tilewright.runtime.plan import Planner
from tilewright.runtime.python.model import LoadedModel


def full_manifest() -> Manifest:
    manifest, _, _ = scale_parts(
        computed=(SymbolSpec("k", 0, "2*n"),),
        n_dims=3,
        constraints=(Constraint("n % 2 == 0", "why"),),
        failures=("", "bad"),
        locations=("", "here"),
        scratch=ScratchSpec(64, 128),
        weights=WeightsSpec(12, "crc"),
        objects=(ObjectSpec("entry", 10, "0" * 64),),
        routines=("tw_eigh_f32",),
    )
    return manifest


def test_round_trip() -> None:
    manifest = full_manifest()
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    assert Manifest.from_json(text).to_json() == text
    assert Manifest.from_json(text.encode()) == manifest


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("format_version",), 0, "format_version"),
        (("format_version",), 3, "format version 3 is newer"),
        (("format_version",), "1", "format_version"),
        (("n_dims",), -1, "n_dims"),
        (("n_dims",), True, "n_dims"),
        (("n_dims",), 1 << 40, "n_dims"),
        (("inputs",), {}, "inputs"),
        (("inputs", 0), [], "inputs[0]"),
        (("inputs", 0, "dtype"), "float31", "dtype"),
        (("inputs", 0, "shape"), [-1], "shape"),
        (("inputs", 0, "shape"), [True], "shape"),
        (("inputs", 0, "shape"), [1] * 65, "shape"),
        (("symbols", 0, "name"), "a b", "name"),
        (("symbols", 0, "hi"), 1.5, "hi"),
        (("weights", "size"), 1 << 64, "size"),
        (("objects", 0, "sha256"), "0" * 63, "sha256"),
        (("objects", 0, "size"), 0, "size"),
        (("target", "features"), ["avx", 3], "features"),
        (("failures",), "none", "failures"),
        (("routines",), [1], "routines"),
        (("unknown",), 1, "unknown"),
        (("target", "unknown"), 1, "unknown"),
    ],
)
def test_wrong_field_is_named(path: tuple[Any, ...], value: Any, words: str) -> None:
    fields = json.loads(full_manifest().to_json())
    at = fields
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(ArtifactError) as caught:
        Manifest.from_json(json.dumps(fields))
    assert words in str(caught.value)


OPTIONAL = ("convention", "scratch", "routines", "decoding", "text")
"""Left out of the files of models without them, so that earlier releases read those."""
REQUIRED = [f.name for f in dataclasses.fields(Manifest) if f.name not in OPTIONAL]


@pytest.mark.parametrize("field", REQUIRED)
def test_missing_field_is_named(field: str) -> None:
    fields = json.loads(full_manifest().to_json())
    del fields[field]
    with pytest.raises(ArtifactError, match=field):
        Manifest.from_json(json.dumps(fields))


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", "[" * 100_000, '{"a": NaN}', '{"a": 1, "a": 2}', b"\xff\xfe", "1" * 5000]
)
def test_not_a_manifest(text: str | bytes) -> None:
    with pytest.raises(ArtifactError):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"n_dims": 0},
        {"inputs": (TensorSpec("x", "float32", ("m", 4)),)},
        {"inputs": (TensorSpec("x", "float32", ("n", 4)),) * 2},
        {"outputs": (TensorSpec("y", "float32", ("z",)),)},
        {"symbols": (SymbolSpec("n"), SymbolSpec("n")), "n_dims": 2},
        {"computed": (SymbolSpec("k", 0, "j"),), "n_dims": 2},
        {"failures": ("oops",)},
        {"failures": ("", "a"), "locations": ("",)},
        {"constraints": (Constraint("import os"),)},
    ],
)
def test_parts_that_contradict_each_other(fields: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match="makes no sense"):
        LoadedModel(*scale_parts(**fields))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["n", "k//n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100)
@given(st.data())
def test_any_change_gives_a_manifest_or_an_artifact_error(data: st.DataObject) -> None:
    fields = json.loads(full_manifest().to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        at, keys = fields, [*fields]
        while True:
            key = data.draw(st.sampled_from(keys))
            inner = at[key]
            if isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
                at, keys = inner, list(inner) if isinstance(inner, dict) else list(range(len(inner)))
                continue
            at[key] = data.draw(json_values)
            break
    try:
        manifest = Manifest.from_json(json.dumps(fields))
    except ArtifactError:
        return
    assert Manifest.from_json(manifest.to_json()) == manifest
    try:
        planner = Planner(manifest)
    except ValueError:
        return
    planner.check([(3, 4)] * len(manifest.inputs))
