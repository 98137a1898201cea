"""``.pt2`` files that run code where PyTorch loads them are refused; what ``torch.export.save`` writes is read."""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import tilewright as tw
from tilewright.frontend.torch.archive import refuse_code
from tilewright.frontend.torch.export import load_program
from tilewright.runtime.errors import InputError

RAN: list[str] = []
"""Who ran code."""


def run() -> None:
    RAN.append("a pickle")


class Runs:
    """Unpickling one calls a function."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return run, ()


class Program(torch.nn.Module):
    """Sizes, guards, a branch, an equation of letters, containers."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        if x.shape[0] % 2 == 0:
            x = x * 2
        z = torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,))
        return {"a (sum)": torch.einsum("ab,ab->a", x, x), "found": defaultdict(list, k=[z[z > 0], x.shape[0] // 2])}


class Named(torch.nn.Module):
    """Keys of weights, of modules, of arguments and of results that are no words."""

    def __init__(self) -> None:
        super().__init__()
        self.of = torch.nn.ParameterDict({key: torch.nn.Parameter(torch.ones(3)) for key in ("x,y", "f(1)", "é#")})
        self.layers = torch.nn.ModuleDict({"exit(1)": torch.nn.Linear(3, 3)})
        self.register_buffer("n;1", torch.zeros(3))

    def forward(self, x: torch.Tensor, *, given: dict[str, torch.Tensor], mode: str = "a(b), c") -> Any:
        count = self.get_buffer("n;1")
        count.add_(1)
        h = self.layers["exit(1)"](sum(self.of.values(), x)) + count
        return {'r\'s "(s)"': h * (1 + given["a, b(1)"].shape[0] % 2), "größe": given["größe"]}


FREE = frozenset({"metadata", "as_string"})
"""Keys of texts that nobody evaluates, where ``Program`` has them."""
Records = dict[str, bytes]


@pytest.fixture(scope="module")
def records() -> Records:
    program = torch.export.export(Program(), (torch.ones(4, 3), torch.ones(2)), dynamic_shapes=({0: Dim.AUTO}, None))
    file = io.BytesIO()
    torch.export.save(program, file)
    with zipfile.ZipFile(file) as held:
        return {name: held.read(name) for name in held.namelist()}


def written(path: Path, records: Records) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for name, data in records.items():
            file.writestr(name, data)
    return path


def texts(value: Any, key: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Each text that a rule holds for: what holds it, where, and its key."""
    for place, below in value.items() if isinstance(value, dict) else enumerate(value):
        own = place if isinstance(place, str) else key
        if own not in FREE:
            if isinstance(below, str):
                yield value, place, own
            elif isinstance(below, dict | list):
                yield from texts(below, own)


def with_model(records: Records, change: Callable[[Any], None]) -> Records:
    (name,) = (name for name in records if name.endswith("models/model.json"))
    model = json.loads(records[name])
    change(model)
    return {**records, name: json.dumps(model).encode()}


def test_what_pytorch_saves_is_read(tmp_path: Path, records: Records) -> None:
    program = load_program(written(tmp_path / "m.pt2", records))
    x, y = torch.rand(6, 3), torch.tensor([1.0, -1.0])
    torch.testing.assert_close(program.module()(x, y), Program()(x, y))


def test_keys_are_no_words(tmp_path: Path) -> None:
    """PyTorch writes them in quotes, which they don't end."""
    args, given = (torch.rand(2, 3),), {"a, b(1)": torch.ones(4, 3), "größe": torch.ones(2)}
    keys: dict[str, Any] = {"given": given, "mode": "a(b), c"}
    shapes = {"x": None, "given": {"a, b(1)": {0: Dim.AUTO}, "größe": None}, "mode": None}
    for dynamic_shapes in (None, shapes):
        path, module = tmp_path / "m.pt2", Named()
        torch.export.save(torch.export.export(module, args, keys, dynamic_shapes=dynamic_shapes), path)
        torch.testing.assert_close(load_program(path).module()(*args, **keys), module(*args, **keys))


def test_every_text_of_a_program_has_a_rule(tmp_path: Path, records: Records) -> None:
    """A call, a default value, a statement, an import: in the place of a name, a size, a condition or containers.

    What PyTorch writes in quotes would end them.
    """
    model = json.loads(next(data for name, data in records.items() if name.endswith("models/model.json")))
    n = len(list(texts(model)))
    hostile = itertools.cycle(["__import__('os').getpid()", "a=print()", "x\nimport os"])

    def change(k: int, model: Any) -> None:
        holder, place, key = list(texts(model))[k]
        changed = '", exit(1), "' if key in ("fqn", "parameter_name", "buffer_name") else next(hostile)
        holder[place] = '{"__enum__": 1, "fqn": "os:x"}' if key == "out_spec" else changed

    for k in range(n):
        changed = with_model(records, partial(change, k))
        with pytest.raises(InputError, match="could run code"):
            refuse_code(written(tmp_path / "m.pt2", changed))
    assert n > 60


@pytest.mark.parametrize("text", [
    "Symbol('s7\\\n' # ', positive=True) + 0*__import__('os').getpid() #\n , positive=True)",
    "s7 # + 1", "s7 +\n1", "s7\t", "9**9**9", "Pow(9, Pow(9, 9))", "(((9**64)**64)**64)**64", "1 << 10**12", "Pow()",
])  # fmt: skip
def test_sizes_are_read_in_one_way_and_in_no_time(tmp_path: Path, records: Records, text: str) -> None:
    """SymPy takes lines for one, so that what Python reads as a comment is code; and powers of numbers fill memory."""

    def change(model: Any) -> None:
        model["range_constraints"][text] = {"min_val": 2, "max_val": None}

    with pytest.raises(InputError, match="could run code"):
        refuse_code(written(tmp_path / "m.pt2", with_model(records, change)))


@pytest.mark.parametrize("name", ["metadata", "as_string", "as_strings"])
def test_a_tensor_of_any_name_is_looked_at(tmp_path: Path, records: Records, name: str) -> None:
    def change(model: Any) -> None:
        values = model["graph_module"]["graph"]["tensor_values"]
        values[name] = {"sizes": [{"as_expr": {"expr_str": "exit(1)", "hint": None}}]}

    with pytest.raises(InputError, match=r"of SymExpr\.expr_str"):
        refuse_code(written(tmp_path / "m.pt2", with_model(records, change)))


def test_roots_of_sizes_are_read(tmp_path: Path, records: Records) -> None:
    def change(model: Any) -> None:
        model["guards_code"] = ["torch.sym_float(L['x'].size()[0])**0.5 >= 2"]
        model["range_constraints"]["Pow(Pow(s0, 2) + 1, Rational(1, 2))"] = {"min_val": 2, "max_val": None}

    refuse_code(written(tmp_path / "m.pt2", with_model(records, change)))


def test_ranges_are_of_arithmetic(tmp_path: Path, records: Records) -> None:
    """``Dim`` of a multiple of another has a range of its own."""

    def with_range(of: str) -> Path:
        def change(model: Any) -> None:
            model["range_constraints"][of] = {"min_val": 2, "max_val": None}

        return written(tmp_path / "m.pt2", with_model(records, change))

    for of in ("2*s12", "Max(1, (s0//8)) + u0"):
        refuse_code(with_range(of))
    with pytest.raises(InputError, match="could run code"):
        refuse_code(with_range("exit(1)"))


@pytest.mark.parametrize("text", [
    "max(['exit()'], key=eval) != 7", "max(['exit()'], key=L) != 7", "isinstance(L['x'], eval)", "max(exec, 2) > 1",
    "[open][0] != 1", "len({1: 2}) == 1", "max(*L) > 1",
])  # fmt: skip
def test_conditions_hand_no_function_to_another(tmp_path: Path, records: Records, text: str) -> None:
    """Which may call it with any text, and texts in conditions need be no words."""

    def change(model: Any) -> None:
        model["guards_code"] = [text]

    with pytest.raises(InputError, match=r"of ExportedProgram\.guards_code"):
        refuse_code(written(tmp_path / "m.pt2", with_model(records, change)))


@pytest.mark.parametrize(
    "text", ["Max(s0, key=eval)", "Symbol('s', cls=eval)", "Max(s0, eval)", "sympify", "2*__import__"]
)
def test_sizes_name_no_functions(tmp_path: Path, records: Records, text: str) -> None:
    def change(model: Any) -> None:
        model["range_constraints"][text] = {"min_val": 2, "max_val": None}

    with pytest.raises(InputError, match="could run code"):
        refuse_code(written(tmp_path / "m.pt2", with_model(records, change)))


@pytest.mark.parametrize("target", [
    "torch.ops.aten.from_file.default", "torch.ops.aten.save.default",
    "torch.os.system", "torch.ops.load_library", "torch.ops.aten.sin", "_operator.methodcaller", "os.system", "#x",
])  # fmt: skip
def test_what_is_no_operator_is_not_called(tmp_path: Path, records: Records, target: str) -> None:
    def change(model: Any) -> None:
        model["graph_module"]["graph"]["nodes"][0]["target"] = target

    with pytest.raises(InputError, match=r"of Node\.target"):
        refuse_code(written(tmp_path / "m.pt2", with_model(records, change)))


@pytest.mark.parametrize("spec", [
    {"default_factory_module": "os", "default_factory_name": "getpid"},
    {"default_factory_module": "builtins", "default_factory_name": "breakpoint"},
    {"__enum__": True, "fqn": "antigravity:x", "name": "x"},
    {"f(x)": 1},
])  # fmt: skip
@pytest.mark.parametrize("depth", [0, 2])
def test_containers_import_nothing(tmp_path: Path, records: Records, spec: dict[str, Any], depth: int) -> None:
    text = json.dumps(spec).replace("_", "\\u005f")  # an escape is no hiding place
    for _ in range(depth):
        text = json.dumps([1, {"context": text}])

    def change(model: Any) -> None:
        model["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = text

    with pytest.raises(InputError, match=r"of ModuleCallSignature\.in_spec"):
        refuse_code(written(tmp_path / "m.pt2", with_model(records, change)))


@pytest.mark.parametrize("name", ["x=exit(1)", "x, y", "(1)"])
def test_names_of_arguments_are_words(tmp_path: Path, records: Records, name: str) -> None:
    """Keys further inside need not be."""

    def with_spec(names: list[str], keys: list[str]) -> Path:
        leaf: Any = {"type": None, "context": None, "children_spec": []}
        inside = {"type": "builtins.dict", "context": json.dumps(keys), "children_spec": [leaf]}
        kwargs = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [inside]}
        args = {"type": "builtins.tuple", "context": "null", "children_spec": []}
        spec = json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": [args, kwargs]}])

        def change(model: Any) -> None:
            model["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = spec

        return written(tmp_path / "m.pt2", with_model(records, change))

    refuse_code(with_spec(["x"], [name]))
    ending = [f"{name}'", f'{name}"', f'["{name}"]', json.dumps(name), json.dumps({"x": name})]  # some are JSON, too
    for names, keys in (([name], ["x"]), ([[name]], []), *((["x"], [key]) for key in ending)):
        with pytest.raises(InputError, match=r"of ModuleCallSignature\.in_spec"):
            refuse_code(with_spec(names, keys))


@pytest.mark.parametrize("value", ["exit(1)", ["exit(1)"], {"exit(1)": 1}])
@pytest.mark.parametrize("place", ["inputs", "outputs", "tensor_values", "is_single_tensor_return"])
def test_what_is_of_another_kind_is_refused(tmp_path: Path, records: Records, place: str, value: Any) -> None:
    """PyTorch takes a text for a number as it is, and reads a list as its table's kinds say."""

    def change(model: Any) -> None:
        model["graph_module"]["graph"][place] = value

    with pytest.raises(InputError, match="could run code"):
        refuse_code(written(tmp_path / "m.pt2", with_model(records, change)))


def test_a_text_that_is_an_input_ends_no_quotes(tmp_path: Path, records: Records) -> None:
    """PyTorch writes it into the source of a condition; an argument of a call it writes as ``repr`` does."""

    def change(model: Any) -> None:
        model["graph_module"]["graph"]["inputs"][0] = {"as_string": "' or exit(1) or '"}

    with pytest.raises(InputError, match=r"of Argument\.as_string"):
        refuse_code(written(tmp_path / "m.pt2", with_model(records, change)))


def test_what_a_newer_schema_holds_is_not_read(tmp_path: Path, records: Records) -> None:
    def change(model: Any) -> None:
        model["guards"] = {"exit(1)": "exit(1)"}

    assert load_program(written(tmp_path / "m.pt2", with_model(records, change)))


def hostile(kind: str, records: Records) -> Records:
    """The archive with a pickle that runs code, or a library, in one of the places where PyTorch looks."""
    data, pickled = next(iter(records)).partition("/")[0] + "/data", io.BytesIO()
    torch.save(({"x": Runs()}, {}), pickled)
    code = pickled.getvalue()

    def config(**payload: Any) -> bytes:
        return json.dumps({"config": {"w": {"is_param": True, "tensor_meta": None, **payload}}}).encode()

    weights, constants = (f"{data}/{kind}/model_{kind}_config.json" for kind in ("weights", "constants"))
    added: dict[str, Records] = {
        "inputs": {f"{data}/sample_inputs/model.pt": code},
        "inputs in capitals": {f"{data}/sample_inputs/MODEL.PT": code},
        "old weights": {f"{data}/weights/model.pt": code},
        "weights": {f"{data}/weights/w": code, weights: config(path_name="w", use_pickle=True)},
        "object": {
            f"{data}/constants/opaque_obj_0": code,
            constants: config(path_name="opaque_obj_0", use_pickle=False),
        },
        "library": {f"{data}/aotinductor/model/model.so": b"ELF"},
        "old format": {"version": b"8.1", "serialized_constants.pt": code},
    }
    left = {name: held for name, held in records.items() if kind != "inputs in capitals" or not name.endswith(".pt")}
    return {**left, **added[kind]}


@pytest.mark.parametrize(
    "kind", ["inputs", "inputs in capitals", "old weights", "weights", "object", "library", "old format"]
)
def test_pickles_and_libraries_are_not_loaded(tmp_path: Path, records: Records, kind: str) -> None:
    RAN.clear()
    path = written(tmp_path / "m.pt2", hostile(kind, records))
    with pytest.raises(InputError, match="where you trust its writer"):
        tw.compile(str(path), cache=False)
    with pytest.raises(InputError, match="where you trust its writer"):
        refuse_code(path, path.read_bytes())
    assert not RAN


def test_pytorch_itself_runs_what_a_file_says(tmp_path: Path, records: Records) -> None:
    """Where this fails, PyTorch has become careful, and less may have to be refused."""
    RAN.clear()
    torch.export.load(written(tmp_path / "m.pt2", hostile("inputs", records)))
    assert RAN
